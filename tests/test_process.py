"""What became of a process, by its name."""

import subprocess
import sys
from pathlib import Path

import pytest

from fringe._files import process as _process
from fringe._files.process import fate_of, process_name


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="the system does not say when a process started")
def test_fates(monkeypatch):
    host, pid, start = process_name().split("-")
    assert fate_of(process_name()) == "alive"
    assert fate_of(f"{host}-{pid}-1") == "gone"  # a later process has the number
    assert fate_of(f"another-{pid}-{start}") == fate_of("no name") == fate_of(f"{host}-{pid}-") == "unknown"
    for part in ("_boot", "_namespace"):  # machines and containers that share the host's name
        with monkeypatch.context() as patch:
            patch.setattr(_process, part, lambda: "another")
            theirs = process_name()
        assert fate_of(theirs) == "unknown"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    theirs = f"{host}-{child.pid}-{_process._start(child.pid)}"
    assert fate_of(theirs) == "alive"
    child.communicate()
    assert fate_of(theirs) == "gone"
