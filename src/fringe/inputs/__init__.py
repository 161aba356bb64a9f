"""Conversion of a caller's inputs (pictures, paths, arrays, tensors, texts, tables) to inputs of a model.

Each kind of input has a converter in ``CONVERTERS``.
"""

from fringe.inputs._boxes import PredictedBox, predicted_boxes, with_boxes
from fringe.inputs._converters import (
    Converter,
    ModelInputs,
    Request,
    image_inputs,
    image_scale,
    open_model,
    series_inputs,
    tabular_inputs,
    text_inputs,
    volume_inputs,
)
from fringe.inputs._sampling import (
    ImageEntry,
    ImageSample,
    choose_references,
    content_digest,
    content_of,
    default_model,
    find_images,
    given_images,
    in_order,
    open_image_entry,
    open_references,
    prepare,
    sample_images,
)

#: Converter of each kind of input.
CONVERTERS: dict[str, Converter] = {
    "image": image_inputs,
    "text": text_inputs,
    "tabular": tabular_inputs,
    "series": series_inputs,
    "volume": volume_inputs,
}

#: Further arguments of :func:`fringe.explain`, by the kind of input.
OPTIONS: dict[str, tuple[str, ...]] = {
    "image": ("boxes",),
    "text": ("tokenizer", "special", "generate", "candidates"),
    "tabular": ("features",),
    "series": ("features",),
    "volume": ("features",),
}
