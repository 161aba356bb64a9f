"""The first-order expansion of a network: its value, and products with its Jacobian."""

import torch
from torch import Tensor

from fringe._network.arguments import ForwardArguments
from fringe._network.isolation import detached
from fringe._network.linear_layers import BackwardLayouts
from fringe._network.passes import Network
from fringe._strings.progress import log
from fringe.errors import InputError, NotDifferentiableError, first_line, is_machine_error, warn_caller

#: Advice for a model whose gradients are right and whose Jacobian-vector products are missing or wrong.
WITHOUT_JVP = (
    "choose methods of gradients alone, such as FRInGe() for images, and leave out the "
    "control diffusion (controls=False)"
)
#: Advice for a model without gradients.
WITHOUT_GRADIENTS = (
    "compute in torch, outside of torch.no_grad and inference mode; or choose a method that needs no gradient: "
    "method='rise' for images, 'captum:occlusion' or 'captum:kernel_shap'"
)


class Linearisation:
    """Value (B, C) and Jacobian products of a network at B points, from one forward pass.

    The VJP runs the retained graph backwards. The JVP differentiates that backward pass in its cotangent, in which it
    is linear: ``J v = d <J^T u, v> / du``; for a model without second derivatives it uses forward-mode AD, at a forward
    pass per product (``network.jvp_mode`` says which is in use).
    """

    def __init__(self, network: Network, x: Tensor, tangents: bool, arguments: ForwardArguments, smooth: bool):
        self._arguments, self._smooth = arguments, smooth
        self._network, self._double_backward = network, tangents and network.jvp_mode == "double_backward"
        self._x = x.requires_grad_(True)
        self._transpose: tuple[Tensor, Tensor] | None = None
        self._logits = self._evaluate()
        if self._logits.grad_fn is None:
            raise NotDifferentiableError(
                "its output is not connected to the input by autograd (torch.no_grad, .detach(), NumPy, argmax or an "
                "inference session inside the model)",
                argument="model",
                hint=WITHOUT_GRADIENTS,
            )
        self.value = self._logits.detach()

    def _evaluate(self) -> Tensor:
        try:
            with self._network.session(self._x.device):
                modes = {"tangents": self._double_backward, "smooth": self._smooth}
                return self._network.evaluate(self._x, self._arguments, **modes)
        except RuntimeError as error:
            if "functorch transforms" not in str(error) or not self._replaces:
                raise
            self._replace_nothing()  # a model that uses torch.vmap inside
            return self._evaluate()

    @property
    def _replaces(self) -> bool:
        """Whether the graph has functions in the place of some of PyTorch's."""
        network = self._network
        linear = self._double_backward and network.linear_layers
        return bool(network.folds) or linear or (self._smooth and network.smooth_rectifiers)

    def _replace_nothing(self) -> None:
        self._network.linear_layers = self._network.smooth_rectifiers = False
        self._network.folds = {}

    def renew(self, network: Network, x: Tensor, tangents: bool, smooth: bool) -> bool:
        """Tell whether this may be taken for a new expansion of ``network`` at ``x``; it is like new then: the first
        product is computed in another way than the next ones."""
        self._transpose = None
        same = self._double_backward == (tangents and network.jvp_mode == "double_backward")
        same = same and (self._smooth or not smooth)
        return same and network is self._network and not network.has_hooks() and torch.equal(x, self._x)

    def vjp(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T u``: (B, C) -> (B, *S), contiguous: arithmetic with images in channels last is slow."""
        self._network.passes.vjp += cotangent.shape[0]
        first = self._double_backward and self._transpose is None
        device = self._x.device  # backward passes, too, follow the caller's modes otherwise
        with self._network.session(device), self._network.backward(device):
            u = detached(cotangent).requires_grad_(first)
            # given a gradient of the outputs, PyTorch would import its compiler's algebra, which takes longer than most
            # maps of one image: the gradient of <F, u> has the same bits
            paired = (self._logits * u).sum()
            try:
                (product,) = torch.autograd.grad(
                    paired, self._x, retain_graph=True, create_graph=first, materialize_grads=True
                )
            except RuntimeError as error:
                if "heckpoint" not in str(error):
                    raise
                if self._replaces:
                    # a checkpoint runs its part again within the backward pass, where layers are not replaced
                    self._replace_nothing()
                    self._logits = self._evaluate()
                    return self.vjp(cotangent)
                product, first = self._accumulated(u), False
        if first:  # the same product, with its graph, is what JVPs differentiate
            self._transpose = (product, u)
        return product.detach().contiguous()

    def _accumulated(self, u: Tensor) -> Tensor:
        """The same product by way of ``.grad``: all that re-entrant checkpointing supports. Weights are frozen."""
        self._x.grad = None
        with BackwardLayouts():
            torch.autograd.backward(self._logits, u.detach(), retain_graph=True)
        product, self._x.grad = self._x.grad, None
        return torch.zeros_like(self._x) if product is None else product

    def jvp(self, tangent: Tensor) -> Tensor:
        """Return ``J v``: (B, *S) -> (B, C)."""
        if tangent.shape != self._x.shape:
            raise InputError(
                f"got shape {tuple(tangent.shape)}, expected {tuple(self._x.shape)} as the inputs", argument="tangent"
            )
        self._network.passes.jvp += tangent.shape[0]
        if not self._double_backward:
            return self._forward_mode(tangent)
        if self._transpose is None:
            self.vjp(torch.zeros_like(self.value))
        if self._transpose is None:
            raise NotDifferentiableError(
                "re-entrant checkpointing gives gradients and no Jacobian-vector products",
                argument="model",
                hint=f"checkpoint with use_reentrant=False, or {WITHOUT_JVP}",
            )
        product, u = self._transpose
        tangent = tangent.contiguous(memory_format=self._network.layout(tangent))
        try:
            with self._network.session(self._x.device), self._network.rounding():
                paired = (product * detached(tangent)).sum()
                (column,) = torch.autograd.grad(paired, u, retain_graph=True, allow_unused=True)
        except RuntimeError as error:
            if is_machine_error(error):
                raise
            self.use_forward_mode(first_line(error))
            return self._forward_mode(tangent)
        # as under once_differentiable: a zero here would be silent and wrong
        if column is None:  # pyright: ignore[reportUnnecessaryComparison] (allow_unused gives None)
            self.use_forward_mode("its backward pass leaves no graph")
            return self._forward_mode(tangent)
        return column

    def use_forward_mode(self, reason: str) -> None:
        """Use forward mode from now on, in this and in later linearisations of the network."""
        self._double_backward = False
        self._network.jvp_mode = "forward"
        log.info("Jacobian-vector products use forward-mode differentiation: %s", reason)
        warn_caller(
            f"the model has no second derivatives ({reason}); Jacobian-vector products use "
            "forward-mode differentiation, at one more forward pass each"
        )

    def _forward_mode(self, tangent: Tensor) -> Tensor:
        def evaluate(x: Tensor) -> Tensor:
            return self._network.evaluate(x, self._arguments)

        with self._network.session(tangent.device):
            try:
                column = torch.func.jvp(evaluate, (self._x.detach(),), (detached(tangent),))[1]
            except (RuntimeError, NotImplementedError) as error:
                if is_machine_error(error):
                    raise
                raise NotDifferentiableError(
                    "neither differentiating its backward pass nor forward-mode differentiation works "
                    f"({first_line(error)})",
                    argument="model",
                    hint="replace the operation it names",
                ) from error
        return column.detach()
