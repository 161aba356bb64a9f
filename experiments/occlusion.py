"""What occlusion says of maps whose answer is known, and how FRInGe's coordinates do: tables of docs/trust.md, as CSV.

    python experiments/occlusion.py docs/results/tables

Series, tables and texts are drawn, and small networks trained on them.
Of each input it is known which entries tell its class. That is tested: where all others are drawn anew the prediction
stays, and where these are drawn anew it goes.
"""

import csv
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import fringe
from fringe.attribution import get_method
from fringe.paths import Occlusion, Problem, filling, part_numbers

WORDS, LENGTH, SIZE = 40, 20, 16
#: Inputs of each network, and the seeds of the networks of a task. The limits of the words were chosen before, on other
#: tasks.
INPUTS, SEEDS = 20, (1,)
#: Shares of the way from chance to 1 from which on a map is right, and up to which it is wrong.
RIGHT, WRONG = 0.5, 0.2
METHODS = {
    "FRInGe": "fringe:input",
    "FRInGe, mask": "fringe:mask",
    "IG from zeros": fringe.IntegratedGradients(baseline="zero"),
    "IG from the mean": "ig from the mean",
    "gradient × input": "gradient × input",
    "SmoothGrad": "smoothgrad",
}


class SeriesNet(nn.Module):
    def __init__(self, most: bool = False):
        super().__init__()
        self.first, self.second, self.last = (
            nn.Conv1d(1, 24, 9, padding=4),
            nn.Conv1d(24, 24, 9, padding=4),
            nn.Linear(24, 4),
        )
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.second(nn.functional.max_pool1d(torch.relu(self.first(x)), 2)))
        return self.last(h.amax(-1) if self.most else h.mean(-1))


class TextNet(nn.Module):
    """Reads embeddings (B, L, D) to the end, or all of them at once."""

    def __init__(self, recurrent: bool):
        super().__init__()
        self.words = nn.Embedding(WORDS, SIZE)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, SIZE))
        self.gru = nn.GRU(SIZE, 32, batch_first=True) if recurrent else None
        self.layer = nn.TransformerEncoderLayer(SIZE, 2, 32, dropout=0.0, batch_first=True)
        self.last = nn.Linear(32 if recurrent else SIZE, 4)

    def token_length(self) -> float:
        return float(self.words.weight.detach().norm(dim=1).mean())

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.gru(x)[0][:, -1] if self.gru is not None else self.layer(x + self.place).mean(1))


def waves(count: int, starts: Tensor, labels: Tensor, length: int, rng: torch.Generator, loud: float) -> Tensor:
    """A wave of the class's frequency in a window of each series, and zeros elsewhere."""
    at = torch.arange(128)[None] - starts[:, None]
    rates = torch.tensor([2.0, 4.5, 7.0, 11.0])[labels][:, None]
    wave = loud * torch.sin(2 * math.pi * rates * at / 32 + 6.28 * torch.rand(count, 1, generator=rng))
    return torch.where((at >= 0) & (at < length), wave + 0.3 * torch.randn(count, 128, generator=rng), 0.0)


@dataclass(frozen=True)
class Task:
    """``draw(count, rng)``: inputs, classes and which entries tell the class; ``rest(count, rng)``: such inputs without
    what tells a class."""

    kind: str
    network: Callable[[], nn.Module]
    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor]]
    rest: Callable[[int, torch.Generator], Tensor]
    steps: int = 500
    rate: float = 4e-3


def windows(places: tuple[int, ...], length: int, background: float, loud: float) -> Any:
    """Series with a window that begins within 128 / n of each of n places."""

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x, labels = rest(count, rng), torch.randint(4, (count,), generator=rng)
        truth = torch.zeros_like(x, dtype=torch.bool)
        for place in places:
            free = 128 // len(places) - length
            starts = place + torch.randint(free, (count,), generator=rng)
            at = torch.arange(128)[None] - starts[:, None]
            inside = ((at >= 0) & (at < length))[:, None]
            x = torch.where(inside, waves(count, starts, labels, length, rng, loud)[:, None], x)
            truth |= inside
        return x, labels, truth

    def rest(count: int, rng: torch.Generator) -> Tensor:
        return background * torch.randn(count, 1, 128, generator=rng)

    return draw, rest


def gate(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Ten columns: the sign of the first says which pair of others has the class."""
    x = torch.randn(count, 10, generator=rng)
    first = x[:, 0] > 0
    pairs = torch.where(first[:, None], x[:, 1:3], x[:, 5:7]) > 0
    truth = torch.zeros_like(x, dtype=torch.bool)
    truth[:, 0], truth[:, 1:3], truth[:, 5:7] = True, first[:, None], ~first[:, None]
    return x, pairs[:, 0].long() + 2 * pairs[:, 1].long(), truth


def keywords(last: bool) -> Callable[[int, torch.Generator], tuple[Tensor, Tensor, Tensor]]:
    """Texts with a keyword, or with two of which the last tells the class."""

    def draw(count: int, rng: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        words, labels = plain(count, rng), torch.randint(4, (count,), generator=rng)
        places = torch.rand(count, LENGTH, generator=rng).argsort(1)[:, :2].sort(1).values
        rows = torch.arange(count)
        if last:
            words[rows, places[:, 0]] = torch.randint(4, (count,), generator=rng)
        words[rows, places[:, 1]] = labels
        return words, labels, torch.arange(LENGTH)[None] == places[:, 1:]

    return draw


def plain(count: int, rng: torch.Generator) -> Tensor:
    return torch.randint(4, WORDS, (count, LENGTH), generator=rng)


def table_net() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 4))


def normal_rows(count: int, rng: torch.Generator) -> Tensor:
    return torch.randn(count, 10, generator=rng)


TASKS = {
    "window": Task("series", SeriesNet, *windows((0,), 32, 1.0, 1.1)),
    "two windows": Task("series", lambda: SeriesNet(True), *windows((0, 64), 24, 1.0, 1.2)),
    "tone": Task("series", SeriesNet, *windows((0,), 48, 0.1, 1.0)),
    "gate": Task("table", table_net, gate, normal_rows, 2500),
    "last keyword": Task("text", lambda: TextNet(True), keywords(True), plain, 1500),
    "keyword": Task("text", lambda: TextNet(False), keywords(False), plain, 700),
}


def trained(task: Task, seed: int) -> nn.Module:
    """The network of a task from a seed."""
    torch.manual_seed(seed)
    net, rng = task.network(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(net.parameters(), task.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, task.rate, task.steps)
    for _ in range(task.steps):
        x, labels, _ = task.draw(128, rng)
        loss = nn.functional.cross_entropy(net(embedded(net, x)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return net.eval().requires_grad_(False)


def embedded(net: nn.Module, x: Tensor) -> Tensor:
    return x if x.is_floating_point() else net.words(x)  # pyright: ignore[reportCallIssue]


def gates(task: Task, net: nn.Module, rng: torch.Generator) -> list[float]:
    """The accuracy; where all but the truth is drawn anew; and where the truth is."""
    x, labels, truth = task.draw(400, rng)
    other = task.rest(400, rng)
    if task.kind == "table":  # the sign of a column is its answer: another draw is right half of the time
        other = torch.where(truth, -x, other)
    kept, gone = torch.where(truth, x, other), torch.where(truth, other, x)
    return [float((net(embedded(net, one)).argmax(1) == labels).float().mean()) for one in (x, kept, gone)]


def maps_of(net: nn.Module, x: Tensor, target: Tensor, axes: dict[str, str]) -> dict[str, tuple[Tensor, Any]]:
    """Maps by name with their verdicts, controls last."""
    found = dict[str, tuple[Tensor, Any]]()
    for name, method in METHODS.items():
        if method == "gradient × input":
            values = fringe.attribute(
                net, x, method=fringe.SmoothGrad(samples=1, sigma=1e-9), target=target, **axes
            ).values
            found[name] = (values * x, None)
            continue
        more: dict[str, Any] = {}
        if method == "ig from the mean":
            method, more = "ig", {"baseline": x.mean(1, keepdim=True).expand_as(x) if hasattr(net, "words") else 0.0}
        if method in ("fringe:input", "fringe:mask"):
            method = fringe.FRInGe(coordinates=str(method).partition(":")[2])  # pyright: ignore[reportArgumentType]
        method = get_method(method)
        result = fringe.attribute(net, x, method=method, target=target, **axes, **more)
        found[name] = (result.values, result)
    rng = torch.Generator().manual_seed(7)
    found |= {"control: |x|": (x.abs(), None), "control: x * x": (x * x, None)}
    found |= {"control: noise": (torch.randn(x.shape, generator=rng), None)}
    return found | {"control: map of another input": (found["FRInGe"][0].roll(1, 0), None)}


def rows_of(name: str, seed: int) -> list[dict[str, Any]]:
    """A row for each map of a task."""
    task, rng, net = TASKS[name], torch.Generator().manual_seed(1000 + seed), trained(TASKS[name], seed)
    kept = gates(task, net, rng)
    print(name, seed, "accuracy, without the rest, without the truth", kept, flush=True)
    x, labels, truth = task.draw(4 * INPUTS, rng)
    x = embedded(net, x)
    right = (net(x).argmax(1) == labels).nonzero()[:INPUTS, 0]
    x, labels, truth = x[right], labels[right], truth[right].flatten(1)
    axes = {"axes": "CL"} if task.kind == "series" else {}
    problem = Problem.of(fringe.Classifier(net), x, target=labels)
    numbers = part_numbers(problem)
    occlusion = Occlusion.of(problem, numbers, filling(problem, numbers))
    shares = occlusion.sums(
        truth.double().view(len(x), *numbers.shape[1:]).expand_as(x) / (SIZE if task.kind == "text" else 1)
    )[:, 0]
    shares = shares / occlusion.sums(torch.ones_like(x) / (SIZE if task.kind == "text" else 1))[:, 0]
    maps = maps_of(net, x, labels, axes)
    maps |= {
        "occlusion": (
            occlusion.drops[:, 0]
            .gather(1, numbers.flatten(1).expand(len(x), -1))
            .view(len(x), *numbers.shape[1:])
            .expand_as(x),
            None,
        )
    }
    rows: list[dict[str, Any]] = []
    for method, (values, result) in maps.items():
        sums = occlusion.sums(values)[:, 0].abs()
        entries = (values.sum(-1) if task.kind == "text" else values).flatten(1).abs().double()
        chance = truth.double().mean(1)
        mass = (entries * truth).sum(1) / entries.sum(1)
        found = (((sums * shares).sum(1) / sums.sum(1)) - chance) / (1 - chance)
        agreement = occlusion.agreement(values, sizes=False)[:, 0]
        rows += [
            {
                **{"task": name, "kind": task.kind, "seed": seed, "input": i, "method": method},
                **{"mass": float(mass[i]), "found": float(found[i]), "agreement": float(agreement[i])},
                "verdict": "" if result is None else result.verdict[i],
                "passes": 0.0 if result is None else sum(vars(result.passes).values()) / len(x),
            }
            for i in range(len(x))
        ]
    return rows


def auc(score: np.ndarray, right: np.ndarray) -> float:
    """The area under the curve of two groups, by ranks."""
    low, high = score[~right], score[right]
    if not len(low) or not len(high):
        return math.nan
    return float((high[:, None] > low[None]).mean() + (high[:, None] == low[None]).mean() / 2)


def interval(score: np.ndarray, right: np.ndarray, cluster: np.ndarray) -> tuple[float, float]:
    """95 % interval of the area, over draws of inputs with all of their maps."""
    rng, (_, inverse) = np.random.default_rng(0), np.unique(cluster, return_inverse=True)
    groups = [np.flatnonzero(inverse == k) for k in range(inverse.max() + 1)]
    drawn = (np.concatenate([groups[k] for k in rng.integers(0, len(groups), len(groups))]) for _ in range(400))
    low, high = np.nanquantile([auc(score[one], right[one]) for one in drawn], [0.025, 0.975])
    return float(low), float(high)


def judged(rows: list[dict[str, Any]], name: str, keep: Callable[[dict[str, Any]], bool]) -> dict[str, str]:
    """A row of the table of agreement."""
    chosen = [
        r
        for r in rows
        if keep(r) and r["seed"] == SEEDS[-1] and r["method"] != "occlusion" and math.isfinite(r["agreement"])
    ]
    found, r = np.array([r["found"] for r in chosen]), np.array([r["agreement"] for r in chosen])
    clear = (found >= RIGHT) | (found <= WRONG)
    cluster = np.array([1000 * list(TASKS).index(one["task"]) + one["input"] for one in chosen])
    low, high = interval(r[clear], found[clear] >= RIGHT, cluster[clear])
    ok = np.array([one["verdict"] == "ok" for one in chosen])
    has = clear & np.array([bool(one["verdict"]) and one["verdict"] != "unchecked" for one in chosen])
    area, of_ok = auc(r[clear], found[clear] >= RIGHT), auc(ok[has].astype(float), found[has] >= RIGHT)
    words = {"agrees": r >= 0.6, "unclear": (r >= 0.4) & (r < 0.6), "disagrees": r < 0.4}
    entry = {"table": "What the words are worth", "inputs": name, "maps": str(len(chosen))}
    for word, at in words.items():
        entry[f"{word}"] = str(at.sum())
        entry[f"right of these ({word})"] = f"{np.mean(found[at] >= RIGHT):.0%}" if at.any() else ""
    entry |= {"area of occlusion": f"{area:.2f} [{low:.2f}, {high:.2f}]"}
    return entry | {"area of ok": f"{of_ok:.2f}" if math.isfinite(of_ok) else ""}


def main() -> None:
    rows, tables = list[dict[str, Any]](), Path(sys.argv[1])
    kinds = {"series": "all series", "table": "all tables", "text": "all texts"}
    for done in range(len(TASKS)):
        names = list(TASKS)[: done + 1]
        rows += [row for seed in SEEDS for row in rows_of(names[-1], seed)]
        entries = [judged(rows, name, lambda row, name=name: row["task"] == name) for name in names]
        has = {TASKS[name].kind for name in names}
        entries += [judged(rows, kinds[k], lambda row, k=k: row["kind"] == k) for k in kinds if k in has]
        write(tables / "occlusion.csv", entries)
        masses: list[dict[str, str]] = []
        for method in dict.fromkeys(row["method"] for row in rows):
            mine = [row for row in rows if row["method"] == method]
            each = {name: f"{np.mean([row['mass'] for row in mine if row['task'] == name]):.2f}" for name in names}
            passes = np.mean([row["passes"] for row in mine])
            masses.append(
                {
                    "table": "Mass inside of methods",
                    "method": method,
                    **each,
                    "passes": f"{passes:.0f}" if passes else "",
                }
            )
        write(tables / "coordinates.csv", masses)


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
