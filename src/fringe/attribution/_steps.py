"""Features that a model reads by steps, such as a lookup or rounding: they move the score and have no gradient."""

import dataclasses
from typing import cast

import torch

from fringe._network.arguments import is_joint
from fringe.attribution._base import SEVERITY, Attribution, Attributor
from fringe.attribution._diagnostics import Status
from fringe.errors import warn_caller
from fringe.paths import Problem

#: Images that are probed, and features of which each is probed by itself.
MOST_IMAGES, MOST_FEATURES = 4, 32
#: Where on the way to a changed image the gradient is zero if the model reads the feature by steps; a kink has some.
SHARES = tuple(k / 8 for k in range(9))
#: Change of the score, relative to the largest logit, that counts as rounding.
RTOL = 1e-3


def mark_steps(method: Attributor, result: Attribution, problem: Problem) -> Attribution:
    """Call maps ``stalled`` that give nothing to a feature whose change moves the score, and warn with its name.

    A feature is a column of a table, or a channel: single entries without a gradient are normal in networks of ReLU.
    (B, L, C) may have its channels last, so both axes are looked at; of several tensors, those of one axis. Only a
    feature that has nothing in any of the maps costs passes: 12 forward ones for all of them if the model does not read
    it. Embeddings of texts always have some.
    """
    parts = problem.forward_args.parts if is_joint(problem.forward_args.parts) else ()
    if not method.uses_gradients or problem.token_length is not None:
        return result
    named = [
        f"feature {k} of {p.name or f'inputs[{i}]'}" if len(p.shape) < 2 else ""
        for i, p in enumerate(parts)
        for k in range(p.size)
    ]
    maps = result.values.flatten(0, problem.target.dim() - 1)
    broken: list[str] = []
    for axis in (1, 2) if maps.dim() == 3 else (1,):
        empty = (maps.movedim(axis, 0).flatten(1) == 0).all(1)
        features = [] if bool(empty.all()) else empty.nonzero().flatten().tolist()
        names = dict(enumerate(problem.domain.names or named)) if axis == 1 else {}
        noun = "channel" if axis == 1 and maps.dim() > 2 else "feature"
        if features := [k for k in features if names.get(k, noun)]:
            broken += [names.get(k, f"{noun} {k}") for k in _steps(problem, axis, features)]
    if not broken:
        return result
    why = (
        f"the map gives nothing to {', '.join(broken)}, but changing it moves the score: the model reads it by steps "
        "(such as a lookup or rounding), whose gradient is zero. Explain embeddings or one-hot columns in its place, "
        "pass it beside the numbers in a dictionary of inputs, or use method='captum:kernel_shap'"
    )
    warn_caller(why)
    graver = SEVERITY[SEVERITY.index("stalled") :]
    rows = [list(zip(result.verdict, result.advice, strict=True)), *map(list, result.class_verdicts)]
    first, *classes = [tuple(s if s[0] in graver else cast(Status, ("stalled", why)) for s in row) for row in rows]
    verdict, advice = (tuple(column) for column in zip(*first, strict=True))
    return dataclasses.replace(result, verdict=verdict, advice=advice, class_verdicts=tuple(classes))


def _steps(problem: Problem, axis: int, features: list[int]) -> list[int]:
    """Those of the features without a gradient that the model reads by steps; by halves, as most are not read."""
    if not _moves(problem, axis, features, by_steps=False):
        return []
    part, probed, stepped = problem.select(range(min(len(problem.inputs), MOST_IMAGES))), 0, list[int]()
    gradient = part.logits_gradient(part.inputs, part.every_row)[1]
    flat = (gradient.movedim(axis - part.inputs.dim(), 0).flatten(1) == 0).all(1).tolist()
    waiting = [[k for k in features if flat[k]]]
    while waiting and probed < MOST_FEATURES:
        group = waiting.pop()
        if len(group) > 1 and _moves(problem, axis, group, by_steps=False):
            waiting += [group[len(group) // 2 :], group[: len(group) // 2]]
        elif len(group) == 1:
            probed += 1
            stepped += group if _moves(problem, axis, group) else []
    return stepped


def _moves(problem: Problem, axis: int, features: list[int], by_steps: bool = True) -> bool:
    """Whether the score moves with these features of an input, and then without a gradient anywhere on the way."""
    part = problem.select(range(min(len(problem.inputs), MOST_IMAGES)))
    x, every, index = part.inputs, part.every_row, torch.tensor(features, device=problem.inputs.device)
    rounding = RTOL * part.logits.abs().amax() + 1e-6
    if bool((part.forward(x, every) - part.logits).abs().amax() > rounding):
        return False  # a random model
    # values that the model takes: those of other inputs, and the smallest numbers
    for values in (x.roll(1, 0), (x == 0).to(x)):
        changed = x.index_copy(axis, index, values.index_select(axis, index))
        try:
            change = (part.score(part.forward(changed, every)) - part.score(part.logits)).abs()
            moved = (change > rounding).view(len(x), -1).any(1)
            rows = every[moved]
            paths = (x[rows].lerp(changed[rows], share) for share in SHARES)
            gradients = (part.logits_gradient(point, rows)[1].index_select(axis - x.dim(), index) for point in paths)
            if bool(moved.any()) and not (by_steps and any(bool((g != 0).any()) for g in gradients)):
                return True
        except (RuntimeError, IndexError, ValueError):  # it does not take them
            continue
    return False
