"""Checkpoints on disk: everything that a run needs to resume bit for bit, in one file that is replaced atomically."""

from __future__ import annotations

import copy
import glob
import itertools
import os
import shutil
import uuid
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from superadam import evaluations
from superadam.evaluations import Replay, generators_of
from superadam.loading import by_name

__all__ = [
    "Resumable",
    "content_of",
    "default_generators",
    "load_checkpoint",
    "save_checkpoint",
    "set_default_generators",
]

T = TypeVar("T", covariant=True)
PathLike = str | os.PathLike[str]
KEYS = {"parts", "names", "generators", "extra"}


class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a GradScaler, a StatefulDataLoader, …"""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Savable = Stateful | Generator


def save_checkpoint(
    path: PathLike, *, model: nn.Module, optimizer: Optimizer, extra: Any = None, **parts: Savable | None
) -> None:
    """Save a run, so that `load_checkpoint` resumes it bit for bit.

    The file also has the states of torch's generators (the CPU's, and every device's once one is in use), of Python's
    `random` and of NumPy. It replaces an older one atomically: `path` always holds a complete checkpoint. Call
    `save_checkpoint` between two batches, on rank 0 only. It raises an error between the two half-steps of a batch.

    Args:
        path: path of the file, in an existing folder.
        model: the model, with its parameters and buffers.
        optimizer: any optimizer, ours or torch's.
        extra: your own plain data (numbers, strings, tensors, lists, dicts), which `load_checkpoint` returns.
        parts: by name, everything else that changes during the run and has a `state_dict`: an LR scheduler, a
            `GradScaler`, `Resumable` data, an average of the model, …; and every `torch.Generator` that you draw from.
            None is skipped.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> opt = torch.optim.SGD(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/last.pt", model=model, optimizer=opt, extra={"best": 0.5})
    """
    half = evaluations.current()
    if half is not None and not half.second and getattr(optimizer, "two_point", False):
        raise RuntimeError(
            "save_checkpoint() was called in the first turn of a batch. Call it after step() in the second turn."
        )
    named = _checked({"model": model, "optimizer": optimizer, **parts})
    states = {name: _state(part) for name, part in named.items()}
    _write(path, {"parts": states, "names": _names(named), "generators": default_generators(), "extra": extra})


def load_checkpoint(path: PathLike, *, model: nn.Module, optimizer: Optimizer, **parts: Savable | None) -> Any:
    """Load a checkpoint of `save_checkpoint` into the same parts, set the generators, and return `extra`.

    Call it right before training continues, because random numbers drawn afterwards are part of the run. A file that is
    truncated, corrupted, of another kind, or of another model or optimizer raises a ValueError, and nothing changes.
    Weights and the optimizer's state are matched by the names of the parameters in the model. Parameters outside any
    module are matched by position. For the weights alone: `torch.load(path, weights_only=True)["parts"]["model"]`.

    Args:
        path: the file.
        model: the model, whose weights are replaced.
        optimizer: the optimizer, whose state is replaced.
        **parts: the other parts that you passed to `save_checkpoint`, under the same names.

    >>> import tempfile
    >>> model = nn.Linear(2, 1)
    >>> parts = {"model": model, "optimizer": torch.optim.SGD(model.parameters())}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/last.pt", **parts, extra={"best": 0.5})
    ...     load_checkpoint(f"{folder}/last.pt", **parts)
    {'best': 0.5}
    """
    given = _checked({"model": model, "optimizer": optimizer, **parts})
    content = content_of(path)
    saved, now = content["parts"], default_generators()
    if saved.keys() != given.keys():
        there, here = (", ".join(sorted(map(str, names))) for names in (saved, given))
        raise ValueError(
            f"{path} was saved with {there}, but is loaded with {here}. Pass the same parts under the same names."
        )
    name, undo = "the generators", list[tuple[Savable, Any]]()
    try:
        set_default_generators(content["generators"])
        for name, names in _names(given).items():
            if name in content["names"]:  # a checkpoint that several processes have saved has them in its groups
                saved[name] = by_name(saved[name], content["names"][name], names)
        for name, part in given.items():
            if isinstance(part, nn.Module):
                _check_module(part.state_dict(), saved[name])
        for name, part in sorted(given.items(), key=lambda item: isinstance(item[1], nn.Module)):
            if not isinstance(part, nn.Module):  # modules are checked and come last: to undo them would need a copy
                before = _state(part)  # loading replaces an optimizer's tensors and does not write into them
                undo.append((part, before if isinstance(part, Optimizer) else copy.deepcopy(before)))
            _load(part, saved[name])
        set_default_generators(content["generators"])  # once more: loading may have drawn from them
    except Exception as error:
        for part, before in reversed(undo):
            _load(part, before)
        set_default_generators(now)
        raise ValueError(f"{path} does not fit {name}, and nothing was loaded: {error}") from error
    return content["extra"]


def content_of(path: PathLike) -> dict[str, Any]:
    """Read a checkpoint. Raise a ValueError unless `save_checkpoint` has written the whole file."""
    with open(path, "rb") as file:
        try:
            if wrong := zipfile.ZipFile(file).testzip():  # torch does not look at the check sums
                raise ValueError(f"the check sum of {wrong} is wrong")
            file.seek(0)
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # whoever can write a file can write its check sums
            raise ValueError(
                f"{path} is not a complete checkpoint of save_checkpoint(): it is truncated, damaged, or was written "
                f"by something else ({type(error).__name__}: {error})"
            ) from error
    if not isinstance(content, dict) or content.keys() != KEYS or not isinstance(content["parts"], dict):
        raise ValueError(f"{path} was not written by save_checkpoint() of this version")
    return content


def default_generators() -> dict[str, Any]:
    """Return the states of the default generators of torch, Python and NumPy as plain data."""
    return Replay().plain()


def set_default_generators(saved: dict[str, Any]) -> None:
    """Set the states of the default generators that exist here."""
    Replay.of(saved).restore()


def _checked(parts: dict[str, Savable | None]) -> dict[str, Savable]:
    for name, part in parts.items():
        if not (part is None or isinstance(part, Generator) or hasattr(part, "load_state_dict")):
            raise TypeError(f"{name} is a {type(part).__name__}, without state_dict(): pass plain data as extra=")
    return {name: part for name, part in parts.items() if part is not None}


def _names(parts: dict[str, Savable]) -> dict[str, list[list[str] | None]]:
    """Find the names of each optimizer's parameters in the modules, by group: torch would pair them by position."""
    modules = {name: part for name, part in parts.items() if isinstance(part, nn.Module)}
    known = {p: f"{name}.{key}" for name, module in modules.items() for key, p in module.named_parameters()}
    return {
        name: [
            [known[p] for p in group["params"]] if all(p in known for p in group["params"]) else None
            for group in part.param_groups
        ]
        for name, part in parts.items()
        if isinstance(part, Optimizer)
    }


def _state(part: Savable) -> Any:
    return part.get_state() if isinstance(part, Generator) else part.state_dict()


def _load(part: Savable, state: Any) -> None:
    part.set_state(state) if isinstance(part, Generator) else part.load_state_dict(state)


def _check_module(own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raise the errors that `load_state_dict` raises half way, and one for another dtype, which it would cast."""
    here, there = ({key: _kind(value) for key, value in state.items()} for state in (own, saved))
    keys = [key for key in sorted(here | there) if here.get(key) != there.get(key)]
    if keys:
        wrong = [f"{key!r} is {there.get(key, 'missing')} there, {here.get(key, 'missing')} here" for key in keys[:3]]
        raise ValueError("; ".join(wrong) + (f", and {len(keys) - 3} more" if len(keys) > 3 else ""))


def _kind(x: Any) -> str:
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{tuple(x.shape)} {x.dtype}" + ("" if x.layout is torch.strided else f" {x.layout}")


def _write(path: PathLike, content: Any) -> None:
    """Write a whole file to the disk, and let it replace the old file."""
    path = Path(os.path.realpath(path))
    for left_over in path.parent.glob(glob.escape(f".{path.name}.") + "*.tmp"):  # of a killed process
        left_over.unlink(missing_ok=True)
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(new, "xb") as file:
            try:
                torch.save(content, file)
            except RuntimeError as error:  # torch's own words do not say why: a full disk, say
                raise error.__context__ if isinstance(error.__context__, OSError) else error from None
            file.flush()
            os.fsync(file.fileno())
        if unsafe := torch.serialization.get_unsafe_globals_in_checkpoint(new):
            raise TypeError(
                f"Not saved: extra= or the state of a part contains a {', '.join(unsafe)}, which torch.load("
                "weights_only=True) would not read. Save numbers, strings, tensors, lists and dicts."
            )
        if path.exists():
            shutil.copymode(path, new)
        os.replace(new, path)
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        raise RuntimeError(
            f"{path} was not saved: another process saves to it. Call save_checkpoint() on rank 0 only."
        ) from None
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


class Resumable(Generic[T]):
    """A data loader that tracks its position: `epoch`, and `batch`, the number of batches handed out in it.

    Iterate over it as over the loader, one epoch at a time, and pass it to `save_checkpoint` and `load_checkpoint`.
    After loading, the first loop covers the rest of its epoch. It restarts the epoch with the same order, fetches the
    finished batches again and drops them, so that random augmentation continues where it was. This does not work with
    `persistent_workers`, whose generators are not accessible.

    A batch counts as done once it is handed out: save after the step on it, and iterate over this object directly (or
    over `twice` of it), not over a wrapper that prefetches.

    Args:
        loader: a `DataLoader`, or any iterable that restarts each time. Its order must be fixed, or drawn from its
            `generator`, its samplers' `generator`, or the default ones.
        generators: your own generators that the dataset draws from in this process.

    >>> data = Resumable([10, 20, 30])
    >>> for batch in data:
    ...     saved = data.state_dict()  # as save_checkpoint does
    ...     break
    >>> data = Resumable([10, 20, 30])
    >>> data.load_state_dict(saved)
    >>> list(data)
    [20, 30]
    """

    def __init__(self, loader: Iterable[T], *generators: Generator) -> None:
        self.loader = loader
        self.epoch = self.batch = 0
        self._generators = list(dict.fromkeys((*generators_of(loader), *generators)))
        self._start: dict[str, Any] | None = None  # the generators as the epoch began
        self._skip = False

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        if self._skip:
            batches = self._rest()
        else:
            self.batch = 0
            self._start = {"default": default_generators(), "own": [g.get_state() for g in self._generators]}
            batches = iter(self.loader)
        for batch in batches:
            self.batch += 1
            yield batch
        self.epoch += 1
        self.batch, self._start = 0, None

    def _rest(self) -> Iterator[T]:
        assert self._start is not None
        now = default_generators()
        set_default_generators(self._start["default"])
        for generator, state in zip(self._generators, self._start["own"], strict=True):
            generator.set_state(state)
        batches = iter(self.loader)
        done = sum(1 for _ in itertools.islice(batches, self.batch))
        if done < self.batch:
            raise RuntimeError(
                f"The data has changed: {self.batch} batches were finished, but the loader has only {done}."
            )
        set_default_generators(now)
        self._skip = False
        return batches

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "batch": self.batch, "length": self._length(), "start": self._start}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        epoch, batch, length, start = (state_dict[name] for name in ("epoch", "batch", "length", "start"))
        if length != self._length():
            raise ValueError(f"The data has changed: an epoch had {length} batches, and has {self._length()} now.")
        if start is not None and len(start["own"]) != (here := len(self._generators)):
            raise ValueError(f"The loader had {len(start['own'])} generators of its own, and has {here} now.")
        self.epoch, self.batch, self._start, self._skip = epoch, batch, start, start is not None

    def _length(self) -> int | None:
        return len(self) if hasattr(type(self.loader), "__len__") else None
