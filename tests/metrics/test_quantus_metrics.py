"""Metrics of Quantus by name, with a stand-in for the package; ``tests/adapters`` asks the package itself."""

import pickle
import random
import sys
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fringe import InputError
from fringe.metrics import evaluate, get_metric
from toys import build, context_of, images

X = images(3)
MAPS = images(3, "maps")


class StandIn:
    """Notes what it is made of and asked; its score is ``answer(call)``."""

    def __init__(self, answer):
        self.answer, self.made, self.calls = answer, [], []

    def __call__(self, **settings):
        self.made.append(settings)
        return self._score

    def _score(self, **call):
        self.calls.append(SimpleNamespace(**call))
        return [self.answer(self.calls[-1])]


@pytest.fixture
def stand_in(monkeypatch):
    def install(answer=lambda call: 1.0):
        one = StandIn(answer)
        kinds = ("PixelFlipping", "FaithfulnessCorrelation", "Sparseness", "IROF")
        monkeypatch.setitem(sys.modules, "quantus", SimpleNamespace(__spec__=one, **dict.fromkeys(kinds, one)))
        return one

    return install


def scored(name, x=X, maps=MAPS, **options):
    return evaluate(context_of(build(), x, **options), maps, [name])[name]


@pytest.mark.parametrize(("name", "outputs"), [("irof", "probabilities"), ("faithfulness_correlation", "logits")])
def test_quantus_is_given_one_image_at_a_time_and_the_model(stand_in, name, outputs):
    quantus = stand_in(lambda call: float(call.a_batch.sum()))
    model = build()
    context = context_of(model, X)
    (result,) = evaluate(context, MAPS, [f"quantus:{name}"]).values()
    torch.testing.assert_close(result.values, MAPS.flatten(1).sum(1))
    for image, call in enumerate(quantus.calls):
        np.testing.assert_array_equal(call.x_batch, X[image : image + 1].numpy())
        np.testing.assert_array_equal(call.a_batch, MAPS[image : image + 1].numpy())
        assert call.y_batch.tolist() == [int(context.problem.target[image])]
        variants = torch.cat([X[image : image + 1], torch.zeros(1, *X.shape[1:])]).float()
        logits = model(variants.double())
        torch.testing.assert_close(call.model(variants), logits.softmax(1) if outputs == "probabilities" else logits)
        assert (call.channel_first, call.softmax) == (True, False)
    assert context.problem.model.passes.forward == 6


def test_settings_and_what_they_are_when_left_out(stand_in):
    quantus = stand_in()
    scored("quantus:pixel_flipping")
    assert quantus.made[-1]["features_in_step"] == 2  # 128 entries in 64 steps
    assert quantus.made[-1]["perturb_baseline"] == "black"
    assert quantus.made[-1]["return_auc_per_sample"]
    scored("quantus:faithfulness_correlation")
    assert quantus.made[-1]["subset_size"] == 32
    metric = get_metric("quantus:pixel_flipping").with_text({"features_in_step": "16", "perturb_baseline": "mean"})
    evaluate(context_of(build(), X), MAPS, [metric])
    assert quantus.made[-1]["features_in_step"] == 16
    assert quantus.made[-1]["perturb_baseline"] == "mean"
    odd = metric.with_text({"features_in_step": "9"})
    with pytest.raises(InputError, match=r"features_in_step: got 9, expected a divisor of the 64 pixels .* as 8"):
        evaluate(context_of(build(), X), MAPS, [odd])
    with pytest.raises(InputError, match="perturb_baseline: got 'grey', expected one of black, white"):
        metric.with_text({"perturb_baseline": "grey"})


@pytest.mark.parametrize(("shape", "step"), [((1, 32, 32), 16), ((3, 16, 16), 16), ((3, 224, 224), 3136), ((100,), 1)])
def test_a_step_divides_the_pixels_of_a_channel(stand_in, shape, step):
    """Quantus counts steps in the entries of all channels, and refuses what does not divide those of one."""
    quantus = stand_in()
    get_metric("quantus:pixel_flipping")._build(torch.empty(shape))
    assert quantus.made[-1]["features_in_step"] == step


def test_maps_that_quantus_refuses_have_no_score(stand_in):
    def answer(call):
        assert call.a_batch.sum() > 0, "too dark"
        return float("inf") if call.a_batch.max() > 5 else 2.0

    stand_in(answer)
    maps = MAPS.abs()
    maps[1] = 0.7
    maps = torch.cat([maps, -maps[:1], 9 * maps[:1]])
    result = scored("quantus:sparseness", torch.cat([X, X[:2]]), maps)
    assert result.values.nan_to_num(-1).tolist() == [2.0, -1.0, 2.0, -1.0, -1.0]
    assert result.flags["constant_map"].tolist() == [False, True, False, False, False]
    assert result.flags["undefined"].tolist() == [False, False, False, True, True]


def test_random_numbers_belong_to_the_image(stand_in):
    stand_in(lambda call: np.random.rand() + random.random())  # noqa: NPY002
    before = np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    together = scored("quantus:irof").values
    alone = torch.cat([scored("quantus:irof", X[i : i + 1], MAPS[i : i + 1]).values for i in (2, 0, 1)])
    assert torch.equal(together[[2, 0, 1]], alone)
    assert len(set(together.tolist())) == 3
    assert not torch.equal(scored("quantus:irof", seed=1).values, together)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == before  # noqa: NPY002


def test_what_numpy_no_longer_has_is_lent_and_taken_back(stand_in, monkeypatch):
    monkeypatch.delattr(np, "trapz", raising=False)

    def answer(call):
        warnings.warn("every perturbation says so", stacklevel=1)
        return float(getattr(np, "trapz")([0.0, 1.0]))  # noqa: B009

    stand_in(answer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert scored("quantus:irof").values.tolist() == [0.5, 0.5, 0.5]
    assert not hasattr(np, "trapz")


def test_names_that_do_not_fit_say_why(stand_in):
    stand_in()
    with pytest.raises(InputError, match="quantus:road cannot be used: it gives one number for all images together"):
        get_metric("quantus:road")
    with pytest.raises(InputError, match=r"quantus:max_sensitivity cannot be used: .*; use max_sensitivity"):
        get_metric("quantus:max_sensitivity")
    with pytest.raises(InputError, match="got 'quantus:pixel_fliping'; did you mean 'pixel_flipping'"):
        get_metric("quantus:pixel_fliping")
    with pytest.raises(InputError, match="got 'quantus:'; known after 'quantus:': pixel_flipping, faithfulness"):
        get_metric("quantus")


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.delitem(sys.modules, "quantus", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r'quantus:irof needs Quantus; run pip install -c constraints.txt -e "\.\[quantus\]"'
    ):
        get_metric("quantus:irof")


def test_a_metric_survives_its_way_to_another_process(stand_in):
    stand_in()
    metric = get_metric("quantus:pixel_flipping").with_text({"features_in_step": "4"})
    assert pickle.loads(pickle.dumps(metric)) == metric
    assert type(metric).from_record(metric.record()) == metric
    assert (metric.direction, metric.title) == ("lower", "Pixel flipping (Quantus)")


def test_settings_of_a_metric_count_in_its_passes(stand_in):
    stand_in(lambda call: 0.0)
    names = ("faithfulness_correlation", "monotonicity_correlation", "irof")
    correlation, monotonicity, irof = (get_metric(f"quantus:{name}") for name in names)
    assert [one.planned_passes for one in (correlation, monotonicity, irof)] == [100, 64 * 10, 50]
    assert replace(correlation, nr_runs=10**9).planned_passes == 10**9
    assert replace(monotonicity, nr_samples=3).planned_passes == 64 * 3
