"""A preset file gives back what was tuned, and nothing that was not meant."""

import json

import pytest

from fringe import METHODS, FRInGe, InputError
from fringe.attribution import PaperFRInGe, preset_names, read_preset, write_preset

ABOUT = {
    "architecture": 'res"net\n18 ü',
    "weights": "sha256:ab",
    "objective": 0.1 + 0.2,
    "images": ["one", "two"],
    "trials": 7,
    "seed": 3,
    "version": "9.9",
}


@pytest.fixture
def path(tmp_path):
    """A preset of FRInGe for resnet18, in a folder that is made for it."""
    write_preset(tmp_path / "deep" / "p.json", PaperFRInGe.preset("resnet18"), ABOUT | {"architecture": "resnet18"})
    return tmp_path / "deep" / "p.json"


def edited(path, **changes):
    document = json.loads(path.read_text())
    for where, value in changes.items():
        *parts, last = where.split("__")
        place = document
        for part in parts:
            place = place[part]
        place[last] = value
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    "method",
    [
        *(METHODS[name]() for name in sorted(METHODS)),
        *(PaperFRInGe.preset(model) for model in preset_names()),
        PaperFRInGe.preset("vgg19", "euclidean"),
        FRInGe(reference=(0.25, 0.75), steps=12, halvings=0, delta_euc=1),
        FRInGe(reference=((0.1, 0.9), (0.75, 0.25)), damping=5e-324, tau=1 / 3),
    ],
)
def test_every_setting_comes_back(tmp_path, method):
    write_preset(tmp_path / "p", method, ABOUT)
    again, facts = read_preset(tmp_path / "p")
    assert again == method
    assert type(again) is type(method)
    assert repr(again) == repr(method)
    assert facts == ABOUT
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_a_preset_of_another_architecture_is_refused(path):
    with pytest.raises(InputError, match="was tuned for 'resnet18', not for 'vgg19'"):
        read_preset(path, "vgg19")
    assert read_preset(path, "resnet18") == read_preset(path)


def test_a_setting_that_is_missing_has_no_default(path):
    """Of a file that is older than the setting, today's default would not be what was tuned."""
    document = json.loads(path.read_text())
    del document["settings"]["cg_rtol"]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="setting of paper 'cg_rtol' is missing"):
        read_preset(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"settings__taau": 1.0}, r"setting of paper: got 'taau', expected one of tau, .*; did you mean 'tau'"),
        ({"settings__name": "fringe"}, "setting of paper: got 'name'"),
        ({"about__sed": 1}, r"about: got 'sed', expected .*; did you mean 'seed'\?"),
        ({"sttings": {}}, r"part: got 'sttings', expected .*; did you mean 'settings'\?"),
        ({"method": "frnge"}, r"method: got 'frnge', expected .*; did you mean 'fringe'\?"),
        ({"method": ["fringe"]}, r"method: got \['fringe'\], expected text"),
        ({"settings": []}, r"settings: got \[\], expected dict"),
        ({"format": "fringe preset 2"}, "is no preset: it does not say 'fringe preset 1'"),
        ({"settings__tau": "1e-3"}, "tau: got '1e-3', expected a positive number"),
        ({"about__images": "one"}, "about: images: got 'one', expected a list of texts"),
        ({"about__images": [1]}, r"about: images: got \[1\]"),
        ({"about__trials": 1.5}, "about: trials: got 1.5, expected a positive whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused(path, change, message):
    with pytest.raises(InputError, match=message) as caught:
        read_preset(edited(path, **change))
    assert str(path) in str(caught.value)


def test_a_part_that_is_missing_is_named(path):
    document = json.loads(path.read_text())
    del document["about"]["weights"]
    path.write_text(json.dumps(document))
    with pytest.raises(InputError, match="about 'weights' is missing"):
        read_preset(path)


@pytest.mark.parametrize("text", ["", "{", "[1]", "3", "\0"])
def test_a_file_that_is_no_preset(tmp_path, text):
    (tmp_path / "p").write_text(text)
    with pytest.raises(InputError, match=r"preset: .*/p (cannot be read|is no preset)"):
        read_preset(tmp_path / "p")
    with pytest.raises(InputError, match="cannot be read"):
        read_preset(tmp_path / "absent")


def test_a_method_that_is_not_registered_has_no_preset(tmp_path):
    class Own(FRInGe):
        name = "own"

    with pytest.raises(InputError, match="'own' is no registered method"):
        write_preset(tmp_path / "p", Own(), ABOUT)
    assert not list(tmp_path.iterdir())
