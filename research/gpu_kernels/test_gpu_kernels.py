"""The tables are those of the stored results. The slow checks make, compile and interpret kernels again."""

import json
import subprocess
import sys

import pytest

from research.gpu_kernels import gpu_kernels


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


@pytest.mark.slow
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
        "-m",
        "research.gpu_kernels.gpu_kernels",
        "--only",
        *names,
        "--models",
        "--json",
        tmp_path / "found.json",
    ]
    done = subprocess.run(command, check=False, cwd=gpu_kernels.HERE.parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "found.json").read_text())["compositions"]
    for name in names:
        check(name, results[name])
    assert [results[name]["bytes"] for name in names] == [44, 28, 28]
    assert [results[name]["launches"] for name in names] == [2, 1, 1]
