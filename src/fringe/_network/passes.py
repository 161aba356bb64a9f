"""Run a user's network: in a defined state, within the device's memory, with every pass counted and checked."""

import contextlib
import copy
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks  # pyright: ignore[reportPrivateUsage]
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from fringe._network.arguments import NO_ARGUMENTS, ForwardArguments, integers_hint
from fringe._network.balanced_gradients import balance_gradients
from fringe._network.isolation import Mode, detached, isolated, reached_modules, refusing_training, set_tf32
from fringe._network.linear_layers import (
    BackwardLayouts,
    FindFolds,
    Fold,
    FoldedLayers,
    GradientLayouts,
    LinearLayers,
    NotFoldable,
    keep_gradient_layouts,
)
from fringe._network.outputs import (
    AnyOutput,
    ScoreFunction,
    as_logits,
    as_score,
    refuse_independent_labels,
    with_tensors,
)
from fringe._network.rectifiers import Rectifiers
from fringe._numbers.float64 import float64_on
from fringe._strings.progress import log
from fringe.errors import (
    InputError,
    ModelError,
    ModelOutputError,
    first_line,
    is_machine_error,
    is_out_of_memory,
    line_of,
    require,
    warn_caller,
)

Result = TypeVar("Result", Tensor, tuple[Tensor, Tensor])

#: Where "auto" begins. A GPU reports when memory runs out; a CPU process is killed, and gains nothing past a few.
_START = {"cuda": 256, "cpu": 16}
#: Bytes of the inputs of the first pass on a CPU, and of all that the operations of a pass return.
FIRST_BYTES, PASS_BYTES = 2**26, 2**30


#: Held by the thread with an open session: modes of modules and settings of PyTorch belong to the whole process.
_ONE_THREAD = threading.RLock()
#: What PyTorch raises where hooks would save tensors.
_SAVED_BY_HOOKS = "fringe cannot read the graph of a model with hooks that save tensors"
#: Advice for a model that takes sequences (L, B, F).
SEQUENCE_FIRST = (
    "its layers have batch_first=False, so they take sequences (L, B, F): make them with batch_first=True, or pass a "
    "function of the batch, as in lambda x: model(x.transpose(0, 1))"
)
#: Where modules keep their hooks.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass
class PassCounts:
    """Passes through the network, counted in images: a call on a batch of 8 counts 8.

    Attributes:
        forward: Forward passes.
        jvp: Jacobian-vector products.
        vjp: Vector-Jacobian products, i.e. backward passes.
    """

    forward: int = 0
    jvp: int = 0
    vjp: int = 0

    def since(self, before: "PassCounts") -> "PassCounts":
        """Return the passes made since an earlier count."""
        return PassCounts(self.forward - before.forward, self.jvp - before.jvp, self.vjp - before.vjp)

    def set(self, to: "PassCounts") -> None:
        """Set the numbers in place: copies of a network share their count."""
        vars(self).update(vars(to))

    def add(self, passes: "PassCounts", count: int, size: int) -> None:
        """Add the passes of the first ``count`` of ``size`` images, of those that were made with all of them."""
        both = zip(vars(self).values(), vars(passes).values(), strict=True)
        self.set(PassCounts(*(a + b * count // size for a, b in both)))


class _OneAtATime(RuntimeError):
    """A network takes one image, and not several at once."""


class BatchSize:
    """A bound on the images of one pass; halved when memory runs out, and the smaller bound holds for later calls."""

    def __init__(self, size: int | Literal["auto"] = "auto"):
        is_size = size == "auto" or (type(size) is int and size >= 1)  # a caller may pass 2.5, True or None
        require(is_size, "batch_size", size, "'auto' or a positive integer")
        self.requested: int | Literal["auto"] = size
        self._size = None if size == "auto" else size
        self._shape: torch.Size | None = None  # of inputs whose pass was measured
        self._fits = _START["cpu"]

    def on(self, device: torch.device) -> int:
        """Return the bound on a device."""
        return self._size or (_START["cuda"] if device.type == "cuda" else self._fits)

    def begin(self, x: Tensor) -> bool:
        """Bound the first pass on inputs (B, *S) of a new shape by their size; return whether it is to be measured."""
        if self._size is not None or x.device.type == "cuda" or x.shape[1:] == self._shape or not len(x):
            return False
        self._shape, self._fits = x.shape[1:], _START["cpu"]
        self.bound(FIRST_BYTES, x[0].nbytes)
        return True

    def bound(self, limit: int, each: int) -> None:
        """Bound passes on a CPU: inputs of so many bytes ``each`` stay within a limit, but for one."""
        self._fits = max(1, min(self._fits, limit // max(each, 1)))

    def halve(self, device: torch.device, error: Exception) -> None:
        """Halve the bound; re-raise ``error`` if one image already is too much, or if memory is not its cause. A
        network that takes one image at a time gets one."""
        size = self.on(device)
        if isinstance(error, _OneAtATime) and size > 1:
            warn_caller(f"{error}: its passes have one image each from now on")
            self._size = 1
            return
        if size == 1 or not is_out_of_memory(error):
            raise error
        self._size = size // 2
        log.info("memory of %s ran out: %d images a pass instead of %d", device, self._size, size)
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def map(self, function: Callable[..., Result], *arguments: Tensor) -> Result:
        """Apply ``function`` to the rows of ``arguments`` in chunks and concatenate the results."""
        device, total = arguments[0].device, arguments[0].shape[0]
        parts: list[Any] = []
        done = 0
        while done < total or not parts:  # no rows: one call says what their results look like
            stop = min(done + self.on(device), total)
            try:
                parts.append(function(*(a[done:stop] for a in arguments)))
            except (RuntimeError, MemoryError) as error:
                self.halve(device, error)
                continue
            done = stop
        shapes = {part.shape[1:] for part in parts} if isinstance(parts[0], Tensor) else set[torch.Size]()
        if len(shapes) > 1:
            text = "wrap a tensor that is the same for all images, such as prompts, as fringe.Shared(tensor)"
            message = (
                f"its outputs have other shapes in other parts of the batch: {', '.join(map(str, map(tuple, shapes)))}"
            )
            raise ModelOutputError(message, argument="model", hint=text)
        if isinstance(parts[0], Tensor):
            return cast(Result, torch.cat(parts))
        return cast(Result, tuple(torch.cat(column) for column in zip(*parts, strict=True)))


class _Returned(TorchFunctionMode):
    """Counts the bytes that functions of PyTorch return: about what a graph keeps for its backward pass. (A mode that
    sees each operation would import PyTorch's compiler, which takes seconds.)"""

    bytes = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in cast(tuple[Any, ...], result) if isinstance(result, (tuple, list)) else (result,):
            is_new = isinstance(value, Tensor) and not (value._is_view() or any(value is a for a in args))
            self.bytes += value.nbytes if is_new else 0
        return result


class Network:
    """A module or callable ``x (B, *S) -> logits (B, C)`` whose outputs are checked and whose passes are counted."""

    def __init__(
        self, model: Callable[..., Any], output: AnyOutput, mode: Mode, batch_size: int | Literal["auto"]
    ) -> None:
        self.model = _unwrapped(model)
        if isinstance(self.model, nn.Module) and output != "numbers":
            refuse_independent_labels(self.model)
        self.module = self.model if isinstance(self.model, nn.Module) else None
        self.output: AnyOutput = output
        self.score_function: ScoreFunction | None = None  # takes the place of classes
        self.choose_output: Callable[[Any], Any] | None = None  # of what the model returns, the logits
        self.mode: Mode = mode
        self.batch_size = BatchSize(batch_size)
        self.passes = PassCounts()
        self.jvp_mode: Literal["double_backward", "forward", "none"] = "double_backward"
        self.channels_last = set[torch.Size]()  # of inputs that give the same in this layout, as verify saw
        parts = self.module.modules() if self.module is not None else [self.model]
        self.is_scripted = any(isinstance(part, (torch.jit.ScriptModule, torch.jit.ScriptFunction)) for part in parts)
        self.tf32 = False  # whether float32 products in the network may be rounded to 10 bits on a GPU
        self.linear_layers = True  # whether graphs for Jacobian-vector products replace layers, see LinearLayers
        self.smooth_rectifiers = True  # whether their slopes can be smooth, see Rectifiers
        self.readable_graph = True  # unless hooks save tensors for the backward pass, as those of checkpoints do
        self.balanced: list[int] | None = None  # if not None, graphs are balanced, and this lists their gates
        self.fold_batch_norm = False
        self.folds: dict[int, Fold] | None = None  # by the id of a weight; None: not looked for since weights changed
        self.state: object = None
        self._modules: list[nn.Module] = []
        self._tensors: list[Tensor] = []
        self.verified = set[object]()  # what fringe.paths.verify need not check again while the state is the same
        self.verified_point: Any = None  # the expansion at the only image that was verified, until the next one is made
        self._is_open = self._checked = False
        self._classes = dict[int, int]()  # how many there are, by the id of what ran in an open session

    def with_model(self, model: nn.Module) -> Self:
        """Return the interface to another network with outputs of the same kind, in the same way: the same score, batch
        size and mode, with a count of its own."""
        other = copy.copy(self)
        other.model = other.module = model
        other.passes, other._is_open, other._checked = PassCounts(), False, False
        other.state, other.verified, other.folds = None, set(), None
        other.channels_last = set(self.channels_last)
        other.output = "logits" if self.output == "auto" else self.output  # the kind was checked on this network
        return other

    @contextlib.contextmanager
    def session(self, device: torch.device) -> Generator[None]:
        """Hold the model isolated over many calls; each call isolates it by itself otherwise. Re-entrant; other threads
        wait until it ends.

        What outputs look like is checked at the first call of a session: the answer is read back from the device, which
        then has to wait.
        """
        with _ONE_THREAD:
            if self._is_open:
                yield
                return
            before, self.state = self.state, self._read_state()
            if self.state != before:
                self.verified.clear()
                self.channels_last.clear()
                self.folds = None
            self._is_open, self._checked, self._classes = True, False, {}
            try:
                reached = reached_modules(self.model, self.score_function, self.choose_output)
                with float64_on(device), isolated(reached, device, self.mode):
                    yield
            finally:
                self._is_open, self.verified_point = False, None

    def _read_state(self) -> object:
        """What is equal to that of an earlier session if the network is the same; a function tells nothing."""
        if self.module is None:
            return object()
        # those of the last session were held until now, so new ones lie at other addresses
        self._tensors = [*self.module.parameters(), *self.module.buffers()]
        versions = [(t.data_ptr(), None if t.is_inference() else t._version) for t in self._tensors]
        # copies of the weights compute where they are folded; a change through ``.data`` has no version
        sums = [t.detach().sum().item() for t in self._tensors if self.fold_batch_norm]
        self._modules = list(self.module.modules())
        return id(self.module), versions, sums, [getattr(m, "training", False) for m in self._modules]

    @property
    def is_checked(self) -> bool:
        """Whether a session is open, and its outputs are checked."""
        return self._is_open and self._checked

    @contextlib.contextmanager
    def rounding(self) -> Generator[None]:
        """Round as ``tf32`` says, in the network alone: an open session has everything in full precision."""
        if not self.tf32:
            yield
            return
        set_tf32(True)
        try:
            yield
        finally:
            set_tf32(False)

    @contextlib.contextmanager
    def in_full_precision(self) -> Generator[None]:
        """Compute in full precision whatever ``tf32`` says."""
        tf32, self.tf32 = self.tf32, False
        try:
            yield
        finally:
            self.tf32 = tf32

    @contextlib.contextmanager
    def backward(self, device: torch.device) -> Generator[None]:
        """Return the context of a backward pass through logits of :meth:`evaluate`."""
        layouts = BackwardLayouts() if self.is_scripted and device.type == "cpu" else contextlib.nullcontext()
        with self.rounding(), layouts:
            yield

    def logits(self, x: Tensor, arguments: ForwardArguments = NO_ARGUMENTS, *, as_given: bool = False) -> Tensor:
        """Compute logits without a graph, in chunks of the batch size.

        Args:
            x: Inputs (B, *S).
            arguments: Further arguments of the model.
            as_given: Whether inputs keep the caller's memory layout: what :func:`fringe.paths.verify` compares others
                with. They have the same bits whether that is known or not.

        Returns:
            Logits (B, C).
        """
        x = self._validate_inputs(x)
        is_new = [self.batch_size.begin(x)]

        def forward(part: Tensor, rows: Tensor) -> Tensor:
            first = is_new.pop() if is_new else False
            plain = self.find_folds(part[:1], arguments.select(rows[:1])) if self.fold_batch_norm else None
            with torch.no_grad():
                logits = self.evaluate(part, arguments.select(rows), measured=first)
                if plain is not None and not self.keep_folds(logits[:1], plain):
                    logits = self.evaluate(part, arguments.select(rows), measured=first)
                return logits

        with self.session(x.device):
            known = self.channels_last
            self.channels_last = set() if as_given else known
            try:
                return self.batch_size.map(forward, x, torch.arange(len(x), device=x.device))
            finally:
                self.channels_last = known

    def evaluate(
        self,
        x: Tensor,
        arguments: ForwardArguments = NO_ARGUMENTS,
        *,
        tangents: bool = False,
        smooth: bool = False,
        measured: bool = False,
    ) -> Tensor:
        """Return logits (B, C) as the model gives them, graph included: one counted forward pass in an open session.

        With ``tangents`` the backward pass will be differentiated, with ``smooth`` that of rectifiers may take a smooth
        slope, with ``measured`` what the operations of the pass return bounds later ones.
        """
        self.passes.forward += x.shape[0]
        try:
            with _Returned() if measured else contextlib.nullcontext() as returned:
                output = with_tensors(self._computed(x, arguments, tangents, smooth), x.device)
            if returned is not None:
                self.batch_size.bound(PASS_BYTES, returned.bytes // len(x))
        except (StopIteration, RecursionError) as error:  # a generator around would take the former for its own end
            message = f"it ends in {type(error).__name__}{line_of(error)}"
            raise ModelError(message, argument="model", hint="call it with one input, and mend that") from error
        except (RuntimeError, AssertionError) as error:  # the latter of an exported program
            if self._takes_one(x, arguments, error):
                message = f"the model takes one image at a time, not {len(x)} ({first_line(error)})"
                raise _OneAtATime(message) from error
            error.add_note(
                f"while running the model on inputs of shape {tuple(x.shape)}, {x.dtype}, on {x.device}; "
                f"{arguments.hint}"
            )
            raise
        if self.score_function is not None:
            logits = as_score(self.score_function, output, x.shape[0])
        else:
            logits = self._read_logits(output, x, arguments)
        if self.readable_graph and logits.device.type == "cpu":
            keep_gradient_layouts(logits)
        if self.balanced is not None:
            self.balanced.append(balance_gradients(logits))
        return logits

    def _read_logits(self, output: Any, x: Tensor, arguments: ForwardArguments) -> Tensor:
        """The logits in what the model returned for ``x``, checked at the first pass of a session."""
        try:
            logits = self.logits_of(output, x.shape[0], check=not self._checked)
        except ModelOutputError as error:
            if arguments.by_row and len(x) == 1 and error.hint is None:  # one row of a tensor that all images share?
                error.hint = arguments.hint
            if error.hint is None and self.reads_sequences_first(x):
                error.hint = SEQUENCE_FIRST
            raise
        known = self._classes.setdefault(id(self.model), logits.shape[1])  # copies may run another function
        if logits.shape[1] != known:
            message = f"its output has {logits.shape[1]} classes, and had {known} in an earlier pass"
            hint = "return logits of the same classes for every input and in every call"
            raise ModelOutputError(message, argument="model", hint=arguments.hint if arguments.by_row else hint)
        self._checked = True
        return logits

    def logits_of(self, output: Any, batch: int, *, check: bool) -> Tensor:
        """Return the logits (B, C) in what the model returned, see :func:`as_logits`."""
        chosen = output if self.choose_output is None else self.choose_output(output)
        return as_logits(chosen, batch, self.output, check=check)

    def _computed(self, x: Tensor, arguments: ForwardArguments, tangents: bool, smooth: bool) -> Any:
        """What the model returns, with folds but for hooks, which see the network as it was written."""
        folded = FoldedLayers(self.folds) if self.folds and not self.has_hooks() else contextlib.nullcontext()
        linear = LinearLayers() if tangents and self.linear_layers else contextlib.nullcontext()
        rectifiers = Rectifiers() if smooth and self.smooth_rectifiers else contextlib.nullcontext()
        layouts: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
        if x.device.type == "cpu" and torch.is_grad_enabled():
            layouts = disable_saved_tensors_hooks(_SAVED_BY_HOOKS) if self.readable_graph else GradientLayouts()
        is_function = self.module is None and not self._checked and self.mode == "eval"
        hidden = refusing_training(self.model) if is_function else contextlib.nullcontext()
        try:
            with linear, rectifiers, self.rounding(), layouts, folded, hidden:
                return self._run(x, arguments)
        except NotFoldable:
            self.folds = {}
        except RuntimeError as error:
            if not self.readable_graph or _SAVED_BY_HOOKS not in str(error):
                raise
            self.readable_graph = False
        return self._computed(x, arguments, tangents, smooth)

    def reads_sequences_first(self, x: Tensor) -> bool:
        """Return whether layers of the module take sequences (L, B, F), and not such inputs (B, L, F)."""
        modules = () if self.module is None or x.dim() != 3 else self.module.modules()
        return any(getattr(module, "batch_first", True) is False for module in modules)

    def has_hooks(self) -> bool:
        """Return whether hooks run in the module of an open session, which must see every call as it was written."""
        return bool(has_global_hooks()) or any(vars(m).get(kind) for m in self._modules for kind in _HOOKS)

    def is_plain(self) -> bool:
        """Return whether the module of an open session is all that runs, as Python code: nothing tells what else a
        function does."""
        alone = self.model is self.module and self.score_function is None
        return alone and not self.is_scripted and not self.has_hooks()

    def find_folds(self, x: Tensor, arguments: ForwardArguments) -> Tensor | None:
        """Find what can be folded, once for a network, by a pass of the input ``x`` (1, *S). Returns its logits without
        folds; None where there are none."""
        if self.folds is not None:
            return None
        self.folds = {}
        norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
        if self.is_scripted or not any(isinstance(m, norms) for m in self._modules):
            return None
        if self.has_hooks() or not len(x):
            return None
        # all inputs will say what is wrong
        with torch.no_grad(), contextlib.suppress(Exception), FindFolds() as finder:
            logits = self.evaluate(x, arguments)
            self.folds = finder.folds(self._modules)
            return logits
        return None

    def keep_folds(self, logits: Tensor, plain: Tensor) -> bool:
        """Whether ``logits`` (1, C) of an input among others, with folds, are the ``plain`` ones of it alone but for
        rounding; else there are no folds from now on."""
        eps = torch.finfo(plain.dtype).eps
        same = bool((logits - plain).abs().max() <= eps**0.5 * plain.abs().max())
        self.folds = self.folds if same else {}
        return same

    def _takes_one(self, x: Tensor, arguments: ForwardArguments, error: Exception) -> bool:
        """Whether a model that fails on several images, twice, takes the first one alone.

        With arguments that belong to images, the cause may be that they do not.
        """
        if len(x) == 1 or arguments.by_row or is_machine_error(error):
            return False
        with torch.no_grad(), contextlib.suppress(Exception):  # whatever a model raises
            output = with_tensors(self._run(x[:1], arguments), x.device)
            if self.score_function is None:
                self.logits_of(output, 1, check=False)
            try:
                self._run(x, arguments)
            except Exception:
                return True
        return False

    def _run(self, x: Tensor, arguments: ForwardArguments) -> Any:
        """Run the model on a copy of ``x``: it may work in place, on neither a leaf nor the caller's storage.

        On a CPU, images go in channels last where the network gives the same: convolutions are 1.1 to 1.4 times as
        fast (benchmarks/layout.py).
        """
        return arguments.call(self.model, x.clone(memory_format=self.layout(x)))

    def layout(self, x: Tensor) -> torch.memory_format:
        """Return the memory format in which ``x`` goes through the network."""
        last = x.dim() == 4 and x.device.type == "cpu" and x.shape[1:] in self.channels_last
        return torch.channels_last if last else torch.contiguous_format

    def _validate_inputs(self, x: Tensor) -> Tensor:
        """Return ``x`` without its graph; refuse a dtype or device that the model's weights do not have."""
        if not x.is_floating_point():
            raise InputError(f"got dtype {x.dtype}, expected floating point", argument="inputs", hint=integers_hint(x))
        weight = next((p for p in self.module.parameters() if p.is_floating_point()), None) if self.module else None
        if weight is not None and (weight.dtype, weight.device) != (x.dtype, x.device):
            raise InputError(
                f"got {x.dtype} on {x.device}, but the model's weights are {weight.dtype} on {weight.device}",
                argument="inputs",
                hint="move one to the other with .to(dtype=..., device=...)",
            )
        return detached(x)


def network_of(network: Network, label: str) -> nn.Module:
    """Return the module whose layers a method reads; raise InputError for a plain callable."""
    if network.module is None:
        message = f"got a {type(network.model).__name__}, and {label} reads the layers of a torch.nn.Module"
        raise InputError(message, argument="model", hint="pass the module itself")
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.module.modules()):
        message = f"it is traced or scripted, and hooks of {label} do not run in its layers"
        raise InputError(message, argument="model", hint="pass the module that it was made from")
    return network.module


def _unwrapped(model: Callable[..., Any]) -> Callable[..., Any]:
    """The module behind data-parallel and compiled wrappers, in float32 at least."""
    while True:  # a compiled module is explained as it was written: AOT autograd has no second derivatives
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            inner = model.module
        else:
            inner = getattr(model, "_orig_mod", model)
        if inner is model:
            break
        model = inner
    if not isinstance(model, nn.Module):
        return model
    parameters = list(model.parameters())
    if any(map(is_lazy, parameters)):
        hint = "call the model once, or load its weights, where it is made"
        raise InputError("its lazy layers have no weights yet", argument="model", hint=hint)
    if any(p.is_inference() for p in parameters):
        raise InputError(
            "it was built under torch.inference_mode, so autograd cannot use its weights",
            argument="model",
            hint="build it outside",
        )
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters):
        log.info("the model is in half precision: a float32 copy of it is explained")
        try:
            return copy.deepcopy(model).float()
        except (RuntimeError, TypeError) as error:  # such as for activations that it keeps, with their graph
            message = f"it is in half precision, and no copy of it can be made ({first_line(error)})"
            raise InputError(message, argument="model", hint="pass it in float32, as in model.float()") from error
    return model
