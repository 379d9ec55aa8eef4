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
from typing import Any, Self

import torch
import torch.distributed as dist

import superadam
from superadam._state.parts import nearest
from superadam.checkpoint.disk import write_text
from superadam.lab.locks import Lock
from superadam.lab.passwords import masked

__all__ = ["DECAYS", "Config", "Folder", "command", "plain", "rows", "write_json"]

Row = dict[str, Any]

DECAYS: dict[str, Callable[[float], float]] = {
    "none": lambda done: 1.0,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
    "warmup-cosine": lambda done: min((done + 1e-3) / 0.05, 1.0) * (1 + math.cos(math.pi * done)) / 2,
}
"""Factors of the learning rate, of the part of a run's gradient evaluations that is used."""


@dataclasses.dataclass
class Config:
    """What a run is of. With the versions and the threads of environment.json, it says what the numbers will be."""

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

    def __post_init__(self) -> None:
        if self.decay not in DECAYS:
            raise ValueError(f"Unknown decay {self.decay!r}: {nearest(self.decay, DECAYS)}")
        if self.decay != "none" and self.budget_seconds and not (self.epochs or self.budget_evals):
            raise ValueError("decay needs an end that is known: give epochs or a budget of evaluations, too")
        for name in ("every", "epochs", "budget_evals", "budget_seconds"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"Invalid {name}: {value} (expected more than 0)")


class Folder:
    """The files of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config, self.environment = self.path / "config.json", self.path / "environment.json"
        self.metrics, self.checkpoint = self.path / "metrics.jsonl", self.path / "last.pt"
        self.lock = Lock(self.path / "run.lock")

    @classmethod
    def new(cls, path: str | os.PathLike[str] | None, config: Config) -> Self:
        """A folder for a run, named after it where no name is given. One that holds a run already is refused."""
        folder = cls(_free(config) if path is None else path)
        folder.path.mkdir(parents=True, exist_ok=True)
        try:
            write_json(folder.config, dataclasses.asdict(config), new=True)  # of two that are made at once, one fails
        except FileExistsError:
            raise ValueError(
                f"{folder.path} holds a run: `superadam resume {folder.path}` goes on with it, or give another --out"
            ) from None
        folder.metrics.touch()
        return folder

    def write(self, config: Config) -> None:
        write_json(self.config, dataclasses.asdict(config))

    def read(self) -> Config:
        """The config of the run that is there."""
        if not self.config.exists():
            raise ValueError(f"{self.path} holds no run: there is no {self.config.name}. `superadam train` makes one.")
        return Config(**json.loads(self.config.read_text(encoding="utf-8")))

    def write_environment(self) -> None:
        """Who computes now, added to those before."""
        known = self.sessions()
        write_json(self.environment, [*known, environment()])

    def sessions(self) -> list[dict[str, Any]]:
        """The environments in which the run was computed."""
        found = json.loads(self.environment.read_text(encoding="utf-8")) if self.environment.exists() else []
        return list(found)

    def append(self, row: Row) -> None:
        """Add a line to the metrics, to the disk: a checkpoint will rely on its being there."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain(row), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_metrics(self, size: int) -> None:
        """Drop what was measured after the checkpoint that training goes on from: it will be measured again."""
        with self.metrics.open("ab") as file:
            file.truncate(size)


def rows(path: str | os.PathLike[str]) -> list[Row]:
    """The metrics of a run, one dict for each evaluation."""
    folder = Folder(path)
    folder.read()
    lines = folder.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]  # the last one may be half written


def command() -> str:
    """The command that was given, without passwords."""
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
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "threads": torch.get_num_threads(),
        "processes": dist.get_world_size() if dist.is_initialized() else 1,
    }


def _cpu() -> str:
    """The processor's name, where it can be found."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "")


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
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any, *, new: bool = False) -> None:
    """The whole file or none."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n", new=new)
