"""The paper's tables: every cell of the files, under our names."""

import csv
import math
from collections import Counter
from importlib import resources

import pytest

from fringe import METHODS, METRICS
from fringe.bench.paper._studies import CAPPED, UNCAPPED, VARIANTS
from fringe.bench.paper._tables import MODELS, paper_tables

TABLES = ("ablation", "comparison", "euclidean_cap", "max_sensitivity", "runtime")


def cells(study):
    return {(c.model, c.method, c.metric): (c.value, c.half) for c in paper_tables() if c.study == study}


def shipped(name):
    return resources.files("fringe.bench.paper").joinpath("tables", f"{name}.csv").read_bytes()


@pytest.mark.shared
@pytest.mark.parametrize("name", TABLES)
def test_the_shipped_tables_are_the_papers_byte_for_byte(shared, name):
    assert shipped(name) == (shared / "paper" / f"{name}.csv").read_bytes()


def test_every_cell_is_there_once():
    counts = Counter(cell.study for cell in paper_tables())
    six = len(MODELS)
    assert counts == {
        "comparison": six * 6 * 8,
        "ablation": six * 6 * 3,
        "cap": 40,  # five networks: the paper's study leaves Inception-v3 out
        "max_sensitivity": six * 2,
        "runtime": six * 3,
    }
    names = [(c.study, c.model, c.method, c.metric) for c in paper_tables()]
    assert len(set(names)) == len(names)
    assert {method for study, _, method, _ in names if study != "cap"} <= {*METHODS, *VARIANTS}
    assert {method for study, _, method, _ in names if study == "cap"} <= {CAPPED, UNCAPPED}
    assert {metric for study, *_, metric in names if study != "runtime"} <= set(METRICS)


def test_every_number_of_the_files_is_a_value_or_a_half():
    ours = Counter(number for c in paper_tables() for number in (c.value, c.half) if not math.isnan(number))
    theirs = Counter()
    for name in TABLES:
        for row in csv.DictReader(shipped(name).decode().splitlines()):
            theirs.update(float(text) for text in row.values() if text[:1].isdigit())
    assert ours == theirs


def test_spot_values():
    comparison = cells("comparison")
    assert comparison["inception_v3", "fringe", "mas_insertion"] == (0.761, 0.009)
    assert comparison["inception_v3", "geoig_svi", "mas_deletion"] == (0.469, 0.016)
    assert comparison["inception_v3", "guided_ig", "deletion"] == (0.242, 0.013)
    assert cells("ablation")["resnet18", "fisher_rao_unregularized", "mas_deletion"] == (0.330, 0.012)
    assert cells("ablation")["resnet50", "euclidean", "insertion"] == (0.415, 0.014)
    cap = cells("cap")
    assert cap["vgg19", "no_cap", "completeness_residual"] == (0.258, 0.360)
    assert cap["resnet18", "cap", "tracking_error_max"] == (0.977, 0.015)
    assert cells("max_sensitivity")["vgg19", "ig", "max_sensitivity"] == (0.0678, 0.0126)
    runtime = cells("runtime")
    assert runtime["resnet152", "fringe", "seconds"] == (319.21, 2.89)
    assert runtime["resnet152", "ig", "seconds"] == (15.28, 0.01)
    assert runtime["resnet152", "fringe", "slowdown"][0] == 20.9
    assert math.isnan(runtime["resnet152", "fringe", "slowdown"][1])


def test_the_papers_slowdowns_are_the_ratios_of_its_seconds():
    runtime = cells("runtime")
    for model in MODELS:
        ratio = runtime[model, "fringe", "seconds"][0] / runtime[model, "ig", "seconds"][0]
        assert ratio == pytest.approx(runtime[model, "fringe", "slowdown"][0], abs=0.1)  # of rounded numbers
