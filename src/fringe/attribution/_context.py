"""What the maps of an attribution belong to: the inputs as a person reads them, and what the model says of them."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fringe.errors import InputError

InputKind = Literal["image", "text", "tabular", "series", "volume"]


@dataclass(frozen=True)
class Context:
    """The explained inputs and the model's predictions: pictures and pages need them in addition to the maps.

    Attributes:
        kind: What an input is: ``image``, ``text``, ``tabular``, ``series`` or ``volume``.
        inputs: Model inputs (B, *S), on the CPU.
        probabilities: Probabilities (B, C) of the inputs, on the CPU.
        ids: Names (B) of the inputs.
        model: Name of the model.
        mean: Mean of each channel; () if the inputs are no images.
        std: Standard deviation of each channel: ``inputs * std + mean`` are pixels in [0, 1].
        class_names: Names (C) of the classes, if they are known.
        features: Names of the features of each input: columns of a table, or words; () if there are none.

    Raises:
        InputError: If the numbers of inputs, names and probabilities differ.
    """

    kind: InputKind
    inputs: Tensor
    probabilities: Tensor
    ids: tuple[str, ...]
    model: str = "model"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    class_names: tuple[str, ...] | None = None
    features: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        sizes = {"probabilities": len(self.probabilities), "ids": len(self.ids)}
        sizes |= {"features": len(self.features)} if self.features else {}
        for name, size in sizes.items():
            if size != len(self.inputs):
                raise InputError(f"got {size} for {len(self.inputs)} inputs", argument=name)
        classes = self.probabilities.shape[1]
        if self.class_names is not None and len(self.class_names) != classes:
            raise InputError(f"got {len(self.class_names)} for a model of {classes} classes", argument="class_names")

    def __repr__(self) -> str:
        classes = self.probabilities.shape[1]
        return f"Context({self.kind}, {self.model}, inputs {tuple(self.inputs.shape)}, {classes} classes)"

    def pixels(self, x: Tensor) -> Tensor:
        """Turn model inputs into pixels.

        Args:
            x: Model inputs (..., C, H, W).

        Returns:
            Pixels (..., C, H, W) in [0, 1], float32, on the CPU.

        Raises:
            InputError: If the inputs are no images.
        """
        if self.kind != "image":
            raise InputError(f"the inputs are of the kind {self.kind!r} and have no pixels", argument="x")
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.mean or (0.0,), self.std or (1.0,)))
        return (x.detach().cpu().float() * std + mean).clamp(0, 1)

    def picture(self, x: Tensor) -> NDArray[np.float32]:
        """Turn model inputs into images for pictures.

        Args:
            x: Model inputs (..., C, H, W).

        Returns:
            Pixels (..., H, W, 1 or 3) in [0, 1]; other numbers of channels are averaged.
        """
        pixels = self.pixels(x)
        if pixels.shape[-3] not in (1, 3):
            pixels = pixels.mean(-3, keepdim=True)
        return pixels.movedim(-3, -1).numpy()

    def class_label(self, index: int) -> str:
        """Name a class.

        Args:
            index: Its number.

        Returns:
            Its name, or ``"class 7"`` if it has none.
        """
        names = self.class_names or ()
        return (names[index] if 0 <= index < len(names) else "") or f"class {index}"

    def top(self, row: int, count: int = 5) -> list[tuple[int, str, float]]:
        """List the most probable classes of an input.

        Args:
            row: Number of the input.
            count: Number of classes.

        Returns:
            Number, name and probability of each class, the most probable first.
        """
        best = self.probabilities[row].topk(min(count, self.probabilities.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(k, self.class_label(k), p) for k, p in pairs]

    def map_tensors(self, function: Callable[[Tensor], Tensor]) -> "Context":
        """Apply a function to every tensor.

        Args:
            function: Maps a tensor with a leading B.

        Returns:
            The context of what it returned.
        """
        return dataclasses.replace(self, inputs=function(self.inputs), probabilities=function(self.probabilities))

    def select(self, rows: Sequence[int]) -> "Context":
        """Select inputs.

        Args:
            rows: Their numbers.

        Returns:
            The context of these inputs, in this order.
        """
        index = torch.tensor(list(rows), dtype=torch.long)
        return dataclasses.replace(
            self,
            inputs=self.inputs[index],
            probabilities=self.probabilities[index],
            ids=tuple(self.ids[i] for i in rows),
            features=tuple(self.features[i] for i in rows) if self.features else (),
        )

    @staticmethod
    def concat(parts: "Sequence[Context]") -> "Context":
        """Join contexts of different inputs of one model.

        Args:
            parts: The contexts.

        Returns:
            Their inputs, one part after the other; the other fields are those of the first part.
        """
        joined: dict[str, Any] = {
            name: torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "probabilities")
        }
        joined |= {name: tuple(v for part in parts for v in getattr(part, name)) for name in ("ids", "features")}
        return dataclasses.replace(parts[0], **joined)
