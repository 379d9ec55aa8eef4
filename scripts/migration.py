"""Run both sides of every row of docs/migration.md, in float64, and print how far apart they end.

The others are not among our dependencies. In an environment with superadam:
pip install keras==3.15.1 jax optax==0.2.8
python scripts/migration.py    # fails if a row says "the same" and it is not
"""

import os
import re
import sys
from pathlib import Path

import torch

import superadam
from superadam import SuperAdam, create

PAGE = Path(__file__).resolve().parent.parent / "docs" / "migration.md"
NAMES = {"create": create, "SuperAdam": SuperAdam, "torch": torch}
for module in ("estimators", "matrices", "penalties", "schedules", "sets", "stepsizes", "iterates"):
    NAMES |= {name: getattr(getattr(superadam, module), name) for name in getattr(superadam, module).__all__}
SAME = 1e-4  # of the distance covered: some add ε elsewhere
STEPS = 8
ROW = r"^\| `({}\..*?)` \| `(.*?)`.*? \|(?: (.*?) \|)?$"


def rows(package):
    """Their call, ours, and what the page says about the steps."""
    return re.findall(ROW.format(re.escape(package)), PAGE.read_text(), flags=re.M)


def problem():
    """A first point, and gradients that depend on it."""
    random = torch.Generator().manual_seed(0)
    w = torch.randn(4, 3, dtype=torch.float64, generator=random)
    noise = torch.randn(STEPS, 4, 3, dtype=torch.float64, generator=random)
    return w, [lambda x, n=n: n + 0.1 * x for n in noise]


def of_torch(code):
    """The last point of an optimizer of torch, or ours."""
    w, gradients = problem()
    w.requires_grad_()
    opt = eval(code, {**NAMES, "p": [w]})
    for gradient in gradients:
        w.grad = gradient(w.detach())
        opt.step()
    if isinstance(opt, SuperAdam):
        opt.flush()
    return w.detach()


def of_keras(code):
    import keras

    keras.config.set_floatx("float64")
    w, gradients = problem()
    variable = keras.Variable(w.numpy(), dtype="float64", name="w")
    opt = eval(code, {"keras": keras})
    opt.build([variable])
    for gradient in gradients:
        opt.apply([gradient(variable.value.detach())], [variable])
    return variable.value.detach()


def of_optax(code):
    import jax.numpy as jnp
    import optax

    w, gradients = problem()
    w = jnp.asarray(w.numpy())
    method = eval(code, {"optax": optax})
    state = method.init(w)
    for gradient in gradients:
        update, state = method.update(jnp.asarray(gradient(torch.tensor(w.tolist(), dtype=torch.float64))), state, w)
        w = optax.apply_updates(w, update)
    if "schedule_free" in code:
        w = optax.contrib.schedule_free_eval_params(state, w)
    return torch.tensor(w.tolist(), dtype=torch.float64)


def difference(theirs, ours):
    start, _ = problem()
    return ((ours - theirs).abs().max() / (theirs - start).abs().max()).item()


def main():
    os.environ |= {"KERAS_BACKEND": "torch", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"}
    wrong = False
    for package, end in (("torch.optim", of_torch), ("keras", of_keras), ("optax", of_optax)):
        for theirs, ours, said in rows(package):
            far = difference(end(theirs), of_torch(ours))
            same = far <= (0.02 if theirs.startswith("torch.optim.Muon") else SAME)  # which iterates in bfloat16
            wrong |= same != (said or "the same").startswith("the same")
            print(f"{far:.1e}  {theirs}  {said}")
    sys.exit(wrong)


if __name__ == "__main__":
    main()
