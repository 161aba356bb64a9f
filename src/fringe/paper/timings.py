"""Run times that were measured before, stored model by model, so that hours of measuring survive an interrupt."""

import json
import os
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from fringe._files import RECORD_BYTES, UnfitFile, read_regular
from fringe._process import process_name
from fringe.experiments import Plan, resolve
from fringe.paper.runtime import Timing, from_record, identity, measure, record

Stored = dict[str, list[dict[str, Any]]]


def stored_timings(
    plan: Plan, path: Path, *, device: str, batch_size: int | Literal["auto"], measuring: bool
) -> list[Timing]:
    """Read the run times of each model of a plan, and measure those that are missing.

    Args:
        plan: Models, methods and images.
        path: JSON file of the stored run times.
        device: Device of the models.
        batch_size: Images per pass of the batched mode.
        measuring: Measure what is not stored for the same settings, images and machine; each model is stored at once.

    Returns:
        The run times that are stored or measured.
    """
    resolved, stored, timings = resolve(plan), _read(path), list[Timing]()
    for arm in plan.arms:
        key = identity(resolved, arm.label, device, batch_size)
        if key not in stored and measuring:
            alone = replace(resolved, plan=replace(plan, arms=(arm,)))
            stored[key] = record(measure(alone, device=device, batch_size=batch_size))
            _write(path, stored)
        timings += from_record(stored.get(key, []))
    return timings


def _read(path: Path) -> Stored:
    """The stored run times; a damaged file is set aside. A disk that does not answer is not an absent file."""
    try:
        stored = json.loads(read_regular(path, RECORD_BYTES))
        for rows in stored.values():
            from_record(rows)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (UnfitFile, ValueError, TypeError, AttributeError, RecursionError):
        aside = path.with_name(f"{path.name}.{time.time_ns()}.aside")
        message = f"'{path}' is damaged: set aside as '{aside}'; run times are measured again"
        warnings.warn(message, stacklevel=3)
        os.replace(path, aside)
        return {}
    return stored


def _write(path: Path, stored: Stored) -> None:
    """Replace the file at once or not at all: the run times of a model take hours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{process_name()}.partial")
    try:
        partial.write_text(json.dumps(stored, indent=1), encoding="utf-8")
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
