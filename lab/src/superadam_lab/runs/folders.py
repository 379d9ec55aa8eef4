"""A run is a folder: config.json, environment.json, metrics.jsonl, last.pt; and run.lock while it is trained."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from typing_extensions import Self

import superadam
from superadam.checkpoint import content_of
from superadam_lab.disk import write_text
from superadam_lab.errors import nearest
from superadam_lab.passwords import masked
from superadam_lab.reading import json_file, json_of, typed
from superadam_lab.runs.locks import Lock

__all__ = ["DECAYS", "Config", "Folder", "Place", "command", "factor", "plain", "processor", "rows", "write_json"]

Row = dict[str, Any]
SEEDS = 2**40  # what is made of a seed must be one for torch, too
THREADS = 1024
MOST = 1e15  # epochs, evaluations or seconds

DECAYS: dict[str, Callable[[float], float]] = {
    "none": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "warmup-cosine": lambda done: min((done + 1e-3) / 0.05, 1.0) * (1 + math.cos(math.pi * done)) / 2,
}
"""Factors of the learning rate, of the part of a run's gradient evaluations that is used."""


def factor(decay: str, warmup: float, done: float) -> float:
    """The factor of the learning rate after a fraction of the run.

    >>> [factor("cosine", 0.1, done) for done in (0.05, 0.5, 1.0)] == [0.51 * DECAYS["cosine"](0.05), 0.5, 0.0]
    True
    """
    return DECAYS[decay](done) * (min((done + 1e-3) / warmup, 1.0) if warmup else 1.0)


@dataclasses.dataclass
class Config:
    """The configuration of a run. Together with the versions and the threads in environment.json it determines all
    numbers."""

    task: str
    method: str = "super_adam tau=0"
    scale: str = "laptop"
    preset: str = "lab"
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    seed: int = 0
    device: str = "cpu"
    data_dir: str | None = None
    every: int | None = None
    epochs: int | None = None
    budget_evals: int | None = None
    budget_seconds: float | None = None
    tensorboard: bool = False
    decay: str = "none"
    sizes: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What differs from the sizes of the scale."""
    strategy: str | None = None
    warmup: float = 0.0
    """The part of the run in which the learning rate grows to its value."""
    budget_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.warmup < 1:
            raise ValueError(f"Invalid warmup: {self.warmup} (expected a part of the run, from 0 to less than 1)")
        if self.decay not in DECAYS:
            raise ValueError(f"Unknown decay {self.decay!r}: {nearest(self.decay, DECAYS)}")
        ends = self.epochs or self.budget_evals or self.budget_steps
        if (self.decay != "none" or self.warmup) and self.budget_seconds and not ends:
            raise ValueError("decay needs an end that is known: give epochs or a budget of evaluations, too")
        for name in ("every", "epochs", "budget_evals", "budget_seconds", "budget_steps"):
            value = getattr(self, name)
            if value is not None and not 0 < value < MOST:
                raise ValueError(f"Invalid {name}: {value} (expected more than 0, and less than {MOST:g})")
        if not -SEEDS < self.seed < SEEDS:
            raise ValueError(f"Invalid seed: {self.seed} (expected less than 2^40)")


@dataclasses.dataclass
class Place:
    """The position of a run, which a checkpoint holds as `extra` besides model and optimizer."""

    epoch: int
    batch: int
    step: int
    seconds: float
    metrics: int
    """Bytes of metrics.jsonl."""
    _measured: int
    """The step of the last row."""
    memory: Any = None
    others: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """The generators of all processes but the first."""

    def __post_init__(self) -> None:
        tensors = self.memory if isinstance(self.memory, (list, tuple)) else []
        if self.memory is not None and not (tensors and all(isinstance(t, torch.Tensor) for t in tensors)):
            raise ValueError(f"Invalid memory: a {type(self.memory).__name__} (expected tensors, or None)")
        if min(self.epoch, self.batch, self.step, self.seconds, self.metrics) < 0:
            raise ValueError("The step, epoch or batch of a run cannot be negative")


class Folder:
    """The files of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config, self.environment = self.path / "config.json", self.path / "environment.json"
        self.metrics, self.checkpoint = self.path / "metrics.jsonl", self.path / "last.pt"
        self.lock = Lock(self.path / "run.lock")

    @classmethod
    def new(cls, path: str | os.PathLike[str] | None, config: Config) -> Self:
        """A folder for a run, by default named after the run. A folder that already holds a run raises an error."""
        folder = cls(_free(config) if path is None else path)
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            write_json(folder.config, dataclasses.asdict(config), new=True)  # of two that are made at once, one fails
        except FileExistsError:
            raise ValueError(
                f"{folder.path} holds a run: `superadam resume {folder.path}` continues it, or give another --out"
            ) from None
        folder.metrics.touch()
        return folder

    def write(self, config: Config) -> None:
        write_json(self.config, dataclasses.asdict(config))

    def read(self) -> Config:
        """The config of the run in this folder."""
        if not self.config.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config.name}. `superadam train` makes one.")
        return typed(Config, json_file(self.config), str(self.config))

    def write_environment(self) -> None:
        """Append the environment of this process."""
        known = self.sessions()
        write_json(self.environment, [*known, environment()])

    def sessions(self) -> list[dict[str, Any]]:
        """The environments in which the run was computed."""
        found = json_file(self.environment) if self.environment.exists() else []
        if not isinstance(found, list) or not all(isinstance(session, dict) for session in found):
            raise ValueError(f"{self.environment}: expected a list of objects, one for each time the run was computed")
        return found

    def threads(self) -> int:
        """The number of threads with which the run was started. Sums over threads depend on it."""
        found = next((session.get("threads") for session in self.sessions()), None)
        if type(found) is not int or not 0 < found <= THREADS:
            raise ValueError(
                f"{self.environment} does not say how many threads the run was started with, so it cannot be "
                f'resumed bit for bit: expected [{{"threads": N, …}}, …] with N from 1 to {THREADS}'
            )
        return found

    def saved_tau(self) -> float:
        """The τ of the optimizer in the checkpoint."""
        parts = content_of(self.checkpoint)["parts"]
        try:
            return float(parts["optimizer"]["param_groups"][0]["tau"])
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(f"{self.checkpoint} does not say at which tau it was saved") from error

    def append(self, row: Row) -> None:
        """Append a line to the metrics and flush it to the disk, because a checkpoint will rely on it."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def is_saved(self) -> bool:
        """Whether there is a checkpoint. Raises an error if it was lost: a new start would drop the metrics.

        A checkpoint follows every row, so a run that was killed before its first checkpoint has at most one row.
        """
        if self.checkpoint.exists():
            return True
        if self.metrics.exists() and self.metrics.read_bytes().count(b"\n") > 1:
            raise ValueError(
                f"{self.checkpoint} is missing, but {self.metrics.name} has rows: to go on would write over them. "
                "Put the checkpoint back, or start a new run."
            )
        return False

    def check_metrics(self, size: int) -> None:
        """Raise an error if rows are missing that the checkpoint relies on."""
        there = self.metrics.stat().st_size
        if size > there:
            raise ValueError(
                f"{self.metrics} has {there} bytes, but had {size} when {self.checkpoint.name} was saved: rows are "
                "missing. Restore the file, or begin a new run."
            )

    def cut_metrics(self, size: int) -> None:
        """Drop the rows after the checkpoint from which training resumes: they will be measured again."""
        with self.metrics.open("ab") as file:
            file.truncate(size)


def rows(path: str | os.PathLike[str]) -> list[Row]:
    """The metrics of a run, one dict for each evaluation."""
    folder = Folder(path)
    folder.read()
    found = []
    for i, line in enumerate(folder.metrics.read_bytes().splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break  # the last one may be half written
        where = f"{folder.metrics}, line {i}"
        row = json_of(line.decode(errors="replace"), where)
        if not isinstance(row, dict) or not isinstance(row.get("monitor", {}), dict):
            raise ValueError(f"{where}: expected an object of numbers, and of an object 'monitor'")
        found.append(row)
    return found


def command() -> str:
    """The command line, without passwords."""
    return shlex.join(["superadam", *map(masked, sys.argv[1:])])


def environment() -> dict[str, Any]:
    """This process and its machine."""
    return {
        "command": command(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "superadam": superadam.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": processor(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
    }


def _free(config: Config) -> Path:
    """A new folder in runs/."""
    name = f"{config.task}-{config.method.replace(' ', '-').replace('=', '')}-seed{config.seed}"
    for i in count(1):
        path = Path("runs") / (name if i == 1 else f"{name}-{i}")
        with suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise AssertionError


def plain(value: Any) -> Any:
    """Replace NaN and infinity by null, because JSON has neither."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any, *, new: bool = False) -> None:
    """Write JSON atomically."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n", new=new)


def processor() -> str:
    """The name of the processor, or its architecture if the system does not tell the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next((name for name in (*names, platform.processor(), platform.machine()) if name), "")
