"""The web server of the app: its address, the paths it answers, and what a browser may load."""

import atexit
import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fringe._class_names import read_class_names
from fringe._process import Interrupted, interruptible
from fringe.app._service import Service, load_models
from fringe.app._spec import LOOPBACK, AppSpec
from fringe.app._worker import Limits
from fringe.data import SOURCE
from fringe.errors import InputError, require

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

#: Paths that the page of the app requests; all other paths of gradio are refused.
PATHS = ("/", "/config", "/theme.css", "/favicon.ico", "/manifest.json")
FOLDERS = (
    *("/assets/", "/static/", "/gradio_api/queue/", "/gradio_api/upload", "/gradio_api/heartbeat/"),
    *("/gradio_api/file=", "/gradio_api/startup-events", "/gradio_api/cancel", "/gradio_api/app_id"),
)
#: Nothing is loaded from another machine. Gradio's page needs inline scripts; the frame of an explanation is a
#: separate document with the same rules.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Shield:
    """Middleware that answers only requests of the page of the app, to one of the ``hosts`` in the Host header, against
    DNS rebinding by foreign pages; without any, to all."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], hosts: tuple[str, ...]):
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse with 403 or 404."""
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        status = self._refusal(scope)
        if status:
            await send({"type": "http.response.start", "status": status, "headers": []})
            return await send({"type": "http.response.body", "body": b""})

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                new = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *new]
            await send(message)

        return await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> int:
        """Return the HTTP status of a refusal; 0 for a request that is answered."""
        headers = {bytes(name).decode("latin-1"): bytes(value).decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get("host", ""), headers.get("origin")
        if scope["type"] != "http" or (self.hosts and _host(host) not in self.hosts):
            return 403
        if origin is not None and urlsplit(origin).netloc != host:
            return 403
        path = str(scope["path"])
        known = path in PATHS or path.startswith(FOLDERS)
        return 0 if known and not path.startswith("/gradio_api/file=http") else 404


def _host(header: str) -> str:
    """Return the name in a Host header, without the port."""
    return (urlsplit(f"//{header}").hostname or "").lower()


@cache
def served() -> Path:
    """Return the temporary folder for uploads, samples and results; gradio allows one per process."""
    folder = Path(tempfile.mkdtemp(prefix="fringe-app-")).resolve()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class AppServer:
    """The app as a server in its own thread.

    Args:
        spec: Options.

    Attributes:
        service: Models, methods, samples and the thread that computes.
        blocks: The page, a gradio object.
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
        limits = Limits(max_pixels=spec.max_pixels, time_limit=spec.time_limit, queue=spec.queue)
        self._socket = _listen(spec.host, spec.port)
        self._folder = Path(tempfile.mkdtemp(dir=served()))
        try:
            models = load_models(
                spec.model or (SOURCE,),
                trust_code=spec.trust_code,
                preprocessing=spec.preprocessing,
                class_names=read_class_names(spec.classes),
                device=spec.device,
            )
            self.service = Service(models, self._folder, limits, spec.samples)
            application = self._application(() if spec.allow_remote else LOOPBACK)
        except BaseException:
            self.close()
            raise
        name = f"[{spec.host}]" if ":" in spec.host else spec.host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}"
        self._server = _make_server(application)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)

    def _application(self, hosts: tuple[str, ...]) -> Any:
        # before gradio is imported: it would ask its maker's server for the newest version, and report usage
        os.environ.update(GRADIO_ANALYTICS_ENABLED="False", GRADIO_RUN_HISTORY="False", GRADIO_TEMP_DIR=str(served()))
        import fastapi
        import gradio

        from fringe.app._blocks import HEAD, STYLE, build_app, theme

        outer = fastapi.FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
        self.blocks = blocks = build_app(self.service, served())
        # gradio sets it in its own launch, and only then checks that a request names an uploaded file
        blocks.has_launched = True
        gradio.mount_gradio_app(
            outer,
            blocks,
            path="/",
            footer_links=[],
            allowed_paths=[],
            show_error=False,
            max_file_size=self.service.limits.max_upload_bytes,
            ssr_mode=False,
            enable_monitoring=False,
            pwa=False,
            mcp_server=False,
            theme=theme(),
            css_paths=[STYLE],
            head=HEAD,
        )
        return Shield(outer, hosts)

    def start(self) -> "AppServer":
        """Start to answer requests, in the background."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            self._thread.join(0.02)
        return self

    def wait(self) -> None:
        """Wait until the server ends."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stop all computations, end the server, and remove its files."""
        if hasattr(self, "service"):
            self.service.close()
        if hasattr(self, "_thread") and self._thread.is_alive():
            self._server.should_exit = True
            self._thread.join(15)
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> "AppServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


def _make_server(application: Any) -> Any:
    import uvicorn

    config = uvicorn.Config(application, log_level="warning", access_log=False, timeout_graceful_shutdown=1)
    return uvicorn.Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """Open a socket that listens at the address."""
    require(0 <= port < 65536, "port", port, "0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InputError(f"{host!r} is no address of this machine ({error.strerror})", argument="host") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name != "nt":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise InputError(
            f"{port} cannot be used at {host} ({error.strerror})",
            argument="port",
            hint="name another port, or 0 for a free one",
        ) from error
    return listening


def launch(spec: AppSpec | None = None, *, ready: Callable[[AppServer], None] | None = None, **options: Any) -> None:
    """Serve the app until it is interrupted (Ctrl+C) or terminated (SIGTERM).

    Args:
        spec: Options; None builds them from ``options``.
        ready: Called once it listens; by default its address is printed.
        **options: Fields of :class:`AppSpec`.

    Raises:
        FringeError: If an option is invalid, a model cannot be loaded, or the address cannot be used.
    """
    server = AppServer(spec or AppSpec(**options))
    with contextlib.suppress(Interrupted), interruptible(), server:
        (ready or _announce)(server)
        server.wait()


def _announce(server: AppServer) -> None:
    print(f"fringe listens at {server.url} (Ctrl+C ends it)", flush=True)
