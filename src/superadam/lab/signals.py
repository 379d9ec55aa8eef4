"""A run that is asked to stop ends its batch first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopping"]


@contextmanager
def stopping(told: Callable[[int], None], *, once: bool) -> Iterator[None]:
    """The first SIGINT or SIGTERM is `told`, and lets the batch end; the second does what it always does, if `once`.

    torchrun, which is told to stop together with its processes, tells them once more: then the second says nothing new.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def stop(number: int, frame: Any) -> None:
        told(number)
        for number, handler in before.items() if once else ():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
