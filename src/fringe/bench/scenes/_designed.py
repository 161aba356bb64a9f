"""Networks with weights set by hand: what they use is known without training and without a condition."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from fringe._numbers.rng import KeyedGenerator
from fringe.bench.scenes._base import Example, Images, Networks, Scene
from fringe.errors import require
from fringe.models import LoadedModel, Preprocessing, state_digest
from fringe.settings import Doc, NotNegative, PositiveInt

#: Pixels in [0, 1] as they are.
_UNIT = Preprocessing(resize=None, crop=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
Colour = tuple[float, float, float]
#: The colour of a mark, its pixels (size, size), and whether the network uses it.
Mark = tuple[Colour, Tensor, bool]
#: Colours (r, g, b) that a network looks for.
_RED, _BLUE = (1.0, 0.0, 0.0), (0.0, 0.0, 1.0)


@dataclass(frozen=True)
class _Designed(Scene):
    """What the designed scenes share: small images with a background that the network does not react to."""

    size: Annotated[PositiveInt, Doc("side of an image", "pixels")] = 16

    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Name images by number; see :meth:`Scene.examples`."""
        names = [f"{self.name}-{number:04d}" for number in range(count)]
        return tuple(Example(name, 1, name, (), {"seed": seed, "number": i}) for i, name in enumerate(names))

    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Draw an image; see :meth:`Scene.make`."""
        rng, number = KeyedGenerator(int(example.values["seed"])), example.values["number"]
        x = rng.uniform(f"background {number}", torch.empty(3, self.size, self.size))
        x = x * torch.tensor([0.3, 0.7, 0.3])[:, None, None] + torch.tensor([0.0, 0.3, 0.0])[:, None, None]
        truth = torch.zeros(self.size, self.size, dtype=torch.bool)
        for colour, pixels, is_used in self._marks(rng, number):
            x[:, pixels] = torch.tensor(colour)[:, None]
            truth |= pixels & is_used
        return model.preprocessing.normalise(x), truth

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Make the network; see :meth:`Scene.network`."""
        module = self._module()
        return LoadedModel(self.name, module, _UNIT, ("neither", "the mark"), state_digest(module), self.name)

    def _square(self, corner: Sequence[int], side: int) -> Tensor:
        row, column = corner
        mask = torch.zeros(self.size, self.size, dtype=torch.bool)
        mask[row : row + side, column : column + side] = True
        return mask

    @abstractmethod
    def _module(self) -> nn.Module:
        """The network with its weights."""

    @abstractmethod
    def _marks(self, rng: KeyedGenerator, number: int) -> list[Mark]:
        """The marks of an image, each over those before it."""


@dataclass(frozen=True)
class ColourCounter(_Designed):
    """A network that counts red pixels: every red pixel adds the same to the logit, and nothing else adds anything."""

    name: ClassVar[str] = "colour_counter"
    title: ClassVar[str] = "Colour counter"
    source: ClassVar[str] = "after Zhang et al. 2023 (AttributionLab)"
    answer: ClassVar[str] = "the weights are set so that the logit is the number of red pixels times one half"

    pixels: Annotated[PositiveInt, Doc("red pixels of an image")] = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.pixels <= self.size**2, "pixels", self.pixels, f"at most {self.size**2}, all of an image")

    def _module(self) -> nn.Module:
        return ColourNetwork([_RED], scale=0.5)

    def _marks(self, rng: KeyedGenerator, number: int) -> list[Mark]:
        mask = torch.zeros(self.size**2, dtype=torch.bool)
        mask[rng.permutation(f"pixels {number}", self.size**2)[: self.pixels]] = True
        return [(_RED, mask.view(self.size, self.size), True)]


@dataclass(frozen=True)
class PatchAnd(_Designed):
    """A network that needs two patches at once, a red and a blue one: without either the logit is zero."""

    name: ClassVar[str] = "patch_and"
    title: ClassVar[str] = "AND of two patches"
    source: ClassVar[str] = "after Zhang et al. 2023 (AttributionLab)"
    answer: ClassVar[str] = "the weights are set so that the logit is positive only with both patches"

    side: Annotated[PositiveInt, Doc("side of a patch", "pixels")] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        require(2 * self.side <= self.size, "side", self.side, f"at most half of {self.size}")

    def _module(self) -> nn.Module:
        return ColourNetwork([_RED, _BLUE], scale=6.0 / self.side**2, least=float(self.side**2))

    def _marks(self, rng: KeyedGenerator, number: int) -> list[Mark]:
        half = self.size // 2
        rows = rng.integers(f"rows {number}", self.size - self.side + 1, 2)
        columns = rng.integers(f"columns {number}", half - self.side + 1, 2)
        if rng.integers(f"sides {number}", 2, 1)[0]:  # which patch is in which half
            columns[0] += half
        else:
            columns[1] += half
        corners = zip(rows, columns, strict=True)
        return [(c, self._square(corner, self.side), True) for c, corner in zip((_RED, _BLUE), corners, strict=True)]


@dataclass(frozen=True)
class FooledCAM(_Designed):
    """A network whose last layer sees a blue texture, and whose score is decided by a small red mark.

    The activations of the texture are large and the gradient there is exactly zero: Grad-CAM weighs a channel by its
    mean gradient, which is that of the other places, and lies on the texture. A map times such an activation map keeps
    a fiftieth of the mark, and a path that is kept in that region cannot move it.

    So a map of gradients lies on the mark alone, and so does its product with any region: the share on the mark does
    not show what a region hides. With the preset ``weak_texture`` it does: there the whole texture adds 2.25 to the
    logit, and the mark 6.
    """

    name: ClassVar[str] = "fooled_cam"
    title: ClassVar[str] = "Fooled class activation map"
    source: ClassVar[str] = "ours; after Draelos and Carin 2020"
    answer: ClassVar[str] = "the weights are set so that the logit counts red pixels, and a gate closes on the texture"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"weak_texture": {"texture_logit": 2.25}}

    side: Annotated[PositiveInt, Doc("side of the mark", "pixels")] = 2
    texture: Annotated[PositiveInt, Doc("side of the texture", "pixels")] = 12
    texture_logit: Annotated[NotNegative, Doc("what the whole texture adds to the logit; the mark adds 6")] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("side", "texture"):
            require(getattr(self, name) <= self.size, name, getattr(self, name), f"at most {self.size}")

    def _module(self) -> nn.Module:
        return GatedNetwork(6.0 / self.side**2, self.texture_logit / self.texture**2)

    def _marks(self, rng: KeyedGenerator, number: int) -> list[Mark]:
        texture = rng.integers(f"texture {number}", self.size - self.texture + 1, 2)
        mark = rng.integers(f"mark {number}", self.size - self.side + 1, 2)
        return [(_BLUE, self._square(texture, self.texture), False), (_RED, self._square(mark, self.side), True)]


class GatedNetwork(nn.Module):
    """Count red pixels with a channel that is larger on blue ones, where a gate closes: logits zero, and the count.

    With the tests r and b of a pixel for red and blue, as in :class:`ColourNetwork`, and g, which sees a weaker blue,
    the last layer has the activations ``r / 50 + b`` and ``g``; the logit is the sum of ``50 (r / 50 + b)
    relu(1 - 10 g)`` times ``scale``. Where b is positive, the gate is closed, on every way to the texture from black.
    Past the last layer each b adds ``texture`` times itself.
    """

    def __init__(self, scale: float, texture: float = 0.0):
        super().__init__()
        self.test, self.last = nn.Conv2d(3, 3, 1), nn.Conv2d(3, 2, 1, bias=False)
        with torch.no_grad():
            colours = torch.tensor([_RED, _BLUE, _BLUE])
            self.test.weight.copy_((4 * colours - 2)[:, :, None, None])
            self.test.bias.copy_(torch.tensor([-1.0, -1.0, -0.2]))  # pyright: ignore[reportOptionalMemberAccess]
            self.last.weight.copy_(torch.tensor([[0.02, 1.0, 0.0], [0.0, 0.0, 1.0]])[:, :, None, None])
        self.scale, self.texture = scale, texture
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        tests = self.test(x).relu()
        seen, blue = self.last(tests).unbind(1)
        score = self.scale * 50 * (seen * (1 - 10 * blue).relu()).sum((1, 2))
        score = score + self.texture * tests[:, 1].sum((1, 2))
        return torch.stack([torch.zeros_like(score), score], 1)

    def extra_repr(self) -> str:
        return f"scale={self.scale}, texture={self.texture}"


class ColourNetwork(nn.Module):
    """Count pixels of colours; logits are zero, and ``scale`` times what the counts exceed ``least`` by.

    A pixel counts ``relu(2 (own channel - the two others) - 1)``: 1 if it is of the pure colour, 0 if it is black, grey
    or of another colour.
    """

    def __init__(self, colours: list[Colour], scale: float, least: float = 0.0):
        super().__init__()
        self.test = nn.Conv2d(3, len(colours), 1)
        self.head = nn.Linear(1, 2)
        with torch.no_grad():
            self.test.weight.copy_(torch.tensor([[[[4 * c - 2]] for c in colour] for colour in colours]))
            self.test.bias.fill_(-1.0)  # pyright: ignore[reportOptionalMemberAccess]
            self.head.weight.copy_(torch.tensor([[0.0], [scale]]))
            self.head.bias.zero_()
        self.least = least
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        count = self.test(x).relu().sum((1, 2, 3))[:, None]
        return self.head((count - self.least).relu())

    def extra_repr(self) -> str:
        return f"least={self.least}"
