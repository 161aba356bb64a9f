"""What occlusion says of maps whose answer is known, and how FRInGe's coordinates do: tables of docs/trust.md and
docs/kinds/series.md, as CSV.

    python experiments/occlusion.py docs/results/tables

Scenes of series, tables and texts have two networks each. The limits of words are tried on the maps of the first ones,
and judged on those of the second ones, which have other inputs. Images are of scenes with one network.
"""

import csv
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fringe
from fringe.attribution import get_method
from fringe.bench.scenes import get_scene
from fringe.data import find_inputs
from fringe.errors import FringeError
from fringe.metrics import EvaluationContext, evaluate
from fringe.models import LoadedModel
from fringe.paths import Occlusion, Problem, filling, part_numbers

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from shared_models import PREPROCESSING, SHARED, model  # pyright: ignore[reportMissingImports]

SCENES = {
    **dict.fromkeys(("window", "window:two", "window:tone"), "series"),
    "gate": "table",
    **dict.fromkeys(("keyword", "keyword:last"), "text"),
    **dict.fromkeys(("patch_and", "fooled_cam", "xai_tris", "blockdigits", "gridpg", "photographs"), "image"),
}
#: Inputs of each network.
INPUTS = 16
#: Shares of the way from chance to 1 from which on a map is right, and up to which it is wrong.
RIGHT, WRONG = 0.5, 0.2
#: From where on occlusion agrees, and below which it disagrees: the words of fringe.
AGREES, DISAGREES = 0.6, 0.4
#: Pieces along an axis, and what replaces a part; the first of each are those of fringe.
PIECES = {"series": (16, 8, 32), "table": (None,), "text": (None,), "image": (5, 4, 7)}
FILLINGS = "the mean", "zeros", "another input"
CONTROLS = "control: |x|", "control: x * x", "control: noise", "control: map of another input"


@dataclass
class Judged:
    """A map: how far it is from chance to 1 (``found``), and its agreement by pieces and filling."""

    scene: str
    network: int
    example: int
    method: str
    mass: float = math.nan
    found: float = math.nan
    verdict: str = ""
    passes: float = 0.0
    r: dict[Any, float] = field(default_factory=dict[Any, float])

    @property
    def kind(self) -> str:
        return SCENES[self.scene]

    @property
    def agreement(self) -> float:
        return self.r[PIECES[self.kind][0], FILLINGS[0]]


def network_of(name: str, number: int) -> tuple[LoadedModel, Tensor, Tensor, Tensor]:
    """A network, inputs, their classes and truths. Of photographs it is not known: their truth is everything."""
    resnet = LoadedModel("cifar_resnet20", model("cifar_resnet20").eval(), PREPROCESSING["cifar"], None, "", "resnet20")
    images = list(find_inputs([str(SHARED / "images" / "cifar10")]))
    if name == "photographs":
        x = resnet.prepare([ref.open().image for ref in images[:: len(images) // INPUTS][:INPUTS]])
        return resnet, x, resnet.module(x).argmax(1), torch.ones(len(x), *x.shape[2:], dtype=torch.bool)
    scene = get_scene(name)
    network = scene.network(number, resnet, images)
    gates = scene.gates(network, resnet, images)
    print(name, number, *gates, sep="\n  ", flush=True)
    if not all(gate.holds for gate in gates):
        raise SystemExit(f"a gate of {name} fails")
    examples = scene.examples([network], images, INPUTS, number)
    x, truth = (torch.stack(parts) for parts in zip(*(scene.make(one, network) for one in examples), strict=True))
    return network, x, torch.tensor([one.target for one in examples]), truth != 0


def maps_of(problem: Problem, kind: str) -> dict[str, tuple[Tensor, Any]]:
    """Maps by name with their results, controls last."""
    x, zeros = problem.inputs, torch.zeros_like(problem.inputs)
    mean = filling(problem, part_numbers(problem)).expand_as(x)
    methods: dict[str, tuple[Any, dict[str, Any]]] = {
        "FRInGe": (fringe.FRInGe(coordinates="input"), {}),
        "FRInGe, mask": (fringe.FRInGe(coordinates="mask"), {}),
        "IG from zeros": ("ig", {"baseline": zeros}),
        "IG from the mean": ("ig", {"baseline": mean}),
        "gradient × input": (fringe.SmoothGrad(samples=1, sigma=1e-9), {}),
        "SmoothGrad": ("smoothgrad", {}),
        "Grad-CAM": ("gradcam", {}),
    }
    left = {"image": ("FRInGe, mask", "IG from the mean"), "table": ("Grad-CAM", "IG from the mean")}
    found = dict[str, tuple[Tensor, Any]]()
    for name, (method, more) in methods.items():
        if name in left.get(kind, ("Grad-CAM",)):
            continue
        axes = {"axes": {2: "F", 3: "CL", 4: "CHW"}[x.dim()]} if kind in ("series", "image") else {}
        try:
            result = fringe.attribute(
                problem.model, x, method=get_method(method), target=problem.target, **axes, **more
            )
        except FringeError as error:  # a network without a convolution
            print(f"  {name}: {error}", flush=True)
            continue
        values = result.values * x if name == "gradient × input" else result.values
        found[name] = (values, None if name == "gradient × input" else result)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(7))
    controls = x.abs(), x * x, noise, found["FRInGe"][0].roll(1, 0)
    return found | {name: (values, None) for name, values in zip(CONTROLS, controls, strict=True)}


def judge(name: str, number: int) -> list[Judged]:
    """All maps of a network, and two that are no method's: the truth (for series, tables and texts the share of it that
    is in each part) and what occlusion itself says."""
    kind, (network, x, target, truth) = SCENES[name], network_of(name, number)
    problem = Problem.of(fringe.Classifier(network.module, output=network.output), x, target=target)
    fillings = filling(problem, part_numbers(problem)), torch.zeros_like(x), x.roll(1, 0)
    every = dict[Any, Occlusion]()
    for pieces in PIECES[kind]:
        numbers = part_numbers(problem, pieces)
        every |= {
            (pieces, what): Occlusion.of(problem, numbers, filled)
            for what, filled in zip(FILLINGS, fillings, strict=True)
        }
    main = every[PIECES[kind][0], FILLINGS[0]]
    token = kind == "text"
    mask = (truth[..., None] if token else truth if kind == "table" else truth[:, None]).expand_as(x).double()
    share = main.sums(mask)[:, 0] / main.sums(torch.ones_like(mask))[:, 0]
    chance = truth.flatten(1).double().mean(1)
    maps = maps_of(problem, kind) | {"truth": (mask, None), "occlusion": (main.map(problem), None)}
    if kind == "series":
        maps |= fooling(maps, main)
    masses = {
        key: evaluate(EvaluationContext(problem, truth), values, ["mass_inside"])["mass_inside"].values
        for key, (values, _) in maps.items()
    }
    rows = list[Judged]()
    for method, (values, result) in maps.items():
        if kind == "image":
            entries = values.double().sum(1).flatten(1).abs()
            inside = (entries * truth.flatten(1)).sum(1) / entries.sum(1)
        else:
            sums = main.sums(values)[:, 0].abs()
            inside = (sums * share).sum(1) / sums.sum(1)
        found = (inside - chance) / (1 - chance)
        r = {key: one.agreement(values, sizes=kind == "image")[:, 0].tolist() for key, one in every.items()}
        if method == "truth":  # with the class's probability as the score, parts that stand for each other cost nothing
            sure = Occlusion.of(problem, main.numbers, fillings[0], "probability")
            r["probability"] = sure.agreement(values, sizes=kind == "image")[:, 0].tolist()
        rows += [
            Judged(
                *(name, number, i, method, float(masses[method][i]), float(found[i])),
                verdict="" if result is None else result.verdict[i],
                passes=0.0 if result is None else sum(vars(result.passes).values()) / len(x),
                r={key: column[i] for key, column in r.items()},
            )
            for i in range(len(x))
        ]
    return rows


def fooling(maps: dict[str, tuple[Tensor, Any]], main: Occlusion) -> dict[str, tuple[Tensor, Any]]:
    """Maps with the sums of FRInGe's in each piece and noise within them, as large as the map."""
    values = maps["FRInGe, mask"][0].double()
    noise = values.abs().amax((1, 2), keepdim=True) * torch.randn(
        values.shape, generator=torch.Generator().manual_seed(9)
    )
    numbers = main.numbers.expand_as(values).flatten(1)
    means = main.sums(noise)[:, 0] / main.sums(torch.ones_like(values))[:, 0]
    return {"noise within pieces": (values + noise - means.gather(1, numbers).view_as(values), None)}


# -- tables -----------------------------------------------------------------------------------------------------------

EXTRA = "truth", "occlusion", "noise within pieces"


def auc(score: np.ndarray, right: np.ndarray) -> float:
    """The area under the curve of two groups, by ranks."""
    low, high = score[~right], score[right]
    if not len(low) or not len(high):
        return math.nan
    return float((high[:, None] > low[None]).mean() + (high[:, None] == low[None]).mean() / 2)


def area(
    rows: Sequence[Judged], score: Callable[[Judged], float] = lambda row: row.agreement, spread: bool = True
) -> str:
    """The area of right maps against wrong ones, with its 95 % interval over draws of inputs with all of their maps."""
    rows = [one for one in rows if (one.found >= RIGHT or one.found <= WRONG) and math.isfinite(score(one))]
    scores, right = np.array([score(one) for one in rows]), np.array([one.found >= RIGHT for one in rows], dtype=bool)
    if math.isnan(value := auc(scores, right)):
        return "–"
    names = [(one.scene, one.network, one.example) for one in rows]
    groups = [np.array([i for i, name in enumerate(names) if name == one]) for one in dict.fromkeys(names)]
    rng = np.random.default_rng(0)
    drawn = (np.concatenate([groups[k] for k in rng.integers(0, len(groups), len(groups))]) for _ in range(300))
    low, high = np.nanquantile([auc(scores[one], right[one]) for one in drawn], [0.025, 0.975])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]" if spread else f"{value:.2f}"


def percent(rows: Sequence[Judged], holds: Callable[[Judged], bool]) -> str:
    return f"{np.mean([holds(one) for one in rows]):.0%}" if rows else "–"


def is_right(row: Judged) -> bool:
    return row.found >= RIGHT


def limit_of(rows: Sequence[Judged]) -> float:
    """The least limit above which four of five maps are right; infinite if there is none."""
    for limit in np.arange(0.3, 0.951, 0.05):
        above = [is_right(one) for one in rows if one.agreement >= limit]
        if len(above) >= 10 and np.mean(above) >= 0.8:
            return float(limit)
    return math.inf


def words_row(name: str, chosen: Sequence[Judged], judged: Sequence[Judged]) -> dict[str, str]:
    """What the words are worth on the second networks, and a limit that was chosen on the first ones."""
    has = [one for one in judged if one.verdict not in ("", "unchecked")]
    groups = {
        "agrees": [one for one in judged if one.agreement >= AGREES],
        "unclear": [one for one in judged if DISAGREES <= one.agreement < AGREES],
        "disagrees": [one for one in judged if one.agreement < DISAGREES],
    }
    row = {"table": "What the words are worth, on the second networks", "inputs": name, "maps": str(len(judged))}
    for word, group in groups.items():
        row |= {word: str(len(group)), f"right of these ({word})": percent(group, is_right)}
    row |= {"area of occlusion": area(judged), "area of ok": area(has, lambda one: one.verdict == "ok", spread=False)}
    limit = limit_of(chosen)
    above = [one for one in judged if one.agreement >= limit]
    row["limit from the first networks"] = f"{limit:.2f}" if above else "none"
    return row | {"right above it": percent(above, is_right)}


def images_row(name: str, rows: Sequence[Judged]) -> dict[str, str]:
    right, wrong = [one for one in rows if is_right(one)], [one for one in rows if one.found <= WRONG]

    def word(r: float) -> int:
        return (r >= DISAGREES) + (r >= AGREES)

    def changes(one: Judged) -> bool:
        return len({word(one.r[pieces, FILLINGS[0]]) for pieces in PIECES["image"]}) > 1

    return {
        **{"table": "Images", "inputs": name, "maps": str(len(rows)), "right": str(len(right))},
        "right ones with .6 and more": percent(right, lambda one: one.agreement >= AGREES),
        "wrong ones with .6 and more": percent(wrong, lambda one: one.agreement >= AGREES),
        "on another side of .4 or .6 with another grid": percent(rows, changes),
        **{
            "area of occlusion": area(rows),
            "area of ok": area(
                [o for o in rows if o.verdict not in ("", "unchecked")], lambda o: o.verdict == "ok", spread=False
            ),
        },
    }


def failures(rows: Sequence[Judged]) -> list[dict[str, str]]:
    """What occlusion gets wrong, or cannot see."""

    def row(
        what: str, chosen: Sequence[Judged], r: Callable[[Judged], float] = lambda one: one.agreement
    ) -> dict[str, str]:
        numbers = {"inputs": ", ".join(dict.fromkeys(one.scene for one in chosen)), "maps": str(len(chosen))}
        numbers |= {".6 and more": percent(chosen, lambda one: r(one) >= AGREES)}
        return {
            "table": "What it gets wrong",
            "maps of": what,
            **numbers,
            "below .4": percent(chosen, lambda one: r(one) < DISAGREES),
        }

    truths = [one for one in rows if one.method == "truth"]
    methods = [one for one in rows if one.method not in (*EXTRA, *CONTROLS)]
    found = [
        row("methods, of photographs; nobody knows the answer", [o for o in methods if o.scene == "photographs"]),
        *(
            row("the right pixels alone", [o for o in truths if o.scene == name])
            for name, kind in SCENES.items()
            if kind == "image" and name != "photographs"
        ),
        *(
            row(f"the right entries alone, {kind}", [o for o in truths if o.kind == kind])
            for kind in ("series", "table", "text")
        ),
        row(
            "both windows, of which one is enough for the probability",
            [o for o in truths if o.scene == "window:two"],
            lambda o: o.r["probability"],
        ),
        row("FRInGe (mask) with noise inside of each piece", [o for o in rows if o.method == "noise within pieces"]),
        row("right maps times −1", [o for o in methods if is_right(o) and o.kind != "image"]),
    ]
    return [one for one in found if one["maps"] != "0"]


def parts_rows(rows: Sequence[Judged]) -> list[dict[str, str]]:
    """The areas with other parts and fillings."""
    names = {
        "series": "pieces of a series",
        "table": "columns of a table",
        "text": "words of a text",
        "image": "cells along a side of an image",
    }
    found = list[dict[str, str]]()
    for kind, pieces in PIECES.items():
        mine = [one for one in rows if one.kind == kind and (kind == "image" or one.network == 1)]
        for count in pieces if mine else ():
            areas = {what: area(mine, lambda one, key=(count, what): one.r[key]) for what in FILLINGS}
            found.append(
                {
                    "table": "Other parts, and what replaces them: areas",
                    "parts": f"{count or ''} {names[kind]}".strip(),
                    **areas,
                }
            )
    return found


def coordinates(rows: Sequence[Judged]) -> list[dict[str, str]]:
    """Mass inside of each method, on all networks."""
    rows = [one for one in rows if one.kind != "image" and one.method not in ("truth", "noise within pieces")]
    found = list[dict[str, str]]()
    for method in dict.fromkeys(one.method for one in rows):
        mine = [one for one in rows if one.method == method]
        passes = np.mean([one.passes for one in mine])
        entry = {"table": "Mass inside of methods", "method": method}
        for name in dict.fromkeys(one.scene for one in mine):
            entry[name] = f"{np.nanmean([one.mass for one in mine if one.scene == name]):.2f}"
        found.append({**entry, "passes": f"{passes:.0f}" if passes else ""})
    return found


def tables_of(rows: Sequence[Judged]) -> dict[str, list[dict[str, str]]]:
    """Rows of the two files."""
    plain = [
        one for one in rows if one.method not in EXTRA and math.isfinite(one.agreement) and one.scene != "photographs"
    ]
    first, second = ([one for one in plain if one.network == number] for number in (0, 1))
    groups: dict[str, Callable[[Judged], bool]] = {}
    for name, kind in SCENES.items():
        if kind != "image":
            groups[name] = lambda one, name=name: one.scene == name
    for kind in ("series", "table", "text"):
        groups[f"all {kind}s" if kind != "series" else "all series"] = lambda one, kind=kind: one.kind == kind
    words = [
        words_row(name, [o for o in first if keep(o)], judged)
        for name, keep in groups.items()
        if (judged := [o for o in second if keep(o)])
    ]
    images = [one for one in first if one.kind == "image"]
    by_scene = [
        images_row(name, [o for o in images if o.scene == name]) for name in dict.fromkeys(o.scene for o in images)
    ]
    pooled = [images_row("all of them", images)] if images else []
    return {
        "occlusion": [*failures(rows), *words, *by_scene, *pooled, *parts_rows(plain)],
        "coordinates": coordinates(rows),
    }


def main() -> None:
    folder, rows = Path(sys.argv[1]), list[Judged]()
    for name, kind in SCENES.items():
        rows += [row for number in ((0,) if kind == "image" else (0, 1)) for row in judge(name, number)]
        for table, entries in tables_of(rows).items():
            write(folder / f"{table}.csv", entries)


def write(path: Path, rows: list[dict[str, str]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        names = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(names), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
