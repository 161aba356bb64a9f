"""Shared parts of the checks of methods and metrics: the runner, the report, and the checks that both must pass."""

import dataclasses
import json
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fringe._numbers.float64 import has_float64
from fringe._numbers.rng import KeyedGenerator, global_seed
from fringe.baselines import InputSpace
from fringe.errors import FringeError, require_choice
from fringe.settings import Settings, settings_of

CPU = torch.device("cpu")

#: Shape (C, H, W) of an image.
SHAPE = (2, 8, 8)
CLASSES = 3
#: Bounds of an entry.
LOW, HIGH = -3.0, 3.0
#: Number of reference images.
REFERENCES = 5


@dataclass(frozen=True)
class ToyProblems:
    """Make networks and inputs of one precision on one device; on the CPU, if the device has no such precision."""

    dtype: torch.dtype = torch.float64
    device: torch.device = CPU

    def __post_init__(self) -> None:
        if self.dtype == torch.float64 and not has_float64(self.device):
            object.__setattr__(self, "device", CPU)

    def build(self, network: Callable[[], nn.Module], shape: tuple[int, ...] = SHAPE) -> nn.Module:
        """Build a network in evaluation mode, without advancing the global random generator.

        The last linear layer is scaled so that logits have mean 0 and standard deviation 2 over random inputs of this
        ``shape``: every class is then predicted for some inputs.
        """
        with torch.random.fork_rng(devices=[]):
            model = network()
        model = model.to(self.device, self.dtype).eval()
        with torch.no_grad():
            for name, value in (*model.named_parameters(), *model.named_buffers()):
                if name.endswith("running_var"):
                    value.copy_(0.5 + KeyedGenerator(0).uniform(name, value))
                elif value.is_floating_point():
                    value.copy_(KeyedGenerator(0).normal(name, value) / value[0].numel() ** 0.5)
            self._standardise(model, shape)
        return model

    def _standardise(self, model: nn.Module, shape: tuple[int, ...]) -> None:
        *_, head = (module for module in model.modules() if isinstance(module, nn.Linear))
        outputs: list[Tensor] = []

        def capture(module: nn.Module, arguments: tuple[Tensor, ...], output: Tensor) -> None:
            outputs.append(output)

        with head.register_forward_hook(capture):
            model(self.images(64, shape, "standard"))
        deviation = outputs[0].std(0)
        scale = torch.where(deviation > 0, 0.5 * deviation, 1.0)
        head.weight /= scale[:, None]
        head.bias.copy_((head.bias - outputs[0].mean(0)) / scale)

    def images(self, count: int, shape: tuple[int, ...] = SHAPE, key: str = "images") -> Tensor:
        """Draw inputs (count, *shape) with entries uniform on [-2, 2)."""
        like = torch.empty(count, *shape, dtype=self.dtype, device=self.device)
        return 4.0 * KeyedGenerator(0).uniform(key, like) - 2.0

    def space(self, shape: tuple[int, ...] = SHAPE) -> InputSpace:
        """Return the bounds of an entry, with a few reference images."""
        return InputSpace(LOW, HIGH, self.images(REFERENCES, shape, "references"))


def smooth_cnn() -> nn.Module:
    """Smooth network with layers that behave differently in training mode."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Softplus(), nn.AvgPool2d(4), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def relu_cnn() -> nn.Module:
    """Piecewise affine network with in-place activations."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, CLASSES)
    )


def saturated() -> nn.Module:
    """Network whose predictions are exactly one-hot in float32."""
    return nn.Sequential(smooth_cnn(), Times(1e3))


def affine() -> nn.Module:
    """Logits ``W x + b``."""
    return nn.Sequential(nn.Flatten(), nn.Linear(128, CLASSES))


def constant() -> nn.Module:
    """The same logits for every input."""
    return nn.Sequential(Times(0.0), nn.Flatten(), nn.Linear(128, CLASSES))


def blocks_cnn() -> nn.Module:
    """Smooth network that depends only on three blocks of the first channel."""
    return nn.Sequential(
        Blocks(), nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.Softplus(), nn.AvgPool2d(3), nn.Flatten(),
        nn.Linear(3, CLASSES),
    )  # fmt: skip


def mlp() -> nn.Module:
    """Smooth network for tabular inputs (B, 6)."""
    return nn.Sequential(nn.Linear(6, 5), nn.Softplus(), nn.Linear(5, CLASSES))


class Times(nn.Module):
    """Multiply the input by a number."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x


class Blocks(nn.Module):
    """Select three blocks of the first channel of images.

    Their places are such that a shifted, mirrored or transposed map misses them."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0, 1:4, 4:7], x[:, 0, 4:7, :3], x[:, 0, 4:7, 4:7]], 1)


class _CountingModel(nn.Module):
    """Count the ``images`` that pass through a ``model``, and the ``largest`` batch."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.images, self.largest = model, 0, 0
        self.eval().register_forward_pre_hook(lambda _, given: None)  # with a hook, each call is run as it is

    def forward(self, x: Tensor) -> Tensor:
        self.images += x.shape[0]
        self.largest = max(self.largest, x.shape[0])
        return self.model(x)


T = TypeVar("T")

#: Allowed relative difference between batches in float64: matrix products of other sizes round differently, and the
#: steps of a path accumulate this.
ROUNDING = 1e-8


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    Attributes:
        name: Name of the check.
        passed: Whether the check passed, or does not apply.
        detail: The measured numbers, the reason for the failure, or ``"does not apply: "`` and why.
    """

    name: str
    passed: bool
    detail: str

    @property
    def state(self) -> str:
        """``"holds"``, ``"does not apply"`` or ``"FAILS"``."""
        applies = not self.detail.startswith("does not apply")
        return ("holds" if applies else "does not apply") if self.passed else "FAILS"


class CheckError(FringeError, AssertionError):
    """A method or metric breaks its contract. The message lists every failure with its numbers.

    Attributes:
        results: The results of all checks, including those that passed.
    """

    def __init__(self, message: str, results: list[CheckResult]):
        super().__init__(message)
        self.results = results


class CheckFailed(Exception):
    """Raised by a check that fails, with the reason."""


def run_checks(
    what: str,
    make: Callable[[], T],
    checks: Mapping[str, Callable[[T], str]],
    skip: Collection[str],
    expected_failures: Mapping[str, str],
) -> list[CheckResult]:
    """Run each check on a new ``make()``; raise CheckError on an unexpected failure or an unexpected pass."""
    for argument, names in (("skip", skip), ("expected_failures", expected_failures)):
        for name in names:
            require_choice(argument, name, checks)
    results = [_run(name, check, make) for name, check in checks.items() if name not in skip]
    unexpected = [r for r in results if r.passed == (r.name in expected_failures)]
    if unexpected:
        head = f"{what} breaks its contract in {len(unexpected)} of {len(results)} checks:"
        passed = "passed, though it was expected to fail ({}); remove it from expected_failures"
        details = [passed.format(expected_failures[r.name]) if r.passed else r.detail for r in unexpected]
        lines = [f"  {r.name}: {detail}" for r, detail in zip(unexpected, details, strict=True)]
        raise CheckError("\n".join((head, *lines)), results)
    return results


def _run(name: str, check: Callable[[T], str], make: Callable[[], T]) -> CheckResult:
    try:
        return CheckResult(name, True, check(make()))
    except Exception as error:  # an error in one check must not hide the results of other checks
        detail = f"{error}" if isinstance(error, CheckFailed) else f"{type(error).__name__}: {error}"
        return CheckResult(name, False, detail)


def fail_if(condition: bool, detail: str) -> None:
    """Fail the running check if ``condition`` holds."""
    if condition:
        raise CheckFailed(detail)


def agree(what: str, result: Tensor, expected: Tensor, tolerance: float, least: float = 0.0) -> str:
    """Fail if the :func:`distance` of two tensors is above ``tolerance``."""
    fail_if(result.shape != expected.shape, f"{what}: shape {tuple(result.shape)}, expected {tuple(expected.shape)}")
    error = distance(result, expected, least)
    fail_if(
        not error <= tolerance, f"{what} differ by {error:.1e} of the largest number, where {tolerance:.0e} is allowed"
    )
    return f"{what} agree within {error:.1e}"


def distance(result: Tensor, expected: Tensor, least: float = 0.0) -> float:
    """Largest difference divided by the largest number, at least ``least``; infinite if only one tensor is finite."""
    a, b = result.detach().double(), expected.detach().double()
    if bool((torch.isfinite(a) != torch.isfinite(b)).any()):
        return float("inf")
    a, b = a.nan_to_num(), b.nan_to_num()
    difference = float((a - b).abs().max()) if a.numel() else 0.0
    return difference / max(float(torch.maximum(a.abs(), b.abs()).max()), least) if difference else 0.0


# Side effects


def tensors_unchanged(tensors: Mapping[str, Tensor], action: Callable[[], object]) -> str:
    """Fail if an ``action`` changes the numbers, flags or gradients of ``tensors``."""
    copies = {name: (t.detach().clone(), t.requires_grad, t.grad) for name, t in tensors.items()}
    action()
    for name, tensor in tensors.items():
        (copy, flag, gradient), now = copies[name], tensor.detach()
        same = torch.equal(now.isnan(), copy.isnan()) and torch.equal(now.nan_to_num(), copy.nan_to_num())
        fail_if(not same, f"{name} changed by up to {float((now - copy).abs().max()):.3g}")
        fail_if(tensor.requires_grad != flag, f"requires_grad of {name} became {tensor.requires_grad}")
        fail_if(tensor.grad is not gradient, f"{name} was given a gradient")
    return f"{', '.join(tensors)} unchanged"


def _model_state(model: nn.Module) -> dict[str, object]:
    """Copy the visible state of a module, by name; numbers as text, so that NaN equals NaN."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules, parameters = list(model.modules()), list(model.parameters())
    return {
        **{name: repr(value.tolist()) for name, value in model.state_dict().items()},
        "flags of training or requires_grad": [m.training for m in modules] + [p.requires_grad for p in parameters],
        "gradients of weights": [None if p.grad is None else p.grad.flatten().tolist() for p in parameters],
        "hooks": [len(getattr(module, kind)) for module in modules for kind in kinds],
    }


# Checks that methods and metrics share


@dataclass(frozen=True)
class Output:
    """The ``values`` (B, ...) of a run, with ``diagnostics`` (B,) and the number of ``forward`` passes reported."""

    values: Tensor
    forward: int
    diagnostics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, kw_only=True)
class UnderTest(ABC):
    """A method or metric, ``tested`` on three toy images; ``noun`` is the name of its numbers in messages."""

    noun: ClassVar[str]
    tested: Settings
    device: torch.device = CPU
    dtype: torch.dtype = torch.float64

    @property
    def toys(self) -> ToyProblems:
        return ToyProblems(self.dtype, self.device)

    @cached_property
    def model(self) -> nn.Module:
        return self.toys.build(smooth_cnn)

    @cached_property
    def x(self) -> Tensor:
        return self.toys.images(3)

    @abstractmethod
    def run(self, rows: list[int], model: nn.Module | None = None, *, batch_size: int = 16, seed: int = 0) -> Output:
        """Compute the numbers of the images at ``rows``, with ``model`` or the model of this object."""

    def settings_frozen(self) -> str:
        """Settings are fields of a frozen dataclass; a variant is made with ``dataclasses.replace``."""
        settings, kind = self.tested, type(self.tested)
        fail_if(not dataclasses.is_dataclass(settings), f"{kind.__name__} is not a dataclass")
        for name in settings_of(kind):
            try:
                setattr(settings, name, getattr(settings, name))
            except dataclasses.FrozenInstanceError:
                continue
            raise CheckFailed(f"{name} can be set: make it @dataclass(frozen=True)")
        return f"{len(settings_of(kind))} settings"

    def settings_documented(self) -> str:
        """Each setting has a default and a line of help, for listings and the command line."""
        kind = type(self.tested)
        fail_if(not (kind.__doc__ or "").strip(), "the class has no docstring: its first line is its summary")
        silent = [name for name, setting in settings_of(kind).items() if not setting.doc.text]
        fail_if(bool(silent), f"no help for {', '.join(silent)}: annotate the type, Annotated[int, Doc('...')]")
        kind()
        return "each has a default and a line of help"

    def settings_recorded(self) -> str:
        """``record()`` is JSON with the name of the method or metric, and an equal object can be built from it."""
        settings, key = self.tested, self.tested.record_key
        record = json.loads(json.dumps(settings.record(), allow_nan=False))
        fail_if(
            record.get(key) != settings.name, f"record()[{key!r}] is {record.get(key)!r}, expected {settings.name!r}"
        )
        copy = type(settings).from_record(record)
        fail_if(copy != settings, f"made of its record it is {copy}, not {settings}")
        return json.dumps(record)

    def presets(self) -> str:
        """Each preset has only existing settings, with valid values."""
        for name in self.tested.presets:
            self.tested.preset(name)
        return ", ".join(self.tested.presets) or "none"

    def batch_of_one(self) -> str:
        """An image has the same numbers alone and in a batch."""
        together, alone = self.run([0, 1, 2]), [self.run([i]) for i in range(3)]
        for name, value in together.diagnostics.items():
            parts = torch.cat([output.diagnostics[name].double() for output in alone])
            # A diagnostic that should be zero, such as a residual, is only rounding: compare absolute differences.
            agree(f"diagnostics[{name!r}]", value.double(), parts, ROUNDING, least=1.0)
        values = torch.cat([output.values for output in alone])
        return agree(f"{self.noun} in a batch and alone", together.values, values, ROUNDING)

    def order(self) -> str:
        """If the images are reordered, their numbers are reordered alike."""
        permutation = [2, 0, 1]
        first, second = self.run([0, 1, 2]).values, self.run(permutation).values
        return agree(f"{self.noun} in either order", second, first[permutation], ROUNDING)

    def batch_size(self) -> str:
        """The batch size changes no number, and no forward pass exceeds it."""
        results: list[Tensor] = []
        for size in (1, 2, 16):
            model = _CountingModel(self.model)
            results.append(self.run([0, 1, 2], model, batch_size=size).values)
            fail_if(model.largest > size, f"{model.largest} images in one forward pass, with batch_size={size}")
        agree(f"{self.noun} with batch_size 2 and 16", results[1], results[2], ROUNDING)
        return agree(f"{self.noun} with batch_size 1 and 16", results[0], results[2], ROUNDING)

    def repeatable(self) -> str:
        """The same seed gives the same numbers, bit for bit, whatever the state of the global random generators."""
        results: list[Tensor] = []
        for state in (1, 2):
            with global_seed(state):
                results.append(self.run([0, 1]).values)
        error = distance(results[0], results[1])
        fail_if(error > 0, f"two calls with one seed gave {self.noun} that differ by {error:.1e} of the largest number")
        other = distance(results[0], self.run([0, 1], seed=1).values)
        return f"bit for bit; another seed changes the {self.noun} by {other:.1e}"

    def caller_model(self) -> str:
        """Weights, buffers, gradients, hooks, training flags and ``requires_grad`` do not change."""
        first, second = list(self.model.parameters())[:2]
        first.requires_grad_(False)
        second.grad = torch.ones_like(second)
        before = _model_state(self.model)
        self.run([0, 1])
        after = _model_state(self.model)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        fail_if(bool(changed), f"changed: {', '.join(changed)}")
        return "unchanged"

    def random_generators(self) -> str:
        """The global generators of torch, NumPy and Python are not advanced."""

        def states() -> tuple[object, object, object]:
            return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002

        before = states()
        self.run([0, 1])
        moved = [name for name, a, b in zip(("torch", "NumPy", "Python"), before, states(), strict=True) if a != b]
        fail_if(bool(moved), f"the global generator of {' and '.join(moved)} was advanced")
        return "unchanged"

    def passes(self) -> str:
        """The reported number of forward passes is the number that the network computed."""
        model = _CountingModel(self.model)
        reported = self.run([0, 1, 2], model).forward
        fail_if(reported != model.images, f"reported {reported} forward passes, the network saw {model.images}")
        return f"{reported} forward passes for 3 images"


def checks_of(kind: type[T]) -> dict[str, Callable[[T], str]]:
    """The checks of a class by name, the shared ones first: its public methods that return a text."""
    members = [member for one in reversed(kind.__mro__) for member in vars(one).items()]
    return {
        name: value
        for name, value in members
        if not name.startswith("_") and getattr(value, "__annotations__", {}).get("return") is str
    }
