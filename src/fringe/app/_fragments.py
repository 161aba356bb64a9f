"""HTML fragments of the app. Text from files, models and errors is escaped."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fringe._strings.html import fragment, policy_hash
from fringe._strings.tables import Table
from fringe.evaluation import Comparison, MethodResult
from fringe.plots import overlay, png_of

#: Added to the page in the frame: a policy of its own, and a script that reports its height to the app.
_SCRIPT = (
    "new ResizeObserver(() => parent.postMessage({fringeHeight: document.documentElement.offsetHeight}, '*'))"
    ".observe(document.documentElement)"
)


def page_frame(page: str, name: str) -> str:
    """Embed the page of an explanation in a frame that may only run its script.

    The frame has no origin, so it can reach neither the app nor the data that the browser stores for the app."""
    page = page.replace("script-src ", f"script-src {policy_hash(_SCRIPT)} ", 1)
    page = page.replace("</body>", f"<script>{_SCRIPT}</script></body>", 1)
    return fragment("app", "frame", page, name)


def comparison_html(comparison: Comparison, titles: Mapping[str, str]) -> str:
    """Return two maps side by side, and a table of their scores and those of control maps."""
    context = comparison.context
    assert context is not None
    target, image = context.class_label(int(comparison.target[0])), context.picture(context.inputs[0])
    pictures = [
        (
            titles[row.label],
            None if row.maps is None else _picture(row, image),
            row.attribution.verdict[0] if row.attribution is not None else "no map",
            row.passes.forward + row.passes.jvp + row.passes.vjp,
            row.seconds,
        )
        for row in comparison.rows
        if not row.control
    ]
    path = any(row.control and row.label == "diffusion" for row in comparison.rows)
    of_maps = any(":" in row.label for row in comparison.rows if row.control)
    return fragment("app", "comparison", pictures, target, _table(comparison, titles), path, of_maps)


def _picture(row: MethodResult, image: Any) -> bytes:
    """The map of a method over the image, with the outline of its focus."""
    assert row.maps is not None
    region = None if row.attribution is None else row.attribution.focus_weights(0)
    return png_of(overlay(image, row.maps[0].cpu().numpy(), region=region))


def _table(comparison: Comparison, titles: Mapping[str, str]) -> Table:
    """Table with a row per method, then per control map, and a column per score."""
    scores = replace(comparison.tidy_scores, by_value=True)  # one image has no test
    table = scores.printed({row.label: () for row in comparison.rows}, (), titles)
    titles_of = {label: f"{m.title}{', with zeros' * (':' in label)}" for label, m in comparison.metrics.items()}
    columns = ("map", *(f"{titles_of[label]} ({m.direction} is better)" for label, m in comparison.metrics.items()))
    return replace(table, columns=columns, title="Scores")
