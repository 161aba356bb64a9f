"""Quality at equal price: each method in the setting whose price is nearest to a budget, on the same images.

A budget is a multiple of the price of Integrated Gradients in its first setting. Prices are measured on images that are
not scored.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from paper_timing import Timing

from fringe._strings.names import method_title
from fringe.attribution import Attributor
from fringe.bench.experiments import Results
from fringe.evaluation import CONTROLS, estimate, paired
from fringe.plots import SweepCurve, SweepPanel, plot_sensitivity

#: The methods. smooth_ig is a control: the map of IG, smoothed.
METHODS = {
    **{"ig": "ig", "smooth_ig": "smooth(2):ig", "smoothgrad": "smoothgrad", "guided_ig": "guided_ig"},
    **{"blur_ig": "blur_ig", "fringe": "fringe", "fast": "fringe:fast", "fringe_tau": "fringe"},
    **{"paper": "paper:auto", "released": "released:auto"},
}
_TAUS = "2e-2,1.2e-2,7e-3,4e-3,2.4e-3,1.5e-3,9e-4,6e-4,4e-4,2.4e-4,1.5e-4,1e-4"
#: The setting that sets a method's price, and its values; the first one of ig is the unit. A method without values has
#: one setting, and is left out above the largest budget.
FACTORS = {
    "ig": ("steps", "32,64,160,320"),
    "smooth_ig": ("of.steps", "32,64,160,320"),
    "smoothgrad": ("samples", "32,64,160,320"),
    "guided_ig": ("steps", "32,64,160,320"),
    "blur_ig": ("steps", "32,64,160,320"),
    "fringe_tau": ("tau", _TAUS),
}
CURVES = ("insertion:released", "deletion:released", "insertion:zero", "deletion:zero")
METRICS = dict(zip(("insertion_blur", "deletion_blur", "insertion_zero", "deletion_zero"), CURVES, strict=True))
BUDGETS = (1.0, 2.0, 5.0, 10.0)
#: Images whose maps are priced, and which are not scored.
CHOOSING = 4
#: Factor up to which a price is equal to a budget.
NEAR = 1.25
IG = "ig"


@dataclass(frozen=True)
class Entry:
    """A setting of the method ``family`` under a ``name``, and its price in units, NaN as long as it is not known;
    ``budget`` is None where the method has one setting, at its own price."""

    name: str
    family: str
    setting: str
    method: Attributor
    price: float = math.nan
    budget: float | None = None


def settings(methods: Mapping[str, Attributor]) -> Iterator[Entry]:
    """All settings whose prices are measured, under names such as ``ig.steps=64``."""
    for label, method in methods.items():
        key, values = FACTORS.get(label, ("", ""))
        if not key:
            yield Entry(label, label, "its own", method)
        for value in values.split(",") if key else ():
            yield Entry(f"{label}.{key}={value}", label, f"{key}={value}", method.with_text({key: value}))


def choose(methods: Mapping[str, Attributor], timings: Sequence[Timing], price: str = "passes") -> list[Entry]:
    """The settings that take part: at each budget the nearest one of a method, if it is near.

    Args:
        methods: Methods by label.
        timings: Prices of all :func:`settings` by name.
        price: ``"passes"``, ``"seconds"`` or ``"memory"``.

    Returns:
        The settings, under names such as ``ig_x5`` for five times the unit.
    """
    prices = {t.method: float(getattr(t, price)) for t in timings}
    known = list(settings(methods))
    unit, chosen = prices[next(one.name for one in known if one.family == IG)], list[Entry]()
    for label in methods:
        line = [replace(one, price=prices[one.name] / unit) for one in known if one.family == label]
        if line[0].name == label:
            chosen += [one for one in line if one.price <= NEAR * max(BUDGETS)]
            continue
        for budget in BUDGETS:
            one = min(line, key=lambda one: abs(math.log(one.price / budget)))
            if 1 / NEAR <= one.price / budget <= NEAR:
                chosen.append(replace(one, name=f"{label}_x{budget:g}", budget=budget))
    return chosen


def budget_page(model: str, entries: Sequence[Entry], results: Results, price: str, figure: str, seed: int = 0) -> str:
    """The table of a network as Markdown: rows of IG have scores, the others differences to IG at the same budget."""
    text = (
        f"The unit of a price is that of a map by {IG} in its first setting ({price}), on {CHOOSING} images that are "
        f"not scored. A setting stands at a budget, ig_x5 at five units, if its price is within a factor of {NEAR:g} "
        f"of it. The rows of {IG} have scores, the others differences to {IG} at the same budget, or the nearest one, "
        "on the same images with 95 % intervals; a star: zero is outside."
    )
    lost = sorted(set(METHODS) - {entry.family for entry in entries})
    lines = [f"# Quality at equal price: {model}", "", text, ""]
    lines += [f"Left out, as no setting is near a budget: {', '.join(lost)}.", ""] if lost else []
    head = ("method", "setting", "price", *results.metrics)
    lines += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for entry in entries:
        near = [e for e in entries if e.family == IG and entry.family != IG]
        near.sort(key=lambda e: abs(math.log((e.budget or 1) / (entry.budget or entry.price))))
        cells = [_cell(results, model, entry, near[:1], metric, seed) for metric in results.metrics]
        lines.append(f"| {entry.name} | {entry.setting} | {entry.price:.2f} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"![quality against price]({figure})", ""])


def draw_budget(model: str, entries: Sequence[Entry], results: Results, path: Path) -> Path:
    """Draw each score against the price; the level is the best map that knows nothing of the model."""
    panels = [SweepPanel(f"price, × IG: {m}", tuple(_curves(model, entries, results, m))) for m in results.metrics]
    path.parent.mkdir(parents=True, exist_ok=True)
    plot_sensitivity(panels, title=f"{model}: quality against price", y="score").savefig(path)
    return path


def _cell(results: Results, model: str, entry: Entry, base: Sequence[Entry], metric: str, seed: int) -> str:
    scores = results.scores(model, entry.name, metric)
    if not base:
        return f"{estimate(scores, seed).mean:.3f}"
    gap = paired(scores, results.scores(model, base[0].name, metric), seed=seed)
    return f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]{'*' if gap.low * gap.high > 0 else ''}"


def _curves(model: str, entries: Sequence[Entry], results: Results, metric: str) -> Iterator[SweepCurve]:
    points = {name: estimate(results.scores(model, name, metric)) for name in results.methods(model)}
    lines = dict[str, list[tuple[float, str]]]()
    for entry in sorted(entries, key=lambda entry: entry.price):
        lines.setdefault(method_title(entry.family), []).append((entry.price, entry.name))
    blind = [name for name in points if name in CONTROLS and results.is_control(name)]
    if blind:
        best = (max if metric.startswith("insertion") else min)(blind, key=lambda name: points[name].mean)
        lines["best blind map"] = [(pick(entry.price for entry in entries), best) for pick in (min, max)]
    for title, line in lines.items():
        mean, low, high = ([getattr(points[name], end) for _, name in line] for end in ("mean", "low", "high"))
        yield SweepCurve(title, [price for price, _ in line], mean, low, high)
