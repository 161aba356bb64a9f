"""``python -m fringe.cli``."""

from fringe.cli import main

main()
