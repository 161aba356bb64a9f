"""Read a saved attribution."""

from __future__ import annotations

from pathlib import Path

from fringe.attribution._base import Attribution, Trajectory
from fringe.attribution._context import Context
from fringe.attribution._saved import read
from fringe.classifier import PassCounts
from fringe.errors import InputError

_KINDS = {kind.__name__: kind for kind in (Attribution, Context, PassCounts, Trajectory)}


def load(path: str | Path) -> Attribution:
    """Read an attribution that ``result.save(path)`` wrote. Files from strangers are safe to read.

    Args:
        path: The file.

    Returns:
        The attribution, on the CPU, equal to the saved one bit for bit.

    Raises:
        InputError: If it is no such file, is damaged, or was written by a later version.
        OSError: If the file cannot be read.
    """
    result = read(path, _KINDS)
    if not isinstance(result, Attribution) or not _fits(result):
        raise InputError(f"{str(path)!r} is damaged (its parts do not match)", argument="path")
    return result


def _fits(result: Attribution) -> bool:
    """Whether every part has a row for each input; the file is checked against accidents by its checksum, and this is
    against a file that was made otherwise."""
    size, context = len(result.target), result.context
    columns = [result.values, result.score, result.endpoint_score, result.completeness_gap]
    columns += [result.completeness_residual, *result.diagnostics.values()]
    rows = [*map(len, columns), len(result.verdict), len(result.advice)]
    rows += [len(part) for part in (result.trajectory, result.class_verdicts or None) if part is not None]
    shape = (size, *result.values.shape[result.target.dim() :])
    return set(rows) == {size} and (context is None or tuple(context.inputs.shape) == shape)
