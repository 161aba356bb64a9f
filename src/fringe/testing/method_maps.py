"""What the maps of a method must be, judged on networks whose answers are known."""

import dataclasses

import torch
from torch import Tensor, nn

from fringe.attribution import Attribution
from fringe.classifier import SCORES, Classifier
from fringe.errors import InputError
from fringe.testing.networks import CLASSES, affine, constant, curved, half_blind, kinked, saturated, table
from fringe.testing.result import agree, distance, refuse
from fringe.testing.trial import Asked, Trial

EXACT = 1e-9
"""Relative error that float64 leaves after a few hundred additions."""


def kind(trial: Trial) -> str:
    """A map has the shape, dtype and device of its input, in both precisions; each image has its row everywhere."""
    for dtype in (torch.float32, torch.float64):
        laboratory = trial.laboratory(dtype)
        x = laboratory.images(3)
        found = trial.explain(laboratory.build(curved), x, Asked(target=[2, 0, 1]))
        kinds = [(v.shape, v.dtype, v.device) for v in (found.values, x)]
        refuse(kinds[0] != kinds[1], f"values are {kinds[0]}, the inputs {kinds[1]}")
        refuse(found.values.requires_grad, "values carry a graph: detach them")
        refuse(found.target.tolist() != [2, 0, 1], f"target: asked for [2, 0, 1], got {found.target.tolist()}")
        rows = {f"diagnostics[{name!r}]": tuple(value.shape) for name, value in found.diagnostics.items()}
        rows |= {name: tuple(getattr(found, name).shape) for name in ("score", "endpoint_score", "completeness_gap")}
        rows |= {"verdict": (len(found.verdict),), "advice": (len(found.advice),)}
        wrong = {name: shape for name, shape in rows.items() if shape != (3,)}
        refuse(bool(wrong), f"for 3 images expected (3,), got {wrong}")
    return "as the inputs, in float32 and float64"


def finite(trial: Trial) -> str:
    """Maps are finite on smooth, piecewise affine and saturated networks, in single precision, too."""
    cases = ((curved, torch.float32), (kinked, torch.float32), (saturated, torch.float32), (saturated, torch.float64))
    for network, dtype in cases:
        laboratory = trial.laboratory(dtype)
        values = trial.explain(laboratory.build(network), laboratory.images(2)).values
        bad = int((~torch.isfinite(values)).sum())
        refuse(bad > 0, f"{bad} of {values.numel()} entries are NaN or infinite ({network.__name__}, {dtype})")
    return "on smooth, piecewise affine and saturated networks"


def constant_model(trial: Trial) -> str:
    """Where the output does not depend on the input, the map is zero."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(constant), laboratory.images(2)
    other = (int(model(x)[0].argmax()) + 1) % CLASSES  # one that the references are not predicted as, either
    values = trial.explain(model, x, Asked(target=other)).values.detach()
    refuse(bool((values != 0).any()), f"the largest entry is {float(values.abs().max()):.3g}, expected 0")
    return "zero"


def unread_inputs(trial: Trial) -> str:
    """Inputs that the model does not read get nothing (the dummy axiom)."""
    laboratory = trial.laboratory()
    values = trial.explain(laboratory.build(half_blind), laboratory.images(2)).values.detach()
    unread, read = float(values[:, 1].abs().max()), float(values[:, 0].abs().max())
    refuse(not unread <= EXACT * read, f"an input that is not read got {unread:.3g}, the others up to {read:.3g}")
    refuse(read == 0, "the inputs that are read got nothing, either")
    return f"at most {unread:.0e} against {read:.2g}"


def affine_score(trial: Trial) -> str:
    """For a score ``w x + b`` a complete map is exact; from a baseline x' that was given, it is ``w (x - x')``."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(affine), laboratory.images(3)
    baseline = laboratory.images(3, key="baseline") if trial.method.accepts_baseline else None
    target = [0, 1, 2]
    found = trial.explain(model, x, Asked(target=target, baseline=baseline))
    if not _complete(found):
        return "does not apply: the method reports no completeness gap"
    if _own_score(found, model, x) != "logit":
        return "does not apply: the method explains a score of its own"
    gap = _relative_gap(found)
    refuse(not gap <= EXACT, f"the sum misses the change of an affine score by {gap:.1e} of the map's own size")
    if baseline is None:
        return f"complete within {gap:.0e}"
    classifier, classes = Classifier(model), torch.tensor(target, device=x.device)
    there = classifier.score(classifier.logits(baseline), classes)
    if distance(found.endpoint_score, there) > EXACT:
        return f"complete within {gap:.0e}"
    _, w = classifier.score_gradient(x, classes)
    return agree("map and w (x - x')", found.values, w * (x - baseline), EXACT)


def completeness(trial: Trial) -> str:
    """The reported gap is the map's sum minus the change of the score; without such a claim, all of it is NaN."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(3)
    found = trial.explain(model, x)
    own = _own_score(found, model, x)
    complete = torch.isfinite(found.completeness_gap)
    same = torch.isfinite(found.completeness_residual) == complete
    refuse(not bool(same.all()), "gap and residual must both be numbers, or both NaN")
    said, gaps = trial.method.is_complete, found.completeness_gap.tolist()
    finite = bool(found.values.isfinite().all())  # a broken map has no gap, and is another check's affair
    refuse(finite and said != bool(complete.any()), f"the method says complete={said}, its gaps are {gaps}")
    unchecked = torch.tensor([verdict == "unchecked" for verdict in found.verdict], device=x.device)
    refuse(bool((unchecked == complete).any()), f"verdicts {found.verdict} with gaps {gaps}")
    if not _complete(found):
        return f"the method reports none (of the {own})"
    change = found.score.double() - found.endpoint_score.double()
    gap = found.values.detach().double().flatten(1).sum(1) - change
    size = float(found.values.detach().abs().flatten(1).sum(1).max())
    wrong = float((gap - found.completeness_gap).abs().max())
    refuse(not wrong <= EXACT * size, f"the reported gap is off by {wrong:.2g}, for maps of size {size:.2g}")
    agree("residual and |gap| / |change of the score|", found.completeness_residual, gap.abs() / change.abs(), 1e-6)
    return f"gap {_relative_gap(found):.1e} of the map's size (of the {own})"


def refinement(trial: Trial) -> str:
    """Four times the ``steps`` between the same ends leave less of the completeness gap."""
    steps = {f.name: getattr(trial.method, f.name) for f in _fields(trial)}.get("steps")
    if not isinstance(steps, int):
        return "does not apply: no setting 'steps' that is a number"
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(2)
    coarse = trial.explain(model, x)
    if not _complete(coarse):
        return "does not apply: the method reports no completeness gap"
    finer = dataclasses.replace(trial.method, steps=4 * steps)  # pyright: ignore[reportArgumentType, reportCallIssue]
    fine = Trial(finer, trial.device).explain(model, x)
    if distance(fine.endpoint_score, coarse.endpoint_score) > EXACT:
        return "does not apply: with other steps the path ends elsewhere"
    before, after = _relative_gap(coarse), _relative_gap(fine)
    refuse(after > max(0.6 * before, 1e-7), f"the gap went from {before:.1e} ({steps} steps) to {after:.1e}")
    return f"from {before:.1e} to {after:.1e}"


def no_way_to_go(trial: Trial) -> str:
    """From a baseline that is the input itself, whatever the way there and back, an affine score has a zero map."""
    if not trial.method.accepts_baseline:
        return "does not apply: no setting 'baseline'"
    laboratory = trial.laboratory()
    model, x = laboratory.build(affine), laboratory.images(2)
    found = trial.explain(model, x, Asked(baseline=x))
    if not _complete(found):
        return "does not apply: the method reports no completeness gap"
    _, w = Classifier(model).score_gradient(x, found.target)
    largest, size = float(found.values.detach().abs().max()), float((w * x).abs().max())
    refuse(not largest <= EXACT * size, f"the largest entry is {largest:.3g} where w x is up to {size:.3g}, expected 0")
    return "zero"


def tables(trial: Trial) -> str:
    """Inputs (B, F) are explained, or refused by an InputError that says why."""
    laboratory = trial.laboratory()
    x = laboratory.images(3, (6,), "rows")
    try:
        found = trial.explain(laboratory.build(table, (6,)), x)
    except InputError as error:
        refuse(not str(error), "the InputError says nothing")
        return f"refused: {error}"
    refuse(found.values.shape != x.shape, f"values have shape {tuple(found.values.shape)}, expected {tuple(x.shape)}")
    refuse(not bool(torch.isfinite(found.values).all()), "the map holds NaN or infinity")
    return "explained"


def _fields(trial: Trial) -> "tuple[dataclasses.Field[object], ...]":
    return dataclasses.fields(trial.method)  # pyright: ignore[reportArgumentType]


def _own_score(found: Attribution, model: nn.Module, x: Tensor) -> str:
    """The scalar that the method says it explained; refused if it is none of the scores at the input."""
    logits = Classifier(model).logits(x)
    scores = {kind: Classifier(model, score=kind).score(logits, found.target) for kind in SCORES}
    same = [kind for kind, value in scores.items() if distance(found.score, value) <= EXACT]
    given = {kind: value.tolist() for kind, value in scores.items()}
    refuse(not same, f"reported score {found.score.tolist()} is none of the target's {given}")
    return same[0]


def _complete(found: Attribution) -> bool:
    return bool(torch.isfinite(found.completeness_gap).any())


def _relative_gap(found: Attribution) -> float:
    """The largest |gap| over the sum of absolute values: what the gap is small against."""
    size = found.values.detach().double().abs().flatten(1).sum(1)
    return float((found.completeness_gap.abs() / size.clamp_min(torch.finfo(torch.float64).tiny)).max())
