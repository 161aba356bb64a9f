"""Maps of a few images side by side: where the reference method is furthest ahead, the usual ones, and its failures."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from numpy.typing import NDArray

from fringe._errors import FringeError, InputError
from fringe.benchmark import Results, Store
from fringe.benchmark.draw import content_digest, prepare
from fringe.benchmark.logits import FirstLogits
from fringe.benchmark.manifest import Resolved, load
from fringe.benchmark.units import Unit
from fringe.benchmark.work import Worker
from fringe.report.account import by_image
from fringe.report.replan import require_same

Array = NDArray[Any]


@dataclass(frozen=True)
class Bench:
    """Where maps come from: the ``store`` of the run, and where it lacks them, the plan that ``resolve`` gives
    for a model, computed on ``device``."""

    store: Store
    resolve: Callable[[str], Resolved] | None
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
    """Images and maps of the ``picks`` (digests). Maps that the store lacks are made again and kept there; an image
    that failed has none. Raises FringeError where the model, a method or an image is not at hand or is another one
    now."""
    if bench.resolve is None:
        raise InputError("the images and the model are not at hand")
    resolved = bench.resolve(model)
    require_same(results.manifest, resolved.manifest, model)
    # the maps that are made here are kept under the name of those that were scored
    first = FirstLogits(bench.store.logits(results.manifest.model_key(model)))
    resolved = replace(resolved, logits={model: first})
    images, class_names = _images(resolved, model, picks, bench.device)
    worker = Worker(resolved, device=bench.device, batch_size=bench.batch_size)
    maps = {
        method: _maps(results, model, method, picks, bench.store, worker)
        for method in results.methods(model, controls=False)
    }
    return Shown(images, maps, class_names)


def _images(
    resolved: Resolved, model: str, picks: Sequence[str], device: str
) -> tuple[dict[str, Array], tuple[str, ...] | None]:
    """The images as the model sees them, and the names of its classes."""
    loaded = load(next(arm for arm in resolved.plan.arms if arm.label == model), device)
    recipe, images = loaded.preprocessing, dict[str, Array]()
    names = {image["digest"]: image["id"] for image in resolved.manifest.images}
    for pick in picks:
        if pick not in resolved.pictures:
            raise InputError(f"image {names.get(pick, pick)!r} is not where it was")
        ref = resolved.pictures[pick].ref
        if content_digest(ref) != pick:
            raise InputError(f"image {ref.source!r} is another one now")
        x = prepare(ref, recipe, resolved.plan.exif)
        images[pick] = recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).numpy()
    return images, loaded.class_names


def _maps(
    results: Results, model: str, method: str, picks: Sequence[str], store: Store, worker: Worker
) -> dict[str, Array]:
    """The maps of one method; those that were made now are kept."""
    setting = results.manifest.setting_key(model, method)
    there = by_image(results, model, method)
    broken = {pick for pick in picks if pick in there and there[pick].status in ("failed", "unreadable")}
    found = store.find_maps(setting, picks)
    lacking = tuple(pick for pick in picks if pick not in found and pick not in broken)
    if lacking:
        made = worker.perform(Unit(model, method, setting, (), (), lacking)).maps
        with contextlib.suppress(FringeError):  # a run that cannot be written to can still be shown
            if made:
                store.commit_maps(setting, made)
        found |= made
    return {pick: kept.values.cpu().numpy() for pick, kept in found.items()}
