"""What ``fringe`` shows: its public names, each of which can be had, and nothing else."""

import subprocess
import sys

import pytest

import fringe
from fringe import METHODS, METRICS

NAMES = {
    *(
        "METHODS",
        "METRICS",
        "Attribution",
        "Attributor",
        "Classifier",
        "InputSpace",
        "Metric",
        "PassCounts",
        "Scores",
        "Region",
        "Shared",
    ),
    *("Trajectory", "BinaryClassifier", "attribute", "compare"),
    *("ExperimentSpec", "explain", "explain_images", "load", "write_page", "run_experiment", "write_report"),
    *("FringeError", "InputError", "ModelOutputError", "NotDifferentiableError", "TargetError"),
}


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
