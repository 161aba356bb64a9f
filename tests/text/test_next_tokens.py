"""The next tokens of language models: classes, rows, answers, words, and maps against single calls and Captum."""

import contextlib
import functools
import warnings

import pytest
import torch
from captum.attr import LayerIntegratedGradients
from language_toys import language_model, language_tokenizer

import fringe
from fringe._network.isolation import restored
from fringe.attribution import CaptumMethod
from fringe.errors import InputError, ModelError
from fringe.page import write_page
from fringe.text import REST, NextToken, _visible, merge_words, sentences

PROMPT = "the capital of france is"
PROMPTS = [PROMPT, "a cat saw a dog in new york , and the dog saw"]


@pytest.fixture(scope="module", params=["Llama", "GPT2"])
def model(request):
    return language_model(request.param)


@pytest.fixture(scope="module")
def tokenizer():
    return language_tokenizer()


def literal(model, tokenizer, text: str) -> torch.Tensor:
    """The log-probabilities of the token after a text."""
    ids = tokenizer(text, return_tensors="pt").input_ids
    return model(input_ids=ids).logits[0, -1].log_softmax(-1)


def explain(model, tokenizer, texts, **options):
    return fringe.explain(model, texts, tokenizer=tokenizer, **{"method": "ig", "probe": False, **options})


def test_probabilities_are_the_models_and_all_others_are_one_class(model, tokenizer):
    result = explain(model, tokenizer, PROMPTS)
    for row, text in enumerate(PROMPTS):
        expected = literal(model, tokenizer, text).exp()
        best = expected.topk(10)
        found = result.context.probabilities[row]
        torch.testing.assert_close(found[:10], best.values, rtol=2e-4, atol=1e-6)
        assert float(found[10]) == pytest.approx(1 - float(best.values.sum()), abs=1e-5)
        assert result.context.classes[row][10] == REST
        assert int(result.target[row]) == 0
        assert float(result.score[row]) == pytest.approx(float(expected.log().max()), abs=1e-4)


def test_the_rows_of_an_answer_are_its_tokens_with_all_before(model, tokenizer):
    answer = " paris and a dog"
    result = explain(model, tokenizer, PROMPT, target=answer)
    tokens = tokenizer(answer).input_ids
    before = tokenizer(PROMPT).input_ids
    assert len(result) == len(tokens) > 4
    for row, token in enumerate(tokens):
        logits = model(input_ids=torch.tensor([before + tokens[:row]])).logits[0, -1]
        assert float(result.score[row]) == pytest.approx(float(logits.log_softmax(-1)[token]), abs=2e-4)
    assert result.context.ids[1] == "text-0#2"
    assert result.context.prompts == ("text-0",) * len(tokens)
    words = [label for label in result.context.features[-1] if label]
    assert words[:5] == PROMPT.split()
    assert words[5:7] == ["paris", "and"]
    names = [result.labels(row)[0] for row in range(len(result))]
    assert "".join(names[:2]).startswith("par")


def test_a_space_comes_before_an_answer_where_the_model_expects_one(model, tokenizer):
    expected = literal(model, tokenizer, PROMPT)
    known = [tokenizer(PROMPT + more).input_ids[len(tokenizer(PROMPT).input_ids)] for more in ("paris", " paris")]
    assert known[0] != known[1]
    result = explain(model, tokenizer, PROMPT, target="paris")
    assert float(result.score[0]) == pytest.approx(float(expected[known].max()), abs=2e-4)


def test_an_answer_of_its_own_is_the_most_probable_token_again_and_again(model, tokenizer):
    result = explain(model, tokenizer, PROMPT, generate=3)
    ids = tokenizer(PROMPT).input_ids
    for row in range(len(result)):
        best = int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        assert int(result.target[row]) == 0
        ids = [*ids, best]
    expected = model.get_input_embeddings()(torch.tensor(ids[:-1]))
    assert torch.equal(result.context.inputs[-1][: len(expected)], expected)
    model.generation_config.eos_token_id = ids[-3]
    try:
        assert len(explain(model, tokenizer, PROMPT, generate=3)) == ids[len(ids) - 3 :].index(ids[-3]) + 1
    finally:
        model.generation_config.eos_token_id = 0


def test_a_contrast_is_explained_at_the_first_token_that_differs(model, tokenizer):
    result = explain(model, tokenizer, PROMPT, target=" new york", contrast=" new paris")
    york, paris = (tokenizer(f" new {name}").input_ids for name in ("york", "paris"))
    at = next(k for k, (a, b) in enumerate(zip(york, paris, strict=False)) if a != b)
    ids = tokenizer(PROMPT).input_ids + york[:at]
    logits = model(input_ids=torch.tensor([ids])).logits[0, -1]
    assert float(result.score[0]) == pytest.approx(float(logits[york[at]] - logits[paris[at]]), abs=1e-3)
    assert len(result) == 1
    assert ", not " in result.labels(0)[0]
    assert int(result.target[0]) != int(result.contrast[0]) < 10
    with pytest.raises(InputError, match="begins as the answer itself"):
        explain(model, tokenizer, PROMPT, target=" new york", contrast=" new")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("method", ["ig", "captum:occlusion", "smoothgrad"])
def test_a_batch_equals_single_calls_with_either_padding(model, tokenizer, side, method):
    tokenizer.padding_side = side
    try:
        together = explain(model, tokenizer, PROMPTS, method=method, generate=2)
        for i, text in enumerate(PROMPTS):
            alone = explain(model, tokenizer, text, method=method, generate=2)
            length = alone.values.shape[1]
            rows = together.values[2 * i : 2 * i + 2]
            torch.testing.assert_close(rows[:, :length], alone.values, rtol=1e-3, atol=1e-4)
            assert rows[:, length:].abs().sum() == 0
            assert together.context.classes[2 * i : 2 * i + 2] == alone.context.classes
    finally:
        tokenizer.padding_side = "right"


def test_integrated_gradients_are_those_of_captum_on_the_embeddings(model, tokenizer):
    result = explain(model, tokenizer, PROMPT, method=fringe.IntegratedGradients(steps=20), baseline=0.0, score="logit")
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids

    def score(ids):
        return model(input_ids=ids).logits[:, -1]

    layer = LayerIntegratedGradients(score, model.get_input_embeddings())
    table = model.get_input_embeddings().weight
    before = table[0].clone()
    with torch.no_grad():
        table[0] = 0.0  # the token that the layer's baseline has
    try:
        best = int(score(ids).argmax())
        expected = layer.attribute(
            ids, torch.zeros_like(ids), target=best, n_steps=20, method="riemann_middle", internal_batch_size=4
        )
    finally:
        with torch.no_grad():
            table[0] = before
    torch.testing.assert_close(result.values, expected.to(result.values), rtol=2e-3, atol=2e-4)


class Sums(torch.nn.Module):
    """A model without attention: the logits are linear in the sum of the embeddings up to a token."""

    def __init__(self, size: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = torch.nn.Embedding(size, 8)
        self.head = torch.nn.Linear(8, size)
        with torch.no_grad():
            for weight in self.parameters():
                weight.copy_(torch.randn(weight.shape, generator=generator))

    def get_input_embeddings(self):
        return self.table

    def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None):
        x = self.table(input_ids) if inputs_embeds is None else inputs_embeds
        from types import SimpleNamespace

        return SimpleNamespace(logits=self.head((x * attention_mask[..., None]).cumsum(1)))


def test_a_linear_model_in_closed_form(tokenizer):
    net = Sums(len(tokenizer)).eval()
    reader = NextToken(net, tokenizer, candidates=4)
    ids = tokenizer(PROMPT).input_ids
    x, comma = net.table.weight[ids].detach(), net.table.weight[tokenizer(",").input_ids[0]].detach()
    best = int(net.head(x.sum(0)).argmax())
    change = (x - comma) @ net.head.weight[best].detach()  # of each token that becomes a comma
    for method in ("ig", None):
        result = fringe.explain(reader, PROMPT, method=method, score="logit", probe=True)
        words, values = merge_words(result.context.features[0], result.values[0])
        _, expected = merge_words(result.context.features[0], change)
        assert words == tuple(PROMPT.split())
        torch.testing.assert_close(values, expected.to(values), rtol=1e-4, atol=1e-4)
        assert float(result.agreement) == pytest.approx(1.0, abs=1e-6)
    mask = {"feature_mask": lambda words: [0] * 4 + [1] * (len(words) - 4), "score": "logit"}
    parts = fringe.explain(reader, f"{PROMPT}. a cat", **mask)
    _, values = merge_words(parts.context.features[0], parts.values[0])
    gone = reader(parts.context.inputs, **reader.encode([f"{PROMPT}. a cat"]).arguments)
    x = parts.context.inputs.clone()
    labels = parts.context.features[0]
    first = torch.tensor([bool(label) for label in labels]).cumsum(0) <= 4
    x[0, first] = comma
    row = net.head(x.sum(1))[0]
    best = int(net.head(parts.context.inputs.sum(1)).argmax())
    drop = (gone[0, 0] - row[best]).detach()
    assert float(values[:4].sum()) == pytest.approx(float(drop), rel=1e-4)
    with pytest.raises(InputError, match="a number for each word"):
        fringe.explain(reader, PROMPT, feature_mask=lambda words: [0])


def test_shapley_values_of_words_of_an_additive_and_of_an_and_score(tokenizer):
    """Additive: each word has its own change. AND of two words: a half for each of the two, 0 for all others."""
    net = Sums(len(tokenizer)).eval()
    reader = NextToken(net, tokenizer, candidates=4)
    x = net.table.weight[tokenizer(PROMPT).input_ids].detach()
    comma = net.table.weight[tokenizer(",").input_ids[0]].detach()
    change = (x - comma) @ net.head.weight[int(net.head(x.sum(0)).argmax())].detach()
    options = {"method": "captum:kernel_shap", "score": "logit", "probe": False}
    alone = fringe.explain(reader, PROMPT, **options)
    _, values = merge_words(alone.context.features[0], alone.values[0])
    _, expected = merge_words(alone.context.features[0], change)
    torch.testing.assert_close(values, expected.to(values), rtol=1e-4, atol=1e-3)
    longer = fringe.explain(reader, [PROMPT, f"{PROMPT} a cat saw"], **options)  # padding is no player
    torch.testing.assert_close(longer.values[0, : len(x)], alone.values[0], rtol=1e-4, atol=1e-4)
    assert longer.values[0, len(x) :].abs().max() == 0
    parts = fringe.explain(reader, PROMPT, **options, feature_mask=lambda words: [0, 0, 0, 1, 1])
    _, values = merge_words(parts.context.features[0], parts.values[0])
    torch.testing.assert_close(values, torch.stack([expected[:3].sum(), expected[3:].sum()]), rtol=1e-4, atol=1e-3)

    class Both(torch.nn.Module):
        """Twice the product of the second and the last of three words."""

        def token_length(self):
            return 1.0

        def forward(self, x):
            return torch.stack([2 * x[:, 1].mean(1) * x[:, 2].mean(1), torch.zeros(len(x))], 1)

    samples = 4000
    method = CaptumMethod("kernel_shap", samples=samples)
    found = fringe.attribute(Both().eval(), torch.ones(1, 3, 5), method=method, baseline=0.0, target=0)
    spread = samples**-0.5  # of the number of draws of a coalition over their number
    torch.testing.assert_close(found.values.sum(2), torch.tensor([[0.0, 1.0, 1.0]]), rtol=0, atol=8 * spread)


def test_chats_have_the_models_template_and_special_tokens_are_fixed(model, tokenizer):
    chat = [{"role": "user", "content": "new york"}]
    result = explain(model, tokenizer, chat, method="captum:occlusion", probe=True)
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    best = literal(model, tokenizer, text)
    assert float(result.context.probabilities[0, 0]) == pytest.approx(float(best.max().exp()), rel=1e-3)
    words, values = merge_words(result.context.features[0], result.values[0])
    assert words == ("<|turn|>", "user", "⏎", "new", "york", "<|end|>", "⏎", "<|turn|>", "assistant", "⏎")
    assert [word for word, value in zip(words, values, strict=True) if value == 0] == [
        "<|turn|>",
        "<|end|>",
        "<|turn|>",
    ]
    free = explain(model, tokenizer, chat, special="free")
    assert merge_words(free.context.features[0], free.values[0])[1].abs().min() > 0
    begin = explain(model, language_tokenizer(begin=True), PROMPT)
    assert begin.context.features[0][0] == "<|end|>"
    assert begin.values[0, 0].abs().sum() == 0


def test_several_candidates_of_one_token(model, tokenizer):
    result = explain(model, tokenizer, PROMPTS, target="top3")
    assert result.target.tolist() == [[0, 1, 2]] * 2
    single = explain(model, tokenizer, PROMPT, target="predicted")
    torch.testing.assert_close(result.values[0, 0, : single.values.shape[1]], single.values[0], rtol=1e-3, atol=1e-4)


def test_long_texts_have_the_same_derivatives_by_fused_attention(monkeypatch, tokenizer):
    net = language_model()
    plain = explain(net, tokenizer, PROMPT)
    reader = NextToken(net, tokenizer)
    encoded = reader.encode([PROMPT])

    def forward(x):
        return reader(x, **encoded.arguments)

    tangent = torch.randn(encoded.embeddings.shape, generator=torch.Generator().manual_seed(0))
    expected = torch.func.jvp(forward, (encoded.embeddings,), (tangent,))
    kernels, layer = [], net.model.layers[0]
    own = layer.forward = functools.partial(layer.forward)  # as hooks of accelerate do
    monkeypatch.setattr("fringe.text.LONG", 2)
    fused = explain(net, tokenizer, PROMPT)
    torch.testing.assert_close(fused.values, plain.values, rtol=1e-3, atol=1e-4)
    assert [vars(m)["forward"] for m in net.modules() if "forward" in vars(m)] == [own]  # without the checkpoints
    found = torch.func.jvp(forward, (encoded.embeddings,), (tangent,))  # fused attention has no such rule
    torch.testing.assert_close(found, expected)
    monkeypatch.setattr("fringe.text.sdpa_kernel", lambda backend: kernels.append(backend) or torch.enable_grad())
    forward(encoded.embeddings)
    assert kernels == []  # fused
    monkeypatch.setattr("fringe.text.LONG", 512)
    forward(encoded.embeddings)
    assert len(kernels) == 1


@pytest.mark.thorough
def test_fringe_walks_towards_candidates_that_are_equally_probable(tokenizer):
    net = language_model()
    walked = explain(net, tokenizer, PROMPT, method=fringe.FRInGe(max_steps=3))
    assert float(walked.completeness_residual) < 0.05
    assert float(walked.diagnostics["endpoint_entropy"]) > float(walked.diagnostics["entropy"])


@pytest.mark.thorough
def test_maps_of_a_prompt_are_those_of_inseq(tokenizer):
    inseq = pytest.importorskip("inseq", exc_type=ImportError)
    net, steps, answer = language_model(), 100, " and"
    theirs = inseq.load_model(net, "integrated_gradients", tokenizer=tokenizer)
    out = theirs.attribute(PROMPT, PROMPT + answer, attributed_fn="logit", n_steps=steps, show_progress=False)
    values = out.sequence_attributions[0].target_attributions[:-1, 0]
    baseline = net.get_input_embeddings().weight[tokenizer.pad_token_id].detach()  # theirs
    options = {"target": answer, "score": "logit", "baseline": baseline[None, None]}
    ours = explain(net, tokenizer, PROMPT, method=fringe.IntegratedGradients(steps=steps), **options).values[0]
    torch.testing.assert_close(ours, values, rtol=0, atol=2e-4 * float(values.abs().max()))  # another rule of points


@pytest.mark.thorough
def test_maps_of_a_prompt_are_those_of_lxt(tokenizer):
    pytest.importorskip("lxt", exc_type=ImportError)
    modeling = pytest.importorskip("transformers.models.llama.modeling_llama", exc_type=ImportError)
    lxt = pytest.importorskip("lxt.efficient", exc_type=ImportError)
    net = language_model()
    ours = explain(net, tokenizer, PROMPT, method="lxt:attnlrp", score="logit").values[0]
    x = net.get_input_embeddings()(torch.tensor([tokenizer(PROMPT).input_ids])).detach().requires_grad_(True)
    with contextlib.ExitStack() as stack:
        for target in (modeling, *lxt.models.DEFAULT_MAP[modeling]):
            stack.enter_context(restored(target))
        lxt.monkey_patch(modeling)
        net(inputs_embeds=x).logits[0, -1].max().backward()
    torch.testing.assert_close(ours, (x * x.grad)[0].detach(), rtol=1e-4, atol=1e-5)


def test_a_walk_of_many_passes_is_announced(model, tokenizer, monkeypatch):
    monkeypatch.setattr("fringe.explanations._call.attribute", lambda *_, **__: pytest.skip("reached"))
    message = r"fringe takes up to 19,000 passes for each token of an answer; method='captum:occlusion' takes one"
    with pytest.warns(UserWarning, match=message), pytest.raises(pytest.skip.Exception):
        explain(model, tokenizer, PROMPT, method="fringe")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for few in (fringe.FRInGe(max_steps=3), "ig"):
            with pytest.raises(pytest.skip.Exception):
                explain(model, tokenizer, PROMPT, method=few)


def test_the_page_of_an_answer_has_its_words_and_tokens(model, tokenizer, tmp_path):
    result = explain(model, tokenizer, PROMPTS, generate=2, probe=True)
    text = write_page(result, tmp_path / "page.html", row=3).read_text()
    assert text.count('name="item"') == 2  # of the second prompt alone
    for word in PROMPTS[1].split():
        assert f"<span>{word}</span>" in text
    assert 'value="1" checked' in text
    assert text.count('"unit":" (nats)"') == 2
    with pytest.raises(InputError, match="got 4 for 4 inputs"):
        write_page(result, tmp_path / "page.html", row=4)


def test_the_page_of_candidates_calls_them_so(model, tokenizer, tmp_path):
    result = explain(model, tokenizer, PROMPTS[0], target="top3")
    text = write_page(result, tmp_path / "page.html").read_text()
    assert text.count('name="item"') == 3
    assert "Candidates for the next token: click one" in text
    assert "Token of the answer" not in text
    assert "Earlier tokens" not in text


def test_occlusion_is_not_compared_with_itself(model, tokenizer):
    for method in (None, "captum:occlusion"):
        result = fringe.explain(model, PROMPTS[0], tokenizer=tokenizer, method=method)
        assert result.agreement is None
    assert explain(model, tokenizer, PROMPTS[0], method="captum:occlusion", probe=True).agreement is not None


def test_a_sentence_has_one_value_and_that_is_its_loss(model, tokenizer):
    text = "a cat saw a dog . the dog saw a cat . the cat"
    result = explain(model, tokenizer, text, method="captum:occlusion", feature_mask=sentences, score="logit")
    words, values = merge_words(result.context.features[0], result.values[0])
    assert words[-3:] == ("a cat saw a dog.", "the dog saw a cat.", "the cat")
    encoded = NextToken(model, tokenizer).encode([text])
    reader = NextToken(model, tokenizer)
    removed = encoded.embeddings.clone()
    first = encoded.arguments["words"][0].ge(0).nonzero()[0, 0]
    removed[:, first : first + 6] = reader.neutral()
    with torch.no_grad():
        logits = [reader(x, **encoded.arguments)[0, result.target[0]] for x in (encoded.embeddings, removed)]
    assert float(values[-3]) == pytest.approx(float(logits[0] - logits[1]), abs=2e-4)
    alone = explain(model, tokenizer, text, feature_mask=sentences, probe=True)
    assert alone.context.features[0][-1] == "cat"  # IG has a value for each word


def test_control_characters_of_a_prompt_are_escapes():
    assert _visible(" a\x1b ") == "a\\x1b"


def test_sentences_are_numbered():
    words = ["One", "two.", "Three", "⏎", "four", '"five!"', "six"]
    assert sentences(words) == [0, 0, 1, 1, 2, 2, 3]
    assert sentences([]) == []


def test_what_cannot_be_explained_is_refused(model, tokenizer):
    for options, message in (
        ({"target": 3}, "target: got 3, expected a text"),
        ({"target": ["a", "b"]}, "one for each of 1"),
        ({"contrast": ""}, "contrast: got ''"),
        ({"generate": 0}, "generate: got 0"),
        ({"generate": 2, "target": "paris"}, "generate: got 2 with a target"),
        ({"candidates": 0}, "candidates: got 0"),
        ({"target": "top20"}, "target: got 'top20' of 10 candidates"),
        ({"target": "top0"}, "take top1"),
    ):
        with pytest.raises(InputError, match=message):
            explain(model, tokenizer, PROMPT, **options)
    with pytest.raises(InputError, match="leave out the space at the end"):
        explain(model, tokenizer, f"{PROMPT} ", target="paris")
    with pytest.raises(InputError, match="tokens, and the model takes 128"):
        explain(model, tokenizer, "one two three four " * 50)
    with pytest.raises(InputError, match="tokenizer"):
        fringe.explain(model, PROMPT)
    with pytest.raises(InputError, match="a message of a chat is"):
        explain(model, tokenizer, [{"content": "no role"}])


def test_a_model_whose_embeddings_are_not_its_tokens_is_refused(tokenizer):
    class Twice(Sums):
        def forward(self, input_ids=None, inputs_embeds=None, attention_mask=None):
            scaled = None if inputs_embeds is None else 2 * inputs_embeds
            return super().forward(input_ids, scaled, attention_mask)

    with pytest.raises(ModelError, match="differ by"):
        NextToken(Twice(len(tokenizer)).eval(), tokenizer).encode([PROMPT])


def test_a_language_model_by_its_folder(tmp_path, tokenizer, model):
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    by_name = fringe.explain(f"hf:{tmp_path}", PROMPT, probe=False)
    given = explain(model, tokenizer, PROMPT, method=None)
    torch.testing.assert_close(by_name.values, given.values, rtol=1e-4, atol=1e-5)
    assert by_name.settings["algorithm"] == "occlusion"
