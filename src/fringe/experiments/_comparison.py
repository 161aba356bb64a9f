"""Compare methods on a batch of inputs, in memory."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fringe._arguments import explained_inputs
from fringe._rng import KeyedGenerator
from fringe.baselines import InputSpace
from fringe.classifier import Classifier, Target
from fringe.errors import InputError, TargetError
from fringe.experiments._evaluator import Evaluator, MethodResult, Methods, Progress, parse_methods, refuse_twice
from fringe.experiments._statistics import estimate
from fringe.metrics import METRICS, EvaluationContext, Metric, get_metric
from fringe.paths import Problem, verify
from fringe.settings import canonical_name


@dataclass(frozen=True)
class Comparison:
    """Maps and scores of several methods on the same images.

    Attributes:
        images: Names of the B images.
        target: Explained classes (B,).
        metrics: Configured metrics by label.
        rows: One result for each method and control.
        seed: What keyed all randomness.
    """

    images: tuple[str, ...]
    target: Tensor
    metrics: Mapping[str, Metric]
    rows: tuple[MethodResult, ...]
    seed: int


def compare(
    model: Callable[[Tensor], Any] | Classifier,
    inputs: Tensor | Mapping[str, Any],
    methods: Methods,
    metrics: Sequence[str | Metric] | Mapping[str, Metric],
    *,
    target: Target = "predicted",
    controls: bool = True,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    space: InputSpace | None = None,
    ids: Sequence[str] | None = None,
    progress: Progress | None = None,
    keep_maps: bool = True,
    forward_args: Sequence[Any] | None = None,
    forward_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Explain inputs with every method, and score every map under every metric.

    All methods explain the same classes with the same noise (of ``seed`` and ``ids``), and a metric perturbs an image
    alike for all of them. A method that raises a FringeError becomes a row with its ``error`` while the others go on; a
    map that is not finite, or whose path diverged, has no scores. For many images that are stored, see
    :func:`run_experiment`.

    Args:
        model: A classifier, as in :func:`fringe.attribute`.
        inputs: Images (B, *S), or a dictionary of model inputs as in :func:`fringe.attribute`.
        methods: Names, configured methods, or pairs of a label and either.
        metrics: Names or configured metrics.
        target: Class to explain: "predicted", a number, or one number for each image.
        controls: Whether to add the control maps, which do not depend on the model.
        seed: Keys all randomness.
        batch_size: Images of a forward pass, "auto", or None for the classifier's own.
        space: Bounds, references and baselines of the inputs.
        ids: Names of the images, which key their noise; their positions if None.
        progress: Called with what is computed, and how many maps of how many are made.
        keep_maps: Whether rows hold the maps and attributions.
        forward_args: Further positional arguments of the model, as in :func:`fringe.attribute`.
        forward_kwargs: Further keyword arguments of the model.

    Returns:
        The comparison; :func:`tidy` makes plain rows of its scores, and :func:`summarise` means and intervals of those.

    Raises:
        FringeError: For a model, image, target, name or label that cannot be used.
    """
    candidates, by_label = parse_methods(methods, controls), _by_label(metrics)
    classifier = Classifier.of(model, batch_size=batch_size)
    inputs, arguments = explained_inputs(inputs, forward_args, forward_kwargs)
    x = _validate_inputs(inputs, ids)
    names = None if ids is None else tuple(map(str, ids))
    with classifier.session(x.device):
        domain = space or InputSpace()
        problem = Problem.of(
            classifier, x, target=target, forward_args=arguments, ids=names, rng=KeyedGenerator(seed), domain=domain
        )
        if problem.target.dim() > 1:
            count = problem.target.shape[1]
            raise TargetError(f"target: got {count} classes per image, expected one: metrics score one map per image")
        _refuse_bad(x, problem.logits)
        methods_used = [candidate.method for candidate in candidates if candidate.method is not None]
        verify(problem, needs_jvp=any(method.needs_jvp(problem.logits.shape[1]) for method in methods_used))
        evaluator = Evaluator(EvaluationContext(problem), candidates, metrics, list(by_label), progress)
        rows = evaluator.rows(keep_maps)
    return Comparison(names or tuple(map(str, range(len(x)))), problem.target, by_label, rows, seed)


def _by_label(metrics: Sequence[str | Metric] | Mapping[str, Metric]) -> dict[str, Metric]:
    """The configured metrics by the names that their scores go by."""
    if isinstance(metrics, Mapping):
        return dict(metrics)
    if isinstance(metrics, str):
        raise InputError(f"metrics: got the text {metrics!r}, expected a list such as [{metrics!r}]")
    if not metrics:
        raise InputError("metrics: none given")
    labels = [canonical_name(metric, METRICS) if isinstance(metric, str) else metric.name for metric in metrics]
    refuse_twice("metrics", labels)
    return {label: get_metric(metric) for label, metric in zip(labels, metrics, strict=True)}


def _validate_inputs(inputs: Tensor, ids: Sequence[str] | None) -> Tensor:
    if not isinstance(inputs, Tensor) or inputs.dim() < 2 or inputs.numel() == 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        came = f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else type(inputs).__name__  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(f"inputs: got {came}, expected a tensor (B, *S) with at least one image")
    if ids is not None and len(ids) != len(inputs):
        raise InputError(f"ids: got {len(ids)} for {len(inputs)} images")
    x = (inputs.clone() if inputs.is_inference() else inputs).detach()
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _refuse_bad(x: Tensor, logits: Tensor) -> None:
    finite = x.isfinite().flatten(1).all(1) & logits.isfinite().all(1)
    bad = (~finite).nonzero()[:, 0].tolist()
    if bad:
        raise InputError(f"inputs: images {bad} hold NaN or infinity, or their logits do; leave them out")


def tidy(comparison: Comparison) -> list[dict[str, Any]]:
    """One plain dict a method, metric and image: ``method``, ``control``, ``metric``, ``image``, ``score`` (None where
    there is none) and ``flags``: the metric's names of degenerate cases, or the fault of the map."""
    return [
        {"method": row.label, "control": row.control, "metric": metric, "image": image, **cell}
        for row in comparison.rows
        for metric in comparison.metrics
        for image, cell in zip(comparison.images, _cells(row, metric), strict=True)
    ]


def summarise(rows: Sequence[dict[str, Any]], metrics: Mapping[str, Metric], seed: int = 0) -> list[dict[str, Any]]:
    """One plain dict a method and metric of tidy ``rows``, in their order: :class:`Estimate` over the images that have
    a score, of how many ``images``, how many scores are ``flagged``, and how often each flag is up in ``flags``.
    ``metrics`` are a comparison's, by label: they say whether the mean or the median is the summary."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["method"], row["metric"]), []).append(row)
    return [
        {
            "method": method,
            "control": group[0]["control"],
            "metric": metric,
            **asdict(estimate([row["score"] for row in group], seed, metrics[metric].aggregate)),
            "images": len(group),
            "flagged": sum(bool(row["flags"]) for row in group),
            "flags": dict(Counter(flag for row in group for flag in row["flags"])),
        }
        for (method, metric), group in groups.items()
    ]


def _cells(row: MethodResult, metric: str) -> Iterable[dict[str, Any]]:
    scores = row.scores[metric]
    finite, values = scores.values.isfinite().tolist(), scores.values.tolist()
    raised = {name: flag.tolist() for name, flag in scores.flags.items()}
    for i, fault in enumerate(row.faults):
        flags = [fault] if fault else [name for name, flag in raised.items() if flag[i]]
        yield {"score": values[i] if finite[i] else None, "flags": flags}
