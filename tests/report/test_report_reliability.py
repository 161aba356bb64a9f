"""What a report says of the verdict: the table, the diagram, the judgement, and the record beside it."""

import pytest
import verdict_worlds as worlds

from fringe.experiments import judge_verdicts, read_reliability, read_results
from fringe.report import write_report


@pytest.fixture(scope="module")
def holding(tmp_path_factory):
    folder = tmp_path_factory.mktemp("holding")
    store = worlds.store_of(folder / "run", worlds.world(n=200, stability=False))
    return store, write_report(store, grid=False)


def text(files, name="report.md"):
    return (files.page.parent / name).read_text(encoding="utf-8")


def section(files, title):
    return text(files).split(f"### {title}")[1].split("###")[0].replace("\\", "")


def test_the_section_says_what_each_verdict_is_worth(holding):
    store, files = holding
    one = judge_verdicts(read_results(store))
    part = section(files, "What the verdict of fringe is worth")
    for share in one.shares:
        numbers = f"{share.right:.2f} [{share.low:.2f}, {share.high:.2f}] | {share.maps} | {share.clusters}"
        assert f"| {share.verdict} | {numbers} |" in part
    assert one.right in part
    page = text(files, "report.html")
    assert "What the verdict of fringe is worth" in page
    latex = text(files, "tables.tex")
    assert r"\caption{Right maps of fringe by verdict.}" in latex
    assert f"{one.shares[0].right:.2f} [{one.shares[0].low:.2f}, {one.shares[0].high:.2f}] &" in latex


def test_the_judgement_names_every_scene_and_the_answer(holding):
    store, files = holding
    judged = judge_verdicts(read_results(store)).reported.judgement
    part = section(files, "Probability that a map is right")
    for scene, each in judged.scenes.items():
        numbers = f"{each.predicted:.2f} | {each.observed:.2f} [{each.low:.2f}, {each.high:.2f}]"
        assert f"| {scene} | 200 | {numbers} | yes |" in part
    assert "It holds on scenes that it was not fitted on" in part
    assert "figures/reliability.png" in part
    assert (files.page.parent / "figures" / "reliability.png").stat().st_size > 5000


def test_the_record_lies_beside_the_report_and_can_be_read(holding):
    store, files = holding
    assert read_reliability(files.page.parent / "reliability.json") == judge_verdicts(read_results(store))
    assert "reliability.json" in [path.name for path in files.paths]


def test_a_report_says_plainly_that_it_does_not_hold(tmp_path):
    known = worlds.world(n=60, of_scene=[0.0, 0.0, 0.0, -6.0], stability=False)
    files = write_report(worlds.store_of(tmp_path / "run", known), grid=False)
    part = section(files, "Probability that a map is right")
    assert "It does not hold on scenes that it was not fitted on, and may not be printed with a verdict" in part
    assert "| no |" in part


def test_the_stability_has_a_section_where_it_was_computed(tmp_path):
    files = write_report(worlds.store_of(tmp_path / "run", worlds.world(n=60, stability=True)), grid=False)
    assert "Probability that a map is right, with the stability, too" in text(files)
    assert (files.page.parent / "figures" / "reliability-stability.png").is_file()


def test_a_run_without_controls_or_a_path_has_no_such_section(tmp_path):
    known = worlds.world(n=5)
    known["reports"] = {"steps": known["reports"]["endpoint_kl"]}
    files = write_report(worlds.store_of(tmp_path / "run", known), grid=False)
    assert "is worth" not in text(files)
    assert not (files.page.parent / "reliability.json").exists()
