"""Has anything of the caller's changed?"""

import contextlib
import random
from collections.abc import Callable, Generator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from fringe.testing.result import refuse


@contextlib.contextmanager
def generators_at(seed: int) -> Generator[None]:
    """The global generators of torch, NumPy and Python begin at ``seed``, and are given back."""
    before = np.random.get_state(), random.getstate()  # noqa: NPY002 - the global one
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(before[0])  # noqa: NPY002
            random.setstate(before[1])


def keep_generators(action: Callable[[], object]) -> str:
    """Refuse an ``action`` that moves a global random generator."""
    before = _generators()
    action()
    moved = [name for name, a, b in zip(("torch", "NumPy", "Python"), before, _generators(), strict=True) if a != b]
    refuse(bool(moved), f"the global generator of {' and '.join(moved)} was moved")
    return "where they were"


def _generators() -> tuple[object, object, object]:
    return torch.get_rng_state().tolist(), str(np.random.get_state()), random.getstate()  # noqa: NPY002


def forbid_changes(tensors: Mapping[str, Tensor], action: Callable[[], object]) -> str:
    """Refuse an ``action`` that writes into ``tensors``, flags them or leaves gradients on them."""
    copies = {name: (t.detach().clone(), t.requires_grad, t.grad) for name, t in tensors.items()}
    action()
    for name, tensor in tensors.items():
        (copy, flag, gradient), now = copies[name], tensor.detach()
        refuse(not _equal(now, copy), f"{name} changed by up to {float((now - copy).abs().max()):.3g}")
        refuse(tensor.requires_grad != flag, f"requires_grad of {name} became {tensor.requires_grad}")
        refuse(tensor.grad is not gradient, f"{name} was given a gradient")
    return f"{', '.join(tensors)} as they were"


def _equal(now: Tensor, before: Tensor) -> bool:
    return torch.equal(now.isnan(), before.isnan()) and torch.equal(now.nan_to_num(), before.nan_to_num())


class Watched:
    """What a module is made of, remembered, to be compared later."""

    def __init__(self, model: nn.Module):
        self.model = model
        self.state = {name: value.clone() for name, value in model.state_dict().items()}
        self.flags, self.gradients, self.hooks = self._flags(), self._gradients(), self._hooks()

    def changes(self) -> list[str]:
        """A sentence for each thing that is not as it was."""
        said = [
            f"{name} changed" for name, value in self.model.state_dict().items() if not _equal(value, self.state[name])
        ]
        if self._flags() != self.flags:
            said.append("flags of training or requires_grad changed")
        if self._gradients() != self.gradients:
            said.append("gradients of weights changed")
        if self._hooks() != self.hooks:
            said.append("hooks were left behind")
        return said

    def _flags(self) -> list[bool]:
        return [m.training for m in self.model.modules()] + [p.requires_grad for p in self.model.parameters()]

    def _gradients(self) -> list[list[float] | None]:
        return [None if p.grad is None else p.grad.flatten().tolist() for p in self.model.parameters()]

    def _hooks(self) -> list[int]:
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return [len(getattr(module, kind)) for module in self.model.modules() for kind in kinds]
