"""The paths of a model's methods on a few images, and the figures of the studies (appendices "Ablation Study
Configurations" and "Geometric Effect of the Euclidean Trust-Region Cap")."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from fringe._files.disk import require_local
from fringe._numbers.filters import gaussian_blur
from fringe._strings.formats import to_csv
from fringe.attribution import Attributor
from fringe.bench.experiments import Plan, Resolved, Results, Store, TaskRunner, read_results, resolve
from fringe.bench.paper._studies import CAPPED, UNCAPPED, PaperStudy, base_method
from fringe.bench.tuning import OBJECTIVE, SweepLine, one_at_a_time, sweep_lines
from fringe.metrics import EvaluationContext
from fringe.plots import PathRecord, SweepCurve, SweepPanel, plot_profiles, plot_sensitivity, plot_variants

#: Points of a path that are shown, both ends among them.
SHOWN = 6
#: Pixels: the standard deviation of the method's own blur, its preconditioner's. The paper gives none for its maps.
SIGMA = 1.0
#: Of a study: the beginning of the names of its figures of paths, what draws one, and the methods in it (all of None).
#: The paper's figure of geometric profiles has IG, and FRInGe without and with the Euclidean cap.
FIGURES = {
    "ablation": ("trajectories", plot_variants, None),
    "cap": ("profiles", plot_profiles, ("ig", UNCAPPED, CAPPED)),
}


def blur_change(points: Tensor, start: Tensor) -> Tensor:
    """Map where ``points`` (M, C, H, W) differ from ``start`` (C, H, W), as (M, H, W) in [0, 1].

    The absolute change, averaged over the channels, under a Gaussian of ``SIGMA`` pixels, divided by its largest entry
    over all points; zero where nothing changed. The paper shows a "normalized blur-change map relative to the initial
    image" and gives no formula: this is our reading of its words.
    """
    blurred = gaussian_blur((points - start).abs().mean(1, keepdim=True), SIGMA)[:, 0]
    largest = blurred.max()
    return blurred if largest == 0 else blurred / largest


def trajectories(
    resolved: Resolved,
    model: str,
    images: int,
    *,
    device: str = "cpu",
    batch_size: int | Literal["auto"] = "auto",
) -> dict[str, tuple[PathRecord, ...]]:
    """Compute the paths of a model's methods, one image at a time, with the plan's target and score: by digest, the
    path of each method that has one, in the order of the plan. Raises FringeError if no image can be explained.

    ``images`` is how many of the plan, from its first on; one that cannot be explained makes room for the next.
    """
    methods = resolved.plan.model(model).methods
    runner = TaskRunner(resolved, device=device, batch_size=batch_size)
    paths: dict[str, tuple[PathRecord, ...]] = {}
    known = [image["digest"] for image in resolved.manifest.images_of(model)]
    for digest, context in islice(runner.explainable(model, known), images):
        with context.problem.model.session(context.problem.inputs.device):
            records = [_path_record(name, method, context) for name, method in methods.items()]
        paths[digest] = tuple(record for record in records if record is not None)
    return paths


def draw_study(
    study: PaperStudy, run: Path, out: Path, *, images: int = 2, device: str = "cpu", resolved: Resolved | None = None
) -> list[Path]:
    """Draw the figures of a study that was run, and return the files; none for a study without figures.

    A sweep reads its scores from the run folder; of other studies the paths of some ``images`` are drawn. ``resolved``
    is the study's plan with its images, if it was resolved before.
    """
    name = study.plan.name
    if name == "sweep":
        return draw_sweep(study.base, read_results(Store(run, create=False), name), study.factors, out)
    if name not in FIGURES:
        return []
    prefix, plot, order = FIGURES[name]
    resolved, paths = resolved or resolve(study.plan), list[Path]()
    names = {image["digest"]: image["id"] for image in resolved.manifest.images}
    for model in (model.label for model in resolved.plan.models):
        count = min(images, len(resolved.manifest.images_of(model)))
        drawn = trajectories(resolved, model, count, device=device) if count else {}
        for i, (digest, records) in enumerate(drawn.items(), 1):
            by_label = {record.label: record for record in records}
            paths.append(_file(out, re.sub(r"[^\w.-]", "_", f"{prefix}-{model}-{i}.png")))
            chosen = [by_label[label] for label in order or by_label if label in by_label]
            plot(chosen, title=f"{model}: {names[digest]}").savefig(paths[-1])
    return paths


def draw_sweep(base: Plan, results: Results, factors: Mapping[str, Sequence[Any]] | None, out: Path) -> list[Path]:
    """Draw the sensitivity of all models, and write its numbers as CSV; ``base`` is the plan that the sweep varies."""

    def curve(model: str, line: SweepLine) -> SweepCurve:
        return SweepCurve(model, line.values, line.objective, line.low, line.high, line.centre, line.centre_objective)

    lines = {model.label: _sweep_lines(model.label, base_method(model), results, factors) for model in base.models}
    panels = [
        SweepPanel(factor, tuple(curve(model, line[factor]) for model, line in lines.items() if factor in line))
        for factor in dict.fromkeys(factor for line in lines.values() for factor in line)
    ]
    figure, csv = _file(out, "sensitivity.png"), _file(out, "sensitivity.csv")
    images = max((cell.scored for cell in results.cells.values()), default=0)
    plot_sensitivity(panels, title=f"One setting varied at a time, {images} images").savefig(figure)
    columns = ("model", "factor", "value", "objective", "low", "high")
    rows: list[dict[str, Any]] = [
        dict(zip(columns, (model, line.factor, *numbers), strict=True))
        for model, by_factor in lines.items()
        for line in by_factor.values()
        for numbers in zip(line.values, line.objective, line.low, line.high, strict=True)
    ]
    csv.write_text(to_csv(rows, columns), encoding="utf-8", newline="")
    return [figure, csv]


def _path_record(label: str, method: Attributor, context: EvaluationContext) -> PathRecord | None:
    """The path on the context's only image; None for a method that records none."""
    problem = replace(context.problem, record_path=True)
    result = method.attribute(problem)
    trajectory = None if result.trajectory is None else result.trajectory[0]
    if trajectory is None:
        return None
    shown = trajectory.thinned(SHOWN)
    points = shown.snapshots
    low, high = (bound.cpu() for bound in problem.domain.bounds(problem.inputs))
    steps = {name: column.numpy() for name, column in trajectory.steps.items()}
    names = ("fisher_rao_step", "euclidean_step", "active_bound")
    return PathRecord(
        label=label,
        entropy=trajectory.points["entropy"].numpy() / math.log(problem.logits.shape[1]),
        snapshot_steps=shown.snapshot_steps.numpy(),
        images=((points - low) / (high - low)).clamp(0, 1).permute(0, 2, 3, 1).numpy(),
        changes=blur_change(points, points[0]).numpy(),
        attribution=result.values[0].cpu().numpy(),
        verdict=result.verdict[0],
        **{name: steps.get(name, np.empty(0)) for name in names},
    )


def _sweep_lines(
    model: str, base: Attributor, results: Results, factors: Mapping[str, Sequence[Any]] | None
) -> dict[str, SweepLine]:
    """The objective along each factor. An image without a score under every setting, such as one that cannot be read,
    is left out of all; a setting that lacks a score of another image has failed: its mean would be over other images.
    """
    settings = one_at_a_time(base, factors)
    columns = {label: {name: results.scores(model, label, name) for name in OBJECTIVE} for label in settings}
    known = np.stack([np.isfinite([*column.values()]).all(0) for column in columns.values()])
    images = np.asarray(known.any(0))
    scores = {
        label: {name: values[images].tolist() for name, values in column.items()} if images.any() else None
        for label, column in columns.items()
    }
    clusters = results.clusters(model)
    return sweep_lines(base, scores, factors, clusters=clusters and [clusters[i] for i in np.flatnonzero(images)])


def _file(out: Path, name: str) -> Path:
    require_local("out", out)
    out.mkdir(parents=True, exist_ok=True)
    return out / name
