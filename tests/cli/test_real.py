"""A photograph and a CIFAR-10 image through real networks, from the command line to the record."""

import json

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from fringe.cli import app

pytestmark = [pytest.mark.shared, pytest.mark.thorough]
RECIPES = {
    "mobilenet_v2": "resize=256,crop=224,mean=0.5/0.5/0.5,std=0.5/0.5/0.5",
    "cifar_resnet32": "resize=32,mean=0.485/0.456/0.406,std=0.229/0.224/0.225",
}


@pytest.mark.parametrize(
    ("network", "image", "label"),
    [("mobilenet_v2", "imagenet/0284_Siamese_cat.jpg", 284), ("cifar_resnet32", "cifar10/3_cat_000.jpg", 3)],
)
def test_a_real_image_is_explained(shared, tmp_path, network, image, label):
    arguments = ["explain", str(shared / "images" / image), "--out", str(tmp_path), "--trust-code", "--json"]
    arguments += ["--model", f"{shared}/models/zoo.py:{network}", "--preprocessing", RECIPES[network]]
    for setting in ("tau=0.05", "cg_iterations=3", "quadrature_rtol=0.005", "quadrature_depth=8"):
        arguments += ["--set", setting]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    record = json.loads((folder / "explanation.json").read_text())
    assert record["prediction"]["class"] == record["label"] == label
    assert record["completeness_residual"] <= 0.01
    values = load_file(folder / "attribution.safetensors")["values"]
    total = values.double().sum().item()
    assert total == pytest.approx(record["score"] - record["endpoint_score"] + record["completeness_gap"], rel=1e-5)
    assert torch.isfinite(values).all()
