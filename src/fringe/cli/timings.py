"""Run times of a reproduction, model by model, so that hours of measuring survive an interrupt."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fringe._files import RECORD_BYTES, UnfitFile, read_regular
from fringe._process import process_name
from fringe.cli.options import read_batch_size
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_run import device_of
from fringe.cli.problems import remark
from fringe.cli.report_run import report_folder
from fringe.experiments import Plan, resolve
from fringe.paper import Timing, from_record, identity, measure, record


def timings_of(plan: Plan, how: HowOptions, *, measuring: bool) -> list[Timing]:
    """The run times of each model of a plan: those kept in the folder where they are of the same settings, images and
    machine; where there are none, and with ``measuring``, measured now and kept."""
    path = report_folder(how.out, "runtime") / "kept.json"
    device, batch_size = device_of(how.device), read_batch_size(how.batch_size)
    resolved, kept, found = resolve(plan), _read(path), list[Timing]()
    for arm in plan.arms:
        name = identity(resolved, arm.label, device, batch_size)
        if name not in kept and measuring:
            alone = replace(resolved, plan=replace(plan, arms=(arm,)))
            kept[name] = record(measure(alone, device=device, batch_size=batch_size))
            _write(path, kept)
        found += from_record(kept.get(name, []))
    return found


def _read(path: Path) -> dict[str, list[dict[str, Any]]]:
    """What is kept; nothing where there is no file. One that is damaged is set aside. A disk that does not answer is
    no file that is not there."""
    try:
        found = json.loads(read_regular(path, RECORD_BYTES))
        for rows in found.values():
            from_record(rows)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnfitFile, ValueError, TypeError, AttributeError, RecursionError):
        aside = path.with_name(f"{path.name}.{time.time_ns()}.aside")
        remark(f"warning: '{path}' is damaged: set aside as '{aside}'; run times are measured again")
        os.replace(path, aside)
        return {}
    return found


def _write(path: Path, kept: dict[str, list[dict[str, Any]]]) -> None:
    """Whole or not at all: a model's run times take hours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{process_name()}.partial")
    try:
        partial.write_text(json.dumps(kept, indent=1), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
