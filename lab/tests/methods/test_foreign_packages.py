"""The real packages whose optimizers people compare."""

import subprocess
import sys

import pytest

import foreign as stand_ins
from comparing import numbers
from patience import wait_for
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.records import Results
from superadam_lab.comparison.worker import Light
from superadam_lab.runs.folders import Config

pytestmark = pytest.mark.slow

METHODS = {
    "torch": ["torch.optim.Muon + torch.optim.AdamW", "torch.optim.AdamW", "torch.optim.LBFGS max_iter=4"],
    "pytorch_optimizer": [
        "pytorch_optimizer:SOAP precondition_frequency=10",
        "pytorch_optimizer:AdamMini",
        "pytorch_optimizer:Lion",
        "pytorch_optimizer:SAM base_optimizer=torch.optim.Adam",
        "pytorch_optimizer:FriendlySAM base_optimizer=torch.optim.Adam",
    ],
    "schedulefree": [
        "schedulefree:AdamWScheduleFree",
        "schedulefree:AdamWScheduleFree decay=none",
        "schedulefree:SGDScheduleFree",
    ],
    "heavyball": ["heavyball:SOAP", "heavyball:AdamW"],
}


@pytest.mark.parametrize(("package", "method"), [(p, m) for p, found in METHODS.items() for m in found])
@pytest.mark.filterwarnings("ignore")  # theirs
def test_an_optimizer_of_a_package_trains(package, method):
    pytest.importorskip(package)
    lr = 1.0 if "LBFGS" in method or "SGD" in method else 0.01
    sizes = {"hidden": 32, "rows": None}
    run = Light(Config("digits-mlp", method, "tiny", options={"lr": lr}, budget_evals=100, decay="cosine", sizes=sizes))
    assert run.train() == "finished"
    first, *_, last = run.folder.rows
    assert last["gradient_evaluations"] <= 100
    assert last["train_loss"] < 0.6 * first["train_loss"]


@pytest.mark.parametrize(
    ("package", "method", "said"),
    [
        ("torch", "torch.optim.Muon momentum=0.9", r'second optimizer: "torch.optim.Muon \+ torch.optim.AdamW"'),
        ("heavyball", "heavyball:ForeachSOAP", "heavyball has no 'ForeachSOAP': did you mean 'SOAP'"),
    ],
)
@pytest.mark.filterwarnings("ignore")  # theirs
def test_what_a_package_cannot_do_is_refused_with_what_it_can(package, method, said):
    """Muon takes matrices alone; heavyball 3 has renamed its classes."""
    pytest.importorskip(package)
    with pytest.raises(ValueError, match=said):
        Light(Config("digits-mlp", method, "tiny", options={"lr": 0.01}, budget_evals=100))


def done(out):
    """How many runs of a comparison are made."""
    if not (out / "comparison.db").exists():
        return 0
    try:
        with Queue(f"sqlite:///{out / 'comparison.db'}", out.name) as queue:
            return len(queue.records())
    except ValueError:  # its tables are not there yet
        return 0


def test_one_command_compares_all_kinds_and_goes_on_after_a_sigkill_with_the_same_table(tmp_path):
    pytest.importorskip("pytorch_optimizer")
    pytest.importorskip("schedulefree")
    file = stand_ins.written(tmp_path)
    chosen = [
        "torch.optim.Muon + torch.optim.AdamW",
        "pytorch_optimizer:SOAP",
        "schedulefree:AdamWScheduleFree decay=none",
        f"mine: {file}:Plain",
        "adam",
        "super_adam tau=1",
        "storm",
    ]

    def command(out):
        options = [word for method in chosen for word in ("--methods", method)]
        few = ["--scale", "tiny", "--trials", "2", "--seeds", "2", "--budget-evals", "40", "--no-reuse"]
        program = "from superadam_lab.cli import main; main()"
        return [
            sys.executable,
            "-c",
            program,
            "compare",
            "digits-mlp",
            "pydoc-transformer",
            *few,
            *options,
            "--out",
            out,
        ]

    def kill(out, after):
        """Once so many runs are made."""
        process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL)
        wait_for(lambda: done(out) >= after, alive=lambda: process.poll() is None)
        process.kill()
        process.wait()

    for out, kills in ((tmp_path / "whole", []), (tmp_path / "killed", [5, 20])):
        for after in kills:
            kill(out, after)
        subprocess.run(command(out), check=True, stdout=subprocess.DEVNULL)
    whole, killed = (Results.read(tmp_path / name / "results.json") for name in ("whole", "killed"))
    assert len(whole.records) == 2 * 8 * 4
    assert {r.status for r in whole.records if r.phase == "report"} == {"finished"}
    assert numbers(killed) == numbers(whole)
    assert sorted(whole.plan.packages) == sorted([str(file), "pytorch_optimizer", "schedulefree"])
