"""A sequence classifier of the transformers library as a function of its word embeddings."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fringe._network.outputs import refuse_independent_labels
from fringe.errors import InputError, ModelError, require_choice
from fringe.linalg import add_rows

SpecialTokens = Literal["fixed", "free"]


@dataclass(frozen=True)
class EncodedTexts:
    """B texts in the form that the model takes, padded to L tokens.

    Attributes:
        embeddings: Embeddings (B, L, D) of the tokens; zero at padding.
        arguments: Further arguments of :meth:`TextClassifier.forward` by name, with one row per text.
        labels: A label for each token of each text: a word at its first token, "" at the tokens that continue it and
            at padding.
    """

    embeddings: Tensor
    arguments: Mapping[str, Tensor]
    labels: tuple[tuple[str, ...], ...]


class TextClassifier(nn.Module):
    """A text classifier as a function of word embeddings: unlike tokens, they have gradients.

    Padding is masked and its embeddings are constant, so their attribution is exactly zero. The embeddings of special
    tokens such as [CLS] are constant too, unless ``special="free"``; the whole map then belongs to words. A model in
    half precision is explained through a float32 copy.

    Args:
        model: A sequence classifier of the transformers library, or a module like it: it has
            ``get_input_embeddings()`` and takes ``inputs_embeds`` and ``attention_mask``.
        tokenizer: Its fast tokenizer.
        special: ``"fixed"`` keeps special tokens constant, ``"free"`` explains them as well.

    Raises:
        InputError: If the model takes no embeddings, or the tokenizer does not say which tokens form a word.
        ModelError: If its configuration says that its labels do not exclude each other.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, special: SpecialTokens = "fixed"):
        super().__init__()
        if not callable(getattr(model, "get_input_embeddings", None)):
            message = f"{type(model).__name__} has no get_input_embeddings(), as text classifiers of transformers do"
            raise InputError(message, argument="model")
        if not getattr(tokenizer, "is_fast", False):
            message = f"got {type(tokenizer).__name__}, expected a fast tokenizer of the transformers library"
            raise InputError(message, argument="tokenizer")
        require_choice("special", special, get_args(SpecialTokens))
        refuse_independent_labels(model)
        if any(p.itemsize < 4 for p in model.parameters() if p.is_floating_point()):
            model = copy.deepcopy(model).float()
        self.model, self.tokenizer, self.special = model, tokenizer, special
        self.training = model.training

    def forward(
        self,
        embeddings: Tensor,
        attention_mask: Tensor,
        moves: Tensor,
        start: Tensor,
        words: Tensor | None = None,
        **arguments: Tensor,
    ) -> Tensor:
        """Compute the logits of texts from embeddings.

        Args:
            embeddings: Embeddings (B, L, D), or of the first tokens of each text alone.
            attention_mask: Mask (B, L) of the tokens that are not padding.
            moves: Mask (B, L) of the explained tokens; the others are kept at ``start``.
            start: The embeddings (B, L, D) of the texts.
            words: The number (B, L) of the word of each token, -1 for those that are kept. It is not read here:
                :func:`fringe.attribute` removes whole words by it.
            **arguments: Further arguments (B, L) of the model.

        Returns:
            Logits (B, C).
        """
        first = slice(embeddings.shape[1])
        x = torch.where(moves[:, first, None], embeddings, start[:, first].to(embeddings))
        given = {name: value[:, first] for name, value in {"attention_mask": attention_mask, **arguments}.items()}
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivatives
            return self.model(inputs_embeds=x, **given).logits

    @torch.no_grad()
    def encode(self, texts: Sequence[str]) -> EncodedTexts:
        """Tokenize texts and look up their embeddings.

        Args:
            texts: The texts (B).

        Returns:
            The arguments of :meth:`forward`, padded on the right to the longest text.

        Raises:
            InputError: If a text has only special tokens, or more tokens than the model takes.
            ModelError: If the model takes no embeddings; or if its logits for the padded batch of embeddings differ
                from those for the tokens of each text alone, so that they would depend on the other texts.
        """
        if isinstance(texts, str) or not texts:
            raise InputError("expected a list of at least one text", argument="inputs", hint="pass ['a great film']")
        table = self.tokenizer(list(texts), return_special_tokens_mask=True)
        lengths = [len(row) for row in table["input_ids"]]
        self._check_lengths(texts, lengths, table["special_tokens_mask"])
        # general tokenizers before transformers 5 give token_type_ids to models that take none
        parameters = inspect.signature(self.model.forward).parameters
        any_name = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        known = {"input_ids", "attention_mask", "special_tokens_mask"}
        known |= {"token_type_ids"} if any_name or "token_type_ids" in parameters else set[str]()
        names = [name for name in table if name in known]
        columns = {name: [torch.tensor(row) for row in table[name]] for name in names}
        device = self.model.get_input_embeddings().weight.device  # pyright: ignore
        padded = {n: nn.utils.rnn.pad_sequence(c, batch_first=True).to(device) for n, c in columns.items()}
        mask, special = padded["attention_mask"].bool(), padded.pop("special_tokens_mask").bool()
        embeddings = self.model.get_input_embeddings()(padded.pop("input_ids"))  # pyright: ignore
        embeddings = torch.where(mask[..., None], embeddings, 0.0)
        moves = mask & ~special if self.special == "fixed" else mask
        labels = [token_labels(table.encodings[i], text) for i, text in enumerate(texts)]
        rows = tuple((*row, *[""] * (embeddings.shape[1] - len(row))) for row in labels)
        words = torch.tensor([[bool(label) for label in row] for row in rows], device=device).cumsum(1) - 1
        arguments = {"moves": moves, "start": embeddings, "words": torch.where(moves, words, -1)}
        encoded = EncodedTexts(embeddings, {**padded, **arguments}, rows)
        self._check_logits(encoded, [{n: c[i][None].to(device) for n, c in columns.items()} for i in range(len(texts))])
        return encoded

    def token_length(self) -> float:
        """Return the median Euclidean length of the model's embeddings of tokens."""
        return float(self.model.get_input_embeddings().weight.detach().norm(dim=1).median())  # pyright: ignore

    def _check_lengths(self, texts: Sequence[str], lengths: Sequence[int], special: Sequence[Sequence[int]]) -> None:
        most = min(self.tokenizer.model_max_length, self._positions())
        for text, length, marks in zip(texts, lengths, special, strict=True):
            if sum(marks) == length:
                raise InputError(f"the text {text[:40]!r} has no words", argument="inputs")
            if length > most:
                message = f"the text {text[:40]!r}... has {length} tokens, and the model takes {most}"
                raise InputError(message, argument="inputs", hint="shorten it, or explain its parts")

    def _positions(self) -> int:
        """Maximum number of tokens that the model has positions for."""
        most = getattr(getattr(self.model, "config", None), "max_position_embeddings", None) or 0
        for name, table in self.model.named_modules():
            padding = getattr(table, "padding_idx", None)
            if name.endswith("position_embeddings") and padding is not None:
                most = len(table.weight) - padding - 1  # pyright: ignore - RoBERTa's begin after the padding index
        return most if most > 0 else 10**9  # XLNet's value is -1: no limit

    def _check_logits(self, encoded: EncodedTexts, alone: Sequence[Mapping[str, Tensor]]) -> None:
        """Compare with the model's logits from tokens, text by text and without padding."""
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            rows = [*range(len(alone)), 0]  # at least two rows, as on a path: some models refuse more than one
            logits = self(encoded.embeddings[rows], **{n: v[rows] for n, v in encoded.arguments.items()})[:-1]
            expected = [
                self.model(**{n: v for n, v in row.items() if n != "special_tokens_mask"}).logits for row in alone
            ]
        except (NotImplementedError, TypeError, ValueError) as error:
            hint = "choose a model that takes inputs_embeds in batches, or set its config.pad_token_id if that is None"
            raise ModelError(str(error), argument="model", hint=hint) from error
        finally:
            for module in was_training:
                module.training = True
        worst = float((logits - torch.cat(expected)).abs().max())
        scale = float(torch.cat(expected).abs().max())
        if not worst <= 1e-3 * (1.0 + scale):
            raise ModelError(
                f"its logits from embeddings with padding differ by {worst:.3g} from those of each text alone",
                argument="model",
                hint="explain texts of one length at a time; a model that scales embeddings itself, or reads the last "
                "position of padded texts, is not supported in batches",
            )


# -- words ------------------------------------------------------------------------------------------------------------


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
