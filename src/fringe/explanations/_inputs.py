"""What a run explains, and with what: images, references and the configured method."""

import importlib
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fringe._files import sha256_of
from fringe.attribution import Attributor, FRInGe, get_method
from fringe.baselines import InputSpace
from fringe.data import ImageError, ImageRef, find_inputs
from fringe.errors import InputError
from fringe.experiments import content_digest
from fringe.explanations._spec import ExplainSpec, ImageOptions
from fringe.models import ModelError, Preprocessing

#: References that are used, spread evenly over the given ones.
MAX_REFERENCES = 64


@dataclass(frozen=True)
class Failure:
    """One input that could not be explained.

    Attributes:
        id: Id of the image; None if the input leads to no image.
        source: The input.
        label: Label in the file name, if any.
        reason: Why it failed.
    """

    id: str | None
    source: str
    label: int | None
    reason: str

    @staticmethod
    def of(ref: ImageRef, reason: object) -> "Failure":
        return Failure(ref.id, ref.source, ref.label, str(reason))

    def entry(self) -> dict[str, Any]:
        """The failure as an entry of ``summary.json``."""
        return {"id": self.id, "source": self.source, "label": self.label, "error": self.reason}


class References:
    """The input space of each shape: the valid range, and the reference images of that shape.

    Args:
        spec: Options of the run.
        recipe: Preprocessing of the model.
        device: Device of the references.
        default: Reference images where the options name none.

    Raises:
        InputError: If the given images lead to none that can be opened.
    """

    def __init__(
        self, spec: ImageOptions, recipe: Preprocessing, device: torch.device, default: Iterable[ImageRef] = ()
    ):
        self._source, self.ids, self.digests = spec.references or "inputs", list[str](), list[str]()
        self._bounds = [bound.to(device) for bound in recipe.bounds()]
        images: dict[tuple[int, ...], list[Tensor]] = {}
        chosen = self._choose(spec.references, default)
        for ref in chosen:
            try:
                x = open_image(ref, recipe, spec.exif)
                self.digests.append(content_digest(ref))
            except (ImageError, ModelError, OSError) as error:
                if spec.references is not None:
                    warnings.warn(f"reference left out: {error}", stacklevel=2)
                continue
            self.ids.append(ref.id)
            images.setdefault(tuple(x.shape), []).append(x)
        if spec.references is not None and not self.ids:
            message = f"none of the {len(chosen)} images behind {spec.references!r} can be opened"
            raise InputError(message, argument="references")
        self._images = {shape: torch.stack(group).to(device) for shape, group in images.items()}

    @staticmethod
    def _choose(text: str | None, default: Iterable[ImageRef]) -> list[ImageRef]:
        refs, missing = (list(default), []) if text is None else find_images([text])
        if text is None:
            return _spread(refs)
        if not refs:
            raise InputError(missing[0].reason, argument="references")
        for failure in missing:
            warnings.warn(f"references left out: {failure.reason}", stacklevel=2)
        return _spread(refs)

    def space(self, inputs: Tensor) -> InputSpace:
        low, high = self._bounds
        return InputSpace(low, high, self._images.get(tuple(inputs.shape[1:])))

    def record(self) -> dict[str, Any] | None:
        return {"source": self._source, "images": self.ids} if self.ids else None


def _spread(refs: Sequence[ImageRef]) -> list[ImageRef]:
    """At most ``MAX_REFERENCES`` of the images, spread evenly."""
    count = min(len(refs), MAX_REFERENCES)
    return [refs[i * len(refs) // count] for i in range(count)]


def find_images(inputs: Sequence[str]) -> tuple[list[ImageRef], list[Failure]]:
    """The images behind the inputs, and the inputs that lead to none."""
    failures: list[Failure] = []

    def note(source: str, error: ImageError) -> None:
        failures.append(Failure(None, source, None, str(error)))

    return list(find_inputs(inputs, on_error=note)), failures


def open_image(ref: ImageRef, recipe: Preprocessing, exif: Any) -> Tensor:
    image = ref.open(channels=3 if recipe.channels == 3 else 1, exif=exif).image
    return recipe.normalise(recipe.pixels(image))


def file_digest(origin: Path | int) -> str | None:
    """SHA-256 of an image file; None for an embedded image and, with a warning, for a file that cannot be read."""
    if not isinstance(origin, Path):
        return None
    try:
        return sha256_of(origin)
    except OSError as error:
        if origin.is_file():
            warnings.warn(f"the SHA-256 of {str(origin)!r} is not recorded ({error.strerror})", stacklevel=2)
        return None


def configured_method(spec: ExplainSpec, architecture: str | None = None) -> Attributor:
    """The method of a spec; a tuned preset file must be of the ``architecture``, if given.

    Raises:
        InputError: For an unknown name or setting, or a value that is not taken.
    """
    pairs = [tuple(part.strip() for part in text.partition("=")) for text in spec.set]
    wrong = next((text for text, (_, equals, _) in zip(spec.set, pairs, strict=True) if not equals), None)
    if wrong is not None:
        raise InputError(f"got {wrong!r}, expected KEY=VALUE, such as tau=1e-3", argument="set")
    method = _base_method(spec, architecture)
    try:
        return method.with_text({key: value for key, _, value in pairs})
    except InputError as error:
        raise InputError(str(error), argument="set") from error


def _base_method(spec: ExplainSpec, architecture: str | None) -> Attributor:
    name, _, named_preset = spec.method.partition(":")
    base, preset = get_method(name), spec.preset or named_preset or None
    if base.name == "geoig_knn":
        importlib.import_module("sklearn")  # a missing package is reported before anything is computed
    if preset is not None and preset.endswith(".json"):
        from fringe.tuning import read_preset

        base, preset = read_preset(Path(preset), architecture)[0], None
    if spec.variant is None:
        return base if preset is None else type(base).preset(preset)
    if not isinstance(base, FRInGe):
        raise InputError(f"belongs to the method fringe, not to {spec.method!r}", argument="variant")
    variant = cast(Any, spec.variant)
    if preset is None:
        return base.variant(variant)
    return FRInGe.preset(preset, variant)
