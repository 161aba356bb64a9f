"""From what a run has on record back to what its maps are drawn with. A run's folder may be a stranger's: nothing that
it names is imported, fetched or called."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fringe.attribution import METHODS, Attributor
from fringe.data import SOURCE, find_inputs
from fringe.errors import FringeError, InputError
from fringe.experiments import Arm, ImageEntry, Manifest, ModelSource, Plan, Resolved, changes, resolve
from fringe.metrics import Sparseness
from fringe.models import Preprocessing


def reopen(manifest: Manifest, model: str, source: ModelSource) -> Resolved:
    """The plan of a run for one of its models, with the images that are still where they were. The model is the one
    that the caller names by ``source``, never the one that the run's folder names. Raises FringeError for a model or
    method that is not to be had, or is another one now."""
    about = manifest.plan
    text = about["preprocessing"].get(model) if source.preprocessing is None else source.preprocessing
    plan = Plan(
        name=about["name"],
        data=tuple(about["data"]),
        arms=(Arm(model, replace(source, preprocessing=text), recorded_methods(manifest, model)),),
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
    return replace(found, manifest=manifest, pictures=pictures(manifest))


def require_same(recorded: Manifest, now: Manifest, model: str) -> None:
    """Raise InputError where a plan would make other maps of a model than those of the run."""
    for method, setting in now.settings[model].items():
        lines = changes(recorded.settings[model].get(method, {}), setting)
        if lines:
            raise InputError(f"{method} on {model} is not what the run used ({'; '.join(lines[:3])})")


def recorded_methods(manifest: Manifest, model: str) -> dict[str, Attributor]:
    """The methods of a model as a run has them on record. Raises InputError for one that is not to be had."""
    records = manifest.plan["methods"][model].items()
    return {name: _method(record) for name, record in records if "control" not in record}


def recorded_preprocessing(manifest: Manifest, model: str) -> Preprocessing:
    """How a run prepared images for a model. Raises InputError where its record does not say so."""
    record = {name: value for name, value in manifest.models[model]["preprocessing"].items() if name != "exif"}
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in record.items()}
    try:
        return Preprocessing(**known)
    except (TypeError, ValueError) as error:
        raise InputError(f"the run does not say how images were prepared for {model} ({error})") from error


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


def pictures(manifest: Manifest) -> dict[str, ImageEntry]:
    """The images whose source is still there; whether their content is, too, is for the reader to check. A source is
    one file, or a scan of this package: a folder would be searched."""
    found: dict[str, ImageEntry] = {}
    for image in manifest.images:
        source = str(image["source"])
        if not source.startswith(f"{SOURCE}:") and not Path(source).is_file():
            continue
        try:
            ref = next(iter(find_inputs([source])))
        except FringeError:
            continue
        found[image["digest"]] = ImageEntry(replace(ref, id=image["id"]), image["digest"])
    return found
