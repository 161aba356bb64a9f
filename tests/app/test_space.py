"""The files of a Space: what is written, and what answers when its program is started."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import fringe
from fringe.app import AppServer, AppSpec, write_space
from fringe.errors import InputError

SOURCES = str(Path(fringe.__file__).parents[1])


def test_the_card_and_the_requirements_name_the_versions_that_are_installed(tmp_path):
    yaml, gradio = pytest.importorskip("yaml"), pytest.importorskip("gradio")
    folder = write_space(tmp_path / "space", title='A "Space": maps 🔍', extras="photo", model=["efficientnet_lite0"])
    head = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert head == {
        **{"title": 'A "Space": maps 🔍', "sdk": "gradio", "sdk_version": gradio.__version__},
        **{"python_version": "3.11", "app_file": "app.py"},
    }
    assert (folder / "requirements.txt").read_text() == f"fringe-xai[app,photo]=={fringe.__version__}\n"
    app = (folder / "app.py").read_text(encoding="utf-8")
    assert "**{'frame_ancestors': ['https://huggingface.co'], 'model': ['efficientnet_lite0']}," in app


def test_other_sites_may_show_the_space_in_place_of_the_hub(tmp_path, monkeypatch):
    pytest.importorskip("gradio")
    app = write_space(tmp_path, frame_ancestors=["https://example.org"]) / "app.py"
    launched = dict[str, object]()
    monkeypatch.setattr(fringe.app, "launch", lambda **options: launched.update(options))
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "")
    exec(compile(app.read_text(encoding="utf-8"), app, "exec"), {})
    assert launched["frame_ancestors"] == ["https://example.org"]


def test_an_option_that_is_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(InputError, match="modell"):
        write_space(tmp_path / "space", modell=["embedded:digits"])
    assert not (tmp_path / "space").exists()


@pytest.mark.parametrize("origin", ["https://a.example; script-src *", "a.example", "https://a.example/page"])
def test_a_frame_is_given_by_an_origin(origin):
    with pytest.raises(InputError, match=r"frame_ancestors.*https://example\.org"):
        AppServer(AppSpec(port=0, frame_ancestors=(origin,)))


@pytest.mark.thorough
def test_the_program_of_the_space_answers_behind_a_proxy_in_a_frame_of_the_hub(tmp_path):
    write_space(tmp_path, model=["digits=embedded:digits"], time_limit=30)
    address = {"GRADIO_SERVER_NAME": "127.0.0.1", "GRADIO_SERVER_PORT": "0", "PYTHONPATH": SOURCES}
    address["FORWARDED_ALLOW_IPS"] = "192.0.2.1"  # by default the loopback is trusted, which no proxy of the hub has
    program = subprocess.Popen(
        [sys.executable, "app.py"], cwd=tmp_path, env={**os.environ, **address}, stdout=subprocess.PIPE, text=True
    )
    try:
        url = re.search(r"http://\S+", program.stdout.readline())[0]

        def ask(path):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request("GET", path, headers={"Host": "me-maps.hf.space", "X-Forwarded-Proto": "https"})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

        status, headers, page = ask("/")
        assert status == 200
        assert headers["content-security-policy"].endswith("frame-ancestors 'self' https://huggingface.co")
        assert b"digits" in page
        assert json.loads(ask("/config")[2])["root"] == "https://me-maps.hf.space"
    finally:
        program.send_signal(signal.SIGTERM)
        assert program.wait(60) == 0
