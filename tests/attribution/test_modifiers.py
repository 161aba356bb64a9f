"""The straight line to a method's end point, and smoothed maps: what they compute and what they are called."""

import json

import pytest
import torch
from scipy.ndimage import gaussian_filter

import fringe
from fringe import InputError, Smooth, Straight
from fringe._strings.names import method_title
from fringe.attribution import get_method, method_label, method_of_record
from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.data import digits_samples
from fringe.explanations import ExplainSpec
from fringe.explanations._base import configured_method
from fringe.models import load_model

FAST = fringe.FRInGe(tau=3e-2, temperature=1.0)


@pytest.fixture(scope="module")
def digits():
    loaded = load_model("embedded:digits")
    x = loaded.prepare([sample.image for sample in digits_samples()[:3]]).double()
    references = loaded.prepare([sample.image for sample in digits_samples()[20:25]]).double()
    space = fringe.InputSpace(*(b.double() for b in loaded.preprocessing.bounds()), references=references)
    return loaded.module.double(), x, space


def explained(digits, method, rows=slice(None), **more):
    model, x, space = digits
    return fringe.attribute(model, x[rows], method=method, space=space, **more)


class TestStraight:
    def test_of_a_straight_path_is_the_path(self, digits):
        ig = explained(digits, fringe.IntegratedGradients(steps=12, baseline="blur"))
        for inner in (ig.settings, {**fringe.GuidedIG(steps=4, baseline="blur").record()}):
            line = explained(digits, Straight(method_of_record(inner), steps=12))
            torch.testing.assert_close(line.values, ig.values, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize(
        "inner", [FAST, fringe.GuidedIG(steps=5), fringe.BlurIG(steps=4), fringe.GeoIGKNN(neighbours=2, order=2)]
    )
    def test_integrates_to_the_end_of_the_methods_own_path(self, digits, inner):
        own = explained(digits, inner, telemetry=True)
        ends = torch.stack([path.snapshots[-1] for path in own.trajectory])
        line = explained(digits, Straight(inner, steps=9))
        expected = explained(digits, fringe.IntegratedGradients(steps=9), baseline=ends)
        torch.testing.assert_close(line.values, expected.values, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(line.endpoint_score, own.endpoint_score, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(line.completeness_gap, expected.completeness_gap, rtol=1e-6, atol=1e-9)

    def test_of_a_path_that_ended_short_says_so(self, digits):
        short = fringe.FRInGe(steps=2, temperature=1.0, delta_euc=0.32)  # hardly moves two of the images
        own, line = explained(digits, short), explained(digits, Straight(short, steps=40))
        assert own.verdict == line.verdict == ("stalled", "stalled", "short")
        assert all(text.startswith("the path of fringe: ") for text in line.advice)

    def test_costs_the_path_and_the_line(self, digits):
        own, line = explained(digits, FAST).passes, explained(digits, Straight(FAST, steps=7)).passes
        assert line.vjp - own.vjp == 3 * 7
        assert explained(digits, Straight(fringe.IntegratedGradients(steps=500), steps=7)).passes.vjp < 3 * 9

    def test_begins_at_the_callers_baseline_where_the_method_does(self, digits):
        line = explained(digits, Straight(fringe.GuidedIG(steps=4), steps=6), baseline=0.5)
        expected = explained(digits, fringe.IntegratedGradients(steps=6), baseline=0.5)
        torch.testing.assert_close(line.values, expected.values)
        with pytest.raises(InputError, match="does not begin at one"):
            explained(digits, Straight(FAST), baseline=0.5)

    @pytest.mark.parametrize("name", ["smoothgrad", "expected_gradients", "captum:input_x_gradient"])
    def test_needs_a_path(self, digits, name):
        with pytest.raises(InputError, match=f"{name} has no path, and so no end point; name a method with a path"):
            explained(digits, f"straight:{name}")

    @pytest.mark.parametrize("name", ["agi", "ig2"])
    def test_needs_one_path(self, digits, name):
        with pytest.raises(InputError, match=f"{name} follows several paths per image"):
            explained(digits, f"straight:{name}")


class TestSmooth:
    @pytest.mark.parametrize("sigma", [0.7, 3.0, 20.0])  # wider than the image, too
    def test_is_scipys_filter_and_keeps_the_sum(self, digits, sigma):
        inner = fringe.IntegratedGradients(steps=6)
        plain, smooth = explained(digits, inner), explained(digits, Smooth(inner, sigma=sigma))
        expected = gaussian_filter(plain.values.numpy(), (0, 0, sigma, sigma), mode="reflect", truncate=4.0)
        torch.testing.assert_close(smooth.values, torch.from_numpy(expected), rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(smooth.completeness_gap, plain.completeness_gap, rtol=1e-6, atol=1e-10)
        assert (smooth.verdict, smooth.passes) == (plain.verdict, plain.passes)

    def test_channels_do_not_mix(self):
        x = torch.rand(1, 2, 6, 6, dtype=torch.float64)
        result = fringe.attribute(lambda z: z[:, 0].flatten(1)[:, :3], x, method="smooth(1):ig")
        assert (result.values[0, 1] == 0).all()


class TestNames:
    @pytest.mark.parametrize(
        ("text", "method", "label", "title"),
        [
            ("straight:fringe", Straight(fringe.FRInGe()), "straight:fringe", "Straight line: FRInGe"),
            (
                "Straight:Integrated Gradients:paper",
                Straight(fringe.IntegratedGradients(steps=200)),
                "straight:ig",
                None,
            ),
            ("straight", Straight(), "straight:fringe", None),
            ("smooth(3):ig", Smooth(fringe.IntegratedGradients(), sigma=3.0), "smooth(3):ig", None),
            ("smooth:ig", Smooth(), "smooth(3):ig", "Smoothed (3 px): Integrated Gradients"),
            (
                "smooth(1.5):straight:fringe:fast",
                Smooth(Straight(fringe.FRInGe.preset("fast")), sigma=1.5),
                "smooth(1.5):straight:fringe",
                "Smoothed (1.5 px): Straight line: FRInGe",
            ),
            ("smooth(2):captum:occlusion", Smooth(fringe.CaptumMethod("occlusion"), sigma=2.0), None, None),
        ],
    )
    def test_mean_a_method_that_its_record_gives_back(self, text, method, label, title):
        result = get_method(text)
        assert result == method
        record = json.loads(json.dumps(result.record()))
        assert method_of_record(record) == method
        assert type(method).from_record(record).record() == result.record()
        assert method_label(record) == result.label == (label or text)
        assert title is None or method_title(result.label) == title
        assert configured_method(ExplainSpec(method=text)) == method

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("ig(3)", "got 'ig\\(3\\)', but ig takes no number in brackets"),
            ("smooth(wide):ig", "sigma: got 'wide', expected a positive number"),
            ("smooth(-1):ig", "sigma: got '-1', expected a positive number"),
            ("smooth(3):igg", "got 'igg'; did you mean 'ig'"),
            ("straight:ig:papers", "method: ig has no 'papers'; did you mean 'paper'"),
            ("straigt:ig", "got 'straigt'; did you mean 'straight'"),
            ("Gradd-CAM", "got 'Gradd-CAM'; did you mean 'gradcam'"),
            ("smooth(3):occlussion", "got 'occlussion'; did you mean 'captum:occlusion'"),
            ("deeplift", "got 'deeplift'; did you mean 'captum:deep_lift'"),
        ],
    )
    def test_that_mean_nothing_are_refused(self, text, message):
        with pytest.raises(InputError, match=message):
            get_method(text)

    def test_settings_are_the_modifiers_and_of_the_method_inside(self):
        method = get_method("smooth(2):straight:fringe")
        changed = method.with_text({"sigma": "1", "of.steps": "7", "of.of.tau": "0.01"})
        assert changed == Smooth(Straight(fringe.FRInGe(tau=0.01), steps=7), sigma=1.0)
        assert method.with_text({"of": "ig:paper"}).of == fringe.IntegratedGradients(steps=200)
        with pytest.raises(InputError, match=r"straight has no setting 'tau', but fringe has; write of\.tau"):
            get_method("straight:fringe").with_text({"tau": "0.01"})
        with pytest.raises(InputError, match="straight has no setting 'stepps'; did you mean 'steps'"):
            get_method("straight:ig").with_text({"stepps": "1"})
        with pytest.raises(InputError, match="ig has no setting 'tau'"):
            get_method("straight:ig").with_text({"of.tau": "1"})

    def test_presets_variants_and_settings_of_explain_go_to_the_method_inside(self):
        spec = ExplainSpec(method="smooth(2):fringe", preset="fast", set=("sigma=1", "of.tau=0.01"))
        inner = fringe.FRInGe.preset("fast").with_text({"tau": "0.01"})
        assert configured_method(spec) == Smooth(inner, sigma=1.0)
        ablated = configured_method(ExplainSpec(method="straight:paper:resnet18", variant="euclidean"))
        assert ablated == Straight(fringe.attribution.PaperFRInGe.preset("resnet18", "euclidean"))

    def test_label_the_methods_of_a_plan(self):
        spec = ExperimentSpec(
            methods="straight:fringe,Smooth(3):IG,wide=smooth(8):ig",
            metrics="insertion",
            set=["straight:fringe.steps=9", "straight:fringe.of.tau=0.02", "smooth(3):ig.of.steps=5", "wide.sigma=9"],
        )
        methods = build_plan(spec).models[0].methods
        assert dict(methods) == {
            "straight:fringe": Straight(fringe.FRInGe(tau=0.02), steps=9),
            "smooth(3):ig": Smooth(fringe.IntegratedGradients(steps=5)),
            "wide": Smooth(sigma=9.0),
        }

    def test_the_papers_setting_goes_to_the_method_inside(self):
        with pytest.warns(UserWarning, match="the paper has no setting for"):
            plan = build_plan(ExperimentSpec(methods="straight:paper:auto,paper:auto", metrics="insertion"))
        assert plan.models[0].methods["straight:paper:auto"] == Straight(plan.models[0].methods["paper:auto"])

    def test_objects_go_by_their_labels(self, digits):
        model, x, space = digits
        methods = [Straight(fringe.IntegratedGradients(steps=3), steps=3), "smooth(2):ig", Smooth()]
        result = fringe.compare(model, x[:2], methods, ["sparseness"], space=space, controls=False)
        assert [row.label for row in result.rows] == ["straight:ig", "smooth(2):ig", "smooth(3):ig"]
        assert result.rows[0].settings["of"] == {**fringe.IntegratedGradients(steps=3).record()}

    def test_a_saved_map_knows_its_method(self, digits, tmp_path):
        result = explained(digits, "smooth(2):ig", slice(1))
        result.save(tmp_path / "map")
        loaded = fringe.load(tmp_path / "map")
        assert method_of_record(loaded.settings) == get_method("smooth(2):ig")
        assert "smooth(2):ig" in repr(loaded)
