"""Command-line options from a pydantic model: each field is a flag, a key of a configuration file and a setting."""

import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

Command = Callable[..., None]
#: Shared parameters that are no field of a model.
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of other settings; write into a folder with other files.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Start without asking, however long the run may take.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document and no progress bars.")]
Inputs = Annotated[
    list[str], typer.Argument(metavar="INPUT", help="Images, folders, or embedded:digits[:INDEX|:START:STOP].")
]

#: Flags that only a list of texts with commas makes convenient.
_COMMAS = ("methods", "metrics")
_METAVARS = {"set": "KEY=VALUE", "limits": "METRIC=N", "methods": "NAMES", "metrics": "NAMES"}
#: Flags with another name than their field.
_FLAGS = {"limits": "--limit"}


def flag_of(field: str) -> str:
    """The flag of a field: ``batch_size`` is ``--batch-size``."""
    return _FLAGS.get(field, f"--{field.replace('_', '-')}")


def with_options(path: str, *, config: bool = False, skip: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Give a command one flag per field of a pydantic model; its first argument is what was given, by field.

    The model is imported when the command is used, so that the help of the program loads nothing.

    Args:
        path: ``module:name`` of the model.
        config: Add ``--config`` for a TOML or YAML file with the same keys.
        skip: Fields without a flag.
    """

    def decorate(command: Command) -> Command:
        def build() -> Command:
            module, name = path.split(":")
            spec: type[BaseModel] = getattr(importlib.import_module(module), name)
            fields = {name: field for name, field in spec.model_fields.items() if name not in skip}
            own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

            def run(**values: Any) -> None:
                given = {name: _value(name, values.pop(name)) for name in fields}
                command({name: value for name, value in given.items() if value is not None}, **values)

            flags = [_parameter(name, _annotation(name, field)) for name, field in fields.items()]
            if config:
                flags.append(_parameter("config", CONFIG))
            own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
            required = [p for p in own if p.default is inspect.Parameter.empty]
            parameters = [*required, *flags, *(p for p in own if p not in required)]
            run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
            run.__annotations__ = {p.name: p.annotation for p in parameters}
            run.__name__, run.__doc__ = command.__name__, command.__doc__
            return run

        command.build = build  # pyright: ignore[reportFunctionMemberAccess]
        return command

    return decorate


CONFIG = Annotated[Path | None, typer.Option(metavar="FILE", help="TOML or YAML file with these options as keys.")]


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(name: str, field: Any) -> Any:
    """The flag of a field. Only the shape is typed: values are validated by the model, with its messages."""
    flag, hint, default = flag_of(name), field.annotation, field.get_default()
    text = field.description or ""
    if hint is bool:
        declaration = f"{flag}/--no-{flag[2:]}" if default else flag
        return Annotated[bool | None, typer.Option(declaration, help=text, show_default=False)]
    if default is not None and default != () and default != {}:
        shown = ",".join(default) if isinstance(default, tuple) else default
        text += f"  [default: {shown}]"
    metavar = _METAVARS.get(name) or _metavar(hint)
    kind = list[str] | None if is_many(hint) else str | None
    return Annotated[kind, typer.Option(flag, help=text, metavar=metavar, show_default=False)]


def is_many(hint: Any) -> bool:
    """Whether a type takes several values: its flag may be repeated."""
    return any(get_origin(option) in (tuple, list, dict) for option in (hint, *get_args(hint)))


def _metavar(hint: Any) -> str:
    """``logit|probability`` for choices, else the type."""
    members = () if get_origin(hint) is Literal else get_args(hint)
    return "|".join(dict.fromkeys(_word(member) for member in members or (hint,) if member is not NoneType))


def _word(option: Any) -> str:
    if get_origin(option) is Literal:
        return "|".join(map(str, get_args(option)))
    option = get_args(option)[0] if get_origin(option) is Annotated else option
    return {int: "N", float: "X", Path: "FILE"}.get(option, "TEXT")


def _value(name: str, value: Any) -> Any:
    if name in _COMMAS and value is not None:
        return tuple(part.strip() for text in value for part in text.split(",") if part.strip())
    return tuple(value) if isinstance(value, list) else value
