"""``fringe app``: the web app on this machine."""

from typing import TYPE_CHECKING, Any

from fringe.cli._console import exit_on_error, say, warn
from fringe.cli._options import with_options

if TYPE_CHECKING:
    from fringe.app import AppServer


@with_options("fringe.app:AppSpec")
def app(given: dict[str, Any]) -> None:
    """Serve a web app: drop an image, choose a model and a method, see and download the explanation.

    People may choose among the models that you name here, and nothing else. Ctrl+C ends it.
    """
    with exit_on_error("app"):
        from fringe.app import LOOPBACK, AppSpec, launch

        spec = AppSpec(**given)
        if spec.host not in LOOPBACK and spec.allow_remote:
            warn(
                f"warning: everyone who reaches port {spec.port} of this machine can use the models and processors, "
                "without a password"
            )

        def ready(server: "AppServer") -> None:
            say(f"fringe listens at {server.url} (Ctrl+C ends it)")

        launch(spec, ready=ready)
