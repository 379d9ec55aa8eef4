"""A run that gets a signal to stop finishes its batch first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["stopping"]


@contextmanager
def stopping(told: Callable[[int], None], *, once: bool) -> Iterator[None]:
    """The first SIGINT or SIGTERM calls `told` and lets the batch end. With `once`, the second has its usual effect.

    torchrun gets the signal together with its processes and sends it to them again, so the second signal is ignored
    there.
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
