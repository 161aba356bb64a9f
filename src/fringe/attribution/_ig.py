"""Integrated Gradients along a straight line, along blurs and spectra of the image, and along a guided path."""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from fringe.attribution._base import Attribution, Baseline
from fringe.attribution._diagnostics import PathAttributor
from fringe.attribution._focus import Focus, FocusFloor, FocusLayer, Region, length_ratio, read_focus
from fringe.attribution._quadrature import NodeRule, Quadrature, quadrature_nodes
from fringe.attribution._segments import SegmentTerms
from fringe.attribution._terms import NodeTerms
from fringe.errors import require
from fringe.paths import Basis, BlurLine, Displacements, GuidedPath, Problem, SpectralLine, SpectralRule, StraightLine
from fringe.settings import Doc, Fraction, Positive, PositiveFraction, PositiveInt, Search


@dataclass(frozen=True)
class IntegratedGradients(PathAttributor):
    """Integrate the gradient along the straight line from a baseline to the input (Sundararajan et al. 2017, eq. 1).

    .. math:: A = (x - x') \\odot \\int_0^1 \\nabla F^t(x' + a (x - x')) \\, da

    A ``focus`` cannot change a straight line between two points: it moves the baseline. In coordinates y with
    ``x + s (y - x)`` for the input the line to y = x' ends at ``x + s (x' - x)``, where entries outside of the region
    keep a share 1 - s of their values. The map sums to what the region alone takes from the score. The same is possible
    for each method with a baseline, by ``attribute(..., baseline=...)``.

    The preset ``paper``: 200 points are ours, from the ratios of run times in the FRInGe paper; its code takes 300.
    """

    name = "ig"
    title = "Integrated Gradients"
    source = "Sundararajan, Taly and Yan 2017"
    presets: ClassVar = {"paper": {"steps": 200}, "released": {"steps": 300, "rule": "gausslegendre"}}

    steps: Annotated[PositiveInt, Search(10, 500, log=True), Doc("gradients along the line")] = 50
    baseline: Baseline = "zero"
    rule: Annotated[NodeRule, Doc("quadrature")] = "midpoint"
    focus: Focus = "none"
    focus_floor: FocusFloor = 0.2
    focus_layer: FocusLayer = "auto"

    def __post_init__(self) -> None:
        object.__setattr__(self, "focus", read_focus(self.focus))
        super().__post_init__()
        is_closed = self.rule in ("trapezoid", "closed_mean")
        expected = f"a whole number of at least 2 for rule {self.rule!r}"
        require(self.steps > 1 or not is_closed, "steps", self.steps, expected)

    def terms(self, problem: Problem) -> NodeTerms:
        baseline = problem.resolve_baseline(self.baseline)
        line = StraightLine(problem.inputs, baseline, *quadrature_nodes(self.rule, self.steps))
        return NodeTerms(line, problem)

    @property
    def _region(self) -> Region:
        return Region(self.focus, self.focus_floor, self.focus_layer)

    @property
    def planned_passes(self) -> float:
        return 2 * self.steps + self._region.planned_passes

    def attribute(self, problem: Problem) -> Attribution:
        return self._region.explain(problem, self._walk, ("ok",))

    def _walk(self, problem: Problem, scale: Tensor | None) -> Attribution:
        if scale is None:
            return super().attribute(problem)
        baseline = problem.resolve_baseline(self.baseline)
        ends = (baseline, problem.inputs.lerp(baseline, scale.to(baseline)))
        result = super().attribute(dataclasses.replace(problem, baseline=ends[1]))
        unfocused, length = ((end - problem.inputs).flatten(1).double().norm(dim=1) for end in ends)
        known = {"focus_length_ratio": length_ratio(unfocused, length), **result.diagnostics}
        return dataclasses.replace(result, diagnostics=known)


Grid = Literal["linear", "sqrt"]


@dataclass(frozen=True)
class BlurIG(PathAttributor):
    """Integrate the gradient along ever stronger Gaussian blurs of the image (Xu et al. 2020).

    .. math:: A = -\\int_0^{\\sigma_m} \\nabla F^t(z(\\sigma)) \\odot z'(\\sigma) \\, d\\sigma,
              \\qquad z(\\sigma) = G_\\sigma * x

    ``sigma_max`` is a share of the image's shorter side: the authors' 50 pixels at 224. The map explains the change of
    the score from the blurred image to the image. ``mode="chord"`` multiplies gradients by chords of the path, as the
    trapezoid rule does; ``"derivative"`` multiplies them by forward differences over 0.01 pixels with the left rule, as
    the authors' code does. ``grid="sqrt"`` spaces the blurs evenly in variance. Beyond the edge the image is zero. The
    Gaussian ends at ``int(4 sigma + 1/2)`` pixels. Costs S + 1 forward passes and VJPs per image (S in the derivative
    mode) and a forward pass at the end.
    """

    name = "blur_ig"
    title = "Blur Integrated Gradients"
    source = "Xu, Venugopalan and Sundararajan 2020"
    presets: ClassVar = {"official": {"mode": "derivative"}, "released": {"sigma_max": 10 / 224}}

    steps: Annotated[PositiveInt, Search(20, 300, log=True), Doc("intervals between blurs (S)")] = 100
    sigma_max: Annotated[
        Positive, Search(0.05, 0.5, log=True), Doc("the strongest blur's sigma", unit="of the shorter side")
    ] = 50 / 224
    grid: Annotated[Grid, Doc("blurs evenly spaced in sigma, or in its square")] = "linear"
    mode: Annotated[Displacements, Doc("gradients times chords, or the authors' forward differences")] = "chord"

    def terms(self, problem: Problem) -> NodeTerms:
        line = BlurLine(problem.inputs, self._sigmas(min(problem.inputs.shape[-2:])), self.mode)
        return NodeTerms(line, problem)

    @property
    def hint(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride] - depends on a setting
        return "use more steps" if self.mode == "chord" else "use more steps, or mode='chord'"

    def _sigmas(self, side: int) -> Tensor:
        """Blurs (S + 1,) in pixels, from 0 to the strongest, for images whose shorter side is ``side`` pixels."""
        share = torch.linspace(0, 1, self.steps + 1, dtype=torch.float64)
        return self.sigma_max * side * (share if self.grid == "linear" else share.sqrt())


GuidedRule = Literal["left", "trapezoid"]


@dataclass(frozen=True)
class GuidedIG(PathAttributor):
    """Integrate the gradient along a path that moves the entries of small gradient first (Kapishnikov et al. 2021).

    The path avoids steep directions as long as possible. After step k of N it has covered k/N of the distance to the
    input in the L1 norm, and the progress of each entry differs from k/N by at most ``max_dist`` (0: the straight line,
    Integrated Gradients by the left rule; 1: anywhere in the box between baseline and input). The published rule
    multiplies a step by the gradient at its beginning (``"left"``): N forward passes and VJPs, and a forward pass for
    the score at the end. ``"trapezoid"`` costs one VJP more and is exact for quadratic scores.

    The preset ``paper``: 200 steps, .25 and .02 are of the library of the method's authors; the code of the FRInGe
    paper takes 100 steps.
    """

    name = "guided_ig"
    title = "Guided Integrated Gradients"
    source = "Kapishnikov et al. 2021"
    hint = "use more steps, or rule='trapezoid'"
    presets: ClassVar = {
        "paper": {},
        "released": {"steps": 100},
        "notebook": {"steps": 25, "fraction": 0.5, "max_dist": 1.0},
        "quick": {"steps": 50},
    }

    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("gradients along the path (N)")] = 200
    fraction: Annotated[PositiveFraction, Search(0.02, 0.5, log=True), Doc("share of entries that move at once")] = 0.25
    max_dist: Annotated[Fraction, Search(0.005, 1.0, log=True), Doc("largest gap of an entry's progress to k/N")] = 0.02
    baseline: Baseline = "zero"
    rule: Annotated[GuidedRule, Doc("quadrature: the authors', or trapezoid")] = "left"

    def terms(self, problem: Problem) -> SegmentTerms:
        based = dataclasses.replace(problem, baseline=problem.resolve_baseline(self.baseline))
        path = GuidedPath(self.steps, self.fraction, self.max_dist, closed=self.rule == "trapezoid")
        return SegmentTerms(path, Quadrature(self.rule), based)


@dataclass(frozen=True)
class SpectralIG(PathAttributor):
    """Integrate the gradient along a path that adds the strong spectral components first (Kim et al. 2026).

    .. math:: z(a) = x' + U \\operatorname{diag}(s \\odot m(a)) V^T, \\qquad
              m_i(a) = \\operatorname{clip}(\\frac{a - (1 - o)(1 - s_i / s_1)}{o}, 0, 1)

    with the singular values s of each channel of x - x'. The path ends at the input itself, so the map sums to the
    change of the score, up to quadrature. With ``overlap=1`` the path is the straight line. ``basis="dct"`` adds
    cosines, low frequencies first: for the frequencies (i, j) from 0 to H - 1 and W - 1, :math:`s_i / s_1` is
    :math:`1 - \\sqrt{(u^2 + v^2) / 2}` with u = i / (H - 1) and v = j / (W - 1). ``"joint_svd"`` takes all channels as
    one matrix (C H, W). The authors' code counts points and not intervals: its 200 points are ``steps=199``. They
    explain the probability. Costs N forward passes and VJPs per image (N + 1 by the trapezoid rule), a forward pass at
    the baseline, and a decomposition per channel.
    """

    name = "spectral_ig"
    title = "Spectral Integrated Gradients"
    source = "Kim et al. 2026"
    hint = "use more steps, or rule='trapezoid'"
    presets: ClassVar = {"official": {"steps": 199}, "quick": {"steps": 50}}

    steps: Annotated[PositiveInt, Search(20, 500, log=True), Doc("intervals of the path (N)")] = 200
    overlap: Annotated[PositiveFraction, Search(0.1, 1.0), Doc("share of the path along which a part enters (o)")] = 0.4
    basis: Annotated[Basis, Doc("components: of each channel, of all channels together, or cosines")] = "svd"
    baseline: Baseline = "zero"
    rule: Annotated[SpectralRule, Doc("quadrature: the authors', or trapezoid")] = "left"

    def terms(self, problem: Problem) -> NodeTerms:
        baseline = problem.resolve_baseline(self.baseline)
        line = SpectralLine(problem.inputs, baseline, self.steps, self.overlap, self.basis, self.rule)
        return NodeTerms(line, problem)
