"""A report that knows which metrics do not pass: they stand last, and nobody wins there."""

import json

import pytest
import report_toys as runs
from typer.testing import CliRunner

from fringe.bench.report import build_table, write_report
from fringe.cli import app
from fringe.errors import InputError
from fringe.evaluation import SHARES, judge_metrics
from fringe.metrics import Deletion, Insertion

pytestmark = pytest.mark.usefixtures("small_figures")

SCORES = {
    ("net", "fringe", "insertion"): [0.6, 0.7, 0.8],
    ("net", "ig", "insertion"): [0.5, 0.6, 0.7],
    ("net", "fringe", "deletion"): [0.2, 0.3, 0.2],
    ("net", "ig", "deletion"): [0.3, 0.4, 0.4],
}
VERDICTS = {"insertion": "does not pass", "deletion": "passes"}


def entry(metric, verdict, reason=""):
    validity = {"mean": 0.3, "median": 0.3, "low": None, "high": None, "n": 1, "half_iqr": None, "summary": "mean"}
    numbers = {"levels": [0.1] * 6, "validity": validity, "power": None, "gap": 0.5, "n": 3}
    names = {"metric": metric, "direction": "higher", "best": "ig", "control": "edge"}
    return {**names, **numbers, "verdict": verdict, "reason": reason}


def verdicts(path, model="net", agreement=None, metrics=("insertion", "deletion")):
    failing, passing = metrics
    entries = [entry(failing, "does not pass", "validity 0.30 is below 0.5"), entry(passing, "passes")]
    least = {"validity": 0.5, "power": 0.5, "gap": 0.2}
    document = {"model": model, "images": 3, "least": least, "metrics": entries, "agreement": agreement}
    path.write_text(json.dumps(document))
    return path


def run(folder, models=("net",)):
    scores = {(model, *key[1:]): column for model in models for key, column in SCORES.items()}
    return runs.store_of(folder, runs.manifest(("fringe", "ig"), ("insertion", "deletion"), 3, models=models), scores)


def test_a_metric_that_does_not_pass_stands_last_and_has_no_winner():
    about = runs.manifest(("fringe", "ig"), ("insertion", "deletion"), 3)
    results = runs.results(about, SCORES)
    before, after = build_table(results, "net"), build_table(results, "net", None, VERDICTS)
    assert [column.label for column in before.columns] == ["insertion", "deletion"]
    assert [column.label for column in after.columns] == ["deletion", "insertion"]
    assert after.groups[-1] == ("Metrics that do not pass on this model", 1)
    assert [before.score("fringe", one).rank for one in before.columns] == ["best", "best"]
    assert [after.score("fringe", one).rank for one in after.columns] == ["best", ""]
    for label in ("insertion", "deletion"):
        assert after.scores.cells["fringe", label].estimate == before.scores.cells["fringe", label].estimate


def test_only_metrics_that_pass_have_a_headline():
    """A metric that was not judged, or that nobody asked of, stands after those that pass, and nobody wins there."""
    results = runs.results(runs.manifest(("fringe", "ig"), ("insertion", "deletion"), 3), SCORES)
    for verdicts in ({"deletion": "passes", "insertion": "not judged"}, {"deletion": "passes"}):
        table = build_table(results, "net", None, verdicts)
        assert [column.label for column in table.columns] == ["deletion", "insertion"]
        assert table.groups[-1][0] == "Metrics not judged on this model"
        assert [table.score("fringe", one).rank for one in table.columns] == ["best", ""]
        assert [table.scores.cells[method, "insertion"].rank for method in table.rows] == ["", ""]
    none = build_table(results, "net", None, {"insertion": "does not pass"})
    assert [name for name, _ in none.groups][-1] == "Metrics that do not pass on this model"
    assert not any(score.rank for score in none.scores.cells.values())


def test_every_form_names_the_metrics_that_do_not_pass(tmp_path):
    path = verdicts(tmp_path / "validity.json")
    folder = write_report(run(tmp_path / "run"), tmp_path / "out", validity=[path]).page.parent
    for name in ("report.html", "report.md", "tables.tex"):
        assert "Metrics that do not pass on this model: Insertion AUC" in (folder / name).read_text(encoding="utf-8"), (
            name
        )


def test_the_page_states_the_verdicts(tmp_path):
    agreement = {"metrics": ["a", "b"], "methods": ["x", "y", "z"]}
    agreement |= {name: [[1.0, None], [None, 1.0]] for name in ("tau", "low", "high")}
    path = verdicts(tmp_path / "validity.json", agreement=agreement)
    run(tmp_path / "run")
    arguments = ["report", tmp_path / "run", "--no-grid", "--validity", path, "--out", tmp_path / "out"]
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "Metric validity" in page
    assert "does not pass: validity 0.30 is below 0.5" in page
    assert "validity 0.5, power 0.5, gap 0.2" in page
    assert (tmp_path / "out" / "figures" / "agreement.png").exists()
    assert "Metric validity" not in write_report(run(tmp_path / "run"), tmp_path / "out").page.read_text("utf-8")


def test_what_a_comparison_writes_is_read(tmp_path):
    rows = [
        {"method": m, "metric": k, "control": m == "edge", "image": str(i), "score": v + (m == "ig") * 0.1}
        for m in ("ig", "edge")
        for k in ("insertion", "deletion")
        for i, v in enumerate((0.2, 0.4))
    ]
    worse = [  # every score falls with the share, which is good of an insertion alone
        {"method": "ig", "metric": k, "share": share, "image": str(i), "score": v + 0.1 - share / 10}
        for share in SHARES[1:]
        for k in ("insertion", "deletion")
        for i, v in enumerate((0.2, 0.4))
    ]
    validity = judge_metrics(rows, worse, {"insertion": Insertion(), "deletion": Deletion()})
    assert [one.verdict for one in validity.metrics] == ["passes", "does not pass"]
    from fringe._strings.formats import plain, to_json

    path = tmp_path / "validity.json"
    path.write_text(to_json({"model": "other", "images": 2, **plain(validity.record())}))
    page = write_report(run(tmp_path / "run"), tmp_path / "out", validity=[path]).page.read_text(encoding="utf-8")
    assert "Metrics that do not pass on this model: Deletion AUC" in page
    assert "does not pass: validity -1.00 is below 0.5, power -1000.00 is below 0.5" in page


def test_verdicts_count_for_their_model(tmp_path):
    """With one model in the run they count for it; among several, for the one of that name."""
    one = verdicts(tmp_path / "one.json", model="somebody")
    assert "does not pass" in write_report(run(tmp_path / "run"), tmp_path / "a", validity=[one]).page.read_text(
        "utf-8"
    )
    store = run(tmp_path / "two", ("net", "tin"))
    page = write_report(store, tmp_path / "b", validity=[verdicts(tmp_path / "two.json", model="tin")]).page
    assert page.read_text("utf-8").count("Metrics on tin, 3 images") >= 1
    with pytest.raises(InputError, match=r"validity: '.*one.json' is about 'somebody'; the models: net, tin"):
        write_report(store, tmp_path / "c", validity=[one])


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ("[]", "holds no verdicts"), ('{"metrics": [{}]}', "holds no verdicts")]
)
def test_another_file_is_refused(tmp_path, text, message):
    path = tmp_path / "validity.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        write_report(run(tmp_path / "run"), tmp_path / "out", validity=[path])
    with pytest.raises(InputError, match=r"validity: cannot read '.*absent.json' .No such file"):
        write_report(run(tmp_path / "run"), tmp_path / "out", validity=[tmp_path / "absent.json"])
