"""What docs/comparison.md says about other libraries, checked in the installed versions.

python -m venv /tmp/others && /tmp/others/bin/pip install pytorch_optimizer optax heavyball
/tmp/others/bin/pip install --no-deps chop-pytorch  # only read: its import needs torchvision
/tmp/others/bin/python scripts/other_libraries.py

Prints one line for each claim, and ends with an error if one of them does not hold any more. (MARS is not on PyPI: what
is said of it was read in its repository, at the commits that the page names.)
"""

import ast
import importlib.util
import inspect
import re
import sys
from importlib.metadata import version
from pathlib import Path

failures = 0


def claim(what, holds):
    global failures
    failures += not holds
    print("holds" if holds else "FAILS", what)


def source(package):
    """All Python files of a package, without importing it."""
    folder = Path(importlib.util.find_spec(package).submodule_search_locations[0])
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*.py")}


def mentions(package, pattern):
    """The files of a package, tests apart, in which a pattern occurs."""
    return [f for f, text in source(package).items() if "test" not in f and re.search(pattern, text, flags=re.I)]


def classes(text):
    """The classes of a file that are optimizers by their base."""
    nodes = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    return [node.name for node in nodes if any("Optimizer" in ast.unparse(base) for base in node.bases)]


def optimizers(module):
    import torch

    found = (o for o in vars(module).values() if inspect.isclass(o) and issubclass(o, torch.optim.Optimizer))
    return {o.__name__ for o in found} - {"Optimizer"}


def check_torch():
    import torch

    print("torch", torch.__version__)
    claim("15 optimizers, Muon among them", len(optimizers(torch.optim)) == 15 and hasattr(torch.optim, "Muon"))
    claim("no schedule-free", not mentions("torch.optim", "schedule_?free"))
    claim("no Prodigy", not mentions("torch.optim", "prodigy"))
    no_variance_reduction("torch.optim")
    no_sets("torch.optim")


def check_pytorch_optimizer():
    import pytorch_optimizer

    print("pytorch_optimizer", version("pytorch_optimizer"))
    names = pytorch_optimizer.get_supported_optimizers()
    claim(f"{len(names)} optimizers", len(names) == 128)
    claim("muon, shampoo and soap among them", {"muon", "shampoo", "soap"} <= set(names))
    claim("schedulefreeadamw and prodigy among them", {"schedulefreeadamw", "prodigy"} <= set(names))
    claim("no storm", not mentions("pytorch_optimizer", "storm"))
    mars = source("pytorch_optimizer")["optimizer/mars.py"]
    claim("mars keeps the gradient of the last batch", "last_grad" in mars and "is_approx" not in mars)
    no_sets("pytorch_optimizer")


def check_optax():
    import optax
    from optax import projections
    from optax._src import alias

    print("optax", version("optax"))
    made = [f for f in vars(alias).values() if inspect.isfunction(f) and f.__module__ == alias.__name__]
    print(f"      {len([f for f in made if not f.__name__.startswith('_')])} optimizers beside those in contrib")
    claim("a method is a chain of parts", callable(optax.chain))
    claim("muon in contrib", hasattr(optax.contrib, "muon"))
    claim("schedule-free in contrib", hasattr(optax.contrib, "schedule_free_adamw"))
    claim("Prodigy in contrib", hasattr(optax.contrib, "prodigy"))
    no_variance_reduction("optax")
    names = [name for name in dir(projections) if name.startswith("projection_")]
    parameters = {p for name in names for p in inspect.signature(getattr(projections, name)).parameters}
    claim(f"{len(names)} projections, none of which takes a metric", not parameters & {"metric", "weights", "d", "H"})
    print(f"      their parameters: {', '.join(sorted(parameters))}")


def check_heavyball():
    import heavyball

    print("heavyball", version("heavyball"))
    found = optimizers(heavyball)
    print(f"      {len(found)} optimizers")
    claim("a method is a chain of parts", importlib.util.find_spec("heavyball.chainable") is not None)
    claim("SOAP and Muon", {"SOAP", "Muon"} <= found)
    claim("schedule-free", "SFAdamW" in found)
    claim("no Prodigy", not mentions("heavyball", "prodigy"))
    claim("mars keeps the gradient of the last batch", "mars_old_grad" in source("heavyball")["chainable.py"])
    claim("no storm", not mentions("heavyball", "storm"))
    no_sets("heavyball")


def check_chop():
    print("chop-pytorch", version("chop-pytorch"))
    files = source("chop")
    found = classes(files["stochastic.py"])
    claim(f"{len(found)} stochastic optimizers: {', '.join(found)}", len(found) == 5)
    claim("sets with Euclidean projections", "euclidean_proj_simplex" in files["constraints.py"])
    claim("no second moment in any of them", not re.search(r"addcmul|exp_avg_sq|\bv_t\b", files["stochastic.py"]))
    claim("no schedule-free, no Prodigy", not mentions("chop", "schedule_?free|prodigy"))
    no_variance_reduction("chop")


def no_variance_reduction(package):
    claim("no storm, no mars", not mentions(package, r"storm|class mars|mars_"))


def no_sets(package):
    claim("no simplex, no projection onto a ball", not mentions(package, r"simplex|l1_?ball|l2_?ball"))


def main():
    for check in (check_torch, check_pytorch_optimizer, check_optax, check_heavyball, check_chop):
        check()
    if failures:
        sys.exit(f"{failures} claims of docs/comparison.md do not hold for these versions")


if __name__ == "__main__":
    main()
