"""Scenes of language models: prompts drawn at random, whose next token and the words that decide it are known."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from fringe.bench.scenes._base import Gate, Images
from fringe.bench.scenes._kinds import EMBEDDINGS, UNSEEN, VOCABULARY, Drawn, EmbeddedWords
from fringe.bench.scenes._training import predicted, share
from fringe.models import LoadedModel
from fringe.settings import Doc, PositiveInt

#: Words of a prompt: seven pairs of a key and its value, and the key that is asked for.
WORDS = 15
#: Tokens: the comma, which says nothing; a word with a meaning of its own; and all others, from ``FIRST`` on.
COMMA, SIGN, FIRST = 0, 1, 2
#: Where tokens from ``FIRST`` to below this one are keys, or adjectives (2 and 3, 4 and 5, ... are antonyms).
NAMED = 18


@dataclass(frozen=True)
class _Prompts(Drawn):
    """What these scenes share: a causal transformer, whose classes are the tokens, and a gate for each word."""

    has_words: ClassVar[bool] = True

    epochs: Annotated[PositiveInt, Doc("times that 6400 prompts are drawn")] = 6

    @abstractmethod
    def words(self, count: int, rng: torch.Generator, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Draw prompts (N, L), their next tokens (N,), and which words decide (N, L). With ``every`` some have nothing
        that decides, as the networks are trained with."""

    def draw(self, count: int, rng: torch.Generator, every: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        words, following, truth = self.words(count, rng, every)
        idle = (torch.rand(words.shape, generator=rng) < 0.1) & ~truth
        return EMBEDDINGS[words.masked_fill(idle, COMMA)], following, truth[..., None]

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return EMBEDDINGS[_others(len(x), rng)]

    def sample(self, count: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return self.draw(count, rng, every=True)[:2]

    def gates(self, network: LoadedModel, model: LoadedModel | None, images: Images) -> tuple[Gate, ...]:
        """Measure what all drawn scenes do, and the accuracy without each word of the truth by itself."""
        rng = torch.Generator().manual_seed(2**40)
        x, following, truth = self.draw(UNSEEN, rng)
        other, order = self.redrawn(x, rng), truth.cumsum(1) * truth
        right = [
            share((predicted(network, torch.where(one, other, x)) == following)[one.any(1).flatten()])
            for one in (order == k for k in range(1, int(order.max()) + 1))
        ]
        name = "largest accuracy with one word of the truth drawn anew"
        return (*super().gates(network, model, images), Gate(name, max(right), most=0.35))

    def build(self) -> nn.Module:
        return _CausalNet()


def _others(count: int, rng: torch.Generator, first: int = FIRST) -> Tensor:
    return torch.randint(first, VOCABULARY, (count, WORDS), generator=rng)


@dataclass(frozen=True)
class Copying(_Prompts):
    """A prompt with a marker: the next token repeats the word after it."""

    name: ClassVar[str] = "copying"
    title: ClassVar[str] = "Word after a marker"
    answer: ClassVar[str] = "the words are drawn at random, and the marker alone says which of them is next"

    def words(self, count: int, rng: torch.Generator, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        place = torch.randint(WORDS - 1, (count, 1), generator=rng)
        words = _others(count, rng).scatter(1, place, SIGN)
        after = torch.arange(WORDS) - place
        return words, words.gather(1, place + 1)[:, 0], (after == 0) | (after == 1)


@dataclass(frozen=True)
class Lookup(_Prompts):
    """A list of pairs of a key and its value, and one of the keys: the next token is its value."""

    name: ClassVar[str] = "lookup"
    title: ClassVar[str] = "Value of a key"
    answer: ClassVar[str] = "keys and values are drawn at random, and the last word says which of them is asked for"

    epochs: Annotated[PositiveInt, Doc("times that 6400 prompts are drawn")] = 20

    def words(self, count: int, rng: torch.Generator, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        words, pairs = _others(count, rng, NAMED), WORDS // 2
        keys = FIRST + torch.rand(count, NAMED - FIRST, generator=rng).argsort(1)[:, :pairs]
        pair = torch.randint(pairs, (count, 1), generator=rng)
        words[:, :-1:2], words[:, -1:] = keys, keys.gather(1, pair)
        place = torch.arange(WORDS)
        return words, words.gather(1, 2 * pair + 1)[:, 0], (place // 2 == pair) | (place == WORDS - 1)

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """Keys that the prompt does not have, other values, and another of its keys at the end."""
        words, other = torch.cdist(x, EMBEDDINGS).argmin(-1), _others(len(x), rng, NAMED)
        keys = words[:, :-1:2]
        order = torch.rand(len(x), VOCABULARY, generator=rng).scatter(1, keys, 2.0)[:, FIRST:NAMED].argsort(1)
        step = torch.randint(1, keys.shape[1], (len(x), 1), generator=rng)
        pair = (keys == words[:, -1:]).int().argmax(1, keepdim=True)
        other[:, :-1:2] = FIRST + order[:, : keys.shape[1]]
        other[:, -1:] = keys.gather(1, (pair + step) % keys.shape[1])
        return EMBEDDINGS[other]


@dataclass(frozen=True)
class Counting(_Prompts):
    """A prompt in which a word stands up to four times: the next token is the number."""

    name: ClassVar[str] = "counting"
    title: ClassVar[str] = "Number of a word"
    answer: ClassVar[str] = "the other words are drawn at random, whatever the number"

    def words(self, count: int, rng: torch.Generator, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        number = torch.randint(0 if every else 1, 5, (count, 1), generator=rng)
        counted = torch.rand(count, WORDS, generator=rng).argsort(1) < number
        return _others(count, rng).masked_fill(counted, SIGN), FIRST + number[:, 0], counted


@dataclass(frozen=True)
class Negation(_Prompts):
    """A prompt with an adjective: the next token repeats it, or is its antonym if the word before it is ``not``."""

    name: ClassVar[str] = "negation"
    title: ClassVar[str] = "Negation"
    answer: ClassVar[str] = "the other words are drawn at random, and a second not among them reverses nothing"

    epochs: Annotated[PositiveInt, Doc("times that 6400 prompts are drawn")] = 15

    def words(self, count: int, rng: torch.Generator, every: bool) -> tuple[Tensor, Tensor, Tensor]:
        place = torch.randint(1, WORDS, (count, 1), generator=rng)
        adjective = torch.randint(FIRST, NAMED, (count, 1), generator=rng)
        denied = torch.rand(count, 1, generator=rng) < (0.5 if every else 1.0)
        words, before = _others(count, rng, NAMED), torch.arange(WORDS) - place
        second = (torch.rand(count, WORDS, generator=rng).argmax(1, keepdim=True) == torch.arange(WORDS)) & (
            before != -1
        )
        words = words.masked_fill(second | ((before == -1) & denied), SIGN).scatter(1, place, adjective)
        return words, (adjective ^ denied)[:, 0], (before == 0) | ((before == -1) & denied)

    def redrawn(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return EMBEDDINGS[_others(len(x), rng, NAMED)]


class _CausalNet(EmbeddedWords):
    """Maps embeddings (N, L, D) of words to the logits (N, V) of the next: two layers of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        size = 32
        self.enter = nn.Linear(EMBEDDINGS.shape[1], size)
        self.place = nn.Parameter(0.3 * torch.randn(WORDS, size))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(size, 4, 2 * size, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Sequential(nn.LayerNorm(size), nn.Linear(size, VOCABULARY))

    def forward(self, x: Tensor) -> Tensor:
        future = torch.full((WORDS, WORDS), -torch.inf, dtype=x.dtype, device=x.device).triu(1)
        x = self.enter(x) + self.place
        for layer in self.layers:
            x = layer(x, future)
        return self.head(x[:, -1])
