"""From a run with scenes to what the verdict of its method is worth."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fringe._text import plain
from fringe.attribution import SEVERITY
from fringe.errors import InputError
from fringe.evaluation import CONTROLS
from fringe.experiments._manifest import digest
from fringe.experiments._reliability import (
    Column,
    fit_reliability,
    judge_reliability,
    resampled_weights,
    weighted_interval,
)
from fringe.experiments._results import Results
from fringe.experiments._verdict_record import (
    DIAGNOSTICS,
    MASS_GAIN,
    RANK_GAIN,
    STABILITY,
    ReliabilityFit,
    VerdictReliability,
    VerdictShare,
    reports_of,
)
from fringe.metrics import METRICS

#: Scenes in which every path method is right by a theorem, whatever its verdict: they say nothing of it.
BY_LAW = ("difull", "region")
#: The metrics of that rule.
_TRUTH = {name: METRICS[name] for name in ("mass_inside", "rank_accuracy")}


def judge_verdicts(results: Results | Sequence[Results], method: str = "fringe") -> VerdictReliability | None:
    """Compare the verdicts of a method with the truth, from runs with scenes.

    >>> from fringe.experiments import judge_verdicts, read_results
    >>> judge_verdicts([read_results("out/truth"), read_results("out/trained")])  # doctest: +SKIP

    Networks whose gates fail, and scenes in which every path method is right by a theorem, are left out.

    Args:
        results: Results with controls and the metrics ``mass_inside`` and ``rank_accuracy``, of one run or of several.
            If all have ``max_sensitivity``, a second model uses it, too.
        method: Label of the method, with the same settings in all results.

    Returns:
        The judgement; None if no run has a scene, a control and these metrics, or the method has no path.
    """
    runs = [results] if isinstance(results, Results) else results
    tables, settings, stabilities = list[dict[str, NDArray[Any]]](), list[Mapping[str, Any]](), list[Any]()
    for number, run in enumerate(runs):
        labels = _labels(run)
        models = [model for model in run.models if _counts(run, model, method)]
        blind = [name for name in CONTROLS if models and name in run.methods(models[0]) and run.is_control(name)]
        if not _TRUTH.keys() <= labels.keys() or not blind:
            continue
        tables += [_maps(run, model, method, labels, blind, number) for model in models]
        settings += [run.manifest.settings[model][method] for model in models]
        stabilities.append(run.manifest.metrics[labels[STABILITY]]["settings"] if STABILITY in labels else None)
    table = {name: np.concatenate([part[name] for part in tables]) for name in (tables[0] if tables else ())}
    if not tables or not np.isfinite(table["endpoint_kl"]).any():
        return None
    counted = {name: column[table["counts"]] for name, column in table.items()}
    same = all((one["method"], one["score"]) == (settings[0]["method"], settings[0]["score"]) for one in settings)
    stability = stabilities[0] if all(one == stabilities[0] for one in stabilities) else None
    return VerdictReliability(
        method=plain(dict(settings[0]["method"])) if same else {},
        score=settings[0]["score"],
        scenes={
            scene: (int(inside.sum()), int(counted["right"][inside].sum()))
            for scene in dict.fromkeys(counted["scene"].tolist())
            if (inside := counted["scene"] == scene).any()
        },
        shares=_shares(counted),
        skipped=int((~table["counts"]).sum()),
        reported=_fit(counted, DIAGNOSTICS, same=same),
        stable=None if stability is None else _fit(counted, (*DIAGNOSTICS, STABILITY), same=same),
        stability=stability,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
    )


def _labels(results: Results) -> dict[str, str]:
    """Labels of the metrics that are read, by name; those of the truth with the settings that the rule is about."""
    labels: dict[str, str] = {}
    for label, metric in results.manifest.metrics.items():
        settings = metric["settings"]
        name = settings["metric"]
        if name not in _TRUTH or settings == _TRUTH[name]().record():
            labels.setdefault(name, label)
    return labels


def _counts(results: Results, model: str, method: str) -> bool:
    """Whether the maps of a network count."""
    manifest, scene = results.manifest, results.manifest.scene_of(model)
    if scene is None or method not in results.methods(model, controls=False):
        return False
    return manifest.scenes[scene]["settings"]["scene"] not in BY_LAW and all(g["holds"] for g in manifest.gates(model))


def _maps(
    results: Results, model: str, method: str, labels: Mapping[str, str], blind: Sequence[str], number: int
) -> dict[str, NDArray[Any]]:
    """By name, a column (n,) of the maps of one network; ``number`` is that of the run."""
    rows = results.cell(model, method, labels["rank_accuracy"]).rows

    def scores(name: str, of: str = method) -> Column:
        values = results.scores(model, of, labels[name])[: len(rows)]
        return np.append(values, np.full(len(rows) - len(values), np.nan))  # a metric may have fewer images

    def stored(kind: str, name: str) -> Column:
        return np.array([np.nan if row is None else dict(getattr(row, kind)).get(name, np.nan) for row in rows])

    mass, rank = scores("mass_inside"), scores("rank_accuracy")
    chance = stored("extras", "chance")
    best = np.fmax.reduce([scores("mass_inside", of=name) for name in blind])
    by_mass = (mass >= chance + MASS_GAIN * (1 - chance)) & ~(mass <= best)
    verdict = ["" if row is None or row.status != "ok" else row.verdict or "" for row in rows]
    scene, clusters = results.manifest.scene_of(model), results.clusters(model) or ()
    return {
        "right": (by_mass | (rank >= chance + RANK_GAIN * (1 - chance))).astype(float),
        "counts": np.isfinite(rank) & ~np.isin(verdict, ("", "at_reference")),
        "verdict": np.array(verdict),
        "scene": np.array([scene] * len(rows)),
        "cluster": np.array([f"{number} {scene} {cluster}" for cluster in clusters[: len(rows)]]),
        "network": np.array([digest(results.manifest.settings[model][method]["model"])] * len(rows)),
        **{name: stored("diagnostics", name) for name in DIAGNOSTICS},
        STABILITY: scores(STABILITY) if STABILITY in labels else np.full(len(rows), np.nan),
    }


def _fit(table: Mapping[str, NDArray[Any]], names: Sequence[str], *, same: bool) -> ReliabilityFit:
    reports = reports_of(table["verdict"], {name: table[name] for name in names})
    finite = np.logical_and.reduce([np.isfinite(column) for column in reports.values()])
    known, rows = {name: column[finite] for name, column in reports.items()}, np.flatnonzero(finite)
    ranges = {name: (float(column.min()), float(column.max())) for name, column in known.items() if len(rows)}
    if not same:
        return ReliabilityFit(None, None, {}, "the settings of the method differ between the networks")
    right, *words = (table[name][rows] for name in ("right", "scene", "cluster", "network"))
    try:
        model = fit_reliability(known, right > 0)
        return ReliabilityFit(model, judge_reliability(known, right > 0, *(w.tolist() for w in words)), ranges)
    except InputError as error:
        return ReliabilityFit(None, None, {}, f"it cannot be judged: {error.message}")


def _shares(table: Mapping[str, NDArray[Any]]) -> tuple[VerdictShare, ...]:
    if not len(table["right"]):
        return ()
    weights = resampled_weights(table["scene"], table["cluster"], table["network"], seed=0)
    shares: list[VerdictShare] = []
    for word in sorted(set(table["verdict"].tolist()), key=[*SEVERITY, *table["verdict"].tolist()].index):
        inside = table["verdict"] == word
        right, clusters = table["right"][inside], len(set(table["cluster"][inside].tolist()))
        ends = weighted_interval(right, weights[:, inside]) if clusters > 1 else (0.0, 1.0)  # nothing is known of more
        shares.append(VerdictShare(word, float(right.mean()), *ends, int(inside.sum()), clusters))
    return tuple(shares)
