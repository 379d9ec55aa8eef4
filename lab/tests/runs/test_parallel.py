"""Several processes train as one would on the joint batch. lab/tests/sharers.py is what they run."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from test_training import equal
from typer.testing import CliRunner

import copies
import sharers
from patience import ended
from superadam_lab.cli import app
from superadam_lab.data import Images, batches
from superadam_lab.runs.folders import Folder, rows
from superadam_lab.runs.parallel import Processes
from superadam_lab.runs.training import Run
from versions import FSDP2_ON_CPUS, WITHOUT_FSDP2

SHARERS = Path(sharers.__file__)
# float32, and sums in another order; the weights move by 1e-4 to 1e-1.
WEIGHTS = {"rtol": 1e-5, "atol": 1e-6}
MEASURED = {"rtol": 1e-4, "atol": 1e-6}
OF_PROBES = {"estimator_error", "estimator_error2", "M", "M_error", "rho", "full_gradient_norm2", "probe_variance"}
OF_PROBES |= {"noise_scale", "variance_ratio"}
OF_PARTS = {"H_q10", "H_median", "H_q90"}  # of what the first process holds


def started(*args):
    """Two processes, by torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d"]
    command += ["--rdzv-endpoint", "localhost:0", *args]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def by_two(tmp_path_factory):
    """The folder of all runs of sharers.py."""
    if not FSDP2_ON_CPUS:
        pytest.skip(WITHOUT_FSDP2)
    folder = tmp_path_factory.mktemp("two")
    # The store of torchrun's agent, which has found a free port.
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    env = {"MASTER_ADDR": store.host, "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = ({**env, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank} for rank in "01")
    copies.wait_for_all(*[copies.start(SHARERS, folder, env=rank) for rank in ranks])
    return folder


def weights(path):
    return torch.load(path / "last.pt", weights_only=True)["parts"]["model"]


def numbers(path):
    """Of each evaluation, all that does not depend on time, nor, as the monitor's loss, on the share of a batch."""
    found = [{**row, **row["monitor"]} for row in rows(path)]
    return [{k: v for k, v in row.items() if k not in ("seconds", "monitor", "alarms", "loss")} for row in found]


def assert_alike(by_two, alone, divided):
    torch.testing.assert_close(weights(by_two), weights(alone), **WEIGHTS)
    found, expected = numbers(by_two), numbers(alone)
    if divided:
        expected = [{k: v for k, v in row.items() if k not in OF_PROBES | OF_PARTS} for row in expected]
        found = [{k: v for k, v in row.items() if k not in OF_PARTS} for row in found]
    assert [row.keys() for row in found] == [row.keys() for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert row == {k: pytest.approx(v, rel=MEASURED["rtol"], abs=MEASURED["atol"]) for k, v in other.items()}


@pytest.mark.parametrize("name", sharers.WITHOUT_DROPOUT)
def test_two_processes_give_the_result_of_one(by_two, tmp_path, name):
    """Weights and everything that is measured, also where the shares of a batch are unequal, or one is empty."""
    task, method, strategy = sharers.WITHOUT_DROPOUT[name]
    alone = sharers.without_dropout(sharers.make(tmp_path / "alone", Processes(), task, method))
    start = {n: p.detach().clone() for n, p in alone.workload.model.named_parameters()}
    alone.train()
    assert_alike(by_two / name, tmp_path / "alone", divided=strategy == "fsdp2")
    assert all((weights(by_two / name)[n] - x).abs().max() > 50 * WEIGHTS["atol"] for n, x in start.items())


@pytest.mark.parametrize("name", sharers.RESUMED)
def test_a_signal_to_one_process_stops_all_and_the_run_goes_on_as_if_nothing_had_been(by_two, name):
    """Bit for bit: with dropout, an LSTM's state, a pending move."""
    assert numbers(by_two / name) == numbers(by_two / f"{name} whole")
    parts, whole = (torch.load(by_two / n / "last.pt", weights_only=True) for n in (name, f"{name} whole"))
    assert len(parts["extra"]["others"]) == 1
    assert equal(parts, whole)


@pytest.mark.parametrize("name", sharers.RESUMED)
def test_what_two_processes_have_begun_one_can_finish(by_two, tmp_path, name):
    task, method, _ = sharers.RESUMED[name]
    shutil.copytree(by_two / f"{name} begun", tmp_path / "begun")
    begun = sharers.without_dropout(sharers.make(tmp_path / "begun", Processes(), task, method))
    assert begun.step == 4
    whole = sharers.without_dropout(sharers.make(tmp_path / "whole", Processes(), task, method))
    begun.train()
    whole.train()
    torch.testing.assert_close(weights(tmp_path / "begun"), weights(tmp_path / "whole"), **WEIGHTS)


def test_one_process_writes(by_two):
    assert sorted(p.name for p in (by_two / "cnn").iterdir()) == [
        *("config.json", "environment.json", "last.pt", "metrics.jsonl")
    ]
    assert [row["epoch"] for row in rows(by_two / "cnn")] == [0, 1, 2]
    (session,) = json.loads((by_two / "cnn" / "environment.json").read_text())
    assert session["processes"] == 2


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("no layers", "fsdp2 divides the layers of a network, and there is none"),
        ("joint matrix", "DampedLBFGS solves for all coordinates at once"),
        ("small batch", "A batch of 1 cannot be shared by 2 processes"),
    ],
)
def test_what_cannot_be_is_refused(by_two, what, says):
    assert says in (by_two / f"{what}.txt").read_text()


@pytest.mark.parametrize(("strategy", "says"), [("fsdp2", "torchrun"), ("fsdp", "did you mean 'fsdp2'?")])
def test_a_strategy_needs_torchrun(tmp_path, monkeypatch, strategy, says):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", "digits-mlp", "--strategy", strategy])
    assert result.exit_code == 2
    assert says in result.stderr
    assert not list(tmp_path.iterdir())


def test_shares_of_a_batch_are_the_batch_with_its_augmentation():
    images = Images(torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8), torch.arange(7), (0.5,), (0.25,))
    whole, first, second = (list(batches(images, 3, seed=0, augment=True, part=p)) for p in ((0, 1), (0, 2), (1, 2)))
    assert [len(y) for _, y in first] == [2, 2, 1]
    assert [len(y) for _, y in second] == [1, 1, 0]
    joined = [tuple(map(torch.cat, zip(a, b, strict=True))) for a, b in zip(first, second, strict=True)]
    torch.testing.assert_close(joined, whole, rtol=0, atol=0)


@pytest.mark.slow
def test_torchrun_is_interrupted_and_goes_on(tmp_path):
    """As a user does it: Ctrl-C to torchrun, then the command that it prints."""
    path = tmp_path / "run"
    command = (
        "-m",
        "superadam_lab",
        "train",
        "pydoc-lstm",
        "--scale",
        "tiny",
        "--epochs",
        "100000",
        "--out",
        str(path),
    )
    process = started(*command, "--method", "super_adam tau=1")
    shown = ""
    for line in process.stdout:
        shown += line
        if line.startswith("epoch 2,"):
            process.send_signal(signal.SIGINT)
            break
    rest, errors = ended(process)
    assert "2 processes (ddp)" in shown
    assert shown.count("epoch 1,") == 1
    assert f"torchrun --nproc-per-node 2 -m superadam_lab resume {path}" in rest, errors
    stopped = len(rows(path))
    assert stopped >= 3
    process = started("-m", "superadam_lab", "resume", str(path), "--epochs", str(stopped + 1))
    rest, errors = ended(process)
    assert process.returncode == 0, errors
    assert rest.count("Finished") == 1
    assert [row["epoch"] for row in rows(path)] == [*range(stopped + 2)]
    assert Run(Folder(path)).epoch == stopped + 1
