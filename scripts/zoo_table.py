"""Write docs/zoo.md from the registry: every method as the composition it is, and the tests that cover it.

python scripts/zoo_table.py          # writes the page
python scripts/zoo_table.py --check  # fails if the page is not what would be written
"""

import ast
import dataclasses
import inspect
import sys
from pathlib import Path

import torch

from superadam import zoo
from superadam.presets import PRESETS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "zoo.md"

INTRO = """\
# The zoo

Every method of the literature that the paper names, as a composition of the same parts. Made by
`python scripts/zoo_table.py` from the registry; do not edit.

![Paths of four methods on Rosenbrock's function and on a noisy least-squares problem](img/trajectories.svg)

Four compositions on two functions of two variables, from the square to the star: 200 gradients each, so that τ = 1
takes half as many steps; learning rates from one grid, by the mean of f over a path that stays in the picture, on other
batches (`python scripts/pictures.py trajectories`, which prints them). On the right, SGD has one rate for two
curvatures that differ by a factor of about 100; the others have one for each coordinate.

```python
import torch
import superadam

model = torch.nn.Linear(4, 1)
opt = superadam.create("adabelief", model, lr=1e-3)
opt = superadam.create("super_adam", model, preset="cifar10", tau=1)
print(superadam.list_methods("ada*"))
```

`evaluations` are gradient evaluations per batch. Every builder also takes the options of `SuperAdam`, which replace the
parts of its composition: `create("amsgrad", model, tau=1.0)`.
"""


def part(value):
    """A part, with only the options that differ from its defaults."""
    options = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if getattr(value, f.name) != f.default}
    shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())
    return f"`{type(value).__name__}({', '.join(shown)})`"


def covering_tests():
    """Method → the tests that name it, as zoo.method or as a string."""
    covering = {name: [] for name in zoo.METHODS}
    for path in sorted(
        {*(ROOT / "tests").glob("test_*.py")} - {ROOT / "tests" / "test_bench.py"}
    ):  # no test of methods
        for node in ast.parse(path.read_text()).body:
            if not (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
                continue
            names = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}
            names |= {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
            for name in names & covering.keys():
                covering[name].append(f"{path.stem}::{node.name}")
    return covering


def page():
    covering = covering_tests()
    lines = [INTRO, "| method | what | estimator (11) | matrix (4) | schedule (10) | evaluations | options | tests |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for name, line in zoo.list_methods().items():
        opt = zoo.create(name, torch.nn.Linear(2, 1))
        parts = opt._parts(opt.param_groups[0])
        options = [f"`{p}`" for p in inspect.signature(zoo.METHODS[name]).parameters if p not in ("params", "options")]
        tests = "<br>".join(f"`{test}`" for test in covering[name][:3]) or "none"
        cells = [f"`{name}`", line, *map(part, parts[:3]), str(1 + opt.two_point), ", ".join(options), tests]
        lines.append("| " + " | ".join(cells) + " |")
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


if __name__ == "__main__":
    main()
