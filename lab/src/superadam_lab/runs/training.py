"""Training: one loop for all methods, which can be stopped at any batch and resumed without any effect on the
result."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from superadam import Monitor, NotFiniteError, SuperAdam
from superadam.checkpoint import default_generators, set_default_generators
from superadam.monitor import MonitorWarning, TensorBoard
from superadam_lab import tasks
from superadam_lab.methods import by_name as methods
from superadam_lab.methods.foreign import Foreign
from superadam_lab.runs.clipping import OneFactor
from superadam_lab.runs.clock import Clock
from superadam_lab.runs.folders import Config, Folder, Row, factor
from superadam_lab.runs.parallel import Processes, check_device
from superadam_lab.runs.signals import stopping

__all__ = ["Run", "Watcher"]

SAVE_SECONDS = 300.0  # between checkpoints, where evaluations are further apart


class Watcher:
    """Receives the progress of a run. This base class ignores it."""

    def begun(self, run: Run) -> None:
        """Called before the first step of this process."""

    def stepped(self, run: Run, loss: Any) -> None:
        """Called after each step."""

    def evaluated(self, run: Run, row: Row) -> None:
        """Called after each evaluation."""


class Run:
    """A run in its folder: the one that the folder holds, or a new one.

    `train` returns how the run ended: "finished", "diverged" or "interrupted". After the first signal it finishes the
    batch and saves. It writes a row of metrics after every epoch, and every `every` batches if given, with the
    monitor's report on the last batch before it. `seconds` excludes evaluations, reports and checkpoints.

    With τ > 0 the last row is measured at x_T, while the move from x_T is still pending. So a run that is extended
    later equals one that was never stopped.

    A `config` replaces the folder's, to extend a run.

    With `processes`, each has its own `Run` in the same folder, with its share of every batch. All measure the same.
    The numbers of the first process are written and used for decisions.

    >>> import tempfile
    >>> from superadam_lab.runs.folders import Config
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = Folder.new(f"{place}/run", Config("digits-mlp", scale="tiny"))
    ...     run = Run(folder)
    ...     print(run.train(), run.epoch, run.opt.gradient_evaluations)
    finished 2 4
    """

    def __init__(
        self,
        folder: Folder,
        watcher: Watcher | None = None,
        processes: Processes | None = None,
        config: Config | None = None,
    ) -> None:
        self.folder, self.config = folder, config or folder.read()
        config, self.processes = self.config, processes or Processes()
        self.watcher = watcher or Watcher()
        self.task = tasks.find(config.task)
        self.sizes = self.task.sizes(config.scale, config.sizes)
        resumed = self.processes.from_first(folder.is_saved)
        check_device(config.device)
        if resumed:
            torch.set_num_threads(folder.threads())
        self.workload = self.processes.in_turn(
            lambda: self.task.workload(config.scale, config.seed, config.data_dir, config.sizes)
        )
        self.workload.to(self.processes.device(config.device))
        self.loss = self.processes.join(self.workload)
        self.opt = methods.make(self.task, self.workload, config.method, config.preset, config.options)
        if isinstance(self.opt, Foreign) and not self.processes.alone:
            raise ValueError(f"{config.method} runs in one process: only superadam's methods share a run")
        self._replay, self._taus = methods.replays(config.method), methods.taus(config.method)
        if self._taus:
            self._taus.insert(0, (0.0, self.opt.param_groups[0]["tau"]))
        self.decay = methods.decay(config.method) or config.decay
        self._scheduled = self.decay != "none" or config.warmup > 0
        if self._scheduled:
            for group in self.opt.param_groups:
                group["initial_lr"] = group["lr"]
        divisor = None if self._scheduled else self.workload.lr_divisor
        self.plateau = divisor and ReduceLROnPlateau(self.opt, factor=1 / divisor, patience=0, threshold=0.0, eps=0.0)
        self.epoch = self.batch = self.step = 0
        self.clock = Clock(self.workload.device)
        self.memory: Any = None
        self._measured = -1  # the step of the last row
        self._kept: int | None = 0  # bytes of the metrics, before this process adds to them
        self._signal, self._stop = 0, False  # what was sent to this process; what all have agreed on
        self._saved_at = time.perf_counter()
        writes_board = config.tensorboard and self.processes.leads
        self._board = TensorBoard(str(folder.path / "tensorboard")) if writes_board else None
        if resumed:
            self._load()
        else:
            self.processes.seed(config.seed)
        self.seconds = self.clock.passed
        """Of training, on which all processes agree after every batch."""
        self._generators = default_generators()

    # ------------------------------------------------------------------------------------------------ how far

    @property
    def epochs(self) -> int | None:
        """The number of epochs, unless a budget ends the run earlier."""
        budgets = self.config.budget_evals, self.config.budget_seconds, self.config.budget_steps
        if self.config.epochs is None and not any(budgets):
            return int(self.sizes["epochs"])
        return self.config.epochs

    @property
    def progress(self) -> float:
        """The fraction of the run that is done, from 0 to 1."""
        seconds = self.seconds / self.config.budget_seconds if self.config.budget_seconds else 0.0
        return min(1.0, max(self._used, seconds))

    @property
    def _used(self) -> float:
        """The fraction of the batches, or gradient evaluations, that is used. It does not depend on the machine."""
        steps = self.epochs and self.epochs * self.workload.length
        ends = (
            (self.step, steps),
            (self.step, self.config.budget_steps),
            (self.opt.gradient_evaluations, self.config.budget_evals),
        )
        return max((done / end for done, end in ends if end is not None), default=0.0)

    @property
    def _after(self) -> int:
        """The number of gradient evaluations after the next step."""
        used = self.opt.gradient_evaluations
        if isinstance(self.opt, Foreign):  # as many as its dearest step so far
            return used + max(1, self.opt.most)
        return used + (2 if self.opt.two_point and used > 0 else 1)

    def _done(self) -> bool:
        return (
            (self.epochs is not None and self.epoch >= self.epochs)
            or (self.config.budget_steps is not None and self.step >= self.config.budget_steps)
            or (self.config.budget_evals is not None and self._after > self.config.budget_evals)
            or (self.config.budget_seconds is not None and self.seconds >= self.config.budget_seconds)
        )

    def _ends(self) -> bool:
        """Whether to stop here; all processes agree. Saves a checkpoint if one is due."""
        since = time.perf_counter() - self._saved_at
        self.seconds, since, stop = self.processes.highest(self.clock.passed, since, self._signal)
        self._stop = stop > 0
        if since > SAVE_SECONDS:
            self._save()
        return self._stop or self._done()

    # ------------------------------------------------------------------------------------------------ training

    def train(self) -> str:
        """Train until the end."""
        with self._held(), stopping(self._asked_to_stop, once=self.processes.alone), warnings.catch_warnings():
            if not self._replay:  # it was asked for
                warnings.filterwarnings("ignore", "The two evaluations of the first batch")
            if self.processes.leads:
                self.folder.write_environment()
            set_default_generators(self._generators)  # whatever has been drawn since the run was made
            self.watcher.begun(self)
            if self._measured < 0:
                self._evaluate({})
            self.clock.go()
            while not self._ends():
                for batch in self.workload.batches(self.epoch, self.batch, self.processes.part):
                    try:
                        row = self._step(batch)
                    except NotFiniteError:  # a gradient
                        return "diverged"
                    if row is not None and not math.isfinite(row["train_loss"]):
                        return "diverged"
                    if self._ends() or self.batch == 0:
                        break
            if self._stop:
                self._save()
                return "interrupted"
            if self._measured != self.step:
                self._evaluate({})
            return "finished"

    def _step(self, batch: Any) -> Row | None:
        """One batch, and the row after it if one is due."""
        self._schedule()
        due = self._due()
        memory, clipped = self.memory, OneFactor(self.opt, self.workload.clip)
        weight = self.processes.weight(self.workload.size(self.batch))
        again = False

        def closure() -> Tensor:
            nonlocal again
            if again and not self._replay:
                torch.rand(())  # from here on, other dropout masks
            again = True
            self.opt.zero_grad()
            loss, self.memory = self.loss(batch, memory)
            loss.backward(torch.full_like(loss, weight))  # type: ignore[no-untyped-call]
            clipped()
            return loss.detach()

        loss, report = self._watched(closure) if due else (self.opt.step(closure), {})
        self.step += 1
        self.batch += 1
        if self.batch == self.workload.length:
            self.epoch, self.batch, self.memory = self.epoch + 1, 0, None
        self.watcher.stepped(self, loss)
        return self._evaluate(report) if due else None

    def _schedule(self) -> None:
        """Set the learning rate and τ of the next step, if they change during the run."""
        if self._scheduled:
            for group in self.opt.param_groups:
                group["lr"] = group["initial_lr"] * factor(self.decay, self.config.warmup, min(1.0, self._used))
        for tau in [tau for start, tau in self._taus if start <= self.progress][-1:]:
            assert isinstance(self.opt, SuperAdam)
            if tau == 0 < self.opt.param_groups[0]["tau"]:
                self.opt.flush()
            self._set_tau(tau)

    def _set_tau(self, tau: float) -> None:
        for group in self.opt.param_groups:
            group["tau"] = tau

    def _due(self) -> bool:
        """Whether a row is due after the next step."""
        return self.batch + 1 == self.workload.length or (self.step + 1) % (self.config.every or math.inf) == 0

    def _watched(self, closure: Any) -> tuple[Any, Row]:
        """A step with a report. Each report has a new monitor, so there is no monitor state to save."""
        if isinstance(self.opt, Foreign):  # whose g_t and H_t are not known
            return self.opt.step(closure), {}
        probes: dict[str, Any] = {"loss": lambda batch: self.workload.loss(batch)[0]}
        probes["batches"] = self.workload.fresh(self.step)
        if self.processes.divided:  # of divided parameters it can take no gradients for itself
            probes = {}
        ended = self.opt.register_step_post_hook(lambda *_: self.clock.pause())  # the report is no part of training
        with (
            Monitor(self.opt, 1, **probes) as monitor,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore", MonitorWarning)  # they are in the row
            loss = self.opt.step(closure)
        ended.remove()
        return loss, monitor.last

    def _evaluate(self, report: Row) -> Row:
        """Measure, write a row, save, and lower the learning rate if the recipe requires it."""
        self.clock.pause()
        row: Row = {
            "epoch": self.step / self.workload.length,
            "step": self.step,
            "gradient_evaluations": self.opt.gradient_evaluations,
            "seconds": self.clock.seconds,
            "lr": float(self.opt.param_groups[0]["lr"]),
        }
        with self.opt.at_x():  # the loss that counts
            row |= self._measure()
        row["monitor"] = {k: v for k, v in report.items() if k not in row}
        measured = row
        row = self.processes.from_first(lambda: measured)
        if self.plateau and self.batch == 0 and self.step > 0:
            self.plateau.step(row["valid_loss"])
        self._measured = self.step
        if self.processes.leads:
            self.folder.append(row)
        if self._board is not None:
            self._board({k: v for k, v in (row | row["monitor"]).items() if k not in ("monitor", "alarms")})
        self._save()
        self.watcher.evaluated(self, row)
        self.clock.go()
        return row

    def _measure(self) -> Row:
        return {**self._splits(), "full_gradient_norm": self.workload.full_gradient_norm()}

    def _splits(self) -> Row:
        splits = self.workload.splits
        return {f"{split}_{name}": v for split in splits for name, v in self.workload.evaluate(split).items()}

    # ------------------------------------------------------------------------------------------------ stopping

    def _save(self) -> None:
        self.clock.pause()
        place = {name: getattr(self, name) for name in ("epoch", "batch", "step", "memory", "_measured")}
        self.processes.save(
            self.folder.checkpoint,
            model=self.workload.model,
            optimizer=self.opt,
            plateau=self.plateau or None,
            extra={**place, "seconds": self.clock.seconds, "metrics": self.folder.metrics.stat().st_size},
        )
        self._saved_at = time.perf_counter()
        self.clock.go()

    def _load(self) -> None:
        if self._taus:  # that of the step that was saved: a checkpoint of another is refused
            self._set_tau(self.folder.saved_tau())
        place = self.processes.load(
            self.folder.checkpoint,
            self.config.seed,
            model=self.workload.model,
            optimizer=self.opt,
            plateau=self.plateau or None,
        )
        if place.step != place.epoch * self.workload.length + place.batch:
            raise ValueError(
                f"{self.folder.checkpoint} is of step {place.step}, batch {place.batch} of epoch {place.epoch}, which "
                f"is impossible with {self.workload.length} batches in an epoch: sizes or data have changed."
            )
        if self.processes.leads:
            self.folder.check_metrics(place.metrics)
        self._kept = place.metrics
        self.clock.total = self.clock.total_passed = place.seconds
        self.epoch, self.batch, self.step, self.memory = place.epoch, place.batch, place.step, place.memory
        self._measured = place._measured

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock of the folder. Drop rows that a killed process wrote after its last checkpoint."""
        with self.processes.holding(self.folder.lock):
            if self._kept is not None and self.processes.leads:
                self.folder.cut_metrics(self._kept)
            self._kept = None
            yield

    def _asked_to_stop(self, number: int) -> None:
        self._signal = number
