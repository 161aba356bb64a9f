"""Measure the structure of the library: size, commands and flags, public names, imports past a package's face,
long signatures, docstrings.

python scripts/house.py            # the table
python scripts/house.py --list     # and what each count is made of
"""

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[1] / "src" / "fringe"
PUBLIC = (
    "",
    "attribution",
    "metrics",
    "models",
    "data",
    "experiments",
    "plots",
    "testing",
    "paths",
    "captum",
    "quantus",
)
ABOLISHED = frozenset(
    re.findall(
        r"\w+",
        "about cure entrant entrants farewell found gather hand heard kept lane ledger mine own place pull push "
        "scorebook seat sound there told wanted way whole",
    )
)
MOST_ARGUMENTS = 7


@dataclass(frozen=True)
class Module:
    """One file: its dotted ``name``, its ``package`` ("" for the root), its syntax ``tree`` and its number of lines."""

    name: str
    package: str
    tree: ast.Module
    lines: int


def modules() -> list[Module]:
    """Return every module of the library."""
    result: list[Module] = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        package = parts[0] if (PACKAGE / parts[0]).is_dir() else ""
        result.append(Module(".".join(("fringe", *parts)), package, ast.parse(text), text.count("\n")))
    return result


def deep_imports(all_modules: list[Module]) -> list[str]:
    """Return the imports that name a submodule of another package."""
    packages = {module.package for module in all_modules} - {""}
    result: list[str] = []
    for module in all_modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                parts = [*node.module.split("."), ""]
                if parts[0] == "fringe" and parts[1] in packages - {module.package} and parts[2]:
                    result.append(f"{module.name}: {node.module}")
    return result


def public_names(all_modules: list[Module]) -> dict[str, str]:
    """Return the names in the ``__all__`` of the public packages, with the package that lists them."""
    result: dict[str, str] = {}
    for module in all_modules:
        parts = module.name.removeprefix("fringe").strip(".").removesuffix("__init__").strip(".")
        if parts in PUBLIC:
            for node in module.tree.body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                    names = [n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant)]
                    result |= {str(name): parts or "fringe" for name in names if name not in result}
    return result


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function and method."""
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def long_signatures(all_modules: list[Module]) -> list[str]:
    """Return the functions with more than ``MOST_ARGUMENTS`` arguments."""
    result: list[str] = []
    for module in all_modules:
        for function in functions(module.tree):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in arguments)
            if count > MOST_ARGUMENTS:
                result.append(f"{module.name}.{function.name}: {count}")
    return result


def undocumented(all_modules: list[Module]) -> list[str]:
    """Return the public functions, classes and methods whose docstring lacks a section that it needs: ``Args:`` for
    parameters, ``Returns:`` or ``Yields:`` for a value, ``Attributes:`` or ``Args:`` for the fields of a class."""
    names = public_names(all_modules)
    result: list[str] = []
    for module in all_modules:
        for node in module.tree.body:
            if getattr(node, "name", None) not in names or (module.package or "fringe") not in {
                names[node.name],  # pyright: ignore[reportAttributeAccessIssue]
                "fringe",
                names[node.name].removeprefix("fringe") or module.package,  # pyright: ignore[reportAttributeAccessIssue]
            }:
                continue
            if isinstance(node, ast.FunctionDef) and _lacks(node):
                result.append(f"{module.name}.{node.name}")
            elif isinstance(node, ast.ClassDef):
                result += _undocumented_class(node, module)
    return result


def _undocumented_class(node: ast.ClassDef, module: Module) -> list[str]:
    text = ast.get_docstring(node) or ""
    fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n.annotation)]
    commented = all(
        re.search("Annotated|Baseline|perturb[.]", ast.unparse(n.annotation)) or "help=" in ast.unparse(n)
        for n in fields
    )
    documented = commented or "Attributes:" in text or "Args:" in text
    result = [] if text and (documented or not fields) else [f"{module.name}.{node.name}"]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    overriding = (
        {
            *("at", "attribute", "pieces", "path", "score", "jvp_use", "is_complete", "planned_passes", "hint"),
            *("start", "schedule", "completed", "stop"),
        }
        if node.bases
        else set[str]()
    )
    return result + [f"{module.name}.{node.name}.{m.name}" for m in methods if m.name not in overriding and _lacks(m)]


def _lacks(function: ast.FunctionDef) -> bool:
    decorators = {ast.unparse(decorator) for decorator in function.decorator_list}
    if decorators & {"overload", "property", "cached_property"} or any("setter" in d for d in decorators):
        return not ast.get_docstring(function) and "overload" not in decorators
    text = ast.get_docstring(function) or ""
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    takes = any(argument.arg not in ("self", "cls") for argument in arguments)
    gives = function.returns is not None and ast.unparse(function.returns) not in ("None", "NoReturn")
    missing = (takes and "Args:" not in text) or (gives and not re.search(r"Returns:|Yields:", text))
    return not text or missing


def abolished(all_modules: list[Module]) -> list[str]:
    """Return the identifiers that are words of the house and not of the field."""
    result: list[str] = []
    for module in all_modules:
        for node in ast.walk(module.tree):
            name = getattr(node, "arg", None) if isinstance(node, ast.arg) else getattr(node, "name", None)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            if isinstance(name, str) and ABOLISHED & set(name.lower().strip("_").split("_")):
                result.append(f"{module.name}:{getattr(node, 'lineno', 0)} {name}")
    return result


def flags() -> dict[str, list[str]]:
    """Return the options of each command of ``fringe``, ``--help`` among them."""
    import typer

    from fringe.cli import app

    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    found: dict[str, list[str]] = {}
    for name in group.list_commands(context):
        command = group.resolve_command(context, [name])[1]
        found[name] = [p.opts[0] for p in command.get_params(context) if p.param_type_name == "option"]
    return found


def main() -> None:
    """Print the measures."""
    parser = argparse.ArgumentParser(description="Measure the structure of the library.")
    parser.add_argument("--list", action="store_true", help="list what each count is made of")
    listed = parser.parse_args().list
    every = modules()
    cli = [module for module in every if module.package == "cli"]
    details = {
        "imports past another package's face": deep_imports(every),
        f"functions with more than {MOST_ARGUMENTS} arguments": long_signatures(every),
        "public names without the sections of a docstring": undocumented(every),
        "identifiers of abolished words": abolished(every),
    }
    by_command = flags()
    rows = {
        "lines": sum(module.lines for module in every),
        "files": len(every),
        "lines of cli": sum(module.lines for module in cli),
        "files of cli": len(cli),
        "commands": len(by_command),
        "flags of all commands": sum(map(len, by_command.values())),
        "longest file": max(module.lines for module in every),
        "public names (__all__)": len(public_names(every)),
        **{name: len(lines) for name, lines in details.items()},
    }
    for name, value in rows.items():
        print(f"{value:>7,}  {name}")
    details["flags"] = [f"{name}: {' '.join(options)}" for name, options in by_command.items()]
    for name, lines in details.items() if listed else ():
        print(f"\n{name}:", *lines, sep="\n  ")


if __name__ == "__main__":
    main()
