"""What the call refuses and how it says so, and that a map of zeros is never called an answer."""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from attribution_toys import ConvNet, Failing, filled, hooks_of

import fringe
from fringe.attribution import METHODS, Attributor, get_method, gradient_attribution
from toys import normal

METHODS_AND_VARIANTS = {
    **{
        name: kind()
        for name, kind in METHODS.items()
        if name not in ("ggig", "geoig_svi", "rise", "captum", "zennit", "lxt")
        and name not in ("gradcam", "layercam", "hirescam", "legrad", "rollout")  # these read layers
    },
    "rise": fringe.RISE(masks=10, cells=3),
    "guided_ig": fringe.GuidedIG(steps=25),
    "ig2": fringe.IG2(steps=40, references=3),
    "captum": fringe.CaptumMethod("input_x_gradient"),
    "geoig_svi": fringe.attribution.GeoIGSVI(iterations=3, steps=10),
    "agi:official": fringe.attribution.AGI.preset("official"),
    "ggig": fringe.attribution.GGIG(intervals=5, iterations=4),
    "diffusion": fringe.attribution.Diffusion(),
    "fringe:none": fringe.FRInGe(structure="none", max_steps=30),
}


def network(gap: float):
    """Logits (B, 4) of images (B, 1, 6, 6) in float32, ``gap`` nats apart on average, and three images."""
    g = torch.Generator().manual_seed(0)
    x, weight = torch.randn(3, 1, 6, 6, generator=g), torch.randn(4, 36, generator=g)
    plain = lambda z: z.flatten(1).sinh().tanh() @ weight.T  # noqa: E731
    top = plain(x).topk(2, 1).values
    scale = gap / (top[:, 0] - top[:, 1]).mean()
    return (lambda z: scale * plain(z)), x


@pytest.mark.parametrize("name", METHODS_AND_VARIANTS)
def test_no_zero_map_is_an_answer(name):
    model, x = network(1000.0)
    space = fringe.InputSpace(references=torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(2)))
    for score in ("logit", "probability"):
        found = fringe.attribute(model, x, method=METHODS_AND_VARIANTS[name], score=score, space=space)
        for values, verdict, advice in zip(found.values, found.verdict, found.advice, strict=True):
            if not torch.isfinite(values).all():
                assert verdict == "diverged"
            elif values.abs().max() < torch.finfo(torch.float32).tiny:
                assert verdict in ("stalled", "at_reference", "diverged")
                assert "logit" in advice or "moved only" in advice or verdict == "diverged"


def test_a_map_beyond_the_range_of_its_precision_diverged():
    """Gradients of 3e38 and a constant score: sums of terms of 1.5e38 are finite in float64, and no map in float32."""
    model = lambda z: torch.stack([3e38 * (z[:, 0] - z[:, 1]), torch.zeros_like(z[:, 0])], 1)  # noqa: E731
    x = torch.full((1, 2), 2.0)
    method = fringe.attribution.GuidedIG(steps=4, fraction=1.0, max_dist=0.0)
    problem = fringe.paths.Problem.of(fringe.Classifier(model), x, target=0, baseline=torch.zeros_like(x))
    with problem.model.session(x.device):
        found = method.attribute(problem)
    assert not torch.isfinite(found.values).all()
    assert found.verdict == ("diverged",)


def test_inputs_at_the_door():
    model = torch.nn.Flatten()
    for bad, message in (
        (torch.randn(4), "add a batch axis"),
        (torch.zeros(0, 3, 4, 4), "at least one image"),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), "expected floating point"),
        ([1.0], "expected a torch.Tensor"),
        (torch.ones(1, 3).numpy(), r"got ndarray; pass torch.from_numpy"),
        ("a fine film", r"got str; texts and paths go to fringe.explain, texts with tokenizer="),
        (["a fine film", "a dull one"], r"got list; texts and paths go to fringe.explain, texts with tokenizer="),
    ):
        with pytest.raises(fringe.InputError, match=message):
            fringe.attribute(model, bad)
    with pytest.raises(fringe.InputError, match=r"got torch.float64 on cpu, but the model's weights are torch.float32"):
        fringe.attribute(torch.nn.Linear(4, 3), torch.randn(1, 4, dtype=torch.float64))
    with pytest.raises(fringe.InputError, match="expected a name or a configured method"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), method=3)
    for several in ("ig:paper,fringe", ["ig", "fringe"]):
        with pytest.raises(fringe.InputError, match=r"expected one method; several methods .* by fringe\.compare"):
            fringe.attribute(model, torch.randn(1, 1, 2, 2), method=several)
    with pytest.raises(fringe.InputError, match=r"images \[1\] hold NaN"):
        fringe.attribute(model, torch.tensor([[1.0, 2.0], [torch.nan, 1.0]]), method="ig")
    with pytest.raises(fringe.InputError, match="bad_images: got 'skip'"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), bad_images="skip")
    for telemetry in (1, 2.5, "all"):
        with pytest.raises(fringe.InputError, match=r"telemetry: got .* expected true, false or at least 2"):
            fringe.attribute(model, torch.randn(1, 1, 2, 2), telemetry=telemetry)
    with pytest.raises(fringe.InputError, match=r"got 'lime'; known methods"):  # which is no rise
        get_method("lime")
    with pytest.raises(fringe.InputError, match="did you mean 'captum:kernel_shap'"):
        get_method("shap")
    with pytest.raises(fringe.InputError, match="did you mean 'fringe'"):
        fringe.attribute(model, torch.randn(1, 1, 2, 2), method="frnge")


@pytest.mark.parametrize(
    ("call", "name", "hint"),
    [
        (fringe.attribute, "n_steps", r"method=IntegratedGradients\(steps=50\)"),
        (fringe.attribute, "steps", r"method=IntegratedGradients\(steps=50\)"),
        (fringe.attribute, "internal_batch_size", "did you mean 'batch_size'"),
        (fringe.attribute, "baselines", "did you mean 'baseline'"),
        (fringe.attribute, "additional_forward_args", "did you mean 'forward_args'"),
        (fringe.attribute, "return_convergence_delta", "completeness_gap"),
        (fringe.attribute, "tokenizer", "texts go to fringe.explain"),
        (fringe.explain, "n_steps", r"method=IntegratedGradients\(steps=50\)"),
        (fringe.compare, "internal_batch_size", "did you mean 'batch_size'"),
        (fringe.Classifier, "internal_batch_size", "did you mean 'batch_size'"),
        (fringe.IntegratedGradients, "n_steps", "did you mean 'steps'"),
        (fringe.SmoothGrad, "n_samples", "did you mean 'samples'"),
        (fringe.FRInGe, "taus", "did you mean 'tau'"),
        (fringe.Insertion, "step", "did you mean 'steps'"),
    ],
)
def test_an_argument_of_another_library_is_answered_with_ours(call, name, hint):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval()
    inputs = {
        fringe.attribute: (model, torch.zeros(1, 1, 2, 2)),
        fringe.explain: (model, torch.zeros(1, 1, 2, 2)),
        fringe.compare: (model, torch.zeros(1, 1, 2, 2), ["ig"], ["sparseness"]),
        fringe.Classifier: (model,),
    }
    with pytest.raises(TypeError, match=f"{name!r}; .*{hint}"):
        call(*inputs.get(call, ()), **{name: 3})


def test_a_model_that_is_named_or_loaded_is_told_how_it_is_passed():
    from fringe.models import load_model

    class_hint = r"the class Identity; pass an instance, such as Identity\(\)"
    named = (("embedded:digits", "fringe.explain"), (load_model("embedded:digits"), r"pass its \.module"))
    weights = (torch.nn.Linear(2, 2).state_dict(), "give a module with its weights loaded, and then the inputs")
    for model, hint in (*named, (torch.nn.Identity, class_hint), weights):
        with pytest.raises(fringe.InputError, match=f"model: expected a module or callable, got .*{hint}"):
            fringe.attribute(model, torch.zeros(1, 1, 32, 32))
    with pytest.raises(fringe.InputError, match=f"model: got OrderedDict, .*; {weights[1]}"):
        fringe.explain(weights[0], torch.zeros(1, 1, 32, 32))
    with pytest.raises(fringe.InputError, match="inputs: got a module; give the model first"):
        fringe.explain("photo.jpg", torch.nn.Linear(2, 2))


def conv_net(*last):
    return torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), *last).requires_grad_(False)


class Mean(torch.nn.Module):
    def forward(self, x):
        return x.mean((-2, -1))


@pytest.mark.parametrize(
    "model",
    [
        conv_net(torch.nn.BatchNorm2d(4), Mean()),
        conv_net(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5)),
        conv_net(Mean(), torch.nn.Linear(4, 5)),
    ],
    ids=["batch norm", "flatten", "one row"],
)
@pytest.mark.parametrize("ask", ["attribute", "compare"])
def test_an_image_without_a_batch_axis_is_told_where_to_add_it(model, ask):
    image, more = torch.randn(3, 8, 8), {"compare": (["ig"], ["sparseness"]), "attribute": ()}[ask]
    with pytest.raises(fringe.InputError, match=r"inputs: got shape \(3, 8, 8\), .* inputs\[None\]"):
        getattr(fringe, ask)(model, image, *more)


@pytest.mark.parametrize("method", ["fringe", "ig"])
def test_a_grey_image_without_both_axes_is_told_where_to_add_them(method):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), Mean(), torch.nn.Linear(4, 5)).requires_grad_(False)
    with pytest.raises(fringe.InputError, match=r"inputs: got shape \(8, 8\), .* inputs\[None, None\]"):
        fringe.attribute(model, torch.randn(8, 8), method=method)


def test_a_model_that_fails_either_way_speaks_for_itself():
    def broken(x):
        raise RuntimeError("a layer of the model's own")

    for shape in ((3, 8, 8), (2, 3, 8, 8)):
        with pytest.raises(RuntimeError, match="a layer of the model's own"):
            fringe.attribute(broken, torch.randn(shape))


def test_a_baseline_for_a_method_without_one_and_its_name_in_the_call_are_refused():
    model, x = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).eval(), torch.ones(1, 1, 2, 2)
    with pytest.raises(fringe.InputError, match="baseline: the method 'fringe' does not begin at one"):
        fringe.attribute(model, x, baseline=0.0)
    message = r"baseline: got the text 'black'.*IntegratedGradients\(baseline='black'\)"
    with pytest.raises(fringe.InputError, match=message):
        fringe.attribute(model, x, method="ig", baseline="black")


@dataclass(frozen=True)
class Given(Attributor):
    """What somebody else's method makes of the gradient."""

    name: ClassVar[str] = "given"
    is_complete: ClassVar[bool] = False
    result: Any = None

    def attribute(self, problem):
        _, gradient = problem.logits_gradient(problem.inputs, problem.every_row)
        return self.result(lambda values, **more: gradient_attribution(self, values, problem, more, "why"), gradient)


@pytest.mark.parametrize("target", ["predicted", "top2"])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda made, g: g, "method: given returned Tensor, expected an Attribution; return what gradient_attribution"),
        (lambda made, g: None, "method: given returned NoneType, expected an Attribution"),
        (lambda made, g: made(g[:1]), r"given returned maps of shape \(1, 1, 2, 2\), expected \([24], 1, 2, 2\)"),
        (
            lambda made, g: made(g.sum((2, 3), keepdim=True)),
            r"given returned maps of shape \([24], 1, 1, 1\), expected",
        ),
        (lambda made, g: made(g, depth=g[:1, 0, 0, 0]), r"given returned depth of shape \(1,\), expected \([24],\)"),
        (lambda made, g: made(g, depth=3.0), r"given returned depth of shape \(\), expected \([24],\)"),
    ],
)
def test_what_a_method_returns_has_a_map_for_each_input(result, message, target):
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).requires_grad_(False)
    with pytest.raises(fringe.InputError, match=message):
        fringe.attribute(model, torch.rand(2, 1, 2, 2), method=Given(result), target=target)


def test_maps_of_whole_numbers_have_no_end_either():
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3)).requires_grad_(False)
    found = fringe.attribute(model, torch.rand(2, 1, 2, 2), method=Given(lambda made, g: made((g > 0).long())))
    assert found.endpoint_score.isnan().all()


X, NETWORK = torch.rand(2, 3), torch.nn.Linear(3, 2).eval()


def test_several_tensors_for_a_network_of_one_hear_of_further_arguments():
    with pytest.raises(TypeError) as caught:
        fringe.attribute(NETWORK, (X, X), method="ig")
    assert "a dictionary by name; what is not explained goes to forward_args or forward_kw" in caught.value.__notes__[0]


def test_a_model_of_one_dictionary_hears_of_the_function_that_takes_it():
    def network(x):
        return NETWORK(x["a"]) * x["b"]

    inputs = {"a": X, "b": torch.rand(2, 1)}
    with pytest.raises(TypeError) as caught:
        fringe.attribute(network, inputs, method="ig")
    assert "write lambda **x: model(x) in place of model" in caught.value.__notes__[0]
    gauss = fringe.IntegratedGradients(rule="gausslegendre", steps=2)
    found = fringe.attribute(lambda **x: network(x), inputs, method=gauss)
    change = network(inputs)[torch.arange(2), found.target]  # of a quadratic function: two points give the integral
    torch.testing.assert_close(found.values.sum(1), change)


@pytest.mark.parametrize("method", ["expected_gradients", "geoig_knn", "ig2", "captum:gradient_shap"])
def test_references_that_are_missing_or_do_not_fit_are_named(method):
    with pytest.raises(fringe.InputError, match=r"attribute\(\.\.\., space=InputSpace\(references=\.\.\.\)\)"):
        fringe.attribute(NETWORK, X, method=method)
    for wrong in (X[:, :1], X[:0], X[0]):
        with pytest.raises(fringe.InputError, match=r"space\.references: got shape .*, expected \(P, 3\)"):
            fringe.attribute(NETWORK, X, method=method, space=fringe.InputSpace(references=wrong))
    with pytest.raises(fringe.InputError, match=r"space\.references: they hold NaN"):
        fringe.attribute(NETWORK, X, method=method, space=fringe.InputSpace(references=X * torch.nan))


@pytest.mark.parametrize(
    "method", [fringe.IntegratedGradients(steps=10**9), fringe.SmoothGrad(samples=10**9), "smooth:ig"]
)
def test_passes_that_no_computer_ends_are_refused_before_memory_is_taken(method):
    if method == "smooth:ig":
        method = fringe.Smooth(fringe.IntegratedGradients(steps=10**9))
    with pytest.raises(
        fringe.InputError, match=r"method: .* plans \de\+09 passes for each input, .*; take fewer steps"
    ):
        fringe.attribute(NETWORK, X, method=method)


def test_a_file_that_cannot_be_saved_is_named_and_not_its_neighbour(tmp_path):
    result = fringe.attribute(NETWORK, X, method="ig")
    with pytest.raises(FileNotFoundError) as caught:
        result.save(tmp_path / "nodir" / "x")
    assert caught.value.filename == str(tmp_path / "nodir" / "x")
    assert "partial" not in str(caught.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder") as caught:
        result.save(tmp_path / "folder")
    assert "partial" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("method", ["gradcam", "layercam", "hirescam", "captum:deep_lift", "captum:guided_backprop"])
def test_methods_that_read_layers_need_a_module_whose_hooks_run(method):
    """In a traced module guided backpropagation gave the plain gradient."""
    net, x = filled(ConvNet()), normal(2, 2, 8, 8)
    with pytest.raises(fringe.InputError, match=rf"{method} reads the layers of a torch\.nn\.Module"):
        fringe.attribute(lambda z: net(z), x, method=method)
    with pytest.raises(fringe.InputError, match=f"model: it is traced or scripted, and hooks of {method} do not run"):
        fringe.attribute(torch.jit.trace(net, x), x, method=method)


@pytest.mark.parametrize(
    "method",
    [
        *("gradcam", fringe.GradCAM(layer="model.second"), "captum:deep_lift", "captum:guided_backprop"),
        fringe.IG2(references=1, steps=3, eta=0.1),
    ],
)
def test_no_hook_stays_behind_whichever_call_fails(method):
    x, given = normal(2, 2, 8, 8), {"space": fringe.InputSpace(references=normal(6, 2, 8, 8, seed=2)), "target": 0}
    whole = Failing(filled(ConvNet()), 0)
    fringe.attribute(whole, x, method=method, **given)
    for last in range(1, whole.calls + 1):
        failing = Failing(filled(ConvNet()), last)
        with pytest.raises((RuntimeError, fringe.ModelOutputError), match="simulated"):
            fringe.attribute(failing, x, method=method, **given)
        assert not any(hooks_of(module) for module in failing.modules())


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        (fringe.IntegratedDecisionGradients, {"steps": 1, "mode": "official"}, "steps: got 1, .* of at least 2"),
        (fringe.IntegratedGradients, {"steps": 1, "rule": "trapezoid"}, "steps: got 1, .* of at least 2"),
        (fringe.IntegratedGradients, {"baseline": "blak"}, "baseline: got 'blak'; did you mean 'black'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(kind, settings, message):
    with pytest.raises(fringe.InputError, match=message):
        kind(**settings)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("blur_ig", r"inputs: got shape \(2, 6\), expected images \(B, C, H, W\) to blur"),
        ("rise:quick", r"images \(B, C, H, W\) to mask"),
        ("smooth:ig", r"expected images \(B, C, H, W\), whose maps are smoothed"),
        ("spectral_ig", r"images \(B, C, H, W\) with a spectrum"),
    ],
)
def test_methods_of_images_refuse_other_inputs(method, message):
    with pytest.raises(fringe.InputError, match=message):
        fringe.attribute(lambda x: x[:, :3], torch.randn(2, 6), method=method)


def test_the_presets_for_the_paper_say_where_their_numbers_are_from():
    """The FRInGe paper states no number of a method but its own."""
    described = [kind for name, kind in METHODS.items() if "paper" in kind.presets and name != "fringe"]
    assert len(described) == 8
    for kind in described:
        text = " ".join(kind.__doc__.split())
        sentence = text[text.index("The preset ``paper``") :]
        assert "FRInGe paper" in sentence or "Its code" in sentence, kind.__name__
        assert re.search(r"\b(ours|authors|method's paper)", sentence), kind.__name__
        numbers = {
            f"{value:g}".removeprefix("0") for value in kind.presets["paper"].values() if type(value) in (int, float)
        }
        numbers -= {"1"}  # said in words
        assert all(number in sentence for number in numbers), (kind.__name__, numbers)
    assert "from the tables of the FRInGe paper" not in " ".join(fringe.Attributor.__doc__.split())
