"""The picture of a comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fringe.cli.comparing import Compared
from fringe.cli.contest import Contest
from fringe.cli.pictures import displayed
from fringe.cli.record import Run, top_classes
from fringe.experiments import MethodResult
from fringe.metrics import Metric
from fringe.plots import Annotation, GridCell, GridRow, MetricLabel, captions, comparison_grid, labels


def strips(compared: Compared, run: Run) -> list[GridRow]:
    """A row of the grid for each image of a group whose maps were kept."""
    methods = [row for row in compared.found.rows if not row.control]
    gauges = _gauges(compared.found.metrics)
    words = [_words(methods, gauges, i) for i in range(len(compared.group))]
    return [
        GridRow(
            image=displayed(prepared.x, run),
            name=prepared.ref.id,
            prediction=_prediction(compared, i, run),
            cells=tuple(_tile(row, i, words[i][k]) for k, row in enumerate(methods)),
        )
        for i, prepared in enumerate(compared.group)
    ]


def draw_grid(drawn: Sequence[GridRow], run: Run, contest: Contest, images: int, pool: int | None, path: Path) -> None:
    """Write the grid of the first of ``images``."""
    count = f"first {len(drawn)} of {images} images" if images > len(drawn) else _count(images, "image")
    comparison_grid(
        drawn,
        list(contest.methods),
        title=f"{run.loaded.architecture} · {count} · {_count(len(contest.methods), 'method')}",
        caption=captions(_gauges(contest.metrics)),
        pool=pool,
    ).savefig(path)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _gauges(metrics: Mapping[str, Metric]) -> list[MetricLabel]:
    return labels([MetricLabel(label, m.name, m.title, m.direction) for label, m in metrics.items()])


def _prediction(compared: Compared, i: int, run: Run) -> str:
    best, target = top_classes(compared.logits[i], run, 1)[0], int(compared.found.target[i])
    said = f"{run.class_label(best['class'])} · {best['probability']:.1%}"
    return said if best["class"] == target else f"{run.class_label(target)}, not {said}"


def _words(methods: Sequence[MethodResult], gauges: Sequence[MetricLabel], i: int) -> list[tuple[Annotation, ...]]:
    """The words under each method's map of image ``i``."""
    columns = [gauge.annotations([float(row.scores[gauge.label].values[i]) for row in methods]) for gauge in gauges]
    return list(zip(*columns, strict=True))


def _tile(row: MethodResult, i: int, words: tuple[Annotation, ...]) -> GridCell:
    values = None if row.maps is None else row.maps[i].cpu().numpy().copy()
    return GridCell(values, words, row.faults[i].replace("_", " "))
