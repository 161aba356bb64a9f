"""Models whose derivatives are missing, partial or wrong: fallback, refusal, warning - never a silent zero."""

import contextlib
import dataclasses
import itertools
import re

import pytest
import torch
import torch.nn.functional as F
from classifier_toys import CLASSES, dense_jacobian, jvp, network, normal, vjp
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import fringe
from fringe import Classifier, ModelOutputError, NotDifferentiableError, paths
from fringe.attribution import Diffusion, PaperFRInGe
from fringe.paths import Problem

X = normal(1, 3, 2, 2)
HEAD = normal(CLASSES, 12, seed=1)


def slope(x):
    return 1 - x.tanh().square()


def operation(backward, *, once=False, forward_mode=None):
    """tanh as a custom autograd function with a backward of one's own, and perhaps a forward-mode rule."""
    rule = once_differentiable(backward) if once else backward

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.tanh()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

    Custom.backward = staticmethod(rule)
    if forward_mode:
        Custom.jvp = staticmethod(forward_mode)
    return Custom


def ahead(ctx, tangent):
    """The forward-mode rule of tanh."""
    return tangent * slope(*ctx.saved_tensors)


def model_of(function):
    return lambda x: function.apply(x).flatten(1) @ HEAD.T


def right(ctx, g):
    return g * slope(*ctx.saved_tensors)


def verify(model, x=X):
    classifier = Classifier(model)
    with classifier.session(x.device):
        paths.verify(Problem.of(classifier, x))
    return classifier


def smooth(x):
    return x.tanh().flatten(1) @ HEAD.T


NOT_LINEAR = r"not the derivative of its output|neither differentiating its backward"
WRONG_BACKWARDS = {
    "once": (right, r"disagree|nor forward-mode differentiation works"),
    "detached": (lambda ctx, g: right(ctx, g.detach()), NOT_LINEAR),
    "clipped": (lambda ctx, g: right(ctx, g.clamp(-0.1, 0.1)), NOT_LINEAR),
    "signs": (lambda ctx, g: right(ctx, g.sign()), NOT_LINEAR),
    "zero": (lambda ctx, g: torch.zeros_like(g), r"changes with the input but its gradient is exactly zero"),
    "none": (lambda ctx, g: None, r"changes with the input but its gradient is exactly zero"),
}


class TestCustomFunctions:
    @pytest.mark.filterwarnings("ignore:the model has no second derivatives")
    @pytest.mark.parametrize("once", [False, True])
    def test_with_right_derivatives_are_believed(self, once):
        classifier = verify(model_of(operation(right, once=once, forward_mode=ahead if once else None)))
        v = normal(1, 3, 2, 2, seed=5)
        assert torch.allclose(classifier.linearise(X).jvp(v), jvp(dense_jacobian(smooth, X), v), rtol=1e-12)
        assert classifier.jvp_mode == ("forward" if once else "double_backward")

    def test_without_second_derivatives_fall_back_to_forward_mode(self):
        # grid_sample's backward has no derivative for this padding; here an operation says so itself
        def refuses(ctx, g):
            return NoSecond.apply(g, *ctx.saved_tensors)

        class NoSecond(torch.autograd.Function):
            @staticmethod
            def forward(ctx, g, x):
                return g * slope(x)

            @staticmethod
            def backward(ctx, g):
                raise NotImplementedError("the derivative for 'tanh_backward' is not implemented")

        classifier = Classifier(model_of(operation(refuses, forward_mode=ahead)))
        point = classifier.linearise(X)
        u, v, exact = normal(1, CLASSES), normal(1, 3, 2, 2, seed=5), dense_jacobian(smooth, X)
        with pytest.warns(UserWarning, match=r"no second derivatives \(the derivative for 'tanh_ba.*forward-mode"):
            found = point.jvp(v)
        assert classifier.jvp_mode == "forward"
        assert torch.allclose(found, jvp(exact, v), rtol=1e-12)
        assert torch.allclose(point.jvp(2 * v), 2 * found, rtol=1e-12)
        assert torch.allclose(point.vjp(u), vjp(exact, u), rtol=1e-12)
        assert torch.allclose(classifier.linearise(X).vjp(u), vjp(exact, u), rtol=1e-12)

    def test_whose_backward_drops_part_of_what_comes_back_fall_back_to_forward_mode(self):
        """Differentiating that backward pass gives half of J v, without an error."""
        half = lambda ctx, g: right(ctx, 0.5 * (g + g.detach()))  # noqa: E731
        with pytest.warns(UserWarning, match=r"its backward pass is not linear.*forward-mode"):
            classifier = verify(model_of(operation(half, forward_mode=ahead)))
        v = normal(1, 3, 2, 2, seed=5)
        assert classifier.jvp_mode == "forward"
        assert torch.allclose(classifier.linearise(X).jvp(v), jvp(dense_jacobian(smooth, X), v), rtol=1e-12)

    @pytest.mark.parametrize("name", WRONG_BACKWARDS)
    def test_with_a_backward_that_is_no_derivative_are_refused(self, name):
        backward, message = WRONG_BACKWARDS[name]
        with pytest.raises(NotDifferentiableError, match=message):
            verify(model_of(operation(backward, once=name == "once")))


@torch.library.custom_op("fringe_toys::sine", mutates_args=())
def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@torch.library.custom_op("fringe_toys::sine_backward", mutates_args=())
def sine_backward(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return grad * x.cos()


sine.register_autograd(
    lambda ctx, grad: sine_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


class TestOperations:
    @pytest.mark.filterwarnings("ignore:the model has no second derivatives")
    def test_of_a_library_without_jvps_are_refused_with_what_works(self):
        """Forward mode takes what they return for a constant and raises no error: J v would lack their part."""
        weight, method = 3 * normal(CLASSES, 12, seed=6), fringe.FRInGe(steps=4)
        own = lambda x: sine(x.flatten(1)) @ weight.T  # noqa: E731
        with pytest.raises(NotDifferentiableError, match=r"disagree .*<u, Jv> = 0,.*FRInGe\(\) for images"):
            fringe.attribute(own, X, method=Diffusion())
        found = fringe.attribute(own, X, method=method)
        expected = fringe.attribute(lambda x: x.flatten(1).sin() @ weight.T, X, method=method)
        assert expected.values.abs().max() > 0.1
        torch.testing.assert_close(found.values, expected.values, rtol=1e-9, atol=1e-12)

    def test_that_have_neither_derivative_are_named(self):
        lengths = torch.tensor([[5, 7]])
        model = Classifier(lambda x: torch.segment_reduce(x.flatten(1), "sum", lengths=lengths, axis=1))
        named = r"neither .* nor forward-mode .*segment_reduce.*replace the operation"
        with (
            pytest.warns(UserWarning, match="_segment_reduce_backward is not implemented"),
            pytest.raises(NotDifferentiableError, match=named),
        ):
            model.linearise(X).jvp(X)

    @pytest.mark.parametrize(
        "error",
        [
            torch.OutOfMemoryError("no memory left"),
            RuntimeError("GET was unable to find an engine to execute this computation"),
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            RuntimeError("CUDA error: an illegal memory access was encountered"),
        ],
    )
    def test_what_the_machine_lacks_is_not_taken_for_a_missing_derivative(self, error):
        def full(ctx, g):
            return Full.apply(g, *ctx.saved_tensors)

        class Full(torch.autograd.Function):
            @staticmethod
            def forward(ctx, g, x):
                return g * slope(x)

            @staticmethod
            def backward(ctx, g):
                raise error

        classifier = Classifier(model_of(operation(full)))
        with pytest.raises(RuntimeError, match=re.escape(str(error))):
            classifier.linearise(X).jvp(X)
        assert classifier.jvp_mode == "double_backward"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_what_the_machine_lacks_is_not_taken_for_a_fault_of_the_model(where):
    error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def fails(ctx, g):
        raise error

    own = model_of(operation(fails))

    def model(x):
        if where == "forward" and len(x) < 3:
            raise error
        return own(x)

    problem = Problem.of(Classifier(model), normal(3, 3, 2, 2))
    with pytest.raises(RuntimeError, match=re.escape(str(error))) as seen:
        paths.verify(problem)
    assert seen.value is error


@pytest.mark.parametrize("images", [1, 3])
def test_a_model_that_fails_on_any_number_of_images_is_not_said_to_need_the_others(images):
    """It worked once; its own error is raised, of one image and of several."""
    error, calls = RuntimeError("the service is closed"), []

    def model(x):
        calls.append(len(x))
        if len(calls) > 1:
            raise error
        return smooth(x)

    problem = Problem.of(Classifier(model), normal(images, 3, 2, 2))
    with pytest.raises(RuntimeError, match="the service is closed") as seen:
        paths.verify(problem)
    assert seen.value is error
    assert calls[:3] == [images, 1, 1]  # one image alone fails, too


def test_a_tangent_of_another_shape_is_not_taken_for_a_missing_derivative():
    classifier = Classifier(smooth)
    with pytest.raises(ValueError, match=r"\(1, 3, 2, 1\)"):
        classifier.linearise(X).jvp(X[..., :1])
    assert classifier.jvp_mode == "double_backward"


def without_gradient(x):
    with torch.no_grad():
        return smooth(x)


DISCONNECTED = {
    "detach": lambda x: smooth(x.detach()),
    "no_grad": without_gradient,
    "argmax": lambda x: F.one_hot(smooth(x).argmax(1), CLASSES).double() * 3,
    "numpy": lambda x: torch.from_numpy(x.detach().numpy()).flatten(1) @ HEAD.T,
    "inference session": torch.inference_mode()(smooth),
}
STEPS = {
    "round": lambda x: (255 * x).round().flatten(1) @ HEAD.T,
    "table": lambda x: HEAD.T[(x.flatten(1)[:, :6] * 8).long().clamp(0, 11)].sum(1) + 0 * x.sum(),
    "argmax": lambda x: DISCONNECTED["argmax"](x) + 0 * x.sum(),  # of wide plateaus, as the next
    "threshold": lambda x: (x > 0).double().flatten(1) @ HEAD.T + 0 * x.sum(),
}


class TestNoGradientPath:
    @pytest.mark.parametrize("name", DISCONNECTED)
    def test_is_told_at_once(self, name):
        with pytest.raises(NotDifferentiableError, match=r"not connected to the input .*that needs no gradient"):
            Classifier(DISCONNECTED[name]).linearise(X)

    def test_through_learnt_parameters_of_a_function_is_told_by_verify(self):
        # the function's module is found and frozen, so that the output has no graph
        head = nn.Linear(12, CLASSES).double()
        with pytest.raises(NotDifferentiableError, match=r"not connected to the input"):
            verify(lambda x: head(x.detach().flatten(1)))

    def test_of_a_backward_pass_that_fails_is_told_with_its_cause(self):
        def overwritten(x):
            y = smooth(x).exp()
            y += 1  # exp needs its result in the backward pass
            return y

        with pytest.raises(NotDifferentiableError, match=r"backward pass fails \(one of the v[^(]*\); write y = y"):
            verify(overwritten)

    @pytest.mark.parametrize("name", STEPS)
    def test_of_piecewise_constant_models_is_told_by_verify(self, name):
        plateaus = name in ("argmax", "threshold")
        message = "." if plateaus else r"gradient is exactly zero.*rounding, quantisation"
        with pytest.raises(NotDifferentiableError, match=message):
            verify(STEPS[name])

    def test_of_a_constant_model_is_right(self):
        point = verify(lambda x: 0 * smooth(x) + torch.arange(5.0)).linearise(X)
        assert torch.equal(point.vjp(normal(1, CLASSES)), torch.zeros_like(X))
        assert torch.equal(point.jvp(normal(1, 3, 2, 2)), torch.zeros(1, CLASSES, dtype=torch.float64))


class TestRandomModels:
    def test_that_mix_the_images_of_a_batch_are_noticed(self):
        def mixing(x):
            y = smooth(x)
            return y - y.mean(0)

        x = normal(4, 3, 2, 2)
        classifier = Classifier(mixing)
        with pytest.raises(ModelOutputError, match=r"images \[0\] of 4 have other logits.*mixes images"):
            paths.verify(Problem.of(classifier, x))

    @pytest.mark.parametrize("images", [1, 3])
    def test_are_refused(self, images):
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, CLASSES)).double().train()
        with pytest.raises(ModelOutputError, match=r"differ by .* is random, .*switch its noise off, or"):
            fringe.attribute(Classifier(model, mode="keep"), normal(images, 3, 2, 2), method="ig")

    def test_are_not_said_to_mix_images_if_one_logit_grows_from_call_to_call(self):
        calls = itertools.count(1)
        growing = lambda x: smooth(x) + next(calls) * torch.eye(CLASSES, dtype=x.dtype)[1]  # noqa: E731
        with pytest.raises(ModelOutputError, match=r"differ by 2: the model is random"):
            verify(growing, normal(3, 3, 2, 2))

    @pytest.mark.parametrize("where", [0, 2, 4, "order"])
    @pytest.mark.parametrize("level", [0.0, -50.0])
    @pytest.mark.parametrize("sign", [1.0, -1.0])
    def test_a_shift_by_the_batch_is_noticed_from_a_thousandth_of_the_largest_logit_on(self, where, level, sign):
        """Of the first, middle or last image of a batch, or of one that comes after a larger one: 0.2 % are refused in
        either direction, 0.05 % are rounding."""
        x = torch.arange(20.0, dtype=torch.float64).view(5, 4)

        def shifted(share):
            def model(z):
                after = torch.cat([z[:1], z[:-1]]).sum(1) > z.sum(1)
                mark = after if where == "order" else (torch.arange(len(z)) == where) & (len(z) == 5)
                return z + level + sign * share * (x + level).abs().max() * mark[:, None]

            return Classifier(model)

        with pytest.raises(ModelOutputError, match="other logits"):
            paths.verify(Problem.of(shifted(2e-3), x), ["none"])
        paths.verify(Problem.of(shifted(5e-4), x), ["none"])

    @pytest.mark.filterwarnings("error")
    def test_logits_of_zero_have_no_least_rounding(self):
        verify(lambda x: 0 * smooth(x), normal(3, 3, 2, 2))

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("name", ["convolutions with batch normalisation", "transformer", "LSTM"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_ordinary_models_pass_in_silence(self, name, dtype):
        shape = (3, 8, 8) if name.startswith("conv") else (4, 8)
        classifier, x = Classifier(network(name, dtype)), normal(3, *shape, dtype=dtype)
        with classifier.session(x.device):
            paths.verify(Problem.of(classifier, x))
        assert classifier.jvp_mode == "double_backward"


GRADIENTS_ONLY = [
    fringe.IntegratedGradients(steps=4),
    fringe.GuidedIG(steps=4),
    PaperFRInGe(tau=0.05),
]


class Trunk(nn.Module):
    """Convolution, ReLU and linear layer, with an operation between them."""

    def __init__(self, operation=None, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.conv, self.head, self.operation = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8 * 36, CLASSES), operation
        for parameter in self.parameters():
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
        self.eval().requires_grad_(False)

    def forward(self, x):
        y = self.conv(x).relu()
        return self.head((y if self.operation is None else self.operation(y)).flatten(1))


def scaled(factor, *, once=False, forward=None):
    """The identity, with a backward pass that multiplies by ``factor``, and perhaps a forward-mode rule."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return factor * grad

    if once:
        Scaled.backward = staticmethod(once_differentiable(lambda ctx, grad: factor * grad))
    if forward is not None:
        Scaled.jvp = staticmethod(lambda ctx, tangent: forward * tangent)
    return Scaled.apply


IMAGES = normal(3, 3, 6, 6, dtype=torch.float32)
PRODUCTS = Diffusion(steps=2)


#: An operation, the plain one of the same gradients, and why products through it are refused.
WITHOUT_PRODUCTS = {
    "once": (scaled(1.0, once=True), None, "neither differentiating its backward pass nor forward-mode"),
    "forward mode": (scaled(1.0, once=True, forward=1.02), None, ""),
    "checkpoint": (lambda y: checkpoint(torch.tanh, y, use_reentrant=True), torch.tanh, "use_reentrant=False"),
    "library": (sine, torch.sin, ""),
}


class TestMethodsThatNeedOneGradient:
    @pytest.mark.parametrize("kind", ["once", "checkpoint"])
    @pytest.mark.parametrize("method", GRADIENTS_ONLY, ids=lambda method: method.name)
    def test_work_without_second_derivatives_and_forward_mode(self, method, kind):
        operation, plain, _ = WITHOUT_PRODUCTS[kind]
        found = fringe.attribute(Trunk(operation), IMAGES, method=method)
        expected = fringe.attribute(Trunk(plain), IMAGES, method=method).values
        torch.testing.assert_close(found.values, expected, rtol=1e-4, atol=1e-6)
        assert found.passes.jvp == 0

    @pytest.mark.filterwarnings("ignore:the model has no second derivatives")
    @pytest.mark.parametrize("kind", ["once", "checkpoint"])
    def test_leave_the_others_refused(self, kind):
        operation, _, message = WITHOUT_PRODUCTS[kind]
        with pytest.raises(NotDifferentiableError, match=message):
            fringe.attribute(Trunk(operation), IMAGES, method=PRODUCTS)

    @pytest.mark.filterwarnings("ignore:the model has no second derivatives", "ignore:None of the inputs")
    @pytest.mark.parametrize("kind", WITHOUT_PRODUCTS)
    def test_the_default_does_without_products(self, kind):
        """Its path is that of the same network where no product is asked for, and the map is as complete."""
        operation, plain, _ = WITHOUT_PRODUCTS[kind]
        images, twin = 3 * IMAGES, Classifier(Trunk(plain))
        twin.jvp_mode, twin.smooth_rectifiers = "none", kind != "checkpoint"  # whose part runs again, as it was written
        with pytest.warns(UserWarning, match="the length of the first step is estimated") as seen:
            found = fringe.attribute(Trunk(operation), images)
        assert seen[-1].filename == __file__
        expected = fringe.attribute(twin, images)
        torch.testing.assert_close(found.values, expected.values, rtol=1e-4, atol=1e-6)
        assert found.verdict == expected.verdict
        assert float(found.completeness_residual.max()) < 0.03
        assert int(found.diagnostics["steps"].min()) > 3


@pytest.mark.parametrize("method", [PRODUCTS, "geoig_svi:quick"], ids=["fringe", "geoig_svi"])
def test_products_through_checkpointed_convolutions(method):
    """The backward pass runs these layers again, by themselves: they save the same tensors as in the forward pass."""

    class Smooth(Trunk):
        def forward(self, x):
            return self.head(self.trunk(x).flatten(1))

        def trunk(self, x):
            return self.conv(x).tanh()

    class Checkpointed(Smooth):
        def trunk(self, x):
            return checkpoint(super().trunk, x, use_reentrant=False)

    found, plain = (fringe.attribute(model, IMAGES, method=method) for model in (Checkpointed(), Smooth()))
    torch.testing.assert_close(found.values, plain.values, rtol=1e-4, atol=1e-6)


class Pooled(nn.Module):
    """Convolutions with maxima over pixels: a kink wherever two of them are equal."""

    def __init__(self, gain=1.0, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8 * 9, CLASSES)
        for parameter in self.parameters():
            parameter.data = 0.2 * torch.randn(parameter.shape, generator=generator)
        self.head.weight.data *= gain
        self.eval()

    def forward(self, x):
        y = F.max_pool2d(self.first(x).relu(), 2)
        return self.head(F.adaptive_max_pool2d(self.second(y).relu(), 3).flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
class TestMaximaOverPixels:
    @pytest.mark.parametrize("module", [True, False], ids=["module", "function"])
    @pytest.mark.parametrize("colour", [0.0, 0.5, 1.0])
    def test_an_image_of_one_colour_is_explained(self, colour, module, dtype):
        """Its maxima are ties, with a gradient of one side only: what is checked is a point away from it."""
        model, images = Pooled().to(dtype), torch.full((1, 3, 16, 16), colour, dtype=dtype)
        verify(model if module else lambda x: model(x), images)

    @pytest.mark.parametrize("seed", [2, 5, 6, 11])
    def test_an_output_that_hardly_depends_on_the_input_is_explained(self, seed, dtype):
        """It changes as a whole so far away that a step in proportion to that meets many kinks."""
        verify(Pooled(gain=1e-6, seed=seed).to(dtype), normal(1, 3, 16, 16, seed=seed, dtype=dtype))


class TestWrongDerivatives:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("module", [True, False], ids=["module", "function"])
    @pytest.mark.parametrize("method", ["ig", PRODUCTS], ids=["gradients", "products"])
    def test_two_percent_in_the_backward_pass_are_refused(self, dtype, module, method):
        for factor in (1.02, 0.98):
            model = Trunk(scaled(factor)).to(dtype)
            with pytest.raises(NotDifferentiableError, match="not the derivative of its output"):
                fringe.attribute(model if module else lambda x, m=model: m(x), IMAGES.to(dtype), method=method)

    def test_are_found_at_the_first_image_that_has_a_gradient(self):
        """One entry of the first gradient is no number, the second is zero; half of the third's entries are zero."""
        images = IMAGES.abs() + 0.1
        images[0, 0, 0, 0] = 0.0  # the root has no slope there
        images[1] += 10.0

        def model(factor):
            trunk = Trunk(scaled(factor))
            return lambda x: trunk(x.sqrt() * (torch.arange(6) < 3)) * (x.amax((1, 2, 3)) < 10.0)[:, None]

        verify(model(1.0), images)
        with pytest.raises(NotDifferentiableError, match="not the derivative of its output"):
            verify(model(1.02), images)

    def test_are_found_in_double_precision_where_single_precision_cannot_decide(self):
        """Beside a constant of 1e6, a change along the gradient is mostly rounding. A function cannot be converted."""

        def offset(factor):
            model = Trunk(scaled(factor))
            model.head.bias.data += 1e6
            return model

        verify(offset(1.0), IMAGES)
        with pytest.raises(NotDifferentiableError, match="not the derivative of its output"):
            verify(offset(1.02), IMAGES)
        verify(lambda x: offset(1.02)(x), IMAGES)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("module", [True, False], ids=["module", "function"])
    @pytest.mark.parametrize("gain", [1e-4, 1e4])
    def test_are_judged_alike_whatever_the_unit_of_the_logits(self, gain, module, dtype):
        for factor in (1.0, 1.02):
            model = Trunk(scaled(factor)).to(dtype)
            for parameter in (model.head.weight, model.head.bias):
                parameter.data *= gain
            with pytest.raises(NotDifferentiableError) if factor > 1 else contextlib.nullcontext():
                verify(model if module else lambda x, m=model: m(x), IMAGES.to(dtype))

    def test_of_a_model_that_drifts_are_not_told_from_its_drift(self):
        """Logits that change by 1e-4 from call to call are no measure of a gradient; 1e-7 are rounding."""

        def drifting(share, factor):
            trunk, calls = Trunk(scaled(factor)).double(), itertools.count()

            def model(x):
                y = trunk(x) * (torch.arange(CLASSES) > 0)
                return y + next(calls) * share * y.detach().abs().amax()

            return model

        verify(drifting(1e-4, 1.0), IMAGES[:1].double())
        with pytest.raises(NotDifferentiableError, match="not the derivative of its output"):
            verify(drifting(1e-7, 1.5), IMAGES[:1].double())

    def test_with_half_precision_inside_the_model_name_it(self):
        """So far off that the rounding of a head in half precision cannot be the reason."""
        trunk = Trunk(scaled(100.0))

        def half(x):
            hidden = trunk.operation(trunk.conv(x).relu()).flatten(1)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return trunk.head(hidden).float()

        with pytest.raises(NotDifferentiableError, match=r"Perhaps it computes in half precision, by torch\.autocast"):
            verify(half, IMAGES)

    @pytest.mark.parametrize("low", [0.0, -0.5])
    def test_beside_the_image_only_are_refused(self, low):
        """At a kink the gradient is checked at points nearby: within 2 % of the range of the image, not beyond."""
        image = torch.linspace(low, low + 1.0, 108, dtype=torch.float64).view(1, 3, 6, 6)

        class Near(torch.autograd.Function):
            @staticmethod
            def forward(x):
                return x.clone()

            @staticmethod
            def setup_context(ctx, inputs, output):
                ctx.factor = 1.1 if (inputs[0] - image).abs().max() < 0.02 else 1.0

            @staticmethod
            def backward(ctx, grad):
                return ctx.factor * grad

        trunk = Trunk(torch.tanh).double()
        with pytest.raises(NotDifferentiableError, match="not the derivative of its output"):
            verify(lambda x: trunk(Near.apply(x)), image)

    @pytest.mark.filterwarnings("ignore:the model has no second derivatives")
    def test_of_products_count_if_one_method_of_several_needs_them(self):
        classifier = Classifier(Trunk(scaled(1.0, once=True, forward=1.02)))
        with pytest.raises(NotDifferentiableError, match="forward and backward derivatives disagree"):
            paths.verify(Problem.of(classifier, IMAGES), ["none", "required"])

    @pytest.mark.filterwarnings("ignore:the model has no second derivatives")
    def test_two_percent_in_the_forward_mode_are_refused(self):
        model = Trunk(scaled(1.0, once=True, forward=1.02))
        with pytest.raises(NotDifferentiableError, match="forward and backward derivatives disagree") as seen:
            fringe.attribute(model, IMAGES, method=PRODUCTS)
        forward, backward = (float(text) for text in re.findall(r"> = ([\d.]+\d)", str(seen.value)))
        assert forward / backward == pytest.approx(1.02, rel=1e-4)
        assert fringe.attribute(model, IMAGES, method="ig").passes.jvp == 0

    def test_a_hook_that_scales_gradients_is_refused(self):
        model = Trunk()
        model.conv.register_full_backward_hook(lambda module, grad_input, grad: (1.1 * grad_input[0],))
        for method in ("ig", PRODUCTS):
            with pytest.raises(NotDifferentiableError, match="a backward hook"):
                fringe.attribute(model, IMAGES, method=method)

    def test_half_precision_that_comes_out_is_named(self):
        class Half(Trunk):
            def forward(self, x):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    return super().forward(x)

        with pytest.raises(ModelOutputError, match=r"switch off torch\.autocast"):
            fringe.attribute(Half(), IMAGES, method="ig")

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("bias", [True, False])
    def test_kinks_are_none(self, bias):
        """A black image lies on the kink of every ReLU of a network without biases, and half of one on that of half."""
        half = IMAGES * (torch.arange(6) < 2)
        for seed in range(2):
            model = Trunk(seed=seed)
            model.conv.bias.data *= bias
            for x in (torch.zeros_like(IMAGES), half, IMAGES.relu(), IMAGES.sign(), 1e4 * IMAGES, 1e-4 * IMAGES):
                for shown in (model, lambda x, m=model: m(x)):
                    problem = Problem.of(Classifier(shown), x)
                    paths.verify(problem)


class TestVerifiedOnce:
    """A classifier remembers that its module was verified, for as long as nothing of it changes."""

    METHOD = fringe.IntegratedGradients(steps=4)

    @pytest.fixture
    def verified(self):
        model = network("convolutions with batch normalisation").float()
        return model, Classifier(model)

    def checks(self, classifier, x=None, **options):
        """Passes forward beside those of the map: one for the logits, four of the path, one at its end."""
        x = normal(3, 3, 8, 8).float() if x is None else x
        return fringe.attribute(classifier, x, method=self.METHOD, **options).passes.forward / len(x) - 6

    def test_until_weights_or_buffers_change(self, verified):
        model, classifier = verified
        first = self.checks(classifier)
        assert first > 0
        assert self.checks(classifier) == 0
        for change in (lambda: model[0].weight.mul_(1.01), lambda: model[1].running_mean.add_(0.01)):
            with torch.no_grad():
                change()
            assert self.checks(classifier) == first
            assert self.checks(classifier) == 0
        for _ in range(3):  # at the second time, of the same version; perhaps where the one before was
            model[0].weight = nn.Parameter(model[0].weight.detach().clone())
            assert self.checks(classifier) == first
        model[0].weight.data = model[0].weight.data.clone()
        assert self.checks(classifier) == first
        assert self.checks(classifier.with_model(model)) == first

    def test_for_inputs_of_this_kind(self, verified):
        model, classifier = verified
        one, three = normal(1, 3, 8, 8).float(), normal(3, 3, 8, 8).float()
        assert self.checks(classifier, one) > 0
        assert self.checks(classifier, one) == 0
        assert self.checks(classifier, three) > 0  # one image says nothing of its position in a batch
        assert self.checks(classifier, one) == 0
        assert self.checks(classifier, three.flip(0)) == 0
        model.double()
        assert self.checks(classifier, three.double()) > 0
        parts = nn.Conv2d(3, 4, 3), nn.Softplus(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
        pooled = Classifier(nn.Sequential(*parts).eval())
        for x in (three, normal(3, 3, 9, 9).float()):
            assert self.checks(pooled, x) > 0
            assert self.checks(pooled, x) == 0

    def test_never_if_it_is_a_function_or_takes_other_arguments(self, verified):
        model, _ = verified
        function = Classifier(lambda x: model(x))
        assert self.checks(function) == self.checks(function) > 0
        shifted = Shifted(model)
        classifier = Classifier(shifted)
        assert self.checks(classifier, forward_args=(0.0,)) == self.checks(classifier, forward_args=(0.0,)) > 0

    @pytest.mark.parametrize("temperature", [1.0, "auto"])
    def test_the_expansion_that_was_checked_is_that_of_the_first_step_of_a_single_image(self, verified, temperature):
        model, classifier = verified
        x, method = normal(1, 3, 8, 8).float(), fringe.FRInGe(temperature=temperature)
        first, second = (fringe.attribute(classifier, x, method=method) for _ in range(2))
        assert torch.equal(first.values, second.values)  # and not but for rounding, as SiLU and GELU would have it
        saved = first.passes.since(second.passes)
        assert (saved.forward, saved.jvp, saved.vjp) == (2, 1, 1)  # the two of the finite difference
        assert classifier.verified_point is None
        model[0].register_forward_hook(lambda *_: None)  # which is to see every pass
        with torch.no_grad():
            model[0].weight.mul_(1.0)
        hooked = fringe.attribute(classifier, x, method=method)
        assert torch.equal(hooked.values, second.values)
        assert hooked.passes.since(second.passes).forward == 3

    def test_the_expansion_that_was_checked_serves_no_other_network_no_other_point_and_only_once(self, verified):
        _, classifier = verified
        x = normal(1, 3, 8, 8).float()
        other = classifier.with_model(network("convolutions with batch normalisation").float())
        problem = Problem.of(classifier, x)
        for asked, at, tangents in ((classifier, x + 1.0, True), (other, x, True), (classifier, x, False)):
            with classifier.session(x.device):
                classifier.verified.clear()
                paths.verify(problem)
                checked = other.verified_point = classifier.verified_point
                assert checked is not None
                assert (
                    dataclasses.replace(problem, model=asked).linearise(at, problem.every_row, tangents=tangents)
                    is not checked
                )
                if asked is classifier:
                    assert problem.linearise(x, problem.every_row) is not checked

    def test_for_methods_that_ask_no_more(self, verified):
        _, classifier = verified
        x, method = normal(3, 3, 8, 8).float(), Diffusion(steps=2)
        fresh = fringe.attribute(Classifier(classifier.module), x, method=method).passes
        self.checks(classifier)  # gradients alone
        assert fringe.attribute(classifier, x, method=method).passes == fresh
        again = fringe.attribute(classifier, x, method=method).passes
        assert (again.forward, again.jvp) < (fresh.forward, fresh.jvp)

    def test_not_if_it_is_random_or_refused(self):
        model = nn.Sequential(network("convolutions with batch normalisation").float(), Noise()).eval()
        classifier = Classifier(model)
        for _ in range(2):
            with pytest.raises(ModelOutputError, match="the model is random"):
                self.checks(classifier)


class Shifted(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, shift):
        return self.model(x + shift)


class Noise(nn.Module):
    def forward(self, x):
        return x + 0.1 * torch.rand_like(x) * x.detach().abs().amax()
