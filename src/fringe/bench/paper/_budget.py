"""Quality at equal price: each method in the setting whose price is nearest to a budget, on the same images.

A budget is a multiple of the price of Integrated Gradients in its first setting. Prices are measured on images that are
not scored.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fringe._strings.names import method_title
from fringe._strings.tables import ARROW, Cell, Direction, Row, Table
from fringe.attribution import Attributor
from fringe.bench.experiments import Plan, PlanModel, Results, resolve
from fringe.bench.paper._studies import IG, PaperStudy
from fringe.bench.paper._timing import BatchSize, Timing, stored_timings
from fringe.bench.report import Image, Section
from fringe.errors import InputError
from fringe.evaluation import CONTROLS, estimate, paired
from fringe.plots import SweepCurve, SweepPanel, plot_sensitivity, png_of

#: Factor up to which a price is equal to a budget.
NEAR = 1.25
#: What a price is, by its name.
PRICES = {"passes": "forward and backward passes", "seconds": "median seconds", "memory": "largest memory"}


@dataclass(frozen=True)
class Entry:
    """A setting of the method ``family`` of the study under a ``name``, and its price in units, NaN as long as it is
    not known; ``budget`` is None where the method has one setting, at its own price."""

    name: str
    family: str
    setting: str
    method: Attributor
    price: float = math.nan
    budget: float | None = None


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
    models = tuple(replace(one, methods={s.name: s.method for s in _settings(study, one)}) for one in base.models)
    priced = replace(base, name="prices", models=models, n=spec.choosing, holdout=True, exclude=base.exclude | scored)
    priced = replace(priced, controls=False)
    timings = stored_timings(priced, path, device=device, batch_size=batch_size, measuring=True, modes=("single",))
    entries = {model.label: tuple(_entries(study, model, timings)) for model in base.models}
    models = tuple(replace(one, methods={e.name: e.method for e in entries[one.label]}) for one in base.models)
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


def _settings(study: PaperStudy, model: PlanModel) -> Iterator[Entry]:
    """All settings whose prices are measured, under names such as ``ig.steps=64``."""
    for label, method in model.methods.items():
        texts = (study.factors or {}).get(label)
        if texts is None:
            yield Entry(label, label, "its own", method)
        for text in texts or ():
            yield Entry(f"{label}.{text}", label, text, method.with_text(dict([text.split("=", 1)])))


def _entries(study: PaperStudy, model: PlanModel, timings: Sequence[Timing]) -> Iterator[Entry]:
    """The settings of a model that take part: at each budget the nearest one of a method, if it is near."""
    kind, budgets = study.spec.price, study.spec.budgets
    prices = {
        t.method: t.forward + t.jvp + t.vjp if kind == "passes" else float(getattr(t, kind))
        for t in timings
        if t.model == model.label
    }
    known = list(_settings(study, model))
    unit = prices[next(one.name for one in known if one.family == IG)]
    for label in model.methods:
        line = [replace(one, price=prices[one.name] / unit) for one in known if one.family == label]
        if line[0].name == label:
            yield from (one for one in line if one.price <= NEAR * max(budgets))
            continue
        for budget in budgets:
            one = min(line, key=lambda one: abs(math.log(one.price / budget)))
            if 1 / NEAR <= one.price / budget <= NEAR:
                yield replace(one, name=f"{label}_x{budget:g}", budget=budget)


def _section(study: PaperStudy, model: str, entries: Sequence[Entry], results: Results) -> Section:
    """The table, the figure, and who is left out."""
    lost = [label for label in study.base.model(model).methods if label not in {e.family for e in entries}]
    note = (f"Left out, as no setting is near a budget: {', '.join(lost)}.",) if lost else ()
    rows: list[Row] = []
    for entry in entries:
        near = [e for e in entries if e.family == IG and entry.family != IG]
        near.sort(key=lambda e: abs(math.log((e.budget or 1) / (entry.budget or entry.price))))
        cells = (_cell(results, model, entry, near[:1], metric, study.spec.seed) for metric in results.metrics)
        rows.append((entry.name, entry.setting, Cell(entry.price, 2), *cells))
    heads = {metric: f"{metric.replace('_', ' ')} {ARROW[_direction(results, metric)]}" for metric in results.metrics}
    panels = [SweepPanel(f"price, × IG: {h}", _curves(model, entries, results, m)) for m, h in heads.items()]
    figure = plot_sensitivity(panels, title=f"{model}: quality against price", y="score")
    caption = "Means with 95 % intervals; the level is the best map that knows nothing of the model."
    image = Image(f"budget-{results.models.index(model) + 1}", caption, png_of(figure))
    return Section(model, note, Table(("method", "setting", "price", *heads.values()), rows, "Prices"), images=(image,))


def _cell(results: Results, model: str, entry: Entry, base: Sequence[Entry], metric: str, seed: int) -> Cell:
    """The difference to ``base``, or the score where there is none."""
    scores = results.scores(model, entry.name, metric)
    if not base:
        return Cell(estimate(scores, seed).mean, 3)
    gap = paired(scores, results.scores(model, base[0].name, metric), seed=seed)
    return Cell(gap.value, 3, ends=(gap.low, gap.high), mark="*" if gap.low * gap.high > 0 else "")


def _curves(model: str, entries: Sequence[Entry], results: Results, metric: str) -> tuple[SweepCurve, ...]:
    """A line for each method, and the best score of the maps that know nothing of the model."""
    points = {name: estimate(results.scores(model, name, metric)) for name in results.methods(model)}
    lines: dict[str, list[tuple[float, str]]] = {}
    for entry in sorted(entries, key=lambda entry: entry.price):
        lines.setdefault(method_title(entry.family), []).append((entry.price, entry.name))
    blind = [name for name in points if name in CONTROLS and results.is_control(name)]
    direction = _direction(results, metric)
    if blind and direction != "none":
        best = (max if direction == "higher" else min)(blind, key=lambda name: points[name].mean)
        lines["best blind map"] = [(pick(entry.price for entry in entries), best) for pick in (min, max)]
    curves: list[SweepCurve] = []
    for title, line in lines.items():
        mean, low, high = ([getattr(points[name], end) for _, name in line] for end in ("mean", "low", "high"))
        curves.append(SweepCurve(title, [price for price, _ in line], mean, low, high))
    return tuple(curves)


def _direction(results: Results, metric: str) -> Direction:
    return results.manifest.metrics[metric]["direction"]
