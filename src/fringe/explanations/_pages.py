"""The pages of a run: one of each explained image, and their index."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fringe.attribution import Attribution
from fringe.classifier import Target
from fringe.explanations._base import Explanation, Failure
from fringe.explanations._folder import ANIMATION, PAGE
from fringe.explanations._pictures import prediction_of, to_image
from fringe.models import Preprocessing
from fringe.page import Document, IndexEntry, animation, page_document, render_page, thumbnail

#: What the page lists of the record of an image.
_FACTS = ("sha256", "label", "score_kind", "seed", "device", "exif", "preprocessing")


def page_targets(target: int | str, logits: Tensor, count: int) -> Target:
    """The class to explain; of several classes, that class of each image and the most probable others (B, K)."""
    chosen = None if isinstance(target, str) else target  # the only word is "predicted"
    if count == 1 or (chosen is not None and not 0 <= chosen < logits.shape[1]):
        return target
    logits = torch.nan_to_num(logits)
    first = logits.argmax(1) if chosen is None else torch.full((len(logits),), chosen)
    others = logits.scatter(1, first[:, None], -torch.inf).topk(count - 1, 1).indices
    return torch.cat((first[:, None], others), 1)


def write_pages(folder: Path, result: Attribution, row: int, record: Mapping[str, Any]) -> None:
    """Write the page and the animation of ``row`` of an attribution with context, which ``record`` describes."""
    model = record["model"]
    details = {"source": _name(record["source"]), "model": _name(model["spec"]), "weights": model["digest"]}
    details |= {**{name: record[name] for name in _FACTS}, "images of the batch": record["cost"]["images"]}
    document = page_document(result, row, details={name: fact for name, fact in details.items() if fact is not None})
    (folder / PAGE).write_text(render_page(document), encoding="utf-8", newline="")
    (folder / ANIMATION).write_bytes(animation(Document.of(document)))


def _name(source: str) -> str:
    """A file without its folders, which are not for those who the page is sent to; other sources as they are."""
    return Path(source).name if Path(source).is_absolute() else source


def index_entry(result: Explanation | Failure, recipe: Preprocessing) -> IndexEntry:
    """A result in the page that links those of all; an input that failed is listed with the reason."""
    if isinstance(result, Failure):
        return IndexEntry(result.id or result.source, "", "", result.reason, "failed")
    record, tensors = result.record, result.load()
    picture = thumbnail(to_image(tensors["input"], recipe), tensors["values"].cpu().numpy())
    return IndexEntry(record["id"], result.folder.name, picture, prediction_of(record).text(), record["verdict"])
