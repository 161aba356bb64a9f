"""What plans would cost, from a short probe; nothing is stored."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fringe.experiments import MARKER, Key, Plan, Resolved, Store, committed_keys, pending_tasks, required_keys, resolve
from fringe.paper.probe import Cost, probe

#: Methods of a model above which an estimate shows them together.
MANY = 12


@dataclass(frozen=True)
class Share:
    """The cost of a method of a study on a model.

    Attributes:
        study: Name of the plan.
        model: Label of the model.
        method: Label of the method.
        maps: Maps that are missing.
        forward: Forward passes of these maps.
        jvp: Their Jacobian-vector products.
        vjp: Their vector-Jacobian products.
        hours: Time of the maps and their scores.
        told_from: Fraction of a map that the probe computed; the rest is extrapolated.
    """

    study: str
    model: str
    method: str
    maps: int
    forward: float
    jvp: float
    vjp: float
    hours: float
    told_from: float


@dataclass(frozen=True)
class ModelEstimate:
    """The costs of the methods of one model of a plan.

    Attributes:
        study: Name of the plan.
        images: Images of the plan.
        model: Label of the model.
        shares: One entry per method with missing maps.
    """

    study: str
    images: int
    model: str
    shares: tuple[Share, ...]

    def lines(self) -> list[str]:
        """One line per method; one for all where there are many. Controls take no pass and have none."""
        shown = [share for share in self.shares if share.forward or share.vjp]
        if not shown:
            return [f"{self.model}: nothing left to do"]
        if len(shown) <= MANY:
            return [f"{self.model} {share.method}: {_describe([share])}" for share in shown]
        return [f"{self.model}, {len(shown)} settings: {_describe(shown)}"]


def _describe(shares: Sequence[Share]) -> str:
    forward, jvp, vjp, hours = (sum(getattr(s, name) for s in shares) for name in ("forward", "jvp", "vjp", "hours"))
    fraction = min(share.told_from for share in shares)
    rough = "" if fraction == 1 else f" (from {fraction:.0%} of a map)"
    maps = sum(share.maps for share in shares)
    return f"{maps} maps, {forward:.3g} F + {jvp:.3g} JVP + {vjp:.3g} VJP, {hours:.2g} h{rough}"


def estimate_plans(
    plans: Sequence[Plan], timed: Plan | None, out: Path, *, device: str, seconds: float, retry: bool = False
) -> Iterator[ModelEstimate]:
    """Estimate what plans lack in a folder, how many passes that takes, and how long here, one after the other.

    Args:
        plans: Plans in the order in which they run: what an earlier one computes is not missing in a later one.
        timed: The plan whose run times are measured: its maps are made twice and not scored.
        out: Run folder; it may not exist yet.
        device: Device of the probe.
        seconds: Longest time of a map of the probe.
        retry: Count failed scores as missing.

    Yields:
        One estimate per plan and model.
    """
    have = committed_keys(Store(out, create=False)) if os.path.isfile(out / MARKER) else set[Key]()
    for plan in plans:
        resolved = resolve(plan)
        units = pending_tasks(resolved.manifest, have, plan.shard, force=retry)
        have |= {key for *_, key in required_keys(resolved.manifest)}
        maps = Counter[tuple[str, str]]()
        for unit in units:
            maps[unit.model, unit.method] += len(unit.images)
        yield from _estimates(resolved, maps, seconds, device)
    if timed is not None:
        resolved = resolve(timed)
        twice = {(arm.label, name): 2 * len(resolved.manifest.images) for arm in timed.arms for name in arm.methods}
        yield from _estimates(resolved, twice, seconds, device, scored=False)


def _estimates(
    resolved: Resolved, maps: Mapping[tuple[str, str], int], seconds: float, device: str, *, scored: bool = True
) -> Iterator[ModelEstimate]:
    name, images = resolved.plan.name, len(resolved.manifest.images)
    for arm in resolved.plan.arms:
        missing = {method: n for (model, method), n in maps.items() if model == arm.label}
        costs = probe(resolved, arm.label, missing, seconds=seconds, device=device) if missing else {}
        shares = tuple(_share(name, arm.label, m, missing[m], cost, scored) for m, cost in costs.items())
        yield ModelEstimate(name, images, arm.label, shares)


def _share(study: str, model: str, method: str, maps: int, cost: Cost, scored: bool) -> Share:
    hours = maps * (cost.seconds + (cost.scores if scored else 0.0)) / 3600
    return Share(study, model, method, maps, maps * cost.forward, maps * cost.jvp, maps * cost.vjp, hours, cost.share)
