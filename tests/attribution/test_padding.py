"""Series with padding: each map is that of the series without it, bit for bit, and padding gets nothing."""

import pytest
import torch
from torch import nn

import fringe
from toys import normal

WEIGHT = normal(3, 2, 12, seed=4) / 4


def reads_twelve(x):
    """A network that reads the first twelve samples, or as many as there are."""
    n = min(12, x.shape[-1])
    return torch.einsum("bcl,kcl->bk", torch.tanh(x[..., :n]), WEIGHT[..., :n].to(x))


X = normal(3, 2, 12)
PADDED = nn.functional.pad(X, (0, 5), value=0.5)
REFERENCES = normal(4, 2, 17, seed=9)
METHODS = [
    fringe.FRInGe(),
    fringe.SmoothGrad(samples=3),
    fringe.IntegratedGradients(steps=4, baseline="uniform"),
    fringe.ExpectedGradients(samples=4),
    fringe.GeoIGKNN(neighbours=2, order=2),
    fringe.Straight(fringe.FRInGe(), steps=4),
    fringe.CaptumMethod("kernel_shap", samples=20),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.label)
def test_a_map_is_that_of_the_series_without_its_padding(method):
    def explain(x, lengths=None):
        space = fringe.InputSpace(-3.0, 3.0, REFERENCES[..., : x.shape[-1]])
        return fringe.attribute(reads_twelve, x, method=method, space=space, lengths=lengths, target=[0, 1, 2])

    alone, padded = explain(X), explain(PADDED, [12, 12, 12])
    assert torch.equal(padded.values[..., :12], alone.values)
    assert padded.values[..., 12:].abs().max() == 0
    assert padded.verdict == alone.verdict
    assert torch.equal(padded.score, alone.score)
    torch.testing.assert_close(padded.endpoint_score, alone.endpoint_score, rtol=0, atol=0, equal_nan=True)


def test_series_of_several_lengths_keep_their_order_and_their_paths():
    model = nn.Sequential(nn.Flatten(), nn.Linear(34, 3).double()).eval()
    seen, lengths, target = [], [12, 5, 17], [[0, 1], [1, 2], [2, 0]]
    common = {"target": target, "telemetry": 3, "method": "fringe"}
    together = fringe.attribute(model, PADDED, lengths=lengths, progress=lambda *n: seen.append(n), **common)
    for i, n in enumerate(lengths):
        common["target"] = target[i : i + 1]
        one = fringe.attribute(model, PADDED[i : i + 1], lengths=torch.tensor([n]), **common)
        torch.testing.assert_close(together.values[i], one.values[0], rtol=1e-9, atol=1e-12)
        assert together.values[i, ..., n:].abs().sum() == 0
        snapshots, cumulative = together.trajectory[i].snapshots, together.trajectory[i].cumulative
        assert torch.equal(snapshots[..., n:], PADDED[i, :, n:].expand(len(snapshots), 2, -1))
        assert cumulative.shape[1:] == (2, 2, 17)
        assert together.trajectory[i].probabilities.shape == (len(snapshots), 3)
        score = model(snapshots.double())[-1, target[i]]  # the path ends where it says
        torch.testing.assert_close(together.endpoint_score[i], score.detach())
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("x", "lengths"),
    [
        (X, [12, 12]),
        (X, [0, 1, 2]),
        (X, [1, 2, 13]),
        (X, [1.5, 2, 3]),
        (X[:, 0], [1, 2, 3]),
        (X, 3),
        (X, "long"),
        (X, {}),
        (X, [[1], 2]),
    ],
)
def test_what_are_no_lengths_is_refused(x, lengths):
    with pytest.raises(
        fringe.InputError, match=r"lengths: got .*, expected 3 integers of 1 to 12, one for each series"
    ):
        fringe.attribute(lambda z: z.flatten(1)[:, :3] ** 2, x, method="ig", lengths=lengths)


def test_lengths_of_several_tensors_are_refused():
    given = {"series": X, "number": torch.ones(3)}
    with pytest.raises(fringe.InputError, match=r"^lengths: got lengths of series for several tensors.*forward_args"):
        fringe.attribute(lambda series, number: series.flatten(1), given, method="ig", lengths=[12, 3, 12])


def test_lengths_go_through_explain_and_full_ones_change_nothing():
    given, plain = (fringe.explain(reads_twelve, X, kind="series", **o) for o in ({"lengths": [12] * 3}, {}))
    assert torch.equal(given.values, plain.values)
    shorter = fringe.explain(reads_twelve, X, kind="series", lengths=[7, 12, 12])
    assert shorter.values[0, :, 7:].abs().sum() == 0 < shorter.values[0, :, :7].abs().sum()
