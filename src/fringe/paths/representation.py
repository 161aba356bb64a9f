"""What a network makes of an image before its last linear layer: the features that images are compared by."""

import contextlib
import copy
from collections.abc import Callable, Generator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fringe._outputs import as_logits
from fringe.classifier import Classifier


def last_linear_layer(classifier: Classifier, image: Tensor) -> str | None:
    """The name of the last ``nn.Linear`` that runs on ``image`` (1, *S), by one forward pass; None where there is none.

    Layers that see the image as more than one row (of tokens, of patches) are passed over.
    """
    named = classifier.module.named_modules() if classifier.module is not None else ()
    with _listening({name: layer for name, layer in named if isinstance(layer, nn.Linear)}) as heard:
        classifier.logits(image)
    names = [name for name, given in heard if len(given) == 1]
    return names[-1] if names else None


class Features:
    """A classifier together with the input of one of its layers, from the same forward pass.

    ``layer`` names the layer; None stands for the logits (L, C = ``classes``) themselves. A hook is there while the
    network runs, and at no other time.
    """

    def __init__(self, classifier: Classifier, layer: str | None, classes: int):
        self._classifier, self._classes = classifier, classes
        self._layers: dict[str, nn.Module] = {}
        if layer is not None:
            assert classifier.module is not None
            self._layers[layer] = classifier.module.get_submodule(layer)
        self._both = copy.copy(classifier)  # shares its session, batch size and counts of passes
        self._both.model, self._both.output = self._run, "logits"

    def of(self, x: Tensor) -> Tensor:
        """Features (L, D) of ``x`` (L, *S), in chunks: one forward pass an image."""
        return self._both.batch_size.map(self._features, x)

    def gradients(self, x: Tensor, target: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        r"""Logits (L, C) at ``x`` (L, *S), and the gradients (L, 2, *S) of the score of ``target`` (L,) and of
        :math:`\frac12 \|r(x) - \rho\|^2`, with :math:`\rho` = ``features`` (L, D): one forward pass and two VJPs a row,
        in chunks."""
        return self._both.batch_size.map(self._gradients, x, target, features)

    def _features(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self._split(self._both.evaluate(x))[1]

    def _gradients(self, x: Tensor, target: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        point = self._both.linearise(x, tangents=False)
        logits, found = self._split(point.value)
        cotangent = self._classifier.score_cotangent(logits, target)
        score = point.vjp(torch.cat([cotangent, torch.zeros_like(found)], 1))
        distance = point.vjp(torch.cat([torch.zeros_like(logits), found - features], 1))
        return logits, torch.stack([score, distance], 1)

    def _run(self, x: Tensor) -> Tensor:
        """Logits and features side by side: (L, C + D)."""
        with _listening(self._layers) as heard:
            logits = as_logits(self._classifier.model(x), len(x), self._classifier.output)
        return torch.cat([logits, heard[-1][1].flatten(1) if self._layers else logits], 1)

    def _split(self, both: Tensor) -> tuple[Tensor, Tensor]:
        return both[:, : self._classes], both[:, self._classes :]


@contextlib.contextmanager
def _listening(layers: Mapping[str, nn.Module]) -> Generator[list[tuple[str, Tensor]]]:
    """Name and input of each run of these layers, in order, for as long as the context lasts."""
    heard: list[tuple[str, Tensor]] = []

    def note(name: str) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        def hook(_layer: nn.Module, given: tuple[Any, ...]) -> None:
            if given:
                heard.append((name, given[0]))

        return hook

    with contextlib.ExitStack() as stack:
        for name, layer in layers.items():
            stack.callback(layer.register_forward_pre_hook(note(name)).remove)
        yield heard
