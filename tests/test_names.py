"""The grammar of what people type: it reads what it prints, and prints what it read."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fringe._strings.names import (
    LABEL,
    Reference,
    read_list,
    read_pair,
    split_label,
    split_path,
    split_source,
    unique,
)
from fringe.attribution import METHODS, get_method
from fringe.baselines import parse_baseline
from fringe.bench.experiments import make_executor
from fringe.errors import FringeError, InputError
from fringe.metrics import get_metric
from fringe.models import load_model
from fringe.settings import canonical_name

NAMES = st.text(st.characters(exclude_characters="():"))
REFERENCES = st.builds(
    Reference, NAMES, st.none() | st.text(st.characters(exclude_characters="():")), st.none() | st.text()
)


@given(REFERENCES)
def test_a_reference_is_read_as_it_was_printed(reference):
    assert Reference.parse(str(reference)) == reference


@given(st.text() | st.text("a(3):=.@/ \n"))
def test_any_text_is_printed_as_it_was_read(text):
    assert str(Reference.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("ig", ("ig", None, None)),
        ("ig:paper", ("ig", None, "paper")),
        ("ig:", ("ig", None, "")),
        ("smooth(3):straight:fringe:fast", ("smooth", "3", "straight:fringe:fast")),
        ("smooth()", ("smooth", "", None)),
        ("torchvision:resnet50", ("torchvision", None, "resnet50")),
        ("ray:ray://host:1", ("ray", None, "ray://host:1")),
        ("https://a/b(1):c", ("https", None, "//a/b(1):c")),
        ("smooth(3)x:ig", ("smooth(3)x", None, "ig")),
        ("smooth(3:ig", ("smooth(3", None, "ig")),
    ],
)
def test_a_reference_has_these_parts(text, parts):
    assert Reference.parse(text) == Reference(*parts)


@given(
    st.lists(st.sampled_from(["smooth(2.5)", "straight", "smooth"]), max_size=3),
    st.sampled_from([f"{name}:{preset}" for name in ("ig", "fringe", "agi") for preset in METHODS[name].presets]),
)
def test_the_label_of_a_method_names_it_again(modifiers, name):
    """``label`` prints a method without its settings, and ``get_method`` reads it."""
    text = ":".join([*modifiers, name])
    assert canonical_name(text, METHODS) == text
    label = get_method(text).label
    assert get_method(label).label == label


@pytest.mark.parametrize(
    ("read", "text", "message"),
    [
        (parse_baseline, "blur(3):0.2", "got 'blur(3):0.2'"),
        (make_executor, "ray(3):auto", "got 'ray(3):auto'"),
        (get_metric, "quantus(3):pixel_flipping", "got 'quantus'"),
        (get_metric, "insertion(3)", "got 'insertion(3)', but insertion takes no number in brackets"),
        (get_method, "ig(3):paper", "got 'ig(3):paper', but ig takes no number in brackets"),
        (load_model, "embedded(3):digits", "'embedded(3):digits': 'embedded(3)' is neither a family nor"),
    ],
)
def test_a_number_is_refused_by_what_takes_none(read, text, message):
    with pytest.raises(FringeError, match=re.escape(message)):
        read(text)


@pytest.mark.parametrize(
    ("text", "rule", "parts"),
    [
        ("mine=torchvision:resnet50", LABEL, ("mine", "torchvision:resnet50")),
        ("/tmp/a=1/net.py:make", LABEL, ("", "/tmp/a=1/net.py:make")),
        (r"C:\nets\a=1.py:make", LABEL, ("", r"C:\nets\a=1.py:make")),
        ("https://host/a?b=c", LABEL, ("", "https://host/a?b=c")),
        ("hf:name@x=y", LABEL, ("", "hf:name@x=y")),
        (" my model = ig:paper ", "[^=]+", ("my model", "ig:paper")),
        ("twenty: steps=ig", "[^=]+", ("twenty: steps", "ig")),
        ("a=b=c", "[^=]+", ("a", "b=c")),
        ("=ig", "[^=]+", ("", "=ig")),
        (" =ig", "[^=]+", ("", "=ig")),
        ("ig=", "[^=]+", ("", "ig=")),
    ],
)
def test_a_label_stands_before_the_first_equals_sign(text, rule, parts):
    assert split_label(text, rule) == parts


@given(st.from_regex(LABEL, fullmatch=True), st.text(min_size=1).map(str.strip).filter(bool))
def test_a_label_is_read_as_it_was_printed(label, name):
    assert split_label(f"{label}={name}") == (label, name)


@given(st.text(st.characters(exclude_characters="=")).map(str.strip).filter(bool), st.text().map(str.strip))
def test_a_pair_is_read_as_it_was_printed(key, value):
    assert read_pair(f"{key}={value}", "set", "") == (key, value)


@pytest.mark.parametrize("text", ["tau", "=3", " = 3", ""])
def test_what_is_no_pair_is_an_error_that_says_what_to_write(text):
    with pytest.raises(InputError, match=re.escape(f"set: got {text!r}, expected KEY=VALUE, such as tau=1")):
        read_pair(text, "set", "KEY=VALUE, such as tau=1")


def test_a_key_may_stand_alone_where_that_is_allowed():
    assert read_pair(" tau ", "search", "", alone=True) == ("tau", "")
    with pytest.raises(InputError, match="search: got '=1', expected KEY"):
        read_pair("=1", "search", "KEY", alone=True)


def test_the_label_of_a_path_may_have_dots():
    assert split_path("smooth(2.5):ig.of . steps") == ("smooth(2.5):ig.of", "steps")
    assert split_path("steps") == ("", "steps")


def test_the_source_of_a_name_may_have_colons():
    assert split_source(r"C:\net.py:make") == (r"C:\net.py", "make")
    assert split_source("package.module:attribute") == ("package.module", "attribute")
    assert split_source("make") == ("", "make")


def test_a_list_has_commas_between_its_names():
    assert read_list(" ig, ,fringe:fast,") == ["ig", "fringe:fast"]
    assert read_list(None) == []


def test_names_that_are_given_twice_are_all_named():
    assert unique([("a", 1), ("b", 2)], "methods") == {"a": 1, "b": 2}
    with pytest.raises(InputError, match=r"^methods: a, b given twice; give labels$"):
        unique([("b", 1), ("a", 1), ("b", 1), ("a", 2)], "methods", "give labels")
