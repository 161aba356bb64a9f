"""The same network with random weights, layer by layer."""

import contextlib
import copy
from collections.abc import Generator, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from fringe._rng import KeyedGenerator
from fringe.classifier import Classifier
from fringe.errors import InputError

#: How weights become random.
How = Literal["reinit", "shuffle", "gaussian"]
#: Where randomisation begins: at the output or at the input.
Order = Literal["top_down", "bottom_up"]


class RandomNetworks:
    """A copy of a network whose weights can be made random, layer by layer; the network itself is not touched.

    The copy shares the tensors of the network, so that it needs memory for one further set of weights, however many
    layers there are. Random weights are keyed by the names of their tensors: the same for every method, image and
    process.

    Args:
        model: The classifier.
        how: ``"reinit"`` draws a tensor of two or more axes as PyTorch's linear and convolutional layers do, uniformly
            within ``1 / sqrt(inputs of one output)``, an offset beside one alike; a factor of a normalisation becomes
            1 and its offset 0. ``"shuffle"`` permutes the entries of each tensor. ``"gaussian"`` draws normal numbers
            with its mean and standard deviation.
        rng: Source of random numbers.

    Raises:
        InputError: If the model is no module, has no parameters, or cannot be copied.
    """

    def __init__(self, model: Classifier, how: How, rng: KeyedGenerator):
        if model.module is None:
            came = f"got a {type(model.model).__name__}, whose weights are not known"
            raise InputError(came, argument="model", hint="pass the torch.nn.Module itself")
        self._model, self._how, self._rng = model, how, rng
        self._original = {n: p.detach() for n, p in model.module.named_parameters() if p.is_floating_point()}
        if not self._original:
            raise InputError("it has no parameters that could be made random", argument="model")
        shared = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.module.parameters()}
        try:
            self._copy = copy.deepcopy(model.module, shared)
        except (RuntimeError, TypeError) as error:
            message = f"its weights cannot be made random, as it cannot be copied ({error})"
            raise InputError(message, argument="model") from error
        self._random: dict[str, Tensor] = {}

    def layers(self, order: Order) -> list[tuple[str, ...]]:
        """Names of the parameters of each layer, in the order of the modules; each is in the first that has it."""
        assert self._model.module is not None
        known = {id(p): n for n, p in self._model.module.named_parameters() if p.is_floating_point()}
        modules = list(self._model.module.modules())
        layers: list[tuple[str, ...]] = []
        for module in modules if order == "bottom_up" else reversed(modules):
            names = [known.pop(id(p), "") for p in module.parameters(recurse=False)]
            layers += [known_names] if (known_names := tuple(filter(None, names))) else []
        return layers

    def stages(self, order: Order, count: int | None) -> list[tuple[str, ...]]:
        """Names of the parameters that are random at each stage of a cumulative randomisation, at the last one all.

        There are ``count`` stages with equal numbers of layers; None: one a layer.
        """
        layers = self.layers(order)
        total = min(count or len(layers), len(layers))
        ends = [len(layers) * (stage + 1) // total for stage in range(total)]
        return [tuple(name for layer in layers[:end] for name in layer) for end in ends]

    @contextlib.contextmanager
    def randomised(self, names: Sequence[str]) -> Generator[Classifier]:
        """Give a classifier in which these parameters are random, until the end of the block."""
        parameters = dict(self._copy.named_parameters())
        try:
            for name in names:
                if name not in self._random:
                    self._random[name] = self._draw(name)
                parameters[name].data = self._random[name]
            _forget(self._copy)
            yield self._model.with_model(self._copy)
        finally:
            for name in names:
                parameters[name].data = self._original[name]

    def _draw(self, name: str) -> Tensor:
        """Random weights in place of a tensor."""
        value, key = self._original[name], f"random network {self._how} {name}"
        if self._how == "shuffle":
            draws = torch.empty(value.numel(), dtype=torch.float64)  # argsort: a list of millions takes seconds
            return value.flatten()[self._rng.uniform(key, draws).argsort().to(value.device)].view_as(value)
        if self._how == "gaussian":
            return value.mean() + value.std(correction=0) * self._rng.normal(key, value)
        inputs = self._inputs(name)
        if inputs is None:
            return torch.zeros_like(value) if "bias" in name.rpartition(".")[2] else torch.ones_like(value)
        return (2.0 * self._rng.uniform(key, value) - 1.0) / inputs**0.5

    def _inputs(self, name: str) -> int | None:
        """How many inputs an output has of the tensor, or of the largest one beside it; None for a normalisation."""
        value, prefix = self._original[name], name.rpartition(".")[0]
        if value.dim() < 2:
            beside = [v for n, v in self._original.items() if n.rpartition(".")[0] == prefix and v.dim() > 1]
            if not beside:
                return None
            value = max(beside, key=Tensor.numel)
        return value[0].numel()


def _forget(module: nn.Module) -> None:
    """Make a module forget what it computed from other weights: those of timm that do so clear it for training."""
    flags = {part: part.training for part in module.modules()}
    with contextlib.suppress(NotImplementedError):  # an exported program has one mode, and stores nothing
        module.train()
    for part, flag in flags.items():
        part.training = flag
