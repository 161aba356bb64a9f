"""Every method of this library as an attribution of Captum."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fringe._arguments import ForwardArguments
from fringe._network import BatchSize
from fringe.attribution import Attributor, attribute, get_method
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Score
from fringe.errors import InputError, TargetError, install_hint, require_integer
from fringe.settings import settings_of

try:
    from captum.attr import GradientAttribution
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"fringe.captum needs {error.name}, which is not installed; {install_hint('captum')}", name=error.name
    ) from error

__all__ = ["CaptumAttributor"]

Tensors = Tensor | tuple[Tensor, ...]
Baselines = float | Tensor | tuple[float | Tensor, ...] | None
Target = int | tuple[int, ...] | list[int] | list[tuple[int, ...]] | Tensor | None

P = ParamSpec("P")
R = TypeVar("R")


def _wrapped(function: Callable[P, R]) -> Callable[P, R]:
    """Captum's NoiseTunnel calls ``attribute.__wrapped__``: all methods of Captum have a decorator."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


class CaptumAttributor(GradientAttribution):
    """A method as a ``captum.attr.Attribution``.

    It serves wherever Captum takes an attribution: in a ``NoiseTunnel``, and by ``attribute`` in ``captum.metrics``.

    Args:
        forward_func: The classifier ``forward_func(x, *additional_forward_args)``, or a :class:`fringe.Classifier`,
            which has its own score and batch size.
        method: Name of a method, or a configured one.
        score: The explained scalar, as for :class:`fringe.Classifier`.
        batch_size: Bound on the images of one pass, as for :class:`fringe.Classifier`.
        seed: Seed of everything that is random.
        space: The space of valid inputs.
        multiplies_by_inputs: Value of Captum's attribute of this name: True for maps of contributions, in units of
            the score; False for a method whose maps are gradients.

    Raises:
        InputError: For an unknown method or an invalid argument.
    """

    def __init__(
        self,
        forward_func: Callable[..., Any] | Classifier,
        method: str | Attributor = "fringe",
        *,
        score: Score | None = None,
        batch_size: int | Literal["auto"] | None = None,
        seed: int = 0,
        space: InputSpace | None = None,
        multiplies_by_inputs: bool = True,
    ):
        self._classifier = Classifier.of(forward_func, score, batch_size)
        super().__init__(self._classifier.model)
        self._method, self._seed, self._space = get_method(method), seed, space
        self._multiplies_by_inputs = multiplies_by_inputs

    @property
    def multiplies_by_inputs(self) -> bool:
        """Whether maps are contributions, not gradients."""
        return self._multiplies_by_inputs

    def has_convergence_delta(self) -> bool:
        """Tell whether the method's maps claim to add up.

        Returns:
            False for a method whose delta is NaN.
        """
        return self._method.is_complete

    @_wrapped
    def attribute(
        self,
        inputs: Tensors,
        baselines: Baselines = None,
        target: Target = None,
        additional_forward_args: object = None,
        return_convergence_delta: bool = False,
        *,
        n_steps: int | None = None,
        internal_batch_size: int | None = None,
    ) -> Tensors | tuple[Tensors, Tensor]:
        """Compute attribution maps.

        Args:
            inputs: Images (B, *S), a tensor or a tuple of one.
            baselines: A number or a tensor that broadcasts to the inputs; None for the setting of the method.
            target: One class, or one per image. None is the class that the model predicts for each input *of this
                call*: in a NoiseTunnel or a metric that is a perturbed input, so give the class there.
            additional_forward_args: Further arguments of the model. As in Captum, a tensor whose first axis is as long
                as the batch belongs to the images, row by row; everything else is passed unchanged, and so is
                ``fringe.Shared(value)``.
            return_convergence_delta: Whether the completeness gap is returned as well.
            n_steps: Replaces ``steps`` of a method that has this setting.
            internal_batch_size: Bound on the images of one pass, in place of ``batch_size`` for this call.

        Returns:
            Maps (B, *S), in a tuple if the inputs were in one; and the gap (B,): the map's sum, minus the score at the
            input, plus the score where the path of the method ended, which is at ``baselines`` only if the path goes
            there.

        Raises:
            InputError: For inputs or baselines that the method does not take.
            TargetError: If the target does not name one class per image.
        """
        x = _single(inputs, "inputs")
        classes = _classes(target, x)
        result = attribute(
            self._bounded(internal_batch_size),
            x,
            method=self._method if n_steps is None else self._with_steps(n_steps),
            target="predicted" if classes is None else classes,
            seed=self._seed,
            baseline=self._baseline(baselines),
            space=self._space,
            forward_args=_arguments(additional_forward_args),
        )
        maps = (result.values,) if isinstance(inputs, tuple) else result.values
        if not return_convergence_delta:
            return maps
        return maps, result.completeness_gap.to(result.values.dtype)

    def attribute_future(self) -> None:
        """Raise NotImplementedError: there are no asynchronous maps."""
        raise NotImplementedError("attribute_future is not implemented: the maps are computed when they are asked for")

    def compute_convergence_delta(
        self,
        attributions: Tensors,
        start_point: Baselines,
        end_point: Tensors,
        target: Target = None,
        additional_forward_args: object = None,
    ) -> Tensor:
        """Compute ``sum(attributions) - (F(end_point) - F(start_point))``, with F the explained score of the target.

        Args:
            attributions: Maps (B, *S).
            start_point: A number or a tensor that broadcasts to ``end_point``; None for zero.
            end_point: Images (B, *S).
            target: As for :meth:`attribute`.
            additional_forward_args: As for :meth:`attribute`.

        Returns:
            The difference (B,).

        Raises:
            InputError: If there is not one tensor of maps or images.
            TargetError: If the target does not name one class per image.
        """
        values, end = _single(attributions, "attributions"), _single(end_point, "end_point")
        end = end.float() if end.dtype in (torch.float16, torch.bfloat16) else end  # as the model is
        start = _first(0.0 if start_point is None else start_point, "start_point")
        start = torch.as_tensor(start, dtype=end.dtype, device=end.device).expand_as(end)
        classes, classifier = _classes(target, end), self._classifier
        arguments = ForwardArguments.of(len(end), _arguments(additional_forward_args))
        logits, first = classifier.logits(end, arguments), classifier.logits(start, arguments)
        chosen = classifier.resolve_target("predicted" if classes is None else classes, logits)
        change = classifier.score(logits, chosen) - classifier.score(first, chosen)
        return values.flatten(1).sum(1) - change.to(values.dtype)

    def _bounded(self, images: int | None) -> Classifier:
        """The classifier, or one that differs in its batch size; they count passes together."""
        if images is None:
            return self._classifier
        require_integer("internal_batch_size", images)
        bounded = copy.copy(self._classifier)
        bounded.batch_size = BatchSize(images)
        return bounded

    def _with_steps(self, steps: int) -> Attributor:
        known = settings_of(type(self._method))
        if "steps" not in known:
            raise InputError(
                f"the method {self._method.name!r} has no number of steps",
                argument="n_steps",
                hint=f"give it its own settings, as in {type(self._method).__name__}({next(iter(known))}=...); its "
                f"settings: {', '.join(known)}",
            )
        require_integer("n_steps", steps)
        return dataclasses.replace(cast(Any, self._method), steps=steps)

    def _baseline(self, baselines: Baselines) -> float | Tensor | None:
        if baselines is None:
            return None
        if not self._method.accepts_baseline:
            raise InputError(
                f"the method {self._method.name!r} has no setting 'baseline', its paths begin elsewhere",
                argument="baselines",
                hint="leave them out (reference images are given as space=InputSpace(references=...))",
            )
        return _first(baselines, "baselines")


def _arguments(value: object) -> tuple[Any, ...]:
    """Captum's further arguments as a tuple; one that is not in a tuple is one argument."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _first(value: Any, name: str) -> Any:
    """The item of a tuple of one."""
    if not isinstance(value, tuple):
        return value
    if len(value) != 1:
        raise InputError(
            f"got a tuple of {len(value)}, expected one tensor: paths and their geometry live in the space of one "
            "input. Pass what else the model takes as additional_forward_args, or wrap it to take one tensor",
            argument=name,
        )
    return value[0]


def _single(value: Tensors, name: str) -> Tensor:
    tensor = _first(value, name)
    if not isinstance(tensor, Tensor) or tensor.dim() < 2:
        shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InputError(f"got {shape}, expected a tensor (B, *S) or a tuple of one", argument=name)
    return tensor


def _classes(target: Target, x: Tensor) -> Tensor | None:
    """One class per image (B,), or None for the predicted ones."""
    if target is None:
        return None
    items = target if isinstance(target, (list, tuple)) else ()
    if isinstance(target, tuple) or any(isinstance(item, tuple) for item in items):
        raise TargetError(
            f"got {target!r}; a tuple picks an entry of an output with more than two axes, and a classifier's logits "
            "(B, C) take an integer: one class, or a list or tensor of one per image",
            argument="target",
        )
    try:
        classes = torch.as_tensor(target, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        expected = "expected one class, or a list or tensor of one per image; None explains what is predicted"
        raise TargetError(f"got {target!r}, {expected}", argument="target") from error
    if classes.numel() == 1:
        return classes.reshape(1).expand(len(x))
    if tuple(classes.shape) != (len(x),):
        raise TargetError(
            f"got shape {tuple(classes.shape)} for {len(x)} images, expected one class per image", argument="target"
        )
    return classes
