"""Models of the transformers library as functions of word embeddings: classifiers of texts, and language models."""

import contextlib
import copy
import functools
import inspect
import itertools
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from fringe._network.isolation import restored
from fringe._network.outputs import refuse_independent_labels
from fringe._strings.formats import printable
from fringe.errors import InputError, ModelError, first_line, require, require_choice
from fringe.linalg import add_rows

SpecialTokens = Literal["fixed", "free"]
#: A text, or the messages of a chat: each has a "role" and a "content".
Prompt = str | Sequence[Mapping[str, str]]

#: How white space is shown that is a word of its own.
_SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥"}
#: With more tokens attention is fused unless it is differentiated forwards: else it would keep (heads, L, L) numbers of
#: each layer, 150 MB for 9 heads and 2,048 tokens.
LONG = 512


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
        self.training, self.has_classes = model.training, getattr(model, "has_classes", True)

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
        given = {name: value[:, first] for name, value in {"attention_mask": attention_mask, **arguments}.items()}
        return self._logits(embeddings, moves[:, first], start[:, first], given)

    def _logits(self, embeddings: Tensor, moves: Tensor, start: Tensor, arguments: Mapping[str, Any]) -> Tensor:
        """The logits of the model; embeddings that do not move are those at the ``start``."""
        x = torch.where(moves[..., None], embeddings, start.to(embeddings))
        # fused attention has neither second derivatives nor forward-mode ones
        is_fused = x.shape[1] > LONG and forward_ad.unpack_dual(x).tangent is None
        with self._checkpointed() if is_fused else sdpa_kernel(SDPBackend.MATH):
            return self.model(inputs_embeds=x, **arguments).logits

    @contextlib.contextmanager
    def _checkpointed(self) -> Generator[None]:
        """Layers of transformers that compute their activations again for the backward pass instead of keeping them."""
        kind = "GradientCheckpointingLayer"
        layers = [m for m in self.model.modules() if any(base.__name__ == kind for base in type(m).__mro__)]
        with contextlib.ExitStack() as stack:
            for layer in layers if torch.is_grad_enabled() else []:
                stack.enter_context(restored(layer))
                layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
            yield

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
        rows = [token_labels(table.encodings[i], text) for i, text in enumerate(texts)]
        special = columns.pop("special_tokens_mask")
        encoded = self._encoded(columns, [mark.bool() for mark in special], rows)
        device = encoded.embeddings.device
        self._check_logits(encoded, [{n: c[i][None].to(device) for n, c in columns.items()} for i in range(len(texts))])
        return encoded

    def _encoded(
        self, columns: Mapping[str, Sequence[Tensor]], special: Sequence[Tensor], labels: Sequence[Sequence[str]]
    ) -> EncodedTexts:
        """The texts with these columns of their tokens, padded, which of them are special, and their labels."""
        device = self.model.get_input_embeddings().weight.device  # pyright: ignore
        pad = nn.utils.rnn.pad_sequence
        padded = {name: pad(list(column), batch_first=True).to(device) for name, column in columns.items()}
        mask = padded["attention_mask"].bool()
        embeddings = self.model.get_input_embeddings()(padded.pop("input_ids"))  # pyright: ignore
        embeddings = torch.where(mask[..., None], embeddings, 0.0)
        is_special = pad(list(special), batch_first=True).to(device)
        moves = mask & ~is_special if self.special == "fixed" else mask
        rows = tuple((*row, *[""] * (embeddings.shape[1] - len(row))) for row in labels)
        words = torch.tensor([[bool(label) for label in row] for row in rows], device=device).cumsum(1) - 1
        arguments = {"moves": moves, "start": embeddings, "words": torch.where(moves, words, -1)}
        return EncodedTexts(embeddings, {**padded, **arguments}, rows)

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
        with self._evaluated():
            expected = [self.model(**row).logits for row in alone]
            self._compare(encoded, torch.cat(expected))

    def _compare(self, encoded: EncodedTexts, expected: Tensor) -> None:
        """Compare the logits of embeddings with those of tokens."""
        rows = [*range(len(expected)), 0]  # at least two rows, as on a path: some models refuse more than one
        logits = self(encoded.embeddings[rows], **{n: v[rows] for n, v in encoded.arguments.items()})[:-1]
        worst, scale = float((logits - expected).abs().max()), float(expected.abs().max())
        if not worst <= 1e-3 * (1.0 + scale):
            raise ModelError(
                f"its logits from embeddings with padding differ by {worst:.3g} from those of each text alone",
                argument="model",
                hint="explain texts of one length at a time; a model that scales embeddings itself, or reads the last "
                "position of padded texts, is not supported in batches",
            )

    @contextlib.contextmanager
    def _evaluated(self) -> Generator[None]:
        """The model in evaluation mode; what it does not take is named."""
        was_training = [module for module in self.model.modules() if module.training]
        self.model.eval()
        try:
            yield
        except InputError:
            raise
        except (NotImplementedError, TypeError, ValueError) as error:
            hint = "choose a model that takes inputs_embeds in batches, or set its config.pad_token_id if that is None"
            raise ModelError(str(error), argument="model", hint=hint) from error
        finally:
            for module in was_training:
                module.training = True


@dataclass(frozen=True)
class EncodedTokens(EncodedTexts):
    """R texts with the token that follows each of them.

    Attributes:
        prompts: The number (R) of the prompt that each text begins with.
        classes: The names (R, K + 1) of the candidates for the next token; the last class are all others.
        target: The explained candidates (R,) or (R, n).
        contrast: The candidates (R,) that they are compared with, if any.
    """

    prompts: tuple[int, ...]
    classes: tuple[tuple[str, ...], ...]
    target: Tensor
    contrast: Tensor | None


#: The name of the class of all tokens that are no candidates.
REST = "another token"


def is_language_model(model: Any) -> bool:
    """Return whether a module of the transformers library continues texts."""
    generates = getattr(model, "can_generate", None)
    return isinstance(model, nn.Module) and callable(generates) and bool(generates())


class NextToken(TextClassifier):
    """A causal language model as a classifier of the next token, and a function of word embeddings.

    The classes are the most probable next tokens of each text, and all others as one class: the log-sum-exp of their
    logits, so that the probabilities are those of the model.

    Args:
        model: A causal language model of the transformers library, or a module like it: it takes ``input_ids`` or
            ``inputs_embeds``, and ``attention_mask``, and returns logits (B, L, V).
        tokenizer: Its fast tokenizer.
        special: As of :class:`TextClassifier`.
        candidates: How many tokens are classes of their own (K).

    Raises:
        InputError: As :class:`TextClassifier`; or if the model is an encoder with a decoder.
    """

    def __init__(self, model: nn.Module, tokenizer: Any, special: SpecialTokens = "fixed", candidates: int = 10):
        if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
            message = f"{type(model).__name__} has an encoder and a decoder, expected a decoder alone"
            raise InputError(message, argument="model", hint="explain a causal language model")
        super().__init__(model, tokenizer, special)
        require(type(candidates) is int and candidates > 0, "candidates", candidates, "a positive whole number")
        self.candidates = candidates
        parameters = inspect.signature(self.model.forward).parameters
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._without_cache = {"use_cache": False} if "use_cache" in parameters or takes_any else {}
        self._keeps_last = "logits_to_keep" in parameters

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride] - one argument more
        self,
        embeddings: Tensor,
        attention_mask: Tensor,
        moves: Tensor,
        start: Tensor,
        candidates: Tensor,
        words: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits of the candidates for the next token.

        Args:
            embeddings: As of :meth:`TextClassifier.forward`.
            attention_mask: As there.
            moves: As there.
            start: As there.
            candidates: Numbers (B, K) of tokens in the vocabulary.
            words: As there.

        Returns:
            Logits (B, K + 1); the last are those of all other tokens.
        """
        first = slice(embeddings.shape[1])
        mask = attention_mask[:, first]
        # texts end with padding: no token before it sees it
        positions, index = (mask.sum(1) - 1).unique(return_inverse=True)
        arguments = {"attention_mask": mask, **self._without_cache}
        arguments |= {"logits_to_keep": positions} if self._keeps_last else {}
        logits = self._logits(embeddings, moves[:, first], start[:, first], arguments)
        last = index if self._keeps_last else positions[index]
        return _with_rest(logits[torch.arange(len(logits), device=logits.device), last], candidates)

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[Prompt],
        target: str | Sequence[str] = "predicted",
        contrast: str | Sequence[str] | None = None,
        generate: int = 1,
    ) -> EncodedTokens:
        """Tokenize prompts, each with the first tokens of its answer, and look up their embeddings.

        Args:
            texts: The prompts (B): texts, or chats in the form of the model's template.
            target: ``"predicted"``, the model's own answer, a token at a time with the most probable next; ``"top3"``,
                the most probable next tokens; or the text of an answer, or one for each prompt. A space before it is
                added where the model expects one and it does not begin with one.
            contrast: Another answer, or one for each prompt: the first token that differs is explained, and why it is
                not that of this answer.
            generate: The length of the model's own answer in tokens; it ends at the token of the end of a text. With a
                contrast, how many tokens are compared with it.

        Returns:
            A row for each token of each answer: the prompt and the answer up to this token.

        Raises:
            InputError: If an argument is of another form; a prompt has no words, or is too long; or an answer has no
                tokens of its own, or equals its contrast.
            ModelError: As of :meth:`TextClassifier.encode`.
        """
        require(type(generate) is int and generate > 0, "generate", generate, "a positive whole number")
        top = re.fullmatch("top([0-9]+)", target) if isinstance(target, str) else None
        if generate > 1 and target != "predicted":
            raise InputError(f"got {generate} with a target", argument="generate", hint="leave one of them out")
        if top and not 0 < int(top[1]) <= self.candidates:
            hint = f"pass candidates={top[1]}" if int(top[1]) else "take top1"
            raise InputError(f"got {target!r} of {self.candidates} candidates", argument="target", hint=hint)
        rows = list[_Row]()
        with self._evaluated():
            answers = [None] * len(texts) if top else self._each("target", target, len(texts))
            others = self._each("contrast", contrast, len(texts))
            for number, (text, answer, other) in enumerate(zip(texts, answers, others, strict=True)):
                rows += self._rows(number, text, answer, other, generate)
            chosen = [row.candidates(min(self.candidates, len(row.logits) - 1)) for row in rows]
            numbers = torch.stack([tokens for tokens, _, _ in chosen])
            columns = {"input_ids": [torch.tensor(row.tokens) for row in rows]}
            columns["attention_mask"] = [torch.ones_like(tokens) for tokens in columns["input_ids"]]
            special = [torch.tensor(row.special) for row in rows]
            encoded = self._encoded(columns, special, [row.labels for row in rows])
            arguments = {**encoded.arguments, "candidates": numbers.to(encoded.embeddings.device)}
            classes = torch.tensor([explained for _, explained, _ in chosen])
            contrasts = [contrast for _, _, contrast in chosen if contrast is not None]
            result = EncodedTokens(
                encoded.embeddings,
                arguments,
                encoded.labels,
                prompts=tuple(row.prompt for row in rows),
                classes=tuple(
                    (*(self._name(row.tokens, token) for token in tokens.tolist()), REST)
                    for row, tokens in zip(rows, numbers, strict=True)
                ),
                target=torch.arange(int(top[1])).expand(len(rows), -1) if top else classes,
                contrast=torch.tensor(contrasts) if contrasts else None,
            )
            logits = torch.stack([row.logits for row in rows])
            self._compare(result, _with_rest(logits, arguments["candidates"]))
        return result

    @torch.no_grad()
    def neutral(self) -> Tensor:
        """Return the embedding (1, 1, D) of a comma, which takes the place of removed words: zeros or the mean of words
        are no token, and language models lose track wherever one stands."""
        token = self.tokenizer(",", add_special_tokens=False)["input_ids"][:1]
        table = self.model.get_input_embeddings()  # pyright: ignore
        return table(torch.tensor([token], device=table.weight.device))  # pyright: ignore

    def _each(self, name: str, given: Any, count: int) -> Sequence[str | None]:
        """An answer for each prompt; None: none is given."""
        if given is None or (name == "target" and given == "predicted"):
            return [None] * count
        each: Any = [given] * count if isinstance(given, str) else given
        if not isinstance(each, (list, tuple)) or len(each) != count or not all(isinstance(x, str) and x for x in each):
            hint = "give the text of a token or of an answer"
            raise InputError(f"got {given!r}, expected a text, or one for each of {count}", argument=name, hint=hint)
        return cast(Sequence[str], each)

    def _rows(self, number: int, prompt: Prompt, answer: str | None, other: str | None, generate: int) -> "list[_Row]":
        """The rows of a prompt."""
        text, tokens, special, labels = self._prompt(prompt)
        ends = self._logits_of(tokens, 1)[0]
        chosen = self._greedy(tokens, generate) if answer is None else self._answer(text, answer, ends)
        contrast, first = list[int](), 0
        if other is not None:
            contrast = self._answer(text, other, ends)
            both = list(zip(chosen, contrast, strict=False))
            first = next((k for k, (a, b) in enumerate(both) if a != b), -1)
            if first < 0:
                message = f"{other!r} begins as the answer itself: the tokens do not differ"
                raise InputError(message, argument="contrast", hint="give another answer")
            chosen = chosen[: first + 1]
        logits = self._logits_of([*tokens, *chosen[:-1]], len(chosen))
        rows, added = list[_Row](), self._labels(tokens, chosen)
        for k in range(first, len(chosen)):
            before = [*tokens, *chosen[:k]]
            marks = [*special, *(token in self.tokenizer.all_special_ids for token in chosen[:k])]
            theirs = contrast[k] if contrast else None
            rows.append(_Row(number, before, marks, [*labels, *added[k]], logits[k], chosen[k], theirs))
        return rows

    def _prompt(self, prompt: Prompt) -> tuple[str, list[int], list[bool], list[str]]:
        """A prompt as text, its tokens, which of them are special, and their labels."""
        text = prompt if isinstance(prompt, str) else self._chat(prompt)
        table = self.tokenizer([text], add_special_tokens=isinstance(prompt, str), return_special_tokens_mask=True)
        tokens, added = table["input_ids"][0], table["special_tokens_mask"][0]
        while added and added[-1]:  # the end of a text, after which nothing follows
            tokens, added = tokens[:-1], added[:-1]
        special = [
            bool(mark) or token in self.tokenizer.all_special_ids for mark, token in zip(added, tokens, strict=True)
        ]
        if all(special):
            raise InputError(f"the text {text[:40]!r} has no words", argument="inputs")
        return text, tokens, special, list(token_labels(table.encodings[0], text)[: len(tokens)])

    def _chat(self, messages: Sequence[Mapping[str, str]]) -> str:
        try:
            return self.tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except Exception as error:  # of templates, which are programs
            message = f"its template does not take these messages ({first_line(error)})"
            raise InputError(message, argument="tokenizer", hint="give the prompt as one text") from error

    def _logits_of(self, tokens: Sequence[int], count: int) -> Tensor:
        """The logits (count, V) of the tokens after the last ``count`` of a text."""
        self._check_lengths([self.tokenizer.decode(tokens[:20])], [len(tokens)], [[0]])
        device = self.model.get_input_embeddings().weight.device  # pyright: ignore
        ids = torch.tensor([tokens], device=device)
        last = {"logits_to_keep": count} if self._keeps_last else {}
        given = {"attention_mask": torch.ones_like(ids), **self._without_cache, **last}
        return self.model(input_ids=ids, **given).logits[0, -count:]

    def _greedy(self, tokens: Sequence[int], count: int) -> list[int]:
        """The model's own answer, the most probable token at a time."""
        stated = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        ends = {self.tokenizer.eos_token_id, *(stated if isinstance(stated, list) else [stated])}
        answer = list[int]()
        while len(answer) < count and not ends & {*answer[-1:]}:
            answer.append(int(self._logits_of([*tokens, *answer], 1).argmax()))
        return answer

    def _answer(self, text: str, answer: str, logits: Tensor) -> list[int]:
        """The tokens of a given answer: with or without a space before it, as the model expects more."""
        spaced = [] if answer[:1].isspace() or text[-1:].isspace() else [f" {answer}"]
        alone, *read = (
            self.tokenizer(text + more, add_special_tokens=False)["input_ids"] for more in ("", answer, *spaced)
        )
        known = [ids[len(alone) :] for ids in read if ids[: len(alone)] == alone and len(ids) > len(alone)]
        if not known:
            message = f"its tokens and those of {answer!r} after it are not those of both together"
            raise InputError(message, argument="inputs", hint="leave out the space at the end of the prompt")
        return max(known, key=lambda ids: float(logits[ids[0]]))

    def _name(self, before: Sequence[int], token: int) -> str:
        """A token as a word."""
        return self._labels(before, [token])[-1][-1]

    def _labels(self, before: Sequence[int], answer: Sequence[int]) -> list[list[str]]:
        """The labels of the first 0, 1, ... tokens of an answer, as of :func:`token_labels`."""
        decoded = [self.tokenizer.decode([*before[-1:], *answer[:k]]) for k in range(len(answer) + 1)]
        pieces = [b[len(a) :] for a, b in itertools.pairwise(decoded)]
        every, labels, word = [list[str]()], list[str](), 0
        for k, (token, piece) in enumerate(zip(answer, pieces, strict=True)):
            shown = _visible(piece) or str(self.tokenizer.convert_ids_to_tokens(token))
            continues = k > 0 and piece[:1].isalnum() and labels[word][-1:].isalnum()
            labels = [*labels, "" if continues else shown]
            word = word if continues else k
            labels[word] += shown if continues else ""
            every.append(list(labels))
        return every


@dataclass(frozen=True)
class _Row:
    """A text up to an explained token, and the logits (V) of the model after it."""

    prompt: int
    tokens: list[int]
    special: list[bool]
    labels: list[str]
    logits: Tensor
    target: int
    contrast: int | None

    def candidates(self, count: int) -> tuple[Tensor, int, int | None]:
        """The most probable tokens (K,), among them the explained ones, and where these are."""
        required = [self.target] if self.contrast is None else [self.target, self.contrast]
        order = self.logits.index_fill(0, torch.tensor(required, device=self.logits.device), torch.inf)
        best = order.topk(max(count, len(required))).indices
        tokens = best[self.logits[best].argsort(descending=True, stable=True)].tolist()
        at = [tokens.index(token) for token in required]
        return torch.tensor(tokens), at[0], at[1] if at[1:] else None


def _with_rest(logits: Tensor, candidates: Tensor) -> Tensor:
    """The logits (B, K + 1) of candidates, and of all other tokens together."""
    rest = logits.scatter(1, candidates, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat([logits.gather(1, candidates), rest], 1)


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
        word = _visible(text[encoding.offsets[start][0] : encoding.offsets[stop - 1][1]])
        labels[start] = word or str(encoding.tokens[start])
    return tuple(labels)


def _visible(piece: str) -> str:
    """A piece of a text without white space around it; white space alone as a sign, control characters as escapes."""
    return printable(piece.strip() or _SPACES.get(piece[:1], piece[:1]))


def _begins(encoding: Any, text: str, start: int, k: int) -> bool:
    """Whether a space precedes token ``k`` in the word that began at ``start``: the tokenizers of Llama and Gemma
    report a whole text as one word."""
    begin, end = encoding.offsets[k]
    return text[begin:end][:1].isspace() and bool(text[encoding.offsets[start][0] : begin].strip())


def sentences(words: Sequence[str]) -> list[int]:
    """Number the sentences of a text: the features of ``fringe.explain(..., feature_mask=sentences)``.

    Args:
        words: The words of a text (W).

    Returns:
        The number of the sentence of each word; a sentence ends at a full stop, question or exclamation mark, or at the
        end of a line.
    """
    ends = [word.rstrip("\"')]")[-1:] in (*".!?", "⏎") for word in words]
    return list(itertools.accumulate(ends[:-1], initial=0))[: len(words)]


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
