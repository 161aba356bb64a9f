"""Change one source file in small ways and see whether tests notice: a change that no test fails on has survived.

    python scripts/mutants.py src/fringe/paths/trust_region.py --tests tests/attribution/test_fringe_laws.py
    python scripts/mutants.py FILE --lines 40-80 --limit 20 --tests tests/attribution -- -k schedule  # -- pytest's own

Each mutant is written into a temporary copy of the source folder, and pytest runs with that copy on PYTHONPATH; before
it, with the unchanged file, which must pass. Not changed: docstrings, ``__repr__``, texts, annotations, decorators, and
statements with ``# pragma: no mutate`` on a line. Exit status: 0 all killed, 1 a mutant survived, 2 no mutant was run.
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

UNCHANGED = ("annotation", "returns", "decorator_list", ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise)
OPERATORS = {"Lt": "LtE Gt", "LtE": "Lt GtE", "Gt": "GtE Lt", "GtE": "Gt LtE", "Eq": "NotEq", "NotEq": "Eq"}
OPERATORS |= {"Is": "IsNot", "IsNot": "Is", "In": "NotIn", "NotIn": "In", "And": "Or", "Or": "And"}
OPERATORS |= {"Add": "Sub", "Sub": "Add", "Mult": "Div", "Div": "Mult", "FloorDiv": "Div", "Mod": "FloorDiv"}
OPERATORS |= {"Pow": "Mult", "BitAnd": "BitOr", "BitOr": "BitAnd"}
CALLS = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "ceil": "floor", "any": "all"}
CALLS |= {new: old for old, new in CALLS.items()} | {"clamp_min": "clamp_max", "round": "ceil"}
DROPPED_CALLS = {"abs", "sqrt", "square", "exp", "log", "ceil", "floor", "round"}


@dataclass(frozen=True)
class Mutant:
    """A changed ``source``: the ``line`` and ``kind`` of the change, and its ``diff`` in normalised source."""

    line: int
    kind: str
    diff: str
    source: str


def mutants(text: str) -> list[Mutant]:
    """All mutants of a module's ``text``, in the order of its lines."""
    tree, made = ast.parse(text), dict[str, Mutant]()
    original = ast.unparse(tree)
    for node, put in _nodes(tree, text.splitlines()):
        for kind, new in _changes(node):
            put(new)
            source = ast.unparse(tree)
            put(node)
            if source != original:
                made.setdefault(source, Mutant(node.lineno, kind, _diff(original, source), source))
    return sorted(made.values(), key=lambda mutant: mutant.line)


def _diff(before: str, after: str) -> str:
    """The changed line, and of a long one what is near the change."""
    old, new = next(pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if len(set(pair)) > 1)
    first = max(0, next(i for i in range(len(old) + 1) if old[: i + 1] != new[: i + 1]) - 60)
    return "\n".join(f"    {sign} {line[first : first + 140].strip()}" for sign, line in (("-", old), ("+", new)))


def _nodes(parent: ast.AST, lines: list[str]) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    """Every expression and statement that may be changed, with a function that puts another in its place."""
    for field, value in list(ast.iter_fields(parent)):
        several = isinstance(value, list)
        for index, node in enumerate(value if several else [value]):
            if not isinstance(node, ast.AST) or field in UNCHANGED or _is_untouched(node, lines):
                continue
            if isinstance(node, ast.expr | ast.stmt):
                yield node, partial(value.__setitem__, index) if several else partial(setattr, parent, field)
            if type(node) not in UNCHANGED:
                yield from _nodes(node, lines)


def _is_untouched(node: ast.AST, lines: list[str]) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    line = getattr(node, "lineno", 0)
    text = "".join(lines[line - 1 : line if hasattr(node, "body") else getattr(node, "end_lineno", 0)])
    return docstring or getattr(node, "name", "") in ("__repr__", "__str__") or "pragma: no mutate" in text


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    new.__dict__.update(fields)
    return new


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    match node:
        case ast.Compare():
            for i, op in enumerate(node.ops):
                for name in OPERATORS[type(op).__name__].split():
                    yield "comparison", _with(node, ops=[*node.ops[:i], getattr(ast, name)(), *node.ops[i + 1 :]])
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp():
            for name in OPERATORS.get(type(node.op).__name__, "").split():
                yield "operator", _with(node, op=getattr(ast, name)())
        case ast.UnaryOp():
            yield "operator dropped", node.operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield from (("constant", ast.Constant(near)) for near in (value - 1, value + 1) if near >= 0)
        case ast.Constant(value=float(value)):
            yield "constant", ast.Constant(2.0 * value or 1.0)
        case ast.Slice():
            for end in ("lower", "upper"):
                if (bound := getattr(node, end)) is not None:
                    yield "index", _with(node, **{end: ast.BinOp(bound, ast.Add(), ast.Constant(1))})
        case ast.If() | ast.IfExp() if not isinstance(node.test, ast.Compare):
            yield "condition", _with(node, test=ast.UnaryOp(ast.Not(), node.test))
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            if name in CALLS:
                field = "id" if isinstance(node.func, ast.Name) else "attr"
                yield "call", _with(node, func=_with(node.func, **{field: CALLS[name]}))
            for i, keyword in enumerate(node.keywords):
                if keyword.arg is not None:
                    yield "keyword dropped", _with(node, keywords=node.keywords[:i] + node.keywords[i + 1 :])
            if name in DROPPED_CALLS and (node.args or isinstance(node.func, ast.Attribute)):
                yield "call dropped", node.args[0] if node.args else node.func.value
        case ast.Return(value=ast.expr()):
            yield "return", ast.Return(ast.Constant(None))
    if isinstance(node, ast.Expr | ast.AugAssign | ast.Raise | ast.Break | ast.Continue) or _is_optional(node):
        yield "statement dropped", ast.Pass()


def _is_optional(node: ast.AST) -> bool:
    """Whether a function still runs without this assignment: to no name, or to names that it reads itself."""
    names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
    read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return isinstance(node, ast.Assign) and read.issuperset(name.id for name in names)


class Trial:
    """A copy of the folder that ``file`` is imported from, and a run of pytest over it."""

    def __init__(self, file: Path, folder: str, arguments: list[str]):
        root = file.resolve().parent
        while (root / "__init__.py").exists():
            root = root.parent
        shutil.copytree(root, copied := Path(folder, root.name), ignore=shutil.ignore_patterns("__pycache__"))
        self.file = copied / file.resolve().relative_to(root)
        self.command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *arguments]
        self.environment = os.environ | {"PYTHONPATH": f"{copied}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}

    def run(self, source: str, timeout: float | None = None) -> int | None:
        """Exit status of pytest with ``source`` in the file's place; None for a timeout."""
        self.file.write_text(source, encoding="utf-8")
        for stale in self.file.parent.glob(f"__pycache__/{self.file.stem}.*"):
            stale.unlink()  # two mutants may agree in size and second
        process = subprocess.Popen(self.command, env=self.environment, stdout=subprocess.DEVNULL, process_group=0)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with all that the tests have started


def main(arguments: list[str]) -> int:
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the source file to change")
    parser.add_argument("--tests", nargs="+", default=[], help="test files; the fewer and faster, the better")
    parser.add_argument("--lines", default=f"1-{sys.maxsize}", metavar="A-B", help="only changes in these lines")
    parser.add_argument("--only", default="", metavar="REGEX", help="only changes whose kind or diff matches")
    parser.add_argument("--limit", type=int, default=sys.maxsize, help="at most so many, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (0)")
    parser.add_argument("--timeout", type=float, help="seconds a mutant may take (10, and 5 times the unchanged file)")
    parser.add_argument("--list", action="store_true", help="show the mutants and run nothing")
    options = parser.parse_args(arguments[:split])
    text, (first, last) = options.file.read_text(encoding="utf-8"), map(int, options.lines.split("-"))
    found = [m for m in mutants(text) if first <= m.line <= last and re.search(options.only, f"{m.kind}\n{m.diff}")]
    rows = random.Random(options.seed).sample(range(len(found)), min(options.limit, len(found)))
    if not options.list and not (options.tests and rows):
        parser.error(f"--tests: name the test files to run; {len(rows)} mutants were chosen")
    verdicts: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        trial, began = Trial(options.file, folder, [*options.tests, *arguments[split + 1 :]]), time.monotonic()
        if not options.list and trial.run(ast.unparse(ast.parse(text))) != 0:
            parser.error(f"--tests: they must pass on the unchanged file: {' '.join(trial.command)}")
        timeout = options.timeout or 10 + 5 * (time.monotonic() - began)
        if not options.list and trial.run("raise RuntimeError") == 0:  # all mutants would survive
            parser.error(f"--tests: they pass without {options.file}, so they do not import it")
        for mutant in (found[row] for row in sorted(rows)):
            status = "listed" if options.list else trial.run(mutant.source, timeout)
            verdicts.append({"listed": "listed", 0: "survived", None: "timeout"}.get(status, "killed"))
            print(f"{verdicts[-1]:8} {options.file}:{mutant.line} [{mutant.kind}]\n{mutant.diff}", flush=True)
    print(", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in dict.fromkeys(verdicts)))
    return 1 if "survived" in verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
