"""One call for people: a model or its name, and pictures, paths or tensors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fringe._arguments import ForwardArguments
from fringe._class_names import ClassNames
from fringe.attribution import Attribution, Attributor, InputKind, Progress, attribute
from fringe.classifier import Classifier, Target
from fringe.errors import InputError, TargetError, check_known, did_you_mean
from fringe.inputs import CONVERTERS, Request
from fringe.models import LoadedModel, Preprocessing


def explain(
    model: str | Path | Callable[..., Any] | Classifier | LoadedModel,
    inputs: Any,
    *,
    method: str | Attributor | type[Attributor] = "fringe",
    target: Target = "predicted",
    kind: InputKind = "image",
    preprocessing: Preprocessing | str | None = None,
    classes: ClassNames | None = None,
    device: str = "auto",
    trust_code: bool = False,
    seed: int = 0,
    progress: bool | Progress = False,
    **options: Any,
) -> Attribution:
    """Explain why a model predicts a class, from pictures or prepared tensors.

    >>> import fringe
    >>> result = fringe.explain("embedded:digits", "embedded:digits:3", method="ig")
    >>> result.context.class_label(int(result.target[0]))
    '9'

    Args:
        model: A spec such as ``"torchvision:resnet50"``, which brings its preprocessing and class names; or a module,
            callable, Classifier or LoadedModel.
        inputs: A PIL image, a path or folder, ``"embedded:digits:0:6"``, a NumPy array (H, W, C) or (B, H, W, C) of
            uint8 or floats in [0, 1], or a list of them, which are all prepared for the model; or a tensor (C, H, W)
            or (B, C, H, W), which is prepared already.
        method: A name, as ``"fringe"``, ``"fringe:preview"`` or ``"ig:paper"``, or a method.
        target: As in :func:`fringe.attribute`, or the name of a class.
        kind: What an input is.
        preprocessing: How pictures are prepared, as ``"imagenet"`` or ``"resize=256,crop=224,mean=0.5,std=0.5"``. It is
            required for pictures if the model does not say it.
        classes: Class names: a list, a dictionary by number, or a file with one name per line or JSON.
        device: Device of a model that is named by a spec; ``"auto"`` is the GPU if there is one. A module is explained
            where it is.
        trust_code: Whether a model that is a Python file, module or exported program may run its code.
        seed: Keys all randomness.
        progress: True for a progress bar, or a function that is called with the steps done and planned.
        **options: Further arguments of :func:`fringe.attribute`: ``contrast``, ``score``, ``batch_size``, ``baseline``,
            ``space``, ``ids``, ``bad_images``, and ``telemetry``, which is True here: pictures need the path.

    Returns:
        The attribution, with the inputs, class names and probabilities in its ``context``.

    Raises:
        FringeError: If the model, an input or an argument cannot be used; the message says what to do.
    """
    check_known("kind", kind, CONVERTERS)
    ready = CONVERTERS[kind](Request(model, inputs, preprocessing, classes, device, trust_code))
    named = options.pop("ids", None)
    if named is not None and len(named) != len(ready.inputs):
        raise InputError(f"got {len(named)} for {len(ready.inputs)} inputs", argument="ids")
    ids = ready.ids if named is None else tuple(map(str, named))
    arguments: dict[str, Any] = {"space": ready.space, "ids": ready.keys if named is None else ids, "telemetry": True}
    arguments |= {**ready.arguments, **options}
    classifier = Classifier.of(ready.model, arguments.pop("score", None), arguments.pop("batch_size", None))
    further = (arguments.get("forward_args"), arguments.get("forward_kwargs"))
    logits = classifier.logits(ready.inputs, ForwardArguments.of(len(ready.inputs), *further))
    names = ready.named(logits.shape[1])
    arguments |= {"method": method, "target": _number(target, names), "seed": seed, "progress": progress}
    result = attribute(classifier, ready.inputs, **arguments)
    return result.with_context(ready.context(kind, logits, ids))


def _number(target: Target, names: tuple[str, ...] | None) -> Target:
    """A target as it is, or the number of the class that it names."""
    if not isinstance(target, str) or names is None or target == "predicted":
        return target
    matches = [k for k, name in enumerate(names) if name.casefold() == target.casefold()]
    if len(matches) == 1:
        return matches[0]
    is_count = target.startswith("top") and target[3:].isdecimal()
    if is_count:
        return target
    if matches:
        raise TargetError(f"got {target!r}, the name of classes {matches}: give the number", argument="target")
    hint = did_you_mean(target, names) or "expected 'predicted', 'top5', or the name or number of a class"
    raise TargetError(f"got {target!r}, which is no class of the model", argument="target", hint=hint)
