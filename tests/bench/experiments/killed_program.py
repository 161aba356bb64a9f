"""A benchmark of the shipped digits as a person would start it: ``killed_program.py FOLDER WORKERS``."""

import sys
from pathlib import Path

from small_plans import digits_plan

from fringe.bench.experiments import ProcessExecutor, RunOptions, run_plan

if __name__ == "__main__":
    workers = int(sys.argv[2])
    executor = ProcessExecutor(workers) if workers else None
    run_plan(digits_plan(), Path(sys.argv[1]), RunOptions(executor=executor))
