"""Checkpoints on disk: everything that a run needs to resume, in one file that is written atomically.

A resumed run takes the same steps bit for bit if the checkpoint restores all of its state: parameters and buffers, g, H
and a pending move, the LR scheduler, the loss scale, the random generators, and the position in the data.

The file is one of `torch.save`, read with `weights_only=True`, followed by the SHA-256 of its content, because torch
does not detect a flipped bit. A new file replaces the old one only when all of it is on the disk.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol, cast

import torch
from torch import Generator, Tensor, nn
from torch.optim import Optimizer

from superadam._state import twice
from superadam._state.loading import by_name
from superadam.checkpoint.disk import whole
from superadam.checkpoint.resumable import default_generators, set_default_generators

__all__ = ["content_of", "load_checkpoint", "save_checkpoint"]

FORMAT, VERSION = "superadam checkpoint", 1


class Stateful(Protocol):
    """Anything with a `state_dict`: a module, an optimizer, a scheduler, a GradScaler, a StatefulDataLoader, …"""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


Savable = Stateful | Generator


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: nn.Module,
    optimizer: Optimizer,
    extra: Any = None,
    **parts: Savable | None,
) -> None:
    """Save a run, so that `load_checkpoint` resumes it bit for bit. The new file replaces an older one atomically, so
    `path` always holds a complete checkpoint.

    It also saves the states of torch's generators (the CPU's, and every device's once one is in use), of Python's
    `random` and of NumPy.

    Call it between two batches. It raises an error between the two half-steps of a batch.

    Args:
        path: path of the file, in an existing folder. With several processes, call it on rank 0 only.
        model: the model, with its parameters and buffers.
        optimizer: any optimizer, ours or torch's.
        extra: your own plain data (numbers, strings, tensors, lists, dicts), which `load_checkpoint` returns.
        parts: by name, everything else that changes during the run and has a `state_dict`: an LR scheduler, a
            `GradScaler`, `Resumable` data, an average of the model, …; and every `torch.Generator` that you draw from.
            None is skipped.

    >>> import tempfile
    >>> from superadam import SuperAdam
    >>> model = nn.Linear(2, 1)
    >>> opt = SuperAdam(model, tau=1.0)
    >>> scheduler = torch.optim.lr_scheduler.StepLR(opt, 10)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = f"{folder}/last.pt"
    ...     save_checkpoint(path, model=model, optimizer=opt, scheduler=scheduler, extra={"best": 0.5})
    ...     load_checkpoint(path, model=model, optimizer=opt, scheduler=scheduler)
    {'best': 0.5}
    """
    half = twice.current()
    if half is not None and not half.second and getattr(optimizer, "two_point", False):
        raise RuntimeError(
            "save_checkpoint() was called in the first turn of a batch. Call it after step() in the second turn."
        )
    named = _checked({"model": model, "optimizer": optimizer, **parts})
    content = {
        "format": FORMAT,
        "version": VERSION,
        "parts": {name: _state(part) for name, part in named.items()},
        "names": _parameter_names(named),
        "generators": default_generators(),
        "extra": extra,
    }
    _write(path, content)


def load_checkpoint(
    path: str | os.PathLike[str], *, model: nn.Module, optimizer: Optimizer, **parts: Savable | None
) -> Any:
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
    >>> opt = torch.optim.SGD(model.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(f"{folder}/last.pt", model=model, optimizer=opt, extra={"epoch": 3})
    ...     load_checkpoint(f"{folder}/last.pt", model=model, optimizer=opt)
    {'epoch': 3}
    """
    given = _checked({"model": model, "optimizer": optimizer, **parts})
    content = content_of(Path(path))
    saved = content["parts"]
    if saved.keys() != given.keys():
        raise ValueError(
            f"{path} was saved with {', '.join(sorted(map(str, saved)))}, but is loaded with "
            f"{', '.join(sorted(given))}. "
            "Pass the same parts under the same names."
        )
    for name, part in given.items():
        if isinstance(part, nn.Module):
            _check_module(path, name, part.state_dict(), saved[name])
    here = _parameter_names(given)
    for name, there in content.get("names", {}).items():  # which older checkpoints do not have
        try:
            saved[name] = by_name(saved[name], there, here[name])
        except Exception as error:  # whatever is there in place of names
            raise ValueError(f"{path} does not fit {name}, and nothing was loaded: {error}") from error
    _load_all(path, given, saved, content["generators"])
    return content["extra"]


# ------------------------------------------------------------------------------------------------ the parts


def _checked(parts: dict[str, Savable | None]) -> dict[str, Savable]:
    for name, part in parts.items():
        if not (part is None or isinstance(part, Generator) or hasattr(part, "load_state_dict")):
            raise TypeError(f"{name} is a {type(part).__name__}, without state_dict(): pass plain data as extra=")
    return {name: part for name, part in parts.items() if part is not None}


def _parameter_names(parts: dict[str, Savable]) -> dict[str, list[list[str] | None]]:
    """For each optimizer, the names of its parameters in the modules, by group. None for a parameter without a name.

    Modules are loaded by name, so optimizers must be too. torch would pair their parameters by position.
    """
    names = {
        p: f"{name}.{key}"
        for name, part in parts.items()
        if isinstance(part, nn.Module)
        for key, p in part.named_parameters()
    }
    return {
        name: [
            [names[p] for p in group["params"]] if all(p in names for p in group["params"]) else None
            for group in part.param_groups
        ]
        for name, part in parts.items()
        if isinstance(part, Optimizer)
    }


def _state(part: Savable) -> Any:
    return part.get_state() if isinstance(part, Generator) else part.state_dict()


def _load(part: Savable, state: Any) -> None:
    part.set_state(state) if isinstance(part, Generator) else part.load_state_dict(state)


def _check_module(path: Any, name: str, own: dict[str, Any], saved: Any) -> None:
    """Check for errors that `load_state_dict` would find only after changing some parameters, and check the dtypes: it
    would cast them, and the run would differ."""
    if not isinstance(saved, dict):
        raise ValueError(f"{path} does not fit {name}: expected a dict of tensors, found {type(saved).__name__}")
    wrong = [f"{key!r} is missing there" for key in own.keys() - saved.keys()]
    wrong += [f"{key!r} is missing here" for key in saved.keys() - own.keys()]
    for key in own.keys() & saved.keys():
        mine, theirs = own[key], saved[key]
        here, there = _kind(mine), _kind(theirs)
        if isinstance(mine, Tensor) and here != there:
            wrong.append(f"{key!r} is {there} there, {here} here")
    if wrong:
        more = f", and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError(f"{path} does not fit {name}: {'; '.join(sorted(wrong)[:3])}{more}")


def _kind(x: Any) -> str:
    if not isinstance(x, Tensor):
        return f"a {type(x).__name__}"
    return f"{tuple(x.shape)} {x.dtype}" + ("" if x.layout is torch.strided else f" {x.layout}")


def _load_all(path: Any, parts: dict[str, Savable], saved: dict[str, Any], generators: Any) -> None:
    """Load all parts or none. Modules come last: they have been checked, and undoing them would need a copy of each."""
    now = default_generators()
    undo: list[Callable[[], None]] = [lambda: set_default_generators(now)]
    name = "the generators"
    try:
        set_default_generators(generators)
        for name, part in sorted(parts.items(), key=lambda item: isinstance(item[1], nn.Module)):
            if not isinstance(part, nn.Module):
                before = _state(part)  # an optimizer's tensors are replaced by loading, not written into: no copy
                before = before if isinstance(part, Optimizer) else copy.deepcopy(before)
                undo.append(lambda part=part, before=before: _load(part, before))  # type: ignore[misc]
            _load(part, saved[name])
        set_default_generators(generators)  # once more: loading may have drawn from them
    except Exception as error:
        for back in reversed(undo):
            back()
        raise ValueError(f"{path} does not fit {name}, and nothing was loaded: {error}") from error


# ------------------------------------------------------------------------------------------------ the file


class _Hashed:
    """A file that hashes its content, and keeps the reason of a failed write: torch only says that one failed."""

    def __init__(self, file: Any) -> None:
        self._file, self.sha256 = file, hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        try:
            return int(self._file.write(data))
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        """Called by torch at the end. The rest of the buffer is written later."""


def _write(path: str | os.PathLike[str], content: dict[str, Any]) -> None:
    with whole(path) as file:
        hashed = _Hashed(file)
        try:
            torch.save(content, cast(IO[bytes], hashed))
        except RuntimeError:
            if hashed.error is not None:
                raise hashed.error from None
            raise
        file.write(hashed.sha256.digest())
        file.flush()
        _check_readable(os.fspath(file.name))


def _check_readable(path: str) -> None:
    """Check now that the checkpoint can be read back, not only when it is needed."""
    unsafe = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    if unsafe:
        raise TypeError(
            f"Not saved: extra= or the state of a part contains a {', '.join(unsafe)}, which "
            "torch.load(weights_only=True) would not read. Save numbers, strings, tensors, lists and dicts."
        )


def content_of(path: Path) -> dict[str, Any]:
    """The content of a checkpoint. Raises an error unless the file is a complete checkpoint of ours."""
    with open(path, "rb") as file:
        size, digest = file.seek(0, os.SEEK_END) - hashlib.sha256().digest_size, hashlib.sha256()
        file.seek(0)
        left = max(size, 0)
        while block := file.read(min(left, 1 << 20)):
            digest.update(block)
            left -= len(block)
        if size <= 0 or file.read() != digest.digest():
            raise ValueError(
                f"{path} is not a complete checkpoint of save_checkpoint(): it is truncated, damaged, or was "
                "written by something else."
            )
        file.seek(0)
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # whoever can write a file can write its hash
            raise ValueError(f"{path} cannot be read as a checkpoint: {type(error).__name__}: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or type(content.get("version")) is not int:
        raise ValueError(f"{path} was not written by save_checkpoint().")
    if content["version"] > VERSION:
        raise ValueError(
            f"{path} was written by a newer superadam: format {content['version']}, expected at most {VERSION}."
        )
    dicts = isinstance(content.get("parts"), dict) and isinstance(content.get("names", {}), dict)
    if not dicts or not {"generators", "extra"} <= content.keys():
        raise ValueError(f"{path} is not a complete checkpoint: parts, generators or extra is missing.")
    return content
