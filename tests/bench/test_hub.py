"""A run as a data set of the Hugging Face hub, which a server on loopback stands in for."""

import base64
import csv
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fringe.bench.experiments import ExperimentSpec, read_results, run_experiment
from fringe.bench.hub import push_to_hub, write_dataset
from fringe.errors import InputError

pytestmark = pytest.mark.usefixtures("small_figures")

yaml = pytest.importorskip("yaml")
SPEC = {"model": "embedded:digits", "data": "embedded:digits", "methods": ["ig", "gradcam"], "metrics": ["sparseness"]}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "run"
    run_experiment(ExperimentSpec(**SPEC, n=3, controls=False), folder)
    return folder


def rows(text):
    return list(csv.DictReader(text.splitlines()))


def test_the_folder_is_a_data_set_with_the_report_as_its_card(run, tmp_path):
    folder = write_dataset(run, str(tmp_path / "set"))
    card = (folder / "README.md").read_text(encoding="utf-8")
    head = yaml.safe_load(card.split("---")[1])
    assert head["pretty_name"] == "Attribution methods on digits"
    for config in head["configs"]:
        assert (folder / config["data_files"]).is_file()
    assert "### Scores" in card
    assert str(run.parent) not in "".join(p.read_text("utf-8") for p in folder.iterdir() if p.suffix in (".md", ".csv"))
    frame = read_results(run).frame
    scores = rows((folder / "scores.csv").read_text(encoding="utf-8"))
    assert [float(row["score"]) for row in scores] == frame["score"].to_list()
    assert {row["method"] for row in scores} == {"ig", "gradcam"}
    assert not (folder / "report.md").exists()


def test_the_data_set_is_loaded_by_its_configurations(run, tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = write_dataset(run, tmp_path / "set")
    for config, count in (("scores", 6), ("summary", 2)):
        table = datasets.load_dataset(str(folder), config, cache_dir=str(tmp_path / "cache"))["train"]
        assert table.num_rows == count


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no run of this program"):
        write_dataset(tmp_path, tmp_path / "set")


class Hub(BaseHTTPRequestHandler):
    """What the hub answers to the calls that make a data set and upload files into it."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        calls = self.server.calls
        if self.path == "/api/repos/create":
            calls["created"], calls["token"] = json.loads(body), self.headers["authorization"]
            self.answer({"url": f"{self.server.url}/datasets/me/maps", "name": "me/maps"})
        elif self.path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self.answer({"files": modes})
        elif self.path == "/api/validate-yaml":
            calls["card"] = json.loads(body)["content"]
            self.answer({"errors": [], "warnings": []})
        elif "/commit/main" in self.path:
            entries = [json.loads(line) for line in body.splitlines()]
            calls["files"] = {e["value"]["path"]: e["value"]["content"] for e in entries if e["key"] == "file"}
            self.answer({"commitUrl": f"{self.server.url}/datasets/me/maps/commit/1", "commitOid": "1"})
        else:
            self.send_error(404, self.path)

    def do_GET(self):
        self.answer({"id": "me/maps", "sha": "0", "siblings": []})

    def answer(self, document):
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.calls, server.url = {}, f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()


def test_one_call_makes_the_data_set_and_uploads_every_file(run, hub, tmp_path):
    address = push_to_hub(run, "me/maps")
    assert address == f"{hub.url}/datasets/me/maps/commit/1"
    created = hub.calls["created"]
    assert (created["name"], created["organization"], created["type"]) == ("maps", "me", "dataset")
    assert created.get("private") is True or created.get("visibility") == "private"
    assert hub.calls["token"] == "Bearer hf_test"
    folder = write_dataset(run, tmp_path / "set")
    expected = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    sent = {name: base64.b64decode(text) for name, text in hub.calls["files"].items()}
    assert sent.keys() == expected.keys()
    assert sent["scores.csv"] == expected["scores.csv"]
    assert sent["README.md"] == expected["README.md"]
