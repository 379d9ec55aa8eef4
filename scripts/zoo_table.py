"""Write docs/zoo.md from the registry: every method as the composition it is.

python scripts/zoo_table.py          # writes the page
python scripts/zoo_table.py --check  # fails if the page is not what would be written, or a method has no test
"""

import ast
import dataclasses
import inspect
import sys
from pathlib import Path

import torch

from superadam import zoo
from superadam.iterates import Plain
from superadam.zoo.presets import PRESETS

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

Under "composition" stand the estimator (line 11), the matrix (line 4), the schedule (lines 10 and 11) and, unless it is
`Plain`, the iterate, each with the options that differ from its defaults; "lr" is the default, which
[trains](choosing.md#what-the-defaults-do); "gradients" are those of one batch. Every builder also takes the options of
`SuperAdam`, which replace the parts of its composition: `create("amsgrad", model, tau=1.0)`. Formulas and references
are in the [API](api/zoo.md).
"""


def part(value):
    """A part, with only the options that differ from its defaults."""
    options = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if getattr(value, f.name) != f.default}
    shown = (f"{k}={v:.6g}" if isinstance(v, float) else f"{k}={v}" for k, v in options.items())
    return f"`{type(value).__name__}({', '.join(shown)})`"


def untested():
    """The methods that no test names, as zoo.method or as a string."""
    names = set()
    for path in {*(ROOT / "tests").glob("test_*.py")} - {ROOT / "tests" / "test_bench.py"}:  # no test of methods
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Constant):
                names.add(node.value)
    return zoo.METHODS.keys() - names


def page():
    lines = [INTRO, "| method | what | composition | lr | gradients | options |", "|---|---|---|---|---|---|"]
    for name, line in zoo.list_methods().items():
        opt = zoo.create(name, torch.nn.Linear(2, 1))
        parts = opt._parts(opt.param_groups[0])
        options = [f"`{p}`" for p in inspect.signature(zoo.METHODS[name]).parameters if p not in ("params", "options")]
        shown = [parts.estimator, parts.matrix, parts.schedule]
        if parts.iterate != Plain():
            shown.append(parts.iterate)
        composition, lr = "<br>".join(map(part, shown)), f"{opt.param_groups[0]['lr']:g}"
        cells = [f"`{name}`", line, composition, lr, str(1 + opt.two_point), ", ".join(options)]
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
    elif missing := untested():
        sys.exit(f"no test names {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main()
