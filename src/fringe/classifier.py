"""The one seam to a network.

Every question that the library asks of a model goes through :class:`Classifier`: logits, a score and its gradient,
and a linearisation that serves many Jacobian products from one forward pass. It checks what comes back, counts what
was spent, keeps each call within the memory of the device, and leaves the user's module as it found it.
"""

import contextlib
import copy
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from fringe._arguments import NO_ARGUMENTS
from fringe._arguments import ForwardArguments as ForwardArguments
from fringe._arguments import Shared as Shared
from fringe._batching import BatchSize
from fringe._isolation import Mode, frozen
from fringe._linear_layers import LinearLayers
from fringe._outputs import BinaryClassifier as BinaryClassifier
from fringe._outputs import OutputKind, as_logits
from fringe._passes import PassCounts as PassCounts
from fringe.errors import InputError, NotDifferentiableError, TargetError

Score = Literal["logit", "log_probability", "probability"]
Target = str | int | Sequence[int] | Sequence[Sequence[int]] | Tensor
"""``"predicted"``, ``"topK"`` (K a number), a class, one per image, or K per image (B, K)."""
SCORES: tuple[Score, ...] = ("logit", "log_probability", "probability")


class Classifier:
    """A differentiable classifier ``x (B, *S) -> logits (B, C)`` made from any module or callable.

    ``score`` is the explained scalar of the target class: its ``"logit"`` (the paper's choice), ``"log_probability"``
    or ``"probability"``. ``output`` says how the model's output reads (see :func:`as_logits`); ``mode="keep"``
    explains a module with the training flags it has. ``batch_size`` bounds the images in one pass; ``"auto"`` starts
    large and halves when memory runs out. A module in half precision is explained through a float32 copy.
    """

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        *,
        score: Score = "logit",
        output: OutputKind = "auto",
        mode: Mode = "eval",
        batch_size: int | Literal["auto"] = "auto",
    ):
        if not callable(model):
            raise InputError(f"model: expected a module or callable, got {type(model).__name__}")
        if score not in SCORES:
            raise InputError(f"score: got {score!r}, expected one of {', '.join(SCORES)}")
        for name, value, known in (("output", output, get_args(OutputKind)), ("mode", mode, get_args(Mode))):
            if value not in known:
                raise InputError(f"{name}: got {value!r}, expected one of {', '.join(known)}")
        self.model = _prepare(model)
        self.module = self.model if isinstance(self.model, nn.Module) else None
        self.score_kind: Score = score
        self.output: OutputKind = output
        self.mode: Mode = mode
        self.batch_size = BatchSize(batch_size)
        self.passes = PassCounts()
        self.jvp_mode: Literal["retained", "forward"] = "retained"
        self.channels_last = True
        self._depth = 0
        self._checked = False

    @classmethod
    def of(
        cls,
        model: "Callable[[Tensor], Any] | Classifier",
        score: Score | None = None,
        batch_size: int | Literal["auto"] | None = None,
    ) -> "Classifier":
        """``model`` itself where it is a classifier already, else one made of it: of logits, with an automatic batch
        size, unless told otherwise. Raises InputError where a classifier was told otherwise when it was made."""
        asked: dict[str, Any] = {"score": score, "batch_size": batch_size}
        asked = {name: value for name, value in asked.items() if value is not None}
        if not isinstance(model, Classifier):
            return cls(model, **asked)
        own = {"score": model.score_kind, "batch_size": model.batch_size.asked}
        for name, value in asked.items():
            if value != own[name]:
                raise InputError(f"{name}: got {value!r} with a Classifier made with {own[name]!r}; give it there")
        return model

    @contextlib.contextmanager
    def session(self, device: torch.device) -> Generator[None]:
        """Hold the model frozen over many calls (each call does so by itself otherwise). Re-entrant.

        Whether outputs look like probabilities is asked at the first call of a session: the answer is read back from
        the device, which then has to wait.
        """
        if self._depth:
            yield
            return
        self._depth += 1
        self._checked = False
        try:
            with frozen(self.module, device, self.mode):
                yield
        finally:
            self._depth -= 1

    def evaluate(self, x: Tensor, arguments: ForwardArguments = NO_ARGUMENTS) -> Tensor:
        """Logits (B, C) as the model gives them, graph included: one counted forward pass. Needs an open session."""
        self.passes.forward += x.shape[0]
        try:
            output = self._run(x, arguments)
        except RuntimeError as error:
            error.add_note(
                f"while running the model on inputs of shape {tuple(x.shape)}, {x.dtype}, on {x.device}; what a "
                "function closes over and belongs to images is to be given as forward_args or forward_kwargs"
            )
            raise
        kind: OutputKind = "logits" if self._checked and self.output == "auto" else self.output
        logits = as_logits(output, x.shape[0], kind)
        self._checked = True
        return logits

    def _run(self, x: Tensor, arguments: ForwardArguments) -> Any:
        """The model on a copy of ``x``: it may work in place, on neither a leaf nor the caller's storage.

        On a CPU, images go in channels last: convolutions are 1.1 to 1.4 times as fast there (benchmarks/layout.py).
        A model that asks for the other layout with ``.view`` gets it from then on.
        """
        layout = self.layout(x)
        if layout is not torch.channels_last:
            return arguments.call(self.model, x.clone())
        try:
            return arguments.call(self.model, x.clone(memory_format=layout))
        except RuntimeError as error:
            if "view size is not compatible" not in str(error):
                raise
            self.channels_last = False
            return arguments.call(self.model, x.clone())

    def layout(self, x: Tensor) -> torch.memory_format:
        """The memory format in which ``x`` goes through the network."""
        last = self.channels_last and x.dim() == 4 and x.device.type == "cpu"
        return torch.channels_last if last else torch.contiguous_format

    # -- values ---------------------------------------------------------------------------------------------------

    def logits(self, x: Tensor, arguments: ForwardArguments = NO_ARGUMENTS) -> Tensor:
        """Logits (B, C) without a graph, in chunks of the batch size."""
        x = self._admit(x)

        def forward(part: Tensor, rows: Tensor) -> Tensor:
            with torch.no_grad():
                return self.evaluate(part, arguments.select(rows))

        with self.session(x.device):
            return self.batch_size.map(forward, x, torch.arange(len(x), device=x.device))

    def score(
        self, logits: Tensor, target: Tensor, contrast: Tensor | None = None, kind: Score | None = None
    ) -> Tensor:
        """The explained scalar (B,) of logits (B, C) at classes ``target`` (B,), or scalars (B, K) at classes (B, K).

        With classes ``contrast`` of the same shape it is the difference to their scalar. ``kind`` stands in for the
        classifier's own score.
        """
        kind = kind or self.score_kind
        values = logits
        if kind != "logit":
            values = logits.log_softmax(-1) if kind == "log_probability" else logits.softmax(-1)
        score = values.gather(1, target.view(len(target), -1)).view_as(target)
        return score if contrast is None else score - values.gather(1, contrast.view(len(target), -1)).view_as(target)

    def score_cotangent(
        self, logits: Tensor, target: Tensor, contrast: Tensor | None = None, kind: Score | None = None
    ) -> Tensor:
        """Gradient (B, C), or (B, K, C), of :meth:`score` in the logits: e_t, e_t - p, or p_t (e_t - p); or the
        difference of two."""
        kind = kind or self.score_kind
        one_hot = torch.zeros(*target.shape, logits.shape[1], dtype=logits.dtype, device=logits.device)
        cotangent = one_hot.scatter_(-1, target[..., None], 1.0)
        if kind != "logit":
            p = logits.softmax(-1).view(len(logits), *[1] * (target.dim() - 1), -1)
            cotangent = one_hot - p
            if kind == "probability":
                cotangent = p.expand_as(cotangent).gather(-1, target[..., None]) * cotangent
        return cotangent if contrast is None else cotangent - self.score_cotangent(logits, contrast, None, kind)

    def score_gradient(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Score (B,) and its gradient (B, *S) at ``x``, in chunks: one forward pass and one VJP an image."""

        def evaluate(part: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            point = self.linearise(part, tangents=False)
            return self.score(point.value, targets), point.vjp(self.score_cotangent(point.value, targets))

        with self.session(x.device):
            return self.batch_size.map(evaluate, self._admit(x), target)

    def linearise(
        self, x: Tensor, *, tangents: bool = True, arguments: ForwardArguments = NO_ARGUMENTS
    ) -> "Linearisation":
        """The first-order expansion at ``x``: ONE forward pass, then a JVP or VJP costs one pass each.

        Not chunked: the caller keeps ``x`` within :attr:`batch_size`. ``tangents=False`` promises that no JVP will be
        asked, which saves the graph of the backward pass.
        """
        return Linearisation(self, self._admit(x), tangents, arguments)

    # -- the door -------------------------------------------------------------------------------------------------

    def resolve_target(self, target: Target, logits: Tensor, name: str = "target") -> Tensor:
        """Classes (B,), or (B, K), as int64 from a :data:`Target`; messages call them ``name``."""
        batch, classes = logits.shape
        expected = "'predicted', 'top5', a class, one class per image, or (B, K) classes"
        if isinstance(target, str):
            count = target.removeprefix("top")
            if target == "predicted":
                return logits.argmax(1)
            if not target.startswith("top") or not count.isdecimal() or not 1 <= int(count) <= classes:
                raise TargetError(f"{name}: got {target!r}, expected {expected}; the model has {classes} classes")
            return logits.topk(int(count), dim=1).indices
        try:
            values = torch.as_tensor(target, device=logits.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TargetError(f"{name}: got {target!r}, expected {expected} ({error})") from error
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            raise TargetError(f"{name}: got dtype {values.dtype}, expected integers")
        if values.dim() > 2 or (values.dim() and (values.shape[0] != batch or not values.numel())):
            raise TargetError(
                f"{name}: got shape {tuple(values.shape)} for {batch} images of {classes} classes; expected "
                f"'predicted', 'top5', one integer, {batch} integers, or a list or tensor ({batch}, K)"
            )
        if bool(((values < 0) | (values >= classes)).any()):
            wrong = values[(values < 0) | (values >= classes)].flatten()[0].item()
            raise TargetError(f"{name}: class {wrong} does not exist; the model has classes 0 to {classes - 1}")
        values = values.to(torch.int64)
        return values.clone() if values.dim() == 2 else values.expand(batch).clone()

    def _admit(self, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise InputError(f"inputs: got dtype {x.dtype}, expected floating point (scale and normalise images first)")
        weight = next((p for p in self.module.parameters() if p.is_floating_point()), None) if self.module else None
        if weight is not None and (weight.dtype, weight.device) != (x.dtype, x.device):
            raise InputError(
                f"inputs: got {x.dtype} on {x.device}, but the model's weights are {weight.dtype} on {weight.device}; "
                "move one to the other with .to(dtype=..., device=...)"
            )
        return _ordinary(x)


class Linearisation:
    """Value (B, C) and Jacobian products of a classifier at B points, from one forward pass.

    The VJP runs the retained graph backwards. The JVP differentiates that backward pass in its cotangent, in which it
    is linear: ``J v = d <J^T u, v> / du``; for a model without second derivatives it falls back to forward-mode AD, at
    a forward pass a product (``classifier.jvp_mode`` says which is in use).
    """

    def __init__(self, classifier: Classifier, x: Tensor, tangents: bool, arguments: ForwardArguments):
        self._arguments = arguments
        self._classifier, self._tangents = classifier, tangents and classifier.jvp_mode == "retained"
        self._x = x.requires_grad_(True)
        self._transpose: tuple[Tensor, Tensor] | None = None
        layers = LinearLayers() if self._tangents else contextlib.nullcontext()
        with classifier.session(x.device), layers:
            self._logits = classifier.evaluate(self._x, arguments)
        if self._logits.grad_fn is None:
            raise NotDifferentiableError(
                "model: its output is not connected to the input by autograd (torch.no_grad, .detach(), NumPy, argmax "
                "or an inference session inside the model). FRInGe needs a differentiable model"
            )
        self.value = self._logits.detach()

    def vjp(self, cotangent: Tensor) -> Tensor:
        """``J^T u``: (B, C) -> (B, *S)."""
        self._classifier.passes.vjp += cotangent.shape[0]
        first = self._tangents and self._transpose is None
        with self._classifier.session(self._x.device):  # backward passes, too, follow the caller's modes otherwise
            u = _ordinary(cotangent).requires_grad_(first)
            try:
                (product,) = torch.autograd.grad(
                    self._logits, self._x, u, retain_graph=True, create_graph=first, materialize_grads=True
                )
            except RuntimeError as error:
                if "heckpoint" not in str(error):
                    raise
                product, first = self._accumulated(u), False
        if first:  # the same product, kept with its graph, is what JVPs differentiate
            self._transpose = (product, u)
        return product.detach()

    def _accumulated(self, u: Tensor) -> Tensor:
        """The same product by way of ``.grad``: all that re-entrant checkpointing knows. Weights are frozen."""
        self._x.grad = None
        torch.autograd.backward(self._logits, u.detach(), retain_graph=True)
        product, self._x.grad = self._x.grad, None
        return torch.zeros_like(self._x) if product is None else product

    def jvp(self, tangent: Tensor) -> Tensor:
        """``J v``: (B, *S) -> (B, C)."""
        if tangent.shape != self._x.shape:
            raise InputError(
                f"tangent: got shape {tuple(tangent.shape)}, expected {tuple(self._x.shape)} as the inputs"
            )
        self._classifier.passes.jvp += tangent.shape[0]
        if not self._tangents:
            return self._forward_mode(tangent)
        if self._transpose is None:
            self.vjp(torch.zeros_like(self.value))
        if self._transpose is None:
            raise NotDifferentiableError(
                "model: re-entrant checkpointing gives gradients and no Jacobian-vector products; checkpoint with "
                "use_reentrant=False, or choose a method of gradients alone, such as FRInGe(jacobian='explicit')"
            )
        product, u = self._transpose
        tangent = tangent.contiguous(memory_format=self._classifier.layout(tangent))
        try:
            with self._classifier.session(self._x.device):
                (column,) = torch.autograd.grad(product, u, _ordinary(tangent), retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            self.fall_back(str(error).splitlines()[0])
            return self._forward_mode(tangent)
        # as under once_differentiable: a zero here would be silent and wrong
        if column is None:  # pyright: ignore[reportUnnecessaryComparison] (allow_unused gives None)
            self.fall_back("its backward pass leaves no graph")
            return self._forward_mode(tangent)
        return column

    def fall_back(self, reason: str) -> None:
        """Use forward mode from now on, here and in later linearisations of the classifier."""
        self._tangents = False
        self._classifier.jvp_mode = "forward"
        warnings.warn(
            f"the model has no second derivatives ({reason}); Jacobian-vector products use "
            "forward-mode differentiation, at one more forward pass each",
            stacklevel=4,
        )

    def _forward_mode(self, tangent: Tensor) -> Tensor:
        classifier = self._classifier

        def evaluate(x: Tensor) -> Tensor:
            return classifier.evaluate(x, self._arguments)

        with classifier.session(tangent.device):
            try:
                column = torch.func.jvp(evaluate, (self._x.detach(),), (_ordinary(tangent),))[1]
            except (RuntimeError, NotImplementedError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raise NotDifferentiableError(
                    "model: neither differentiating its backward pass nor forward-mode differentiation works "
                    f"({str(error).splitlines()[0]}). Replace the operation it names"
                ) from error
        return column.detach()


def _prepare(model: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """The module behind data-parallel and compiled wrappers, in float32 at least."""
    while True:  # a compiled module is explained as it was written: AOT autograd has no second derivatives
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        else:
            inner = getattr(model, "_orig_mod", model)
        if inner is model:
            break
        model = inner
    if not isinstance(model, nn.Module):
        return model
    parameters = list(model.parameters())
    if any(p.is_inference() for p in parameters):
        raise InputError(
            "model: it was built under torch.inference_mode, so autograd cannot use its weights; build it outside"
        )
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters):
        return copy.deepcopy(model).float()
    return model


def _ordinary(x: Tensor) -> Tensor:
    """``x`` without its graph, and no inference tensor."""
    with torch.inference_mode(False):
        return x.clone() if x.is_inference() else x.detach()
