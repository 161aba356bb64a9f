"""Every method of this library as an attribution of Captum."""

import copy
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, TypeVar, cast

import torch
from torch import Tensor, nn

from fringe._network.arguments import explained_inputs
from fringe._network.passes import BatchSize
from fringe.attribution import Attributor, attribute, get_method
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Score
from fringe.errors import InputError, TargetError, install_hint, require_choice, require_integer
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

#: Captum's quadrature rules by the names that they have here. Our trapezoid loses no share of the map.
RULES = {
    "gausslegendre": "gausslegendre",
    "riemann_left": "left",
    "riemann_middle": "midpoint",
    "riemann_right": "right",
    "riemann_trapezoid": "trapezoid",
}


def _wrapped(function: Callable[P, R]) -> Callable[P, R]:
    """Captum's NoiseTunnel calls ``attribute.__wrapped__``: all methods of Captum have a decorator."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(*args, **kwargs)

    return call


class CaptumAttributor(GradientAttribution):
    """A method as a ``captum.attr.Attribution``.

    It serves wherever Captum takes an attribution: in a ``NoiseTunnel``, and by ``attribute`` in ``captum.metrics``.

    As in Captum, the explained number is the output of the target as the model gives it: a logit, a probability or, of
    a model with one number for each input, that number. A method that needs a distribution over classes, such as
    FRInGe, takes logits.

    Args:
        forward_func: The model ``forward_func(*inputs, *additional_forward_args)``, or a :class:`fringe.Classifier`,
            which has its own score and batch size.
        method: Name of a method, or a configured one.
        score: Another explained scalar of a model that returns logits, as for :class:`fringe.Classifier`.
        batch_size: Bound on the images of one pass, as for :class:`fringe.Classifier`.
        seed: Seed of everything that is random.
        space: The space of valid inputs.
        multiplies_by_inputs: Value of Captum's attribute of this name: True for maps of contributions, in units of
            the score; False for a method whose maps are gradients or have no units. None asks the method.

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
        multiplies_by_inputs: bool | None = None,
    ):
        self._method, self._seed, self._space = get_method(method), seed, space
        needs_classes = self._method.needs_classes or self._method.innermost.needs_classes
        if isinstance(forward_func, Classifier) or needs_classes or score is not None:
            self._classifier = Classifier.of(forward_func, score, batch_size)
        else:
            self._classifier = Classifier(forward_func, output="numbers", batch_size=batch_size or "auto")
        super().__init__(self._classifier.model)
        given = multiplies_by_inputs
        self._multiplies_by_inputs = self._method.is_complete if given is None else given

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
        method: str | None = None,
        internal_batch_size: int | None = None,
        feature_mask: Tensors | None = None,
        sliding_window_shapes: tuple[int, ...] | tuple[tuple[int, ...], ...] | None = None,
        strides: int | tuple[int | tuple[int, ...], ...] | None = None,
    ) -> Tensors | tuple[Tensors, Tensor]:
        """Compute attribution maps.

        Args:
            inputs: A tensor (B, *S) or (B,), or a tuple of tensors, which are explained together by one path of them
                all.
            baselines: A number or a tensor that broadcasts to the inputs, or a tuple of these with one for each; None
                for the setting of the method.
            target: One class, or one per image; of an output (B, ..., C), as for each word of a text, a tuple of the
                positions and the class, or a list of one tuple per image. None is the class that the model
                predicts for each input *of this call*: in a NoiseTunnel or a metric that is a perturbed input, so give
                the class there.
            additional_forward_args: Further arguments of the model. As in Captum, a tensor whose first axis is as long
                as the batch belongs to the images, row by row; everything else is passed unchanged, and so is
                ``fringe.Shared(value)``.
            return_convergence_delta: Whether the completeness gap is returned as well.
            n_steps: Replaces ``steps`` of a method that has this setting.
            method: Captum's name of a quadrature rule, such as ``"riemann_middle"``; it replaces ``rule`` of a method
                that has this setting.
            internal_batch_size: Bound on the images of one pass, in place of ``batch_size`` for this call.
            feature_mask: Numbers of features, as for :func:`fringe.attribute`.
            sliding_window_shapes: Replaces ``window`` of ``captum:occlusion``: the sides along all axes, or for several
                tensors a tuple of these.
            strides: Replaces ``stride`` of it, in this form, or as one number; with windows None is 1, as in Captum.

        Returns:
            Maps in the form of the inputs; and the gap (B,): the maps' sum, minus the score at the input, plus the
            score where the path of the method ended, which is at ``baselines`` only if the path goes there.

        Raises:
            InputError: For inputs or baselines that the method does not take.
            TargetError: If the target does not name one class per image.
        """
        given = _tuple(inputs, "inputs")
        if method is not None:
            require_choice("method", method, tuple(RULES))
        entries, classes = _entries(target, given[0])
        model = self._bounded(internal_batch_size)
        result = attribute(
            model if entries is None else _of_entries(model),
            given,
            method=self._with(
                n_steps=n_steps,
                method=RULES[method] if method is not None else None,
                sliding_window_shapes=_along_axes(sliding_window_shapes, given),
                strides=_along_axes(1 if strides is None and sliding_window_shapes else strides, given),
            ),
            feature_mask=(feature_mask,) if isinstance(feature_mask, Tensor) else feature_mask,
            target="predicted" if classes is None else classes,
            seed=self._seed,
            baseline=self._baseline(baselines, given),
            space=self._space,
            forward_args=(*_arguments(additional_forward_args), *(() if entries is None else (entries,))),
        )
        maps: Any = result.maps if isinstance(inputs, tuple) else cast(Any, result.maps)[0]
        if not return_convergence_delta:
            return maps
        return maps, self._delta(result.values, result.score - result.endpoint_score)

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
            attributions: Maps, in the form of ``end_point``.
            start_point: A number or a tensor that broadcasts to ``end_point``, or a tuple of these; None for zero.
            end_point: A tensor (B, *S) or (B,), or a tuple of tensors.
            target: As for :meth:`attribute`.
            additional_forward_args: As for :meth:`attribute`.

        Returns:
            The difference (B,).

        Raises:
            InputError: If maps, points and their numbers of tensors do not fit.
            TargetError: If the target does not name one class per image.
        """
        values, given = _tuple(attributions, "attributions"), _tuple(end_point, "end_point")
        entries, classes = _entries(target, given[0])
        further = (*_arguments(additional_forward_args), *(() if entries is None else (entries,)))
        end, arguments = explained_inputs(given, further, None)
        start = _each(0.0 if start_point is None else start_point, given)
        start = arguments.joined(start, end, (len(end),), "start_point")
        classifier = self._classifier if entries is None else _of_entries(self._classifier)
        logits, first = classifier.logits(end, arguments), classifier.logits(start, arguments)
        chosen = classifier.resolve_target("predicted" if classes is None else classes, logits)
        change = classifier.score(logits, chosen) - classifier.score(first, chosen)
        maps = arguments.joined(values, end, (len(end),), "attributions")
        return self._delta(maps, change)

    def _delta(self, values: Tensor, change: Tensor) -> Tensor:
        """The sums (B,) of maps (B, *S) as they are returned, minus the change of the score."""
        with self._classifier.session(values.device):
            return (values.flatten(1).sum(1, dtype=torch.float64) - change.double()).to(values.dtype)

    def _bounded(self, images: int | None) -> Classifier:
        """The classifier, or one that differs in its batch size; they count passes together."""
        if images is None:
            return self._classifier
        require_integer("internal_batch_size", images)
        bounded = copy.copy(self._classifier)
        bounded.batch_size = BatchSize(images)
        return bounded

    def _with(self, **given: Any) -> Attributor:
        """The method with these settings of a call, by Captum's names for them; None for the method's own."""
        words = {"n_steps": "steps", "method": "rule", "sliding_window_shapes": "window", "strides": "stride"}
        nouns = {"n_steps": "number of steps", "method": "quadrature rule"}
        known = settings_of(type(self._method))
        given = {name: value for name, value in given.items() if value is not None}
        for name in given:
            if words[name] not in known:
                raise InputError(
                    f"the method {self._method.name!r} has no {nouns.get(name, 'window')}",
                    argument=name,
                    hint=f"give it its own settings, as in {type(self._method).__name__}({next(iter(known))}=...); its "
                    f"settings: {', '.join(known)}",
                )
        if "n_steps" in given:
            require_integer("n_steps", given["n_steps"])
        return dataclasses.replace(cast(Any, self._method), **{words[name]: value for name, value in given.items()})

    def _baseline(self, baselines: Baselines, given: tuple[Tensor, ...]) -> tuple[float | Tensor, ...] | None:
        if baselines is None:
            return None
        if not self._method.accepts_baseline:
            raise InputError(
                f"the method {self._method.name!r} has no setting 'baseline', its paths begin elsewhere",
                argument="baselines",
                hint="leave them out (reference images are given as space=InputSpace(references=...))",
            )
        return _each(baselines, given)


def _arguments(value: object) -> tuple[Any, ...]:
    """Captum's further arguments as a tuple; one that is not in a tuple is one argument."""
    return value if isinstance(value, tuple) else () if value is None else (value,)


def _tuple(value: Tensors, name: str) -> tuple[Tensor, ...]:
    """The tensors of a call, a single one in a tuple of one."""
    tensors = value if isinstance(value, tuple) else (value,)
    for tensor in cast(tuple[object, ...], tensors):
        if not isinstance(tensor, Tensor) or not tensor.dim():
            came = "a tensor without axes" if isinstance(tensor, Tensor) else type(tensor).__name__
            raise InputError(f"got {came}, expected a tensor (B, *S) or a tuple of them", argument=name)
    return tensors


def _each(value: float | Tensor | tuple[float | Tensor, ...], given: tuple[Tensor, ...]) -> tuple[float | Tensor, ...]:
    """One value for each tensor; a value that is not in a tuple is that of all of them."""
    return value if isinstance(value, tuple) else (value,) * len(given)


def _along_axes(value: Any, given: tuple[Tensor, ...]) -> Any:
    """Captum's sides or steps of a window as a tuple for each tensor; None stays."""
    several = isinstance(value, tuple) and (len(given) > 1 or isinstance(value[0], tuple))
    each: tuple[Any, ...] = value if several else (value,) * len(given)
    wide = (v if isinstance(v, tuple) else (v,) * max(1, x.dim() - 1) for v, x in zip(each, given, strict=False))
    return None if value is None else tuple(wide)


class _Entry(nn.Module):
    """A model whose output (B, ..., C) is read at the positions of each image, which are its last argument (B, k)."""

    def __init__(self, model: Callable[..., Any]):
        super().__init__()
        self.model, self.training = model, isinstance(model, nn.Module) and model.training

    def forward(self, *args: Any) -> Tensor:
        """Return the output (B, C) at the positions."""
        *inputs, positions = args
        output: Tensor = self.model(*inputs)
        if output.dim() != positions.shape[1] + 2:
            axes = (
                f"{positions.shape[1]} positions and a class pick nothing of an output of shape {tuple(output.shape)}"
            )
            raise TargetError(axes, argument="target")
        return output[(torch.arange(len(output), device=output.device), *positions.unbind(1))]


def _of_entries(classifier: Classifier) -> Classifier:
    """The classifier of the entries of its model's output; they do not count passes together."""
    score, output = classifier.score_function or classifier.score_kind, classifier.choose_output or classifier.output
    picked = Classifier(_Entry(classifier.model), score=score, output=output, mode=classifier.mode)
    picked.batch_size = classifier.batch_size
    return picked


def _entries(target: Target, x: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The positions (B, k) that tuples name, None without tuples, and the classes (B,)."""
    rows: list[Any] = [target] * len(x) if isinstance(target, tuple) else target if isinstance(target, list) else []
    if not any(isinstance(row, tuple) for row in rows):
        return None, _classes(target, x)
    try:
        places = torch.tensor(rows, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"got {target!r}, expected a tuple of whole numbers, or a list of tuples of one length, one per image"
        raise TargetError(message, argument="target") from error
    return places[:, :-1] if places.shape[1] > 1 else None, _classes(places[:, -1], x)


def _classes(target: Target, x: Tensor) -> Tensor | None:
    """One class per image (B,), or None for the predicted ones."""
    if target is None:
        return None
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
