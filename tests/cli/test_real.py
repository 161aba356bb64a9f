"""A CIFAR-10 image through a real network, from the command line to the record."""

import json

import pytest
import torch
from safetensors.torch import load_file

from command_line import run

pytestmark = [pytest.mark.shared, pytest.mark.thorough]
RECIPE = "resize=32,mean=0.485/0.456/0.406,std=0.229/0.224/0.225"


def test_a_real_image_is_explained(shared, tmp_path):
    model = ("--model", f"{shared}/models/zoo.py:cifar_resnet32", "--trust-code", "--preprocessing", RECIPE)
    settings = ("--set", "tau=0.05", "--set", "quadrature_rtol=0.005", "--set", "halvings=8")
    image = shared / "images" / "cifar10" / "3_cat_000.jpg"
    result = run("explain", image, *model, *settings, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    record = json.loads((folder / "explanation.json").read_text())
    assert record["prediction"]["class"] == record["label"] == 3
    assert record["completeness_residual"] <= 0.01
    values = load_file(folder / "attribution.safetensors")["values"]
    total = values.double().sum().item()
    assert total == pytest.approx(record["score"] - record["endpoint_score"] + record["completeness_gap"], rel=1e-5)
    assert torch.isfinite(values).all()
