"""Every public function that takes the path of a file or folder takes it as any os.PathLike; the tests beside this one
give text and a Path."""

import json
import os
from pathlib import Path

import pytest
from PIL import Image

import fringe
from fringe._strings.class_names import class_names
from fringe.app import AppSpec
from fringe.attribution import read_preset, write_preset
from fringe.bench.cards import card_of_run, write_card
from fringe.bench.experiments import Store, estimate_run, read_results
from fringe.data import find_inputs, open_image
from fringe.integrations import Artifacts, log_explanations
from fringe.models import load_model
from fringe.page import write_animation


class Named:
    """A path of another library."""

    def __init__(self, path):
        self._path = os.fspath(path)

    def __fspath__(self):
        return self._path


PICTURE = Image.new("L", (28, 28), 90)
SPEC = {"model": "embedded:digits", "data": "embedded:digits", "methods": "gradcam", "metrics": "sparseness", "n": 1}
NETWORK = (
    "import torch\ndef network():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 3)).eval()\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A picture, a file of names, a plan, a network, a saved attribution, a preset, and a run."""
    root = tmp_path_factory.mktemp("given")
    PICTURE.save(root / "picture.png")
    (root / "names.txt").write_text("\n".join("abcdefghij"))
    (root / "plan.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in SPEC.items()))
    (root / "network.py").write_text(NETWORK)
    result().save(root / "maps.safetensors")
    about = {"architecture": "digits", "weights": "b", "objective": 0.5, "images": [], "trials": 1, "seed": 0}
    write_preset(root / "preset.json", fringe.IntegratedGradients(), {**about, "version": "0"})
    fringe.run_experiment(fringe.ExperimentSpec(**SPEC), root / "run", device="cpu")
    return root


def result(picture=PICTURE, **options):
    return fringe.explain("embedded:digits", picture, method="gradcam", **options)


def explained(source, out, **options):
    """The results of this image, written to a folder."""
    options = {"method": "gradcam", **options} if "preset" not in options else options
    return list(fringe.explain_images([source], out, model="embedded:digits", figures=False, overwrite=True, **options))


def compared(path):
    return fringe.compare("embedded:digits", [path], ["gradcam"], ["sparseness"], controls=False)


READ = {
    "load": ("maps.safetensors", fringe.load),
    "open_image": ("picture.png", open_image),
    "find_inputs": ("picture.png", lambda path: list(find_inputs([path]))),
    "explain": ("picture.png", result),
    "explain_images": ("picture.png", lambda path: explained(path, Path(os.fspath(path)).parent / "out")),
    "compare": ("picture.png", compared),
    "class names": ("names.txt", class_names),
    "explain, classes": ("names.txt", lambda path: result(classes=path)),
    "explain_images, preset": (
        "preset.json",
        lambda path: explained("embedded:digits:0", Path(os.fspath(path)).parent / "out", preset=path),
    ),
    "AppSpec": ("names.txt", lambda path: AppSpec(model=["embedded:digits"], classes=path)),
    "from_file": ("plan.toml", fringe.ExperimentSpec.from_file),
    "data": ("picture.png", lambda path: fringe.ExperimentSpec(**{**SPEC, "data": path})),
    "read_preset": ("preset.json", read_preset),
    "load_model": ("network.py:network", lambda path: load_model(path, trust_code=True, preprocessing="unit")),
    "read_results": ("run", read_results),
    "Store": ("run", lambda path: Store(path, create=False)),
    "estimate_run": ("run", lambda path: estimate_run(fringe.ExperimentSpec(**SPEC), path)),
    "card_of_run": ("run", lambda path: card_of_run(path, "gradcam")),
    "run_experiment": ("run", lambda path: fringe.run_experiment(fringe.ExperimentSpec(**SPEC), path, device="cpu")),
    "write_report": ("run", lambda path: fringe.write_report(path, grid=False)),
}


@pytest.mark.parametrize("name", READ)
def test_what_is_read(folder, name):
    given, function = READ[name]
    function(Named(folder / given))


WRITTEN = {
    "save": lambda path, _: result().save(path),
    "write_page": lambda path, _: fringe.write_page(result(), path),
    "write_animation": lambda path, _: write_animation(result(), path),
    "Artifacts": lambda path, _: Artifacts.of(result()).write(path),
    "log_explanations": lambda path, _: log_explanations(result(), path),
    "write_card": lambda path, run: write_card(card_of_run(run, "gradcam"), path),
    "write_report": lambda path, run: fringe.write_report(run, path, grid=False),
    "write_preset": lambda path, run: write_preset(path, *read_preset(run.parent / "preset.json")),
    "explain_images": lambda path, _: explained("embedded:digits:0", path),
    "run_experiment": lambda path, _: fringe.run_experiment(fringe.ExperimentSpec(**SPEC), path, device="cpu"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written(folder, tmp_path, name):
    WRITTEN[name](Named(tmp_path / "given.out"), folder / "run")
    assert (tmp_path / "given.out").exists()
