"""The checks of metrics find what they are there to find."""

import pytest
import torch
from broken_metrics import FAULTS, CorrectMetric, WrongWay

from fringe import METRICS, InputError
from fringe.testing import METRIC_CHECKS, CheckError, check_metric
from fringe.testing._checks import ToyProblems
from fringe.testing._metrics import _known_contributions, quality_levels


def failures(metric, *checks):
    """What these checks say against the metric."""
    with pytest.raises(CheckError) as caught:
        check_metric(metric, skip=set(METRIC_CHECKS) - set(checks))
    return {result.name: result.detail for result in caught.value.results if not result.passed}


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "checks"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_found_by_the_check_for_it(fault, checks):
    assert set(failures(fault(), *checks)) == checks


def test_every_check_has_a_fault_that_it_finds():
    assert set().union(*(checks for _, checks in FAULTS.values())) == set(METRIC_CHECKS)


def test_a_correct_metric_passes():
    results = check_metric(CorrectMetric())
    assert [result.name for result in results] == list(METRIC_CHECKS)
    assert all(result.passed for result in results)


def test_a_failure_is_told_in_numbers():
    result = failures(WrongWay(), "ranking")["ranking"]
    assert result.endswith("though lower is better")
    numbers = [float(n) for n in result.split("contributions ")[1].split(";")[0].split(", ")]
    assert numbers == sorted(numbers, reverse=True)


def test_a_failure_may_be_expected_and_a_check_left_out():
    results = check_metric(WrongWay(), skip=["passes"], expected_failures={"ranking": "upside down"})
    assert [result.name for result in results if not result.passed] == ["ranking"]
    with pytest.raises(InputError, match="skip: got 'speed', expected one of settings_frozen"):
        check_metric(CorrectMetric(), skip=["speed"])


def test_a_metric_may_be_named_with_its_preset():
    by_name = check_metric("sparseness", skip=["ranking"])
    assert by_name == check_metric(METRICS["sparseness"](), skip=["ranking"])


def test_the_perfect_map_is_what_the_linear_model_computes():
    """Contributions sum to the logit of the image's own class, 8, and the gradient is that logit's own."""
    toys = ToyProblems()
    model, x, contribution = _known_contributions(toys, "image")
    logits = model(x)
    torch.testing.assert_close(contribution.flatten(1).sum(1), logits.diagonal())
    torch.testing.assert_close(logits.diagonal(), torch.full((6,), 8.0, dtype=torch.float64))
    assert logits.softmax(1).diagonal().min() > 0.95
    maps = quality_levels(x, contribution, ["steps"])
    torch.testing.assert_close(maps["gradients"][0].maps.values.flatten(1), next(model.parameters()))
    lengths = [one.maps.values.flatten(1).norm(dim=1) for one in maps["gradients"]]
    torch.testing.assert_close(lengths[0], lengths[1])
    assert torch.equal(maps["gradients"][2].maps.values, -maps["gradients"][0].maps.values)
