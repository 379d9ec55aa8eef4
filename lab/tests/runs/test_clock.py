"""What a run's seconds are."""

import threading
import time

import pytest
import torch

from superadam_lab.runs.clock import Clock

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def worked(clock, seconds):
    """What the clock says of a loop that takes so much CPU time, and then sleeps as long."""
    clock.go()
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass
    time.sleep(seconds)
    clock.pause()
    return clock.seconds


def test_one_thread_counts_cpu_time(threads):
    """What waits, as a process does while others have the core, does not count."""
    threads(1)
    assert 0.2 <= worked(Clock(CPU), 0.2) < 0.35


def test_several_threads_count_the_time_that_passes(threads):
    threads(2)
    assert worked(Clock(CPU), 0.2) >= 0.39


def test_a_pause_does_not_count(threads):
    threads(1)
    clock = Clock(CPU)
    first = worked(clock, 0.05)
    busy = threading.Thread(target=lambda: sum(range(2_000_000)))
    busy.start()
    busy.join()
    assert clock.seconds == first
