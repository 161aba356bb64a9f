r"""How steep a model is at a point, and which way it gets steeper.

.. math:: s(z) = \|\nabla f(z)\|_2, \qquad \nabla s = \nabla^2 f \; \frac{\nabla f}{\|\nabla f\|_2}
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fringe._linear_layers import LinearLayers
from fringe.classifier import Score
from fringe.errors import NotDifferentiableError
from fringe.paths.base import Problem

Scalar = Literal["score", "log_probability", "outputs"]
"""f: the explained score of the target, its log-probability, or the sum of all logits."""


@dataclass(frozen=True)
class GradientNorm:
    """``s(z)`` of the scalar ``of``, and its gradient by a second backward pass.

    ``last_axis=True`` sums the norms of the rows of the last axis instead of taking one norm over the input. Where the
    gradient is zero, so is that of its norm. A network of ReLUs has piecewise constant gradients of its logits:
    there s pushes nowhere for ``"outputs"`` and the logit, while ``log p`` bends between the kinks, too.
    """

    problem: Problem
    of: Scalar
    last_axis: bool = False

    def __call__(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """s (L,) and its gradient (L, *S) at points ``x`` (L, *S) of images ``rows`` (L,), in chunks.

        A point costs a forward pass, a VJP, and for the gradient of the gradient a JVP and a VJP's worth. Raises
        NotDifferentiableError for a model without second derivatives.
        """
        model = self.problem.model
        if model.jvp_mode == "forward":  # set by verify; autograd may also leave the terms out silently
            raise _refusal("its backward pass cannot be differentiated")
        with model.session(x.device):
            return model.batch_size.map(self._evaluate, x.detach(), rows)

    def _evaluate(self, x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        model, passes = self.problem.model, self.problem.model.passes
        x = x.clone().requires_grad_(True)
        with LinearLayers():
            value = self._scalar(model.evaluate(x, self.problem.forward_args.select(rows)), rows)
        passes.vjp += len(x)
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True, materialize_grads=True)
        norms = torch.linalg.vector_norm(gradient if self.last_axis else gradient.flatten(1), dim=-1)
        norm = norms.reshape(len(x), -1).sum(1)
        if not norm.requires_grad:  # an affine model: its gradient does not know x
            return norm.detach(), torch.zeros_like(gradient)
        passes.jvp += len(x)
        passes.vjp += len(x)
        try:
            (push,) = torch.autograd.grad(norm.sum(), x, materialize_grads=True)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise _refusal(str(error).splitlines()[0]) from error
        return norm.detach(), push

    def _scalar(self, logits: Tensor, rows: Tensor) -> Tensor:
        if self.of == "outputs":
            return logits.sum(1)
        kind: Score | None = "log_probability" if self.of == "log_probability" else None
        return self.problem.score(logits, rows, kind)


def _refusal(reason: str) -> NotDifferentiableError:
    return NotDifferentiableError(
        f"model: it has no second derivatives ({reason}), and a path that follows its steepness needs them; use method "
        "'geoig_knn', which does not"
    )
