"""Grouping of the tokens of a text into words."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fringe.linalg import add_rows


def token_labels(encoding: Any, text: str) -> tuple[str, ...]:
    """Label each token of an encoded text: a word at its first token, "" at the tokens that continue it.

    Args:
        encoding: One encoding of a fast tokenizer: tokens, character offsets, and word indices.
        text: The text.
    """
    starts: list[int] = []
    for k, word in enumerate(encoding.word_ids):
        if not starts or word is None or word != encoding.word_ids[k - 1] or _begins(encoding, text, starts[-1], k):
            starts.append(k)
    labels = [""] * len(encoding.tokens)
    for start, stop in zip(starts, [*starts[1:], len(labels)], strict=True):
        word = text[encoding.offsets[start][0] : encoding.offsets[stop - 1][1]].strip()
        labels[start] = word or str(encoding.tokens[start])
    return tuple(labels)


def _begins(encoding: Any, text: str, start: int, k: int) -> bool:
    """Whether a space precedes token ``k`` in the word that began at ``start``: the tokenizers of Llama and Gemma
    report a whole text as one word."""
    begin, end = encoding.offsets[k]
    return text[begin:end][:1].isspace() and bool(text[encoding.offsets[start][0] : begin].strip())


def merge_words(labels: Sequence[str], values: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Sum the values of the tokens of each word.

    Args:
        labels: A label for each token: a word at its first token, "" at the tokens that continue it and at padding.
        values: Values (..., L) of the tokens, or (..., L, D) of their embeddings, which are summed over D as well. If
            both of the last two axes have L entries, the last one is that of embeddings.

    Returns:
        The W words, and their values (..., W).
    """
    if values.shape[-2:-1] == (len(labels),):
        values = values.sum(-1)
    words = tuple(filter(None, labels))
    numbers = torch.tensor([bool(label) for label in labels], device=values.device).cumsum(0).sub(1).clamp_min(0)
    merged = values.new_zeros(len(words), *values.shape[:-1])
    return words, add_rows(merged, numbers, values.movedim(-1, 0)).movedim(0, -1)
