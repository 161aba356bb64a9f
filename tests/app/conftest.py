"""The running app, which the tests of its server and of its page share."""

import importlib.util

import pytest

if importlib.util.find_spec("gradio") is None:  # not imported before a test needs it: seconds in every collection
    pytest.skip("the app needs gradio; install the extra app", allow_module_level=True)

from fringe.app import AppServer, AppSpec


@pytest.fixture(scope="session")
def server():
    """The app with the digits model at a free port of the loopback."""
    with AppServer(AppSpec(port=0, queue=2)) as running:
        yield running
