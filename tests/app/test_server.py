"""What the server of the app answers, to whom, and the command that starts it."""

import http.client
import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

from fringe.app import AppServer, AppSpec, _server
from fringe.cli import app
from fringe.errors import InputError


def ask(server, method, path, body=None, **headers):
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=30)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def post(server, body, path="/gradio_api/queue/join"):
    """The status of a request with this document."""
    return ask(server, "POST", path, body, Content_Type="application/json")[0]


def number_of(server, inputs):
    """The number of the first function that has so many inputs."""
    functions = json.loads(ask(server, "GET", "/config")[2])["dependencies"]
    return next(f["id"] for f in functions if len(f["inputs"]) == inputs)


def test_the_page_comes_with_a_policy_that_loads_nothing_from_elsewhere(server):
    status, headers, body = ask(server, "GET", "/")
    assert status == 200
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert not re.findall(rb'<(?:script|link|img)[^>]*(?:src|href)="https?://', body)


@pytest.mark.parametrize(
    "path",
    [
        *("/docs", "/openapi.json", "/gradio_api/info", "/gradio_api/openapi.json", "/monitoring", "/gradio_api/runs"),
        *("/gradio_api/run/explain", "/gradio_api/call/explain", "/gradio_api/proxy=https://example.org/"),
        *("/gradio_api/file=http://example.org/x.png", "/gradio_api/custom_component/a/client/b/c"),
        *("/gradio_api/deep_link", "/gradio_api/vibe-edit/", "/gradio_api/stream/x", "/login"),
    ],
)
def test_paths_that_the_page_does_not_need_are_closed(server, path):
    assert ask(server, "GET", path)[0] == 404
    assert post(server, "{}", path) == 404


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../../etc/passwd", "/proc/self/environ", __file__])
def test_files_of_the_machine_are_not_served(server, path):
    status, _, body = ask(server, "GET", f"/gradio_api/file={path}")
    assert status in (403, 404)
    assert b"root:" not in body


def test_another_name_of_this_server_is_refused(server):
    """A page of a stranger may give its own name the address 127.0.0.1."""
    assert ask(server, "GET", "/", Host="evil.example")[0] == 403
    port = urlsplit(server.url).port
    assert ask(server, "GET", "/", Host=f"localhost:{port}")[0] == 200


def test_a_page_of_another_origin_cannot_ask(server):
    for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
        assert ask(server, "POST", "/gradio_api/queue/join", "{}", Origin=origin)[0] == 403


def upload(server, name, content):
    boundary = "boundary"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="files"; filename="{name}"\r\n\r\n'.encode()
    body = head + content + f"\r\n--{boundary}--\r\n".encode()
    return ask(server, "POST", "/gradio_api/upload", body, Content_Type=f"multipart/form-data; boundary={boundary}")


def test_a_file_that_is_too_long_is_not_taken(server):
    assert upload(server, "image.png", bytes(1000))[0] == 200
    assert upload(server, "image.png", bytes(_server.MAX_UPLOAD + 1))[0] == 413


def join(server, values):
    """Send values of the form as a browser does; the last message of the queue."""
    session = secrets.token_hex(8)
    assert call(server, values, session_hash=session) == 200
    text = ask(server, "GET", f"/gradio_api/queue/data?session_hash={session}")[2].decode()
    messages = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    return next(m for m in messages if m["msg"] == "process_completed")


def uploaded(server, name="digit.png"):
    """A file of the server's own samples as the form names it after an upload."""
    status, _, body = upload(server, name, server.service.samples[0].png)
    assert status == 200
    return {"path": json.loads(body)[0], "orig_name": name, "meta": {"_type": "gradio.FileData"}}


def test_a_request_as_the_page_sends_it_is_answered(server):
    answer = join(server, [uploaded(server), "digits", "ig"])
    assert answer["success"]


def call(server, data, **others):
    """The status of a call of the first function that has so many inputs."""
    document = {"data": data, "fn_index": number_of(server, len(data)), "session_hash": "s", **others}
    return post(server, json.dumps(document))


@pytest.mark.parametrize("place", ["image", "model", "nested", "twice"])
def test_a_made_up_request_cannot_name_a_file_of_the_machine_or_a_url(server, tmp_path, monkeypatch, place):
    """Gradio fetches what a URL names, for whatever field."""
    for fetch in ("async_ssrf_protected_download", "ssrf_protected_download"):
        monkeypatch.setattr(f"gradio.processing_utils.{fetch}", lambda *_, **__: pytest.fail("fetched"), raising=False)
    (tmp_path / "private.png").write_bytes(server.service.samples[0].png)
    good = uploaded(server)
    folder = server.service.sample_file(0).parents[2]  # of all that is served
    result = folder / "another" / "result.png"
    result.parent.mkdir(exist_ok=True)
    result.write_bytes(b"of another person")
    urls = ("http://8.8.8.8/x.png", "https://example.org/x.png", "HTTP://8.8.8.8", "ftp://example.org/x")
    files = (str(tmp_path / "private.png"), "/etc/passwd", good["path"] + "/../x.png", str(result))
    for path in (*urls, *files, "", None, 3, ["http://8.8.8.8/x.png"]):
        bad = {"path": path, "meta": {"_type": "gradio.FileData"}}
        data = [bad, "digits", "ig"] if place == "image" else [good, bad, "ig"]
        if place == "nested":
            data = [good, [{"a": [bad]}], "ig"]
        if place == "twice":
            text = json.dumps([good, "digits", "ig"]).replace('{"path"', '{"path": ' + json.dumps(path) + ', "path"')
            status = post(server, '{"data": ' + text + ', "fn_index": 3, "session_hash": "s"}')
        else:
            status = call(server, data)
        assert status == 400, path
    result.unlink()
    assert not [file for file in folder.rglob("*") if file.name in ("private.png", "passwd")]


def test_a_sample_may_be_named(server):
    path = str(server.service.sample_file(1))
    assert join(server, [{"path": path, "meta": {"_type": "gradio.FileData"}}, "digits", "ig"])["success"]


@pytest.mark.parametrize("index", ["true", '"3"', "-1", "99999", "null", "[]", "{}", "1.5", "1e400", "1" * 5000])
def test_a_function_that_the_page_does_not_have_is_a_bad_request(server, index):
    body = '{"data": [], "session_hash": "s", "event_id": "e", "fn_index": ' + index + "}"
    for path in ("/gradio_api/queue/join", "/gradio_api/cancel"):
        assert post(server, body, path) == 400


@pytest.mark.parametrize(
    "body",
    ["", "[]", "{", "null", "[" * 20000, '{"data": ["\\ud800"], "fn_index": 3, "session_hash": "s"}', b"\xff\xfe"],
)
def test_what_is_no_call_is_a_bad_request(server, body):
    assert post(server, body) == 400


def test_a_body_that_is_no_upload_is_short(server):
    """The memory that a JSON document takes is many times its length."""
    assert call(server, [uploaded(server), "digits", "ig"], event_data="x" * 60_000) == 200
    for path in ("/gradio_api/queue/join", "/gradio_api/cancel", "/"):
        assert post(server, " " * (2**16 + 1), path) == 413


def raw(server, head):
    """The status of a request in bytes, without a body."""
    with socket.create_connection(("127.0.0.1", urlsplit(server.url).port), timeout=30) as connection:
        connection.sendall(head + b"\r\n\r\n")
        return int(connection.recv(100).split()[1])


@pytest.mark.parametrize(
    "host",
    [b"", b"[::1", b"]", b"[zz]", b"a b", b"a@b", b"127.0.0.1:x", b"127.0.0.1:", b"127.0.0.1:99999", b"a/b", b"\xff"],
)
@pytest.mark.parametrize("hosts", ["loopback", pytest.param("all", marks=pytest.mark.thorough)])
def test_a_malformed_host_is_a_bad_request(server, monkeypatch, host, hosts):
    monkeypatch.setattr(server.guard, "hosts", server.guard.hosts if hosts == "loopback" else ())
    assert raw(server, b"GET /config HTTP/1.1\r\nHost: " + host) == 400


@pytest.mark.parametrize("origin", [b"http://[", b"http://[::1", b"x", b"http://", b"null", b"\xff"])
def test_a_malformed_origin_is_refused(server, origin):
    host = urlsplit(server.url).netloc.encode()
    assert raw(server, b"GET /config HTTP/1.1\r\nHost: " + host + b"\r\nOrigin: " + origin) == 403
    assert raw(server, b"GET /config HTTP/1.1\r\nHost: " + host + b"\r\nOrigin: http://" + host) == 200


def test_a_client_does_not_choose_the_address_of_the_page(server):
    for name in ("X-Forwarded-Host", "x-gradio-server"):
        status, _, body = ask(server, "GET", "/config", **{name: "http://evil.example"})
        assert (status, b"evil.example" in body, json.loads(body)["root"]) == (200, False, server.url)


def test_a_name_that_no_file_can_have_is_not_found(server):
    assert ask(server, "GET", "/static/" + "a" * 300)[0] == 404


def test_uploads_have_a_limit_in_total(server, monkeypatch, tmp_path):
    """Files of a folder of the test: into that of the server, jobs of other tests may still write."""
    monkeypatch.setattr(_server, "served", lambda: tmp_path)
    (tmp_path / "hash").mkdir()
    (tmp_path / "hash" / "stored").write_bytes(bytes(1000))
    with monkeypatch.context() as patch:
        patch.setattr(_server, "MAX_STORED", 6000)
        assert upload(server, "a.png", bytes(3000))[0] == 200
        (tmp_path / "hash" / "a.png").write_bytes(bytes(3000))
        status, _, text = upload(server, "b.png", bytes(2001))
        assert (status, text) == (507, b"The app has no space for another image. Try again later.")
        assert server.guard._incoming == 0
    with monkeypatch.context() as patch:
        patch.setattr(_server, "MAX_FILES", 2)
        assert upload(server, "c.png", bytes(10))[0] == 507
    assert upload(server, "c.png", bytes(10))[0] == 200


def parts():
    """Files that gradio still writes; those of an upload that has ended lie in folders."""
    return [path for path in _server.served().iterdir() if path.is_file()]


def test_an_upload_that_is_cut_off_is_no_error_and_leaves_no_file(server, monkeypatch):
    answer, ended = _server.Guard.__call__, queue.Queue()

    async def note(guard, scope, *others):
        error = None
        try:
            await answer(guard, scope, *others)
        except Exception as raised:
            error = raised
        if scope["path"] == "/gradio_api/upload":
            ended.put(error)

    monkeypatch.setattr(_server.Guard, "__call__", note)
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\n'
    address = urlsplit(server.url)
    lines = ("POST /gradio_api/upload HTTP/1.1", f"Host: {address.netloc}", "Content-Length: 9999999")
    request = "\r\n".join((*lines, "Content-Type: multipart/form-data; boundary=b", "", "")).encode()
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(request + head + bytes(100_000))
        while not parts():
            time.sleep(0.01)
    assert ended.get(timeout=60) is None
    assert parts() == []
    status, _, files = ask(
        server, "POST", "/gradio_api/upload", head + bytes(10), Content_Type="multipart/form-data; boundary=b"
    )
    assert (status, files) == (200, b"[]")  # it has no end
    assert ended.get(timeout=60) is None
    assert parts() == []


def test_an_upload_says_its_length_and_one_request_is_not_many_files(server, monkeypatch):
    host = urlsplit(server.url).netloc.encode()
    chunked = b"POST /gradio_api/upload HTTP/1.1\r\nHost: " + host + b"\r\nTransfer-Encoding: chunked"
    assert raw(server, chunked) == 411
    monkeypatch.setattr(_server, "MAX_UPLOAD", 10)
    assert upload(server, "a.png", bytes(2**16 + 10))[0] == 413


def test_old_uploads_are_removed_and_the_page_says_so_but_samples_stay(server):
    """Gradio removes what it served an hour ago."""
    from gradio.route_utils import delete_files_created_by_app

    functions = json.loads(ask(server, "GET", "/config")[2])["dependencies"]
    pick = next(f["id"] for f in functions if f["api_name"] == "pick")
    body = json.dumps({"data": [], "event_data": {"index": 0}, "fn_index": pick, "session_hash": "s"})
    text = ask(server, "POST", "/gradio_api/run/predict", body, Content_Type="application/json")[2].decode()
    path = re.search(r'"path": ?"([^"]*digits-0000.png)"', text)
    assert path, text
    image = uploaded(server)
    delete_files_created_by_app(server.blocks, None)
    assert ask(server, "GET", f"/gradio_api/file={path[1]}")[0] == 200
    document = {"data": [image, "digits", "ig"], "fn_index": number_of(server, 3), "session_hash": "s"}
    status, _, body = ask(
        server, "POST", "/gradio_api/queue/join", json.dumps(document), Content_Type="application/json"
    )
    assert status == 400
    assert json.loads(body) == {"detail": "The app has this image no longer. Choose it again."}


def test_no_computation_passes_by_the_queue(server):
    document = {"data": [uploaded(server), "digits", "ig"], "fn_index": number_of(server, 3), "session_hash": "s"}
    assert post(server, json.dumps(document), "/gradio_api/run/predict") == 404


def test_another_host_needs_a_word():
    with pytest.raises(InputError, match=r"host: '0\.0\.0\.0' lets other machines use your models.*allow_remote=True"):
        AppServer(AppSpec(host="0.0.0.0", port=0))


def test_the_command_refuses_a_host_and_a_port_in_use(server):
    result = CliRunner().invoke(app, ["app", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 2
    assert "--host: '0.0.0.0' lets other machines" in result.stderr
    assert "--allow-remote" in result.stderr
    port = urlsplit(server.url).port
    result = CliRunner().invoke(app, ["app", "--port", str(port)])
    assert result.exit_code == 2
    assert f"error: --port: {port} cannot be used at 127.0.0.1" in result.stderr


# a server of another test may still be writing with pandas, whose warning of what will go is not this command's
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "torchvision:no_such_net"], "error: "),
        (["--model", "net.py:make", "--preprocessing", "unit"], "--trust-code"),
        (["--queue", "0"], "--queue: got 0, expected a whole number of at least 1"),
        (["--max-pixels", "0"], "--max-pixels: got 0, expected a whole number of at least 1"),
        (["--time-limit", "0"], "--time-limit: got 0.0, expected more than 0 seconds"),
        (["--device", "tpu"], "--device"),
        (["--port", "70000"], "--port: got 70000, expected 0 to 65535"),
        (["--samples", "no-such-folder"], "no-such-folder"),
    ],
)
def test_wrong_options_are_one_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").touch()
    port = [] if "--port" in arguments else ["--port", "0"]
    result = CliRunner().invoke(app, ["app", *port, *arguments])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert message in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_asked_to_end_and_leaves_no_file(number, tmp_path):
    command = [sys.executable, "-m", "fringe", "app", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    watch = threading.Timer(120, process.kill)
    watch.start()
    try:
        line = process.stdout.readline()
        found = re.fullmatch(r"fringe listens at (http://127\.0\.0\.1:(\d+)) \(Ctrl\+C ends it\)\n", line)
        assert found, line + process.stderr.read()
        with socket.create_connection(("127.0.0.1", int(found[2])), timeout=30) as tab:
            tab.sendall(f"GET /gradio_api/heartbeat/tab HTTP/1.1\r\nHost: 127.0.0.1:{found[2]}\r\n\r\n".encode())
            assert b"text/event-stream" in tab.recv(4096)
            assert list(tmp_path.glob("fringe-app-*"))
            process.send_signal(number)  # while a tab is open
            assert process.wait(30) == 0
        assert process.stderr.read() == ""
        assert not list(tmp_path.glob("fringe-app-*"))
    finally:
        watch.cancel()
        process.kill()
        process.communicate()
