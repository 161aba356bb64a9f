"""Tests with a known answer: a table for each scene, over all its networks, with chance beside every score."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fringe._names import Reference
from fringe._tables import Cell, Row, Table
from fringe._text import decimals_for
from fringe.bench.experiments import Manifest, Results
from fringe.bench.report._failures import cost_of_maps
from fringe.bench.report._render import Section
from fringe.evaluation import (
    NOT_BETTER,
    NOT_BETTER_MEANS,
    ControlTest,
    Estimate,
    adjust_tests,
    compare_with_controls,
    estimate,
)
from fringe.metrics import ARROW, METRICS

_READING = (
    "Mean ± half the width of the 95 % bootstrap interval. Examples that share pixels are resampled together, and "
    "where a scene has several networks these are resampled, too: scores.csv has each of them. n is the number of maps "
    "with a score, the fewest and the most of a column. Chance is the score of a map that says nothing. "
    f"{NOT_BETTER_MEANS}, for these networks. The greatest p of the sign-flip "
    "test against each control counts, adjusted after Holm for the methods and scores of a table. A smoothed score "
    "filters the map first: do not compare it with an unsmoothed score."
)


def truth_chapter(results: Results) -> Section | None:
    """Return the scores of every scene, pooled over its networks, and whether its gates hold; None without scenes.

    Networks whose gates fail prove nothing: they are listed, and their scores are left out of the means.
    """
    manifest = results.manifest
    if not manifest.scenes:
        return None
    sections = [Section("Gates", table=_gates(manifest), text=_failed(manifest))]
    for label, scene in manifest.scenes.items():
        groups: dict[str, list[str]] = {}
        for model, network in scene["networks"].items():
            groups.setdefault(network["given"], []).append(model)
        for given, models in groups.items():
            title = f"{scene['title']} ({label})" + (f" on {given}" if given else "")
            valid = [model for model in models if not failed_gates(manifest, model)]
            answer = f"The answer is known: {scene['answer']}. Source: {scene['source']}."
            if not valid:
                failed = "Gate failed: no network of this scene is one that the answer is known of; it has no scores."
                sections.append(Section(title, (answer, failed)))
                continue
            sections.append(Section(title, (answer,), _table(results, title, valid)))
    sections[1:1] = [Section("How to read the tables", (_READING,))]
    return Section("Tests with a known answer", sections=tuple(sections))


def failed_gates(manifest: Manifest, model: str) -> list[str]:
    """Return a line for each gate that does not hold."""
    return [gate["text"] for gate in manifest.gates(model) if not gate["holds"]]


def _gates(manifest: Manifest) -> Table:
    rows: list[Row] = []
    for label, scene in manifest.scenes.items():
        for model, network in scene["networks"].items():
            texts = [gate["text"] for gate in network["gates"]]
            rows += [(label, model, text) for text in texts or ["none: the answer is known without a condition"]]
    return Table(("scene", "network", "gate"), rows, "Conditions under which the answer is known")


def _failed(manifest: Manifest) -> tuple[str, ...]:
    failed = {model: failed_gates(manifest, model) for model in manifest.settings}
    lines = [f"{model}: gate failed ({'; '.join(gates)})" for model, gates in failed.items() if gates]
    return tuple(f"{line}. Its scores are not to be read, and no mean holds them." for line in lines)


def _table(results: Results, title: str, models: Sequence[str]) -> Table:
    """Methods and controls by localisation scores, over all networks."""
    manifest = results.manifest
    metrics = [
        label
        for label, metric in manifest.metrics.items()
        if (kind := METRICS.get(metric["settings"]["metric"])) is not None and kind.requires_truth
    ]
    methods = results.methods(models[0])
    cells: dict[tuple[str, str], Estimate] = {}
    tests: dict[tuple[str, str], ControlTest] = {}
    seed, controls = int(manifest.plan["seed"]), [method for method in methods if results.is_control(method)]
    for metric in metrics:
        scores, groups = _pooled(results, models, metric), _groups(results, models, metric)
        words = manifest.metrics[metric]["direction"], manifest.metrics[metric]["summary"]
        cells |= {(m, metric): estimate(column, seed, words[1], **groups) for m, column in scores.items()}
        compared = compare_with_controls(scores, controls, *words, seed, **groups)
        tests |= {(m, metric): test for m, test in compared.items()}
    marks = {key: NOT_BETTER for key, test in adjust_tests(tests).items() if test.better is False}
    shown = [metric for metric in metrics if any(cells[method, metric].n for method in methods)]
    head = ["method", *(_heading(results, metric) for metric in shown), "n", "passes"]
    decimals = {m: decimals_for((cells[name, m].value, cells[name, m].half) for name in methods) for m in shown}
    rows: list[Row] = [("chance", *(Cell(chance_of(results, models, m), decimals[m]) for m in shown), "", "")]
    for method in methods:
        estimates = {metric: cells[method, metric] for metric in shown}
        counts = sorted({one.n for one in estimates.values() if one.n}) or [0]
        scores = [
            Cell(one.value, decimals[metric], half=one.half, mark=marks.get((method, metric), ""))
            for metric, one in estimates.items()
        ]
        n = counts[0] if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
        passes = Cell(float(cost_of_maps(results, models, method)["passes"][0]), 0)
        rows.append((Cell(method, note="control" if results.is_control(method) else ""), *scores, n, passes))
    return Table(head, rows, title)


def _pooled(results: Results, models: Sequence[str], metric: str) -> dict[str, NDArray[np.float64]]:
    """Scores (n,) over all networks, by method and control."""
    return {
        method: np.concatenate([results.scores(model, method, metric) for model in models])
        for method in results.methods(models[0])
    }


def _groups(results: Results, models: Sequence[str], metric: str) -> dict[str, list[str]]:
    """The cluster and the network of each of those scores."""
    first = results.methods(models[0])[0]
    clusters = [cluster for model in models for cluster in results.clusters(model, metric) or ()]
    return {"clusters": clusters, "networks": [m for m in models for _ in results.scores(m, first, metric)]}


def _heading(results: Results, metric: str) -> str:
    """The title of a metric, with the preset that its label names, and its direction."""
    metadata = results.manifest.metrics[metric]
    preset = Reference.parse(metric).rest
    return f"{metadata['title']}{f', {preset}' if preset else ''} {ARROW[metadata['direction']]}"


def chance_of(results: Results, models: Sequence[str], metric: str) -> float:
    """Return the mean score of a map that says nothing, as the metric reports it; NaN if it does not."""

    def scored(model: str) -> str:  # the method with the most scores: a map that failed reports no chance
        return max(
            results.methods(model), key=lambda method: int(np.isfinite(results.scores(model, method, metric)).sum())
        )

    rows = [row for model in models for row in results.cell(model, scored(model), metric).rows]
    known = np.array([dict(row.extras).get("chance", math.nan) for row in rows if row is not None])
    return float(known[np.isfinite(known)].mean()) if np.isfinite(known).any() else math.nan
