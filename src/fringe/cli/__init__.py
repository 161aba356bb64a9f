"""The command line. Nothing here imports torch or matplotlib before a command needs them."""

from fringe.cli._app import app, main

__all__ = ["app", "main"]
