"""From what a run has on record back to a plan that can make its maps again."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fringe._errors import FringeError, InputError
from fringe.attribution import METHODS, Attributor
from fringe.benchmark import Arm, Manifest, ModelSource, Plan
from fringe.benchmark.draw import Picture
from fringe.benchmark.keys import changes
from fringe.benchmark.manifest import Resolved, resolve
from fringe.data import find_inputs
from fringe.metrics import Sparseness


def reopen(manifest: Manifest, model: str) -> Resolved:
    """The plan of a run for one of its models, with the images that can still be found. Code that came with a model is
    not run: it was trusted by a person, once. Raises FringeError for a model or method that is not to be had, or is
    another one now."""
    about = manifest.plan
    methods = {name: _method(record) for name, record in about["methods"][model].items() if "control" not in record}
    plan = Plan(
        name=about["name"],
        data=tuple(about["data"]),
        arms=(Arm(model, ModelSource(about["models"][model], about["preprocessing"][model]), methods),),
        metrics={"sparseness": Sparseness()},  # a plan needs one; maps do not depend on it
        n=1,
        seed=about["seed"],
        target=about["target"],
        score=about["score"],
        exif=about["exif"],
        references=about["references"],
        controls=False,
    )
    found = resolve(plan)
    require_same(manifest, found.manifest, model)
    return replace(found, manifest=manifest, pictures=_pictures(manifest))


def require_same(recorded: Manifest, now: Manifest, model: str) -> None:
    """Raise InputError where a plan would make other maps of a model than those of the run."""
    for method, setting in now.settings[model].items():
        lines = changes(recorded.settings[model].get(method, {}), setting)
        if lines:
            raise InputError(f"{method} on {model} is not what the run used ({'; '.join(lines[:3])})")


def _method(record: Mapping[str, Any]) -> Attributor:
    name = record["method"]
    if name not in METHODS:
        raise InputError(f"method {name!r} is not one of this library's")
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in record.items()}
    del settings["method"]
    try:
        return METHODS[name](**settings)
    except TypeError as error:
        raise InputError(f"method {name!r} has other settings in this version ({error})") from error


def _pictures(manifest: Manifest) -> dict[str, Picture]:
    """The images whose source is still there; whether their content is, too, is for the reader to check."""
    found: dict[str, Picture] = {}
    for image in manifest.images:
        try:
            ref = next(iter(find_inputs([image["source"]])))
        except FringeError:
            continue
        found[image["digest"]] = Picture(replace(ref, id=image["id"]), image["digest"])
    return found
