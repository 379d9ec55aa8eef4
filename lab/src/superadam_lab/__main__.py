"""The entry point of `superadam`: outside of the package, whose import takes seconds, for Ctrl-C to end these, too."""

import os
import signal
import sys
from importlib.metadata import version

__all__ = ["main"]


def main() -> None:
    """Import the command, and run it."""
    if sys.argv[1:] == ["--version"]:  # at once, and without the extra that the command needs
        print("superadam", version("superadam"))
        return
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _stopped)
    from superadam_lab.cli import main as command

    if signal.getsignal(signal.SIGINT) is _stopped:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    command()


def _stopped(number: int, frame: object) -> None:
    """Nothing has been begun: leave at once. An exception would be lost in the import of a C extension."""
    sys.stderr.write("Stopped.\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":  # torchrun starts the module
    main()
