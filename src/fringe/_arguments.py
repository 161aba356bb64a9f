"""Arguments of a model besides the explained tensor, and which of them belong to single images."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from fringe._isolation import detached
from fringe.errors import InputError, did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_SETTING = "settings are given to the method, as in method=IntegratedGradients(steps=50)"
#: What arguments of Captum are called here, where a similar name would not tell.
_CAPTUM = {
    **dict.fromkeys(("n_steps", "steps", "n_samples", "samples"), _SETTING),
    "internal_batch_size": "did you mean 'batch_size'?",
    "additional_forward_args": "did you mean 'forward_args'?",
    "return_convergence_delta": "the result has it as completeness_gap",
}


def hint_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: the TypeError for an argument that it does not have says what to write instead."""
    known = list(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                hint = _CAPTUM.get(name) or did_you_mean(name, known) or _SETTING
                raise TypeError(f"{function.__qualname__.removesuffix('.__init__')}() has no argument {name!r}; {hint}")
        return function(*args, **kwargs)

    return call


@dataclass(frozen=True)
class Shared:
    """A forward argument that is passed unchanged to every call, even if its first axis is as long as the batch.

    Attributes:
        value: The argument.
    """

    value: Any


@dataclass(frozen=True)
class ForwardArguments:
    """Further arguments of a model ``model(x, *args, **kwargs)``.

    Args:
        args: Positional arguments after the explained tensor (before it, if that is passed by name).
        kwargs: Keyword arguments.
        name: Keyword under which the explained tensor is passed; None: as the first positional argument.
        by_row: Positions and names of the tensors (B, ...) whose row i belongs to image i.
        tail: Padding (B, C, N) of series, which the model takes after the explained samples.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    name: str | None = None
    by_row: frozenset[int | str] = frozenset()
    tail: Tensor | None = None

    @classmethod
    def of(
        cls, batch: int, args: object = None, kwargs: Mapping[str, Any] | None = None, name: str | None = None
    ) -> "ForwardArguments":
        """Make the arguments of a call for ``batch`` images.

        Every tensor whose first axis is as long as the batch belongs to the images, row by row. Everything else, and
        what is wrapped in :class:`Shared`, is passed unchanged to every call.

        Raises:
            InputError: If ``args`` is no tuple, or ``kwargs`` no mapping of names.
        """
        if not isinstance(args, (tuple, list, type(None))):
            raise InputError(
                f"got {type(args).__name__}, expected a tuple",
                argument="forward_args",
                hint="write (value,) for one value",
            )
        if not isinstance(kwargs, (Mapping, type(None))):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError(
                f"got {type(kwargs).__name__}, expected a dictionary of names and values", argument="forward_kwargs"
            )
        values = {**dict[int | str, Any](enumerate(cast(Sequence[Any], args or ()))), **(kwargs or {})}
        by_row = {key for key, v in values.items() if isinstance(v, Tensor) and v.dim() and len(v) == batch}
        plain = {key: _plain(value.value if isinstance(value, Shared) else value) for key, value in values.items()}
        return cls(
            tuple(value for key, value in plain.items() if isinstance(key, int)),
            {key: value for key, value in plain.items() if isinstance(key, str)},
            name,
            frozenset(by_row),
        )

    def select(self, rows: Tensor) -> "ForwardArguments":
        """Return the arguments of the images ``rows`` (L,), in this order."""
        if not self.by_row and self.tail is None:
            return self
        tail = None if self.tail is None else _take(self.tail, rows)
        args = tuple(_take(a, rows) if i in self.by_row else a for i, a in enumerate(self.args))
        kwargs = {key: _take(a, rows) if key in self.by_row else a for key, a in self.kwargs.items()}
        return replace(self, args=args, kwargs=kwargs, tail=tail)

    @property
    def hint(self) -> str:
        """What to do where a model fails on some of the images, as a clause."""
        if not self.by_row:
            return (
                "if a function uses other tensors of the images, such as attention masks, pass them as forward_args or "
                "forward_kwargs"
            )
        names = ", ".join(
            f"forward_args[{key}]" if isinstance(key, int) else key for key in sorted(self.by_row, key=str)
        )
        return (
            f"as many rows as images have {names}, so each image gets its row; wrap a tensor that is the same for all "
            "images, such as a causal mask (L, L), as fringe.Shared(tensor)"
        )

    def double(self) -> "ForwardArguments":
        """Return the arguments with floating-point tensors in double precision."""

        def wide(value: Any) -> Any:
            return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

        kwargs = {key: wide(value) for key, value in self.kwargs.items()}
        return replace(self, args=tuple(map(wide, self.args)), kwargs=kwargs, tail=wide(self.tail))

    def call(self, model: Callable[..., Any], x: Tensor) -> Any:
        """Return the model's output at ``x`` (L, *S); arguments that belong to images must be those of ``x``."""
        x = x if self.tail is None else torch.cat([x, self.tail], -1)
        if self.name is None:
            return model(x, *self.args, **self.kwargs)
        return model(*self.args, **{self.name: x}, **self.kwargs)

    def tensors(self) -> list[Tensor]:
        """Return the tensors that belong to single images."""
        values: dict[int | str, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return [values[key] for key in sorted(self.by_row, key=str)] + ([] if self.tail is None else [self.tail])


NO_ARGUMENTS = ForwardArguments()


def explained_inputs(
    inputs: Tensor | Mapping[str, Any],
    args: object,
    kwargs: Mapping[str, Any] | None,
    ids: Sequence[str] | None = None,
) -> tuple[Tensor, ForwardArguments]:
    """Return the tensor (B, *S) to explain, in float32 at least, and the other arguments of a call, those in a
    dictionary of inputs included.

    Raises:
        InputError: If there is no batch of inputs, or another number of ``ids``; if a dictionary holds no
            floating-point tensor or more than one, or an argument is given twice.
    """
    if not isinstance(inputs, Mapping):
        x, arguments = inputs, ForwardArguments.of(_length(inputs), args, kwargs)
    else:
        x, arguments = _named_inputs(inputs, args, kwargs)
    if not isinstance(x, Tensor):  # pyright: ignore[reportUnnecessaryIsInstance]
        several = isinstance(cast(object, x), (tuple, list))
        hint = "pass what the model takes besides as forward_args or forward_kwargs, or all by name in a dictionary"
        alone = "pass torch.from_numpy(x).float(), prepared for the model; pictures and paths go to fringe.explain"
        message = f"expected a torch.Tensor (B, *S), got {type(x).__name__}"
        raise InputError(message, argument="inputs", hint=hint if several else alone)
    if x.dim() < 2 or x.numel() == 0:
        raise InputError(
            f"got shape {tuple(x.shape)}, expected a batch (B, *S) with at least one image",
            argument="inputs",
            hint="add a batch axis with inputs[None] for a single one",
        )
    if ids is not None and len(ids) != len(x):
        raise InputError(f"got {len(ids)} for {len(x)} images", argument="ids")
    return _plain(x), arguments


def _named_inputs(
    inputs: Mapping[str, Any], args: object, kwargs: Mapping[str, Any] | None
) -> tuple[Tensor, ForwardArguments]:
    names = [name for name, value in inputs.items() if isinstance(value, Tensor) and value.is_floating_point()]
    if len(names) != 1:
        raise InputError(
            "the one floating-point tensor of a dictionary is explained, and this one holds "
            f"{', '.join(names) or 'none'}",
            argument="inputs",
            hint="leave the explained tensor in the dictionary and pass the others as forward_kwargs"
            if names
            else integers_hint(torch.empty(0, dtype=torch.int64)),
        )
    twice = inputs.keys() & (kwargs or {}).keys()
    if twice:
        raise InputError(f"{', '.join(sorted(twice))} given in the inputs, too", argument="forward_kwargs")
    (name,) = names
    others = {key: value for key, value in inputs.items() if key != name}
    return inputs[name], ForwardArguments.of(_length(inputs[name]), args, {**others, **(kwargs or {})}, name)


def integers_hint(x: Tensor) -> str:
    """What to do with inputs that are no floating-point numbers: pixels, or token ids and codes of categories."""
    if x.dtype == torch.uint8:
        return "scale and normalise pixels first"
    return (
        "integers have no gradient: texts are explained by fringe.explain(model, texts, tokenizer=...); token ids and "
        "codes of categories by their embeddings, as a model that takes these, with the integers as forward_kwargs"
    )


def _length(inputs: Any) -> int:
    """The batch size; -1 for a value that is not a batch and will be refused."""
    return len(inputs) if isinstance(inputs, Tensor) and inputs.dim() else -1


def _take(value: Tensor, rows: Tensor) -> Tensor:
    return value[rows.to(value.device)]


def _plain(value: Any) -> Any:
    """Tensors without a graph, in float32 at least, as the inputs themselves."""
    if not isinstance(value, Tensor):
        return value
    value = detached(value)
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
