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
    control_tests,
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
    rows, failed = list[Row](), {model: failed_gates(manifest, model) for model in manifest.settings}
    for label, scene in manifest.scenes.items():
        for model, network in scene["networks"].items():
            texts = [gate["text"] for gate in network["gates"]] or ["none: the answer is known without a condition"]
            rows += [(label, model, text) for text in texts]
    gates = Table(("scene", "network", "gate"), rows, "Conditions under which the answer is known")
    lines = [f"{model}: gate failed ({'; '.join(texts)})" for model, texts in failed.items() if texts]
    unread = tuple(f"{line}. Its scores are not to be read, and no mean holds them." for line in lines)
    sections = [Section("Gates", table=gates, text=unread)]
    for label, scene in manifest.scenes.items():
        groups: dict[str, list[str]] = {}
        for model, network in scene["networks"].items():
            groups.setdefault(network["given"], []).append(model)
        for given, models in groups.items():
            title = f"{scene['title']} ({label})" + (f" on {given}" if given else "")
            valid = [model for model in models if not failed[model]]
            answer = f"The answer is known: {scene['answer']}. Source: {scene['source']}."
            if not valid:
                why = "Gate failed: no network of this scene is one that the answer is known of; it has no scores."
                sections.append(Section(title, (answer, why)))
                continue
            sections.append(Section(title, (answer,), _table(results, title, valid)))
    sections[1:1] = [Section("How to read the tables", (_READING,))]
    return Section("Tests with a known answer", sections=tuple(sections))


def failed_gates(manifest: Manifest, model: str) -> list[str]:
    """Return a line for each gate that does not hold."""
    return [gate["text"] for gate in manifest.gates(model) if not gate["holds"]]


def _table(results: Results, title: str, models: Sequence[str]) -> Table:
    """Methods and controls by localisation scores, over all networks."""
    manifest = results.manifest
    metrics = [
        label
        for label, metric in manifest.metrics.items()
        if (kind := METRICS.get(metric["settings"]["metric"])) is not None and kind.requires_truth
    ]
    methods = results.methods(models[0])
    scores, groups = dict[tuple[str, str], NDArray[np.float64]](), dict[str, dict[str, list[str]]]()
    for metric in metrics:  # over all networks
        for method in methods:
            scores[method, metric] = np.concatenate([results.scores(model, method, metric) for model in models])
        clusters = [cluster for model in models for cluster in results.clusters(model, metric) or ()]
        networks = [model for model in models for _ in results.scores(model, methods[0], metric)]
        groups[metric] = {"clusters": clusters, "networks": networks}
    seed, controls = int(manifest.plan["seed"]), [method for method in methods if results.is_control(method)]
    words = {metric: (manifest.metrics[metric]["direction"], manifest.metrics[metric]["summary"]) for metric in metrics}
    cells = {(m, k): estimate(column, seed, words[k][1], **groups[k]) for (m, k), column in scores.items()}
    tests = control_tests(scores, controls, words, seed, groups)
    marks = {key: NOT_BETTER for key, test in tests.items() if test.better is False}
    shown = [metric for metric in metrics if any(cells[method, metric].n for method in methods)]
    head = ["method"]
    for metric in shown:  # the title, the preset that the label names, and the direction
        title, preset = manifest.metrics[metric]["title"], Reference.parse(metric).rest
        head.append(f"{title}{f', {preset}' if preset else ''} {ARROW[words[metric][0]]}")
    decimals = {m: decimals_for((cells[name, m].value, cells[name, m].half) for name in methods) for m in shown}
    rows: list[Row] = [("chance", *(Cell(chance_of(results, models, m), decimals[m]) for m in shown), "", "")]
    for method in methods:
        estimates = {metric: cells[method, metric] for metric in shown}
        counts = sorted({one.n for one in estimates.values() if one.n}) or [0]
        values = [
            Cell(one.value, decimals[metric], half=one.half, mark=marks.get((method, metric), ""))
            for metric, one in estimates.items()
        ]
        n = counts[0] if len(counts) == 1 else f"{counts[0]}–{counts[-1]}"
        passes = Cell(float(cost_of_maps(results, models, method)["passes"][0]), 0)
        rows.append((Cell(method, note="control" if results.is_control(method) else ""), *values, n, passes))
    return Table([*head, "n", "passes"], rows, title)


def chance_of(results: Results, models: Sequence[str], metric: str) -> float:
    """Return the mean score of a map that says nothing, as the metric reports it; NaN if it does not."""

    def scored(model: str) -> str:  # the method with the most scores: a map that failed reports no chance
        return max(
            results.methods(model), key=lambda method: int(np.isfinite(results.scores(model, method, metric)).sum())
        )

    name = {metric: "extra/chance"}
    columns = [results.details(model, scored(model), name)[metric].values() for model in models]
    known = np.array([values[0] for column in columns for values in column])
    return float(known[np.isfinite(known)].mean()) if np.isfinite(known).any() else math.nan
