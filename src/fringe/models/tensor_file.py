"""Reading safetensors files with limits, and loading them into a module without leaving anything out."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType] - PathLike[Unknown]
from torch import Tensor, nn

from fringe.models.errors import ModelError, did_you_mean

#: The header is parsed whole before its tensors can be counted, so its length is limited as well: 20,000
#: tensors take about 3 MB.
MAX_HEADER_BYTES = 8 * 2**20
MAX_TENSORS = 20_000

_SHOWN = 4


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU; never executes anything in it.

    Raises ``ModelError`` if it is missing, no safetensors file, or beyond the limits above.
    """
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
        hint = (
            "it looks like a pickle or a PyTorch archive, which are never read" if pickled else "its header is broken"
        )
        raise ModelError(f"{str(path)!r} is not a safetensors file: {hint}")
    if length > MAX_HEADER_BYTES:
        raise ModelError(f"{str(path)!r} has a header of {length} bytes; at most {MAX_HEADER_BYTES} are read")


def load_into(module: nn.Module, path: Path) -> None:
    """Load every tensor of ``path`` into ``module``; raises ``ModelError`` unless names and shapes agree.

    Only the batch counters of normalisation layers may be missing: evaluation does not read them.
    """
    given, wanted = read_tensors(path), module.state_dict()
    missing = [k for k in wanted if k not in given and not k.endswith("num_batches_tracked")]
    unexpected = [k for k in given if k not in wanted]
    if missing or unexpected:
        hint = did_you_mean(missing[0], unexpected) if missing else ""
        raise ModelError(
            f"{str(path)!r} does not fit {type(module).__name__}: "
            f"missing {_some(missing)}; unexpected {_some(unexpected)}{hint}"
        )
    for name, tensor in given.items():
        if tensor.shape != wanted[name].shape:
            raise ModelError(
                f"{str(path)!r} does not fit {type(module).__name__}: {name} has shape {tuple(tensor.shape)} "
                f"in the file and {tuple(wanted[name].shape)} in the model"
            )
    module.load_state_dict(given, strict=False)  # compared above, with a shorter message


def _some(names: list[str]) -> str:
    if not names:
        return "none"
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + rest
