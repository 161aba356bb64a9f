"""Read what a model returns as logits (B, C); models with one logit, and segmentation models, as classifiers."""

import dis
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fringe.errors import (
    InputError,
    ModelError,
    ModelOutputError,
    first_line,
    is_machine_error,
    require_choice,
    warn_caller,
)

OutputKind = Literal["auto", "logits", "probabilities"]
#: The same, or numbers that are no distribution over classes: a column of them is explained as it is.
AnyOutput = OutputKind | Literal["numbers"]
_DENSE = (
    "For logits (B, C, H, W) of a segmentation network, wrap it as fringe.Region(model, mask), which explains the "
    "classes in a region; the boxes of a detector are those of fringe.Detector(model, read=...); for another number of "
    "each input, pass a function as score="
)
#: Names of parts of an output, and of layers at the end of a network, that hold no scores of classes.
_FEATURES = re.compile("embed|feature|hidden|latent|pool|representation|state", re.IGNORECASE)
_HEADS = ("classifier", "fc", "head", "heads", "last_linear", "output")
_WITH_HEAD = (
    "give the network with its head, or explain a number of the features by score=, such as a similarity; if they are "
    "logits, "
)
#: Advice for a score that uses more than what the model returns for the inputs of a pass.
SCORE_OF_OUTPUTS = (
    "it is called with the outputs of some of the inputs, in any order. What else it needs of these, return from a "
    "function as the model: attribute(lambda x: (model(x), x), x, score=lambda y: (y[0] - y[1]).square().flatten(1)"
    ".mean(1))"
)
#: A score of the caller's own: of what the model returns for B inputs, one number (B,) for each.
ScoreFunction = Callable[[Any], Tensor]


def with_tensors(output: Any, device: torch.device) -> Any:
    """Return what a model returns with tensors in place of NumPy's arrays, also those in a list, as of ONNX."""
    if isinstance(output, np.ndarray):
        return torch.as_tensor(output, device=device)
    if type(output) in (list, tuple):
        return type(output)(with_tensors(part, device) for part in output)
    return output


def as_score(function: ScoreFunction, output: Any, batch: int) -> Tensor:
    """Return the caller's own score of an output as the logits (B, 1) of the one class that it is."""
    try:
        score: Any = function(output)
    except (RuntimeError, IndexError, ValueError) as error:
        if is_machine_error(error):
            raise
        message = f"it fails on what the model returns for {batch} inputs ({first_line(error)})"
        raise InputError(message, argument="score", hint=SCORE_OF_OUTPUTS) from error
    if not isinstance(score, Tensor) or tuple(score.shape) != (batch,):
        message = f"it returned {_describe(score)} for {batch} inputs, expected a tensor ({batch},)"
        hint = f"return one number for each, as in lambda y: y[:, 0]; {SCORE_OF_OUTPUTS}"
        raise InputError(message, argument="score", hint=hint)
    if score.dtype not in _DTYPES:
        raise _wrong_dtype(score, "score", "its value")
    return score[:, None]


def refuse_captured(score: ScoreFunction, inputs: Sequence[Tensor]) -> None:
    """Refuse a score that holds one of the explained ``inputs`` (B, *S), or the first row of one: along a path it would
    stay as it is, and the map would miss what the score owes to the input itself."""
    for name, value in captured(score):
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
            value = torch.from_numpy(np.array(value))  # a copy: it may be read-only
        if not isinstance(value, Tensor) or value.dtype == torch.bool:
            continue
        for x in inputs:
            same = (row for row in (x, x[:1], x[0]) if row.shape == value.shape)
            if any(torch.equal(value.detach().to(row), row) for row in same):
                message = f"it uses the explained input itself ({name}), which stays as it is where the input changes"
                raise InputError(message, argument="score", hint=SCORE_OF_OUTPUTS)


def captured(function: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses besides its arguments, with names: variables around it, defaults, the arguments of a
    partial, the attributes of its object; and of all of these, what is in containers and functions."""
    held: dict[str, Any] = {}
    if isinstance(function, functools.partial):
        held = {"partial": function.func, **dict(enumerate(function.args)), **function.keywords}  # pyright: ignore
    elif isinstance(function, Mapping):
        held = dict(cast("Mapping[str, Any]", function))
    elif isinstance(function, (list, tuple)):
        held = dict(enumerate(cast("list[Any]", function)))  # pyright: ignore
    elif callable(function):
        owner = getattr(function, "__self__", None if inspect.isfunction(function) else function)
        code = getattr(function, "__func__", function if inspect.isfunction(function) else type(function).__call__)
        held = {} if owner is None or inspect.ismodule(owner) else dict(getattr(owner, "__dict__", {}))
        if inspect.isfunction(code):
            held |= {name: code.__globals__[name] for name in _globals_of(code.__code__) if name in code.__globals__}
            held |= inspect.getclosurevars(code).nonlocals
            held |= {name: p.default for name, p in inspect.signature(code).parameters.items()}
    for name, value in held.items():
        yield str(name), value
        if depth and not isinstance(value, (type, Tensor)) and not inspect.ismodule(value):
            yield from captured(value, depth - 1)


def _globals_of(code: CodeType) -> set[str]:
    """The global names that a function reads, also in functions and comprehensions within it."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    own = {str(i.argval) for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    return own.union(*map(_globals_of, inner))


def as_logits(output: Any, batch: int, kind: AnyOutput, *, check: bool = True) -> Tensor:
    """Return logits (B, C) from a tensor, a tuple or list, a mapping, or an object with ``.logits``.

    ``kind="auto"`` refuses rows that look like probabilities, and warns of rows that look like sigmoids;
    ``"probabilities"`` refuses negative ones and takes their logarithm; ``"logits"`` checks no number, and neither does
    ``"numbers"``, which also takes one number (B, 1) or (B,) for each input. ``check=False`` leaves these checks out,
    which read numbers back from the device.
    """
    logits = output if isinstance(output, Tensor) else _select(output, check)
    if kind == "numbers" and tuple(logits.shape) == (batch,):
        logits = logits[:, None]
    if logits.dtype not in _DTYPES:
        raise _wrong_dtype(logits, "model", "its output")
    if kind != "numbers" and tuple(logits.shape) in ((batch, 1), (batch,)):
        is_class = bool((logits.detach() == logits.detach().round()).all())
        raise ModelOutputError(
            f"its output has shape {tuple(logits.shape)}, one number for each of {batch} images, and no classes. If "
            "the number is the logit of 'yes' against 'no', wrap the model as fringe.BinaryClassifier(model), with "
            "output='probability' if it ends in a sigmoid. If it is a quantity, as in regression, explain it by a "
            "method that needs no classes, as in attribute(model, x, method='ig', score=lambda y: y.flatten())"
            + (". If it is the number of a class (argmax), return the scores before it" if is_class else ""),
            argument="model",
        )
    if logits.dim() != 2 or logits.shape[0] != batch or logits.shape[1] == 0:
        remedy = (
            "Wrap the model so that it returns one row of class scores per image. If a function uses other tensors of "
            "the images, pass them as forward_args"
        )
        if logits.dim() > 2 and len(logits) == batch:
            remedy = _DENSE
        message = (
            f"its output has shape {tuple(logits.shape)} for {batch} images; expected logits ({batch}, C). {remedy}"
        )
        raise ModelOutputError(message, argument="model")
    if kind == "probabilities":
        if check and bool((logits.detach() < 0).any()):
            raise ModelOutputError(
                "output='probabilities' was promised, but some of its outputs are negative. If they are logits, leave "
                "output='auto'",
                argument="model",
            )
        return logits.clamp_min(torch.finfo(logits.dtype).tiny).log()
    if kind != "auto" or not check:
        return logits
    rows = logits.detach()
    sums = rows.sum(1)
    alike = (rows >= 0).all(1) & torch.isclose(sums, torch.ones_like(sums), rtol=0, atol=1e-5)
    if bool(alike.any() & (alike | ~torch.isfinite(rows).all(1)).all()):  # all finite rows, and there are such rows
        raise ModelOutputError(
            "the outputs are non-negative and every row sums to one, so they look like probabilities, not logits",
            argument="output",
            hint="return the values before the softmax or their logarithm, or pass fringe.Classifier(model, "
            "output='probabilities'), in options model_output='probabilities', to explain their logarithms ('logits' "
            "if they really are logits)",
        )
    # so many differ that logits of an untrained network hardly ever do
    if bool(((rows > 0) & (rows <= 1)).all()) and (100 * rows).round().unique().numel() >= 8:
        warn_caller(
            "all outputs of the model lie between 0 and 1 and their rows do not sum to one, like sigmoids of "
            "independent labels. A softmax over these means nothing: explain one label k by "
            "fringe.BinaryClassifier(lambda x: model(x)[:, k], output='probability'). If they really are logits, say "
            "so by fringe.Classifier(model, output='logits'), in options model_output='logits'"
        )
    return logits


#: Types of numbers that have a gradient, and enough digits.
_DTYPES = (torch.float32, torch.float64)


def _wrong_dtype(values: Tensor, argument: str, what: str) -> ModelOutputError:
    """The error of other numbers, with what helps against each."""
    if values.is_complex():
        remedy = "Return a real number of each, such as the absolute value"
    elif not values.is_floating_point():
        remedy = "Integers have no gradient: return the scores before argmax, rounding or a comparison"
    else:
        remedy = (
            "Half precision loses the symmetry that the solver needs: pass a torch.nn.Module (it is explained through "
            "a float32 copy), wrap the callable so that it computes in float32, or switch off torch.autocast inside "
            "its forward"
        )
    return ModelOutputError(
        f"{what} has dtype {values.dtype}; expected float32 or float64. {remedy}", argument=argument
    )


def refuse_independent_labels(model: Any) -> None:
    """Refuse a network of transformers whose configuration says that its outputs are no classes that exclude others."""
    config = getattr(model, "config", None)
    kind, labels = getattr(config, "problem_type", None), getattr(config, "num_labels", 1)
    if kind in ("multi_label_classification", "regression") and labels > 1:
        raise ModelError(
            f"its configuration says {kind}: a softmax over its {labels} outputs means nothing",
            argument="model",
            hint="explain one label k by fringe.BinaryClassifier(lambda x: model(x).logits[:, k]), or set "
            "model.config.problem_type if it is wrong",
        )


def refuse_features(network: nn.Module) -> None:
    """Refuse a network without its head, whose outputs are no scores of classes."""
    name, last = next(reversed(dict(network.named_children()).items()), ("", network))
    is_open = name in _HEADS and all(type(m) in (nn.Identity, nn.Sequential, nn.Dropout) for m in last.modules())
    is_body = getattr(network, "base_model", None) is network  # of transformers
    if is_open or is_body or getattr(network, "num_classes", None) == 0:  # the latter of timm
        why = f"its last layer {name!r} does nothing" if is_open else f"{type(network).__name__} has no head"
        message = f"{why}, so its outputs are features and no scores of classes"
        raise ModelError(message, argument="model", hint=_WITH_HEAD + _choice("y"))


def _choice(logits: str) -> str:
    return f"choose the logits of what the model returns, as in fringe.Classifier(model, output=lambda y: {logits})"


def _select(output: Any, check: bool) -> Tensor:
    """The logits in a mapping, a sequence or an object."""
    named = getattr(output, "logits", None)
    parts: dict[str, Any] = {}
    is_named = isinstance(output, Mapping)
    if is_named:
        parts = {str(key): value for key, value in cast(Mapping[str, Any], output).items()}
        named = parts.get("logits")
    elif isinstance(output, (tuple, list)):
        parts = {f"[{i}]": value for i, value in enumerate(cast(tuple[Any, ...], output))}
    if isinstance(named, Tensor):
        return named
    tensors = [value for value in parts.values() if isinstance(value, Tensor)]
    scores = {key: v for key, v in parts.items() if isinstance(v, Tensor) and v.dim() == 2 and v.is_floating_point()}
    described = ", ".join(f"{key}: {_describe(value)}" for key, value in parts.items()) or _describe(output)
    # matrices of one shape in a tuple are the scores of the model and of its auxiliary heads
    if len(scores) == 1 or (scores and not is_named and len({v.shape for v in scores.values()}) == 1):
        name, logits = next(iter(scores.items()))
        if is_named and _FEATURES.search(name):
            message = f"its output has no logits, and {name} are features, no scores of classes ({described})"
            raise ModelOutputError(message, argument="model", hint=_WITH_HEAD + _choice(f"y[{name!r}]"))
        if check and not is_named and len(tensors) > 1:
            several = f"the model returns several tensors ({described}), and {name} is taken for the logits"
            warn_caller(f"{several}; {_choice(f'y{name}')}")
        return logits
    remedy = _DENSE
    if scores or not any(value.dim() > 2 for value in tensors):
        remedy = f"Wrap the model so that it returns the logits as a tensor (B, C), or {_choice('...')}"
    message = f"cannot tell which part of its output holds the logits ({described}). {remedy}"
    raise ModelOutputError(message, argument="model")


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"tensor {tuple(value.shape)} {value.dtype}"
    return type(value).__name__


class BinaryClassifier(nn.Module):
    """A model with one logit per image as a classifier of the two classes (no, yes) with logits (-z/2, z/2).

    The logit of a class is half of its log-odds (nats); yes in contrast to no has z. Logits (0, z) would give the same
    prediction, but the logit of "no" would have no gradient, and so no map. A model that predicts a quantity has no
    such classes: explain its number by ``attribute(model, x, method="ig", score=lambda y: y.flatten())``.

    Args:
        model: Returns (B, 1) or (B,).
        output: ``"logit"``: the number is z, before any sigmoid; softmax then gives (1 - sigmoid z, sigmoid z).
            ``"probability"``: the model ends in a sigmoid, and z = log p - log(1 - p).

    Raises:
        InputError: For another ``output``.
    """

    def __init__(self, model: Callable[..., Tensor], output: Literal["logit", "probability"] = "logit"):
        super().__init__()
        require_choice("output", output, ("logit", "probability"))
        self.model, self.output = model, output
        self.training = getattr(model, "training", False)  # a function has none, nor has a frozen script

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return logits (B, 2) of the model called with these arguments."""
        output: Any = self.model(*args, **kwargs)
        z = output if isinstance(output, Tensor) else _select(output, check=False)
        z = z.reshape(z.shape[0], 1)
        if self.output == "probability":
            z = torch.logit(z, eps=torch.finfo(z.dtype).eps)
        return torch.cat([-0.5 * z, 0.5 * z], dim=1)


class Region(nn.Module):
    """A segmentation network with logits (B, C, H, W) as a classifier of a region: the mean logits (B, C) in a mask.

    Logits of series (B, C, L) and volumes (B, C, D, H, W) have masks of one and three axes.

    Its map says why the network sees class k, and no other class, in this region:

    .. math:: z_k = \\sum_{hw} m_{hw} Z_{khw} / \\sum_{hw} m_{hw}

    Args:
        model: Returns logits (B, C, H, W), a mapping that holds them as ``"out"`` (torchvision) or ``"logits"``, or an
            object with ``.logits`` (transformers).
        mask: The region (H, W), a tensor or an array: true or false, or weights that are not negative. A mask of
            another size is averaged, or repeated, to the size of the logits. None: every call gives its masks, one for
            each image, as in ``fringe.attribute(Region(model), inputs, forward_kwargs={"mask": masks})`` with ``masks``
            (B, H, W).

    Raises:
        InputError: If the mask is empty or has another form.
    """

    def __init__(self, model: Callable[..., Any], mask: Any = None):
        super().__init__()
        self.model = model
        self.training = getattr(model, "training", False)  # a function has none, nor has a frozen script
        if mask is not None:
            mask = _weights(torch.as_tensor(mask))
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor, *args: Any, mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """Compute the mean logits of the region.

        Args:
            x: Images (B, *S).
            *args: Further arguments of the model.
            mask: Regions (B, H, W) of these images, or (H, W), instead of the region's own.
            **kwargs: Further arguments of the model.

        Returns:
            Logits (B, C).

        Raises:
            InputError: If there is no mask, or one is empty.
            ModelOutputError: If the model returns no logits (B, C, H, W).
        """
        region = cast("Tensor | None", self.mask) if mask is None else _weights(mask)
        if region is None:
            raise InputError("this region has none", argument="mask", hint='pass forward_kwargs={"mask": masks}')
        logits = _dense_logits(self.model(x, *args, **kwargs), len(x))
        space = logits.shape[2:]
        region = region[None] if region.dim() == len(space) else region
        if region.dim() != len(space) + 1 or len(region) not in (1, len(x) if mask is not None else 1):
            axes = ", ".join("DHW"[-len(space) :] if len(space) > 1 else "L")
            message = f"got shape {tuple(region.shape)}, expected ({axes})"
            hint = 'masks of single images are forward arguments, forward_kwargs={"mask": masks}'
            raise InputError(message, argument="mask", hint=hint)
        if mask is not None and not bool((region.flatten(1).sum(1) > 0).all()):
            raise InputError(_EMPTY, argument="mask", hint="choose at least one pixel")
        region = region.to(logits)[:, None]
        region = region if region.shape[2:] == space else F.interpolate(region, space, mode="area")
        return (logits * region).flatten(2).sum(2) / region.flatten(2).sum(2)


_EMPTY = "it is empty"


def _weights(mask: Tensor) -> Tensor:
    """The mask as numbers, checked: finite, not negative, and not zero everywhere."""
    values = mask.detach()
    values = values if values.is_floating_point() else values.float()
    if not 1 <= values.dim() <= 4 or not bool((torch.isfinite(values) & (values >= 0)).all()):
        message = f"got shape {tuple(values.shape)}, expected weights (H, W) that are finite and not negative"
        raise InputError(message, argument="mask")
    if not bool((values > 0).any()):
        raise InputError(_EMPTY, argument="mask", hint="choose at least one pixel")
    return values


def _dense_logits(output: Any, batch: int) -> Tensor:
    logits = output
    if isinstance(output, Mapping):
        table = cast(Mapping[str, Any], output)
        logits = table.get("out", table.get("logits"))
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() not in (3, 4, 5) or len(logits) != batch:
        what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(output).__name__
        raise ModelOutputError(f"its output is {what}, expected logits ({batch}, C, H, W)", argument="model")
    return logits
