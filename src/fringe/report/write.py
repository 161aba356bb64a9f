"""A report of a run, from its folder to files."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from fringe._checks import require_local
from fringe._files import require_inside
from fringe.errors import InputError
from fringe.experiments import ModelSource, Resolved, Results, Store, read_results
from fringe.report.compose import Scene, compose
from fringe.report.csvs import scores_csv, summary_csv
from fringe.report.grid import Bench
from fringe.report.latex import latex_document
from fringe.report.markdown import markdown_report
from fringe.report.page import html_page
from fringe.report.replan import reopen
from fringe.report.tables import build_table

SHOWN = 5
"""Holes that a refusal lists."""


@dataclass(frozen=True)
class Written:
    """The files of a report, its ``page`` first."""

    paths: tuple[Path, ...]

    @property
    def page(self) -> Path:
        return self.paths[0]


def write_report(
    store: Store,
    out: Path | None = None,
    *,
    plan: str | None = None,
    reference: str | None = None,
    allow_partial: bool = False,
    grid: bool = True,
    batch_size: int | Literal["auto"] = "auto",
    device: str = "cpu",
    resolve: Callable[[], Resolved] | None = None,
    models: Mapping[str, ModelSource] | None = None,
    commands: Sequence[str] = (),
) -> Written:
    """Write ``report.html``, ``report.md``, ``tables.tex``, ``scores.csv``, ``summary.csv`` and ``figures/*.png`` of a
    plan of a run into ``out`` (default: ``report`` in the run's folder). Each file is there whole or not at all.

    ``plan`` may be left out where there is only one. ``reference`` is the method that the others are compared with.
    With ``grid``, the maps that the run kept are drawn. Those that it did not are made again on ``device`` for a model
    that is at hand: from the plan that ``resolve`` gives, or by its label in ``models``. What the run's folder says of
    a model is shown and never loaded: the folder may be a stranger's. ``commands`` tell how the run was made.

    Raises InputError for a plan, a model or a reference that is not there, for a folder that cannot be written or in
    which a link leads out, and, unless ``allow_partial``, where images are not computed; those that failed are stated
    and do not count as such.
    """
    require_local("out", out or "")
    results = read_results(store, plan)
    _refuse_holes(results, allow_partial=allow_partial)
    tables = tuple(build_table(results, model, reference) for model in results.models)
    bench = Bench(store, _opener(results, resolve, models or {}), device, batch_size) if grid else None
    place = out or store.root / "report"
    within = Path(os.path.abspath(place)).is_relative_to(os.path.abspath(store.root))
    require_inside(place, store.root if within else place)
    content = compose(Scene(store, results, tables, bench), commands)
    return _place(
        place,
        {
            "report.html": html_page(content).encode(),
            "report.md": markdown_report(content).encode(),
            "tables.tex": latex_document(tables).encode(),
            "scores.csv": scores_csv(results).encode(),
            "summary.csv": summary_csv(tables).encode(),
            **{f"figures/{picture.name}.png": picture.png for picture in content.pictures},
        },
    )


def _refuse_holes(results: Results, *, allow_partial: bool) -> None:
    holes = results.missing()
    if not any(cell.scored or cell.failed for cell in results.coverage()):
        raise InputError(f"run: nothing of the plan {results.manifest.name} is computed yet; run it first")
    if holes and not allow_partial:
        more = f"; and {len(holes) - SHOWN} cells more" if len(holes) > SHOWN else ""
        raise InputError(
            f"run: the plan {results.manifest.name} is incomplete ({'; '.join(holes[:SHOWN])}{more}); run the same "
            "command again to compute the rest, or pass --allow-partial for a report that states what is missing"
        )


def _opener(
    results: Results, resolve: Callable[[], Resolved] | None, models: Mapping[str, ModelSource]
) -> Callable[[str], Resolved | None]:
    """From a model to a plan that can make its maps; None where the caller gave neither a plan nor the model."""
    for label in models:
        if label not in results.models:
            raise InputError(f"model: got {label!r}; the models of the run: {', '.join(results.models)}")
    if resolve is None:  # opened now: whoever named a model wants to hear what is wrong with it
        return {label: reopen(results.manifest, label, source) for label, source in models.items()}.get
    once = cache(resolve)
    return lambda model: once()


def _place(out: Path, files: Mapping[str, bytes]) -> Written:
    """Write each file under a temporary name and rename it."""
    paths = tuple(out / name for name in files)
    try:
        for path, content in zip(paths, files.values(), strict=True):
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_file = path.with_name(f".{path.name}.{os.getpid()}.partial")
            try:
                partial_file.write_bytes(content)
                partial_file.replace(path)
            finally:
                partial_file.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"out: cannot write in {str(out)!r} ({error.strerror})") from error
    return Written(paths)
