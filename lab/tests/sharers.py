"""What the processes of lab/tests/runs/test_parallel.py run, all in one start; and, alone, the test process itself."""

import signal
import sys
from pathlib import Path
from unittest import mock

from torch import nn

from superadam_lab import tasks
from superadam_lab.runs.folders import Config, Folder
from superadam_lab.runs.parallel import Processes, together
from superadam_lab.runs.training import Run, Watcher

SIZES = {
    "digits-cnn": {"batch": 21},  # 64 = 3 · 21 + 1: one process has nothing of the last batch
    "pydoc-lstm": {"batch": 5, "words": 200},
    "pydoc-transformer": {"words": 300},
}
WITHOUT_DROPOUT = {
    "mlp tau=0": ("digits-mlp", "super_adam tau=0", "ddp"),
    "mlp tau=1": ("digits-mlp", "super_adam tau=1", "ddp"),
    "cnn": ("digits-cnn", "super_adam tau=1", "ddp"),
    "lstm": ("pydoc-lstm", "super_adam tau=1", "ddp"),
    "transformer": ("pydoc-transformer", "super_adam tau=0", "ddp"),
    "logistic": ("logistic-nonconvex", "storm", "ddp"),
    "simplex tau=0": ("simplex-regression", "super_adam tau=0", "ddp"),
    "simplex tau=1": ("simplex-regression", "super_adam tau=1", "ddp"),
    "nmf": ("nmf", "super_adam tau=1", "ddp"),
    "divided transformer tau=0": ("pydoc-transformer", "super_adam tau=0", "fsdp2"),
    "divided transformer tau=1": ("pydoc-transformer", "super_adam tau=1", "fsdp2"),
    "divided transformer, one norm": ("pydoc-transformer", "adagrad_norm", "fsdp2"),
    "divided transformer, ahead": ("pydoc-transformer", "adam_plus", "fsdp2"),
    "divided mlp": ("digits-mlp", "sgd", "fsdp2"),
    "divided cnn": ("digits-cnn", "super_adam tau=1", "fsdp2"),
    "divided lstm": ("pydoc-lstm", "super_adam tau=1", "fsdp2"),
}
RESUMED = {
    "resumed": ("pydoc-lstm", "super_adam tau=1", "ddp"),
    "resumed divided": ("pydoc-transformer", "super_adam tau=1", "fsdp2"),
}
REFUSED = {
    "no layers": ("simplex-regression", "adam", "fsdp2", 16),
    "joint matrix": ("digits-mlp", "sdlbfgs", "fsdp2", 32),
    "small batch": ("digits-mlp", "adam", "ddp", 1),
}


class Interrupt(Watcher):
    """A signal to one of the processes."""

    def __init__(self, rank, step):
        self.rank, self.step = rank, step

    def stepped(self, run, loss):
        if (run.processes.rank, run.step) == (self.rank, self.step):
            signal.raise_signal(signal.SIGTERM)


def make(path, processes, task, method, watcher=None, **sizes):
    """A run at tiny scale: the one that is there, or a new one."""
    with mock.patch.dict(tasks.find(task).scales["tiny"], {**SIZES.get(task, {}), **sizes}):
        config = Config(task, method, "tiny", preset="default", strategy=processes.strategy, options={"lr": 0.01})
        folder = processes.from_first(lambda: Folder(path) if path.exists() else Folder.new(path, config))
        return Run(folder, watcher, processes)


def without_dropout(run):
    for module in run.workload.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.LSTM):
            module.dropout = 0.0
    return run


def run_with(processes, folder):
    """All that is for one strategy."""

    def mine(table):
        return {name: parts for name, parts in table.items() if parts[2] == processes.strategy}.items()

    for name, (task, method, _) in mine(WITHOUT_DROPOUT):
        assert without_dropout(make(folder / name, processes, task, method)).train() == "finished"
    for name, (task, method, _) in mine(RESUMED):
        assert make(folder / f"{name} whole", processes, task, method).train() == "finished"
        to_last = Interrupt(processes.size - 1, step=4)
        parts = make(folder / name, processes, task, method, to_last)
        assert parts.train() == "interrupted"
        assert parts.step == 4
        assert make(folder / name, processes, task, method).train() == "finished"
        assert (
            without_dropout(make(folder / f"{name} begun", processes, task, method, to_last)).train() == "interrupted"
        )
    said = {}
    for name, (task, method, _, batch) in mine(REFUSED):
        try:
            make(folder / name, processes, task, method, batch=batch)
        except ValueError as error:
            said[name] = str(error)
    return said


def run_all(folder):
    with together(None, "cpu") as processes:
        assert processes.strategy == "ddp"
        said = run_with(processes, folder) | run_with(Processes("fsdp2"), folder)
        for name, text in said.items() if processes.leads else ():
            (folder / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
