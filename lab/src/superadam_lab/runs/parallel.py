"""Several processes that train one model: each gets a share of every batch, and all take the same steps.

`torchrun` starts them. All take the same collectives in the same order. So whatever may differ between processes (the
clock, a signal, a measurement, a file that one of them writes) is read once, for all: by `from_first` or `highest`.
A process that fails tells the others why, which then fail as well. None waits longer than `SUPERADAM_WAIT` seconds.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils._pytree import tree_map

import superadam
from superadam import load_checkpoint, save_checkpoint
from superadam.checkpoint import default_generators, set_default_generators
from superadam_lab.data.batching import ALL, Share, share
from superadam_lab.errors import nearest
from superadam_lab.reading import typed
from superadam_lab.runs.batch_norm import join_statistics
from superadam_lab.runs.folders import Place
from superadam_lab.runs.locks import Lock

if TYPE_CHECKING:
    from superadam_lab.tasks.workloads import Evaluated, Workload

__all__ = ["STRATEGIES", "LostError", "Processes", "together"]

STRATEGIES = ("ddp", "fsdp2")
VARIABLE, WAIT = "SUPERADAM_WAIT", 1800.0
PACKAGES = str(Path(__file__).parent) + os.sep, str(Path(superadam.__file__).parent) + os.sep
T = TypeVar("T")


class LossOf(Protocol):
    """The signature of `Workload.loss`."""

    def __call__(self, batch: Any, memory: Any, /) -> Evaluated: ...


@contextmanager
def together(strategy: str | None, device: str) -> Iterator[Processes]:
    """The processes that torchrun started together with this one, or this one alone."""
    if strategy is not None and strategy not in STRATEGIES:
        raise ValueError(f"Unknown strategy {strategy!r}: {nearest(strategy, STRATEGIES)}")
    if not os.environ.keys() >= {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"}:
        if strategy is not None:
            raise ValueError(
                f"The strategy {strategy} is for several processes, and this one is alone: start them with "
                "`torchrun --nproc-per-node 2 -m superadam_lab …`, or leave --strategy out"
            )
        yield Processes()
        return
    check_device(device)
    on_gpus = torch.device(device).type == "cuda"
    if on_gpus:
        local, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= there:
            raise ValueError(f"Process {local} of this machine has no GPU, there are {there}: start fewer processes")
        torch.cuda.set_device(local)
    wait = timedelta(seconds=_wait())
    store, rank, size = next(rendezvous("env://", timeout=wait))
    backend = "cpu:gloo,cuda:nccl" if on_gpus else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=wait)
    try:
        with _failing_together(store, rank, size):
            yield Processes(strategy or "ddp")
    finally:
        dist.destroy_process_group()


def _wait() -> float:
    """How many seconds a process waits for the others."""
    said = os.environ.get(VARIABLE, str(WAIT))
    with suppress(ValueError):
        if 0 < float(said) < 1e9:
            return float(said)
    raise ValueError(f"Invalid {VARIABLE}: {said!r} (expected the seconds that a process waits for the others)")


class LostError(RuntimeError):
    """A process waits for others in vain."""


@contextmanager
def _failing_together(store: Any, rank: int, size: int) -> Iterator[None]:
    """Tell the other processes why this one fails; where it fails for want of the others, say why they did."""
    try:
        yield
    except BaseException as error:
        lost = isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
        place = _place(error)
        why = f"waits in vain in {place}" if lost else f"{type(error).__name__}: {error}"
        with suppress(Exception):  # the store ends with its process
            store.set(f"superadam end {rank}", why)
        if not lost:
            raise
        time.sleep(1.0)  # who waits for each other gives up at the same time
        others = [f"process {other}: {_said(store, other)}" for other in range(size) if other != rank]
        raise LostError(
            f"Process {rank} of {size} waited for the others in {place}, for {VARIABLE}={_wait():g} seconds at most. "
            f"What they have said at their end: {'; '.join(others)}. ({error})"
        ) from error


def _said(store: Any, rank: int) -> str:
    """The last words of a process."""
    with suppress(Exception):
        if store.check([f"superadam end {rank}"]):
            return str(store.get(f"superadam end {rank}").decode(errors="replace"))
    return "nothing, it was killed or stands still"


def _place(error: BaseException) -> str:
    """The innermost line of the traceback outside of this module, of ours if there is one."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    ours = [frame for frame in frames if frame.filename.startswith(PACKAGES)]
    return next((f"{Path(f.filename).name}, line {f.lineno} ({f.name})" for f in reversed(ours or frames)), "the start")


class Processes:
    """The processes that train together; this one is number `rank`. A single process sends nothing.

    >>> alone = Processes()
    >>> alone.part, alone.weight(32), alone.highest(1.0, 2.0)
    ((0, 1), 1.0, [1.0, 2.0])
    """

    def __init__(self, strategy: str | None = None) -> None:
        self.strategy = strategy
        self.part: Share = ALL if strategy is None else (dist.get_rank(), dist.get_world_size())
        self.rank, self.size = self.part

    @property
    def alone(self) -> bool:
        return self.strategy is None

    @property
    def leads(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    @property
    def divided(self) -> bool:
        """Whether the parameters are sharded."""
        return self.strategy == "fsdp2"

    @property
    def command(self) -> str:
        """The command that starts the processes."""
        here = os.environ.get("LOCAL_WORLD_SIZE", self.size)
        return "superadam" if self.alone else f"torchrun --nproc-per-node {here} -m superadam_lab"

    # ------------------------------------------------------------------------------------------------ agreement

    def highest(self, *numbers: float) -> list[float]:
        """The largest of each over all processes."""
        if self.alone:
            return list(numbers)
        message = torch.tensor(numbers, dtype=torch.float64)  # on the CPU, so that no GPU is waited for
        dist.all_reduce(message, dist.ReduceOp.MAX)
        return cast(list[float], message.tolist())

    def from_first(self, make: Callable[[], T]) -> T:
        """The result of the first process, for all. If the first raises an error, all of them do."""
        if self.alone:
            return make()
        made: list[Any] = [None, None]
        if self.leads:
            try:
                made[0] = make()
            except Exception as error:
                made[1] = error
        dist.broadcast_object_list(made, src=0, device=torch.device("cpu"))
        if made[1] is not None:
            raise made[1]
        return cast(T, made[0])

    def in_turn(self, make: Callable[[], T]) -> T:
        """What each makes for itself: the first process, then the others, which find the files that it unpacked."""
        mine: list[T] = []
        self.from_first(lambda: mine.append(make()))
        return mine[0] if self.leads else make()

    @contextmanager
    def holding(self, lock: Lock) -> Iterator[None]:
        """The first process holds the lock for all of them."""
        self.from_first(lock.take)
        try:
            yield
        finally:
            if self.leads:
                lock.release()

    def wait(self) -> None:
        """Wait for all processes."""
        self.highest(0.0)

    # ------------------------------------------------------------------------------------------------ training

    def device(self, name: str) -> torch.device:
        """The device of this process: each has its own GPU."""
        device = torch.device(name)
        return device if self.alone or device.type != "cuda" else torch.device("cuda", torch.cuda.current_device())

    def weight(self, n: int) -> float:
        """The weight of this process's share of n rows in the mean over the processes."""
        return self.size * len(range(n)[share(n, self.part)]) / n

    def join(self, workload: Workload) -> LossOf:
        """Share the model between the processes. Returns a loss whose `backward` computes the mean gradient over all of
        them."""
        if self.alone:
            return lambda batch, memory: workload.loss(batch, memory)
        if workload.size(0) < self.size:
            raise ValueError(f"A batch of {workload.size(0)} cannot be shared by {self.size} processes: start fewer")
        join_statistics(workload.model)
        if not self.divided:
            # BatchNorm's statistics are the same everywhere: they need not be sent.
            return DistributedDataParallel(Loss(workload), forward_sync_buffers=False)
        if type(workload.model).forward is nn.Module.forward:
            raise ValueError("fsdp2 divides the layers of a network, and there is none in this task: use ddp")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # It warns that outputs are views, which nobody here writes into.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        mesh = init_device_mesh(workload.device.type, (self.size,))
        for layer in (*getattr(workload.model, "layers", ()), workload.model):
            # The last one, too: parameters() are the divided ones, whatever has been measured.
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        return lambda batch, memory: workload.loss(batch, memory)

    def seed(self, seed: int) -> None:
        """Give every process its own dropout masks. The first has those of a single process."""
        if not self.leads:
            torch.manual_seed((seed + 1) * 1_000_003 + self.rank)

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save(self, path: Any, *, model: nn.Module, optimizer: Optimizer, extra: dict[str, Any], **parts: Any) -> None:
        """`save_checkpoint` of the whole run, as a single process would save it, plus the generators of the other
        processes."""
        extra = {**extra, "memory": self._gathered(extra["memory"]), "others": self._all(default_generators())[1:]}
        both = [Whole(part) if self.divided else part for part in (model, optimizer)]
        if self.leads:
            save_checkpoint(path, model=both[0], optimizer=both[1], extra=extra, **parts)  # type: ignore[arg-type]
        elif self.divided:
            for part in both:
                part.state_dict()
        self.wait()  # nobody goes on, or away, before it is there

    def load(self, path: Any, seed: int, *, model: nn.Module, optimizer: Optimizer, **parts: Any) -> Place:
        """`load_checkpoint`, with any number of processes. If there are more than before, the new ones start with new
        masks."""
        both: list[Any] = [Whole(part) if self.divided else part for part in (model, optimizer)]
        extra = load_checkpoint(path, model=both[0], optimizer=both[1], **parts)
        place = typed(Place, extra, f"{path}, extra")
        if self.leads or self.rank > len(place.others):
            self.seed(seed)
        else:
            set_default_generators(place.others[self.rank - 1])
        if place.memory is not None:
            device = next(model.parameters()).device
            columns = share(place.memory[0].shape[1], self.part)
            place.memory = tuple(t[:, columns].contiguous().to(device) for t in place.memory)
        return place

    def _gathered(self, memory: Sequence[Tensor] | None) -> Sequence[Tensor] | None:
        """An LSTM's state for all columns of the batch, [layers, B, size]."""
        if self.alone or memory is None:
            return memory
        return tuple(torch.cat(columns, 1) for columns in zip(*self._all([t.cpu() for t in memory]), strict=True))

    def _all(self, mine: T) -> list[T]:
        if self.alone:
            return [mine]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, mine)
        return found


class Loss(nn.Module):
    """A workload's loss as a module, for `DistributedDataParallel`: a formula has no layers to wrap."""

    def __init__(self, workload: Workload) -> None:
        super().__init__()
        self.workload, self.model = workload, workload.model

    def forward(self, batch: Any, memory: Any) -> Evaluated:
        return self.workload.loss(batch, memory)


class Whole:
    """A sharded model or optimizer, for a checkpoint that is not sharded."""

    def __init__(self, part: nn.Module | Optimizer) -> None:
        self.part = part

    def state_dict(self) -> dict[str, Any]:
        """Must be called in every process at the same time."""
        return cast(dict[str, Any], tree_map(_full, self.part.state_dict()))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if isinstance(self.part, nn.Module):
            own = self.part.state_dict()
            state = {name: _like(x, own[name]) for name, x in state.items()}
        self.part.load_state_dict(state)


def check_device(name: str) -> None:
    """Raise an error if a device does not work on this machine."""
    try:
        torch.zeros(1, device=name).item()  # "meta" makes tensors, but has no numbers
    except Exception as error:  # torch has an AssertionError, a RuntimeError or a UnicodeError for it
        raise ValueError(f"The device {name!r} does not work here: {error}") from error


def _like(x: Tensor, p: Tensor) -> Tensor:
    """Return x, sharded as p is."""
    if not hasattr(p, "full_tensor"):
        return x
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, p.device_mesh, p.placements)  # type: ignore[attr-defined]


def _full(x: Any) -> Any:
    return x.full_tensor() if hasattr(x, "full_tensor") else x
