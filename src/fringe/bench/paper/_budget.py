"""Quality at equal price: each method in the setting whose price is nearest to a budget, on the same images.

A budget is a multiple of the price of Integrated Gradients in its first setting. Prices are measured on images that are
not scored.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fringe._tables import ARROW, Cell, Direction, Row, Table
from fringe.attribution import Attributor
from fringe.bench.experiments import Plan, PlanModel, Results, resolve
from fringe.bench.paper._studies import IG, PaperStudy
from fringe.bench.paper._timing import BatchSize, Timing, stored_timings
from fringe.bench.report import Image, Section
from fringe.errors import InputError
from fringe.evaluation import CONTROLS, estimate, paired
from fringe.plots import SweepCurve, SweepPanel, method_title, plot_sensitivity, png_of

#: Factor up to which a price is equal to a budget.
NEAR = 1.25
#: What a price is, by its name.
PRICES = {"passes": "forward and backward passes", "seconds": "median seconds", "memory": "largest memory"}


@dataclass(frozen=True)
class Entry:
    """A setting that takes part: its label, that of its method in the study, its budget (None: the method has one
    setting, at its own price), and its price; both are multiples of the unit."""

    label: str
    family: str
    setting: str
    method: Attributor
    budget: float | None
    price: float


def equal_budgets(
    study: PaperStudy, path: Path, *, device: str, batch_size: BatchSize = "auto"
) -> tuple[Plan, dict[str, tuple[Entry, ...]]]:
    """Choose the settings that are compared at equal budgets.

    Args:
        study: The study ``budget``.
        path: JSON file of prices: those of the same settings, images and machine are not measured again.
        device: Device of the maps.
        batch_size: Points of a path in one pass.

    Returns:
        The plan with the chosen settings as methods, such as ``ig_x5`` for five times the unit, and they by model.

    Raises:
        InputError: For seconds or memory without a GPU, and for too few images to measure prices on others than those
            that are scored.
    """
    base, spec = study.base, study.spec
    if spec.price != "passes" and not device.startswith("cuda"):
        message = f"{spec.price!r} is measured on a GPU, and the device is {device!r}"
        raise InputError(message, argument="price", hint="use price=passes, which every machine counts alike")
    scored = {image["digest"].partition("-")[0] for image in resolve(base).manifest.images}
    models = tuple(replace(one, methods=dict(_settings(study, one))) for one in base.models)
    priced = replace(base, name="prices", models=models, n=spec.choosing, holdout=True, exclude=base.exclude | scored)
    known = {"device": device, "batch_size": batch_size}
    timings = stored_timings(replace(priced, controls=False), path, measuring=True, modes=("single",), **known)
    entries = {model.label: tuple(_entries(study, model, timings)) for model in base.models}
    models = tuple(replace(one, methods={e.label: e.method for e in entries[one.label]}) for one in base.models)
    return replace(base, models=models), entries


def budget_chapter(study: PaperStudy, entries: Mapping[str, Sequence[Entry]], results: Results) -> Section:
    """Return the chapter of the report: for each model a table and a figure of quality against price."""
    text = (
        f"The unit of a price is that of a map by {IG} in its first setting ({PRICES[study.spec.price]}), on "
        f"{study.spec.choosing} images that are not scored. A setting stands at a budget, ig_x5 at five units, if its "
        f"price is within a factor of {NEAR:g} of it. The rows of {IG} have scores, the others differences to {IG} at "
        "the same budget, or the nearest one, on the same images with 95 % intervals; a star: zero is outside."
    )
    parts = tuple(_section(study, model, entries[model], results) for model in results.models)
    return Section("Quality at equal price", (text,), sections=parts)


def _settings(study: PaperStudy, model: PlanModel) -> Iterator[tuple[str, Attributor]]:
    """All settings whose prices are measured: ``ig.steps=64``, or the label of a method that has one."""
    for label, method in model.methods.items():
        texts = (study.factors or {}).get(label)
        if texts is None:
            yield label, method
        for text in texts or ():
            yield f"{label}.{text}", method.with_text(dict([text.split("=", 1)]))


def _entries(study: PaperStudy, model: PlanModel, timings: Sequence[Timing]) -> Iterator[Entry]:
    """The settings of a model that take part: at each budget the nearest one of a method, if it is near."""
    kind, budgets, settings = study.spec.price, study.spec.budgets, dict(_settings(study, model))
    prices = {
        t.method: t.forward + t.jvp + t.vjp if kind == "passes" else float(getattr(t, kind))
        for t in timings
        if t.model == model.label
    }
    unit = prices[next(name for name in settings if name.startswith(f"{IG}."))]
    for label, method in model.methods.items():
        own = {name: prices[name] / unit for name in settings if name.startswith(f"{label}.") and name in prices}
        if label in prices and prices[label] <= NEAR * max(budgets) * unit:
            yield Entry(label, label, "its own", method, None, prices[label] / unit)
        for budget in budgets if own else ():
            name = min(own, key=lambda name: abs(math.log(own[name] / budget)))
            if 1 / NEAR <= own[name] / budget <= NEAR:
                yield Entry(f"{label}_x{budget:g}", label, name[len(label) + 1 :], settings[name], budget, own[name])


def _section(study: PaperStudy, model: str, entries: Sequence[Entry], results: Results) -> Section:
    """The table, the figure, and who is left out."""
    lost = [label for label in study.base.model(model).methods if label not in {e.family for e in entries}]
    note = (f"Left out, as no setting is near a budget: {', '.join(lost)}.",) if lost else ()
    base = {e.budget: e for e in entries if e.family == IG}
    rows: list[Row] = []
    for entry in entries:
        near = base[min(base, key=lambda budget: abs(math.log((budget or 1) / (entry.budget or entry.price))))]
        cells = (_cell(results, model, entry, near, metric, study.spec.seed) for metric in results.metrics)
        rows.append((entry.label, entry.setting, Cell(entry.price, 2), *cells))
    heads = {metric: f"{metric.replace('_', ' ')} {ARROW[_direction(results, metric)]}" for metric in results.metrics}
    panels = [
        SweepPanel(f"price, × IG: {head}", _curves(model, entries, results, metric)) for metric, head in heads.items()
    ]
    figure = plot_sensitivity(panels, title=f"{model}: quality against price", y="score")
    caption = "Means with 95 % intervals; the level is the best map that knows nothing of the model."
    image = Image(f"budget-{results.models.index(model) + 1}", caption, png_of(figure))
    return Section(model, note, Table(("method", "setting", "price", *heads.values()), rows, "Prices"), images=(image,))


def _cell(results: Results, model: str, entry: Entry, base: Entry, metric: str, seed: int) -> Cell:
    scores = results.scores(model, entry.label, metric)
    if entry.family == IG:
        return Cell(estimate(scores, seed).mean, 3)
    gap = paired(scores, results.scores(model, base.label, metric), seed=seed)
    return Cell(gap.value, 3, ends=(gap.low, gap.high), mark="*" if gap.low * gap.high > 0 else "")


def _curves(model: str, entries: Sequence[Entry], results: Results, metric: str) -> tuple[SweepCurve, ...]:
    """A line for each method, and the best score of the maps that know nothing of the model."""

    def curve(name: str, prices: Sequence[float], labels: Sequence[str]) -> SweepCurve:
        points = [estimate(results.scores(model, label, metric)) for label in labels]
        return SweepCurve(name, prices, *([getattr(one, end) for one in points] for end in ("mean", "low", "high")))

    lines: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.price):
        lines.setdefault(entry.family, []).append(entry)
    curves = [curve(method_title(k), [e.price for e in line], [e.label for e in line]) for k, line in lines.items()]
    blind = [label for label in results.methods(model) if label in CONTROLS and results.is_control(label)]
    if blind and _direction(results, metric) != "none":
        better = max if _direction(results, metric) == "higher" else min
        best = better(blind, key=lambda label: estimate(results.scores(model, label, metric)).mean)
        prices = sorted(entry.price for entry in entries)
        curves.append(curve("best blind map", (prices[0], prices[-1]), (best, best)))
    return tuple(curves)


def _direction(results: Results, metric: str) -> Direction:
    return results.manifest.metrics[metric]["direction"]
