"""Captum's own attributions, tunnels and metrics are the oracle of the adapter."""

import types
import warnings

import captum.attr
import pytest
import torch
from adapters_toys import CLASSES, Scaled, filled, inputs, linear, smooth
from captum.metrics import sensitivity_max
from torch import nn

import fringe
from fringe import FRInGe, InputError, IntegratedGradients, TargetError
from fringe.captum import CaptumAttributor
from toys import normal

GAUSS = IntegratedGradients(steps=50, rule="gausslegendre")
ROUGH = IntegratedGradients(steps=2, rule="gausslegendre")  # a delta that is far from zero
RISE = fringe.RISE(masks=6, cells=3)
FLOAT32 = 1e-6  # Captum holds the weights of its quadrature in float32


def close(found, expected, tolerance=FLOAT32):
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


def ours(model, method=GAUSS, **settings):
    return CaptumAttributor(model, method, **settings)


def theirs(model):
    return captum.attr.IntegratedGradients(model)


BASELINES = {
    "none": None,
    "number": 0.3,
    "one an image": inputs(3, seed=5),
    "one for all": inputs(1, seed=6),
    "tuple": (inputs(3, seed=7),),
}
TARGETS = {
    "int": 2,
    "list": [0, 3, 1],
    "tensor": torch.tensor([1, 1, 2]),
    "scalar tensor": torch.tensor(3),
    "tensor of one": torch.tensor([3]),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_integrated_gradients_are_captums(target):
    found = ours(smooth()).attribute(inputs(3), 0.3, target)
    close(found, theirs(smooth()).attribute(inputs(3), 0.3, target, n_steps=50))


@pytest.mark.parametrize("baselines", BASELINES.values(), ids=BASELINES.keys())
def test_from_any_baseline_the_maps_and_the_delta_are_captums(baselines):
    given = {"baselines": baselines, "target": 1, "return_convergence_delta": True}
    found, delta = ours(smooth(), ROUGH).attribute(inputs(3), **given)
    maps, expected = theirs(smooth()).attribute(inputs(3), n_steps=2, **given)
    close(found, maps)
    assert expected.abs().min() > 1e-4
    close(delta, expected, 1e-4)


@pytest.mark.parametrize("target", [0, [2, 0, 1]])
def test_the_delta_of_given_maps_is_captums(target):
    x, maps, start = inputs(3), inputs(3, seed=2), inputs(3, seed=3)
    found = ours(smooth()).compute_convergence_delta(maps, start, x, target=target)
    close(found, theirs(smooth()).compute_convergence_delta(maps, start, x, target=target), 1e-12)
    half = ours(smooth().half()).compute_convergence_delta(maps, start.half(), x.half(), target=target)
    close(half.double(), found, 2e-2)
    none = ours(smooth()).compute_convergence_delta(maps, None, x, target=target)
    close(none, theirs(smooth()).compute_convergence_delta(maps, None, x, target=target), 1e-12)


def test_the_delta_is_of_the_explained_score():
    x, maps = inputs(3), inputs(3, seed=2)
    softmax = torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)).eval()
    expected = theirs(softmax).compute_convergence_delta(maps, 0.0, x, target=1)
    close(ours(smooth(), score="probability").compute_convergence_delta(maps, 0.0, x, target=1), expected, 1e-12)


def test_fringe_is_complete_to_the_end_of_its_own_path():
    x = inputs(3)
    method = FRInGe(tau=2e-2)
    maps, delta = ours(smooth(), method).attribute(x, target=1, return_convergence_delta=True)
    found = fringe.attribute(smooth(), x, method=method, target=1)
    assert torch.equal(maps, found.values)
    assert torch.equal(delta, maps.flatten(1).sum(1) - (found.score - found.endpoint_score))
    assert delta.abs().max() < 0.05 * (found.score - found.endpoint_score).abs().min()


def test_a_tuple_gives_a_tuple():
    x = inputs(2)
    alone = ours(smooth()).attribute(x, target=1)
    (found,) = ours(smooth()).attribute((x,), target=1)
    assert torch.equal(found, alone)
    (found,), delta = ours(smooth()).attribute((x,), target=1, return_convergence_delta=True)
    assert torch.equal(found, alone)
    assert delta.shape == (2,)


RULES = ["gausslegendre", "riemann_left", "riemann_middle", "riemann_right"]


@pytest.mark.parametrize("rule", RULES)
def test_captums_names_of_quadrature_rules_are_understood(rule):
    given = {"target": 1, "n_steps": 4, "method": rule}
    close(ours(smooth(), "ig").attribute(inputs(2), **given), theirs(smooth()).attribute(inputs(2), **given))


class Pair(torch.nn.Module):
    """Logits of pictures, of rows (B, 3) and of one number (B,) for each, times a gain."""

    def forward(self, picture, row, number, gain=1.0):
        hidden = torch.cat([picture.flatten(1)[:, :5], row, number[:, None]], 1).tanh()
        return hidden.cumsum(1)[:, ::3] ** 2 * (gain if isinstance(gain, float) else gain[:, None])


def three(count, seed=1):
    return inputs(count, seed), normal(count, 3, seed=seed + 10), normal(count, seed=seed + 20)


@pytest.mark.parametrize(
    "baselines",
    [None, (0.1, 0.2, 0.3), (inputs(3, 5), normal(1, 3, seed=6), torch.zeros(1).double())],
    ids=["none", "numbers", "tensors"],
)
def test_several_tensors_are_explained_as_captum_does(baselines):
    gain = torch.tensor([1.0, -2.0, 0.5]).double()
    given = {
        "baselines": baselines,
        "target": [0, 2, 1],
        "additional_forward_args": gain,
        "return_convergence_delta": True,
    }
    found, delta = ours(Pair(), ROUGH).attribute(three(3), **given)
    expected, gap = theirs(Pair()).attribute(three(3), n_steps=2, **given)
    assert len(found) == 3
    for ours_, theirs_ in zip(found, expected, strict=True):
        close(ours_, theirs_)
    assert gap.abs().max() > 2e-2
    close(delta, gap, 1e-4)
    del given["return_convergence_delta"], given["baselines"]
    close(
        ours(Pair()).compute_convergence_delta(expected, baselines or 0.0, three(3), **given),
        theirs(Pair()).compute_convergence_delta(expected, baselines or (0.0, 0.0, 0.0), three(3), **given),
        1e-12,
    )


def test_fringe_explains_several_tensors_by_its_own_path():
    maps, delta = ours(Pair(), FRInGe(tau=1e-2)).attribute(three(2), target=1, return_convergence_delta=True)
    expected = fringe.attribute(Pair(), three(2), method=FRInGe(tau=1e-2), target=1)
    assert all(map(torch.equal, maps, expected.maps))
    assert torch.equal(delta, sum(m.reshape(2, -1).sum(1) for m in maps) - (expected.score - expected.endpoint_score))


OUTPUTS = {
    "probabilities": (torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)), 1),
    "sigmoids": (torch.nn.Sequential(smooth(), torch.nn.Sigmoid()), [0, 2, 1]),
    "one column": (torch.nn.Sequential(smooth(), torch.nn.Tanh(), filled(torch.nn.Linear(4, 1))), 0),
    "one number": (lambda x: smooth()(x).prod(1), None),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_output_is_explained_as_it_is(name):
    model, target = OUTPUTS[name]
    given = {"target": target, "return_convergence_delta": True}
    (found, delta), (maps, gap) = (
        ours(model, ROUGH).attribute(inputs(3), **given),
        theirs(model).attribute(inputs(3), n_steps=2, **given),
    )
    close(found, maps)
    close(delta, gap, 1e-3)


@pytest.mark.parametrize("method", [fringe.SmoothGrad(samples=3), "gradcam", fringe.GuidedIG(steps=4), RISE], ids=str)
def test_methods_without_a_distribution_explain_probabilities(method):
    """A map of softmax(z)_t is that of the score "probability" of z."""
    softmax = torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)).eval()
    expected = fringe.attribute(smooth(), inputs(2), method=method, target=1, score="probability").values
    close(ours(softmax, method).attribute(inputs(2), target=1), expected, 1e-9)


@pytest.mark.parametrize("method", ["fringe", "straight:fringe"])
def test_methods_of_distributions_ask_for_logits(method):
    softmax = torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)).eval()
    with pytest.raises(fringe.FringeError, match=r"look like probabilities.*output='probabilities'"):
        ours(softmax, method).attribute(inputs(2), target=1)
    with pytest.raises(
        InputError, match=r"output: the method '.*' needs the logits of all classes, and output='numbers'"
    ):
        fringe.attribute(fringe.Classifier(softmax, output="numbers"), inputs(2), method=method)


def test_labels_that_do_not_exclude_each_other_are_explained_one_by_one():
    class Labels(torch.nn.Module):
        config = types.SimpleNamespace(problem_type="multi_label_classification", num_labels=4)

        def __init__(self):
            super().__init__()
            self.body = smooth()

        def forward(self, x):
            return self.body(x)

    close(ours(Labels().eval()).attribute(inputs(2), target=1), ours(smooth()).attribute(inputs(2), target=1), 1e-12)
    with pytest.raises(fringe.FringeError, match="multi_label_classification"):
        ours(Labels().eval(), "fringe")


def test_numbers_have_no_predictions():
    softmax = torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)).eval()
    classifier = fringe.Classifier(softmax, output="numbers")
    result = fringe.attribute(classifier, inputs(2), method="ig", target=1, telemetry=True)
    assert not {"entropy", "distance", "endpoint_kl"} & result.diagnostics.keys()
    assert result.trajectory[0].probabilities is None
    close(result.score, softmax(inputs(2))[:, 1], 1e-12)
    with pytest.raises(InputError, match="score: got 'probability' with output='numbers'"):
        fringe.Classifier(softmax, output="numbers", score="probability")
    with pytest.raises(InputError, match="metrics compare predictions"):
        fringe.compare(classifier, inputs(2), methods=["ig"], metrics=["deletion"])


def test_inputs_without_further_axes_are_explained_as_captum_does():
    def model(x, y=0.0):
        return (x**2).tanh() + x * y

    x = torch.tensor([0.3, -0.8, 1.2])
    found, delta = ours(model, ROUGH).attribute(x, torch.tensor([0.0, 0.1, 0.2]), return_convergence_delta=True)
    maps, gap = theirs(model).attribute(x, torch.tensor([0.0, 0.1, 0.2]), n_steps=2, return_convergence_delta=True)
    assert found.shape == (3,)
    close(found, maps, 1e-5)
    close(delta, gap, 1e-3)


class Words(nn.Module):
    """Logits (B, 3, 4) of three words in four classes."""

    def __init__(self):
        super().__init__()
        self.model = smooth()

    def forward(self, x):
        return torch.stack([self.model(x * k)[:, :4] for k in (0.5, 1.0, 1.5)], 1)


@pytest.mark.parametrize("target", [(2, 1), [(0, 1), (2, 3), (1, 0)], (1,), [(1,), (0,), (2,)]])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_tuple_picks_an_entry_of_an_output_of_several_axes(target, batch_size):
    x, model = inputs(3), Words().eval()
    model = model if len(target if isinstance(target, tuple) else target[0]) == 2 else smooth()
    given = {"baselines": 0.0, "target": target}
    found, delta = ours(model, batch_size=batch_size).attribute(x, **given, return_convergence_delta=True)
    close(found, theirs(model).attribute(x, **given, n_steps=50), 1e-4)
    again = ours(model).compute_convergence_delta(found, 0.0, x, target=target)
    torch.testing.assert_close(again, delta, rtol=0, atol=1e-4)


def test_without_a_target_the_predicted_class_is_explained():
    x, model = inputs(4), smooth()
    assert len(set(model(x).argmax(1).tolist())) > 1
    assert torch.equal(ours(model).attribute(x), ours(model).attribute(x, target=model(x).argmax(1)))


def test_it_is_an_attribution_of_captums():
    attributor = ours(smooth())
    assert isinstance(attributor, captum.attr.Attribution)
    assert attributor.has_convergence_delta()
    assert not CaptumAttributor(smooth(), "smoothgrad").has_convergence_delta()
    assert attributor.multiplies_by_inputs
    assert not ours(smooth(), multiplies_by_inputs=False).multiplies_by_inputs
    assert not CaptumAttributor(smooth(), "smoothgrad").multiplies_by_inputs  # a plain gradient
    assert CaptumAttributor(smooth(), "smoothgrad", multiplies_by_inputs=True).multiplies_by_inputs
    with pytest.raises(NotImplementedError, match="attribute_future"):
        attributor.attribute_future()


def tunnel(attributor, **options):
    torch.manual_seed(3)
    return captum.attr.NoiseTunnel(attributor).attribute(inputs(2), stdevs=0.2, **options)


@pytest.mark.parametrize("kind", ["smoothgrad", "smoothgrad_sq", "vargrad"])
def test_in_a_noise_tunnel(kind):
    options = {"nt_type": kind, "nt_samples": 4, "nt_samples_batch_size": 3, "target": [0, 2]}
    close(tunnel(ours(smooth()), **options), tunnel(theirs(smooth()), n_steps=50, **options))


def test_a_noise_tunnel_takes_several_tensors():
    def noisy(attributor, **options):
        torch.manual_seed(3)
        return captum.attr.NoiseTunnel(attributor).attribute(three(2), stdevs=0.2, nt_samples=4, target=1, **options)

    for found, expected in zip(noisy(ours(Pair())), noisy(theirs(Pair()), n_steps=50), strict=True):
        close(found, expected, 1e-5)


def test_a_noise_tunnel_gets_a_delta_for_each_draw_and_hands_on_arguments():
    options = {"nt_samples": 3, "target": 1, "baselines": 0.1, "return_convergence_delta": True}
    deltas = tunnel(ours(smooth(), ROUGH), **options)[1], tunnel(theirs(smooth()), n_steps=2, **options)[1]
    close(*deltas, 1e-4)
    gains = torch.tensor([0.5, 2.0], dtype=torch.float64)
    options = {"nt_samples": 3, "target": [1, 2], "additional_forward_args": gains}
    close(tunnel(ours(Scaled()), **options), tunnel(theirs(Scaled()), n_steps=50, **options))


def test_captums_sensitivity_on_a_linear_model():
    """Maps w x of a linear score move by w d: the metric is ``max |w d| / |w x|``."""
    x, model = inputs(3), linear()
    weight, noise = model[1].weight[2].view(1, *x.shape[1:]), inputs(12, seed=9)
    found = sensitivity_max(
        ours(model).attribute, x, perturb_func=lambda x: (x[0] if isinstance(x, tuple) else x) + noise,
        n_perturb_samples=4, target=2,
    )  # fmt: skip
    moved = (weight * noise).flatten(1).norm(dim=1).view(3, 4).amax(1)
    close(found, moved / (weight * x).flatten(1).norm(dim=1), 1e-12)


def test_arguments_for_all_images_are_passed_whole():
    x, model = inputs(3), Scaled()
    found = ours(model).attribute(x, 0.1, 1, (1.7, 0.2))
    close(found, theirs(model).attribute(x, 0.1, 1, (1.7, 0.2), n_steps=50))
    assert model.seen


def test_arguments_of_the_images_follow_them():
    x, gains = inputs(4), torch.tensor([0.5, 2.0, 0.5, -1.0], dtype=torch.float64)
    shifts = torch.tensor([0.0, 1.0, 0.0, 0.0], dtype=torch.float64).view(4, 1, 1, 1)
    arguments, targets, baselines = (gains, shifts), [1, 0, 2, 3], inputs(4, seed=8)
    expected, delta = theirs(Scaled()).attribute(
        x, baselines, targets, arguments, n_steps=2, return_convergence_delta=True
    )
    found = ours(Scaled(), ROUGH).attribute(x, baselines, targets, arguments, return_convergence_delta=True)
    close(found[0], expected)
    close(found[1], delta, 1e-4)
    given = ours(Scaled()).compute_convergence_delta(expected, baselines, x, targets, arguments)
    close(given, delta, 1e-4)


def test_images_with_other_arguments_are_explained_together():
    x, gains = inputs(6), torch.tensor([1, 2, 1, 1, 2, 1])
    models = Scaled(), Scaled()
    found = ours(models[0], ROUGH).attribute(x, None, 0, gains)
    alone = [ours(models[1], ROUGH).attribute(x[i : i + 1], None, 0, gains[i : i + 1]) for i in range(6)]
    close(found, torch.cat(alone), 1e-12)
    assert max(models[0].seen) == 12  # six images, two nodes each
    assert len(models[0].seen) < len(models[1].seen) / 2


def test_the_model_with_arguments_is_given_back_as_it_was():
    model = Scaled()
    model.body[0].weight.requires_grad_(True)
    model.train()
    model.body[1].eval()
    flags = [m.training for m in model.modules()]
    with pytest.warns(UserWarning, match="training mode"):
        ours(model).attribute(inputs(2), None, 1, 2.0)
    assert [m.training for m in model.modules()] == flags
    assert model.body[0].weight.requires_grad
    assert model.body[0].weight.grad is None


def test_a_classifier_brings_its_reading_of_the_output():
    softmax = torch.nn.Sequential(smooth(), torch.nn.Softmax(-1)).eval()
    classifier = fringe.Classifier(softmax, output="probabilities", score="log_probability")
    logs = torch.nn.Sequential(smooth(), torch.nn.LogSoftmax(-1))
    close(ours(classifier).attribute(inputs(2), target=1), theirs(logs).attribute(inputs(2), target=1, n_steps=50))


class SoftmaxOf(torch.nn.Module):
    """Probabilities of ``gain x``, with a layer that is only at work in training mode."""

    def __init__(self):
        super().__init__()
        self.body, self.largest = smooth(), 0

    def forward(self, x, gain):
        self.largest = max(self.largest, len(x))
        x = gain.to(x.dtype).view(-1, 1, 1, 1) * x
        return self.body(2 * x if self.training else x).softmax(-1)


def test_a_classifier_brings_its_reading_to_arguments_too():
    model, x, gains = SoftmaxOf().train(), inputs(4), torch.tensor([1.0, 0.5, 1.0, 1.0], dtype=torch.bfloat16)
    classifier = fringe.Classifier(model, output="probabilities", score="probability", mode="keep", batch_size=2)
    found = ours(classifier, ROUGH).attribute(x, target=1, additional_forward_args=gains)
    assert model.largest == 2
    close(found, theirs(model).attribute(x, target=1, additional_forward_args=gains, n_steps=2))


def test_a_model_in_evaluation_mode_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours(Scaled(), ROUGH).attribute(inputs(2), None, 1, 2.0)


def test_what_keys_and_surrounds_an_explanation_is_handed_on():
    x, space = inputs(2), fringe.InputSpace(references=inputs(5, seed=8))
    for method in (fringe.SmoothGrad(samples=3), fringe.ExpectedGradients(samples=3)):
        found = ours(smooth(), method, seed=3, space=space).attribute(x, target=1)
        expected = fringe.attribute(smooth(), x, method=method, target=1, seed=3, space=space).values
        assert torch.equal(found, expected)
        assert not torch.equal(found, fringe.attribute(smooth(), x, method=method, target=1, space=space).values)


def test_a_method_without_an_identity_has_no_delta():
    maps, delta = ours(smooth(), fringe.SmoothGrad(samples=3)).attribute(
        inputs(2), target=1, return_convergence_delta=True
    )
    assert torch.isfinite(maps).all()
    assert delta.isnan().tolist() == [True, True]


def test_what_cannot_be_meant_is_refused():
    x = inputs(2)
    with pytest.raises(InputError, match=r"inputs: got list, expected a tensor \(B, \*S\) or a tuple"):
        ours(smooth()).attribute([x], target=1)
    with pytest.raises(InputError, match=r"inputs: got a tensor without axes, expected a tensor \(B, \*S\)"):
        ours(smooth()).attribute(x.sum(), target=1)
    with pytest.raises(InputError, match=r"method: got 'trapezoid', expected .*riemann_trapezoid"):
        ours(smooth()).attribute(x, target=1, method="trapezoid")
    for target in ((1, 1), [(1, 0), (2, 0)]):
        with pytest.raises(TargetError, match="1 positions and a class pick nothing of an output of shape"):
            ours(smooth()).attribute(x, target=target)
    for target in ([(1, 0), (2,)], [(1, 0), 2], ("a", 1)):
        with pytest.raises(TargetError, match="expected a tuple of whole numbers, or a list of tuples"):
            ours(smooth()).attribute(x, target=target)
    with pytest.raises(TargetError, match="got 'predicted', expected one class, or a list or tensor"):
        ours(smooth()).attribute(x, target="predicted")
    with pytest.raises(TargetError, match=r"got shape \(3,\) for 2 images"):
        ours(smooth()).attribute(x, target=[1, 2, 3])
    with pytest.raises(TargetError, match=f"class {CLASSES} does not exist"):
        ours(smooth()).attribute(x, target=CLASSES)
    with pytest.raises(InputError, match="the method 'fringe' has no setting 'baseline'"):
        CaptumAttributor(smooth()).attribute(x, baselines=0.0, target=1)
    with pytest.raises(InputError, match="Known methods"):
        CaptumAttributor(smooth(), "integrated")


@pytest.mark.parametrize("method", [GAUSS, "ig"])
def test_captums_words_for_steps_and_batches_are_understood(method):
    model, x = smooth(), inputs(5)
    maps = ours(model, method).attribute(x, target=1, n_steps=7, internal_batch_size=2)
    steps = fringe.attribute(model, x, method=fringe.IntegratedGradients(steps=7), target=1).values
    if method is GAUSS:
        steps = theirs(model).attribute(x, target=1, n_steps=7, internal_batch_size=2)
    close(maps, steps)


def test_an_internal_batch_bounds_the_passes_of_one_call():
    sizes, model = [], linear()

    def watched(x):
        sizes.append(len(x))
        return model(x)

    attributor = ours(watched, fringe.IntegratedGradients(steps=3), batch_size=4)
    attributor.attribute(inputs(6), target=0, internal_batch_size=2)
    assert max(sizes) == 2
    sizes.clear()
    attributor.attribute(inputs(6), target=0)
    assert max(sizes) == 4


def test_steps_pass_through_a_noise_tunnel():
    noisy = captum.attr.NoiseTunnel(ours(linear()))
    options = {"target": 1, "nt_samples": 2, "stdevs": 0.0, "n_steps": 3}
    close(noisy.attribute(inputs(2), **options), ours(linear()).attribute(inputs(2), target=1, n_steps=3))


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "smoothgrad",
            {"n_steps": 5},
            r"n_steps: the method 'smoothgrad' has no number of steps; .*SmoothGrad\(samples=",
        ),
        ("guided_ig", {"method": "gausslegendre"}, "method: the method 'guided_ig' has no quadrature rule"),
        (
            "smoothgrad",
            {"method": "riemann_left"},
            r"method: the method 'smoothgrad' has no quadrature rule; .*samples",
        ),
        ("ggig", {"n_steps": 5}, r"n_steps: .* its settings: intervals, iterations"),
        ("ig", {"n_steps": 0}, "n_steps: got 0, expected a positive integer"),
        ("ig", {"internal_batch_size": 0}, "internal_batch_size: got 0, expected a positive integer"),
        ("ig", {"internal_batch_size": 2.5}, "internal_batch_size: got 2.5"),
    ],
)
def test_captums_words_that_make_no_sense_are_refused(method, options, message):
    with pytest.raises(InputError, match=message):
        ours(linear(), method).attribute(inputs(1), target=0, **options)


@pytest.mark.parametrize("strides", [None, 2, (1, 2)])
def test_windows_and_features_of_captum_are_understood(strides):
    x, net = normal(3, 2, 4, seed=40), nn.Sequential(nn.Flatten(), filled(nn.Linear(8, CLASSES).double()), nn.Tanh())
    found = CaptumAttributor(net, "captum:occlusion").attribute(
        x, 0.3, 1, sliding_window_shapes=(2, 2), strides=strides
    )
    expected = captum.attr.Occlusion(net).attribute(x, (2, 2), strides, 0.3, 1)
    close(found, expected.double(), 1e-5)
    mask = torch.tensor([[[0, 0, 1, 1], [2, 2, 2, 1]]])
    found = CaptumAttributor(net, "captum:occlusion").attribute(x, 0.3, 1, feature_mask=mask)
    close(found, captum.attr.FeatureAblation(net).attribute(x, 0.3, 1, feature_mask=mask).double(), 1e-5)


def test_windows_of_several_tensors_are_captums():
    def net(first, second):
        return torch.tanh(first.flatten(1)[:, :4] * second)

    x, windows = (normal(3, 2, 4, seed=40), normal(3, 4, seed=41)), ((1, 2), (3,))
    found = CaptumAttributor(net, "captum:occlusion").attribute(
        x, target=1, sliding_window_shapes=windows, strides=(1, (1,))
    )
    for one, expected in zip(found, captum.attr.Occlusion(net).attribute(x, windows, (1, (1,)), target=1), strict=True):
        close(one, expected.double(), 1e-5)
    with pytest.raises(InputError, match="sliding_window_shapes: the method 'rise' has no window"):
        CaptumAttributor(net, "rise").attribute(x, target=1, sliding_window_shapes=windows)
