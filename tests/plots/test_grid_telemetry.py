"""The scores under the maps of a grid."""

import math

from fringe.plots._telemetry import Gauge, caption, short_number, telemetry


def gauges(*names, direction="higher"):
    return [Gauge(f"{name}:rise", name, name.title(), direction) for name in names]


def test_two_scores_stand_under_a_map():
    def chosen(found):
        return [gauge.short for gauge in telemetry(found)]

    assert chosen(gauges("infidelity", "mas_deletion", "insertion", "mas_insertion")) == ["MD", "MI"]
    steps = gauges("tracking_error_max", direction="none")
    assert chosen(steps + gauges("infidelity", "insertion", "deletion")) == ["Inf", "Ins"]
    assert chosen(steps + gauges("sparseness")) == ["Spa", "TEM"]
    assert chosen(gauges("mas_insertion")) == ["MI"]


def test_numbers_are_short():
    values = {0.434: ".43", -0.071: "-.07", 0.999: "1.00", 0.0: ".00", 1.25: "1.25", 12.3: "12", 2.5e6: "2e+06"}
    assert {value: short_number(value) for value in values} == values
    assert short_number(math.nan) == "–"


def test_the_best_of_an_image_is_marked():
    higher, lower, neither = (gauges("mas_insertion", direction=d)[0] for d in ("higher", "lower", "none"))
    values = [0.25, math.nan, 0.75, 0.75]
    assert [word.text for word in higher.words(values)] == ["MI .25", "MI –", "MI .75", "MI .75"]
    assert [word.best for word in higher.words(values)] == [False, False, True, True]
    assert [word.best for word in lower.words(values)] == [True, False, False, False]
    assert not any(word.best for word in neither.words(values))
    assert not any(word.best for word in higher.words([math.nan]))


def test_the_caption_says_which_way_is_better():
    both = [*gauges("insertion"), *gauges("mas_deletion", direction="lower")]
    assert caption(both) == "Ins Insertion ↑ · MD Mas_Deletion ↓; the best of an image is bold"
