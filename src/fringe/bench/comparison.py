"""Compare methods on image files: a run that is resumed, and beside it its picture, scores and table for people."""

import contextlib
import importlib
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fringe._strings.formats import counted, first_paragraph, plain, to_json
from fringe._strings.progress import Progress
from fringe._strings.progress import Report as ProgressReport
from fringe._strings.report import Image, Report, Section, html_page
from fringe._strings.tables import Cell, Row, Table
from fringe.attribution import setting_title
from fringe.bench.experiments import (
    MISSING,
    OK,
    STATUSES,
    ExperimentSpec,
    Plan,
    RunLog,
    RunOptions,
    RunResult,
    SerialExecutor,
    Store,
    Task,
    TaskRunner,
    build_plan,
    describe_seconds,
    mixed,
    planned_work_of,
    run_plan,
)
from fringe.classifier import PassCounts
from fringe.data import SOURCE
from fringe.errors import FringeError, InputError, warn_caller
from fringe.evaluation import (
    DRAWN_CONTROL,
    LEVEL,
    RESAMPLES,
    Comparison,
    MethodResult,
    TidyScores,
    Validity,
    degraded_passes,
    degraded_scores,
    grid_row,
    judge_metrics,
    metric_labels,
    validity_table,
)
from fringe.explanations import CompareSpec, Failure, ImageRun, Prepared
from fringe.inputs import with_boxes
from fringe.metrics import USUAL_METRICS, EvaluationContext, Metric, Scores
from fringe.settings import with_settings

FIGURE, SCORES, INDEX = "compare.png", "scores.csv", "index.html"
VALIDITY, AGREEMENT = "validity.json", "agreement.png"
_CONTROLS = "or that change a method's own map. A score says little unless it is better than theirs."
_UNKNOWN = "Where nobody knows the right map, no score proves that a map is right."
#: Images, and numbers of input, of one task.
BATCH_IMAGES, BATCH_NUMBERS = 64, 10_000_000


class ImageComparison(ImageRun[CompareSpec]):
    """A run of an experiment on given images, with files for people: :meth:`open`, then :meth:`compute`.

    Attributes:
        plan: What is computed; before :meth:`open` with a stand-in for the model.
        validity: What is known of the metrics, at the end of a run that judges them.
    """

    command = "compare"
    validity: Validity | None = None

    def __init__(self, inputs: Sequence[str], out: Path, spec: CompareSpec, *, overwrite: bool = False):
        chosen = {name: getattr(spec, name) for name in ("methods", "metrics", "set", "controls", "references")}
        if spec.metrics == CompareSpec().metrics:
            chosen["metrics"] = USUAL_METRICS
        self._same = {**chosen, "name": self.command, "sample": False, "limits": {}}
        self.plan = build_plan(ExperimentSpec(**self._same, model={"model": SOURCE}, data=(SOURCE,)))
        importlib.import_module("fringe.plots")  # a missing package is reported now
        super().__init__(inputs, out, spec, overwrite=overwrite)
        self._count, refused = len(self.refs), {failure.source for failure in self.missing}
        self._data = tuple(text for text in inputs if text not in refused)
        self._default_references = self.refs if len(self.refs) > 1 else ()
        self._scores, self._images = TidyScores((), {}), list[dict[str, Any]]()
        self._costs, self._refused = list[dict[str, Any]](), list[dict[str, Any]]()
        self._drawn = dict[str, Image]()

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Label and error of what failed, methods or scores, each once."""
        errors = [(entry["label"], error["error"]) for entry in self._costs for error in entry["errors"]]
        refused = [(f"metric {one['metric']}", one["reason"]) for one in self._refused]
        return list(dict.fromkeys([*errors, *refused]))

    @property
    def any_map(self) -> bool:
        return any(entry["maps"] for entry in self._costs if not entry["control"])

    def describe(self) -> Sequence[str | Table]:
        """Return a table of methods by metrics, for people; nothing if no image was compared."""
        return self._described() if self.done else ()

    def _check(self) -> None:
        """Refuse what would fail for every image, before the folder becomes a run."""
        self.failures += self.missing
        for label, method in self.plan.models[0].methods.items():
            if method.uses_references and not self.references.ids:
                message = f"{label} explains an image by others, and there are none"
                hint = "name a folder of them, or compare several images"
                raise InputError(message, argument="references", hint=hint)
        first = next((item for item in map(self.prepare, self.refs) if isinstance(item, Prepared)), None)
        answer = "" if first is None else self.logits([first])
        self._pass, self._shape = 0.0, (1,) if first is None else tuple(first.x.shape[1:])
        if first is not None and not isinstance(answer, str):
            self.classifier.resolve_target(self.target, answer[1])
            times = list[float]()
            for _ in range(3):  # the first pass took longer than others do, and on a busy machine any may
                began = time.perf_counter()
                self.logits([first])
                times.append(time.perf_counter() - began)
            self._pass = min(times)
        numbers = 1 if first is None else first.x.numel()
        names = ("seed", "score", "exif", "preprocessing", "trust_code", "model_output")
        experiment = ExperimentSpec(
            **self._same,
            **{name: getattr(self.spec, name) for name in names},
            model=self.loaded,
            data=self._data,
            n=self._count,
            boxes=self.boxes,
            target=self.target,
            shard=max(1, min(BATCH_IMAGES, -(-BATCH_NUMBERS // numbers))),
        )
        self.plan = replace(build_plan(experiment), shown=len(self.refs) if self.spec.validity else self.spec.rows)

    def expectation(self) -> str:
        """Return what the open run computes; on a CPU also how long that takes at most, by the time of a first pass."""
        stepped = dict(self.plan.metrics)
        for label, one in self.plan.metrics.items():
            if (steps := getattr(one, "steps", 0)) != 0:  # None: one for each row; at most one for each pixel
                limit = math.prod(self._shape)
                stepped[label] = with_settings(one, {"steps": str(min(steps or self._shape[0], limit))})
        plan = replace(self.plan, n=len(self.refs), metrics=stepped)
        passes = sum(each * count for _, each, count in planned_work_of([plan]))
        if self.spec.validity:
            passes += degraded_passes(self.plan.metrics.values()) * len(self.plan.models[0].methods) * len(self.refs)
        maps, scores = len(self.refs) * len(self.plan.candidates(self.plan.models[0])), len(self.plan.metrics)
        longest = f" and {describe_seconds(passes * self._pass)}" if self.device.type == "cpu" else ""
        what = f"{counted(maps, 'map')} with {counted(scores, 'score')} each"
        return f"{what}: at most {passes:,.0f} passes of the network{longest}, less what is stored"

    def compute(self, bar: Progress) -> None:
        """Compute what the folder lacks, and write the files.

        Raises:
            Interrupted: On a signal; what was computed stays.
            TransientError: If the disk or device fails; what was computed stays.
        """
        spec = self.spec
        executor = SerialExecutor(keep=True, progress=lambda what, done, total: bar.step(done, total, what))
        how: dict[str, Any] = {"device": spec.device, "batch_size": spec.batch_size, "executor": executor}
        options = RunOptions(**how, amend=True, retry=True)
        with Store(self._out, beside=True):
            log = RunLog.shown(bar)
            finished = run_plan(self.plan, self._out, options.resolve(), log, forget=self._overwrite)
        stored = _Stored(finished)
        if finished.cause is None:
            self._add_images(stored, executor.runner, bar.step)
            for line in mixed(stored.results.versions):
                warn_caller(f"results of several versions are mixed: {line}")
        else:
            self._add_scores(stored, [i for i in range(len(stored.digests)) if stored.is_scored(i)], {})
        self._write_summary(complete=finished.cause is None)
        if finished.cause is not None:
            raise finished.cause
        if self.done:
            self.folder.attempt(INDEX, self._page())

    def _add_images(self, stored: "_Stored", runner: TaskRunner, report: ProgressReport) -> None:
        """Add the scores of the images that the model takes, draw the first of them, and judge the metrics."""
        at, rows, degraded = list[int](), list[tuple[int, Any]](), list[dict[str, Any]]()
        entries, settings = dict[int, dict[str, Any]](), dict[str, Any]()
        for groups in stored.groups(self.plan.shard, runner):
            at += sorted(i for positions, _ in groups for i in positions)
            for positions, context in groups:
                problem, logits = context.problem, context.problem.logits.cpu()
                for one in self.plan.candidates(self.plan.models[0]) if not settings else ():
                    with contextlib.suppress(FringeError):  # of a method that does not take such images
                        fitted = one.method and one.method.fitted(problem)
                        settings[one.label] = replace(one, method=fitted).record()
                for i, values, target in zip(positions, logits, problem.target, strict=True):
                    ref = stored.pictures[i].ref
                    entries[i] = {**self.image_entry(ref, values, target), "sha256": self.sha256(ref)}
                drawn = [k for k, i in enumerate(positions) if i in at[: self.spec.rows]]
                chosen = list(range(len(positions))) if self.spec.validity else drawn
                if chosen:
                    part = stored.with_maps(self.plan, [positions[k] for k in chosen], runner)
                    part = replace(part, target=problem.target[chosen], evaluation=context)
                    known = self.context(part.images, problem.inputs[chosen], logits[chosen])
                    known = with_boxes(known, [self.found[name] for name in part.images]) if self.found else known
                    rows += [(positions[k], grid_row(part, known, n)) for n, k in enumerate(chosen) if k in drawn]
                    degraded += degraded_scores(part, report) if self.spec.validity else []
        self._images = [entries[i] for i in at]
        # why images were not compared: those that cannot be found or opened, and those that the model refuses
        known = {picture.ref.id for picture in stored.pictures}
        lost = (item for item in (self.prepare(ref) for ref in self.refs if ref.id not in known))
        self.failures += [item if isinstance(item, Failure) else Failure.of(item.ref, "it changed") for item in lost]
        refused = [i for i in range(len(stored.pictures)) if i not in set(at)]
        self.failures += [Failure.of(stored.pictures[i].ref, stored.reason(i)) for i in refused]
        self._add_scores(stored, at, settings)
        if rows:
            self._draw([row for _, row in sorted(rows, key=lambda one: one[0])])
        if self.spec.validity and at:
            self._judge(degraded)

    def _add_scores(self, stored: "_Stored", at: Sequence[int], settings: Mapping[str, Any]) -> None:
        self.done, self.left = len(at), bool(stored.left)
        compared = stored.comparison(self.plan, at)
        self._scores = compared.tidy_scores
        self._costs = [_cost(row, settings.get(row.label)) for row in compared.rows if at]
        self._refused += [
            {"method": row.label, "metric": metric, "reason": reason.removeprefix(f"metric {metric}: "), "images": n}
            for row in compared.rows
            for metric, scores in row.scores.items()
            for reason, n in Counter(filter(None, scores.refusals)).items()
        ]

    def _draw(self, rows: Sequence[Any]) -> None:
        from fringe.plots import captions, comparison_grid

        methods, pool = list(self.plan.models[0].methods), None if self.spec.pool == "auto" else self.spec.pool
        what = counted(self.done, "box" if self.found else "image")
        first = f"first {len(rows)} of {what}" if self.done > len(rows) else what
        title = f"{self.loaded.label} · {first} · {counted(len(methods), 'method')}"
        caption = captions(metric_labels(self.plan.metrics))
        figure = comparison_grid(rows, methods, title=title, caption=caption, pool=pool)
        self._add_figure(FIGURE, "What each method shows, and under each map its scores.", figure)

    def _add_figure(self, name: str, caption: str, figure: Any) -> None:
        from fringe.plots import png_of

        self._drawn[name] = Image(name.removesuffix(".png"), caption, png_of(figure))
        self.folder.attempt(name, self._drawn[name].png)

    def _page(self) -> str:
        """What people read, as one file: the pictures, the table of scores, and what the numbers depend on."""
        document, (table, legend, *more) = self.document, self.describe()
        assert isinstance(table, Table)
        conclusions = document["conclusions"] or self._scores.untested
        notes = [*(note for note in table.notes if note not in conclusions), *str(legend).splitlines()]
        said = dict[type[Metric], str]()
        for label, metric in self.plan.metrics.items():
            better, kind = f" ({metric.direction} is better)" * (metric.direction != "none"), type(metric)
            title = label.replace("_", " ")
            other = (
                "with zeros in place of the blur" if metric.record().get("reference") == "zeros" else "set otherwise"
            )
            what = f"as {said[kind]}, {other}" if kind in said else first_paragraph(kind.__doc__)
            said.setdefault(kind, title)
            notes.append(f"{title}{better}: {what}")
        notes += [f"not compared: {failure.reason_to_share}" for failure in self.failures]
        methods = [one for one in document["methods"] if not one["control"]]
        explained = self.class_entry(self.target)["name"] if isinstance(self.target, int) else "the predicted one"
        facts = {"network": self.loaded.label, "methods": " · ".join(one["title"] for one in methods)}
        photographs = {one.photograph for name, one in self.found.items() if name in {e["id"] for e in self._images}}
        counts = {"boxes": str(self.done), "photographs": str(len(photographs))} if self.found else {}
        facts |= {**(counts or {"images": str(self.done)}), "class": explained or str(self.target)}
        recipes = [("versions", document["versions"]), ("preprocessing", document["preprocessing"])]
        configured = [*(("method", one) for one in methods), *(("metric", one) for one in document["metrics"])]
        recipes += [(f"{kind} {one['label']}", one["settings"]) for kind, one in configured]
        rows = [(what, ", ".join(f"{name}={value}" for name, value in one.items())) for what, one in recipes]
        rows += [("weights", document["model"]["digest"]), ("seed", str(document["seed"]))]
        controls = [one["label"] for one in document["methods"] if one["control"]]
        runs = " (only diffusion runs it, along a path that ignores it)" if "diffusion" in controls else ""
        text = (f"Controls are maps that do not look at the network{runs}, {_CONTROLS}",) if controls else ()
        maps, agreement = ([one] if (one := self._drawn.get(name)) else [] for name in (FIGURE, AGREEMENT))
        chapters = (
            *([Section("Conclusions", lines=tuple(conclusions))] if conclusions else []),
            *([Section("Maps", images=tuple(maps))] if maps else []),
            Section("Scores", (*text, _UNKNOWN), replace(table, title="Scores", notes=notes)),
            *(Section("Metric validity", table=one, images=tuple(agreement)) for one in more if isinstance(one, Table)),
            Section("Settings and versions", table=Table(("what", "value"), rows, "Settings and versions")),
        )
        return html_page(Report("Methods compared", facts, chapters))

    def _described(self) -> list[str | Table]:
        """A table of methods by metrics: means or medians with their intervals, controls below a rule; then what is
        known of the metrics."""
        flags, flagged = Counter[str](), Counter[str]()
        for row in self._scores.rows:
            flags.update(row["flags"])
            flagged[row["method"]] += bool(row["flags"])
        costs = dict[str, Row]()
        for one in self._costs:
            label, images, passes = one["label"], max(one["images"], 1), sum(one["passes"].values())
            seconds = Cell(one["seconds"] / images if passes else None, 2)
            costs[label] = (self._scores.table.count(label), flagged[label], Cell(round(passes / images), 0), seconds)
        table = self._scores.printed(costs, ("n", "flagged", "passes", "seconds"))
        table = replace(table, notes=[*self._scores.conclusions, *table.notes])
        medians = sorted(label.replace("_", " ") for label, m in self.plan.metrics.items() if m.aggregate == "median")
        summary = f"mean (median for {', '.join(medians)})" if medians else "mean"
        many = any(score.estimate.n > 1 for score in self._scores.table.cells.values())
        one, plural, drawn = ("box", "boxes", "photographs") if self.found else ("image", "images", "images")
        shown = f"{summary} [95% bootstrap interval over {drawn}]" if many else f"the score of the {one}"
        legend = f"{shown}; n: {plural} with a score; passes and seconds: of one {one}'s map"
        counts = f"\nflagged scores: {', '.join(f'{name} {count}' for name, count in flags.items())}" if flags else ""
        known = [] if self.validity is None else [validity_table(plain(self.validity.record())["metrics"])]
        return [table, f"{legend}{counts}", *known]

    def _judge(self, degraded: Sequence[Mapping[str, Any]]) -> None:
        """Write what is known of the metrics, with a figure of how alike they are."""
        self.validity = judge_metrics(self._scores.rows, degraded, self.plan.metrics, self.spec.seed)
        document = {"model": self.loaded.label, "images": self.done, **plain(self.validity.record())}
        self.folder.attempt(VALIDITY, to_json(document))
        if self.validity.agreement is not None:
            figure = self.validity.agreement.plot(self.loaded.label)
            self._add_figure(AGREEMENT, "How alike the metrics rank the methods (Kendall's tau).", figure)

    def _write_summary(self, *, complete: bool) -> None:
        metrics, words = self.plan.metrics, ("title", "direction", "unit", "space")
        self.folder.attempt(SCORES, self._scores.csv())
        counts = {"inputs": self.done + len(self.failures), "compared": self.done, "failed": len(self.failures)}
        self.write_document(
            {
                "target": self.target,
                "complete": complete,
                "counts": counts,
                "figure": FIGURE if FIGURE in self.folder.written else None,
                "scores": SCORES,
                "methods": plain(self._costs),
                "metrics": [
                    {"label": label, **{name: getattr(m, name) for name in words}, "settings": plain(m.record())}
                    for label, m in metrics.items()
                ],
                "refused": plain(self._refused),
                "interval": {
                    "of": "what the entry's summary names",
                    "kind": f"percentile bootstrap over {'photographs' if self.found else 'images'}",
                    "level": LEVEL,
                    "resamples": RESAMPLES,
                },
                "table": plain(self._scores.entries()),
                "conclusions": self._scores.conclusions,
                **({} if self.validity is None else {"validity": plain(self.validity.record())}),
                "images": [*self._images, *(failure.entry() for failure in self.failures)],
            }
        )


def _cost(row: MethodResult, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """What the maps of a method took, and the errors of those that failed."""
    maps = sum(not fault for fault in row.faults)
    failed = [error for error, fault in zip(row.errors, row.faults, strict=True) if fault == "failed"]
    used = settings if maps and settings is not None else row.settings
    return {
        "label": row.label,
        "title": row.label if row.control else setting_title(used),
        "control": row.control,
        "settings": used,
        "images": len(row.faults),
        "maps": maps,
        "passes": asdict(row.passes),
        "seconds": round(row.seconds, 3),
        "errors": [{"error": error, "images": n} for error, n in Counter(failed).items()],
    }


class _Stored:
    """What is stored of a run of one model, as comparisons of images by their positions."""

    def __init__(self, finished: RunResult):
        self.store, self.results, manifest = finished.store, finished.results, finished.resolved.manifest
        (self.model,) = self.results.models
        self.digests = [image["digest"] for image in manifest.images]
        self.pictures = [finished.resolved.pictures[digest] for digest in self.digests]
        self.left = {(one.task.method, i): why for one in finished.log.reports for i, why in one.left.items()}

    def groups(self, shard: int, runner: TaskRunner) -> Iterator[list[tuple[list[int], EvaluationContext]]]:
        """Open the images as the tasks did: block by block, those of one size together, with their positions."""
        places = {picture.key: i for i, picture in enumerate(self.pictures)}
        for start in range(0, len(self.digests), shard):
            contexts = runner.subjects(self.model, self.digests[start : start + shard])
            yield [([places[key] for key in context.problem.keys], context) for context in contexts]

    def is_scored(self, i: int) -> bool:
        """Whether all methods are done with an image, and it has a score."""
        status = {int(cell.column("status")[i]) for cell in self.results.cells.values()}
        return MISSING not in status and OK in status

    def reason(self, i: int) -> str:
        """Why an image has no score, or the first reason of several."""
        return self._row(self.results.methods(self.model)[0], [i]).errors[0]

    def comparison(self, plan: Plan, at: Sequence[int]) -> Comparison:
        """All methods and controls on some images, without their maps."""
        rows = tuple(self._row(method, list(at)) for method in self.results.methods(self.model))
        images = tuple(self.results.manifest.images[i]["id"] for i in at)
        clusters = self.results.clusters(self.model)
        shared = None if clusters is None else tuple(clusters[i] for i in at)
        return Comparison(images, torch.empty(len(at)), plan.metrics, rows, plan.seed, clusters=shared)

    def with_maps(self, plan: Plan, at: Sequence[int], runner: TaskRunner) -> Comparison:
        """The methods and the control that is drawn on some images of one size, with their maps: those that the store
        lacks are made again."""
        comparison = self.comparison(plan, at)
        shown = (row for row in comparison.rows if row.label == DRAWN_CONTROL or not row.control)
        return replace(comparison, rows=tuple(replace(row, maps=self._maps(row, at, runner)) for row in shown))

    def _row(self, method: str, at: list[int]) -> MethodResult:
        """What is stored of a method on some images."""
        scores, results = dict[str, Scores](), self.results
        cells = {metric: results.cells[self.model, method, metric] for metric in results.metrics}
        faults, errors = [""] * len(at), [""] * len(at)
        for metric, cell in cells.items():
            refusals, prefix = [""] * len(at), f"metric {metric}: "
            notes = [results.notes[number] for number in cell.column("note_index")[at].tolist()]
            for k, (status, (_, error)) in enumerate(zip(cell.column("status")[at].tolist(), notes, strict=True)):
                if status == MISSING:
                    why = self.left.get((method, self.digests[at[k]]), "it is left to the next run")
                    faults[k], errors[k] = "failed", why
                elif error and error.startswith(prefix):
                    refusals[k] = error
                elif status != OK:
                    faults[k], errors[k] = STATUSES[status], error or STATUSES[status]
            places = dict[str, int]()
            for named, _ in notes:
                places |= {flag: max(place, places.get(flag, 0)) for place, flag in enumerate(named)}
            ordered = sorted(places, key=places.__getitem__)  # as the metric has them
            flags = {flag: torch.tensor([flag in named for named, _ in notes]) for flag in ordered}
            scores[metric] = Scores(
                torch.from_numpy(cell.scores[at]), flags, refusals=tuple(refusals) if any(refusals) else ()
            )
        made = next(iter(cells.values())).maps[at]
        passes = PassCounts(*(round(float(made[kind].sum())) for kind in ("forward", "jvp", "vjp")))
        settings = results.manifest.settings[self.model][method]["method"]
        seconds, is_control = float(made["seconds"].sum()), results.is_control(method)
        return MethodResult(method, is_control, settings, scores, tuple(faults), passes, seconds, tuple(errors))

    def _maps(self, row: MethodResult, at: Sequence[int], runner: TaskRunner) -> Tensor | None:
        setting, digests = self.results.manifest.setting_key(self.model, row.label), [self.digests[i] for i in at]
        maps = self.store.load_maps(setting, digests)
        lacking = [one for one, fault in zip(digests, row.faults, strict=True) if fault != "failed" and one not in maps]
        if lacking:
            made = runner.perform(Task(self.model, row.label, setting, (), (), tuple(lacking), save=True)).results
            maps |= {one.image: one.map for one in made if one.map is not None}
        known = [maps[digest].values for digest in digests if digest in maps]
        values = [maps[one].values if one in maps else torch.full_like(known[0], torch.nan) for one in digests if known]
        return torch.stack(values) if values else None
