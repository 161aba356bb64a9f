"""Arguments of a model besides the explained tensor, and which of them belong to single images."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from fringe._network.isolation import detached
from fringe.errors import InputError, require_order


@dataclass(frozen=True)
class Shared:
    """A forward argument that is passed unchanged to every call, even if its first axis is as long as the batch.

    Attributes:
        value: The argument.
    """

    value: Any


@dataclass(frozen=True)
class Part:
    """One of the explained tensors of a call.

    Attributes:
        name: Keyword under which it is passed; None: by position.
        shape: Its shape (*S) without the batch axis.
    """

    name: str | None
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def is_joint(parts: Sequence[Part]) -> bool:
    """Whether the numbers of the explained tensors are one row (N,) for each input, and not a tensor (*S)."""
    return len(parts) > 1 or (len(parts) == 1 and not parts[0].shape)


def split(values: Tensor, parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """Return numbers (..., N) of the explained tensors as those of each tensor, (..., *S)."""
    if not is_joint(parts):
        return (values,)
    each = values.split([part.size for part in parts], -1)
    return tuple(v.reshape((*values.shape[:-1], *part.shape)) for v, part in zip(each, parts, strict=True))


@dataclass(frozen=True)
class Axes:
    """The axes (*S) of an input of a model whose channels are not the first of them, or whose points have no order.

    Attributes:
        order: Which of them is the first, the second and so on in (C, *space).
        shape: Their sizes.
        is_flat: Whether positions have no order: then an input becomes a row (N,).
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    is_flat: bool

    @classmethod
    def of(cls, text: str, shape: Sequence[int]) -> "Axes":
        """Read axes, such as ``"HWC"``; raises InputError for another text than one letter for each axis."""
        letters = text.upper().replace("T", "L") if isinstance(text, str) else ""  # pyright: ignore
        if "".join(sorted(letters)) not in ("CL", "CHW", "CDHW", "CN") or len(letters) != len(shape):
            expected = (
                "one letter for each of the axes after the batch: C for channels, with L for samples of a series, H "
            )
            expected += "and W or D, H and W for space, or N for points without an order"
            hint = "as in axes='HWC', 'LC' or 'NC'"
            raise InputError(
                f"got {text!r} for an input {tuple(shape)}, expected {expected}", argument="axes", hint=hint
            )
        return cls(tuple(letters.index(c) for c in "CDHWLN" if c in letters), tuple(shape), "N" in letters)

    def first(self, x: Tensor) -> Tensor:
        """Return numbers (..., *S) with channels first, (..., C, *space) or (..., N)."""
        lead = x.dim() - len(self.order)
        x = x.permute(*range(lead), *(lead + k for k in self.order)).contiguous()
        return x.flatten(lead) if self.is_flat else x

    def back(self, x: Tensor) -> Tensor:
        """Return numbers with channels first as the model has them, (..., *S)."""
        x = x.unflatten(-1, [self.shape[k] for k in self.order]) if self.is_flat else x
        lead = x.dim() - len(self.order)
        return x.permute(*range(lead), *(lead + self.order.index(k) for k in range(len(self.order))))


@dataclass(frozen=True)
class ForwardArguments:
    """Further arguments of a model ``model(x, *args, **kwargs)``.

    Args:
        args: Positional arguments after the explained tensor (before it, if that is passed by name).
        kwargs: Keyword arguments.
        parts: The explained tensors, of which ``x`` holds all numbers; (): one, the first positional argument.
        by_row: Positions and names of the tensors (B, ...) whose row i belongs to image i.
        tail: Padding (B, C, N) of series, which the model takes after the explained samples.
        axes: The axes in which the model takes ``x``; None: as it is.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    parts: tuple[Part, ...] = ()
    by_row: frozenset[int | str] = frozenset()
    tail: Tensor | None = None
    axes: Axes | None = None

    @classmethod
    def of(
        cls, batch: int, args: object = None, kwargs: Mapping[str, Any] | None = None, parts: Sequence[Part] = ()
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
        if kwargs:
            _refuse_numbers(kwargs, "forward_kwargs")
        values = {**dict[int | str, Any](enumerate(cast(Sequence[Any], args or ()))), **(kwargs or {})}
        by_row = {key for key, v in values.items() if isinstance(v, Tensor) and v.dim() and len(v) == batch}
        plain = {key: _plain(value.value if isinstance(value, Shared) else value) for key, value in values.items()}
        return cls(
            tuple(value for key, value in plain.items() if isinstance(key, int)),
            {key: value for key, value in plain.items() if isinstance(key, str)},
            tuple(parts),
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
        x = x if self.axes is None else self.axes.back(x)
        first, named = [x], dict[str, Tensor]()
        if self.parts:
            given = list(zip(self.parts, split(x, self.parts), strict=True))
            first = [tensor for part, tensor in given if part.name is None]
            named = {part.name: tensor for part, tensor in given if part.name is not None}
        try:
            return model(*first, *self.args, **named, **self.kwargs)
        except TypeError as error:
            if self.parts:
                error.add_note(
                    "tensors of a tuple of inputs are passed by position, those of a dictionary by name; what is not "
                    "explained goes to forward_args or forward_kwargs; for a model of one dictionary write "
                    "lambda **x: model(x) in place of model"
                )
            raise

    def joined(self, value: Any, like: Tensor, rows: tuple[int, ...], argument: str) -> Any:
        """Return numbers for each of the explained tensors, in a tuple or a dictionary as these are, as one tensor
        (*rows, N) in the dtype and on the device of ``like``; any other value is returned as it is.

        Raises:
            InputError: If there is not one for each, or one does not broadcast to its tensor.
        """
        if not isinstance(value, (tuple, Mapping)):
            return value
        if not self.parts:
            form = "dictionary" if isinstance(value, Mapping) else "tuple"
            raise InputError(f"got a {form} for inputs in one tensor, expected a number or a tensor", argument=argument)
        shapes = [(*rows, *part.shape) for part in self.parts]
        try:
            items = cast(tuple[Any, ...], value)
            if isinstance(value, Mapping):
                table, names = cast(dict[str | None, Any], value), [part.name for part in self.parts]
                if {*table} != {*names}:
                    raise ValueError(f"got {', '.join(map(str, table)) or 'none'}")
                items = [table[name] for name in names]
            each = [torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in items]
            wide = [v.detach().expand(shape) for v, shape in zip(each, shapes, strict=True)]
        except (TypeError, ValueError, RuntimeError) as error:
            names = ", ".join(f"{part.name or i} {shapes[i]}" for i, part in enumerate(self.parts))
            message = f"expected a number or a tensor for each of the explained tensors: {names} ({error})"
            raise InputError(message, argument=argument) from error
        return torch.cat([v.reshape(*rows, -1) for v in wide], -1) if is_joint(self.parts) else wide[0]

    @property
    def by_name(self) -> Tensor | None:
        """Positions (N,) of the numbers of the explained tensors, these sorted by name; None if they are in order."""
        order = sorted(range(len(self.parts)), key=lambda i: self.parts[i].name or "")
        if order == [*range(len(order))]:
            return None
        each = split(torch.arange(sum(part.size for part in self.parts)), self.parts)
        return torch.cat([each[i].flatten() for i in order])

    def tensors(self) -> list[Tensor]:
        """Return the tensors that belong to single images."""
        values: dict[int | str, Any] = {**dict(enumerate(self.args)), **self.kwargs}
        return [values[key] for key in sorted(self.by_row, key=str)] + ([] if self.tail is None else [self.tail])


NO_ARGUMENTS = ForwardArguments()


def explained_inputs(
    inputs: Tensor | tuple[Tensor, ...] | Mapping[str, Any],
    args: object,
    kwargs: Mapping[str, Any] | None,
    ids: Sequence[str] | None = None,
) -> tuple[Tensor, ForwardArguments]:
    """Return the tensor (B, *S) to explain, in float32 at least, and the other arguments of a call, those in a
    dictionary of inputs included. The numbers of several tensors are joined to one (B, N).

    Raises:
        InputError: If there is no batch of inputs, or another number of ``ids``; if a dictionary or tuple holds no
            floating-point tensor, tensors of different lengths or on different devices, or an argument is given twice.
    """
    if isinstance(inputs, Tensor):
        require_dense(inputs)
        x, parts = inputs, ()
    elif isinstance(inputs, tuple) and inputs:
        x, parts = _joined([(None, value) for value in inputs])
    elif isinstance(inputs, Mapping):
        _refuse_numbers(inputs, "inputs")
        named = {name: v for name, v in inputs.items() if isinstance(v, Tensor) and v.is_floating_point()}
        if not named:
            message, hint = "a dictionary without a floating-point tensor", integers_hint(torch.empty(0).long())
            raise InputError(f"got {message}, and these are explained", argument="inputs", hint=hint)
        if twice := inputs.keys() & (kwargs or {}).keys():
            raise InputError(f"{', '.join(sorted(twice))} given in the inputs, too", argument="forward_kwargs")
        kwargs = {**{name: value for name, value in inputs.items() if name not in named}, **(kwargs or {})}
        x, parts = _joined(list(named.items()))
    else:
        hint = "pass torch.from_numpy(x).float(), prepared for the model; pictures and paths go to fringe.explain"
        items = cast(Any, inputs)
        if isinstance(items, str) or (isinstance(items, list) and any(isinstance(item, str) for item in items)):
            hint = "texts and paths go to fringe.explain, texts with tokenizer="
        elif isinstance(items, (tuple, list)):
            hint = "pass torch.stack(x) for a list of inputs; several tensors of the model in a tuple or, by name, in "
            hint += "a dictionary"
        message = f"expected a torch.Tensor (B, *S), got {type(inputs).__name__}"
        raise InputError(message, argument="inputs", hint=hint)
    if x.dim() < 2 or x.numel() == 0:
        raise InputError(
            f"got shape {tuple(x.shape)}, expected a batch (B, *S) with at least one image",
            argument="inputs",
            hint="add a batch axis with inputs[None] for a single one",
        )
    if ids is not None:
        require_order("ids", ids)
        if len(ids) != len(x):
            raise InputError(f"got {len(ids)} for {len(x)} images", argument="ids")
    return _plain(x), ForwardArguments.of(len(x), args, kwargs, parts)


def require_dense(x: Tensor, argument: str = "inputs") -> None:
    """Raise InputError for a tensor that is nested, sparse or has no numbers, with what to pass in its place."""
    if x.is_nested:
        hint = "pass torch.nested.to_padded_tensor(x, 0.0), for series (B, C, L) with lengths="
        raise InputError("got a nested tensor, expected one of one shape", argument=argument, hint=hint)
    if x.layout != torch.strided or x.is_meta:
        kind, hint = (str(x.layout), "pass x.to_dense()") if not x.is_meta else ("device meta", "load its numbers")
        raise InputError(f"got a tensor of {kind}, expected a dense one", argument=argument, hint=hint)


def _refuse_numbers(table: Mapping[Any, Any], argument: str) -> None:
    """Raise InputError for a key that is no text."""
    wrong = next((key for key in table if not isinstance(key, str)), None)
    if wrong is not None:
        message = f"got the key {wrong!r}, expected names of the model's arguments"
        raise InputError(message, argument=argument, hint="pass tensors without names in a tuple")


def _joined(tensors: Sequence[tuple[str | None, Any]]) -> tuple[Tensor, tuple[Part, ...]]:
    """All numbers (B, N) of these tensors (B, *S), and their names and shapes; one tensor alone is left as it is."""
    further = "pass what is not explained as forward_args or forward_kwargs"
    for k, (name, value) in enumerate(tensors):
        if not isinstance(value, Tensor) or not value.is_floating_point() or not value.dim():
            what = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            message = f"got {what}, expected floating-point numbers (B, *S)"
            raise InputError(message, argument=f"inputs[{k if name is None else repr(name)}]", hint=further)
    for k, (name, value) in enumerate(tensors):
        require_dense(value, f"inputs[{k if name is None else repr(name)}]")
    if len({(len(value), value.device) for _, value in tensors}) > 1:
        came = ", ".join(f"{k if name is None else name} {tuple(v.shape)}" for k, (name, v) in enumerate(tensors))
        message = f"got {came}, expected tensors (B, *S) of the same B on one device, which are explained together"
        raise InputError(message, argument="inputs", hint=further)
    parts = tuple(Part(name, tuple(value.shape[1:])) for name, value in tensors)
    if not is_joint(parts):
        return tensors[0][1], parts
    return torch.cat([_plain(value).reshape(len(value), -1) for _, value in tensors], 1), parts


def integers_hint(x: Tensor) -> str:
    """What to do with inputs that are no floating-point numbers: pixels, or token ids and codes of categories."""
    if x.is_complex():
        return (
            "pass torch.view_as_real(x), whose last axis has both parts, and a model of it, as in "
            "lambda z: model(torch.view_as_complex(z))"
        )
    if x.is_quantized:
        return "pass x.dequantize()"
    if x.dtype == torch.bool:
        return "pass x.float(), if zeros and ones are what the model takes"
    if x.dtype == torch.uint8:
        return "scale and normalise pixels first"
    return (
        "integers have no gradient: texts are explained by fringe.explain(model, texts, tokenizer=...); token ids and "
        "codes of categories by their embeddings, as a model that takes these, with the integers as forward_kwargs"
    )


def _take(value: Tensor, rows: Tensor) -> Tensor:
    return value[rows.to(value.device)]


def _plain(value: Any) -> Any:
    """Tensors without a graph, in float32 at least, as the inputs themselves."""
    if not isinstance(value, Tensor):
        return value
    value = detached(value)
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
