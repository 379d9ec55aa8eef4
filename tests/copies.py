"""Processes that start at once: copies of this one, which has imported torch already.

A test that is about a new interpreter (what it imports, the seed of its hashes) starts one by `subprocess`.
"""

import gc
import os
import runpy
import subprocess
import sys
import traceback
import warnings

from patience import wait_for

PIPE = subprocess.PIPE


def start(*args, env=None, **options):
    """`python -c code …` or `python file …`, as a `subprocess.Popen`."""
    import torch._dynamo  # noqa: F401 - which torch imports with the first optimizer, and then every copy would

    def instead():
        """In the copy, with its stdin, stdout and stderr in place: run the program, and never come back."""
        code = 1
        try:
            # Popen returns as soon as its own pipe is closed. Not only closed: torch's logging writes to the file that
            # pytest captures stderr with, and its number would be given to a socket of gloo.
            for fd in map(int, os.listdir("/dev/fd")):
                if fd > 2 and fd not in options.get("pass_fds", ()):
                    os.dup2(2, fd, inheritable=False)
            gc.freeze()  # what this process has made is not looked at again, nor copied for it
            gc.enable()
            warnings.resetwarnings()  # which pytest turns into errors
            os.environ.update(env or {})
            # Not closed with the object: a copy of this copy has others in its place.
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode, closefd=False) for fd, mode in enumerate("rww"))
            code = run(args)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            os._exit(code)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12 on, where xdist has a thread
        # A new interpreter ignores SIGPIPE; a copy does too, unless subprocess takes that back.
        return subprocess.Popen(args, preexec_fn=instead, restore_signals=False, **options)


def run(args):
    """The code that the program ends with."""
    try:
        if args[0] == "-c":
            sys.argv = ["-c", *map(str, args[2:])]
            exec(args[1], {"__name__": "__main__"})
        else:
            sys.argv = [*map(str, args)]
            sys.path.insert(0, os.path.dirname(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    return 0


def check(*args, **options):
    """What it printed. It must succeed."""
    with start(*args, stdout=PIPE, **options) as process:
        said, _ = process.communicate()
    assert process.returncode == 0, said
    return said


def wait_for_all(*processes):
    """Of those that work together. If one fails, the others would wait for it: they are killed."""
    wait_for(lambda: any(p.poll() for p in processes) or all(p.poll() == 0 for p in processes))
    for process in processes:
        process.kill()
        process.wait()
    assert [process.returncode for process in processes] == [0] * len(processes)
