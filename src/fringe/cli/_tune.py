"""``fringe tune``: a search for a network's setting."""

from typing import TYPE_CHECKING, Any

import typer

from fringe._files.disk import require_local
from fringe._files.process import Interrupted, interruptible
from fringe.cli._benchmark import FLAGS
from fringe.cli._console import Exit, Progress, print_error, require_consent, resumable, typed
from fringe.cli._options import with_options

if TYPE_CHECKING:
    from fringe.bench.experiments import Plan
    from fringe.bench.tune import TuneSpec
    from fringe.cli._runs import RunFlags

TUNE_SPEC = "fringe.bench.tune:TuneSpec"
#: The keys of a search that have a flag of their own; the others are given by ``--set`` or in a file.
TYPED = ("model", "data", "methods", "n", "set", "preprocessing", "trust_code", "model_output")
TUNING = ("trials", "search", "smoothing")
NOTES = {"set": "a text without a dot is a key of the search, as in --set seed=3", "n": "default: 256"}


@with_options(TUNE_SPEC, FLAGS, only={TUNE_SPEC: (*TYPED, *TUNING)}, notes=NOTES)
def tune(given: dict[str, Any], how: dict[str, Any]) -> None:
    """Search the best setting, and write it as a preset file.

    The best setting has the largest objective of the paper, on images that no benchmark of this seed uses. Only the
    first method is tuned; by default fringe, on 256 images. Several processes may work in one folder. An interrupted
    search is resumed by the same command.
    """
    with resumable("bench", "tune"):
        from fringe.bench.tune import TuneSpec, search_plan
        from fringe.cli._runs import RunFlags

        flags = RunFlags(**how).resolve()
        require_local("out", flags.out)
        spec = flags.spec(given, TuneSpec)
        raise typer.Exit(_tune(search_plan(spec), spec, flags))


def _tune(plan: "Plan", spec: "TuneSpec", flags: "RunFlags") -> Exit:
    from fringe.bench.experiments import planned_work_of
    from fringe.bench.tune import read_search_space, tune_preset
    from fringe.bench.tuning import Trial

    work = [(name, passes, count * spec.trials) for name, passes, count in planned_work_of([plan])]
    require_consent(work, yes=flags.yes, quiet=flags.as_json)
    space = read_search_space(plan, spec.search, smoothing=spec.smoothing)
    with Progress("trials", spec.trials, quiet=flags.as_json) as bar, interruptible():

        def watch(trial: Trial, done: int, planned: int) -> None:
            bar.advance(1, f"trial {trial.number}")
            flags.print_text(trial.describe())

        try:
            result = tune_preset(plan, flags.out, flags, space, spec.trials, progress=watch)
        except Interrupted as error:
            print_error(f"{error}; the trials so far are in {flags.out}: run the same command again to go on")
            flags.print_json({"preset": None, "stopped": str(error)})
            return Exit.RESUMABLE
    flags.print_json({**result.record(), "stopped": None})
    flags.print_text(typed(result.describe()))
    return Exit.DONE
