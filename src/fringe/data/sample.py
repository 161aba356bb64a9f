"""What every source of images hands out."""

from dataclasses import dataclass

from PIL import Image


@dataclass(frozen=True)
class Sample:
    """A decoded image of mode RGB or L with its name.

    ``id`` is unique within a run and safe as a file name; ``label`` is a class index where the source
    states one; ``source`` is what a person would type to get this image again.
    """

    id: str
    image: Image.Image
    label: int | None
    source: str
