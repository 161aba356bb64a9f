"""Keeps the books of a comparison: every score, what it cost, and what became of every input."""

from collections.abc import Mapping, Sequence
from typing import Any

import typer

from fringe._text import to_csv
from fringe.cli.comparing import Compared
from fringe.cli.contest import Contest
from fringe.cli.costs import Costs
from fringe.cli.folder import SUMMARY, ResultFolder, described, to_json
from fringe.cli.problems import Exit, complain, say
from fringe.cli.record import Failed, Run, failed_entry, file_digest, plain, top_classes
from fringe.cli.standings import show_standings
from fringe.experiments import CONTROLS, LEVEL, RESAMPLES, summarise, tidy
from fringe.metrics import Metric

FIGURE, SCORES = "compare.png", "scores.csv"
COLUMNS = ("method", "control", "metric", "image", "score", "flags")


class Scorebook:
    """The results of one comparison in their folder: ``order`` are the ids of all inputs, ``rows`` of them drawn."""

    def __init__(
        self, folder: ResultFolder, run: Run, order: Sequence[str], contest: Contest, *, rows: int, pool: int | None
    ):
        self._folder, self._run, self._contest = folder, run, contest
        self._place = {identity: i for i, identity in enumerate(order)}
        self._limit, self._pool = rows, pool
        self._scores: list[dict[str, Any]] = []
        self._images: list[dict[str, Any]] = []
        self._failures: list[Failed] = []
        self._drawn: list[Any] = []
        self._costs = Costs()
        self._write(complete=False)
        for error in folder.unwritten.values():
            raise error  # before hours of work whose results cannot be written

    @property
    def compared(self) -> int:
        """Images that have scores."""
        return len(self._images)

    @property
    def wants_maps(self) -> bool:
        """Whether maps of further images will be drawn."""
        return len(self._drawn) < self._limit

    def fail(self, failures: Sequence[Failed]) -> None:
        """Note inputs that could not be compared."""
        self._failures += failures

    def add(self, groups: Sequence[Compared]) -> None:
        """Take in what was compared, and write the scores so far."""
        for group in groups:
            self._scores += tidy(group.found)
            self._images += [self._entry(group, i) for i in range(len(group.group))]
            self._costs.add(group.found.rows)
        self._draw(groups)
        self._write(complete=False)

    def close(self) -> Exit:
        """Write everything, report, and say how it went."""
        if self._drawn:
            from fringe.cli.grid import draw_grid

            drawn = list(self._drawn)
            self._folder.attempt(
                FIGURE, lambda path: draw_grid(drawn, self._run, self._contest, self.compared, self._pool, path)
            )
        document = self._write(complete=True)
        if self._run.options.json:
            typer.echo(to_json(document), nl=False)
        elif self.compared:
            show_standings(document, self._contest.metrics)
            written = [self._folder.root / n for n in (FIGURE, SCORES, SUMMARY) if n not in self._folder.unwritten]
            say(f"\nresults: {', '.join(map(str, written))}" if written else "")
        for failure in self._failures:
            complain(failure.reason if failure.source in failure.reason else f"{failure.source}: {failure.reason}")
        for error in self._costs.errors():
            complain(error)
        for error in self._folder.unwritten.values():
            complain(described(error))
        if not self._costs.any_made:
            return Exit.NOTHING_DONE
        return Exit.SOME_FAILED if self._failures or self._costs.errors() or self._folder.unwritten else Exit.DONE

    def _entry(self, group: Compared, i: int) -> dict[str, Any]:
        ref, target = group.group[i].ref, int(group.found.target[i])
        return {
            "id": ref.id,
            "source": ref.source,
            "label": ref.label,
            "sha256": file_digest(ref.origin),
            "prediction": top_classes(group.logits[i], self._run, 1)[0],
            "target": {"class": target, "name": self._run.class_name(target)},
        }

    def _draw(self, groups: Sequence[Compared]) -> None:
        if self.wants_maps:
            from fringe.cli.grid import strips

            found = [strip for group in groups for strip in strips(group, self._run)]
            found.sort(key=lambda strip: self._place[strip.name])
            self._drawn += found[: self._limit - len(self._drawn)]

    def _write(self, *, complete: bool) -> dict[str, Any]:
        """Scores and summary of what there is so far, in the order of methods, metrics and inputs."""
        methods, metrics = [*self._contest.methods, *CONTROLS], list(self._contest.metrics)
        self._scores.sort(
            key=lambda s: (methods.index(s["method"]), metrics.index(s["metric"]), self._place[s["image"]])
        )
        self._images.sort(key=lambda entry: self._place[entry["id"]])
        document = self._document(complete)
        self._folder.attempt_text(SCORES, scores_csv(self._scores))
        self._folder.attempt_text(SUMMARY, to_json(document))
        return document

    def _document(self, complete: bool) -> dict[str, Any]:
        inputs = self.compared + len(self._failures)
        return {
            **self._run.record(),
            "complete": complete,
            "counts": {"inputs": inputs, "compared": self.compared, "failed": len(self._failures)},
            "figure": FIGURE if complete and self._drawn and FIGURE not in self._folder.unwritten else None,
            "scores": SCORES,
            "methods": plain(self._costs.record()),
            "metrics": [_about(label, metric) for label, metric in self._contest.metrics.items()],
            "interval": {
                "of": "what the entry's summary names",
                "kind": "percentile bootstrap over images",
                "level": LEVEL,
                "resamples": RESAMPLES,
            },
            "table": plain(summarise(self._scores, self._contest.metrics, self._run.options.seed)),
            "images": [*self._images, *map(failed_entry, self._failures)],
        }


def scores_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """CSV with one line a method, metric and image; no score is an empty one, flags have semicolons between them."""
    found = [{**row, "control": str(row["control"]).lower(), "flags": ";".join(row["flags"])} for row in rows]
    return to_csv(found, COLUMNS)


def _about(label: str, metric: Metric) -> dict[str, Any]:
    described = {"title": metric.title, "direction": metric.direction, "unit": metric.unit, "space": metric.space}
    return {"label": label, **described, "settings": plain(metric.record())}
