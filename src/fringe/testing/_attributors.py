"""The contract of attribution methods."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fringe.attribution import Attribution, Attributor, attribute, get_method
from fringe.baselines import InputSpace
from fringe.classifier import SCORES, Classifier
from fringe.errors import InputError
from fringe.testing import _checks as toys
from fringe.testing._checks import (
    ROUNDING,
    CheckResult,
    Output,
    UnderTest,
    agree,
    checks_of,
    distance,
    fail_if,
    run_checks,
    tensors_unchanged,
)

#: Relative rounding error of a few hundred additions in float64.
EXACT = 1e-9


@dataclass(frozen=True, kw_only=True)
class _MethodUnderTest(UnderTest):
    """A configured method on three toy images."""

    noun: ClassVar[str] = "maps"
    tested: Attributor

    def explain(
        self, model: nn.Module, x: Tensor, *, batch_size: int = 16, space: InputSpace | None = None, **options: Any
    ) -> Attribution:
        """Explain ``x`` with bounds and references; ``options`` are those of :func:`fringe.attribute`."""
        space = space or toys.ToyProblems(x.dtype, x.device).space(tuple(x.shape[1:]))
        return attribute(Classifier(model, batch_size=batch_size), x, method=self.tested, space=space, **options)

    def run(self, rows: list[int], model: nn.Module | None = None, *, batch_size: int = 16, seed: int = 0) -> Output:
        result = self.explain(model or self.model, self.x[rows], batch_size=batch_size, seed=seed)
        return Output(result.values, result.passes.forward, result.diagnostics)

    def shape_and_dtype(self) -> str:
        """A map has the shape, dtype and device of its input, in both precisions; the rest has a row per image."""
        for dtype in (torch.float32, torch.float64):
            case = dataclasses.replace(self, dtype=dtype)
            result, x = case.explain(case.model, case.x, target=[2, 0, 1]), case.x
            kinds = [(v.shape, v.dtype, v.device) for v in (result.values, x)]
            fail_if(kinds[0] != kinds[1], f"values are {kinds[0]}, the inputs {kinds[1]}")
            fail_if(result.values.requires_grad, "values carry a graph: detach them")
            fail_if(result.target.tolist() != [2, 0, 1], f"target: expected [2, 0, 1], got {result.target.tolist()}")
            rows = {f"diagnostics[{name!r}]": tuple(value.shape) for name, value in result.diagnostics.items()}
            rows |= {
                name: tuple(getattr(result, name).shape) for name in ("score", "endpoint_score", "completeness_gap")
            }
            rows |= {"verdict": (len(result.verdict),), "advice": (len(result.advice),)}
            wrong = {name: shape for name, shape in rows.items() if shape != (3,)}
            fail_if(bool(wrong), f"for 3 images expected (3,), got {wrong}")
        return "as the inputs, in float32 and float64"

    def finite(self) -> str:
        """Maps are finite on smooth, piecewise affine and saturated networks, also in single precision."""
        networks = (toys.smooth_cnn, torch.float32), (toys.relu_cnn, torch.float32), (toys.saturated, torch.float32)
        for network, dtype in (*networks, (toys.saturated, torch.float64)):
            case = dataclasses.replace(self, dtype=dtype)
            values = case.explain(case.toys.build(network), case.x[:2]).values
            bad = int((~torch.isfinite(values)).sum())
            fail_if(bad > 0, f"{bad} of {values.numel()} entries are NaN or infinite ({network.__name__}, {dtype})")
        return "on smooth, piecewise affine and saturated networks"

    def constant_model(self) -> str:
        """If the output does not depend on the input, the map is zero."""
        model, x = self.toys.build(toys.constant), self.toys.images(2)
        other = (int(model(x)[0].argmax()) + 1) % toys.CLASSES  # nor the class predicted for the references
        values = self.explain(model, x, target=other).values.detach()
        fail_if(bool((values != 0).any()), f"the largest entry is {float(values.abs().max()):.3g}, expected 0")
        return "zero"

    def unread_inputs(self) -> str:
        """Inputs that the model does not read for the explained class get no attribution (the dummy axiom)."""
        model, x = self.toys.build(toys.blocks_cnn), self.x
        *_, weight, _ = model.parameters()
        reads = torch.eye(toys.CLASSES).to(x)  # class i reads one block, and image i is explained for class i
        weight.detach().mul_(reads)
        (gradient,) = torch.func.vjp(toys.Blocks(), x)[1](reads[:, :, None, None].expand(-1, -1, 3, 3))
        result, is_read = self.explain(model, x, target=list(range(toys.CLASSES))), gradient != 0
        if _explained_score(result, model, x) != "logit":  # a probability also depends on what the other classes read
            is_read = is_read.any(0).expand_as(x)
        values = result.values.detach()
        unread, read = float(values[~is_read].abs().max()), float(values[is_read].abs().max())
        fail_if(not unread <= EXACT * read, f"an input that is not read got {unread:.3g}, the others up to {read:.3g}")
        fail_if(read == 0, "the inputs that are read got nothing, either")
        return f"at most {unread:.0e} against {read:.2g}"

    def explained_class(self) -> str:
        """Different classes have different maps, alone, minus a contrast, and several at once."""
        first, second, model, x = [0, 1, 2], [1, 2, 0], self.model, self.x
        alone, other = (self.explain(model, x, target=classes) for classes in (first, second))
        against = self.explain(model, x, target=first, contrast=second)
        both = list(zip(first, second, strict=True))
        several, turned = (self.explain(model, x, target=pairs) for pairs in (both, [pair[::-1] for pair in both]))
        for what, result in (("of the next class", other), ("against the next class", against)):
            fail_if(distance(result.values, alone.values) <= ROUNDING, f"the map {what} is that of the class itself")
        agree("score against a class and difference of scores", against.score, alone.score - other.score, EXACT)
        agree("maps of the second of two classes and alone", several.values[:, 1], other.values, ROUNDING)
        agree("maps of two classes in either order", turned.values.flip(1), several.values, ROUNDING)
        return agree("maps of the first of two classes and alone", several.values[:, 0], alone.values, ROUNDING)

    def affine_score(self) -> str:
        """For a score ``w x + b`` a complete map is exactly ``w (x - x')`` from a baseline x'; others have its sign."""
        model, x = self.toys.build(toys.affine), self.x
        baseline = self.toys.images(3, key="baseline") if self.tested.accepts_baseline else None
        target = [0, 1, 2]
        result = self.explain(model, x, target=target, baseline=baseline)
        if not _is_complete(result):
            return self._sign_of_evidence()
        if _explained_score(result, model, x) != "logit":
            return "does not apply: the method explains a score of its own"
        gap = _relative_gap(result)
        fail_if(not gap <= EXACT, f"the sum misses the change of an affine score by {gap:.1e} of the map's own size")
        if baseline is None:
            return f"complete within {gap:.0e}"
        classifier, classes = Classifier(model), torch.tensor(target, device=x.device)
        if distance(result.endpoint_score, classifier.score(classifier.logits(baseline), classes)) > EXACT:
            return f"complete within {gap:.0e}"
        _, w = classifier.score_gradient(x, classes)
        return agree("map and w (x - x')", result.values, w * (x - baseline), EXACT)

    def _sign_of_evidence(self) -> str:
        """Fail if a map has a negative sum although all entries are at their upper bounds and raise the score."""
        model, x = self.toys.build(toys.affine), torch.full_like(self.x[:2], toys.HIGH)
        weight, bias = (parameter.detach() for parameter in model.parameters())
        weight.abs_().div_(weight.sum(1, keepdim=True))
        weight[1:], bias[:] = 0, 0
        total = float(self.explain(model, x, target=0).values.detach().sum())  # the two scores are toys.HIGH
        fail_if(
            total < -EXACT * toys.HIGH, f"all entries raise the score of the target, and its map sums to {total:.3g}"
        )
        return f"not complete; all entries raise a score, and its map sums to {total:.3g}"

    def completeness(self) -> str:
        """The reported gap is the map's sum minus the change of the score; a method that claims none reports NaN."""
        result = self.explain(self.model, self.x)
        kind = _explained_score(result, self.model, self.x)
        is_complete = torch.isfinite(result.completeness_gap)
        same = torch.isfinite(result.completeness_residual) == is_complete
        fail_if(not bool(same.all()), "gap and residual must both be numbers, or both NaN")
        claim, gaps = self.tested.is_complete, result.completeness_gap.tolist()
        is_finite = bool(result.values.isfinite().all())  # a map that is not finite has no gap (and fails "finite")
        fail_if(
            is_finite and claim != bool(is_complete.any()), f"the method says complete={claim}, its gaps are {gaps}"
        )
        unchecked = torch.tensor([verdict == "unchecked" for verdict in result.verdict], device=is_complete.device)
        fail_if(bool((unchecked == is_complete).any()), f"verdicts {result.verdict} with gaps {gaps}")
        if not _is_complete(result):
            return f"the method reports none (of the {kind})"
        change = result.score.double() - result.endpoint_score.double()
        gap = result.values.detach().double().flatten(1).sum(1) - change
        size = float(result.values.detach().abs().flatten(1).sum(1).max())
        error = float((gap - result.completeness_gap).abs().max())
        fail_if(not error <= EXACT * size, f"the reported gap is off by {error:.2g}, for maps of size {size:.2g}")
        residual = result.completeness_residual
        is_rounding = (residual == 0) & (gap.abs() <= EXACT * size)
        expected = torch.where(is_rounding, 0.0, gap.abs() / change.abs())
        agree("residual and |gap| / |change of the score|", residual, expected, 1e-6)
        return f"gap {_relative_gap(result):.1e} of the map's size (of the {kind})"

    def refinement(self) -> str:
        """Four times the ``steps`` between the same ends reduce the completeness gap."""
        steps = getattr(self.tested, "steps", None)
        if not isinstance(steps, int):
            return "does not apply: no setting 'steps' that is a number"
        model, x = self.model, self.x[:2]
        coarse = self.explain(model, x)
        if not _is_complete(coarse):
            return "does not apply: the method reports no completeness gap"
        finer = dataclasses.replace(self.tested, steps=4 * steps)  # pyright: ignore[reportArgumentType, reportCallIssue]
        fine = dataclasses.replace(self, tested=finer).explain(model, x)
        if distance(fine.endpoint_score, coarse.endpoint_score) > EXACT:
            return "does not apply: with other steps the path ends elsewhere"
        before, after = _relative_gap(coarse), _relative_gap(fine)
        fail_if(after > max(0.6 * before, 1e-7), f"the gap went from {before:.1e} ({steps} steps) to {after:.1e}")
        return f"from {before:.1e} to {after:.1e}"

    def zero_displacement(self) -> str:
        """If the baseline is the input itself, the map of an affine score is zero, whatever the path."""
        if not self.tested.accepts_baseline:
            return "does not apply: no setting 'baseline'"
        model, x = self.toys.build(toys.affine), self.toys.images(2)
        result = self.explain(model, x, baseline=x)
        if not _is_complete(result):
            return "does not apply: the method reports no completeness gap"
        _, w = Classifier(model).score_gradient(x, result.target)
        largest, size = float(result.values.detach().abs().max()), float((w * x).abs().max())
        fail_if(not largest <= EXACT * size, f"the largest entry is {largest:.3g}, expected 0; w x is up to {size:.3g}")
        return "zero"

    def tabular_inputs(self) -> str:
        """Inputs (B, F) are explained, or refused by an InputError with the reason."""
        x = self.toys.images(3, (6,), "rows")
        try:
            result = self.explain(self.toys.build(toys.mlp, (6,)), x)
        except InputError as error:
            fail_if(error.argument == "method", str(error))  # raised by attribute() for maps of another shape
            return f"refused: {error}"
        fail_if(
            result.values.shape != x.shape, f"values: shape {tuple(result.values.shape)}, expected {tuple(x.shape)}"
        )
        fail_if(not bool(torch.isfinite(result.values).all()), "the map holds NaN or infinity")
        return "explained"

    def caller_tensors(self) -> str:
        """Inputs, baseline and references keep their values and flags."""
        space, x = self.toys.space(), self.toys.images(2).requires_grad_(True)
        baseline = self.toys.images(2, key="baseline") if self.tested.accepts_baseline else None
        tensors = {"inputs": x, "baseline": baseline, "references": space.references}
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return tensors_unchanged(given, lambda: self.explain(self.model, x, baseline=baseline, space=space))

    def bad_images(self) -> str:
        """An image that contains NaN is marked, and the maps of the others do not change."""
        x = self.x.clone()
        x[1, 0, 0, 0] = torch.nan
        result = self.explain(self.model, x, bad_images="mark")
        fail_if(result.verdict[1] != "nan_input", f"the image with NaN has the verdict {result.verdict[1]!r}")
        fail_if(not bool(result.values[1].isnan().all()), "the map of the image with NaN holds numbers")
        return agree("the other maps", result.values[[0, 2]], self.explain(self.model, x[[0, 2]]).values, ROUNDING)

    def telemetry(self) -> str:
        """Recording the path does not change the map; progress is reported in order and within the plan."""
        calls, x = list[tuple[int, ...]](), self.x[:2]

        def progress(*steps: int) -> None:
            calls.append(steps)

        result = self.explain(self.model, x, telemetry=True, progress=progress)
        agree("maps with and without telemetry", result.values, self.explain(self.model, x).values, ROUNDING)
        rows = None if result.trajectory is None else len(result.trajectory)
        fail_if(rows not in (None, 2), f"{rows} trajectories for 2 images")
        done = [step for step, _ in calls]
        fail_if(done != sorted(done) or any(step > total for step, total in calls), f"progress was reported as {calls}")
        return f"same maps; progress reported {len(calls)} times"


#: The checks by name; the docstring of each says what it requires.
ATTRIBUTOR_CHECKS: Mapping[str, Callable[[_MethodUnderTest], str]] = checks_of(_MethodUnderTest)


def check_attributor(
    method: str | Attributor,
    *,
    skip: Collection[str] = (),
    expected_failures: Mapping[str, str] = {},
    device: str | torch.device = "cpu",
) -> list[CheckResult]:
    """Run every check of the contract on an attribution method.

    The method explains images (2, 8, 8) and rows (6,) of small built-in networks, about sixty times. With cheap
    settings this takes seconds.

    Args:
        method: A configured method, or the name of a registered one.
        skip: Names of checks to leave out, of ``ATTRIBUTOR_CHECKS``.
        expected_failures: The reason, by check name, of each check that is known to fail.
        device: Device of the networks and images.

    Returns:
        The result of each check, in the order of ``ATTRIBUTOR_CHECKS``.

    Raises:
        CheckError: If a check fails unexpectedly, or if a check in ``expected_failures`` passes.
        InputError: If the name of a method or check is unknown.
    """
    chosen = get_method(method)
    make = partial(_MethodUnderTest, tested=chosen, device=torch.device(device))
    return run_checks(f"method {chosen.name!r}", make, ATTRIBUTOR_CHECKS, skip, expected_failures)


def _explained_score(result: Attribution, model: nn.Module, x: Tensor) -> str:
    """Return the kind of the explained score; fail if the reported value is not a score at the input."""
    logits = Classifier(model).logits(x)
    scores = {kind: Classifier(model, score=kind).score(logits, result.target) for kind in SCORES}
    same = [kind for kind, value in scores.items() if distance(result.score, value) <= EXACT]
    expected = {kind: value.tolist() for kind, value in scores.items()}
    fail_if(not same, f"reported score {result.score.tolist()} is none of the target's {expected}")
    return same[0]


def _is_complete(result: Attribution) -> bool:
    return bool(torch.isfinite(result.completeness_gap).any())


def _relative_gap(result: Attribution) -> float:
    """Largest |gap| over the sum of the map's absolute values."""
    size = result.values.detach().double().abs().flatten(1).sum(1)
    return float((result.completeness_gap.abs() / size.clamp_min(torch.finfo(torch.float64).tiny)).max())
