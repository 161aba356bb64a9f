"""One run of ``fringe benchmark``, from what was typed to an exit code."""

import typer

from fringe.cli.folder import to_json
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_options import PlanOptions
from fringe.cli.plan_run import account_of, run_plans
from fringe.cli.planning import Defaults, read_plan
from fringe.cli.problems import Exit
from fringe.errors import InputError
from fringe.experiments import Plan


def run_benchmark(options: PlanOptions, how: HowOptions, *, report: bool, reference: str | None) -> Exit:
    """Compute what is missing, then report. Raises FringeError on options that cannot be meant."""
    plan = read_plan(options, Defaults("benchmark"))
    _require_reference(plan, reference)
    went = run_plans([plan], how)
    written: list[str] = []
    if report and went.code in (Exit.DONE, Exit.SOME_FAILED):
        from fringe.cli.report_run import report_plan  # draws, which takes a second to load

        written = report_plan(how, went.finished[0].resolved, reference=reference)
    if how.json:
        typer.echo(to_json({**account_of(went.finished[0]), "report": written}), nl=False)
    return went.code


def _require_reference(plan: Plan, reference: str | None) -> None:
    """Refuse a name that the report would refuse: before hours of work, not after them."""
    for arm in plan.arms:
        if reference is not None and reference not in arm.methods:
            raise InputError(f"--reference: got {reference!r}; the methods: {', '.join(arm.methods)}")
