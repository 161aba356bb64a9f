"""Scenes that train their networks: the same recipe gives the same weights to the bit, and they are stored."""

import contextlib
import hashlib
import json
import math
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional

from fringe._files.disk import sha256_of, write_atomic
from fringe._files.records import digest
from fringe._numbers.rng import KeyedGenerator
from fringe._strings.progress import NOTE, log
from fringe.bench.scenes._base import Example, Images, Networks, Scene
from fringe.classifier import Classifier
from fringe.data import ImageRef, find_inputs
from fringe.errors import InputError, require
from fringe.models import LoadedModel, Preprocessing, seeded, state_digest, usable_device
from fringe.settings import Doc, Positive, PositiveInt

T = TypeVar("T")

#: An epoch has at least so many samples; fewer images than that are repeated.
LEAST_SAMPLES = 800
#: Fewer images than this are not split into those to train with and those to test with.
LEAST_IMAGES = 20

#: ``draw(numbers, generator, progress)``: inputs and targets (classes, or probabilities of the classes) of the samples
#: with these numbers, at this part of the training, from 0 to below 1.
Draw = Callable[[Tensor, torch.Generator, float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Training:
    """How a network is trained, and what it is called afterwards.

    ``build`` makes the network as it is before, with random weights that are drawn from its number; ``draw`` the inputs
    and targets of a batch, anew in each epoch of ``size`` samples. ``digests`` are names for what the draws depend on
    besides the settings of the scene: images, a given model. ``loss`` takes the network's output and the targets.
    """

    build: Callable[[], nn.Module]
    draw: Draw
    size: int
    digests: tuple[str, ...]
    architecture: str
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    batch: int = 64
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy


@dataclass(frozen=True)
class TrainedScene(Scene):
    """Base class of scenes that train their networks."""

    #: Settings that change the examples and not the networks.
    untrained: ClassVar[frozenset[str]] = frozenset({"networks"})

    networks: Annotated[PositiveInt, Doc("networks that are trained, from different seeds")] = 5
    epochs: Annotated[PositiveInt, Doc("times that each image is trained with")] = 10
    rate: Annotated[Positive, Doc("largest learning rate")] = 2e-3
    device: Annotated[str, Doc("where the networks are trained: cpu, cuda, ...")] = "cpu"

    @abstractmethod
    def training(self, model: LoadedModel | None, images: Images) -> Training:
        """Say how a network is trained; the model and the images are those of :meth:`Scene.network`."""

    def network(self, number: int, model: LoadedModel | None, images: Images) -> LoadedModel:
        """Read a network from the cache folder, or train it and write it there; see :meth:`Scene.network`."""
        require(0 <= number < self.networks, "number", number, f"0 to {self.networks - 1}")
        training = self.training(model, images)
        spec = f"scene:{self.name}:{number}"
        path = cache_folder() / f"{self.name}-{number}-{self._digest(number, training)}.safetensors"
        module = _restored(path, training.build)
        if module is None:
            text = "%s is trained once, for %d epochs on %s, and kept in %s"
            log.log(NOTE, text, spec, self.epochs, self.device, path.parent)
            module = self._train(number, training, spec)
            _store(module, path)
        module = module.eval().requires_grad_(False)
        digest, names = state_digest(module), training.class_names
        return LoadedModel(spec, module, training.preprocessing, names, digest, training.architecture, "logits")

    def agreed(self, networks: Networks, candidates: Iterable[Example], count: int) -> tuple[Example, ...]:
        """Return the first of the candidates, which are in the order of preference, whose target every network
        predicts. Raises InputError if there are not as many."""

        def right() -> Generator[Example]:
            rest = iter(candidates)
            while part := tuple(islice(rest, 64)):
                x = torch.stack([self.make(example, networks[0])[0] for example in part])
                target = torch.tensor([example.target for example in part])
                agree = torch.stack([predicted(network, x) == target for network in networks]).all(0)
                yield from (example for example, agrees in zip(part, agree.tolist(), strict=True) if agrees)

        return first(right(), count)

    def _digest(self, number: int, training: Training) -> str:
        """A name for everything that determines the weights: settings, data, versions and the code of the training."""
        record = {name: value for name, value in self.record().items() if name not in self.untrained}
        kinds = [kind for kind in reversed(type(self).__mro__) if issubclass(kind, TrainedScene)]
        files = dict.fromkeys(getattr(sys.modules.get(kind.__module__), "__file__", None) for kind in kinds)
        code = [sha256_of(path) for path in files if path]  # a class that was typed into an interpreter has none
        facts = {"scene": record, "number": number, "digests": training.digests, "batch": training.batch}
        text = json.dumps(facts | {"torch": torch.__version__, "code": code}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _train(self, number: int, training: Training, spec: str) -> nn.Module:
        device, generator = usable_device(self.device), torch.Generator("cpu").manual_seed(number)
        with seeded(number):
            module = training.build()
        module = module.to(device).train()
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr=self.rate, weight_decay=1e-4)
        steps = self.epochs * math.ceil(training.size / training.batch)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, self.rate, total_steps=steps)
        with _reproducible():
            for epoch in range(self.epochs):
                total = 0.0
                for numbers in torch.randperm(training.size, generator=generator).split(training.batch):
                    x, target = training.draw(numbers, generator, epoch / self.epochs)
                    loss = training.loss(module(x.to(device)), target.to(device))
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                    schedule.step()
                    total += float(loss.detach()) * len(numbers)
                log.info("%s: epoch %d of %d, loss %.4f", spec, epoch + 1, self.epochs, total / training.size)
        return module.cpu()


def cache_folder() -> Path:
    """Return the folder of trained networks: that of the variable ``FRINGE_CACHE``, or one of the user's cache."""
    given = os.environ.get("FRINGE_CACHE")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "fringe/scenes"


def first(examples: Iterable[Example], count: int) -> tuple[Example, ...]:
    """Return the first ``count`` examples; raise InputError if there are not as many."""
    chosen = tuple(islice(examples, count))
    if len(chosen) < count:
        raise InputError(f"got {count}, expected at most {len(chosen)} examples", argument="count")
    return chosen


def split(images: Images) -> tuple[list[ImageRef], list[ImageRef]]:
    """Divide images into those to train with, and every fifth, chosen by its id, that no network is trained with."""
    seen, unseen = list[ImageRef](), list[ImageRef]()
    for ref in images:
        number = int.from_bytes(hashlib.sha256(ref.id.encode()).digest()[:4], "big")
        (seen if number % 5 else unseen).append(ref)
    if len(images) < LEAST_IMAGES or not unseen:
        raise InputError(f"got {len(images)} images, expected at least {LEAST_IMAGES}", argument="images")
    return seen, unseen


def shuffled(things: Sequence[T], seed: int) -> list[T]:
    """Return things in the random order of a seed, in which they become examples."""
    return [things[i] for i in KeyedGenerator(seed).permutation("examples", len(things))]


def repeated(count: int) -> int:
    """Return the number of samples of an epoch: a multiple of the number of images, of at least ``LEAST_SAMPLES``."""
    return count * math.ceil(LEAST_SAMPLES / count)


def inputs_of(refs: Images, preprocessing: Preprocessing) -> Tensor:
    """Open images and prepare them for a network: (N, C, H, W), normalised."""
    pixels = [preprocessing.pixels(ref.open(preprocessing.channels).image) for ref in refs]
    return torch.stack([preprocessing.normalise(part) for part in pixels])


def input_of(example: Example, preprocessing: Preprocessing) -> Tensor:
    """Open the image of an example and prepare it for a network: (1, C, H, W), normalised."""
    return inputs_of(list(find_inputs(example.images)), preprocessing)


def predicted(network: LoadedModel, x: Tensor) -> Tensor:
    """Return the classes (N,) that a network assigns to inputs (N, C, H, W)."""
    return logits_of(network, x).argmax(1)


def logits_of(network: LoadedModel, x: Tensor) -> Tensor:
    """Return the logits (N, K) of inputs (N, C, H, W), on the CPU."""
    weights = next(network.module.parameters(), x)
    return Classifier(network.module, output=network.output).logits(x.to(weights.device)).cpu()


def share(right: Tensor) -> float:
    """Return the share of true entries."""
    return float(right.double().mean())


@contextlib.contextmanager
def _reproducible() -> Generator[None]:
    """One thread, as the order of sums depends on their number; and no algorithm that is chosen by its speed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            yield
    finally:
        torch.set_num_threads(threads)


def _restored(path: Path, build: Callable[[], nn.Module]) -> nn.Module | None:
    """The stored network, or None if there is none or it is damaged, which the log says."""
    if not path.exists():
        return None
    with seeded(0):
        module = build()
    try:
        opened: Any = safe_open(path, framework="pt")  # untyped
        with opened as file:
            module.load_state_dict({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 - no mapping
            if file.metadata()["digest"] != _mark(module, path):
                raise InputError("its weights are not those that were written")
    except Exception as error:  # the reader raises its own errors, torch and the system theirs
        log.warning("%s cannot be read (%s); the network is trained again", path, error)
        return None
    return module


def _mark(module: nn.Module, path: Path) -> str:
    """Digest of the weights and of the file's name, which is that of the recipe: another network is noticed."""
    return digest([path.name, state_digest(module)])


def _store(module: nn.Module, path: Path) -> None:
    """Write the weights with their mark; two processes write the same bytes, each in one step."""
    tensors = {name: value.detach().clone().contiguous() for name, value in module.state_dict().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, save(tensors, {"digest": _mark(module, path)}))
    except OSError as error:
        log.warning("the trained network cannot be stored (%s); set FRINGE_CACHE to another folder", error)
