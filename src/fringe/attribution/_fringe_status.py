"""The verdict on a map of FRInGe: how far its path came, and what to do about it."""

from dataclasses import dataclass

from fringe.attribution._diagnostics import COARSE_ABOVE, Status, describe_coarse
from fringe.attribution._integrate import PathIntegral
from fringe.attribution._quadrature import Rule
from fringe.paths import ENOUGH, FisherRaoTracking, PathStatus

#: Share of the Fisher-Rao distance to the reference covered, under which a path is called stalled.
STALLED_BELOW = 0.05

#: Nats below the largest logit from which no path brings a class back, as where a mask adds -1e9.
EXCLUDED_BELOW = 1000.0

#: Nats to the reference at the end point above which the advice says how to continue, unless half was enough.
FAR_ABOVE = 0.5


@dataclass(frozen=True)
class PathEnds:
    """How far the prediction of an image is from its reference at both ends of its path, in nats and radians, the most
    steps that the path may have, and the number of classes that the network rules out."""

    start_kl: float
    end_kl: float
    start_distance: float
    end_distance: float
    limit: float
    excluded: int = 0

    @property
    def loss(self) -> float:
        """Share of the KL divergence that is gone."""
        return 1.0 - self.end_kl / self.start_kl


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
    if arrived and (steps == 0 or (ends.start_kl <= path.arrival_kl and removed < ENOUGH)):
        from_it = f"the prediction is {ends.start_kl:.2g} nats from the reference"
        return "at_reference", f"{from_it}: lower arrival_kl to explain it"
    share = 1.0 - ends.end_distance / ends.start_distance
    goal = "the uniform prediction" if path.reference is None else "the reference"
    until = path.until
    done = arrived if until == "arrival" else until == "budget" or removed >= ENOUGH
    rests = not done and steps < ends.limit
    reachable = ""
    if ends.excluded and path.reference is None:
        reachable = (
            f"give reference=, nearly zero for the {ends.excluded} classes whose logits are more than "
            f"{EXCLUDED_BELOW:.0f} below the largest, and equal for the others"
        )
    if share < STALLED_BELOW and not arrived:
        bound = "max_steps, " if until == "arrival" and not rests else "steps, " if path.steps else ""
        longer = "" if bound or path.temperature != 1.0 else ", or, for a saturated prediction, raise temperature"
        do = f"raise {bound}delta_euc or eta_max, or lower damping{longer}"
        return "stalled", (
            f"the prediction moved only {share:.1%} of the Fisher-Rao distance to {goal} (under "
            f"{STALLED_BELOW:.0%}): {reachable or do}"
        )
    if not residual <= COARSE_ABOVE:
        more = "raise quadrature_depth" if rule == "adaptive" else "use quadrature='adaptive'"
        return "coarse", (
            f"{describe_coarse(residual)}: {more}; on some networks smaller steps help (lower tau or delta_euc)"
        )
    # after coarse, which is the graver: a short map is right about the part of the way that was covered
    lost = f"{max(100 * removed // 1, 0):.0f}% of its divergence from {goal}"
    onward = "" if rests else "raise max_steps" if until == "arrival" else "use until='arrival'"
    if removed < ENOUGH and not arrived:
        do = f"{onward}, raise" if onward else "the path gains nothing more: raise"
        do = reachable or f"{do} delta_euc or eta_max, or lower gamma_prior"
        return "short", (
            f"sum within {residual:.1%} of the change of the score, but the prediction lost only {lost} "
            f"(ok needs {ENOUGH:.0%}): {do}; or read the map as an explanation of that part"
        )
    needed = "arrived" if arrived else f"ok needs {ENOUGH:.0%}"
    further = f"; to go further, {onward}" if ends.end_kl > FAR_ABOVE and onward and until != "half" else ""
    return "ok", f"sum within {residual:.1%} of the change of the score; the prediction lost {lost} ({needed}){further}"
