"""``fringe explain``, ``compare`` and ``app``: maps of image files."""

import contextlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from fringe._files.process import Interrupted, check_interrupt
from fringe._strings.formats import to_json
from fringe.cli._console import Exit, Progress, error_text, exit_on_error, print_error, require_consent, say, show, warn
from fringe.cli._options import AsJson, Inputs, Out, Overwrite, Yes, with_file_methods, with_options
from fringe.errors import FringeError

Given = dict[str, Any]
if TYPE_CHECKING:
    from fringe.bench.comparison import ImageComparison
    from fringe.explanations import ExplanationRun

    Run = ExplanationRun | ImageComparison


@with_options("fringe.explanations:ExplainSpec")
def explain(
    given: Given, inputs: Inputs, out: Out, overwrite: Overwrite = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Explain images: pictures, tensors, and a verdict on each map.

    An interrupted run is resumed by the same command.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs failed, 75 no space left (run it again),
    130 interrupted.
    """
    with exit_on_error():
        from fringe.attribution import preset_names
        from fringe.evaluation import planned_work
        from fringe.explanations import ExplainSpec, ExplanationRun

        run = ExplanationRun(inputs, out, ExplainSpec(**given), overwrite=overwrite)
        _open(run, planned_work({run.method.name: run.method}, {}, len(run.refs)), yes=yes, quiet=as_json)
        architecture = run.loaded.architecture
        if run.spec.preset is None and run.method.name == "fringe" and architecture in preset_names():
            warn(f"hint: the paper tuned a setting for this network; use it with --method paper:{architecture}")
        with (
            _interruptible(run),
            Progress("images", len(run.refs), quiet=as_json) as bars,
            contextlib.closing(run.results(bars.step)) as results,
        ):
            for _ in results:
                bars.advance()
                check_interrupt()
        _finish(run, as_json=as_json)


@with_options("fringe.explanations:CompareSpec")
def compare(
    given: Given, inputs: Inputs, out: Out, overwrite: Overwrite = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Explain the same images with several methods, and score them.

    Writes a page with the picture and the table of means, and every score.

    An interrupted run is resumed by the same command.

    Exit codes: 0 all done, 1 nothing done, 2 wrong usage, 3 some inputs, methods or metrics failed,
    75 stopped early (run it again), 130 interrupted.
    """
    with exit_on_error():
        from fringe.bench.comparison import ImageComparison
        from fringe.bench.experiments import planned_work_of
        from fringe.explanations import CompareSpec

        run = ImageComparison(inputs, out, CompareSpec(**with_file_methods(given)), overwrite=overwrite)
        _open(run, planned_work_of([run.plan]), yes=yes, quiet=as_json)
        if not as_json:
            warn(f"hint: {run.expectation()}")
        with _interruptible(run), Progress("maps", None, quiet=as_json) as bars:
            run.compute(bars)
        _finish(run, as_json=as_json)


def _open(run: "Run", work: Sequence[tuple[str, float, float]], *, yes: bool, quiet: bool) -> None:
    """Open a run after consent to its work; exit where the inputs lead to no image."""
    if not run.refs:
        for failure in run.missing:
            print_error(f"INPUT: {failure.reason}")
        raise typer.Exit(Exit.NOTHING_DONE)
    from fringe.models import EFFICIENTNET

    require_consent(work, yes=yes, quiet=quiet)
    run.open()
    if run.spec.model is None and run.loaded.architecture == EFFICIENTNET:
        warn(f"hint: the network is {EFFICIENTNET}, as no --model is given")


@contextlib.contextmanager
def _interruptible(run: "Run") -> Generator[None]:
    """Say how far a run is that a signal ends."""
    try:
        yield
    except (KeyboardInterrupt, Interrupted):
        done = f"{run.done} of {len(run.refs)} inputs are complete, in {run.folder.root}"
        warn(f"interrupted: {done}; run the same command again to go on: what is computed is kept")
        raise typer.Exit(Exit.INTERRUPTED) from None


def _finish(run: "Run", *, as_json: bool) -> None:
    """Show the results of a run, print what failed, and exit."""
    if as_json:
        typer.echo(to_json(run.document), nl=False)
    elif run.done or run.command == "explain":
        show(run.describe())
        say(f"\nresults: {', '.join(map(str, run.files))}" if run.files else "")
    for failure in run.failures:
        print_error(failure.reason if failure.source in failure.reason else f"{failure.source}: {failure.reason}")
    for label, text in run.errors:
        print_error(f"{label}: {error_text(FringeError(text))}")
    for error in run.unwritten:
        print_error(f"cannot write {error.filename!r} ({error.strerror})")
    if run.left:
        raise typer.Exit(Exit.RESUMABLE)
    if not run.any_map:
        raise typer.Exit(Exit.NOTHING_DONE)
    raise typer.Exit(Exit.SOME_FAILED if run.failures or run.errors or run.unwritten else Exit.DONE)


@with_options("fringe.app:AppSpec")
def app(given: Given) -> None:
    """Serve a web app that explains the images dropped into it.

    Choose a model and a method, see the explanation, and download it.

    People may choose among the models that you name here, and nothing else. Ctrl+C ends it.
    """
    with exit_on_error("app"):
        from fringe.app import LOOPBACK, AppSpec, launch

        spec = AppSpec(**given)
        if spec.host not in LOOPBACK and spec.allow_remote:
            warn(
                f"warning: everyone who reaches port {spec.port} of this machine can use the models and processors, "
                "without a password"
            )
        launch(spec)
