"""Settings of methods and metrics: what a field takes, how texts and records become settings, and what is refused."""

import dataclasses
import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
import torch
from annotated_types import Ge, Le
from pydantic import Field
from torch import nn

from fringe import METHODS, METRICS, FRInGe, InputError, attribute
from fringe.attribution import SmoothGrad
from fringe.settings import (
    Doc,
    Fraction,
    NotNegative,
    Options,
    Positive,
    PositiveFraction,
    PositiveInt,
    PositiveOddInt,
    Search,
    Settings,
    _by_spelling,
    canonical_name,
    checked_by,
    settings_of,
)


def no_x(text):
    if text == "x":
        raise InputError("got 'x', which is taken", argument="text")


@dataclass(frozen=True)
class Toy(Settings):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "Toy of Settings"
    record_key: ClassVar[str] = "method"
    presets: ClassVar = {"large": {"real": 10.0}, "wrong": {"real": -1.0}}

    real: Annotated[Positive, Search(0.5, 8.0, log=True), Doc("a real number", unit="nats")] = 1.0
    least: NotNegative = 0.0
    share: Fraction = 0.5
    part: PositiveFraction = 0.5
    count: Annotated[PositiveInt, Search(1, 9), Doc("how many")] = 3
    width: PositiveOddInt = 3
    flag: bool = False
    kind: Annotated[Literal["a", "b"], Doc("which")] = "a"
    either: Annotated[Positive | Literal["auto"] | None, Search(1.0, 2.0)] = "auto"
    row: tuple[float, ...] | tuple[tuple[float, ...], ...] | None = None
    text: Annotated[str, checked_by(no_x)] = "y"


@dataclass(frozen=True)
class Plain(Settings):
    """A class of somebody else: annotations without bounds, and checks of its own."""

    name: ClassVar[str] = "plain"
    record_key: ClassVar[str] = "method"
    steps: int = 4
    share: float = 0.5

    def __post_init__(self):
        if self.share > 1:
            raise InputError("share: too large")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"real": 0.0}, r"real: got 0\.0, expected a positive number \(usually 0\.5 to 8 nats\)"),
        ({"real": "1"}, "real: got '1', expected a positive number"),
        ({"real": True}, "real: got True, expected a positive number"),
        ({"real": float("nan")}, "real: got nan"),
        ({"real": float("inf")}, "real: got inf"),
        ({"real": None}, "real: got None"),
        ({"least": -1e-9}, "least: got -1e-09, expected a number of at least 0$"),
        ({"share": 1.01}, "share: got 1.01, expected a number of at least 0 and of at most 1$"),
        ({"part": 0}, "part: got 0, expected a positive number of at most 1$"),
        ({"count": 2.0}, "count: got 2.0, expected a positive whole number"),
        ({"count": True}, "count: got True, expected a positive whole number"),
        ({"count": np.int64(2)}, "count: got .*2.*, expected a positive whole number"),
        ({"width": 4}, "width: got 4, expected a positive odd whole number$"),
        ({"flag": 1}, "flag: got 1, expected true or false$"),
        ({"kind": "c"}, "kind: got 'c', expected one of a, b$"),
        ({"either": "wide"}, "either: got 'wide', expected a positive number, auto or none"),
        ({"row": (0.5, "a")}, "row: got .*, expected numbers with commas between them, lists of numbers or none$"),
        ({"text": "x"}, "^text: got 'x', which is taken$"),
        ({"text": 3}, "text: got 3, expected text$"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_expected(changes, message):
    with pytest.raises(InputError, match=message) as caught:
        Toy(**changes)
    assert caught.value.argument == next(iter(changes))


def test_a_value_is_recorded_as_it_was_given():
    toy = Toy(real=2, least=0, share=1, part=1, either=None, row=((1, 2.5),))
    text = json.dumps(toy.record())
    assert json.dumps(Toy.from_record(json.loads(text)).record()) == text
    assert '"real": 2, "least": 0, "share": 1, "part": 1' in text
    assert Toy.from_record(json.loads(text)) == toy


@pytest.mark.parametrize("kind", [*METHODS.values(), *METRICS.values()], ids=lambda kind: kind.name)
def test_every_preset_is_made_again_from_its_record(kind):
    for made in (kind(), *(kind.preset(name) for name in kind.presets)):
        record = json.loads(json.dumps(made.record()))
        assert kind.from_record(record) == made
        assert json.dumps(kind.from_record(record).record()) == json.dumps(made.record())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"method": "toys"}, "record: got that of 'toys', expected that of 'toy'"),
        ({"method": "toy", "reel": 1.0}, "toy has no setting 'reel'; did you mean 'real'"),
        ({"real": "1"}, "real: got '1'"),
    ],
)
def test_a_record_of_something_else_is_refused(record, message):
    with pytest.raises(InputError, match=message):
        Toy.from_record(record)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("real", "1e-2", 0.01),
        ("real", "2", 2.0),
        ("count", "7", 7),
        ("flag", "true", True),
        ("kind", "b", "b"),
        ("either", "none", None),
        ("either", "auto", "auto"),
        ("either", "2", 2.0),
        ("row", "0.5,1", (0.5, 1.0)),
        ("row", "[[0.5, 1], [1, 0]]", ((0.5, 1.0), (1.0, 0.0))),
        ("row", "None", None),
        ("text", "none", "none"),
    ],
)
def test_a_text_becomes_a_value_of_the_annotated_type(name, text, value):
    result = getattr(Toy().with_text({name: text}), name)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"reel": "1"}, r"toy has no setting 'reel'; did you mean 'real'\? Its settings: real, least"),
        ({"zzz": "1"}, r"toy has no setting 'zzz'; its settings: real, least"),
        ({"real": "-1"}, "real: got '-1', expected a positive number"),
        ({"real": "nan"}, "real: got 'nan'"),
        ({"count": "2.5"}, "count: got '2.5', expected a positive whole number"),
        ({"row": "[0.5"}, r"row: got '\[0.5'"),
        ({"flag": "maybe"}, "flag: got 'maybe', expected true or false"),
        ({"text": "x"}, "text: got 'x', which is taken"),
    ],
)
def test_a_text_that_cannot_be_meant_is_explained(texts, message):
    with pytest.raises(InputError, match=message):
        Toy().with_text(texts)


def test_texts_leave_the_other_settings():
    base = Toy(real=2, kind="b")
    assert base.with_text({"count": "5"}) == dataclasses.replace(base, count=5)


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (FRInGe(), "FRInGe()"),
        (FRInGe(tau=0.02), "FRInGe(tau=0.02)"),
        (Toy(count=4, kind="b"), "Toy(count=4, kind='b')"),
    ],
)
def test_what_differs_from_the_default_is_printed(method, text):
    assert repr(method) == text


def test_a_setting_without_a_default_is_printed():
    @dataclass(frozen=True)
    class Needs(Settings):
        real: Positive

    assert repr(Needs(real=2.0)) == "Needs(real=2.0)"


def test_presets():
    assert Toy.preset("large") == Toy(real=10.0)
    with pytest.raises(InputError, match=r"preset: toy has no 'larger'; did you mean 'large'\? Known: large, wrong"):
        Toy.preset("larger")
    with pytest.raises(InputError, match=r"real: got -1.0"):
        Toy.preset("wrong")


def test_a_description_is_plain_data():
    described = {entry["name"]: entry for entry in Toy.describe()}
    assert list(described) == [field.name for field in dataclasses.fields(Toy)]
    assert described["real"] == {
        "name": "real",
        "default": 1.0,
        "expected": "a positive number (usually 0.5 to 8 nats)",
        "low": 0.5,
        "high": 8.0,
        "log": True,
        "choices": None,
        "unit": "nats",
        "help": "a real number",
    }
    assert described["kind"]["choices"] == ("a", "b")
    assert described["either"]["choices"] is None
    assert list(Toy.search_space()) == ["real", "count", "kind", "either"]
    json.dumps(Toy.describe())


def test_the_outer_help_of_an_annotation_counts():
    """A method words the help of a shared annotation, such as that of a baseline, in its own way."""
    help_of = {kind.name: {entry["name"]: entry["help"] for entry in kind.describe()} for kind in METHODS.values()}
    assert help_of["ig"]["baseline"].startswith("where the path begins: zero")


def test_a_class_without_bounds_keeps_working():
    assert Plain(steps=2, share=1).record() == {"method": "plain", "steps": 2, "share": 1}
    assert Plain().with_text({"share": "1"}) == Plain(share=1.0)
    assert [setting.expected for setting in settings_of(Plain).values()] == ["a whole number", "a number"]
    with pytest.raises(InputError, match="share: too large"):
        Plain(share=2.0)
    with pytest.raises(InputError, match="share: too large"):
        Plain().with_text({"share": "2"})


@pytest.mark.parametrize("name", ["toy", "TOY", " t-o_y", "toy of settings", "ToyOfSettings", "Toy"])
def test_a_class_is_found_by_its_name_its_title_or_what_python_calls_it(name):
    assert _by_spelling(name, {"toy": Toy, "plain": Plain}) is Toy
    assert canonical_name(f"{name}:large", {"toy": Toy, "plain": Plain}) == "toy:large"


def test_a_class_is_suggested_by_what_resembles_its_name():
    with pytest.raises(InputError, match=r"method: got 'to'; did you mean 'toy'\? Known methods: toy, plain"):
        _by_spelling("to", {"toy": Toy, "plain": Plain})
    with pytest.raises(InputError, match=r"got 'zzz'; known methods: toy"):
        _by_spelling("zzz", {"toy": Toy})
    assert canonical_name("zzz:large", {"toy": Toy}) == "zzz:large"


def test_a_plus_is_part_of_a_name():
    """Grad-CAM++ is another method than Grad-CAM."""
    with pytest.raises(InputError, match=r"method: got 'gradcam\+\+'; did you mean 'gradcam'"):
        _by_spelling("gradcam++", METHODS)


@pytest.mark.parametrize("registry", [METHODS, METRICS], ids=["methods", "metrics"])
def test_no_spelling_means_two_methods_or_metrics(registry):
    """Names, classes and titles, without case and separators, are those of one class each."""
    owners: dict[str, set[str]] = {}
    for name, kind in registry.items():
        for called in (name, kind.__name__, *kind.title.split(":")):
            plain = "".join(letter for letter in called.lower() if letter.isalnum())
            owners.setdefault(plain, set()).add(name)
            for spelled in (called, called.upper(), called.replace(" ", "_"), called.replace("_", "-"), plain):
                assert _by_spelling(spelled, registry) is kind, spelled
    assert all(len(names) == 1 for names in owners.values())


HUGE = (1e300, -1e300, 2**63, 2**200, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("kind", [*METHODS.values(), *METRICS.values()], ids=lambda kind: kind.name)
def test_a_number_that_no_tensor_holds_is_refused_by_name(kind):
    numeric = [setting for setting in settings_of(kind).values() if {int, float} & set(setting.types)]
    for setting, value, text in itertools.product(numeric, HUGE, (False, True)):
        if text and value == 2**63 and float in setting.types:  # which is read as 9.2e18
            continue
        with pytest.raises(InputError, match=rf"^{setting.name}: got '?{re.escape(repr(value))}'?, expected "):
            setting.check(repr(value) if text else value, text=text)


@pytest.mark.parametrize("kind", [*METHODS.values(), *METRICS.values()], ids=lambda kind: kind.name)
def test_a_value_that_makes_no_sense_is_refused_by_the_name_of_its_setting(kind):
    for name, setting in settings_of(kind).items():
        whole, real = int in setting.types, float in setting.types
        wrong = ["no such"] if name not in ("of", "layer") else []  # names of a method, of modules
        wrong += [math.nan, -1] if whole or real else []
        wrong += [2.5] if whole and not real else []
        wrong += [0] if whole and not real and name != "halvings" else []  # 0: the trapezoid rule
        for value in wrong:
            with pytest.raises(InputError, match=f"^{name}: got "):
                kind(**{name: value})


@pytest.mark.parametrize("value", [1e-300, 1e-39])
def test_a_step_so_small_that_steps_cannot_be_counted_is_refused(value):
    with pytest.raises(InputError, match=r"^tau: got 1e-\d+, expected at least 1e-37"):
        FRInGe(tau=value)
    assert FRInGe(tau=1e-37).planned_passes > 1e18


def test_the_largest_noise_gives_a_finite_map():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh())
    found = attribute(model.eval(), torch.ones(1, 1, 2, 2), method=SmoothGrad(sigma=1e30, samples=4))
    assert found.values.isfinite().all()


class Few(Options):
    """Options of every kind of type."""

    count: int = Field(1, ge=1)
    share: Annotated[float, Ge(0), Le(1)] = 0.5
    size: Literal["auto"] | PositiveInt = "auto"
    mode: Literal["fast", "slow"] = "fast"
    names: tuple[str, ...] = ()
    file: Path | None = None
    flag: bool = False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"count": 0}, "count: got 0, expected a whole number of at least 1"),
        ({"count": "x"}, "count: got 'x', expected a whole number of at least 1"),
        ({"share": 2}, "share: got 2, expected a number of at least 0 and of at most 1"),
        ({"size": 0}, "size: got 0, expected auto or a positive whole number"),
        ({"mode": "x"}, "mode: got 'x', expected one of fast, slow"),
        ({"names": 3}, "names: got 3, expected a list of texts"),
        ({"file": 3}, "file: got 3, expected text or none"),
        ({"flag": "x"}, "flag: got 'x', expected true or false"),
        ({"flags": True}, "unknown field 'flags'; did you mean 'flag'? The fields: count, share"),
    ],
)
def test_options_say_what_they_take_in_the_words_of_settings(given, message):
    with pytest.raises(InputError) as caught:
        Few(**given)
    assert str(caught.value).startswith(message)
