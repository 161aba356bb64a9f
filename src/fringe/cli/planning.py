"""Plans from what was typed: names become configured methods and metrics, specs become models with labels."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from fringe._errors import InputError
from fringe.attribution import Attributor, FRInGe, preset_names
from fringe.benchmark import Arm, ModelSource, Plan
from fringe.benchmark.manifest import load
from fringe.classifier import Score
from fringe.cli.contest import by_owner, labelled
from fringe.cli.options import Exif
from fringe.cli.plan_options import PlanOptions
from fringe.cli.problems import remark
from fringe.cli.settings import assign, named_method
from fringe.metrics import METRICS, Metric, resolve_metric

EIGHT = {
    **dict.fromkeys(("fringe", "ig", "smoothgrad")),
    "guided_ig": "quick",
    "agi": "paper",
    **dict.fromkeys(("ig2", "ggig", "geoig_svi"), "quick"),
}
"""The methods that the paper compares, and the presets that explain an image with some hundreds of gradients."""
QUICK = tuple(f"{name}={name}:{preset}" if preset else name for name, preset in EIGHT.items())
PAPER = tuple("fringe=fringe:auto" if name == "fringe" else f"{name}={name}:paper" for name in EIGHT)
"""The same at the paper's settings, as far as they are known."""

_LABEL = re.compile(r"([\w.-]+)=(.+)")


@dataclass(frozen=True)
class Defaults:
    """What a command computes where nothing else was asked for."""

    name: str
    methods: tuple[str, ...] = QUICK
    metrics: tuple[str, ...] = tuple(METRICS)
    models: tuple[str, ...] = ("embedded:digits",)
    n: int = 100
    limits: tuple[str, ...] = ("max_sensitivity=8",)


def read_plan(options: PlanOptions, defaults: Defaults) -> Plan:
    """Raises FringeError on a name, label, key, value or model that cannot be meant."""
    metrics = {name: resolve_metric(name) for name in options.metrics or defaults.metrics}
    pairs = labelled(options.methods or defaults.methods)
    settings = by_owner(options.settings or (), [label for label, _ in pairs] + list(metrics))
    metrics = {label: assign(metric, settings.get(label, ())) for label, metric in metrics.items()}
    sources = read_models(options, defaults.models)
    arms = tuple(_arm(label, source, pairs, settings) for label, source in sources.items())
    tuned, exclude = read_tuned(options.preset, arms)
    return Plan(
        name=defaults.name,
        data=options.data or _default_data(arms),
        arms=tuned,
        metrics=metrics,
        n=options.n if options.n is not None else defaults.n,
        seed=options.seed or 0,
        target=read_target(options.target),
        score=read_choice("--score", options.score or "logit", get_args(Score)),
        exif=read_choice("--exif", options.exif or "ignore", [e.value for e in Exif]),
        references=options.references,
        controls=options.controls is not False,
        limits=read_limits(options.limits or defaults.limits, metrics, asked=options.limits is not None),
        exclude=exclude,
    )


def read_models(options: PlanOptions, default: Sequence[str]) -> dict[str, ModelSource]:
    """The models by label; one without a label goes by its architecture."""
    found: dict[str, ModelSource] = {}
    for text in options.models or default:
        match = _LABEL.fullmatch(text)
        spec = match[2] if match else text
        source = ModelSource(spec, options.preprocessing, options.trust_code)
        label = match[1] if match else load(Arm("", source, {})).architecture
        if label in found:
            raise InputError(f"--model: {label} given twice; tell them apart with LABEL=SPEC")
        found[label] = source
    return found


def read_target(text: str | None) -> str | int:
    """``predicted``, ``label``, or the number of a class."""
    if text in (None, "predicted", "label"):
        return text or "predicted"
    if not text.isascii() or not text.isdigit():
        raise InputError(f"--target: got {text!r}, expected 'predicted', 'label' or the number of a class")
    return int(text)


def read_choice(option: str, text: str, choices: Sequence[str]) -> Any:
    if text not in choices:
        raise InputError(f"{option}: got {text!r}, expected one of {', '.join(choices)}")
    return text


def read_limits(texts: Sequence[str], metrics: Mapping[str, Metric], *, asked: bool) -> dict[str, int]:
    """``METRIC=N`` texts; those of a default are passed over where the metric is not asked for."""
    limits: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise InputError(f"--limit: got {text!r}, expected METRIC=N, such as max_sensitivity=64")
        if name in metrics or asked:
            limits[name] = int(number)
    return limits


def read_tuned(path: str | None, arms: tuple[Arm, ...]) -> tuple[tuple[Arm, ...], frozenset[str]]:
    """The arms with their method ``fringe`` as a tuned preset sets it, and the images that it was tuned on."""
    if path is None:
        return arms, frozenset()
    from fringe.tuning import read_preset

    method, about = read_preset(Path(path))
    labels = [arm.label for arm in arms if load(arm).architecture == about["architecture"]]
    if not labels:
        raise InputError(
            f"--preset: {path!r} was tuned for {about['architecture']!r}; the models here are "
            f"{', '.join(load(arm).architecture for arm in arms)}"
        )
    if any(method.name not in arm.methods for arm in arms if arm.label in labels):
        raise InputError(f"--preset: {path!r} sets {method.name}, which is not among the methods")
    tuned = tuple(
        replace(arm, methods={**arm.methods, method.name: method}) if arm.label in labels else arm for arm in arms
    )
    return tuned, frozenset(about.get("images", ()))


def _arm(
    label: str, source: ModelSource, pairs: Sequence[tuple[str, str]], settings: Mapping[str, Sequence[str]]
) -> Arm:
    methods: dict[str, Attributor] = {}
    for name, text in pairs:
        method = _architecture_preset(label, source) if text == "fringe:auto" else named_method(text)
        methods[name] = assign(method, settings.get(name, ()))
    return Arm(label, source, methods)


def _architecture_preset(label: str, source: ModelSource) -> FRInGe:
    """The paper's setting for a model's architecture, or the default where it has none."""
    architecture = load(Arm(label, source, {})).architecture
    if architecture in preset_names():
        return FRInGe.preset(architecture)
    remark(f"{label}: the paper has no setting for {architecture}; the default is used")
    return FRInGe()


def _default_data(arms: Sequence[Arm]) -> tuple[str, ...]:
    if all(arm.model.spec == "embedded:digits" for arm in arms):
        return ("embedded:digits",)
    raise InputError("--data: none given; name a folder of images")
