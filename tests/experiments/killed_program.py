"""A benchmark of the shipped digits as a person would start it: ``killed_program.py FOLDER WORKERS``."""

import sys
from pathlib import Path

from small_plans import digits_plan

from fringe.experiments import RunOptions, run_plan

if __name__ == "__main__":
    run_plan(digits_plan(), Path(sys.argv[1]), RunOptions(workers=int(sys.argv[2])))
