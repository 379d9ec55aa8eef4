"""Waiting on a machine of any speed: as long as there is progress, and not for a number of seconds."""

import subprocess
import time
from pathlib import Path

import pytest

HANGS = 1800
"""Seconds that say that something hangs. No measure of speed: nothing here takes a tenth of it on an idle machine."""
STILL, LEAST = 600, 5
"""A process that uses less than 5 s of a processor in 600 s hangs; of ten busy ones, each gets more."""


def ended(process):
    """What a process has printed (stdout, stderr), once it has ended. One that hangs is killed."""
    used, since = processor_time(process.pid), time.monotonic()
    while True:
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            now = processor_time(process.pid)
            if now - used >= LEAST:
                used, since = now, time.monotonic()
            elif time.monotonic() - since > STILL:
                process.kill()
                pytest.fail(f"{process.args} hangs: {process.communicate()}")


def wait_for(found, pause=0.1, alive=lambda: True):
    """What `found` returns, as soon as it is true; as long as those are alive who are to bring it about."""
    begun = time.monotonic()
    while not (value := found()):
        assert alive(), "who was waited for is no more"
        assert time.monotonic() - begun < HANGS, "in vain"
        time.sleep(pause)
    return value


def processor_time(pid):
    """Seconds that a process and those that it has started have used."""
    used, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # ended meanwhile
            continue
        number = int(path.parent.name)
        parents[number], used[number] = int(fields[1]), sum(map(int, fields[11:15])) / 100
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(used.get(member, 0.0) for member in family)
