"""The paper's tables (arXiv 2605.06404), read from the files beside this one, and our readings of its text."""

import csv
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

MODELS = ("resnet18", "resnet50", "resnet101", "resnet152", "inception_v3", "vgg19")
#: Our names of the paper's metrics, in the order of its tables.
METRICS = {
    "mas_ins": "mas_insertion",
    "mas_del": "mas_deletion",
    "ins_auc": "insertion",
    "del_auc": "deletion",
    "infidelity": "infidelity",
    "sparseness": "sparseness",
}
#: Our labels of methods and variants that the paper names otherwise.
METHODS = {"geodesic_ig": "geoig_svi", "on": "cap", "off": "no_cap"}
#: The numbers of the table of run times: seconds per image, and FRInGe's over those of IG.
SECONDS, SLOWDOWN = "seconds", "slowdown"


@dataclass(frozen=True)
class PaperValue:
    """A number of the paper's tables: the mean, or the median of max sensitivity; with half its 95 % interval, or half
    the interquartile range of a median; NaN if the paper gives none.

    ``metric`` is the name of a metric or diagnostic, or "seconds" or "slowdown".
    """

    study: str
    model: str
    method: str
    metric: str
    value: float
    half: float


#: What the paper leaves open, and what we do.
READINGS = (
    "The printed algorithm aims a step at the waypoint s_k, the prose at the next one. We aim at s_{k+1}: the loss for "
    "s_0 is zero at the first step, and the last waypoint would never be aimed at.",
    "The paper names preconditioned conjugate gradients and not their form. Ours keep their residuals orthogonal; "
    "textbook CG, cut off after K iterations, returns its rounding errors. The method `released` has it. On 64 images "
    "of CIFAR-10 (ResNet-20, the numbers of ResNet-50), orthogonal less textbook is +0.007 [-0.022, +0.040] in MAS "
    "insertion, +0.012 [-0.007, +0.033] in MAS deletion, +0.015 [-0.001, +0.031] in insertion and +0.004 "
    "[-0.013, +0.019] in deletion (95% intervals of paired differences).",
    "The boundary of the Laplacian and of the blur is not given. We repeat the edge, which adds no frame to a map; "
    "`released` mirrors the image without it.",
    "The kernel of the blur preconditioner is not given. We take a Gaussian of standard deviation 1 pixel and 7 taps, "
    "which is positive definite; that of `released` is not.",
    "CG takes at most K iterations, often fewer; the tolerance is not given. We stop at a relative residual of 1e-3 "
    "(`cg_rtol`).",
    "MAS is printed as a difference of plain means, but the paper's numbers have the pattern of the code of MAS's "
    "authors. We score by the pipeline of that code (monotone, clipped and rescaled curves), with the paper's Gaussian "
    "blur as the reference of both scores; the preset `text` of both is the printed formula.",
    "The table of hyper-parameters has no tau for the Euclidean variant, and so no number of steps. We take the tau of "
    "the same network's full setting.",
)


@cache
def paper_tables() -> tuple[PaperValue, ...]:
    """Read the paper's tables of scores, diagnostics, sensitivities and run times, under the names of this library."""
    values = list[PaperValue]()
    files = (
        ("comparison", "comparison", "method", "metric"),
        ("ablation", "ablation", "variant", "metric"),
        ("cap", "euclidean_cap", "euclidean_cap", "diagnostic"),
    )
    for study, file, method, metric in files:
        for row in _rows(file):
            names = METHODS.get(row[method], row[method]), METRICS.get(row[metric], row[metric])
            values.append(PaperValue(study, row["model"], *names, float(row["mean"]), float(row["ci95"] or math.nan)))
    pairs = {"max_sensitivity": ("max_sensitivity", "median", "half_iqr"), "runtime": (SECONDS, "s", "ci95")}
    for study, (metric, *columns) in pairs.items():
        for row in _rows(study):
            for method in ("fringe", "ig"):
                numbers = (float(row[f"{method}_{column}"]) for column in columns)
                values.append(PaperValue(study, row["model"], method, metric, *numbers))
            if study == "runtime":
                values.append(PaperValue(study, row["model"], "fringe", SLOWDOWN, float(row["slowdown"]), math.nan))
    return tuple(values)


def _rows(name: str) -> list[dict[str, str]]:
    text = Path(__file__).with_name("tables").joinpath(f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
