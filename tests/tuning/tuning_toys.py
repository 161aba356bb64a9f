"""A score with a known best setting, that needs no network: quality falls off with the distance, in decades, from
tau = 2e-3 and damping = 1e-5."""

import math
from pathlib import Path

from fringe import FRInGe
from fringe.tuning import Tuned, objective, space_of, tune

BASE = FRInGe()
SPACE = space_of(FRInGe, ("tau", "damping", "cg_iterations"))


def quality(method):
    return math.exp(-(math.log10(method.tau / 2e-3) ** 2) - 0.02 * math.log10(method.damping / 1e-5) ** 2)


def score(method):
    q = quality(method)
    return {"insertion": [0.9 * q, 0.7 * q], "deletion": [1 - q, 1 - 0.8 * q], "infidelity": [0.1, 0.3]}


def value_of(method):
    return objective(**score(method))


def search(journal: Path, trials: int, score=score, **more) -> Tuned:
    about = {"base": BASE, "space": SPACE, "name": "study", "seed": 5} | more
    return tune(about.pop("base"), about.pop("space"), score, journal=journal, trials=trials, **about)


def asked(tuned: Tuned) -> list[dict]:
    """The settings of a search in the order of their seats."""
    return [dict(trial.settings) for trial in tuned.trials]
