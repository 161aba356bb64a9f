"""The path as an animated picture, and small pictures of maps."""

import base64
import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from fringe._files import write_atomic
from fringe._text import percent, printable
from fringe.attribution import Attribution
from fringe.page._build import page_document
from fringe.page._document import Array, Document, decode_maps
from fringe.plots import blend

#: Pixels of the longer side of each of the two pictures of a frame.
SIDE = 256
#: The least pixels that each has for the words below it.
NARROWEST = 132
#: Milliseconds of a frame, and of the last one.
FRAME, LAST = 400, 2000
INK, MUTED, RULE, ACCENT = "#1f2328", "#59626e", "#e3e7ec", "#0b63a5"
_MARGIN, _LINE = 12, 22


def write_animation(result: Attribution, path: str | Path, row: int = 0) -> Path:
    """Write the path of an explanation as an animated WebP file: the input, the map so far and the entropy.

    Args:
        result: An attribution of images with context, as :func:`fringe.explain` returns it. Without a recorded path
            the picture has one frame.
        path: The file.
        row: Number of the input.

    Returns:
        The file.

    Raises:
        InputError: If the attribution has no such input, no context, or is not of images.
        OSError: If the file cannot be written.
    """
    target = Path(path)
    write_atomic(target, animation(Document.of(page_document(result, row))))
    return target


def animation(document: Document) -> bytes:
    """The frames of a document as an animated WebP file."""
    maps = decode_maps(document)[:, 0]
    strongest = _strength(maps[-1]) or 1.0
    start, pool = _picture(document.snapshots[0].image), document.maps.pool
    frames: list[Image.Image] = []
    for number, snapshot in enumerate(document.snapshots):
        share = min(_strength(maps[number]) / strongest, 1.0)
        overlay = _overlay(start, maps[number], share, (document.width / pool, document.height / pool))
        frames.append(_frame(document, number, [_picture(snapshot.image), overlay]))
    out = io.BytesIO()
    durations = [FRAME] * (len(frames) - 1) + [LAST]
    frames[0].save(
        out, "WEBP", save_all=True, append_images=frames[1:], duration=durations, loop=0, quality=80, method=4
    )
    return out.getvalue()


def _strength(values: Array) -> float:
    """How strong a map is: a high quantile, or its maximum where few pixels have a value."""
    size = np.abs(values)
    return float(np.quantile(size, 0.995)) or float(size.max())


def thumbnail(image: Array, values: Array, side: int = 240) -> str:
    """The strength of a map (C, H, W) over an image (H, W, 1 or 3), ``side`` pixels long, as WebP in base64."""
    shown = _resized(Image.fromarray(np.rint(blend(image, values) * 255).astype(np.uint8)), side)
    out = io.BytesIO()
    shown.save(out, "WEBP", quality=75, method=4)
    return base64.b64encode(out.getvalue()).decode("ascii")


def _frame(document: Document, number: int, pictures: list[Image.Image]) -> Image.Image:
    """Two pictures side by side, with the step above and the prediction and its entropy below."""
    snapshot, explained = document.snapshots[number], document.classes[0]
    width, height = max(pictures[0].width, NARROWEST), pictures[0].height
    total = 2 * width + 3 * _MARGIN
    frame = Image.new("RGB", (total, height + 2 * _MARGIN + 4 * _LINE), "white")
    draw, font, small = ImageDraw.Draw(frame), ImageFont.load_default(15), ImageFont.load_default(12)
    position = [label.index for label in document.predictions].index(explained.index)
    probability = snapshot.probabilities[position]
    chance = "" if probability is None else f"  {percent(probability)}"
    title = _fitted(draw, printable(explained.label), font, total - 2 * _MARGIN - draw.textlength(chance, font))
    draw.text((_MARGIN, _MARGIN // 2), title + chance, INK, font)
    for column, picture in enumerate(pictures):
        left = _MARGIN + column * (width + _MARGIN) + (width - picture.width) // 2
        frame.paste(picture, (left, _MARGIN // 2 + _LINE))
    below = height + _MARGIN + _LINE
    path = document.path
    draw.text((_MARGIN, below), "input" if path is None else f"step {snapshot.step} of {path.steps}", MUTED, small)
    draw.text((2 * _MARGIN + width, below), "evidence so far" if path else "evidence", MUTED, small)
    if path is not None and snapshot.entropy is not None:
        share = min(snapshot.entropy / path.largest_entropy, 1.0)
        bar = (_MARGIN, below + _LINE, total - _MARGIN, below + _LINE + 8)
        draw.rounded_rectangle(bar, 4, RULE)
        if share * (total - 2 * _MARGIN) >= 8:
            draw.rounded_rectangle((*bar[:2], _MARGIN + share * (total - 2 * _MARGIN), bar[3]), 4, ACCENT)
        text = f"entropy of the prediction: {share:.0%} of the largest"
        draw.text((_MARGIN, below + _LINE + 14), text, MUTED, small)
    return frame


def _fitted(
    draw: ImageDraw.ImageDraw, text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont, width: float
) -> str:
    """The text, cut with an ellipsis where it is longer than ``width`` pixels."""
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(f"{text}...", font) > width:
        text = text[:-1]
    return f"{text}..."


def _picture(data: str) -> Image.Image:
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return _resized(image.convert("RGB"), SIDE)


def _resized(image: Image.Image, side: int) -> Image.Image:
    """The image with ``side`` pixels along its longer side; small ones in squares of equal colour."""
    factor = side / max(image.size)
    size = max(1, round(image.width * factor)), max(1, round(image.height * factor))
    return image.resize(size, Image.Resampling.NEAREST if factor >= 2 else Image.Resampling.LANCZOS)


def _overlay(start: Image.Image, values: Array, share: float, size: tuple[float, float]) -> Image.Image:
    """The strength of a map over the input, faded to its ``share`` of the last map's strength. The image is ``size``
    squares of the map wide and high; the last ones may reach over its edge."""
    plane = Image.fromarray(np.abs(values).astype(np.float32))
    method = Image.Resampling.NEAREST if max(values.shape) <= 64 else Image.Resampling.BICUBIC
    strength = np.asarray(plane.resize(start.size, method, box=(0, 0, *size)))
    image = np.asarray(start, np.float64) / 255
    shown = blend(image, strength) * share + blend(image, np.zeros_like(strength)) * (1 - share)
    return Image.fromarray(np.rint(shown * 255).astype(np.uint8))
