"""Where the time of a step goes, for compositions that miss the targets of README.md.

For each composition, on the parameters of ResNet-18: the whole step and its halves, every operation in it, the bytes
that the step must move at least, and how near that brings it to what memory allows. All times are minima over the
steps, those of operations call by call, and with one thread they are of the processor's clock: what other programs do
at the same time matters little. "outside" is what is in no operation: Python, and the calls.

python -m research.speed.step_profile [--steps 30] [--threads 1] [--out research/speed/profile.txt]
"""

import argparse
import collections
import resource
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from superadam import SuperAdam, matrices, step, zoo
from superadam_lab.bench import candidates, measures, models

# bytes per parameter that the passes over x of a step must move: x, g and buffers read and written, gradients read
STEPS = {
    "torch AdamW, fused": (28, candidates.ADAMW_FUSED.build),
    "torch AdamW, foreach": (28, candidates.ADAMW_FOREACH.build),
    "amsgrad": (36, zoo.amsgrad),
    "case 2, τ = 0": (4 + 20, lambda p: SuperAdam(p, matrix=matrices.GradientNorm())),
    "case 4b, τ = 0": (12 + 20, lambda p: SuperAdam(p, matrix=matrices.BeliefNorm())),
    "yogi": (28, zoo.yogi),
    "padam": (36, zoo.padam),
    "case 1, τ = 1": (24 + 20, lambda p: SuperAdam(p, tau=1.0)),
}
OPERATIONS = {
    "sqrt": lambda x, y, z: torch.sqrt(x, out=z),
    "rsqrt": lambda x, y, z: torch.rsqrt(x, out=z),
    "x / y": lambda x, y, z: torch.div(x, y, out=z),
    "x += c y": lambda x, y, z: z.add_(x, alpha=0.5),
    "x *= c": lambda x, y, z: z.mul_(0.999),
    "x += y z": lambda x, y, z: z.addcmul_(x, y, value=1e-3),
    "‖x‖": lambda x, y, z: torch.linalg.vector_norm(x),
}
SHOWN = 7


def seconds(run):
    """On the wall's clock, or, if one thread does it all, on that thread's."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


class Least(collections.defaultdict):
    """The minimum of what it is told under each name."""

    def __init__(self):
        super().__init__(lambda: float("inf"))

    def tell(self, name, value):
        self[name] = min(self[name], value)


def watched(least):
    """A context in which steps tell how long their halves take."""
    stack = ExitStack()
    for name, label in (("to_next_point", "move, and q into g"), ("absorb", "gradient into g and H")):
        inner = getattr(step, name)

        def timed(*args, inner=inner, label=label):
            least.tell(label, seconds(lambda: inner(*args)))

        stack.enter_context(mock.patch.object(step, name, timed))
    return stack


class Clocked(TorchDispatchMode):
    """The operations that are called meanwhile, and how long each takes."""

    def __init__(self):
        super().__init__()
        self.log = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = []
        spent = seconds(lambda: out.append(func(*args, **(kwargs or {}))))
        self.log.append((func.overloadpacket.__name__, spent))
        return out[0]


def operations(run, steps):
    """Milliseconds and calls of each operation in a step."""
    least, clocked = Least(), Clocked()
    for _ in range(steps):
        clocked.log.clear()
        with clocked:
            run()
        for i, (name, spent) in enumerate(clocked.log):
            least.tell((name, i), 1e3 * spent)
    total, calls = collections.Counter(), collections.Counter(name for name, _ in least)
    for (name, _), ms in least.items():
        total[name] += ms
    return [(ms, name, calls[name]) for name, ms in total.most_common()]


def report_step(name, bytes_each, build, gradients, steps, bandwidth, say):
    n = sum(g.numel() for g in gradients[0])
    trial = candidates.Trial(candidates.Candidate(name, "", build), gradients)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    first = 1e3 * seconds(trial.step)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    for _ in range(4):
        trial.step()
    least = Least()
    with watched(least):
        whole = 1e3 * min(seconds(trial.step) for _ in range(steps))
    limit = 1e3 * bytes_each * n / bandwidth
    say(f"{name}: {whole:.2f} ms; memory needs {limit:.2f} ms for {bytes_each} bytes each: {limit / whole:.0%}")
    say(f"    first step {first:.1f} ms, with {faults} pages of fresh memory")
    for half, spent in least.items():
        say(f"    half: {half:38} {1e3 * spent:7.2f} ms")
    inside = operations(trial.step, steps)
    for ms, operation, calls in inside[:SHOWN]:
        say(f"    {operation:32} {calls:4} calls {ms:7.2f} ms {ms / whole:5.0%}")
    rest = sum(ms for ms, *_ in inside[SHOWN:])
    outside = max(0.0, whole - rest - sum(ms for ms, *_ in inside[:SHOWN]))
    say(f"    {'other operations':32} {'':10} {rest:7.2f} ms\n    {'outside':32} {'':10} {outside:7.2f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lines = []

    def say(text):
        lines.append(text)
        print(text, flush=True)

    gradients = candidates.gradients(models.SHAPES["resnet18"]())
    loops, moved = measures.streams(sum(g.numel() for g in gradients[0]))
    times = {name: [seconds(loop) for _ in range(options.steps)] for name, loop in loops.items()}
    bandwidth = measures.bandwidth(times, moved)["minimum"]
    say(f"threads: {options.threads}; memory: {bandwidth / 1e9:.0f} GB/s")
    x, y, z = (torch.rand(1 << 18) for _ in range(3))
    for name, operation in OPERATIONS.items():
        spent = min(seconds(lambda operation=operation: operation(x, y, z)) for _ in range(20 * options.steps))
        say(f"    {name:9} {1e12 * spent / x.numel():6.0f} ps per number, in the cache")
    for name, (bytes_each, build) in STEPS.items():
        with torch.no_grad():
            report_step(name, bytes_each, build, gradients, options.steps, bandwidth, say)
    if options.out:
        options.out.write_text(f"$ python {' '.join(sys.argv)}\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
