"""FRInGe and FRInGe-B: Fisher-Rao Integrated Gradients (arXiv 2605.06404), with the paper's settings and the verdict on
their maps."""

import dataclasses
import math
from dataclasses import dataclass
from itertools import starmap
from typing import Annotated, ClassVar, Literal, Self

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Attributor, ProgressStage, Verdict
from fringe.attribution._diagnostics import COARSE_ABOVE, Status, build_attribution, describe_coarse, path_diagnostics
from fringe.attribution._fisher_rao import AUTO_ENTROPY, ENOUGH, RANK, Bound, FisherRaoPath, Until
from fringe.attribution._focus import FOCUS_PASSES, Focus, FocusedPaths, FocusFloor, length_ratio, read_focus
from fringe.attribution._paper import new_spelling
from fringe.attribution._walk import FEW_POINTS, Walk, integrate_line
from fringe.errors import InputError, require
from fringe.geometry import kl, softening_temperature
from fringe.linalg import Structure
from fringe.paths import JVPUse, Problem
from fringe.settings import Doc, NotNegative, NotNegativeInt, Positive, PositiveInt, Search, tuples_of

#: ``delta_euc="auto"`` is this times sqrt(n): the most by which a step changes an entry, in root mean square, whatever
#: the size of the input. For images of 224 x 224 x 3 it is 7.8, where the paper has 3.3 to 5.0 for ResNet-50, -101 and
#: -152: with directions averaged over the steps, longer ones are as steady. Features and samples are standardised and
#: far fewer; a step of 0.1 standard deviations is short for them.
AUTO_CAP: dict[Structure, float] = {"image": 0.02, "sequence": 0.1, "none": 0.1}

#: ``delta_euc="auto"`` of texts is this times the length of a token, as a text has as many entries as the longest of
#: its batch. Of 180 sentences for six small BERTs 126 maps are ``ok`` with 0.5, and 143 with 0.25, at the same cost
#: (tau = 2e-2). Of the first 90 they are 65 with 0.25, and 72 with 0.12, at 1 to 38 % more backward passes.
TEXT_CAP = 0.25

#: Values of ``delta_euc`` by name, in units of ``"auto"``.
_LENGTHS = {"auto": 1.0, "long": 1.5}

#: ``delta_euc="auto"`` of a mask, in units of its coordinate, which is 3 at the input.
MASK_CAP = 0.3

#: ``halvings="auto"``. Of 100 maps of 20 photographs for EfficientNet-Lite0 9 are ``coarse`` with 2 (the worst
#: sum is off by 9 %), and none with 3, at 18 % more passes; of 40 for ResNet-20 no map changes. Steps of a text are
#: longer: of 20 sentences for a small BERT 16 sums were within 5 % with 256 pieces (324 passes), and none with 4 (177).
AUTO_HALVINGS: dict[Structure, int] = {"image": 3, "sequence": 8, "none": 8}


@dataclass(frozen=True)
class FRInGe(Attributor):
    """Integrate gradients along a path from the input to a point where the model predicts the reference distribution.

    By default the path uses the metric along the geodesic only, in closed form (presets: :meth:`preset`). The first
    fields are the paper's hyper-parameters (each help text has the symbol). The other fields are ours. docs/results.md
    explains the defaults.
    """

    name = "fringe"
    title = "FRInGe"
    source = "arXiv 2605.06404"
    many_targets = True
    needs_classes = True
    presets: ClassVar = {
        "fast": {"tau": 0.32, "delta_euc": "long", "halvings": "line", "quadrature_rtol": 5e-2},
        "focused": {"focus": "cam"},
    }
    binary: ClassVar[bool] = False
    smooths: ClassVar[bool] = False

    tau: Annotated[
        Positive, Search(3e-4, 5e-2, log=True), Doc("KL budget of a step (tau); sets the number of steps", unit="nats")
    ] = 4e-2
    eta_max: Annotated[Positive, Search(1.0, 30.0, log=True), Doc("largest factor (eta_max); 4: Newton's step")] = 4.0
    delta_euc: Annotated[
        Positive | Literal["auto", "long"] | None,
        Search(0.3, 40.0, log=True),
        Doc(
            "longest step (delta_euc); auto: 0.02 sqrt(n) for images of n entries, a quarter of a token for texts, "
            "0.1 sqrt(n) for other inputs; long: 1.5 times that; none: no limit",
            unit="input units",
        ),
    ] = "auto"
    damping: Annotated[Positive, Search(1e-12, 1e-1, log=True), Doc("Tikhonov damping (lambda)")] = 1e-2
    gamma_step: Annotated[NotNegative, Search(1e-4, 1e-2, log=True), Doc("smooths the direction (gamma_step)")] = 1e-2
    gamma_prior: Annotated[NotNegative, Search(1e-5, 1e-2, log=True), Doc("smooths the image (gamma_prior)")] = 6e-4
    structure: Annotated[
        Structure | Literal["auto"],
        Doc(
            "axes of space; image: the last two, sequence: the last, none: none; auto: none for texts and inputs (B, "
            "F), sequence for (B, C, L), image for more axes: of a volume (B, C, D, H, W) each slice is smoothed alone"
        ),
    ] = "auto"
    quadrature_rtol: Annotated[Positive, Doc("completeness residual above which segments are halved")] = 2e-2
    halvings: Annotated[
        NotNegativeInt | Literal["auto", "line"],
        Doc(
            "how often a segment may be halved; 0: the trapezoid rule; auto: 3 for images, else 8; line: no segments, "
            "but 6 points on the straight line to the end of the path, or 12 where the sum is off"
        ),
    ] = "auto"
    steps: Annotated[PositiveInt | None, Doc("number of steps T; none: it follows from the distance")] = None
    until: Annotated[
        Literal["auto", Until],
        Doc(
            "end after T steps (budget), after T to 5 T when half of the divergence is gone (half), or on arrival; "
            "auto: budget with steps=, else half for images, arrival for other inputs"
        ),
    ] = "auto"
    max_steps: Annotated[PositiveInt, Doc("largest number of steps when until='arrival'")] = 1000
    temperature: Annotated[
        Positive | Literal["auto"],
        Doc(
            "the path follows softmax(logits / temperature); auto: the lowest from 1 on at which the input has half of "
            "the largest entropy; 1 for texts"
        ),
    ] = "auto"
    reference: Annotated[
        tuple[float, ...] | tuple[tuple[float, ...], ...] | None,
        Doc("reference distribution (C,) or (B, C); none: uniform"),
    ] = None
    coordinates: Annotated[
        Literal["input", "mask"],
        Doc(
            "in which the path takes its steps; mask: how much of each entry is left, from 1 to 0, so that nothing is "
            "added and smoothing is off; what is taken away becomes the baseline, or each channel's mean"
        ),
    ] = "input"
    focus: Focus = "none"
    focus_floor: FocusFloor = 0.2

    def __post_init__(self) -> None:
        if not isinstance(self.focus, str):
            object.__setattr__(self, "focus", read_focus(self.focus))
        if self.reference is not None:
            object.__setattr__(self, "reference", _distribution(self.reference))
        super().__post_init__()
        require(self._most_steps < 2**63, "tau", self.tau, "at least 1e-37: a path would have more than 2**63 steps")

    @property
    def _most_steps(self) -> float:
        return math.pi / math.sqrt(2 * self.tau)  # no two distributions are farther apart than pi

    @classmethod
    def preset(cls, name: str, /) -> Self:
        place = Diffusion.name if name == Diffusion.name else new_spelling(name)
        if name not in cls.presets and place:
            raise InputError(f"{name!r} is a method of its own", argument="preset", hint=f"write method={place!r}")
        return super().preset(name)

    def path(self, entries: int) -> FisherRaoPath:
        """Return the path that these settings describe.

        Args:
            entries: How many numbers an input has; an ``"auto"`` cap depends on it.

        Returns:
            The path; that of images if ``structure`` is ``"auto"``.
        """
        structure: Structure = "image" if self.structure == "auto" else self.structure
        is_mask = self.coordinates == "mask"
        structure = "none" if is_mask else structure  # the entries of a mask are no neighbours
        halvings = (
            AUTO_HALVINGS[structure] if self.halvings == "auto" else 0 if self.halvings == "line" else self.halvings
        )
        cap = self.delta_euc
        if isinstance(cap, str):
            cap = _LENGTHS[cap] * (MASK_CAP if is_mask else AUTO_CAP[structure]) * math.sqrt(entries)
        until: Until = "budget" if self.steps is not None else "half" if structure == "image" else "arrival"
        return FisherRaoPath(
            tau=self.tau,
            eta_max=self.eta_max,
            cap=cap,
            damping=self.damping,
            gamma_step=0.0 if is_mask else self.gamma_step,
            gamma_prior=0.0 if is_mask else self.gamma_prior,
            structure=structure,
            rtol=self.quadrature_rtol,
            halvings=halvings,
            steps=self.steps,
            until=until if self.until == "auto" else self.until,
            max_steps=self.max_steps,
            reference=self.reference,
            temperature=self.temperature,
            binary=self.binary,
            smooths=self.smooths,
            line=self.halvings == "line",
            is_mask=is_mask,
        )

    @property
    def accepts_baseline(self) -> bool:
        """Whether a caller's own baseline is used: that of the mask."""
        return self.coordinates == "mask"

    @property
    def path_of_targets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        return self.focus in ("cam", "contrast")

    @property
    def planned_passes(self) -> float:
        path = self.path(1)
        steps = path.limit(self.steps or self._most_steps)
        # a forward pass, the score's gradient, the direction and, where each step takes it, the length of the step
        each = 2 - path.line + (0 if self.smooths else RANK[path.structure]) + (path.jvp_use == "required")
        return steps * each + 2 * FEW_POINTS * path.line + FOCUS_PASSES.get(self.focus, 0)

    def jvp_use(self, problem: Problem) -> JVPUse:
        return self.fitted(problem).path(1).jvp_use

    def fitted(self, problem: Problem) -> Self:
        # towards a softened prediction the steps of a text are too long: 47 of 90 maps are ``ok`` instead of 65
        cap, temperature, token = self.delta_euc, self.temperature, problem.token_length
        structure = problem.structure if self.structure == "auto" else self.structure
        if token is not None and self.coordinates == "input":
            cap = _LENGTHS[cap] * TEXT_CAP * token if isinstance(cap, str) else cap
            temperature = 1.0 if temperature == "auto" else temperature
        return dataclasses.replace(self, structure=structure, delta_euc=cap, temperature=temperature)

    def attribute(self, problem: Problem) -> Attribution:
        if (fitted := self.fitted(problem)) != self:
            return fitted.attribute(problem)
        if self.focus == "none":
            return self._walk(problem, None)
        # the control's work is to smooth the image, and not to come near the reference
        enough = ("short", "stalled") if self.smooths else ()
        focused = FocusedPaths(self.focus, self.focus_floor)
        return focused.explain(problem, self._walk, ("ok", "at_reference", *enough))

    def _walk(self, problem: Problem, scale: Tensor | None) -> Attribution:
        """The maps of paths in coordinates with this ``scale``, which broadcasts to (B, *S); None: 1."""
        path, walked = self.path(problem.inputs[0].numel()), problem
        if path.line:  # whose record is that of the line, and whose progress comes first
            after = len(problem.inputs) * FEW_POINTS
            walked = dataclasses.replace(problem, record_path=False, progress=ProgressStage(problem.progress, 0, after))
        walk = Walk(path, walked, scale)
        result, start = walk.run(), walk.start
        if walk.ends is not None:
            rest = dataclasses.replace(problem, progress=ProgressStage(problem.progress, sum(walk.planned)))
            result = integrate_line(rest, result, walk.ends, path.rtol)
        diagnostics = path_diagnostics(result, start.geodesic.log_p, start.geodesic.log_q)
        if start.geodesic.temperature is not None:
            diagnostics["temperature"] = start.geodesic.temperature
        if walk.path.smooth_slopes:
            has = float(problem.model.smooth_rectifiers and not problem.model.is_scripted)  # whose code is out of reach
            diagnostics["smooth_slopes"] = torch.full_like(start.total, has, dtype=torch.float64)
        if scale is not None:
            focused = result.stats.total["focused_step"]
            diagnostics["focus_length_ratio"] = length_ratio(focused, diagnostics["path_length"])
        start_kl = kl(start.geodesic.log_p, start.geodesic.log_q)
        facts = zip(
            *(result.finite, result.steps, walk.planned, start.limit.tolist()),
            diagnostics["endpoint_kl"].tolist(),
            (1.0 - diagnostics["endpoint_kl"] / start_kl).tolist(),
            (1.0 - diagnostics["endpoint_distance"] / diagnostics["distance"]).tolist(),
            (problem.logits.amax(1, keepdim=True) - problem.logits > EXCLUDED_BELOW).sum(1).tolist(),
            result.stats.last["active_bound"].tolist(),
            softening_temperature(start.geodesic.log_p, AUTO_ENTROPY).tolist(),
            strict=True,
        )
        residuals: list[list[float]] = result.residual.view(len(result.steps), -1).tolist()
        statuses: list[list[Status]] = [
            [(word := fringe_verdict(one, r), fringe_advice(word, path, one, r)) for r in row]
            for one, row in zip(starmap(_PathOfImage, facts), residuals, strict=True)
        ]
        return build_attribution(self, result, problem, diagnostics, statuses)


@dataclass(frozen=True)
class FRInGeBinary(FRInGe):
    """Integrate gradients along FRInGe's path for two classes: the target, and all others together.

    The metric of two classes has rank one, so that its closed form is exact and a step needs no JVP. A path belongs to
    one class; that of :class:`FRInGe` serves all.
    """

    name = "fringe_b"
    title = "FRInGe-B"
    source = "the authors' release, github.com/GabMartino/FRInGe"
    many_targets = False
    binary: ClassVar[bool] = True
    presets: ClassVar = {
        name: {
            **dict(zip(("tau", "eta_max", "delta_euc", "damping", "gamma_step", "gamma_prior"), numbers, strict=True)),
            **{"until": "budget", "halvings": 0, "temperature": 1.0},
        }
        for name, numbers in {
            "resnet18": (5.4966e-4, 21.7146, 6.3606, 2.8118e-4, 1.6784e-3, 2.8884e-5),
            "resnet50": (4.4065e-4, 3.5530, 2.0516, 2.8034e-9, 1.2722e-9, 1.5934e-4),
            "resnet101": (4.9684e-4, 4.2134, 3.0314, 1.2112e-12, 6.0822e-12, 1.3959e-6),
            "resnet152": (3.9408e-4, 4.9128, 3.0571, 2.4264e-9, 6.2317e-9, 1.2413e-7),
            "inception_v3": (1.4053e-3, 1.8920, 3.1400, 2.5141e-10, 2.3257e-12, 1.3089e-7),
            "vgg19": (3.0449e-4, 2.75362, 0.6969, 3.0302e-11, 5.132e-3, 9.6205e-4),
        }.items()
    }


@dataclass(frozen=True)
class Diffusion(FRInGe):
    """A control of FRInGe: smooth the image in steps of the same length, whatever the network would follow.

    The direction is ``R^-1 gamma_prior L^T L x``, of a diffusion with the prior alone; only the lengths of the steps
    and the end of the path ask the network. The gradients along this path are integrated as FRInGe's are.
    """

    name = "diffusion"
    title = "Diffusion: FRInGe on a path that ignores the network"
    source = "a control of this library"
    smooths: ClassVar[bool] = True
    presets: ClassVar = {}

    gamma_prior: Annotated[NotNegative, Doc("smooths the image (gamma_prior)")] = 1e3

    @classmethod
    def of(cls, method: FRInGe) -> Self:
        """Return the control of a method.

        Args:
            method: The method, whose other settings are kept.

        Returns:
            The control.
        """
        kept = {f.name: getattr(method, f.name) for f in dataclasses.fields(FRInGe) if f.name != "gamma_prior"}
        return cls(**kept)


def _distribution(value: object) -> tuple[float, ...] | tuple[tuple[float, ...], ...]:
    """Plain tuples of positive numbers that sum to one, from anything that reads as an array (C,) or (B, C)."""
    try:
        q = torch.as_tensor(value, dtype=torch.float64).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"got {value!r}, expected numbers (C,) or (B, C)", argument="reference") from error
    sums = q.sum(-1)
    if q.dim() not in (1, 2) or not bool(((q > 0) & torch.isfinite(q)).all()):
        least = f"a smallest of {q.min().item():.6g} in shape {tuple(q.shape)}"
        message = f"got {least}, expected positive numbers (C,) or (B, C)"
        hint = "no softmax reaches a zero: give such a class a small probability, such as 1e-6"
        raise InputError(message, argument="reference", hint=hint)
    if not bool(torch.isclose(sums, torch.ones_like(sums), rtol=0, atol=1e-6).all()):
        raise InputError(f"each distribution must sum to 1, got {sums.flatten()[0].item():.6g}", argument="reference")
    rounded = (sums - 1.0).abs() <= 1e-12  # already divided: a second division would change its last digits
    q = torch.where(rounded[..., None], q, q / sums[..., None])
    return tuples_of(q.tolist())


# -- the verdict: how far a path came, and what to do about it --------------------------------------------------------


#: Share of the Fisher-Rao distance to the reference covered, under which a path is called stalled.
STALLED_BELOW = 0.05

#: Nats below the largest logit from which no path brings a class back, as where a mask adds -1e9.
EXCLUDED_BELOW = 1000.0

#: The advice raises a bound to at most this times its value.
MOST_RAISED = 50.0

#: ``gamma_prior`` above which the prior may hold the path back: ten times the default.
STRONG_PRIOR = 6e-3

#: Nats to the reference at the end point above which the advice says how to continue, unless half was enough.
FAR_ABOVE = 0.5


@dataclass(frozen=True)
class _PathOfImage:
    """The path of an image: whether its logits and gradients were finite; the steps that it took, that were planned,
    and that it may take; how far from the reference it ends, in nats; the shares of the divergence that it ``lost`` and
    of the distance that it ``covered``, which are NaN where it begins there; the number of classes that the network
    rules out; what bounded the last step; and the temperature that is ``"auto"``."""

    finite: bool
    steps: int
    planned: int
    limit: float
    end_kl: float
    lost: float
    covered: float
    excluded: int = 0
    bound: float = Bound.KL
    softening: float = 1.0


def fringe_verdict(one: _PathOfImage, residual: float) -> Verdict:
    """Return the verdict on a map with this ``residual``."""
    if not one.planned:
        return "at_reference"
    if not one.finite:
        return "diverged"
    if one.covered < STALLED_BELOW:
        return "stalled"
    if not residual <= COARSE_ABOVE:
        return "coarse"
    # after coarse, which is the graver: a short map is right about the part of the way that was covered
    return "short" if one.lost < ENOUGH else "ok"


def fringe_advice(verdict: Verdict, path: FisherRaoPath, one: _PathOfImage, r: float) -> str:
    """Say why a map with the residual ``r`` has a ``verdict``, and which setting to change, to which value."""
    if verdict == "diverged":
        shorter = _shorter(path.cap)
        return f"the logits or their gradient were not finite after step {one.steps}: {shorter}, or check the model"
    goal = "the uniform prediction" if path.reference is None else "the reference"
    if verdict == "at_reference":
        return f"the prediction already is {goal}: there is nothing to explain"
    if verdict == "coarse":
        missed = describe_coarse(r)
        if path.line:
            return f"{missed}: use halvings='auto', or method='fringe'"
        deeper = f"halvings={path.halvings + 5} (now {path.halvings})" if path.halvings else "halvings='auto'"
        return f"{missed}: use {deeper}"
    further = _further(path, one, verdict == "stalled")
    if verdict == "stalled":
        return (
            f"the prediction moved only {one.covered:.1%} of the Fisher-Rao distance to {goal} (under "
            f"{STALLED_BELOW:.0%}): {further}"
        )
    add_up = f"sum within {r:.1%} of the change of the score"
    lost = f"{max(100 * one.lost // 1, 0):.0f}% of its divergence from {goal}"
    if verdict == "short":
        return (
            f"{add_up}, but the prediction lost only {lost} (ok needs {ENOUGH:.0%}): {further}; or read the map as an "
            "explanation of that part"
        )
    onward = one.end_kl > FAR_ABOVE and path.until == "budget"
    return f"{add_up}; the prediction lost {lost} (ok needs {ENOUGH:.0%})" + (
        "; to go further, use until='arrival'" if onward else ""
    )


def _further(path: FisherRaoPath, one: _PathOfImage, stalled: bool) -> str:
    """The setting that takes a path further, with its value."""
    if path.is_mask:
        return "to remove parts of the input changes no more: use coordinates='input'"
    if one.excluded and path.reference is None:
        return (
            f"give reference=, nearly zero for the {one.excluded} classes whose logits are more than "
            f"{EXCLUDED_BELOW:.0f} below the largest, and equal for the others"
        )
    if stalled and path.temperature == 1.0 and one.softening > 1.0:
        return f"the prediction is nearly certain: use temperature={one.softening:.2g}"
    if one.covered < 0 and path.tau > 1:
        return f"the steps are too long: use tau={FRInGe.tau:g}"
    ended, cap = one.steps >= one.limit, path.cap
    if path.until == "arrival" and not ended:
        return f"the gradient is zero where it ended: {_shorter(cap)}"
    # what would take a straight path all the way: the other bounds shorten steps that are too long
    factor = min(max(1.0 / max(one.covered if stalled else one.lost, 1.0 / MOST_RAISED), 2.0), MOST_RAISED)
    if one.limit >= one.planned:  # else its steps were too few, whatever their length
        if not path.smooths and path.gamma_prior > STRONG_PRIOR and one.bound != Bound.ETA_MAX:
            return f"use gamma_prior={STRONG_PRIOR / 10:g} (now {path.gamma_prior:g})"
        if one.bound == Bound.ETA_MAX:
            return f"use eta_max={factor * path.eta_max:.2g} (now {path.eta_max:g})"
        if one.bound == Bound.EUCLIDEAN and cap is not None and (stalled or not ended):
            return f"use delta_euc={factor * cap:.2g} (now {cap:.2g})"
    if path.until == "arrival":
        return f"use max_steps={round(factor) * path.max_steps}"
    return f"use until='{'half' if path.until == 'budget' else 'arrival'}'"


def _shorter(cap: float | None) -> str:
    return "use delta_euc='auto'" if cap is None else f"use delta_euc={cap / 4:.2g} (now {cap:.2g})"
