"""How often intervals hold the truth, and how often p values raise a false alarm, over simulated sets of images."""

import math

import numpy as np
import pytest

from fringe.evaluation import estimate
from fringe.evaluation._statistics import holm, paired, sign_flip_ps

pytestmark = pytest.mark.thorough
SETS, IMAGES = 400, 60
BOUND = 3 * math.sqrt(0.05 * 0.95 / SETS)
"""Three standard deviations of a share that is 5 % in truth: 0.033."""


def draws(kind, seed=0):
    rng = np.random.default_rng(seed)
    sets = rng.normal(2.0, 3.0, (SETS, IMAGES)) if kind == "normal" else rng.gamma(2.0, 1.0, (SETS, IMAGES))
    truth = {"normal": (2.0, 2.0), "skewed": (2.0, 1.6783469900166605)}[kind]  # mean and median
    return sets, dict(zip(("mean", "median"), truth, strict=True))


def share(found, truth):
    return np.mean([one.low <= truth <= one.high for one in found])


@pytest.mark.parametrize("kind", ["normal", "skewed"])
@pytest.mark.parametrize("summary", ["mean", "median"])
def test_the_interval_holds_the_truth_in_19_of_20_sets(kind, summary):
    sets, truth = draws(kind)
    covered = share([estimate(scores, seed, summary) for seed, scores in enumerate(sets)], truth[summary])
    assert covered == pytest.approx(0.95, abs=BOUND)


def test_a_paired_interval_holds_the_true_difference_whatever_the_images_share():
    sets, truth = draws("skewed", seed=1)
    images = np.random.default_rng(2).normal(0.0, 50.0, sets.shape)
    found = [paired(theirs + sets[i], theirs, seed=i) for i, theirs in enumerate(images)]
    assert share(found, truth["mean"]) == pytest.approx(0.95, abs=BOUND)


@pytest.mark.parametrize("images", [IMAGES, 10])
def test_one_p_in_twenty_is_below_a_twentieth_where_nothing_differs(images):
    differences = np.random.default_rng(3).laplace(size=(SETS, images))
    alarms = np.mean([sign_flip_ps([row], seed)[0] <= 0.05 for seed, row in enumerate(differences)])
    assert alarms == pytest.approx(0.05, abs=BOUND)


def test_holm_keeps_the_chance_of_any_false_alarm():
    """Of eight comparisons without a difference the smallest p is below .05 in 34 % of the sets, adjusted in 5 %."""
    differences = np.random.default_rng(4).normal(size=(SETS, 8, 12))
    p_values = np.array([sign_flip_ps(list(family)) for family in differences])
    assert np.mean(p_values.min(1) <= 0.05) == pytest.approx(1 - 0.95**8, abs=0.075)
    alarms = np.mean([min(holm(family.tolist())) <= 0.05 for family in p_values])
    assert alarms == pytest.approx(0.05, abs=BOUND)
