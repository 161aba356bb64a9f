"""Runs of plans: their options, their progress, and how they ended."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from fringe._files import require_inside, require_local
from fringe._options import Options
from fringe._outputs import OutputKind
from fringe.cli._console import Exit, Progress, print_error, require_consent, say, warn
from fringe.errors import InputError
from fringe.experiments import (
    CRASHES,
    ExperimentSpec,
    Plan,
    Resolved,
    RunOptions,
    RunResult,
    Store,
    Task,
    TaskReport,
    describe_failures,
    has_scores,
    make_executor,
    mixed,
    planned_work_of,
    results_of,
    run_plan,
    versions_of,
)
from fringe.experiments import Progress as Callbacks
from fringe.models import resolve_device

#: Failures that are printed one by one.
SHOWN = 5


class ComputeOptions(Options):
    """Where maps are computed."""

    expected: ClassVar[Mapping[str, str]] = {
        "batch_size": "'auto' or a positive whole number",
        "timeout": "a number of seconds of at least 1",
        "workers": "a whole number of at least 0",
    }

    device: str = Field("auto", description="auto, cpu, cuda, cuda:1, mps, ...")
    batch_size: Literal["auto"] | PositiveInt = Field("auto", description="Images per pass: 'auto' or a number.")
    yes: bool = Field(False, description="Start without asking, however many passes the settings mean.")


class ReportOptions(ComputeOptions):
    """What a report of a stored run says, and with which models it makes maps."""

    out: Path | None = Field(None, description="Folder of the report (default: RUN/report, or a folder in it).")
    plan: str | None = Field(None, description="Plan of the folder (default: all).")
    allow_partial: bool = Field(False, description="Report although some images are not computed.")
    grid: bool = Field(True, description="Draw maps of selected images.  [default: grid]")
    model: tuple[str, ...] = Field((), description="SPEC or LABEL=SPEC: model to make maps with that were not stored.")
    preprocessing: str | None = Field(None, description="Preprocessing of that model.")
    model_output: OutputKind = Field("auto", description="What that model returns.")
    trust_code: bool = Field(False, description="Allow the model's author to run code.")
    validity: tuple[Path, ...] = Field((), description="validity.json of compare --validity: failing metrics go last.")


class ReproduceOptions(Options):
    """What of the paper is reproduced."""

    imagenet: Path | None = Field(None, description="ImageNet's validation images; the same as --data.")
    models: str | None = Field(None, description="Some of the paper's six networks.")
    studies: str | None = Field(None, description="Some of comparison, ablation, cap, max_sensitivity, sweep, runtime.")
    figures: NonNegativeInt = Field(2, description="Images whose paths are drawn.")
    dry_run: bool = Field(False, description="Show what is missing, its passes and its time, from a probe.")
    probe: float = Field(2.0, ge=0.1, description="Longest map of the probe.")


class CardOptions(Options):
    """What a card is measured on."""

    n: PositiveInt = Field(24, description="Examples of each scene, and digits.")
    seed: NonNegativeInt = Field(0, description="Draws the examples, and keys all randomness.")
    scenes: str | None = Field(None, description="Scenes, with commas (default: six that need only the digits).")
    trust_code: bool = Field(False, description="Run the module or file that TARGET names, if you trust its author.")


class TimingOptions(ComputeOptions):
    """How run times are measured: in this process, and anew."""

    out: Path = Field(description="Run folder; an existing one is resumed.")
    as_json: bool = Field(False, description="Print one JSON document, and no progress bars.")

    def __init__(self, **values: Any):
        super().__init__(**values)
        require_local("out", self.out)


class RunFlags(TimingOptions):
    """How plans are run; nothing here changes a number."""

    executor: str | None = Field(
        None, description="serial, processes, or ray[:ADDRESS]; processes if --workers is given, else serial."
    )
    workers: NonNegativeInt = Field(0, description="Worker processes (default: one for each core or free GPU).")
    timeout: float | None = Field(None, ge=1, description="Longest time of a task; needs worker processes.")
    save_maps: bool = Field(False, description="Store every map: a metric added later needs no new ones.")
    amend: bool = Field(False, description="Let other settings replace those of the folder.")
    retry_failed: bool = Field(False, description="Compute failed scores again.")
    renew: bool = Field(False, description="Set aside the results of a model whose logits changed.")

    def run_options(self) -> RunOptions:
        """The options of the library. Raises InputError for a device that does not exist."""
        name = self.executor or ("processes" if self.workers else "serial")
        if name == "serial" and self.workers:
            raise InputError("a serial run has no workers", argument="workers", hint="leave out one of the two")
        if self.timeout is not None and name == "serial":
            message = "a task that takes too long is ended with its process"
            raise InputError(message, argument="timeout", hint="add --workers 1, or more")
        executor = make_executor(name, self.workers or None, self.timeout)
        # the machines of a cluster have their own devices
        device = self.device if name.startswith("ray") and self.device != "auto" else resolve_device(self.device)
        same = self.model_dump(include={"batch_size", "save_maps", "amend", "renew"})
        return RunOptions(device=device, retry=self.retry_failed, executor=executor, **same)


def read_spec(given: dict[str, Any], config: Path | None) -> ExperimentSpec:
    """The given options over those of a file."""
    spec = ExperimentSpec(**given)
    return spec if config is None else spec.over(ExperimentSpec.from_file(config))


@dataclass(frozen=True)
class RunSummary:
    """How plans ended: the exit code, and the result of each plan that was begun."""

    code: Exit
    results: tuple[RunResult, ...]

    @property
    def finished(self) -> bool:
        """Whether the run was not stopped, and any score was computed."""
        return self.code in (Exit.DONE, Exit.SOME_FAILED)


def run_plans(plans: Sequence[Plan], flags: RunFlags) -> RunSummary:
    """Run plans in their order; one that is stopped stops those after it."""
    options, results = flags.run_options(), list[RunResult]()
    require_consent(planned_work_of(plans), yes=flags.yes, quiet=flags.as_json)
    require_inside(flags.out / "report", flags.out)  # now, and not after hours of work
    for plan in plans:
        with Progress(plan.name, None, quiet=flags.as_json) as bar:

            def began(resolved: Resolved, tasks: Sequence[Task], bar: Progress = bar) -> None:
                bar.begin(sum(len(task.images) for task in tasks))

            def ended(report: TaskReport, bar: Progress = bar) -> None:
                bar.advance(len(report.task.images), f"{report.task.model}: {report.task.method}")

            results.append(run_plan(plan, flags.out, options, Callbacks(began, ended)))
        _print_result(results[-1], flags)
        if results[-1].stopped:
            break
    return RunSummary(_exit_code(results, flags.out), tuple(results))


def _print_result(result: RunResult, flags: RunFlags) -> None:
    manifest, reports = result.resolved.manifest, result.log.reports
    store = Store(flags.out, create=False)
    for reason in manifest.missing[:SHOWN]:
        print_error(f"not read: {reason}")
    for model, gate in [(label, gate) for label in manifest.settings for gate in manifest.gates(label)]:
        if not gate["holds"]:
            warn(f"{model}: gate failed, its scores are not to be read ({gate['text']})")
        elif not flags.as_json:
            say(f"{model}: {gate['text']}")
    if not flags.as_json:
        done = [report for report in reports if report.state == "done"]
        reused = sum(report.reused for report in done)
        computed = sum(len(report.task.images) - len(report.left) - report.failed for report in done) - reused
        stored = f", {reused} kept ones scored" if reused else ""
        say(f"{manifest.name}: {len(manifest.images)} images; {computed} maps made now{stored}")
    if result.log.failed or result.failed_before or result.set_aside:
        crashed = {report.task.key for report in reports if report.state == "crashed"}
        crashes = [record for key, record in store.records(CRASHES).items() if key in crashed]
        failures = results_of(store, manifest).failures().to_dicts()
        for line in describe_failures(failures, [*result.set_aside, *crashes], SHOWN):
            print_error(line)
        warn(f"'fringe status {flags.out}' lists what has no score; --retry-failed computes it again")
    for line in mixed(versions_of(store.metadata().values(), manifest)):
        warn(f"results of several versions are mixed: {line}")
    if result.left:
        for task in result.left[:SHOWN]:
            print_error(f"left: {task['method']} on {task['model']}, {task['images']} images: {task['reason']}")
        warn(
            f"{result.log.left} images, summed over methods, are left to the next run of the same command: what "
            "kept them from being computed may pass"
        )
    if result.stopped:
        print_error(f"{result.stopped}; what is computed is in {flags.out}: run the same command again to go on")


def _exit_code(results: Sequence[RunResult], out: Path) -> Exit:
    if any(result.stopped or result.log.left for result in results):
        return Exit.RESUMABLE
    if results and not any(has_scores(result, Store(out, create=False)) for result in results):
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if any(result.partial for result in results) else Exit.DONE


def report_folder(run: Path, plan: str) -> Path:
    """The folder of a plan's report; that of a benchmark is the run's own.

    Raises:
        InputError: If a link, or the name of a plan, leads out of the run.
    """
    folder = run / "report" / ("" if plan == "benchmark" else plan)
    require_inside(folder, run)
    return folder


def report_plan(flags: RunFlags, resolved: Resolved, *, reference: str | None = None) -> list[str]:
    """Write the report of a plan that was just run; what failed is stated in it."""
    from fringe.report import write_report  # draws, which takes a second to load

    plan = resolved.plan.name
    written = write_report(
        Store(flags.out, create=False),
        report_folder(flags.out, plan),
        plan=plan,
        reference=reference,
        allow_partial=True,
        device=resolve_device(flags.device),
        batch_size=flags.batch_size,
        resolve=lambda: resolved,
    )
    if not flags.as_json:
        say(f"report: {written.page}")
    return [str(path) for path in written.paths]
