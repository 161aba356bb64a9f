"""The class that a text names, and what is said where it names none or several."""

import pytest

from fringe._strings.class_names import class_names, resolve_class_name
from fringe.errors import InputError, TargetError

NAMES = (
    "tench, Tinca tinca",
    "goldfish, Carassius auratus",
    "tiger cat",
    "Siamese_cat, Siamese",
    "tiger, Panthera tigris",
    "crane",
    "Crane",
    "golden-retriever",
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("tench, Tinca tinca", 0),
        ("crane", 5),
        ("Crane", 6),
        ("Tiger Cat", 2),
        ("tiger", 4),  # the whole of a name between commas, though another begins with it
        ("CARASSIUS AURATUS", 1),
        ("siamese cat", 3),
        ("golden retriever", 7),
        ("golden_retr", 7),
        ("goldf", 1),
        ("tinca", 0),
        ("panthera", 4),
        ("tigris", 4),
    ],
)
def test_a_class_is_known_by_its_name(text, number):
    assert resolve_class_name(text, NAMES) == number


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cat", r"fits the classes 2 \(tiger cat\), 3 \(Siamese_cat, Siamese\); give the number of one"),
        ("CRANE", r"fits the classes 5 \(crane\), 6 \(Crane\)"),
        ("gold", r"fits the classes 1 \(goldfish, Carassius auratus\), 7 \(golden-retriever\)"),
        ("tiger kat", r"got 'tiger kat', which is no class of the model; did you mean 'tiger cat'\?"),
        ("ench", r"no class of the model; expected the number or name of a class"),
        ("", r"got '', which is no class of the model"),
        (", ", r"no class of the model"),
    ],
)
def test_a_text_that_names_no_class_or_several_is_told_the_candidates(text, message):
    with pytest.raises(TargetError, match=f"^target: got {text!r}.*{message}|^target: {message}"):
        resolve_class_name(text, NAMES)


def test_of_many_candidates_a_few_are_shown():
    with pytest.raises(TargetError, match=r"4 \(c 4\), \.\.\.; give the number"):
        resolve_class_name("c", [f"c {k}" for k in range(100)])


def test_without_names_there_is_only_the_number():
    with pytest.raises(TargetError, match="the model has no class names; give the number of a class"):
        resolve_class_name("cat", None)


def test_names_without_an_order_are_refused():
    """The order of a set of texts is another one in each process."""
    with pytest.raises(InputError, match=r"classes: got .*, expected a list: a set has no order"):
        class_names({"cat", "dog"})
    assert class_names({0: "cat", 1: "dog"}.values()) == ("cat", "dog")
    assert class_names({"cat": 1, "dog": 2}.keys()) == ("cat", "dog")


@pytest.mark.parametrize(("name", "text"), [("names.txt", "tench\r\ncrane\r\n"), ("names.json", '["tench", "crane"]')])
def test_a_file_of_windows_begins_with_a_mark(name, text, tmp_path):
    (tmp_path / name).write_bytes(text.encode("utf-8-sig"))
    assert class_names(tmp_path / name) == ("tench", "crane")


def test_a_class_may_be_called_by_a_sign():
    signs = ("+", "-", "_", "", "50 %")
    assert [resolve_class_name(sign, signs) for sign in ("+", "-", "_", "50 %")] == [0, 1, 2, 4]
    for text in ("", " ", "--"):
        with pytest.raises(TargetError, match="is no class of the model"):
            resolve_class_name(text, signs)


def test_several_classes_of_one_name_are_told_apart_by_their_numbers_alone():
    with pytest.raises(TargetError, match=r"fits the classes 0 \(cat\), 2 \(cat\); give the number of one$"):
        resolve_class_name("cat", ("cat", "dog", "cat"))
