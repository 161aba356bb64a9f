"""Names of settings: the same for the same content, another for any other; and differences as people read them."""

import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fringe import METHODS, METRICS, InputError, IntegratedGradients, Smooth, Sparseness
from fringe._files.records import changes, describe_changes, digest
from fringe.attribution import read_target
from fringe.bench.experiments import ExperimentSpec, build_plan, resolve, run_experiment
from fringe.bench.experiments._manifest import SCHEMA, map_setting
from fringe.bench.experiments._plan import written_code
from fringe.metrics._perturbation import RankingMetric
from fringe.models import run_file

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
words = st.sampled_from("abc")
records = st.dictionaries(words, words | st.integers(0, 2) | st.dictionaries(words, words, max_size=2), max_size=3)


def backwards(data):
    """The same data with every mapping's names in the opposite order, and tuples for lists."""
    if isinstance(data, dict):
        return {name: backwards(data[name]) for name in reversed(list(data))}
    return tuple(map(backwards, data)) if isinstance(data, list) else data


@settings(max_examples=25)
@given(plain)
def test_a_digest_depends_on_content_alone(data):
    assert digest(data) == digest(json.loads(json.dumps(data))) == digest(backwards(data))


def test_what_a_digest_tells_apart():
    """A number's sign, its kind and its last bit are part of it: they are other settings, if of the same value."""
    data = [0.0, -0.0, 0, False, None, "", "0", [], {}, [0], 0.1, 0.1 + 2**-56, 1e16, 10**16, "é", "e\u0301"]
    assert len({digest(one) for one in data}) == len(data)


def test_a_digest_is_the_sha_256_of_canonical_json():
    data = {"b": [1, 0.5, None], "a": {"é": True}}
    text = '{"a":{"\\u00e9":true},"b":[1,0.5,null]}'
    assert digest(data) == hashlib.sha256(text.encode()).hexdigest()[:32]
    with pytest.raises(TypeError):
        digest({1, 2})


GIVEN = {
    "model": {"weights": "w", "preprocessing": {"resize": (8, 8)}},
    "method": {"method": "ig", "steps": 50},
    "target": "predicted",
    "score": "logit",
    "seed": 0,
    "references": ("a", "b"),
}
SETTING = map_setting(**GIVEN)
OTHER = {
    "model": {"weights": "w", "preprocessing": {"resize": (8, 9)}},
    "method": {"method": "ig", "steps": 51},
    "target": 3,
    "score": "log_probability",
    "seed": 1,
    "references": ("b", "a"),
}


def test_every_part_is_in_the_key():
    assert set(OTHER) | {"dtype", "schema"} == set(SETTING)
    keys = [digest(map_setting(**{**GIVEN, name: value})) for name, value in OTHER.items()]
    keys.append(digest(map_setting(**{**GIVEN, "references": None})))
    keys += [digest({**SETTING, "dtype": "float64"}), digest({**SETTING, "schema": SCHEMA + 1})]
    assert len({digest(SETTING), *keys}) == len(keys) + 1


def test_stored_maps_keep_their_names():
    """A key of runs that exist: it changes with SCHEMA alone."""
    assert digest(SETTING) == "4364b6408c94d06f7f3cc0c36ea8846e"
    assert json.loads(json.dumps(SETTING)) == SETTING
    assert digest(map_setting(**{**GIVEN, "method": {"steps": 50, "method": "ig"}})) == digest(SETTING)


def test_changes_are_told_by_leaf():
    old = {"method": {"tau": 0.003, "solver": {"steps": 8}}, "seed": 0, "gone": [1], "same": {"a": None}}
    new = {"method": {"tau": 0.005, "solver": {"steps": 8, "tol": 0.1}}, "seed": 0, "same": {"a": None}, "new": "x"}
    assert changes(old, new) == [
        "method.tau: 0.003, now 0.005",
        "method.solver.tol: absent, now 0.1",
        "gone: [1], now absent",
        "new: absent, now x",
    ]
    assert changes(new, new) == []
    lines = changes({"model": 1, "method": {"tau": 1, "method": "fringe"}}, {"model": 2, "method": {"method": "ig"}})
    assert describe_changes(lines, most=2) == "method: fringe, now ig; model: 1, now 2; and 1 more"
    assert changes({"a": {"b": 1}}, {"a": 3}) == ['a: {"b": 1}, now 3']


def test_long_changes_are_told_apart_though_cut():
    before, now = [0] * 60 + [1], [0] * 60 + [2]
    (line,) = changes({"images": before}, {"images": now})
    first, second = line.removeprefix("images: ").split(", now ")
    assert first != second
    assert len(line) < 120
    assert digest(before)[:8] in first


@given(records, records)
def test_no_change_means_the_same_record(old, new):
    lines = changes(old, new)
    assert bool(lines) == (old != new)


def test_numbers_that_are_equal_and_named_apart_are_a_change():
    assert digest({"sigma": 3}) != digest({"sigma": 3.0})
    assert changes({"sigma": 3}, {"sigma": 3.0}) == ["sigma: 3, now 3.0"]


class OtherGradients(IntegratedGradients):
    """Another method under the name of its base class."""


class OtherSparseness(Sparseness):
    """Another metric under the name of its base class."""


@pytest.mark.parametrize(
    ("methods", "metrics", "message"),
    [
        ([("a", IntegratedGradients()), ("b", OtherGradients())], "sparseness", "methods: a and b have one name"),
        ([("a", Smooth(OtherGradients())), ("b", Smooth(IntegratedGradients()))], "sparseness", "methods: a and b"),
        ("ig", [("a", Sparseness()), ("b", OtherSparseness())], "metrics: a and b have one name and the same settings"),
        ([("a", IntegratedGradients()), ("b", OtherGradients(steps=3))], "sparseness", None),
        ([("a", IntegratedGradients()), ("b", IntegratedGradients())], "sparseness", None),
    ],
)
def test_two_classes_of_one_name_do_not_share_their_scores(methods, metrics, message):
    plan = build_plan(ExperimentSpec(data="embedded:digits", methods=methods, metrics=metrics, n=1))
    if message is None:
        assert set(plan.models[0].methods) <= set(next(iter(resolve(plan).manifest.settings.values())))
        return
    with pytest.raises(InputError, match=message):
        resolve(plan)


OWN = """
from dataclasses import dataclass
from fringe.attribution import Attributor, gradient_attribution
from fringe.metrics import Metric, Scores

@dataclass(frozen=True)
class Own(Attributor):
    name = title = "own"
    is_complete = False

    def attribute(self, problem):
        return gradient_attribution(self, {sign} * problem.inputs, problem, {{}}, "no sum")

def function(model, inputs, target):
    return {sign} * inputs

@dataclass(frozen=True)
class Total(Metric):
    name = title = space = source = "total"
    direction = "higher"

    def score(self, maps):
        return Scores({factor} * maps.values.double().sum((1, 2, 3)))
"""


def test_results_of_an_own_method_or_metric_are_made_again_when_its_code_changes(tmp_path):
    """Settings are not all that shapes its numbers; the library's own classes keep their keys."""
    sums = []
    for sign, factor in ((1, 1), (-1, 1), (-1, 3)):
        file = tmp_path / "own.py"
        file.write_text(OWN.format(sign=sign, factor=factor))
        own = run_file(file)
        methods = {"class": own.Own(), "function": read_target(own.function)}
        spec = ExperimentSpec(data=("embedded:digits",), methods=methods, metrics={"total": own.Total()}, n=1)
        results = run_experiment(spec, tmp_path / "run", executor="serial")
        sums.append([float(results.scores("digits", name, "total")[0]) for name in methods])
    assert sums[0][0] != 0
    assert sums == [pytest.approx([times * sums[0][0]] * 2, rel=1e-6) for times in (1, -1, -3)]
    kinds = [kind for kind in (*METHODS.values(), *METRICS.values()) if not issubclass(kind, RankingMetric)]
    assert {written_code(kind()) for kind in kinds} == {None}
