"""What methods report of their own paths, read as metrics."""

import pytest
import torch

import fringe
from fringe import InputError
from fringe.metrics import evaluate
from toys import TanhMLP, context_of, normal

NAMES = ["completeness_residual", "endpoint_kl", "tracking_error_mean", "tracking_error_max"]
X = normal(3, 2, 7, 6)


class Plain:
    """Maps with diagnostics and no completeness residual."""

    def __init__(self, values, diagnostics):
        self.values, self.diagnostics = values, diagnostics


def test_an_attribution_is_read():
    result = fringe.attribute(TanhMLP(84), X, method=fringe.IntegratedGradients(steps=5))
    scores = evaluate(context_of(TanhMLP(84), X), result, NAMES)
    assert scores["completeness_residual"].values.equal(result.completeness_residual.double())
    assert float(scores["completeness_residual"].values.min()) > 0
    for name in NAMES[1:]:
        assert scores[name].values.equal(result.diagnostics[name].double())
        assert not scores[name].flags["undefined"].any()


def test_what_a_method_does_not_report_is_not_a_number():
    for maps in (X, Plain(X, {})):
        for scores in evaluate(context_of(TanhMLP(84), X), maps, NAMES).values():
            assert scores.values.isnan().all()
            assert scores.flags["undefined"].all()


def test_one_number_an_image():
    with pytest.raises(InputError, match=r"diagnostics\['endpoint_kl'\]: got shape \(2,\), expected \(3,\)"):
        evaluate(context_of(TanhMLP(84), X), Plain(X, {"endpoint_kl": torch.zeros(2)}), ["endpoint_kl"])


def test_a_diagnostic_comes_before_the_residual_of_an_attribution():
    maps = Plain(X, {"completeness_residual": torch.tensor([0.25, 0.5, torch.nan])})
    maps.completeness_residual = torch.ones(3)
    scores = evaluate(context_of(TanhMLP(84), X), maps, NAMES[:1])["completeness_residual"]
    assert scores.values[:2].tolist() == [0.25, 0.5]
    assert scores.flags["undefined"].tolist() == [False, False, True]
