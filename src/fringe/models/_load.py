"""From a spec to a model that is ready to be explained."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

import torch
from PIL import Image
from torch import Tensor, nn

from fringe._network.outputs import OutputKind
from fringe._strings.formats import escape_surrogates
from fringe._strings.names import Reference, split_label
from fringe._strings.progress import log
from fringe.errors import InputError, ModelError, did_you_mean, first_line, is_installed
from fringe.models import _digits
from fringe.models._base import TENSOR_SUFFIX, LoadedParts, Loader, LoadOptions, refuse_unsafe, state_digest
from fringe.models._efficientnet import NAME as EFFICIENTNET
from fringe.models._efficientnet import load_efficientnet
from fringe.models._hubs import load_timm, load_transformers
from fringe.models._preprocessing import Preprocessing
from fringe.models._python import (
    FILE_SPEC,
    MODULE_SPEC,
    load_attribute,
    load_exported,
    load_file_function,
    require_file,
)
from fringe.models._torchvision import load_torchvision, torchvision_names


@dataclass(frozen=True)
class LoadedModel:
    """A module in evaluation mode and single precision without parameter gradients, with its metadata.

    Attributes:
        spec: The text that named the model.
        module: The network; it maps prepared images (B, C, H, W) to logits (B, K).
        preprocessing: How its images are prepared.
        class_names: K names, or None if the source has none.
        digest: SHA-256 over the state dict, in hexadecimal: a name for the weights.
        architecture: Bare name, such as ``resnet18``.
        output: What the network returns, as for :class:`fringe.Classifier`.
        label: What pages and reports call it: the label of ``LABEL=SPEC``, the file with the function, or the
            architecture.
    """

    spec: str
    module: nn.Module
    preprocessing: Preprocessing
    class_names: tuple[str, ...] | None
    digest: str
    architecture: str
    output: OutputKind = "auto"
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label or self.architecture)

    def prepare(self, images: Sequence[Image.Image]) -> Tensor:
        """Prepare images for the network.

        Args:
            images: B images of mode RGB or L that come out at one size.

        Returns:
            Inputs (B, C, H, W), float32 and normalised, on the CPU.
        """
        recipe = self.preprocessing
        return torch.stack([recipe.normalise(recipe.pixels(image)) for image in images])


def _load_embedded(options: LoadOptions) -> LoadedParts:
    if options.target != "digits":
        raise ModelError(
            f"no embedded model {options.target!r}",
            hint=did_you_mean(options.target, ["digits"]) or "use embedded:digits",
        )
    recipe = options.preprocessing or _digits.DIGIT_PREPROCESSING
    return LoadedParts(_digits.digit_net(), "digits", recipe, _digits.DIGIT_NAMES)


#: Every family of specs: some are named by their prefix, the others are recognised by their form in ``_family``.
LOADERS: Mapping[str, Loader] = MappingProxyType(
    {
        "embedded": Loader(
            "embedded:digits", "the classifier that travels with this package", "embedded:digits", _load_embedded, True
        ),
        "torchvision": Loader(
            "torchvision:NAME[@WEIGHTS]",
            "weights by name, random[:SEED] or .safetensors",
            "torchvision:resnet18",
            load_torchvision,
            True,
        ),
        "timm": Loader(
            "timm:NAME[@WEIGHTS]", "a tag, random[:SEED] or .safetensors", "timm:resnet18.a1_in1k", load_timm, True
        ),
        "hf": Loader(
            "hf:NAME[@REVISION]",
            "a hub repository or a local folder",
            "hf:microsoft/resnet-18",
            load_transformers,
            True,
        ),
        EFFICIENTNET: Loader(
            f"{EFFICIENTNET}[@WEIGHTS]",
            "for photographs; random[:SEED] or .safetensors",
            EFFICIENTNET,
            load_efficientnet,
        ),
        "file": Loader(
            "FILE.py:FUNCTION[@FILE.safetensors]",
            "runs the file; trust_code; PREPROCESSING and CLASSES in it are read",
            "models.py:my_network --trust-code --preprocessing imagenet",
            load_file_function,
        ),
        "module": Loader(
            "PACKAGE.MODULE:NAME[@FILE.safetensors]",
            "imports the module; trust_code",
            "mypackage.networks:small --trust-code --preprocessing resize=32,mean=0.5,std=0.5",
            load_attribute,
        ),
        "export": Loader(
            "FILE.pt2",
            "an exported program; trust_code",
            "network.pt2 --trust-code --preprocessing imagenet",
            load_exported,
        ),
    }
)


def load_model(
    spec: str | os.PathLike[str],
    *,
    trust_code: bool = False,
    preprocessing: Preprocessing | str | None = None,
    class_names: Sequence[str] | None = None,
    device: str | torch.device = "cpu",
    output: OutputKind = "auto",
) -> LoadedModel:
    """Load the model that a spec names, in evaluation mode, in single precision and without parameter gradients.

    A Python file or module may state how its images are prepared, and what its classes are called: in constants
    ``PREPROCESSING`` and ``CLASSES``, or in attributes ``preprocessing`` and ``class_names`` of the network.

    Named files are never unpickled without ``trust_code``; downloads of torchvision and timm are read as weights only.

    Args:
        spec: A model in one of the forms of :data:`LOADERS`, such as ``torchvision:resnet18``, or ``LABEL=`` and one.
        trust_code: Whether a Python file, a Python module or an exported program, which are code, may run.
        preprocessing: Replaces what the source says; a text is read by :meth:`Preprocessing.parse`.
        class_names: Replaces what the source says.
        device: The device to load it to.
        output: What the model returns, as for :class:`fringe.Classifier`.

    Returns:
        The model with its preprocessing, class names and digest.

    Raises:
        ModelError: For everything that prevents the model from being loaded.
    """
    label, spec = split_label(os.fspath(spec))
    family, target = _family(spec)
    checked_device = usable_device(device)
    recipe = Preprocessing.parse(preprocessing) if isinstance(preprocessing, str) else preprocessing
    parts = LOADERS[family].build(LoadOptions(spec, target, trust_code, recipe))
    names = parts.class_names if class_names is None else tuple(class_names)
    digest = state_digest(parts.module)
    module = nn.Module.requires_grad_(parts.module.eval(), False)  # the method of a scripted module refuses
    module = module.float().to(checked_device)
    log.info("loaded %s on %s, weights %s", spec, checked_device, digest[:12])
    # what a file is called, where the model is of one
    called = (label or parts.label, parts.architecture)
    label, architecture = map(escape_surrogates, called)
    return LoadedModel(spec, module, parts.preprocessing, names, digest, architecture, output, label)


def _family(spec: str) -> tuple[str, str]:
    """The family of a spec, and the spec without its prefix."""
    reference = Reference.parse(spec)
    if reference.rest is not None and reference.head in _prefixes():
        return reference.head, reference.rest
    if spec.partition("@")[0] == EFFICIENTNET:
        return EFFICIENTNET, spec
    if FILE_SPEC.fullmatch(spec):
        return "file", spec
    suffix = PurePath(spec).suffix.lower()
    if suffix == ".pt2":
        return "export", spec
    if suffix == TENSOR_SUFFIX and "@" not in spec:
        raise ModelError(
            f"{spec!r} holds weights and no architecture", hint=f"name both, as in torchvision:resnet18@{spec}"
        )
    refuse_unsafe(spec)
    if MODULE_SPEC.fullmatch(spec) and is_installed(reference.head.partition(".")[0]):
        return "module", spec
    raise _unknown(spec)


def _prefixes() -> list[str]:
    return [name for name, loader in LOADERS.items() if loader.is_prefix]


def _unknown(spec: str) -> ModelError:
    drive = 2 if re.match(r"[A-Za-z]:[/\\]", spec) else 0  # the colon of a path such as C:\net.py ends no prefix
    prefix, colon, _ = spec[drive:].partition(":")
    prefix = spec[:drive] + prefix
    if prefix.endswith(".py"):
        require_file(prefix)
        return ModelError(
            f"model {spec!r} names no function", hint=f"name the file and a function in it, as in {prefix}:make_model"
        )
    forms = f"the forms are {', '.join(loader.form for loader in LOADERS.values())}"
    if colon:
        message = f"{spec!r}: {prefix!r} is neither a family nor an installed module"
        hint = did_you_mean(prefix, _prefixes(), forms)
    else:
        message = f"{spec!r} has no family"
        known = {EFFICIENTNET: EFFICIENTNET}
        try:
            known |= {name: f"torchvision:{name}" for name in torchvision_names()}
        except ModelError:  # torchvision is not installed
            known |= {spec: f"torchvision:{spec}"} if re.fullmatch(r"[a-z]+[a-z_]*\d+\w*", spec) else {}
        hint = did_you_mean(spec, known, forms, shown=known, cutoff=0.8)
    return ModelError(message, argument="model", hint=hint)


def usable_device(device: str | torch.device) -> torch.device:
    """Return a device, or that of a name such as ``cuda:1``, after using it once: before a download, for instance.

    Raises ModelError if it cannot be used, with the devices that can.
    """
    try:
        checked = torch.device(device)
        torch.zeros((), device=checked).item()
    except (RuntimeError, AssertionError, ImportError) as error:  # torch asserts, and imports what some devices need
        known = str(device).partition(":")[0] in [name.partition(":")[0] for name in devices()]
        reason = f" ({first_line(error)})" if known else ""
        raise ModelError(
            f"{str(device)!r} cannot be used here{reason}: this machine has {', '.join(devices())}", argument="device"
        ) from error
    return checked


def devices() -> list[str]:
    """List the devices that this machine and this PyTorch have, such as ``cpu`` and ``cuda:0``."""
    kinds = ("cuda", torch.cuda), ("xpu", torch.xpu)
    gpus = [f"{name}:{i}" for name, kind in kinds if kind.is_available() for i in range(kind.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def resolve_device(name: str) -> str:
    """Check the name of a device; ``auto`` is ``cuda`` if there is one. Nothing is placed on the device.

    Raises InputError if there is no such device.
    """
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise InputError(f"got {name!r}, expected auto, cpu, cuda or cuda:1", argument="device") from None
    if device.type not in ("cpu", "cuda"):
        usable_device(device)
    elif device.type not in {known.partition(":")[0] for known in devices()} or (
        device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()
    ):
        raise InputError(f"{name!r} cannot be used here: this machine has {', '.join(devices())}", argument="device")
    return name
