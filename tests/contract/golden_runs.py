"""The run whose outputs and card are frozen: made once, whichever test asks first."""

import json
import tempfile
from functools import cache
from pathlib import Path

from typer.testing import CliRunner

import fringe
from fringe.cli import app

METRICS = tuple(sorted(name for name, kind in fringe.METRICS.items() if kind.by_default and not kind.requires_truth))
FAST = (
    *("fringe.tau=0.02", "fringe.until=budget", "fringe.eta_max=4", "ig.steps=6"),
    *("smoothgrad.samples=3", "smoothgrad.spread=0.2"),
    *("guided_ig.steps=4", "max_sensitivity.samples=2", "infidelity.samples=4", "deletion.sigma=2"),
)
COMMON = ("--model", "embedded:digits", "--device", "cpu", "--seed", "2", "--batch-size", "2")
CONTEST = (
    *("--methods", "fringe,ig,smoothgrad,guided_ig", "--metrics", ",".join(METRICS), "--controls"),
    *(part for setting in FAST for part in ("--set", setting)),
)


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == 0, result.output
    return result


@cache
def temporary():
    return tempfile.TemporaryDirectory()


@cache
def benchmarked():
    out = Path(temporary().name) / "benchmark"
    run("benchmark", "--out", out, *COMMON, *CONTEST, "--n", 3, "--limit", "max_sensitivity=2", "--save-maps")
    return out


def as_json(data, indent=""):
    """JSON with a line for each innermost list or object, so that a change of one can be read."""
    values = list(data.values() if isinstance(data, dict) else data if isinstance(data, list) else [])
    if not any(isinstance(value, (dict, list)) for value in values):
        return json.dumps(data)
    inner, names = (
        indent + " ",
        [f"{json.dumps(name)}: " for name in data] if isinstance(data, dict) else [""] * len(data),
    )
    lines = [f"{inner}{name}{as_json(value, inner)}" for name, value in zip(names, values, strict=True)]
    opening, closing = "{}" if isinstance(data, dict) else "[]"
    return f"{opening}\n" + ",\n".join(lines) + f"\n{indent}{closing}"
