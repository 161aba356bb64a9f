"""From the tokens of a text to its words."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def token_labels(encoding: Any, text: str) -> tuple[str, ...]:
    """Return a label for each token of an encoded text: the word of its first token, "" for the tokens that follow.

    Args:
        encoding: One encoding of a fast tokenizer: tokens, character offsets, and numbers of words.
        text: The text.
    """
    labels: list[str] = []
    last: int | None = None
    for token, word in zip(encoding.tokens, encoding.word_ids, strict=True):
        if word is not None and word == last:
            labels.append("")
            continue
        last = word
        ends = [encoding.offsets[j] for j, other in enumerate(encoding.word_ids) if word is not None and other == word]
        labels.append((text[ends[0][0] : ends[-1][1]].strip() if ends else "") or str(token))
    return tuple(labels)


def merge_words(labels: Sequence[str], values: Tensor) -> tuple[tuple[str, ...], Tensor]:
    """Sum what belongs to one word.

    Args:
        labels: A label for each token: a word at its first token, "" at the tokens that continue it and at padding.
        values: Values (..., L) of the tokens, or (..., L, D) of their embeddings, which are summed as well. Where both
            of the last axes have L entries, the last is that of embeddings.

    Returns:
        The W words, and their values (..., W).
    """
    if values.shape[-2:-1] == (len(labels),):
        values = values.sum(-1)
    starts = [k for k, label in enumerate(labels) if label]
    words = torch.tensor([max(0, sum(start <= k for start in starts) - 1) for k in range(len(labels))])
    merged = torch.zeros(*values.shape[:-1], len(starts), dtype=values.dtype, device=values.device)
    return tuple(labels[k] for k in starts), merged.index_add(-1, words.to(values.device), values)
