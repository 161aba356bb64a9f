"""Measure the structure of the library, and compare it with the ceilings of ``ceilings.toml``.

python scripts/house.py            # the table
python scripts/house.py --list     # and what each count is made of
python scripts/house.py --check    # fails where a measure is above its ceiling
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "fringe"
TESTS = PACKAGE.parents[1] / "tests"
CEILINGS = Path(__file__).with_name("ceilings.toml")
#: Packages that stand outside the library of maps: many stored images, and the web app.
OUTER = ("bench", "app")
PUBLIC = (
    "",
    "attribution",
    "metrics",
    "models",
    "data",
    "evaluation",
    "bench.experiments",
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
        package = package_of(parts)
        result.append(Module(".".join(("fringe", *parts)), package, ast.parse(text), text.count("\n")))
    return result


def package_of(parts: Sequence[str]) -> str:
    """Return the package of a module by its names below ``fringe``: "" for the root, two names below ``bench``."""
    depth = 1 + (parts[0] == "bench" and len(parts) > 2)
    return ".".join(parts[:depth]) if (PACKAGE / parts[0]).is_dir() else ""


def deep_imports(all_modules: list[Module]) -> list[str]:
    """Return the imports that name a submodule of another package; those of the private rooms serve all."""
    packages = {module.package for module in all_modules if not module.package.startswith("_")}
    packages -= {"", "bench"}  # modules of the latter are faces
    result: list[str] = []
    for module in all_modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                name = node.module.removeprefix("fringe.")
                owner = max((p for p in packages if name.startswith(p + ".")), key=len, default=None)
                if node.module.startswith("fringe.") and name not in packages and owner not in (None, module.package):
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
        re.search("Annotated|Baseline|Focus|perturb[.]", ast.unparse(n.annotation))
        or re.search("help=|description=", ast.unparse(n))
        for n in fields
    )
    documented = commented or "Attributes:" in text or "Args:" in text
    result = [] if text and (documented or not fields) else [f"{module.name}.{node.name}"]
    methods = [n for n in node.body if isinstance(n, ast.FunctionDef) and not n.name.startswith("_")]
    overriding = (
        {
            *("at", "attribute", "terms", "path", "score", "jvp_use", "is_complete", "planned_passes", "hint"),
            *("refusal", "add_to", "measure_fn", "perform", "fitted"),
            *("preset", "fits", "path_of_targets"),
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


def all_names(all_modules: list[Module]) -> list[str]:
    """Return the names in every ``__all__``."""
    nodes = (node for module in all_modules for node in module.tree.body if isinstance(node, ast.Assign))
    exported = [node.value for node in nodes if getattr(node.targets[0], "id", "") == "__all__"]
    return [str(name.value) for value in exported for name in ast.walk(value) if isinstance(name, ast.Constant)]


def public_by_spelling(all_modules: list[Module]) -> list[str]:
    """Return the functions and classes of all files whose names begin without an underscore."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [(module, node) for module in all_modules for node in module.tree.body if isinstance(node, kinds)]
    return [f"{module.name}.{node.name}" for module, node in nodes if not node.name.startswith("_")]


def single_use_helpers(all_modules: list[Module]) -> list[str]:
    """Return the private functions of files that are named once beside their definition; decorated ones are used by
    their decorator."""
    result: list[str] = []
    for module in all_modules:
        named = (getattr(n, "id", None) or getattr(n, "attr", None) for n in ast.walk(module.tree))
        uses = Counter(name for name in named if name)
        helpers = [n for n in module.tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("_")]
        result += [f"{module.name}.{n.name}" for n in helpers if uses[n.name] == 1 and not n.decorator_list]
    return result


_LOADED = "print(sum(name.split('.')[0] == 'fringe' for name in sys.modules))"
_RUN = f"""
import contextlib, io, sys, tempfile, threading
from typer.testing import CliRunner
from fringe.cli import app

entered, root = set(), {str(PACKAGE)!r}
def note(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(root):
        entered.add(frame.f_code.co_filename)
options = ["benchmark", "--model", "embedded:digits", "--n", "2", "--methods", "ig", "--metrics", "insertion", "--out"]
with tempfile.TemporaryDirectory() as folder:
    CliRunner().invoke(app, [*options, folder + "/first"], catch_exceptions=False)
    threading.setprofile(note)
    sys.setprofile(note)
    CliRunner().invoke(app, [*options, folder + "/second"], catch_exceptions=False)
    sys.setprofile(None)
print(len(entered))
"""
#: What the second call of attribute enters: functions, files, and pairs of files that call each other both ways.
_ENTERED = f"""
import sys
import torch
import fringe

entered, calls, root = set(), set(), {str(PACKAGE)!r}
def note(frame, event, argument):
    code, caller = frame.f_code, frame.f_back
    if event != "call" or not code.co_filename.startswith(root):
        return
    if not code.co_name.startswith("<"):  # a comprehension belongs to the function around it
        entered.add((code.co_filename, code.co_qualname))
    if caller is not None and caller.f_code.co_filename.startswith(root):
        calls.add((caller.f_code.co_filename, code.co_filename))
torch.manual_seed(0)
layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
network, x = torch.nn.Sequential(*layers, torch.nn.Linear(8, 10)).eval(), torch.randn(2, 3, 16, 16)
network[-1].weight.data *= 20
fringe.attribute(network, x)
sys.setprofile(note)
fringe.attribute(network, x)
sys.setprofile(None)
print(len(entered), len({{file for file, _ in entered}}), sum(a < b and (b, a) in calls for a, b in calls))
"""
_COMMANDS = """
import typer
from fringe.cli import app

group = typer.main.get_command(app)
built = [group.resolve_command(None, [name])[1] for name in group.commands]
flags = [name for one in built for p in one.params for name in p.opts if name.startswith("--")]
print(len(built), len(flags) + len(built))  # and --help
"""
#: Measures of the running library, each printed by a program of its own.
PROGRAMS = {
    ("modules that fringe.explain loads",): "import sys, fringe\n"
    f"fringe.explain('embedded:digits', 'embedded:digits:1', method='ig')\n{_LOADED}",
    ("modules that fringe.attribute loads",): "import sys, fringe, torch\n"
    "fringe.attribute(torch.nn.Linear(4, 3).eval(), torch.ones(2, 4), method='ig')\n"
    f"{_LOADED}",
    ("files entered by a benchmark",): _RUN,
    ("functions entered by attribute", "files entered by attribute", "pairs of files that call both ways"): _ENTERED,
    ("commands", "flags"): _COMMANDS,
}


def measured_in_processes() -> dict[str, float]:
    """Return the measures of the running library.

    Returns:
        Values by name.
    """
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    rows: dict[str, float] = {}
    for names, program in PROGRAMS.items():
        command = [sys.executable, "-W", "ignore", "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        rows |= zip(names, map(int, done.stdout.split()), strict=True)
    return rows


def above(rows: dict[str, float], ceilings: dict[str, float]) -> list[str]:
    """Return a line for each measure that is above its ceiling or has none.

    Args:
        rows: Measures by name.
        ceilings: The largest allowed values, for the same names.

    Returns:
        The lines; none if all is well.
    """
    missing = [f"{name}: stands in one place only" for name in sorted(rows.keys() ^ ceilings.keys())]
    high = [name for name in rows.keys() & ceilings.keys() if rows[name] > ceilings[name]]
    return missing + [f"{name}: {rows[name]:,} is above {ceilings[name]:,}" for name in sorted(high)]


def main() -> int:
    """Print the measures, and compare them with their ceilings.

    Returns:
        The exit status: 1 if a measure is above its ceiling.
    """
    parser = argparse.ArgumentParser(description="Measure the structure of the library.")
    parser.add_argument("--list", action="store_true", help="list what each count is made of")
    parser.add_argument("--check", action="store_true", help=f"compare the measures with {CEILINGS.name}")
    options = parser.parse_args()
    every = modules()
    details = {
        "imports past another package's face": deep_imports(every),
        f"functions with more than {MOST_ARGUMENTS} arguments": long_signatures(every),
        "public names without the sections of a docstring": undocumented(every),
        "identifiers of abolished words": abolished(every),
        "names in __all__": all_names(every),
        "public names by spelling": public_by_spelling(every),
        "private helpers with one use": single_use_helpers(every),
    }
    counts = {name: len(lines) for name, lines in details.items()}
    count = sum(len(list(functions(module.tree))) for module in every)
    helpers = counts.pop("private helpers with one use")
    rows: dict[str, float] = {
        "lines": sum(module.lines for module in every),
        f"lines outside {' and '.join(OUTER)}": sum(m.lines for m in every if m.package.split(".")[0] not in OUTER),
        "files": len(every),
        "lines of the longest file": max(module.lines for module in every),
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in TESTS.rglob("*.py")),
        **counts,
        "percent of functions that are private helpers with one use": round(100 * helpers / count, 1),
        **measured_in_processes(),
    }
    for name, value in rows.items():
        print(f"{value:>8,}  {name}")
    for name, lines in details.items() if options.list else ():
        print(f"\n{name}:", *lines, sep="\n  ")
    faults = above(rows, tomllib.loads(CEILINGS.read_text(encoding="utf-8"))) if options.check else []
    print(*faults, sep="\n", file=sys.stderr, end="\n" if faults else "")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
