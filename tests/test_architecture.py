"""The rooms and their arrows: who may import whom, checked against the source."""

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "fringe"

# Left imports only what stands to its right; rooms of one layer do not import each other.
LAYERS = [
    {"__main__"},
    {"cli"},
    {"app"},
    {"captum", "quantus", "integrations"},
    {"tune", "cards", "comparison"},
    {"report", "explanations"},
    {"experiments", "page"},
    {"tuning", "testing", "evaluation"},
    {"inputs", "scenes"},
    {"attribution", "metrics"},
    {"models", "data", "text", "similarity"},
    {"paths"},
    {"baselines"},
    {"classifier", "detection", "geometry"},
    {"linalg", "settings", "plots"},
    {"_network"},
    {"_numbers", "_strings"},
    {"_files"},
    {"errors"},
]
HEAVY = {  # package: the only rooms that may import it
    "matplotlib": {"plots", "attribution", "evaluation", "experiments"},  # all but plots name a type
    "typer": {"cli"},
    "rich": {"_strings", "attribution", "plots"},
    "pydantic": {"app", "cli", "experiments", "explanations", "page", "report", "settings", "tune"},
    "PIL": {"app", "integrations", "models", "data", "cli", "page", "metrics"},  # metrics measure compressed sizes
    "torchvision": {"models"},
    "timm": {"models"},
    "transformers": {"models"},
    "sklearn": {"paths"},
    "scipy": {"paths", "evaluation", "metrics"},  # metrics interpolate between scattered pixels
    "yaml": set(),
    "polars": {"experiments", "report"},
    "jinja2": {"_strings"},
    "captum": {"captum"},  # the methods of captum, zennit and lxt are loaded by name when one is asked for
    "zennit": set(),
    "lxt": set(),
    "skimage": set(),
    "gradio": {"app"},
    "optuna": {"tuning"},
    "ray": {"experiments"},
    "lightning": {"integrations"},
    "fiftyone": {"integrations"},
    "mlflow": set(),  # these two are loaded by name where a run of theirs is given
    "wandb": set(),
    "huggingface_hub": set(),
    "quantus": set(),  # the adapter speaks its language without it
}
LARGEST = 600
"""Lines a file may have."""


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(("fringe", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in PACKAGE.rglob("*.py")
    }


def room(module: str) -> str | None:
    """Return the package of a module below ``fringe`` or ``fringe.bench``; None for the root."""
    parts = module.replace(".bench.", ".", 1).split(".")
    return parts[1] if len(parts) > 1 else None


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


@cache
def imports(path: Path) -> list[str]:
    """Every module that a file imports by statement, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


@pytest.mark.parametrize("folder", ["scripts", "benchmarks", "examples", "docs"])
def test_programs_beside_the_package_import_what_exists(folder):
    """Most of them run by hand, and a module that moved would be missed by no other test."""
    files = [path for path in (PACKAGE.parents[1] / folder).rglob("*.py") if not {"gallery", "_build"} & {*path.parts}]
    names = {name for path in files for name in imports(path) if name.startswith("fringe.")}
    assert names
    for name in sorted(names):
        module, _, attribute = name.rpartition(".")
        if importlib.util.find_spec(module) is None or not hasattr(importlib.import_module(module), attribute):
            assert importlib.util.find_spec(name) is not None, name


def internal(path: Path) -> set[str]:
    """The package's own modules that a file imports, each by its longest name that is a module."""
    known = modules()
    targets = set()
    for name in imports(path):
        while name.startswith("fringe") and name not in known:
            name = name.rpartition(".")[0]
        if name in known:
            targets.add(name)
    return targets


def violations(source: str, targets: set[str]) -> list[str]:
    """Targets that a module of this name may not import."""
    here, wrong = room(source), []
    for target in targets:
        there = room(target)
        if source == "fringe" or there == here or there is None:
            continue
        if layer(there) <= layer(here):
            wrong.append(target)
    return wrong


def test_imports_run_in_one_direction():
    wrong = {name: violations(name, internal(path)) for name, path in modules().items()}
    assert {name: targets for name, targets in wrong.items() if targets} == {}


def test_what_makes_maps_does_not_know_what_stores_them():
    """Nothing but the command line imports the benchmark; the package's face names it for type checkers."""
    outer = ("fringe.bench", "fringe.cli", "fringe.__main__")
    wrong = {
        name: [target for target in internal(path) if target.startswith("fringe.bench")]
        for name, path in modules().items()
        if name != "fringe" and not name.startswith(outer)
    }
    assert {name: targets for name, targets in wrong.items() if targets} == {}


def test_the_check_sees_a_wrong_arrow():
    assert violations("fringe.linalg.cg", {"fringe.geometry.simplex"}) == ["fringe.geometry.simplex"]
    assert violations("fringe.geometry.pullback", {"fringe.classifier"}) == ["fringe.classifier"]
    assert violations("fringe._numbers.rng", {"fringe.linalg"}) == ["fringe.linalg"]
    assert violations("fringe._files.disk", {"fringe._strings.formats"}) == ["fringe._strings.formats"]
    assert violations("fringe._numbers.rng", {"fringe._strings.names"}) == ["fringe._strings.names"]
    assert violations("fringe.errors", {"fringe._files.disk"}) == ["fringe._files.disk"]
    assert violations("fringe.attribution._fringe", {"fringe.paths", "fringe.linalg.cg"}) == []


def test_no_cycles():
    graph = {name: {t for t in internal(path) if t != name} for name, path in modules().items() if name != "fringe"}
    for targets in graph.values():
        targets.discard("fringe")
    state: dict[str, str] = {}

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert state.get(name) != "open", " -> ".join((*trail, name))
        if name in state:
            return
        state[name] = "open"
        for target in graph[name]:
            if not name.startswith(target + "."):  # a package's __init__ gathers its own files
                visit(target, (*trail, name))
        state[name] = "done"

    for name in graph:
        visit(name, ())


def test_heavy_packages_stay_in_their_rooms():
    for name, path in modules().items():
        for imported in imports(path):
            package = imported.split(".")[0]
            if package in HEAVY:
                assert room(name) in HEAVY[package], f"{name} imports {package}"


@pytest.mark.parametrize("name", ["attribution", "metrics"])
def test_registry_is_complete(name):
    """Every method and metric in a file of its room is in the registry, under its own name."""
    from fringe import METHODS, METRICS, Attributor, Metric

    def named(base):
        for child in base.__subclasses__():
            yield from named(child)
            if "name" not in vars(child) or child.__module__ not in modules() or room(child.__module__) != name:
                continue
            # classes that another test had made, and that are not collected yet, stand in no module
            if vars(sys.modules[child.__module__]).get(child.__name__) is child:
                yield child

    for module in modules():
        if room(module) == name:
            importlib.import_module(module)
    base, registry = {"attribution": (Attributor, METHODS), "metrics": (Metric, METRICS)}[name]
    assert {cls.name: cls for cls in named(base)} == registry
    assert not any(inspect.isabstract(cls) for cls in registry.values())


def test_files_hold_one_idea():
    long = {name: n for name, path in modules().items() if (n := len(path.read_text().splitlines())) > LARGEST}
    assert long == {}


def test_importing_the_package_loads_nothing_heavy():
    code = "import sys, fringe; fringe.attribute; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "torch" in loaded
    heavy = {"matplotlib", "typer", "rich", "torchvision", "timm", "transformers", "captum", "sklearn", "pyarrow"}
    assert set(loaded).isdisjoint(heavy | {"optuna", "jinja2"})


@pytest.fixture(scope="module")
def house():
    """The program that measures the structure of the library."""
    spec = importlib.util.spec_from_file_location("house", PACKAGE.parents[1] / "scripts" / "house.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def test_the_measures_see_what_they_count(house, tmp_path, monkeypatch):
    """A package with one fault of each kind."""
    (tmp_path / "metrics").mkdir()
    (tmp_path / "paths").mkdir()
    (tmp_path / "paths" / "_base.py").write_text(
        "Problem = 1\n\n\ndef _once(): ...\n\n\ndef _twice(): ...\n\n\n_once()\n_twice(), _twice()\n"
    )
    (tmp_path / "metrics" / "__init__.py").write_text(
        "from fringe.paths._base import Problem\n\n__all__ = ['score']\n\n\n"
        'def score(a, b, c, d, e, f, g, found) -> int:\n    """Score."""\n    return 1\n'
    )
    monkeypatch.setattr(house, "PACKAGE", tmp_path)
    every = house.modules()
    assert house.deep_imports(every) == ["fringe.metrics.__init__: fringe.paths._base"]
    assert house.undocumented(every) == ["fringe.metrics.__init__.score"]
    assert house.long_signatures(every) == ["fringe.metrics.__init__.score: 8"]
    assert list(house.public_names(every)) == house.all_names(every) == ["score"]
    assert len(house.abolished(every)) == 1
    assert house.public_by_spelling(every) == ["fringe.metrics.__init__.score"]
    assert house.single_use_helpers(every) == ["fringe.paths._base._once"]


def test_a_measure_above_its_ceiling_is_named(house):
    ceilings = {"lines": 10, "files": 2, "flags": 5}
    assert house.above({"lines": 10, "files": 3, "commands": 1}, ceilings) == [
        "commands: stands in one place only",
        "flags: stands in one place only",
        "files: 3 is above 2",
    ]
    assert house.above({"lines": 10, "files": 1, "flags": 5}, ceilings) == []


def test_no_assert_checks_a_value():
    """With ``python -O`` an assert is not there. It may tell the type checker what the code before made sure of."""

    def narrows(test: ast.expr) -> bool:
        is_call = isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"
        return is_call or (isinstance(test, ast.Compare) and ast.unparse(test).endswith(" is not None"))

    found = [
        f"{path.name}: {ast.unparse(node)}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and not narrows(node.test)
    ]
    assert not found
