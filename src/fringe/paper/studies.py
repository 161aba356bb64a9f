"""The studies of the paper from a specification: their plans, what is varied, and their figures."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fringe.attribution import Attributor, FRInGe
from fringe.errors import InputError
from fringe.experiments import PAPER_METHODS, ExperimentSpec, Plan, Resolved, Store, build_plan, read_results
from fringe.paper.drawing import draw_cap, draw_sweep, draw_trajectories
from fringe.paper.published import MODELS
from fringe.paper.reproduction import DEFAULT, SPECS
from fringe.tuning import SearchSpace, paper_space, space_of


def study_plan(
    spec: ExperimentSpec, name: str, *, n: int = 100, metrics: Sequence[str] = (), also: Sequence[str] = ()
) -> Plan:
    """Build the plan of a study of one method: the first one of each model, by default fringe.

    Args:
        spec: The experiment; options that the study does not use are named in a warning.
        name: Name of the plan.
        n: Default number of images.
        metrics: Metrics of the study, if it has its own.
        also: Further methods that the study uses.

    Returns:
        The plan with the methods of the study.
    """
    defaults: dict[str, Any] = {"name": name, "methods": "fringe", "n": n}
    if metrics:
        defaults |= {"metrics": list(metrics), "limits": {}}
        others = set(spec.metrics or ()) - set(metrics)
        spec = spec.model_copy(update={"set": {label: s for label, s in spec.set.items() if label not in others}})
        spec = without_scoring(spec, f"this study is scored by {', '.join(metrics)} on all images")
    plan = build_plan(spec.with_defaults(**defaults))
    arms = list(plan.arms)
    for i, arm in enumerate(arms):
        chosen, *rest = arm.methods
        unused = [label for label in rest if label not in also]
        if unused:
            message = f"{', '.join(unused)}: not used; this study is of {chosen}, the first of the methods"
            warnings.warn(message, stacklevel=2)
        arms[i] = replace(arm, methods={label: m for label, m in arm.methods.items() if label not in unused})
    return replace(plan, arms=tuple(arms))


def runtime_plan(spec: ExperimentSpec) -> Plan:
    """Build the plan whose maps are timed: by default fringe and ig on 16 images, without scores."""
    spec = without_scoring(spec, "run times have no scores")
    return build_plan(spec.with_defaults(name="runtime", methods="fringe,ig", n=16, controls=False))


def without_scoring(spec: ExperimentSpec, reason: str, *, controls: bool = True) -> ExperimentSpec:
    """Reset the options of scores; those that were given are named in a warning: a file may hold them for another
    study."""
    fields = ("metrics", "limits", *(("controls",) if controls and spec.controls else ()))
    given = [name for name in fields if name in spec.model_fields_set]
    if given:
        warnings.warn(f"{', '.join(given)}: not used; {reason}", stacklevel=3)
    return spec.without(*fields)


def reproduction_plan(spec: ExperimentSpec) -> Plan:
    """Build the plan that all studies of the paper are made from: its six networks, its eight methods, 1000 images.

    Raises:
        InputError: If no images are named, or fringe and ig are not among the methods.
    """
    spec = without_scoring(spec, "the studies have metrics of their own", controls=False)
    if not spec.data:
        raise InputError("none given", argument="data", hint="name the folder of ImageNet's validation images")
    plan = build_plan(spec.with_defaults(name="comparison", methods=PAPER_METHODS, model=SPECS, n=1000, limits={}))
    for arm in plan.arms:
        missing = [name for name in ("fringe", "ig") if name not in arm.methods]
        if missing or next(iter(arm.methods)) != "fringe":
            raise InputError("the studies need fringe, first, and ig among the methods", argument="methods")
        if arm.methods.get(DEFAULT, FRInGe()) != FRInGe():
            message = f"{DEFAULT} is the label of FRInGe() here; give this method another"
            raise InputError(message, argument="methods")
    return plan


def paper_models(names: Sequence[str]) -> dict[str, str]:
    """The specs of some of the paper's networks by label. Raises InputError for an unknown name."""
    return {name: SPECS[name] for name in require_names("models", names, MODELS)}


def require_names(argument: str, names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The ``names``, all of which must be ``known``. Raises InputError for the first one that is not."""
    for name in names:
        if name not in known:
            raise InputError(f"got {name!r}, expected one of {', '.join(known)}", argument=argument)
    return list(names)


def draw_study(
    name: str, base: Plan, resolved: Resolved, run: Path, images: int, out: Path, *, device: str
) -> Sequence[Path]:
    """Draw the figures of a study of a run.

    Args:
        name: Name of the study.
        base: The plan that the study was made from.
        resolved: The study.
        run: Run folder.
        images: Images whose paths are drawn.
        out: Folder of the figures.
        device: Device that computes the paths.

    Returns:
        The files that were written; none for a study without figures.
    """
    if name == "ablation":
        return draw_trajectories(resolved, images, out, device=device)
    if name == "cap":
        return draw_cap(resolved, images, out, device=device)
    return draw_sweep(base, read_results(Store(run, create=False), name), None, out) if name == "sweep" else []


def read_factors(method: Attributor, texts: Sequence[str]) -> Mapping[str, list[Any]] | None:
    """Read the values of a sweep.

    Args:
        method: The method that is varied.
        texts: ``KEY=VALUE,VALUE,...`` texts, such as ``tau=1e-3,1e-2``.

    Returns:
        Values by setting; None if there are no texts.

    Raises:
        InputError: For a text of another form, an unknown setting or a value that it does not take.
    """
    factors: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            message = f"got {text!r}, expected KEY=VALUE,VALUE,..., such as tau=1e-3,1e-2"
            raise InputError(message, argument="factor")
        field = "gamma_step" if key == "gamma" else key
        try:
            factors[key] = [getattr(method.with_text({field: v.strip()}), field) for v in values.split(",")]
        except InputError as error:
            raise InputError(str(error), argument="factor") from error
    return factors or None


def read_search_space(kind: type[Attributor], texts: Sequence[str], *, smoothing: bool) -> SearchSpace:
    """Read the settings of a search.

    Args:
        kind: The method that is searched.
        texts: ``KEY`` or ``KEY=LOW,HIGH`` texts; without any, those of the paper for FRInGe, or all of another method.
        smoothing: Whether FRInGe's two gammas are searched by default.

    Returns:
        The search space.

    Raises:
        InputError: For a text of another form, an unknown setting or an empty range.
    """
    if not texts:
        return paper_space(smoothing=smoothing) if issubclass(kind, FRInGe) else space_of(kind)
    names: list[str] = []
    ranges: dict[str, tuple[float, float]] = {}
    for text in texts:
        key, equals, bounds = (part.strip() for part in text.partition("="))
        names.append(key)
        if equals:
            try:
                low, high = (float(bound) for bound in bounds.split(","))
            except ValueError:
                raise InputError(f"got {text!r}, expected KEY or KEY=LOW,HIGH", argument="search") from None
            ranges[key] = (low, high)
    return space_of(kind, names, ranges)
