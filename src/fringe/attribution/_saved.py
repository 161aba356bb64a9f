"""Results as one safetensors file: their tensors bit for bit, and everything else as JSON in its header."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

import fringe
from fringe._files import MAPS_BYTES, UnfitFile, read_regular, require_local, write_atomic
from fringe.errors import InputError

#: Name and version of the format; a file of a later version is refused.
FORMAT, VERSION = "fringe/attribution", 1
#: Bytes of a header: 20,000 recorded paths take about 30 MB.
MAX_HEADER_BYTES = 2**26


def write(value: object, path: str | Path) -> None:
    """Write a dataclass of tensors, numbers, texts, tuples, mappings and dataclasses to a file, in one step.

    Raises:
        InputError: If the path is a URL.
        OSError: If the file cannot be written.
    """
    require_local("path", path)
    tensors: dict[str, Tensor] = {}
    record = {"fringe": fringe.__version__, "content": _encoded(value, "", tensors)}
    text = json.dumps(record, ensure_ascii=False)
    metadata = {"format": f"{FORMAT}/{VERSION}", "record": text, "sha256": _digest(text, tensors)}
    write_atomic(Path(path), save_tensors(tensors, metadata))


def read(path: str | Path, kinds: Mapping[str, type]) -> Any:
    """Read what :func:`write` wrote, of dataclasses of these kinds by name; nothing in the file is executed.

    Raises:
        InputError: If it is no such file, is damaged, or is of a later version.
        OSError: If the file cannot be read.
    """
    require_local("path", path)
    name = repr(str(path))
    try:
        data = read_regular(path, MAPS_BYTES)
    except UnfitFile as error:
        raise InputError(f"{name} {error.strerror}", argument="path") from error
    metadata = _metadata(data, name)
    form, _, version = str(metadata.get("format", "")).rpartition("/")
    if form != FORMAT or not version.isdecimal():
        hint = "files that result.save(path) wrote can be read"
        raise InputError(f"{name} is no saved attribution", argument="path", hint=hint)
    if int(version) > VERSION:
        message = f"{name} has version {version} of the format, and this is fringe {fringe.__version__}, which reads "
        raise InputError(f"{message}up to {VERSION}", argument="path", hint="install a newer fringe")
    try:
        tensors = load_tensors(data)
        if metadata["sha256"] != _digest(metadata["record"], tensors):
            raise InputError("its content does not match its checksum")
        return _decoded(json.loads(metadata["record"])["content"], tensors, kinds)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} is damaged ({error})", argument="path") from error


def _metadata(data: bytes, name: str) -> dict[str, Any]:
    """The texts in the header of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    try:
        if length > min(MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError("no header")
        return dict(json.loads(data[8 : 8 + length]).get("__metadata__") or {})
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{name} is no safetensors file, or is damaged", argument="path") from error


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        total.update(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        total.update(tensor.reshape(-1).numpy().tobytes())
    return total.hexdigest()


def _encoded(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON data of a value; each tensor goes to ``tensors`` under the names that lead to it."""
    if isinstance(value, Tensor):
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"kind": type(value).__name__, "fields": _items(fields, name, tensors)}
    if isinstance(value, Mapping):
        return {"mapping": _items(cast("Mapping[str, Any]", value), name, tensors)}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encoded(item, f"{name}{i}.", tensors) for i, item in enumerate(cast("Sequence[Any]", value))]
    return value


def _items(mapping: Mapping[str, Any], name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {key: _encoded(item, f"{name}{key}.", tensors) for key, item in mapping.items()}


def _decoded(value: Any, tensors: Mapping[str, Tensor], kinds: Mapping[str, type]) -> Any:
    if isinstance(value, list):
        return tuple(_decoded(item, tensors, kinds) for item in cast("list[Any]", value))
    if not isinstance(value, dict):
        return value
    entry = cast("dict[str, Any]", value)
    if "tensor" in entry:
        return tensors[entry["tensor"]]
    items = {key: _decoded(item, tensors, kinds) for key, item in entry.get("fields", entry.get("mapping", {})).items()}
    return kinds[entry["kind"]](**items) if "kind" in entry else items
