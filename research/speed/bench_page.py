"""Write README.md from the reports of `superadam bench` beside it.

python -m research.speed.bench_page          # writes the page
python -m research.speed.bench_page --check  # fails if the page is not what would be written
"""

import json
import sys
from pathlib import Path

from research import kept
from superadam import zoo
from superadam_lab import bench

HERE = Path(__file__).resolve().parent
DATA, LATER, MATRICES = (HERE / f"{name}.json" for name in ("bench", "bench_later", "bench_matrices"))
README, DOCS = HERE / "README.md", HERE.parents[1] / "docs" / "performance.md"

SUMMARY = """\
{glance}

**Does it matter?** For a ResNet-18 with 128 images, AdamW's step is {resnet_adamw} of a training step, Muon's
{resnet_muon} and SOAP's {resnet_soap}. For a block of GPT-2 small with 4 sequences of 256 tokens, AdamW's is
{gpt_adamw}, Muon's {gpt_muon} and SOAP's {gpt_soap}. With τ = 1 the second gradient of each batch costs far more than
the optimizer. The tables: [Muon and SOAP](../research/speed/README.md#share-of-a-training-step-with-these-methods),
[τ = 1](../research/speed/README.md#share-of-a-training-step)."""

MEASURED = """\
# What a step costs

All times on this page are from a CPU with {threads} threads ({processor}), in float32. Nothing was measured on a GPU.
[Performance](../../docs/performance.md) has the summary.

## How it was measured

`python -m research.speed.bench_page` writes this page. Do not edit it: run the command, then the script. Unless a
section names another run, the times are from the report of

```
{command}
```

on {date}, with superadam {superadam}, torch {torch} and Python {python}.

- Every number is a median, with the minimum in brackets. A ratio is that of two medians, with that of the minima in
  brackets.
- In each of {rounds} rounds every candidate takes one step, in random order. A slow moment of the machine then
  affects all of them.
- If median and minimum are far apart, the machine was busy. Trust the minimum more.
- The gradients exist before the clock starts: this is the time of the optimizer alone.
- With 2 in the column "gradients", a step takes two gradients of its batch. Its time covers both half-steps. In
  training, add a second forward and backward pass.

The columns:

- **way** is how the step ran, for matrices first and then for vectors if they differ.
- **/ AdamW fused**, **/ AdamW foreach**: divided by the time of `torch.optim.AdamW` with `fused=True` or
  `foreach=True` in the same rounds.
- **/ limit**: divided by the time that memory needs for Adam's 28 bytes per parameter (x, m and v are read and
  written, the gradient is read). The bandwidth is measured in the same rounds: the best of three loops (scale a
  tensor, x += c y, torch's fused SGD) over as much memory as Adam holds, at most half a gigabyte. If the model fits
  into the last cache, this is the bandwidth of the cache. Other methods move other amounts: SGD with momentum 20
  bytes, AMSGrad 36, case 1 with τ = 1 at least 44.
- **/ torch's own**: divided by torch's implementation of the same method: Adagrad and SGD with momentum 0.9 (fused),
  Adadelta (foreach), `AdamW(amsgrad=True, fused=True)`.

## Time of a step
"""

TRIAL = """\
**A trial with few rounds: these numbers show what the page looks like. Do not rely on them.**
"""

OTHER_MODELS = """\
### Other models

{models}. The columns are ms and / AdamW fused.
"""

MEMORY = """\
## Memory, and the first step

- **State**: what the optimizer keeps between steps, in bytes per parameter.
- **Temporary**: the most that a later step allocates beyond the state, by torch's profiler of the CPU allocator. In
  tiles it does not grow with the model. With whole tensors it grows with the largest tensor. Case 3 and L-BFGS copy
  all parameters.
- **First step**: the first step of a new optimizer, which also allocates the state, divided by the median of later
  ones. With `compile=True` it is the compiler's time ([below](#compilation)). With two gradients per batch the first
  step uses one gradient and does not move.
"""

LIMITS = """\
## What limits a step

The target of each composition, then what ResNet-18 reached: ratios of medians, with those of minima in brackets. The
last column has the bytes of float32 that a step must move per parameter; Adam moves 28.

{aims}

Why some targets are missed (`python -m research.speed.step_profile` times each operation on one thread; its
output is in profile.txt):

- **AMSGrad** also reads and writes v̂: 36 bytes, 1.29 times Adam's 28. torch's own AMSGrad takes as long.
- **Case 2 and AdaGrad-Norm** need the norm of the whole gradient before the step. They read the gradient twice. The
  bytes are fewer than Adam's; the calls, one per tensor, cost the rest.
- **Case 4b** updates m and measures the gradient's distance from it before the step. This pass of 12 bytes takes
  three operations that torch has not fused.
- **Other diagonal matrices by default** take seven (AdaBound) to ten (AdaBelief) operations per tile; AdamW foreach
  takes eight per tensor. The square root is the most expensive: on this processor MKL needs about three times as long
  for it as for a division.
- **Other diagonal matrices compiled** run at memory bandwidth. AdaBelief and Padam move nine streams, Adam seven.
  Each tensor costs a call from Python, which weighs more for small tensors.
- **τ = 1** needs two passes, because the second gradient comes after the move. It moves 44 bytes, 1.57 times Adam's.
- **The first step** allocates the state. The system clears this memory in pages of 4 kB, which takes longer than the
  step, for torch's AdamW as well.
- **The MLP** fits into the last cache. torch's kernel takes about a millisecond there, as long as a few dozen calls
  from Python.
"""

SIZES = """\
## Cost per parameter

Nanoseconds per parameter, for 10⁵ to 10⁸ parameters in tensors of up to 1000 × 1000. Small models fit into the cache,
but the calls dominate. Large models were measured in fewer rounds.
"""

STARTUP = """\
## Import

Measured in new processes, in turns. "After torch" is what superadam adds to a program that has imported torch.
"""

COMPILE = """\
## Compilation

Seconds for the first four steps on the MLP's parameters in a new process. These steps build every kernel. The cache
is torch's on disk (`TORCHINDUCTOR_CACHE_DIR`). A kernel serves tensors of any length, so neither the size of the
model nor the number of its tensors matters. Kernels are not rebuilt as t grows.
"""

END_TO_END = """\
## Share of a training step

Forward, backward and optimizer step, on random data. The share is the median over the rounds. τ = 1 evaluates each
batch twice; that is its cost.
"""


# Compositions, the aims by default and with compile=True, and the bytes that a step must move.
AIMS = [
    (("case 1, τ = 0", "adam", "adamw"), ("fused", 1.05), ("fused", 1.05), "28"),
    (("amsgrad",), ("fused", 1.05), ("fused", 1.05), "36"),
    (("case 2, τ = 0", "adagrad_norm", "case 4b, τ = 0"), ("fused", 1.3), ("fused", 1.2), "24, 24, 32"),
    (("adabound", "yogi", "adabelief", "padam"), ("foreach", 0.9), ("fused", 1.4), "28, 28, 36, 36"),
    (("case 1, τ = 1",), ("foreach", 1.2), ("fused", 1.6), "44, in two passes"),
    (("case 4a, τ = 1",), ("foreach", 1.2), ("fused", 2.0), "52, in two passes"),
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


def models(made, later):
    """Times of the first model in full, then those of the later run, those of other models side by side, and the memory
    of all models in one table."""
    names = [key.removeprefix("times of ") for key in made if key.startswith("times of ")]
    times, memory = ([made[f"{what} of {name}"] for name in names] for what in ("times", "memory"))
    lines = [section(times[0], "###"), "", *later]
    if names[1:]:
        heads = [f"{name}: {what}" for name in names[1:] for what in ("ms", "/ AdamW fused")]
        described = "; ".join(
            f"`{name}`: {t.title.partition(': ')[2]}" for name, t in zip(names[1:], times[1:], strict=True)
        )
        lines += [OTHER_MODELS.format(models=described), beside_each_other(times[1:], heads, (3, 4)), ""]
    heads = ["state, bytes", *(f"temporary, MB: {n}" for n in names), *(f"first step / later: {n}" for n in names)]
    temporary, first = ([t._replace(rows=[[r[0], r[i]] for r in t.rows]) for t in memory] for i in (2, 3))
    return [*lines, MEMORY, beside_each_other([memory[0], *temporary, *first], heads, (1,)), ""]


def beside_each_other(tables, heads, columns):
    """Columns of tables with the same methods, in one table."""
    cells = {}
    for table in tables:
        for row in table.rows:
            cells.setdefault(row[0], []).extend(row[i] for i in columns)
    rows = [[method, *row] for method, row in cells.items()]
    return bench.Table("", ["method", *heads], rows).markdown()


# What the page begins with: methods of a kind, by the way they take.
GLANCE = {
    "torch's fused Adam": ("adam", "adamw", "super_adam", "amsgrad"),
    "one learning rate for all coordinates": ("sgd", "adagrad_norm", "adaptive_sgd"),
    "other diagonal matrices": ("adabound", "yogi", "adabelief", "padam"),
    "SUPER-ADAM with τ = 1": ("case 1, τ = 1", "case 2, τ = 1", "case 4a, τ = 1", "case 4b, τ = 1"),
    "a matrix per tensor": ("muon", "soap"),
}


def glance(rows):
    """Each kind's times over those of torch's fused AdamW, from the smallest to the largest."""
    table = []
    for kind, names in GLANCE.items():
        shown = ", ".join(f"`{name}`" if name in zoo.METHODS else name.removesuffix(", τ = 1") for name in names)
        compiled = [rows[f"{name}, compiled"] for name in names if f"{name}, compiled" in rows]
        table.append([kind, shown, span([rows[name] for name in names]), span(compiled) if compiled else "the same"])
    return bench.Table("", ["kind", "methods", "by default", "`compile=True`"], table).markdown()


def span(rows):
    """From the smallest to the largest median.

    >>> span([{"to_fused": {"median": m}} for m in (1.234, 0.5, 36.6)])
    '0.50 to 37'
    """
    found = [row["to_fused"]["median"] for row in rows]
    low, high = min(found), max(found)
    return " to ".join(dict.fromkeys(f"{m:.2f}" if m < 10 else f"{m:.0f}" for m in (low, high)))


def shares(report):
    """The optimizer's share of a training step, by task and method."""
    names = {"torch AdamW, fused": "adamw", "muon": "muon", "soap": "soap"}
    tasks = {"resnet": report["end_to_end"]["resnet18"], "gpt": report["end_to_end"]["gpt2-block"]}
    return {
        f"{key}_{short}": f"{task['rows'][name]['share']:.1%}".replace("%", " %")
        for key, task in tasks.items()
        for name, short in names.items()
    }


ADDED = """\
### Methods added later

From a later run on {date}, `{command}`, with its own AdamW. `shampoo` and `psgd_kron` were
made faster after it: [the next run](#muon-shampoo-soap-and-psgd-beside-other-packages) has their times.
"""


def added(report, later):
    """The rows of a later run that the report does not have, below those they are compared with."""
    (name,) = later["models"]
    known = report["models"][name]["rows"].keys() - {"torch AdamW, fused", "torch AdamW, foreach"}
    table = bench.tables(later)[f"times of {name}"]
    rows = [r for r in table.rows if r[0] not in known]
    return [ADDED.format(**later), table._replace(rows=rows).markdown(), ""]


BESIDE = """\
## Muon, Shampoo, SOAP and PSGD beside other packages

From a run of

```
{command}
```

on {date}, {processor}, threads: {threads}, with pytorch_optimizer {pytorch_optimizer} and HeavyBall {heavyball} (not
compiled). The packages take steps in turns. All of them refresh eigenvectors and roots every 10 steps. If all
refreshes come in one step, the median does not show them, so the tables also have means.

{note}

What differs between the packages:

- **Refreshes.** {turns}
- **SOAP.** If a side is longer than 1024, `soap` has a factor only for the shorter side by default; the other packages
  have both. With `one_sided_above=10_000` it computes the same products as pytorch_optimizer and takes as long (1.06
  times).
- **Convolutions.** superadam treats a kernel as an out × (in · height · width) matrix. pytorch_optimizer has a factor
  for each of four dimensions. torch's Muon refuses kernels.
- **Shampoo.** `shampoo` has blocks of 512, like pytorch_optimizer's `ScalableShampoo`.
- **PSGD.** `psgd_kron` updates its factors in every step, as all packages do in the first 500. Sides above 2048 have
  diagonal factors.

On two blocks of GPT-2, matrix products are 80 to 95 % of a step (torch's profiler). superadam needs fewer of them:

- `muon` multiplies in bfloat16 if the processor supports it, like torch's Muon (twice as fast here). Matrices more
  than 1.5 times as long as wide apply two polynomials at a time to the smaller Gram matrix. For an aspect ratio a
  this takes 12a + 22 products of squares instead of 20a + 10: 0.81 of the work on these blocks.
- `psgd_kron` multiplies triangular and symmetric matrices in blocks of 128 rows, and skips blocks that are zero or
  known.

The target is 0.8 of the fastest package. Three results miss it:

- `muon` on the blocks (0.85): matrix products. Three polynomials at a time would need fewer, but bfloat16's rounding
  errors would grow too large. On ResNet-18, whose matrices are longer, it is 0.67.
- `muon` on 1,000 small tensors (0.96 of pytorch_optimizer's, 0.07 of torch's): products are about a quarter of the step
  (cProfile); torch's functions on lists of 1,000 tensors are the rest, in both packages.
- `shampoo` by medians (1.10 on ResNet-18, 1.27 on the blocks): all refreshes of the package come in one step, of 0.9 s
  and 6.2 s, which its median does not show. By means the ratios are 1.01 and 0.22.
"""


TURNS = {
    True: "In superadam each tensor refreshes in a step of its own, so that no step is much slower than the others.",
    False: """\
In superadam tensors of different shapes refresh in different steps. Tensors of one shape refreshed together in this
  run, because its parameters had no names. The benchmark names them now, so each tensor has its own turn.""",
}


def beside(report):
    known = {**report["machine"], **report["packages"], "note": report.get("note", "")}
    known["turns"] = TURNS[report.get("named", False)]
    text = BESIDE.format(command=report["command"], date=report["date"], **known)
    tables = [t for key, t in bench.tables(report).items() if key.startswith("matrices of ")]
    lines = [text.replace("\n\n\n", "\n")]
    for table in tables:
        lines += [section(table, "###"), ""]
    if "end_to_end" in report:
        lines += [
            "### Share of a training step with these methods",
            "",
            bench.tables(report)["end_to_end"].markdown(),
            "",
        ]
    return lines


def section(table, level):
    name, _, rest = table.title.partition(": ")
    return f"{level} {name}\n\n{rest[0].upper()}{rest[1:]}.\n\n{table.markdown()}"


def pages(report):
    """The summary in the docs, and the page of all tables."""
    made = bench.tables(report)
    later, matrices = (json.loads(path.read_text()) for path in (LATER, MATRICES))
    head = {name: report[name] for name in ("command", "rounds", "date")} | report["machine"]
    resnet = report["models"]["resnet18"]["rows"]
    summary = SUMMARY.format(glance=glance(later["models"]["resnet18"]["rows"] | resnet), **shares(matrices))
    measured = MEASURED.format(**head)
    if report["rounds"] < 10:
        measured = measured.replace("\n\n", f"\n\n{TRIAL}\n", 1)
    lines = [measured, *models(made, added(report, later)), *beside(matrices), LIMITS.format(aims=aims(resnet))]
    for key, text in (("sizes", SIZES), ("import", STARTUP), ("compile", COMPILE), ("end_to_end", END_TO_END)):
        if key in made:
            lines += [text, made[key].markdown(), ""]
    docs = kept.filled(DOCS.read_text(encoding="utf-8"), "speed", summary)
    return {DOCS: docs, README: "\n".join(lines).rstrip() + "\n"}


def main():
    for path, text in pages(json.loads(DATA.read_text())).items():
        if "--check" not in sys.argv:
            path.write_text(text)
        elif path.read_text() != text:
            sys.exit(f"{path} is out of date: run python -m research.speed.bench_page")


if __name__ == "__main__":
    main()
