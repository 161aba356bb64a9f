"""Markdown tables of a study: means with 95 % bootstrap intervals over images, and paired differences."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from fringe.metrics import ARROW, get_metric
from study import METRICS, SENSITIVITY, read

RESAMPLES = 2000


def interval(values: np.ndarray, statistic: Any = np.mean) -> tuple[float, float, float]:
    """Statistic and its 95 % percentile bootstrap interval over the images where ``values`` is defined."""
    kept = values[np.isfinite(values)]
    if len(kept) < 2:
        return float("nan"), float("nan"), float("nan")
    found = bootstrap((kept,), statistic, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(0))
    return float(statistic(kept)), float(found.confidence_interval.low), float(found.confidence_interval.high)


def cell(values: np.ndarray | None, statistic: Any = np.mean) -> str:
    if values is None:
        return "—"
    middle, low, high = interval(values, statistic)
    if not np.isfinite(middle):
        return "—"
    digits = 3 if abs(middle) < 100 else 0
    missing = int((~np.isfinite(values)).sum())
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]" + (
        f" n={len(values) - missing}" if missing else ""
    )


def lines(header: list[str], rows: list[list[str]]) -> str:
    table = ["| " + " | ".join(row) + " |" for row in (header, ["---"] * len(header), *rows)]
    return "\n".join(table)


def heading(metric: str) -> str:
    return f"{metric} {ARROW[get_metric(metric).direction]}".strip()


def print_tables(study: Any, against: str) -> None:
    """All scores; then each row's paired difference to ``against``, on the images where both are defined."""
    from fringe.experiments import CONTROLS

    scores = {label: read(study.folder, label) for label in (*study.only, *CONTROLS)}
    scores = {label: found for label, found in scores.items() if found}
    shown = [m for m in (*METRICS, SENSITIVITY) if any(m in found for found in scores.values())]
    print(f"\n### {study.name}, {study.count} images of half {study.half}: mean [95 % interval]\n")
    rows = [
        [label, *(cell(found.get(m), np.median if m == SENSITIVITY else np.mean) for m in shown), cost(study, label)]
        for label, found in scores.items()
    ]
    print(lines(["method", *map(heading, shown), "passes an image (s)"], rows))
    print(f"\n### {study.name}: difference to {against}, paired by image; * where the interval leaves out zero\n")
    paired = [m for m in shown if get_metric(m).direction != "none" and m in scores[against]]
    rows = [
        [label, *(difference(found.get(m), scores[against][m]) for m in paired)]
        for label, found in scores.items()
        if label != against
    ]
    print(lines(["method", *map(heading, paired)], rows))


def difference(values: np.ndarray | None, reference: np.ndarray) -> str:
    if values is None:
        return "—"
    count = min(len(values), len(reference))
    middle, low, high = interval(values[:count] - reference[:count])
    if not np.isfinite(middle):
        return "—"
    digits = 3 if abs(middle) < 100 else 0
    return f"{middle:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]{'*' if low > 0 or high < 0 else ''}"


def print_paper(path: Path) -> None:
    """The paper's comparison, each number the mean over its six networks."""
    found: dict[str, dict[str, list[float]]] = {}
    with path.open() as file:
        for line in csv.DictReader(file):
            found.setdefault(line["method"], {}).setdefault(line["metric"], []).append(float(line["mean"]))
    metrics = list(next(iter(found.values())))
    rows = [[method, *(f"{np.mean(of[m]):.3f}" for m in metrics)] for method, of in found.items()]
    print(lines(["method", *metrics], rows))


def cost(study: Any, label: str) -> str:
    """Mean passes an image (forward + JVP + VJP), and seconds, from the files of maps."""
    from safetensors import safe_open

    found = []
    for path in sorted((study.folder / "maps" / label).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            about = file.metadata()
        found.append([float(about[name]) for name in ("forward", "jvp", "vjp", "seconds")])
    if not found:
        return "—"
    forward, jvp, vjp, seconds = np.mean(found, axis=0)
    return f"{forward:.0f} + {jvp:.0f} + {vjp:.0f} ({seconds:.2f})"
