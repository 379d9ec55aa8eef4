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


def test_without_a_gpu_the_check_says_so():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with copies.start(SCRIPTS / "gpu_check.py", stderr=copies.PIPE, text=True) as process:
        _, said = process.communicate()
    assert process.returncode != 0
    assert "torch finds no CUDA device here" in said


@pytest.mark.slow  # torch.compile
def test_the_check_for_gpus_runs_on_a_cpu():
    command = [sys.executable, SCRIPTS / "gpu_check.py", "--device", "cpu", "--parameters", "1048576"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    compared = [row for row in rows if "AdamW" not in row]
    assert len(compared) == len(gpu_check.COMPOSITIONS) + len(gpu_check.COMPILED) + len(gpu_check.ZOO)
    assert all(re.search(r": \d\.\de[+-]\d+ ok", row) for row in compared), done.stdout
    assert sum("× AdamW fused" in row for row in rows) >= 9
    assert not re.search("Error|DIFFERENT", done.stdout), done.stdout
