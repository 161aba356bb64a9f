"""Command-line options from pydantic models: each field is a flag, a key of a configuration file and a setting."""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from fringe._strings.names import read_list, split_label, split_source
from fringe.cli._console import exit_on_error
from fringe.errors import InputError
from fringe.settings import Setting, settings_of

Command = Callable[..., None]
#: Parameters that several commands share and that are no field of a model.
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the results.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace results of other settings; write into a folder with other files.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Start without asking, also where the settings mean very many passes.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document, and no progress bars.")]
Inputs = Annotated[
    list[str],
    typer.Argument(metavar="INPUT", help="Images, folders, embedded:photos, or embedded:digits[:INDEX|:START:STOP]."),
]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]

_METAVARS = {
    **dict.fromkeys(("methods", "metrics", "scene", "scenes"), "NAMES"),
    **dict.fromkeys(("out", "data", "references"), "DIR"),
    **dict.fromkeys(("timeout", "probe"), "SECONDS"),
    **{"set": "KEY=VALUE", "limits": "METRIC=N", "model": "SPEC", "plan": "NAME", "reference": "METHOD"},
    **{"search": "KEY[=LOW,HIGH]", "validity": "FILE"},
}
#: Flags with another name than their field.
_NAMES = {"limits": "--limit", "as_json": "--json", "retry": "--retry-failed"}


def with_options(
    *models: str,
    skip: tuple[str, ...] = (),
    only: Mapping[str, Collection[str]] | None = None,
    notes: Mapping[str, str] | None = None,
) -> Callable[[Command], Command]:
    """Give a command one flag per field of pydantic models, but those to ``skip``, or of a model in ``only`` the fields
    that this names; its first arguments are the given values by field. A model is ``module:name``, imported when the
    command is used: the help of the program loads none. ``notes`` say of fields what this command has in place of their
    default.
    """

    def decorate(command: Command) -> Command:
        def build() -> Command:
            with exit_on_error():  # a package of an extra may be absent
                named = {path: split_source(path) for path in models}
                specs = {path: getattr(importlib.import_module(module), name) for path, (module, name) in named.items()}
            fields = [
                {n: one for n, one in settings_of(spec).items() if n not in skip and n in (only or {}).get(path, {n})}
                for path, spec in specs.items()
            ]
            others = list(inspect.signature(command, eval_str=True).parameters.values())[len(models) :]

            def run(**values: Any) -> None:
                given = [{n: v for n in names if (v := _value(n, values.pop(n))) is not None} for names in fields]
                command(*given, **values)

            flags = [_flag(one, (notes or {}).get(name)) for names in fields for name, one in names.items()]
            others = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in others]
            required = [p for p in (*others, *flags) if p.default is inspect.Parameter.empty]
            parameters = [*required, *(p for p in (*flags, *others) if p not in required)]
            run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
            run.__annotations__ = {p.name: p.annotation for p in parameters}
            run.__name__, run.__doc__ = command.__name__, command.__doc__
            return run

        command.build = build  # pyright: ignore[reportFunctionMemberAccess]
        return command

    return decorate


def _flag(setting: Setting, note: str | None) -> inspect.Parameter:
    """The flag of a field. Only the shape of a value is typed: the model checks it, with its own messages."""
    name, is_required, text = setting.name, setting.default is MISSING, setting.doc.text
    flag, default = _NAMES.get(name, f"--{name.replace('_', '-')}"), None if is_required else setting.default
    shown = ", ".join(f"{k}={v}" for k, v in default.items()) if isinstance(default, Mapping) else default
    if setting.types == (bool,):
        shown = flag[2:] if default else None
    if note is None and name != "methods" and "Default:" not in text and shown not in (None, (), ""):
        note = f"default: {shown}"
    text += f"  [{note}]" if note else ""
    if setting.types == (bool,):
        declaration = f"{flag}/--no-{flag[2:]}" if default else flag
        option = Annotated[bool | None, typer.Option(declaration, help=text, show_default=False)]
    else:
        metavar = _METAVARS.get(name) or "|".join(dict.fromkeys(map(_metavar, setting.types))).removesuffix("|")
        # a type of several values takes a flag that may be repeated
        is_many = name == "method" or any(get_origin(kind) in (tuple, list, dict, Mapping) for kind in setting.types)
        kind = setting.types[0] if len(setting.types) == 1 and setting.types[0] in (int, float, Path) else str
        kind = list[str] if is_many else kind
        kind = kind if is_required else kind | None
        option = Annotated[kind, typer.Option(flag, help=text, metavar=metavar, show_default=False)]
    empty = inspect.Parameter.empty if is_required else None
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty, annotation=option)


def _metavar(kind: Any) -> str:
    """``logit|probability`` for choices, else a word for the type."""
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return {NoneType: "", int: "N", float: "X", Path: "FILE"}.get(kind, "TEXT")


def _value(name: str, value: Any) -> Any:
    """A given value: names with commas are one text, other repeated flags a tuple. A method that is given twice is not
    silently the last one: it is refused as two names."""
    if isinstance(value, list):
        return ",".join(value) if name in ("method", "methods", "metrics", "scene") else tuple(value)
    return value


def with_file_methods(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options with the functions of ``file.py:NAME`` in place of these words, as ``fringe verify`` reads them."""
    if ".py:" not in given.get("methods", ""):
        return dict(given)
    from fringe.attribution import read_target

    methods = list[Any]()
    for text in read_list(given["methods"]):
        label, name = split_label(text, "[^=]+")
        try:
            method = read_target(name, trust_code=given.get("trust_code", False)) if ".py:" in name else name
        except InputError as error:
            raise InputError(error.message, argument="methods", hint=error.hint) from error
        methods.append((label, method) if label else method)
    return {**given, "methods": methods}
