"""What a tracker stores of an attribution, read back from each tracker's own files."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fringe
from fringe.errors import InputError
from fringe.integrations import Artifacts, log_explanations


@pytest.fixture(scope="module")
def result():
    return fringe.explain("embedded:digits", "embedded:digits:0:2", method="ig")


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def test_artifacts_are_the_pictures_pages_and_numbers_of_the_result(result):
    artifacts = Artifacts.of(result)
    assert list(artifacts.pictures) == list(artifacts.pages) == ["digits-0000", "digits-0001"]
    assert [row["class"] for row in artifacts.rows] == result.target.tolist()
    probabilities = result.context.probabilities[range(2), result.target]
    assert artifacts.scalars == {
        "share_ok": sum(verdict == "ok" for verdict in result.verdict) / 2,
        "mean_probability": pytest.approx(probabilities.mean().item()),
        "mean_residual": pytest.approx(result.completeness_residual.mean().item()),
    }
    assert "digits-0001" in artifacts.pages["digits-0001"]


def test_names_of_inputs_become_different_names_of_files(tmp_path):
    ids = ["a/b", "a:b", "../x", "é.png", "a_b-1"]
    result = fringe.explain("embedded:digits", "embedded:digits:0:5", method="smoothgrad", ids=ids)
    log_explanations(result, tmp_path)
    names = {path.name for path in (tmp_path / "explanations").iterdir()}
    stems = {"a_b-0", "a_b-1-1", "a_b-1-4", "_x", "é.png"}
    assert names == {f"{stem}{end}" for stem in stems for end in (".png", ".html")} | {"explanations.csv"}


def test_a_folder_holds_a_step_of_training(result, tmp_path):
    log_explanations(result, tmp_path, step=7, name="maps")
    folder = tmp_path / "maps" / "step-00000007"
    rows = list(csv.DictReader((folder / "explanations.csv").open(encoding="utf-8")))
    assert [row["verdict"] for row in rows] == list(result.verdict)
    assert [float(row["score"]) for row in rows] == result.score.tolist()
    assert '"training step":7' in (folder / "digits-0001.html").read_text(encoding="utf-8")
    assert pixels((folder / "digits-0000.png").read_bytes()).std() > 0


def test_what_is_no_image_has_pictures_and_no_pages():
    inputs = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    result = fringe.explain(torch.nn.Linear(4, 3), inputs, kind="tabular", method="smoothgrad")
    artifacts = Artifacts.of(result)
    assert len(artifacts.pictures) == 2
    assert artifacts.pages == {}
    assert set(artifacts.scalars) == {"share_ok", "mean_probability"}  # the method promises no sum


def test_wrong_arguments_are_named(result, tmp_path):
    with pytest.raises(InputError, match=r"to: got dict, which is no known tracker; pass a folder, a SummaryWriter"):
        log_explanations(result, {})
    with pytest.raises(InputError, match=r"step"):
        log_explanations(result, tmp_path, step=-1)
    bare = fringe.attribute(torch.nn.Linear(4, 3), torch.randn(1, 4), method="smoothgrad")
    with pytest.raises(InputError, match=r"the attribution holds no inputs"):
        log_explanations(bare, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_shows_pictures_numbers_and_a_table(result, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        for step in (1, 2):
            log_explanations(result, writer, step=step)
    read = events.EventAccumulator(str(tmp_path)).Reload()
    artifacts = Artifacts.of(result)
    (*_, last) = read.Images("explanations/digits-0001")
    assert last.step == 2
    assert np.array_equal(pixels(last.encoded_image_string), pixels(artifacts.pictures["digits-0001"]))
    assert read.Scalars("explanations/mean_probability")[-1].value == pytest.approx(
        artifacts.scalars["mean_probability"], rel=1e-6
    )
    (text,) = read.Tensors("explanations/table/text_summary")[-1].tensor_proto.string_val
    head, _, *lines = text.decode().splitlines()
    assert head.startswith("| id | class | name | probability |")
    assert [line.split(" | ")[-1].rstrip(" |") for line in lines] == list(result.verdict)
    assert (tmp_path / "explanations" / "step-00000002" / "digits-0001.html").is_file()


@pytest.mark.thorough
def test_mlflow_stores_files_and_numbers(result, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("digits", artifact_location=(tmp_path / "files").as_uri())
    with mlflow.start_run(experiment_id=experiment) as run:
        for step in (1, 2):
            log_explanations(result, run, step=step)
    folder = "explanations/step-00000002"
    stored = {Path(file.path).name for file in client.list_artifacts(run.info.run_id, folder)}
    assert stored == {"digits-0000.html", "digits-0000.png", "digits-0001.html", "digits-0001.png", "explanations.csv"}
    history = client.get_metric_history(run.info.run_id, "explanations/share_ok")
    assert [(metric.step, metric.value) for metric in history] == [(1, 1.0), (2, 1.0)]
    local = Path(client.download_artifacts(run.info.run_id, f"{folder}/digits-0000.png"))
    assert local.read_bytes() == Artifacts.of(result).pictures["digits-0000"]


def test_wandb_stores_pictures_pages_a_table_and_numbers_without_a_network(result, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    with wandb.init(project="digits", mode="offline", dir=tmp_path) as run:
        log_explanations(result, run, step=3)
        run.log({}, step=4)  # the step before is complete
        assert run.summary["explanations/share_ok"] == 1.0
        media, names = Path(run.dir) / "media", run.summary["explanations/pictures"]["filenames"]
    artifacts = Artifacts.of(result)
    for name, png in zip(names, artifacts.pictures.values(), strict=True):
        assert np.array_equal(pixels((media.parent / name).read_bytes()), pixels(png))
    pages = {path.read_text(encoding="utf-8") for path in media.rglob("*.html")}
    assert pages == set(Artifacts.of(result, {"training step": 3}).pages.values())
    (table,) = (json.loads(path.read_text()) for path in media.rglob("*.table.json"))
    assert table["columns"] == list(artifacts.rows[0])
    verdict = table["columns"].index("verdict")
    assert [row[verdict] for row in table["data"]] == list(result.verdict)
