"""The scripts for GPUs, where there is none: kernels are written, compiled and interpreted; the users' check runs."""

import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import copies
import gpu_check
import gpu_kernels
import narrow_state

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def test_the_tables_are_those_of_the_results():
    page = gpu_kernels.PAGE.read_text()
    written = page.split(gpu_kernels.BEGIN)[1].split(gpu_kernels.END)[0]
    assert written.strip() == "\n".join(gpu_kernels.tables(json.loads(gpu_kernels.RESULTS.read_text())))


def test_what_the_results_say():
    """The kernels equal the reference, and move no more than they must: x, g, H and the gradient, each once."""
    results = json.loads(gpu_kernels.RESULTS.read_text())["compositions"]
    assert set(results) == set(gpu_kernels.COMPOSITIONS)
    for name, of in results.items():
        check(name, of)
    expected = {"case 1, τ = 0, capturable": 28, "case 1, τ = 1": 44, "yogi": 28, "lion": 20}
    assert {name: results[name]["bytes"] for name in expected} == expected


def check(name, of):
    if gpu_kernels.COMPOSITIONS[name][1] is not None:
        assert of["reference"] < 1e-13
    assert of["float64"] < 1e-13
    assert of["float32"] < 1e-6
    assert of["moved"] > 1e-3
    assert of["launches"] >= 1
    for kernel in of["kernels"]:
        for target in gpu_kernels.TARGETS:
            code = kernel[target]
            assert code["cubin"] > 0
            assert code["spilled"] == 0
            by_four, single = code["loads"]
            assert by_four > single  # only scalars are loaded one by one


def test_steps_with_sets_are_counted():
    results = json.loads(gpu_kernels.RESULTS.read_text())["sets"]
    assert set(results) == set(gpu_kernels.SETS)
    for name in ("none", "`Halfspace(1, 1)`"):
        assert gpu_kernels.counted_set(name) == results[name]


@pytest.mark.slow
def test_kernels_are_generated_compiled_and_interpreted(tmp_path):
    pytest.importorskip("triton", reason="comes with superadam[slow]")
    names = ["case 1, τ = 1", "case 1, τ = 0, capturable", "yogi"]
    command = [
        sys.executable,
        SCRIPTS / "gpu_kernels.py",
        "--only",
        *names,
        "--models",
        "--json",
        tmp_path / "found.json",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "found.json").read_text())["compositions"]
    for name in names:
        check(name, results[name])
    assert [results[name]["bytes"] for name in names] == [44, 28, 28]
    assert [results[name]["launches"] for name in names] == [2, 1, 1]


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


# ---------------------------------------------------------------------------------------------- state in bfloat16


measured = pytest.mark.skipif(not narrow_state.RESULTS.exists(), reason="not measured yet: narrow_state.py --write")


@measured
def test_the_table_of_the_narrow_state_is_that_of_the_losses():
    page = narrow_state.PAGE.read_text()
    written = page.split(narrow_state.BEGIN)[1].split(narrow_state.END)[0]
    assert written.strip().splitlines() == list(narrow_state.table(json.loads(narrow_state.RESULTS.read_text())))


@measured
def test_losses_with_a_narrow_state_are_within_the_noise_of_seeds():
    rows = json.loads(narrow_state.RESULTS.read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        wide, narrow = row["losses"]["float32"], row["losses"]["bfloat16"]
        assert len(wide) == len(narrow) == len(narrow_state.SEEDS)
        assert abs(statistics.mean(wide) - statistics.mean(narrow)) < statistics.stdev(wide)
        assert row["bytes"] == {"float32": 8.0, "bfloat16": 4.0}


@measured
@pytest.mark.slow
def test_a_loss_of_the_narrow_state_can_be_had_again():
    recorded = json.loads(narrow_state.RESULTS.read_text())["rows"][-2]
    loss, _ = narrow_state.trained(*narrow_state.tasks()[recorded["task"]], 0, recorded["tau"], torch.bfloat16)
    assert loss == pytest.approx(recorded["losses"]["bfloat16"][0], rel=1e-3)
