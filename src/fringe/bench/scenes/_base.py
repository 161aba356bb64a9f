"""What every scene gives: networks, examples of which it is known what the network uses, and gates that prove it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from fringe.data import ImageRef
from fringe.errors import InputError
from fringe.models import LoadedModel
from fringe.settings import Settings

#: All networks of a scene in an experiment.
Networks = Sequence[LoadedModel]
#: The images that a scene is given.
Images = Sequence[ImageRef]


@dataclass(frozen=True)
class Example:
    """The recipe of an input with a known answer, as plain data that can be stored and used on another machine.

    Attributes:
        id: Name of the example, unique in its scene.
        target: The explained class.
        cluster: Examples of one cluster share pixels; they are resampled together.
        images: The images that it is made from, as arguments of :func:`fringe.data.find_inputs`.
        values: Numbers and texts that, with the images and the settings of the scene, determine it.
    """

    id: str
    target: int
    cluster: str
    images: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Gate:
    """A condition that must hold for a network; without it the scene proves nothing.

    Attributes:
        name: What is measured, in words.
        value: The measured number.
        least: Its lower bound, or None.
        most: Its upper bound, or None.
    """

    name: str
    value: float
    least: float | None = None
    most: float | None = None

    @property
    def holds(self) -> bool:
        """Whether the number is within its bounds."""
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    def bounds(self, least: str, most: str) -> str:
        """Write the bounds with these words for the lower and the upper one."""
        pairs = ((least, self.least), (most, self.most))
        return " and ".join(f"{word} {bound:g}" for word, bound in pairs if bound is not None)

    def __str__(self) -> str:
        """Say what was measured, the bounds, and whether it holds."""
        text, bounds = f"{self.name}: {self.value:.4g}", self.bounds("at least", "at most")
        return f"{text} ({bounds}): {'holds' if self.holds else 'fails'}" if bounds else text


class Scene(Settings):
    """Base class of scenes: a frozen dataclass of settings.

    A scene makes its networks (:meth:`network`), selects examples for them (:meth:`examples`), and makes the input and
    the truth of each (:meth:`make`). The settings, the images and the seeds determine all of these.

    Attributes:
        name: Name in the registry.
        title: Name in tables.
        source: Publication.
        answer: Why the truth is known, in one sentence.
        requires_model: Whether the networks are made from a given one.
        requires_images: Whether the examples are made from given images.
        metrics: Names of metrics that are for its networks alone.
        has_boxes: Whether its networks are detectors (:class:`fringe.Detector`). The ``values`` of an example then hold
            the ``place`` of the explained box.
        has_words: Whether its inputs are embeddings of words.
        has_pixels: Whether its inputs are images, whose maps can be smoothed.
        has_space: Whether its inputs have axes in space, and so a centre; not those with words.
        networks: Number of networks of the scene for each given one: 1, or the number that is trained.
    """

    record_key: ClassVar[str] = "scene"
    title: ClassVar[str]
    source: ClassVar[str]
    answer: ClassVar[str]
    requires_model: ClassVar[bool] = False
    requires_images: ClassVar[bool] = False
    metrics: ClassVar[tuple[str, ...]] = ()
    has_boxes: ClassVar[bool] = False
    has_words: ClassVar[bool] = False
    has_pixels: ClassVar[bool] = True
    has_space: ClassVar[bool] = True

    networks: int = 1

    @abstractmethod
    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Make a network of the scene; a trained one is read from the cache folder if it is there.

        Args:
            number: Its number, from 0; it seeds the training.
            model: The given model, for a scene that requires one.
            images: The given images.

        Returns:
            The network, in evaluation mode on the CPU.
        """

    @abstractmethod
    def examples(self, networks: Networks, images: Images, count: int, seed: int) -> tuple[Example, ...]:
        """Select examples that every network is explained on.

        Args:
            networks: All networks of the experiment, those of :meth:`network`.
            images: The given images.
            count: Number of examples.
            seed: Draws them.

        Returns:
            The examples.

        Raises:
            InputError: If there are not as many.
        """

    @abstractmethod
    def make(self, example: Example, model: LoadedModel) -> tuple[Tensor, Tensor]:
        """Make the input of an example and its truth.

        Args:
            example: The example.
            model: The network that is explained; its preprocessing applies.

        Returns:
            The input (C, H, W), and the pixels (H, W) that the network uses: True or False if they are evidence for the
            target, -1 among zeros if they are evidence against it; or the numbers 1, 2, ... of several objects. Of a
            series (C, L) the samples (L,), of a text (L, D) the words (L,), of a row (F,) the columns (F,).
        """

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure the conditions under which the truth is known.

        Args:
            network: A network of the scene.
            model: The given model that it was made from, as in :meth:`network`.
            images: The given images.

        Returns:
            The gates; none if the truth needs no condition.
        """
        return ()


def given(model: LoadedModel | None) -> LoadedModel:
    """Return the model that a network of a scene is made from; raise InputError if there is none."""
    if model is None:
        raise InputError("none was given", argument="model", hint="this scene is made from a network")
    return model
