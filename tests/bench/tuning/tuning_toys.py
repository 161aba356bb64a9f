"""A score with a known best setting, that needs no network: quality falls off with the distance, in decades, from
tau = 2e-3 and damping = 1e-5."""

import math

from fringe import METHODS
from fringe.attribution import PaperFRInGe
from fringe.bench.tuning import Tuned, objective, space_of, tune

BASE = PaperFRInGe()
SPACE = space_of(PaperFRInGe, dict.fromkeys(("tau", "damping", "cg_iterations")))


def quality(method):
    return math.exp(-(math.log10(method.tau / 2e-3) ** 2) - 0.02 * math.log10(method.damping / 1e-5) ** 2)


def score(method):
    q = quality(method)
    return {"insertion": [0.9 * q, 0.7 * q], "deletion": [1 - q, 1 - 0.8 * q], "infidelity": [0.1, 0.3]}


def value_of(method):
    return objective(**score(method))


def search(trials: int, score=score, *, base=BASE, space=SPACE, seed=5, **more) -> Tuned:
    return tune(base, space, score, seed=seed, trials=trials, **more)


def asked(tuned: Tuned) -> list[dict]:
    """The settings of a search in their order."""
    return [dict(trial.settings) for trial in tuned.trials]


#: The methods that have a setting to search for: class activation maps, methods of other libraries and some modifiers
#: have none.
TUNABLE = sorted(name for name, method in METHODS.items() if method.search_space())
