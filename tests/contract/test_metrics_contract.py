"""Every registered metric keeps the public contract, in the paper's setting and in every preset."""

from dataclasses import replace

import pytest
import torch

from fringe import METRICS, InputError
from fringe.bench.experiments._plan import written_code
from fringe.metrics import KINDS, get_metric
from fringe.metrics._perturbation import RankingMetric
from fringe.testing import METRIC_CHECKS, check_metric
from fringe.testing._metrics import _MetricUnderTest

CANNOT_RANK = {
    "infidelity:scale_free": "the best scale of a map may be negative, which makes the inverted map as good",
}
PRESETS = [f"{name}:{preset}" for name, kind in METRICS.items() for preset in kind.presets if preset != "paper"]


#: Metrics of many passes, which after every edit keep the contract on a series alone.
SLOW = ("pic", "road")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.thorough] if name in SLOW else []) for name in METRICS]
)
def test_it_keeps_the_contract(name):
    results = check_metric(name)
    assert [result.name for result in results] == list(METRIC_CHECKS)
    assert all(result.passed and result.detail for result in results)
    levels = "from the model, by half, never" if METRICS[name].compares_models else "perfect, random, inverted"
    ranking = {result.name: result.detail for result in results}["ranking"]
    assert ranking.startswith(levels) == (METRICS[name].direction != "none")


#: Metrics that after every edit keep the contract on a volume; all others on series and tables.
OF_VOLUMES = ("insertion", "infidelity", "max_sensitivity", "sparseness")

#: Those laws that the kind of input may break; draws and what is shared belong to images by their keys, of any kind.
LAWS = {"batch_of_one", "batch_size", "passes", "shape_and_dtype", "ranking", "degenerate_maps", "caller_tensors"}
OTHER_KINDS = [
    pytest.param(name, kind, marks=[pytest.mark.thorough] if kind == "volume" and name not in OF_VOLUMES else [])
    for name, one in METRICS.items()
    for kind in one().kinds
    if kind != "image"
]


@pytest.mark.parametrize(("name", "kind"), OTHER_KINDS)
def test_it_keeps_the_contract_on_the_other_inputs_that_it_claims(name, kind):
    results = check_metric(name, kind=kind, skip=set(METRIC_CHECKS) - LAWS)
    assert {result.name for result in results if result.passed} == LAWS


@pytest.mark.parametrize("name", [*METRICS, *PRESETS])
def test_it_refuses_the_inputs_that_it_does_not_claim_before_any_pass(name):
    metric = get_metric(name)
    for kind in set(KINDS) - set(metric.kinds):
        case = _MetricUnderTest(tested=metric, kind=kind)
        context = case.context()
        passes = context.problem.model.passes.forward
        with pytest.raises(InputError, match=rf"metric {metric.name}: .+ of shape \(3, "):
            case.score(context)
        assert context.problem.model.passes.forward == passes
        with pytest.raises(InputError, match=f"kind: got '{kind}'"):
            check_metric(metric, kind=kind)


@pytest.mark.parametrize("name", PRESETS)
def test_its_presets_rank_maps_in_the_declared_direction(name):
    expected = {"ranking": CANNOT_RANK[name]} if name in CANNOT_RANK else {}
    checks = {"shape_and_dtype", "ranking"}
    assert len(check_metric(name, skip=set(METRIC_CHECKS) - checks, expected_failures=expected)) == 2


@pytest.mark.parametrize("name", METRICS)
def test_its_default_is_the_papers_setting_but_for_the_blur(name):
    """A default blur removes the evidence at every size; the paper has a box and a Gaussian of few pixels."""
    paper, blur = METRICS[name].preset("paper"), ("reference", "size", "sigma", "padding")
    own = {key: value for key, value in vars(METRICS[name]()).items() if key in blur}
    assert METRICS[name]() == replace(paper, **own)
    assert (METRICS[name]() != paper) == (name in ("insertion", "deletion", "mas_insertion", "mas_deletion"))


#: Metrics that rank the pixels of a map, with their random order of equal ones.
RANKING = [name for name, kind in METRICS.items() if issubclass(kind, RankingMetric)]
#: Differences of what two orders score, which are equal for a constant map.
GAPS = {"road", "srg", "diffid", "signed_insertion"}


@pytest.mark.parametrize("name", [*RANKING, "pic"])
def test_a_constant_map_has_one_order_whatever_its_sign_and_size(name):
    case = _MetricUnderTest(tested=METRICS[name]())
    first = case.score(case.context(), values=torch.ones_like(case.x)).values
    for constant in (-1.0, 4.0) if name.startswith("mas") else (-1.0, 4.0, 0.0):  # a zero map has no density
        again = case.score(case.context(), values=torch.full_like(case.x, constant)).values
        torch.testing.assert_close(again, first, rtol=0, atol=0, equal_nan=True)
    assert (name in GAPS) == (first.tolist() == [0.0] * len(first))


@pytest.mark.parametrize("name", METRICS)
def test_scores_of_another_rule_for_ties_are_not_taken_from_a_store(name):
    assert (written_code(METRICS[name]()) is not None) == (name in RANKING)


@pytest.mark.parametrize("name", RANKING)
def test_equal_pixels_have_an_order_of_the_seed(name):
    case, values = _MetricUnderTest(tested=METRICS[name]()), torch.zeros(3, 2, 8, 8)
    values[..., :4] = 1.0
    one, same, other = (case.score(case.context(seed=seed), values=values).values for seed in (0, 0, 1))
    assert one.equal(same)
    assert one.equal(other) == (name == "single_deletion")  # equal ranks, not an order


@pytest.mark.parametrize("name", METRICS)
def test_a_broken_map_has_no_score(name):
    case = _MetricUnderTest(tested=METRICS[name]())
    broken = case.maps.values.clone()
    broken[1, 0, 0, 0] = torch.nan
    with pytest.raises(InputError, match=r"maps: those of images \[1\] hold NaN or infinity"):
        case.score(case.context(), values=broken)
    with pytest.raises(InputError, match=r"maps: got shape \(3, 1, 8, 8\), expected \(3, 2, 8, 8\)"):
        case.score(case.context(), values=case.maps.values[:, :1])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", METRICS)
def test_it_keeps_the_contract_on_a_gpu(name):
    check_metric(name, device="cuda")
