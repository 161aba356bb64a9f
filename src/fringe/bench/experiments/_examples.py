"""Examples that scenes make: which, and how each is made again."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from fringe.bench.scenes import Example, Scene
from fringe.data import ImageError, ImageRef, find_inputs
from fringe.errors import TransientError
from fringe.inputs import ImageEntry, ImageSample, content_digest, open_image_entry
from fringe.models import LoadedModel


@dataclass(frozen=True, kw_only=True)
class ExampleEntry(ImageEntry):
    """An ``example`` that a ``scene`` makes, and the digests of the images it is made of (``parts``)."""

    scene: Scene
    example: Example
    parts: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """As plain data, with the scene, the cluster and the class."""
        example = self.example
        return {**super().record(), "scene": self.label, "cluster": example.cluster, "target": example.target}


def sample_examples(
    scenes: Mapping[str, Scene],
    networks: Mapping[str, Sequence[LoadedModel]],
    images: Sequence[ImageRef],
    counts: Mapping[str, int],
    seed: int,
    exclude: Iterable[str],
    digest: Callable[[Any], str],
) -> ImageSample:
    """The examples of scenes by label, made of ``images`` in their order, each with all of its ``networks`` and its
    number of examples in ``counts``; none is made of an image whose digest is in ``exclude``.

    The name of an example is the ``digest`` of the settings of its scene, the example, and the content of
    its images. Raises InputError if a scene has fewer examples.
    """
    excluded, contents, entries = set(exclude), dict[str, str](), list[ExampleEntry]()
    if excluded:
        images = [ref for ref in images if content_digest(ref) not in excluded]
    for label, scene in scenes.items():
        for example in scene.examples(networks[label], images, counts[label], seed):
            for source in example.images:
                if source not in contents:
                    contents[source] = content_digest(next(find_inputs([source])))
            parts = tuple(contents[source] for source in example.images)
            what = {**asdict(example), "images": parts, "settings": scene.record()}  # not where the images lie
            ref = ImageRef(f"{label}-{example.id}", f"scene {label}: {example.id}", None, -1)
            entries.append(ExampleEntry(ref, digest(what), label, scene=scene, example=example, parts=parts))
    return ImageSample(tuple(entries), ())


def open_entry(
    picture: ImageEntry, model: LoadedModel, exif: Literal["transpose", "ignore"]
) -> tuple[Tensor, Tensor | None]:
    """The model's input (C, H, W), and for an example of a scene the pixels (H, W) that the model uses. Raises as
    :func:`open_image_entry` does."""
    if not isinstance(picture, ExampleEntry):
        return open_image_entry(picture, model.preprocessing, exif), None
    try:
        x, truth = picture.scene.make(picture.example, model)
        now = tuple(content_digest(next(find_inputs([source]))) for source in picture.example.images)
    except (ImageError, OSError) as error:
        raise TransientError(f"{picture.ref.source}: {error}") from error
    if now != picture.parts:
        raise TransientError(f"{picture.ref.source}: an image changed since the run began; run it again")
    return x, truth
