"""The pictures and the page of an explained image, and the contact sheet and the index of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import avg_pool2d

from fringe.attribution import Attribution, preset_label, tone_of
from fringe.explanations._base import Explanation, Failure
from fringe.explanations._folder import ANIMATION, PAGE
from fringe.explanations._spec import UNITS
from fringe.models import Preprocessing
from fringe.page import Box, Document, IndexEntry, animation, page_document, render_page, thumbnail
from fringe.plots import Prediction, SheetItem, class_title, heading, signed_map

#: Images of the contact sheet.
SHEET = 24
_THUMBNAIL = 512


def draw_pictures(folder: Path, result: Attribution, record: Mapping[str, Any]) -> None:
    """Write all pictures of the attribution, with context, of one image, which ``record`` describes."""
    result.plot("overlay").savefig(folder / "overlay.png")
    context, name = result.context, class_title(result.labels(0)[0])
    assert context is not None
    unit = "" if record["completeness_gap"] is None else UNITS[record["score_kind"]]  # no unit for a bare gradient
    title = heading(name, "evidence for and against", preset_label(result.settings))
    image, values = context.picture(context.inputs[0]), result.values[0].numpy()
    region = result.focus_weights(0)
    drawn: dict[str, Any] = {"image": image, "label": name, "region": region, "box": context.box_on_input(0)}
    signed_map(values, title=title, unit=unit, **drawn).savefig(folder / "signed.png")
    path = None if result.trajectory is None else result.trajectory[0]
    if path is not None:
        result.plot("path").savefig(folder / "trajectory.png")
        if len(path.steps.get("fisher_rao_step", ())):
            result.plot("profile").savefig(folder / "profile.png")


def _to_image(x: Tensor, recipe: Preprocessing) -> NDArray[Any]:
    """The model's input (C, H, W) as an image (H, W, C) in [0, 1]."""
    return recipe.denormalise(x).clamp(0, 1).permute(1, 2, 0).cpu().numpy()


def class_label(entry: Mapping[str, Any]) -> str:
    """The name of a recorded class in words, or its number where it has none."""
    return class_title(entry["name"]) if entry["name"] else f"class {entry['class']}"


def _prediction_of(record: Mapping[str, Any]) -> Prediction:
    """The most probable class of a recorded image, and the explained one if that is another."""
    best, target = record["prediction"], record["target"]
    explained = "" if best["class"] == target["class"] else class_label(target)
    contrast = class_label(record["contrast"]) if "contrast" in record else ""
    return Prediction(class_label(best), best["probability"], explained, contrast)


def contact_cell(tensors: Mapping[str, Tensor], record: Mapping[str, Any], recipe: Preprocessing) -> SheetItem:
    """An image of the contact sheet; very large ones are averaged over squares to save memory."""
    pixel = max(1, max(tensors["input"].shape[1:]) // _THUMBNAIL)
    small = {name: avg_pool2d(one.cpu(), pixel, ceil_mode=True) for name, one in tensors.items()}
    return SheetItem(
        image=_to_image(small["input"], recipe),
        values=small["values"].numpy(),
        name=record["id"],
        prediction=_prediction_of(record),
        verdict=record["verdict"],
        tone=tone_of(record["verdict"]),
        pixel=pixel,
        region=small["region"][0].numpy() if "region" in small else None,
        box=[side / pixel for side in record["box_on_input"]] if "box_on_input" in record else None,
    )


# -- pages ------------------------------------------------------------------------------------------------------------


#: What the page lists of the record of an image.
_FACTS = ("sha256", "label", "score_kind", "seed", "device", "exif", "preprocessing")


def write_pages(
    folder: Path, result: Attribution, row: int, record: Mapping[str, Any], boxes: Sequence[Box] = ()
) -> None:
    """Write the page and the animation of ``row`` of an attribution with context, which ``record`` describes; ``boxes``
    are those of a detector on this photograph."""
    model = record["model"]
    details = {"source": _name(record["source"]), "model": _name(model["spec"]), "weights": model["digest"]}
    details |= {**{name: record[name] for name in _FACTS}, "images of the batch": record["cost"]["images"]}
    shown = {name: fact for name, fact in details.items() if fact is not None}
    document = page_document(result, row, details=shown, boxes=boxes)
    (folder / PAGE).write_text(render_page(document), encoding="utf-8", newline="")
    (folder / ANIMATION).write_bytes(animation(Document.of(document)))


def _name(source: str) -> str:
    """A file without its folders, which are not for those who the page is sent to; other sources as they are."""
    return Path(source).name if Path(source).is_absolute() else source


def index_entry(result: Explanation | Failure, recipe: Preprocessing) -> IndexEntry:
    """A result in the page that links those of all; an input that failed is listed with the reason."""
    if isinstance(result, Failure):
        return IndexEntry(result.id or result.source, "", "", result.reason_to_share, "failed")
    record, tensors = result.record, result.load()
    values, box = tensors["values"].cpu().numpy(), record.get("box_on_input")
    picture = thumbnail(_to_image(tensors["input"], recipe), values, box)
    return IndexEntry(record["id"], result.folder.name, picture, _prediction_of(record).text(), record["verdict"])
