"""The problem that a method solves: images, the classes to explain, and the model."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fringe._network.arguments import NO_ARGUMENTS, ForwardArguments, is_joint
from fringe._network.cuda_graphs import CUDAGraphs
from fringe._numbers.float64 import float64_on
from fringe._numbers.rng import KeyedGenerator, content_hash
from fringe.baselines import ANY_INPUT, InputSpace, make_baseline
from fringe.classifier import Classifier, Linearisation, Score, Target
from fringe.errors import InputError, TargetError, is_machine_error, require
from fringe.geometry import Jacobian, log_probabilities
from fringe.linalg import Structure

#: Times the resolution of the dtype: what rounding makes of the mean or blur of an image of one colour.
ROUNDING = 16
#: Called with (steps done, steps planned), summed over the images of the call.
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Problem:
    """B images to explain, and the only access of a method to the model.

    Points at which the model is evaluated come with the ``rows`` (L,) of the images that they belong to. So the
    explained classes and the further arguments of the model follow the points, in any order and number.

    Attributes:
        model: The classifier.
        inputs: Images (B, *S).
        logits: Their logits (B, C).
        target: The explained class (B,) of each image.
        contrast: Classes (B,) that the targets are compared with: the difference of the scores is explained.
        ids: Names (B) of the images, which key their random numbers; None: hashes of their contents.
        rng: Source of random numbers.
        domain: Valid range, baselines and reference images of the input space.
        baseline: Baseline (B, *S) given by the caller.
        feature_mask: Numbers (B, *S) of features, whose entries a method by perturbation replaces together.
        probe: Whether maps are compared with occlusion.
        record_path: Whether to record the path of each image; an integer: with this many of its points as images.
        progress: Called with the steps done and planned.
        forward_args: Further arguments of the model.
        score_kind: The explained score, if it is not the classifier's own.
        rows: The numbers of these B images in the call, if some were left out.
        total: Number of images of the call.
        token_length: If the inputs are texts: the length of a token's embedding, which the model states.
        lengths: Samples or tokens (B) of each series or text, without its padding; None if nothing is padded.
        padding: Samples or tokens that :meth:`without_padding` left out.
    """

    model: Classifier
    inputs: Tensor
    logits: Tensor
    target: Tensor
    contrast: Tensor | None = None
    ids: tuple[str, ...] | None = None
    rng: KeyedGenerator = field(default_factory=KeyedGenerator)
    domain: InputSpace = ANY_INPUT
    baseline: Tensor | None = None
    feature_mask: Tensor | None = None
    probe: bool = False
    record_path: bool | int = False
    progress: Progress | None = None
    forward_args: ForwardArguments = NO_ARGUMENTS
    score_kind: Score | None = None
    rows: tuple[int, ...] | None = None
    total: int | None = None
    token_length: float | None = None
    lengths: tuple[int, ...] | None = None
    padding: int = 0

    @classmethod
    def of(
        cls,
        model: Classifier,
        inputs: Tensor,
        *,
        target: Target = "predicted",
        contrast: int | Sequence[int] | Tensor | None = None,
        forward_args: ForwardArguments = NO_ARGUMENTS,
        **fields: Any,
    ) -> "Problem":
        """Evaluate the model at ``inputs`` (B forward passes) and resolve the classes.

        Args:
            model: The classifier.
            inputs: Images (B, *S).
            target: ``"predicted"``, an integer, or one integer per image.
            contrast: An integer, or one per image.
            forward_args: Further arguments of the model.
            **fields: Other fields of the problem.

        Returns:
            The problem of these images.

        Raises:
            TargetError: If a target or contrast is no class of the model, or both are the same.
            InputError: If ``inputs`` have no batch axis.
        """
        if (domain := fields.pop("domain", None)) is not None:
            fields["domain"] = _joined_space(domain, forward_args, inputs)
        logits = _first_logits(lambda x: model.logits(x, forward_args, as_given=True), inputs)
        classes = model.resolve_target(target, torch.nan_to_num(logits))
        other = None if contrast is None else model.resolve_target(contrast, logits, "contrast")
        if other is not None:
            if other.dim() < classes.dim():
                other = other[:, None].expand_as(classes)
            if other.shape != classes.shape:
                shapes = f"got shape {tuple(other.shape)} for targets of shape {tuple(classes.shape)}"
                hint = (
                    "for rows of zeros and ones pass contrast=rows.argmax(1)" if other.shape == logits.shape else None
                )
                raise TargetError(shapes, argument="contrast", hint=hint)
            if bool((other == classes).any()):
                same = (other == classes).nonzero()[0].tolist()
                message = f"class {int(other[tuple(same)])} is the target of image {same[0]} itself"
                raise TargetError(message, argument="contrast")
        token = None if is_joint(forward_args.parts) else token_length_of(model)
        lengths = fields.pop("lengths", None)
        if token is not None and lengths is None and "attention_mask" in forward_args.kwargs:
            mask = forward_args.kwargs["attention_mask"].bool()  # its last token, wherever the padding is
            lengths = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)
        if lengths is not None and is_joint(forward_args.parts):
            hint = "explain the padded series alone, with the other tensors as forward_args or forward_kwargs"
            raise InputError("got lengths of series for several tensors", argument="lengths", hint=hint)
        fields |= {"forward_args": forward_args, "token_length": token}
        if lengths is not None:
            fields["lengths"] = _lengths(lengths, inputs, token)
        if forward_args.parts:
            fields["rng"] = replace(fields.pop("rng", KeyedGenerator()), places=forward_args.by_name)
        return cls(model, inputs, logits, classes, other, **fields)

    # -- evaluations of the model: points ``x`` (L, *S) belong to the images ``rows`` (L,) ----------------------------

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        """Evaluate the logits without a graph, in chunks of the batch size: L forward passes.

        Args:
            x: Points (L, *S).
            rows: Images (L,) that they belong to.

        Returns:
            Logits (L, C).
        """
        return self.model.logits(x, self.forward_args.select(rows))

    def logits_gradient(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Evaluate the logits and the gradient of the explained score, in chunks: L forward passes and L VJPs.

        Args:
            x: Points (L, *S).
            rows: Images (L,) that they belong to.

        Returns:
            Logits (L, C) and gradients (L, *S), or (L, K, *S) of K classes.
        """

        def parts(problem: Problem, of: Tensor, part: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
            point = problem.linearise(part, of, tangents=False)
            yield point.value, problem.score_gradient(point, point.value, of)

        def evaluate(part: Tensor, of: Tensor) -> tuple[Tensor, Tensor]:
            return next(self.call(parts, "gradient", of, part))

        with self.model.session(x.device):
            return self.model.batch_size.map(evaluate, x, rows)

    @property
    def graphs(self) -> CUDAGraphs | None:
        """The CUDA graphs of the model, where its calls may be recorded."""
        graphs = self.model.graphs
        serve = graphs is not None and self.inputs.device.type in graphs.devices and self.forward_args == NO_ARGUMENTS
        return graphs if serve else None

    def call(
        self, function: Callable[..., Iterator[Any]], name: object, rows: Tensor, *arguments: Any
    ) -> Iterator[Any]:
        """Call a function of points, by its CUDA graphs where the model has some.

        It then gets a problem whose images are these rows, and which says nothing but their classes.

        Args:
            function: Takes a problem, images (L,) of it, and the arguments; yields results part after part.
            name: Equal for functions that do the same.
            rows: Images (L,).
            *arguments: Trees of tensors with L rows, see :data:`fringe._network.cuda_graphs.Parts`.

        Returns:
            What it yields.
        """
        given, graphs = (self._classes(rows), *arguments), self.graphs

        def of_rows(classes: tuple[Tensor, Tensor | None], *arguments: Any) -> Iterator[Any]:
            problem = replace(self, target=classes[0], contrast=classes[1])
            yield from function(problem, torch.arange(len(classes[0]), device=rows.device), *arguments)

        if graphs is None:
            return function(self, rows, *arguments)
        return graphs.call(self.model, of_rows, (name, self.score_kind or self.model.score_kind), given)

    def linearise(self, x: Tensor, rows: Tensor, *, tangents: bool = True, smooth: bool = False) -> Linearisation:
        """Expand the logits to first order, not in chunks.

        Args:
            x: Points (L, *S).
            rows: Images (L,) that they belong to.
            tangents: Whether JVPs will be needed.
            smooth: Whether products may take smooth slopes of rectifiers.

        Returns:
            The expansion: see :meth:`fringe.Classifier.linearise`. The first one of a single image may be that of the
            check of the model.
        """
        known, self.model.verified_point = self.model.verified_point, None
        if known is not None and self.forward_args == NO_ARGUMENTS and known.renew(self.model, x, tangents, smooth):
            return known
        arguments = self.forward_args.select(rows)
        return self.model.linearise(x, tangents=tangents, arguments=arguments, smooth=smooth)

    def score(self, logits: Tensor, rows: Tensor | None = None, kind: Score | None = None) -> Tensor:
        """Compute the explained scalar.

        Args:
            logits: Logits (L, C).
            rows: Images (L,) that they belong to; None: all images.
            kind: Another scalar than the explained one.

        Returns:
            Scores (L,), or (L, K) of K classes.
        """
        return self.model.score(logits, *self._classes(rows), kind or self.score_kind)

    def score_cotangent(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the gradient of :meth:`score` in the logits.

        Args:
            logits: Logits (L, C).
            rows: Images (L,) that they belong to; None: all images.

        Returns:
            Gradients (L, C), or (L, K, C) of K classes.
        """
        return self.model.score_cotangent(logits, *self._classes(rows), self.score_kind)

    def score_gradient(self, jacobian: Jacobian, logits: Tensor, rows: Tensor) -> Tensor:
        """Compute the gradient of the explained score in the input, by one VJP per class.

        Args:
            jacobian: Jacobian of the logits at the points.
            logits: Logits (L, C) at the points.
            rows: Images (L,) that they belong to.

        Returns:
            Gradients (L, *S), or (L, K, *S) of K classes.
        """
        cotangent = self.score_cotangent(logits, rows)
        if cotangent.dim() == 2:
            return jacobian.vjp(cotangent)
        first = jacobian.vjp(cotangent[:, 0])
        gradient = first.new_empty(*cotangent.shape[:2], *first.shape[1:])  # a stack would hold all of them twice
        gradient[:, 0] = first
        for k in range(1, cotangent.shape[1]):
            gradient[:, k] = jacobian.vjp(cotangent[:, k])
        return gradient

    def probability(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        """Compute the probability of the target class.

        Args:
            logits: Logits (L, C).
            rows: Images (L,) that they belong to; None: all images.

        Returns:
            Probabilities (L,), in float64.
        """
        with float64_on(logits.device):
            return self.model.score(log_probabilities(logits), self._classes(rows)[0], None, "logit").exp()

    def _classes(self, rows: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Target and contrast of the images ``rows``."""
        if rows is None:
            return self.target, self.contrast
        return self.target[rows], None if self.contrast is None else self.contrast[rows]

    # -- the images --------------------------------------------------------------------------------------------------

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Names (B) of the images, for keyed random numbers."""
        places = self.forward_args.by_name
        inputs = self.inputs if places is None else self.inputs[:, places]
        return self.ids if self.ids is not None else tuple(content_hash(x) for x in inputs)

    @property
    def structure(self) -> Structure:
        """The axes of the inputs that are space, as far as they show it.

        Neighbouring features of a row, or numbers of an embedding, are no neighbours. Inputs (B, C, L) are series, and
        inputs with more axes images: the slices of a volume may lie at another distance than the pixels in them.
        """
        axes = 2 if self.token_length is not None else self.inputs.dim()
        return "none" if axes == 2 else "sequence" if axes == 3 else "image"

    @property
    def every_row(self) -> Tensor:
        """Rows 0 ... B - 1, on the device of the inputs."""
        return torch.arange(len(self.inputs), device=self.inputs.device)

    def resolve_baseline(self, text: str) -> Tensor:
        """Return the caller's baseline, or else the named one.

        Args:
            text: Name of a baseline, such as ``"zero"`` or ``"blur"``.

        Returns:
            The baseline (B, *S) of each image.
        """
        if self.baseline is not None:
            return self.baseline
        x, made = self.inputs, make_baseline(text, self.inputs, self.domain, self.rng, self.keys)
        rounding = ROUNDING * torch.finfo(x.dtype).eps * x.abs()
        same = ((made - x).abs() <= rounding).flatten(1).all(1)  # the mean or blur of an image of one colour
        return torch.where(same.view(-1, *[1] * (x.dim() - 1)), x, made)

    def reference_images(self, purpose: str) -> Tensor:
        """Return the reference images of the call.

        Args:
            purpose: What they are for, which is the text of the error if there are none.

        Returns:
            Images (P, *S) in the dtype of the inputs and on their device.

        Raises:
            InputError: If there are none, they have another shape, or they are not finite.
        """
        given, shape = self.domain.references, tuple(self.inputs.shape[1:])
        if given is None:
            hint = "pass some with attribute(..., space=InputSpace(references=...))"
            raise InputError(purpose, argument="space", hint=hint)
        if tuple(given.shape[1:]) != shape or not len(given):
            expected = ", ".join(["P", *map(str, shape)])
            message = f"got shape {tuple(given.shape)}, expected ({expected}) with P at least 1"
            raise InputError(message, argument="space.references")
        references = given.detach().to(self.inputs)
        if not bool(torch.isfinite(references).all()):
            raise InputError("they hold NaN or infinity", argument="space.references")
        return references

    def groups(self, *, by_score: bool) -> list[list[int]]:
        """Group images that share evaluations at a common point: those with equal forward arguments.

        Args:
            by_score: Whether target and contrast must be equal as well.

        Returns:
            The images of each group.
        """
        columns = [[content_hash(row) for row in value] for value in self.forward_args.tensors()]
        if by_score:
            columns += [column.tolist() for column in self._classes(None) if column is not None]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for image in range(len(self.inputs)):
            groups.setdefault(tuple(column[image] for column in columns), []).append(image)
        return list(groups.values())

    def select(self, rows: Sequence[int] | Tensor) -> "Problem":
        """Restrict the problem to some images.

        Args:
            rows: The images (L,), in this order; an image may occur more than once.

        Returns:
            The problem of these L images.
        """
        index = torch.as_tensor(rows, device=self.inputs.device)
        chosen: list[int] = index.tolist()
        target, contrast = self._classes(index)
        return replace(
            self,
            inputs=self.inputs[index],
            logits=self.logits[index],
            target=target,
            contrast=contrast,
            ids=tuple(self.keys[i] for i in chosen),
            baseline=None if self.baseline is None else self.baseline[index],
            feature_mask=None if self.feature_mask is None else self.feature_mask[index],
            forward_args=self.forward_args.select(index),
            lengths=None if self.lengths is None else tuple(self.lengths[i] for i in chosen),
            rows=tuple(chosen if self.rows is None else (self.rows[i] for i in chosen)),
            total=len(self.inputs) if self.total is None else self.total,
        )

    def of_each_class(self) -> "Problem":
        """Return the problem with a row for each of K classes of an image, for points of one class.

        Returns:
            The problem of B K rows; itself, if it has one class for each image.
        """
        if self.target.dim() == 1:
            return self
        arguments = self.forward_args.select(self.every_row.repeat_interleave(self.target.shape[1]))
        contrast = None if self.contrast is None else self.contrast.flatten()
        return replace(self, target=self.target.flatten(), contrast=contrast, forward_args=arguments)

    @property
    def length_axis(self) -> int:
        """The axis of samples or tokens, counted from the end."""
        return -1 if self.token_length is None else -2

    def without_padding(self, rows: Sequence[int]) -> "Problem":
        """Restrict the problem to some images of one length, without their padding.

        Args:
            rows: The images (L,).

        Returns:
            The problem of these images, as if nothing had been padded. The model of a series gets its padding back.
        """
        if self.lengths is None:
            return self.select(rows)
        part, axis, length = self.select(rows), self.length_axis, self.lengths[rows[0]]
        size = part.inputs.shape[axis]
        x, tail = part.inputs.split([length, size - length], axis)
        arguments = part.forward_args if self.token_length is not None else replace(part.forward_args, tail=tail)
        return replace(
            part,
            inputs=x,
            logits=self.model.logits(x, arguments, as_given=True),
            ids=None if self.ids is None else part.ids,
            domain=self.domain.narrowed(axis, size, length),
            baseline=None if part.baseline is None else part.baseline.narrow(axis, 0, length),
            feature_mask=None if part.feature_mask is None else part.feature_mask.narrow(axis, 0, length),
            forward_args=arguments,
            lengths=None,
            padding=size - length,
        )


def token_length_of(model: Classifier) -> float | None:
    """Return the length of a token's embedding that a model of texts states; None for other models."""
    modules = () if model.module is None else model.module.modules()
    stated = next((m.token_length for m in modules if callable(getattr(m, "token_length", None))), None)
    return None if stated is None else float(stated())  # pyright: ignore[reportCallIssue]


def _lengths(lengths: Any, inputs: Tensor, token: float | None) -> tuple[int, ...] | None:
    """The lengths (B) as numbers, or None if nothing is padded; raises InputError if they are no lengths of these."""
    size = inputs.shape[-1 if token is None else -2]
    try:
        values = tuple(map(operator.index, torch.as_tensor(lengths).tolist()))
    except (TypeError, ValueError, RuntimeError):  # of dictionaries, of ragged lists
        values = ()
    if inputs.dim() != 3 or len(values) != len(inputs) or not all(1 <= n <= size for n in values):
        message = f"got {lengths!r}, expected {len(inputs)} integers of 1 to {size}, one for each series (B, C, L)"
        raise InputError(message, argument="lengths")
    return None if min(values) == size else values


def _joined_space(space: InputSpace, arguments: ForwardArguments, x: Tensor) -> InputSpace:
    """The space of the numbers of several tensors."""
    expected = "an InputSpace, such as fringe.InputSpace(low=0.0, high=1.0)"
    require(isinstance(space, InputSpace), "space", space, expected)  # pyright: ignore[reportUnnecessaryIsInstance]
    given: Any = space.references
    tensors = given.values() if isinstance(given, Mapping) else given if isinstance(given, tuple) else ()
    count = max((len(t) for t in tensors if getattr(t, "ndim", 0)), default=1)
    values = {name: arguments.joined(getattr(space, name), x, (), f"space.{name}") for name in ("low", "high")}
    values["references"] = arguments.joined(given, x, (count,), "space.references")
    return replace(space, **values)


def _first_logits(logits_of: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    """Evaluate ``logits_of(inputs)`` (B, C); if it works only with one more axis, or for (H, W) with two, name the
    missing axes as the cause instead of the model's own error, which speaks of its inner layers."""
    try:
        return logits_of(inputs)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        if is_machine_error(error):
            raise
        fix = _missing_axes(logits_of, inputs)
        if fix is None:
            raise
        raise InputError(
            f"got shape {tuple(inputs.shape)}, which the model takes as one input and not as a batch",
            argument="inputs",
            hint=f"add the batch axis with {fix}",
        ) from error


def _missing_axes(logits_of: Callable[[Tensor], Tensor], inputs: Tensor) -> str | None:
    """How to index ``inputs`` so that ``logits_of`` takes them as a batch of one; None if no way is known."""
    for text, batch in (("inputs[None]", inputs[None]), ("inputs[None, None]", inputs[None, None])):
        try:
            logits_of(batch)
            return text
        except Exception:
            if inputs.dim() != 2:  # only a grey image (H, W) lacks two
                return None
    return None
