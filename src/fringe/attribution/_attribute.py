"""The one call: model and images in, attribution out; several classes, and inputs without their padding."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import torch
from torch import Tensor, nn

from fringe._network.arguments import Axes, explained_inputs, is_joint
from fringe._network.outputs import refuse_captured
from fringe._numbers.rng import KeyedGenerator
from fringe._strings.names import hint_unknown
from fringe._strings.progress import shown
from fringe.attribution._agreement import probed
from fringe.attribution._base import (
    SEVERITY,
    Attribution,
    Attributor,
    Progress,
    Trajectory,
    Verdict,
    explain_by_size,
)
from fringe.attribution._base import get_method as get_method
from fringe.attribution._steps import mark_steps
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Score, ScoreFunction, Target
from fringe.errors import InputError, first_line, require, unfit_inputs, warn_caller
from fringe.geometry import log_probabilities
from fringe.paths import Problem, token_length_of, verify

if TYPE_CHECKING:
    from torch.utils.data import DataLoader

OnBad = Literal["raise", "mark"]

#: Passes for one input that no method needs: ten thousand times those of Integrated Gradients by default are a mistake.
MOST_PASSES = 1e7

#: Diagnostics of what the model predicts, which say nothing where one number is explained.
_OF_PREDICTIONS = (
    *("distance", "endpoint_distance", "entropy", "endpoint_entropy", "endpoint_kl"),
    *("tracking_error_mean", "tracking_error_max"),
)

_ADVICE: dict[Verdict, str] = {
    "nan_input": "the image holds NaN or infinity",
    "nan_logits": "the model's logits for this image are NaN or infinite",
}


@hint_unknown
def attribute(
    model: Callable[[Tensor], Any] | Classifier,
    inputs: Tensor | tuple[Tensor, ...] | Mapping[str, Any] | DataLoader[Any],
    *,
    method: str | Attributor | type[Attributor] = "fringe",
    target: Target = "predicted",
    contrast: int | Sequence[int] | Tensor | None = None,
    score: Score | ScoreFunction | None = None,
    batch_size: int | Literal["auto"] | None = None,
    seed: int = 0,
    probe: bool = False,
    telemetry: bool | int = False,
    bad_images: OnBad = "raise",
    progress: bool | Progress | None = None,
    baseline: float | Tensor | tuple[float | Tensor, ...] | Mapping[str, float | Tensor] | None = None,
    feature_mask: Tensor | tuple[Tensor, ...] | Mapping[str, Tensor] | None = None,
    space: InputSpace | None = None,
    ids: Sequence[str] | None = None,
    forward_args: Sequence[Any] | None = None,
    forward_kwargs: Mapping[str, Any] | None = None,
    lengths: Sequence[int] | Tensor | None = None,
    axes: str | Axes | None = None,
) -> Attribution:
    """Explain why a model predicts a class: one map for each image.

    Args:
        model: A classifier of such inputs, any module or callable. Its weights are frozen during the call, and its
            state is restored.
        inputs: Images (B, *S). Several tensors in a tuple, or by name in a dictionary, are explained together, by one
            path of them all: ``result.maps`` has the map of each, and ``result.values`` all of their numbers (B, N).
            Of a dictionary, the floating-point tensors are explained, and the rest is passed by name. A DataLoader of
            such batches, or of pairs of a batch and its labels, which are left out, is explained batch by batch, on the
            device of the weights; one value for each input is given in the order of the loader.
        method: A registered name, with or without a preset (``"fringe:fast"``), or a configured method such as
            ``FRInGe(tau=1e-3)``. ``"straight:NAME"`` and ``"smooth(3):NAME"`` modify any method.
        target: ``"predicted"``, an integer, or one integer per image. ``"top5"`` (any number) or integers (B, K)
            explain K classes: the maps are then (B, K, *S). FRInGe's path does not depend on the class and is run
            once, at K - 1 further vector-Jacobian products a step, and each class halves the segments that it needs
            itself: a map does not depend on the other classes, unless a ``focus`` does, whose weights are then the
            largest of theirs. Other methods take K times as long.
        contrast: A class, or one per image: explain why the target and not this class, by the difference of their
            scores.
        score: The explained score, as of :class:`Classifier` (default: the logit), or a function of what the model
            returns for B inputs, with one number (B,) for each. A Classifier has its own.
        batch_size: Images in one pass, as of :class:`Classifier` (default: automatic). A Classifier has its own.
        seed: Keys all randomness, together with the images' ``ids``.
        probe: Whether to ask occlusion what it says of each map: ``result.agreement``. Parts are removed one at a time
            (replaced by the ``baseline``, or by the mean of each channel), at a forward pass each: 25 and on two other
            grids 65 of an image, 16 of a series, 27 of a volume, one for each word or column (64 at most).
            ``feature_mask`` sets other parts.
        telemetry: Whether to record each image's path. True keeps 6 of its points as images; an integer (at least 2)
            keeps that many. The forward passes for the predictions at these points are not counted in ``passes``.
        bad_images: With ``"mark"``, an image with NaN in it or in its logits gets a NaN map and the verdict
            ``nan_input`` or ``nan_logits`` while the others are explained; ``"raise"`` names it in an InputError.
        progress: True for a progress bar, or a function that is called with the steps done and planned.
        baseline: A number, or a tensor that broadcasts to the inputs; it replaces the method's own baseline. For
            several tensors, a number, or one or a tensor for each of them in the same form as the inputs.
        feature_mask: Numbers that broadcast to the inputs, in the same form: entries with the same one are replaced
            together, by ``probe``, by ``captum:occlusion`` in place of windows, by ``captum:kernel_shap`` in place of
            superpixels.
        space: The valid range of inputs, and reference images for the methods that need them; of several tensors, in
            tuples or dictionaries, too.
        ids: Names (B) of the images. Without them an image is identified by its content, so that a map never depends on
            the other images.
        forward_args: Further arguments of the model, ``model(inputs, *forward_args, **forward_kwargs)``. A
            tensor with a first axis as long as the batch belongs to the images, row by row. Everything else is passed
            unchanged to every call, and so is ``fringe.Shared(value)``.
        forward_kwargs: The same by name.
        lengths: How many samples (B) of each series (B, C, L) are no padding. The model takes all L, but padding stays
            as it is, gets nothing, and takes no part in noise, smoothing and bounds on steps: maps are those of the
            series without it. Series of one length are explained together. Texts bring their own lengths.
        axes: The axes of an input after the batch, where these are not (C, *space): a letter for each, ``"HWC"``,
            ``"DHWC"``, ``"LC"`` for series, or ``"NC"`` for points without an order. Smoothing, masks and lengths then
            follow them; maps, ``baseline`` and ``space`` have the axes of the inputs, and a ``region`` has (1, *space).

    Returns:
        The maps (B, *S) or (B, K, *S), and measurements of each.

    Raises:
        InputError: If an argument is invalid.
        TargetError: If a target or contrast is no class of the model.
        ModelOutputError: If the model's output cannot be read as logits (B, C).
        NotDifferentiableError: If its derivatives are missing or wrong.
    """
    if not isinstance(inputs, (Tensor, tuple, Mapping)) and hasattr(inputs, "dataset"):
        options = {name: value for name, value in locals().items() if name not in ("model", "inputs")}
        options |= {"score": None, "batch_size": None, "progress": None}
        with shown(progress, get_method(method).name) as report:
            return _of_batches(Classifier.of(model, score, batch_size), inputs, options, report)
    chosen = get_method(method)
    require(bad_images in get_args(OnBad), "bad_images", bad_images, "'raise' or 'mark'")
    require(type(probe) is bool, "probe", probe, "true or false")
    if type(telemetry) is not bool and (type(telemetry) is not int or telemetry < 2):
        raise InputError(f"got {telemetry!r}, expected true, false or at least 2", argument="telemetry")
    classifier = Classifier.of(model, score, batch_size)
    if not classifier.has_classes and (chosen.needs_classes or chosen.innermost.needs_classes):
        is_function = classifier.score_function is not None
        given = "a function gives one number" if is_function else "output='numbers' says that they are none"
        message = f"the method {chosen.name!r} needs the logits of all classes, and {given}"
        hint = "choose a method that needs none, such as method='ig'"
        raise InputError(message, argument="score" if is_function else "output", hint=hint)
    x, arguments = explained_inputs(cast(Any, inputs), forward_args, forward_kwargs, ids)
    if classifier.score_function is not None:
        given = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
        refuse_captured(classifier.score_function, [one for one in given if isinstance(one, Tensor) and len(one)])
    start = features = moved = None
    if baseline is not None:
        start = _baseline(chosen, arguments.joined(baseline, x, x.shape[:1], "baseline"), x)
    if feature_mask is not None:
        features = _features(chosen, arguments.joined(feature_mask, x, x.shape[:1], "feature_mask"), x, probe)
    if axes is None:
        _warn_of_axes(classifier, x)
    else:
        if is_joint(arguments.parts):
            raise InputError(
                "got axes for several tensors", argument="axes", hint="explain one, the others as forward_args"
            )
        moved = None if isinstance(axes, Axes) else Axes.of(axes, x.shape[1:])
        arguments = dataclasses.replace(arguments, axes=moved or axes)
    if moved is not None:
        space, start = _moved_space(space, moved), start if start is None else moved.first(start)
        x, features = moved.first(x), None if features is None else moved.first(features)
    with classifier.session(x.device), shown(progress, chosen.name) as report:
        before = dataclasses.replace(classifier.passes)
        with unfit_inputs():
            problem = Problem.of(
                classifier,
                x,
                target=target,
                contrast=contrast,
                forward_args=arguments,
                ids=None if ids is None else tuple(map(str, ids)),
                rng=KeyedGenerator(seed),
                domain=space,
                baseline=start,
                feature_mask=features,
                probe=probe,
                record_path=telemetry,
                progress=report,
                total=len(x),
                lengths=lengths,
            )
        bad = ((~torch.isfinite(value)).flatten(1).any(1).tolist() for value in (x, problem.logits))
        fault: list[Verdict | None] = [
            "nan_input" if i else "nan_logits" if j else None for i, j in zip(*bad, strict=True)
        ]
        finite = [i for i, f in enumerate(fault) if f is None]
        if bad_images == "raise" and len(finite) < len(fault):
            raise _fault_error(fault)
        if finite:
            part = problem.select(finite) if len(finite) < len(fault) else problem
            has_sum = chosen.is_complete or chosen.innermost.is_complete
            verify(part, {chosen.jvp_use(part)} if chosen.uses_gradients else (), has_sum=has_sum)
            result = explain_problem(chosen, part)
            passes = classifier.passes.since(before)
            if not classifier.has_classes:
                known = {name: v for name, v in result.diagnostics.items() if name not in _OF_PREDICTIONS}
                result = dataclasses.replace(result, diagnostics=known)
            result = dataclasses.replace(result, passes=passes, contrast=part.contrast, parts=arguments.parts)
            if result.trajectory is not None and classifier.has_classes:
                result = dataclasses.replace(result, trajectory=_with_probabilities(result.trajectory, part))
        else:
            result = dataclasses.replace(_nothing(chosen, problem), passes=classifier.passes.since(before))
            result = dataclasses.replace(result, parts=arguments.parts)
        result = result if len(finite) == len(fault) else _spread(result, finite, problem, fault)
        return result if moved is None else _moved_back(result, moved)


def explain_problem(method: Attributor, problem: Problem) -> Attribution:
    """Make maps by a method; one that needs a path for each class explains each image once per class.

    They are (B, *S) or (B, K, *S). The caller holds the model's session open.
    """
    if (method.planned_passes or 0.0) > MOST_PASSES:
        message = f"{method.label} plans {method.planned_passes:.1g} passes for each input, more than {MOST_PASSES:.0g}"
        raise InputError(message, argument="method", hint="take fewer steps or samples")
    if problem.lengths is not None:

        def of_one_length(rows: list[int]) -> Attribution:
            part = dataclasses.replace(problem.without_padding(rows), progress=None)
            return _padded(explain_problem(method, part), problem, rows)

        return explain_by_size(of_one_length, problem.lengths, problem.progress)
    result = _made(method, problem) if problem.target.dim() == 1 or method.many_targets else _by_class(method, problem)
    result = mark_steps(method, result, problem)
    return probed(result, problem) if problem.probe else result


def _by_class(method: Attributor, problem: Problem) -> Attribution:
    """Maps (B, K, *S) of a method with a path for each class."""
    batch, classes = problem.target.shape
    result = _of_each_class(method, problem)
    rows = [range(i, i + classes) for i in range(0, batch * classes, classes)]
    residual: list[float] = result.completeness_residual.tolist()
    worst = [max(row, key=lambda k: (SEVERITY.index(result.verdict[k]), residual[k])) for row in rows]
    return dataclasses.replace(
        result.map_tensors(lambda column: column.view(batch, classes, *column.shape[1:])),
        verdict=tuple(result.verdict[k] for k in worst),
        advice=tuple(result.advice[k] for k in worst),
        trajectory=None if result.trajectory is None else result.trajectory[::classes],
        class_verdicts=tuple(tuple((result.verdict[k], result.advice[k]) for k in row) for row in rows),
    )


def _of_each_class(method: Attributor, problem: Problem) -> Attribution:
    """Maps (B * K, *S) of a method with a path for each class, of as many at once as a pass has: what others need
    while they wait is several times as large as their maps."""
    classes, count = problem.target.shape[1], problem.target.numel()
    size, parts = problem.model.batch_size.on(problem.inputs.device), list[Attribution]()
    for begin in range(0, count, size):
        rows = torch.arange(begin, min(begin + size, count), device=problem.inputs.device)
        target = problem.target.flatten()[rows]
        contrast = None if problem.contrast is None else problem.contrast.flatten()[rows]
        progress = problem.progress
        if progress is not None and size < count:
            progress = partial(_report_part, progress, begin, len(rows), count)
        part = problem.select(rows // classes)
        parts.append(_made(method, dataclasses.replace(part, target=target, contrast=contrast, progress=progress)))
    return Attribution.concat(parts) if len(parts) > 1 else parts[0]


def _report_part(report: Progress, begin: int, rows: int, count: int, done: int, total: int) -> None:
    report(begin * total + rows * done, count * total)


def _made(method: Attributor, problem: Problem) -> Attribution:
    """The maps of a method, checked, as anybody may have written it: one for each input and class."""
    result = method.fitted(problem).attribute(problem)
    if not isinstance(result, Attribution):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "return what gradient_attribution(...) or path_attribution(...) makes of the maps"
        message = f"{method.label} returned {type(result).__name__}, expected an Attribution"
        raise InputError(message, argument="method", hint=hint)
    rows, shape = problem.target.shape, problem.inputs.shape[1:]
    expected = {"maps": (rows + shape,), **dict.fromkeys(result.diagnostics, (rows[:1], rows))}
    for name, value in {"maps": result.values, **result.diagnostics}.items():
        came = tuple(getattr(value, "shape", ()))
        if came not in expected[name]:
            message = f"{method.label} returned {name} of shape {came}, expected {tuple(expected[name][0])}"
            raise InputError(message, argument="method")
    return result


def _with_probabilities(trajectories: Sequence[Trajectory | None], problem: Problem) -> tuple[Trajectory | None, ...]:
    """The paths with what the model predicts at the stored points of each."""
    paths: list[Trajectory | None] = []
    for image, path in enumerate(trajectories):
        if path is not None:
            rows = torch.full((len(path.snapshots),), image, device=problem.inputs.device)
            logits = problem.forward(path.snapshots.to(problem.inputs), rows)
            path = dataclasses.replace(path, probabilities=log_probabilities(logits).exp().cpu())
        paths.append(path)
    return tuple(paths)


def _baseline(method: Attributor, baseline: Any, x: Tensor) -> Tensor:
    if not method.accepts_baseline:
        raise InputError(f"the method {method.name!r} does not begin at one", argument="baseline", hint="leave it out")
    if isinstance(baseline, str):
        hint = f"give a name to the method, as in {type(method).__name__}(baseline={baseline!r})"
        raise InputError(f"got the text {baseline!r}, expected a number or a tensor", argument="baseline", hint=hint)
    return _wide(baseline, x, "baseline")


def _wide(given: Any, x: Tensor, argument: str) -> Tensor:
    """Numbers of the caller in the shape of the inputs."""
    value = torch.as_tensor(given, dtype=x.dtype, device=x.device).detach()
    try:
        value = value.expand_as(x)
    except RuntimeError as error:
        raise InputError(
            f"got shape {tuple(value.shape)}, expected one that broadcasts to the inputs {tuple(x.shape)}",
            argument=argument,
        ) from error
    if not bool(torch.isfinite(value).all()):
        raise InputError("it holds NaN or infinity", argument=argument)
    return value


def _features(method: Attributor, mask: Any, x: Tensor, probe: bool) -> Tensor:
    """The numbers (B, *S) of features, from 0 on."""
    if not probe and not getattr(method, "takes_feature_mask", False):
        hint = "leave it out, choose captum:occlusion or captum:kernel_shap, or pass probe=True"
        raise InputError(f"the method {method.label} replaces no features", argument="feature_mask", hint=hint)
    numbers = _wide(mask, x, "feature_mask")
    require(bool((numbers == numbers.round()).all()), "feature_mask", "fractions", "whole numbers of features")
    return numbers.unique(return_inverse=True)[1]


def _fault_error(fault: list[Verdict | None]) -> InputError:
    images = [i for i, f in enumerate(fault) if f == "nan_input"]
    if images:
        message, hint = f"images {images} hold NaN or infinity", "leave them out, or pass bad_images='mark'"
        return InputError(message, argument="inputs", hint=hint)
    images = [i for i, f in enumerate(fault) if f == "nan_logits"]
    message = f"its logits for images {images} are NaN or infinite"
    hint = "check the model (leave classes that are masked with -inf out of its output), or pass bad_images='mark'"
    return InputError(message, argument="model", hint=hint)


def _nothing(method: Attributor, problem: Problem) -> Attribution:
    """The attribution of no images."""
    target, trajectory = problem.target[:0], () if problem.record_path else None
    score = problem.inputs.new_empty(target.shape)
    values = problem.inputs.new_empty((*target.shape, *problem.inputs.shape[1:]))
    gap = score.double()
    return Attribution(
        values, target, score, score, gap, gap, (), (), {}, settings=method.record(), trajectory=trajectory
    )


def _spread(result: Attribution, rows: list[int], problem: Problem, fault: list[Verdict | None]) -> Attribution:
    """The result for the images at ``rows``, NaN and the fault for the others."""
    index = torch.tensor(rows, dtype=torch.long, device=result.values.device)
    position = {row: i for i, row in enumerate(rows)}

    def scatter(values: Tensor) -> Tensor:
        wide = values if values.is_floating_point() else values.double()
        out = torch.full((len(fault), *values.shape[1:]), torch.nan, dtype=wide.dtype, device=wide.device)
        return out.index_copy(0, index, wide)

    targets, trajectory = problem.target, None
    if result.trajectory is not None:
        trajectory = tuple(result.trajectory[position[i]] if i in position else None for i in range(len(fault)))
    return dataclasses.replace(
        result.map_tensors(scatter),
        target=targets,
        contrast=problem.contrast,
        verdict=tuple(f or result.verdict[position[i]] for i, f in enumerate(fault)),
        advice=tuple(_ADVICE[f] if f else result.advice[position[i]] for i, f in enumerate(fault)),
        trajectory=trajectory,
        class_verdicts=tuple(
            ((f, _ADVICE[f]),) * targets.shape[1] if f else result.class_verdicts[position[i]]
            for i, f in enumerate(fault)
        )
        if targets.dim() == 2
        else (),
    )


# -- batches of a loader -----------------------------------------------------------------------------------------------


def _of_batches(model: Classifier, loader: Any, options: dict[str, Any], report: Progress | None) -> Attribution:
    """The maps of all batches of a loader; ``options`` are further arguments of :func:`attribute`."""
    given = next((name for name in ("forward_args", "forward_kwargs") if options[name]), None)
    if given is not None:
        hint = "let the loader yield dictionaries with all tensors of the model"
        raise InputError("got further arguments for the batches of a loader", argument=given, hint=hint)
    weight = None if model.module is None else next(model.module.parameters(), None)
    each = {name: options[name] for name in ("target", "contrast", "ids", "lengths")}
    each = {name: v for name, v in each.items() if not isinstance(v, (str, int)) and getattr(v, "shape", v)}
    parts, shapes, total, planned = list[Attribution](), dict[Any, Any](), 0, 0
    with contextlib.suppress(TypeError):  # a stream has no length
        planned = len(loader)
    for number, batch in enumerate(loader):
        given = _inputs_of(batch)
        named: dict[Any, Any] = dict(given if isinstance(given, Mapping) else enumerate(given))
        if weight is not None:
            named = {name: v.to(weight.device) if isinstance(v, Tensor) else v for name, v in named.items()}
        came = {name: tuple(v.shape[1:]) for name, v in named.items() if isinstance(v, Tensor)}
        shapes, size = shapes or came, next((len(named[name]) for name in came), 0)
        if shapes != came:
            message = f"batch {number} has inputs of shape {came}, and the first {shapes}"
            raise InputError(message, argument="inputs", hint="pad or crop them to one shape")
        x: Any = named if isinstance(given, Mapping) else tuple(named.values()) if len(named) > 1 else named[0]
        baseline = options["baseline"]
        if isinstance(baseline, Tensor) and baseline.dim() == getattr(x, "ndim", 0) and len(baseline) > 1:
            each["baseline"] = baseline
        rows: dict[str, Any] = {name: value[total : total + size] for name, value in each.items()}
        rows["progress"] = report and partial(_report_part, report, number, 1, max(planned, number + 1))
        try:
            parts.append(attribute(model, x, **{**options, **rows}))
        except InputError as error:
            error.add_note(f"in batch {number} of the loader")
            raise
        total += size
    wrong = next((name for name, value in each.items() if len(value) != total), None)
    if wrong is not None:
        raise InputError(f"got {len(each[wrong])} for {total} inputs of the loader", argument=wrong)
    return Attribution.concat(parts)


def _inputs_of(batch: Any) -> Any:
    """The tensors that are explained of a batch, in a tuple or a dictionary; labels are none of them."""
    if isinstance(batch, (list, tuple)):
        batch, *others = cast("Sequence[Any]", batch)
        if len(others) > 1 or any(isinstance(v, Tensor) and v.dim() > 1 and v.is_floating_point() for v in others):
            hint = "let its collate_fn give them in a dictionary by the names of the model's arguments, without labels"
            raise InputError(f"its batches have {len(others) + 1} tensors", argument="inputs", hint=hint)
    return batch if isinstance(batch, (Mapping, tuple)) else tuple(batch) if isinstance(batch, list) else (batch,)


# -- axes in another order than (C, *space) ----------------------------------------------------------------------------


def _moved_space(space: InputSpace | None, axes: Axes) -> InputSpace | None:
    """The space of inputs with channels first."""

    def move(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim():
            return value
        return axes.first(value.broadcast_to(*value.shape[: max(value.dim() - len(axes.shape), 0)], *axes.shape))

    if space is None:
        return None
    try:
        return dataclasses.replace(
            space, **{name: move(getattr(space, name)) for name in ("low", "high", "references")}
        )
    except RuntimeError as error:
        message = f"its tensors do not broadcast to an input {axes.shape} ({first_line(error)})"
        raise InputError(message, argument="space") from error


def _moved_back(result: Attribution, axes: Axes) -> Attribution:
    """The result with maps in the axes of the inputs."""
    paths = result.trajectory and tuple(
        path and dataclasses.replace(path, snapshots=axes.back(path.snapshots), cumulative=axes.back(path.cumulative))
        for path in result.trajectory
    )
    return dataclasses.replace(result, values=axes.back(result.values), trajectory=paths)


def _warn_of_axes(model: Classifier, x: Tensor) -> None:
    """Warn where the first layer, or the shape, says that the channels of inputs are the last axis."""
    modules = [] if model.module is None else list(model.module.modules())
    if not 3 <= x.dim() <= 5 or token_length_of(model) is not None:
        return
    layer = next((m for m in modules if next(m.parameters(recurse=False), None) is not None), None)
    names = ("in_channels", "in_features", "input_size")
    count = next((size for name in names if isinstance(size := getattr(layer, name, None), int)), None)
    channels, last = x.shape[1], x.shape[-1]
    is_last = x.dim() > 3 and last in (1, 3, 4) and min(x.shape[1:-1]) > 4
    if count is not None and getattr(layer, "batch_first", True):
        is_last = count == last and (channels != count or not hasattr(layer, "in_channels"))
    if is_last:
        why = f", as its first layer, {type(layer).__name__}, takes {count}" if count == last else ""
        lasts = {3: "'LC' for series or 'NC' for points without an order", 4: "'HWC'", 5: "'DHWC'"}[x.dim()]
        firsts = {3: "CL", 4: "CHW", 5: "CDHW"}[x.dim()]
        warn_caller(
            f"inputs {tuple(x.shape)} look as if their channels were the last axis{why}, and smoothing, masks and caps "
            f"follow the axes (B, C, *space): pass axes={lasts}, or axes='{firsts}' if they are not"
        )


# -- series and texts of several lengths ------------------------------------------------------------------------------


def _padded(result: Attribution, problem: Problem, rows: list[int]) -> Attribution:
    axis, size = problem.length_axis, problem.inputs.shape[problem.length_axis]
    length = result.values.shape[axis]

    def zeros(x: Tensor) -> Tensor:
        return nn.functional.pad(x, [0, 0] * (-1 - axis) + [0, size - length])

    def path(row: int, given: Trajectory) -> Trajectory:
        tail = problem.inputs[row].narrow(axis, length, size - length).to(given.snapshots)
        snapshots = torch.cat([given.snapshots, tail.expand(len(given.snapshots), *tail.shape)], axis)
        return dataclasses.replace(given, snapshots=snapshots, cumulative=zeros(given.cumulative))

    paths = result.trajectory
    if paths is not None:
        paths = tuple(each and path(row, each) for row, each in zip(rows, paths, strict=True))
    return dataclasses.replace(result, values=zeros(result.values), trajectory=paths)
