"""The command line. Nothing here imports torch or matplotlib before a command needs them."""

from fringe.cli.app import main

__all__ = ["main"]
