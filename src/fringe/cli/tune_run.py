"""One run of ``fringe tune``, from what was typed to a preset file."""

from collections.abc import Sequence

import typer

from fringe.cli.consent import require_consent, work_of_plans
from fringe.cli.folder import to_json
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_options import PlanOptions
from fringe.cli.plan_run import read_how
from fringe.cli.planning import Defaults
from fringe.cli.problems import Exit, complain, say
from fringe.cli.progress import Units
from fringe.cli.studies_run import FRINGE, first_only, read_study
from fringe.errors import InputError
from fringe.experiments import Interrupted, interruptible
from fringe.paper import OBJECTIVE, Search, first, search, tuning_plan
from fringe.tuning import SearchSpace, Trial, paper_space, space_of


def run_tune(options: PlanOptions, how: HowOptions, *, trials: int, ranges: Sequence[str], smoothing: bool) -> Exit:
    """Search, and write the best setting. Raises FringeError on options that cannot be meant."""
    plan = first_only(read_study(options, Defaults("tune", methods=FRINGE, metrics=OBJECTIVE, limits=(), n=256)))
    tuning_plan(plan)
    asked = read_how(how)
    work = [(name, passes, count * trials) for name, passes, count in work_of_plans([tuning_plan(plan)])]
    require_consent(work, yes=how.yes, quiet=how.json)
    method = first(plan.arms[0])
    wanted = Search(_space(method.name, type(method), ranges, smoothing=smoothing), trials)
    with Units("trials", quiet=how.json) as bar, interruptible():
        bar.begin(trials)

        def watch(trial: Trial, done: int, planned: int) -> None:
            bar.advance(1, f"trial {trial.number}")
            if not how.json:
                settings = ", ".join(
                    f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in trial.settings.items()
                )
                say(f"trial {trial.number}: {trial.problem or f'{trial.value:.4f}'} ({settings})")

        try:
            found = search(plan, how.out, asked, wanted, watch)
        except Interrupted as error:
            complain(f"{error}; the trials so far are in {how.out}: run the same command again to go on")
            if how.json:
                typer.echo(to_json({"preset": None, "stopped": str(error)}), nl=False)
            return Exit.RESUMABLE
    tuned = found.tuned
    start = next((trial.value for trial in tuned.trials if trial.number == 0 and not trial.problem), None)
    if how.json:
        known = {
            "preset": str(found.path),
            "stopped": None,
            "objective": tuned.value,
            "start": start,
            "trials": len(tuned.trials),
        }
        typer.echo(to_json({**known, "settings": tuned.best.record()}), nl=False)
    else:
        began = "no score" if start is None else f"{start:.4f}"
        say(f"best of {len(tuned.trials)} trials: {tuned.value:.4f} (the setting it began with: {began})")
        say(f"preset: {found.path}; use it with --preset {found.path}")
    return Exit.DONE


def _space(name: str, kind: type, texts: Sequence[str], *, smoothing: bool) -> SearchSpace:
    """The settings named by ``KEY`` or ``KEY=LOW,HIGH`` texts; else the paper's for fringe, all others' whole."""
    if not texts:
        return paper_space(smoothing=smoothing) if name == "fringe" else space_of(kind)
    names: list[str] = []
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        key, equals, bounds = (part.strip() for part in text.partition("="))
        names.append(key)
        if equals:
            try:
                low, high = (float(bound) for bound in bounds.split(","))
            except ValueError:
                raise InputError(f"--search: got {text!r}, expected KEY or KEY=LOW,HIGH") from None
            ranges[key] = (low, high)
    return space_of(kind, names, ranges)
