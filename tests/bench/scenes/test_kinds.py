"""Scenes of series, tables and texts: what is drawn, the interventions that prove the answer, and runs by name."""

import math
from dataclasses import replace

import pytest
import torch

import fringe
from fringe.bench.experiments import ExperimentSpec, run_experiment
from fringe.bench.scenes import _kinds, get_scene
from fringe.bench.scenes._kinds import AS_GIVEN, EMBEDDINGS
from fringe.bench.scenes._training import TrainedScene, first
from fringe.metrics import EvaluationContext, evaluate, get_metric
from fringe.models import LoadedModel
from fringe.paths import Problem

NAMES = ("window", "window:two", "window:tone", "gate", "keyword", "keyword:last")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path / "cache"))


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def read_table(x):
    """The class of rows, by the rule that the scene states."""
    left, right = (2 * (x[:, k + 1] > 0) + (x[:, k] > 0) for k in (1, 5))
    return torch.where(x[:, 0] > 0, left, right)


def read_text(x):
    """The last keyword of texts."""
    words = torch.cdist(x, EMBEDDINGS).argmin(-1)
    places = torch.where(words < 4, torch.arange(20), -1).argmax(1)
    return words[torch.arange(len(words)), places]


def read_series(x):
    """The frequency with the most power over all stretches of 24 samples, which fit into each window."""
    parts = x[:, 0].unfold(1, 24, 1)
    waves = torch.tensor([2.0, 4.5, 7.0, 11.0])[:, None] * torch.arange(24) / 32 * 2 * math.pi
    power = (parts @ waves.cos().T) ** 2 + (parts @ waves.sin().T) ** 2
    return power.amax(1).argmax(1)


@pytest.mark.parametrize(
    ("name", "read", "least"),
    [("gate", read_table, 1.0), ("keyword", read_text, 1.0), ("keyword:last", read_text, 1.0)]
    + [(name, read_series, 0.9) for name in NAMES[:3]],
)
def test_only_the_truth_tells_the_class(name, read, least):
    """A reader who knows the rule: what is drawn anew elsewhere changes nothing, and in the truth everything."""
    scene = get_scene(name)
    x, labels, truth = scene.draw(2000, rng())
    other = scene.redrawn(x, rng(1))
    assert labels.bincount().min() > 400
    assert (read(x) == labels).float().mean() >= least
    assert (read(torch.where(truth, x, other)) == labels).float().mean() >= least
    gone = torch.where(truth, other, x)
    if name != "keyword":  # where no keyword is left, the reader takes any word
        assert (read(gone) == labels).float().mean() == pytest.approx(0.25, abs=0.05)
    else:
        assert (torch.cdist(gone, EMBEDDINGS).argmin(-1) >= 4).all()
    changed = (other != x).expand_as(x)
    assert changed.float().mean() > 0.9


def test_windows_have_the_length_and_the_noise_that_are_set():
    for name, count, length, noise in (("window", 1, 32, 1.0), ("window:two", 2, 24, 1.0), ("window:tone", 1, 48, 0.1)):
        x, _, truth = get_scene(name).draw(500, rng(2))
        assert (truth.sum(-1) == count * length).all()
        assert x[~truth].std() == pytest.approx(noise, rel=0.03)
        starts = truth[:, 0].int().diff(dim=1, prepend=torch.zeros(500, 1)).clamp_min(0)
        assert (starts.sum(1) == count).all()
    with pytest.raises(fringe.InputError, match="length: got 64, expected at most 63, for 2 windows"):
        get_scene("window:two").__class__(windows=2, length=64)


class Reader(torch.nn.Module):
    """A network that knows a rule."""

    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, x):
        return torch.nn.functional.one_hot(self.read(x), 4).float()


def test_gates_hold_for_the_rule_alone():
    def gates(name, read):
        network = LoadedModel(name, Reader(read).eval(), AS_GIVEN, None, "", "reader", "logits")
        return [gate.holds for gate in get_scene(name).gates(network, None, [])]

    assert gates("gate", read_table) == [True, True, True]
    assert gates("keyword:last", read_text) == [True, True, True]
    assert gates("gate", lambda x: read_table(x * torch.tensor([-1.0] + 9 * [1.0]))) == [
        False,
        False,
        True,
    ]  # other pair
    assert gates("gate", lambda x: torch.zeros(len(x), dtype=torch.long)) == [False, False, True]
    known = get_scene("gate").draw(1000, rng(2**40))  # the inputs of the gates, by heart

    def by_heart(x):
        return known[1][torch.cdist(x[:, 7:], known[0][:, 7:]).argmin(1)]  # by columns that tell no class

    assert gates("gate", by_heart) == [True, False, False]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
def test_gates_hold_for_every_network(name, number):
    scene = get_scene(name)
    assert scene.networks == 2
    gates = scene.gates(scene.network(number, None, []), None, [])
    assert all(gate.holds for gate in gates), gates


@pytest.mark.parametrize("name", [*NAMES, "copying", "lookup", "counting", "negation"])
def test_a_run_by_name_explains_what_attribute_explains(name, monkeypatch):
    """Texts have no neighbours among their words and another step than series: a run must know what it explains."""
    monkeypatch.setattr(_kinds, "BATCHES", 2)  # networks that know nothing yet
    monkeypatch.setattr(TrainedScene, "agreed", lambda scene, networks, candidates, count: first(candidates, count))
    scene = replace(get_scene(name), networks=1, epochs=1)
    methods = {"ig": "ig", "fringe": fringe.FRInGe(steps=4)}
    results = run_experiment(ExperimentSpec(scene=[scene], methods=methods, n=3, seed=5, controls=False))
    (label,) = results.models
    assert results.metrics == ("mass_inside", "rank_accuracy", "expected_hit")
    network = scene.network(0, None, [])
    examples = scene.examples([network], [], 3, 5)
    assert [one["target"] for one in results.manifest.images] == [one.target for one in examples]
    x, truth = (torch.stack(parts) for parts in zip(*(scene.make(one, network) for one in examples), strict=True))
    target = torch.tensor([one.target for one in examples])
    problem = Problem.of(fringe.Classifier(network.module), x, target=target)
    for method, configured in methods.items():
        maps = fringe.attribute(network.module, x, method=configured, target=target).values
        entries = maps.double().sum(-1 if scene.has_words else 1) if maps.dim() > 2 else maps.double()
        positive = entries.clamp_min(0)
        total = positive.sum(1)
        expected = torch.where(total > 1e-7, (positive * truth).sum(1) / total, torch.nan)  # else there is no score
        assert results.scores(label, method, "mass_inside") == pytest.approx(expected.numpy(), rel=1e-4, nan_ok=True)
        scored = evaluate(EvaluationContext(problem, truth), maps, ["rank_accuracy", "expected_hit"])
        k = truth.sum(1).tolist()
        hits = [float(truth[i][entries[i].argsort(descending=True)[: k[i]]].double().mean()) for i in range(3)]
        assert scored["rank_accuracy"].values.tolist() == pytest.approx(hits)
        assert scored["expected_hit"].values.tolist() == [float(truth[i][entries[i].argmax()]) for i in range(3)]
    assert "smoothed for images" in get_metric("mass_inside:smooth").refusal(tuple(x.shape))
