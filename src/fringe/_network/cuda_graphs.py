"""Functions of tensors, with the passes of a network in them, as CUDA graphs.

A graph is recorded once for a number of rows, then launched as a whole. The host launches each operation by itself
otherwise, and in small batches the GPU waits for it.
"""

import operator
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fringe._network.passes import Network, PassCounts
from fringe._strings.progress import log
from fringe.errors import first_line, is_out_of_memory

#: Most rows of a function that is recorded, and most bytes of an argument: more keep a GPU busy. Rows are filled up to
#: a power of two, recorded or not, so that a call gives the same numbers each time.
MOST, MOST_BYTES = 256, 2**23
#: Calls for a number of rows before the function is recorded, which takes as long as about as many.
PLAIN_VISITS = 3
#: Most recordings of a network.
MOST_RECORDINGS = 64

#: Takes trees of tensors with a row for each of L items, and yields such trees, part after part: it computes nothing
#: before the first one is asked for. A tree is a tensor, a tuple or a dataclass of trees, or anything without tensors.
Parts = Callable[..., Iterator[Any]]


def leaves(tree: Any) -> list[Tensor]:
    """Return the tensors of a tree in order."""
    if isinstance(tree, Tensor):
        return [tree]
    below = cast(tuple[Any, ...], tree) if isinstance(tree, tuple) else ()
    below = vars(tree).values() if is_dataclass(tree) else below
    return [leaf for part in below for leaf in leaves(part)]


def _refilled(tree: Any, tensors: Iterator[Tensor]) -> Any:
    """Return a tree with other ``tensors`` in the places of its own."""
    if isinstance(tree, Tensor):
        return next(tensors)
    if isinstance(tree, tuple):
        return tuple(_refilled(part, tensors) for part in cast(tuple[Any, ...], tree))
    if is_dataclass(tree) and not isinstance(tree, type):
        return replace(tree, **{name: _refilled(part, tensors) for name, part in vars(tree).items()})
    return tree


def _copied(result: Any, inputs: list[Tensor], given: list[Tensor]) -> Any:
    """Return a result for as many rows as were ``given``: what is an input as it came, the rest in other memory."""
    known, count = dict(zip(map(id, inputs), given, strict=True)), len(given[0])
    rows = (known[id(x)] if id(x) in known else x.detach()[:count].clone() for x in leaves(result))
    return _refilled(result, rows)


def _python_state(module: nn.Module) -> tuple[list[Any], list[int]]:
    """Return what the attributes of modules and the globals of their classes hold, and the sizes and versions of these
    values: they are the same after a call that wrote to none of them."""
    parts = list(module.modules())
    files = {id(file): file for part in parts if (file := sys.modules.get(type(part).__module__)) is not None}
    values = [value for part in parts for value in vars(part).values()]
    for value in list(values):  # an entry may be replaced
        if isinstance(value, (dict, list)):
            values += cast("dict[Any, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
    values += [value for file in files.values() for value in list(vars(file).values())]
    sizes = [len(cast("set[Any]", v)) for v in values if isinstance(v, (dict, list, set))]
    versions = [v._version for v in values if isinstance(v, Tensor) and not v.is_inference()]
    return values, sizes + versions


class _Seen(TorchFunctionMode):
    """Keeps what is computed, and what it is computed from: a model and a path may drop what a graph still reads."""

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[int, Any] = {}
        self.made: dict[int, Any] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for known, parts in ((self.given, [*args, *(kwargs or {}).values()]), (self.made, [result])):
            while parts:
                part = parts.pop()
                if isinstance(part, (tuple, list)):
                    parts += part
                elif isinstance(part, Tensor) and id(part) not in self.made:
                    known[id(part)] = part
        return result


class Recording:
    """The parts of a function for ``size`` rows, in memory of their own.

    What a part leaves for the next one, such as a network's activations, stays there until the next call of any
    recording with the same ``pool``.
    """

    def __init__(self, network: Network, function: Parts, arguments: tuple[Any, ...], size: int, pool: Any = None):
        self._network, self._size, self.pool = network, size, pool
        self._inputs = [x[:1].expand(size, *x.shape[1:]).clone() for x in leaves(arguments)]
        self._function, self._arguments = function, _refilled(arguments, iter(self._inputs))
        module, self._seen = network.module, _Seen()
        assert module is not None
        # what the graphs read must live as long as they do: copies of buffers end with the session
        self._read: list[Any] = [*module.parameters(), *module.buffers()]
        self._parts: list[tuple[Any, Callable[[], None], PassCounts]] = []
        before, (values, sizes) = replace(network.passes), _python_state(module)
        try:
            self._check(self._record())
            values_now, sizes_now = _python_state(module)
            if sizes != sizes_now or len(values) != len(values_now) or not all(map(operator.is_, values, values_now)):
                raise RuntimeError("its Python code writes to attributes or globals, so calls may differ")
        finally:
            network.passes.set(before)  # no image passed through
        self._read += self._seen.given.values()
        del self._function, self._arguments, self._running, self._seen  # what was computed stays with the graphs

    def _record(self) -> list[Any]:
        """Record the parts; return what they give without a graph."""
        device = self._inputs[0].device
        current = torch.cuda.current_stream(device)
        self.pool = self.pool or (torch.cuda.graph_pool_handle(), torch.cuda.Stream(device))
        pool, stream = self.pool  # memory is used again on the same stream only
        with torch.cuda.stream(current):  # where a recording that fails would not return to
            stream.wait_stream(current)
            with torch.cuda.stream(stream):  # libraries set themselves up at their first call, which no graph may hold
                plain = list(self._function(*self._arguments))
            current.wait_stream(stream)
            self._running = self._function(*self._arguments)  # holds what a later part reads
            for _ in plain:
                graph = torch.cuda.CUDAGraph()
                # other threads may use the device meanwhile, and autograd works in one of its own
                with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                    self._add(graph.replay)
        return plain

    def _add(self, replay: Callable[[], None]) -> None:
        """Run the next part and keep its results, with what repeats it."""
        before = replace(self._network.passes)
        with self._seen:
            result = next(self._running)
        self._parts.append((result, replay, self._network.passes.since(before)))

    def _check(self, plain: list[Any]) -> None:
        """Refuse a function that gives something else when it is repeated."""
        for expected, (result, replay, _) in zip(plain, self._parts, strict=True):
            replay()
            for a, b in zip(leaves(expected), leaves(result), strict=True):
                if not torch.equal(*(torch.nan_to_num(x.detach()) for x in (a, b))):
                    raise RuntimeError("its results differ from call to call")

    def __call__(self, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Yield the results of the parts for at most ``size`` rows."""
        given, total = leaves(arguments), self._network.passes
        for stored, value in zip(self._inputs, given, strict=True):
            stored[: len(value)].copy_(value)
        for result, replay, passes in self._parts:
            replay()
            total.add(passes, len(given[0]), self._size)
            yield _copied(result, self._inputs, given)


@dataclass(eq=False, repr=False)
class CUDAGraphs:
    """The recorded functions of a network, by the number of rows and more. They serve until the network changes.

    Attributes:
        devices: The types of devices on which functions are recorded.
    """

    devices: ClassVar = ("cuda",)
    recorder: ClassVar = Recording

    _recordings: dict[tuple[object, ...], Recording | None] = field(default_factory=dict, init=False)
    _visits: Counter[tuple[object, ...]] = field(default_factory=Counter, init=False)
    _refused: bool = field(default=False, init=False)
    _is_plain: bool = field(default=False, init=False)
    _state: object = field(default=None, init=False)

    def __reduce__(self) -> Any:
        return CUDAGraphs, ()  # another process, or a copy of the model, records its own

    def _keep_current(self, network: Network) -> None:
        """Forget the recordings of other networks, and of this one if it has changed: they read its weights and copies
        of its buffers."""
        current = id(network.model) if network.state == self._state else None
        for known in (self._recordings, self._visits):
            for key in [key for key in known if key[0] != current]:
                del known[key]
        self._state = network.state
        self._is_plain = network.is_plain()

    def call(self, network: Network, function: Parts, name: object, arguments: tuple[Any, ...]) -> Iterator[Any]:
        """Call a function, by a recording where there is one.

        Args:
            network: The network whose passes are in it.
            function: The function.
            name: Equal for functions that do the same.
            arguments: Its arguments, of L rows.

        Returns:
            What the function yields.
        """
        inputs = leaves(arguments)
        rows, device = len(inputs[0]), inputs[0].device
        if network.state is not self._state:  # another session
            self._keep_current(network)
        if not (rows and self._is_plain and network.is_checked and device.type in self.devices):
            return function(*arguments)
        size = max(rows, min(1 << (rows - 1).bit_length(), network.batch_size.on(device)))
        if size > MOST or max(x[0].nbytes for x in inputs) * size > MOST_BYTES:
            return function(*arguments)
        settings = (network.jvp_mode, network.linear_layers, network.smooth_rectifiers, network.tf32)
        key = (id(network.model), size, name, *settings, device, *((x.shape[1:], x.dtype) for x in inputs))
        self._visits[key] += 1
        is_due = self._visits[key] > PLAIN_VISITS and key not in self._recordings and not self._refused
        if is_due and len(self._recordings) < MOST_RECORDINGS:
            self._recordings[key] = self._recorded(network, function, arguments, size)
        recording = self._recordings.get(key)
        return self._filled(network, function, arguments, size) if recording is None else recording(arguments)

    def _filled(self, network: Network, function: Parts, arguments: tuple[Any, ...], size: int) -> Iterator[Any]:
        """Call the function on as many rows as its recording has."""
        given = leaves(arguments)
        rows, total = len(given[0]), network.passes
        if rows == size:
            yield from function(*arguments)
            return
        inputs = [torch.cat([x, x[:1].expand(size - rows, *x.shape[1:])]) for x in given]
        before = replace(total)
        for result in function(*_refilled(arguments, iter(inputs))):
            passes = total.since(before)
            total.set(before)
            total.add(passes, rows, size)
            yield _copied(result, inputs, given)
            before = replace(total)  # others may have counted meanwhile

    def _recorded(self, network: Network, function: Parts, arguments: tuple[Any, ...], size: int) -> Recording | None:
        pool = next((recording.pool for recording in self._recordings.values() if recording is not None), None)
        try:
            return self.recorder(network, function, arguments, size, pool)
        except RuntimeError as error:  # a device that failed says so again in the plain call
            self._refused = not is_out_of_memory(error)
            log.info("no CUDA graph of the model for %d images: %s", size, first_line(error))
            return None
