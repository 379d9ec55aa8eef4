"""Compositions on tensors of a kind: parts from the tables of `equality.net`, gradients that depend on x and the batch.

Public names only. A test of many compositions goes through them in a loop and collects those that fail.
"""

import torch

from equality import net
from superadam import SuperAdam

PARTS = {
    "matrix": net.EVERY,
    "estimator": net.ESTIMATORS,
    "iterate": net.ITERATES,
    "stepsize": net.STEPSIZES,
    "schedule": net.SCHEDULES,
}
OPTIONS = {
    "decay": {"weight_decay": 0.1},
    "coupled decay": {"weight_decay": 0.1, "decoupled_weight_decay": False},
    "clip": {"clip": 0.5},
    "maximize": {"maximize": True},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False, "fused": False},
}
CHOICES = [(kind, label) for kind, table in PARTS.items() for label in table] + [("option", label) for label in OPTIONS]
"""One choice that is not the default, of every kind."""
REGIONS = {
    **{f"set {label}": (named, {"constraint": make}) for label, (named, make) in net.SETS.items()},
    **{f"penalty {label}": (named, {"penalty": make}) for label, (named, make) in net.PENALTIES.items()},
}
"""Names of tensors, and a set or a penalty for them as options that are made anew for each optimizer."""


def options_of(kind, label, **more):
    """Return the options of `SuperAdam` for one choice, with `more` options, of which parts are functions."""
    chosen = OPTIONS[label] if kind == "option" else {kind: label}
    regions = [more[name]() for name in ("constraint", "penalty") if name in more]
    if kind != "matrix" and any(part.scalar_metric or part.needs == "eigen" for part in regions):
        chosen = {"matrix": "Identity", **chosen}
    return net.choose(**chosen, **more)


def tensors(shapes, dtype=torch.float64, seed=0):
    """Return parameters: two of each shape, so that each list of tensors has at least two."""
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes for _ in range(2)]
    symmetric = [(x + x.mT) / 2 if x.dim() == 2 and x.shape[0] == x.shape[1] else x for x in made]
    return [x.to(dtype).requires_grad_() for x in symmetric]


class Noisy:
    """The gradient x - c + noise, where c depends on the tensor and the noise on tensor and batch."""

    def __init__(self, params, scale=1.0):
        self.params, self.scale = params, scale

    def closure(self, n):
        def closure():
            for i, p in enumerate(self.params):
                generator = torch.Generator().manual_seed(97 * i)
                center = torch.randn(p.shape, generator=generator, dtype=torch.float64)
                generator = torch.Generator().manual_seed(97 * i + n + 1)
                noise = 0.5 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
                p.grad = self.scale * (p.detach() - center.to(p.dtype) + noise.to(p.dtype))
            return 0.0

        return closure


class RefusedError(Exception):
    """The composition was refused at construction."""


def optimizer(params, options, make=SuperAdam):
    made = options() if callable(options) else options
    try:
        return make(params, **made)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise RefusedError(str(error)) from error


def points(params, options, steps=5, groups=None):
    """Return x after each step and after `flush`."""
    opt = optimizer(params if groups is None else groups(params), options)
    problem, found = Noisy(params), []
    for n in range(steps):
        opt.step(problem.closure(n))
        found.append([p.detach().clone() for p in params])
    opt.flush()
    return [*found, [p.detach().clone() for p in params]]


def one_group_each(params):
    return [{"params": [p]} for p in params]


def furthest(a, b):
    """Return the largest difference between two lists of points, relative to the size of the tensor."""
    worst = 0.0
    for mine, theirs in zip(a, b, strict=True):
        for x, y in zip(mine, theirs, strict=True):
            size = max(1.0, float(y.detach().abs().max()) if y.numel() else 0.0)
            off = float((x - y).detach().abs().max()) / size if x.numel() else 0.0
            worst = max(worst, off if off == off else float("inf"))
    return worst
