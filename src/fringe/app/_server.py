"""The web server of the app: its address, what it answers to whom, and what a browser may load."""

import asyncio
import atexit
import contextlib
import json
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

from fringe._files.process import Interrupted, interruptible
from fringe._strings.class_names import class_names
from fringe.app._service import Service, load_models
from fringe.app._spec import LOOPBACK, AppSpec
from fringe.errors import InputError, require

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

#: What the page requests. Among gradio's other paths, some fetch a URL, write a file, or print what they are sent.
PATHS = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json)|/(assets|static)/.*"
    r"|/gradio_api/(app_id|cancel|reset|run/predict|startup-events|upload|upload_progress|(queue|heartbeat)/.*|file=(?!https?:).*)",
    re.DOTALL | re.IGNORECASE,
)
#: Nothing is loaded from another machine. Gradio's page needs inline scripts; the frame of an explanation is a
#: separate document with the same rules.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'{frames}"
)
HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
#: Bytes of a request other than an upload; of an upload, what comes beside the file.
MAX_BODY = 2**16
#: Bytes of an uploaded file; bytes and number of all files of the app at a time.
MAX_UPLOAD, MAX_STORED, MAX_FILES = 32 * 2**20, 2**30, 2000
_ORIGIN = re.compile(r"https?://[\w.*-]+(:\d+)?", re.ASCII)
_HOST = re.compile(r"([\w.-]+|\[[\da-f:.]+\])(:\d{1,4}|:[1-5]\d{4})?", re.ASCII | re.IGNORECASE)


class Refused(Exception):
    """Ends a request with a ``status``, and with a text that the page shows: JSON where it asks for a computation."""

    def __init__(self, status: int, text: str = ""):
        self.status, self.text = status, text


class Guard:
    """Middleware that refuses what gradio would answer: see :meth:`__call__`.

    Args:
        app: What answers.
        hosts: Names in the Host header that are answered, against DNS rebinding by foreign pages; without any, all.
        functions: Numbers of the functions that the page calls.
        is_known: Whether a path is that of an uploaded file or of a sample.
        frames: Origins of the web sites that may show the page in a frame.
    """

    def __init__(
        self,
        app: Callable[[Scope, Receive, Send], Awaitable[None]],
        hosts: tuple[str, ...],
        functions: Collection[int],
        is_known: Callable[[str], bool],
        frames: tuple[str, ...] = (),
    ):
        policy = POLICY.format(frames="".join(f" {origin}" for origin in frames))
        self._headers = {"content-security-policy": policy, **HEADERS}
        self.app, self.hosts, self.functions, self.is_known = app, hosts, functions, is_known
        self._incoming = 0  # bytes of uploads that are not stored yet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse other hosts and origins, other paths, long bodies, files and URLs that are no upload; else answer."""
        from starlette.requests import ClientDisconnect

        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        headers = {bytes(name): bytes(value).decode("latin-1") for name, value in scope["headers"]}
        uploaded = 0
        try:
            self._check_address(scope, headers)
            if scope["path"] == "/gradio_api/upload":
                uploaded = await self._reserve(headers.get(b"content-length"))
            else:
                receive = await self._read(receive, scope["method"] == "POST" and scope["path"] != "/gradio_api/reset")
        except Refused as refused:
            await send({"type": "http.response.start", "status": refused.status, "headers": []})
            return await send({"type": "http.response.body", "body": refused.text.encode()})

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                new = [(name.encode(), value.encode()) for name, value in self._headers.items()]
                message["headers"] = [*message.get("headers", []), *new]
            await send(message)

        # a client would choose the address that the page names as its own
        headers_left = [h for h in scope["headers"] if not h[0].startswith((b"x-forwarded-", b"x-gradio-server"))]
        try:
            return await self.app({**scope, "headers": headers_left}, receive, send_with_headers)
        except ClientDisconnect:
            pass  # an upload was cut off, which is no error
        finally:
            self._incoming -= uploaded
            if uploaded and not self._incoming:  # gradio leaves what it had written of others
                for part in filter(Path.is_file, served().iterdir()):
                    part.unlink(missing_ok=True)

    def _check_address(self, scope: Scope, headers: dict[bytes, str]) -> None:
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        named = _HOST.fullmatch(host)
        if scope["type"] != "http":
            raise Refused(403)
        if named is None:
            raise Refused(400)
        if self.hosts and named[1].strip("[]").lower() not in self.hosts:
            raise Refused(403)
        if origin and origin.partition("://")[2] != host:
            raise Refused(403)
        longest = max(len(part.encode(errors="replace")) for part in scope["path"].split("/"))
        if not PATHS.fullmatch(scope["path"]) or longest > 255:  # no file has a longer name
            raise Refused(404)

    async def _reserve(self, length: str | None) -> int:
        """Return the bytes of an upload, for which there must be space."""
        if length is None:
            raise Refused(411)
        if (size := int(length)) > MAX_UPLOAD + MAX_BODY:  # one request may contain many files
            raise Refused(413)
        self._incoming += size
        files, stored = await asyncio.to_thread(_stored)
        if files >= MAX_FILES or stored + self._incoming > MAX_STORED:
            self._incoming -= size
            raise Refused(507, "The app has no space for another image. Try again later.")
        return size

    async def _read(self, receive: Receive, is_call: bool) -> Receive:
        """Read a request as a whole, and return what receives it again."""
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > MAX_BODY:
                raise Refused(413)
        if is_call:
            self._check_call(body)
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Any:
            return parts.pop() if parts else await receive()

        return receive_again

    def _check_call(self, body: bytes) -> None:
        """Check a call of a function: gradio would fetch a path that is a URL."""

        def check(pairs: list[tuple[str, Any]]) -> dict[str, Any]:  # a name may stand twice
            if not all(isinstance(value, str) and self.is_known(value) for name, value in pairs if name == "path"):
                raise Refused(400, '{"detail": "The app has this image no longer. Choose it again."}')
            return dict(pairs)

        try:
            call = json.loads(body, object_pairs_hook=check)
            json.dumps(call, ensure_ascii=False).encode()  # half a character would end gradio's queue
        except (ValueError, RecursionError):
            raise Refused(400) from None
        function = call.get("fn_index") if isinstance(call, dict) else None
        if type(function) is not int or function not in self.functions:
            raise Refused(400)


def _stored() -> tuple[int, int]:
    """Number and bytes of the files that are served."""
    sizes = list[int]()
    for parent, _, names in os.walk(served()):
        for name in names:
            with contextlib.suppress(OSError):
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
    return len(sizes), sum(sizes)


@cache
def served() -> Path:
    """Return the temporary folder for uploads, samples and results; gradio allows one per process."""
    folder = Path(tempfile.mkdtemp(prefix="fringe-app-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class AppServer:
    """The app as a server, which answers from a thread of its own within a ``with`` block.

    Args:
        spec: Options.

    Attributes:
        service: Models, methods and samples.
        url: Address of the server.

    Raises:
        FringeError: If a model cannot be loaded, or the host or port cannot be used.
    """

    def __init__(self, spec: AppSpec):
        if spec.host not in LOOPBACK and not spec.allow_remote:
            raise InputError(
                f"{spec.host!r} lets other machines use your models and processors",
                argument="host",
                hint="pass allow_remote=True if they may, or leave it at 127.0.0.1",
            )
        for origin in spec.frame_ancestors:
            is_origin = _ORIGIN.fullmatch(origin) is not None
            require(is_origin, "frame_ancestors", origin, "the origin of a site, as https://example.org")
        self._socket = _listen(spec.host, spec.port)
        self._folder = Path(tempfile.mkdtemp(dir=served()))
        try:
            self.service = Service(load_models(spec, class_names(spec.classes)), self._folder, spec)
            self.guard = self._application(() if spec.allow_remote else LOOPBACK, spec.frame_ancestors)
        except BaseException:
            self.close()
            raise
        import uvicorn

        name = f"[{spec.host}]" if ":" in spec.host else spec.host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(self.guard, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
        self._server: Any = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def _application(self, hosts: tuple[str, ...], frames: tuple[str, ...]) -> Guard:
        # before gradio is imported: it would ask its maker's server for the newest version, and report usage
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_TEMP_DIR=str(served()))
        import fastapi
        import gradio

        from fringe.app._blocks import HEAD, STYLE, build_app, theme

        outer = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self.blocks = blocks = build_app(self.service)
        # gradio sets it in its own launch, and only then checks that a request names an uploaded file
        blocks.has_launched = True
        gradio.mount_gradio_app(
            outer,
            blocks,
            path="/",
            footer_links=[],
            run_history=False,
            show_error=False,
            max_file_size=MAX_UPLOAD,
            ssr_mode=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            theme=theme(),
            css_paths=[STYLE],
            head=HEAD,
        )
        samples = {str(self.service.sample_file(index)) for index in range(len(self.service.samples))}
        functions = frozenset(blocks.fns)
        return Guard(outer, hosts, functions, lambda path: path in samples or path in blocks.upload_file_set, frames)

    @property
    def is_alive(self) -> bool:
        """Whether it answers."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop all computations, end the server, and remove its files."""
        if hasattr(self, "service"):
            self.service.jobs.stop_all()
        if hasattr(self, "_thread") and self._thread.is_alive():
            logger = logging.getLogger("uvicorn.error")
            level = logger.level
            logger.setLevel(logging.CRITICAL)  # the stream of an open tab is cut off, which is no error
            self._server.should_exit = True
            self._thread.join(15)
            logger.setLevel(level)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "AppServer":
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.02)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens at the address."""
    require(0 <= port < 65536, "port", port, "0 to 65535")
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except socket.gaierror as error:
        raise InputError(f"{host!r} is no address of this machine ({error.strerror})", argument="host") from error
    except OSError as error:
        hint = "name another port, or 0 for a free one"
        reason = os.strerror(error.errno or 0)
        raise InputError(f"{port} cannot be used at {host} ({reason})", argument="port", hint=hint) from error


def launch(spec: AppSpec | None = None, **options: Any) -> None:
    """Serve the app until it is interrupted (Ctrl+C) or terminated (SIGTERM).

    Args:
        spec: Options; None builds them from ``options``.
        **options: Fields of :class:`AppSpec`.

    Raises:
        FringeError: If an option is invalid, a model cannot be loaded, or the address cannot be used.
    """
    server = AppServer(spec or AppSpec(**options))
    with contextlib.suppress(Interrupted), interruptible(), server:
        print(f"fringe listens at {server.url} (Ctrl+C ends it)", flush=True)
        while server.is_alive:
            time.sleep(0.2)
