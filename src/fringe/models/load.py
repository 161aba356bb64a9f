"""From a spec to a model that is ready to be explained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

import torch
from PIL import Image
from torch import Tensor, nn

from fringe.errors import InputError
from fringe.models import digits
from fringe.models.digest import state_digest
from fringe.models.errors import ModelError, did_you_mean
from fringe.models.from_export import load_exported
from fringe.models.from_hub import load_hub
from fringe.models.from_python import (
    FILE_SPEC,
    MODULE_SPEC,
    load_attribute,
    load_file_function,
    top_module_exists,
)
from fringe.models.from_timm import load_timm
from fringe.models.from_torchvision import load_torchvision
from fringe.models.preprocessing import Preprocessing
from fringe.models.request import Built, Loader, Request
from fringe.models.weights import TENSOR_SUFFIX, refuse_unsafe


@dataclass(frozen=True)
class LoadedModel:
    """A frozen module in evaluation mode, with what is known about it.

    ``digest`` names its weights (SHA-256 over the state dict); ``architecture`` is the bare name, such as
    ``resnet18``; ``class_names`` is None where the source has none.
    """

    spec: str
    module: nn.Module
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    digest: str
    architecture: str

    def prepare(self, images: Sequence[Image.Image]) -> Tensor:
        """Model inputs (B, C, H, W), float32 and normalised, from PIL images that prepare to one size."""
        recipe = self.preprocessing
        return torch.stack([recipe.normalise(recipe.pixels(image)) for image in images])


def _load_embedded(request: Request) -> Built:
    if request.target != "digits":
        hint = did_you_mean(request.target, ["digits"])
        raise ModelError(f"no embedded model {request.target!r}{hint}; there is embedded:digits")
    return Built(digits.digit_net(), "digits", request.preprocessing or digits.PREPROCESSING, digits.CLASS_NAMES)


#: Every family of specs. The first four are named by their prefix, the rest are told by their shape.
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "embedded": Loader("embedded:digits", "the classifier that travels with this package", _load_embedded),
        "torchvision": Loader(
            "torchvision:NAME[@WEIGHTS]", "weights by name, random[:SEED] or .safetensors", load_torchvision
        ),
        "timm": Loader("timm:NAME[@WEIGHTS]", "a tag, random[:SEED] or .safetensors", load_timm),
        "hf": Loader("hf:NAME[@REVISION]", "a hub repository or a local folder", load_hub),
        "file": Loader("FILE.py:FUNCTION[@FILE.safetensors]", "runs the file; trust_code", load_file_function),
        "module": Loader("PACKAGE.MODULE:NAME[@FILE.safetensors]", "imports the module; trust_code", load_attribute),
        "export": Loader("FILE.pt2", "an exported program; trust_code", load_exported),
    }
)

_PREFIXES = ("embedded", "torchvision", "timm", "hf")


def load_model(
    spec: str,
    *,
    trust_code: bool = False,
    preprocessing: Preprocessing | None = None,
    class_names: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
) -> LoadedModel:
    """Load the model a spec names, in evaluation mode, without parameter gradients, on ``device``.

    The forms are listed by ``LOADERS``. ``preprocessing`` and ``class_names`` replace what the source
    says. Raises ``ModelError`` for everything that keeps the model from
    being loaded; a Python file, a Python module and an exported program are code, and run only with ``trust_code``.
    Files that are named are never unpickled without it; what torchvision and timm download, only as weights.
    """
    family, target = _family(spec)
    place = usable_device(device)
    built = LOADERS[family].build(Request(spec, target, trust_code, preprocessing))
    names = built.class_names if class_names is None else tuple(class_names)
    digest = state_digest(built.module)
    module = built.module.eval().requires_grad_(False).to(place)
    return LoadedModel(spec, module, built.preprocessing, names, digest, built.architecture)


def _family(spec: str) -> tuple[str, str]:
    prefix, colon, rest = spec.partition(":")
    if colon and prefix in _PREFIXES:
        return prefix, rest
    if FILE_SPEC.fullmatch(spec):
        return "file", spec
    suffix = PurePath(spec).suffix.lower()
    if suffix == ".pt2":
        return "export", spec
    if suffix == TENSOR_SUFFIX and "@" not in spec:
        raise ModelError(f"{spec!r} holds weights and no architecture; name both, as in torchvision:resnet18@{spec}")
    refuse_unsafe(spec)
    if MODULE_SPEC.fullmatch(spec) and top_module_exists(prefix.partition(".")[0]):
        return "module", spec
    raise ModelError(_unknown(spec))


def _unknown(spec: str) -> str:
    prefix, colon, _ = spec.partition(":")
    if prefix.endswith(".py"):
        return f"model {spec!r} names no function; name the file and a function in it, as in {prefix}:make_model"
    if colon:
        near = did_you_mean(prefix, _PREFIXES)
        what = f"model {spec!r}: {prefix!r} is neither a family nor an installed module{near}"
    else:
        what = f"model {spec!r} has no family; did you mean torchvision:{spec or 'NAME'}?"
    forms = ", ".join(loader.form for loader in LOADERS.values())
    return f"{what} The forms are {forms}" if what.endswith("?") else f"{what}; the forms are {forms}"


def usable_device(device: str | torch.device) -> torch.device:
    """The device, after reading a number there: a wrong one should not cost a download first."""
    try:
        place = torch.device(device)
        torch.zeros((), device=place).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch asserts, and imports what some devices need
        known = str(device).partition(":")[0] in [name.partition(":")[0] for name in devices()]
        reason = f" ({str(error).splitlines()[0]})" if known else ""
        raise ModelError(
            f"device {str(device)!r} cannot be used here{reason}: there is {', '.join(devices())}"
        ) from error
    return place


def devices() -> list[str]:
    """The devices that this machine and this PyTorch have."""
    cuda = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *cuda, *(["mps"] if torch.backends.mps.is_available() else [])]


def resolve_device(name: str) -> str:
    """Check the name of a device; ``auto`` is the GPU if there is one. Nothing is placed on the device.

    Args:
        name: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``, ...

    Returns:
        The name of the device to use.

    Raises:
        InputError: If there is no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"got {name!r}, expected auto, cpu, cuda, cuda:1 or mps", argument="device") from None
    if device.type not in ("cpu", "cuda", "mps"):
        usable_device(device)
    elif device.type not in {known.partition(":")[0] for known in devices()} or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise InputError(f"{name!r} cannot be used here: there is {', '.join(devices())}", argument="device")
    return name
