"""Options of runs, their progress, and how they ended."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge, Lt

from fringe._files.disk import require_inside
from fringe._strings.formats import to_json
from fringe._strings.names import read_pair
from fringe.bench.experiments import (
    ExperimentSpec,
    Plan,
    RunLog,
    RunOptions,
    RunResult,
    Store,
    describe_run,
    make_maps,
    planned_work_of,
    run_plan,
    run_record,
    url_of,
)
from fringe.cli._console import Exit, Progress, print_error, require_consent, say, show, warn
from fringe.evaluation import NOT_BETTER
from fringe.settings import Doc, Options, PositiveInt

REFERENCE = "Method that the others are compared with. Default: fringe, else the first."
#: How plans end that were not stopped, with a score.
FINISHED = (Exit.DONE, Exit.SOME_FAILED)
YES = "Start without asking, also if the settings mean very many passes."


Spec = TypeVar("Spec", bound=ExperimentSpec)


class RunFlags(RunOptions):
    """How plans are run; nothing here changes a number."""

    device: Annotated[str, Doc("auto, cpu, cuda, cuda:1, ...")] = "auto"
    out: Annotated[Path, Doc("Run folder, new or of an earlier run.")]
    config: Annotated[Path | None, Doc("TOML file with these options as keys.")] = None
    as_json: Annotated[bool, Doc("Print one JSON document, and no progress bars.")] = False
    yes: Annotated[bool, Doc(YES)] = False

    def spec(self, given: Mapping[str, Any], kind: type[Spec] = ExperimentSpec) -> Spec:
        """The given options over those of the file. A text of ``--set`` whose key has no dot and is a field of the
        specification gives that field."""
        pairs = [read_pair(text, "set", "LABEL.KEY=VALUE, such as ig.steps=20") for text in given.get("set", ())]
        keys = {key: _plain_value(value) for key, value in pairs if key in kind.model_fields}
        rest = tuple("=".join(pair) for pair in pairs if pair[0] not in keys)
        typed = {name: value for name, value in given.items() if name != "set"}
        spec = kind(**{**keys, **typed}, **({"set": rest} if rest else {}))
        return spec if self.config is None else spec.over(kind.from_file(self.config))

    def print_json(self, document: Mapping[str, Any]) -> None:
        """Print the document of a run that was asked for it."""
        if self.as_json:
            say(to_json(document).rstrip("\n"))

    def print_text(self, text: str) -> None:
        """Print lines, but not of a run that was asked for one document."""
        if text and not self.as_json:
            say(text)


def _plain_value(text: str) -> Any:
    """A value as a file would have it; what is no value of TOML is text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


class BenchmarkOptions(Options):
    """What a benchmark does beside its scores."""

    report: Annotated[bool, Doc("Write the report at the end.")] = True
    reference: Annotated[str | None, Doc(REFERENCE)] = None
    dry_run: Annotated[bool, Doc("Compute nothing: estimate passes, bytes and time of what is missing.")] = False
    probe: Annotated[float, Ge(0.1), Doc("With --dry-run: longest time of one trial map.")] = 10.0


class CardOptions(Options):
    """What a card is measured on."""

    n: Annotated[PositiveInt, Doc("Examples of each scene, and digits.")] = 24
    seed: Annotated[int, Ge(0), Lt(2**53), Doc("Draws the examples, and keys all randomness.")] = 0
    scenes: Annotated[str | None, Doc("Scenes, with commas. Default: six that need only the digits.")] = None
    trust_code: Annotated[bool, Doc("Allow the author of the named module or file to run code.")] = False


def run_plans(plans: Sequence[Plan], options: RunFlags) -> tuple[Exit, list[RunResult]]:
    """Run plans in their order; one that is stopped stops those after it. Return how that ended, and each result."""
    results = list[RunResult]()
    require_consent(planned_work_of(plans), yes=options.yes, quiet=options.as_json)
    require_inside(options.out / "report", options.out)  # now, and not after hours of work
    for plan in plans:
        with Progress(plan.name, None, quiet=options.as_json) as bar:
            results.append(run_plan(plan, options.out, options, RunLog.shown(bar)))
        printers, result = {"info": options.print_text, "warning": warn, "error": print_error}, results[-1]
        for level, text in describe_run(result):
            printers[level](text)
        if result.failed:
            warn(f"'fringe status {options.out}' lists what has no score; --retry-failed computes it again")
        if result.stopped:
            break
    if any(result.stopped or result.log.left for result in results):
        return Exit.RESUMABLE, results
    if results and not any(result.has_scores for result in results):
        return Exit.NOTHING_DONE, results
    return Exit.SOME_FAILED if any(result.partial for result in results) else Exit.DONE, results


def report_plan(options: RunFlags, result: RunResult, *, reference: str | None = None) -> list[str]:
    """Make the maps of the examples of a plan that was just run, and write its report; what failed is stated in it."""
    from fringe.bench.report import examples_of, write_report  # draws, which takes a second to load

    manifest = result.resolved.manifest
    with Progress("maps of examples", None, quiet=options.as_json) as bar:
        make_maps(result, options, examples_of(result.results, reference), RunLog.shown(bar))
    store = Store(options.out, create=False)
    written = write_report(store, plan=manifest.name, reference=reference, allow_partial=True)
    if not options.as_json:
        marks = ("Values", "*", NOT_BETTER, "not tested")  # the report explains the rest
        for table in written.tables:
            conclusions = takewhile(lambda note: not note.startswith("Values"), table.notes)
            marked = [note for note in table.notes if note.startswith(marks)]
            show([replace(table, notes=[*conclusions, *marked])])
    options.print_text(f"report: {written.page}")
    return [str(path) for path in written.paths]


def run_and_report(plan: Plan, options: RunFlags, *, report: bool, reference: str | None = None) -> Exit:
    """Run a plan, then write its report."""
    code, results = run_plans([plan], options)
    paths, url = list[str](), url_of(options.out)
    if report and url is not None:
        options.print_text(f"a report is written on this machine: fringe report {url} --out FOLDER")
    elif report and code in FINISHED:
        paths = report_plan(options, results[0], reference=reference)
    options.print_json({**run_record(results[0]), "report": paths})
    return code
