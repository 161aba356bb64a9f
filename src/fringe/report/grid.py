"""Maps of a few images side by side: where the reference method is furthest ahead, the usual ones, and its failures."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from numpy.typing import NDArray

from fringe.errors import FringeError, InputError
from fringe.experiments import (
    FirstLogits,
    ImageEntry,
    Manifest,
    Resolved,
    Results,
    Store,
    StoredMap,
    Task,
    TaskRunner,
    content_digest,
    load,
    prepare,
)
from fringe.models import Preprocessing
from fringe.report.account import by_image
from fringe.report.replan import pictures, recorded_preprocessing, require_same

Array = NDArray[Any]


@dataclass(frozen=True)
class Bench:
    """Where maps come from: the ``store`` of the run, and where it lacks them, the plan that ``resolve`` gives for a
    model, computed on ``device``. ``resolve`` gives None for a model that nobody named but the run's own folder: then
    there are the kept maps alone."""

    store: Store
    resolve: Callable[[str], Resolved | None]
    device: str = "cpu"
    batch_size: int | Literal["auto"] = "auto"


@dataclass(frozen=True)
class Shown:
    """What is drawn: ``images`` (H, W, C) in [0, 1] and ``maps`` (C, H, W) by method, both by digest, and the names of
    the classes where the model has them."""

    images: Mapping[str, Array]
    maps: Mapping[str, Mapping[str, Array]]
    class_names: tuple[str, ...] | None


def maps_for(results: Results, model: str, picks: Sequence[str], bench: Bench) -> Shown:
    """Images and maps of the ``picks`` (digests). With a model, maps that the store lacks are made again and kept
    there; an image that failed has none. Raises FringeError where an image is not at hand or is another one now, where
    a model that was named is not the run's, and where none was named and no map was kept."""
    resolved = bench.resolve(model)
    methods = results.methods(model, controls=False)
    if resolved is None:
        images = _images(
            results.manifest, pictures(results.manifest), recorded_preprocessing(results.manifest, model), picks
        )
        maps = {method: _kept(results, model, method, picks, bench.store) for method in methods}
        if not any(maps.values()):
            raise InputError(
                "the run kept none (--save-maps), and a report loads no model by the word of a run's folder; name the "
                f"model yourself to have them made again: --model {model}=SPEC"
            )
        return Shown(images, {method: _fitting(found, images) for method, found in maps.items()}, None)
    require_same(results.manifest, resolved.manifest, model)
    # the maps that are made here are kept under the name of those that were scored
    first = FirstLogits(bench.store.logits(results.manifest.model_key(model)))
    resolved = replace(resolved, logits={model: first})
    loaded = load(next(arm for arm in resolved.plan.arms if arm.label == model), bench.device)
    images = _images(resolved.manifest, resolved.pictures, loaded.preprocessing, picks)
    worker = TaskRunner(resolved, device=bench.device, batch_size=bench.batch_size)
    maps = {method: _maps(results, model, method, picks, bench.store, worker) for method in methods}
    return Shown(images, {method: _fitting(found, images) for method, found in maps.items()}, loaded.class_names)


def _images(
    manifest: Manifest, found: Mapping[str, ImageEntry], recipe: Preprocessing, picks: Sequence[str]
) -> dict[str, Array]:
    """The images as the model sees them."""
    images = dict[str, Array]()
    names = {image["digest"]: image["id"] for image in manifest.images}
    for pick in picks:
        if pick not in found:
            raise InputError(f"image {names.get(pick, pick)!r} is not where it was")
        ref = found[pick].ref
        if content_digest(ref) != pick:
            raise InputError(f"image {ref.source!r} is another one now")
        x = prepare(ref, recipe, manifest.plan["exif"])
        images[pick] = recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).numpy()
    return images


def _kept(results: Results, model: str, method: str, picks: Sequence[str], store: Store) -> dict[str, StoredMap]:
    return store.load_maps(results.manifest.setting_key(model, method), picks)


def _maps(
    results: Results, model: str, method: str, picks: Sequence[str], store: Store, worker: TaskRunner
) -> dict[str, StoredMap]:
    """The maps of one method; those that were made now are kept."""
    setting = results.manifest.setting_key(model, method)
    there = by_image(results, model, method)
    broken = {pick for pick in picks if pick in there and there[pick].status in ("failed", "unreadable")}
    found = _kept(results, model, method, picks, store)
    lacking = tuple(pick for pick in picks if pick not in found and pick not in broken)
    if lacking:
        made = worker.perform(Task(model, method, setting, (), (), lacking)).maps
        with contextlib.suppress(FringeError):  # a run that cannot be written to can still be shown
            if made:
                store.commit_maps(setting, made)
        found |= made
    return found


def _fitting(found: Mapping[str, StoredMap], images: Mapping[str, Array]) -> dict[str, Array]:
    """The maps (C, H, W) that have their image's size; a file may hold any numbers."""
    shaped = {pick: kept.values.cpu().numpy() for pick, kept in found.items()}
    return {
        pick: values
        for pick, values in shaped.items()
        if values.ndim == 3 and values.shape[1:] == images[pick].shape[:2]
    }
