"""The first-order expansion of a network, its value and products with its Jacobian; and its passes as CUDA graphs.

Graphs are recorded once for a number of images, then launched as a whole. The host launches each operation of a pass by
itself otherwise, and in small batches the GPU waits for it.
"""

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fringe._arguments import NO_ARGUMENTS, ForwardArguments
from fringe._isolation import detached
from fringe._linear_layers import BackwardLayouts, LinearLayers
from fringe._network import Network
from fringe._progress import log
from fringe.errors import InputError, NotDifferentiableError, first_line, is_machine_error, is_out_of_memory

#: Advice for a model whose gradients are right and whose Jacobian-vector products are missing or wrong.
WITHOUT_JVP = (
    "choose methods of gradients alone, such as FRInGe() for images, or FRInGe(jacobian='explicit'), and leave out the "
    "control diffusion (controls=False)"
)


class Linearisation:
    """Value (B, C) and Jacobian products of a network at B points, from one forward pass.

    The VJP runs the retained graph backwards. The JVP differentiates that backward pass in its cotangent, in which it
    is linear: ``J v = d <J^T u, v> / du``; for a model without second derivatives it uses forward-mode AD, at a forward
    pass per product (``network.jvp_mode`` says which is in use).
    """

    def __init__(self, network: Network, x: Tensor, tangents: bool, arguments: ForwardArguments):
        self._arguments = arguments
        self._network, self._double_backward = network, tangents and network.jvp_mode == "double_backward"
        self._x = x.requires_grad_(True)
        self._transpose: tuple[Tensor, Tensor] | None = None
        self._logits = self._evaluate()
        if self._logits.grad_fn is None:
            raise NotDifferentiableError(
                "its output is not connected to the input by autograd (torch.no_grad, .detach(), NumPy, argmax or an "
                "inference session inside the model). FRInGe needs a differentiable model",
                argument="model",
            )
        self.value = self._logits.detach()

    def _evaluate(self) -> Tensor:
        layers = LinearLayers() if self._double_backward and self._network.linear_layers else contextlib.nullcontext()
        try:
            with self._network.session(self._x.device), layers:
                return self._network.evaluate(self._x, self._arguments)
        except RuntimeError as error:
            if "functorch transforms" not in str(error) or not self._network.linear_layers:
                raise
            self._network.linear_layers = False  # a model that uses torch.vmap inside
            return self._evaluate()

    def vjp(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T u``: (B, C) -> (B, *S), contiguous: arithmetic with images in channels last is slow."""
        self._network.passes.vjp += cotangent.shape[0]
        first = self._double_backward and self._transpose is None
        device = self._x.device  # backward passes, too, follow the caller's modes otherwise
        with self._network.session(device), self._network.backward(device):
            u = detached(cotangent).requires_grad_(first)
            try:
                (product,) = torch.autograd.grad(
                    _paired(self._logits, u), self._x, retain_graph=True, create_graph=first, materialize_grads=True
                )
            except RuntimeError as error:
                if "heckpoint" not in str(error):
                    raise
                if self._network.folds or (self._double_backward and self._network.linear_layers):
                    # a checkpoint runs its part again within the backward pass, where layers are not replaced
                    self._network.linear_layers, self._network.folds = False, {}
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
                (column,) = torch.autograd.grad(
                    _paired(product, detached(tangent)), u, retain_graph=True, allow_unused=True
                )
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
        warnings.warn(
            f"the model has no second derivatives ({reason}); Jacobian-vector products use "
            "forward-mode differentiation, at one more forward pass each",
            stacklevel=4,
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


def _paired(outputs: Tensor, cotangent: Tensor) -> Tensor:
    """The scalar whose gradient is the product with ``cotangent``, to the same bits: given a gradient of the outputs,
    PyTorch imports its compiler's algebra, which takes longer than most maps of one image."""
    return (outputs * cotangent).sum()


#: Most images of a recorded pass. Larger batches keep a GPU busy, and to fill them up to a power of two costs time.
MOST = 32
#: Fewer images than this, but not one alone, share the graph of this many.
LEAST = 8
#: Calls for a number of images before it is recorded, which takes as long as about as many.
PLAIN_VISITS = 3


class RecordedPasses:
    """A forward pass, a VJP and, with ``tangents``, a JVP of ``size`` images, in memory of their own.

    They hold one point at a time, which the number of the last :meth:`forward` names (``visit``).
    """

    def __init__(self, network: Network, like: Tensor, size: int, tangents: bool):
        self._network, self.tangents, self.visit = network, tangents, 0
        self.transposed = False  # whether a VJP was computed at this point: JVPs differentiate its operations
        self.x = like[:1].expand(size, *like.shape[1:]).clone().requires_grad_(True)
        module = network.module
        # what the graphs read must live as long as they do: copies of buffers end with the session
        self._read = [network.folds, *([] if module is None else [*module.parameters(), *module.buffers()])]
        before = replace(network.passes)
        try:
            self._record()
        finally:
            vars(network.passes).update(vars(before))  # no image passed through; copies of the network share the count

    def _record(self) -> None:
        device = self.x.device
        current, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
        pool = torch.cuda.graph_pool_handle()

        def captured(run: Callable[[], Tensor]) -> tuple[Tensor, Callable[[], None]]:
            graph = torch.cuda.CUDAGraph()
            # other threads may use the device meanwhile, and autograd works in one of its own
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                result = run()
            return result, graph.replay

        with torch.cuda.stream(current):  # where a recording that fails would not return to
            stream.wait_stream(current)
            with torch.cuda.stream(stream):  # libraries set themselves up at their first call, which no graph may hold
                self._logits = self._forward()
                self.u = torch.zeros_like(self._logits).requires_grad_(self.tangents)
                self._product = self._vjp()
                self.v = torch.zeros_like(self.x)
                if self.tangents:
                    self._jvp()
            current.wait_stream(stream)
            self._logits, self._replay_forward = captured(self._forward)
            self._product, self._replay_vjp = captured(self._vjp)
            if self.tangents:
                self._column, self._replay_jvp = captured(self._jvp)

    def _forward(self) -> Tensor:
        replaces = self.tangents and self._network.linear_layers
        with LinearLayers() if replaces else contextlib.nullcontext():
            return self._network.evaluate(self.x)

    def _vjp(self) -> Tensor:
        with self._network.rounding():
            (product,) = torch.autograd.grad(
                self._logits, self.x, self.u, retain_graph=True, create_graph=self.tangents, materialize_grads=True
            )
        return product

    def _jvp(self) -> Tensor:
        with self._network.rounding():
            return torch.autograd.grad(self._product, self.u, self.v, retain_graph=True)[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) at ``x`` (B, *S), which the products are of from now on."""
        self.x.detach()[: len(x)].copy_(x)
        self._replay_forward()
        self.visit, self.transposed = self.visit + 1, False
        return self._logits.detach()[: len(x)].clone()

    def vjp(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T u``: (B, C) -> (B, *S)."""
        self.u.detach()[: len(cotangent)].copy_(cotangent)
        self._replay_vjp()
        self.transposed = True
        return self._product.detach()[: len(cotangent)].clone(memory_format=torch.contiguous_format)

    def jvp(self, tangent: Tensor) -> Tensor:
        """Return ``J v``: (B, *S) -> (B, C)."""
        self.v.detach()[: len(tangent)].copy_(tangent)
        self._replay_jvp()
        return self._column.detach()[: len(tangent)].clone()


class RecordedLinearisation(Linearisation):
    """The expansion of a network at B points by recorded passes, which evaluate them again if they have moved on."""

    def __init__(self, network: Network, x: Tensor, passes: RecordedPasses):
        self._network, self._x, self._passes = network, x, passes
        self._double_backward, self._arguments = False, NO_ARGUMENTS  # how the plain one would compute a JVP
        self.value = self._visit_point()

    def _visit_point(self) -> Tensor:
        self._network.passes.forward += len(self._x)
        value = self._passes.forward(self._x)
        self._visit = self._passes.visit
        return value

    def vjp(self, cotangent: Tensor) -> Tensor:
        self._network.passes.vjp += len(cotangent)
        if self._passes.visit != self._visit:
            self._visit_point()
        return self._passes.vjp(detached(cotangent))

    def jvp(self, tangent: Tensor) -> Tensor:
        if not self._passes.tangents or tangent.shape != self._x.shape:
            return super().jvp(tangent)
        self._network.passes.jvp += len(tangent)
        if self._passes.visit != self._visit or not self._passes.transposed:
            self.vjp(torch.zeros_like(self.value))
        return self._passes.jvp(detached(tangent))


class CUDAGraphs:
    """The recorded passes of a network, by the number of images and more. They serve until the network changes."""

    devices = ("cuda",)
    recorder = RecordedPasses

    def __init__(self) -> None:
        self._passes: dict[tuple[object, ...], RecordedPasses | None] = {}
        self._visits = Counter[tuple[object, ...]]()
        self._refused = False
        self._state: object = None

    def _keep_current(self, network: Network) -> None:
        """Forget the passes of other networks, and of this one if it has changed: they read its weights and copies of
        its buffers."""
        current = id(network.model) if network.state == self._state else None
        for known in (self._passes, self._visits):
            for key in [key for key in known if key[0] != current]:
                del known[key]
        self._state = network.state

    def linearise(
        self, network: Network, x: Tensor, tangents: bool, arguments: ForwardArguments
    ) -> RecordedLinearisation | None:
        """Return the expansion at ``x`` by recorded passes; None where these points are for plain ones."""
        plain = arguments == NO_ARGUMENTS and network.is_checked
        if self._refused or not plain or x.device.type not in self.devices or not 1 <= len(x) <= MOST:
            return None
        if network.state is not self._state:  # another session
            self._keep_current(network)
        tangents = tangents and network.jvp_mode == "double_backward"
        size = 1 if len(x) == 1 else max(LEAST, 1 << (len(x) - 1).bit_length())
        size = max(len(x), min(size, network.batch_size.on(x.device)))
        key = (id(network.model), size, tangents, network.linear_layers, network.tf32, x.shape[1:])
        key = (*key, x.dtype, x.device)
        self._visits[key] += 1
        if self._visits[key] <= PLAIN_VISITS:
            return None
        if key not in self._passes:
            try:
                self._passes[key] = self.recorder(network, x, size, tangents)
            except RuntimeError as error:  # a device that failed says so again in the plain pass
                self._passes[key], self._refused = None, not is_out_of_memory(error)
                log.warning("no CUDA graph of the model for %d images: %s", size, first_line(error))
        passes = self._passes[key]
        return None if passes is None else RecordedLinearisation(network, x, passes)
