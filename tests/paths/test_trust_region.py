"""The bound on the logits adapts to how linear the network was along the last step."""

import pytest
import torch

from fringe.paths import Bound, TrustRegion

TRUST = TrustRegion(eta_max=10.0, tau=None, delta_euc=None, delta_logit=1.0)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("radius", "actual", "expected"),
    [
        (0.4, (0.4, 0.0), 0.8),  # as predicted: twice the bound
        (0.8, (0.4, 0.0), 1.0),  # never more than delta_logit
        (0.4, (0.26, 0.0), 0.4),  # an error of 35 %: the bound stays
        (0.4, (0.1, 0.0), 0.2),  # 75 %: half of what the step was to do
        (1.0, (-0.4, 0.0), 0.2),
        (0.4, (5.4, 5.0), 0.8),  # a constant added to all logits is no error
        (0.15, (-4.0, 0.0), 0.2),
    ],
)
def test_the_bound_follows_the_error_of_the_linearisation(radius, actual, expected):
    after = TRUST.next_radius(tensor(radius), tensor(0.4, 0.0)[None], tensor(*actual)[None])
    assert after.item() == pytest.approx(expected)


def test_a_step_takes_the_bound_it_is_given():
    eta, bound = TRUST.step(tensor(0.0, 0.0), tensor(1.0, 1.0), tensor(2.0, 2.0), tensor(0.5, 1.0))
    assert eta.tolist() == pytest.approx([0.25, 0.5])
    assert bound.tolist() == [Bound.LOGIT] * 2


def test_a_bound_that_is_switched_off_does_not_bind():
    fisher, norm = tensor(0.01, 1.0, 0.01), tensor(0.5, 0.5, 30.0)
    for tau, delta_euc, expected in (
        (None, 3.0, [2.0, 2.0, 0.1]),
        (0.08, None, [2.0, 0.4, 2.0]),
        (None, None, [2.0] * 3),
    ):
        assert TrustRegion(2.0, tau, delta_euc).step(fisher, norm)[0].tolist() == pytest.approx(expected)


def test_the_range_of_the_bound_is_a_tenth_of_delta_logit_to_delta_logit():
    trust = TrustRegion(eta_max=10.0, tau=None, delta_euc=None, delta_logit=3.0)
    as_predicted, backwards = tensor(2.0, 0.0)[None], tensor(-2.0, 0.0)[None]
    assert trust.next_radius(tensor(2.0), as_predicted, as_predicted).item() == pytest.approx(3.0)
    assert trust.next_radius(tensor(2.0), as_predicted, backwards).item() == pytest.approx(1.0)
    assert trust.next_radius(tensor(0.4), 0.1 * as_predicted, backwards).item() == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("fisher", "norm", "logit_range", "eta", "active"),
    [
        (4.0, 1.0, 0.1, 0.1, Bound.KL),
        (1e-4, 1.0, 0.1, 3.0, Bound.EUCLIDEAN),
        (1e-4, 1.0, 0.5, 2.0, Bound.LOGIT),  # beside 20 and 3
        (1e-4, 0.1, 0.01, 10.0, Bound.ETA_MAX),
        (1e-4, 0.1, None, 10.0, Bound.ETA_MAX),  # not measured: no such bound
        (1.0, 1.0, None, 0.2, Bound.KL),  # sqrt(2 * 0.02 / 1)
        (1e-4, 0.5, None, 6.0, Bound.EUCLIDEAN),  # the other would be 20
        (0.0, 0.0, None, 10.0, Bound.ETA_MAX),  # no direction at all
        (0.0, 0.1, 0.0, 10.0, Bound.ETA_MAX),  # a direction that moves no logits
    ],
)
def test_all_four_bounds_beside_each_other(fisher, norm, logit_range, eta, active):
    region = TrustRegion(eta_max=10.0, tau=0.02, delta_euc=3.0, delta_logit=1.0)
    found, bound = region.step(tensor(fisher), tensor(norm), None if logit_range is None else tensor(logit_range))
    assert found.item() == pytest.approx(eta, rel=1e-7)
    assert bound.item() == active


def test_a_change_where_none_was_predicted_is_the_greatest_error():
    still, moved = tensor(0.0, 0.0)[None], tensor(-0.4, 0.0)[None]
    assert TRUST.next_radius(tensor(0.4), still, moved).item() == pytest.approx(0.1)
    assert TRUST.next_radius(tensor(0.4), still, still).item() == pytest.approx(0.8)
