"""What the scores of a metric must be, judged on maps whose worth is known."""

import torch

from fringe.testing.examples import Graded, evidence, graded
from fringe.testing.metric_trial import MetricTrial
from fringe.testing.result import Broken, refuse


def kind(trial: MetricTrial) -> str:
    """One float64 number an image, on the images' device; what goes with it has a row an image."""
    for dtype in (torch.float32, torch.float64):
        case = trial.case(dtype)
        scores, images = case.score(case.subject()), len(case.x)
        refuse(scores.values.dtype != torch.float64, f"values are {scores.values.dtype}, expected torch.float64")
        refuse(
            tuple(scores.values.shape) != (images,), f"values: shape {tuple(scores.values.shape)} for {images} images"
        )
        refuse(scores.values.device != case.x.device, f"values are on {scores.values.device}")
        refuse(bool(scores.values.isinf().any()), f"values hold infinity: {scores.values.tolist()}")
        beside = {**scores.flags, **scores.extras, **scores.curves}
        wrong = {name: tuple(v.shape) for name, v in beside.items() if v.shape[:1] != (images,)}
        refuse(bool(wrong), f"for {images} images, got rows {wrong}")
        refuse(any(flag.dtype != torch.bool for flag in scores.flags.values()), "flags must be booleans")
    return f"one number an image, with {', '.join(beside) or 'nothing'} beside it"


def ranking(trial: MetricTrial) -> str:
    """Perfect maps score better than random ones, and these better than perverse ones, in the declared direction.

    Means over six images; a metric passes by contributions or by gradients, whichever it takes maps to be.
    """
    if trial.metric.direction == "none":
        return "does not apply: the metric does not praise"
    laboratory = trial.laboratory()
    model, x, contribution = evidence(laboratory)
    sign = 1.0 if trial.metric.direction == "higher" else -1.0
    said: list[str] = []
    for meaning, maps in graded(x, contribution, trial.case().maps.diagnostics).items():
        means = _means(trial, model, x, maps)
        said.append(f"{meaning} {', '.join(f'{m:.4g}' for m in means)}")
        if sign * means[0] > sign * means[1] > sign * means[2]:
            return f"perfect, random, perverse {said[-1]} ({trial.metric.direction} is better)"
    raise Broken(f"perfect, random, perverse: {'; '.join(said)}, though {trial.metric.direction} is better")


def degenerate_maps(trial: MetricTrial) -> str:
    """The zero map and the constant map have a score, or NaN where the metric is not defined; never infinity."""
    case = trial.case()
    said: list[str] = []
    for name, value in (("zero", 0.0), ("constant", 1.0)):
        scores = case.score(case.subject(), values=torch.full_like(case.x, value)).values
        refuse(bool(scores.isinf().any()), f"the {name} map scores {scores.tolist()}")
        said.append(f"{name} {scores.mean():.4g}")
    return ", ".join(said)


def _means(trial: MetricTrial, model: torch.nn.Module, x: torch.Tensor, maps: tuple[Graded, ...]) -> list[float]:
    scores = torch.stack([trial.score_graded(model, x, one) for one in maps])
    known = torch.isfinite(scores).all(0)
    refuse(not bool(known.any()), f"no image has a score: {scores.tolist()}")
    return scores[:, known].mean(1).tolist()
