"""``fringe compare``: compare methods on image files."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from fringe._text import printable, to_json
from fringe.cli._console import (
    Exit,
    Progress,
    error_text,
    exit_on_error,
    print_error,
    require_consent,
    say,
    warn,
    work_of,
)
from fringe.cli._options import AsJson, Inputs, Out, Overwrite, Yes, with_options
from fringe.errors import FringeError


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
        code = _compare(given, inputs, out, overwrite=overwrite, yes=yes, as_json=as_json)
    raise typer.Exit(code)


def _compare(given: dict[str, Any], inputs: list[str], out: Path, *, overwrite: bool, yes: bool, as_json: bool) -> Exit:
    from fringe.explanations import CompareSpec, ComparisonRun

    run = ComparisonRun(inputs, out, CompareSpec(**given), overwrite=overwrite)
    if not run.refs:
        for failure in run.missing:
            print_error(failure.reason)
        return Exit.NOTHING_DONE
    require_consent(work_of(run.methods, run.metrics, len(run.refs)), yes=yes, quiet=as_json)
    run.open()
    try:
        with Progress("images", len(run.refs), quiet=as_json, steps=True) as bars:
            for images in run.results(bars.step):
                bars.advance(images)
    except KeyboardInterrupt:
        warn(f"interrupted: {run.compared} compared inputs are in {out}")
        return Exit.INTERRUPTED
    lost = {str(error.filename) for error in run.unwritten}
    if as_json:
        typer.echo(to_json(run.document), nl=False)
    elif run.compared:
        _show(run.document, run.metrics)
        written = [str(out / name) for name in ("compare.png", "scores.csv", "summary.json")]
        written = [path for path in written if path not in lost]
        say(f"\nresults: {', '.join(written)}" if written else "")
    for failure in run.failures:
        print_error(failure.reason if failure.source in failure.reason else f"{failure.source}: {failure.reason}")
    for label, text in run.errors:
        print_error(f"{label}: {error_text(FringeError(text))}")
    for error in run.unwritten:
        print_error(f"cannot write {error.filename!r} ({error.strerror})")
    if not run.any_map:
        return Exit.NOTHING_DONE
    return Exit.SOME_FAILED if run.failures or run.errors or run.unwritten else Exit.DONE


def _show(document: Mapping[str, Any], metrics: Mapping[str, Any]) -> None:
    """Print methods by metrics: means or medians with their intervals, the best in bold, controls below a rule."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from fringe.cli._tables import new_console, print_wide
    from fringe.metrics import ARROW, best_of

    cells = {(entry["method"], entry["metric"]): entry for entry in document["table"]}
    table = Table(box=box.HORIZONTALS, show_edge=False, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for label, metric in metrics.items():
        table.add_column(f"{label.replace('_', ' ')} {ARROW[metric.direction]}".strip(), overflow="fold")
    for name in ("n", "flagged", "passes", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    methods = document["methods"]
    names = [method["label"] for method in methods if not method["control"]]
    best = {label: best_of([_value(cells[n, label]) for n in names], m.direction) for label, m in metrics.items()}
    for number, method in enumerate(methods, start=1):
        entries = {label: cells[method["label"], label] for label in metrics}
        scores = [_score(entry, None if method["control"] else best[label]) for label, entry in entries.items()]
        costs = map(Text, _costs(method, list(entries.values())))
        last = number == len(names) < len(methods)
        table.add_row(Text(printable(method["label"])), *scores, *costs, end_section=last)
    console = new_console()
    print_wide(console, table)
    console.print(Text(printable(_legend(document)), style="dim"), soft_wrap=True)


def _value(entry: Mapping[str, Any]) -> float | None:
    return entry[entry["summary"]]


def _score(entry: Mapping[str, Any], best: float | None) -> Any:
    from rich.text import Text

    value = _value(entry)
    if value is None:
        return Text("—")
    interval = "" if entry["low"] is None else f" [{_number(entry['low'])}…{_number(entry['high'])}]"
    return Text(_number(value), style="bold" if value == best else "").append(interval, style="not bold dim")


def _costs(method: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """How many images have a score, how many scores are flagged, and the passes and seconds of one map."""
    counts = sorted({entry["n"] for entry in entries if entry["n"]}) or [0]
    flagged, passes = sum(entry["flagged"] for entry in entries), sum(method["passes"].values())
    images = max(method["images"], 1)
    cost = (f"{passes / images:.0f}", f"{method['seconds'] / images:.2f}") if passes else ("", "")
    return "–".join(map(str, counts[:: max(len(counts) - 1, 1)])), str(flagged or ""), *cost


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or 1e-3 <= abs(value) < 1e3 else f"{value:.2g}"


def _legend(document: Mapping[str, Any]) -> str:
    flags = Counter[str]()
    for entry in document["table"]:
        flags.update(entry["flags"])
    medians = sorted({e["metric"].replace("_", " ") for e in document["table"] if e["summary"] == "median"})
    summary = f"mean (median for {', '.join(medians)})" if medians else "mean"
    costs = "n: images with a score; passes and seconds: of one image's map"
    lines = [f"{summary} [95 % bootstrap interval over images]; {costs}"]
    if flags:
        lines.append(f"flagged scores: {', '.join(f'{name} {count}' for name, count in flags.items())}")
    return "\n".join(lines)
