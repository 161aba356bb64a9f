"""Features that a model reads by steps (a lookup, rounding, argmax, a hard mask), whose gradient is zero everywhere."""

import dataclasses
import warnings
from typing import cast

import torch
from torch import Tensor

from fringe.attribution._base import SEVERITY, Attribution
from fringe.attribution._diagnostics import Status
from fringe.paths import Problem

#: Images that are probed, and features of which each is probed by itself.
MOST_IMAGES, MOST_FEATURES = 4, 32
#: Where on the way to a changed image the gradient is zero if the model reads the feature by steps; a kink has some.
SHARES = tuple(k / 8 for k in range(9))
#: Change of the score, relative to the largest logit, that counts as rounding.
RTOL = 1e-3


def mark_steps(result: Attribution, problem: Problem) -> Attribution:
    """Call maps ``stalled`` that give nothing to a feature whose change moves the score, and warn with its name.

    A feature is a column of a table, or a channel: single entries without a gradient are normal in networks of ReLU.
    (B, L, C) may have its channels last, so both axes are looked at. Only a feature that has nothing in any of the maps
    costs passes: 12 forward ones for all of them if the model does not read it. Embeddings of texts always have some.
    """
    if problem.token_length is not None or not len(result):
        return result
    maps = result.values.flatten(0, problem.target.dim() - 1)
    broken: list[str] = []
    for axis in (1, 2) if maps.dim() == 3 and maps.shape[1] > 1 else (1,):
        empty = (maps.movedim(axis, 0).flatten(1) == 0).all(1)
        features = [] if bool(empty.all()) else empty.nonzero().flatten().tolist()
        if features and _moves(problem, axis, features, by_steps=False):
            names = dict(enumerate(problem.domain.names)) if axis == 1 else {}
            noun = "channel" if axis == 1 and maps.dim() > 2 else "feature"
            steps = [k for k in features[:MOST_FEATURES] if _moves(problem, axis, [k])]
            broken += [names.get(k, f"{noun} {k}") for k in steps]
    if not broken:
        return result
    why = (
        f"the map gives nothing to {', '.join(broken)}, but changing it moves the score: the model reads it by steps "
        "(such as a lookup or rounding), whose gradient is zero. Explain embeddings or one-hot columns in its place, "
        "pass it beside the numbers in a dictionary of inputs, or use method='captum:kernel_shap'"
    )
    warnings.warn(why, stacklevel=4)
    graver = SEVERITY[SEVERITY.index("stalled") :]
    rows = [list(zip(result.verdict, result.advice, strict=True)), *map(list, result.class_verdicts)]
    first, *classes = [tuple(s if s[0] in graver else cast(Status, ("stalled", why)) for s in row) for row in rows]
    verdict, advice = (tuple(column) for column in zip(*first, strict=True))
    return dataclasses.replace(result, verdict=verdict, advice=advice, class_verdicts=tuple(classes))


def _moves(problem: Problem, axis: int, features: list[int], by_steps: bool = True) -> bool:
    """Whether the score moves with these features of an input, and then without a gradient anywhere on the way."""
    part = problem.select(range(min(len(problem.inputs), MOST_IMAGES)))
    x, rows, index = part.inputs, part.every_row, torch.tensor(features, device=problem.inputs.device)
    rounding = RTOL * part.logits.abs().amax() + 1e-6
    if bool((part.forward(x, rows) - part.logits).abs().amax() > rounding):
        return False  # a random model
    # values that the model takes: those of other inputs, and the smallest numbers
    for values in (x.roll(1, 0), (x == 0).to(x)):
        changed = x.index_copy(axis, index, values.index_select(axis, index))
        try:
            change = (part.score(part.forward(changed, rows)) - part.score(part.logits)).abs()
            moved = (change > rounding).view(len(x), -1).any(1)
            if bool(moved.any()) and (not by_steps or _is_flat(part, x, changed, rows[moved], axis, index)):
                return True
        except (RuntimeError, IndexError, ValueError):  # it does not take them
            continue
    return False


def _is_flat(part: Problem, x: Tensor, changed: Tensor, rows: Tensor, axis: int, index: Tensor) -> bool:
    for share in SHARES:
        gradient = part.logits_gradient(x[rows].lerp(changed[rows], share), rows)[1]
        if bool((gradient.index_select(axis - x.dim(), index) != 0).any()):
            return False
    return True
