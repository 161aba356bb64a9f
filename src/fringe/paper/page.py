"""The page of a reproduction: our numbers beside the paper's, with the figures of the studies."""

from collections.abc import Sequence
from pathlib import Path

from fringe.experiments import Plan, Store, manifests, read_results
from fringe.paper.reproduction import DEFAULT, SPECS, STUDIES, beside, cells_csv, markdown, parts, readings
from fringe.paper.runtime import Timing, slowdowns
from fringe.report import comparison_page

PAGE = "reproduction"
TITLE = "Our numbers beside the paper's (arXiv 2605.06404)"


def write_page(base: Plan, run: Path, out: Path, timings: Sequence[Timing], figures: Sequence[Path]) -> list[Path]:
    """Write our numbers beside the paper's: as a page with figures, as Markdown, and as CSV.

    Args:
        base: The plan that the studies are made from.
        run: Run folder; its studies of the same images are shown, also those of an earlier call.
        out: Folder of the page.
        timings: Measured run times.
        figures: PNG files of the studies.

    Returns:
        The files that were written.
    """
    store = Store(run, create=False)
    results = {name: read_results(store, name) for name in _stored_studies(store, base)}
    rows, notes = beside(results, timings), [*_notes(base), *_timing_notes(timings)]
    pictures = [(path.stem, path.read_bytes()) for path in figures if path.suffix == ".png"]
    text = [f"# {TITLE}", "", *(f"- {note}" for note in notes), ""]
    text += ["## Readings of the paper", "", *(f"- {reading}" for reading in readings()), "", markdown(rows)]
    contents = {
        ".html": comparison_page(TITLE, notes, parts(rows), pictures, readings()),
        ".md": "\n".join(text),
        ".csv": cells_csv(rows),
    }
    out.mkdir(parents=True, exist_ok=True)
    for suffix, content in contents.items():
        (out / f"{PAGE}{suffix}").write_text(content, encoding="utf-8")
    return [out / f"{PAGE}{suffix}" for suffix in contents]


def _stored_studies(store: Store, base: Plan) -> list[str]:
    stored = manifests(store)
    plans = {name: stored[name].plan for name in STUDIES if name in stored}
    return [name for name, plan in plans.items() if (plan["data"], plan["seed"]) == ([*base.data], base.seed)]


def _notes(base: Plan) -> list[str]:
    specs = ", ".join(f"{arm.label} = {arm.model.spec}" for arm in base.arms)
    named = [arm.label for arm in base.arms if arm.label in SPECS]
    others = [arm.label for arm in base.arms if SPECS.get(arm.label) != arm.model.spec]
    return [
        f"Networks: {specs}.",
        *([f"Not the paper's networks, whatever they are called: {', '.join(others)}."] if others else []),
        *([] if named else ["None has the name of a network of the paper (LABEL=SPEC): there is nothing to compare."]),
        f"Images: {base.n} of {', '.join(base.data)}, drawn by seed {base.seed}, the paper gives no list.",
        "The column FRInGe() is our default setting, in the rows of fringe only, and timed on its own.",
        "The paper does not give the settings of the other methods; ours are in the reports of the studies.",
        "± is half a 95 % bootstrap interval, for max sensitivity and its median half the interquartile range.",
    ]


def _timing_notes(timings: Sequence[Timing]) -> list[str]:
    """Run times as ratios: seconds of another machine are no reproduction."""
    return [
        f"{model}, {mode}: {name} takes {ratio:.1f} times as long as IG on {timings[0].device}."
        for name, method in (("FRInGe", "fringe"), ("FRInGe()", DEFAULT))
        for (model, mode), ratio in slowdowns(timings, method, "ig").items()
    ]
