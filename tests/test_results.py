"""The program that makes the tables of docs/results."""

import importlib.util
from pathlib import Path

import pytest

from fringe.bench.experiments import ExperimentSpec

ROOT = Path(__file__).parents[1]
NAMED = [path for path in sorted((ROOT / "experiments").glob("*.toml")) if "net" in path.stem.partition("_")[2]]


@pytest.mark.parametrize("path", [path for path in NAMED if path.stem[:5] != "truth"], ids=lambda path: path.stem)
def test_networks_for_small_images_get_them(path):
    spec = importlib.util.spec_from_file_location("results", ROOT / "scripts" / "results.py")
    results = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(results)
    images = results.images_of(ExperimentSpec.from_file(path))
    assert images == ("cifar10" if path.stem.endswith("cifar_resnet20") else "imagenet")
