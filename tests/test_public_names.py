"""What ``fringe`` shows: its public names, each of which can be had, and nothing else."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fringe
from fringe import METHODS, METRICS

NAMES = {
    *("METHODS", "METRICS", "Attribution", "Attributor", "Classifier", "InputSpace", "Metric", "PassCounts", "Scores"),
    *("Region", "Shared", "Trajectory", "BinaryClassifier", "Detector", "Similarity", "attribute", "compare"),
    *("ExperimentSpec", "explain", "explain_images", "load", "write_page", "run_experiment", "write_report"),
    *("FringeError", "InputError", "ModelOutputError", "NotDifferentiableError", "TargetError"),
}


def test_modules_that_the_docs_name_are_there_without_an_import_of_their_own():
    pages = [*Path(__file__).parents[1].glob("docs/**/*.md"), Path(__file__).parents[1] / "README.md"]
    named = {name for page in pages for name in re.findall(r"\bfringe\.([a-z]+)\.[A-Za-z]", page.read_text())}
    modules = sorted(name for name in named if importlib.util.find_spec(f"fringe.{name}"))
    assert {"text", "plots", "evaluation"} <= set(modules)
    code = "import fringe; fringe.text.sentences; fringe.plots.overlay; print(fringe.evaluation.paired.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("paired\n", "")
    assert all(getattr(fringe, name).__name__ == f"fringe.{name}" for name in modules)
    with pytest.raises(AttributeError, match="module 'fringe' has no attribute 'txt'"):
        _ = fringe.txt


@pytest.mark.thorough
def test_dir_shows_the_public_names_and_nothing_else():
    code = "import fringe; print(*dir(fringe)); import fringe.models; fringe.compare; print(*dir(fringe))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = NAMES | {kind.__name__ for registry in (METHODS, METRICS) for kind in registry.values()}
    for line in done.stdout.splitlines():
        shown = [name for name in line.split() if not (name.startswith("__") and name.endswith("__"))]
        assert set(shown) == expected
        assert len(shown) == len(expected)
    assert "__version__" in line.split()
    assert all(hasattr(fringe, name) for name in line.split())


def test_a_star_imports_the_public_names():
    session = {}
    exec("from fringe import *", session)
    assert set(session) - {"__builtins__"} == set(fringe.__all__) == {n for n in dir(fringe) if not n.startswith("__")}


def test_tables_have_one_name():
    """``to_dataframe`` takes the library; what is a table of polars already has that library's own conversions."""
    sources = [path.read_text(encoding="utf-8") for path in Path(fringe.__file__).parent.rglob("*.py")]
    assert sum("def to_dataframe(self, library: FrameLibrary" in text for text in sources) == 2
    assert not any("def to_pandas" in text or "def to_polars" in text for text in sources)
