"""Methods of other libraries as methods of this one.

An adapter gives the other library the explained score as a function or as a module, so that targets, contrasts and
further arguments of the model are applied here, and every pass is counted. The other direction, a method of this
library as a class of Captum, is :mod:`fringe.captum`.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fringe.attribution._base import Attribution, Attributor, ProgressCounter, require_package
from fringe.attribution._diagnostics import gradient_attribution, sum_attribution
from fringe.errors import InputError
from fringe.linalg import batch_view
from fringe.paths import Problem

#: ``explain(part)``: maps (B, *S) of a part of the images that fits one pass.
Explain = Callable[[Problem], Tensor]


class PluginMethod(Attributor):
    """A method that another package computes.

    Attributes:
        hint: What to do about maps that do not keep the sum that the method promises.
    """

    has_path = False
    is_complete = False
    hint: ClassVar[str] = ""

    @property
    def planned_passes(self) -> float:
        return 2.0

    @abstractmethod
    def _explainer(self, problem: Problem) -> Explain:
        """Return what makes the maps of a part of the images; raises InputError for a model that it cannot explain."""

    def _endpoint_score(self, problem: Problem) -> Tensor | None:
        """The score (B,) from which the maps measure that of the input, if they promise a sum."""
        return None

    def attribute(self, problem: Problem) -> Attribution:
        require_package(self)
        explain = self._explainer(problem)
        counter = ProgressCounter(problem.progress, len(problem.inputs))

        def maps(rows: Tensor) -> Tensor:
            values = explain(dataclasses.replace(problem.select(rows), progress=None)).detach()
            counter.tick(len(rows))
            return values

        values = problem.model.batch_size.map(maps, problem.every_row)
        endpoint_score = self._endpoint_score(problem)
        if endpoint_score is not None:
            return sum_attribution(self, values, problem, endpoint_score, self.hint)
        why = f"{self.label} promises no sum that could be compared with the score"
        return gradient_attribution(self, values, problem, {}, why)

    def _network(self, problem: Problem) -> nn.Module:
        """The network of a problem, whose layers the method reads; raises InputError for a plain callable."""
        if problem.model.module is None:
            message = (
                f"got a {type(problem.model.model).__name__}, and {self.label} reads the layers of a torch.nn.Module"
            )
            raise InputError(message, argument="model", hint="pass the module itself")
        if any(isinstance(module, torch.jit.ScriptModule) for module in problem.model.module.modules()):
            message = f"it is traced or scripted, and hooks of {self.label} do not run in its layers"
            raise InputError(message, argument="model", hint="pass the module that it was made from")
        return problem.model.module


class ScoreModule(nn.Module):
    """The explained score ``(x (L, *S), rows (L,)) -> (L,)`` as a module around the network, for hooks in its layers.

    Args:
        problem: The images and the model. Its session is open.
    """

    def __init__(self, problem: Problem):
        super().__init__()
        self.problem, self.network = problem, problem.model.module

    def forward(self, x: Tensor, rows: Tensor) -> Tensor:
        model, arguments = self.problem.model, self.problem.forward_args.select(rows)
        scores = self.problem.score(model.evaluate(x, arguments), rows)
        if scores.requires_grad:
            scores.register_hook(self._count)
        return scores

    def _count(self, cotangent: Tensor) -> None:
        self.problem.model.passes.vjp += len(cotangent)


def score_function(problem: Problem) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the explained score ``(x (L, *S), rows (L,)) -> (L,)``, in chunks of the batch size.

    Its gradient is computed with it, so that memory does not grow with L.
    """

    def score(x: Tensor, rows: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            return _ScoreWithGradient.apply(x, rows, problem)  # pyright: ignore[reportReturnType]
        return problem.score(problem.forward(x, rows), rows)

    return score


class _ScoreWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, problem: Problem) -> Tensor:
        with torch.enable_grad():
            logits, gradient = problem.logits_gradient(x.detach(), rows)
        ctx.save_for_backward(gradient)
        return problem.score(logits, rows)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return batch_view(cotangents[0], gradient) * gradient, None, None


def leaf(x: Tensor) -> Tensor:
    """Return a copy of ``x`` whose gradient can be asked for."""
    return x.detach().clone().requires_grad_(True)
