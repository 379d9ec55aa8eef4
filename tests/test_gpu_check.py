"""The users' check of a GPU runs, where there is none."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import copies
import gpu_check

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.mark.parametrize("name", ["case 1", "case 1, simplex", "case 1, halfspace"])
def test_replays_are_steps(name):
    """The comparison sees a graph that leaves out steps, and nothing else."""
    options = gpu_check.CAPTURED[name]

    def every_other(step):
        calls = iter(range(10**6))
        return gpu_check.Replayed(lambda: step() if next(calls) % 2 else None)

    def line(capture):
        return gpu_check.compared(
            name,
            lambda: gpu_check.replayed(options, "cpu", capture),
            lambda: gpu_check.replayed(options, "cpu", gpu_check.without_graph),
        )

    assert " ok " in line(gpu_check.without_graph)
    assert "DIFFERENT" in line(every_other)


def test_without_a_gpu_the_check_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with copies.start(SCRIPTS / "gpu_check.py", stderr=copies.PIPE, text=True) as process:
        _, said = process.communicate()
    assert process.returncode != 0
    assert "torch finds no CUDA device here" in said


@pytest.mark.slow  # kernels for the CPU are made
def test_the_check_for_gpus_runs_on_a_cpu():
    command = [sys.executable, SCRIPTS / "gpu_check.py", "--device", "cpu", "--parameters", "1048576"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    compared = [row for row in rows if "AdamW" not in row]
    assert len(compared) > 30
    assert all(re.search(r": \d\.\de[+-]\d+ ok", row) for row in compared), done.stdout
    made = {row.split(":")[0]: int(re.search(r"(\d+) kernels", row)[1]) for row in compared if "compile=True" in row}
    assert all(made.values()), made
    assert len(made) == 4
    assert sum(row.startswith("graph: ") for row in compared) == len(gpu_check.CAPTURED)
    assert sum("× AdamW fused" in row for row in rows) >= 9
    assert not re.search("Error|DIFFERENT", done.stdout), done.stdout
