"""Maps and verdicts as labels of FiftyOne."""

from typing import Any

import fiftyone as fo  # pyright: ignore[reportMissingImports]

from fringe.attribution import Attribution
from fringe.errors import InputError


def fiftyone_labels(result: Attribution, name: str = "fringe") -> list[dict[str, Any]]:
    """Make the labels of FiftyOne for an attribution of images.

    A heatmap covers what the model saw: if the preprocessing cuts the picture, the heatmap is stretched over all of it.

    Args:
        result: An attribution of images with context, as :func:`fringe.explain` returns it.
        name: Name of the heatmap; those of the other labels begin with it.

    Returns:
        For each input the labels ``NAME``, a ``Heatmap`` of the first explained class, summed over channels, whose
        range has zero in its middle; and ``NAME_class`` and ``NAME_verdict``, which are ``Classification``. The call
        ``sample.update_fields(labels)`` adds them.

    Raises:
        InputError: If the attribution is not of images, or has no context.
    """
    context = result.context
    if context is None or context.kind != "image":
        hint = "use fringe.explain on images"
        raise InputError("the attribution holds no images", argument="result", hint=hint)
    labels: list[dict[str, Any]] = []
    for single, probabilities in zip(result, context.probabilities, strict=True):
        first = single if single.target.dim() == 1 else single.of_class(0)
        values = first.values[0].detach().float().cpu().sum(0).numpy()
        largest = max(0.0, float(abs(values).max())) or 1.0  # of NaN, the first is the larger one
        target = int(first.target[0])
        labels.append(
            {
                name: fo.Heatmap(map=values, range=[-largest, largest]),
                f"{name}_class": fo.Classification(
                    label=context.class_label(target), confidence=float(probabilities[target])
                ),
                f"{name}_verdict": fo.Classification(label=first.verdict[0]),
            }
        )
    return labels
