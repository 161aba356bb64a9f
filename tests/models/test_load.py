"""Specs of every family that needs no other library: what they load, and what they answer when they cannot."""

import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fringe
from fringe.models import LOADERS, LoadedModel, ModelError, Preprocessing, load_model
from fringe.models._load import devices

UNIT = Preprocessing.parse("unit,channels=1")

CODE = """
from __future__ import annotations
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Width:
    value: int = 3

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(4, Width().value))

def broken():
    raise KeyError("no such layer")

def number():
    return 7

constant = 5
"""


class Evil:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def code(tmp_path):
    path = tmp_path / "my net.py"
    path.write_text(CODE)
    return path


def message(spec, **options):
    with pytest.raises(ModelError) as caught:
        load_model(str(spec), **options)
    return str(caught.value)


def test_the_registry_lists_every_family():
    assert list(LOADERS) == ["embedded", "torchvision", "timm", "hf", "efficientnet_lite0", "file", "module", "export"]
    assert LOADERS["timm"].form == "timm:NAME[@WEIGHTS]"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("embedded:digit", "no embedded model 'digit'; did you mean 'digits'?"),
        ("torchvison:resnet18", "'torchvison' is neither a family nor an installed module; did you mean 'torchvision'"),
        ("resnet18", "model: 'resnet18' has no family; did you mean 'torchvision:resnet18'? The forms are embedded"),
        ("", "model: '' has no family; the forms are embedded"),
        (r"C:\no.py", r"Python file 'C:\\no.py' does not exist"),  # a drive of Windows is no family
        (r"C:\no.py:9", r"Python file 'C:\\no.py' does not exist"),
        ("C:/no.py:make", "Python file 'C:/no.py' does not exist"),
        (r"C:\models\resnet", r"model: 'C:\\models\\resnet' has no family; the forms are embedded"),
        ("photo.jpg", "model: 'photo.jpg' has no family; the forms are embedded"),
        ("w.safetensors", "holds weights and no architecture; name both, as in torchvision:resnet18@w.safetensors"),
        ("m.pt", "'m.pt': .pt files are not read, because most of them can run code while loading"),
        ("dir/m.PTH", ".pth files are not read"),
        ("m.pkl", "convert the state_dict with safetensors.torch.save_file"),
        ("m.bin", ".bin files are not read"),
        ("scripted.ts", ".ts files are not read"),
        ("net.ONNX", ".onnx files are not read: they hold no PyTorch network, and a map needs its gradients; build"),
        ("net.keras", "name the function that makes it, as in models.py:my_network"),
    ],
)
def test_a_spec_that_leads_nowhere_says_where_to_go(spec, expected):
    assert expected in message(spec)


def test_class_names_preprocessing_and_device_replace_the_sources():
    names = [f"digit {k}" for k in range(10)]
    model = load_model("embedded:digits", preprocessing=UNIT, class_names=names, device=torch.device("cpu"))
    assert isinstance(model, LoadedModel)
    assert model.preprocessing == UNIT == load_model("embedded:digits", preprocessing="unit,channels=1").preprocessing
    assert model.class_names == tuple(names)


def test_a_device_that_is_no_name():
    with pytest.raises(fringe.InputError, match=r"^device: got None, expected auto, cpu"):
        fringe.explain("embedded:digits", "embedded:digits:5", device=None)


@pytest.mark.parametrize("device", ["mps", "cuda:99", "meta", "abacus"])
def test_the_devices_that_there_are_stand_beside_one_that_is_not(device):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("it is here")
    text = message("embedded:digits", device=device)
    assert text.startswith(f"device: {device!r} cannot be used here")
    assert ": this machine has cpu" in text
    assert len(text) < 200


def test_apple_gpus_are_among_the_devices(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices()[0] == "cpu"
    assert devices()[-1] == "mps"


def test_a_python_file_is_not_run_without_trust(tmp_path):
    mark, path = tmp_path / "ran", tmp_path / "evil.py"
    path.write_text(f"open({str(mark)!r}, 'w')\ndef f(): ...\n")
    for options in ({"preprocessing": UNIT}, {}):
        text = message(f"{path}:f", **options)
        assert "runs the Python code in" in text
        assert text.endswith("pass trust_code=True only if you trust its author")
    assert not mark.exists()


#: Networks of several sizes in one file, in the style of a model zoo.
ZOO = """
from torch import nn
PREPROCESSING = {"small": "resize=8,channels=1,mean=0.5,std=0.25", "other": "unit"}
CLASSES = ("a", "b", "c")

def small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def large():
    net = nn.Sequential(nn.Flatten(), nn.Linear(256, 2))
    net.preprocessing, net.class_names = "resize=16,channels=1,mean=0.1,std=0.2", ["no", "yes"]
    return net

def silent():
    net = small()
    net.preprocessing, net.class_names = nn.Identity(), {"a": 0}
    return net

def wrong():
    net = small()
    net.preprocessing = "resise=8"
    return net
"""


def test_a_python_file_states_its_preprocessing_and_class_names(code):
    code.write_text(ZOO)
    for function, text, names in (
        ("small", "resize=8,channels=1,mean=0.5,std=0.25", ("a", "b", "c")),
        ("large", "resize=16,channels=1,mean=0.1,std=0.2", ("no", "yes")),
    ):
        model = load_model(f"{code}:{function}", trust_code=True)
        assert (model.preprocessing, model.class_names) == (Preprocessing.parse(text), names)
        given = load_model(f"{code}:{function}", trust_code=True, preprocessing=UNIT, class_names=["x", "y"])
        assert (given.preprocessing, given.class_names) == (UNIT, ("x", "y"))


def test_one_statement_counts_for_all_networks_of_a_file(code):
    code.write_text(CODE + "PREPROCESSING = 'imagenet'\n")
    assert load_model(f"{code}:small", trust_code=True).preprocessing == Preprocessing.parse("imagenet")


def test_an_attribute_that_means_something_else_states_nothing(code):
    code.write_text(ZOO)
    assert load_model(f"{code}:silent", trust_code=True, preprocessing=UNIT).class_names == ("a", "b", "c")
    text = message(f"{code}:silent", trust_code=True)
    assert "does not say how images are prepared; pass preprocessing=" in text
    assert f'or write PREPROCESSING = "..." into {code}' in text
    with pytest.raises(ModelError, match=r"it states the preprocessing 'resise=8': .* did you mean 'resize'") as raised:
        load_model(f"{code}:wrong", trust_code=True)
    assert raised.value.argument is None  # that of the caller is not to blame


def test_a_python_file_gives_its_module(code):
    model = load_model(f"{code}:small", trust_code=True, preprocessing=UNIT)
    torch.manual_seed(0)
    expected = nn.Linear(4, 3)
    x = torch.arange(8.0).reshape(2, 1, 2, 2)
    torch.testing.assert_close(model.module(x), expected(x.flatten(1)))
    assert (model.architecture, model.class_names) == ("small", None)
    assert sorted(p.name for p in code.parent.iterdir()) == ["my net.py"]  # no bytecode beside it


def test_a_python_file_with_weights(code, tmp_path):
    weights = {"2.weight": torch.arange(12.0).reshape(3, 4), "2.bias": torch.ones(3)}
    save_file(weights, tmp_path / "w.safetensors")
    spec = f"{code}:small@{tmp_path / 'w.safetensors'}"
    module = load_model(spec, trust_code=True, preprocessing=UNIT).module
    assert module(torch.ones(1, 1, 2, 2)).tolist() == [[7.0, 23.0, 39.0]]


@pytest.mark.skipif(os.name == "nt", reason="it would write to the drive")
def test_the_colon_of_a_drive_ends_no_name(tmp_path, monkeypatch):
    """Here a path of Windows is the name of one file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / r"C:\nets.py").write_text(CODE)
    save_file({"2.weight": torch.zeros(3, 4), "2.bias": torch.ones(3)}, tmp_path / r"C:\w.safetensors")
    module = load_model(r"C:\nets.py:small@C:\w.safetensors", trust_code=True, preprocessing=UNIT).module
    assert module(torch.ones(1, 1, 2, 2)).tolist() == [[1.0, 1.0, 1.0]]
    assert r"name the file and a function in it, as in C:\nets.py:make_model" in message(r"C:\nets.py")


def test_editing_a_python_file_is_seen_at_once(code):
    for width in (3, 5, 4):
        code.write_text(CODE.replace("value: int = 3", f"value: int = {width}"))
        model = load_model(f"{code}:small", trust_code=True, preprocessing=UNIT)
        assert model.module(torch.ones(1, 1, 2, 2)).shape == (1, width)


@pytest.mark.parametrize(
    ("attribute", "expected"),
    [
        ("smal", "has no 'smal'; did you mean 'small'?"),
        ("broken", "calling broken() failed (KeyError: 'no such layer', in line "),
        ("number", "number() returned int, not a torch.nn.Module"),
        ("constant", "constant is of type int, not a torch.nn.Module or a function"),
        ("small@random", "weights 'random' must be a path ending in .safetensors"),
        ("small@w.pth", ".pth files are not read"),
        ("small@gone.safetensors", "weights file 'gone.safetensors' does not exist"),
    ],
)
def test_a_python_file_that_does_not_deliver(code, attribute, expected):
    assert expected in message(f"{code}:{attribute}", trust_code=True, preprocessing=UNIT)


def test_scripted_modules_are_models(tmp_path):
    file = tmp_path / "nets.py"
    file.write_text("""
import torch
from torch import nn
def made():
    torch.manual_seed(0)
    return torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
net = made()
""")
    x = torch.rand(2, 1, 2, 2)
    for name in ("made", "net"):
        model = load_model(f"{file}:{name}", trust_code=True, preprocessing=UNIT).module
        assert all(p.is_leaf and not p.requires_grad for p in model.parameters())
        plain = model.state_dict()
        torch.testing.assert_close(model(x), x.flatten(1) @ plain["1.weight"].T + plain["1.bias"])


@pytest.mark.parametrize("network", ["nn.LazyLinear(3)", "nn.Linear(4, 3, device='meta')"])
def test_weights_without_numbers_are_named(network, tmp_path):
    file = tmp_path / "nets.py"
    file.write_text(f"from torch import nn\ndef made():\n    return nn.Sequential(nn.Flatten(), {network})\n")
    expected = "its weights '1.bias' have no numbers yet"
    assert expected in message(f"{file}:made", trust_code=True, preprocessing=UNIT)


def test_a_python_file_that_fails(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import surely_not_installed\n")
    options = {"trust_code": True, "preprocessing": UNIT}
    assert "failed while it was run (ModuleNotFoundError: No module named" in message(f"{bad}:f", **options)
    (tmp_path / "surely_not_installed.py").touch()
    with pytest.raises(ModelError) as caught:
        load_model(f"{bad}:f", **options)
    assert caught.value.hint == f"its folder is not on the import path: set PYTHONPATH={tmp_path}"


@pytest.mark.parametrize("options", [{}, {"trust_code": True}, {"preprocessing": UNIT}])
def test_a_file_that_is_missing_is_what_is_missing(options, tmp_path):
    """Nobody has to trust a file, or say how its images are prepared, before hearing that there is none."""
    for spec in ("gone.py:f", "gone.py", "gone.py:f@w.safetensors"):
        assert message(spec, **options).startswith("Python file 'gone.py' does not exist; it is looked for in")
    assert message("gone.pt2", **options) == "exported program 'gone.pt2' does not exist"
    (tmp_path / "folder.py").mkdir()
    assert message(f"{tmp_path}/folder.py:f", **options).endswith("is no file")


def test_a_file_of_the_shared_folder_is_found_and_the_places_of_one_that_is_not_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FRINGE_SHARED", raising=False)
    with pytest.raises(ModelError) as caught:
        load_model("zoo.py:make", trust_code=True)
    assert caught.value.hint == (
        f"it is looked for in the current folder ({tmp_path}) and in FRINGE_SHARED/models (FRINGE_SHARED is not set); "
        "a file that a configuration file names, also in the folder of that"
    )
    models = tmp_path / "shared" / "models"
    models.mkdir(parents=True)
    (models / "zoo.py").write_text('import torch\nPREPROCESSING = "unit"\nmake = torch.nn.Flatten\n')
    monkeypatch.setenv("FRINGE_SHARED", "shared")
    assert load_model("zoo.py:make", trust_code=True).label == "zoo.make"
    with pytest.raises(ModelError, match=r"runs the Python code in shared.models.zoo\.py"):
        load_model("zoo.py:make")
    with pytest.raises(ModelError) as caught:
        load_model("gone.py:make")
    assert f"in FRINGE_SHARED/models ({Path('shared')})" in (caught.value.hint or "")


def test_a_function_that_is_missing_in_a_module_is_named():
    text = message("torch.nn:Lineer", trust_code=True, preprocessing=UNIT)
    assert text.startswith("'torch.nn:Lineer': torch.nn has no 'Lineer'; did you mean 'Linear")


def test_a_python_file_without_a_function(code):
    assert message(code).endswith(f"name the file and a function in it, as in {code}:make_model")


def installed_package(folder, monkeypatch, name):
    """A package in a site folder whose import and whose function leave a file."""
    site = folder / "site-packages"
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text(
        f"open({str(folder / 'imported')!r}, 'w')\nfrom torch.nn import Identity as net\n"
        f"def main():\n    open({str(folder / 'called')!r}, 'w')\n"
    )
    monkeypatch.setattr("site.getsitepackages", lambda: [str(site)])
    monkeypatch.syspath_prepend(str(site))


def test_an_installed_module_needs_trust_before_it_is_imported_or_called(tmp_path, monkeypatch):
    installed_package(tmp_path, monkeypatch, "well_known_package")
    for attribute in ("main", "net"):
        text = message(f"well_known_package:{attribute}", preprocessing=UNIT)
        assert f"imports well_known_package and calls {attribute} in it; pass trust_code=True" in text
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "called").exists()
    trusted = load_model("well_known_package:net", trust_code=True, preprocessing=UNIT)
    assert isinstance(trusted.module, nn.Identity)
    assert (tmp_path / "imported").exists()


def test_this_package_is_no_exception_and_with_trust_its_attribute_is_a_model():
    assert "pass trust_code=True" in message("fringe.models._digits:digit_net", preprocessing=UNIT)
    model = load_model("fringe.models._digits:digit_net", trust_code=True, preprocessing=UNIT)
    assert model.digest == load_model("embedded:digits").digest


@pytest.mark.parametrize("spec", ["os:getcwd", "this:s", "builtins:print"])
def test_the_standard_library_is_not_a_model(spec):
    text = message(spec, preprocessing=UNIT)
    assert "pass trust_code=True" in text or "neither a family nor an installed module" in text


def test_an_instance_is_copied(monkeypatch):
    import fringe.models._digits as owner

    mine = nn.Linear(2, 2).train()
    monkeypatch.setattr(owner, "MINE", mine, raising=False)
    model = load_model("fringe.models._digits:MINE", trust_code=True, preprocessing=UNIT)
    assert mine.training
    assert mine.weight.requires_grad
    assert not model.module.training


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(4, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.linear(x.flatten(1)))


def export(module, path, free=True, most=None, decomposed=False):
    shapes = ({0: torch.export.Dim("batch", max=most)},) if free else None
    program = torch.export.export(module, (torch.zeros(2, 1, 2, 2),), dynamic_shapes=shapes)
    torch.export.save(program.run_decompositions() if decomposed else program, path)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_a_model_takes_the_images_that_it_prepares(code, dtype):
    code.write_text(f"{CODE}\ndef net():\n    return small().to(torch.{dtype})\n")
    model = load_model(f"{code}:net", trust_code=True, preprocessing=UNIT)
    assert model.module(torch.zeros(2, 1, 2, 2)).dtype == torch.float32
    assert model.digest != load_model(f"{code}:small", trust_code=True, preprocessing=UNIT).digest


def test_an_exported_program_gives_the_same_numbers(tmp_path):
    net = Tiny().eval()
    export(net, tmp_path / "tiny.pt2")
    spec = str(tmp_path / "tiny.pt2")
    assert "read by torch.export.load, which unpickles parts of it and so can run code" in message(spec)
    assert "does not say how images are prepared" in message(spec, trust_code=True)
    model = load_model(spec, trust_code=True, preprocessing=UNIT)
    x = torch.randn(5, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.module.train().eval()(x), net(x))
    assert model.architecture == "tiny"
    assert not model.module.training
    assert not any(module.training for module in model.module.modules())  # or each map warned of training mode


def test_an_exported_program_with_a_largest_batch_takes_more(tmp_path):
    net = Tiny().eval()
    export(net, tmp_path / "tiny.pt2", most=3)
    model = load_model(str(tmp_path / "tiny.pt2"), trust_code=True, preprocessing=UNIT)
    x = torch.randn(8, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.module(x), net(x))


def test_an_exported_program_that_cannot_be_explained(tmp_path):
    options = {"trust_code": True, "preprocessing": UNIT}
    export(Tiny().eval(), tmp_path / "fixed.pt2", free=False)
    assert "was exported for batches of exactly 2; export it again" in message(tmp_path / "fixed.pt2", **options)
    export(Tiny().train(), tmp_path / "noisy.pt2")
    assert "was exported in training mode (dropout)" in message(tmp_path / "noisy.pt2", **options)
    export(Tiny().train(), tmp_path / "pieces.pt2", decomposed=True)
    assert "was exported in training mode (native_dropout" in message(tmp_path / "pieces.pt2", **options)


def test_why_exported_programs_need_trust(tmp_path):
    """torch.export.load runs what a prepared archive hides among its sample inputs; load_model does not get there."""
    export(Tiny().eval(), tmp_path / "good.pt2")
    torch.save(Evil(tmp_path / "ran"), tmp_path / "payload")
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "evil.pt2", "w") as evil:
        for name in good.namelist():
            hidden = "sample_inputs" in name
            evil.writestr(name, (tmp_path / "payload").read_bytes() if hidden else good.read(name))
    message(tmp_path / "evil.pt2", preprocessing=UNIT)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".pkl", ".bin", ".safetensors"])
@pytest.mark.parametrize("form", ["raw", "torch"])
def test_a_malicious_pickle_is_never_executed(tmp_path, suffix, form):
    mark, path = tmp_path / "ran", tmp_path / f"weights{suffix}"
    if form == "raw":
        path.write_bytes(pickle.dumps(Evil(mark)))
    else:
        torch.save(Evil(mark), path)
    for spec in (str(path), f"fringe.models._digits:DigitNet@{path}"):
        text = message(spec, preprocessing=UNIT, trust_code=True)
    if suffix == ".safetensors":
        assert text == (
            f"{str(path)!r} is not a safetensors file: it looks like a pickle or a PyTorch archive, "
            "which are never read"
        )
    assert not mark.exists()
    pickle.loads(pickle.dumps(Evil(mark))).close()  # the payload itself works
    assert mark.exists()


def header(entries, path: Path, data=b""):
    text = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def digits_with(path):
    return message(f"fringe.models._digits:DigitNet@{path}", trust_code=True, preprocessing=UNIT)


def test_tensor_files_are_limited_before_they_are_read(tmp_path):
    path = tmp_path / "w.safetensors"
    header({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_001)}, path)
    assert digits_with(path).endswith("holds 20001 tensors; at most 20000 are read")
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 9 * 2**20) + b"{")
        os.truncate(path, 10 * 2**20)
    assert digits_with(path).endswith("has a header of 9437184 bytes; at most 8388608 are read")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, struct.pack("<Q", 2**60) + b"{}", b"x" * 100])
def test_tensor_files_with_a_broken_header(tmp_path, content):
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    assert digits_with(path).endswith("is not a safetensors file: its header is broken")


def test_tensor_files_with_lying_offsets(tmp_path):
    path = tmp_path / "w.safetensors"
    header({"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}, path, b"1234")
    assert "is not a valid safetensors file: " in digits_with(path)


def test_weights_must_fit_exactly(tmp_path):
    path, good = tmp_path / "w.safetensors", load_model("embedded:digits").module.state_dict()
    renamed = {("heads" + k[4:] if k.startswith("head.") else k): v for k, v in good.items()}
    save_file(renamed, path)
    assert digits_with(path) == (
        f"{str(path)!r} does not fit DigitNet: missing head.weight, head.bias; "
        "unexpected heads.bias, heads.weight; did you mean 'heads.weight'?"
    )
    save_file({**good, "head.bias": torch.zeros(7)}, path)
    assert digits_with(path).endswith("head.bias has shape (7,) in the file and (10,) in the model")
    save_file({k: v for k, v in good.items() if not k.startswith("features")}, path)
    assert "features.1.bias, features.1.running_mean and" in digits_with(path)
    assert "unexpected none" in digits_with(path)


def test_batch_counters_may_be_missing(tmp_path):
    good = load_model("embedded:digits").module
    path = tmp_path / "w.safetensors"
    save_file({k: v for k, v in good.state_dict().items() if "num_batches" not in k}, path)
    model = load_model(f"fringe.models._digits:DigitNet@{path}", trust_code=True, preprocessing=UNIT)
    x = torch.rand(2, 1, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.module(x), good(x))


def test_a_model_goes_by_its_label_or_by_the_file_with_its_function(tmp_path):
    assert load_model("embedded:digits").label == "digits"
    one = load_model("mine=embedded:digits")
    assert (one.label, one.architecture, one.spec) == ("mine", "digits", "embedded:digits")
    file = tmp_path / "my.net.py"
    file.write_text("import torch\n\ndef make():\n    return torch.nn.Flatten()\n")
    options = {"trust_code": True, "preprocessing": "unit"}
    assert load_model(f"{file}:make", **options).label == "net.make"
    assert load_model(f"mine={file}:make", **options).label == "mine"
    assert load_model(f"{file}:make", **options).architecture == "make"
