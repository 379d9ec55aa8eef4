"""Trace one step of the default composition, and write the calls into docs/architecture.md.

python scripts/step_trace.py          # prints all calls of a step with τ = 0 and of one with τ = 1, and writes the page
python scripts/step_trace.py --check  # fails if the page does not have what would be written

Calls are those of Python functions of superadam, as `sys.setprofile` sees them, on a model with four tensors after
twenty steps. Comprehensions and generator expressions are left out: since Python 3.12 most of them are not calls.
"""

import collections
import itertools
import sys
from pathlib import Path
from typing import NamedTuple

import torch

import superadam
from superadam import SuperAdam

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architecture.md"
SOURCE = Path(superadam.__file__).parent
BEGIN, END = "<!-- step_trace.py -->\n", "<!-- end of step_trace.py -->\n"
WARM_UP = 20
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
    closure()
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


def block(traces):
    """What the page has between the markers."""
    lines = ["| step | Python calls | modules |", "|---|---|---|"]
    for tau, calls in traces.items():
        called = "`step()`" if tau == 0 else "`step(closure)`"
        lines.append(f"| τ = {tau:g}, {called} | {len(calls)} | {len(modules(calls))} |")
    lines += ["", "The step with τ = 0, call by call:", "", "```", *tree(traces[0.0]), "```", ""]
    counts = ", ".join(f"`{name}` {n}" for name, n in modules(traces[1.0]).most_common())
    lines += [f"The step with τ = 1, by module: {counts}.", ""]
    return "\n".join(lines)


def main():
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
        return
    for tau, calls in traces.items():
        print(f"τ = {tau:g}: {len(calls)} Python calls in {len(modules(calls))} modules")
        print(*tree(calls), sep="\n")
    PAGE.write_text(made)


if __name__ == "__main__":
    main()
