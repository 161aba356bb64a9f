"""Measurements for a card, on the embedded digits and on scenes with a known answer."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from fringe._numbers.rng import KeyedGenerator
from fringe._strings.formats import first_paragraph
from fringe._strings.names import Reference
from fringe.attribution import (
    METHODS,
    Attributor,
    CallableMethod,
    method_of_record,
    read_target,
    require_package,
)
from fringe.bench.experiments import (
    ExperimentSpec,
    Plan,
    Resolved,
    Results,
    RunOptions,
    TaskRunner,
    build_plan,
    open_run,
    read_results,
    run_plan,
    sample_examples,
)
from fringe.bench.report import chance_of, cost_of_maps
from fringe.bench.scenes import Example, Gate, Scene, get_scene
from fringe.classifier import Classifier
from fringe.data import ImageRef, digit_image, load_digits
from fringe.errors import FringeError, InputError, require_positive
from fringe.inputs import ImageEntry, ImageSample
from fringe.metrics import METRICS, with_references
from fringe.models import LoadedModel
from fringe.paths import JVPUse
from fringe.settings import Doc, PositiveInt
from fringe.testing import CheckError, CheckResult, check_attributor

#: Called with the next measurement, the parts done, and the number of parts.
Progress = Callable[[str, int, int], None]

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
#: The metrics of each part of a card on the digits, and whether they compute further maps.
PARTS: Mapping[str, tuple[tuple[str, ...], bool]] = {
    "Interventions": (
        with_references(
            ("single_deletion", "occlusion_agreement", "signed_insertion", "road", "saco", "insertion", "deletion")
        ),
        False,
    ),
    "Sanity": (("mprt", "random_logit"), True),
    "Noise sensitivity": (("max_sensitivity", "max_sensitivity:rounding"), True),
    "Completeness": (("completeness_residual",), False),
}
#: In benchmarks: properties of a map and its path that only methods designed for them can fail.
PATH, PATH_METRICS = "Path and sparseness", ("endpoint_kl", "tracking_error_mean", "tracking_error_max", "sparseness")
#: The part of each metric that needs no known answer.
PART_OF = {
    **{metric: part for part, (metrics, _) in PARTS.items() for metric in metrics},
    **dict.fromkeys(PATH_METRICS, PATH),
}
#: Parts in which a method should beat its controls. Robustness is not one: a blind map may be insensitive to noise.
COMPARED = ("Localisation", "Interventions", "Sanity", "Scores")
#: Label of the verified method in its results: its own may be that of a blind map.
VERIFIED = "method"


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
        chance: Score of a uniform map by definition; NaN if the metric does not state it.
        settings: Record of the metric.
        clusters: Names (n,) of clusters of examples that share pixels; empty where none do.
    """

    part: str
    subject: str
    metric: str
    scores: tuple[float, ...]
    controls: Mapping[str, tuple[float, ...]]
    chance: float = math.nan
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
        made: Day of the measurement.
    """

    label: str
    summary: str = ""
    source: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
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
    made: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def failed_checks(self, allowed: Sequence[str] = ()) -> tuple[CheckResult, ...]:
        """Return the failed checks.

        Args:
            allowed: Names of checks that may fail.

        Returns:
            The other failed checks.

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
    chosen = dict[str, Scene]()
    for scene in scenes:  # by title, with the preset
        preset = (Reference.parse(scene).rest if isinstance(scene, str) else "") or ""
        chosen[f"{get_scene(scene).title}{', ' if preset else ''}{preset.replace('_', ' ')}"] = get_scene(scene)
    names = [*(["checks"] if checks else []), *chosen, *PARTS]
    checked, skipped, cards = list[CheckResult](), dict[str, str](), dict[str, Card]()
    for done, name in enumerate(names):
        if progress is not None:
            progress(name, done, len(names))
        try:
            if name == "checks":
                checked += _checked(method)
            elif name in chosen:
                cards[name] = card_of(_run(method, name, chosen[name], n, seed, skipped)[1], VERIFIED, name)
                if chosen[name].name == "difull" and name not in skipped:
                    checked.append(_difull(method, cards[name]))
            elif name == "Completeness" and not method.is_complete:
                skipped[name] = "the method claims no sum of its map"
            else:
                cards[name] = _measure_digits(method, name, n, seed, skipped)
        except FringeError as error:
            skipped[name] = str(error)
    unmeasured = Card(method.label, assumptions=_assumptions(method, {}, "none"))
    return replace(
        next((card for name, card in cards.items() if name in PARTS and card.passes), unmeasured),
        label=method.label,
        summary=first_paragraph(type(method).__doc__),
        source=method.source,
        settings=method.record(),
        checks=tuple(checked),
        gates={title: cards[title].gates[title] for title in chosen if title in cards},
        measurements=tuple(one for name in cards if name not in skipped for one in cards[name].measurements),
        skipped=skipped,
        n=n,
        seed=seed,
    )


def card_of_run(run: str | Path, method: str, plan: str | None = None) -> Card:
    """Make a card from the scores of a benchmark, with all its images and blind maps.

    Args:
        run: The run folder.
        method: Label of the method in the run.
        plan: Name of the plan; required if the folder holds several.

    Returns:
        The card. It has no checks, because a run stores none.

    Raises:
        InputError: If the run does not contain the method or the plan.
    """
    results = read_results(run, plan)
    models = [model for model in results.models if method in results.methods(model)]
    if not models:
        known = ", ".join(dict.fromkeys(m for model in results.models for m in results.methods(model, controls=False)))
        raise InputError(f"got {method!r}, which the run does not have", argument="method", hint=f"it has {known}")
    records: list[Mapping[str, Any]] = [results.manifest.settings[model][method]["method"] for model in models]
    record = records[0]
    differ = {name for other in records for name in {**record, **other} if record.get(name) != other.get(name)}
    known_method = method_of_record(record) if record.get("method") in METHODS else None
    return replace(
        card_of(results, method),
        summary=first_paragraph(None if known_method is None else type(known_method).__doc__),
        source="" if known_method is None else known_method.source,
        settings={**record, **dict.fromkeys(sorted(differ), "differs between the models")},
    )


def card_of(results: Results, method: str, subject: str = "") -> Card:
    """View the scores of a method as a card: measurements, gates, and what a map costs.

    Args:
        results: The scores, of a run folder or in memory.
        method: Label of the method in the results.
        subject: What measurements and gates are of; the model's label if empty.

    Returns:
        The card, without what is said of the method itself.
    """
    manifest, models = results.manifest, [model for model in results.models if method in results.methods(model)]
    kinds = {label: str(metric["settings"].get("metric")) for label, metric in manifest.metrics.items()}
    measurements = [
        Measurement(
            "Localisation" if METRICS[kind].requires_truth else PART_OF.get(kind, "Scores"),
            subject or model,
            metric,
            tuple(map(float, results.scores(model, method, metric))),
            {
                reference.head if reference.rest == method else control: tuple(
                    map(float, results.scores(model, control, metric))
                )
                for control in sorted(filter(results.is_control, results.methods(model)))
                for reference in [Reference.parse(control)]
                if control in BLIND or reference.rest == method  # not diffusion, which runs the model
            },
            chance_of(results, [model], metric) if METRICS[kind].requires_truth else math.nan,
            manifest.metrics[metric]["settings"],
            results.clusters(model, metric) or (),
        )
        for model in models
        for metric, kind in kinds.items()
        if kind in METRICS
    ]
    names = ("name", "value", "least", "most")
    gates = {subject or m: tuple(Gate(*(gate[n] for n in names)) for gate in manifest.gates(m)) for m in models}
    cost = cost_of_maps(results, models, method).row(0, named=True)
    return Card(
        label=method,
        gates=gates,
        measurements=tuple(measurements),
        passes={name: cost[name] for name in ("forward", "jvp", "vjp") if cost["n"]},
        seconds=cost["seconds"],
        n=len(manifest.images),
        seed=int(manifest.plan["seed"]),
    )


@dataclass(frozen=True)
class DigitImages(Scene):
    """The test digits as they are, for the classes that the given network predicts; the network may use every pixel.

    Examples after the first ``n`` are digits that the network was trained on.
    """

    name: ClassVar[str] = "digits"
    title: ClassVar[str] = "Digits"
    source: ClassVar[str] = "scikit-learn"
    answer: ClassVar[str] = "what the network uses is not known"
    requires_model: ClassVar[bool] = True

    n: Annotated[PositiveInt, Doc("test digits")] = 24

    def network(self, number: int, model: LoadedModel | None, images: Sequence[ImageRef]) -> LoadedModel:
        """Return the given network; see :meth:`Scene.network`."""
        assert model is not None
        return model

    def examples(
        self, networks: Sequence[LoadedModel], images: Sequence[ImageRef], count: int, seed: int
    ) -> tuple[Example, ...]:
        """Draw test digits, and take the first of those for training; see :meth:`Scene.examples`."""
        order = KeyedGenerator(seed).permutation("digits of a card", len(load_digits().test))[: self.n]
        ids = [*(f"digits-{i:04d}" for i in order), *(f"digits-train-{i:04d}" for i in range(count - len(order)))]
        made = [Example(name, 0, name) for name in ids]
        x = torch.stack([self.make(example, networks[0])[0] for example in made])
        classes = Classifier(networks[0].module).logits(x).argmax(1).tolist()
        return tuple(replace(example, target=target) for example, target in zip(made, classes, strict=True))

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Open a digit; see :meth:`Scene.make`."""
        digits, number = load_digits(), int(example.id.rpartition("-")[2])
        scan = digits.images[(digits.train if "train" in example.id else digits.test)[number]]
        x = model.prepare([digit_image(scan)])[0]
        return x, torch.ones(x.shape[1:], dtype=torch.bool)


def _run(
    method: Attributor, title: str, scene: Scene, n: int, seed: int, skipped: dict[str, str], **metrics: Sequence[str]
) -> tuple[Resolved, Results]:
    """Score the method and blind maps on one network of a scene; if nothing is said of ``metrics``, localisation.

    Why scores are missing is added to ``skipped``."""
    scene = replace(scene, networks=1) if scene.networks > 1 else scene  # pyright: ignore[reportArgumentType]
    spec = ExperimentSpec(scene={title: scene}, methods={VERIFIED: method}, n=n, seed=seed, shard=n, **metrics)
    opened = open_run(replace(build_plan(spec), controls=BLIND), None, draw=_draw)
    finished = run_plan(opened.resolved.plan, None, RunOptions.model_validate({}), opened=opened)
    if finished.cause is not None:
        raise finished.cause
    resolved, results = finished.resolved, finished.results
    left = [one["reason"] for one in finished.left if one["method"] == VERIFIED]
    failed = results.failures().filter(method=VERIFIED)["reason"]
    reasons = "; ".join(dict.fromkeys([*left, *(why for why in failed if why not in ("diverged", "not_finite"))]))
    cells = [cell for cell in results.cells.values() if cell.method == VERIFIED]
    scored, required = sum(cell.scored for cell in cells), sum(cell.required for cell in cells)
    if reasons:
        skipped[f"{required - scored} of {required} scores of {title}" if scored else title] = reasons
    return resolved, results


def _measure_digits(method: Attributor, part: str, n: int, seed: int, skipped: dict[str, str]) -> Card:
    """The scores of a part on digits, with the verdicts on the maps and what they need."""
    metrics, makes_maps = PARTS[part]
    count = min(n, FEW if makes_maps else n, len(load_digits().test))
    resolved, results = _run(method, part, DigitImages(count), count, seed, skipped, metrics=metrics)
    card, (model,) = card_of(results, VERIFIED, "digits"), results.models
    _, subject = TaskRunner(resolved).first_explainable(model, [resolved.manifest.images[0]["digest"]])
    verdicts = Counter(results.map_frame(model, VERIFIED)["verdict"].drop_nulls())
    return replace(
        card,
        assumptions=_assumptions(method, card.passes, method.jvp_use(subject.problem)),
        measurements=tuple(replace(one, clusters=()) for one in card.measurements),
        verdicts=dict(verdicts.most_common()),
    )


def _draw(
    plan: Plan, refs: Sequence[ImageRef], loaded: Mapping[str, LoadedModel]
) -> tuple[ImageSample, tuple[ImageEntry, ...]]:
    """Draw the examples of a card, each named by its id, and more of them as references where the method uses some."""
    (model,) = plan.models
    count = plan.n + (REFERENCES if model.methods[VERIFIED].uses_references else 0)
    networks, counts = {model.scene: [loaded[model.label]]}, {model.scene: count}
    made = sample_examples(plan.scenes, networks, refs, counts, plan.seed, (), lambda what: what["id"]).pictures
    return ImageSample(made[: plan.n], ()), made[plan.n :]


def _checked(method: Attributor) -> list[CheckResult]:
    """The results of the conformance checks, which include the theorems. One that failed only because the method
    refuses the network with a documented error does not apply."""
    try:
        results = check_attributor(method)
    except CheckError as error:
        results = error.results
    refusal = "InputError: model: "
    return [
        CheckResult(one.name, True, f"does not apply: {one.detail.removeprefix(refusal)}")
        if not one.passed and one.detail.startswith(refusal)
        else one
        for one in results
    ]


def _difull(method: Attributor, card: Card) -> CheckResult:
    """Check the theorem of disconnected cells: a path method attributes zero to cells that the network ignores."""
    if not method.is_complete:
        return CheckResult("difull", True, "does not apply: the method integrates no gradient along a path")
    (inside,) = (one.scores for one in card.measurements if one.metric == "mass_inside")
    known = [score for score in inside if math.isfinite(score)]
    if not known:
        return CheckResult("difull", True, "does not apply: no map has positive mass")
    text = f"share of the mass in the cell that is read: {min(known):.9g}, the least of {len(known)} maps"
    return CheckResult("difull", min(known) >= 1 - 1e-6, text)


def _assumptions(method: Attributor, passes: Mapping[str, float], jvp_use: JVPUse) -> tuple[str, ...]:
    """What a method requires and guarantees, derived from its class and its passes."""
    baseline, needs_jvp = method.record().get("baseline"), jvp_use == "required"
    is_function, needs_vjp = isinstance(method, CallableMethod), not needs_jvp and bool(passes.get("vjp"))
    lines = {
        "It is a function, called with one image at a time and with seeded random generators.": is_function,
        "It promises that the map adds up to the change of the score along its path.": method.is_complete,
        "It promises no sum of the map.": not method.is_complete,
        f"It compares the input with a baseline: {baseline}.": baseline is not None,
        "It reads reference images of the data.": method.uses_references,
        "The model must have forward-mode or second derivatives.": needs_jvp,
        "The model must be differentiable.": needs_vjp,
        "It asks the model for predictions alone; no derivatives are needed.": passes and not needs_jvp | needs_vjp,
    }
    return tuple(line for line, holds in lines.items() if holds)
