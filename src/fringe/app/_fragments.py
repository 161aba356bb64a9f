"""HTML fragments of the app. Text from files, models and errors is escaped."""

import base64
import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

import numpy as np

from fringe.evaluation import NOT_BETTER, Comparison, MethodResult, is_rival
from fringe.metrics import best_of
from fringe.page import policy_hash
from fringe.plots import overlay, png_of

#: Added to the page in the frame: a policy of its own, and a script that reports its height to the app.
_SCRIPT = (
    "new ResizeObserver(() => parent.postMessage({fringeHeight: document.documentElement.offsetHeight}, '*'))"
    ".observe(document.documentElement)"
)


def sample_buttons(samples: Iterable[tuple[str, bytes]]) -> str:
    """Return titles and PNG files as buttons with their index; the pictures are embedded."""
    buttons = ""
    for index, (title, png) in enumerate(samples):
        buttons += (
            f"<button type='button' data-index='{index}'><img alt='' src='{_data(png)}'>"
            f"<span>{escape(title)}</span></button>"
        )
    return f"<div class='fringe-samples' role='group' aria-label='Samples'>{buttons}</div>"


def status_line(text: str) -> str:
    """Return what happens as a line."""
    return f"<p role='status'>{escape(text)}</p>"


def error_box(text: str) -> str:
    """Return an error as a box."""
    return f"<div class='fringe-error' role='alert'><strong>That did not work.</strong> {escape(text)}</div>"


def page_frame(page: str, name: str) -> str:
    """Embed the page of an explanation in a frame that may only run its script.

    The frame has no origin, so it can reach neither the app nor the data that the browser stores for the app."""
    page = page.replace("script-src ", f"script-src {policy_hash(_SCRIPT)} ", 1)
    page = page.replace("</body>", f"<script>{_SCRIPT}</script></body>", 1)
    title = escape(f"Explanation of {name}", quote=True)
    return (
        f"<iframe class='fringe-page' sandbox='allow-scripts' title='{title}' srcdoc='{escape(page, quote=True)}'>"
        "</iframe>"
    )


def comparison_html(comparison: Comparison, titles: Mapping[str, str]) -> str:
    """Return two maps side by side, and a table of their scores and those of control maps."""
    context = comparison.context
    assert context is not None
    target, image = context.class_label(int(comparison.target[0])), context.picture(context.inputs[0])
    rows = [row for row in comparison.rows if not row.control]
    figures = "".join(_figure(row, titles[row.label], target, image) for row in rows)
    table = _table(comparison, titles)
    return f"<section class='fringe-compare'><div class='fringe-pair'>{figures}</div>{table}</section>"


def _data(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _figure(row: MethodResult, title: str, target: str, image: Any) -> str:
    verdict = row.attribution.verdict[0].replace("_", " ") if row.attribution is not None else "no map"
    passes = row.passes.forward + row.passes.jvp + row.passes.vjp
    if row.maps is None:
        text = "This method failed for this image and model. The terminal of the app shows more."
        body = f"<p class='fringe-error'>{text}</p>"
    else:
        text = escape(f"Map by {title} for {target}", quote=True)
        body = f"<img alt='{text}' src='{_data(png_of(overlay(image, row.maps[0].cpu().numpy())))}'>"
    note = f"for {target} · {verdict} · {passes} passes · {row.seconds:.1f} s"
    return f"<figure><h2>{escape(title)}</h2>{body}<figcaption>{escape(note)}</figcaption></figure>"


def _table(comparison: Comparison, titles: Mapping[str, str]) -> str:
    """Table with a row per method, then per control map, and a column per score."""
    rows, metrics = comparison.rows, comparison.metrics
    scores = {(row.label, label): float(row.scores[label].values[0]) for row in rows for label in metrics}
    methods, blind = [[row.label for row in rows if row.control == control] for control in (False, True)]
    head = "".join(
        f"<th scope='col'>{escape(m.title)} <small>{m.direction} is better</small></th>" for m in metrics.values()
    )
    body, note = "", ""
    for method in methods:
        cells = ""
        for label, metric in metrics.items():
            score, other = scores[method, label], [scores[name, label] for name in methods if name != method]
            better = best_of([score, *other], metric.direction) == score and _number(score) != _number(other[0])
            columns = {name: np.array([scores[name, label]]) for name in [method, *blind]}
            rivals = [name for name in blind if is_rival(method, name, columns[method], columns[name])]
            bound = best_of([scores[name, label] for name in rivals], metric.direction)
            beats = bound is None or (score > bound if metric.direction == "higher" else score < bound)
            text = _number(score) + (NOT_BETTER if math.isfinite(score) and not beats else "")
            note = note or f" {NOT_BETTER}: not better than every control." * text.endswith(NOT_BETTER)
            cells += f"<td>{f'<strong>{text}</strong>' if better else text}</td>"
        body += f"<tr><th scope='row'>{escape(titles[method])}</th>{cells}</tr>"
    for name in blind:
        cells = "".join(f"<td>{_number(scores[name, label])}</td>" for label in metrics)
        body += f"<tr class='blind'><th scope='row'>{escape(name)} <small>control</small></th>{cells}</tr>"
    path = "; only diffusion runs it, along a path that ignores it" if "diffusion" in blind else ""
    path += " (those made of a method's own map show what sharpening and the centre gain)" * any(
        ":" in b for b in blind
    )
    return (
        "<div class='fringe-scroll' tabindex='0' role='region' aria-label='Scores'><table><thead>"
        f"<tr><th scope='col'>map</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        "<p class='fringe-note'>The brighter a pixel, the more it counts for the class or against it. Controls "
        f"do not look at the model{path}. A score tells something of a method only where it beats all of theirs. "
        f"The better of the two methods is bold.{note} One image decides nothing: compare on many with "
        "<code>fringe compare</code>.</p>"
    )


def _number(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "none"
