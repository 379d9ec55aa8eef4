"""Print the figures by which the house is judged, beside their aims, and fail where one is missed.

python scripts/house.py

- the lines of the optimizer, and the largest circle of modules that import each other, imports for types counted;
- the classes behind `SuperAdam` that are ours;
- the Python calls of a warm step, and the modules they lie in. A model with four tensors takes twenty steps before.
  Comprehensions and lambdas are left out: since Python 3.12 most comprehensions are not calls.

They are signs, not the aim: nothing is split, inlined or renamed to please them.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

import superadam
from superadam import SuperAdam, matrices, sets

SOURCE = Path(superadam.__file__).parent
LINES, CYCLE, CLASSES = 13_000, 1, 2


class Aim(NamedTuple):
    """A step to trace, and how many calls in how many modules it may take."""

    make: Callable[[torch.nn.Module], SuperAdam]
    calls: int
    modules: int


STEPS = {
    "default": Aim(lambda model: SuperAdam(model), 20, 4),
    "Yogi": Aim(lambda model: SuperAdam(model, matrix=matrices.Yogi()), 30, 5),
    "SOAP": Aim(lambda model: superadam.create("soap", model), 60, 6),
    "simplex": Aim(lambda model: SuperAdam(model, constraint=sets.Simplex()), 100, 8),
    "τ = 1, closure": Aim(lambda model: SuperAdam(model, tau=1.0), 70, 6),
}


def modules() -> dict[str, Path]:
    """Return the files of the optimizer by the names of their modules."""
    paths = sorted(SOURCE.rglob("*.py"))
    names = (".".join(("superadam", *path.relative_to(SOURCE).with_suffix("").parts)) for path in paths)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def imported(name: str, path: Path) -> Iterator[str]:
    """Yield the names that a module imports, wherever in it, those for types alone among them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def largest_cycle(files: dict[str, Path]) -> list[str]:
    """Return the largest set of modules of which each imports each other, directly or through others; [] if none does.

    A package's `__init__` only gathers names: who imports a name from it does not depend on all that it gathers.
    """
    known = {name for name, path in files.items() if path.name != "__init__.py"}
    graph = {name: {other for other in imported(name, path) if other in known - {name}} for name, path in files.items()}
    reached = {name: reachable(name, graph) for name in graph}
    return max(([other for other in reached[name] if name in reached[other]] for name in graph), key=len)


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    """Return what a module imports, directly or through others. It has itself only in a circle."""
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = graph[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def own_classes() -> list[str]:
    """Return the classes of SuperAdam that are ours."""
    return [kind.__name__ for kind in SuperAdam.__mro__ if kind.__module__.partition(".")[0] == "superadam"]


def traced(aim: Aim) -> tuple[int, int]:
    """Return the Python calls of a warm step, and the number of modules they lie in."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    opt = aim.make(model)
    for p in model.parameters():
        p.grad = torch.rand_like(p)
    inputs = torch.rand(16, 8)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss

    given = (closure,) if opt.two_point else ()
    for _ in range(20):
        opt.step(*given)
    seen: list[str] = []

    def profile(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{SOURCE}/") and not code.co_name.startswith("<"):
            seen.append(code.co_filename)

    sys.setprofile(profile)
    opt.step(*given)
    sys.setprofile(None)
    return len(seen), len(set(seen))


def figures() -> Iterator[tuple[str, bool]]:
    """Yield each figure as a line, and whether it is within its aim."""
    files = modules()
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files.values())
    yield f"{lines:,} lines in {len(files)} files (aim: {LINES:,})", lines <= LINES
    cycle = largest_cycle(files)
    yield f"{len(cycle) or 1} modules in the largest import cycle (aim: {CYCLE})", len(cycle) <= CYCLE
    classes = own_classes()
    yield f"{len(classes)} own classes behind SuperAdam: {', '.join(classes)} (aim: {CLASSES})", len(classes) <= CLASSES
    for name, aim in STEPS.items():
        calls, held = traced(aim)
        within = calls <= aim.calls and held <= aim.modules
        yield f"{name}: {calls} calls in {held} modules (aim: {aim.calls} in {aim.modules})", within


def main() -> None:
    missed = 0
    for line, within in figures():
        print(line if within else f"{line}: missed")
        missed += not within
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
