"""Reports of runs, from what was typed to files."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fringe._files import require_inside
from fringe.cli.consent import require_consent, work_of
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_models import read_specs
from fringe.cli.plan_run import device_of
from fringe.cli.problems import Exit, say
from fringe.errors import InputError
from fringe.experiments import Manifest, ModelSource, Resolved, Store, manifests
from fringe.report import EXAMPLES, recorded_methods, write_report


def run_report(
    run: Path,
    out: Path | None,
    *,
    plan: str | None,
    reference: str | None,
    allow_partial: bool,
    grid: bool,
    models: Sequence[str],
    preprocessing: str | None,
    trust_code: bool,
    yes: bool,
    device: str,
    batch_size: str,
) -> Exit:
    """Report one plan of a folder, or every one in a folder of its own."""
    store = Store(run, create=False)
    plans = manifests(store)
    if plan is not None and plan not in plans:
        raise InputError(f"plan: got {plan!r}; the plans in {str(run)!r}: {', '.join(plans) or 'none'}")
    names = [plan] if plan is not None else list(plans)
    if not names:
        raise InputError(f"run: {str(run)!r} holds no plan yet")
    labels = list(dict.fromkeys(label for name in names for label in plans[name].settings))
    sources = {
        label: ModelSource(spec, preprocessing, trust_code) for label, spec in _labelled(read_specs(models), labels)
    }
    if grid:
        _require_consent([plans[name] for name in names], sources, yes=yes)
    for name in names:
        place = report_folder(run, name) if out is None else out / (name if len(names) > 1 else "")
        written = write_report(
            store,
            place,
            plan=name,
            reference=reference,
            allow_partial=allow_partial,
            grid=grid,
            device=device_of(device),
            batch_size=read_batch_size(batch_size),
            models={label: source for label, source in sources.items() if label in plans[name].settings},
        )
        say(f"report: {written.page}")
    return Exit.DONE


def _require_consent(plans: Sequence[Manifest], models: Iterable[str], *, yes: bool) -> None:
    """The methods' settings are those of the folder: what a few maps take is asked for as in any other run."""
    few = 3 * EXAMPLES
    work = [
        one
        for manifest in plans
        for model in models
        if model in manifest.settings
        for one in work_of(recorded_methods(manifest, model), {}, few)
    ]
    require_consent(work, yes=yes, quiet=False)


def _labelled(specs: Sequence[tuple[str | None, str]], labels: Sequence[str]) -> list[tuple[str, str]]:
    """The models that were named, by their labels in the run. Raises InputError for one that the run does not have."""
    known = ", ".join(labels)
    if specs and len(labels) != 1 and any(label is None for label, _ in specs):
        raise InputError(f"--model: the run has several models; say which is meant by LABEL=SPEC. Its models: {known}")
    named = [(labels[0] if label is None else label, spec) for label, spec in specs]
    for label, _ in named:
        if label not in labels:
            raise InputError(f"--model: {label!r} is no model of the run; its models: {known}")
    return named


def report_folder(run: Path, plan: str) -> Path:
    """Where the report of a plan belongs: that of a benchmark is the folder's own. Raises InputError where a link, or
    the name of a plan that somebody put there, leads out of the run."""
    folder = run / "report" / ("" if plan == "benchmark" else plan)
    require_inside(folder, run)
    return folder


def report_plan(how: HowOptions, resolved: Resolved, *, reference: str | None = None) -> list[str]:
    """The report of a plan that was just run: what failed is stated in it, and nothing else is missing."""
    plan = resolved.plan.name
    written = write_report(
        Store(how.out, create=False),
        report_folder(how.out, plan),
        plan=plan,
        reference=reference,
        allow_partial=True,
        device=device_of(how.device),
        batch_size=read_batch_size(how.batch_size),
        resolve=lambda: resolved,
    )
    if not how.json:
        say(f"report: {written.page}")
    return [str(path) for path in written.paths]
