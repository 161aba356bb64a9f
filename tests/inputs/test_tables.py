"""Rows of tables and time series through the one call."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import nn

import fringe


class Smooth(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        g = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(3, features, generator=g))

    def forward(self, x):
        return torch.tanh(x.flatten(1)) @ self.weight.T


RAW = np.random.default_rng(0).normal((10, -5, 0, 2), (3, 1, 2, 0.5), (20, 4))
NAMES = ["w", "x", "y", "z"]


def test_a_data_frame_and_a_scaler_bring_names_and_units():
    pandas = pytest.importorskip("pandas")
    scaler = StandardScaler().fit(RAW)
    frame = pandas.DataFrame(RAW[:3], columns=NAMES)
    result = fringe.explain(Smooth(4), frame, preprocessing=StandardScaler().fit(RAW), classes=["a", "b", "c"])
    x = torch.tensor(scaler.transform(RAW[:3]), dtype=torch.float32)
    direct = fringe.attribute(Smooth(4), x, ids=["row-0", "row-1", "row-2"])
    assert result.context.kind == "tabular"
    assert result.context.features == (tuple(NAMES),) * 3
    assert result.settings["structure"] == "none"
    torch.testing.assert_close(result.context.inputs, x)
    torch.testing.assert_close(result.values, direct.values, rtol=1e-4, atol=1e-6)
    figure = result[0].plot()
    figure.canvas.draw()
    shown = {label.get_text() for label in figure.axes[0].get_yticklabels()}
    assert shown == {f"{name} = {value:.4g}".replace("-", "−") for name, value in zip(NAMES, RAW[0], strict=True)}
    assert result._repr_html_().count('style="width:480px') == 3


def test_arrays_tensors_and_one_row():
    model = Smooth(4)
    many = fringe.explain(model, RAW[:2], kind="tabular", features=NAMES, method="ig")
    tensor = fringe.explain(model, torch.tensor(RAW[:2]), kind="tabular", method="ig")
    one = fringe.explain(model, RAW[0], kind="tabular", method="ig")
    torch.testing.assert_close(many.values, tensor.values)
    torch.testing.assert_close(many.values[:1], one.values)
    assert tensor.context.features[0] == ("feature 0", "feature 1", "feature 2", "feature 3")
    assert many[0].plot("bars").axes


def test_numbers_that_are_no_classes_have_no_probability():
    model = fringe.Classifier(Smooth(4), output="numbers")
    result = fringe.explain(model, RAW[:2], kind="tabular", method="ig", target=1)
    assert result.context.probabilities.isnan().all()
    assert "%" not in repr(result[0]).split("class 1")[1].partition(",")[0]
    assert result[0].plot("bars").axes


def test_a_model_by_its_file_needs_no_preprocessing_of_pictures(tmp_path):
    code = tmp_path / "net.py"
    code.write_text("from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))\n")
    for kind, inputs in (("tabular", RAW[:2]), ("series", RAW[:2])):
        assert len(fringe.explain(f"{code}:make", inputs, kind=kind, method="ig", trust_code=True)) == 2
    standardised = fringe.explain(
        f"{code}:make", RAW, kind="tabular", preprocessing=StandardScaler().fit(RAW), method="ig", trust_code=True
    )
    assert abs(standardised.context.inputs.mean()) < 1e-6
    with pytest.raises(fringe.InputError, match="preprocessing: series are taken as they are; standardise them before"):
        fringe.explain(Smooth(4), RAW, kind="series", preprocessing="imagenet")


def test_series_of_one_channel_and_of_many():
    model = Smooth(12)
    one = fringe.explain(model, RAW[:3].reshape(1, 12), kind="series")
    assert one.values.shape == (1, 1, 12)
    assert one.settings["structure"] == "sequence"
    many = fringe.explain(model, RAW[:3].reshape(1, 3, 4), kind="series", features=["u", "v", "w"])
    assert many.values.shape == (1, 3, 4)
    assert [axes.get_ylabel() for axes in many.plot().axes] == ["u", "v", "w"]


def test_of_series_a_class_is_its_defaults_and_a_modifier_has_the_path_of_its_method():
    plain, by_class, straight = (
        fringe.explain(Smooth(12), RAW[12:15].reshape(1, 12), kind="series", method=method)
        for method in ("fringe", fringe.FRInGe, "straight:fringe")
    )
    assert plain.verdict == ("ok",)  # it has a path
    assert torch.equal(by_class.values, plain.values)
    assert straight.settings["of"]["structure"] == "sequence"
    assert straight.endpoint_score.item() == plain.endpoint_score.item()


def test_where_removing_parts_of_a_series_does_not_change_the_prediction_the_advice_does():
    method = fringe.FRInGe(coordinates="mask")
    mask = fringe.explain(Smooth(12), RAW[:3].reshape(1, 12), kind="series", method=method)
    assert mask.verdict == ("stalled",)
    assert "use coordinates='input'" in mask.advice[0]
    assert fringe.explain(Smooth(12), RAW[:3].reshape(1, 12), kind="series").verdict == ("ok",)


def test_what_is_no_table_is_refused():
    model = Smooth(4)
    for shape in ((1, 2, 3, 4), (0, 4)):
        with pytest.raises(fringe.InputError, match=r"expected series \(B, C, L\)"):
            fringe.explain(model, np.zeros(shape), kind="series")
    for inputs, words in (
        (np.zeros((2, 3, 4)), r"inputs: got shape \(2, 3, 4\), expected rows \(B, F\)"),
        (np.zeros((0, 4)), r"inputs: got shape \(0, 4\), expected rows \(B, F\)"),
        ([["a", "b"]], "does not read as numbers .*; fill or drop missing values; turn categories into one-hot"),
        ([[1.0, float("nan"), 0, 0]], "they hold NaN or infinity; fill or drop"),
    ):
        with pytest.raises(fringe.InputError, match=words):
            fringe.explain(model, inputs, kind="tabular")
    with pytest.raises(fringe.InputError, match="features: got 2 names for 4 features"):
        fringe.explain(model, RAW[:1], kind="tabular", features=["a", "b"])
    for name in ("features", "ids"):
        with pytest.raises(fringe.InputError, match=rf"{name}: got .*, expected a list: a set has no order"):
            fringe.explain(model, RAW[:4], kind="tabular", **{name: {"a", "b", "c", "d"}})
    with pytest.raises(fringe.InputError, match=r"ids: got .*, expected a list: a set has no order"):
        fringe.attribute(model, torch.zeros(2, 4), ids={"a", "b"})
    with pytest.raises(fringe.InputError, match="preprocessing: got StandardScaler, expected a StandardScaler fitted"):
        fringe.explain(model, RAW[:1], kind="tabular", preprocessing=StandardScaler())


def test_columns_that_the_scaler_would_refuse_are_refused():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(RAW, columns=["a", "b", "c", "d"])
    scaler = StandardScaler().fit(frame)
    with pytest.raises(fringe.InputError, match="got the columns b, a, c, d; the scaler was fitted on a, b, c, d"):
        fringe.explain(Smooth(4), frame[["b", "a", "c", "d"]], preprocessing=scaler)


@pytest.mark.parametrize(
    ("offset", "with_mean", "with_std"), [(0.0, False, True), (0, True, False), (1.7e9, True, True)]
)
def test_columns_are_standardised_as_the_scaler_does_it(offset, with_mean, with_std):
    """Without the mean, if it was told so; and in float64: a time stamp of 2023 has no minutes left in float32."""
    raw = RAW * [1000, 1, 1, 1] + [offset, 0, 0, 0]
    scaler = StandardScaler(with_mean=with_mean, with_std=with_std).fit(raw)
    model = Smooth(4).double()
    result = fringe.explain(model, raw[:3], kind="tabular", preprocessing=scaler, method="ig", telemetry=False)
    torch.testing.assert_close(result.context.inputs, torch.tensor(scaler.transform(raw[:3])), rtol=1e-12, atol=1e-12)
