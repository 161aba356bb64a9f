"""Images and maps of a run, as they are drawn: those that the run stored, or computed again from its record.

A run's folder may be a stranger's: nothing that it names is imported, fetched or called.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from numpy.typing import NDArray

from fringe._records import changes, describe_changes
from fringe.attribution import METHODS, Attributor, method_of_record
from fringe.bench.experiments import (
    Manifest,
    ModelSource,
    Plan,
    PlanModel,
    Resolved,
    Results,
    Store,
    StoredMap,
    Task,
    TaskRunner,
    resolve,
)
from fringe.data import EMBEDDED, find_inputs
from fringe.errors import FringeError, InputError
from fringe.inputs import ImageEntry, content_digest, content_of, prepare
from fringe.metrics import Sparseness
from fringe.models import Answers, Preprocessing

Array = NDArray[Any]


@dataclass(frozen=True)
class MapSource:
    """Where maps come from: the run, whose stored maps are used first; else they are computed.

    ``resolve`` returns, from a model's label, the plan that computes them; None for a model that only the run's own
    folder names, whose stored maps are drawn alone.
    """

    store: Store
    resolve: Callable[[str], Resolved | None]
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"


@dataclass(frozen=True)
class GridData:
    """What is drawn: ``images`` (H, W, C) in [0, 1] and ``maps`` (C, H, W) by method, both by digest, and the names of
    the classes if the model has them."""

    images: Mapping[str, Array]
    maps: Mapping[str, Mapping[str, Array]]
    class_names: tuple[str, ...] | None


def load_maps(results: Results, model: str, digests: Sequence[str], source: MapSource) -> GridData:
    """Load images, by digest, and maps. With a model, maps that the store lacks are computed and stored; an image that
    failed has none.

    Raises FringeError if an image is not where it was or has changed, if the named model is not the run's, or if no
    model is named and no map is stored.
    """
    manifest, resolved = results.manifest, source.resolve(model)
    if resolved is None:
        stated = {name: value for name, value in manifest.models[model]["preprocessing"].items() if name != "exif"}
        known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in stated.items()}
        try:
            entries, recipe, runner, class_names = find_images(manifest), Preprocessing(**known), None, None
        except (TypeError, ValueError) as error:
            raise InputError(f"the run does not say how images were prepared for {model} ({error})") from error
    else:
        require_same(manifest, resolved.manifest, model)
        # Maps that are computed here are stored under the name of those that were scored.
        first = Answers(source.store.logits(manifest.model_key(model)))
        resolved = replace(resolved, logits={model: first})
        loaded = resolved.plan.model(model).source.load(source.device)
        runner = TaskRunner(resolved, device=source.device, batch_size=source.batch_size)
        entries, recipe, class_names = resolved.pictures, loaded.preprocessing, loaded.class_names
    images = _images(manifest, entries, recipe, digests)
    methods = results.methods(model, controls=False)
    maps = dict[str, dict[str, StoredMap]]()
    for method in methods:
        setting = manifest.setting_key(model, method)
        maps[method] = source.store.load_maps(setting, digests)
        status = dict(results.map_frame(model, method).select("image", "status").iter_rows()) if runner else {}
        missing = (digest for digest in digests if digest not in maps[method])
        missing = tuple(digest for digest in missing if status.get(digest) not in ("failed", "unreadable"))
        if runner is not None and missing:  # those that are computed now are stored
            computed = runner.perform(Task(model, method, setting, (), (), missing)).maps
            with contextlib.suppress(FringeError):  # a run that cannot be written to can still be shown
                if computed:
                    source.store.commit_maps(setting, computed)
            maps[method] |= computed
    if runner is None and not any(maps.values()):
        raise InputError(
            "the run stored no maps, and a report loads no model that only the run's folder names",
            hint=f"run it again with save_maps=True, or name the model {model} yourself to have them computed",
        )
    shown: dict[str, dict[str, Array]] = {method: {} for method in maps}
    for method, stored in maps.items():
        for digest, one in stored.items():
            values = one.values.cpu().numpy()
            if values.ndim == 3 and values.shape[1:] == images[digest].shape[:2]:  # a file may hold any numbers
                shown[method][digest] = values
    return GridData(images, shown, class_names)


def load_experiment(manifest: Manifest, model: str, source: ModelSource) -> Resolved:
    """Rebuild the plan of a run for one of its models, with the images that are still where they were.

    ``source`` is the model as the caller names it; the one that the run's folder names is never loaded. Raises
    FringeError for a model or method that is not available, or has changed.
    """
    record = manifest.plan
    text = record["preprocessing"].get(model) if source.preprocessing is None else source.preprocessing
    output = manifest.models[model].get("output", "auto") if source.output == "auto" else source.output
    plan = Plan(
        name=record["name"],
        data=tuple(record["data"]),
        models=(
            PlanModel(model, replace(source, preprocessing=text, output=output), recorded_methods(manifest, model)),
        ),
        metrics={"sparseness": Sparseness()},  # a plan needs one; maps do not depend on it
        n=1,
        seed=record["seed"],
        target=record["target"],
        score=record["score"],
        exif=record["exif"],
        references=record["references"],
        controls=False,
        sample=record.get("sample", True),
    )
    resolved = resolve(plan)
    require_same(manifest, resolved.manifest, model)
    return replace(resolved, manifest=manifest, pictures=find_images(manifest))


def require_same(recorded: Manifest, now: Manifest, model: str) -> None:
    """Raise InputError if a plan would compute other maps of a model than those of the run."""
    for method, setting in now.settings[model].items():
        lines = changes(recorded.settings[model].get(method, {}), setting)
        if lines:
            raise InputError(f"{method} on {model} is not what the run used ({describe_changes(lines)})")


def recorded_methods(manifest: Manifest, model: str) -> dict[str, Attributor]:
    """Return the methods of a model from a run's record. Raise InputError for one that this library does not have."""
    methods = dict[str, Attributor]()
    for label, record in manifest.plan["methods"][model].items():
        if "control" in record:
            continue
        name = record["method"]
        if name not in METHODS:
            raise InputError(f"method {name!r} is not one of this library's")
        try:
            methods[label] = method_of_record(record)
        except InputError as error:
            raise InputError(f"method {name!r} has other settings in this version ({error})") from error
    return methods


def find_images(manifest: Manifest) -> dict[str, ImageEntry]:
    """Return the images whose source still exists; whether its content is the same is for the reader to check. A source
    is one file, or a scan of this package: a folder would be searched."""
    entries: dict[str, ImageEntry] = {}
    for image in manifest.images:
        source = str(image["source"])
        if not source.startswith(EMBEDDED) and not Path(source).is_file():
            continue
        try:
            ref = next(iter(find_inputs([source])))
        except FringeError:
            continue
        entries[image["digest"]] = ImageEntry(replace(ref, id=image["id"]), image["digest"])
    return entries


def _images(
    manifest: Manifest, entries: Mapping[str, ImageEntry], recipe: Preprocessing, digests: Sequence[str]
) -> dict[str, Array]:
    """Return the images as the model sees them."""
    images = dict[str, Array]()
    names = {image["digest"]: image["id"] for image in manifest.images}
    for digest in digests:
        if digest not in entries:
            raise InputError(f"image {names.get(digest, digest)!r} is no longer there")
        ref = entries[digest].ref
        if content_digest(ref) != content_of(digest):
            raise InputError(f"image {ref.source!r} has changed since the run")
        x = prepare(ref, recipe, manifest.plan["exif"])
        images[digest] = recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).numpy()
    return images
