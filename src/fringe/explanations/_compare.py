"""A run that compares methods on image files: every score, the means, and a picture."""

import importlib
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fringe._tables import Table
from fringe._text import counted, plain, to_csv, to_json
from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.data import SOURCE
from fringe.errors import InputError
from fringe.evaluation import (
    LEVEL,
    RESAMPLES,
    MethodResult,
    Validity,
    compare,
    degraded_scores,
    grid_row,
    judge_metrics,
    metric_labels,
    summarise,
    tidy,
)
from fringe.explanations._base import Failure, ImageRun, Prepared, Progress, by_shape, iter_batches
from fringe.explanations._spec import CompareSpec
from fringe.explanations._tables import describe_comparison
from fringe.metrics import Metric

FIGURE, SCORES = "compare.png", "scores.csv"
VALIDITY, AGREEMENT = "validity.json", "agreement.png"
COLUMNS = ("method", "control", "metric", "image", "score", "flags")
#: Images, and numbers of input, that are compared together.
BATCH_IMAGES, BATCH_NUMBERS = 64, 10_000_000


class ComparisonRun(ImageRun[CompareSpec]):
    """One run that compares methods on images: :meth:`open`, then :meth:`results`.

    Attributes:
        methods: The configured methods by label.
        metrics: The configured metrics by label.
        validity: What is known of the metrics, at the end of a run that judges them.
    """

    command = "compare"
    validity: Validity | None = None

    def __init__(self, inputs: Sequence[str], out: Path, spec: CompareSpec, *, overwrite: bool = False):
        chosen = {name: getattr(spec, name) for name in ("methods", "metrics", "set", "controls", "references")}
        plan = build_plan(ExperimentSpec(model={"model": SOURCE}, data=(SOURCE,), **chosen))
        importlib.import_module("fringe.explanations._pictures")  # a missing package is reported now
        self.methods, self.metrics = dict(plan.arms[0].methods), dict(plan.metrics)
        super().__init__(inputs, out, spec, overwrite=overwrite)
        self._default_references = self.refs if len(self.refs) > 1 else ()
        self._order = {ref.id: i for i, ref in enumerate(self.refs)}
        self._scores: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._costs: dict[str, dict[str, Any]] = {}
        self._rows: list[Any] = []
        self._degraded: list[dict[str, Any]] = []
        self._refused: list[dict[str, Any]] = []
        self.failures += self.missing

    def _check(self) -> None:
        for label, method in self.methods.items():
            if method.uses_references and not self.references.ids:
                message = f"{label} explains an image by others, and there are none"
                hint = "name a folder of them, or compare several images"
                raise InputError(message, argument="references", hint=hint)

    @property
    def errors(self) -> list[tuple[str, str]]:
        errors = [(entry["label"], error["error"]) for entry in self._costs.values() for error in entry["errors"]]
        refused = [(f"metric {one['metric']}", one["reason"]) for one in self._refused]
        return list(dict.fromkeys([*errors, *refused]))

    @property
    def any_map(self) -> bool:
        return any(entry["maps"] for entry in self._costs.values() if not entry["control"])

    def describe(self) -> Sequence[str | Table]:
        """Return a table of methods by metrics, for people; nothing if no image was compared."""
        return describe_comparison(self.document, self.metrics) if self.done else ()

    def results(self, progress: Progress | None = None) -> Generator[int]:
        """Compare batch by batch and write the scores so far; yield the number of images of each batch."""
        for batch in iter_batches(map(self.prepare, self.refs), BATCH_IMAGES, BATCH_NUMBERS):
            self.failures += [item for item in batch if isinstance(item, Failure)]
            for group in by_shape(batch):
                self._compare(group, progress)
            self._write_summary(complete=False)
            yield len(batch)
        if self._rows:
            from fringe.plots import captions, comparison_grid

            title = f"{self.loaded.label} · {self._count()} · {counted(len(self.methods), 'method')}"
            pool = None if self.spec.pool == "auto" else self.spec.pool
            rows = sorted(self._rows, key=lambda row: self._order[row.name])
            caption = captions(metric_labels(self.metrics))
            figure = comparison_grid(rows, list(self.methods), title=title, caption=caption, pool=pool)
            self.folder.attempt(FIGURE, lambda path: figure.savefig(path))
        if self.spec.validity and self.done:
            self._judge()
        self._write_summary(complete=True)

    def _judge(self) -> None:
        """Write what is known of the metrics, with a figure of how alike they are."""
        self.validity = judge_metrics(self._scores, self._degraded, self.metrics, self.spec.seed)
        document = {"model": self.loaded.label, "images": self.done, **plain(self.validity.record())}
        self.folder.attempt_text(VALIDITY, to_json(document))
        if self.validity.agreement is not None:
            figure = self.validity.agreement.plot(self.loaded.label)
            self.folder.attempt(AGREEMENT, lambda path: figure.savefig(path))

    def _count(self) -> str:
        if self.done > len(self._rows):
            return f"first {len(self._rows)} of {self.done} images"
        return counted(self.done, "image")

    def _compare(self, group: list[Prepared], progress: Progress | None) -> None:
        answer = self.logits(group)
        if isinstance(answer, str):
            self.failures += [Failure.of(group[0].ref, answer)] if len(group) == 1 else []
            for item in group if len(group) > 1 else ():
                self._compare([item], progress)
            return
        x, logits = answer
        finite = logits.isfinite().all(1).tolist()
        reason = "the model's logits for this image are NaN or infinite"
        self.failures += [Failure.of(item.ref, reason) for item, valid in zip(group, finite, strict=True) if not valid]
        rows = [i for i, valid in enumerate(finite) if valid]
        if not rows:
            return
        images = [group[i] for i in rows]
        shown = max(self.spec.rows - len(self._rows), 0)
        comparison = compare(
            self.classifier,
            x[rows],
            self.methods,
            self.metrics,
            target=self.target,
            controls=self.spec.controls,
            seed=self.spec.seed,
            space=self.references.space(x),
            ids=[item.ref.id for item in images],
            progress=None if progress is None else lambda what, done, total: progress(done, total, what),
            keep_maps=shown > 0 or self.spec.validity,
        )
        self._scores += tidy(comparison)
        if self.spec.validity:
            self._degraded += degraded_scores(comparison)
        entries = [
            {**self.image_entry(item.ref, logits[i], target), "sha256": item.sha256}
            for i, item, target in zip(rows, images, comparison.target, strict=True)
        ]
        self._images += entries
        self.done += len(entries)
        for result in comparison.rows:
            self._add_cost(result)
            for label, scores in result.scores.items():
                counts = Counter(filter(None, scores.refusals)).items()
                names = {"method": result.label, "metric": label}
                said = [(reason.removeprefix(f"metric {label}: "), images) for reason, images in counts]
                self._refused += [{**names, "reason": reason, "images": images} for reason, images in said]
        if shown:
            from fringe.explanations._pictures import image_context

            some = rows[:shown]
            context = image_context(self.loaded, [group[i].ref.id for i in some], x[some], logits[some])
            self._rows += [grid_row(comparison, context, k) for k in range(len(some))]

    def _add_cost(self, result: MethodResult) -> None:
        entry = self._costs.setdefault(
            result.label,
            {
                "label": result.label,
                "control": result.control,
                "settings": result.settings,
                **{"images": 0, "maps": 0, "passes": {"forward": 0, "jvp": 0, "vjp": 0}, "seconds": 0.0, "errors": []},
            },
        )
        entry["seconds"] = round(entry["seconds"] + result.seconds, 3)
        entry["passes"] = {kind: entry["passes"][kind] + count for kind, count in asdict(result.passes).items()}
        entry["images"] += len(result.faults)
        entry["maps"] += result.faults.count("")
        entry["errors"] += [{"error": text, "images": n} for text, n in Counter(filter(None, result.errors)).items()]

    def _write_summary(self, *, complete: bool) -> None:
        """Write the scores and the summary so far, in the order of methods, metrics and inputs."""
        methods, metrics, order = list(self._costs), list(self.metrics), self._order
        self._scores.sort(key=lambda s: (methods.index(s["method"]), metrics.index(s["metric"]), order[s["image"]]))
        self._images.sort(key=lambda entry: order[entry["id"]])
        self.folder.attempt_text(SCORES, scores_csv(self._scores))
        figure = complete and self._rows and FIGURE not in self.folder.unwritten
        self.write_document(
            {
                "target": self.target,
                "complete": complete,
                "counts": {
                    "inputs": self.done + len(self.failures),
                    "compared": self.done,
                    "failed": len(self.failures),
                },
                "figure": FIGURE if figure else None,
                "scores": SCORES,
                "methods": plain(list(self._costs.values())),
                "metrics": [_metric(label, metric) for label, metric in self.metrics.items()],
                "refused": plain(self._refused),
                "interval": {
                    "of": "what the entry's summary names",
                    "kind": "percentile bootstrap over images",
                    "level": LEVEL,
                    "resamples": RESAMPLES,
                },
                "table": plain(summarise(self._scores, self.metrics, self.spec.seed)),
                **({} if self.validity is None else {"validity": plain(self.validity.record())}),
                "images": [*self._images, *(failure.entry() for failure in self.failures)],
            }
        )


def scores_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line per method, metric and image; a missing score is empty, flags have semicolons between them."""
    lines = [{**row, "control": str(row["control"]).lower(), "flags": ";".join(row["flags"])} for row in rows]
    return to_csv(lines, COLUMNS)


def _metric(label: str, metric: Metric) -> dict[str, Any]:
    words = {"title": metric.title, "direction": metric.direction, "unit": metric.unit, "space": metric.space}
    return {"label": label, **words, "settings": plain(metric.record())}
