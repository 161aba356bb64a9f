"""The sections of a report about one model: paired differences, curves, maps and costs."""

import math
from collections.abc import Sequence

from fringe.errors import FringeError
from fringe.experiments import Results
from fringe.plots import MAX_SERIES
from fringe.report.account import Cost, costs
from fringe.report.content import Picture, Plain, Section, as_picture
from fringe.report.figures import curves, forest
from fringe.report.grid import Bench, maps_for
from fringe.report.picks import choose
from fringe.report.strips import draw_choice
from fringe.report.tables import Table

_COST_TEXT = (
    "Of one image's map, without its scoring: a batch's passes and time are shared equally among its images. Seconds "
    "depend on the machine, on the batch and on what else it was doing; passes do not.",
)


def difference_section(table: Table, prefix: str) -> Section:
    title = f"Paired differences to {table.reference}"
    figure = forest(table)
    if figure is None:
        return Section(title, ("There is nobody to compare with.",))
    caption = (
        f"{table.reference} less each rival on the same images, with the 95 % bootstrap interval. A filled point "
        f"differs from zero with p < .05 (sign-flip test, adjusted after Holm for {table.comparisons} comparisons)."
    )
    return Section(title, pictures=(as_picture(figure, f"{prefix}differences", caption),))


def curve_section(results: Results, table: Table, prefix: str) -> Section:
    title = "Insertion, deletion and MAS curves"
    drawn = curves(results, table)
    if not drawn:
        return Section(title, ("The run has no metric with curves.",))
    pictures = tuple(
        as_picture(
            figure,
            f"{prefix}{name}",
            "Means over images with bands of 1.96 standard errors; pixels are changed "
            "in the order of the map, and the score is the area under an image's curve.",
        )
        for name, figure in drawn.items()
    )
    more = len(table.competing) - MAX_SERIES
    return Section(title, (f"{more} methods more are not drawn.",) if more > 0 else (), pictures=pictures)


def map_section(results: Results, table: Table, bench: Bench | None, prefix: str) -> Section:
    title = "Maps"
    if bench is None:
        return Section(title, ("Maps were not asked for.",))
    chosen = choose(results, table)
    images = list(dict.fromkeys(image for choice in chosen.choices for image in choice.images))
    try:
        shown = maps_for(results, table.model, images, bench)
    except (FringeError, OSError) as error:
        return Section(title, (f"Maps are left out: {str(error).rstrip('.')}.",))
    names = {image["digest"]: image["id"] for image in results.manifest.images}
    pictures: list[Picture] = []
    for choice in chosen.choices:
        caption = f"{choice.title}. Images: {', '.join(names[image] for image in choice.images)}."
        figure = draw_choice(results, table, choice, shown)
        pictures.append(as_picture(figure, f"{prefix}maps-{choice.name}", caption))
    return Section(title, (chosen.reason,), pictures=tuple(pictures))


def cost_section(results: Results, table: Table) -> Section:
    return Section("Cost", plain=_cost_table(costs(results, table.model)), text=_COST_TEXT)


def _cost_table(found: Sequence[Cost]) -> Plain:
    head = ("method", "images", "forward", "forward mode (JVP)", "backward (VJP)", "passes", "seconds")
    rows = tuple(
        (
            cost.method,
            str(cost.n),
            *(_amount(value) for value in (cost.forward, cost.jvp, cost.vjp, cost.passes)),
            f"{cost.seconds:.3g}" if math.isfinite(cost.seconds) else "—",
        )
        for cost in found
    )
    return Plain("Cost of a map, means over images", head, rows, frozenset(range(1, len(head))))


def _amount(value: float) -> str:
    return "—" if not math.isfinite(value) else f"{value:.0f}" if value == round(value) else f"{value:.1f}"
