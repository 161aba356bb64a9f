"""The tables and the figure of docs/results.md's first part, from runs of ``fringe benchmark``.

    python benchmarks/default_table.py out/default/* --figure docs/images/price.png

A run is read as ``fringe report`` reads it; differences are paired by image, with 95 % bootstrap intervals.
"""

import argparse
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from fringe.experiments import Results, Store, paired, read_results

METRICS = ("mas_insertion", "mas_deletion", "insertion", "deletion")
ARROWS = dict(zip(METRICS, "↑↓↑↓", strict=True))
BASE = "cg"
"""What ``--base`` names if nothing else is said: the default before the closed form."""

NAMES = {
    "feedback": "**`FRInGe()`**: geodesic, feedback",
    "geodesic": "geodesic, a JVP a step",
    "preview": "`fringe:preview`",
    "rank4": "geodesic, rank 4",
    "no_prior": "geodesic, γ_prior = 0",
    "diffusion": "diffusion (control: ignores the gradient)",
    "cg": "`fringe:full_metric` (the former default)",
    "cg_prior": "full metric, γ_prior = 3e-3",
    "paper": "`fringe:paper`",
    "paper_resnet18": "`fringe:resnet18`",
}


def means(results: Results, model: str, method: str) -> dict[str, float]:
    """What does not depend on a metric: verdicts, passes and diagnostics of a method's maps."""
    rows = [row for row in results.cell(model, method, METRICS[0]).rows if row is not None]
    facts = [dict(row.diagnostics) for row in rows]
    shorts = [method in NAMES and short(fact) for fact in facts]

    def of(name: str, summary: str) -> float:
        values = np.array([fact.get(name, np.nan) for fact in facts], dtype=float)
        return float("nan") if np.isnan(values).all() else getattr(np, f"nan{summary}")(values)

    return {
        "passes": float(np.mean([row.forward + row.jvp + row.vjp for row in rows])),
        "ok": float(
            np.mean([row.verdict == "ok" and not is_short for row, is_short in zip(rows, shorts, strict=True)])
        ),
        "residual": of("completeness_residual", "median"),
        "kl": of("endpoint_kl", "mean"),
        "tracking": of("tracking_error_mean", "mean"),
    }


def short(facts: dict[str, float]) -> bool:
    """Whether less than half of the divergence from the uniform reference is gone: ln C is entropy plus divergence."""
    start = facts["endpoint_kl"] + facts["endpoint_entropy"] - facts["entropy"]
    return facts["endpoint_kl"] > 0.5 * start


def table(results: Results, model: str, suffix: str, base_of: str = BASE) -> str:
    """One Markdown table: scores of the base, differences to it of all others."""
    base = {m: results.scores(model, base_of, m + suffix) for m in METRICS}
    count = int(np.isfinite(base[METRICS[0]]).sum())
    head = ["setting", "passes", *(f"{m.replace('_', ' ')} {ARROWS[m]}" for m in METRICS)]
    if not suffix:
        head += ["end KL", "residual", "`ok`"]
    lines = [f"n = {count}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for method in results.methods(model):
        known, cells = means(results, model, method), list[str]()
        for metric in METRICS:
            scores = results.scores(model, method, metric + suffix)
            difference = paired(scores, base[metric])
            star = "*" if difference.low * difference.high > 0 else ""
            spread = f"{difference.value:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]{star}"
            cells.append(f"{np.nanmean(scores):.3f}" if method == base_of else spread)
        if not suffix:
            cells += [shown(known["kl"], 2), shown(known["residual"], 3)]
            cells.append("–" if np.isnan(known["residual"]) else f"{known['ok']:.0%}")
        lines.append("| " + " | ".join([NAMES.get(method, method), f"{known['passes']:.0f}", *cells]) + " |")
    return "\n".join(lines)


def coverage(results: Results, model: str) -> str:
    """How far the default's paths come, in shares of the Fisher-Rao distance and in nats."""
    rows = [row for row in results.cell(model, "feedback", METRICS[0]).rows if row is not None]
    facts = [dict(row.diagnostics) for row in rows]
    shares = np.array([1 - fact["endpoint_distance"] / fact["distance"] for fact in facts])
    ends = np.array([fact["endpoint_kl"] for fact in facts])
    quartiles = [" ".join(f"{q:.2f}" for q in np.percentile(column, [0, 25, 50, 75, 100])) for column in (shares, ends)]
    return (
        f"{model}, feedback: under half of the distance {(shares < 0.5).sum()} of {len(shares)}; share of it covered, "
        f"quartiles {quartiles[0]}; end KL {quartiles[1]} nats"
    )


def shown(value: float, digits: int) -> str:
    return "–" if np.isnan(value) else f"{value:.{digits}f}"


POINTS = {
    "feedback": ("FRInGe()", 5),
    "preview": ("preview", 5),
    "diffusion": ("diffusion", -11),
    "no_prior": ("γ_prior = 0", -11),
    "cg": ("full metric", 5),
    "paper": ("paper", -11),
    "blur_ig": ("Blur IG", 5),
    "ig": ("IG", 5),
    "smoothgrad": ("SmoothGrad", -11),
    "guided_ig": ("Guided IG", 5),
}
"""What the figure shows: the name of a point, and how far above it the name stands (points)."""


def figure(runs: list[Results]) -> Figure:
    """Passes for one image against two scores, a row of panels for each network."""
    drawing = Figure(figsize=(9, 3.2 * len(runs)), layout="constrained")
    axes = drawing.subplots(len(runs), 2, squeeze=False)
    for row, results in zip(axes, runs, strict=True):
        (model,) = results.models
        for axis, metric in zip(row, ("mas_insertion", "deletion"), strict=True):
            shown_here = [method for method in POINTS if method in results.methods(model)]
            scores = {method: float(np.nanmean(results.scores(model, method, metric))) for method in shown_here}
            for method in shown_here:
                (name, above), passes = POINTS[method], means(results, model, method)["passes"]
                if method in ("feedback", "diffusion"):  # they lie close together: the upper one's name stands above
                    above = 5 if scores[method] == max(scores["feedback"], scores["diffusion"]) else -11
                colour = "tab:red" if method == "feedback" else "tab:blue" if method in NAMES else "tab:gray"
                axis.plot(passes, scores[method], "o" if method in NAMES else "s", color=colour, ms=6)
                place = {"xytext": (5, above), "textcoords": "offset points", "fontsize": 8, "color": colour}
                axis.annotate(name, (passes, scores[method]), **place)
            axis.set_xscale("log")
            axis.set_xlim(40, 4000)
            axis.set_xticks([50, 100, 200, 500, 1000, 2000], ["50", "100", "200", "500", "1000", "2000"])
            axis.minorticks_off()
            words = "MAS insertion, higher is better" if metric == "mas_insertion" else "deletion, lower is better"
            axis.set_title(f"{model}: {words}", fontsize=10, loc="left")
            axis.spines[["top", "right"]].set_visible(False)
            axis.margins(y=0.15)
    drawing.supxlabel("forward and backward passes through the network for one image", fontsize=10)
    return drawing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--base", default=BASE, help="the setting that all others are compared with")
    arguments = parser.parse_args()
    runs = [read_results(Store(run, create=False)) for run in arguments.runs]
    for results in runs:
        for model in results.models:
            for suffix, words in (("", "blurred"), (":zero", "zero")):
                print(f"\n**{model}**, {words} reference, {table(results, model, suffix, arguments.base)}")
            print(f"\n{coverage(results, model)}")
    if arguments.figure is not None:
        figure(runs).savefig(arguments.figure, dpi=130)


if __name__ == "__main__":
    main()
