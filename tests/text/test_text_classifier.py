"""Texts by their word embeddings: padding and special tokens, words, and a network whose reasons are known."""

import copy
import io
import warnings

import pytest
import torch
from text_toys import BAD, CLASSES, GOOD, make_model, make_tokenizer, sentences, trained_model
from torch import nn

import fringe
from fringe.text import TextClassifier, merge_words, token_labels

METHOD = fringe.FRInGe(structure="none")
TEXTS = [
    "the film was masterful",
    "a dull plot and a clumsy ending , the acting was rather poor",
    "we saw a great cast",
]


@pytest.fixture(scope="module")
def classifier():
    """Trained briefly: what most tests ask does not depend on how well it reads."""
    return TextClassifier(trained_model(steps=20), make_tokenizer())


@pytest.fixture(scope="module")
def reader():
    return TextClassifier(trained_model(), make_tokenizer())


def word_scores(result: fringe.Attribution, row: int) -> tuple[tuple[str, ...], torch.Tensor]:
    return merge_words(result.context.features[row], result.values[row])


@pytest.mark.thorough
def test_padding_and_special_tokens_have_no_attribution_and_never_move(reader):
    encoded = reader.encode(TEXTS)
    result = fringe.attribute(
        reader, encoded.embeddings, method=METHOD, forward_kwargs=encoded.arguments, telemetry=True
    )
    held = ~encoded.arguments["moves"]
    assert (held & ~encoded.arguments["attention_mask"].bool()).any()  # padding
    assert held[:, 0].all()  # [CLS]
    assert result.values[held].abs().max() == 0
    for i, path in enumerate(result.trajectory):
        assert torch.equal(
            path.snapshots[:, held[i]], encoded.embeddings[i][held[i]].expand(len(path.snapshots), -1, -1)
        )
        assert (path.snapshots[-1] - path.snapshots[0])[~held[i]].abs().amax(-1).min() > 0


@pytest.mark.thorough
def test_a_map_does_not_depend_on_the_padding(reader):
    together = fringe.explain(reader, TEXTS[:2])
    for i, text in enumerate(TEXTS[:2]):
        alone = fringe.explain(reader, text)
        length = alone.values.shape[1]
        assert torch.equal(together.values[i, :length], alone.values[0])
        assert together.values[i, length:].abs().sum() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["fringe:fast", "straight:fringe", "smoothgrad"])
def test_nor_does_that_of_long_steps_or_of_a_modifier_or_noise(reader, method):
    together, alone = (fringe.explain(reader, texts, method=method) for texts in (TEXTS[:2], TEXTS[:1]))
    assert torch.equal(together.values[:1, : alone.values.shape[1]], alone.values)
    assert alone.values.abs().max() > 0.01


def test_steps_of_a_text_are_a_quarter_of_a_token_long_and_towards_the_prediction_itself(classifier):
    length = classifier.token_length()
    for method, cap, temperature in (
        ("fringe", 0.25 * length, 1.0),
        ("fringe:fast", 0.375 * length, 1.0),
        (fringe.FRInGe(delta_euc=0.3, temperature=2.0), 0.3, 2.0),
    ):
        settings = fringe.explain(classifier, TEXTS[2], method=method).settings
        assert settings["structure"] == "none"
        assert settings["delta_euc"] == pytest.approx(cap, rel=1e-12)
        assert settings["temperature"] == temperature


@pytest.mark.thorough
def test_special_tokens_can_be_set_free():
    free = fringe.explain(trained_model(), TEXTS, tokenizer=make_tokenizer(), special="free")
    assert free.values[:, 0].abs().sum() > 0  # fixed, it has none: see above


def test_a_model_in_half_precision_is_explained_through_a_copy():
    model = make_model()
    with torch.no_grad():
        for weight in (p for p in model.parameters() if p.dim() == 2):
            weight *= 4.0  # logits whose rounding depends on the padding
    half = model.to(torch.bfloat16)
    result = fringe.explain(half, TEXTS, tokenizer=make_tokenizer(), method="ig")
    expected = fringe.explain(copy.deepcopy(half).float(), TEXTS, tokenizer=make_tokenizer(), method="ig")
    assert torch.equal(result.values, expected.values)
    assert half.dtype == torch.bfloat16


def test_words_are_the_sums_of_their_pieces(classifier):
    result = fringe.explain(classifier, TEXTS, method="ig")
    assert len(classifier.tokenizer.tokenize(TEXTS[0])) == 5  # master ##ful
    assert result.context.features[0][:6] == ("[CLS]", "the", "film", "was", "masterful", "")
    words, scores = word_scores(result, 0)
    assert words == ("[CLS]", "the", "film", "was", "masterful", "[SEP]")
    assert scores[4] == pytest.approx(float(result.values[0, 4:6].sum()), rel=1e-6)
    assert float(scores.sum()) == pytest.approx(float(result.values[0].sum()), rel=1e-5)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("the film", ("the", "film", "")),
        ("the  film the", ("the", "film", "", "", "the")),
        ("the\nfilm ", ("the", "film", "", "", "␣")),
    ],
)
def test_words_of_a_tokenizer_that_takes_a_text_as_one(text, labels):
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: k for k, token in enumerate(["▁the", "▁fi", "fi", "lm", "▁", "▁▁", "t", "h", "e", "\n"])}
    vocabulary |= {token: len(vocabulary) + k for k, token in enumerate(["f", "i", "l", "m", "th", "▁th", "<unk>"])}
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("f", "i"), ("l", "m"), ("▁", "fi"), ("▁", "▁")]
    llama = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    llama.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    encoding = llama.encode(text)
    assert set(encoding.word_ids) == {0}
    assert token_labels(encoding, text) == labels


def test_merged_words_by_hand():
    words, sums = merge_words(("a", "", "b", "", ""), torch.tensor([1.0, 2.0, 4.0, 8.0, 0.0]))
    assert words == ("a", "b")
    assert sums.tolist() == [3.0, 12.0]
    _, sums = merge_words(("a", "", "b"), torch.ones(2, 3, 5))
    assert sums.tolist() == [[10.0, 5.0]] * 2
    _, sums = merge_words(("a", "", "b"), torch.arange(9.0).view(3, 3))  # as many tokens as dimensions
    assert sums.tolist() == [15.0, 21.0]


@pytest.mark.thorough
def test_maps_of_texts_are_ok_and_arrive():
    texts, labels = sentences(24, 77)
    result = fringe.explain(trained_model(), texts, tokenizer=make_tokenizer())
    assert (result.context.probabilities.argmax(1) == labels).double().mean() >= 0.95
    arrived = result.diagnostics["endpoint_kl"] <= 0.05
    good = [verdict == "ok" and bool(a) for verdict, a in zip(result.verdict, arrived, strict=True)]
    assert sum(good) >= 0.95 * len(good)


@pytest.mark.thorough
def test_the_reasons_are_the_words_with_polarity():
    """Chance is the share of such words; the control draws its map at random.

    Mass: the share of |attribution| on them. Hits: how many of the strongest words, as many as there are, are among
    them.
    """
    texts, _ = sentences(30, 78)
    share = {}
    for name in ("fringe", "ig"):
        result = fringe.explain(trained_model(), texts, method=name, tokenizer=make_tokenizer(), telemetry=False)
        share[name] = measured([word_scores(result, i) for i in range(len(texts))])
    noise = torch.randn(result.values.shape, generator=torch.Generator().manual_seed(0))
    share["control"] = measured([merge_words(result.context.features[i], noise[i]) for i in range(len(texts))])
    for name in ("fringe", "ig"):
        assert share[name]["hits"] > 0.8
        assert share[name]["mass"] > 2.5 * share[name]["chance"], share
    assert share["fringe"]["mass"] > 0.9 * share["ig"]["mass"], share
    assert share["control"]["hits"] < 0.4, share
    assert abs(share["control"]["mass"] - share["control"]["chance"]) < 0.1, share


def measured(rows) -> dict[str, float]:
    mass, hits, chance = [], [], []
    for words, scores in rows:
        real = [k for k, word in enumerate(words) if not word.startswith("[")]
        strength = scores[real].abs()
        known = torch.tensor([words[k] in (*GOOD, *BAD) for k in real])
        count = int(known.sum())
        mass.append(float(strength[known].sum() / strength.sum()))
        hits.append(float(known[strength.topk(count).indices].double().mean()))
        chance.append(count / len(real))
    return {name: sum(v) / len(v) for name, v in (("mass", mass), ("hits", hits), ("chance", chance))}


def test_fused_attention_keeps_its_second_derivatives_and_the_model_is_given_back():
    model = make_model()
    assert model.config._attn_implementation == "sdpa"
    model.train()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*second derivatives.*")
        result = fringe.explain(model, TEXTS[:1], tokenizer=make_tokenizer(), method=fringe.FRInGe(steps=3))
    assert result.passes.jvp > 0
    assert model.config._attn_implementation == "sdpa"
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_model_by_its_folder(tmp_path):
    model = trained_model(steps=20)
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    result = fringe.explain(f"hf:{tmp_path}", ["a great film"], target="positive", method="ig")
    by_module = fringe.explain(model, ["a great film"], tokenizer=make_tokenizer(), target=1, method="ig")
    assert result.context.kind == "text"
    assert result.context.model == "BertForSequenceClassification"  # a result that is sent away holds no path
    assert result.context.class_names == CLASSES
    torch.testing.assert_close(result.values, by_module.values)
    assert result.plot().axes
    with pytest.raises(fringe.FringeError, match="could not load"):
        fringe.explain(f"hf:{tmp_path / 'absent'}", ["a great film"], kind="text")
    model.bert.save_pretrained(tmp_path)
    with pytest.raises(fringe.FringeError, match=r"lacks the weights classifier\.bias, classifier\.weight; name one"):
        fringe.explain(f"hf:{tmp_path}", ["a great film"], kind="text")


def test_class_names_by_text_are_in_the_order_of_their_numbers():
    model = make_model()
    model.classifier = nn.Linear(48, 12).eval()
    model.config.id2label = {str(k): f"class {k}" for k in range(12)}  # as read from JSON: "10" sorts before "2"
    result = fringe.explain(model, ["a great film"], tokenizer=make_tokenizer(), target="class 10", method="ig")
    assert result.context.class_names == tuple(f"class {k}" for k in range(12))
    assert result.target.tolist() == [10]


def test_a_result_shows_its_words(classifier):
    from rich.console import Console

    result = fringe.explain(classifier, ["a <b>great</b> film"], method="ig")
    html = result._repr_html_()
    assert ">great</span>" in html
    assert "<b>great" not in html
    assert "&lt;" in html
    output = io.StringIO()
    Console(file=output, width=200, force_terminal=True, color_system="truecolor").print(result)
    printed = output.getvalue()
    assert "method" in printed
    assert "great" in printed


def bart() -> nn.Module:
    from transformers import BartConfig, BartForSequenceClassification

    sizes = {
        f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads", "ffn_dim")
    }
    return BartForSequenceClassification(
        BartConfig(vocab_size=len(make_tokenizer()), d_model=8, eos_token_id=3, **sizes)
    )


def small(kind, **settings) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{kind}Config")(vocab_size=len(make_tokenizer()), **settings)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


def test_the_longest_text_is_the_models():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 10**30
    roberta = TextClassifier(small("Roberta", **sizes, max_position_embeddings=16, pad_token_id=1), tokenizer)
    assert roberta.encode(["film " * 12]).embeddings.shape[1] == 14  # its positions begin after those of padding
    with pytest.raises(fringe.InputError, match="has 15 tokens, and the model takes 14"):
        roberta.encode(["film " * 13])
    endless = TextClassifier(small("XLNet", d_model=8, n_layer=1, n_head=2, d_inner=8), tokenizer)
    assert endless.encode(["film " * 50]).embeddings.shape[1] == 52


class WithoutTypes(nn.Module):
    """A classifier that takes no ``token_type_ids``."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config = model, model.config
        self.eval()

    def get_input_embeddings(self):
        return self.model.get_input_embeddings()

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None):
        return self.model(input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds)


def test_types_of_tokens_go_only_to_a_model_that_takes_them():
    tokenizer, model = copy.deepcopy(make_tokenizer()), trained_model(steps=20)
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    assert "token_type_ids" in tokenizer(["a film"])
    taken, left_out = (TextClassifier(one, tokenizer).encode(["a great film"]) for one in (model, WithoutTypes(model)))
    assert "token_type_ids" in taken.arguments
    assert "token_type_ids" not in left_out.arguments


def test_a_decoder_without_a_padding_token_takes_the_points_of_a_path(tmp_path):
    gpt = small("GPT2", n_embd=8, n_layer=1, n_head=2, n_positions=16)
    gpt.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    result = fringe.explain(f"hf:{tmp_path}", "a great film", target=0, method="ig")
    tokens = make_tokenizer()(["a great film"], return_tensors="pt")
    torch.testing.assert_close(result.score.float(), gpt(**tokens).logits[:, 0].detach())
    with pytest.raises(fringe.FringeError, match=r"model: .* no padding token.* or set its config\.pad_token_id"):
        fringe.explain(gpt, "a great film", tokenizer=make_tokenizer(), method="ig")
    assert gpt.config.pad_token_id is None


def test_what_cannot_be_explained_is_refused(classifier, monkeypatch):
    model, tokenizer = trained_model(steps=20), make_tokenizer()
    with pytest.raises(fringe.InputError, match="inputs: the text '' has no words"):
        fringe.explain(classifier, ["a film", ""])
    with pytest.raises(fringe.InputError, match="has 102 tokens, and the model takes 64; shorten it"):
        fringe.explain(classifier, "film " * 100)
    with pytest.raises(fringe.InputError, match="tokenizer: got BertForSequenceClassification without its tokenizer"):
        fringe.explain(model, ["a film"], kind="text")
    with pytest.raises(fringe.FringeError, match=r"model: Passing input embeddings .* takes inputs_embeds"):
        fringe.explain(bart(), ["a film"], tokenizer=tokenizer)
    longformer = small("Longformer", hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    with pytest.raises(fringe.FringeError, match=r"model: zeros_like\(\).* choose a model that takes inputs_embeds"):
        fringe.explain(longformer, ["a film"], tokenizer=tokenizer)
    with pytest.raises(fringe.InputError, match="expected a fast tokenizer"):
        TextClassifier(model, str.split)
    with pytest.raises(fringe.InputError, match="has no get_input_embeddings"):
        TextClassifier(nn.Linear(2, 2), tokenizer)
    with pytest.raises(fringe.InputError, match="special: got 'loose'"):
        TextClassifier(model, tokenizer, "loose")
    with pytest.raises(fringe.InputError, match="expected a text or a list of texts"):
        fringe.explain(classifier, [3])
    monkeypatch.setattr(model.config, "problem_type", "multi_label_classification")  # other tests use this model
    with pytest.raises(fringe.FringeError, match="model: its configuration says multi_label_classification: a softmax"):
        TextClassifier(model, tokenizer)


class Averaging(nn.Module):
    """A classifier that averages over padding, too."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(100, 8), nn.Linear(8, 2, bias=False)

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **_):
        x = self.table(input_ids) if inputs_embeds is None else inputs_embeds
        return type("Output", (), {"logits": 10 * self.head(x.mean(1))})()


def test_a_model_that_reads_padding_is_refused():
    model = TextClassifier(Averaging().eval(), make_tokenizer())
    model.encode(["a film", "the plot"])
    with pytest.raises(fringe.FringeError, match=r"differ by .* from those of each text alone; explain texts of one"):
        model.encode(["a film", "the plot was quite dull"])
