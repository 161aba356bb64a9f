"""``FILE.py:FUNCTION[@WEIGHTS]`` and ``PACKAGE.MODULE:ATTRIBUTE[@WEIGHTS]``: models that are Python code."""

import copy
import hashlib
import importlib
import importlib.util
import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from torch import nn

from fringe.models.errors import ModelError, did_you_mean
from fringe.models.request import Built, Request, require_trust, stated_preprocessing
from fringe.models.tensor_file import load_into
from fringe.models.weights import FileWeights, split_weights

FILE_SPEC = re.compile(r"(?P<place>.+?\.py):(?P<attribute>[A-Za-z_]\w*)(?P<weights>@.+)?")
MODULE_SPEC = re.compile(r"(?P<place>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*)(?P<weights>@.+)?")


def load_file_function(request: Request) -> Built:
    """Run a file and call its function without arguments; needs ``trust_code``.

    The file may import what is installed, not its neighbours: its folder is not put on the import path.
    """
    place, attribute, weights = _parts(FILE_SPEC, request)
    path = Path(place)
    if not path.is_file():
        raise ModelError(f"Python file {place!r} {'is no file' if path.exists() else 'does not exist'}")
    require_trust(request, f"runs the Python code in {place}")
    recipe = stated_preprocessing(request)
    module = _module_from(_run_file(path), place, attribute, request.spec)
    return Built(_with_weights(module, weights), attribute, recipe, None)


def load_attribute(request: Request) -> Built:
    """Import a module and take a Module from it, or call a function without arguments; needs ``trust_code``.

    Importing runs code, and so does the call. A package that is installed is no exception: nobody meant each function
    of each package to be called by whoever writes a spec, and many act on the current folder.
    """
    place, attribute, weights = _parts(MODULE_SPEC, request)
    require_trust(request, f"imports {place} and calls {attribute} in it")
    recipe = stated_preprocessing(request)
    try:
        module = _module_from(importlib.import_module(place), place, attribute, request.spec)
    except ImportError as error:
        raise ModelError(f"{request.spec!r}: cannot import {place} ({error})") from error
    return Built(_with_weights(module, weights), attribute, recipe, None)


def top_module_exists(name: str) -> bool:
    """Whether ``name``, without dots, can be imported; nothing is executed to find out."""
    try:
        return importlib.util.find_spec(name) is not None
    except ValueError:  # a module such as __main__ that was not made by the import system
        return False


def _parts(pattern: re.Pattern[str], request: Request) -> tuple[str, str, str]:
    match = pattern.fullmatch(request.target)
    if match is None:
        raise ModelError(f"{request.spec!r} is not of the form PLACE:NAME[@WEIGHTS.safetensors]")
    return match["place"], match["attribute"], match["weights"] or ""


def _run_file(path: Path) -> ModuleType:
    """Execute a file as a module of its own; without bytecode files, so nothing is written beside it."""
    name = f"fringe_model_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    loader = SourceFileLoader(name, str(path.resolve()))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and copying look their module up
    try:
        exec(loader.source_to_code(loader.get_data(str(path.resolve())), str(path)), module.__dict__)
    except Exception as error:
        del sys.modules[name]
        raise ModelError(f"{str(path)!r} failed while it was run ({type(error).__name__}: {error})") from error
    return module


def _module_from(module: ModuleType, place: str, attribute: str, spec: str) -> nn.Module:
    names = vars(module)
    if attribute not in names:
        public = [name for name in names if not name.startswith("_")]
        raise ModelError(f"{spec!r}: {place} has no {attribute!r}{did_you_mean(attribute, public)}")
    found = names[attribute]
    if isinstance(found, nn.Module):
        return copy.deepcopy(found)  # the owner's instance keeps its mode, device and gradients
    if not callable(found):
        raise ModelError(
            f"{spec!r}: {attribute} is of type {type(found).__name__}, not a torch.nn.Module or a function"
        )
    try:
        made = found()
    except Exception as error:
        raise ModelError(f"{spec!r}: calling {attribute}() failed ({type(error).__name__}: {error})") from error
    if not isinstance(made, nn.Module):
        raise ModelError(f"{spec!r}: {attribute}() returned {type(made).__name__}, not a torch.nn.Module")
    return made


def _with_weights(module: nn.Module, weights: str) -> nn.Module:
    if weights:
        source = split_weights(weights)[1]
        if not isinstance(source, FileWeights):
            raise ModelError(f"weights {weights[1:]!r} must be a path ending in .safetensors")
        load_into(module, source.path)
    return module
