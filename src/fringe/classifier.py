"""The one interface to a network.

Every question that the library asks of a model goes through :class:`Classifier`: logits, a score and its gradient,
and a linearisation that serves many Jacobian products from one forward pass. It checks the outputs, counts the passes,
limits each call to the memory of the device, and leaves the user's module unchanged.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor

from fringe._network.arguments import NO_ARGUMENTS
from fringe._network.arguments import ForwardArguments as ForwardArguments
from fringe._network.arguments import Shared as Shared
from fringe._network.cuda_graphs import CUDAGraphs
from fringe._network.isolation import Mode
from fringe._network.linearisation import WITHOUT_GRADIENTS as WITHOUT_GRADIENTS
from fringe._network.linearisation import WITHOUT_JVP as WITHOUT_JVP
from fringe._network.linearisation import Linearisation as Linearisation
from fringe._network.outputs import AnyOutput, refuse_features
from fringe._network.outputs import BinaryClassifier as BinaryClassifier
from fringe._network.outputs import Region as Region
from fringe._network.outputs import ScoreFunction as ScoreFunction
from fringe._network.passes import Network
from fringe._network.passes import PassCounts as PassCounts
from fringe._strings.names import unknown_argument
from fringe.errors import InputError, TargetError, require_choice

Score = Literal["logit", "log_probability", "probability"]
SCORES: tuple[Score, ...] = get_args(Score)

#: ``"predicted"``, ``"topK"`` (K a number), a class, one per image, or K per image (B, K).
Target = str | int | Sequence[int] | Sequence[Sequence[int]] | Tensor


class Classifier(Network):
    """A differentiable classifier ``x (B, *S) -> logits (B, C)`` made from any module or callable.

    A module in half precision is explained through a float32 copy.

    Args:
        model: The network. It may return a tensor, a tuple, a mapping or an object with ``.logits``.
        score: The explained scalar of the target class: ``"logit"`` (the paper's choice), ``"log_probability"`` or
            ``"probability"``. Or a function of what the model returns for B inputs, with one number (B,) for each: for
            regression, segmentation or any other output, and methods that need no distribution over classes.
        output: What the model returns: ``"logits"``, ``"probabilities"``, ``"auto"``: logits, and an error if they
            look like probabilities; or ``"numbers"`` (B, C), (B, 1) or (B,) of any meaning: a target is a column of
            them, which methods that need no distribution over classes explain as it is. Or a function of what the model
            returns, which chooses the logits among several tensors, as in ``output=lambda y: y[1]``.
        mode: ``"eval"`` explains a module in evaluation mode, ``"keep"`` leaves its training flags as they are.
        batch_size: Largest number of images of one pass; ``"auto"`` starts large and halves when memory runs out; on
            a CPU it is at most 16, and fewer of large inputs, by the memory that the first pass takes.
        tf32: Whether convolutions and matrix products of the network round float32 to TF32 on a CUDA device. This is
            faster and less exact; everything else is computed in full precision.
        cuda_graphs: Whether steps of few images on a CUDA device are recorded as CUDA graphs and repeated: the host no
            longer launches each operation by itself. The Python code of the model then runs when a step is recorded,
            and not at each call. So a step is recorded only if repeating it gives the same numbers bit for bit, and if
            the code has written to no attribute of a module and to no global of its file. A function, TorchScript and a
            model with hooks are run as they are. Make another classifier if more than weights and buffers change.
        fold_batch_norm: Whether a batch normalisation in evaluation mode is computed within the convolution or linear
            layer before it, if nothing else takes that layer's output: by multiplied weights, which are made once and
            again where weights change: this saves up to a quarter of the time. The network's own pass on the first
            image decides, counted as a pass: logits may differ from it by half of the digits of the dtype. Where
            modules have hooks nothing is folded. Off by default, because rounding alone turns paths in float32.

    Attributes:
        passes: The passes through the network so far.
        has_classes: Whether the logits are those of a distribution over classes, and not numbers of another meaning.

    Raises:
        InputError: For an invalid argument.
        ModelError: If the configuration of a network of transformers says that its labels do not exclude each other.
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        """Refuse an argument that does not exist, with what to write instead."""
        known = inspect.signature(cls.__init__).parameters if given else {}
        if unknown := [name for name in given if name not in known]:
            raise unknown_argument(cls.__qualname__, unknown[0], known)
        return super().__new__(cls)

    def __init__(
        self,
        model: Callable[[Tensor], Any],
        *,
        score: Score | ScoreFunction = "logit",
        output: AnyOutput | Callable[[Any], Any] = "auto",
        mode: Mode = "eval",
        batch_size: int | Literal["auto"] = "auto",
        tf32: bool = False,
        cuda_graphs: bool = True,
        fold_batch_norm: bool = False,
    ):
        if isinstance(model, type):
            message, hint = f"got the class {model.__name__}", f"pass an instance, such as {model.__name__}()"
            raise InputError(f"expected a module or callable, {message}", argument="model", hint=hint)
        parts = None if isinstance(model, torch.nn.Module) else getattr(model, "model", None)
        if isinstance(parts, torch.nn.Module) and isinstance(getattr(model, "task", None), str):
            hint = "give it to fringe.explain, with pictures or texts; or pass its .model, with tensors"
            raise InputError("got a pipeline of transformers, expected a module", argument="model", hint=hint)
        if not callable(model):
            hint = "give a module with its weights loaded, and then the inputs"
            hint = "load it with fringe.explain(...), or load_model(...).module" if isinstance(model, str) else hint
            hint = "pass its .module" if hasattr(model, "module") else hint
            raise InputError(f"expected a module or callable, got {type(model).__name__}", argument="model", hint=hint)
        kind: Score = "logit" if callable(score) else score
        form: AnyOutput = "auto" if callable(output) else output
        require_choice("score", kind, SCORES)
        require_choice("output", form, ("auto", "logits", "probabilities", "numbers"))
        require_choice("mode", mode, get_args(Mode))
        if output == "numbers" and score != "logit":
            message = f"got {score!r} with output='numbers', whose columns are the scores"
            raise InputError(message, argument="score", hint="leave one of them out")
        super().__init__(model, form, mode, batch_size)
        if output == "auto" and self.module is not None and not callable(score):
            refuse_features(self.module)
        self.choose_output = output if callable(output) else None
        self.score_kind: Score = kind
        self.score_function = score if callable(score) else None
        self.has_classes = self.score_function is None and form != "numbers"
        self.tf32 = tf32
        self.fold_batch_norm = fold_batch_norm
        self.graphs = CUDAGraphs() if cuda_graphs else None

    @classmethod
    def of(
        cls,
        model: "Callable[[Tensor], Any] | Classifier",
        score: Score | ScoreFunction | None = None,
        batch_size: int | Literal["auto"] | None = None,
    ) -> "Classifier":
        """Make a classifier of a model, or return the one that is given.

        Args:
            model: A module, a callable or a classifier.
            score: The explained scalar; None for the logit, or that of the given classifier.
            batch_size: Bound on the images of one pass; None for an automatic one, or that of the given classifier.

        Returns:
            The classifier.

        Raises:
            InputError: If a given classifier was made with another score or batch size.
        """
        arguments: dict[str, Any] = {"score": score, "batch_size": batch_size}
        arguments = {name: value for name, value in arguments.items() if value is not None}
        if not isinstance(model, Classifier):
            return cls(model, **arguments)
        present = {"score": model.score_function or model.score_kind, "batch_size": model.batch_size.requested}
        for name, value in arguments.items():
            if value != present[name]:
                raise InputError(
                    f"got {value!r} with a Classifier made with {present[name]!r}", argument=name, hint="give it there"
                )
        return model

    def score(
        self, logits: Tensor, target: Tensor, contrast: Tensor | None = None, kind: Score | None = None
    ) -> Tensor:
        """Compute the explained scalar.

        Args:
            logits: Logits (B, C).
            target: Classes (B,) or (B, K).
            contrast: Classes of the same shape whose scalar is subtracted.
            kind: Replaces the classifier's own score; not where there are no classes.

        Returns:
            Scalars of the shape of ``target``.
        """
        kind, values = (self.has_classes and kind) or self.score_kind, logits
        with self.session(logits.device):
            if kind != "logit":
                wide = logits.double()  # float32 leaves no digits of 1 - p where p is near one
                values = wide.log_softmax(-1) if kind == "log_probability" else wide.softmax(-1)
            score = values.gather(1, target.view(len(target), -1)).view_as(target)
            if contrast is not None:
                score = score - values.gather(1, contrast.view(len(target), -1)).view_as(target)
            return score.to(logits.dtype)

    def score_cotangent(
        self, logits: Tensor, target: Tensor, contrast: Tensor | None = None, kind: Score | None = None
    ) -> Tensor:
        """Compute the gradient of :meth:`score` in the logits: e_t, e_t - p, or p_t (e_t - p), or a difference of two.

        Args:
            logits: Logits (B, C).
            target: Classes (B,) or (B, K).
            contrast: Classes of the same shape whose scalar is subtracted.
            kind: Replaces the classifier's own score; not where there are no classes.

        Returns:
            Gradients (B, C) or (B, K, C).
        """
        with self.session(logits.device):
            kind = (self.has_classes and kind) or self.score_kind
            wide = logits if kind == "logit" else logits.double()  # as in score
            one_hot = torch.zeros(*target.shape, logits.shape[1], dtype=wide.dtype, device=logits.device)
            cotangent = one_hot.scatter_(-1, target[..., None], 1.0)
            if kind != "logit":
                p = wide.softmax(-1)
                p = p if target.dim() == 1 else p[:, None]
                cotangent = one_hot - p
                if kind == "probability":
                    cotangent = p.expand_as(cotangent).gather(-1, target[..., None]) * cotangent
            if contrast is not None:
                cotangent = cotangent - self.score_cotangent(wide, contrast, None, kind)
            return cotangent.to(logits.dtype)

    def score_gradient(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the score and its gradient, in chunks: one forward pass and one VJP per image.

        Args:
            x: Inputs (B, *S).
            target: Classes (B,).

        Returns:
            Scores (B,) and gradients (B, *S).
        """

        def evaluate(part: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
            point = self.linearise(part, tangents=False)
            return self.score(point.value, targets), point.vjp(self.score_cotangent(point.value, targets))

        with self.session(x.device):
            return self.batch_size.map(evaluate, self._validate_inputs(x), target)

    def linearise(
        self,
        x: Tensor,
        *,
        tangents: bool = True,
        arguments: ForwardArguments = NO_ARGUMENTS,
        smooth: bool = False,
    ) -> Linearisation:
        """Expand the model at ``x`` to first order: one forward pass, then each JVP or VJP costs one pass.

        Args:
            x: Inputs (B, *S); not chunked, so that the caller limits B to the batch size.
            tangents: Whether JVPs will be computed; without, the graph of the backward pass is saved.
            arguments: Further arguments of the model.
            smooth: Whether products may take smooth slopes of rectifiers, see :mod:`fringe._network.rectifiers`.

        Returns:
            The value (B, C), and products with the Jacobian.

        Raises:
            NotDifferentiableError: If the output is not connected to the input by autograd.
        """
        return Linearisation(self, self._validate_inputs(x), tangents, arguments, smooth)

    def resolve_target(self, target: Target, logits: Tensor, name: str = "target") -> Tensor:
        """Turn a target into classes.

        Args:
            target: ``"predicted"``, ``"topK"``, a class, one per image, or K per image.
            logits: Logits (B, C) of the images.
            name: What messages call the target.

        Returns:
            Classes (B,) or (B, K), int64.

        Raises:
            TargetError: If it does not name classes of the model for each image.
        """
        batch, classes = logits.shape
        if self.score_function is not None and not (isinstance(target, str) and target == "predicted"):
            message = f"got {target!r} with a score function, which gives one number and no classes"
            raise TargetError(message, argument=name, hint="leave it out")
        expected = "'predicted', 'top5', a class, one class per image, or (B, K) classes"
        if isinstance(target, str):
            count = target.removeprefix("top")
            if target == "predicted":
                return logits.argmax(1)
            if not target.startswith("top") or not count.isdecimal() or not 1 <= int(count) <= classes:
                message = f"got {target!r}, expected {expected}; the model has {classes} classes"
                raise TargetError(message, argument=name, hint="names of classes are understood by fringe.explain")
            return logits.topk(int(count), dim=1).indices
        try:
            values = torch.as_tensor(target, device=logits.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TargetError(f"got {target!r}, expected {expected} ({error})", argument=name) from error
        rows = f"for rows of zeros and ones, one for each class, pass {name}=rows.argmax(1)"
        if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
            hint = rows if tuple(values.shape) == (batch, classes) else None
            raise TargetError(f"got dtype {values.dtype}, expected integers", argument=name, hint=hint)
        if values.dim() > 2 or (values.dim() and (values.shape[0] != batch or not values.numel())):
            raise TargetError(
                f"got shape {tuple(values.shape)} for {batch} images of {classes} classes; expected 'predicted', "
                f"'top5', one integer, {batch} integers, or a list or tensor ({batch}, K)",
                argument=name,
            )
        outside = values[(values < 0) | (values >= classes)].flatten()
        if outside.numel():
            raise TargetError(
                f"class {outside[0].item()} does not exist; the model has classes 0 to {classes - 1}", argument=name
            )
        values = values.to(torch.int64)
        if values.dim() == 2 and name == "target":  # several targets may have the same contrast
            if values.shape[1] == classes and bool(((values <= 1).all(1) & (values.sum(1) == 1)).all()):
                both = f"; for maps of both classes, pass {name}='top2'" if classes == 2 else ""
                raise TargetError("its rows look one-hot, expected numbers of classes", argument=name, hint=rows + both)
            twice = (values.sort(1).values.diff(dim=1) == 0).any(1).nonzero()
            if len(twice):
                image = int(twice[0])
                message = f"got {values[image].tolist()} for image {image}, which names a class twice"
                raise TargetError(message, argument=name, hint="name each class once")
        return values.clone() if values.dim() == 2 else values.expand(batch).clone()
