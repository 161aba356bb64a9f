"""Maps of many methods on real models, scored by every metric: what docs/results.md and docs/solver.md are made with.

    python benchmarks/study.py maps   --model cifar_resnet20 --rows comparison --images 64 --out out/study
    python benchmarks/study.py scores --model cifar_resnet20 --rows comparison --images 64 --out out/study
    python benchmarks/study.py table  --model cifar_resnet20 --rows comparison --images 64 --out out/study
    python benchmarks/study.py paper

``maps`` keeps a file a method and chunk of images, ``scores`` a line a method, image and metric; what is there is not
computed again, so either may be stopped and begun again. ``--half 0`` and ``--half 1`` are disjoint halves of the
images: settings are chosen on one and judged on the other.
"""

import argparse
import csv
import dataclasses
import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import fringe
from fringe.attribution import Attributor
from fringe.classifier import Classifier
from fringe.data import find_inputs
from fringe.experiments import CONTROLS
from fringe.metrics import Deletion, EvaluationContext, Insertion, MASDeletion, MASInsertion, Metric, evaluate
from fringe.paths import Problem
from shared_models import PREPROCESSING, SHARED, model
from study_rows import ROWS

CHUNK = 16
STEPS = 32
"""Of every perturbation curve: a pixel row of CIFAR-10, and enough for the larger images (docs/results.md)."""
SCORED: tuple[str | Metric, ...] = (
    MASInsertion(steps=STEPS), MASDeletion(steps=STEPS), Insertion(steps=STEPS), Deletion(steps=STEPS), "infidelity",
    "sparseness", "completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max",
)  # fmt: skip
METRICS = (
    "mas_insertion", "mas_deletion", "insertion", "deletion", "insertion:raw", "deletion:raw", "infidelity",
    "sparseness", "completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max",
)  # fmt: skip
SENSITIVITY = "max_sensitivity"


def images(name: str, count: int, half: int) -> tuple[Tensor, list[str]]:
    """``count`` images spread evenly over one half of the model's image folder, normalised, and their names."""
    preprocessing = PREPROCESSING["cifar" if name.startswith("cifar") else name]
    folder = SHARED / "images" / ("cifar10" if name.startswith("cifar") else "imagenet")
    mine = list(find_inputs([str(folder)]))[half::2]
    chosen = mine[:: len(mine) // count][:count]
    opened = [ref.open(channels=3, exif="ignore").image for ref in chosen]
    return torch.stack([preprocessing.normalise(preprocessing.pixels(i)) for i in opened]), [r.id for r in chosen]


def space(name: str) -> fringe.InputSpace:
    """The valid range of the model's inputs, and 64 reference images that no table is made of: the last of the half
    that settings are chosen on."""
    preprocessing = PREPROCESSING["cifar" if name.startswith("cifar") else name]
    ends = [preprocessing.normalise(torch.full((3, 1, 1), v)) for v in (0.0, 1.0)]
    folder = SHARED / "images" / ("cifar10" if name.startswith("cifar") else "imagenet")
    mine = list(find_inputs([str(folder)]))[0::2]
    opened = [ref.open(channels=3, exif="ignore").image for ref in mine[3 :: len(mine) // 64][:64]]
    references = torch.stack([preprocessing.normalise(preprocessing.pixels(i)) for i in opened])
    return fringe.InputSpace(low=ends[0], high=ends[1], references=references)


class Study:
    """The images of one half on one model, and the folder where their maps and scores are kept."""

    def __init__(self, arguments: argparse.Namespace):
        self.name, self.count, self.half = arguments.model, arguments.images, arguments.half
        self.folder = Path(arguments.out) / f"{self.name}-{self.half}-{self.count}"
        self.classifier = Classifier(model(self.name), batch_size=CHUNK)
        self.x, self.ids = images(self.name, self.count, self.half)
        self.space = space(self.name)
        self.rows: Mapping[str, Attributor] = ROWS[arguments.rows]
        self.only: list[str] = arguments.only.split(";") if arguments.only else list(self.rows)

    def chunks(self) -> Iterator[tuple[int, Tensor, list[str]]]:
        for start in range(0, self.count, CHUNK):
            yield start, self.x[start : start + CHUNK], self.ids[start : start + CHUNK]

    def explain(self, method: Attributor, x: Tensor, ids: list[str], target: Tensor | str) -> fringe.Attribution:
        return fringe.attribute(
            self.classifier, x, method=method, ids=ids, space=self.space, target=target, bad_images="mark"
        )

    def maps(self) -> None:
        for label in self.only:
            for start, x, ids in self.chunks():
                path = self.folder / "maps" / label / f"{start:04d}.safetensors"
                if path.exists():
                    continue
                began = time.perf_counter()
                found = self.explain(self.rows[label], x, ids, "predicted")
                seconds = (time.perf_counter() - began) / len(x)
                tensors = {f"diagnostics.{name}": value for name, value in found.diagnostics.items()}
                tensors |= {
                    "values": found.values,
                    "target": found.target,
                    "completeness_residual": found.completeness_residual,
                }
                passes = found.passes
                counts = {kind: str(count / len(x)) for kind, count in dataclasses.asdict(passes).items()}
                about = {"seconds": f"{seconds:.3f}", **counts, "settings": json.dumps(found.settings)}
                path.parent.mkdir(parents=True, exist_ok=True)
                save_file({name: value.contiguous() for name, value in tensors.items()}, path, about)
                print(f"{self.name} {label} {start}: {seconds:.2f} s an image, {passes}", flush=True)

    def scores(self, sensitivity: int) -> None:
        everything = {**dict.fromkeys(CONTROLS), **{label: self.rows[label] for label in self.only}}
        for start, x, ids in self.chunks():
            subject = EvaluationContext(Problem.of(self.classifier, x, domain=self.space, ids=tuple(ids)))
            for label in everything:
                path = self.folder / "scores" / label / f"{start:04d}.csv"
                source = self.folder / "maps" / label / f"{start:04d}.safetensors"
                if not path.exists() and (label in CONTROLS or source.exists()):
                    write(path, ids, self.score(subject, label, source))
                wide = self.folder / "scores" / label / f"{SENSITIVITY}-{start:04d}.csv"
                if start < sensitivity and not wide.exists():
                    write(wide, ids, self.stability(subject, label))

    def loaded(self, subject: EvaluationContext, label: str, source: Path) -> tuple[Tensor, dict[str, Tensor]]:
        if label in CONTROLS:
            return CONTROLS[label](subject.problem), {}
        kept = load_file(source)
        diagnostics = {
            name.removeprefix("diagnostics."): v for name, v in kept.items() if name.startswith("diagnostics.")
        }
        return kept["values"], {**diagnostics, "completeness_residual": kept["completeness_residual"]}

    def score(self, subject: EvaluationContext, label: str, source: Path) -> dict[str, Tensor]:
        values, diagnostics = self.loaded(subject, label, source)
        found = evaluate(subject, Kept(values, diagnostics), SCORED)
        print(self.name, label, {name: round(float(s.values.nanmean()), 3) for name, s in found.items()}, flush=True)
        raw = {f"{name}:raw": found[name].details["raw"] for name in ("insertion", "deletion")}
        return {**{name: scores.values for name, scores in found.items()}, **raw}

    def stability(self, subject: EvaluationContext, label: str) -> dict[str, Tensor]:
        source = self.folder / "maps" / label / f"{self.ids.index(subject.problem.keys[0]):04d}.safetensors"
        values, diagnostics = self.loaded(subject, label, source)

        def explain(x: Tensor, rows: list[int]) -> Tensor:
            problem = dataclasses.replace(subject.problem.select(rows), inputs=x)
            if label in CONTROLS:
                return CONTROLS[label](problem)
            return self.explain(self.rows[label], x, list(problem.keys), problem.target).values

        scores = evaluate(subject, Kept(values, diagnostics), [SENSITIVITY], explain)[SENSITIVITY]
        print(self.name, label, SENSITIVITY, round(float(scores.values.nanmedian()), 4), flush=True)
        return {SENSITIVITY: scores.values}


class Kept:
    """Maps read back from a file."""

    def __init__(self, values: Tensor, diagnostics: dict[str, Tensor]):
        self.values, self.diagnostics = values, diagnostics


def write(path: Path, ids: list[str], columns: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "metric", "score"])
        for metric, column in columns.items():
            writer.writerows([image, metric, repr(v)] for image, v in zip(ids, column.tolist(), strict=True))


def read(folder: Path, label: str) -> dict[str, np.ndarray]:
    """Scores of one row by metric, images in order."""
    found: dict[str, list[float]] = {}
    for path in sorted((folder / "scores" / label).glob("*.csv")):
        with path.open() as file:
            for line in csv.DictReader(file):
                found.setdefault(line["metric"], []).append(float(line["score"]))
    return {metric: np.array(column) for metric, column in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("maps", "scores", "table", "paper"))
    parser.add_argument("--model", default="cifar_resnet20")
    parser.add_argument("--rows", default="comparison", choices=sorted(ROWS))
    parser.add_argument("--only", default="", help="labels, separated by semicolons")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--half", type=int, default=1, choices=(0, 1))
    parser.add_argument("--sensitivity", type=int, default=0, help="images whose max sensitivity is measured")
    parser.add_argument("--out", default="out/study")
    parser.add_argument("--against", default="fringe", help="row that the others are compared with, paired")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.stage == "paper":
        from study_table import print_paper

        print_paper(SHARED / "paper" / "comparison.csv")
        return
    study = Study(arguments)
    if arguments.stage == "maps":
        study.maps()
    elif arguments.stage == "scores":
        study.scores(arguments.sensitivity)
    else:
        from study_table import print_tables

        print_tables(study, arguments.against)


if __name__ == "__main__":
    main()
