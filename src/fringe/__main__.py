"""``python -m fringe``."""

from fringe.cli import main

main()
