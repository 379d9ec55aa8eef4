"""Write docs/performance.md from the report of `superadam bench`, docs/data/bench.json, and from docs/data/profile.txt.

python scripts/step_profile.py --out docs/data/profile.txt
python scripts/bench_page.py          # writes the page
python scripts/bench_page.py --check  # fails if the page is not what would be written
"""

import json
import sys
from pathlib import Path

from superadam import bench

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data" / "bench.json"
PROFILED = ROOT / "docs" / "data" / "profile.txt"
LATER = ROOT / "docs" / "data" / "bench_later.json"
PAGE = ROOT / "docs" / "performance.md"

INTRO = """\
# Performance

How long a step takes, and what it takes. Made by `python scripts/bench_page.py` from [the report](data/bench.json) of

```
{command}
```

on {processor}, threads: {threads}, superadam {superadam}, torch {torch}, Python {python}, float32 on the CPU. Nothing
here was measured on a GPU. Do not edit this page: run the command, then the script.

Every number is a median, with the minimum in brackets; a ratio is that of two medians, with that of the minima in
brackets. In each of {rounds} rounds all candidates take one step each, in an order drawn anew, so that a slow moment
of the machine hits all of them. Where median and minimum are far apart the machine was
busy: then trust neither much, and the minimum more.

## Ways to run

A step runs in one of these ways. The composition and the options decide which; the maths is written once. The column
"way" has the name that `opt.ways()` gives.

- **torch's fused Adam, Adagrad, SGD**: one of torch's kernels, where the composition with τ = 0 coincides with it: Adam
  (case 1, Adam, AdamW, AMSGrad), Adagrad, or SGD (H_t is a multiple of the identity). Memory limits it: everything is
  read and written once. Where H_t needs a norm, the gradient is read once more before.
- **compiled**: `compile=True`, the same formulas traced into one kernel per group of lines. Memory limits it, and the
  compiler must run once.
- **tiles**: the formulas on about four megabytes of float32 at a time. What one operation leaves in the cache the next
  one finds there, and no temporary is larger. The cache limits it, and the call of every operation for every tile. With
  several threads they also wait for each other at the end of each call, which takes long on a busy machine. Where a
  part does not work coordinate by coordinate (a norm per tensor, two gradients compared, L-BFGS), a tile is a whole
  tensor. Then memory limits every operation, and every temporary takes fresh pages.
- **lists**: the formulas on lists of tensors, by torch's foreach functions: on accelerators, or with `foreach=True`. No
  row of this page runs so.

Small tensors are taken together in all ways. Methods whose step is the same with `compile=True` have no
row for it.

## A step

Gradients are there before the clock starts and stay as they are: this is the optimizer alone. With "gradients" 2 a
step takes two gradients of its batch; its time is that of both halves, without the evaluations between them, so in
training such a step costs what is said here *and* a second forward and backward.

![Times of a step as multiples of torch's fused AdamW, for cases 1, 2, 4a and 4b with τ = 0 and 1](img/speed.svg)

(Drawn by `python scripts/pictures.py speed`. Case 3, by far the slowest, and all other methods are in the tables.)

- **/ AdamW fused**, **/ AdamW foreach**: to `torch.optim.AdamW` with `fused=True` and `foreach=True`, in the same
  rounds.
- **/ limit**: to the time that memory needs for what Adam must move, 28 bytes per parameter (x, m and v read and
  written, the gradient read). The bandwidth is measured in the same rounds, as the best of three plain loops (a
  tensor scaled, x += c y, torch's fused SGD) over as much memory as Adam holds, at most half a gigabyte. It is the
  limit of Adam and not of every method: SGD with momentum must move 20 bytes, AMSGrad 36, case 1 with τ = 1 at least
  44, in two passes. Where a model fits into the last cache, the limit is the cache's.
- **/ torch's own**: where torch has the method itself: Adagrad and SGD with momentum 0.9 (fused), Adadelta (foreach),
  AdamW(amsgrad=True, fused=True).
"""

TRIAL = """\
**A trial with few rounds: these numbers show what the page looks like, and are not to be relied on.**
"""

MEMORY = """\
## Memory, and the first step

State is what the optimizer holds between steps, over the number of parameters. Temporary is the most that one later
step holds beyond that, as torch's profiler sees its CPU allocator: every tensor, also those inside of kernels. In
tiles it does not grow with the model; by whole tensors it grows with the largest one, and case 3 and L-BFGS hold
copies of all of x. The last column is a new optimizer's first step, which also makes the state, over the median of
later ones (with `compile=True` it is the compiler's, see below). With two gradients per batch the first step takes
only one, and moves nothing.
"""

LIMITS = """\
## What limits a step

What was aimed at, what ResNet-18 gave, as the ratio of medians with that of minima in brackets, and why it is missed
where it is. The bytes are those that a step must move for each parameter, in float32; Adam's are 28.

{aims}

- **AMSGrad** also reads and writes v̂: 36 / 28 = 1.29. It runs on torch's own kernel, and torch's own AMSGrad takes as
  long.
- **Case 2, AdaGrad-Norm**: the step waits for the norm of the gradient over all parameters, so the gradient is read
  twice: once in one call per tensor, and once by the SGD kernel. That is less memory than Adam's; what is above it are
  the calls.
- **Case 4b**: m must be brought up to date and the norm of the gradient's distance to it be known before the step: a
  pass of 12 bytes before SGD's 20. It takes three operations (average, difference, norm), none of which torch has
  fused. (Sums are not compiled: torch's own were found to be faster.)
- **Other diagonal matrices, by default**: AdaBound takes seven operations for each tile, Yogi eight, Padam nine,
  AdaBelief ten, where AdamW foreach takes eight for each tensor, so there is little to gain but the memory between
  them. The square root is the dearest: torch hands it to MKL, which on this processor takes about three times as long
  as a division. (For Padam's v̂ to the power 1/8 two of the three roots are reciprocal ones, which torch computes
  itself, in two thirds of the time.)
- **Other diagonal matrices, compiled**: one pass at the speed of memory. AdaBelief and Padam have nine streams where
  Adam has seven. The rest is a call from Python for each tensor, where torch's kernel has one for all of them; it
  weighs more the smaller the tensors are.
- **τ = 1**: two passes, as the second gradient comes after the move: x, g, v and q, then g, v and the gradient. 44
  bytes are 1.57 times Adam's, and the root, the quotient and everything around the calls come in addition; by default
  seven operations for each tile, of which the root is the dearest.
- **First step**: the state is fresh memory, which the system hands out, cleared, by pages of 4 kB. That takes longer
  than the step, and torch's own AdamW takes as long. (It is no longer so for temporaries: those are kept.)
- **MLP**: six tensors, of which two matter, and all of them fit into the last cache: torch's kernel takes a millisecond
  there, which is what some dozens of calls from Python take.
"""

PROFILE = """\
Each operation of some of these steps, alone on one thread; ResNet-18. `outside` is Python, and the calls. Methods
further down find, for their state, memory that earlier ones have freed, so only the first ones' first steps count.

```
{profile}
```
"""

SIZES = """\
## Cost per parameter

Nanoseconds per parameter for models of 10⁵ to 10⁸ of them, in tensors of up to 10⁶ (1000 × 1000). Few parameters are
in the cache, but pay for the calls; many are in memory. The largest sizes are measured in fewer rounds.
"""

STARTUP = """\
## Import

In new processes that take turns. "after torch" is what superadam adds to a program that has imported torch.
"""

COMPILE = """\
## Compilation

The first four steps on the parameters of the MLP in a new process, by the end of which every kernel is made; "cache"
is torch's on disk (`TORCHINDUCTOR_CACHE_DIR`). Kernels are made for tensors of any length, so neither the size of the
model nor the number of its tensors matters, and they are not made again as t changes.
"""

END_TO_END = """\
## Share of a training step

Forward, backward and the optimizer's step, on random data. The clock runs around the evaluations, and the rest of the
step is the optimizer's: its share is the median over the rounds. τ = 1 evaluates each batch twice, and that is what
makes its step dear.
"""


# Compositions, the aims by default and with compile=True, and the bytes that a step must move.
AIMS = [
    (("case 1, τ = 0", "adam", "adamw"), ("fused", 1.05), ("fused", 1.05), "28"),
    (("amsgrad",), ("fused", 1.05), ("fused", 1.05), "36"),
    (("case 2, τ = 0", "adagrad_norm", "case 4b, τ = 0"), ("fused", 1.3), ("fused", 1.2), "24, 24, 32"),
    (("adabound", "yogi", "adabelief", "padam"), ("foreach", 0.9), ("fused", 1.4), "28, 28, 36, 36"),
    (("case 1, τ = 1", "case 4a, τ = 1"), ("foreach", 1.2), ("fused", 1.8), "44, 52, in two passes"),
]


def aims(rows):
    """The aims beside what was measured. What is not compiled is the same with `compile=True`."""

    def cell(names, aim, ending):
        to, value = aim
        found = [rows.get(name + ending, rows[name])[f"to_{to}"] for name in names]
        ratios = ", ".join(f"{r['median']:.2f} ({r['minimum']:.2f})" for r in found)
        return f"{value} × {to}: {ratios}"

    lines = ["| composition | by default | `compile=True` | bytes |", "|---|---|---|---|"]
    for names, default, compiled, moved in AIMS:
        cells = ", ".join(names), cell(names, default, ""), cell(names, compiled, ", compiled"), moved
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def models(made):
    """The tables of each model: times, then memory."""
    names = [key.removeprefix("times of ") for key in made if key.startswith("times of ")]
    lines = []
    for name in names:
        lines += [section(made[f"times of {name}"], "###"), ""]
    lines.append(MEMORY)
    for name in names:
        lines += [section(made[f"memory of {name}"], "###"), ""]
    return lines


ADDED = """\
### Methods that were added since

From [another run](data/bench_later.json), `{command}`, with its own AdamW:
"""


def added(report, later):
    """The rows of a later run that the report does not have, below those they are compared with."""
    (name,) = later["models"]
    known = report["models"][name]["rows"].keys() - {"torch AdamW, fused", "torch AdamW, foreach"}
    table = bench.tables(later)[f"times of {name}"]
    return [ADDED.format(**later), table._replace(rows=[r for r in table.rows if r[0] not in known]).markdown(), ""]


def section(table, level):
    name, _, rest = table.title.partition(": ")
    return f"{level} {name}\n\n{rest[0].upper()}{rest[1:]}.\n\n{table.markdown()}"


def page(report):
    made = bench.tables(report)
    intro = INTRO.format(command=report["command"], rounds=report["rounds"], **report["machine"])
    if report["rounds"] < 10:
        intro = intro.replace("\n\n", f"\n\n{TRIAL}\n", 1)
    lines = [intro, *models(made)]
    if LATER.exists():
        lines += added(report, json.loads(LATER.read_text()))
    if "resnet18" in report["models"]:
        lines.append(LIMITS.format(aims=aims(report["models"]["resnet18"]["rows"])))
    if PROFILED.exists():
        lines.append(PROFILE.format(profile=PROFILED.read_text().rstrip()))
    for key, text in (("sizes", SIZES), ("import", STARTUP), ("compile", COMPILE), ("end_to_end", END_TO_END)):
        if key in made:
            lines += [text, made[key].markdown(), ""]
    return "\n".join(lines).rstrip() + "\n"


def main():
    text = page(json.loads(DATA.read_text()))
    if "--check" not in sys.argv:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE} is out of date: run python scripts/bench_page.py")


if __name__ == "__main__":
    main()
