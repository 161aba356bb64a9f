"""Measurements for a card, on the embedded digits and on scenes with a known answer."""

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch

from fringe._rng import KeyedGenerator
from fringe._text import first_paragraph
from fringe.attribution import Attributor, require_package
from fringe.baselines import InputSpace
from fringe.bench.cards._target import CallableMethod, read_target
from fringe.bench.scenes import Gate, Scene, get_scene
from fringe.classifier import Classifier
from fringe.data import digits_samples, find_inputs
from fringe.errors import FringeError, InputError, require_positive
from fringe.evaluation import Candidate, Evaluator, MethodResult, map_controls
from fringe.metrics import EvaluationContext, get_metric
from fringe.models import load_model
from fringe.paths import JVPUse, Problem
from fringe.testing import CheckError, CheckResult, check_attributor

#: Called with the next measurement, the parts done, and the number of parts.
Progress = Callable[[str, int, int], None]

DIGITS = "embedded:digits"
#: Scenes that need only the embedded digits.
SCENES_OF_CARDS = (
    *("blockdigits", "xai_tris:translations_rotations_white", "xai_tris:xor_white"),
    *("colour_counter", "patch_and", "difull"),
)
#: Blind maps: they do not depend on the model.
BLIND = ("edge", "random", "uniform")
#: Maximum number of images for a metric that computes several maps per image.
FEW = 8
#: Number of reference images for methods that average over references.
REFERENCES = 16
LOCALISATION = ("mass_inside", "mass_inside:smooth", "rank_accuracy", "expected_hit")
#: The metrics of each part of a card on the digits, and whether they compute further maps.
PARTS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "Interventions": (("single_deletion", "signed_insertion", "road", "saco", "insertion", "deletion"), False),
    "Sanity": (("mprt", "random_logit"), True),
    "Noise sensitivity": (("max_sensitivity",), True),
    "Completeness": (("completeness_residual",), False),
}
#: In benchmarks: properties of a map and its path that only methods designed for them can fail.
PATH, PATH_METRICS = "Path and sparseness", ("endpoint_kl", "tracking_error_mean", "tracking_error_max", "sparseness")
#: Parts in which a method should beat its controls. Robustness is not one: a blind map may be insensitive to noise.
COMPARED = ("Localisation", "Interventions", "Sanity", "Scores")


@dataclass(frozen=True)
class Measurement:
    """Scores of a method and of its controls under one metric.

    Attributes:
        part: Heading of the card.
        subject: The scene, or the images.
        metric: Label of the metric.
        scores: Scores (n,) of the method, NaN where there is none.
        controls: Scores (n,) of each blind map, and of the method's own map made sharper or moved to the centre, by
            name.
        chance: Score of a uniform map by definition, if the metric states it.
        settings: Record of the metric.
        clusters: Names (n,) of clusters of examples that share pixels; empty where none do.
    """

    part: str
    subject: str
    metric: str
    scores: tuple[float, ...]
    controls: Mapping[str, tuple[float, ...]]
    chance: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Card:
    """All measurements of a method.

    Attributes:
        label: Name of the method.
        summary: First line of the method's docstring.
        source: Publication.
        settings: Record of the method.
        assumptions: What the method requires and guarantees, as sentences.
        checks: Results of the conformance checks and theorems.
        gates: Conditions of the scenes, by scene.
        measurements: All scores.
        skipped: What was not measured, and why.
        verdicts: Number of maps of digits with each verdict.
        passes: Forward passes, Jacobian-vector and vector-Jacobian products per map; empty if not measured.
        seconds: Seconds per map.
        n: Number of examples of each part.
        seed: Seed of the examples and of all other randomness.
        made: Time of the measurement.
    """

    label: str
    summary: str
    source: str
    settings: Mapping[str, Any]
    assumptions: tuple[str, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    gates: Mapping[str, tuple[Gate, ...]] = field(default_factory=dict[str, tuple[Gate, ...]])
    measurements: tuple[Measurement, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict[str, str])
    verdicts: Mapping[str, int] = field(default_factory=dict[str, int])
    passes: Mapping[str, float] = field(default_factory=dict[str, float])
    seconds: float = float("nan")
    n: int = 0
    seed: int = 0
    made: str = ""

    def failed_checks(self, allowed: Sequence[str] = ()) -> tuple[CheckResult, ...]:
        """Return the names of the failed checks.

        Args:
            allowed: Names of checks that may fail.

        Returns:
            Names of the other failed checks.

        Raises:
            InputError: If a name is unknown.
        """
        names = [check.name for check in self.checks]
        unknown = sorted(set(allowed) - set(names))
        if unknown:
            hint = f"known: {', '.join(names)}"
            raise InputError(f"no check is called {', '.join(unknown)}", argument="allow", hint=hint)
        return tuple(check for check in self.checks if not check.passed and check.name not in allowed)

    def failures(self, allowed: Sequence[str] = ()) -> list[str]:
        """List the failed checks with their reasons; checks with the same reason share one clause.

        Args:
            allowed: Names of checks that may fail.

        Returns:
            Clauses such as ``"check order fails: ..."``.
        """
        pairs = by_text((check.name, check.detail) for check in self.failed_checks(allowed))
        return [f"check{'s' * (',' in name)} {name} fail{'s' * (',' not in name)}: {text}" for name, text in pairs]


def by_text(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of names, separated by commas, and the text that they share."""
    names: dict[str, list[str]] = {}
    for name, text in pairs:
        names.setdefault(text, []).append(name)
    return [(", ".join(some), text) for text, some in names.items()]


def verify(
    target: object,
    *,
    n: int = 24,
    seed: int = 0,
    scenes: Sequence[str | Scene] = SCENES_OF_CARDS,
    checks: bool = True,
    trust_code: bool = False,
    progress: Progress | None = None,
) -> Card:
    """Measure an attribution method on the embedded digits and on scenes with a known answer, offline.

    Args:
        target: What :func:`read_target` reads: a name, a method, a class of Captum, a function.
        n: Number of examples of each scene and of digits; metrics that compute further maps use at most 8.
        seed: Seed of the examples and of all other randomness.
        scenes: Names of scenes, or configured ones.
        checks: Whether to run the conformance checks and theorems.
        trust_code: Whether a module or a file that ``target`` names may be run.
        progress: Called with the next measurement, the parts done, and the number of parts.

    Returns:
        The measurements.

    Raises:
        InputError: If the target is not a method, or its package is not installed.
    """
    require_positive("n", n)
    method = read_target(target, trust_code=trust_code)
    require_package(method)
    chosen = {_title(scene): get_scene(scene) for scene in scenes}
    measuring = _Measuring(method, n, seed)
    parts: dict[str, Callable[[], None]] = {"checks": measuring.check} if checks else {}
    parts |= {title: functools.partial(measuring.localise, title, scene) for title, scene in chosen.items()}
    parts |= {part: functools.partial(measuring.score_digits, part) for part in PARTS}
    for done, (name, measure) in enumerate(parts.items()):
        if progress is not None:
            progress(name, done, len(parts))
        try:
            measure()
        except FringeError as error:
            measuring.skipped[name] = str(error)
    return measuring.card()


def _title(scene: str | Scene) -> str:
    """Title of a scene, with its preset."""
    preset = scene.partition(":")[2] if isinstance(scene, str) else ""
    return f"{get_scene(scene).title}{', ' if preset else ''}{preset.replace('_', ' ')}"


class _Measuring:
    """Collects the measurements of one method."""

    def __init__(self, method: Attributor, n: int, seed: int):
        self.method, self.n, self.seed = method, n, seed
        self.checks: list[CheckResult] = []
        self.gates: dict[str, tuple[Gate, ...]] = {}
        self.measurements: list[Measurement] = []
        self.skipped: dict[str, str] = {}
        self.verdicts = Counter[str]()
        self.passes: dict[str, float] = {}
        self.jvp_use: JVPUse = "none"
        self.seconds = float("nan")

    def card(self) -> Card:
        return Card(
            label=self.method.label,
            summary=first_paragraph(type(self.method).__doc__),
            source=self.method.source,
            settings=self.method.record(),
            assumptions=_assumptions(self.method, self.passes, self.jvp_use),
            checks=tuple(self.checks),
            gates=self.gates,
            measurements=tuple(self.measurements),
            skipped=self.skipped,
            verdicts=dict(self.verdicts.most_common()),
            passes=self.passes,
            seconds=self.seconds,
            n=self.n,
            seed=self.seed,
            made=datetime.now(UTC).date().isoformat(),
        )

    def check(self) -> None:
        """Run the conformance checks, which include the theorems."""
        try:
            results = check_attributor(self.method)
        except CheckError as error:
            results = error.results
        self.checks += map(_without_refusals, results)

    def localise(self, title: str, scene: Scene) -> None:
        """Compare the maps of one network of a scene with the known answer."""
        scene = dataclasses.replace(scene, networks=1) if scene.networks > 1 else scene  # pyright: ignore[reportArgumentType]
        model = load_model(DIGITS) if scene.requires_model else None
        images = tuple(find_inputs([DIGITS])) if scene.requires_images else ()
        network = scene.network(0, model, images)
        self.gates[title] = scene.gates(network, model, images)
        count = self.n + (REFERENCES if self.method.uses_references else 0)
        examples = scene.examples([network], images, count, self.seed)
        made = [scene.make(example, network) for example in examples]
        x, truth = (torch.stack(tensors) for tensors in zip(*made, strict=True))
        references = x[self.n :] if self.method.uses_references else None
        low, high = network.preprocessing.bounds()
        examples = examples[: self.n]
        problem = Problem.of(
            Classifier(network.module),
            x[: self.n],
            target=[example.target for example in examples],
            ids=tuple(example.id for example in examples),
            rng=KeyedGenerator(self.seed),
            domain=InputSpace(low, high, references),
        )
        context = EvaluationContext(problem, truth[: self.n])
        clusters = tuple(example.cluster for example in examples)
        method = self._score("Localisation", title, context, (*LOCALISATION, *scene.metrics), clusters)
        if scene.name == "difull":
            self.checks.append(_difull(self.method, method))

    def score_digits(self, part: str) -> None:
        """Score maps of digits with the metrics of a part."""
        metrics, makes_maps = PARTS[part]
        if part == "Completeness" and not self.method.is_complete:
            self.skipped[part] = "the method claims no sum of its map"
            return
        context = _digits(self.n, self.seed, self.method.uses_references)
        context = context.select(range(min(self.n, FEW))) if makes_maps else context
        method = self._score(part, "digits", context, metrics)
        if not self.passes and method.attribution is not None:
            self.jvp_use = self.method.jvp_use(context.problem)
            images = len(context.problem.inputs)
            counts = dataclasses.asdict(method.passes)
            self.passes = {name: count / images for name, count in counts.items()}
            self.seconds = method.seconds / images
            self.verdicts.update(method.attribution.verdict)

    def _score(
        self,
        part: str,
        subject: str,
        context: EvaluationContext,
        metrics: Sequence[str],
        clusters: tuple[str, ...] = (),
    ) -> MethodResult:
        """Score the method, the blind maps and the controls of its map; return the method's result."""
        blind = [Candidate(name, None) for name in BLIND]
        own = map_controls(self.method.label, self.method)
        candidates = [Candidate(self.method.label, self.method, kept=True), *blind, *own]
        with context.problem.model.session(context.problem.inputs.device):
            chosen = {metric: get_metric(metric) for metric in metrics}
            rows = Evaluator(context, candidates, chosen, None).rows(keep_maps=True)
        refusals = (reason for scores in rows[0].scores.values() for reason in scores.refusals)
        if (error := rows[0].error or next(filter(None, refusals), None)) is not None:
            raise InputError(error)
        for metric in metrics:
            column, *controls = (tuple(row.scores[metric].values.tolist()) for row in rows)
            chance = rows[0].scores[metric].details.get("chance")
            self.measurements.append(
                Measurement(
                    part,
                    subject,
                    metric,
                    column,
                    {
                        row.label.partition(":")[0]: scores
                        for row, scores in zip(rows[1:], controls, strict=True)
                        if row.error is None
                    },
                    None if chance is None else float(chance.nanmean()),
                    chosen[metric].record(),
                    clusters,
                )
            )
        return rows[0]


def _without_refusals(result: CheckResult) -> CheckResult:
    """Pass a check that failed only because the method refuses the network with a documented error."""
    refusal = "InputError: model: "
    if result.passed or not result.detail.startswith(refusal):
        return result
    return CheckResult(result.name, True, f"does not apply: {result.detail.removeprefix(refusal)}")


def _digits(n: int, seed: int, references: bool) -> EvaluationContext:
    """The problem of ``n`` test digits, in an order drawn by the seed, for the predicted classes."""
    model = load_model(DIGITS)
    samples = digits_samples()
    order = KeyedGenerator(seed).permutation("digits of a card", len(samples))[:n]
    chosen = [samples[i] for i in order]
    others = model.prepare([s.image for s in digits_samples("train")[:REFERENCES]]) if references else None
    space = InputSpace(*model.preprocessing.bounds(), others)
    x = model.prepare([sample.image for sample in chosen])
    ids = tuple(sample.id for sample in chosen)
    return EvaluationContext(Problem.of(Classifier(model.module), x, ids=ids, rng=KeyedGenerator(seed), domain=space))


def _difull(method: Attributor, result: MethodResult) -> CheckResult:
    """Check the theorem of disconnected cells: a path method attributes zero to cells that the network ignores."""
    if not method.is_complete:
        return CheckResult("difull", True, "does not apply: the method integrates no gradient along a path")
    values = result.scores["mass_inside"].values
    known = values[torch.isfinite(values)]
    if not len(known):
        return CheckResult("difull", True, "does not apply: no map has positive mass")
    worst = float(known.amin())
    text = f"share of the mass in the cell that is read: {worst:.9g}, the least of {len(known)} maps"
    return CheckResult("difull", worst >= 1 - 1e-6, text)


def _assumptions(method: Attributor, passes: Mapping[str, float], jvp_use: JVPUse) -> tuple[str, ...]:
    """What a method requires and guarantees, derived from its class and its passes."""
    lines: list[str] = []
    if isinstance(method, CallableMethod):
        lines.append("It is a function, called with one image at a time and with seeded random generators.")
    if method.is_complete:
        lines.append("It promises that the map adds up to the change of the score along its path.")
    else:
        lines.append("It promises no sum of the map.")
    baseline = method.record().get("baseline")
    if baseline is not None:
        lines.append(f"It compares the input with a baseline: {baseline}.")
    if method.uses_references:
        lines.append("It reads reference images of the data.")
    if jvp_use == "required":
        lines.append("The model must have forward-mode or second derivatives.")
    elif passes.get("vjp"):
        lines.append("The model must be differentiable.")
    elif passes:
        lines.append("It asks the model for predictions alone; no derivatives are needed.")
    return tuple(lines)
