"""Refuse a model whose logits depend on the batch, or whose derivatives are wrong."""

import contextlib
import copy
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fringe._network.outputs import SCORE_OF_OUTPUTS
from fringe._network.passes import SEQUENCE_FIRST
from fringe._numbers.rng import KeyedGenerator
from fringe._strings.progress import log
from fringe.classifier import WITHOUT_GRADIENTS, WITHOUT_JVP, Linearisation
from fringe.errors import (
    FringeError,
    ModelOutputError,
    NotDifferentiableError,
    first_line,
    is_machine_error,
    warn_caller,
)
from fringe.paths._problem import Problem

#: Maximum number of images probed for a non-zero finite gradient.
MAX_PROBES = 4
#: Change of an image's logits, relative to the largest, that counts as rounding of another batch size.
LOGITS_RTOL = 1e-3
#: Relative difference of forward and backward derivatives that counts as rounding.
ADJOINT_RTOL = 5e-3
#: Relative difference of derivative and finite difference that counts as rounding.
DIFFERENCE_RTOL = 1e-2
#: Parameters up to which a module is copied in double precision, where single precision cannot decide.
MAX_COPY = 100_000_000
#: Length of a step along the gradient, relative to the spread of the input: what counts in it moves by more than the
#: steps of 8 bits.
LONG_STEP = 0.01
#: Share of the change over that step that the gradient may leave unexplained, and what the sum over it may be wrong by.
UNEXPLAINED, UNCERTAIN = 0.25, 0.05


Evaluated = TypeVar("Evaluated", Tensor, Linearisation)

#: What a method does with Jacobian-vector products: nothing; it takes them where the model has them, and its map is
#: right without them; or its map depends on them.
JVPUse = Literal["none", "optional", "required"]


def verify(problem: Problem, uses: Collection[JVPUse] = ("required",), *, has_sum: bool = True) -> None:
    """Check that the model can be explained; the caller need not hold a session.

    The logits of an image must not depend on its position in the batch: the first, middle and last image are evaluated
    alone and in another order. A model with two results for the same call is random, and refused. On a CPU the first
    of these passes has its channels last in memory, and later ones only if that gives the same.

    On the first image with a finite gradient that is not zero (of at most ``MAX_PROBES``), with a random cotangent u
    and v along J^T u: the output depends on the input through autograd, ``<J^T u, v>`` is the central difference of
    ``<u, F>`` along v, and where J v is used also ``<u, J v>``. A model whose J v is wrong counts as one without
    Jacobian-vector products from then on (``jvp_mode``), or is refused if a method requires them. If every gradient is
    zero, the output must not change with the input either: then the model is constant near the images, and their maps
    are zero.

    A branch that the gradient misses (``.detach()``, rounding, ``torch.where`` of what an image shows) may take part in
    other images, or beyond that short step. Sums of maps show it; where methods have none, the score of up to
    ``MAX_PROBES`` images is compared with the integral of its gradient over a long step, at three forward passes and
    VJPs for each image (up to nine where the network is curved), and a warning says what the gradient leaves
    unexplained.

    Methods that use no gradient (no ``uses``) need none of this.

    A classifier that was verified, on more than one image if there are more now, is not verified again while the
    weights and buffers of its module stay the same.

    Args:
        problem: The images, and the model.
        uses: What the methods do with Jacobian-vector products.
        has_sum: Whether maps of each method, or those inside its modifiers, add up to a change of the score.

    Raises:
        ModelOutputError: If the logits of an image depend on its position in the batch, or are random.
        NotDifferentiableError: If the derivatives are missing or wrong.
    """
    tangents, model = any(use != "none" for use in uses), problem.model
    model.verified_point = None
    with model.session(problem.inputs.device):
        if model.tf32:  # whose error is larger than the tolerances, and depends on the size of the batch
            with model.in_full_precision():
                verify(
                    replace(problem, logits=problem.forward(problem.inputs, problem.every_row)), uses, has_sum=has_sum
                )
            return
        x, given = problem.inputs, problem.forward_args
        plain = not (given.args or given.kwargs)
        key = (*sorted(set(uses)), has_sum, given.parts, given.axes, x.shape[1:], x.dtype, x.device)
        alone, several = ((*key, count) for count in ("one", "several"))
        if plain and (several in model.verified or (len(x) == 1 and alone in model.verified)):
            return
        if not uses:
            _check_rows(problem, _evaluate_first(problem, problem.forward))
            return
        run = partial(problem.linearise, tangents=tangents, smooth=True)
        first = _evaluate_first(problem, run)
        _check_rows(problem, first.value)
        if given.by_row and len(x) > 1 == model.batch_size.on(x.device):
            _check_single_row(problem)
        flat: tuple[Tensor, Tensor] | None = None
        for row in problem.every_row[:MAX_PROBES].split(1):
            point = problem.linearise(x[row], row, tangents=tangents, smooth=True) if row else first
            u = problem.rng.normal("probe cotangent", point.value)
            gradient = _first_gradient(point, u)
            if not bool(torch.isfinite(gradient).all()):
                continue
            if bool((gradient != 0).any()):
                _check_gradient(problem, row, u, gradient)
                if tangents:
                    _check_jvp(problem, point, u, gradient, required="required" in uses)
                if not has_sum:
                    _check_long_step(problem)
                if plain:
                    model.verified.add(several if len(x) > 1 else alone)
                    if len(x) == 1 and problem.graphs is None and model.jvp_mode == "double_backward":
                        model.verified_point = point
                return
            flat = flat or (row, point.value)
        if flat:
            _refuse_flat(problem, *flat)


# -- the position in the batch -------------------------------------------------------------------------------------


def _evaluate_first(problem: Problem, run: Callable[[Tensor, Tensor], Evaluated]) -> Evaluated:
    """Evaluate the first image, on a CPU with its channels last in memory: all images are passed so from then on if it
    works and gives the same. A network that reads strides or memory gives something else, but not for an image of one
    colour, which decides nothing."""
    x, row, layouts = problem.inputs[:1], problem.every_row[:1], problem.model.channels_last
    shape = x.shape[1:]
    if shape not in layouts:
        layouts.add(shape)
        if problem.model.layout(x) is torch.channels_last and bool((x != x.flatten()[:1]).any()):
            try:
                result = run(x, row)
                value = result if isinstance(result, Tensor) else result.value
                if bool((value - problem.logits[:1]).abs().max() <= _rounding(problem)):
                    return result
            except Exception as error:  # whatever a model raises
                if is_machine_error(error):
                    raise
            log.info("with channels last in memory the model gives something else: images are passed as they came")
        layouts.remove(shape)
    return _evaluate(problem, row, run)


def _check_rows(problem: Problem, first: Tensor) -> None:
    """Refuse a model that is random, or whose logits depend on the position in the batch. The ``first`` image has these
    logits (1, C) alone."""
    batch = len(problem.inputs)
    chosen = sorted({0, batch // 2, batch - 1})
    together = chosen[::-1][: problem.model.batch_size.on(problem.inputs.device)]
    calls = [[row] for row in chosen] + ([together] if len(together) > 1 else [])
    scale = _rounding(problem)
    for call in calls:
        rows = torch.tensor(call, device=problem.inputs.device)
        logits = first if call == [0] else _evaluate(problem, rows, problem.forward)
        change = (logits - problem.logits[rows]).abs().max()
        if not bool(change > scale):
            continue
        if batch == 1 or bool((logits - _evaluate(problem, rows, problem.forward)).abs().max() > scale):
            raise ModelOutputError(
                f"the same image gave logits that differ by {change.item():.3g}: the model is random, and no map could "
                "be made again",
                argument="model",
                hint="switch its noise off, or call torch.manual_seed(0) first in its forward and pass batch_size=1",
            )
        hint, is_score = _advice(problem), problem.model.score_function is not None
        raise ModelOutputError(
            f"images {call} of {batch} have other {'scores' if is_score else 'logits'} when they are evaluated without "
            f"the rest (by {change.item():.3g}), so a map would depend on the images around it",
            argument="score" if is_score else "model",
            hint=f"{SCORE_OF_OUTPUTS}. {hint}" if is_score else hint,
        )


def _rounding(problem: Problem) -> Tensor:
    """How far the logits of an image may differ between two passes."""
    return LOGITS_RTOL * problem.logits.abs().max() + 1e-6


def _check_single_row(problem: Problem) -> None:
    """Refuse forward arguments that one image takes whole, with other logits than with its row: where no pass holds
    several images, nothing else tells whether their rows are those of the images."""
    try:
        logits = problem.model.logits(problem.inputs[:1], replace(problem.forward_args, by_row=frozenset()))
    except Exception:  # whatever a model raises, it takes one row
        return
    change = (logits - problem.logits[:1]).abs().max() if logits.shape == problem.logits[:1].shape else 0.0
    if change > _rounding(problem):
        message = "one image takes its forward arguments whole, and then has other logits than with one row of them"
        raise ModelOutputError(message, argument="model", hint=problem.forward_args.hint)


_MIXES = (
    "A model that mixes images (batch statistics, numbers quantised with the scale of a batch) can be explained with "
    "batch_size=1; one that takes batches of N images alone, by a function that fills them up and returns the first "
    "rows; nodes of one graph, as one input: attribute(lambda x: model(x[0])[node][None], x[None], batch_size=1)"
)
_SORTED = "images are passed in any order: call pack_padded_sequence or pack_sequence with enforce_sorted=False"


def _advice(problem: Problem) -> str:
    """What to do where rows belong together."""
    if problem.model.reads_sequences_first(problem.inputs):
        return SEQUENCE_FIRST
    return f"{problem.forward_args.hint}. {_MIXES}"


def _evaluate(problem: Problem, rows: Tensor, run: Callable[[Tensor, Tensor], Evaluated]) -> Evaluated:
    try:
        return run(problem.inputs[rows], rows)
    except (RuntimeError, ModelOutputError, IndexError) as error:
        if is_machine_error(error):
            raise
        without: FringeError | None = None
        if run != problem.forward and not isinstance(error, FringeError):
            with contextlib.suppress(Exception):  # of a model that does not take these images at all
                problem.forward(problem.inputs[rows], rows)
                without = NotDifferentiableError(
                    f"its outputs have no gradient ({first_line(error)})", argument="model", hint=WITHOUT_GRADIENTS
                )
        if without is not None:
            raise without from error
        if len(problem.inputs) == 1:
            raise
        try:
            problem.forward(problem.inputs, problem.every_row)
        except Exception:
            raise error from None  # it does not take all of them, either
        raise ModelOutputError(
            f"it takes {len(problem.inputs)} images, but not images {rows.tolist()} without the rest, in this order "
            f"({first_line(error).partition('. ')[0]})",
            argument="model",
            hint=_SORTED if "enforce_sorted" in str(error) else _advice(problem),
        ) from error


# -- derivatives ---------------------------------------------------------------------------------------------------


def _first_gradient(point: Linearisation, u: Tensor) -> Tensor:
    """``J^T u``; PyTorch's error for a model that has no backward pass does not say whose fault it is."""
    try:
        return point.vjp(u)
    except RuntimeError as error:
        if is_machine_error(error):
            raise
        text, hint = first_line(error).partition(" Hint:")[0], None
        if "inplace" in text:
            hint = "write y = y + 1 for y += 1, which overwrites what the backward pass needs"
        raise NotDifferentiableError(f"its backward pass fails ({text})", argument="model", hint=hint) from error


def _check_gradient(problem: Problem, row: Tensor, u: Tensor, gradient: Tensor) -> None:
    """Compare the gradient with finite differences: at the image, and if that is a kink, at points near it."""
    x = problem.inputs[row]
    span = x.max() - x.min()
    spread = torch.where(span > 0, 1e-3 * span, 0.1)  # an image of one colour: every maximum over pixels is a tie
    for attempt in range(3):
        if attempt:
            x = problem.inputs[row] + spread * problem.rng.normal(f"probe beside {attempt}", x)
            gradient = problem.linearise(x, row, tangents=False).vjp(u)
            if not bool(torch.isfinite(gradient).all() and (gradient != 0).any()):
                continue
        mismatch = _difference(problem, row, x, u, gradient)
        if mismatch is None:
            return
    first, second = (problem.forward(problem.inputs[row], row) for _ in range(2))
    if bool((first - second).abs().max() > 1e-5 * first.abs().max()):  # the model is random
        return
    difference, norm = mismatch  # pyright: ignore[reportPossiblyUnboundVariable] (the first attempt sets it)
    reason = "a backward hook or a custom autograd function changes the gradient"
    with contextlib.suppress(FringeError, RuntimeError), _Autocast(problem.inputs.device.type) as mode:
        problem.forward(problem.inputs[row], row)
        if mode.seen:
            reason = "it computes in half precision, by torch.autocast in its forward; switch that off"
    raise NotDifferentiableError(
        f"its gradient is not the derivative of its output: <J'u, v> = {norm:.6g}, and the output changes "
        f"by {difference:.6g} per unit along v. Perhaps {reason}",
        argument="model",
    )


def _difference(problem: Problem, row: Tensor, x: Tensor, u: Tensor, gradient: Tensor) -> tuple[float, float] | None:
    """The finite difference along the gradient and the norm of the gradient, or None if they agree.

    First in the model's own precision. If that does not agree at once, a copy of the module in double precision
    decides, with steps so short that they meet no kink; without one, the error of the difference itself is estimated
    and counts in the model's favour.
    """
    norm = float(gradient.double().norm())
    v = gradient.double() / norm

    def central(run: Callable[[Tensor], Tensor], size: float) -> tuple[float, float]:
        """The central difference, and the error that rounding makes in it."""
        dtype = torch.float64 if run is not forward else x.dtype
        values = [(run((x.double() + sign * size * v).to(dtype)).double() * u.double()).sum() for sign in (1, -1)]
        rounding = 8 * torch.finfo(dtype).eps * float(u.double().norm()) * scale
        return float(values[0] - values[1]) / (2 * size), rounding / size

    forward = partial(problem.forward, rows=row)
    scale = float(problem.logits[row].double().norm()) or 1.0
    length = float(x.double().norm()) or 1.0
    double = x.dtype == torch.float64
    change = scale * float(u.double().norm()) / norm  # along v, the output changes by as much as it is large
    short = min(1e-6 * change, 1e-7 * length)  # else a weak output, whose change is far off, meets kinks on the way
    size = short if double else min(1e-4 * change, 1e-2 * length)
    estimate, rounding = central(forward, size)
    if abs(estimate - norm) <= DIFFERENCE_RTOL / 2 * norm:
        return None
    exact = None if double else _double_copy(problem, row)
    if exact is not None:
        estimate, rounding = central(exact, short)
        error = rounding
    else:
        # long enough that rounding hides no error of a percent
        size = size if double else min(10 * size, 1e-2 * length)
        (estimate, rounding), (shorter, more) = central(forward, size), central(forward, size / 2)
        error = 2 * abs(estimate - shorter) + rounding + more
    if abs(estimate - norm) <= DIFFERENCE_RTOL * norm + error:
        return None
    return estimate, norm


def _double_copy(problem: Problem, row: Tensor) -> Callable[[Tensor], Tensor] | None:
    """The module in double precision, or None if that is impossible."""
    model = problem.model
    if model.module is None:
        return None
    if sum(parameter.numel() for parameter in model.module.parameters()) > MAX_COPY:
        return None
    with contextlib.suppress(Exception):  # single precision then decides
        twin = copy.copy(model)
        twin.model = twin.module = copy.deepcopy(model.module).double()
        arguments = problem.forward_args.select(row).double()

        def run(x: Tensor) -> Tensor:
            return twin.logits(x, arguments)

        if bool(torch.isfinite(run(problem.inputs[row].double())).all()):
            return run
    return None


class _Autocast(TorchFunctionMode):
    """Detects whether any operation runs under autocast."""

    def __init__(self, device: str):
        super().__init__()
        self.device, self.seen = device, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = self.seen or torch.is_autocast_enabled(self.device)
        return func(*args, **(kwargs or {}))


def _check_jvp(problem: Problem, point: Linearisation, u: Tensor, gradient: Tensor, *, required: bool) -> None:
    """Refuse a model whose Jacobian-vector products are wrong or missing, or do without them: compare ``<u, J v>`` with
    ``<J^T u, v>`` for v along J^T u, where that product is no small sum of large terms."""
    v = gradient / gradient.double().norm().to(gradient.dtype)
    try:
        column = point.jvp(v)
        if problem.model.jvp_mode == "double_backward" and not _adjoint_holds(u, column, gradient, v):
            point.use_forward_mode("its backward pass is not linear in what comes back, or drops part of it")
            column = point.jvp(v)
        if _adjoint_holds(u, column, gradient, v):
            return
        left, right = (u * column).sum(), (gradient * v).sum()
        raise NotDifferentiableError(
            f"its forward and backward derivatives disagree (<u, Jv> = {left.item():.6g}, <J'u, v> = "
            f"{right.item():.6g}). A custom autograd function or a detached operation gives one of them wrong",
            argument="model",
            # forward mode takes the output of an operation of torch.library for a constant, without a word
            hint=f"if the model has operations of torch.library, which have no forward derivative, {WITHOUT_JVP}",
        )
    except NotDifferentiableError:
        if required:
            raise
    problem.model.jvp_mode = "none"
    warn_caller(
        "the model's Jacobian-vector products are missing or wrong; the map does not need them: the length of the "
        "first step is estimated"
    )


def _adjoint_holds(u: Tensor, jv: Tensor, ju: Tensor, v: Tensor) -> bool:
    """Whether ``<u, J v> = <J^T u, v>``, up to rounding of the sums."""
    left, right = (u.double() * jv.double()).sum(), (ju.double() * v.double()).sum()
    rounding = 100 * torch.finfo(jv.dtype).eps * u.double().norm() * jv.double().norm()
    return bool((left - right).abs() <= ADJOINT_RTOL * right.abs() + rounding)


def _check_long_step(problem: Problem) -> None:
    """Warn where the integral of the gradient over a long step is not the change of the score."""
    part = problem.select(range(min(len(problem.inputs), MAX_PROBES)))
    part = replace(part, target=part.target.view(len(part.inputs), -1)[:, 0], contrast=None, score_kind="logit")
    x, rows = part.inputs, part.every_row

    def evaluate(point: Tensor) -> tuple[Tensor, Tensor]:
        logits, gradient = part.logits_gradient(point, rows)
        return part.score(logits, rows).double(), gradient

    score, gradient = evaluate(x)
    flat = x.double().flatten(1)
    spread = (flat - flat.mean(1, keepdim=True)).norm(dim=1)
    size = LONG_STEP * torch.where(spread > 0, spread, flat.norm(dim=1).clamp_min(1.0))
    size = size / gradient.double().flatten(1).norm(dim=1).clamp_min(torch.finfo(x.dtype).tiny)
    step = gradient * -size.to(x).view(-1, *[1] * (x.dim() - 1))

    def slope(gradient: Tensor) -> Tensor:
        return (gradient.double() * step.double()).flatten(1).sum(1)

    slopes, change, integral, doubt = {0.0: slope(gradient)}, torch.zeros_like(score), score, score
    for panels in (1, 2, 4):  # Simpson's rule, and with more points where the network is curved, or a branch is missing
        shares = [k / (2 * panels) for k in range(2 * panels + 1)]
        for share in shares:
            if share not in slopes:
                end, gradient = evaluate(x + share * step)
                slopes[share], change = slope(gradient), end - score if share == 1.0 else change
        values = torch.stack([slopes[share] for share in shares])
        integral = _simpson(values)
        doubt = (integral - _simpson(values[::2])).abs() if panels > 1 else torch.zeros_like(integral)
        scale = torch.maximum(change.abs(), integral.abs())
        left = (change - integral).abs() / scale.clamp_min(LOGITS_RTOL * float(problem.logits.abs().max()) + 1e-6)
        if not bool((left > UNEXPLAINED).any()):
            return
    wrong = (left > UNEXPLAINED) & (doubt <= UNCERTAIN * scale)  # pyright: ignore[reportPossiblyUnboundVariable]
    if bool(wrong.any()):
        image = int(wrong.nonzero()[0])
        warn_caller(
            f"the gradient misses part of what the model computes: along it the score of image {image} changes by "
            f"{float(change[image]):.3g}, and the gradient explains {float(integral[image]):.3g}. Look for .detach(), "
            "rounding, integers or torch.where in its forward; maps of gradients say nothing of such a branch"
        )


def _simpson(values: Tensor) -> Tensor:
    """The integral over a unit interval of a function with these ``values`` (2 n + 1, B) at equal distances."""
    weights = values.new_tensor([1, *[4, 2] * (len(values) // 2 - 1), 4, 1])
    return torch.einsum("n,nb->b", weights / weights.sum(), values)


def _refuse_flat(problem: Problem, row: Tensor, value: Tensor) -> None:
    """A zero gradient is right for a constant model, wrong if the output changes: rounding, argmax, lookups."""
    x = problem.inputs[row]
    span = (x.max() - x.min()).clamp_min(1.0)
    probe = KeyedGenerator(0).normal("flatness probe", x)
    steps = [x + size * span * probe for size in (-5.0, -0.5, -0.05, 0.05, 0.5, 5.0)]
    changed = [z for z in steps if bool((problem.forward(z, row) != value).any())]
    # a black image lies on a kink of every ReLU without bias, with non-zero gradients all around it
    if changed and all(bool((problem.logits_gradient(z, row)[1] == 0).all()) for z in changed):
        raise NotDifferentiableError(
            "its output changes with the input but its gradient is exactly zero (rounding, quantisation, "
            "argmax, or a detached branch)",
            argument="model",
            hint=WITHOUT_GRADIENTS,
        )
