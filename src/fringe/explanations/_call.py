"""One call for people: a model or its name, and pictures, paths or tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module

from fringe._network.arguments import Axes, ForwardArguments
from fringe._strings.class_names import ClassNames, resolve_class_name
from fringe.attribution import Attribution, Attributor, FRInGe, InputKind, Progress, Trajectory, attribute, get_method
from fringe.classifier import Classifier, Target
from fringe.detection import Detector, overlap
from fringe.errors import InputError, require_choice, require_order, unfit_inputs, warn_caller
from fringe.explanations._spec import POINTS, UNITS
from fringe.inputs import CONVERTERS, OPTIONS, Request
from fringe.models import LoadedModel, is_text_model, is_tokenizer, of_pipeline
from fringe.similarity import Similarity
from fringe.text import TextClassifier


def explain(
    model: str | Path | Callable[..., Any] | Classifier | LoadedModel,
    inputs: Any,
    *,
    method: str | Attributor | type[Attributor] | None = None,
    target: Target = "predicted",
    kind: InputKind | None = None,
    preprocessing: Any = None,
    classes: ClassNames | None = None,
    device: str = "auto",
    trust_code: bool = False,
    seed: int = 0,
    progress: bool | Progress = False,
    **options: Any,
) -> Attribution:
    """Explain why a model predicts a class, from pictures, texts, tables, series or prepared tensors.

    >>> import fringe
    >>> result = fringe.explain("embedded:digits", "embedded:digits:3", method="ig")
    >>> result.context.class_label(int(result.target[0]))
    '3'

    Args:
        model: A spec such as ``"torchvision:resnet50"``, which brings its preprocessing and class names; or a module,
            callable, Classifier or LoadedModel; or a pipeline of the transformers library that classifies images or
            texts, which brings its image processor or tokenizer. A classifier of that library brings its class names.
        inputs: A PIL image, a path or folder, ``"embedded:digits:0:6"``, a NumPy array (H, W, C) or (B, H, W, C) of
            uint8 or floats in [0, 1], or a list of these: they are prepared for the model. A tensor (C, H, W)
            or (B, C, H, W) is passed unchanged. The kind ``text`` takes a text or a list of texts; ``tabular`` a
            data frame, an array or a tensor (B, F); ``series`` an array or a tensor (B, C, L), or (B, L) for one
            channel; ``volume`` an array or a tensor (B, C, D, H, W).
        method: A name, as ``"fringe"``, ``"fringe:fast"`` or ``"ig:paper"``, or a method. None: ``"fringe"``, but
            ``"captum:occlusion"`` of words for language models, whose score is the ``log_probability`` by default.
        target: As in :func:`fringe.attribute`, or the name of a class, or one name for each input. ``contrast`` takes
            the same values. Of a language model both are texts of answers: see :meth:`fringe.text.NextToken.encode`.
        kind: What an input is: ``image``, ``text``, ``tabular``, ``series`` or ``volume``. None: ``text`` if a
            ``tokenizer`` is given or the spec names a model of texts, ``tabular`` for a data frame, and ``image``
            otherwise.
        preprocessing: How pictures are prepared, as ``"imagenet"`` or ``"resize=256,crop=224,mean=0.5,std=0.5"``, or an
            image processor of the transformers library. It is required for pictures if the model has none. For texts a
            tokenizer of that library, for tables a fitted StandardScaler of scikit-learn.
        classes: Class names: a list, a dictionary by number, or a file with one name per line or JSON.
        device: Device of a model that is named by a spec; ``"auto"`` is the GPU if there is one. A module stays on its
            device.
        trust_code: Whether a model that is a Python file, module or exported program may run its code.
        seed: Keys all randomness.
        progress: True for a progress bar, or a function that is called with the steps done and planned.
        **options: Further arguments of :func:`fringe.attribute`: ``contrast``, ``score``, ``batch_size``, ``baseline``,
            ``space``, ``ids``, ``bad_images``, ``lengths`` of padded series, ``axes`` of the model's inputs (maps and
            pictures have channels first all the same), ``telemetry`` (default: 11 points, because pictures need the
            path), and ``probe`` (default: true, but for ``captum:occlusion``). Detectors take ``boxes``:
            ``"predicted"`` (the default), all that are predicted with a probability of one half or more; a number, of
            the most certain ones; or boxes (n, 4): left, top, right and bottom in pixels of the photograph. Each
            is explained in a row of its own. Texts also take
            ``tokenizer`` and ``special`` (see :class:`fringe.text.TextClassifier`) and, for language models,
            ``generate``, the length of the explained answer in tokens, and ``candidates`` (see
            :class:`fringe.text.NextToken`); tables, series and volumes ``features``, the names of columns or channels.
            ``feature_mask`` may be a function: of a list of words, with a number for each, such as
            :func:`fringe.text.sentences`, or of the inputs (B, *S), with numbers that broadcast to them.

    Returns:
        The attribution, with the inputs, class names and probabilities in its ``context``.

    Raises:
        FringeError: If the model, an input or an argument cannot be used; the message says what to do.
    """
    if isinstance(inputs, Module):
        raise InputError("got a module", argument="inputs", hint="give the model first: explain(model, 'photo.jpg')")
    model, preprocessing = of_pipeline(model, preprocessing)
    if is_tokenizer(preprocessing):
        options, preprocessing = {"tokenizer": preprocessing, **options}, None
    kind = _kind(model, inputs, options) if kind is None else kind
    require_choice("kind", kind, CONVERTERS)
    axes = options.pop("axes", None)
    if axes is not None and (isinstance(inputs, Tensor) or kind in ("series", "volume")):
        inputs = torch.as_tensor(inputs)
        inputs = Axes.of(axes, inputs.shape[-len(str(axes)) :]).first(inputs)
    special = {name: options.pop(name) for name in OPTIONS.get(kind, ()) if name in options}
    contrast = options.pop("contrast", None)
    request = Request(model, inputs, preprocessing, classes, device, trust_code, special, target, contrast)
    ready = CONVERTERS[kind](request)
    named = options.pop("ids", None)
    require_order("ids", named)
    if named is not None and len(named) != len(ready.inputs):
        raise InputError(f"got {len(named)} for {len(ready.inputs)} inputs", argument="ids")
    ids = ready.ids if named is None else tuple(map(str, named))
    arguments: dict[str, Any] = {"space": ready.space, "ids": ready.keys if named is None else ids, "telemetry": POINTS}
    if method is None:
        method = "captum:occlusion" if ready.classes else "fringe"
    chosen = get_method(method)
    most = replace(chosen, structure="none").planned_passes if ready.classes and isinstance(chosen, FRInGe) else 0
    if most > 1000:
        hint = "method='captum:occlusion' takes one for each word"
        warn_caller(f"{chosen.label} takes up to {most:,.0f} passes for each token of an answer; {hint}")
    if method == "captum:occlusion":  # else occlusion would be compared with itself
        options.setdefault("probe", False)
    if callable(options.get("feature_mask")):
        options["feature_mask"] = features = ready.numbered(options["feature_mask"])
        ready = ready.joined(features) if getattr(chosen, "takes_feature_mask", False) else ready
    arguments |= {"probe": True, **ready.arguments, **options}
    if "baseline" not in options and not chosen.accepts_baseline:
        arguments.pop("baseline", None)
    if axes is not None:
        shape = dict(zip("".join(sorted(str(axes).upper())), ready.inputs.shape[1:], strict=False))
        arguments["axes"] = axes = Axes.of(axes, [shape.get(letter, 0) for letter in str(axes).upper()])
        if axes.is_flat:
            hint = "explain points by fringe.attribute"
            raise InputError("points without an order have no picture", argument="axes", hint=hint)
    if ready.features and arguments["space"] is not None:
        arguments["space"] = replace(arguments["space"], names=ready.features[0])
    classifier = Classifier.of(ready.model, arguments.pop("score", None), arguments.pop("batch_size", None))
    further = (arguments.get("forward_args"), arguments.get("forward_kwargs"))
    is_stack = kind == "image" and isinstance(inputs, Tensor) and inputs.dim() == 3
    with unfit_inputs("for a batch of series (B, C, T) give kind='series'" if is_stack else None):
        forward = replace(ForwardArguments.of(len(ready.inputs), *further), axes=axes)
        logits = classifier.logits(ready.inputs, forward)
    names = ready.named(logits.shape[1])
    arguments |= {"method": method, "seed": seed, "progress": progress}
    is_default = isinstance(target, str) and target == "predicted" and ready.predicted is not None
    if "target" not in ready.arguments:
        arguments |= {"target": list(ready.predicted or ()) if is_default else _number("target", target, names)}
        arguments |= {"contrast": _number("contrast", contrast, names)}
    result = attribute(classifier, ready.inputs, **arguments)
    if ready.boxes is not None:
        result = followed(result, cast(Detector, ready.model), arguments["forward_kwargs"]["place"])
    unit = "" if classifier.score_function else UNITS[classifier.score_kind]
    inner = ready.model.model if isinstance(ready.model, TextClassifier) else ready.model
    unit = inner.unit if isinstance(inner, Similarity) and unit == "logit" else unit
    return result.with_context(replace(ready.context(kind, logits, ids), unit=unit))


def followed(result: Attribution, detector: Detector, places: Tensor) -> Attribution:
    """The result with what becomes of each box along its path, and at its end: ``box_overlap``, of the box with that at
    the input, and ``box_seen``, the largest probability of the class that any place has for the box at the input."""
    paths, ends, forward = list[Trajectory | None](), list[list[float]](), 0
    for place, path, target in zip(places, result.trajectory or (), result.target, strict=False):
        if path is not None:
            boxes, seen = detector.follow(path.snapshots.to(result.values), place, int(target.flatten()[0]))
            path, forward = replace(path, boxes=boxes.cpu()), forward + len(boxes)
            ends.append([float(overlap(boxes[-1], boxes[0])), float(seen[-1])])
        paths.append(path)
    if len(ends) < len(result):
        return result
    kept, seen = torch.tensor(ends, dtype=torch.float64, device=result.values.device).T
    passes = replace(result.passes, forward=result.passes.forward + forward)
    diagnostics = {**result.diagnostics, "box_overlap": kept, "box_seen": seen}
    return replace(result, trajectory=tuple(paths), diagnostics=diagnostics, passes=passes)


def _kind(model: Any, inputs: Any, options: dict[str, Any]) -> InputKind:
    """What inputs are that do not say it."""
    if "tokenizer" in options or isinstance(model, TextClassifier):
        return "text"
    if hasattr(inputs, "columns") and hasattr(inputs, "to_numpy"):
        return "tabular"
    texts = [inputs] if isinstance(inputs, str) else inputs
    are_texts = isinstance(texts, (list, tuple)) and all(isinstance(text, str) for text in cast(Sequence[Any], texts))
    return "text" if are_texts and is_text_model(model) else "image"


def _number(argument: str, target: Target | None, names: tuple[str, ...] | None) -> Target | None:
    """A target or contrast as it is, or the numbers of the classes that it names."""
    if isinstance(target, (list, tuple)) and any(isinstance(one, str) for one in target):
        return [_number(argument, one, names) for one in target]  # pyright: ignore[reportReturnType] - numbers
    if not isinstance(target, str) or target == "predicted" or re.fullmatch(r"top[0-9]+", target):
        return target
    return resolve_class_name(target, names, argument)
