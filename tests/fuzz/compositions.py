"""Random compositions on random tensors. Hypothesis prints a failing one as `Case(…)`, which `Training` runs again."""

import io
import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

import superadam
from equality import net
from superadam import create, twice
from trust.compositions import REGIONS, Noisy, RefusedError, optimizer, tensors

FUZZ = settings(
    max_examples=max(5, settings().max_examples // 3),  # 8 in the quick suite, 666 in the slow one
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],  # some compositions are refused
)
STEPS = 5
SHAPES = [(5,), (4, 3), (), (1,), (0,), (6, 5), (3, 1), (2, 3, 4), (4, 3, 2, 2), (8, 8), (1, 7), (0, 3)]
LR = [None, 1e-3, 0.3, 3.0]


@dataclass(frozen=True)
class Case:
    """A composition by labels of `equality.net`, or a method of the zoo, and what it is tried on."""

    parts: dict[str, Any]
    """Labels of parts and τ; {"method": …} for a method of the zoo."""
    options: dict[str, Any] = field(default_factory=dict)
    region: str | None = None
    """A set or a penalty by its label."""
    shapes: tuple[tuple[int, ...], ...] = ((5,),)
    """There are two tensors of each shape."""
    dtype: torch.dtype = torch.float64
    missing: frozenset[tuple[int, int]] = frozenset()
    """Step and tensor without a gradient."""
    halves: bool = False
    """Whether the two gradients of a batch are taken in a loop over `twice`, not with a closure."""
    scale: float = 1.0

    def build(self, params, groups=None):
        """Return an optimizer, or refuse as it does."""
        if "method" in self.parts:
            return optimizer(groups or params, self.options, partial(create, self.parts["method"]))
        region = {} if self.region is None else REGIONS[self.region][1]
        return optimizer(groups or params, net.choose(**self.parts, **region)() | self.options)


def some(draw, labels):
    """Return one of the labels, or None, as often."""
    return draw(st.none() | st.sampled_from(sorted(labels)))


@st.composite
def cases(draw, regions=(None, *REGIONS), dtypes=(torch.float64, torch.float32), halves=True):
    """Draw a composition: a method of the zoo in one case of four."""
    region = draw(st.sampled_from(regions))
    if region is None and draw(st.integers(0, 3)) == 3:
        parts = {"method": draw(st.sampled_from(sorted(superadam.list_methods())))}
    else:
        parts = {"matrix": draw(st.sampled_from(metrics(region)))}
        parts |= {"estimator": some(draw, net.ESTIMATORS), "iterate": some(draw, net.ITERATES)}
        parts |= {"stepsize": some(draw, net.STEPSIZES)}
        if parts["estimator"] is None:
            parts |= {"tau": draw(st.sampled_from([0.0, 1.0, 0.3])), "schedule": some(draw, net.SCHEDULES)}
        parts = {name: label for name, label in parts.items() if label is not None}
    options = {
        "weight_decay": draw(st.sampled_from([0.0, 0.1])),
        "maximize": draw(st.booleans()) and region is None,
        "foreach": draw(st.sampled_from([None, True, False])),
    }
    if "method" not in parts:
        options |= {"clip": draw(st.sampled_from([None, 0.5])), "lr": draw(st.sampled_from(LR))}
        options |= {"decoupled_weight_decay": draw(st.booleans())}
    shapes = (
        tuple(draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3)))
        if region is None
        else tuple(net.SHAPES[name] for name in REGIONS[region][0][: draw(st.integers(1, 2))])
    )
    places = st.tuples(st.integers(0, STEPS - 1), st.integers(1, 2 * len(shapes) - 1))
    return Case(
        parts,
        {name: value for name, value in options.items() if value not in (None, 0.0, False) or name == "foreach"},
        region,
        shapes,
        draw(st.sampled_from(dtypes)),
        frozenset(draw(st.lists(places, max_size=3))),
        halves and draw(st.booleans()),
        draw(st.sampled_from([1.0, 1e-3, 1e3])),
    )


def metrics(region):
    """Return the matrices that go with a set or a penalty, most of which want a diagonal or a number."""
    if region is None:
        return sorted(net.EVERY)
    part = next(iter(REGIONS[region][1].values()))()
    scalar = getattr(part, "scalar_metric", False) or part.needs == "eigen"
    return ["Identity", "GradientNorm", "AccumulatedNorm", "BarzilaiBorwein"] if scalar else sorted(net.EVERY)


class Training:
    """An optimizer of a case and the points that it has visited. A case that is refused is not tried."""

    def __init__(self, case, *, dtype=None, groups=None):
        self.case = case
        self.params = tensors(case.shapes, dtype or case.dtype)
        self.problem = Noisy(self.params, case.scale)
        self.points = []
        try:
            self.opt = case.build(self.params, groups and groups(self.params))
        except RefusedError:
            assume(False)

    def closure(self, n, spoil=None):
        """Return a closure for batch n. `spoil(params)` changes the gradients of its first evaluation."""
        evaluate, calls = self.problem.closure(n), []

        def closure():
            loss = evaluate()
            for step, i in self.case.missing:
                if step == n:
                    self.params[i].grad = None
            if spoil is not None and not calls:
                spoil(self.params)
            calls.append(1)
            return loss

        return closure

    def steps(self, first=0, last=STEPS):
        for n in range(first, last):
            if self.case.halves and self.opt.two_point:
                for _ in twice([n]):
                    self.closure(n)()
                    self.opt.step()
            else:
                self.opt.step(self.closure(n))
            self.points.append(self.x())
        return self

    def end(self):
        self.opt.flush()
        self.points.append(self.x())
        return self.points

    def x(self):
        return [p.detach().clone() for p in self.params]

    def saved(self):
        """Return what a file has of the optimizer."""
        file = io.BytesIO()
        torch.save(self.opt.state_dict(), file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    def loaded(self, points, state):
        """Load points and state, as a program that starts anew does."""
        for p, x in zip(self.params, points, strict=True):
            p.data.copy_(x)
        self.opt.load_state_dict(state)
        return self


def finite(points):
    return all(bool(x.isfinite().all()) for row in points for x in row)


def size(points):
    """Return the largest number."""
    return max((float(x.abs().max()) for row in points for x in row if x.numel()), default=0.0)


def far(points):
    """Whether training has diverged, so that rounding errors are enlarged."""
    return not finite(points) or not math.isfinite(size(points)) or size(points) > 1e6
