"""Similarities of texts and images: closed forms, completeness, and towers of transformers and open_clip."""

import re

import pytest
import torch
from text_toys import make_tokenizer
from torch import nn
from torch.nn.functional import cosine_similarity

import fringe
from fringe.errors import InputError
from fringe.models import import_transformers
from fringe.page import page_document
from fringe.text import TextClassifier

TEXTS = ["the film was great", "a dull plot and a clumsy ending"]
OTHERS = ["a superb story", "the music was awful", "we saw a great cast"]


@pytest.fixture(scope="module")
def encoder():
    transformers = import_transformers()
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.BertModel(transformers.BertConfig(vocab_size=len(make_tokenizer()), **sizes)).eval()


def embedding(encoder, text):
    read = make_tokenizer()([text], return_tensors="pt")
    return encoder(**read).last_hidden_state.mean(1)


def test_logits_are_scaled_cosines_of_mean_states_and_a_batch_equals_single_texts(encoder):
    reader = TextClassifier(
        fringe.Similarity(encoder, OTHERS, tokenizer=make_tokenizer(), scale=20.0), make_tokenizer()
    )
    result = fringe.explain(reader, TEXTS, method="ig", probe=False, target="top3")
    for row, text in enumerate(TEXTS):
        rows = torch.cat([embedding(encoder, other) for other in OTHERS])
        logits = 20.0 * cosine_similarity(embedding(encoder, text), rows)
        torch.testing.assert_close(result.context.probabilities[row], logits.softmax(0), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(result.score[row], logits[result.target[row]], rtol=1e-4, atol=1e-4)
    assert result.labels(0)[0] in OTHERS
    assert float(result.completeness_residual.max()) < 0.05
    walked = fringe.explain(reader, TEXTS[0], method="fringe", probe=False)
    assert float(walked.diagnostics["endpoint_kl"].max()) < 0.1  # nats: towards prompts that are equally similar


def test_a_single_other_has_the_similarity_itself_as_its_score(encoder, tmp_path):
    net = fringe.Similarity(encoder, OTHERS[0], tokenizer=make_tokenizer())
    result = fringe.explain(net, TEXTS, tokenizer=make_tokenizer(), method="ig", target=0, probe=False)
    expected = [float(cosine_similarity(embedding(encoder, t), embedding(encoder, OTHERS[0]))) for t in TEXTS]
    assert result.score.tolist() == pytest.approx(expected, abs=1e-5)
    assert result.context.class_names == (OTHERS[0], "unrelated")
    gaps = result.values.flatten(1).double().sum(1) - (result.score - result.endpoint_score).double()
    assert gaps.abs().max() < 0.02
    # the softmax of a cosine and of zero is no probability
    assert result.context.probabilities.isnan().all()
    assert result.context.unit == "cosine"
    assert "%" not in repr(result).partition(OTHERS[0])[2].partition(",")[0]
    fringe.write_page(result, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert re.search(rf'gives it a score of\s*<strong id="chance">{expected[0]:.3f} \(cosine\)</strong>', page)
    scaled = fringe.Similarity(encoder, OTHERS, tokenizer=make_tokenizer(), scale=20.0)
    several = fringe.explain(scaled, TEXTS[0], tokenizer=make_tokenizer(), method="ig", probe=False)
    assert several.context.unit == "cosine × 20"
    assert several.context.probabilities.isfinite().all()


def test_images_are_compared_with_images_in_closed_form(tmp_path):
    """A linear tower: the gradient of the cosine is (o - cos * u) W / |e|."""
    generator = torch.Generator().manual_seed(0)
    tower = nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False)).double()
    with torch.no_grad():
        tower[1].weight.copy_(torch.randn(5, 12, generator=generator, dtype=torch.float64))
    x, other = torch.randn(2, 2, 3, 2, 2, generator=generator, dtype=torch.float64)
    net = fringe.Similarity(tower, other)
    _, gradient = fringe.Classifier(net).score_gradient(x, torch.zeros(2, dtype=torch.long))
    e, o = tower(x), nn.functional.normalize(tower(other), dim=1)[0]
    u = nn.functional.normalize(e, dim=1)
    cosine = u @ o
    expected = (o - cosine[:, None] * u) @ tower[1].weight / e.norm(dim=1, keepdim=True)
    torch.testing.assert_close(net(x)[:, 0], cosine)
    torch.testing.assert_close(gradient.flatten(1), expected.detach(), rtol=1e-6, atol=1e-9)
    single = fringe.Similarity(tower, other[:1])  # its page has no probabilities
    result = fringe.explain(single, x, method="ig", target=0, probe=False, baseline=-x)
    document = page_document(result, 1)
    assert document["classes"][0]["probability"] is None
    assert document["classes"][0]["score"] == pytest.approx(float(cosine[1]), abs=1e-6)
    assert {p for one in document["snapshots"] for p in one["probabilities"]} == {None}
    page = fringe.write_page(result, tmp_path / "page.html", row=1).read_text(encoding="utf-8")
    assert re.search(rf'a score of\s*<strong id="chance">{float(cosine[1]):.3f}</strong>', page.replace("−", "-"))


def test_towers_of_clip_have_its_own_scale():
    transformers = import_transformers()
    tower = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    text = {**tower, "vocab_size": len(make_tokenizer()), "max_position_embeddings": 64, "eos_token_id": 3}
    images = {**tower, "image_size": 16, "patch_size": 8}
    config = transformers.CLIPConfig(text_config=text, vision_config=images, projection_dim=16)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        clip = transformers.CLIPModel(config).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    net = fringe.Similarity(clip, OTHERS, tokenizer=make_tokenizer())
    read = make_tokenizer()(OTHERS, padding=True, return_tensors="pt")
    expected = clip(pixel_values=x, input_ids=read["input_ids"], attention_mask=read["attention_mask"])
    torch.testing.assert_close(net(x), expected.logits_per_image, rtol=1e-4, atol=1e-4)
    result = fringe.explain(net, x, method="ig", probe=False)
    assert result.labels(0)[0] in OTHERS

    class Open(nn.Module):  # the interface of open_clip
        logit_scale = torch.tensor(1.0)

        def encode_image(self, x):
            return clip.get_image_features(pixel_values=x).pooler_output

        def encode_text(self, tokens):
            return clip.get_text_features(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).pooler_output

    def tokenize(texts):
        return make_tokenizer()(texts, padding=True, return_tensors="pt")

    same = fringe.Similarity(Open(), OTHERS, tokenizer=tokenize)
    torch.testing.assert_close(same(x) / torch.e, net(x) / float(clip.logit_scale.exp()), rtol=1e-4, atol=1e-5)


def test_what_has_no_similarity_is_refused(encoder):
    with pytest.raises(InputError, match="tokenizer: got texts without it"):
        fringe.Similarity(encoder, "a text")
    with pytest.raises(InputError, match="5 numbers, and those of the others 4"):
        fringe.Similarity(lambda x: x, torch.ones(1, 4))(torch.ones(1, 5))


@pytest.mark.parametrize(
    ("other", "settings", "message"),
    [
        ([], {}, "other: got 'none'"),
        (3, {}, "other: got 'int'"),
        (None, {}, "other: got 'NoneType'"),
        (["a", 3], {}, "other: got 'texts and others'"),
        (torch.ones(32), {}, r"other: got \(32,\)"),
        (torch.zeros(2, 32), {}, "other: got 'an embedding of zeros or NaN'"),
        (OTHERS, {"scale": 0.0}, "scale: got 0.0"),
        (OTHERS, {"scale": "a"}, "scale: got 'a'"),
        (OTHERS, {"tokenizer": None}, "tokenizer: got texts without it"),
    ],
)
def test_others_that_are_none_are_refused_by_name(encoder, other, settings, message):
    with pytest.raises(InputError, match=message):
        fringe.Similarity(encoder, other, **{"tokenizer": make_tokenizer(), **settings})


def test_a_model_that_reads_no_texts_is_refused():
    for model, message in [("hf:minilm", "model: got 'str'"), (nn.Flatten(), "model: Flatten gives no hidden states")]:
        with pytest.raises(InputError, match=message):
            fringe.Similarity(model, OTHERS, tokenizer=make_tokenizer())
