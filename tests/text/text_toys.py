"""Sentences whose polarity is known word by word, a tokenizer of their words, and a small network that learnt them."""

import random
from functools import cache

import torch

from fringe.models import import_transformers

GOOD = [
    "great",
    "wonderful",
    "superb",
    "brilliant",
    "delightful",
    "excellent",
    "charming",
    "moving",
    "funny",
    "masterful",
]
BAD = ["awful", "terrible", "dull", "boring", "dreadful", "poor", "clumsy", "tedious", "bland", "lifeless"]
THINGS = [
    "film",
    "story",
    "plot",
    "acting",
    "script",
    "music",
    "ending",
    "cast",
    "camera",
    "dialogue",
    "scene",
    "director",
]
OTHERS = [
    "the",
    "a",
    "was",
    "is",
    "and",
    "this",
    "that",
    "of",
    "with",
    "in",
    "quite",
    "really",
    "very",
    "rather",
    "we",
    "saw",
    "last",
    "night",
    "at",
    "cinema",
]
#: Words that the tokenizer takes apart.
PIECES = {"masterful": ("master", "##ful"), "lifeless": ("life", "##less"), "wonderful": ("wonder", "##ful")}
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
CLASSES = ("negative", "positive")


def sentence(rng: random.Random, label: int) -> str:
    """Five to fourteen words of no polarity, one to three of that of the label, sometimes one of the other."""
    words = [rng.choice(OTHERS if rng.random() < 0.6 else THINGS) for _ in range(rng.randint(5, 14))]
    count = rng.randint(1, 3)
    for _ in range(count):
        words.insert(rng.randint(0, len(words)), rng.choice(GOOD if label else BAD))
    if count == 3 and rng.random() < 0.5:
        words.insert(rng.randint(0, len(words)), rng.choice(BAD if label else GOOD))
    return " ".join(words)


def sentences(count: int, seed: int) -> tuple[list[str], torch.Tensor]:
    rng = random.Random(seed)
    labels = [int(rng.random() < 0.5) for _ in range(count)]
    return [sentence(rng, label) for label in labels], torch.tensor(labels)


@cache
def make_tokenizer():
    """A WordPiece tokenizer of these words; three of them are made of two pieces."""
    transformers = import_transformers()
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    whole = [word for word in (*GOOD, *BAD, *THINGS, *OTHERS, ".", ",", "!") if word not in PIECES]
    pieces = dict.fromkeys(piece for parts in PIECES.values() for piece in parts)
    vocabulary = {word: k for k, word in enumerate((*SPECIAL, *whole, *pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    )


def make_model(seed: int = 0):
    """A transformer of two layers with random weights."""
    transformers = import_transformers()
    names = {"id2label": dict(enumerate(CLASSES)), "label2id": {name: k for k, name in enumerate(CLASSES)}}
    sizes = {"vocab_size": len(make_tokenizer()), "max_position_embeddings": 64, "num_labels": 2, "pad_token_id": 0}
    sizes |= {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = transformers.BertConfig(**sizes, **names)
        return transformers.BertForSequenceClassification(config).eval()


@cache
def trained_model(seed: int = 0, steps: int = 100, batch: int = 64):
    """The network after some seconds of training."""
    model, tokenizer = make_model(seed), make_tokenizer()
    texts, labels = sentences(steps * batch, seed)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model.train()
        for i in range(0, len(texts), batch):
            rows = tokenizer(texts[i : i + batch], padding=True, return_tensors="pt")
            loss = model(
                input_ids=rows["input_ids"], attention_mask=rows["attention_mask"], labels=labels[i : i + batch]
            ).loss
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return model.eval().requires_grad_(False)
