"""What a verdict is worth: tables of which the answer is known, and the record that may be printed from."""

import dataclasses
import json

import numpy as np
import pytest
import torch
import verdict_worlds as worlds

import fringe
from fringe._text import to_json
from fringe.errors import InputError
from fringe.experiments import judge_verdicts, read_reliability, reliability_for
from fringe.models import load_model


@pytest.fixture(scope="module")
def calibrated():
    return judge_verdicts(worlds.results(worlds.world()))


@pytest.fixture
def written(calibrated, tmp_path):
    path = tmp_path / "reliability.json"
    path.write_text(to_json(calibrated.record()))
    return path


def attribution(residual, kl=1.0, verdict="ok", settings=None):
    """Maps of FRInGe with these reports."""
    n = len(residual)
    reports = {"endpoint_kl": kl, "tracking_error_mean": 0.5, "tracking_error_max": 1.0}
    diagnostics = {name: torch.full((n,), value) for name, value in reports.items()}
    zero = torch.zeros(n)
    return fringe.Attribution(
        values=torch.zeros(n, 1, 2, 2),
        target=torch.zeros(n, dtype=torch.int64),
        score=zero,
        endpoint_score=zero,
        completeness_gap=zero,
        completeness_residual=torch.tensor(residual, dtype=torch.float64),
        verdict=(verdict,) * n,
        advice=("complete within 1.0%",) * n,
        diagnostics=diagnostics,
        settings=fringe.FRInGe().record() if settings is None else settings,
    )


def test_calibrated_reports_hold_and_give_the_probability_of_the_world(calibrated):
    assert calibrated.holds
    assert calibrated.maps == 1200
    assert calibrated.skipped == 0
    assert [maps for maps, _ in calibrated.scenes.values()] == [300] * 4
    residual = [1e-5, 1e-3, 1e-2, 1e-1, 10.0]
    expected = worlds.sigmoid(-worlds.SLOPE * np.log10(residual) + worlds.OFFSET)
    assert calibrated.probability(attribution(residual)) == pytest.approx(expected, abs=0.12)
    by_verdict = {share.verdict: share for share in calibrated.shares}
    assert list(by_verdict) == ["ok", "short", "coarse", "stalled"]
    assert by_verdict["ok"].right > by_verdict["ok"].low > by_verdict["coarse"].high
    assert sum(share.maps for share in calibrated.shares) == 1200


def test_labels_without_a_relation_to_the_reports_do_not_hold():
    one = judge_verdicts(worlds.results(worlds.world(labels=lambda right, rng: rng.permutation(right))))
    assert not one.holds
    assert "no better than the share of right maps" in one.reported.faults


def test_a_scene_that_disagrees_makes_it_fail_and_is_named():
    one = judge_verdicts(worlds.results(worlds.world(of_scene=[0.0, 0.0, 0.0, -5.0])))
    assert not one.holds
    assert "it is wrong on" in one.reported.faults
    assert "scene3" in one.reported.faults


def test_scenes_that_err_in_opposite_directions_do_not_hold():
    """Pooled over the scenes the diagram may look right: each left-out scene has to."""
    one = judge_verdicts(worlds.results(worlds.world(of_scene=[1.5, -1.5, 1.5, -1.5])))
    judged = one.reported.judgement
    assert not one.holds
    assert not any(each.holds for each in judged.scenes.values())


def test_two_scenes_are_too_few():
    one = judge_verdicts(worlds.results(worlds.world(scenes=2)))
    assert not one.holds
    assert "2 scenes were left out, at least 3 are needed" in one.reported.faults


def test_scenes_that_are_right_by_a_theorem_and_failed_gates_do_not_count():
    known = worlds.world(n=60, networks=2)
    names = ["difull", "a", "b", "region"]
    one = judge_verdicts(worlds.results(known, names=names, failed=("b-1",)))
    assert {scene: maps for scene, (maps, _) in one.scenes.items()} == {"a": 120, "b": 60}
    assert judge_verdicts(worlds.results(known, names=names, failed=("a-0", "a-1", "b-0", "b-1"))) is None


def test_maps_that_are_all_right_are_not_judged():
    one = judge_verdicts(worlds.results(worlds.world(n=20, labels=lambda right, _: np.ones_like(right))))
    assert not one.holds
    assert "got 80 right maps of 80" in one.reported.faults


@pytest.mark.parametrize(
    ("mass", "rank", "edge", "is_right"),
    [
        (0.25, 0.25, 0.25, False),  # chance
        (0.33, 0.25, 0.25, True),  # a tenth of the way from chance to 1 is .325
        (0.32, 0.25, 0.25, False),
        (0.50, 0.25, 0.60, False),  # a blind map is better
        (0.50, 0.25, 0.50, False),
        (0.25, 0.63, 0.90, True),  # half of the way from chance to 1 is .625, whatever a blind map does
        (0.25, 0.62, 0.25, False),
        (None, 0.25, 0.25, False),  # a map without positive mass
    ],
)
def test_when_a_map_is_right(mass, rank, edge, is_right):
    known = worlds.world(n=1, scenes=1)
    about = worlds.manifest(known)
    scores = {("fringe", "mass_inside"): mass, ("fringe", "rank_accuracy"): rank, ("edge", "mass_inside"): edge}
    rows = {
        key: dataclasses.replace(row, score=scores.get((row.method, row.metric), row.score))
        for key, row in worlds.records(known, about).items()
    }
    one = judge_verdicts(worlds.results_from(about, rows))
    assert one.scenes == {"scene0": (1, int(is_right))}


def test_maps_without_a_score_or_anything_to_explain_are_counted_apart():
    known = worlds.world(n=40)
    known["verdict"][:3] = "at_reference"
    about = worlds.manifest(known)
    rows = {
        key: dataclasses.replace(row, status="diverged", score=None) if row.image_id == "scene1-0" else row
        for key, row in worlds.records(known, about).items()
    }
    one = judge_verdicts(worlds.results_from(about, rows))
    assert one.skipped == 4
    assert one.maps == 156


def test_the_stability_is_a_model_of_its_own():
    one = judge_verdicts(worlds.results(worlds.world(stability=True)))
    assert not one.holds  # the reports of a map do not tell
    assert one.stable.holds
    assert one.stability["metric"] == "max_sensitivity"
    some = attribution([0.01, 0.01])
    low, high = one.probability(some, stability=[10.0, 0.1])
    assert (low, high) == pytest.approx(worlds.sigmoid([-2.5, 2.5]), abs=0.08)
    with pytest.raises(InputError, match="reliability: the probability does not hold"):
        one.probability(some)


def test_networks_of_a_scene_widen_the_intervals():
    """Two networks that are right in all cases and in none: one more training may be either."""
    known = worlds.world(n=100, networks=2, labels=lambda right, _: np.arange(len(right)) // 100 % 2 == 0)
    one = judge_verdicts(worlds.results(known))
    by_verdict = {share.verdict: share for share in one.shares}
    assert by_verdict["ok"].high - by_verdict["ok"].low > 0.5


def test_networks_of_one_label_in_two_runs_are_two():
    """Their weights tell them apart: one of them is right in all cases and the other in none."""
    worlds_of = [
        worlds.world(n=100, labels=lambda right, _, one=one: right | True if one else right & False) for one in (0, 1)
    ]
    spread = {}
    for weights in ("00", "01"):
        runs = [worlds.results(known, weights=w) for known, w in zip(worlds_of, weights, strict=True)]
        ok = next(share for share in judge_verdicts(runs).shares if share.verdict == "ok")
        spread[weights] = ok.high - ok.low
    assert spread["01"] > 0.5
    assert spread["00"] < 0.25


def test_a_share_of_one_cluster_may_be_anything():
    """All maps of one verdict share their pixels: however the clusters are drawn, their share is the same."""
    known = worlds.world(n=40)
    known["verdict"][:] = "ok"
    known["verdict"][7] = "stalled"
    known["right"][7] = True
    shares = {one.verdict: one for one in judge_verdicts(worlds.results(known)).shares}
    assert (shares["stalled"].right, shares["stalled"].low, shares["stalled"].high) == (1.0, 0.0, 1.0)
    assert 0.0 < shares["ok"].low < shares["ok"].right < shares["ok"].high < 1.0


def test_several_runs_are_judged_together(tmp_path):
    """Scenes of one name are one scene; its networks and examples stay apart."""
    first, second = (worlds.world(n=100, scenes=2, seed=seed) for seed in (1, 2))
    runs = [worlds.results(first, names=["a", "b"]), worlds.results(second, names=["b", "c"])]
    one = judge_verdicts(runs)
    assert {scene: maps for scene, (maps, _) in one.scenes.items()} == {"a": 100, "b": 200, "c": 100}
    assert sum(share.clusters for share in one.shares) == 400
    assert one.holds
    one.write(tmp_path / "reliability.json")
    assert read_reliability(tmp_path / "reliability.json") == one
    other = worlds.results(worlds.world(n=20, scenes=2, method=fringe.FRInGe(tau=0.1)), names=["d", "e"])
    mixed = judge_verdicts([*runs, other])
    assert not mixed.holds
    assert "the settings of the method differ" in mixed.reported.faults


def test_it_prints_as_a_table(calibrated):
    text = repr(calibrated)
    judged = calibrated.reported.judgement
    for name, one in judged.scenes.items():
        assert f"{name:24} {one.observed:>6.2f} [{one.low:.2f}…{one.high:.2f}]    300  {one.predicted:.2f}" in text
    assert text.endswith("it holds")
    assert len(judged.plot("title").axes) == 2


def test_a_record_is_read_as_it_was_written(calibrated, written):
    again = read_reliability(written)
    assert again == calibrated
    assert json.loads(written.read_text())["holds"] is True
    residual = [1e-3, 1.0]
    assert np.array_equal(again.probability(attribution(residual)), calibrated.probability(attribution(residual)))


def test_there_is_no_probability_outside_of_what_was_measured(calibrated):
    assert np.isnan(calibrated.probability(attribution([0.01], kl=6.9))).all()
    assert np.isnan(calibrated.probability(attribution([float("nan")]))).all()
    assert np.isnan(calibrated.probability(attribution([0.01], verdict="unchecked"))).all()
    assert calibrated.annotate(attribution([0.01], kl=6.9)).advice == ("complete within 1.0%",)
    text = calibrated.annotate(attribution([0.01])).advice[0]
    share = calibrated.probability(attribution([0.01]))[0]
    assert text == f"complete within 1.0%; of maps like this {share:.0%} are right, by 4 scenes with a known answer"


def test_maps_of_another_method_have_no_probability(calibrated):
    with pytest.raises(InputError, match="attribution: the maps are of another method"):
        calibrated.probability(attribution([0.01], settings=fringe.FRInGe(tau=0.01).record()))


def test_what_does_not_hold_is_refused_with_its_numbers(tmp_path):
    one = judge_verdicts(worlds.results(worlds.world(n=50, of_scene=[0.0, 0.0, 0.0, -6.0])))
    path = tmp_path / "reliability.json"
    path.write_text(to_json(one.record()))
    words = (
        rf"reliability: .*does not hold on scenes .*scene3.*\(200 maps of scene0.*, {one.date}, fringe {one.version}\)"
    )
    with pytest.raises(InputError, match=words):
        read_reliability(path)
    changed = {**json.loads(path.read_text()), "holds": True}  # the numbers count, not the word
    path.write_text(json.dumps(changed))
    with pytest.raises(InputError, match=words):
        read_reliability(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{", "is not JSON"),
        (lambda text: "[]", "holds no reliability of verdicts"),
        (lambda text: text.replace("reliability 1", "reliability 2"), "holds no reliability of verdicts"),
        (lambda text: text.replace('"endpoint_kl"', '"endpoint"'), "no complete reliability"),
        (lambda text: text.replace('"bias"', '"bent"'), "no complete reliability"),
        (lambda text: text.replace('"holds": true', '"holds": false'), "does not hold"),
    ],
)
def test_a_damaged_record_is_refused(written, change, message):
    written.write_text(change(written.read_text()))
    with pytest.raises(InputError, match=message):
        read_reliability(written)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"reliability: cannot read '.*absent.json' .No such file"):
        read_reliability(tmp_path / "absent.json")


def test_the_record_is_for_one_method_and_one_score(written):
    record = fringe.FRInGe().record()
    assert reliability_for(record, "logit", written).holds
    with pytest.raises(InputError, match=r"is of other settings: tau 0\.04, not 0\.1"):
        reliability_for(fringe.FRInGe(tau=0.1).record(), "logit", written)
    with pytest.raises(InputError, match="is of other settings: score logit, not probability"):
        reliability_for(record, "probability", written)


def test_real_maps_have_probabilities(calibrated):
    model = load_model("embedded:digits")
    x = model.prepare([sample.image for sample in fringe.data.digits_samples()[:2]])
    one = fringe.attribute(model.module, x)
    probability = calibrated.probability(one)
    assert ((probability > 0) & (probability < 1)).all()
    several = fringe.attribute(model.module, x, target="top3")
    with pytest.raises(InputError, match="attribution: the maps are of several classes"):
        calibrated.probability(several)
    annotated = calibrated.annotate(several)
    assert annotated.of_class(0).advice == calibrated.annotate(several.of_class(0)).advice
    assert all("of maps like this" in advice for row in annotated.class_verdicts for _, advice in row)
