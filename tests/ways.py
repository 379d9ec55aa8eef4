"""Parameters in every layout, compositions of every kind, and a loop to train them: for tests of how a step runs."""

import functools
import math

import pytest
import torch

from pairs import pairs
from superadam import SuperAdam, bucket, iterates, matrices, penalties, schedules, sets, step, stepsizes
from superadam.options import Composition

MATRICES = {
    "case 1": matrices.SecondMoment(),
    "case 1, corrected": matrices.SecondMoment(beta=0.9, bias_correction=True),
    "case 2": matrices.GradientNorm(),
    "case 3": matrices.BarzilaiBorwein(lam=0.1),
    "case 4a": matrices.Belief(),
    "case 4a, corrected": matrices.Belief(eps=1e-8, bias_correction=True),
    "case 4b": matrices.BeliefNorm(),
    "AMSGrad": matrices.AMSGrad(),
    "AMSGrad, corrected": matrices.AMSGrad(beta=0.9, bias_correction=True),
    "Padam": matrices.AMSGrad(power=0.125, lam_inside=True),
    "AdaGrad": matrices.AdaGrad(lam=1e-3),
    "AdaFom": matrices.AdaGrad(lam=1e-3, v_0=0.1, mean=True),
    "SCAdaGrad": matrices.SCAdaGrad(),
    "AdaDelta": matrices.AdaDelta(eps=1e-3),
    "Cautious": matrices.Cautious(beta=0.9, bias_correction=True),
    "Cautious, as published": matrices.Cautious(0.9, kappa=math.inf, bias_correction=True, rescale=True),
    "Yogi": matrices.Yogi(),
    "AdaBound": matrices.AdaBound(bias_correction=True, final=10.0),
    "Adamax": matrices.Adamax(lam=1e-3),
    "ADOPT": matrices.Adopt(beta=0.9, lam=1e-3),
    "RAdam": matrices.RAdam(beta=0.9),
    "RMSprop, centered": matrices.Centered(beta=0.9, lam=1e-3),
    "Rprop": matrices.Rprop(),
    "Sign": matrices.Sign(lam=1e-3),
    "Sophia": matrices.Sophia(lam=1e-3),
    "Adafactor": matrices.Adafactor(),
    "Adam-mini": matrices.AdamMini(),
    "Identity": matrices.Identity(scale=2.0),
    "AccumulatedNorm": matrices.AccumulatedNorm(),
    "AccumulatedNorm, past": matrices.AccumulatedNorm(power=0.6, past=True),
    "EstimateNorm": matrices.EstimateNorm(),
    "DampedLBFGS": matrices.DampedLBFGS(history=2, delta=1.0),
    "Shampoo": matrices.ByShape(matrices.Shampoo(eps=0.01, every=2), matrices.Yogi()),
}


# All other diagonal matrices of superadam, with their defaults. Of H → 0 there is nothing to compare without a set.
MATRICES |= {
    name: kind()
    for name, kind in matrices.Matrix._names.items()
    if kind.is_diagonal and not kind.per_tensor and kind.__module__.startswith("superadam.") and not kind.vanishes
    if kind not in {matrices.ByShape, *map(type, MATRICES.values())}
}

VARIANTS = {
    "plain": {},
    "decay": {"weight_decay": 0.1},
    "clip and decay": {"clip": 0.5, "weight_decay": 0.1},
    "decay in the gradient, maximize": {"weight_decay": 0.1, "decoupled_weight_decay": False, "maximize": True},
    "box": {"constraint": sets.Box(-0.8, 0.9), "weight_decay": 0.1},
    "L1": {"penalty": penalties.L1(0.05)},
    "elastic net on a box": {"penalty": penalties.ElasticNet(0.05, 0.5), "constraint": sets.NonNegative()},
    "no momentum": {"schedule": schedules.Constant(alpha=1.0), "weight_decay": 0.1},
    "bias-corrected": {"schedule": schedules.BiasCorrected(), "weight_decay": 0.1, "decoupled_weight_decay": False},
    "schedule-free": {"iterate": iterates.ScheduleFree(warmup=3), "weight_decay": 0.1},
    "averaged, on a box": {"iterate": iterates.Averaged(0.9), "constraint": sets.Box(-0.8, 0.9)},
    "lookahead": {"iterate": iterates.Lookahead(every=2)},
    "a falling rate": {"stepsize": stepsizes.Decaying(3.0), "iterate": iterates.Averaged(1.0, start=2)},
}

# shape, layout of the parameter, layout of the gradient, batches without a gradient
PARAMETERS = [
    ((150,), "contiguous", "alike", ()),
    ((12, 11), "contiguous", "alike", ()),
    ((2, 3, 4, 5), "channels last", "alike", ()),
    ((2, 3, 5, 4), "channels last", "contiguous", ()),
    ((10, 13), "transposed", "alike", ()),
    ((9, 14), "contiguous", "transposed", ()),
    ((13, 8), "contiguous", "expanded", ()),
    ((), "contiguous", "alike", ()),
    ((0, 3), "contiguous", "alike", ()),
    ((3,), "contiguous", "alike", ()),
    ((2, 2), "contiguous", "alike", (3,)),
    ((70,), "contiguous", "alike", (2,)),
    ((9, 10), "contiguous", "alike", (1, 2)),
]


@pytest.fixture
def tiny(monkeypatch):
    """Pieces so small that small tensors are cut, and in the last place not evenly."""
    for module, name, value in ((step, "CHUNK", 64), (step, "SMALL", 16), (bucket, "SMALL", 16)):
        monkeypatch.setattr(module, name, value)


def laid_out(value, layout, like=None):
    """The same numbers, otherwise in memory."""
    if layout == "alike":
        return torch.empty_like(like).copy_(value)
    if layout == "channels last":
        return value.contiguous(memory_format=torch.channels_last)
    if layout == "transposed":
        return value.t().contiguous().t()
    if layout == "expanded":
        return value.mean(0, keepdim=True).expand_as(value)
    return value.contiguous()


@functools.cache
def noise(dtype, shape, *seed):
    generator = torch.Generator().manual_seed(hash(seed) % 2**31)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    return torch.randn(shape, dtype=wide, generator=generator)


class Problem:
    """∇f(x; ξ) is a bounded function of every coordinate, laid out as asked."""

    def __init__(self, dtypes=(torch.float64,), parameters=PARAMETERS):
        self.of = [(dtype, *p) for dtype in dtypes for p in parameters]
        self.params = [
            laid_out(noise(dtype, shape, i).clone(), layout).to(dtype).requires_grad_()
            for i, (dtype, shape, layout, _, _) in enumerate(self.of)
        ]

    def closure(self, n):
        def closure():
            for i, (p, (dtype, shape, _, layout, without)) in enumerate(zip(self.params, self.of, strict=True)):
                away = p.detach().to(torch.complex128 if dtype.is_complex else torch.float64) - noise(
                    dtype, shape, i, n
                )
                grad = away / (1 + away.abs() ** 2)
                p.grad = None if n in without else laid_out(grad.to(dtype), layout, p)
            return 0.0

        return closure


def train(problem, build=SuperAdam, *, steps=5, lr=0.05, opt=None, start=1, **options):
    """Five steps with an lr that is a tensor and shrinks. The optimizer is returned, before its last move."""
    if opt is None:
        opt = build(problem.params, lr=torch.tensor(lr, dtype=torch.float64), **options)
    for n in range(start, start + steps):
        opt.step(problem.closure(n))
        for group in opt.param_groups:
            group["lr"].mul_(0.9)
    return opt


def result(build=SuperAdam, dtypes=(torch.float64,), parameters=PARAMETERS, **options):
    """The parameters and their state after some steps."""
    problem = Problem(dtypes, parameters)
    opt = train(problem, build, **options)
    opt.flush()
    state = [t for p in problem.params for _, t in sorted(opt.state[p].items()) if isinstance(t, torch.Tensor)]
    return [p.detach() for p in problem.params], state


def refused(matrix, variant):
    """Combinations that make no sense, as tests/matrices/test_diagonal.py knows, or that say nothing more."""
    line_9 = "constraint" in VARIANTS[variant] or "penalty" in VARIANTS[variant]
    dense = (
        isinstance(MATRICES[matrix], matrices.ByShape)
        or not MATRICES[matrix].is_diagonal
        or MATRICES[matrix].per_tensor
    )
    few = ("case 1", "case 2", "case 3", "AdaGrad", "Shampoo")  # an iterate does not know the matrix
    if "iterate" in VARIANTS[variant] and matrix not in few:
        return True
    return (dense and line_9) or (matrix == "EstimateNorm" and "clip" in VARIANTS[variant])


PRODUCT = [(m, tau, v) for m in MATRICES for tau in (0.0, 1.0) for v in VARIANTS if not refused(m, v)]


IN_PAIRS = [p for p in pairs(MATRICES, VARIANTS, [0.0, 1.0], one_in=4) if not refused(*p.values[:2])]


def has_kernel(opt):
    return all(Composition.of(group).kernel_objection(group) is None for group in opt.param_groups)


def equal(actual, expected, tol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=tol, atol=tol)


__all__ = [
    *("IN_PAIRS", "MATRICES", "PARAMETERS", "PRODUCT", "VARIANTS"),
    *("Problem", "equal", "has_kernel", "result", "tiny", "train"),
]
