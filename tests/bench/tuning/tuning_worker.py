"""A process that takes part in a search: ``tuning_worker.py JOURNAL TRIALS HANG_AT``. It says what it does on standard
output, waits for a line in its first trial, and hangs in its HANG_AT-th."""

import sys
import time
from pathlib import Path

from tuning_toys import score, search


def main(journal: str, trials: str, hang_at: str) -> None:
    calls = 0

    def slow(method):
        nonlocal calls
        calls += 1
        if calls == 1:
            print("ready", flush=True)
            sys.stdin.readline()
        if calls == int(hang_at):
            print("hanging", method.tau, flush=True)
            time.sleep(600)
        time.sleep(0.03)
        return score(method)

    mine = []
    search(Path(journal), int(trials), slow, progress=lambda trial, done, wanted: mine.append(trial.number))
    print("did", *mine, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
