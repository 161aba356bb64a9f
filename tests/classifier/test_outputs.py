"""Whatever a model returns, read as logits or refused with a message that helps."""

import warnings
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from classifier_toys import normal
from matplotlib.text import Text
from torch import nn

import fringe
from fringe import BinaryClassifier, Classifier, InputError, ModelOutputError, TargetError, attribute, explain
from fringe._network.outputs import as_logits
from fringe.errors import ModelError
from fringe.models import import_torchvision

LOGITS = normal(3, 5)
FEATURES = normal(3, 4, 6, 6)


class Inception(NamedTuple):
    logits: torch.Tensor
    aux_logits: torch.Tensor


READABLE = {
    "tensor": LOGITS,
    "tuple": (LOGITS, normal(3, 5, seed=1)),
    "tuple with features": (FEATURES, LOGITS),
    "list": [LOGITS],
    "named tuple": Inception(LOGITS, normal(3, 5, seed=1)),
    "dict with logits": {"loss": normal(3, 7), "logits": LOGITS},
    "dict of one matrix": {"features": FEATURES, "out": LOGITS, "count": 3, "labels": LOGITS.argmax(1)[:, None]},
    "object": SimpleNamespace(logits=LOGITS),
}


@pytest.mark.parametrize("name", READABLE)
def test_logits_are_found(name):
    assert torch.equal(as_logits(READABLE[name], 3, "auto"), LOGITS)
    assert torch.equal(Classifier(lambda x: READABLE[name]).logits(torch.zeros(3, 2)), LOGITS)


SEVERAL = {
    "exits": (
        (LOGITS, 2 * LOGITS),
        r"\[0\]: tensor \(3, 5\) .*, \[1\]: .*\), and \[0\] is .*output=lambda y: y\[0\]\)$",
    ),
    "members": ([LOGITS, -LOGITS, LOGITS], r".*, \[2\]: tensor \(3, 5\) .*and \[0\] is taken for the logits"),
    "features": ((FEATURES, LOGITS), r".*and \[1\] is taken for the logits.*output=lambda y: y\[1\]\)$"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_choice_among_several_tensors_is_said_once_in_a_session(name):
    output, message = SEVERAL[name]
    classifier, x = Classifier(lambda x: output), torch.zeros(3, 2)
    with classifier.session(x.device):
        with pytest.warns(UserWarning, match=rf"^the model returns several tensors \({message}") as seen:
            classifier.logits(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            classifier.logits(x)
    assert len(seen) == 1


@pytest.mark.filterwarnings("error")
def test_a_function_chooses_the_logits_of_what_a_model_returns():
    net, x = nn.Linear(2, 5).double().eval(), normal(3, 2)
    for output, choose in (
        ((LOGITS, 2 * LOGITS), lambda y: y[1]),
        ({"coarse": LOGITS, "fine": 2 * LOGITS}, lambda y: y["fine"]),
        ([FEATURES, (2 * LOGITS,)], lambda y: y[1]),
    ):
        assert torch.equal(Classifier(lambda x, y=output: y, output=choose).logits(torch.zeros(3, 2)), 2 * LOGITS)
    tails = Classifier(nn.Sequential(net, Both()).eval(), output=lambda y: y[1])
    result = attribute(tails, x, method="ig", target=2)
    torch.testing.assert_close(result.values, 2 * net.weight[2].detach() * x)
    other = tails.with_model(nn.Sequential(nn.Linear(2, 5).double(), Both()).eval())
    torch.testing.assert_close(other.logits(x), 2 * other.model[0](x).detach(), rtol=1e-13, atol=1e-14)
    with pytest.raises(ModelOutputError, match="look like probabilities"):
        Classifier(lambda x: (FEATURES, LOGITS.softmax(1)), output=lambda y: y[1]).logits(torch.zeros(3, 2))


class Both(nn.Module):
    def forward(self, y):
        return y, 2 * y


class Body(nn.Module):
    """Convolutions whose means are features, and a last layer."""

    def __init__(self, name, head, **stated):
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.name = name
        self.add_module(name, head)
        vars(self).update(stated)

    def forward(self, x):
        return getattr(self, self.name)(self.conv(x).mean((2, 3)))


OPEN = {
    "fc": (Body("fc", nn.Identity()), "its last layer 'fc' does nothing, so its outputs are features"),
    "classifier": (Body("classifier", nn.Sequential(nn.Dropout(), nn.Identity())), "its last layer 'classifier' does"),
    "timm": (Body("drop", nn.Dropout(), num_classes=0), "Body has no head, so its outputs are features"),
}


@pytest.mark.parametrize("name", OPEN)
def test_a_network_without_its_head_is_refused(name):
    body, message = OPEN[name]
    body, x = body.eval(), normal(2, 3, 6, 6, dtype=torch.float32)
    with pytest.raises(ModelError, match=rf"^model: {message}.*with its head.*score=.*output=lambda y: y\)$"):
        attribute(body, x, method="ig")
    assert Classifier(body, output=lambda y: y).logits(x).shape == (2, 5)  # somebody says that they are logits
    assert attribute(body, x, method="ig", score=lambda y: y[:, 0]).verdict == ("ok", "ok")
    for head in (nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 4), nn.Identity())):
        assert Classifier(Body("head", head).eval()).logits(x).dim() == 2


@pytest.mark.parametrize(
    "name", ["pooler_output", "image_embeds", "sentence_embedding", "features", "last_hidden_state"]
)
def test_features_are_never_taken_for_logits(name):
    message = f"its output has no logits, and {name} are features, no scores of classes.*{name}: tensor .*with its head"
    for output in ({name: LOGITS}, {name: LOGITS, "tokens": FEATURES}):
        with pytest.raises(ModelOutputError, match=message):
            as_logits(output, 3, "auto")
        assert torch.equal(
            Classifier(lambda x, y=output: y, output=lambda y: y[name]).logits(torch.zeros(3, 2)), LOGITS
        )


def test_bodies_of_transformers_are_refused():
    pytest.importorskip("transformers")
    import_torchvision("this test")
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    x = normal(2, 3, 8, 8, dtype=torch.float32)
    with pytest.raises(ModelError, match=r"^model: ViTModel has no head"):
        attribute(transformers.ViTModel(config).eval(), x, method="ig")
    assert attribute(transformers.ViTForImageClassification(config).eval(), x, method="ig").values.shape == x.shape


REFUSED = {
    "ambiguous dict": (
        {"coarse": normal(3, 7), "fine": LOGITS},
        r"\(coarse: tensor \(3, 7\) torch.float64, fine: ",
    ),
    "features and logits": (
        (normal(3, 7), LOGITS),
        r"\(\[0\]: tensor \(3, 7\) torch.float64, \[1\]: ",
    ),
    "dict of two heads": ({"a": LOGITS, "b": LOGITS}, r"cannot tell which part .* \(a: tensor \(3, 5\)"),
    "dict whose logits are no tensor": ({"logits": [1.0, 2.0]}, r"cannot tell which part .*\(logits: list\)"),
    "empty tuple": ((), r"cannot tell which part of its output holds the logits \(tuple\)"),
    "object without logits": (SimpleNamespace(scores=LOGITS), r"cannot tell .* \(SimpleNamespace\)"),
    "nothing": (None, r"cannot tell .* \(NoneType\)"),
    "4-D map": (normal(3, 5, 4, 4), r"shape \(3, 5, 4, 4\) for 3 .*fringe.Region\(model, mask\).*score="),
    "segmentation": ({"out": FEATURES}, r"out: tensor \(3, 4, 6, 6\) .*fringe.Region\(model, mask\).*score="),
    "a score for each sample of a series": (FEATURES[..., 0], r"\(3, 4, 6\) for 3 .*another number of each .*score="),
    "other batch": (normal(2, 5), r"shape \(2, 5\) for 3 images; expected logits \(3, C\)"),
    "no class": (normal(3, 0), r"shape \(3, 0\) for 3 images; expected logits \(3, C\)"),
    "one column": (
        normal(3, 1),
        r"shape \(3, 1\), one number .*, and no classes.*logit of 'yes' .*BinaryClassifier.*a quantity, as in "
        r"regression.*score=lambda y: y.flat",
    ),
    "one number an image": (normal(3), r"shape \(3,\), one number .*fringe.BinaryClassifier.*y.flatten\(\)\)$"),
    "argmax as floats": (torch.tensor([2.0, 0.0, 4.0]), r"number of a class \(argmax\), return the scores before it$"),
    "float16": (LOGITS.half(), r"dtype torch.float16; expected float32 or float64"),
    "bfloat16": (LOGITS.bfloat16(), r"dtype torch.bfloat16; .* pass a torch.nn.Module .*, wrap the callable"),
    "argmax": (LOGITS.argmax(1), r"dtype torch.int64; .* Integers have no gradient: return the scores before argmax"),
    "complex": (LOGITS + 1j, r"dtype torch.complex128; .* Return a real number of each, such as the absolute value$"),
    "probabilities": (
        LOGITS.softmax(1),
        r"look like prob.*output='p.*model_output='probabilities'.*'logits' if",
    ),
    "float32 probabilities of many": (normal(2, 21000, dtype=torch.float32).softmax(1), "look like probabilities"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_rest_is_refused_with_what_came(name):
    output, message = REFUSED[name]
    batch = 2 if "many" in name else 3
    with pytest.raises(ModelOutputError, match=message):
        as_logits(output, batch, "auto")


@pytest.mark.parametrize("kind", ["multi_label_classification", "regression"])
def test_a_network_whose_labels_do_not_exclude_each_other_is_refused(kind):
    net = nn.Linear(4, 3)
    net.config = SimpleNamespace(problem_type=kind, num_labels=3)  # as networks of transformers have it
    message = f"model: its configuration says {kind}: a softmax over its 3 outputs means nothing; explain one label k"
    with pytest.raises(ModelError, match=message):
        Classifier(net)
    for described in ("single_label_classification", None):
        net.config.problem_type = described
        assert Classifier(net).model is net


def test_sigmoids_of_independent_labels_are_warned_of():
    sigmoids = LOGITS.sigmoid()
    with pytest.warns(UserWarning, match=r"one label k by fringe.BinaryClassifier.*model_output='logits'"):
        assert as_logits(sigmoids, 3, "auto") is sigmoids
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_logits(sigmoids, 3, "logits")
        as_logits(torch.zeros(3, 5), 3, "auto")  # a constant network
        as_logits(sigmoids[:1].expand(3, 5), 3, "auto")  # too few numbers to tell
        as_logits(0.04 * sigmoids, 3, "auto")  # a network that says next to nothing
        for entry in (1.01, -0.01, torch.nan):
            other = sigmoids.clone()
            other[1, 2] = entry
            as_logits(other, 3, "auto")


class TestProbabilities:
    def test_are_explained_by_their_logarithm(self):
        p = LOGITS.softmax(1)
        found = as_logits(p, 3, "probabilities")
        assert torch.allclose(found, LOGITS.log_softmax(1), rtol=1e-13)
        assert torch.allclose(found.softmax(1), p, rtol=1e-13)

    def test_that_are_zero_stay_finite(self):
        found = as_logits(torch.tensor([[0.0, 1.0]]), 1, "probabilities")
        assert found[0, 0].item() == pytest.approx(-126 * 0.6931472, rel=1e-6)
        assert found[0, 1] == 0

    def test_that_are_promised_but_negative_are_refused(self):
        with pytest.raises(ModelOutputError, match=r"'probabilities' was promised, but some of .* are negative"):
            as_logits(LOGITS, 3, "probabilities")

    def test_may_be_declared_logits(self):
        p = LOGITS.softmax(1)
        assert as_logits(p, 3, "logits") is p

    def test_are_suspected_by_their_sum_and_by_their_signs(self):
        """A row that sums to one with a negative entry, or has none and sums to 1.5 or 1 + 2e-5, is one of logits."""
        one_hot, unknown = torch.tensor([0.0, 1.0, 0.0]), torch.full((3,), torch.nan)
        for row in ([1.5, -0.5, 0.0], [0.5, 0.5, 0.5], [0.5, 0.5, 1.8e-5]):
            logits = torch.tensor([row, row])
            assert as_logits(logits, 2, "auto") is logits
            mixed = torch.stack([one_hot, torch.tensor(row)])
            assert as_logits(mixed, 2, "auto") is mixed
        half_known = torch.tensor([0.5, torch.inf, 0.0])
        for rows in ([one_hot, one_hot], [one_hot, unknown], [half_known, one_hot]):  # a row that says nothing
            with pytest.raises(ModelOutputError, match="look like probabilities"):
                as_logits(torch.stack(rows), 2, "auto")
        assert as_logits(torch.stack([unknown, unknown]), 2, "auto").isnan().all()


class TestBinaryClassifier:
    @pytest.mark.filterwarnings("error:the model is in training mode")
    def test_is_in_the_mode_of_its_model(self):
        head, x = nn.Linear(6, 1).double().eval(), normal(2, 6)
        for model in (head, lambda z: head(z)):
            assert not BinaryClassifier(model).training
            Classifier(BinaryClassifier(model)).logits(x)
        assert BinaryClassifier(head.train()).training

    @pytest.mark.parametrize("squeeze", [False, True])
    def test_softmax_is_the_sigmoid_and_its_rest(self, squeeze):
        head, x = nn.Linear(4, 1).double(), 20 * normal(6, 4)
        model = (lambda z: head(z)[:, 0]) if squeeze else head
        logits = Classifier(BinaryClassifier(model)).logits(x)
        s = torch.sigmoid(head(x))
        assert torch.allclose(logits.softmax(1), torch.cat([torch.sigmoid(-head(x)), s], 1), rtol=1e-12)
        torch.testing.assert_close(logits[:, 1], head(x)[:, 0] / 2, rtol=1e-12, atol=1e-12)

    def test_a_probability_is_the_sigmoid_of_its_logit(self):
        head, x = nn.Linear(4, 1).double(), normal(6, 4)
        binary = BinaryClassifier(lambda z: torch.sigmoid(head(z)), output="probability")
        assert torch.allclose(Classifier(binary).logits(x), BinaryClassifier(head)(x), rtol=1e-12)

    def test_a_certain_probability_is_so_to_the_last_digit(self):
        found = BinaryClassifier(lambda p: p, output="probability")(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
        half = 26 * 0.6931471805599453  # half of ln(2^52)
        assert torch.allclose(found, torch.tensor([[half, -half], [-half, half]], dtype=torch.float64), rtol=1e-12)

    def test_another_kind_of_output_is_refused(self):
        with pytest.raises(fringe.InputError, match=r"^output: got 'sigmoid', expected one of logit, probability"):
            BinaryClassifier(nn.Linear(4, 1), output="sigmoid")


@pytest.mark.parametrize("kind", ["auto", "probabilities"])
def test_numbers_are_looked_at_once_in_a_session(kind, monkeypatch):
    """Each look reads them back from the device, which then waits."""
    looks, plain = [], torch.Tensor.__bool__
    monkeypatch.setattr(torch.Tensor, "__bool__", lambda tensor: (looks.append(tensor), plain(tensor))[1])
    classifier = Classifier(lambda x: x.softmax(1) if kind == "probabilities" else x, output=kind)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    with classifier.session(x.device):
        classifier.logits(x)
        assert (before := len(looks)) > 0
        for _ in range(3):
            classifier.logits(x)
        assert len(looks) == before
    classifier.logits(x)
    assert 0 < len(looks) - before <= before  # the first pass is measured, and a look within it counts twice


# -- a score of the caller's own ---------------------------------------------------------------------------------------

WRONG_SCORES = {
    "too many": (lambda y: y, InputError, r"it returned tensor \(3, 5\) torch.float64 for 3 inputs, .* y\[:, 0\]"),
    "one for all": (lambda y: y.sum(), InputError, r"it returned tensor \(\) torch.float64 for 3 inputs, expected"),
    "no tensor": (lambda y: 1.0, InputError, r"it returned float for 3 inputs, expected a tensor \(3,\)"),
    "integers": (lambda y: y.argmax(1), ModelOutputError, r"its value has dtype torch.int64; .*Integers have no grad"),
}


@pytest.mark.parametrize("name", WRONG_SCORES)
def test_a_score_function_gives_one_number_for_each_input(name):
    function, kind, message = WRONG_SCORES[name]
    with pytest.raises(kind, match="^score: " + message):
        Classifier(nn.Identity(), score=function).logits(LOGITS)


@pytest.mark.parametrize("argument", ["target", "contrast"])
def test_a_score_function_has_no_classes(argument):
    with pytest.raises(TargetError, match=f"^{argument}: got 0 with a score function, which gives one number"):
        attribute(nn.Identity(), LOGITS, method="ig", score=lambda y: y[:, 1], **{argument: 0})


def test_regression_is_explained_by_its_number_and_half_of_it_as_a_class():
    """Of w x + b from zero the contributions are w x: all of them by a score, half by one class of two."""
    line = nn.Linear(4, 1).double()
    x = normal(3, 4)
    whole = line.weight.detach() * x
    ours = attribute(line, x, method="ig", score=lambda y: y.flatten())
    torch.testing.assert_close(ours.values, whole)
    torch.testing.assert_close(ours.score, line(x).flatten().detach())
    binary = BinaryClassifier(line)
    torch.testing.assert_close(attribute(binary, x, method="ig", target=1).values, 0.5 * whole)
    torch.testing.assert_close(attribute(binary, x, method="ig", target=1, contrast=0).values, whole)


def test_pictures_of_a_score_say_no_probability():
    network, x = nn.Conv2d(3, 1, 3).eval(), normal(2, 3, 8, 8, dtype=torch.float32)
    result = explain(network, x, method="ig", score=lambda y: y.mean((1, 2, 3)))
    assert "image-1: score, ok" in repr(result)
    assert bool(result.context.probabilities.isnan().all())
    texts = [text.get_text() for text in result.plot().findobj(Text)]
    assert "score" in texts
    assert not any("nan" in text for text in texts)


@pytest.mark.parametrize("call", [attribute, explain, lambda network, x: Classifier(network).logits(x)])
def test_a_warning_names_the_line_that_called_the_library(call):
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 3), torch.nn.Sigmoid())
    with pytest.warns(UserWarning, match="training mode|like sigmoids") as seen:
        call(network, torch.rand(9, 3, 2, 2))
    assert {warning.filename for warning in seen} == {__file__}
