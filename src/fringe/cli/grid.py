"""The picture of a comparison."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fringe.benchmark import Row
from fringe.cli.comparing import Compared
from fringe.cli.contest import Contest
from fringe.cli.pictures import displayed
from fringe.cli.record import Run, top_classes
from fringe.cli.standings import ARROW, best_of
from fringe.metrics import Metric
from fringe.plots import Strip, Tile, Word, comparison_grid


def strips(compared: Compared, run: Run) -> list[Strip]:
    """A row of the grid for each image of a group whose maps were kept."""
    methods = [row for row in compared.found.rows if not row.control]
    words = [_words(methods, telemetry(compared.found.metrics), i) for i in range(len(compared.group))]
    return [
        Strip(
            image=displayed(prepared.x, run),
            name=prepared.ref.id,
            prediction=_prediction(compared, i, run),
            tiles=tuple(_tile(row, i, words[i][k]) for k, row in enumerate(methods)),
        )
        for i, prepared in enumerate(compared.group)
    ]


def draw_grid(drawn: Sequence[Strip], run: Run, contest: Contest, images: int, pool: int | None, path: Path) -> None:
    """Write the grid of the first of ``images``."""
    shown = telemetry(contest.metrics)
    legend = [f"{short_name(m.name)} {m.title} {ARROW[m.direction]}".strip() for m in shown.values()]
    count = f"first {len(drawn)} of {images} images" if images > len(drawn) else _count(images, "image")
    comparison_grid(
        drawn,
        list(contest.methods),
        title=f"{run.loaded.architecture} · {count} · {_count(len(contest.methods), 'method')}",
        caption=f"{' · '.join(legend)}; the best of an image is bold",
        pool=pool,
    ).savefig(path)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def telemetry(metrics: Mapping[str, Metric]) -> dict[str, Metric]:
    """The two metrics under each map: MAS insertion and deletion where both are there, else the first two."""
    aligned = {label: m for label, m in metrics.items() if m.name in ("mas_insertion", "mas_deletion")}
    return dict(list((aligned if len(aligned) == 2 else metrics).items())[:2])


def short_name(name: str) -> str:
    """``MI`` for mas_insertion, ``Spa`` for sparseness."""
    words = name.split("_")
    return "".join(word[0] for word in words).upper() if len(words) > 1 else name[:3].capitalize()


def short_number(value: float) -> str:
    """Two significant decimals without a leading zero: ``.43``, ``-.07``, ``12``."""
    if not math.isfinite(value):
        return "–"
    text = f"{value:.2f}" if abs(value) < 10 else f"{value:.0f}" if abs(value) < 1e4 else f"{value:.0e}"
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _prediction(compared: Compared, i: int, run: Run) -> str:
    best, target = top_classes(compared.logits[i], run, 1)[0], int(compared.found.target[i])
    said = f"{run.class_label(best['class'])} · {best['probability']:.1%}"
    return said if best["class"] == target else f"{run.class_label(target)}, not {said}"


def _words(methods: Sequence[Row], shown: Mapping[str, Metric], i: int) -> list[tuple[Word, ...]]:
    """The words under each method's map of image ``i``."""
    columns: list[list[Word]] = []
    for label, metric in shown.items():
        values = [float(row.scores[label].values[i]) for row in methods]
        best = best_of(values, metric.direction)
        short = short_name(metric.name)
        columns.append([Word(f"{short} {short_number(v)}", v == best) for v in values])
    return list(zip(*columns, strict=True))


def _tile(row: Row, i: int, words: tuple[Word, ...]) -> Tile:
    values = None if row.maps is None else row.maps[i].cpu().numpy().copy()
    return Tile(values, words, row.faults[i].replace("_", " "))
