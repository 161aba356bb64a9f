"""The verdict on a map of FRInGe: how far its path came, and what to do about it."""

from dataclasses import dataclass

import torch

from fringe.attribution._diagnostics import COARSE_ABOVE, Status, describe_coarse
from fringe.attribution._integrate import PathIntegral
from fringe.attribution._quadrature import Rule
from fringe.geometry import kl
from fringe.paths import ENOUGH, FisherRaoTracking, GeodesicDiagnostics, PathStatus

#: Share of the Fisher-Rao distance to the reference covered, under which a path is called stalled.
STALLED_BELOW = 0.05

#: Nats to the reference at the end point above which the advice says how to continue, unless half was enough.
FAR_ABOVE = 0.5


@dataclass(frozen=True)
class PathEnds:
    """How far the prediction of an image is from its reference at both ends of its path, at the path's temperature, in
    nats (``*_kl``) and radians (``*_distance``); ``plain_loss`` is the share of the KL divergence of the model's own
    prediction that is gone."""

    temperature: float
    start_kl: float
    end_kl: float
    start_distance: float
    end_distance: float
    plain_loss: float

    @property
    def loss(self) -> float:
        """Share of the KL divergence that is gone."""
        return 1.0 - self.end_kl / self.start_kl


def path_ends(result: PathIntegral, geodesics: GeodesicDiagnostics) -> list[PathEnds]:
    """Return the ends of each image's path."""
    softened, stats = geodesics.temperature is not None, result.stats
    names = ("softened_kl", "softened_distance") if softened else ("reference_kl", "reference_distance")
    moved, starts = stats.count > 0, (kl(geodesics.softened_p0, geodesics.softened_q), geodesics.distance())
    ends = [torch.where(moved, stats.last(name), start) for name, start in zip(names, starts, strict=True)]
    temperature = geodesics.temperature if geodesics.temperature is not None else torch.ones_like(starts[0])
    plain = kl(geodesics.log_p0, geodesics.log_q)
    loss = 1.0 - torch.where(moved, stats.last("reference_kl"), plain) / plain
    columns = (temperature, starts[0], ends[0], starts[1], ends[1], loss)
    return [PathEnds(*row) for row in torch.stack(columns, 1).tolist()]


def fringe_status(
    path: FisherRaoTracking, rule: Rule, result: PathIntegral, ends: PathEnds, image: int, residual: float
) -> Status:
    """Return the verdict on a map with this ``residual``, and what to do about it."""
    steps = result.steps[image]
    if result.outcomes[image] is PathStatus.AT_REFERENCE:
        return "at_reference", "the prediction already is the reference distribution: there is nothing to explain"
    if result.outcomes[image] is PathStatus.DIVERGED:
        what = f"the logits or their gradient were not finite after step {steps}: lower delta_euc or check the model"
        return "diverged", what
    arrived, removed = ends.end_kl <= path.arrival_kl, ends.loss
    prediction = (
        "the prediction" if ends.temperature == 1.0 else f"the prediction at temperature {ends.temperature:.2g}"
    )
    if arrived and (steps == 0 or (ends.start_kl <= path.arrival_kl and removed < ENOUGH)):
        from_it = f"{prediction} is {ends.start_kl:.2g} nats from the reference"
        return "at_reference", f"{from_it}: lower arrival_kl to explain it"
    share = 1.0 - ends.end_distance / ends.start_distance
    goal = "the uniform prediction" if path.reference is None else "the reference"
    until = path.until
    done = arrived if until == "arrival" else until == "budget" or removed >= ENOUGH
    rests = not done and steps < path.limit(path.schedule(torch.tensor([ends.start_distance], dtype=torch.float64))[0])
    if share < STALLED_BELOW and not arrived:
        bound = "max_steps, " if until == "arrival" and not rests else "steps, " if path.steps else ""
        longer = "" if bound or ends.temperature > 1.0 else ", or, for a saturated prediction, raise temperature"
        return "stalled", (
            f"{prediction} moved only {share:.1%} of the Fisher-Rao distance to {goal} (under "
            f"{STALLED_BELOW:.0%}): raise {bound}delta_euc or eta_max, or lower damping{longer}"
        )
    if not residual <= COARSE_ABOVE:
        more = "use quadrature='adaptive'"
        if rule == "adaptive":
            more = "explain this class alone" if result.rule_residual.shape[1] > 1 else "raise quadrature_depth"
        return "coarse", (
            f"{describe_coarse(residual)}: {more}; on some networks smaller steps help (lower tau or delta_euc)"
        )
    # after coarse, which is the graver: a short map is right about the part of the way that was covered
    lost = f"{_percent(removed)} of its divergence from {goal}"
    plain = "" if ends.temperature == 1.0 else f"; at temperature 1 it lost {_percent(ends.plain_loss)}"
    onward = "" if rests else "raise max_steps" if until == "arrival" else "use until='arrival'"
    if removed < ENOUGH and not arrived:
        do = f"{onward}, raise" if onward else "the path rests where the gradient is zero: raise"
        return "short", (
            f"complete within {residual:.1%}, but {prediction} lost only {lost} (ok needs {ENOUGH:.0%}): "
            f"{do} delta_euc or eta_max, or lower gamma_prior; or read the map as an explanation of that part{plain}"
        )
    needed = "arrived" if arrived else f"ok needs {ENOUGH:.0%}"
    further = f"; to go further, {onward}" if ends.end_kl > FAR_ABOVE and onward and until != "half" else ""
    return "ok", f"complete within {residual:.1%}; {prediction} lost {lost} ({needed}){plain}{further}"


def _percent(share: float) -> str:
    return f"{max(100 * share // 1, 0):.0f}%"
