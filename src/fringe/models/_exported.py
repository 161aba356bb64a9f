"""``FILE.pt2``: programs saved by ``torch.export.save``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.fx import Node

from fringe.errors import ModelError
from fringe.models._base import LoadedParts, LoadOptions

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
    for node in _training_nodes(program):
        raise ModelError(f"{name!r} was exported in training mode ({node.name})", hint="export model.eval()")
    bounds = program.range_constraints.get(batch.node.expr)
    return int(bounds.upper) if bounds is not None and bounds.upper < 2**31 else None


def _training_nodes(program: ExportedProgram) -> Iterator[Node]:
    for node in program.graph.nodes:
        position = _TRAINING_ARGUMENT.get(node.target)
        if position is not None and node.args[position] is True:
            yield node
