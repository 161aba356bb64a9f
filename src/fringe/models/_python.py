"""Models that are code: ``FILE.py:FUNCTION[@WEIGHTS]``, ``PACKAGE.MODULE:ATTRIBUTE[@WEIGHTS]``, and ``FILE.pt2``, a
program that ``torch.export.save`` saved."""

import copy
import hashlib
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from fringe._strings.class_names import class_names
from fringe.detection import Detector
from fringe.errors import ModelError, did_you_mean, line_of
from fringe.models._base import LoadedParts, LoadOptions, load_into, split_weights
from fringe.models._preprocessing import Preprocessing
from fringe.models._torchvision import detector_preprocessing

Stated = TypeVar("Stated")

FILE_SPEC = re.compile(r"(?P<source>.+?\.py):(?P<attribute>[A-Za-z_]\w*)(?P<weights>@.+)?")
MODULE_SPEC = re.compile(r"(?P<source>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*)(?P<weights>@.+)?")


def load_file_function(options: LoadOptions) -> LoadedParts:
    """Run a file and call its function without arguments; needs ``trust_code``.

    The network may state its preprocessing and class names in attributes ``preprocessing`` (a
    :class:`Preprocessing` or its text form) and ``class_names``; or the file in constants ``PREPROCESSING`` and
    ``CLASSES``, each for all its networks or a table by function. What the caller gives comes first.

    The file may import installed packages, not its neighbours: its folder is not put on the import path.
    """
    source, attribute, weights = _parts(FILE_SPEC, options)
    path = require_file(source)
    options.require_trust(f"runs the Python code in {path}")
    return _parts_of(run_file(path), str(path), attribute, weights, options)


def find_file(source: str, *folders: Path) -> Path | None:
    """Return the path of a Python file: as it is named, or in these folders, or in ``models`` of the folder that the
    environment variable FRINGE_SHARED names; None if it is in none of them."""
    shared = os.environ.get("FRINGE_SHARED")
    places = (Path(), *folders, *([Path(shared) / "models"] if shared else []))
    return next((folder / source for folder in places if (folder / source).is_file()), None)


def require_file(source: str) -> Path:
    """Return the path of a Python file, as :func:`find_file` does. Raise ModelError if there is none."""
    path = find_file(source)
    if path is None:
        wrong = "is no file" if Path(source).exists() else "does not exist"
        shared = os.environ.get("FRINGE_SHARED") or "FRINGE_SHARED is not set"
        hint = f"it is looked for in the current folder ({Path.cwd()}) and in FRINGE_SHARED/models ({shared}); a file "
        hint += "that a configuration file names, also in the folder of that"
        raise ModelError(f"Python file {source!r} {wrong}", hint=None if Path(source).is_absolute() else hint)
    return path


def beside(spec: str, config: Path) -> str:
    """Return the spec of a model that a configuration file names: a Python file beside it has the path to it."""
    match = FILE_SPEC.fullmatch(spec)
    path = find_file(match["source"], config.parent) if match else None
    return spec if match is None or path is None else f"{path}{spec[match.end('source') :]}"


def load_attribute(options: LoadOptions) -> LoadedParts:
    """Import a module and take a Module from it, or call a function without arguments; needs ``trust_code``.

    Importing runs code, and so does the call. Installed packages are no exception: many of their functions act on the
    current folder, and none was written to be called by the author of a spec.
    """
    source, attribute, weights = _parts(MODULE_SPEC, options)
    options.require_trust(f"imports {source} and calls {attribute} in it")
    try:
        imported = importlib.import_module(source)
    except ImportError as error:
        raise ModelError(f"{options.spec!r}: cannot import {source} ({error})") from error
    return _parts_of(imported, source, attribute, weights, options)


def _parts(pattern: re.Pattern[str], options: LoadOptions) -> tuple[str, str, str]:
    match = pattern.fullmatch(options.target)
    assert match is not None  # the loader was chosen by this pattern
    return match["source"], match["attribute"], match["weights"] or ""


def _parts_of(code: ModuleType, source: str, attribute: str, weights: str, options: LoadOptions) -> LoadedParts:
    """The network, with the preprocessing and the class names that it or its code states."""
    module = _module_from(code, source, attribute, options.spec)
    recipe = options.preprocessing or stated_preprocessing(module) or _stated(code, "PREPROCESSING", attribute, _recipe)
    if recipe is None:
        raise ModelError(
            f"{options.spec!r} does not say how images are prepared",
            hint="pass preprocessing='imagenet' or preprocessing='resize=256,crop=224,mean=0.5,std=0.5', or write "
            f'PREPROCESSING = "..." into {source}',
        )
    names = stated_names(module) or _stated(code, "CLASSES", attribute, _names)
    name = re.split(r"[/.]", Path(source.removesuffix(".py")).as_posix())[-1]
    if weights:
        path = split_weights(weights)[1].path
        if path is None:
            raise ModelError(f"weights {weights[1:]!r} must be a path ending in .safetensors")
        load_into(module, path)
    return LoadedParts(module, attribute, recipe, names, f"{name}.{attribute}")


def stated_preprocessing(module: nn.Module) -> Preprocessing | None:
    """Return the preprocessing that a network states in its attribute ``preprocessing``, as an object or as text, or a
    detector of torchvision in its ``transform``. For a :class:`fringe.Detector` it is that of its model."""
    inner: Any = module.model if isinstance(module, Detector) and not hasattr(module, "preprocessing") else module
    return _recipe(getattr(inner, "preprocessing", None)) or detector_preprocessing(inner)


def stated_names(module: nn.Module) -> tuple[str, ...] | None:
    """Return the names of the classes that a network states in its attribute ``class_names``, or a classifier of the
    transformers library in ``config.id2label``. For a :class:`fringe.Detector` they are those of its model."""
    inner: Any = module.model if isinstance(module, Detector) and not hasattr(module, "class_names") else module
    table: Any = getattr(getattr(inner, "config", None), "id2label", None)
    kinds = [kind.__name__ for kind in type(inner).__mro__]
    is_classifier = any("Classification" in kind or "ForObjectDetection" in kind for kind in kinds)
    return _names(getattr(inner, "class_names", None)) or (class_names(table or None) if is_classifier else None)


def _stated(code: ModuleType, constant: str, attribute: str, read: Callable[[Any], Stated | None]) -> Stated | None:
    """What a constant of the code states: for all its networks, or in a table for the one called ``attribute``."""
    value = getattr(code, constant, None)
    return read(cast(Mapping[str, Any], value).get(attribute) if isinstance(value, Mapping) else value)


def _recipe(value: Any) -> Preprocessing | None:
    """An attribute of this name may mean something else: what is no recipe states nothing."""
    if not isinstance(value, str):
        return value if isinstance(value, Preprocessing) else None
    try:
        return Preprocessing.parse(value)
    except ModelError as error:
        raise ModelError(f"it states the preprocessing {value!r}: {error.message}", hint=error.hint) from error


def _names(value: Any) -> tuple[str, ...] | None:
    if not isinstance(value, (list, tuple)) or not value:
        return None
    names = cast(Sequence[Any], value)
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


def run_file(path: Path) -> ModuleType:
    """Execute a file as a module of its own; without bytecode files, so nothing is written beside it."""
    name = f"fringe_model_{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:12]}"
    loader = SourceFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and copying look their module up
    try:
        exec(loader.source_to_code(loader.get_data(str(path.resolve())), str(path)), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        hint = None
        if isinstance(error, ModuleNotFoundError) and (path.parent / f"{error.name}.py").is_file():
            hint = f"its folder is not on the import path: set PYTHONPATH={path.parent}"
        if "operator torchvision::" in str(error):  # it was built for another torch
            hint = "write torchvision = fringe.models.import_torchvision() in place of import torchvision"
        message = f"{str(path)!r} failed while it was run ({type(error).__name__}: {error}{line_of(error)})"
        raise ModelError(message, hint=hint) from error
    return module


def _module_from(module: ModuleType, source: str, attribute: str, spec: str) -> nn.Module:
    names = vars(module)
    if attribute not in names:
        public = [name for name in names if not name.startswith("_")]
        raise ModelError(f"{spec!r}: {source} has no {attribute!r}", hint=did_you_mean(attribute, public))
    value = names[attribute]
    if isinstance(value, nn.Module):
        with torch.no_grad():  # copied weights of a scripted module would be part of a graph
            return copy.deepcopy(value)  # the owner's instance keeps its mode, device and gradients
    if not callable(value):
        raise ModelError(
            f"{spec!r}: {attribute} is of type {type(value).__name__}, not a torch.nn.Module or a function"
        )
    try:
        made = value()
    except Exception as error:
        text = f"{type(error).__name__}: {error}{line_of(error)}"
        raise ModelError(f"{spec!r}: calling {attribute}() failed ({text})") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{spec!r}: {attribute}() returned {type(made).__name__}, not a torch.nn.Module")
    return made


# -- exported programs ------------------------------------------------------------------------------------------------


#: Operators that behave differently in training, with the position of the argument that says so.
_TRAINING_ARGUMENT = {
    torch.ops.aten.dropout.default: 2,
    torch.ops.aten.feature_dropout.default: 2,
    torch.ops.aten.batch_norm.default: 5,
    torch.ops.aten.native_dropout.default: 2,  # these two after run_decompositions
    torch.ops.aten._native_batch_norm_legit_functional.default: 5,
}


class ExportedNet(nn.Module):
    """An exported program that tolerates ``train`` and ``eval``, and batches larger than it was exported for."""

    def __init__(self, program: nn.Module, most: int | None) -> None:
        super().__init__()
        self.program, self.most = program, most
        for module in self.modules():  # the mode was fixed at the export, whatever the flags of its parts say
            module.training = False

    def forward(self, x: Tensor) -> Any:
        if self.most is None or len(x) <= self.most:
            return self.program(x)
        return torch.cat([self.program(part) for part in x.split(self.most)])

    def train(self, mode: bool = True) -> "ExportedNet":
        self.training = mode  # not passed on: the program would refuse
        return self


def load_exported(options: LoadOptions) -> LoadedParts:
    """Read an exported program with one input and a free batch size; needs ``trust_code``.

    ``torch.export.load`` unpickles the sample inputs and, if the archive says so, weights and constants with
    no restriction, so a prepared file runs code.
    """
    path = Path(options.target)
    if not path.is_file():
        raise ModelError(f"exported program {options.target!r} does not exist")
    options.require_trust("is read by torch.export.load, which unpickles parts of it and so can run code")
    recipe = options.require_preprocessing()
    try:
        program = torch.export.load(path)
    except Exception as error:  # its readers raise what they like on a damaged archive
        raise ModelError(f"{options.target!r} cannot be loaded ({type(error).__name__}: {error})") from error
    most = _check_program(options.target, program)
    return LoadedParts(ExportedNet(program.module(), most), path.stem, recipe, None)


def _check_program(name: str, program: ExportedProgram) -> int | None:
    """Refuse a program that cannot be explained; return its largest batch, if it has one."""
    inputs = tuple(program.graph_signature.user_inputs)
    if len(inputs) != 1:
        raise ModelError(f"{name!r} takes {len(inputs)} inputs; expected one batch of images")
    image = next(node for node in program.graph.nodes if node.name == inputs[0])
    batch: Any = image.meta["val"].shape[0]
    if isinstance(batch, int):
        raise ModelError(
            f"{name!r} was exported for batches of exactly {batch}",
            hint="export it again with a dynamic first dimension: dynamic_shapes=({0: torch.export.Dim('batch')},)",
        )
    for node in program.graph.nodes:
        position = _TRAINING_ARGUMENT.get(node.target)
        if position is not None and node.args[position] is True:
            raise ModelError(f"{name!r} was exported in training mode ({node.name})", hint="export model.eval()")
    bounds = program.range_constraints.get(batch.node.expr)
    return int(bounds.upper) if bounds is not None and bounds.upper < 2**31 else None
