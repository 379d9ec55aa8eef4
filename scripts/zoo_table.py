"""Write docs/zoo.md from the registry: every method as the composition it is.

python scripts/zoo_table.py          # writes the page
python scripts/zoo_table.py --check  # fails if the page is not what would be written, or a method has no test
"""

import ast
import dataclasses
import inspect
import json
import sys
from pathlib import Path

import torch

from options import paper
from superadam import zoo
from superadam.iterates import Plain
from superadam.options import Composition
from superadam.zoo.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zoo.md"

INTRO = """\
# The zoo

The methods that the paper compares, those of torch.optim, and newer ones. Each is a composition of the same parts.
`python scripts/zoo_table.py` writes this page from the registry; do not edit it.

![Paths of four methods on Rosenbrock's function and on a noisy least-squares problem](img/trajectories.svg)

Four methods on two functions of two variables. Each path starts at the square, the star is the minimum, and every
method has 200 gradients; τ = 1 takes two gradients per step and so half as many steps. The learning rates come from one
grid: the one with the least mean of f along a path that stays in the picture, on other batches
(`python scripts/pictures.py trajectories` prints them). The two curvatures on the right differ by a factor of about
100. SGD has one learning rate for both; the others have one for each coordinate.

```python
import torch
import superadam

model = torch.nn.Linear(4, 1)
opt = superadam.create("adabelief", model, lr=1e-3)
opt = superadam.create("super_adam", model, preset="cifar10", tau=1)
print(superadam.list_methods("ada*"))
```

The columns of the table:

- **composition**: the estimator (line 11), the matrix (line 4), the schedule (lines 10 and 11), then the step size and
  the iterate if the method has them. Options at their default values are left out.
- **lr**: the default learning rate. It [trains](choosing.md#what-the-defaults-do).
- **gradients**: gradients per batch.
- **state**: bytes that are kept for each float32 parameter of a 512 × 512 matrix. AdamW keeps 8. The buffer g counts,
  also where it only holds the newest gradient.
- **step**: time of a step divided by that of torch's fused AdamW. Both are medians on ResNet-18, from `superadam bench`
  ([Performance](performance.md)). A dash: not measured.
- **options**: the method's own, and other defaults. Every method also takes the options of `SuperAdam`, which replace
  the parts of its composition: `create("amsgrad", model, tau=1.0)`.

Formulas and references are in the [API](api/zoo.md).
"""


OF_TORCH_INTRO = """\
For each optimizer of torch.optim, the method that takes the same steps: in float64 the points agree to 1e-12
(`tests/zoo`). torch computes Muon's polynomial in bfloat16, so Muon is compared to
2e-3 after 100 steps of 0.01 (`tests/matrices/test_per_tensor.py`)."""

OF_PACKAGES_INTRO = """\
The points agree with those of schedulefree 1.4.1, prodigyopt 1.1.2, pytorch_optimizer 4.1.0 and HeavyBall 3.2.1 in
float64, or in float32 where a package keeps its state in it. `pytest -m slow tests/peers/test_zoo.py` compares
them, with options for which these differences vanish:"""

# What a package does, and what the zoo does, where they differ.
OF_PACKAGES = [
    ("schedule_free_adamw", "counts steps and weights for each group", "for each parameter, by its own gradients"),
    ("prodigy", "ε d_t", "ε d_1"),
    ("prodigy", "one lr for all groups, or 0", "any"),
    ("adan", "x/(1 + γw) with decoupled weight decay", "x (1 - γw)"),
    ("lars", "‖x‖/(‖g‖ + w‖x‖), weight decay for matrices only", "‖x‖/‖g + w x‖, for all"),
    ("lamb", "γ is corrected for the averages' start; ‖x‖ at most 10", "the averages are, as published; no bound"),
    (
        "adam_mini",
        "queries and keys: a mean for each head; embeddings: Adam's second moment; others: a mean for each tensor",
        "a mean for every `rows` rows; one row by default",
    ),
    (
        "cautious_adamw",
        "pytorch_optimizer: steps times d/(‖φ‖₀ + 1), and no AdamW with it",
        "steps over max(mean(φ), 1e-3), as in the authors' code; compared with HeavyBall",
    ),
    ("adopt", "the bound in step t is t^¼", "(t - 1)^¼, as published: the first gradient is no step"),
    ("stable_adamw", "RMS of g/max(√v, ε)", "of g/(√v + ε)"),
]

NOT_COMPARED = """\
`sophia_g` and `dog` are compared with their published formulas only (`tests/zoo/test_formulas.py`,
`tests/test_stepsizes.py`). Matrix methods are compared in `tests/peers/test_matrices.py`."""

MOST_USED_INTRO = """\
pytorch_optimizer has 128 optimizers. These are the ones that public code imports most: an index of public GitHub files
was searched on 2026-11-18 for `pytorch_optimizer import NAME`, with 32 names. It answers with at most ten files, so the
first thirteen rows have no order; below are the names with four files or more, and ADOPT."""

# Files that import a name from pytorch_optimizer, and what is here for it.
MOST_USED = {
    "AdaBelief": ("10+", "`adabelief`"),
    "AdEMAMix": ("10+", "`ademamix`"),
    "AdamP": (
        "10+",
        "not here: for weights that a cosine test takes for scale-invariant, it removes the part of the step along x. "
        "`sets.Sphere` keeps the norm of such weights exactly",
    ),
    "Lamb": ("10+", "`lamb`"),
    "Lion": ("10+", "`lion`"),
    "Lookahead": ("10+", "`iterate=iterates.Lookahead()`, for any method without an iterate of its own"),
    "Muon": ("10+", "`muon`"),
    "Prodigy": ("10+", '`prodigy`; `lr="auto"` for other methods'),
    "Ranger, Ranger21": (
        "10+",
        '`create("radam", model, iterate=iterates.Lookahead())` is RAdam with Lookahead, the core of Ranger. Its '
        "centred gradients and the many changes of Ranger21 are not here",
    ),
    "SAM": (
        "10+",
        "not here: its second gradient is taken at x_t + ρ ∇f/‖∇f‖. The two gradients of Algorithm 1 are those at x_t "
        "and x_{t-1}",
    ),
    "Shampoo": ("10+", "`shampoo`"),
    "SOAP": ("10+", "`soap`"),
    "StableAdamW": ("10+", "`stable_adamw`"),
    "MADGRAD": (
        "9",
        "not here: every step starts from x_1, and line 10 averages. `iterates.SAdaGrad` has such steps, without the "
        "average",
    ),
    "Adan, LARS": ("8", "`adan`, `lars`"),
    "SophiaH": ("8", "`sophia_g`. SophiaH's curvature needs second derivatives; `opt.observe()` takes any gradient"),
    "RAdam": ("6", "`radam`"),
    "AdaBound": ("5", "`adabound`"),
    "CAME": ("5", "not here: a second factored moment, of the steps, on top of `adafactor`'s"),
    "AdaHessian": (
        "4",
        "not here: a Hessian-vector product in every step. `sophia_g` measures one now and then",
    ),
    "DAdaptLion": ("4", 'not here: Prodigy is the successor of D-Adaptation; `create("lion", model, lr="auto")`'),
    "ADOPT": ("2", "`adopt`"),
}


def of_packages():
    """The tables of other packages."""
    lines = ["", "## Other packages", "", OF_PACKAGES_INTRO, "", "| method | the package | here |", "|---|---|---|"]
    lines += [f"| `{method}` | {theirs} | {ours} |" for method, theirs, ours in OF_PACKAGES]
    lines += ["", NOT_COMPARED, "", "## The most used of pytorch_optimizer", "", MOST_USED_INTRO, ""]
    lines += ["| pytorch_optimizer | files | here |", "|---|---|---|"]
    return lines + [f"| {name} | {files} | {here} |" for name, (files, here) in MOST_USED.items()]


# Every optimizer of torch.optim: the method, and what is to be said. Tests compare the steps in float64, to 1e-12.
OF_TORCH = {
    "ASGD": ("asgd", "equal, also its average, while lr is constant: there a new lr takes effect a step later"),
    "Adadelta": ("adadelta", "equal"),
    "Adafactor": ("adafactor", "equal; keeps the newest gradient, too"),
    "Adagrad": ("adagrad", "equal"),
    "Adam": ("adam, amsgrad", "equal, with `amsgrad=True` the second"),
    "AdamW": ("adamw, amsgrad", "equal, with `amsgrad=True` the second with `decoupled_weight_decay=True`"),
    "Adamax": ("adamax", "equal"),
    "LBFGS": (
        "",
        "not here: a step asks for the loss as often as its line search likes, on one batch, and Algorithm 1 has "
        "one or two gradients per batch. `sdlbfgs` is L-BFGS for noisy gradients",
    ),
    "Muon": ("muon", "equal for matrices; ours takes the other parameters as well"),
    "NAdam": ("nadam, nadamw", "equal, with `decoupled_weight_decay=True` the second"),
    "RAdam": ("radam", "equal"),
    "RMSprop": (
        "rmsprop",
        "equal, with `momentum` and `centered`; a variance that rounds below 0 is 0, not NaN",
    ),
    "Rprop": ("rprop", "equal while lr is constant: there it is the first step length only, here it multiplies all"),
    "SGD": ("sgd", "equal, with `nesterov`, too; the default lr is 0.1 in place of 1e-3, which hardly moves"),
    "SparseAdam": (
        "",
        "not here: sparse gradients are refused by name. Use `torch.nn.Embedding(sparse=False)` with `adam`",
    ),
}


def of_torch():
    """The table of torch's optimizers."""
    known = {name for name, kind in vars(torch.optim).items() if isinstance(kind, type) and name != "Optimizer"}
    assert known == OF_TORCH.keys(), known ^ OF_TORCH.keys()
    lines = ["", "## torch.optim", "", OF_TORCH_INTRO, "", "| torch.optim | here | |", "|---|---|---|"]
    for name, (ours, said) in OF_TORCH.items():
        methods = ", ".join(f"`{method}`" for method in ours.split(", ")) if ours else "–"
        lines.append(f"| {name} | {methods} | {said} |")
    return lines


def part(value):
    """A part, with only the options that differ from its defaults."""
    options = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if getattr(value, f.name) != f.default}
    shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())
    return f"`{type(value).__name__}({', '.join(shown)})`"


def untested():
    """The methods that no test names, as zoo.method or as a string."""
    names = set()
    for path in {*(ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests" / "test_bench.py"}:  # no test of methods
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant):
                names.add(node.value)
    return zoo.METHODS.keys() - names


def state(name):
    """Bytes that are kept for each parameter of a matrix."""
    x = torch.zeros(512, 512, requires_grad=True)
    opt = zoo.create(name, [x])
    opt.init_state()
    return f"{sum(t.nbytes for t in opt.state[x].values() if isinstance(t, torch.Tensor)) / x.numel():.2g}"


def times():
    """A step over torch's fused AdamW, by the newest report that has it."""
    reports = [
        json.loads((ROOT / "research" / "speed" / name).read_text()) for name in ("bench_later.json", "bench.json")
    ]
    rows = [report["models"]["resnet18"]["rows"] for report in reports]
    return {name: f"{row['to_fused']['median']:.2g}" for of_report in rows for name, row in of_report.items()}


def page():
    heads = ["method", "what", "composition", "lr", "gradients", "state", "step", "options"]
    lines, measured = [INTRO, "| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"], times()
    for name, line in zoo.list_methods().items():
        opt = zoo.create(name, torch.nn.Linear(2, 1))
        parts = Composition.of(opt.param_groups[0])
        options = [f"`{p}`" for p in inspect.signature(getattr(zoo, name)).parameters if p not in ("params", "options")]
        shown = [parts.estimator, parts.matrix, parts.schedule, *filter(None, [parts.stepsize])]
        if parts.iterate != Plain():
            shown.append(parts.iterate)
        line = f"{line}. {paper(name)}"
        composition, lr = "<br>".join(map(part, shown)), f"{opt.param_groups[0]['lr']:g}"
        costs = [str(1 + opt.two_point), state(name), measured.get(name, "–")]
        cells = [f"`{name}`", line, composition, lr, *costs, ", ".join(options)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += [*of_torch(), *of_packages()]
    lines += [
        "",
        "## The paper's settings",
        "",
        "`create(method, params, preset=task)`, from section 6 and the supplement.",
        "",
    ]
    methods = sorted({method for settings in PRESETS.values() for method in settings})
    lines += ["| task | " + " | ".join(f"`{m}`" for m in methods) + " |", "|---" * (len(methods) + 1) + "|"]
    for task, settings in PRESETS.items():
        cells = (", ".join(f"{k}={v:g}" for k, v in settings[m].items()) or "defaults" for m in methods)
        lines.append(f"| `{task}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main():
    if "--check" not in sys.argv:
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit(f"{PAGE} is out of date: run python scripts/zoo_table.py")
    elif missing := untested():
        sys.exit(f"no test names {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
