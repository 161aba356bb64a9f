"""A network that was lent comes back as it was, and so does the world around it: after success and after an error."""

import contextlib
import hashlib
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from classifier_toys import CLASSES, Recurrent, network, normal
from torch import nn

import fringe
from fringe import Classifier
from fringe._network import isolation as _isolation
from fringe.paths import Problem, verify

TARGET = torch.tensor([0, 3])


def digest(model):
    """Everything of a module that a caller could notice: a table of strings and numbers."""
    table = {}
    for name, module in model.named_modules():
        hooks = [len(v) for k, v in sorted(vars(module).items()) if k.endswith("_hooks")]
        table[f"module {name}"] = (type(module), module.training, hooks, sorted(vars(module)))
    for name, p in model.named_parameters():
        grad = None if p.grad is None else (id(p.grad), hashlib.sha256(p.grad.numpy().tobytes()).hexdigest())
        content = hashlib.sha256(p.detach().numpy().tobytes()).hexdigest()
        table[f"parameter {name}"] = (id(p), p.requires_grad, p.dtype, p._version, grad, content)
    for name, b in model.named_buffers():
        table[f"buffer {name}"] = (id(b), b.dtype, hashlib.sha256(b.numpy().tobytes()).hexdigest())
    return table


def world():
    cuda, backends = torch.backends.cuda, torch.backends
    return {
        "rng": torch.get_rng_state().tolist(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "autocast cache": torch.is_autocast_cache_enabled(),
        "mha": backends.mha.get_fastpath_enabled(),
        "sdp": [getattr(cuda, f"{kind}_sdp_enabled")() for kind in ("flash", "mem_efficient", "math", "cudnn")],
        "precision": (backends.fp32_precision, cuda.matmul.fp32_precision, backends.cudnn.conv.fp32_precision),
        "onednn": [getattr(backends.mkldnn, layer).fp32_precision for layer in ("matmul", "conv", "rnn")],
        "legacy precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
    }


@pytest.fixture(autouse=True)
def known_world():
    """The settings that torch starts with, whatever ran before."""
    torch.backends.mha.set_fastpath_enabled(True)
    torch.backends.cuda.enable_flash_sdp(True)
    torch.backends.cuda.enable_mem_efficient_sdp(True)
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision("highest")


class Breaks(nn.Module):
    """Works for ``calls`` forward passes, then raises; draws random numbers each time."""

    def __init__(self, calls):
        super().__init__()
        self.inner = network("convolutions with batch normalisation")
        self.dropout = nn.Dropout(0.5)
        self.frozen = nn.Linear(CLASSES, CLASSES).double().requires_grad_(False)
        self.left = [calls]

    def forward(self, x):
        torch.rand(3)
        if self.left[0] == 0:
            raise KeyError("the model broke")
        self.left[0] -= 1
        return self.frozen(self.dropout(self.inner(x)))


class Counts(nn.Module):
    """Counts its calls in a buffer that two modules share, and stores each count in a buffer of its own."""

    def __init__(self):
        super().__init__()
        self.inner = network("convolutions with batch normalisation")
        self.register_buffer("seen", torch.zeros(()))
        self.inner.register_buffer("seen", self.seen)
        self.register_buffer("latest", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        self.latest = self.inner.seen + 0
        assert self.latest == self.seen
        return self.inner(x)


def lent(calls=100):
    """A model in the middle of training: flags of every kind, gradients held, hooks registered."""
    model = Breaks(calls)
    model.train()
    model.inner[1].eval()
    model.inner[4].eval()
    for p in model.inner[0].parameters():
        p.grad = torch.ones_like(p)
    model.inner[0].bias.requires_grad_(False)
    model.inner[3].register_forward_hook(lambda *_: None)
    model.frozen.register_full_backward_pre_hook(lambda *_: None)
    return model


def use_everything(classifier, x):
    classifier.logits(x)
    classifier.score_gradient(x, TARGET)
    point = classifier.linearise(x)
    point.jvp(torch.ones_like(x))
    point.vjp(torch.ones_like(point.value))


@pytest.mark.filterwarnings("ignore:the model is in training mode")
class TestGivenBack:
    @pytest.mark.parametrize("jvp_mode", ["retained", "forward"])
    @pytest.mark.parametrize("mode", ["eval", "keep"])
    def test_after_success(self, mode, jvp_mode):
        model, x = lent(), normal(2, 3, 8, 8)
        inside, outside, pixels = digest(model), world(), x.clone()
        classifier = Classifier(model, mode=mode)
        classifier.jvp_mode = jvp_mode
        use_everything(classifier, x)
        assert digest(model) == inside
        assert world() == outside
        assert torch.equal(x, pixels)
        assert not x.requires_grad
        assert x.grad is None

    @pytest.mark.parametrize("mode", ["eval", "keep"])
    def test_buffers_that_the_model_writes_into(self, mode):
        model = Counts().eval()
        inside = digest(model)
        use_everything(Classifier(model, mode=mode), normal(2, 3, 8, 8))
        assert digest(model) == inside

    @pytest.mark.parametrize("calls", [0, 1, 2, 3])
    def test_after_an_error(self, calls):
        model, x = lent(calls), normal(2, 3, 8, 8)
        inside, outside = digest(model), world()
        classifier = Classifier(model)
        classifier.jvp_mode = "forward"
        with pytest.raises(KeyError, match="the model broke"):
            use_everything(classifier, x)
        assert digest(model) == inside
        assert world() == outside

    def test_after_an_error_inside_an_open_session(self):
        model, x = lent(1), normal(2, 3, 8, 8)
        inside, outside = digest(model), world()
        classifier = Classifier(model)
        with pytest.raises(KeyError), classifier.session(x.device):
            use_everything(classifier, x)
        assert digest(model) == inside
        assert world() == outside
        model.left[0] = 5
        classifier.logits(x)  # and it opens again
        assert digest(model) == inside

    def test_settings_that_the_caller_changed(self):
        model, x = lent(), normal(2, 3, 8, 8)
        standard = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("medium")
            torch.backends.mha.set_fastpath_enabled(False)
            torch.backends.cuda.enable_flash_sdp(False)
            outside = world()
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                within = world()
                use_everything(Classifier(model), x)
                assert world() == within
            assert world() == outside
        finally:
            torch.set_float32_matmul_precision(standard)
            torch.backends.mha.set_fastpath_enabled(True)
            torch.backends.cuda.enable_flash_sdp(True)

    def test_a_leaf_of_the_callers_graph_gets_no_gradient(self):
        x = normal(2, 3, 8, 8).requires_grad_(True)
        use_everything(Classifier(lent()), x)
        assert x.grad is None
        assert x.requires_grad
        assert x.is_leaf


def test_threads_wait_for_each_other():
    """The first call ends while the second one is under way, if that has begun: the second would go on in training
    mode, and give the network back in evaluation mode."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).double()
    x, flags = normal(2, 3, 2, 2), [module.training for module in model.modules()]
    precision, expected = torch.backends.cuda.matmul.fp32_precision, fringe.attribute(model, x, method="ig").values
    entered, first_ended = threading.Event(), threading.Event()

    def during_second(done, total):
        entered.set()
        first_ended.wait()

    with ThreadPoolExecutor(1) as threads:
        calls = []

        def during_first(done, total):
            if not calls:
                calls.append(threads.submit(fringe.attribute, model, x, method="ig", progress=during_second))
                entered.wait(0.2)

        first = fringe.attribute(model, x, method="ig", progress=during_first)
        first_ended.set()
        second = calls[0].result()
    assert torch.equal(first.values, expected)
    assert torch.equal(second.values, expected)
    assert first.passes == second.passes
    assert [module.training for module in model.modules()] == flags
    assert torch.backends.cuda.matmul.fp32_precision == precision


def test_a_session_holds_the_settings_that_products_need():
    seen = []

    class Looks(nn.Module):
        def forward(self, x):
            seen.append((world(), self.training))
            return x.flatten(1)[:, :CLASSES] * 1.0

    torch.set_float32_matmul_precision("medium")  # restored by the fixture above
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        Classifier(Looks().eval()).score_gradient(normal(2, 3, 8, 8), TARGET)
    inside, training = seen[0]
    assert inside["grad"]
    assert not inside["inference"]
    assert not inside["autocast"][0]
    assert not inside["mha"]
    assert inside["sdp"] == [False, False, True, False]
    assert inside["precision"][1:] == ("ieee", "ieee")
    assert inside["onednn"] == ["ieee"] * 3
    assert not training


class TestTrainingMode:
    def test_is_explained_as_evaluation_with_one_warning_a_session(self):
        model, x = network("convolutions with batch normalisation"), normal(2, 3, 8, 8)
        expected = Classifier(model).score_gradient(x, TARGET)
        model.train()
        classifier = Classifier(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with classifier.session(x.device):
                found = classifier.score_gradient(x, TARGET)
                use_everything(classifier, x)
        for ours, theirs in zip(found, expected, strict=True):
            assert torch.equal(ours, theirs)
        (warning,) = caught
        assert str(warning.message).startswith("the model is in training mode; it is explained in evaluation mode ")
        assert "mode='keep'" in str(warning.message)

    def test_may_be_kept(self):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, CLASSES)).double().train()
        x = normal(2, 3, 8, 8)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = Classifier(model, mode="keep").logits(x)
        assert not torch.allclose(found, Classifier(model.eval()).logits(x))

    def test_kept_moves_no_running_statistics(self):
        model = network("convolutions with batch normalisation").train()
        before = digest(model)
        Classifier(model, mode="keep").logits(normal(2, 3, 8, 8))
        assert digest(model) == before


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_model_may_set_the_flags_of_cudnn_itself(allowed, tf32):
    """They raise where the older flag of TF32 contradicts the newer settings."""
    before, backends = torch.backends.cudnn.allow_tf32, torch.backends.cudnn
    seen, inner = [], network("convolutions with batch normalisation")

    def model(x):
        with backends.flags(enabled=False):
            return inner(x)

    def settings():
        return backends.allow_tf32, backends.conv.fp32_precision, backends.rnn.fp32_precision

    try:
        backends.allow_tf32 = allowed
        outside = settings()
        classifier = Classifier(lambda x: (seen.append(settings()), model(x))[1], tf32=tf32)
        use_everything(classifier, normal(2, 3, 8, 8))
        assert set(seen) == {(True, "tf32", "tf32") if tf32 else (False, "ieee", "ieee")}
        assert settings() == outside
    finally:
        backends.allow_tf32 = before


class Rounding(nn.Module):
    """Notes how float32 is rounded in its forward and backward passes."""

    def __init__(self):
        super().__init__()
        self.model, self.seen = network("convolutions with batch normalisation"), {"forward": [], "backward": []}

    def note(self, kind):
        cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        self.seen[kind].append((cudnn.allow_tf32, cuda.fp32_precision, cudnn.conv.fp32_precision))

    def forward(self, x):
        z = self.model(x)
        self.note("forward")
        if z.requires_grad:
            z.register_hook(lambda gradient: self.note("backward"))
        return z


@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_used_in_the_network_alone(tf32, monkeypatch):
    model, x = Rounding().eval(), normal(2, 3, 8, 8)
    convolution, seen = torch.convolution, []

    def noted(*arguments):
        seen.append(torch.backends.cudnn.conv.fp32_precision)
        return convolution(*arguments)

    monkeypatch.setattr(torch, "convolution", noted)
    classifier, before = Classifier(model, tf32=tf32), world()
    with classifier.session(x.device):
        inside = world()["precision"][1:]
        point = classifier.linearise(x)
        point.vjp(torch.ones(2, CLASSES))
        seen.clear()
        point.jvp(x)
        assert set(seen) == {"tf32" if tf32 else "ieee"}
        assert world()["precision"][1:] == inside == ("ieee", "ieee")
    assert world() == before
    rounding = (True, "tf32", "tf32") if tf32 else (False, "ieee", "ieee")
    assert {kind: set(seen) for kind, seen in model.seen.items()} == {"forward": {rounding}, "backward": {rounding}}
    verify(Problem.of(classifier, x))
    assert set(model.seen["backward"]) == {rounding, (False, "ieee", "ieee")}  # derivatives are checked exactly
    assert world() == before


class Rounds(nn.Module):
    """Has an error as large as TF32's where it is allowed, and another one for each number of images."""

    def __init__(self):
        super().__init__()
        self.model = network("convolutions with batch normalisation")

    def forward(self, x):
        allowed = torch.backends.cuda.matmul.fp32_precision == "tf32"
        return self.model(x + 0.1 * torch.sin(50 * x + len(x)) if allowed else x)


def test_a_model_is_verified_without_the_error_of_tf32():
    model, x = Rounds().eval(), normal(3, 3, 8, 8)
    found = fringe.attribute(Classifier(model, tf32=True), x, method="paper")
    exact = fringe.attribute(Classifier(model), x, method="paper")
    assert found.values.isfinite().all()
    assert (found.values - exact.values).norm() > 1e-3 * exact.values.norm()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_tf32_rounds_on_a_gpu():
    model, x = network("convolutions with batch normalisation").cuda(), normal(2, 3, 8, 8).float().cuda()
    exact, rounded = (Classifier(model.float(), tf32=tf32).logits(x) for tf32 in (False, True))
    error = float((rounded - exact).norm() / exact.norm())
    assert 1e-6 < error < 1e-2
    fringe.attribute(Classifier(model, tf32=True), x, method="paper")


def test_cudnn_adds_up_in_one_order_and_computes_no_recurrent_layers():
    """Its own have no gradients in evaluation mode."""
    for module, enabled in ((Recurrent(), False), (network("reused module"), True)):
        with contextlib.ExitStack() as stack:
            _isolation._limit_cudnn([*module.modules()], stack)
            assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled) == (True, enabled)
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled) == (False, True)


def test_cudnn_is_left_alone_on_other_devices():
    with _isolation.isolated([Recurrent()], torch.device("cpu"), "eval"):
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.enabled) == (False, True)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", ["fringe", "paper", "ig"])
def test_recurrent_networks_are_explained_on_a_gpu(method):
    model, x = Recurrent().eval(), normal(2, 5, 8).float()
    expected = fringe.attribute(model, x, method=method, target=TARGET)
    found = fringe.attribute(model.cuda(), x.cuda(), method=method, target=TARGET.cuda())
    torch.testing.assert_close(found.values.cpu(), expected.values, rtol=1e-2, atol=1e-4)


def test_models_whose_mode_is_fixed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()
    x = normal(2, 3, 8, 8).float()
    expected = fringe.attribute(model, x, method="ig", target=TARGET % 3).values
    exported = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},)).module()
    for fixed in (exported, torch.jit.freeze(torch.jit.script(model))):
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            found = fringe.attribute(fixed, x, method="ig", target=TARGET % 3).values
        torch.testing.assert_close(found, expected)
    mixed = nn.Sequential(nn.Dropout(0.9), exported)
    torch.testing.assert_close(fringe.attribute(mixed, x, method="ig", target=TARGET % 3).values, expected)
    assert mixed[0].training
