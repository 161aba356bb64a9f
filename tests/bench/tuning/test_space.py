"""What is searched: the fields of every method, their ranges, and what is refused."""

import math

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from tuning_toys import TUNABLE

from fringe import METHODS, FRInGe, InputError
from fringe.attribution import PaperFRInGe
from fringe.bench.tuning import nearest, paper_space, space_of

optuna.logging.set_verbosity(optuna.logging.ERROR)


def drawn(space, count=25, seed=0):
    """Settings that a random sampler gives."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    return [study.ask(dict(space)).params for _ in range(count)]


@pytest.mark.parametrize("method", [PaperFRInGe, FRInGe])
def test_the_paper_searched_four_or_six_settings(method):
    found = paper_space(method)
    assert list(found) == ["tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior"]
    assert list(paper_space(method, smoothing=False)) == ["tau", "eta_max", "delta_euc", "damping"]
    assert found["damping"] == FloatDistribution(1e-12, 1e-1, log=True)
    assert found["delta_euc"] == FloatDistribution(0.3, 40.0, log=True)


@pytest.mark.parametrize("name", TUNABLE)
def test_every_method_has_a_space_whose_settings_it_takes(name):
    method = METHODS[name]
    fields = {f["name"]: f for f in method.describe()}
    space = space_of(method)
    assert set(space) == {n for n, f in fields.items() if f["low"] is not None or f["choices"] is not None}
    for values in drawn(space):
        for field, value in values.items():
            about = fields[field]
            if field == "superpixels":  # only kernel_shap of captum has it
                value = "auto"
            assert getattr(method(**{field: value}), field) == value
            if about["choices"] is not None:
                assert value in about["choices"]
            else:
                assert about["low"] <= value <= about["high"]
                assert type(value) is (int if type(about["low"]) is type(about["high"]) is int else float)


@pytest.mark.parametrize("name", TUNABLE)
def test_the_nearest_place_to_a_default_is_in_the_space(name):
    space, default = space_of(METHODS[name]), METHODS[name]()
    for field, dimension in space.items():
        own = getattr(default, field)
        value = nearest(dimension, own)
        if isinstance(dimension, CategoricalDistribution):
            assert value == own
        else:
            assert dimension.low <= value <= dimension.high
            assert value == own or not (isinstance(own, (int, float)) and dimension.low <= own <= dimension.high)


def test_nearest():
    assert nearest(FloatDistribution(1, 100), 1000) == 100
    assert nearest(FloatDistribution(1, 100), -3) == 1
    assert nearest(FloatDistribution(1, 100), "auto") == 50.5
    assert nearest(FloatDistribution(1, 100, log=True), None) == pytest.approx(10)
    assert nearest(FloatDistribution(1, 100, log=True), math.inf) == pytest.approx(10)
    found = nearest(IntDistribution(1, 10), None)
    assert (found, type(found)) == (6, int)


def test_a_choice_that_is_none_becomes_the_first():
    assert nearest(CategoricalDistribution(("a", "b")), "b") == "b"
    assert nearest(CategoricalDistribution(("a", "b")), "c") == "a"


def test_a_space_does_not_depend_on_how_its_numbers_were_typed():
    typed = space_of(PaperFRInGe, {"tau": (1, 2), "cg_iterations": (3.0, 5.0)})
    assert typed["tau"] == FloatDistribution(1.0, 2.0, log=True)
    assert typed["cg_iterations"] == IntDistribution(3, 5)


def test_ranges_can_be_replaced_or_given():
    space = space_of(PaperFRInGe, {"tau": (1e-4, 1), "cg_iterations": None, "cg_rtol": (0.01, 0.1)})
    assert space["tau"] == FloatDistribution(1e-4, 1.0, log=True)
    assert space["cg_iterations"] == IntDistribution(3, 40)
    assert space["cg_rtol"] == FloatDistribution(0.01, 0.1)
    assert all(0.01 <= values["cg_rtol"] <= 0.1 for values in drawn(space))


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"taau": None}, r"paper setting: got 'taau', expected .*; did you mean 'tau'\?"),
        ({"tau": None, "tua": (1, 2)}, r"got 'tua', expected .*; did you mean 'tau'\?"),
        ({"tau": (1e-2, 1e-3)}, r"tau: got \(0.01, 0.001\), expected two finite numbers, the lower"),
        ({"tau": (1e-2, 1e-2)}, "the lower first"),
        ({"tau": (0.0, 1e-2)}, "above zero, on a logarithmic scale"),
        ({"tau": (1e-3, math.inf)}, "two finite numbers"),
        ({"tau": ("a", "b")}, "two finite numbers"),
        ({"cg_iterations": (3, 4.5)}, "whole numbers"),
        (
            {"direction": (1, 2)},
            r"direction: got \(1, 2\), expected no range: it is one of natural, gradient",
        ),
        ({"kl_bound": None}, "kl_bound: paper has no range to search it in, and no choices"),
        ({"cg_rtol": None}, "cg_rtol: paper has no range"),
        ({"cg_rtol": (-0.1, 0.1)}, "cg_rtol: got -0.1"),
        ({}, "name another method, or a setting with its range"),
    ],
)
def test_what_cannot_be_searched(ranges, message):
    with pytest.raises(InputError, match=message):
        space_of(PaperFRInGe, ranges)


@pytest.mark.parametrize("name", ["gradcam", "captum", "zennit"])
def test_a_method_without_anything_to_search_is_named(name):
    """Which algorithm of another library it is, is no setting of it: a search would return another method."""
    with pytest.raises(InputError, match=f"^method: {name} has no setting with a range or choices to search; name an"):
        space_of(METHODS[name])


def test_settings_of_another_library_are_searched_in_ranges_that_are_given():
    space = space_of(METHODS["captum"], {"window": (3, 9)})
    assert space == {"window": IntDistribution(3, 9)}
