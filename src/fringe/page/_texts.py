"""The page of a text: its words on the colour of their evidence, for each class or for each token of an answer."""

from __future__ import annotations

import dataclasses
import json
import math
import platform
from typing import Any

import torch
from markupsafe import Markup

import fringe
from fringe._strings.formats import number, percent, plain, printable, printable_json
from fringe._strings.html import html_page
from fringe._strings.tables import Cell, Table
from fringe.attribution import SENTENCES, Attribution, setting_title
from fringe.errors import InputError
from fringe.text import merge_words

#: Words that the table names for each class or token.
STRONGEST = 5
#: The end of a line, which begins a new one on the page.
_BREAK = "⏎"


def is_of_texts(result: Attribution) -> bool:
    """Return whether the inputs of a result are texts."""
    return result.context is not None and result.context.kind == "text"


def text_page(result: Attribution, row: int, escaped: Any, facts_of: Any) -> str:
    """Return the page of a text, or of all tokens of the answer to a prompt.

    Args:
        result: An attribution of texts with context.
        row: Number of the input.
        escaped: Writes JSON text so that a script can hold it.
        facts_of: Lists passes, settings and versions.

    Returns:
        The page.

    Raises:
        InputError: If there is no such input.
    """
    context = result.context
    assert context is not None
    if not 0 <= row < len(result):
        raise InputError(f"got {row} for {len(result)} inputs", argument="row")
    is_answer = bool(context.prompts)
    rows = [k for k in range(len(result)) if is_answer and context.prompts[k] == context.prompts[row]] or [row]
    first = rows[0]
    size = int((context.inputs[first].abs().sum(-1) > 0).sum())  # padding is zero
    size = size if len(rows) > 1 else context.inputs.shape[1]
    items, tables = list[dict[str, Any]](), list[tuple[Any, ...]]()
    words: tuple[str, ...] = ()
    for k in rows:
        one = result.select([k])
        classes = [one] if one.target.dim() == 1 else [one.of_class(c) for c in range(one.target.shape[1])]
        for each in classes:
            values = each.values[0].detach().double().cpu().sum(-1)
            words, merged = merge_words(context.features[first][:size], values[:size])
            before = values[size : size + len(rows)] if len(rows) > 1 else values[:0]
            item = _item(each, k, context.probabilities[k, int(each.target[0])], is_answer)
            items.append({**item, "values": _rounded(merged), "before": _rounded(before)})
            order = merged.abs().argsort(descending=True, stable=True)[:STRONGEST].tolist()
            strongest = ", ".join(f"{words[i]} {merged[i]:+.3g}" for i in order)
            shares = (Cell(item["probability"], share=True), Cell(item["residual"], share=True))
            tables.append((item["label"], shares[0], item["score"], item["end"], shares[1], item["verdict"], strongest))
    are_candidates = is_answer and len(rows) == 1 and len(items) > 1
    noun = "token" if is_answer else "class"
    title = "Candidates for the next token" if are_candidates else "Tokens of the answer"
    names = (noun, "probability", "score", "score at the end", "missed share", "verdict", "strongest words")
    data = printable_json(json.dumps({"items": items}, ensure_ascii=False, allow_nan=False, separators=(",", ":")))
    versions = {"fringe": fringe.__version__, "torch": str(torch.__version__), "python": platform.python_version()}
    return html_page(
        "text",
        script="text.js",
        words=[(printable(word), word == _BREAK) for word in words],
        items=items,
        is_answer=is_answer,
        are_candidates=are_candidates,
        source=printable(context.prompts[row] if is_answer else context.ids[row]),
        model=printable(context.model),
        method=setting_title(result.settings),
        first=rows.index(row) if len(rows) > 1 else 0,
        table=Table(names, tables, title if is_answer else "Explained classes"),
        facts=facts_of(dataclasses.asdict(result.passes), plain(result.settings), versions),
        data=Markup(escaped(data)),
    )


def _item(one: Attribution, row: int, chance: Any, is_answer: bool) -> dict[str, Any]:
    """What the page says of a class or token."""
    verdict = one.verdict[0]
    tone, sentence = SENTENCES.get(verdict, ("bad", "This verdict is not known."))
    numbers = {"probability": chance, "score": one.score[0], "end": one.endpoint_score[0]}
    numbers["residual"] = one.completeness_residual[0]
    finite = {name: float(value) if math.isfinite(value) else None for name, value in numbers.items()}
    says = {"verdict": verdict.replace("_", " "), "tone": tone, "sentence": sentence, "advice": one.advice[0]}
    context = one.context
    unit = f" ({printable(context.unit)})" if context is not None and context.unit else ""
    says["chance"] = percent(chance) if finite["probability"] is not None else f"{number(finite['score'])}{unit}"
    return {"label": printable(one.labels(0)[0]), "unit": unit, **finite, **says}


def _rounded(values: torch.Tensor) -> list[float]:
    """Values with four digits, in which pages stay small."""
    return [float(f"{value:.4g}") for value in values.nan_to_num(0.0, 0.0, 0.0).tolist()]
