"""Plans from what was typed: names become configured methods and metrics, specs become models with labels."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from fringe.attribution import FRInGe
from fringe.classifier import Score
from fringe.cli.contest import by_owner, labelled
from fringe.cli.options import Exif, choose_model
from fringe.cli.plan_models import AUTO, default_data, methods_of, read_models, read_specs, read_tuned
from fringe.cli.plan_options import PlanOptions
from fringe.cli.problems import remark
from fringe.cli.settings import assign, named_method
from fringe.data import ImageError, find_inputs
from fringe.errors import InputError
from fringe.experiments import Arm, Plan
from fringe.metrics import METRICS, Metric, get_metric

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


@dataclass(frozen=True)
class Defaults:
    """What a command computes where nothing else was asked for; ``models`` None is the embedded one, for the embedded
    images alone."""

    name: str
    methods: tuple[str, ...] = QUICK
    metrics: tuple[str, ...] = tuple(METRICS)
    models: tuple[str, ...] | None = None
    n: int = 100
    limits: tuple[str, ...] = ("max_sensitivity=8",)


def read_plan(options: PlanOptions, defaults: Defaults) -> Plan:
    """Raises FringeError on a name, label, key, value or model that cannot be meant; on what costs nothing to read
    first, as models may have to be fetched."""
    models = options.models if options.models is not None else defaults.models
    models = (choose_model(None, options.data or ()),) if models is None else models
    metrics = {name: get_metric(name) for name in _given("--metrics", options.metrics, defaults.metrics)}
    pairs = labelled(_given("--methods", options.methods, defaults.methods))
    settings = by_owner(options.settings or (), [label for label, _ in pairs] + list(metrics))
    metrics = {label: assign(metric, settings.get(label, ())) for label, metric in metrics.items()}
    for label, text in pairs:
        assign(FRInGe() if text == AUTO else named_method(text), settings.get(label, ()))
    target = read_target(options.target)
    score = read_choice("--score", options.score or "logit", get_args(Score))
    exif = read_choice("--exif", options.exif or "ignore", [e.value for e in Exif])
    limits = read_limits(options.limits or defaults.limits, metrics, asked=options.limits is not None)
    _require_images("--references", options.references)
    tuned = None if options.preset is None else read_tuned(options.preset)
    specs = read_specs(_given("--model", models, models))
    data = _given("--data", options.data, ()) or default_data([spec for _, spec in specs])
    sources = read_models(specs, options)
    arms = tuple(Arm(label, source, methods_of(label, source, pairs)) for label, source in sources.items())
    arms = arms if tuned is None else tuned.over(arms)
    arms = tuple(_set(arm, settings) for arm in arms)
    return Plan(
        name=defaults.name,
        data=data,
        arms=arms,
        metrics=metrics,
        n=options.n if options.n is not None else defaults.n,
        seed=options.seed or 0,
        target=target,
        score=score,
        exif=exif,
        references=options.references,
        controls=options.controls is not False,
        limits=limits,
        exclude=frozenset[str]() if tuned is None else tuned.images,
    )


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
        name, _, number = (part.strip() for part in text.partition("="))
        if not number.isascii() or not number.isdigit() or int(number) < 1:
            raise InputError(f"--limit: got {text!r}, expected METRIC=N, such as max_sensitivity=64")
        if name in metrics:
            limits[name] = int(number)
        elif asked:
            near = difflib.get_close_matches(name, metrics, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise InputError(f"--limit: {name!r} is no metric of this run{hint} Its metrics: {', '.join(metrics)}")
    return limits


def overlooked(why: str, **given: Any) -> None:
    """Say which options were given that a command has no use for: a file may hold them for another one."""
    flags = [f"--{name}" for name, value in given.items() if value is not None]
    if flags:
        remark(f"{', '.join(flags)}: not used; {why}")


def _given(option: str, names: tuple[str, ...] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """What was asked for, or the default. Raises InputError where nothing was asked for in so many words."""
    if names is None:
        return default
    if not names:
        raise InputError(f"{option}: none given; name at least one, or leave it out")
    return names


def _require_images(option: str, text: str | None) -> None:
    if text is not None:
        try:
            next(find_inputs([text]))
        except ImageError as error:
            raise InputError(f"{option}: {error}") from error


def _set(arm: Arm, settings: Mapping[str, Sequence[str]]) -> Arm:
    """The arm with what was set by hand: the last word, also over a preset."""
    return replace(arm, methods={name: assign(m, settings.get(name, ())) for name, m in arm.methods.items()})
