"""Compare methods on a batch of inputs, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from fringe._arguments import explained_inputs, hint_unknown
from fringe._class_names import ClassNames
from fringe._names import unique
from fringe._progress import shown
from fringe._rng import KeyedGenerator
from fringe.attribution import Context
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Target
from fringe.errors import InputError, TargetError
from fringe.evaluation._comparison import Comparison
from fringe.evaluation._evaluator import Evaluator, Methods, Progress, parse_methods
from fringe.inputs import ModelInputs, Request, image_inputs, image_scale, open_model
from fringe.metrics import METRICS, EvaluationContext, Metric, get_metric
from fringe.models import LoadedModel, Preprocessing
from fringe.paths import Problem, verify
from fringe.settings import canonical_name

#: The metrics of a comparison that names none: the two that tell methods from controls, and maps from the same maps
#: with moved pixels, on photographs (docs/results/validity.md), and whether a map follows the model.
USUAL_METRICS = ("road", "signed_insertion", "random_logit")


@hint_unknown
def compare(
    model: str | Path | Callable[..., Any] | Classifier | LoadedModel,
    inputs: Any,
    methods: Methods = ("fringe", "ig"),
    metrics: Sequence[str | Metric] | Mapping[str, Metric] = USUAL_METRICS,
    *,
    target: Target = "predicted",
    controls: bool = True,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    space: InputSpace | None = None,
    ids: Sequence[str] | None = None,
    progress: bool | Progress | None = None,
    keep_maps: bool = True,
    forward_args: Sequence[Any] | None = None,
    forward_kwargs: Mapping[str, Any] | None = None,
    preprocessing: Preprocessing | str | None = None,
    classes: ClassNames | None = None,
    device: str = "auto",
    trust_code: bool = False,
) -> Comparison:
    """Explain inputs with every method, and score every map under every metric.

    All methods explain the same classes with the same noise (from ``seed`` and ``ids``), and a metric perturbs an image
    in the same way for all of them. If a method raises a FringeError, it explains each image alone: an image that it
    fails on has the reason in ``errors`` of its row, and the other images and methods continue. A map that is not
    finite, or whose path diverged, has no scores. For many images, and for scores on disk, see :func:`run_experiment`.

    Args:
        model: A classifier as in :func:`fringe.attribute`, or a model as in :func:`fringe.explain`, such as
            ``"torchvision:resnet50"``.
        inputs: Inputs (B, *S), or a dictionary of model inputs as in :func:`fringe.attribute`; or pictures, paths and
            arrays as in :func:`fringe.explain`.
        methods: Names, configured methods, or pairs of a label and either.
        metrics: Names or configured metrics.
        target: Class to explain: "predicted", a number, or one number for each image.
        controls: Whether to add the control maps, which do not depend on the model.
        seed: Keys all randomness.
        batch_size: Images of a forward pass, "auto", or None for the classifier's own.
        space: Bounds, references and baselines of the inputs.
        ids: Names of the images, which key their noise; their positions if None.
        progress: True for a progress bar, or a function. It is called with the name of the current work, and with the
            numbers of finished and of planned maps.
        keep_maps: Whether rows hold the maps and attributions.
        forward_args: Further positional arguments of the model, as in :func:`fringe.attribute`.
        forward_kwargs: Further keyword arguments of the model.
        preprocessing: How pictures are prepared, as in :func:`fringe.explain`.
        classes: Class names, as in :func:`fringe.explain`.
        device: Device of a model that is named by a spec.
        trust_code: Whether a model that is code may run.

    Returns:
        The comparison. :func:`tidy` makes plain rows of its scores; :func:`summarise` means and intervals of the rows.

    Raises:
        FringeError: For a model, image, target, name or label that cannot be used.
    """
    candidates, by_label = parse_methods(methods, controls), _by_label(metrics)
    request = Request(model, inputs, preprocessing, classes, device, trust_code)
    is_plain = isinstance(inputs, (Tensor, Mapping)) and preprocessing is None
    is_plain &= not isinstance(model, (str, Path, LoadedModel))
    opened = None if is_plain else image_inputs(request)  # a form that only explain takes
    if opened is not None:
        inputs, space, ids = opened.inputs, space or opened.space, opened.keys if ids is None else ids
    classifier = Classifier.of(request.model if opened is None else opened.model, batch_size=batch_size)
    x, arguments = explained_inputs(inputs, forward_args, forward_kwargs, ids)
    if not classifier.has_classes:
        message = "metrics compare predictions, and this model gives numbers that are no classes"
        raise InputError(message, argument="model", hint="give a model of classes, and no function as score")
    names = None if ids is None else tuple(map(str, ids))
    with classifier.session(x.device):
        domain = space or InputSpace()
        problem = Problem.of(
            classifier, x, target=target, forward_args=arguments, ids=names, rng=KeyedGenerator(seed), domain=domain
        )
        if problem.target.dim() > 1:
            count = problem.target.shape[1]
            raise TargetError(f"target: got {count} classes per image, expected one: metrics score one map per image")
        finite = x.isfinite().flatten(1).all(1) & problem.logits.isfinite().all(1)
        if bad := (~finite).nonzero()[:, 0].tolist():
            raise InputError(f"inputs: images {bad} hold NaN or infinity, or their logits do; leave them out")
        methods_used = [candidate.method for candidate in candidates if candidate.method is not None]
        verify(problem, {method.jvp_use(problem) for method in methods_used})
        with shown(progress is True, "comparing") as bar:
            drawn: Progress | None = None if bar is None else lambda what, done, total: bar(done, total, what)
            report = drawn if isinstance(progress, bool) else progress
            evaluation = EvaluationContext(problem)
            evaluator = Evaluator(evaluation, candidates, by_label, report)
            rows = evaluator.rows(keep_maps)
    labels = names or (tuple(map(str, range(len(x)))) if opened is None else opened.ids)
    context = _context(opened, request, x, problem.logits, labels)
    stored = evaluation if keep_maps else None
    return Comparison(labels, problem.target, by_label, rows, seed, context, stored)


def _context(
    opened: ModelInputs | None, request: Request, x: Tensor, logits: Tensor, ids: Sequence[str]
) -> Context | None:
    """What pictures need; None where the inputs are no images."""
    if opened is None:
        if x.dim() != 4:
            return None
        model, (mean, std) = open_model(request), image_scale(x, None)
        opened = ModelInputs(model.model, model.label, model.class_names, x, tuple(ids), mean=mean, std=std)
    return opened.context("image", logits, ids)


def _by_label(metrics: Sequence[str | Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """The configured metrics by the names that their scores go by."""
    if isinstance(metrics, Mapping):
        return {label: get_metric(metric) for label, metric in metrics.items()}
    if isinstance(metrics, (str, Metric)):
        raise InputError(f"metrics: got {metrics!r}, expected a list such as [{metrics!r}]")
    if not metrics:
        raise InputError("metrics: none given")
    chosen = [(metric, get_metric(metric)) for metric in metrics]
    labels = [canonical_name(given, METRICS) if isinstance(given, str) else metric.name for given, metric in chosen]
    return unique(zip(labels, (metric for _, metric in chosen), strict=True), "metrics")
