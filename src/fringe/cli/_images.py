"""``fringe explain`` and ``fringe compare``: runs on image files."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fringe._text import to_json
from fringe.cli._console import Exit, Progress, error_text, exit_on_error, print_error, require_consent, say, warn
from fringe.cli._options import AsJson, Inputs, Out, Overwrite, Yes, with_options
from fringe.errors import FringeError

if TYPE_CHECKING:
    from fringe.explanations import ComparisonRun, ExplanationRun

    Run = ExplanationRun | ComparisonRun


@with_options("fringe.explanations:ExplainSpec")
def explain(
    given: dict[str, Any],
    inputs: Inputs,
    out: Out,
    overwrite: Overwrite = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Explain images: pictures, tensors and a record of how reliable each map is. An interrupted run is resumed.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs failed, 130 interrupted.
    """
    with exit_on_error():
        from fringe.attribution import preset_names
        from fringe.experiments import planned_work
        from fringe.explanations import ExplainSpec, ExplanationRun

        run = ExplanationRun(inputs, out, ExplainSpec(**given), overwrite=overwrite)
        _open(run, planned_work({run.method.name: run.method}, {}, len(run.refs)), yes=yes, quiet=as_json)
        architecture = run.loaded.architecture
        if run.spec.preset is None and run.method.name == "fringe" and architecture in preset_names():
            warn(f"hint: the paper tuned a setting for this network; use it with --preset {architecture}")
        code = _compute(run, lambda: _show_explanations(run, out), as_json=as_json)
        if code == Exit.INTERRUPTED:
            warn(f"interrupted: {run.done} finished inputs are in {out}; run the same command again to go on")
    raise typer.Exit(code)


def _show_explanations(run: "ExplanationRun", out: Path) -> None:
    from fringe.cli._tables import show_explanations

    show_explanations(run.document["inputs"])
    if run.document["counts"]["reused"]:
        say(f"{run.document['counts']['reused']} results of an earlier run were reused")
    sheet, index = run.document["contact_sheet"], run.document["index"]
    say(f"\npictures: {out / sheet}" if sheet else "")
    if index:
        say(f"pages:    {out / index}")
    if str(out / "summary.json") not in [str(error.filename) for error in run.unwritten]:
        say(f"results:  {out / 'summary.json'} and one folder per input")


@with_options("fringe.explanations:CompareSpec")
def compare(
    given: dict[str, Any],
    inputs: Inputs,
    out: Out,
    overwrite: Overwrite = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Explain the same images with several methods and score them: a picture, a table of means, and every score.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs or methods failed, 130 interrupted.
    """
    with exit_on_error():
        from fringe.experiments import planned_work
        from fringe.explanations import CompareSpec, ComparisonRun

        run = ComparisonRun(inputs, out, CompareSpec(**given), overwrite=overwrite)
        _open(run, planned_work(run.methods, run.metrics, len(run.refs)), yes=yes, quiet=as_json)
        code = _compute(run, lambda: _show_comparison(run, out), as_json=as_json)
        if code == Exit.INTERRUPTED:
            warn(f"interrupted: {run.done} compared inputs are in {out}")
    raise typer.Exit(code)


def _show_comparison(run: "ComparisonRun", out: Path) -> None:
    from fringe.cli._tables import show_comparison, show_validity

    if not run.done:
        return
    show_comparison(run.document, run.metrics)
    if "validity" in run.document:
        say("")
        show_validity(run.document["validity"]["metrics"])
    lost = {str(error.filename) for error in run.unwritten}
    judged = ("validity.json", "agreement.png") if "validity" in run.document else ()
    files = [str(out / name) for name in ("compare.png", "scores.csv", "summary.json", *judged)]
    files = [path for path in files if Path(path).is_file()]
    written = [path for path in files if path not in lost]
    say(f"\nresults: {', '.join(written)}" if written else "")


def _open(run: "Run", work: Sequence[tuple[str, float, float]], *, yes: bool, quiet: bool) -> None:
    """Open a run after consent to its work; exit where the inputs lead to no image."""
    if not run.refs:
        for failure in run.missing:
            print_error(failure.reason)
        raise typer.Exit(Exit.NOTHING_DONE)
    require_consent(work, yes=yes, quiet=quiet)
    run.open()


def _compute(run: "Run", show: Callable[[], None], *, as_json: bool) -> Exit:
    """Compute a run, show its results, and print what failed."""
    try:
        with (
            Progress("images", len(run.refs), quiet=as_json, steps=True) as bars,
            contextlib.closing(run.results(bars.step)) as results,
        ):
            for result in results:
                bars.advance(result if isinstance(result, int) else 1)
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    if as_json:
        typer.echo(to_json(run.document), nl=False)
    else:
        show()
    for failure in run.failures:
        print_error(failure.reason if failure.source in failure.reason else f"{failure.source}: {failure.reason}")
    for label, text in run.errors:
        print_error(f"{label}: {error_text(FringeError(text))}")
    for error in run.unwritten:
        print_error(f"cannot write {error.filename!r} ({error.strerror})")
    if not run.any_map:
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if run.failures or run.errors or run.unwritten else Exit.DONE
