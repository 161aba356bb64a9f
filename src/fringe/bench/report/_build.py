"""From results to all that a report says: a chapter per model, one for what failed and one for the settings."""

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

import fringe
from fringe._files.disk import read_json
from fringe._strings.formats import counted
from fringe._strings.names import method_title
from fringe._strings.report import Image, Report, Section, versions_chapter
from fringe._strings.tables import Cell, Row, Table
from fringe.attribution import setting_title
from fringe.bench.experiments import Manifest, Results, Store, describe_failures, mixed
from fringe.bench.report._maps import choose_examples, load_maps, plot_examples
from fringe.bench.report._table import Column, ModelTable, cost_of_maps, truth_chapter
from fringe.errors import FringeError, InputError
from fringe.evaluation import validity_table
from fringe.plots import (
    MAX_SERIES,
    Contrast,
    CurvePanel,
    Figure,
    ForestPanel,
    MeanCurve,
    plot_agreement,
    plot_curves,
    plot_forest,
    png_of,
)

Curves = NDArray[np.floating]

_COST_TEXT = (
    "For the map of one image, without its scores. Passes and time of a batch are divided equally among its images. "
    "Seconds depend on the machine, on its other work and on the batch; passes do not."
)
_CURVES_TEXT = (
    "Means over images with bands of 1.96 standard errors; pixels are changed in the order of the map, and the score "
    "is the area under an image's curve."
)


_TEXT = (
    "In each map more and more pixels are shuffled. Metrics that do not reach all of {least} stand last in the table, "
    "after those that were not judged. Neither have a winner."
)


@dataclass(frozen=True)
class MetricVerdicts:
    """Verdicts on the metrics of one model, as they were written."""

    model: str
    document: Mapping[str, Any]

    @property
    def by_metric(self) -> dict[str, str]:
        """Whether a metric passes, does not pass, or was not judged, by label."""
        known = ("passes", "does not pass")
        entries = ((one["metric"], one["verdict"]) for one in self.document["metrics"])
        return {metric: verdict if verdict in known else "not judged" for metric, verdict in entries}

    def applies_to(self, model: str, models: Sequence[str]) -> bool:
        """Whether these are the verdicts for a model of a run."""
        return model == self.model or (len(models) == 1 and self.model not in models)

    def section(self, prefix: str) -> Section:
        """The section of a report."""
        least = ", ".join(f"{name} {value:g}" for name, value in self.document["least"].items())
        title = f"Metrics on {self.model}, {counted(self.document['images'], 'image')}"
        table = validity_table(self.document["metrics"], title)
        agreement, images = self.document["agreement"], ()
        if agreement is not None:
            matrices = [
                [[math.nan if v is None else float(v) for v in row] for row in agreement[name]]
                for name in ("tau", "low", "high")
            ]
            figure = plot_agreement(agreement["metrics"], *matrices)
            caption = f"How alike the metrics rank {', '.join(agreement['methods'])} (Kendall's tau)."
            images = (Image(f"{prefix}agreement", caption, png_of(figure)),)
        return Section("Metric validity", (_TEXT.format(least=least),), table, images=images)


def read_verdicts(path: Path) -> MetricVerdicts:
    """Read ``validity.json`` of ``fringe compare --validity``. Raises InputError if it cannot be read or is another."""
    document = read_json(path, "validity")
    wrong = InputError(f"{str(path)!r} holds no verdicts on metrics", argument="validity")
    if not isinstance(document, dict):
        raise wrong
    verdicts = MetricVerdicts(str(cast(dict[str, Any], document).get("model")), cast(dict[str, Any], document))
    try:
        verdicts.section("")
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise wrong from error
    return verdicts


def build_report(
    store: Store,
    results: Results,
    tables: Sequence[ModelTable],
    grid: bool,
    validity: Mapping[str, MetricVerdicts],
    commands: Sequence[str] = (),
    more: Sequence[Section] = (),
) -> Report:
    """Build the report of a run from its results and a table per model; a ``grid`` has the stored maps of examples;
    ``validity`` holds verdicts on the metrics by model, ``commands`` tell how the run was made, and the chapters
    ``more`` follow those of models."""
    truth, chapters = truth_chapter(results), list[Section]()
    for index, table in enumerate(tables, 1):
        scene = results.manifest.scene_of(table.model)
        # of several networks of a scene the table of truth pools the scores, and scores.csv has each
        if scene is None or len(results.manifest.scenes[scene]["networks"]) == 1:
            prefix = f"{index}-" if len(tables) > 1 else ""
            chapters.append(_model_chapter(results, table, store if grid else None, validity.get(table.model), prefix))
    plan, run = results.manifest.name, shlex.quote(store.root.name)
    again = (f"fringe status {run}", f"fringe report {run} --plan {shlex.quote(plan)}")
    where = (
        f"The plan {plan} is stored in the run's folder, with the digests of weights, settings and images; "
        "every score, image by image, is in scores.csv beside this report. "
        "The commands below are for the folder that holds the run's folder."
    )
    return Report(
        title=f"Attribution methods on {', '.join(results.manifest.scenes or results.models)}",
        header=header(results),
        chapters=(
            Section("Protocol", protocol(results)),
            *(() if truth is None else (truth,)),
            *chapters,
            *more,
            failure_chapter(results, tables),
            settings(results),
            versions_chapter(versions(results), where, (*commands, *again)),
        ),
    )


def _model_chapter(
    results: Results, table: ModelTable, maps: Store | None, verdicts: MetricVerdicts | None, prefix: str
) -> Section:
    """One model; of a network of a scene, what its gates say stands before its scores."""
    failed = results.manifest.failed_gates(table.model)
    warning = (f"Gate failed: {'; '.join(failed)}. These scores are not to be read.",) if failed else ()
    sections = [Section("Scores", warning, table.shown)]
    is_given = results.manifest.scene_of(table.model) is None
    if is_given and verdicts is not None:
        sections.append(verdicts.section(prefix))
    sections.append(_difference_section(table, prefix))
    if is_given:
        sections.append(_curve_section(results, table, prefix))
        sections.append(_map_section(results, table, maps, prefix))
    head = ("method", "images", "forward", "forward mode (JVP)", "backward (VJP)", "passes", "seconds")
    rows: list[Row] = [
        (method, n, *(Cell(one, int(one != round(one)) if math.isfinite(one) else 0) for one in passes), seconds)
        for method in results.methods(table.model, controls=False)
        for n, *passes, seconds in cost_of_maps(results, [table.model], method).rows()
    ]
    sections.append(Section("Cost", (_COST_TEXT,), Table(head, rows, "Cost of a map, means over images")))
    return Section(f"{table.model} (gate failed)" if failed else table.model, sections=tuple(sections))


def _difference_section(table: ModelTable, prefix: str) -> Section:
    title = f"Paired differences to {table.reference}"
    figure = forest(table)
    if figure is None:
        return Section(title, ("There is no other method to compare with.",))
    caption = (
        f"{table.reference} minus each other method on the same images, with the 95% bootstrap interval. A filled "
        "point differs from zero with p < .05 (sign-flip test, adjusted after Holm for "
        f"{table.scores.comparisons} comparisons)."
    )
    return Section(title, images=(Image(f"{prefix}differences", caption, png_of(figure)),))


def _curve_section(results: Results, table: ModelTable, prefix: str) -> Section:
    title, drawn = "Insertion, deletion and MAS curves", curves(results, table)
    if not drawn:
        return Section(title, ("The run has no metric with curves.",))
    more = len(table.competing) - MAX_SERIES
    text = (f"{more} methods more are not drawn.",) if more > 0 else ()
    images = tuple(Image(f"{prefix}{name}", _CURVES_TEXT, png_of(figure)) for name, figure in drawn.items())
    return Section(title, text, images=images)


def _map_section(results: Results, table: ModelTable, store: Store | None, prefix: str) -> Section:
    title = "Maps"
    if store is None:
        return Section(title, ("Maps were not asked for.",))
    sets, reason = choose_examples(results, table.model, table.reference)
    digests = list(dict.fromkeys(image for one in sets for image in one.images))
    try:
        data = load_maps(results, table.model, digests, store)
    except (FringeError, OSError) as error:
        return Section(title, (f"Maps are left out: {str(error).rstrip('.')}.",))
    names = {image["digest"]: image["id"] for image in results.manifest.images}
    images: list[Image] = []
    for one in sets:
        caption = f"{one.title}. Images: {', '.join(names[image] for image in one.images)}."
        figure = plot_examples(results, table, one, data)
        images.append(Image(f"{prefix}maps-{one.name}", caption, png_of(figure)))
    return Section(title, (reason,), images=tuple(images))


def forest(table: ModelTable) -> Figure | None:
    """Plot the reference method against the others under every metric with a direction; None without a comparison."""
    panels = list[ForestPanel]()
    for column in table.columns:
        contrasts = tuple(
            Contrast(method, difference.value, difference.low, difference.high, score.adjusted)
            for method in table.competing
            if (score := table.score(method, column)).difference is not None and (difference := score.difference).n > 0
        )
        panels += [ForestPanel(column.title, contrasts, column.direction, column.unit)] if contrasts else []
    if not panels:
        return None
    title = f"{table.model}: {method_title(table.reference)} against its rivals"
    return plot_forest(panels, reference=table.reference, title=title)


def curves(results: Results, table: ModelTable) -> dict[str, Figure]:
    """Plot the curves of insertion and deletion, and of both MAS metrics, if there are any, by a name for a file."""
    families = {
        "curves": ("insertion and deletion", ("insertion", "deletion")),
        "mas-curves": ("magnitude aligned scoring", ("mas_insertion", "mas_deletion")),
    }
    known = [column for column in table.columns if any(_metric(column) in metrics for _, metrics in families.values())]
    means: dict[str, dict[str, MeanCurve]] = {column.label: {} for column in known}
    for method in table.methods[:MAX_SERIES] if known else ():
        for label, mean in _mean_curves(results, table.model, method, known):
            means[label][method] = mean
    drawn: dict[str, Figure] = {}
    for name, (title, metrics) in families.items():
        panels = [
            CurvePanel(column.title, means[column.label], column.direction, _curve(column)[1])
            for column in known
            if _metric(column) in metrics and means[column.label]
        ]
        if panels:
            drawn[name] = plot_curves(panels, title=f"{table.model}: {title}")
    return drawn


def _mean_curves(
    results: Results, model: str, method: str, columns: Sequence[Column]
) -> Iterator[tuple[str, MeanCurve]]:
    """The mean curve of a method under each metric, by label; all metrics of a method are read at once."""
    names = {column.label: f"curve/{_curve(column)[0]}" for column in columns}
    for label, curves in results.details(model, method, names).items():
        mean = MeanCurve.of(stacked(list(curves.values()))) if curves else None
        if mean is not None:
            yield label, mean


def _metric(column: Column) -> str:
    return str(column.settings["metric"])


def _curve(column: Column) -> tuple[str, str]:
    """The name of a metric's curve, and the label of its axis."""
    if _metric(column).startswith("mas_"):
        return "aligned", "response, aligned"
    return ("normalised", "probability, normalised") if column.settings["normalise"] else ("raw", "probability")


def stacked(lines: Sequence[Curves]) -> Curves:
    """Stack curves to (n, N + 1). Images of another size have curves of other lengths: all are interpolated to the
    longest."""
    if len(set(map(len, lines))) == 1:
        return np.stack(lines)
    share = np.linspace(0.0, 1.0, max(len(line) for line in lines))
    return np.array([np.interp(share, np.linspace(0.0, 1.0, len(line)), line) for line in lines])


_SCORES = {"logit": "logit", "log_probability": "log probability", "probability": "probability"}


def header(results: Results) -> dict[str, str]:
    """Return the first lines of a report."""
    plan, models = results.manifest.plan, results.models
    return {
        "Model" if len(models) == 1 else "Models": ", ".join(models),
        "Images": str(len(results.manifest.images)),
        "Seed": str(plan["seed"]),
        "Methods": ", ".join(dict.fromkeys(m for model in models for m in results.methods(model, controls=False))),
        "Metrics": str(len(results.metrics)),
        "Data": ", ".join(plan["data"]) or "made by the scenes",
    }


def protocol(results: Results) -> tuple[str, ...]:
    """Return how images, targets and scores were obtained, in sentences."""
    manifest, plan = results.manifest, results.manifest.plan
    whatever = ", whatever the model predicts."
    targets = {
        "predicted": "Each image is explained for the class that the model predicts on it (top 1 on the clean image), "
        "and the class is the same for all methods and metrics.",
        "label": f"Each image is explained for the class that its label names{whatever}",
    }
    target = targets.get(plan["target"], f"Each image is explained for class {plan['target']}{whatever}")
    target = "Each example is explained for the class that its scene sets." if manifest.scenes else target
    source = "the data itself" if plan["references"] is None else plan["references"]
    has_images = plan["data"] or plan["references"] is not None
    references = f"Reference images come from {source}." if has_images else "No reference images were given."
    score = f"The explained score is the class's {_SCORES[plan['score']]}. {references}"
    sentences = [_images(manifest), target, score]
    fewer = [
        f"{metric['title']} on the first {metric['limit']}"
        for metric in manifest.metrics.values()
        if metric["limit"] < min(manifest.plan["n"], len(manifest.images))
    ]
    if fewer:
        sentences.append(f"Some metrics are computed on fewer images: {', '.join(fewer)}.")
    controls = sorted({m for model in results.models for m in results.methods(model) if results.is_control(m)})
    if controls:
        blind, made = ([c for c in controls if (":" in c) == own and c != "diffusion"] for own in (False, True))
        sentences.append(
            "Controls stand below the methods: a score says little unless it is better than all of theirs."
        )
        sentences += [f"The model has no part in {', '.join(blind)}."] * bool(blind)
        sentences += ["The path of diffusion ignores the model."] * ("diffusion" in controls)
        sentences += [f"Made of a method's own map, and for this method alone: {', '.join(made)}."] * bool(made)
    sentences.append(
        "All methods get the same images, targets and noise; differences between them are paired by image."
    )
    several = mixed(results.versions)
    if several:
        sentences.append(
            f"Results of several versions of libraries are mixed here ({'; '.join(several)}): methods that one version "
            "computed are compared with methods of another."
        )
    return tuple(sentences)


def settings(results: Results) -> Section:
    """Return every setting of models, methods and metrics."""
    manifest = results.manifest
    methods: dict[tuple[str, str, str], list[str]] = {}
    for model, entries in manifest.settings.items():
        for method, setting in entries.items():
            title = method if results.is_control(method) else setting_title(setting["method"])
            methods.setdefault((method, title, _pairs(setting["method"])), []).append(model)
    used = [(method, title, ", ".join(models), pairs) for (method, title, pairs), models in methods.items()]
    models = [
        (label, model["spec"], model["architecture"], model["weights"], _pairs(model["preprocessing"]))
        for label, model in manifest.models.items()
    ]
    metrics = [
        (
            f"{metric['title']} ({label})",
            "neither" if metric["direction"] == "none" else metric["direction"],
            metric["unit"] or "pure number",
            *(metric[name] for name in ("summary", "limit", "space")),
            *(_pairs(metric["settings"]), metric["source"]),
        )
        for label, metric in manifest.metrics.items()
    ]
    of_models = ("model", "source", "architecture", "weights (digest)", "preprocessing")
    of_metrics = ("metric", "better", "unit", "summary", "images", "looks at", "settings", "source")
    sections = (
        Section("Models", table=Table(of_models, models, "Models")),
        Section("Methods", table=Table(("method", "title", "models", "settings"), used, "Settings of the methods")),
        Section("Metrics", table=Table(of_metrics, metrics, "Settings of the metrics")),
    )
    return Section("Settings", sections=sections)


def versions(results: Results) -> dict[str, str]:
    """Return the versions of libraries that computed the run."""
    used = {name: ", ".join(counts) for name, counts in results.versions.items()}
    texts = {f"{name} (run)": text for name, text in {**results.manifest.versions, **used}.items()}
    texts["fringe (report)"] = fringe.__version__
    return texts


def _images(manifest: Manifest) -> str:
    count, plan = len(manifest.images), manifest.plan
    if manifest.scenes:
        sizes = Counter(image["scene"] for image in manifest.images)
        parts = ", ".join(f"{scene['title']} ({label}) {sizes[label]}" for label, scene in manifest.scenes.items())
        source = f", made of images of {', '.join(plan['data'])}" if plan["data"] else ""
        return (
            f"{count} examples with a known answer{source}, drawn by seed {plan['seed']} and named by their content: "
            f"{parts}. Each network is explained on the examples of its scene."
        )
    lost = f"; {counted(len(manifest.missing), 'more image')} cannot be read" if manifest.missing else ""
    turned = (
        "rotated by their EXIF orientation"
        if plan["exif"] == "transpose"
        else "read as they are stored; their EXIF orientation is ignored"
    )
    how = f"drawn by seed {plan['seed']}" if plan.get("sample", True) else "the first ones in their order"
    images = f"{counted(count, 'image')} of {', '.join(plan['data'])}, {how} and named by their content{lost}"
    return f"{images}. Photos are {turned}."


def _pairs(record: Mapping[str, Any]) -> str:
    """Return ``steps=50, baseline=zero``, after the name of a method or metric."""
    name = record.get("method", record.get("metric", record.get("control")))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in record.items()}
    pairs = [f"{key}={text}" for key, text in texts.items() if key not in ("method", "metric", "control")]
    return ", ".join(pairs) if name is None else f"{name}: {', '.join(pairs) or 'no settings'}"


#: Reasons of one kind that a status shows.
SHOWN_REASONS = 10
#: A count of zero: other numbers should stand out.
ZERO = "·"


def verdicts(results: Results, model: str) -> dict[str, dict[str, int]]:
    """Count how often a method gave each verdict on its maps; methods that give none are left out."""
    result: dict[str, dict[str, int]] = {}
    for name in results.methods(model, controls=False):
        counts = results.map_frame(model, name).drop_nulls("verdict").group_by("verdict").len().rows()
        result |= {name: dict(counts)} if counts else {}
    return result


def failure_chapter(results: Results, tables: Sequence[ModelTable]) -> Section:
    """Return what is missing, what failed and why, verdicts of the methods on their own maps, and metrics' flags."""
    missing = (
        *results.missing(),
        *(f"drawn and not read: {reason}" for reason in results.manifest.missing),
    )
    sections = [Section("Not computed", lines=missing or ("Every image of the plan was computed.",))]
    failed: dict[tuple[str, int, str], list[str]] = {}
    for model, method, reason, _, images in results.failures().rows():
        failed.setdefault((model, images, reason.replace("not_finite", "not finite")), []).append(method)
    rows: list[Row] = [(model, ", ".join(names), images, why) for (model, images, why), names in failed.items()]
    table = Table(("model", "methods", "images", "reason"), rows, "Images that a method failed on")
    sections.append(_section("Failed", table, "No method failed on an image."))
    undefined: dict[tuple[str, str], list[str]] = {}
    for scores in tables:
        for method, column in product(scores.rows, scores.columns):
            if count := scores.undefined(method, column):
                undefined.setdefault((scores.model, column.title), []).append(f"{method} {count}")
    rows = [(model, metric, ", ".join(names)) for (model, metric), names in undefined.items()]
    head = ("model", "metric", "images where it is not defined, by method")
    table = Table(head, rows, "Finite maps without a score")
    sections.append(_section("Not defined", table, "Every finite map has a score under every metric."))
    for model in results.models:
        counted = verdicts(results, model)
        names = sorted({name for counts in counted.values() for name in counts}, key=lambda name: (name != "ok", name))
        rows = [(method, *(counts.get(name) or ZERO for name in names)) for method, counts in counted.items()]
        table = Table(("method", *names), rows, f"Verdicts on {model}, images")
        sections += [Section(f"Verdicts on {model}", table=table)] if rows else []
    for scores in tables:
        pairs = sorted(scores.flags(controls=False) | scores.flags(controls=True))
        known = {column.title: column for column in scores.columns}
        rows = [
            (flag, title, *(scores.counts(one, known[title]).flags().get(flag) or ZERO for one in scores.rows))
            for flag, title in pairs
        ]
        table = Table(("flag", "metric", *scores.rows), rows, f"Flagged scores on {scores.model}")
        sections += [Section(f"Flags on {scores.model}", table=table)] if rows else []
    return Section("Missing, failures and flags", sections=tuple(sections))


def _section(title: str, table: Table, empty: str) -> Section:
    """A table under a title, or a line where it is empty."""
    return Section(title, table=table) if table.cells else Section(title, lines=(empty,))


def describe_status(document: Mapping[str, Any]) -> Iterator[str | Table]:
    """Describe what a run folder holds, as :func:`fringe.bench.experiments.read_status` returns it."""
    if not document["plans"]:
        yield "no plan yet: nothing was asked for in this folder"
    for name, plan in document["plans"].items():
        yield f"{name}: {counted(plan['images'], 'image')}"
        totals: dict[tuple[str, str], Counter[str]] = {}  # metrics together
        for cell in plan["cells"]:
            numbers = {name: cell[name] for name in ("required", "scored", "failed", "missing")}
            totals.setdefault((cell["model"], cell["method"]), Counter()).update(numbers)
        rows = list[Row]()
        for names, total in totals.items():
            # 100 only where none is missing
            share = 100 * (total["scored"] + total["failed"]) // max(total["required"], 1)
            counts = (total[name] or "" for name in ("failed", "missing"))
            rows.append((*names, f"{total['scored']}/{total['required']}", *counts, Cell(share / 100, 0, share=True)))
        yield Table(("model", "method", "scores", "failed", "missing", "done"), rows)
        yield from (f"  {line}" for line in describe_failures(plan["failures"], SHOWN_REASONS))
        yield from (f"  not read: {reason}" for reason in plan["not_read"][:SHOWN_REASONS])
        yield from (f"  results of several versions are mixed: {line}" for line in mixed(plan["versions"]))
        for lost in plan["lost_maps"][:SHOWN_REASONS]:
            maps = counted(lost["maps"], "stored map")
            yield f"  {maps} of {lost['method']} on {lost['model']} damaged or gone; the next run makes them again"
    for problem in document["damaged"][:SHOWN_REASONS]:
        yield f"damaged: {problem}; the next run computes again what is lost"
    for rows in document["invalidated"][:SHOWN_REASONS]:
        of = f"{rows['method']} on {rows['model']}"
        yield f"no longer asked for: {of}, {counted(rows['images'], 'map')}: {rows['reason']}"
    if document["trials"]:
        yield f"stored from the trials of a search: {counted(document['trials'], 'method')}"
