"""How a metric must behave: towards the batch, the caller's things, randomness, and other methods' scores."""

import dataclasses

import torch

from fringe.testing.metric_trial import MetricTrial
from fringe.testing.networks import Spy
from fringe.testing.result import agree, distance, refuse
from fringe.testing.untouched import Watched, forbid_changes, generators_at, keep_generators

TOGETHER = 1e-8
"""Relative difference that float64 leaves between batches."""


def batch_of_one(trial: MetricTrial) -> str:
    """A map has the same score, alone or among others."""
    case = trial.case()
    together = case.score(case.subject()).values
    alone = [case.score(case.subject([i]), [i]).values for i in range(len(case.x))]
    return agree("scores in a batch and alone", together, torch.cat(alone), TOGETHER)


def order(trial: MetricTrial) -> str:
    """Images in another order have their scores in that order."""
    case, turned = trial.case(), [2, 0, 1]
    first, second = case.score(case.subject()).values, case.score(case.subject(turned), turned).values
    return agree("scores in either order", second, first[turned], TOGETHER)


def batch_size(trial: MetricTrial) -> str:
    """One image a pass or many: the same scores, and never more images at once than the classifier allows."""
    case, found = trial.case(), list[torch.Tensor]()
    for size in (1, 2, 16):
        spy = Spy(case.model)
        of = dataclasses.replace(case, model=spy).subject(batch_size=size)
        found.append(case.score(of).values)
        refuse(spy.largest > size, f"{spy.largest} images went through the network at once, with batch_size={size}")
    agree("scores with batch_size 2 and 16", found[1], found[2], TOGETHER)
    return agree("scores with batch_size 1 and 16", found[0], found[2], TOGETHER)


def repeatable(trial: MetricTrial) -> str:
    """The same seed gives the same scores, bit for bit, whatever the global random generators hold."""
    case, found = trial.case(), list[torch.Tensor]()
    for state in (1, 2):
        with generators_at(state):
            found.append(case.score(case.subject()).values)
    error = distance(found[0], found[1])
    refuse(error > 0, f"two calls with one seed gave scores that differ by {error:.1e} of the largest")
    other = distance(found[0], case.score(case.subject(seed=1)).values)
    return f"bit for bit; another seed changes the scores by {other:.1e}"


def shared_subject(trial: MetricTrial) -> str:
    """A map's score does not depend on what else was scored for these images, or in which order."""
    case = trial.case()
    other = case.maps.values.flip(-1) + 0.1
    fresh = case.score(case.subject()).values, case.score(case.subject(), values=other).values
    of = case.subject()
    forth = case.score(of).values, case.score(of, values=other).values
    agree("scores, the first on a shared subject and alone", forth[0], fresh[0], TOGETHER)
    return agree("scores, the second on a shared subject and alone", forth[1], fresh[1], TOGETHER)


def callers_tensors(trial: MetricTrial) -> str:
    """Maps, inputs, logits and diagnostics keep their numbers and flags."""
    case = trial.case()
    of = case.subject()
    tensors = {
        "maps": case.maps.values,
        "inputs": of.problem.inputs,
        "logits": of.problem.logits,
        **case.maps.diagnostics,
    }
    return forbid_changes(tensors, lambda: case.score(of))


def callers_model(trial: MetricTrial) -> str:
    """Weights, buffers, gradients, hooks, and the flags of training and of gradients stay as they are."""
    case = trial.case()
    watched = Watched(case.model)
    case.score(case.subject())
    changes = watched.changes()
    refuse(bool(changes), "; ".join(changes))
    return "as it was"


def random_generators(trial: MetricTrial) -> str:
    """The global generators of torch, NumPy and Python are not moved."""
    case = trial.case()
    return keep_generators(lambda: case.score(case.subject()))


def passes(trial: MetricTrial) -> str:
    """The forward passes counted are those that the network saw."""
    case = trial.case()
    spy = Spy(case.model)
    of = dataclasses.replace(case, model=spy).subject()
    case.score(of)
    counted = of.problem.model.passes.forward
    refuse(counted != spy.images, f"counted {counted} forward passes, the network saw {spy.images}")
    return f"{counted} forward passes for 3 images, their own predictions included"
