"""Documents as HTML, the index of a run, and the path as an animated picture."""

from __future__ import annotations

import base64
import io
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from markupsafe import Markup
from PIL import Image, ImageDraw, ImageFont

from fringe._files.disk import write_atomic
from fringe._strings.formats import number, percent, printable, printable_json
from fringe._strings.html import html_page
from fringe._strings.tables import Cell, Table
from fringe.attribution import Attribution, Tone, tone_of
from fringe.page._document import SMALL, Array, Document, box_of, decode_maps, page_document
from fringe.page._texts import is_of_texts, text_page
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
    for step, snapshot in enumerate(document.snapshots):
        share = min(_strength(maps[step]) / strongest, 1.0)
        overlay = _overlay(start, maps[step], share, (document.width / pool, document.height / pool))
        frames.append(_frame(document, step, [_outlined(document, one) for one in (_picture(snapshot.image), overlay)]))
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


def thumbnail(image: Array, values: Array, box: Sequence[float] | None = None) -> str:
    """The strength of a map (C, H, W) over an image (H, W, 1 or 3), 240 pixels long, as WebP in base64; with a ``box``,
    left, top, right and bottom in pixels of the image."""
    shown = _resized(Image.fromarray(np.rint(blend(image, values) * 255).astype(np.uint8)), 240)
    if box is not None:
        scale = shown.width / image.shape[1]
        sides = [side * scale for side in box]
        for colour, width in (("white", 4), (INK, 2)):
            ImageDraw.Draw(shown).rectangle(sides, outline=colour, width=width)
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
    text = text[: int(width) + 1]  # no letter is narrower than a pixel
    if draw.textlength(text, font) <= width:
        return text
    fits = bisect_right(range(len(text)), width, key=lambda n: draw.textlength(f"{text[:n]}...", font)) - 1
    return f"{text[: max(fits, 0)]}..."


def _picture(data: str) -> Image.Image:
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        return _resized(image.convert("RGB"), SIDE)


def _outlined(document: Document, image: Image.Image) -> Image.Image:
    """The image with the outline of the focus: dark, with a light border."""
    draw, scale = ImageDraw.Draw(image), image.width / document.width
    for line in document.region.split("Z")[:-1]:
        points = [tuple(scale * float(number) for number in point.split()) for point in line[1:].split("L")]
        for colour, width in (("white", 5), (INK, 2)):
            draw.line(points, colour, width, "curve")
    return image


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


#: What a script inside HTML must not contain: the end of the script, a comment, and two ends of lines of JavaScript.
_JSON_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class IndexEntry:
    """An explained image in the index of a run: the name of its ``folder``, its picture as WebP in base64, what the
    model predicts, and the verdict. Without a folder there is no page: ``prediction`` then says why."""

    name: str
    folder: str
    thumbnail: str
    prediction: str
    verdict: str

    @property
    def link(self) -> str:
        return f"{quote(self.folder)}/explanation.html" if self.folder else ""

    @property
    def tone(self) -> Tone:
        return tone_of(self.verdict)


def render_page(document: Mapping[str, Any], *others: Mapping[str, Any]) -> str:
    """Render an explanation as one HTML file, which loads nothing.

    Args:
        document: JSON data, as :func:`page_document` returns them.
        others: The same for other boxes of a photograph, which a click in the page leads to.

    Returns:
        The page.

    Raises:
        InputError: If a document does not follow the schema.
    """
    return html_page("page", script="page.js", parts=[_part(one) for one in (document, *others)])


def _part(document: Mapping[str, Any]) -> dict[str, Any]:
    checked = Document.of(document)
    text = json.dumps(checked.json_data(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    text = _escaped(printable_json(text))
    images = checked.details.get("images of the batch")
    images = images if isinstance(images, int) and images > 1 else 1
    passes = {name: f"{n} ({number(n / images)} per image)" if images > 1 else n for name, n in checked.passes.items()}
    return {
        "page": checked,
        "tables": list(_tables(checked)),
        "facts": [
            *((name, _fact(value)) for name, value in checked.details.items()),
            *_facts(passes, checked.settings, checked.versions),
        ],
        "smooth": max(checked.width, checked.height) > SMALL,
        "data": Markup(text),
    }


def _escaped(text: str) -> str:
    """JSON text as a script in a page may hold it."""
    for character, escape in _JSON_ESCAPES.items():
        text = text.replace(character, escape)
    return text


def _facts(
    passes: Mapping[str, Any], settings: Mapping[str, Any], versions: Mapping[str, str]
) -> list[tuple[str, str]]:
    """What a page lists of the method."""
    facts = {**{f"passes: {name}": count for name, count in passes.items()}, **settings}
    facts |= {f"{name} version": version for name, version in versions.items()}
    return [(name, _fact(value)) for name, value in facts.items()]


def _tables(page: Document) -> Iterator[Table]:
    """The numbers of the explained classes, and those along the path."""
    classes = [
        (
            *(one.label, Cell(one.probability, share=True), one.score, one.endpoint_score),
            *(Cell(one.residual, share=True), one.verdict.replace("_", " ")),
        )
        for one in page.classes
    ]
    kind = str(page.details.get("score_kind") or "").replace("_", " ")  # of the command line and fringe.explain
    scores = (f"{name}{f' ({kind})' * bool(kind)}" for name in ("score of the input", "score at the end"))
    names = ("class", "probability", *scores, "missed share", "verdict")
    yield Table(names, classes, "Explained classes")
    if page.path is not None:
        along = [
            (str(point.step), point.entropy, *(Cell(share, share=True) for share in point.probabilities))
            for point in page.snapshots
        ]
        title = f"Prediction along the path (entropy in nats, at most {number(page.path.largest_entropy)})"
        yield Table(("step", "entropy", *(label.label for label in page.predictions)), along, title)


def write_page(result: Attribution, path: str | Path, row: int = 0) -> Path:
    """Write the page of an explanation: one HTML file that works without a network. Of a detector, it holds all boxes
    of the photograph; of a language model, all tokens of the answer to the prompt; a click chooses one.

    Args:
        result: An attribution of images or texts with context, as :func:`fringe.explain` returns it.
        path: The file.
        row: Number of the input.

    Returns:
        The file.

    Raises:
        InputError: If the attribution has no such input, no context, or is neither of images nor of texts.
        OSError: If the file cannot be written.
    """
    target = Path(path)
    write_atomic(target, page_text(result, row).encode())
    return target


def page_text(result: Attribution, row: int = 0) -> str:
    """Return the page that :func:`write_page` writes."""
    if is_of_texts(result):
        return text_page(result, row, _escaped, _facts)
    context, rows = result.context, [row]
    if context is not None and context.boxes is not None and 0 <= row < len(context.inputs):
        same = [k for k, x in enumerate(context.inputs) if bool((x == context.inputs[row]).all())]
        rows = sorted(same, key=lambda k: k != row)  # the one that is asked for comes first
    links = {k: f"#box-{n}" for n, k in enumerate(rows, 1)}
    documents = list[dict[str, Any]]()
    for k in rows:
        boxes = (
            [box_of(result, other, links[other], here=other == k) for other in sorted(rows)] if len(rows) > 1 else []
        )
        documents.append(page_document(result, k, boxes=[box for box in boxes if box is not None]))
    return render_page(*documents)


def render_index(title: str, entries: Sequence[IndexEntry]) -> str:
    """Return the index of a run as one HTML file: pictures, predictions and verdicts, with links to the pages."""
    verdicts = list(dict.fromkeys(entry.verdict for entry in entries))
    counts = [(verdict, sum(entry.verdict == verdict for entry in entries)) for verdict in verdicts]
    return html_page("index", script="index.js", title=title, entries=entries, counts=counts)


def _fact(value: Any) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:.6g}"  # a setting, as it is typed
    return json.dumps(value, ensure_ascii=False)
