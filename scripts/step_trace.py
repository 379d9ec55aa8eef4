"""Trace one step of the default composition, and write the calls into docs/architecture.md.

python scripts/step_trace.py          # prints all calls of a step with τ = 0 and of one with τ = 1, and writes the page
python scripts/step_trace.py --check  # fails if the page does not have what would be written
python scripts/step_trace.py --overhead  # times the default step on ten small tensors beside torch's fused AdamW
python scripts/step_trace.py --lines  # counts the lines of the core, now and before the engine was rebuilt

Calls are those of Python functions of superadam, as `sys.setprofile` sees them, on a model with four tensors after
twenty steps. Comprehensions and generator expressions are left out: since Python 3.12 most of them are not calls.
"""

import collections
import itertools
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

import superadam
from superadam import SuperAdam

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
SOURCE = Path(superadam.__file__).parent
BEGIN, END = "<!-- step_trace.py -->\n", "<!-- end of step_trace.py -->\n"
WARM_UP = 20
AIMS = {0.0: (60, 8), 1.0: (130, 10)}  # calls, modules
BEFORE = "7b1351c"  # the last commit before the engine was rebuilt
# The engine, then and now: what runs the lines and keeps torch.optim's promises.
ENGINE = {
    BEFORE: [
        "algorithm",
        "base",
        "checkpoints",
        "chunks",
        "compiled",
        "kernels",
        "lines",
        "optimizer",
        "options",
        "parts",
        "pieces",
        "replay",
        "rounding",
        "scaling",
        "sharding",
        "steps",
        "tensors",
        "workspace",
    ],
    "HEAD": ["_state", "_step", "optimizer"],
}
# Modules of today's engine for what it could not do then.
NEW = {
    "owners": "matrices that processes divide among them",
    "line_4": "a matrix of each tensor, refreshed in turns",
    "twins": "checkpoints of torch's optimizers",
    "recipes": "options of methods that schedulers change",
    "formats": "checkpoints of older versions",
    "pairing": "the check that two gradients belong to one batch",
    "refusals": "what a step refuses before it changes anything",
    "torch_versions": "differences between versions of torch",
}
COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}


class Call(NamedTuple):
    depth: int
    module: str
    function: str


def trace(tau):
    """The calls of one step, in order."""
    model = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(), torch.nn.Linear(10, 1))
    opt = SuperAdam(model, lr=1e-3, tau=tau)
    inputs = torch.randn(5, 10)

    def closure():
        opt.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    for _ in range(WARM_UP):
        opt.step(closure)
    if tau == 0:
        closure()  # `step()` finds the gradients there
    calls, depth = [], 0

    def profile(frame, event, arg):
        nonlocal depth
        code = frame.f_code
        path = Path(code.co_filename)
        if event in ("call", "return") and SOURCE in path.parents and code.co_name not in COMPREHENSIONS:
            if event == "call":
                calls.append(Call(depth, path.relative_to(SOURCE).as_posix(), code.co_name))
            depth += 1 if event == "call" else -1

    sys.setprofile(profile)
    try:
        opt.step(closure if tau > 0 else None)
    finally:
        sys.setprofile(None)
    return calls


def modules(calls):
    """How many calls are in each module, the most first."""
    return collections.Counter(call.module for call in calls)


def tree(calls):
    """The calls, indented; equal ones that follow each other as one line."""
    for call, alike in itertools.groupby(calls):
        n = len(list(alike))
        function = "  " * call.depth + call.function + (f" ×{n}" if n > 1 else "")
        yield f"{function:<40} {call.module}"


def judged(found, aim):
    return f"{found}, aim {aim}: {'met' if found <= aim else 'missed'}"


def block(traces):
    """What the page has between the markers."""
    lines = ["| step | Python calls | modules |", "|---|---|---|"]
    for tau, calls in traces.items():
        called = "`step()`" if tau == 0 else "`step(closure)`"
        cells = [judged(*pair) for pair in zip((len(calls), len(modules(calls))), AIMS[tau], strict=True)]
        lines.append(f"| τ = {tau:g}, {called} | {' | '.join(cells)} |")
    lines += ["", "The step with τ = 0, call by call:", "", "```", *tree(traces[0.0]), "```", ""]
    counts = ", ".join(f"`{name}` {n}" for name, n in modules(traces[1.0]).most_common())
    lines += [f"The step with τ = 1, by module: {counts}.", ""]
    everything, engine = (round(n / 1000) for n in sizes())
    lines += [f"The core has {everything} thousand lines, {engine} thousand of them in `_state/` and `_step/`.", ""]
    return "\n".join(lines)


def sizes():
    """The lines of the core, and of its two private packages."""
    found = collections.Counter()
    for path in SOURCE.rglob("*.py"):
        found[core(f"src/superadam/{path.relative_to(SOURCE).as_posix()}")] += len(path.read_text().splitlines())
    del found[None]
    return found.total(), found["_state"] + found["_step"]


def overhead(rounds=2000, steps=5):
    """Microseconds of a step on ten tensors of 100 numbers, by optimizer: the median over rounds, and the least.

    Rounds are short and many, so that other processes of the machine interrupt few of them.
    """
    steppers = {}
    for name, build in {"AdamW, fused": lambda p: torch.optim.AdamW(p, fused=True), "superadam": SuperAdam}.items():
        params = [torch.randn(100, requires_grad=True) for _ in range(10)]
        for p in params:
            p.grad = torch.randn(100)
        steppers[name] = build(params).step
    times = {name: [] for name in steppers}
    for _ in range(rounds):
        for name, step in steppers.items():
            start = time.perf_counter()
            for _ in range(steps):
                step()
            times[name].append(1e6 * (time.perf_counter() - start) / steps)
    return {name: (statistics.median(of), min(of)) for name, of in times.items()}


def show_overhead():
    torch.set_num_threads(1)
    found = overhead()
    for name, (median, least) in found.items():
        print(f"{name}: {median:.1f} µs, least {least:.1f} µs")
    ratios = [ours / theirs for ours, theirs in zip(found["superadam"], found["AdamW, fused"], strict=True)]
    print(f"superadam / AdamW fused: {ratios[0]:.2f} by medians, {ratios[1]:.2f} by the least; aim 1.3")


def core(path):
    """Which part of the core a file of the package is in, if any; lab and bench are not the core."""
    room = path.split("/")[2]
    return None if room in ("lab", "bench") or not path.endswith(".py") else room


def show_lines():
    def git(*args):
        return subprocess.run(["git", *args], capture_output=True, text=True, check=True, cwd=PAGE.parents[1]).stdout

    counts, new = {}, collections.Counter()
    for commit in (BEFORE, "HEAD"):
        counts[commit] = collections.Counter()
        for path in git("ls-tree", "-r", "--name-only", commit, "src/superadam/").splitlines():
            if core(path):
                n = git("show", f"{commit}:{path}").count("\n")
                room = core(path).removesuffix(".py")
                counts[commit]["the engine" if room in ENGINE[commit] else room] += n
                if commit == "HEAD" and room in ENGINE[commit] and Path(path).stem in NEW:
                    new[Path(path).stem] += n
    print(f"{'':14} {BEFORE:>8} {'HEAD':>8}")
    for room in sorted(counts[BEFORE].keys() | counts["HEAD"].keys()):
        print(f"{room:14} {counts[BEFORE][room]:8} {counts['HEAD'][room]:8}")
    print(f"{'all':14} {counts[BEFORE].total():8} {counts['HEAD'].total():8}")
    print(f"\nOf today's engine {new.total()} lines are modules for what it could not do then:")
    for name, n in new.most_common():
        print(f"{name:14} {n:8}  {NEW[name]}")


def main():
    if "--overhead" in sys.argv:
        return show_overhead()
    if "--lines" in sys.argv:
        return show_lines()
    traces = {tau: trace(tau) for tau in (0.0, 1.0)}
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, marker, after = rest.partition(END)
    if not marker:
        sys.exit(f"{PAGE} does not have the markers {BEGIN.strip()} and {END.strip()}")
    made = f"{before}{BEGIN}\n{block(traces)}\n{END}{after}"
    if "--check" in sys.argv:
        if made != text:
            sys.exit(f"{PAGE} is out of date: run python scripts/step_trace.py")
        return None
    for tau, calls in traces.items():
        print(f"τ = {tau:g}: {len(calls)} Python calls in {len(modules(calls))} modules")
        print(*tree(calls), sep="\n")
    PAGE.write_text(made)
    return None


if __name__ == "__main__":
    main()
