"""What every loader of models shares: options, the weights after ``@``, safetensors files, the weights' digest, and
whether two loaded models answer alike."""

import hashlib
import importlib
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - PathLike[Unknown]
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fringe.errors import ModelError, did_you_mean, install_hint
from fringe.models._preprocessing import Preprocessing

TENSOR_SUFFIX = ".safetensors"

#: Formats that run code when they are read, or that no loader reads.
REFUSED_SUFFIXES = (
    ".bin", ".ckpt", ".joblib", ".jit", ".mar", ".npy", ".npz", ".pickle", ".pkl", ".pt", ".pth", ".tar",
    ".torchscript", ".ts",
)  # fmt: skip
#: Networks of other libraries and runtimes.
FOREIGN_SUFFIXES = (".engine", ".h5", ".keras", ".mlmodel", ".onnx", ".pb", ".tflite")

#: The header is parsed as one piece before its tensors can be counted, so its length is limited as well: 20,000
#: tensors take about 3 MB.
MAX_HEADER_BYTES = 8 * 2**20
MAX_TENSORS = 20_000

#: Names of tensors that a message lists.
_LISTED = 4


@dataclass(frozen=True)
class LoadOptions:
    """What the caller of :func:`fringe.models.load_model` asked for.

    Attributes:
        spec: The text that names the model.
        target: ``spec`` without its family, such as ``resnet18@random:3``.
        trust_code: Whether code of the source may run.
        preprocessing: Preprocessing that replaces the source's own.
    """

    spec: str
    target: str
    trust_code: bool
    preprocessing: Preprocessing | None

    def require_preprocessing(self) -> Preprocessing:
        """Return the caller's preprocessing, for sources that carry none; call it before any code runs."""
        if self.preprocessing is None:
            raise ModelError(
                f"{self.spec!r} does not say how images are prepared",
                hint="pass preprocessing='imagenet' or preprocessing='resize=256,crop=224,mean=0.5,std=0.5'",
            )
        return self.preprocessing

    def require_trust(self, why: str) -> None:
        """Refuse a source that can run code of its author's choice unless the caller trusts it."""
        if not self.trust_code:
            raise ModelError(f"{self.spec!r} {why}", hint="pass trust_code=True only if you trust its author")


@dataclass(frozen=True)
class LoadedParts:
    """A module in any mode on any device, with what its source says about it."""

    module: nn.Module
    architecture: str
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    label: str = ""  # what pages call it; empty: the architecture


@dataclass(frozen=True)
class Loader:
    """One family of specs: its ``form``, a one-line ``summary``, an ``example`` of ``--model`` with the options that it
    needs, the function that builds the model, and whether its specs begin with its name and a colon (``is_prefix``)."""

    form: str
    summary: str
    example: str
    build: Callable[[LoadOptions], LoadedParts]
    is_prefix: bool = False


@dataclass(frozen=True)
class WeightSource:
    """Weights drawn from a ``seed``, read from a safetensors file (``path``), or fetched by the library: those called
    ``name``, or its default ones if all three are None."""

    seed: int | None = None
    path: Path | None = None
    name: str | None = None

    @property
    def is_pretrained(self) -> bool:
        """Whether the library brings the weights."""
        return self.seed is None and self.path is None

    def network(
        self, make: Callable[[], nn.Module], pretrained: Callable[[], Mapping[str, Any]] | None = None
    ) -> nn.Module:
        """Build a network with ``make`` and give it these weights; those of ``pretrained``, unless ``make`` brings
        them."""
        with seeded(self.seed or 0):
            module = make()
        if self.path is not None:
            load_into(module, self.path)
        elif pretrained is not None and self.is_pretrained:
            module.load_state_dict(pretrained())
        return module


def split_weights(target: str) -> tuple[str, WeightSource]:
    """Split ``"resnet18@random:3"`` into ``"resnet18"`` and its source of weights; unsafe files are refused."""
    name, at, text = target.partition("@")
    if at and not text:
        raise ModelError(f"{target!r} names no weights after '@'")
    if text == "random" or text.startswith("random:"):
        digits = text.partition(":")[2] if ":" in text else "0"
        if not (digits.isascii() and digits.isdigit() and int(digits) < 2**63):
            raise ModelError(f"weights {text!r}: the seed must be a whole number from 0 to 2**63 - 1")
        return name, WeightSource(seed=int(digits))
    if PurePath(text).suffix.lower() == TENSOR_SUFFIX:
        return name, WeightSource(path=Path(text))
    refuse_unsafe(text)
    return name, WeightSource(name=text or None)


def refuse_unsafe(path: str) -> None:
    """Refuse a file format that is not read, and say how to convert it."""
    suffix = PurePath(path).suffix.lower()
    if suffix in FOREIGN_SUFFIXES:
        raise ModelError(
            f"{path!r}: {suffix} files are not read: they hold no PyTorch network, and a map needs its gradients",
            hint="build the same network in PyTorch, and name the function that makes it, as in models.py:my_network",
        )
    if suffix in REFUSED_SUFFIXES:
        raise ModelError(
            f"{path!r}: {suffix} files are not read, because most of them can run code while loading",
            hint="convert the state_dict with safetensors.torch.save_file and name it after '@', as in "
            "torchvision:resnet18@weights.safetensors or net.py:make@weights.safetensors",
        )


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Draw initial weights on the CPU from ``seed`` and restore the caller's random state afterwards.

    Only the CPU generator is touched: ``torch.manual_seed`` would reseed every accelerator as well.
    """
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        yield


def import_extra(package: str, extra: str) -> Any:
    """Import a package; the ``ModelError`` for one that is absent, or lacks something, names the extra to install."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        absent = (error.name or package).partition(".")[0]
        needs = package if absent == package else f"{package} needs {absent}, which"
        raise ModelError(f"{needs} is not installed", hint=install_hint(extra)) from error
    except ImportError as error:  # versions that do not fit together
        raise ModelError(f"{package} cannot be imported ({error})", hint=install_hint(extra)) from error


def load_into(module: nn.Module, path: Path) -> None:
    """Load every tensor of a safetensors file into ``module``; names and shapes must agree.

    Only the batch counters of normalisation layers may be missing: evaluation does not read them.
    """
    given, expected = read_tensors(path), module.state_dict()
    misfit = f"{str(path)!r} does not fit {type(module).__name__}"
    missing = [k for k in expected if k not in given and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in given if k not in expected]
    if missing or unexpected:
        raise ModelError(
            f"{misfit}: missing {some(missing)}; unexpected {some(unexpected)}",
            hint=did_you_mean(missing[0], unexpected) if missing else None,
        )
    for name, tensor in given.items():
        if tensor.shape != expected[name].shape:
            raise ModelError(
                f"{misfit}: {name} has shape {tuple(tensor.shape)} in the file and {tuple(expected[name].shape)} in "
                "the model"
            )
    expected.update(given)  # it carries the versions of the modules, which MNASNet requires
    module.load_state_dict(expected)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file onto the CPU; nothing in it is executed, and its size is limited."""
    _check_header(path)
    try:
        opened: Any = safe_open(path, framework="pt")  # untyped
        with opened as file:
            count = len(file.keys())
        if count > MAX_TENSORS:
            raise ModelError(f"{str(path)!r} holds {count} tensors; at most {MAX_TENSORS} are read")
        return load_file(path)
    except SafetensorError as error:
        raise ModelError(f"{str(path)!r} is not a valid safetensors file: {error}") from error


def _check_header(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"weights file {str(path)!r} does not exist")
    with path.open("rb") as file:
        start = file.read(9)
    length = int.from_bytes(start[:8], "little")
    if len(start) < 9 or start[8:] != b"{" or length > path.stat().st_size - 8:
        pickled = start[:1] == b"\x80" or start[:2] == b"PK"
        why = "it looks like a pickle or a PyTorch archive, which are never read" if pickled else "its header is broken"
        raise ModelError(f"{str(path)!r} is not a safetensors file: {why}")
    if length > MAX_HEADER_BYTES:
        raise ModelError(f"{str(path)!r} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")


def some(names: list[str]) -> str:
    """List the first few of some names, and how many follow."""
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest if names else "none"


def state_digest(module: nn.Module) -> str:
    """Return the SHA-256, in hexadecimal, over the state dict sorted by name: names, dtypes, shapes and bytes.

    It sees neither the code of ``forward`` nor the content of state that is no dense tensor, so it distinguishes two
    sets of weights of one architecture, not two architectures without weights. Raise ModelError for weights without
    numbers: of a lazy layer that was never called, or on the device "meta".
    """
    total = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        if isinstance(value, Tensor) and (value.is_meta or is_lazy(value)):
            raise ModelError(
                f"its weights {name!r} have no numbers yet",
                argument="model",
                hint="call the model, or load its weights, where it is made",
            )
        if isinstance(value, Tensor) and value.layout == torch.strided:
            total.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
            # as bytes, because NumPy has no bfloat16
            flat = value.detach().cpu().contiguous().reshape(-1)
            total.update(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
        else:
            total.update(f"{name}\0{type(value).__name__}\0".encode())
    return total.hexdigest()


#: Largest difference that is rounding, as a part of the largest logit, on one kind of device.
TOLERANCE = 1e-4
#: The same between two kinds, of which one may multiply in a shorter format.
OTHER_DEVICE = 5e-2


@dataclass(frozen=True)
class Answers:
    """What a model answers to a few inputs, by their names: logits or probabilities (C,) each, and the ``tolerance``
    within which they are equal. It sees a change of the code, which no digest of the weights does."""

    values: Mapping[str, Tensor]
    tolerance: float = TOLERANCE

    def differing(self, others: Mapping[str, Tensor], *, same_device: bool = True) -> tuple[str, float] | None:
        """Return the input on which ``others`` differ most, and by how much, if that is more than rounding; None where
        they agree on all inputs that both have. Of two devices one may not run the model at all: what only one of them
        could compute is then no difference."""
        tolerance = self.tolerance if same_device else max(self.tolerance, OTHER_DEVICE)
        pairs = {image: (others[image], now) for image, now in self.values.items() if image in others}
        if not same_device:
            pairs = {image: pair for image, pair in pairs.items() if all(bool(one.isfinite().all()) for one in pair)}
        both = {image: _apart(*pair) for image, pair in pairs.items()}
        far = [(image, distance) for image, (distance, size) in both.items() if not distance <= tolerance * size]
        return max(far, key=lambda one: one[1], default=None)


def rounding_of(module: nn.Module) -> float:
    """Return the relative error of rounding: larger for a model in half precision."""
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.dtype.is_floating_point}
    return max([TOLERANCE, *(16 * torch.finfo(kind).eps for kind in kinds)])


def _apart(before: Tensor, now: Tensor) -> tuple[float, float]:
    """The largest difference, infinite for other classes or non-finite numbers, and the size of the answers."""
    if not torch.equal(before.isfinite(), now.isfinite()):  # nor are they for two shapes
        return math.inf, 0.0
    finite = before.isfinite()
    if not finite.any():
        return 0.0, 0.0
    size = float(before[finite].abs().max())
    return float((before - now)[finite].abs().max()), max(size, 1e-3)
