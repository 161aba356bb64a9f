"""Scenes of language models: what is drawn, the interventions that prove the answer, and a network that copies exactly,
whose maps are known in closed form."""

import pytest
import torch

import fringe
from fringe.bench.experiments import ExperimentSpec, build_plan
from fringe.bench.scenes import get_scene
from fringe.bench.scenes._kinds import AS_GIVEN, EMBEDDINGS, EmbeddedWords
from fringe.evaluation import TEXT_CONTROLS
from fringe.metrics import EvaluationContext, evaluate
from fringe.models import LoadedModel
from fringe.paths import Problem

COMMA, SIGN, L = 0, 1, 15


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(x):
    return torch.cdist(x, EMBEDDINGS).argmin(-1).tolist()


def copying(words):
    return words[words.index(SIGN) + 1] if SIGN in words[:-1] else COMMA


def lookup(words):
    return dict(zip(words[:-1:2], words[1::2], strict=True)).get(words[-1], COMMA)


def counting(words):
    return 2 + words.count(SIGN)


def negation(words):
    for before, word in zip([COMMA, *words], words, strict=False):
        if 2 <= word < 18:
            return word ^ (before == SIGN)
    return COMMA


RULES = {"copying": copying, "lookup": lookup, "counting": counting, "negation": negation}


def by_rule(name, x):
    return torch.tensor([RULES[name](words) for words in tokens(x)])


@pytest.mark.parametrize("name", RULES)
def test_only_the_truth_tells_the_next_token(name):
    """A reader who knows the rule: what is drawn anew elsewhere changes nothing, and each word of the truth does."""
    scene = get_scene(name)
    x, following, truth = scene.draw(600, rng())
    other = scene.redrawn(x, rng(1))
    assert x.shape == (600, L, 16)
    assert torch.equal(by_rule(name, x), following)
    assert torch.equal(by_rule(name, torch.where(truth, x, other)), following)
    assert (by_rule(name, torch.where(truth, other, x)) == following).double().mean() < 0.1
    order = (truth.cumsum(1) * truth)[..., 0]
    for k in range(1, int(order.max()) + 1):
        has = (order == k).any(1)
        without = by_rule(name, torch.where((order == k)[..., None], other, x))
        assert (without == following)[has].double().mean() < 0.1
    commas = (x == EMBEDDINGS[COMMA]).all(-1)
    assert 0.05 < commas[~truth[..., 0]].double().mean() < 0.15
    assert not commas[truth[..., 0]].any()


def test_what_is_drawn_is_what_the_scenes_say():
    counts = {"copying": {2}, "lookup": {3}, "counting": {1, 2, 3, 4}, "negation": {2}}
    for name, expected in counts.items():
        _, following, truth = get_scene(name).draw(400, rng(2))
        assert set(truth.sum((1, 2)).tolist()) == expected
        assert len(following.unique()) == {"copying": 38, "lookup": 22, "counting": 4, "negation": 16}[name]
    x, _, _ = get_scene("negation").draw(400, rng(3))
    assert {words.count(SIGN) for words in tokens(x)} == {1, 2}  # a second one that reverses nothing
    for name, least in (("counting", 0), ("negation", 1)):  # networks also learn where nothing is counted, or reversed
        x, following, truth = get_scene(name).draw(400, rng(4), every=True)
        assert truth.sum((1, 2)).min() == least
        assert torch.equal(by_rule(name, x), following)


class Copier(EmbeddedWords):
    """Copies by weights set by hand: the logit of a token is 10 times the sum over places of m(word before) r(word).

    m and r are linear in the word up to where they are 0, and 1 at the marker or at that token; at every other token
    they are 0, and so between two of them.
    """

    def __init__(self):
        super().__init__()
        table = EMBEDDINGS.double()
        read = torch.linalg.pinv(table)  # least squares: the nearest to 1 at a token and 0 at all others
        read = read / (table @ read).diagonal()
        most = (table @ read).fill_diagonal_(-torch.inf).amax(0)
        assert most.max() < 0.9
        self.read, self.most = read / (1 - most), most / (1 - most)

    def forward(self, x):
        seen = (x.double() @ self.read - self.most).relu()
        return 10 * (seen[:, :-1, SIGN, None] * seen[:, 1:]).sum(1)


def test_gates_hold_for_the_network_that_copies_and_for_no_other():
    scene = get_scene("copying")
    known, following, truth = scene.draw(1000, rng(2**40))  # the prompts of the gates

    def gates(module):
        network = LoadedModel("by hand", module.eval(), AS_GIVEN, None, "", "by hand", "logits")
        return [gate.holds for gate in scene.gates(network, None, [])]

    def nearest(x):
        return torch.cdist(x.flatten(1), known.flatten(1)).argmin(1)

    class ByHeart(Copier):
        def forward(self, x):
            return torch.eye(40)[following[nearest(x)]]

    class ByPlace(Copier):
        """Copies where the marker is, and without one from where it was: only the last gate can tell."""

        def forward(self, x):
            copied, place = super().forward(x), truth[nearest(x), :, 0].int().argmax(1)
            without = -torch.cdist(x[torch.arange(len(x)), place + 1], EMBEDDINGS)
            return torch.where(copied.amax(1, keepdim=True) > 5, copied, without)

    assert gates(Copier()) == [True, True, True, True]
    assert gates(ByHeart()) == [True, False, False, False]
    assert gates(ByPlace()) == [True, True, True, False]


def of_words(values):
    return values.double().sum(-1)


def test_maps_of_the_network_that_copies_in_closed_form():
    """Its logit is 10 times a product of two words, so each alone takes all of it away; on the straight line to commas,
    with slopes a and b of m and r, the marker gets 10 (a / M - a b / 2 M^2), with M the larger one."""
    x, following, truth = get_scene("copying").draw(4, rng(5))
    net, x, truth = Copier().eval(), x.double(), truth[..., 0]
    comma = EMBEDDINGS[COMMA].double()
    options = {"target": following, "baseline": comma.expand_as(x)}
    occluded = of_words(fringe.attribute(net, x, method="captum:occlusion", **options).values)
    torch.testing.assert_close(occluded, 10 * truth.double(), rtol=0, atol=1e-9)
    ig = of_words(fringe.attribute(net, x, method=fringe.IntegratedGradients(steps=1000), **options).values)
    assert ig[~truth].abs().max() < 1e-12
    a = ((EMBEDDINGS[SIGN] - comma) @ net.read[:, SIGN]).expand(4)
    b = torch.stack([(EMBEDDINGS[word] - comma) @ net.read[:, word] for word in following])
    most = torch.maximum(a, b)
    expected = 10 * (torch.stack([a, b], 1) / most[:, None] - (a * b / (2 * most**2))[:, None])
    torch.testing.assert_close(expected.sum(1), torch.full((4,), 10.0).double())
    torch.testing.assert_close(ig[truth].view(4, 2), expected, rtol=0, atol=10 * float(most.max()) / 1000)
    problem = Problem.of(fringe.Classifier(net), x, target=following)
    for values in (occluded, ig):
        maps = (values[..., None] / 16).expand_as(x)
        scores = evaluate(EvaluationContext(problem, truth), maps, ["mass_inside"])["mass_inside"].values
        assert scores.tolist() == pytest.approx([1.0] * 4)


def test_controls_of_texts_and_where_they_take_part():
    x = EMBEDDINGS[torch.tensor([[5, 7, 5, 5], [9, 8, 8, 3]])]
    problem = Problem.of(fringe.Classifier(Copier().eval()), x, target=torch.tensor([0, 1]))
    expected = {
        "position": [[1, 2, 3, 4], [1, 2, 3, 4]],
        "frequency": [[3, 1, 3, 3], [1, 2, 2, 1]],
        "length": [[float(sum(v * v for v in word.tolist())) ** 0.5 for word in text] for text in x],
    }
    assert list(TEXT_CONTROLS) == list(expected)
    for name, control in TEXT_CONTROLS.items():
        torch.testing.assert_close(of_words(control(problem)), torch.tensor(expected[name]).double(), rtol=1e-5, atol=0)

    def labels(scene, controls):
        plan = build_plan(ExperimentSpec(scene=scene, methods="ig", n=2, controls=controls))
        return {one.label for one in plan.candidates(plan.models[0])}

    for scene in (*RULES, "keyword"):
        assert {*TEXT_CONTROLS} <= labels(scene, True)
        assert labels(scene, False) == {"ig"}
    assert not {*TEXT_CONTROLS} & labels("gate", True)
    # a control of a map that is moved to the centre needs one
    for scene, has_centre in {
        "copying": False,
        "keyword": False,
        "gate": False,
        "window": True,
        "difull": True,
    }.items():
        assert ("centre_prior:ig" in labels(scene, True)) == has_centre
        assert "power(1.5):ig" in labels(scene, True)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.thorough), pytest.param(1, marks=pytest.mark.slow)]
)
def test_gates_hold_for_every_network(name, number, tmp_path, monkeypatch):
    monkeypatch.setenv("FRINGE_CACHE", str(tmp_path))
    scene = get_scene(name)
    assert scene.networks == 2
    gates = scene.gates(scene.network(number, None, []), None, [])
    assert all(gate.holds for gate in gates), gates
