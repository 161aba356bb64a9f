"""How a method must behave: towards the batch, the caller's things, randomness, and its own account."""

import torch
from torch import Tensor

from fringe.attribution import Attribution
from fringe.testing.networks import Spy, curved
from fringe.testing.result import agree, distance, refuse
from fringe.testing.trial import Asked, Trial
from fringe.testing.untouched import Watched, forbid_changes, generators_at, keep_generators

TOGETHER = 1e-8
"""Relative difference that float64 leaves between batches: matrix products of other sizes round otherwise, and a path
that is walked step by step carries that along."""

ONE_UNIT = 1.0
"""Diagnostics are compared in their own units: those that should be zero, such as residuals, are all rounding."""


def batch_of_one(trial: Trial) -> str:
    """An image has the same map, alone or among others."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(3)
    together = trial.explain(model, x)
    alone = [trial.explain(model, image) for image in x.split(1)]
    for name in together.diagnostics:
        one_by_one = [found.diagnostics[name] for found in alone]
        _agree(f"diagnostics[{name!r}]", together.diagnostics[name], one_by_one, ONE_UNIT)
    return _agree("maps in a batch and alone", together.values, [found.values for found in alone])


def order(trial: Trial) -> str:
    """Images in another order have their maps in that order."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(3)
    turned = [2, 0, 1]
    first, second = trial.explain(model, x), trial.explain(model, x[turned])
    return agree("maps in either order", second.values, first.values[turned], TOGETHER)


def batch_size(trial: Trial) -> str:
    """One image a pass or many: the same maps, and never more images at once than the classifier allows."""
    laboratory = trial.laboratory()
    x, found = laboratory.images(3), list[Attribution]()
    for size in (1, 2, 16):
        spy = Spy(laboratory.build(curved))
        found.append(trial.explain(spy, x, Asked(batch_size=size)))
        refuse(spy.largest > size, f"{spy.largest} images went through the network at once, with batch_size={size}")
    agree("maps with batch_size 2 and 16", found[1].values, found[2].values, TOGETHER)
    return agree("maps with batch_size 1 and 16", found[0].values, found[2].values, TOGETHER)


def repeatable(trial: Trial) -> str:
    """The same seed gives the same map, bit for bit, whatever the global random generators hold."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(2)
    found: list[Tensor] = []
    for state in (1, 2):
        with generators_at(state):
            found.append(trial.explain(model, x).values)
    error = distance(found[0], found[1])
    refuse(error > 0, f"two calls with one seed gave maps that differ by {error:.1e} of the largest entry")
    other = distance(found[0], trial.explain(model, x, Asked(seed=1)).values)
    return f"bit for bit; another seed changes the map by {other:.1e}"


def callers_tensors(trial: Trial) -> str:
    """Inputs, baseline and references keep their numbers and flags."""
    laboratory = trial.laboratory()
    model, space = laboratory.build(curved), laboratory.space()
    x = laboratory.images(2).requires_grad_(True)
    baseline = laboratory.images(2, key="baseline") if trial.method.accepts_baseline else None
    tensors = {"inputs": x} if baseline is None else {"inputs": x, "baseline": baseline}
    tensors |= {} if space.references is None else {"references": space.references}
    return forbid_changes(tensors, lambda: trial.explain(model, x, Asked(baseline=baseline, space=space)))


def callers_model(trial: Trial) -> str:
    """Weights, buffers, gradients, hooks, and the flags of training and of gradients stay as they are."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(2)
    first, second = (p for _, p in zip(range(2), model.parameters(), strict=False))
    first.requires_grad_(False)
    second.grad = torch.ones_like(second)
    watched = Watched(model)
    trial.explain(model, x)
    changes = watched.changes()
    refuse(bool(changes), "; ".join(changes))
    return "as it was"


def random_generators(trial: Trial) -> str:
    """The global generators of torch, NumPy and Python are not moved."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(2)
    return keep_generators(lambda: trial.explain(model, x))


def passes(trial: Trial) -> str:
    """The forward passes reported are those that the network saw."""
    laboratory = trial.laboratory()
    spy = Spy(laboratory.build(curved))
    counts = trial.explain(spy, laboratory.images(3)).passes
    refuse(counts.forward != spy.images, f"reported {counts.forward} forward passes, the network saw {spy.images}")
    return f"{counts.forward} forward, {counts.jvp} JVP, {counts.vjp} VJP for 3 images"


def bad_images(trial: Trial) -> str:
    """An image with NaN in it is marked, and the others have the maps that they have without it."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(3)
    x[1, 0, 0, 0] = torch.nan
    found = trial.explain(model, x, Asked(mark_bad_images=True))
    refuse(found.verdict[1] != "nan_input", f"the image with NaN has the verdict {found.verdict[1]!r}")
    refuse(not bool(found.values[1].isnan().all()), "the map of the image with NaN holds numbers")
    return agree("the other maps", found.values[[0, 2]], trial.explain(model, x[[0, 2]]).values, TOGETHER)


def telemetry(trial: Trial) -> str:
    """Recording the path does not change the map; progress is told in order and within what was planned."""
    laboratory = trial.laboratory()
    model, x = laboratory.build(curved), laboratory.images(2)
    told: list[tuple[int, int]] = []
    found = trial.explain(model, x, Asked(telemetry=True, progress=lambda done, total: told.append((done, total))))
    agree("maps with and without telemetry", found.values, trial.explain(model, x).values, TOGETHER)
    rows = None if found.trajectory is None else len(found.trajectory)
    refuse(rows not in (None, 2), f"{rows} trajectories for 2 images")
    done = [step for step, _ in told]
    refuse(done != sorted(done) or any(step > total for step, total in told), f"progress was told as {told}")
    return f"same maps; progress told {len(told)} times"


def _agree(what: str, together: Tensor, alone: list[Tensor], least: float = 0.0) -> str:
    return agree(what, together.double(), torch.cat([value.double() for value in alone]), TOGETHER, least)
