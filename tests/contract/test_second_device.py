"""Everything runs where the inputs are: on a device that is not the CPU, with the CPU's own numbers."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from second_device import ELSEWHERE, Elsewhere, Transfers, second_device
from test_methods_contract import EXPECTED, FIRST, LABELS, ROWS
from torch import nn

import fringe
from fringe import METRICS, Classifier, FRInGe, InputSpace
from fringe._numbers.rng import KeyedGenerator
from fringe.attribution import PaperFRInGe, ReleasedFRInGe
from fringe.bench.experiments._manifest import resolve
from fringe.bench.experiments._plan import Plan, PlanModel
from fringe.bench.experiments._records import OK
from fringe.bench.experiments._runner import TaskRunner
from fringe.bench.experiments._tasks import pending_tasks
from fringe.captum import CaptumAttributor
from fringe.evaluation._evaluator import CONTROLS, Evaluator, parse_methods
from fringe.geometry import log_probabilities, softening_temperature, target_rest_logits
from fringe.linalg import inner_product
from fringe.metrics import EndpointKL, EvaluationContext, Infidelity, Insertion, MaxSensitivity, Sparseness, get_metric
from fringe.models import load_model
from fringe.paths import Problem
from fringe.quantus import explain_func
from fringe.testing import METRIC_CHECKS, check_attributor, check_metric

pytestmark = pytest.mark.thorough

TOUCHING = {"completeness", "bad_images", "tabular_inputs"}
"""Checks of methods that go where the maps of sound images do not."""
SCORING = {"shape_and_dtype", "degenerate_maps"}
"""Checks of metrics that go where the scores of sound maps do not."""


def network(classes=4):
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Softplus())
    return nn.Sequential(body, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, classes)).eval()


NETWORK = network()
X = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(1))
REFERENCES = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(2))
SPACE = InputSpace(low=torch.tensor(-4.0), high=torch.tensor(4.0), references=REFERENCES)


def here(**settings):
    """The classifier on the CPU, with images in the layout that an accelerator gets."""
    classifier = Classifier(NETWORK, **settings)
    classifier.layout = lambda x: torch.contiguous_format
    return classifier


def there(**settings):
    return Classifier(copy.deepcopy(NETWORK).to(ELSEWHERE), **settings)


def sent(space):
    return InputSpace(*(part.to(ELSEWHERE) for part in (space.low, space.high, space.references)))


# The device itself


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x: x + torch.ones(2),
        lambda x: torch.cat([x, torch.ones(2)]),
        lambda x: torch.ones(3)[x.long()],
        lambda x: torch.where(torch.ones(2, dtype=torch.bool), x, x),
        lambda x: x.index_select(0, torch.tensor([0])),
        lambda x: nn.Linear(2, 2)(x),
    ],
    ids=["add", "cat", "index", "where", "index_select", "weights"],
)
def test_it_refuses_two_places_at_once(mixed):
    with second_device(), pytest.raises(RuntimeError, match="expected all tensors on one device"):
        mixed(torch.ones(2, device=ELSEWHERE))


def test_it_allows_what_an_accelerator_does():
    with second_device():
        x = torch.arange(3.0, device=ELSEWHERE)
        assert (x * torch.tensor(2.0)).tolist() == [0.0, 2.0, 4.0]
        assert x[torch.tensor([2, 0])].tolist() == [2.0, 0.0]
        assert torch.zeros(3).copy_(x).tolist() == [0.0, 1.0, 2.0]
        with pytest.raises(RuntimeError):
            x.numpy()


# The library on it


@pytest.fixture(params=[True, False], ids=["float64", "no_float64"])
def place(request):
    """The second device with and without float64."""
    return partial(second_device, float64=request.param)


@pytest.fixture
def strict_place():
    """The second device without float64, which refuses all that the other one refuses."""
    return partial(second_device, float64=False)


#: Every row with float64, and the first of each method without.
THERE = [pytest.param(*row, True, id=label) for row, label in zip(ROWS, LABELS, strict=True)]
THERE += [pytest.param(*one.values, False, id=f"{one.id}-no_float64") for one in FIRST]


@pytest.mark.parametrize(("name", "method", "float64"), THERE)
def test_every_method_makes_the_same_maps_there(name, method, float64):
    expected = fringe.attribute(here(), X, method=method, space=SPACE, ids="abc", telemetry=True)
    with second_device(float64=float64):
        found = fringe.attribute(there(), X.to(ELSEWHERE), method=method, space=sent(SPACE), ids="abc", telemetry=True)
        assert found.values.device == ELSEWHERE
        assert torch.equal(found.values.cpu(), expected.values)
        assert found.verdict == expected.verdict
        assert found.passes == expected.passes
        columns = [c for c in found.diagnostics.values() if Elsewhere.float64 or c.dtype == torch.float32]
        assert {column.device for column in columns} <= {ELSEWHERE}
        for label, column in expected.diagnostics.items():
            np.testing.assert_allclose(found.diagnostics[label].tolist(), column.tolist(), rtol=1e-14)  # the last bit


def more_of(made, **options):
    """What three further steps read back from the device and send there: every read-back makes the host wait for it."""
    seen = []
    for steps in (4, 7):
        method = made(steps)
        with second_device(), Transfers() as transfers:
            found = fringe.attribute(there(**options), X.to(ELSEWHERE), method=method)
        assert method.name != "fringe" or found.diagnostics["steps"].tolist() == [steps] * len(X)
        seen.append(transfers)
    return seen[1].back - seen[0].back, seen[1].sent - seen[0].sent


@pytest.mark.parametrize(
    ("changes", "back"),
    [
        ({"quadrature_rtol": 1e3}, 1),
        ({"halvings": 0}, 1),
        ({"until": "arrival", "halvings": 0}, 1),
    ],
    ids=["default", "trapezoid", "arrival"],
)
def test_a_step_reads_little_back_and_sends_none(changes, back):
    """The default reads whether a segment is to be halved (here none is) with where a path stands."""

    def made(steps):
        return FRInGe(**({"max_steps": steps} if "until" in changes else {}), steps=steps, **changes)

    assert more_of(made) == (3 * back, 0)


@pytest.mark.parametrize(("method", "back"), [(fringe.IntegratedGradients, 1), (fringe.GuidedIG, 4)])
def test_other_paths_read_little_back_too(method, back):
    """Three images a pass: a pass of IG asks which images it holds, a step of Guided IG which paths go on."""
    assert more_of(lambda steps: method(steps=steps), batch_size=3) == (3 * back, 0)


@pytest.mark.parametrize(("name", "method"), FIRST)
def test_every_method_keeps_the_contract_there(strict_place, name, method):
    asked = set(fringe.testing.ATTRIBUTOR_CHECKS) - TOUCHING
    known = {check: why for check, why in EXPECTED.get(method, {}).items() if check in TOUCHING}
    with strict_place():
        assert check_attributor(method, device=ELSEWHERE, skip=asked, expected_failures=known)


@pytest.mark.parametrize(
    "method",
    [
        FRInGe(tau=3e-2, reference=(0.4, 0.3, 0.2, 0.1)),
        FRInGe(tau=3e-2),
        FRInGe(tau=2e-1, until="arrival"),
        FRInGe(tau=3e-2, structure="none"),
        PaperFRInGe(tau=3e-2),
        PaperFRInGe(tau=3e-2, cg_iterations=3),
        PaperFRInGe.preset("vgg19", "euclidean"),
        ReleasedFRInGe(tau=3e-2, cg_iterations=2),
    ],
    ids=lambda method: "-".join(map(str, list(method.record().values())[:6])),
)
def test_every_part_of_the_method_runs_there(place, method):
    expected = fringe.attribute(here(), X, method=method)
    with place():
        assert torch.equal(fringe.attribute(there(), X.to(ELSEWHERE), method=method).values.cpu(), expected.values)


@pytest.mark.parametrize(
    "baseline",
    [0.5, REFERENCES[:1], "blur:1", "noise:1", "mean", "uniform"],
    ids=["number", "tensor", "blur", "noise", "mean", "uniform"],
)
def test_a_baseline_goes_there(place, baseline):
    given = {} if isinstance(baseline, str) else {"baseline": baseline}
    method = fringe.IntegratedGradients(steps=3, baseline="zero" if given else baseline)
    expected = fringe.attribute(here(), X, method=method, space=SPACE, ids="abc", **given)
    with place():
        found = fringe.attribute(there(), X.to(ELSEWHERE), method=method, space=sent(SPACE), ids="abc", **given)
        assert torch.equal(found.values.cpu(), expected.values)


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_keeps_the_contract_there(strict_place, name):
    with strict_place():
        assert check_metric(name, device=ELSEWHERE, skip=set(METRIC_CHECKS) - SCORING)


def scores(classifier, x, space, truth, name):
    """The scores of a metric, of maps of Integrated Gradients."""
    with classifier.session(x.device):
        problem = Problem.of(classifier, x, rng=KeyedGenerator(0), domain=space, ids=("a", "b", "c"))
        candidates = parse_methods([fringe.IntegratedGradients(steps=3)], controls=False)
        evaluator = Evaluator(EvaluationContext(problem, truth), candidates, {name: get_metric(name)}, None)
        return evaluator.row(candidates[0]).scores[name]


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_gives_the_same_numbers_there(place, name):
    truth = torch.zeros(3, 8, 8, dtype=torch.bool)
    truth[:, 2:5, 3:6] = True
    expected = scores(here(), X, SPACE, truth, name)
    assert expected.values.isfinite().any() or name in ("pic", "object_balance", "region_completeness")
    with place():
        found = scores(there(), X.to(ELSEWHERE), sent(SPACE), truth.to(ELSEWHERE), name)
        np.testing.assert_allclose(found.values.tolist(), expected.values.tolist(), rtol=1e-12)


def test_methods_are_compared_there(place):
    metrics = {name: get_metric(name) for name in ("mas_insertion", "deletion")}
    metrics |= {"infidelity": Infidelity(samples=10), "max_sensitivity": MaxSensitivity(samples=2)}
    methods = [fringe.IntegratedGradients(steps=4), fringe.SmoothGrad(samples=2)]
    expected = fringe.compare(here(), X, methods, metrics, ids="abc")
    with place():
        found = fringe.compare(there(), X.to(ELSEWHERE), methods, metrics, ids="abc")
        assert len(found.rows) == 2 + len(CONTROLS) + 2  # and those of the map of ig
        for row, other in zip(found.rows, expected.rows, strict=True):
            assert row.error is None
            for metric in metrics:
                np.testing.assert_array_equal(row.scores[metric].values.tolist(), other.scores[metric].values.tolist())


def test_a_benchmark_runs_there_and_keeps_maps_of_the_cpu(place):
    plan = Plan(
        name="plan",
        data=("embedded:digits",),
        models=(PlanModel("digits", "embedded:digits", {"ig": fringe.IntegratedGradients(steps=4)}),),
        metrics={
            "sparseness": Sparseness(),
            "insertion": Insertion(steps=8),
            "kl": EndpointKL(),
            "max": MaxSensitivity(samples=2),
        },
        n=3,
        controls=True,
    )
    resolved = resolve(plan)
    units = pending_tasks(resolved.manifest, (), 3)
    expected = [TaskRunner(resolved, save_maps=True).perform(unit) for unit in units]
    with place():
        worker = TaskRunner(resolved, device=ELSEWHERE.type, save_maps=True)
        for unit, other in zip(units, expected, strict=True):
            done = worker.perform(unit)
            made = {one.image: one.map for one in other.results if one.map is not None}
            again = worker.perform(unit, made)
            assert {one.map is None for one in again.results} == {bool(made)}  # a map that is stored is not made again
            for one, scored, on_cpu in zip(done.results, again.results, other.results, strict=True):
                assert (one.image, scored.image) == (on_cpu.image,) * 2
                assert {*one.status.tolist(), *scored.status.tolist()} == {OK}
                assert one.scores == pytest.approx(on_cpu.scores, abs=1e-4, nan_ok=True)
                assert scored.scores == pytest.approx(on_cpu.scores, abs=1e-4, nan_ok=True)


@pytest.mark.parametrize("score", ["logit", "log_probability", "probability"])
def test_scores_outside_of_a_session_are_the_same_there(place, score):
    logits, target, contrast = torch.tensor([[2.0, 0.5, -1.0, 0.0]]), torch.tensor([1]), torch.tensor([0])
    expected = here(score=score)
    with place():
        found, given = there(score=score), [x.to(ELSEWHERE) for x in (logits, target, contrast)]
        assert torch.equal(found.score(*given).cpu(), expected.score(logits, target, contrast))
        assert torch.equal(found.score_cotangent(*given).cpu(), expected.score_cotangent(logits, target, contrast))


@pytest.mark.parametrize(
    "compute",
    [
        lambda x, _: log_probabilities(x),
        lambda x, _: target_rest_logits(x, x.argmax(-1)),
        lambda x, _: softening_temperature(x.repeat(2000, 1), 0.7),  # more than are solved on the host
        lambda x, _: inner_product(x, x + 1),
        lambda x, problem: problem.probability(x),
        lambda x, problem: problem.score(x),
    ],
)
def test_float64_outside_of_a_session_is_the_same_there(place, compute):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    expected = compute(x, Problem.of(here(), X, target=[1, 0, 2]))
    with place():
        problem = Problem.of(there(), X.to(ELSEWHERE), target=[1, 0, 2])
        torch.testing.assert_close(compute(x.to(ELSEWHERE), problem).cpu(), expected, rtol=1e-12, atol=0)


def test_the_adapters_work_there(place):
    method = fringe.IntegratedGradients(steps=4)
    expected = fringe.attribute(here(), X, method=method, target=1).values
    with place():
        attributor = CaptumAttributor(there().model, method)
        maps, delta = attributor.attribute(X.to(ELSEWHERE), target=1, return_convergence_delta=True)
        assert torch.equal(maps.cpu(), expected)
        assert delta.device == ELSEWHERE or not Elsewhere.float64
        found = explain_func(there().model, X.numpy(), np.array([1, 1, 1]), method=method, device=ELSEWHERE)
        np.testing.assert_array_equal(found, expected.numpy())


def test_a_model_is_loaded_there(place):
    with place():
        model = load_model("embedded:digits", device=ELSEWHERE)
        assert {weight.device for weight in model.module.parameters()} == {ELSEWHERE}
