"""Record trajectories of many compositions, and compare another engine with them, bit for bit or to a tolerance.

    python tests/equality/net.py record             write net.json.gz from the superadam that is imported
    python tests/equality/net.py record --only …    replace these entries in it, keep the others
    python tests/equality/net.py compare            equal bit for bit, or how far off, for each entry and each family
    python tests/equality/net.py compare --only 'matrix/SOAP*' --verbose
    python tests/equality/net.py names --only soap  the names of entries

Every composition names its parts, their options and lr, so that changed defaults change nothing here (`zoo` entries
have a method's defaults). Only public names of superadam are used. When a part gets another name or another option,
change the tables below and keep the labels: entries are found by them.

An entry takes 7 steps on a quadratic, x ↦ ½ (x - c)ᵀ D (x - c) + ⟨n_i, x⟩, whose noise n_i depends on the batch alone.
The file has, for each entry, four bytes of a hash of x after every step and after `flush`, and for x after step 2 and
at the end one number per tensor: ⟨w, x⟩ in float64, w fixed. A difference is relative to the tensor's largest element.
Where coordinates matter, `record --full --out FILE` with another source tree on PYTHONPATH writes every x, and
`compare --out FILE` compares them.
"""

from __future__ import annotations

import argparse
import base64
import copy
import fnmatch
import gzip
import hashlib
import itertools
import json
import math
import os
import random
import struct
import subprocess
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import superadam
from superadam import SuperAdam, create, estimators, iterates, matrices, penalties, schedules, sets, stepsizes, twice

STORED = Path(__file__).with_name("net.json.gz")
STEPS = 7
TOLERANCE = {"float64": 1e-12, "float32": 2e-6, "complex128": 1e-12, "bfloat16": 2e-2}  # bfloat16: two of its units

# ------------------------------------------------------------------------------------------------ tables of parts
#
# label: (lr, how it is made). Labels are names of entries: keep them when a part is renamed.


def second_moment() -> Any:
    return matrices.SecondMoment(beta=0.999, lam=0.0005, bias_correction=False)


def by_shape(make: Callable[[], Any]) -> Callable[[], Any]:
    """Make a matrix for tensors of two dimensions and more, with Adam's for vectors."""
    return lambda: matrices.ByShape(make(), second_moment(), names=(), layers=(), rate=1.0)


# One-sided above 6: with both sides a 4 × 12 gradient leaves eigenvectors of a null space to rounding.
KRONECKER: dict[str, Any] = {
    "every": 2,
    "one_sided_above": 6,
    "largest": 10000,
    "block": None,
    "batch_dims": 0,
    "split": 1,
}
BOTH_SIDES: dict[str, Any] = {**KRONECKER, "one_sided_above": 1024}
PER_TENSOR: dict[str, Any] = {"batch_dims": 0, "split": 1}
SOAP: dict[str, Any] = {"beta": 0.95, "lam": 1e-8, "factor_beta": None, "bias_correction": True}
SHAMPOO: dict[str, Any] = {"beta": 0.99, "eps": 1e-6, "power": None, "bias_correction": True, "grafting": None}
PSGD: dict[str, Any] = {"precision": 0.1, "flat": 500, "least": 0.03, "triangular": 8192, "bound": 1.1}
SPECTRAL: dict[str, Any] = {
    "coefficients": "jordan",
    "steps": 5,
    "scale": "original",
    "lam": 0.0,
    "eps": 1e-7,
    "dtype": None,
}

MATRICES: dict[str, tuple[float, Callable[[], Any]]] = {
    "AMSGrad": (0.05, lambda: matrices.AMSGrad(0.99, 0.0005, power=0.5, bias_correction=False, lam_inside=False)),
    "AccumulatedNorm": (0.5, lambda: matrices.AccumulatedNorm(power=0.5, omega=1.0, k=1.0, past=False)),
    "AdaBound": (0.05, lambda: matrices.AdaBound(0.999, 1e-8, final=100.0, speed=None, bias_correction=False)),
    "AdaDelta": (1.0, lambda: matrices.AdaDelta(rho=0.9, eps=1e-6)),
    "AdaGrad": (0.1, lambda: matrices.AdaGrad(lam=1e-10, v_0=0.0, mean=False)),
    "Adafactor": (0.1, lambda: matrices.Adafactor(decay=0.8, eps1=None, eps2=1e-3, d=1.0, relative=True)),
    "AdamMini": (0.05, lambda: matrices.AdamMini(0.999, 0.0005, bias_correction=False, rows=1)),
    "BarzilaiBorwein": (0.1, lambda: matrices.BarzilaiBorwein(lam=0.0005)),
    "Belief": (0.05, lambda: matrices.Belief(0.9, 0.999, 0.0005, eps=0.0, bias_correction=False)),
    "BeliefNorm": (0.05, lambda: matrices.BeliefNorm(0.9, 0.999, lam=0.0005)),
    "Cautious": (0.05, lambda: matrices.Cautious(0.999, 0.0005, kappa=100.0, bias_correction=False, rescale=False)),
    "Centered": (0.01, lambda: matrices.Centered(beta=0.99, lam=1e-8)),
    "DampedLBFGS": (0.3, lambda: matrices.DampedLBFGS(history=10, delta=10.0)),
    "EstimateNorm": (0.1, lambda: matrices.EstimateNorm(power=1.0, floor=1e-12, scale=1.0)),
    "GradientNorm": (0.05, lambda: matrices.GradientNorm(0.999, lam=0.0005)),
    "Identity": (0.1, lambda: matrices.Identity(scale=1.0)),
    "InfinityNorm": (0.05, lambda: matrices.Adamax(beta=0.999, lam=1e-8)),
    "KLShampoo": (0.05, by_shape(lambda: matrices.KLShampoo(0.98, start=0.1, **KRONECKER))),
    "PSGDKron": (0.01, by_shape(lambda: matrices.PSGDKron(**PSGD, **PER_TENSOR))),
    "PastSecondMoment": (0.05, lambda: matrices.Adopt(0.9999, 1e-6, power=0.25)),
    "Rectified": (0.05, lambda: matrices.RAdam(0.999, 1e-8)),
    "Resilient": (0.05, lambda: matrices.Rprop(1.2, 0.5, least=1e-6, most=50.0)),
    "SCAdaGrad": (0.1, lambda: matrices.SCAdaGrad(xi1=0.1, xi2=0.1)),
    "SOAP": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **KRONECKER))),
    "SecondMoment": (0.05, second_moment),
    "Shampoo": (0.05, by_shape(lambda: matrices.Shampoo(**SHAMPOO, **KRONECKER))),
    "Sign": (0.05, lambda: matrices.Sign(lam=1e-15)),
    "Sophia": (0.05, lambda: matrices.Sophia(0.99, rho=0.04, batch=5120, lam=1e-15)),
    "Spectral": (0.05, by_shape(lambda: matrices.Muon(**SPECTRAL, **PER_TENSOR))),
    "Yogi": (0.05, lambda: matrices.Yogi(0.999, 0.001, v_0=1e-6, bias_correction=False)),
    "Zero": (0.1, lambda: matrices.Zero()),
}
"""Every public matrix."""

VARIANTS: dict[str, tuple[float, Callable[[], Any]]] = {
    "AMSGrad corrected": (0.05, lambda: matrices.AMSGrad(0.99, 1e-8, power=0.5, bias_correction=True)),
    "AMSGrad power": (0.05, lambda: matrices.AMSGrad(0.99, 1e-3, power=0.125, bias_correction=True, lam_inside=True)),
    "AccumulatedNorm past": (0.5, lambda: matrices.AccumulatedNorm(power=0.3, omega=2.0, k=1.5, past=True)),
    "AdaBound corrected": (0.05, lambda: matrices.AdaBound(0.99, 1e-8, final=5.0, speed=0.1, bias_correction=True)),
    "AdaGrad mean": (0.05, lambda: matrices.AdaGrad(lam=1e-3, v_0=0.1, mean=True)),
    "Adafactor absolute": (0.1, lambda: matrices.Adafactor(decay=0.8, eps1=1e-9, eps2=1e-3, d=2.0, relative=False)),
    "AdamMini rows": (0.05, lambda: matrices.AdamMini(0.99, 1e-8, bias_correction=True, rows=2)),
    "Belief corrected": (0.05, lambda: matrices.Belief(0.8, 0.99, 1e-8, eps=1e-8, bias_correction=True)),
    "Cautious hard": (0.05, lambda: matrices.Cautious(0.99, 1e-8, kappa=math.inf, bias_correction=True, rescale=True)),
    "DampedLBFGS short": (0.3, lambda: matrices.DampedLBFGS(history=2, delta=1.0)),
    "EstimateNorm root": (0.1, lambda: matrices.EstimateNorm(power=0.5, floor=1e-3, scale=2.0)),
    "Identity scaled": (0.1, lambda: matrices.Identity(scale=3.0)),
    "KLShampoo blocks": (0.05, by_shape(lambda: matrices.KLShampoo(0.98, start=0.1, **{**KRONECKER, "block": 3}))),
    "SOAP both sides": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **BOTH_SIDES))),
    "SOAP blocks": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **{**KRONECKER, "block": 3}))),
    "SOAP factors": (
        0.05,
        by_shape(lambda: matrices.SOAP(**{**SOAP, "factor_beta": 0.8, "lam": 1e-3}, **{**KRONECKER, "every": 1})),
    ),
    "SOAP largest": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **{**BOTH_SIDES, "largest": 5}))),
    "SOAP batched": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **{**KRONECKER, "batch_dims": 1}))),
    "SOAP split": (0.05, by_shape(lambda: matrices.SOAP(**SOAP, **{**KRONECKER, "split": 2}))),
    "SecondMoment corrected": (0.05, lambda: matrices.SecondMoment(0.999, 1e-8, bias_correction=True)),
    "Shampoo both sides": (0.05, by_shape(lambda: matrices.Shampoo(**SHAMPOO, **BOTH_SIDES))),
    "Shampoo grafted": (
        0.05,
        by_shape(lambda: matrices.Shampoo(**{**SHAMPOO, "grafting": second_moment()}, **KRONECKER)),
    ),
    "Shampoo root": (0.05, by_shape(lambda: matrices.Shampoo(**{**SHAMPOO, "power": 0.25}, **KRONECKER))),
    "Spectral exact": (0.05, by_shape(lambda: matrices.Muon(**{**SPECTRAL, "lam": 0.1}, **PER_TENSOR))),
    "Spectral rms": (
        0.05,
        by_shape(lambda: matrices.Muon(**{**SPECTRAL, "scale": "match_rms_adamw"}, **PER_TENSOR)),
    ),
    "Spectral split": (0.05, by_shape(lambda: matrices.Muon(**SPECTRAL, batch_dims=0, split=2))),
    "Yogi corrected": (0.05, lambda: matrices.Yogi(0.99, 1e-3, v_0=0.5, bias_correction=True)),
    "ByShape rate": (
        0.05,
        lambda: matrices.ByShape(
            matrices.Muon(**SPECTRAL, **PER_TENSOR), second_moment(), names=(), layers=(), rate=0.3
        ),
    ),
}
EVERY = {**MATRICES, **VARIANTS}

SCHEDULES: dict[str, Callable[[], Any]] = {
    "Adam": lambda: schedules.BiasCorrected(beta=0.9, power=0.0),
    "Adam 0.5": lambda: schedules.BiasCorrected(beta=0.5, power=0.0),
    "Adam power": lambda: schedules.BiasCorrected(beta=0.9, power=0.5),
    "Paper": lambda: schedules.Paper(k=1.0, m=100.0, c=None, cap=0.9),
    "Paper early": lambda: schedules.Paper(k=1.5, m=8.0, c=2.0, cap=0.5),
    "Constant": lambda: schedules.Constant(mu=1.0, alpha=0.1, first=0.1, decay=0.0, power=0.0),
    "Constant falling": lambda: schedules.Constant(mu=0.7, alpha=0.3, first=0.5, decay=0.1, power=0.5),
    "Constant one": lambda: schedules.Constant(mu=1.0, alpha=1.0, first=1.0, decay=0.0, power=0.0),
    "Storm": lambda: schedules.Storm(c=10.0, cap=1.0),
}
ESTIMATORS: dict[str, tuple[str, Callable[[], Any]]] = {  # with the schedule that it is for
    "Averaged": ("Adam 0.5", lambda: estimators.Averaged(tau=1.0, beta=0.9, guard=None, own=True)),
    "Averaged guard": ("Adam 0.5", lambda: estimators.Averaged(tau=0.7, beta=0.5, guard=1.5, own=False)),
    "Corrected": ("Adam", lambda: estimators.Mars(tau=0.3, alpha=0.1, bound=1.0, previous_batch=False)),
    "Corrected unbound": ("Adam", lambda: estimators.Mars(0.025, 0.05, bound=None, previous_batch=False)),
    "Corrected previous": ("Adam", lambda: estimators.Mars(0.3, 0.1, bound=1.0, previous_batch=True)),
    "GradientDifferences": ("Adam", lambda: estimators.Adan(beta=0.92)),
    "HeavyBall": ("Adam", lambda: estimators.HeavyBall(momentum=0.9, dampening=0.1)),
    "Nesterov": ("Adam", lambda: estimators.Nesterov(a=None)),
    "Nesterov a": ("Constant", lambda: estimators.Nesterov(a=0.3)),
    "NesterovAdam": ("Constant", lambda: estimators.NAdam(beta=0.9, decay=0.004)),
    "NesterovRecursive": ("Adam 0.5", lambda: estimators.NesterovRecursive(tau=1.0, a=None)),
    "Recursive": ("Adam", lambda: estimators.Recursive(tau=0.6)),
    "Summed": ("Constant one", lambda: estimators.Summed()),
    "TwoAverages": ("Adam", lambda: estimators.AdEMAMix(a=2.0, beta=0.999, warmup=0, start=0.9)),
    "TwoAverages warm": ("Adam", lambda: estimators.AdEMAMix(a=2.0, beta=0.99, warmup=5, start=0.9)),
}
ITERATES: dict[str, tuple[str, Callable[[], Any]]] = {
    "Plain": ("Adam", lambda: iterates.Plain()),
    "Ahead": ("Adam", lambda: iterates.Nigt()),
    "Averaged": ("Adam", lambda: iterates.Averaged(decay=0.8, start=2)),
    "Lookahead": ("Adam", lambda: iterates.Lookahead(every=3, share=0.5)),
    "ScheduleFree": (
        "Constant one",
        lambda: iterates.ScheduleFree(beta=0.9, r=0.0, weight_power=2.0, warmup=3, weight=None),
    ),
    "ScheduleFree weight": (
        "Adam",
        lambda: iterates.ScheduleFree(beta=0.7, r=1.0, weight_power=1.0, warmup=0, weight=0.1),
    ),
    "Staged": ("Constant one", lambda: iterates.SAdaGrad(length=3, growth=1.5, shrink=0.5)),
}
STEPSIZES: dict[str, tuple[float, Callable[[], Any]]] = {
    "Decaying": (0.05, lambda: stepsizes.Decaying(speed=0.5, power=0.75)),
    "DoG": (1.0, lambda: stepsizes.DoG(reach=1e-2)),
    "Prodigy": (1.0, lambda: stepsizes.Prodigy(d0=1e-2, beta=0.9, coefficient=1.0, weigh=None)),
    "Prodigy weigh": (1.0, lambda: stepsizes.Prodigy(d0=1e-2, beta=0.9, coefficient=1.0, weigh=False)),
    "TrustRatio": (0.05, lambda: stepsizes.TrustRatio(coefficient=1.0, of_gradient=False, least_dims=0)),
    "TrustRatio gradient": (0.05, lambda: stepsizes.TrustRatio(coefficient=0.5, of_gradient=True, least_dims=2)),
    "UpdateClipping": (0.05, lambda: stepsizes.UpdateClipping(d=0.7)),
}


def fixed(*shape: int, seed: int = 5) -> Tensor:
    """Return numbers that are the same with every torch."""
    draw = random.Random(seed)
    return torch.tensor([draw.gauss(0, 1) for _ in range(math.prod(shape))], dtype=torch.float64).reshape(shape)


# label: (names of the tensors, how it is made). Tensors A, B (6 × 5, 5 × 4), a, b (5), c (3), K (4 × 3 × 2 × 2), and
# S, T (4 × 4, symmetric at first). Those of the same label that are not named have no set.
TENSORS = ("A", "B", "a", "K")
SETS: dict[str, tuple[tuple[str, ...], Callable[[], Any]]] = {
    "PSD": (("S", "T"), lambda: sets.PSD()),
    "Affine": (("a", "b"), lambda: sets.Affine(fixed(2, 5), torch.tensor([0.3, -1.0], dtype=torch.float64))),
    "Box": (TENSORS, lambda: sets.Box(-0.3, 0.4)),
    "Box of tensors": (("a", "b"), lambda: sets.Box(-fixed(5).abs(), fixed(5, seed=6).abs())),
    "BoxSection": (("a", "b"), lambda: sets.BoxSection(fixed(5), 0.4, low=-0.5, high=1.0)),
    "BoxSection rows": (TENSORS, lambda: sets.BoxSection(2.0, 1.0, low=-0.2, high=0.7, dim=-1)),
    "CappedSimplex": (("A", "B", "a"), lambda: sets.CappedSimplex(1.0, 0.5, dim=-1, low=0.05)),
    "Correlation": (("S", "T"), lambda: sets.Correlation()),
    "DoublyStochastic": (("S", "A"), lambda: sets.DoublyStochastic(rows=1.0)),
    "GroupL1Ball": (TENSORS, lambda: sets.GroupL1Ball(1.5, group=-1)),
    "Halfspace": (TENSORS, lambda: sets.Halfspace(1.0, -0.5)),
    "Halfspace tensor": (("a", "b"), lambda: sets.Halfspace(fixed(5), -0.4)),
    "Hyperplane": (TENSORS, lambda: sets.Hyperplane(1.0, 0.7)),
    "Intersection": (("A", "B", "a"), lambda: sets.Intersection(sets.L1Ball(2.0), sets.L2Ball(0.8))),
    "L1Ball": (TENSORS, lambda: sets.L1Ball(1.2)),
    "L1Ball rows": (TENSORS, lambda: sets.L1Ball(0.7, dim=-1)),
    "L1InfBall": (TENSORS, lambda: sets.L1InfBall(1.0, group=-1)),
    "L2Ball": (TENSORS, lambda: sets.L2Ball(0.9)),
    "L2Ball centred rows": (("A", "B", "a"), lambda: sets.L2Ball(0.5, center=0.2, dim=-1)),
    "LInfBall": (TENSORS, lambda: sets.LInfBall(0.4)),
    "NonNegative": (TENSORS, lambda: sets.NonNegative()),
    "NuclearBall": (("A", "B"), lambda: sets.NuclearBall(1.5)),
    "Ordered": (TENSORS, lambda: sets.Ordered("increasing", low=-0.5, high=0.6, dim=-1)),
    "Polyhedron": (
        ("a", "b"),
        lambda: sets.Polyhedron(
            torch.cat([fixed(2, 5), -fixed(2, 5)]), torch.tensor([0.3, 0.5, 0.6, 0.2], dtype=torch.float64)
        ),
    ),
    "SecondOrderCone": (("A", "a", "c"), lambda: sets.SecondOrderCone(dim=-1)),
    "Simplex": (TENSORS, lambda: sets.Simplex(total=1.0, dim=-1)),
    "Simplex whole": (("A", "a", "K"), lambda: sets.Simplex(total=2.0, dim=None)),
    "Spectrahedron": (("S", "T"), lambda: sets.Spectrahedron(trace=1.0)),
    "SpectralBall": (("A", "B"), lambda: sets.SpectralBall(0.7)),
    "Sphere": (("A", "a"), lambda: sets.Sphere(r=1.0, dim=None)),
    "Sphere rows": (("A", "a"), lambda: sets.Sphere(r=0.7, dim=-1)),
}
PENALTIES: dict[str, tuple[tuple[str, ...], Callable[[], Any]]] = {
    "L1": (TENSORS, lambda: penalties.L1(0.2)),
    "L2": (TENSORS, lambda: penalties.L2(0.2)),
    "ElasticNet": (TENSORS, lambda: penalties.ElasticNet(0.2, 0.1)),
    "GroupLasso": (("A", "B", "a"), lambda: penalties.GroupLasso(0.3, dim=-1)),
    "Huber": (TENSORS, lambda: penalties.Huber(0.4, delta=0.5)),
    "Nuclear": (("A", "B"), lambda: penalties.Nuclear(0.3)),
    "OverlappingGroupLasso": (("a", "b"), lambda: penalties.OverlappingGroupLasso(0.3, ((0, 1, 2), (2, 3, 4), (4, 0)))),
    "TotalVariation": (TENSORS, lambda: penalties.TotalVariation(0.2, dim=-1)),
}
ZOO_LR = {"sgd": 0.1, "adagrad_norm": 1.0, "storm": 0.5, "adadelta": 1.0, "prodigy": 1.0, "dog": 1.0}
METRICS = (
    "SecondMoment", "Identity", "GradientNorm", "SOAP", "Shampoo", "KLShampoo", "PSGDKron", "Spectral exact",
    "AdamMini", "DampedLBFGS", "Yogi", "Zero",
)  # fmt: skip
FEW = ("SecondMoment", "GradientNorm", "SOAP", "Yogi", "Spectral")


# ----------------------------------------------------------------------------------------------------- the problem

SHAPES = {"A": (6, 5), "B": (5, 4), "a": (5,), "b": (5,), "c": (3,), "K": (4, 3, 2, 2), "S": (4, 4), "T": (4, 4)}
USUAL = ("A", "B", "a", "b", "c", "K")
BATCHES = 2 * STEPS
Params = dict[str, Tensor]
Points = list[list[Tensor]]


class RefusedError(Exception):
    """The options were refused at construction."""


def _tables() -> tuple[dict[str, dict[str, Tensor]], list[dict[str, Tensor]]]:
    """x_1, c, D and w of each tensor, and the noise of each batch."""
    draw = random.Random(34)

    def numbers(shape: tuple[int, ...], of: Callable[[], float]) -> Tensor:
        return torch.tensor([of() for _ in range(math.prod(shape))], dtype=torch.float64).reshape(shape)

    of: dict[str, dict[str, Tensor]] = {"x": {}, "c": {}, "D": {}, "w": {}}
    for name, shape in SHAPES.items():
        of["x"][name] = numbers(shape, lambda: draw.gauss(0, 1))
        of["c"][name] = numbers(shape, lambda: draw.gauss(0, 0.7))
        of["D"][name] = numbers(shape, lambda: draw.uniform(0.5, 2.0))
        of["w"][name] = numbers(shape, lambda: draw.choice((-1, 1)) * draw.uniform(0.5, 1.5))
        if name in "ST":
            of["x"][name] = (of["x"][name] + of["x"][name].mT) / 2
    noise = [{n: numbers(s, lambda: draw.gauss(0, 0.3)) for n, s in SHAPES.items()} for _ in range(BATCHES)]
    return of, noise


OF, NOISE = _tables()


def given(name: str, dtype: torch.dtype, of: Tensor) -> Tensor:
    """Return numbers of the problem in a parameter's dtype; complex ones with an imaginary part of their own."""
    return torch.complex(of, of.flip(-1) * 0.7).to(dtype) if dtype.is_complex else of.to(dtype)


class Run:
    """An optimizer on the problem, and the points that it visits."""

    def __init__(
        self,
        options: Callable[[], dict[str, Any]],
        *,
        dtype: torch.dtype = torch.float64,
        tensors: tuple[str, ...] = USUAL,
        groups: Callable[[Params], Any] | None = None,
        make: Callable[..., Any] = SuperAdam,
        channels_last: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.dtype, self.options, self.groups, self.make = dtype, options, groups, make
        self.params: Params = {}
        for name in tensors:
            x = given(name, dtype, OF["x"][name]).clone()
            if channels_last and x.dim() == 4:
                x = x.to(memory_format=torch.channels_last)
            self.params[name] = x.requires_grad_()
        self.opt = self.optimizer(self.params)
        self.points: Points = []

    def optimizer(self, params: Params) -> Any:
        made = self.options()  # a part that does not exist is an error, a composition that is refused is none
        try:
            return self.make(list(params.values()) if self.groups is None else self.groups(params), **made)
        except (ValueError, TypeError, NotImplementedError) as error:
            raise RefusedError(str(error)) from error

    def loss(self, i: int, without: tuple[str, ...] = ()) -> Tensor:
        terms = []
        for name, x in self.params.items():
            if name not in without:
                c, D, n = (given(name, self.dtype, t) for t in (OF["c"][name], OF["D"][name], NOISE[i][name]))
                if self.dtype.is_complex:
                    d, (y, e) = torch.view_as_real(x - c), (torch.view_as_real(t) for t in (x, n))
                    terms.append((OF["D"][name].unsqueeze(-1) * d * d).sum() / 2 + (e * y).sum())
                else:
                    terms.append((D * (x - c).square()).sum() / 2 + (n * x).sum())
        return torch.stack(terms).sum()

    def closure(self, i: int, without: tuple[str, ...] = ()) -> Callable[[], Tensor]:
        def closure() -> Tensor:
            self.opt.zero_grad()
            loss = self.loss(i, without)
            loss.backward()
            return loss

        return closure

    def seen(self) -> None:
        self.points.append([p.detach().clone() for p in self.params.values()])

    def steps(self, first: int = 0, last: int = STEPS, **how: Any) -> Run:
        for i in range(first, last):
            self.opt.step(self.closure(i, **how))
            self.seen()
        return self

    def turns(self) -> Run:
        """Take half-steps without a closure."""
        for n, i in enumerate(twice(list(range(STEPS)))):
            self.closure(i)()
            self.opt.step()
            if n % 2:
                self.seen()
        return self

    def plain(self) -> Run:
        """Call `step()` after `backward()`, as with any optimizer."""
        for i in range(STEPS):
            self.closure(i)()
            self.opt.step()
            self.seen()
        return self

    def end(self) -> Points:
        self.opt.flush()
        self.seen()
        return self.points


@dataclass(frozen=True)
class Entry:
    """A composition by its name, `family/…`."""

    name: str
    run: Callable[[], Points]
    dtype: str = "float64"

    @property
    def family(self) -> str:
        return self.name.split("/")[0]


# ------------------------------------------------------------------------------------------------------ the entries


def choose(
    matrix: str = "SecondMoment",
    tau: float | None = None,
    schedule: str | None = None,
    estimator: str | None = None,
    iterate: str | None = None,
    stepsize: str | None = None,
    **more: Any,
) -> Callable[[], dict[str, Any]]:
    """Options of `SuperAdam` from labels. An estimator's schedule goes before an iterate's, and that before Adam's."""
    if schedule is None:
        if estimator is not None:
            schedule = ESTIMATORS[estimator][0]
        elif iterate is not None and iterate != "Plain":
            schedule = ITERATES[iterate][0]
        else:
            schedule = "Adam" if not tau else "Adam 0.5"

    def options() -> dict[str, Any]:
        made: dict[str, Any] = {"lr": EVERY[matrix][0], "matrix": EVERY[matrix][1](), "schedule": SCHEDULES[schedule]()}
        if tau is not None:
            made["tau"] = tau
        if estimator is not None:
            made["estimator"] = ESTIMATORS[estimator][1]()
        if iterate is not None:
            made["iterate"] = ITERATES[iterate][1]()
        if stepsize is not None:
            made |= {"lr": STEPSIZES[stepsize][0], "stepsize": STEPSIZES[stepsize][1]()}
        return made | {name: value() if callable(value) else value for name, value in more.items()}

    return options


def usual(name: str, options: Callable[[], dict[str, Any]], way: str = "steps", **how: Any) -> Entry:
    """Make an entry of 7 steps."""
    dtype = how.get("dtype", torch.float64)
    return Entry(name, lambda: getattr(Run(options, **how), way)().end(), str(dtype).removeprefix("torch."))


F32: dict[str, Any] = {"dtype": torch.float32}


def of_matrices() -> Iterator[Entry]:
    for matrix, tau, schedule in itertools.product(EVERY, (0.0, 0.3, 1.0), ("Adam", "Paper")):
        yield usual(f"matrix/{matrix}/tau={tau}/{schedule}", choose(matrix, tau, schedule))
    for matrix, tau in itertools.product(EVERY, (0.0, 1.0)):
        yield usual(f"matrix/{matrix}/tau={tau}/float32", choose(matrix, tau), **F32)
    for matrix, tau, options in itertools.product(
        EVERY, (0.0, 1.0), ({"foreach": True}, {"foreach": False}, {"fused": False})
    ):
        ((option, value),) = options.items()
        yield usual(f"ways/{matrix}/tau={tau}/{option}={value}", choose(matrix, tau, **options))
    for matrix in EVERY:
        yield usual(f"ways/{matrix}/step", choose(matrix, 0.0), "plain")
        yield usual(f"ways/{matrix}/twice", choose(matrix, 1.0, "Paper"), "turns")


def of_schedules() -> Iterator[Entry]:
    for schedule, matrix, tau in itertools.product(SCHEDULES, (*FEW, "AccumulatedNorm", "Identity"), (0.0, 0.3, 1.0)):
        yield usual(f"schedule/{schedule}/{matrix}/tau={tau}", choose(matrix, tau, schedule))
    for schedule in SCHEDULES:
        yield usual(f"schedule/{schedule}/float32", choose("AccumulatedNorm", 1.0, schedule), **F32)


def of_pairs() -> Iterator[Entry]:
    """Pairs of choices of lines, and some of all combinations."""
    for estimator, matrix in itertools.product(ESTIMATORS, MATRICES):
        yield usual(f"estimator/{estimator}/{matrix}", choose(matrix, estimator=estimator))
    for iterate, matrix, tau in itertools.product(ITERATES, MATRICES, (0.0, 1.0)):
        if iterate != "Plain":
            yield usual(f"iterate/{iterate}/{matrix}/tau={tau}", choose(matrix, tau, iterate=iterate))
    for stepsize, matrix, tau in itertools.product(STEPSIZES, MATRICES, (0.0, 1.0)):
        yield usual(f"stepsize/{stepsize}/{matrix}/tau={tau}", choose(matrix, tau, stepsize=stepsize))
    for estimator in ESTIMATORS:
        yield usual(f"estimator/{estimator}/float32", choose(estimator=estimator), **F32)
        yield usual(f"estimator/{estimator}/decay", choose(estimator=estimator, weight_decay=0.1))
        coupled = {"weight_decay": 0.1, "decoupled_weight_decay": False}
        yield usual(f"estimator/{estimator}/coupled decay", choose(estimator=estimator, **coupled))
        yield usual(f"estimator/{estimator}/foreach", choose(estimator=estimator, foreach=True))
        yield usual(f"estimator/{estimator}/twice", choose(estimator=estimator), "turns")
    for name, table in (("iterate", ITERATES), ("stepsize", STEPSIZES)):
        for part, tau in itertools.product(table, (0.0, 1.0)):
            for end, more, how in (
                ("float32", {}, F32),
                ("decay", {"weight_decay": 0.1}, {}),
                ("coupled decay", {"weight_decay": 0.1, "decoupled_weight_decay": False}, {}),
                ("foreach", {"foreach": True}, {}),
            ):
                yield usual(f"{name}/{part}/tau={tau}/{end}", choose(tau=tau, **{name: part}, **more), **how)
    for place, (iterate, estimator, stepsize) in enumerate(
        itertools.product(ITERATES, [None, *ESTIMATORS], [None, *STEPSIZES])
    ):
        chosen = {"iterate": iterate, "estimator": estimator, "stepsize": stepsize}
        label = "/".join(str(part) for part in chosen.values())
        for offset, matrix in enumerate(MATRICES):
            if (place + 5 * offset) % 29 == 0 and (iterate, estimator, stepsize) != ("Plain", None, None):
                yield usual(f"all/{matrix}/{label}", choose(matrix, **chosen))


def in_groups(named: tuple[str, ...], **of_others: Any) -> Callable[[Params], Any]:
    """Put tensors that have a set or a penalty into a group of their own."""

    def groups(params: Params) -> Any:
        others = [p for name, p in params.items() if name not in named]
        with_part = {"params": [p for name, p in params.items() if name in named]}
        return [with_part, {"params": others, **of_others}] if others else [with_part]

    return groups


def of_sets() -> Iterator[Entry]:
    free = {"constraint": None, "penalty": None}

    def entry(name: str, options: Any, named: tuple[str, ...], **how: Any) -> Entry:
        # vectors apart from matrices: with H of tensors, "otherwise" has its own demands on a set
        return usual(name, options, tensors=(*named, "c"), groups=in_groups(named, **free), **how)

    for label, matrix, tau in itertools.product(SETS, METRICS, (0.0, 1.0)):
        if matrix == "Zero":  # every tensor needs a set then
            options, named = choose("Zero", tau, constraint=SETS[label][1]), SETS[label][0]
            yield usual(f"set/{label}/Zero/tau={tau}", options, tensors=named)
            continue
        options = choose(matrix, tau, constraint=SETS[label][1])
        yield entry(f"set/{label}/{matrix}/tau={tau}", options, SETS[label][0])
    for label, (named, make) in SETS.items():
        matrices_of = tuple(name for name in named if len(SHAPES[name]) > 1)
        for metric in ("SOAP", "Shampoo", "Spectral exact"):
            if matrices_of != named and matrices_of:
                yield entry(f"set/{label}/{metric}/matrices", choose(metric, constraint=make), matrices_of)
        yield entry(f"set/{label}/float32", choose("Identity", 1.0, constraint=make), named, **F32)
        yield entry(f"set/{label}/foreach", choose("Identity", foreach=True, constraint=make), named)
        yield entry(f"set/{label}/decay", choose("Identity", weight_decay=0.1, clip=0.5, constraint=make), named)
        for iterate in ("Averaged", "Lookahead", "ScheduleFree"):
            yield entry(f"set/{label}/{iterate}", choose("Identity", 0.0, iterate=iterate, constraint=make), named)
    for label, matrix, tau in itertools.product(PENALTIES, METRICS, (0.0, 1.0)):
        options = choose(matrix, tau, penalty=PENALTIES[label][1])
        yield entry(f"penalty/{label}/{matrix}/tau={tau}", options, PENALTIES[label][0])
    for label, (named, make) in PENALTIES.items():
        yield entry(f"penalty/{label}/float32", choose("SecondMoment", 1.0, penalty=make), named, **F32)
        yield entry(f"penalty/{label}/foreach", choose("SecondMoment", foreach=True, penalty=make), named)
        for iterate in ("Ahead", "Averaged", "Lookahead", "ScheduleFree"):
            yield entry(f"penalty/{label}/{iterate}", choose("SecondMoment", iterate=iterate, penalty=make), named)
    for (one, (named, make)), (other, (also, h)) in itertools.product(SETS.items(), PENALTIES.items()):
        both = tuple(name for name in named if name in also)
        if both:
            for metric in ("SecondMoment", "Identity"):
                yield entry(
                    f"set+penalty/{one}/{other}/{metric}", choose(metric, 0.3, constraint=make, penalty=h), both
                )


def of_options() -> Iterator[Entry]:
    """Weight decay, clipping, maximising, in all combinations."""
    names = ("SecondMoment", "GradientNorm", "SOAP", "Yogi", "BarzilaiBorwein", "DampedLBFGS", "Spectral", "Zero")
    for matrix, tau, decay, clip, up in itertools.product(
        names, (0.0, 1.0), (None, "", "coupled "), (None, 0.7), (0, 1)
    ):
        more: dict[str, Any] = {"weight_decay": 0.1, "decoupled_weight_decay": not decay} if decay is not None else {}
        more |= ({"clip": clip} if clip else {}) | ({"maximize": True} if up else {})
        if more:
            said = [f"{decay}decay" if decay is not None else "", "clip" if clip else "", "maximize" if up else ""]
            yield usual(f"option/{matrix}/tau={tau}/{', '.join(filter(None, said))}", choose(matrix, tau, **more))
    yield usual("option/float32", choose(tau=1.0, weight_decay=0.1, clip=0.7), **F32)
    for matrix, tau in itertools.product(("SecondMoment", "GradientNorm", "SOAP"), (0.0, 1.0)):
        more = {"lr": lambda: torch.tensor(0.05)}
        yield usual(f"option/{matrix}/tau={tau}/lr is a tensor", choose(matrix, tau, **more))


# ------------------------------------------------------------------------------------------- what happens in a run

Event = Callable[[Run], Points]


def restarted(run: Run) -> Points:
    run.steps(0, 4).opt.restart()
    return run.steps(4).end()


def flushed(run: Run) -> Points:
    run.steps(0, 4).opt.flush()
    return run.steps(4).end()


def some_missing(run: Run) -> Points:
    """Tensors without a gradient in some batches, one of them in the first two."""
    for i in range(STEPS):
        run.steps(i, i + 1, without=(*(("A", "c") if i < 2 else ()), *(("b",) if i % 2 else ()), *(("K",) * (i == 4))))
    return run.end()


def unfrozen(run: Run) -> Points:
    run.params["B"].requires_grad_(False)
    run.params["a"].requires_grad_(False)
    run.steps(0, 3, without=("B", "a"))
    run.params["B"].requires_grad_(True)
    run.params["a"].requires_grad_(True)
    return run.steps(3).end()


def frozen(run: Run) -> Points:
    run.steps(0, 3)
    run.params["B"].requires_grad_(False)
    run.params["a"].requires_grad_(False)
    return run.steps(3, without=("B", "a")).end()


def accumulated(run: Run) -> Points:
    for k in range(STEPS):

        def closure(k: int = k) -> None:
            run.opt.zero_grad()
            for i in (k, k + STEPS):
                (run.loss(i) / 2).backward()

        run.opt.step(closure)
        run.seen()
    return run.end()


def accumulated_turns(run: Run) -> Points:
    half = 0
    turns = twice([i for k in range(STEPS) for i in (k, k + STEPS)], accumulate=2)
    for i in turns:
        (run.loss(i) / 2).backward()
        if turns.complete:
            run.opt.step()
            run.opt.zero_grad()
            half += 1
            if half % 2 == 0:
                run.seen()
    return run.end()


def scaled(run: Run, overflow: int, tau: float) -> Points:
    """A gradient scaler, and an overflow in one turn."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
    for n, i in enumerate(twice(list(range(STEPS))) if tau > 0 else range(STEPS)):
        run.opt.zero_grad()
        scaler.scale(run.loss(i)).backward()
        if n == overflow:
            run.params["A"].grad[0, 0] = torch.inf
        scaler.step(run.opt)
        scaler.update()
        if tau == 0 or n % 2:
            run.seen()
    return run.end()


def resumed(run: Run) -> Points:
    """Load the state into a new optimizer with copies of the parameters."""
    run.steps(0, 3)
    saved = copy.deepcopy(run.opt.state_dict())
    points, run.params = run.points, {name: p.detach().clone().requires_grad_() for name, p in run.params.items()}
    run.opt = run.optimizer(run.params)
    run.opt.load_state_dict(saved)
    run.points = points
    return run.steps(3).end()


def scheduled(run: Run) -> Points:
    scheduler = torch.optim.lr_scheduler.StepLR(run.opt, 2, 0.5)
    for i in range(STEPS):
        run.steps(i, i + 1)
        scheduler.step()
    return run.end()


def decay_changed(run: Run) -> Points:
    """Options of the groups, changed between steps."""
    run.steps(0, 3)
    for group in run.opt.param_groups:
        group["weight_decay"] = 0.2
        group["lr"] *= 0.5
    return run.steps(3).end()


def grown(run: Run) -> Points:
    """A group added later."""
    late = run.params.pop("late")
    run.steps(0, 3)
    run.opt.add_param_group({"params": [late], "lr": 0.02, "weight_decay": 0.1})
    run.params["A"] = late
    return run.steps(3).end()


def evaluated(run: Run) -> Points:
    """The result looked at in the middle of training."""
    run.steps(0, 3)
    with run.opt.at_x():
        run.seen()
    return run.steps(3).end()


EVENTS: dict[str, Event] = {
    "restart": restarted,
    "flush": flushed,
    "missing gradients": some_missing,
    "unfrozen later": unfrozen,
    "frozen later": frozen,
    "accumulation": accumulated,
    "accumulation by turns": accumulated_turns,
    "resumed": resumed,
    "lr scheduler": scheduled,
    "options changed": decay_changed,
    "at_x": evaluated,
}


def event(name: str, options: Any, happens: Event, **how: Any) -> Entry:
    dtype = how.get("dtype", torch.float64)
    return Entry(name, lambda: happens(Run(options, **how)), str(dtype).removeprefix("torch."))


def different_groups(params: Params) -> list[dict[str, Any]]:
    p = params
    return [
        {"params": [p["A"], p["c"]], "lr": 0.03, "weight_decay": 0.1},
        {"params": [p["a"]], "matrix": MATRICES["Yogi"][1](), "schedule": SCHEDULES["Paper"](), "maximize": True},
        {"params": [p["B"], p["K"]], "matrix": MATRICES["SOAP"][1](), "clip": 0.5},
        {"params": [p["b"]], "constraint": sets.Box(-2.0, 0.4)},
    ]


def split_groups(params: Params) -> list[dict[str, Any]]:
    """The same options, but three groups in another order."""
    p = params
    return [{"params": [p["K"], p["a"]]}, {"params": [p["c"]]}, {"params": [p["b"], p["B"], p["A"]]}]


def of_runs() -> Iterator[Entry]:
    names = ("SecondMoment", "GradientNorm", "BarzilaiBorwein", "Yogi", "SOAP", "Spectral", "DampedLBFGS", "AdaDelta")
    for (what, happens), matrix, tau in itertools.product(EVENTS.items(), names, (0.0, 1.0)):
        if what != "accumulation by turns" or tau > 0:
            yield event(f"run/{what}/{matrix}/tau={tau}", choose(matrix, tau), happens)
    for what, happens in EVENTS.items():
        yield event(f"run/{what}/float32", choose("SecondMoment", 1.0, "Paper"), happens, **F32)
        for iterate in ("Averaged", "Lookahead", "ScheduleFree", "Ahead", "Staged"):
            if what != "accumulation by turns":
                yield event(f"run/{what}/{iterate}", choose(iterate=iterate), happens)
        for estimator in ("Averaged guard", "Corrected", "Corrected previous", "HeavyBall", "TwoAverages warm"):
            if what != "accumulation by turns":
                yield event(f"run/{what}/estimator {estimator}", choose(estimator=estimator), happens)
        for stepsize in STEPSIZES:
            if what in ("restart", "missing gradients", "unfrozen later", "resumed"):
                yield event(f"run/{what}/{stepsize}", choose(stepsize=stepsize), happens)
    for matrix, tau in itertools.product(EVERY, (0.0, 1.0)):
        if matrix not in names:
            yield event(f"run/resumed/{matrix}/tau={tau}", choose(matrix, tau), resumed)
            yield event(f"run/missing gradients/{matrix}/tau={tau}", choose(matrix, tau), some_missing)
    for label in ("Box", "Simplex", "L2Ball", "Intersection", "PSD", "SpectralBall", "Polyhedron"):
        named, make = SETS[label]
        how: dict[str, Any] = {"tensors": named}
        yield event(f"run/resumed/set {label}", choose("Identity", 1.0, constraint=make), resumed, **how)
    for matrix in ("SecondMoment", "GradientNorm", "SOAP"):
        for tau, overflow in ((0.0, 2), (0.0, 0), (1.0, 0), (1.0, 1), (1.0, 4), (1.0, 5)):
            yield event(
                f"run/scaler, overflow in turn {overflow}/{matrix}/tau={tau}",
                choose(matrix, tau),
                lambda run, overflow=overflow, tau=tau: scaled(run, overflow, tau),
                **F32,
            )
    for tau in (0.0, 0.3, 1.0):
        for matrix in (*names, "Spectral exact", "BeliefNorm", "AccumulatedNorm"):
            yield usual(f"groups/split/{matrix}/tau={tau}", choose(matrix, tau), groups=split_groups)
        yield usual(f"groups/different/tau={tau}", choose(tau=tau), groups=different_groups)
        yield event(f"groups/different/resumed/tau={tau}", choose(tau=tau), resumed, groups=different_groups)
        yield event(f"groups/different/missing/tau={tau}", choose(tau=tau), some_missing, groups=different_groups)
        yield usual(f"groups/different/clip/tau={tau}", choose(tau=tau, clip=0.4), groups=different_groups)
    yield usual("groups/different/float32", choose(tau=1.0), groups=different_groups, **F32)
    for matrix, tau in itertools.product(("SecondMoment", "GradientNorm", "SOAP"), (0.0, 1.0)):

        def late(matrix: str = matrix, tau: float = tau) -> Points:
            run = Run(choose(matrix, tau), tensors=("B", "a"))
            run.params["late"] = OF["x"]["A"].clone().requires_grad_()
            points = grown(run)
            return [row if len(row) == 3 else [*row, OF["x"]["A"]] for row in points]

        yield Entry(f"groups/add_param_group/{matrix}/tau={tau}", late)


def of_dtypes() -> Iterator[Entry]:
    for matrix, tau in itertools.product((*FEW, "AMSGrad", "Identity"), (0.0, 1.0)):
        for rounding in ("nearest", "stochastic"):
            options = choose(matrix, tau, rounding=rounding)
            yield usual(f"dtype/bfloat16 {rounding}/{matrix}/tau={tau}", options, dtype=torch.bfloat16)
        yield usual(f"dtype/channels last/{matrix}/tau={tau}", choose(matrix, tau), channels_last=True)
    for tau, rounding in itertools.product((0.0, 1.0), ("nearest", "stochastic")):
        options = choose(tau=tau, rounding=rounding)
        yield event(f"dtype/bfloat16 {rounding}/resumed/tau={tau}", options, resumed, dtype=torch.bfloat16)
        options = choose("Identity", tau, rounding=rounding, constraint=SETS["L2Ball"][1])
        yield usual(f"dtype/bfloat16 {rounding}/L2Ball/tau={tau}", options, dtype=torch.bfloat16)
    for matrix, tau in itertools.product(MATRICES, (0.0, 1.0)):
        yield usual(f"dtype/complex/{matrix}/tau={tau}", choose(matrix, tau), dtype=torch.complex128)
    for iterate in ("Averaged", "Lookahead", "ScheduleFree", "Ahead"):
        yield usual(f"dtype/complex/{iterate}", choose(iterate=iterate), dtype=torch.complex128)
    yield usual("dtype/complex/decay, clip", choose(tau=1.0, weight_decay=0.1, clip=0.5), dtype=torch.complex128)


def of_zoo() -> Iterator[Entry]:
    for method in sorted(superadam.list_methods()):

        def make(params: Any, method: str = method, **options: Any) -> Any:
            return create(method, params, **options)

        def options(method: str = method, **more: Any) -> dict[str, Any]:
            return {"lr": ZOO_LR.get(method, 0.05), **more}

        yield usual(f"zoo/{method}", options, make=make)
        yield usual(f"zoo/{method}/float32", options, make=make, **F32)
        yield usual(f"zoo/{method}/decay", lambda m=method: options(m, weight_decay=0.1), make=make)
        yield usual(f"zoo/{method}/foreach", lambda m=method: options(m, foreach=True), make=make)
        yield event(f"zoo/{method}/resumed", options, resumed, make=make)
        yield event(f"zoo/{method}/missing gradients", options, some_missing, make=make)
    for name, method, more in (
        ("sgd momentum", "sgd", {"momentum": 0.9, "dampening": 0.1}),
        ("sgd nesterov", "sgd", {"momentum": 0.9, "nesterov": True}),
        ("rmsprop centered", "rmsprop", {"centered": True, "momentum": 0.5}),
        ("muon without nesterov", "muon", {"nesterov": False}),
        ("mars_m exact", "mars_m", {"exact": True}),
        ("asgd late", "asgd", {"t0": 3.0}),
        ("adamw betas", "adamw", {"betas": (0.5, 0.7), "eps": 1e-3}),
        ("super_adam tau", "super_adam", {"tau": 1.0}),
    ):

        def make(params: Any, method: str = method, **options: Any) -> Any:
            return create(method, params, **options)

        yield usual(f"zoo/{name}", lambda more=more: {"lr": 0.05, **more}, make=make)

    def one_cycle() -> Points:
        """A scheduler that changes betas."""
        run = Run(lambda: {"lr": 0.05}, make=lambda params, **options: create("adamw", params, **options))
        scheduler = torch.optim.lr_scheduler.OneCycleLR(run.opt, 0.1, total_steps=STEPS + 1)
        for i in range(STEPS):
            run.steps(i, i + 1)
            scheduler.step()
        return run.end()

    yield Entry("zoo/adamw/OneCycleLR", one_cycle)

    def observed() -> Points:
        """Sophia, with gradients for H_t in every second step."""
        how = {"lr": 0.05, "rho": 10.0, "batch": 8}
        run = Run(lambda: how, make=lambda params, **options: create("sophia_g", params, **options))
        for i in range(STEPS):
            if i % 2 == 0:
                run.closure(i + STEPS)()
                run.opt.observe()
            run.steps(i, i + 1)
        return run.end()

    yield Entry("zoo/sophia_g/observe", observed)


# --------------------------------------------------------------------------------------------------- two processes

DISTRIBUTED: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    **{
        f"{kind}/{matrix}/tau={tau}": (kind, choose(matrix, tau))
        for kind in ("ddp", "fsdp")
        for matrix in ("SecondMoment", "GradientNorm", "BarzilaiBorwein", "BeliefNorm", "SOAP", "Spectral", "Shampoo")
        for tau in (0.0, 1.0)
    },
    **{
        f"{kind}/{name}": (kind, options)
        for kind in ("ddp", "fsdp")
        for name, options in {
            "clip, decay": choose(tau=1.0, clip=0.05, weight_decay=0.1),
            "rows": choose(constraint=lambda: sets.L2Ball(0.5, dim=-1)),
            "box and L1": choose(constraint=SETS["Box"][1], penalty=lambda: penalties.L1(1e-3)),
            "ScheduleFree": choose(iterate="ScheduleFree"),
            "DoG": choose(stepsize="DoG"),
            "Prodigy": choose(stepsize="Prodigy"),
            "TrustRatio": choose(stepsize="TrustRatio"),
            "Corrected": choose(estimator="Corrected"),
        }.items()
    },
    "ddp/divided SOAP": ("divided", choose("SOAP")),
    "ddp/divided Spectral tau=1": ("divided", choose("Spectral", 1.0)),
}


def _network() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    for n, p in enumerate(model.parameters()):
        p.data = 0.5 * fixed(*p.shape, seed=n)
    return model


def _by_one_of_two(name: str, rank: int) -> Points:
    """What a process does: the gradients are means over both halves of a batch."""
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    kind, options = DISTRIBUTED[name]
    model = _network()
    on_vectors = {"constraint": None, "penalty": None}
    if kind == "fsdp":
        fully_shard(model[0])
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    params = list(model.parameters())
    groups = [{"params": params[::2]}, {"params": params[1::2], **on_vectors}]
    opt: Any = SuperAdam(groups, **options())
    if kind == "divided":
        opt.divide_matrices()
    points: Points = []

    def seen() -> None:
        whole = (p.full_tensor() if hasattr(p, "full_tensor") else p for p in params)
        points.append([p.detach().clone() for p in whole])

    for i in range(STEPS):
        inputs, targets = (fixed(8, k, seed=100 * i + k).chunk(2)[rank] for k in (5, 3))

        def closure(inputs: Tensor = inputs, targets: Tensor = targets) -> Tensor:
            opt.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            return loss

        opt.step(closure)
        seen()
    opt.flush()
    seen()
    return points


def _work(rank: int, folder: str, names: list[str]) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    results: dict[str, Any] = {}
    for name in names:
        try:
            results[name] = _by_one_of_two(name, rank)
        except Exception as error:  # both processes meet the same
            results[name] = f"{type(error).__name__}: {error}"
    if rank == 0:
        torch.save(results, f"{folder}/results.pt")
    dist.barrier()
    dist.destroy_process_group()


_BY_TWO: dict[str, Any] = {}


def run_by_two(names: list[str]) -> None:
    """Run entries of two processes in one start."""
    with tempfile.TemporaryDirectory() as folder:
        code = "import sys; sys.path.insert(0, {!r}); import net; net.quiet(); net._work({}, {!r}, {!r})"
        here = str(Path(__file__).parent)
        started = [
            subprocess.Popen([sys.executable, "-c", code.format(here, rank, folder, names)], stderr=subprocess.PIPE)
            for rank in range(2)
        ]
        said = [process.communicate(timeout=600)[1].decode() for process in started]
        found = Path(folder, "results.pt")
        failed = f"the processes failed: {said[0][-300:]} {said[1][-300:]}"
        _BY_TWO.update(torch.load(found) if found.exists() else dict.fromkeys(names, failed))


def of_processes() -> Iterator[Entry]:
    def run(name: str) -> Points:
        if name not in _BY_TWO:
            run_by_two([name])
        result = _BY_TWO[name]
        if isinstance(result, str):
            raise RuntimeError(result)
        return result

    for name in DISTRIBUTED:
        yield Entry(f"distributed/{name}", lambda name=name: run(name))


FAMILIES = (of_matrices, of_schedules, of_pairs, of_sets, of_options, of_runs, of_dtypes, of_zoo, of_processes)


def entries(only: str = "*") -> list[Entry]:
    """Return the entries whose names match a pattern, or contain it."""
    found = [entry for family in FAMILIES for entry in family()]
    twins = [name for name, n in Counter(entry.name for entry in found).items() if n > 1]
    assert not twins, f"two entries of one name: {twins}"
    return [e for e in found if fnmatch.fnmatchcase(e.name, only) or only in e.name]


# ---------------------------------------------------------------------------------------------- what is kept of them


@dataclass(frozen=True)
class Kept:
    """An entry's hashes after each step, its numbers after step 2 and at the end, and their sizes."""

    hashes: list[str]
    numbers: list[list[float]]
    sizes: list[list[float]]

    def plain(self, dtype: str) -> list[Any]:
        flat = [number for row in self.numbers for number in row]
        packed = bytes.fromhex("".join(self.hashes)) + struct.pack(f"<{len(flat)}d", *flat)
        return [dtype, len(self.hashes), base64.b64encode(packed).decode()]


def _weights(n: int, place: int) -> list[float]:
    draw = random.Random(1000 * place + n)
    return [draw.choice((-1, 1)) * draw.uniform(0.5, 1.5) for _ in range(n)]


def _flat(x: Tensor) -> Tensor:
    return (torch.view_as_real(x) if x.is_complex() else x).double().flatten()


def keep(points: Points) -> Kept:
    hashes = []
    for row in points:
        # + 0.0: the two zeros are one number
        digest = hashlib.sha256(b"".join((_flat(x) + 0.0).numpy().tobytes() for x in row))
        hashes.append(digest.hexdigest()[:8])
    numbers, sizes = [], []
    for row in (points[1], points[-1]):
        flat = [_flat(x).tolist() for x in row]
        weighted = [[w * v for w, v in zip(_weights(len(x), n), x, strict=True)] for n, x in enumerate(flat)]
        numbers.append([math.fsum(x) if all(map(math.isfinite, x)) else math.nan for x in weighted])
        sizes.append([max(map(abs, x), default=0.0) for x in flat])
    return Kept(hashes, numbers, sizes)


def unpack(stored: list[Any]) -> tuple[str, list[str], list[list[float]]]:
    dtype, n, text = stored
    packed = base64.b64decode(text)
    hashes = [packed[4 * i : 4 * i + 4].hex() for i in range(n)]
    numbers = struct.unpack(f"<{(len(packed) - 4 * n) // 8}d", packed[4 * n :])
    half = len(numbers) // 2
    return dtype, hashes, [list(numbers[:half]), list(numbers[half:])]


def quiet() -> None:
    """One thread, and no warnings: the same numbers on a busy machine, and a table that can be read."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def outcome(entry: Entry) -> Points | str:
    """The points, or why there are none."""
    try:
        return entry.run()
    except RefusedError as error:
        return f"refused: {error}"
    except Exception as error:
        return f"failed: {type(error).__name__}: {error}"


def start_processes(chosen: list[Entry]) -> None:
    by_two = [entry.name.removeprefix("distributed/") for entry in chosen if entry.family == "distributed"]
    if by_two:
        run_by_two(by_two)


def record(only: str, out: Path, full: bool) -> int:
    chosen = entries(only)
    start_processes(chosen)
    made: dict[str, Any] = {}
    refused, failed, still, tally = [], {}, [], Counter[str]()
    for entry in chosen:
        points = outcome(entry)
        if isinstance(points, str):
            if points.startswith("refused"):
                refused.append(entry.name)
            else:
                failed[entry.name] = points
            continue
        if not all(bool(torch.isfinite(torch.view_as_real(x) if x.is_complex() else x).all()) for x in points[-1]):
            failed[entry.name] = "not finite"
            continue
        if any(torch.equal(x, y) for x, y in zip(points[0], points[-1], strict=True)):
            still.append(entry.name)
        tally[entry.family] += 1
        made[entry.name] = [_flat_row(row) for row in points] if full else keep(points).plain(entry.dtype)
    header = {"torch": torch.__version__, "superadam": superadam.__version__, "steps": STEPS}
    if full:
        torch.save({"header": header, "full": made}, out)
    else:
        if only != "*" and out.exists():  # the others stay as they are
            before, asked = load(out), {entry.name for entry in chosen}
            made = {name: x for name, x in before["entries"].items() if name not in asked} | made
            refused = [name for name in before["refused"] if name not in asked] + refused
        text = json.dumps({**header, "refused": refused, "entries": made}, separators=(",", ":"))
        out.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(made)} entries, {len(refused)} refused, {len(failed)} failed: {out}, {out.stat().st_size:,} bytes")
    print(", ".join(f"{family} {n}" for family, n in tally.items()))
    for name, why in failed.items():
        print(f"  not recorded: {name}: {why[:160]}")
    if still:
        print(f"  a tensor did not move in {len(still)}: {', '.join(still[:12])} …")
    return 0


def _flat_row(row: list[Tensor]) -> list[Tensor]:
    return [x.detach().clone() for x in row]


def difference(old: list[list[float]], new: Kept) -> float:
    """The largest difference of a number, relative to the largest element of its tensor."""
    worst = 0.0
    for before, now, sizes in zip(old, new.numbers, new.sizes, strict=True):
        if len(before) != len(now):
            return math.inf
        for a, b, size in zip(before, now, sizes, strict=True):
            off = abs(a - b) / size if size > 0 else abs(a - b)
            worst = math.inf if math.isnan(off) else max(worst, off)
    return worst


def _compared_in_full(old: Points, new: Points) -> tuple[float, str]:
    """The largest relative difference, and where the first one is."""
    worst, where = 0.0, ""
    for n, (before, now) in enumerate(zip(old, new, strict=True)):
        for k, (a, b) in enumerate(zip(before, now, strict=True)):
            off, size = (_flat(a) - _flat(b)).abs(), _flat(a).abs().max().item() or 1.0
            most = off.max().item() / size if off.numel() else 0.0
            if most != 0 and not where:
                place = int(off.argmax())
                where = f"first after step {n + 1}, tensor {k}, element {place}: {_flat(a)[place]} {_flat(b)[place]}"
            worst = max(worst, math.inf if math.isnan(most) else most)
    return worst, where


@dataclass(frozen=True)
class Result:
    """How an entry compares with the stored one."""

    name: str
    dtype: str
    off: float
    """0.0 if equal bit for bit, infinity if it failed."""
    said: str

    @property
    def good(self) -> bool:
        return self.off <= TOLERANCE[self.dtype]


def compared(entry: Entry, stored: list[Any]) -> Result:
    """Run an entry and compare it with what is stored of it."""
    points = outcome(entry)
    if isinstance(points, str):
        return Result(entry.name, entry.dtype, math.inf, points[:300])
    dtype, hashes, numbers = unpack(stored)
    kept = keep(points)
    if kept.hashes == hashes:
        return Result(entry.name, dtype, 0.0, "equal bit for bit")
    off = difference(numbers, kept)
    if len(hashes) != len(kept.hashes):
        return Result(entry.name, dtype, math.inf, f"{len(kept.hashes)} points, {len(hashes)} stored")
    first = next(n for n, (a, b) in enumerate(zip(hashes, kept.hashes, strict=True), start=1) if a != b)
    when = "flush" if first == len(hashes) else f"step {first}"
    return Result(entry.name, dtype, max(off, 5e-324), f"max relative difference {off:.1e}, bits differ from {when} on")


def load(path: Path = STORED) -> dict[str, Any]:
    return json.loads(gzip.decompress(path.read_bytes()))


def compare(only: str, out: Path, verbose: bool) -> int:
    chosen = entries(only)
    if out.read_bytes()[:2] != b"\x1f\x8b":
        stored: dict[str, Any] = torch.load(out)
        full = True
        known, refused = stored["full"], set[str]()
    else:
        stored, full = load(out), False
        known, refused = stored["entries"], set(stored["refused"])
    start_processes([entry for entry in chosen if entry.name in known])
    results, accepted = [], []
    for entry in chosen:
        if entry.name in known:
            if full:
                points = outcome(entry)
                if isinstance(points, str):
                    result = Result(entry.name, entry.dtype, math.inf, points[:300])
                else:
                    off, where = _compared_in_full(known[entry.name], points)
                    result = Result(entry.name, entry.dtype, off, where or "equal bit for bit")
            else:
                result = compared(entry, known[entry.name])
            results.append(result)
            if verbose or not result.good:
                print(f"{'ok  ' if result.good else 'OFF '} {entry.name}: {result.said}", flush=True)
        elif entry.name in refused and not isinstance(outcome(entry), str):
            accepted.append(entry.name)
    gone = [name for name in known if fnmatch.fnmatchcase(name, only) or only in name]
    gone = sorted(set(gone) - {result.name for result in results})
    summarise(results)
    if accepted:
        print(f"{len(accepted)} compositions that were refused are accepted: {', '.join(accepted[:10])} …")
    if gone:
        print(f"{len(gone)} stored entries are not made any more: {', '.join(gone[:10])} …")
    bad = [result for result in results if not result.good]
    print(f"tolerances: {', '.join(f'{dtype} {tol:g}' for dtype, tol in TOLERANCE.items())}")
    print(f"{len(results) - len(bad)} of {len(results)} within them")
    return 1 if bad or gone else 0


def summarise(results: list[Result]) -> None:
    families: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        families[result.name.split("/")[0]].append(result)
    print(f"{'family':14} {'entries':>7} {'equal':>7} {'close':>7} {'off':>7} {'failed':>7}  largest difference")
    for family, of in families.items():
        equal = sum(result.off == 0 for result in of)
        good = sum(result.good for result in of)
        failed = sum(math.isinf(result.off) for result in of)
        largest = max((result.off for result in of if not math.isinf(result.off)), default=0.0)
        off = len(of) - good - failed
        print(f"{family:14} {len(of):7} {equal:7} {good - equal:7} {off:7} {failed:7}  {largest:.1e}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("record", "compare", "names"))
    parser.add_argument("--only", default="*", help="pattern of names, or a part of them")
    parser.add_argument("--out", type=Path, default=STORED, help="the file to write or to compare with")
    parser.add_argument("--full", action="store_true", help="record every x, for comparing coordinates")
    parser.add_argument("--verbose", action="store_true", help="also print entries within the tolerance")
    chosen = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    quiet()
    if chosen.what == "names":
        print(*(entry.name for entry in entries(chosen.only)), sep="\n")
        return 0
    if chosen.what == "record":
        return record(chosen.only, chosen.out, chosen.full)
    return compare(chosen.only, chosen.out, chosen.verbose)


if __name__ == "__main__":
    sys.exit(main())
