"""A command on several processes, and what happens to one of them at one point of it. test_parallel.py starts them.

A point is a moment before or after a collective, or a call of the run's folder: where processes can come to differ.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from superadam_lab import cli
from superadam_lab.runs.folders import Folder

LATE = 0.7
COLLECTIVES = ("all_reduce", "broadcast_object_list", "all_gather_object")
OF_FOLDERS = ("read", "write", "is_saved", "threads", "append", "cut_metrics", "check_metrics", "write_environment")
passed: list[str] = []


def broken():
    raise RuntimeError("broken on purpose")


HAPPENS = {
    "nothing": lambda: None,
    "late": lambda: time.sleep(LATE),
    "fails": broken,
    "interrupted": lambda: signal.raise_signal(signal.SIGINT),
    "terminated": lambda: signal.raise_signal(signal.SIGTERM),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stands still": lambda: time.sleep(600),
}


def point(name, number, what):
    passed.append(name)
    if len(passed) - 1 == number:
        HAPPENS[what]()


def pointed(call, name, number, what):
    """The call, with a point before and after it."""

    def instead(*args, **options):
        point(f"before {name}", number, what)
        result = call(*args, **options)
        point(f"after {name}", number, what)
        return result

    return instead


def break_at(number, what):
    """Let something happen at the point of that number."""
    for owner, names in ((dist, COLLECTIVES), (Folder, OF_FOLDERS)):
        for name in names:
            setattr(owner, name, pointed(getattr(owner, name), name, number, what))


def main(number, what, said, *command):
    torch.set_num_threads(1)
    break_at(int(number), what)
    sys.argv = ["superadam", *command]
    try:
        cli.main()
    finally:
        Path(said).write_text(json.dumps(passed))


if __name__ == "__main__":
    main(*sys.argv[1:])
