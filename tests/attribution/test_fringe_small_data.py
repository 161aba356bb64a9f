"""Tables and sequences: small networks whose paths arrive, however sure the networks are."""

import dataclasses
import functools
import importlib.util
import math
from pathlib import Path

import pytest
import torch
from sklearn import datasets
from torch import nn

import fringe

TABLES = {"iris": datasets.load_iris, "wine": datasets.load_wine, "breast_cancer": datasets.load_breast_cancer}
TABULAR = fringe.FRInGe(structure="none", max_steps=300)


def fitted(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int) -> nn.Module:
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


@functools.cache
def table(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardised features (N, n), and classes."""
    features, classes = TABLES[name](return_X_y=True)
    x = (features - features.mean(0)) / features.std(0)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(classes)


@functools.cache
def perceptron(name: str, seed: int, width: int, activation: type[nn.Module], steps: int) -> nn.Module:
    x, y = table(name)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(x.shape[1], width), activation(), nn.Linear(width, width), activation()]
        model = nn.Sequential(*layers, nn.Linear(width, int(y.max()) + 1))
    return fitted(model, x, y, steps)


@pytest.mark.parametrize("name", ["iris", pytest.param("breast_cancer", marks=pytest.mark.thorough)])
def test_networks_of_tables_arrive(name):
    """At least 95 % of the maps are ok, and as many paths within 0.05 nats of the reference. The settings were chosen
    on Iris, and on Wine, with other networks; Breast Cancer was only judged."""
    x, found = table(name)[0], []
    x = x[:: math.ceil(len(x) / 14)]
    for seed, width, activation, steps in ((6, 16, nn.Tanh, 200), (11, 32, nn.ReLU, 200), (12, 16, nn.ReLU, 300)):
        found.append(fringe.attribute(perceptron(name, seed, width, activation, steps), x, method=TABULAR))
    verdicts = [verdict for part in found for verdict in part.verdict]
    assert verdicts.count("ok") >= 0.95 * len(verdicts)
    ends = torch.cat([part.diagnostics["endpoint_kl"] for part in found])
    assert (ends <= 0.05).double().mean() >= 0.95
    assert torch.cat([part.completeness_residual for part in found]).quantile(0.95) < 0.04


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])
def test_saturated_networks_neither_diverge_nor_run_away(activation):
    """A linear step out of p = 1 - 1e-20 needs |v| near 1e6, whose Fisher norm was negative by rounding."""
    x, _ = table("wine")
    found = fringe.attribute(perceptron("wine", 11, 32, activation, 400), x[::9])
    assert found.settings["structure"] == "none"
    assert "diverged" not in found.verdict
    assert found.verdict.count("ok") >= 0.95 * len(found)


class Sharpened(nn.Module):
    """A network with its logits times 16."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x):
        return 16.0 * self.model(x)


def test_paths_of_certain_networks_arrive_in_as_many_steps():
    """Along the points of the plain network's path, which at temperature 1 find no direction."""
    x, network, steps = table("iris")[0][::12], perceptron("iris", 11, 32, nn.ReLU, 200), []
    for make in (lambda model: model, Sharpened):
        found = fringe.attribute(make(network).eval(), x, method=TABULAR)
        assert found.verdict.count("ok") >= 0.95 * len(x)
        assert (found.diagnostics["endpoint_kl"] <= 0.05).double().mean() >= 0.95
        steps.append(found.diagnostics["steps"].double().mean().item())
    assert steps[1] < 1.2 * steps[0] < 48
    plain = dataclasses.replace(TABULAR, temperature=1.0, max_steps=100)
    assert fringe.attribute(Sharpened(network).eval(), x, method=plain).verdict.count("ok") < 0.8 * len(x)


def test_a_bend_shortens_the_steps_until_the_path_arrives():
    """The logit gap falls along the first axis to a narrow valley whose floor descends along the second."""

    class Valley(nn.Module):
        def forward(self, x):
            gap = 40.0 * torch.nn.functional.softplus(8.0 * (x[:, 0] - 1.0)) / 8.0
            gap = gap + 40.0 * torch.nn.functional.softplus(8.0 * (1.0 - x[:, 0])) / 8.0 + 2.0 * x[:, 1] - 5.0
            return torch.stack([gap, torch.zeros_like(gap)], 1)

    x = torch.tensor([[2.0, 4.0]], dtype=torch.float64)
    found = fringe.attribute(Valley(), x, method=fringe.FRInGe(max_steps=400))
    assert found.diagnostics["endpoint_kl"].item() <= 0.05
    assert found.verdict == ("ok",)


def test_progress_is_the_covered_share_of_the_way():
    """Or 1 - 2^(-k / T) after k steps if that is more; less than the whole before the path arrives."""
    (x, _), row = table("iris"), 60
    seen: list[tuple[int, int]] = []
    report = lambda done, total: seen.append((done, total))  # noqa: E731
    model = perceptron("iris", 11, 32, nn.ReLU, 200)
    found = fringe.attribute(model, x[row : row + 1], progress=report, telemetry=2000)
    planned, left = seen[0][1], found.trajectory[0].points["reference_distance"].tolist()
    shares = [max(1 - 0.5 ** (k / planned), *(1 - d / left[0] for d in left[1 : k + 1])) for k in range(1, len(left))]
    expected = [int(min(share, 0.99) * planned) for share in shares[:-1]]
    assert [done for done, _ in seen] == [*sorted(set(expected) - {0}), planned]


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_a_step_moves_no_two_logits_further_apart_than_a_nat(temperature):
    """To first order, so exactly for a linear model; and where that bound is met the telemetry names it. The logits are
    those that the path follows: over the temperature."""
    model = nn.Linear(6, 3).double().requires_grad_(False)
    model.weight.copy_(4.0 * torch.eye(3, 6))
    x = torch.tensor([[5.0, 0.0, 0.0, 1.0, 1.0, 1.0]], dtype=torch.float64)
    method = dataclasses.replace(TABULAR, temperature=temperature, delta_euc=2.0)
    found = fringe.attribute(model, x, method=method, telemetry=True)
    path = found.trajectory[0]
    logits = model(path.snapshots) / temperature
    apart = (logits - logits[:, :1]).diff(dim=0)
    if len(path.snapshots) == len(path.points["score"]):  # every point was stored
        assert (apart.amax(1) - apart.amin(1)).max() <= 1.0 + 1e-9
    assert (path.steps["active_bound"] == 3).any()
    assert found.verdict == ("ok",)


def archive(name: str, part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A data set of the UCR and UEA archives as the package aeon ships it: (N, C, L), and classes."""
    spec = importlib.util.find_spec("aeon")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the data files of aeon: pip install --no-deps aeon")
    path = Path(spec.submodule_search_locations[0]) / "datasets" / "data" / name / f"{name}_{part}.ts"
    rows = [line.split(":") for line in path.read_text().splitlines() if line and line[0] not in "#@"]
    names = sorted({row[-1] for row in rows})
    x = torch.tensor([[[float(v) for v in channel.split(",")] for channel in row[:-1]] for row in rows])
    return x, torch.tensor([names.index(row[-1]) for row in rows])


@pytest.mark.thorough
def test_networks_of_recorded_series_arrive():
    """Two data sets, two activations: at least 95 % of the maps are ok and at the reference."""
    good = []
    for name, activation in (("ItalyPowerDemand", nn.GELU), ("BasicMotions", nn.Tanh)):
        x, y = archive(name, "TRAIN")
        mean, std = x.mean((0, 2), keepdim=True), x.std((0, 2), keepdim=True)
        test = ((archive(name, "TEST")[0] - mean) / std)[:: 80 if name == "ItalyPowerDemand" else 3]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.Sequential(
                *(nn.Conv1d(x.shape[1], 16, 7, padding=3), activation()),
                *(nn.Conv1d(16, 16, 7, padding=3, stride=2), activation()),
                *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, int(y.max()) + 1)),
            )
        model = fitted(model, (x - mean) / std, y, steps=150)
        found = fringe.attribute(model, test, method=fringe.FRInGe(structure="sequence", max_steps=300))
        arrived = (found.diagnostics["endpoint_kl"] <= 0.05).tolist()
        good += [v == "ok" and a for v, a in zip(found.verdict, arrived, strict=True) if v != "at_reference"]
    assert len(good) > 20
    assert sum(good) >= 0.95 * len(good)
