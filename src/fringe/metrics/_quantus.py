"""Metrics of Quantus by name, ``quantus:NAME``: those that take a model and maps, and give one number a map."""

import importlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, make_dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fringe._numbers.rng import global_seed
from fringe._strings.progress import log
from fringe._strings.tables import Direction
from fringe.errors import InputError, did_you_mean, install_hint, is_installed
from fringe.metrics._base import EvaluatedMaps, Metric, Scores
from fringe.paths import Problem
from fringe.settings import Doc, Positive, PositiveInt

_Step = Annotated[
    PositiveInt | None, Doc("entries that change at once, a divisor of the number of pixels; none: some 64 steps")
]
_Baseline = Annotated[Literal["black", "white", "mean", "uniform", "random"], Doc("what an entry is replaced by")]
_Size = Annotated[PositiveInt | None, Doc("entries of a subset; none: 224, or a quarter of the entries if fewer")]
_Tolerance = Annotated[Positive, Doc("what counts as no change, or as an entry of zero")]


def _replaced(arr: np.ndarray[Any, Any], mask: np.ndarray[Any, Any], **settings: Any) -> Any:
    """What IROF does by default, whose mask (B, 1, H, W) Quantus 0.6 itself refuses for images of several channels."""
    functions = importlib.import_module("quantus.functions.perturb_func")
    return functions.baseline_replacement_by_mask(arr, np.broadcast_to(mask, arr.shape), **settings)


@dataclass(frozen=True)
class _Entry:
    """A class of Quantus: its direction, what a score takes in forward passes as far as no setting tells, our settings
    (with defaults), fixed arguments, and whether it asks for probabilities or for logits."""

    kind: str
    direction: Direction
    passes: int = 0
    settings: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any])
    softmax: bool = True


_STEP, _BLACK = {"features_in_step": (_Step, None)}, {"perturb_baseline": (_Baseline, "black")}

#: The metrics that are offered. Quantus 0.6 states the directions.
KNOWN: Mapping[str, _Entry] = {
    "pixel_flipping": _Entry("PixelFlipping", "lower", 64, {**_STEP, **_BLACK}, {"return_auc_per_sample": True}),
    "faithfulness_correlation": _Entry(
        "FaithfulnessCorrelation",
        "higher",
        100,
        {"nr_runs": (Annotated[PositiveInt, Doc("random subsets")], 100), "subset_size": (_Size, None), **_BLACK},
        softmax=False,
    ),
    "faithfulness_estimate": _Entry("FaithfulnessEstimate", "higher", 64, {**_STEP, **_BLACK}, softmax=False),
    "monotonicity": _Entry("Monotonicity", "higher", 64, {**_STEP, **_BLACK}),
    "monotonicity_correlation": _Entry(
        "MonotonicityCorrelation",
        "higher",
        64,
        {"nr_samples": (Annotated[PositiveInt, Doc("draws of a replacement")], 10), "eps": (_Tolerance, 1e-5), **_STEP},
    ),
    "irof": _Entry("IROF", "higher", 50, {"perturb_baseline": (_Baseline, "mean")}, {"perturb_func": _replaced}),
    "complexity": _Entry("Complexity", "lower"),
    "effective_complexity": _Entry("EffectiveComplexity", "lower", 0, {"eps": (_Tolerance, 1e-5)}),
    "sparseness": _Entry("Sparseness", "higher"),
}

#: What is not offered, and why.
_EXPLAINS = "it makes maps by itself"
_MASKS = "it needs masks of the object; localisation metrics of this library take them from scenes"
_BATCH = "it gives one number for all images together, or a curve for each"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("mprt", "smooth_mprt"), f"{_EXPLAINS}; use mprt"),
    "efficient_mprt": f"{_EXPLAINS}; use efficient_mprt",
    "random_logit": f"{_EXPLAINS}; use random_logit",
    **dict.fromkeys(
        ("max_sensitivity", "avg_sensitivity", "local_lipschitz_estimate"), f"{_EXPLAINS}; use max_sensitivity"
    ),
    **dict.fromkeys(
        ("continuity", "consistency", "input_invariance", "relative_input_stability", "relative_output_stability"),
        _EXPLAINS,
    ),
    "relative_representation_stability": _EXPLAINS,
    **dict.fromkeys(("pointing_game", "attribution_localisation", "top_k_intersection", "auc", "focus"), _MASKS),
    **dict.fromkeys(("relevance_rank_accuracy", "relevance_mass_accuracy"), _MASKS),
    "road": f"{_BATCH}; use road",
    **dict.fromkeys(("sensitivity_n", "region_perturbation", "selectivity"), _BATCH),
    **dict.fromkeys(("sufficiency", "batch_sufficiency"), "it compares the images of a batch with each other"),
    "non_sensitivity": "it takes a forward pass for every entry of an image",
    "completeness": "it asks whether two floating-point numbers are equal; use completeness_residual",
    "infidelity": "its perturbations are squares of fixed sides; use infidelity",
}


@dataclass(frozen=True)
class _QuantusMetric(Metric):
    """A metric of Quantus (Hedström et al. 2023), computed image by image.

    Quantus is given the signed map of all channels, and the outputs of the model that the metric asks for. Its random
    numbers are keyed by the image. A constant map has no score, flag ``constant_map``: Quantus refuses it. Where it
    refuses an image for another reason, or its score is not finite, the flag is ``undefined``.
    """

    entry: ClassVar[_Entry]

    space = "what Quantus looks at: see its documentation"
    by_default = False

    @property
    @abstractmethod
    def _label(self) -> str: ...

    @property
    def planned_passes(self) -> float:
        return float(getattr(self, "nr_runs", self.entry.passes) * getattr(self, "nr_samples", 1))

    def __reduce__(self) -> tuple[Any, ...]:
        """Its class is made at run time, so that its name says which it is."""
        return _restored, (self._label, {one.name: getattr(self, one.name) for one in fields(self)})

    def score(self, maps: EvaluatedMaps) -> Scores:
        problem, values = maps.context.problem, maps.values
        metric = self._build(values[0])
        flat = values.flatten(1)
        constant = (flat == flat[:, :1]).all(1)
        scores = torch.full((len(values),), torch.nan, dtype=torch.float64)
        for image in range(len(values)):
            if not constant[image]:
                with _seeded(problem.rng.integers(f"{self.name} {problem.keys[image]}", 2**31, 1)[0]):
                    scores[image] = self._one(metric, problem, image, values[image])
        scores = scores.to(values.device)
        scores = scores.masked_fill(~scores.isfinite(), torch.nan)
        return Scores(scores, {"constant_map": constant, "undefined": scores.isnan() & ~constant})

    def _one(self, metric: Any, problem: Problem, image: int, values: Tensor) -> float:
        arrays = {"x_batch": problem.inputs[image : image + 1], "y_batch": problem.target[image : image + 1]}
        numbers = {name: array.detach().cpu().numpy() for name, array in arrays.items()}
        given: dict[str, Any] = {"channel_first": True, "softmax": False, "device": "cpu"}
        try:
            result = metric(
                model=_Outputs(problem, image, self.entry.softmax),
                a_batch=values[None].cpu().numpy(),
                **numbers,
                **given,
            )
        except AssertionError as error:
            log.info("%s refuses image %s: %s", self.name, problem.keys[image], error)
            return float("nan")
        return float(np.asarray(result, dtype=np.float64).reshape(-1)[0])

    def _build(self, like: Tensor) -> Any:
        """The metric of Quantus for maps of the shape of ``like``."""
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        if "features_in_step" in given:
            given["features_in_step"] = self._step(given["features_in_step"], like)
        if "subset_size" in given:
            given["subset_size"] = given["subset_size"] or min(224, max(like.numel() // 4, 1))
        arguments = {**given, **self.entry.fixed}
        quiet = {"disable_warnings": True, "display_progressbar": False, "return_aggregate": False}
        try:
            return getattr(_import_quantus(), self.entry.kind)(**arguments, **quiet)
        except (AssertionError, TypeError, ValueError) as error:
            raise InputError(f"Quantus does not take {arguments} ({error})", argument=self.name) from error

    def _step(self, step: int | None, like: Tensor) -> int:
        """How many entries change at once: by default the smallest divisor of the pixels with at most 64 steps.

        Quantus counts entries in all channels, and refuses what does not divide those of one.
        """
        pixels = math.prod(like.shape[1:])
        divisors = [d for d in range(1, pixels + 1) if pixels % d == 0]
        if step is None:
            return next((d for d in divisors if like.numel() // d <= 64), pixels)
        if step not in divisors:
            near = min(divisors, key=lambda d: abs(d - step))
            message = f"got {step}, expected a divisor of the {pixels} pixels of a map"
            raise InputError(message, argument=f"{self.name}.features_in_step", hint=f"such as {near}")
        return step


class _Outputs(nn.Module):
    """Probabilities or logits of the model for variants of one image, as Quantus asks for them."""

    def __init__(self, problem: Problem, image: int, softmax: bool):
        super().__init__()
        self._problem, self._image, self._softmax = problem, image, softmax
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        problem = self._problem
        rows = torch.full((len(x),), self._image, device=problem.inputs.device)
        logits = problem.forward(x.to(problem.inputs), rows).double()
        return logits.softmax(1) if self._softmax else logits


def quantus_metric(label: str) -> Metric:
    """Return the metric of Quantus with this name, such as ``pixel_flipping``, and its default settings.

    Quantus itself is imported when the metric scores. Raises InputError if there is no such metric, it does not fit,
    with the reason, or Quantus is not installed.
    """
    if label in REFUSED:
        raise InputError(f"quantus:{label} cannot be used: {REFUSED[label]}", argument="metric")
    if label not in KNOWN:
        hint = did_you_mean(label, KNOWN, f"known after 'quantus:': {', '.join(KNOWN)}")
        raise InputError(f"got 'quantus:{label}'", argument="metric", hint=hint)
    if not is_installed("quantus"):
        raise InputError(f"quantus:{label} needs Quantus", argument="metric", hint=install_hint("quantus"))
    return _kind(label)()


def _import_quantus() -> Any:
    """Import Quantus, which imports zennit where it is installed, which imports torchvision."""
    from fringe.models import import_torchvision

    if is_installed("zennit"):
        import_torchvision("quantus")
    return importlib.import_module("quantus")


def _restored(label: str, settings: Mapping[str, Any]) -> Metric:
    """A metric that was sent to another process."""
    return _kind(label)(**settings)


@cache
def _kind(label: str) -> type[_QuantusMetric]:
    entry = KNOWN[label]
    title = label.replace("_", " ").capitalize() if label != "irof" else "IROF"
    columns = [(name, hint, default) for name, (hint, default) in entry.settings.items()]
    names = {
        "name": f"quantus:{label}",
        "title": f"{title} (Quantus)",
        "direction": entry.direction,
        "source": f"Quantus 0.6, {entry.kind} (Hedström et al. 2023)",
        "entry": entry,
        "_label": label,
        "__doc__": _QuantusMetric.__doc__,
        "__module__": "fringe.quantus",
    }
    return make_dataclass(f"Quantus{entry.kind}", columns, bases=(_QuantusMetric,), namespace=names, frozen=True)


@contextmanager
def _seeded(seed: int) -> Generator[None]:
    """Seed the global generators, which Quantus draws from, and restore them; silence its warnings. Quantus 0.6 calls
    ``numpy.trapz``, which NumPy 2.4 knows as ``trapezoid`` alone."""
    renamed = not hasattr(np, "trapz")
    if renamed:
        setattr(np, "trapz", np.trapezoid)  # noqa: B010
    try:
        with global_seed(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if renamed:
            delattr(np, "trapz")
