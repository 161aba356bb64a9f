"""
A text
======

Which words made a classifier say *positive*? FRInGe changes the word embeddings of a sentence until both classes are
equally probable. Padding is left out, special tokens do not change, and the pieces of a word are summed.

A model from the hub needs one line, ``fringe.explain("hf:NAME", ["a great film"])``. This page works offline: it
trains a small BERT in a few seconds, on sentences in which we know the important words.
"""

import random

import torch

import fringe
from fringe.models import import_transformers

transformers = import_transformers()
from tokenizers import Tokenizer, models, pre_tokenizers, processors

# %%
# Sentences with known reasons
# ----------------------------
# A sentence is positive because of the words in ``GOOD``, and negative because of the words in ``BAD``. The other words
# do not depend on the label.

GOOD = ["great", "wonderful", "superb", "brilliant", "delightful", "excellent", "charming", "moving", "masterful"]
BAD = ["awful", "terrible", "dull", "boring", "dreadful", "poor", "clumsy", "tedious", "bland"]
OTHERS = [
    "the",
    "a",
    "was",
    "and",
    "but",
    "this",
    "of",
    "with",
    "quite",
    "really",
    "we",
    "saw",
    "film",
    "story",
    "plot",
]
OTHERS += ["acting", "script", "music", "ending", "cast", "scene", "director", "is", "in", "rather", "last", "night"]


def sentence(rng: random.Random, label: int) -> str:
    words = rng.choices(OTHERS, k=rng.randint(5, 12))
    for _ in range(rng.randint(1, 3)):
        words.insert(rng.randint(0, len(words)), rng.choice(GOOD if label else BAD))
    if rng.random() < 0.2:
        words.insert(0, rng.choice(BAD if label else GOOD))
        words += rng.choices(GOOD if label else BAD, k=2)
    return " ".join(words)


rng = random.Random(0)
labels = [rng.randint(0, 1) for _ in range(6400)]
texts = [sentence(rng, label) for label in labels]

# %%
# A tokenizer of these words, which splits *masterful* into two pieces, and a BERT with two layers:

special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
whole = [word for word in [*GOOD, *BAD, *OTHERS] if word != "masterful"]
vocabulary = {word: k for k, word in enumerate([*special, *whole, "master", "##ful"])}
pieces = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
pieces.post_processor = processors.TemplateProcessing(
    single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
)
names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=64, **names)

torch.manual_seed(0)
config = transformers.BertConfig(
    vocab_size=len(tokenizer),
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    max_position_embeddings=64,
    id2label={0: "negative", 1: "positive"},
    label2id={"negative": 0, "positive": 1},
)
model = transformers.BertForSequenceClassification(config)
optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
for i in range(0, len(texts), 64):
    rows = tokenizer(texts[i : i + 64], padding=True, return_tensors="pt")
    masked = {"input_ids": rows["input_ids"], "attention_mask": rows["attention_mask"]}
    loss = model(**masked, labels=torch.tensor(labels[i : i + 64])).loss
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()

# %%
# Explain
# -------
# A module needs its tokenizer. One call can have texts of different lengths.

new = [
    "the acting was dull but the story is moving and the music really superb",
    "this masterful film was quite charming",
    "a boring plot and a clumsy script",
]
result = fringe.explain(model, new, tokenizer=tokenizer)
result

# %%
# As a figure, one text at a time:

result[2].plot()

# %%
# The first text is positive, but its negative word *dull* is red, too. A path can make such a word stronger, and this
# lowers the logit of *positive*. The map counts every change that lowers the logit as evidence for the class.

result[0].plot()

# %%
# In a terminal, ``rich.print(result)`` shows the same colours.
#
# Is it right?
# ------------
# Here we know the answer. We measure how much of each map is on words of ``GOOD`` and ``BAD``. We compare this with
# Integrated Gradients, and with chance: the share of such words.

from fringe.text import merge_words


def share_on_known_words(result: fringe.Attribution) -> float:
    total = 0.0
    for labels_of_tokens, values in zip(result.context.features, result.values, strict=True):
        words, scores = merge_words(labels_of_tokens, values)
        known = torch.tensor([word in GOOD + BAD for word in words])
        total += float(scores[known].abs().sum() / scores.abs().sum())
    return total / len(result)


test = [sentence(rng, i % 2) for i in range(20)]
for method in ("fringe", "ig"):
    maps = fringe.explain(model, test, tokenizer=tokenizer, method=method, telemetry=False)
    print(
        f"{method:7} {share_on_known_words(maps):.0%} of the map on words with polarity; {maps.verdict.count('ok')} ok"
    )
chance = sum(sum(word in GOOD + BAD for word in text.split()) / len(text.split()) for text in test) / len(test)
print(f"chance  {chance:.0%}")
