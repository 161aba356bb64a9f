"""A network's passes as CUDA graphs: recorded once for a number of images, then launched as a whole.

The host launches each operation of a pass by itself otherwise, and in small batches the GPU waits for it.
"""

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from fringe._arguments import NO_ARGUMENTS, ForwardArguments
from fringe._isolation import detached
from fringe._linear_layers import LinearLayers
from fringe._linearisation import Linearisation
from fringe._network import Network
from fringe._progress import log
from fringe.errors import first_line, is_out_of_memory

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
        self._read = [] if module is None else [*module.parameters(), *module.buffers()]
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
