"""What a network makes of an image before its last linear layer: the features that images are compared by."""

import contextlib
import copy
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fringe._outputs import as_logits
from fringe.paths.base import Problem


def last_linear_layer(problem: Problem) -> str | None:
    """The name of the last ``nn.Linear`` that runs on the first image, by one forward pass; None where there is none.

    Layers that see the image as more than one row (of tokens, of patches) are passed over.
    """
    module, first = problem.model.module, problem.every_row[:1]
    named = module.named_modules() if module is not None else ()
    with _listening({name: layer for name, layer in named if isinstance(layer, nn.Linear)}) as heard:
        problem.forward(problem.inputs[first], first)
    names = [name for name, given in heard if len(given) == 1]
    return names[-1] if names else None


class Features:
    """The model of a problem together with the input of one of its layers, from the same forward pass.

    ``layer`` names the layer; None stands for the logits (L, C) themselves. A hook is there while the network runs, and
    at no other time.
    """

    def __init__(self, problem: Problem, layer: str | None):
        self._problem, self._classes, classifier = problem, problem.logits.shape[1], problem.model
        self._layers: dict[str, nn.Module] = {}
        if layer is not None:
            assert classifier.module is not None
            self._layers[layer] = classifier.module.get_submodule(layer)
        both = copy.copy(classifier)  # shares its session, batch size and counts of passes
        both.model, both.output = self._run, "logits"
        self._both = replace(problem, model=both)

    def of(self, x: Tensor, rows: Tensor) -> Tensor:
        """Features (L, D) of ``x`` (L, *S) for images ``rows`` (L,), in chunks: one forward pass per point."""
        return self._split(self._both.forward(x, rows))[1]

    def gradients(self, x: Tensor, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        r"""Logits (L, C) at ``x`` (L, *S) of images ``rows`` (L,), and the gradients (L, 2, *S) of their score and of
        :math:`\frac12 \|r(x) - \rho\|^2`, with :math:`\rho` = ``features`` (L, D): one forward pass and two VJPs a row,
        in chunks."""
        return self._both.model.batch_size.map(self._gradients, x, rows, features)

    def _gradients(self, x: Tensor, rows: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        point = self._both.linearise(x, rows, tangents=False)
        logits, found = self._split(point.value)
        cotangent = self._problem.score_cotangent(logits, rows)
        score = point.vjp(torch.cat([cotangent, torch.zeros_like(found)], 1))
        distance = point.vjp(torch.cat([torch.zeros_like(logits), found - features], 1))
        return logits, torch.stack([score, distance], 1)

    def _run(self, *args: Any, **kwargs: Any) -> Tensor:
        """Logits and features side by side: (L, C + D)."""
        model = self._problem.model
        with _listening(self._layers) as heard:
            output = model.model(*args, **kwargs)
        x = args[0] if self._problem.forward_args.name is None else kwargs[self._problem.forward_args.name]
        logits = as_logits(output, len(x), model.output)
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
