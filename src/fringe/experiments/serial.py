"""All units in this process, one after the other."""

import time
from collections.abc import Sequence

from fringe.experiments.jobs import Account, Job, Report, Watcher, left_over, perform
from fringe.experiments.units import Task

PAUSE = 0.5
"""Seconds between two looks at units that another process has in hand."""


def run_here(job: Job, units: Sequence[Task], account: Account, watch: Watcher) -> None:
    """Perform ``units``; those that another process is at are looked at again until they are there, or free because it
    died. ``account`` knows at any time what is done, also when this is interrupted."""
    worker, pending = job.worker(), list(units)
    while pending:
        passed: list[Report] = []
        for unit in pending:
            report = perform(job, worker, unit)
            passed.append(report)
            if report.state != "taken":
                account.reports.append(report)
                watch(report)
        pending = left_over(passed)
        if len(pending) == len(passed):
            time.sleep(PAUSE)
