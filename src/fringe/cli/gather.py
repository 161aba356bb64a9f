"""From what a person named to chunks of images that fit in memory."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from fringe.cli.options import Exif
from fringe.cli.record import Failed
from fringe.data import ImageError, ImageRef, find_inputs
from fringe.models import ModelError, Preprocessing

CHUNK_IMAGES = 64
CHUNK_NUMBERS = 10_000_000
"""Numbers of input in a chunk: with a path's snapshots about fourteen times as many are held, here 560 MB."""


@dataclass(frozen=True)
class Prepared:
    """An input ready for the model: ``x`` (C, H, W), normalised."""

    ref: ImageRef
    x: Tensor


def find(arguments: Sequence[str]) -> tuple[list[ImageRef], list[Failed]]:
    """The images behind the arguments, and what of the arguments leads to none."""
    failures: list[Failed] = []

    def note(source: str, error: ImageError) -> None:
        failures.append(Failed(None, source, None, str(error)))

    return list(find_inputs(arguments, on_error=note)), failures


def chunks(refs: Sequence[ImageRef], recipe: Preprocessing, exif: Exif) -> Iterator[list[Prepared | Failed]]:
    """Opened and prepared inputs in their order, a bounded amount at a time."""
    chunk: list[Prepared | Failed] = []
    held = 0
    for ref in refs:
        item = prepare(ref, recipe, exif)
        chunk.append(item)
        held += item.x.numel() if isinstance(item, Prepared) else 0
        if len(chunk) == CHUNK_IMAGES or held >= CHUNK_NUMBERS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def by_shape(items: Sequence[Prepared | Failed]) -> Iterator[list[Prepared]]:
    """The prepared inputs in groups of one shape."""
    groups: dict[tuple[int, ...], list[Prepared]] = {}
    for item in items:
        if isinstance(item, Prepared):
            groups.setdefault(tuple(item.x.shape), []).append(item)
    yield from groups.values()


def failed(ref: ImageRef, reason: str) -> Failed:
    """``ref`` did not work out, and why."""
    return Failed(ref.id, ref.source, ref.label, reason)


def prepare(ref: ImageRef, recipe: Preprocessing, exif: Exif) -> Prepared | Failed:
    """Open one input, or say why not."""
    try:
        image = ref.open(channels=3 if recipe.channels == 3 else 1, exif=exif.value).image
        return Prepared(ref, recipe.normalise(recipe.pixels(image)))
    except (ImageError, ModelError) as error:
        return failed(ref, str(error))
