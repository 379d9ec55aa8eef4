"""The options of `SuperAdam` and its param groups: checked, and turned into plain data."""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Size, Tensor

from superadam._state import formats
from superadam._state.parts import check, nearest
from superadam._state.precision import ROUNDINGS
from superadam._step import fused
from superadam._step.view import View, real
from superadam.estimators import Estimator, Recursive
from superadam.iterates import Iterate, Plain
from superadam.matrices import ByShape, Matrix
from superadam.matrices.base import Slot
from superadam.penalties import Penalty
from superadam.schedules import BiasCorrected, Schedule
from superadam.sets import ConvexSet

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer


# The options that optimizers pickled by older versions do not have.
ADDED_LATER = {"fused": None, "compile": False, "rounding": "nearest", "iterate": None}

FLAGS = (
    "decoupled_weight_decay", "maximize", "foreach", "fused", "compile", "capturable", "differentiable",
)  # fmt: skip

# What the state of a parameter, or the view that a part has of it, calls by these names.
RESERVED = {name for name in dir(View) if not name.startswith("_")}.union(
    View.__annotations__,
    ("parts", "layout", "moves", "alike", "estimator", "matrix", "schedule", "iterate"),
    ("constraint", "penalty", "gamma", "step", "phase", "master", "number", "root"),
) - {"g"}
KINDS = ("estimator", "matrix", "schedule", "iterate", "constraint", "penalty")


class Composition(NamedTuple):
    """The parts of a param group."""

    estimator: Estimator
    matrix: Matrix
    schedule: Schedule
    iterate: Iterate
    constraint: ConvexSet | None
    penalty: Penalty | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Composition:
        """The parts that the options name, refused if they make no sense together."""
        estimator = options["estimator"]
        if estimator is None:
            estimator = Recursive(float(options["tau"]))
        elif options["tau"] != 0:
            raise ValueError(f"tau={options['tau']} belongs to the default estimator: give it or estimator=, not both")
        estimator = Estimator.find(estimator)
        parts = cls(
            estimator,
            Matrix.find(options["matrix"]),
            default_schedule(estimator.tau) if options["schedule"] is None else Schedule.find(options["schedule"]),
            Plain() if options["iterate"] is None else Iterate.find(options["iterate"]),
            None if options["constraint"] is None else ConvexSet.find(options["constraint"]),
            None if options["penalty"] is None else Penalty.find(options["penalty"]),
        )
        for matrix in parts.matrix.options if isinstance(parts.matrix, ByShape) else [parts.matrix]:
            parts._replace(matrix=matrix)._check(options)
        return parts

    def _check(self, options: dict[str, Any]) -> None:
        """Refuse parts that do not go together, or could not be saved."""
        for part in filter(None, self):
            reason = part.objection(self, options)
            if part.on_host and options["capturable"]:
                reason = "it decides by the step count on the host: use capturable=False"
            if reason is not None:
                raise ValueError(f"{part} does not go with this composition: {reason}")
            for name, value in part.spec().items():
                if not isinstance(value, int | float | str | tuple | dict | Tensor | None):
                    raise TypeError(f"{part}: {name} must be a number, a string, a tuple or a tensor, for checkpoints")
        taken = set(RESERVED)
        for part in (self.estimator, self.iterate, self.matrix):
            names = [*part.buffers, *getattr(part, "scalars", ())]
            if again := taken.intersection(names):
                raise ValueError(f"{part} must name its state otherwise: {', '.join(sorted(again))} is taken")
            taken.update(names)

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return self.estimator.two_point or self.matrix.two_point

    @property
    def lr(self) -> float:
        """The γ of `lr=None`, to one digit: with it the largest γ μ_t is the matrix's own lr."""
        return float(f"{self.matrix.lr / self.schedule.largest_mu(self.estimator.tau):.0e}")

    @property
    def at_once(self) -> bool:
        """Whether no line waits for sums over all of x."""
        return not self.matrix.scalars and self.matrix.scope != "all"

    def elementwise(self, *, line_9: bool) -> bool:
        """Whether all parts treat every coordinate by itself, with or without the set and the penalty."""
        parts = (self.estimator, self.matrix, self.iterate, *((self.constraint, self.penalty) if line_9 else ()))
        return all(part is None or part.elementwise for part in parts) and not self.matrix.two_point

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """What is kept for a parameter like x, in its dtype: by the estimator, the iterate and the matrix."""
        like_x = (*self.estimator.buffers, *self.iterate.buffers)
        return {name: Slot(tuple(x.shape)) for name in like_x} | self.matrix.slots(x)

    def names(self, x: Tensor) -> tuple[str, ...]:
        """The names of `slots`."""
        if self.matrix.scope == "coordinate":
            return (*self.estimator.buffers, *self.iterate.buffers, *self.matrix.buffers)
        return tuple(self.slots(real(x)))

    def root_shape(self, x: Tensor) -> Size | None:
        """The shape of the roots that line 9 keeps for a tensor like x, if it keeps any."""
        return None if self.constraint is None else self.constraint.root_shape(x)


# What torch's optimizers call their options, and how to say the same here.
OF_TORCH = {
    "betas": 'create("adamw", params, betas=…), or schedule=BiasCorrected(beta=…) for the first one and '
    "matrix=SecondMoment(beta=…, lam=…) for the second",
    **dict.fromkeys(("beta1", "beta2"), 'create("adamw", params, betas=(…, …))'),
    "eps": 'create("adamw", params, eps=…), or matrix=SecondMoment(beta=…, lam=…), whose lam it is',
    "momentum": 'create("sgd", params, momentum=…), or schedule=Constant(alpha=1 - momentum)',
    "dampening": 'create("sgd", params, momentum=…, dampening=…)',
    "nesterov": "estimator=Corrected(tau=1 - momentum, alpha=1 - momentum, bound=None, previous_batch=True) with "
    "schedule=Constant(alpha=1 - momentum)",
    "amsgrad": 'create("amsgrad", params), or matrix=AMSGrad(beta=…, lam=…)',
    "rho": 'create("adadelta", params, rho=…), or matrix=AdaDelta(rho=…, eps=…)',
    "lr_decay": 'create("adagrad", params, lr_decay=…), or schedule=Constant(decay=…)',
    "initial_accumulator_value": 'create("adagrad", params, initial_accumulator_value=…), or matrix=AdaGrad(v_0=…)',
}
# What belongs to a part.
OF_PARTS = {
    "beta": "matrix=SecondMoment(beta=…, lam=…)",
    "lam": "matrix=SecondMoment(beta=…, lam=…)",
    "alpha": "schedule=Constant(alpha=…), the weight of the newest gradient in line 11",
    "mu": "schedule=Constant(mu=…)",
    "gamma": "lr=…",
    **dict.fromkeys("kmc", "schedule=Paper(k=…, m=…, c=…)"),
}


def instead_of(name: str, known: Iterable[str], hints: dict[str, str] = OF_TORCH) -> str:
    """The end of an error message about an unknown option."""
    return f"write {hints[name]}" if name in hints else nearest(name, known)


def default_schedule(tau: float) -> Schedule:
    """Adam's average, and μ_t = 1, so that γ is what other optimizers call lr.

    With τ > 0, half of the weight is on the newest gradient: with a tenth, variance reduction is close to diverging.
    """
    return BiasCorrected(0.5 if tau > 0 else 0.9)


def refuse_unknown(unknown: dict[str, Any], known: dict[str, Any]) -> None:
    for name in unknown:
        raise TypeError(f"SuperAdam got an unknown option {name!r}: {instead_of(name, known, OF_TORCH | OF_PARTS)}")


def refuse_misspelt(group: dict[str, Any], known: dict[str, Any]) -> None:
    """A param group may carry keys of the user's own, but not one that is almost an option, or one of torch's."""
    for name in group.keys() - known.keys() - {"params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr"}:
        if name in OF_TORCH and group[name] and "method" not in group:  # amsgrad=False asks for nothing
            raise ValueError(f"Unknown option {name!r} in a param group of this composition: write {OF_TORCH[name]}")
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.75)
        if close and abs(len(close[0]) - len(name)) <= 2:  # weight_decay_mult is no misspelling
            raise ValueError(f"Unknown option {name!r} in a param group: {nearest(name, known)}")


def normalised(options: dict[str, Any]) -> dict[str, Any]:
    """A copy with every value checked, the parts as plain data, and the composition's own lr in place of None."""
    options = formats.with_iterate(options)
    lr, wd, clip = options["lr"], options["weight_decay"], options["clip"]
    for name in ("lr", "tau", "weight_decay", "clip"):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor | None):
            raise TypeError(f"Invalid {name}: {value!r} (expected a number)")
    for name in FLAGS:
        if options[name] not in (None, False, True):  # 0 and 1 are the last two
            raise TypeError(f"Invalid {name}: {options[name]!r} (expected True or False)")
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if lr is not None and not (isinstance(lr, Tensor) and lr.device.type != "cpu") and not lr >= 0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not (wd >= 0 and math.isfinite(wd)):
        raise ValueError(f"Invalid weight_decay value: {wd}")
    check(clip is None or clip > 0, "clip", clip, "clip > 0, or None")
    check(options["rounding"] in ROUNDINGS, "rounding", options["rounding"], f"one of {', '.join(ROUNDINGS)}")
    parts = Composition.of(options)
    _check_ways(parts, options)
    return {
        **options,
        "lr": parts.lr if lr is None else lr,
        "tau": float(options["tau"]),
        "estimator": None if options["estimator"] is None else parts.estimator.spec(),
        "matrix": parts.matrix.spec(),
        "schedule": parts.schedule.spec(),
        "iterate": None if options["iterate"] is None else parts.iterate.spec(),
        "constraint": None if parts.constraint is None else parts.constraint.spec(),
        "penalty": None if parts.penalty is None else parts.penalty.spec(),
    }


def _check_ways(parts: Composition, options: dict[str, Any]) -> None:
    """How the step shall run, if it can."""
    chosen = [name for name in ("foreach", "fused") if options[name]]
    if options["differentiable"]:
        for name in (*chosen, *(["compile"] if options["compile"] else [])):
            raise ValueError(f"{name}=True cannot be combined with differentiable=True: tensors are updated in place")
    if len(chosen) > 1:
        raise ValueError("foreach=True and fused=True are two ways to run a step: choose one")
    if options["compile"]:
        for part in filter(None, parts):
            if part.on_host:
                raise ValueError(f"{part} cannot be compiled: it decides by the step count on the host")


def warn_of_fused(parts: Composition, options: dict[str, Any]) -> None:
    """Programs pass fused=True to any optimizer: it means "as fast as you can"."""
    if not options["fused"] or fused.there_is_a_kernel(View(options, parts, [], [], [], {})):
        return
    instead = "the kernel of compile=True" if options["compile"] else "torch's other operations"
    hint = "" if options["compile"] else " On a CPU, compile=True makes a kernel for most compositions."
    warnings.warn(
        f"fused=True: torch has no fused kernel for this composition ({parts.estimator}, {parts.matrix}, "
        f"{parts.schedule}, and the options). Its steps run by {instead}, as without fused=True.{hint}",
        stacklevel=2,
    )


def describe(opt: ComposedOptimizer) -> str:
    """The composition, line by line, with what differs between groups said for each."""
    lines: list[str] = []
    last: list[str] = []
    for i, group in enumerate(opt.param_groups):
        estimator, matrix, schedule, iterate, constraint, penalty = opt._parts(group)
        where = " (in the gradient)" if group["weight_decay"] != 0 and not group["decoupled_weight_decay"] else ""
        decay = f"weight_decay={group['weight_decay']}{where}"
        numbers = f"lr={group['lr']}, {decay}, clip={group['clip']}, maximize={group['maximize']}"
        numbers += "" if group["rounding"] == "nearest" else f", rounding={group['rounding']}"
        head = [f"(11) g: {estimator}", f"(4)  H: {matrix}", f"(10) mu, alpha: {schedule}"]
        head += [] if type(iterate) is Plain else [f"x: {iterate}"]
        head += [f"(9)  {name}: {part}" for name, part in (("X", constraint), ("h", penalty)) if part is not None]
        head.append(numbers)
        if len(opt.param_groups) > 1:
            lines.append(f"group {i}:")
        lines += [line for line in head if line not in last]
        lines.append(f"{len(group['params'])} tensors, {sum(p.numel() for p in group['params']):,} parameters")
        last = head
    if opt._pending():
        lines.append("a move is pending: flush() takes it, at the end of training")
    return "\n  ".join(["SuperAdam(", *lines]) + "\n)"
