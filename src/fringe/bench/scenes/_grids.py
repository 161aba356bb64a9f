"""Grids of images: a given network and several images of which it is known which one it may use."""

import hashlib
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fringe._network.outputs import OutputKind, as_logits
from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Gate, Images, Networks, Scene, given
from fringe.bench.scenes._training import logits_of
from fringe.data import ImageRef, find_inputs
from fringe.errors import FringeError, InputError, is_transient
from fringe.models import LoadedModel, state_digest
from fringe.settings import Doc, Positive, PositiveFraction

#: Images of one forward pass when a pool is drawn.
_AT_ONCE = 64


@dataclass(frozen=True)
class _Grid(Scene):
    """What the scenes of grids share: which images take part, and how they are put together."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nine": {"cells": 3}}
    requires_model: ClassVar[bool] = True
    requires_images: ClassVar[bool] = True

    cells: Annotated[int, Ge(2), Le(8), Doc("cells along a side")] = 2
    confidence: Annotated[
        PositiveFraction, Doc("least probability that every network gives to an image's own class")
    ] = 0.99

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Put the images of an example together; see :meth:`Scene.make`."""
        parts = [_prepared(next(find_inputs([source])), model) for source in example.images]
        sizes = {tuple(part.shape) for part in parts}
        if len(sizes) > 1:
            message = f"example {example.id}: its images come out at sizes {sorted(sizes)}, expected one"
            raise InputError(message, hint="give a preprocessing that resizes and crops to one size")
        rows = [torch.cat(parts[start : start + self.cells], dim=2) for start in range(0, self.cells**2, self.cells)]
        x = torch.cat(rows, dim=1)
        truth = torch.zeros(x.shape[1:], dtype=torch.bool)
        for cell in self._used(example):
            truth[cell_of(x, self.cells, cell)] = True
        return x, truth

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Return the given network; see :meth:`Scene.network`."""
        return given(model)

    @abstractmethod
    def _used(self, example: Example) -> tuple[int, ...]:
        """The cells that the network uses, numbered by rows."""

    def _pool(self, networks: Networks, images: Images, seed: int) -> list[tuple[int, str]]:
        """Class and source of the images that every network classifies alike, correctly where the file names a class,
        and with enough confidence, in the order of the seed."""
        predicted, pool = list[dict[str, tuple[int, float]]](), list[tuple[int, str]]()
        for network in networks:  # the given one, which sees an image alone
            made = network.module
            is_made = isinstance(made, _Wrapper)
            plain = replace(network, module=made.module, output=made.output) if is_made else network
            predicted.append(_predictions(plain, tuple(images)))
        for ref in sorted(images, key=lambda ref: hashlib.sha256(f"{seed} {ref.id}".encode()).digest()):
            answers = [answer[ref.source] for answer in predicted if ref.source in answer]
            classes = {number for number, _ in answers}
            if len(answers) < len(networks) or len(classes) > 1 or min(p for _, p in answers) < self.confidence:
                continue
            if ref.label is None or ref.label in classes:
                pool.append((classes.pop(), ref.source))
        return pool

    def _draw(
        self, networks: Networks, images: Images, count: int, seed: int, *, repeat: bool
    ) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
        """The classes and images of the cells of ``count`` grids; no image is used twice. With ``repeat`` the last cell
        has the class of the first, and another image. More grids begin with the same ones."""
        pool, rng = self._pool(networks, images, seed), KeyedGenerator(seed)
        left, grids = list(pool), list[tuple[tuple[int, ...], tuple[str, ...]]]()
        while len(grids) < count:
            if repeat:
                cells = _with_pair(left, self.cells**2)
            else:
                cells = _distinct(left, self.cells**2)
                cells = [cells[i] for i in rng.permutation(f"grid {len(grids)}", len(cells))]
            if not cells:
                sizes = dict(sorted(Counter(number for number, _ in pool).items()))
                side = self.cells
                message = f"{len(grids)} grids of {side} by {side} images can be made, expected {count}"
                hint = f"lower confidence={self.confidence:g}, or give more images; those by class: {sizes}"
                raise InputError(message, argument="n", hint=hint)
            left = [one for one in left if one not in cells]
            grids.append((tuple(number for number, _ in cells), tuple(source for _, source in cells)))
        return grids


def _distinct(images: Sequence[tuple[int, str]], count: int) -> list[tuple[int, str]]:
    """The first images of ``count`` different classes; none where there are fewer classes."""
    chosen: dict[int, tuple[int, str]] = {}
    for one in images:
        if len(chosen) < count:
            chosen.setdefault(one[0], one)
    return list(chosen.values()) if len(chosen) == count else []


def _with_pair(images: Sequence[tuple[int, str]], count: int) -> list[tuple[int, str]]:
    """``count`` images, the first and the last of one class and the others of different ones; none where there are too
    few."""
    for first in images:
        last = next((one for one in images if one[0] == first[0] and one != first), None)
        if last is not None:
            others = _distinct([one for one in images if one[0] != first[0]], count - 2)
            return [first, *others, last] if others else []
    return []


@dataclass(frozen=True)
class GridPG(_Grid):
    """The grid pointing game: images of several classes side by side, each class explained in turn.

    The network is the given one; it is applied to the whole grid, which takes a global pooling. Every class of a grid
    is an example, and its own image the truth. That the network uses only this image is plausible and no theorem: the
    other images hold no object of the class, which the network itself says of each of them alone. A score here rises
    with sharpness: a map to the power of 2 has more of its mass in the right cell, so show ``power(2):METHOD``
    beside a method. Objects are small with the preset ``nine``, 3 by 3 images.
    """

    name: ClassVar[str] = "gridpg"
    title: ClassVar[str] = "Grid pointing game"
    source: ClassVar[str] = "Böhle, Fritz and Schiele 2021; Rao, Böhle and Schiele 2022"
    answer: ClassVar[str] = "only one image of the grid shows the explained class, says the network of each alone"

    classes: Annotated[int, Ge(0), Doc("classes of a grid that are explained; 0: all")] = 0
    scale: Annotated[Positive, Doc("what the logits are multiplied by: more than 1 saturates the softmax")] = 1.0

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Return the given network, with its logits scaled if that is asked for; see :meth:`Scene.network`."""
        one = given(model)
        return one if self.scale == 1 else _wrapped(self.name, one, ScaledLogits(one.module, self.scale, one.output))

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Draw grids, and explain each class of each; see :meth:`Scene.examples`."""
        size = self.cells**2
        explained = min(self.classes or size, size)
        grids = self._draw(networks, images, -(-count // explained), seed, repeat=False)
        examples = [
            Example(f"grid-{number:04d}-{cell}", classes[cell], f"grid-{number:04d}", sources, {"cell": cell})
            for number, (classes, sources) in enumerate(grids)
            for cell in sorted((number * explained + one) % size for one in range(explained))  # all cells as often
        ]
        return tuple(examples[:count])

    def _used(self, example: Example) -> tuple[int, ...]:
        return (int(example.values["cell"]),)

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Count the images of the pool; see :meth:`Scene.gates`."""
        pool = self._pool([network], images, 0)
        name = f"images that the network classifies correctly with p of at least {self.confidence:g}"
        return (Gate(name, float(len(pool)), least=float(self.cells**2)),)


@dataclass(frozen=True)
class _Pairs(_Grid):
    """What the scenes share whose grids have two images of the explained class, in the first and in the last cell."""

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Draw grids of which the first and last image have one class; see :meth:`Scene.examples`."""
        grids = self._draw(networks, images, count, seed, repeat=True)
        return tuple(
            Example(f"grid-{number:04d}", classes[0], f"grid-{number:04d}", sources)
            for number, (classes, sources) in enumerate(grids)
        )

    def _used(self, example: Example) -> tuple[int, ...]:
        return (0, self.cells**2 - 1)


@dataclass(frozen=True)
class DiFull(_Pairs):
    """A network that sees one cell of a grid: the other cells cannot have any influence.

    The first and the last cell hold two images of one class, so that the class does not tell which cell is read. The
    gradient is exactly zero outside the cell, so every path method scores exactly 1, whatever its path.
    """

    name: ClassVar[str] = "difull"
    title: ClassVar[str] = "DiFull"
    source: ClassVar[str] = "Rao, Böhle and Schiele 2022"
    answer: ClassVar[str] = "the network reads one cell and is disconnected from all others"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"nine": {"cells": 3}, "last": {"cell": "last"}}

    cell: Annotated[Literal["first", "last"], Doc("the cell that the network reads")] = "first"

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Make a network that reads one cell; see :meth:`Scene.network`."""
        one = given(model)
        return _wrapped(self.name, one, OneCell(one.module, self.cells, self._cell, one.output))

    @property
    def _cell(self) -> int:
        return 0 if self.cell == "first" else self.cells**2 - 1

    def _used(self, example: Example) -> tuple[int, ...]:
        return (self._cell,)


@dataclass(frozen=True)
class RegionSum(_Pairs):
    """A network whose logits are a weighted sum of what it reads in the first and in the last cell of a grid.

    Both cells hold images of the explained class; the others are not read. For a path to a baseline x' the sum of the
    map over a cell is exactly its weight times f(x) - f(x') of that cell, up to the error of the quadrature: the metric
    ``region_completeness`` compares the two.
    """

    name: ClassVar[str] = "region"
    title: ClassVar[str] = "Region completeness"
    source: ClassVar[str] = "ours"
    answer: ClassVar[str] = "the logits are a known sum of two runs of one network on two cells"
    metrics: ClassVar[tuple[str, ...]] = ("region_completeness",)

    first: Annotated[Positive, Doc("weight of the first cell")] = 1.0
    last: Annotated[Positive, Doc("weight of the last cell")] = 0.5

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Make the sum of two runs of the given network; see :meth:`Scene.network`."""
        one, weights = given(model), (self.first, self.last)
        return _wrapped(self.name, one, SumOfCells(one.module, self.cells, weights, one.output))


@dataclass(frozen=True)
class TwoObjects(_Pairs):
    """The given network on a grid with two objects of the explained class, in the first and in the last cell.

    A map should show both: the metric ``object_balance`` is the weaker over the stronger. That both count
    alike is plausible and no theorem: the network gives the class to each of them alone.
    """

    name: ClassVar[str] = "two_objects"
    title: ClassVar[str] = "Two objects of a class"
    source: ClassVar[str] = "ours; after the grid pointing game (Böhle, Fritz and Schiele 2021)"
    answer: ClassVar[str] = "two images of the grid show the explained class, says the network of each alone"
    metrics: ClassVar[tuple[str, ...]] = ("object_balance",)

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Put the images together; the truth numbers the two objects, 1 and 2. See :meth:`Scene.make`."""
        x, truth = super().make(example, model)
        numbers = truth.to(torch.int8)
        numbers[cell_of(x, self.cells, self.cells**2 - 1)] = 2
        return x, numbers


class _Wrapper(nn.Module):
    """A network that is made of a given one, whose output is read as logits."""

    def __init__(self, module: nn.Module, output: OutputKind):
        super().__init__()
        self.module, self.output = module, output
        self.kind: OutputKind = "logits" if output == "auto" else output
        self.eval()

    def logits(self, x: Tensor) -> Tensor:
        return as_logits(self.module(x), len(x), self.kind)


class OneCell(_Wrapper):
    """A network of grids that reads one cell."""

    def __init__(self, module: nn.Module, cells: int, cell: int, output: OutputKind = "auto"):
        super().__init__(module, output)
        self.cells, self.cell = cells, cell

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x[..., *cell_of(x, self.cells, self.cell)])

    def extra_repr(self) -> str:
        return f"cells={self.cells}, cell={self.cell}"


class ScaledLogits(_Wrapper):
    """A network whose logits are multiplied by a number: the same answers, with more or less certainty."""

    def __init__(self, module: nn.Module, scale: float, output: OutputKind):
        super().__init__(module, output)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.logits(x)

    def extra_repr(self) -> str:  # every digit: keys of stored maps are made of this text
        return f"scale={float(self.scale)!r}".removesuffix(".0")


class SumOfCells(_Wrapper):
    """A network of grids whose logits are a weighted sum of those of the first and last cell."""

    def __init__(self, module: nn.Module, cells: int, weights: tuple[float, float], output: OutputKind = "auto"):
        super().__init__(module, output)
        self.cells, self.weights = cells, weights

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)[1].sum(0)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the regions (2, H, W), and what each adds to the logits, (2, B, classes)."""
        cells = [cell_of(x, self.cells, cell) for cell in (0, self.cells**2 - 1)]
        regions = torch.zeros(2, *x.shape[-2:], dtype=torch.bool, device=x.device)
        for region, cell in zip(regions, cells, strict=True):
            region[cell] = True
        terms = [w * self.logits(x[..., *cell]) for w, cell in zip(self.weights, cells, strict=True)]
        return regions, torch.stack(terms)

    def extra_repr(self) -> str:
        return f"cells={self.cells}, weights={self.weights}"


def cell_of(x: Tensor, cells: int, cell: int) -> tuple[slice, slice]:
    """Return the rows and columns of a cell of a grid (..., H, W); cells are numbered by rows."""
    height, width = x.shape[-2] // cells, x.shape[-1] // cells
    row, column = divmod(cell, cells)
    return slice(row * height, (row + 1) * height), slice(column * width, (column + 1) * width)


def _wrapped(name: str, model: LoadedModel, module: _Wrapper) -> LoadedModel:
    """A network that is made of a given one, with a name and a digest of its own; it returns logits."""
    output: OutputKind = "auto" if model.output == "auto" else "logits"
    architecture = f"{name} of {model.architecture}"
    return replace(model, module=module, digest=state_digest(module), architecture=architecture, output=output)


def _prepared(ref: ImageRef, model: LoadedModel) -> Tensor:
    """The input (C, h, w) of one image, read as it is stored."""
    image = ref.open(channels=model.preprocessing.channels, exif="ignore").image
    return model.prepare([image])[0]


@lru_cache(maxsize=8)
def _predictions(model: LoadedModel, images: tuple[ImageRef, ...]) -> dict[str, tuple[int, float]]:
    """The class and its probability by the source of each image; without those that cannot be read."""
    result: dict[str, tuple[int, float]] = {}
    for start in range(0, len(images), _AT_ONCE):
        by_size: dict[tuple[int, ...], dict[str, Tensor]] = {}
        for ref in images[start : start + _AT_ONCE]:
            try:
                x = _prepared(ref, model)
            except FringeError as error:
                if is_transient(error):
                    raise
            else:
                by_size.setdefault(tuple(x.shape), {})[ref.source] = x
        for inputs in by_size.values():
            p, number = logits_of(model, torch.stack([*inputs.values()])).double().softmax(1).max(1)
            result.update(zip(inputs, zip(number.tolist(), p.tolist(), strict=True), strict=True))
    return result
