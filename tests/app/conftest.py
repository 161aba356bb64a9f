"""The running app, which the tests of its server and of its page share."""

import pytest

pytest.importorskip("gradio", reason="the app needs gradio; install fringe[app]")

from fringe.app import AppServer, AppSpec


@pytest.fixture(scope="session")
def server():
    """The app with the digits model at a free port of the loopback."""
    with AppServer(AppSpec(port=0, queue=2)) as running:
        yield running
