"""What plans would cost, from a short probe: ``fringe reproduce --dry-run``. Nothing is kept."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import typer

from fringe.cli.folder import to_json
from fringe.cli.plan_flags import HowOptions
from fringe.cli.plan_run import device_of
from fringe.cli.problems import Exit, say
from fringe.experiments import MARKER, Key, Plan, Resolved, Store, committed_keys, pending_tasks, required_keys, resolve
from fringe.paper import Cost, probe

MANY = 12
"""Methods of a model above which a plan's are shown together."""


@dataclass(frozen=True)
class Share:
    """What a method of a study on a model costs: ``maps`` that are not made yet, their passes, and ``hours`` of these
    and their scores. ``told_from`` is the part of a map that was made to tell."""

    study: str
    model: str
    method: str
    maps: int
    forward: float
    jvp: float
    vjp: float
    hours: float
    told_from: float


def estimate(plans: Sequence[Plan], timed: Plan | None, how: HowOptions, seconds: float) -> Exit:
    """Say what the plans lack in the folder, how many passes that takes, and how long here, one after the other;
    ``timed`` is the plan whose maps are made twice and not scored. A map is stopped after ``seconds``."""
    device, shares = device_of(how.device), list[Share]()
    have = committed_keys(Store(how.out, create=False)) if os.path.isfile(how.out / MARKER) else set[Key]()
    for plan in plans:
        resolved = resolve(plan)
        units = pending_tasks(resolved.manifest, have, plan.shard, force=how.retry)
        have |= {key for *_, key in required_keys(resolved.manifest)}
        maps = Counter[tuple[str, str]]()
        for unit in units:
            maps[unit.model, unit.method] += len(unit.images)
        shares += _shares(resolved, maps, seconds, device, quiet=how.json)
    if timed is not None:
        resolved = resolve(timed)
        twice = {(arm.label, name): 2 * len(resolved.manifest.images) for arm in timed.arms for name in arm.methods}
        shares += _shares(resolved, twice, seconds, device, quiet=how.json, scored=False)
    hours = sum(share.hours for share in shares)
    if how.json:
        document = {"device": device, "hours": hours, "methods": [asdict(share) for share in shares]}
        typer.echo(to_json(document), nl=False)
    else:
        say(f"in all about {hours:.2g} hours on {device}, one map after the other, beside what is there")
    return Exit.DONE


def _shares(
    resolved: Resolved,
    maps: Mapping[tuple[str, str], int],
    seconds: float,
    device: str,
    *,
    quiet: bool,
    scored: bool = True,
) -> list[Share]:
    study, found = resolved.plan.name, list[Share]()
    if not quiet:
        say(f"{study}: {len(resolved.manifest.images)} images")
    for arm in resolved.plan.arms:
        lacking = {method: n for (model, method), n in maps.items() if model == arm.label}
        costs = probe(resolved, arm.label, lacking, seconds=seconds, device=device) if lacking else {}
        mine = [_share(study, arm.label, name, lacking[name], cost, scored) for name, cost in costs.items()]
        if not quiet:
            for line in _lines(arm.label, mine):
                say(f"  {line}")
        found += mine
    return found


def _share(study: str, model: str, method: str, maps: int, cost: Cost, scored: bool) -> Share:
    hours = maps * (cost.seconds + (cost.scores if scored else 0.0)) / 3600
    passes = (maps * cost.forward, maps * cost.jvp, maps * cost.vjp)
    return Share(study, model, method, maps, *passes, hours, cost.share)


def _lines(model: str, shares: Sequence[Share]) -> list[str]:
    """A line a method; one for all where there are many. Controls cost no pass and have none."""
    shown = [share for share in shares if share.forward or share.vjp]
    if not shown:
        return [f"{model}: nothing left to do"]
    if len(shown) <= MANY:
        return [f"{model} {share.method}: {_text([share])}" for share in shown]
    return [f"{model}, {len(shown)} settings: {_text(shown)}"]


def _text(shares: Sequence[Share]) -> str:
    def total(name: str) -> Any:
        return sum(getattr(share, name) for share in shares)

    passes = f"{total('forward'):.3g} F + {total('jvp'):.3g} JVP + {total('vjp'):.3g} VJP"
    least = min(share.told_from for share in shares)
    rough = "" if least == 1 else f" (told from {least:.0%} of a map)"
    return f"{total('maps')} maps, {passes}, {total('hours'):.2g} h{rough}"
