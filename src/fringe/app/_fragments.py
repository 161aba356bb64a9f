"""HTML fragments of the app. Text from files, models and errors is escaped."""

import base64
import math
from collections.abc import Sequence
from html import escape

from fringe.app._service import Compared, Explained, Sample
from fringe.evaluation import NOT_BETTER
from fringe.metrics import best_of
from fringe.page import policy_hash

#: Added to the page in the frame: a policy of its own, and a script that reports its height to the app.
_SCRIPT = (
    "new ResizeObserver(() => parent.postMessage({fringeHeight: document.documentElement.offsetHeight}, '*'))"
    ".observe(document.documentElement)"
)


def sample_buttons(samples: Sequence[Sample]) -> str:
    """Return the samples as buttons with their index; the pictures are embedded."""
    buttons = ""
    for index, sample in enumerate(samples):
        data = base64.b64encode(sample.png).decode()
        title = escape(sample.title, quote=True)
        buttons += (
            f"<button type='button' data-index='{index}'><img alt='' src='data:image/png;base64,{data}'>"
            f"<span>{title}</span></button>"
        )
    return f"<div class='fringe-samples' role='group' aria-label='Samples'>{buttons}</div>"


def status_line(text: str) -> str:
    """Return what happens as a line."""
    return f"<p role='status'>{escape(text)}</p>"


def error_box(text: str) -> str:
    """Return an error as a box."""
    return f"<div class='fringe-error' role='alert'><strong>That did not work.</strong> {escape(text)}</div>"


def page_frame(result: Explained) -> str:
    """Embed the page of an explanation in a frame that may only run its script.

    The frame has no origin, so it can reach neither the app nor the data that the browser stores for the app."""
    page = result.page.replace("script-src ", f"script-src {policy_hash(_SCRIPT)} ", 1)
    page = page.replace("</body>", f"<script>{_SCRIPT}</script></body>", 1)
    title = escape(f"Explanation of {result.name}", quote=True)
    return (
        f"<iframe class='fringe-page' sandbox='allow-scripts' title='{title}' srcdoc='{escape(page, quote=True)}'>"
        "</iframe>"
    )


def comparison(result: Compared) -> str:
    """Return two maps side by side, and a table of their scores and those of control maps."""
    figures = "".join(_figure(result, label) for label in result.titles)
    return f"<section class='fringe-compare'><div class='fringe-pair'>{figures}</div>{_table(result)}</section>"


def _figure(result: Compared, label: str) -> str:
    row = next(row for row in result.comparison.rows if row.label == label)
    title, png = result.titles[label], result.pictures[label]
    verdict = row.attribution.verdict[0].replace("_", " ") if row.attribution is not None else "no map"
    passes = row.passes.forward + row.passes.jvp + row.passes.vjp
    if png is None:
        text = "This method failed for this image and model. The terminal of the app shows more."
        body = f"<p class='fringe-error'>{text}</p>"
    else:
        text = escape(f"Map by {title} for {result.target}", quote=True)
        body = f"<img alt='{text}' src='data:image/png;base64,{base64.b64encode(png).decode()}'>"
    note = f"for {result.target} · {verdict} · {passes} passes · {row.seconds:.1f} s"
    return f"<figure><h2>{escape(title)}</h2>{body}<figcaption>{escape(note)}</figcaption></figure>"


def _table(result: Compared) -> str:
    """Table with a row per method, then per control map, and a column per score."""
    rows, metrics = result.comparison.rows, result.comparison.metrics
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
            bound = best_of([scores[name, label] for name in blind], metric.direction)
            beats = bound is None or (score > bound if metric.direction == "higher" else score < bound)
            text = _number(score) + (NOT_BETTER if math.isfinite(score) and not beats else "")
            note = note or f" {NOT_BETTER}: not better than every control." * text.endswith(NOT_BETTER)
            cells += f"<td>{f'<strong>{text}</strong>' if better else text}</td>"
        body += f"<tr><th scope='row'>{escape(result.titles[method])}</th>{cells}</tr>"
    for name in blind:
        cells = "".join(f"<td>{_number(scores[name, label])}</td>" for label in metrics)
        body += f"<tr class='blind'><th scope='row'>{escape(name)} <small>control</small></th>{cells}</tr>"
    path = "; only diffusion runs it, along a path that ignores it" if "diffusion" in blind else ""
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
