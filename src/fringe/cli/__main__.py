"""``python -m fringe.cli``."""

from fringe.cli.app import main

main()
