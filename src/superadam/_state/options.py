"""The options of `SuperAdam` and its param groups: checked, and turned into plain data. `Composition`: their parts."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Size, Tensor

from superadam._state import formats
from superadam._state.precision import ROUNDINGS
from superadam._step.view import View
from superadam.estimators import Estimator, Recursive
from superadam.iterates import Iterate, Plain
from superadam.lists import real, state_dtype
from superadam.matrices import ByShape, Matrix
from superadam.matrices.base import Slot
from superadam.parts import Part, check, nearest
from superadam.penalties import Penalty
from superadam.schedules import BiasCorrected, Schedule
from superadam.sets import ConvexSet
from superadam.sets.base import shape_objection
from superadam.stepsizes import Stepsize

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer


# The options that optimizers pickled by older versions do not have.
ADDED_LATER = {
    "fused": None, "compile": False, "rounding": "nearest", "iterate": None, "stepsize": None, "state_dtype": None,
}  # fmt: skip

FLAGS = (
    "decoupled_weight_decay", "maximize", "foreach", "fused", "compile", "capturable", "differentiable",
)  # fmt: skip

# Names that a part cannot give to its state: those of a view, and of what the optimizer itself keeps.
RESERVED = {name for name in dir(View) if not name.startswith("_")}.union(
    View.__annotations__, ("step", "phase", "master", "number", "offset", "root")
) - {"g"}


class Composition(NamedTuple):
    """The parts of a param group."""

    estimator: Estimator
    matrix: Matrix
    schedule: Schedule
    iterate: Iterate
    stepsize: Stepsize | None
    constraint: ConvexSet | None
    penalty: Penalty | None

    @classmethod
    def of(cls, options: dict[str, Any]) -> Composition:
        """The parts that the options name, refused if they make no sense together."""
        estimator = options["estimator"]
        if estimator is None:
            estimator = Recursive(float(options["tau"]))
        elif options["tau"] != 0:
            raise ValueError(
                f"tau={options['tau']} is an option of the default estimator: use tau= or estimator=, not both"
            )
        estimator = Estimator.find(estimator)
        parts = cls(
            estimator,
            Matrix.find(options["matrix"]),
            default_schedule(estimator.tau) if options["schedule"] is None else Schedule.find(options["schedule"]),
            Plain() if options["iterate"] is None else Iterate.find(options["iterate"]),
            None if options["stepsize"] is None else Stepsize.find(options["stepsize"]),
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
            if options["capturable"]:
                reason = reason or _why_not_captured(part)
            if reason is not None:
                raise ValueError(f"{part} cannot be combined with this composition: {reason}")
            for name, value in part.spec().items():
                if not isinstance(value, int | float | str | tuple | dict | Tensor | None):
                    raise TypeError(f"{part}: {name} must be a number, string, tuple or tensor, to go into checkpoints")
        taken = set(RESERVED)
        keeping = (self.estimator, self.iterate, self.matrix, *(() if self.stepsize is None else (self.stepsize,)))
        for part in keeping:
            names = [*part.buffers, *getattr(part, "scalars", ()), *getattr(part, "numbers", ())]
            if again := taken.intersection(names):
                raise ValueError(f"{part}: the state name {', '.join(sorted(again))} is already used; choose another")
            taken.update(names)

    def check_shape(self, x: Tensor) -> None:
        """Refuse what line 9 cannot be solved for on a tensor like x."""
        if self.matrix.vanishes and self.constraint is None:  # which every group may have of its own
            raise ValueError(f"{self.matrix} needs a bounded set in every group, e.g. constraint=sets.SpectralBall(r)")
        for part in (self.constraint, self.penalty):
            if part is not None and (reason := shape_objection(part, self.matrix, x)):
                raise ValueError(reason)

    @property
    def two_point(self) -> bool:
        """Whether a step takes two gradients of its batch."""
        return self.estimator.two_point or self.matrix.two_point

    @property
    def lr(self) -> float:
        """The γ of `lr=None`, rounded to one digit: the largest γ μ_t is then the matrix's own lr."""
        if self.stepsize is not None:
            return self.stepsize.lr
        return float(f"{self.matrix.lr / self.schedule.largest_mu(self.estimator.tau):.0e}")

    @property
    def sharing(self) -> tuple[Matrix | Stepsize, ...]:
        """The parts with scalars, which all parameters share that have an equal one."""
        return tuple(part for part in (self.matrix, self.stepsize) if part is not None and part.scalars)

    @property
    def scalars(self) -> dict[str, tuple[int, ...]]:
        """The names of all of these, and their shapes."""
        return {name: part.scalar_shape(name) for part in self.sharing for name in part.scalars}

    @property
    def at_once(self) -> bool:
        """Whether no line waits for sums over all of x."""
        return not self.sharing and self.matrix.scope != "all"

    def elementwise(self, *, line_9: bool) -> bool:
        """Whether all parts treat every coordinate by itself, with or without the set and the penalty."""
        parts = (
            self.estimator,
            self.matrix,
            self.iterate,
            self.stepsize,
            *((self.constraint, self.penalty) if line_9 else ()),
        )
        return all(part is None or part.elementwise for part in parts) and not self.matrix.two_point

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """The tensors that estimator, iterate, step size and matrix keep for a parameter like x."""
        return {name: Slot(tuple(x.shape)) for name in self._like_x} | self.matrix.slots(x)

    @property
    def _like_x(self) -> tuple[str, ...]:
        own = () if self.stepsize is None else self.stepsize.buffers
        return (*self.estimator.buffers, *self.iterate.buffers, *own)

    def narrow(self, group: dict[str, Any], x: Tensor) -> tuple[str, ...]:
        """Those of `names` that `state_dtype` keeps in bfloat16: averages like x, of which a step changes a small part.

        Factors have roots taken of them, and an iterate's points are the result: both stay in float32.
        """
        if group.get("state_dtype") is None or state_dtype(x) is torch.float64:
            return ()
        return (*self.estimator.buffers, *(self.matrix.buffers if self.matrix.scope == "coordinate" else ()))

    def names(self, x: Tensor) -> tuple[str, ...]:
        """The names of `slots`."""
        if self.matrix.scope == "coordinate":
            return (*self._like_x, *self.matrix.buffers)
        return tuple(self.slots(real(x)))

    def root_shape(self, x: Tensor) -> Size | None:
        """The shape of the roots that line 9 keeps for a tensor like x, if it keeps any."""
        return None if self.constraint is None else self.constraint.root_shape(x)


KINDS = Composition._fields

# Options of torch's optimizers, and what to write instead.
OF_TORCH = {
    "betas": 'create("adamw", params, betas=…), or schedule=BiasCorrected(beta=…) for the first one and '
    "matrix=SecondMoment(beta=…, lam=…) for the second",
    **dict.fromkeys(("beta1", "beta2"), 'create("adamw", params, betas=(…, …))'),
    "eps": 'create("adamw", params, eps=…), or matrix=SecondMoment(beta=…, lam=…), whose lam it is',
    "momentum": 'create("sgd", params, momentum=…), or schedule=Constant(alpha=1 - momentum)',
    "dampening": 'create("sgd", params, momentum=…, dampening=…)',
    "nesterov": 'create("sgd", params, momentum=…, nesterov=True), or estimator=Nesterov() with '
    "schedule=Constant(alpha=1 - momentum)",
    "centered": 'create("rmsprop", params, centered=True), or matrix=Centered(beta=…, lam=…)',
    "amsgrad": 'create("amsgrad", params), or matrix=AMSGrad(beta=…, lam=…)',
    "rho": 'create("adadelta", params, rho=…), or matrix=AdaDelta(rho=…, eps=…)',
    "lr_decay": 'create("adagrad", params, lr_decay=…), or schedule=Constant(decay=…)',
    "initial_accumulator_value": 'create("adagrad", params, initial_accumulator_value=…), or matrix=AdaGrad(v_0=…)',
}
# Options of parts, and what to write instead.
OF_PARTS = {
    "beta": "matrix=SecondMoment(beta=…, lam=…)",
    "lam": "matrix=SecondMoment(beta=…, lam=…)",
    "alpha": "schedule=Constant(alpha=…), the weight of the newest gradient in line 11",
    "mu": "schedule=Constant(mu=…)",
    "gamma": "lr=…",
    **dict.fromkeys("kmc", "schedule=Paper(k=…, m=…, c=…)"),
}


def instead_of(name: str, known: Iterable[str], hints: dict[str, str] = OF_TORCH) -> str:
    """The end of an error message about an unknown option: what to write instead."""
    return f"write {hints[name]}" if name in hints else nearest(name, known)


def default_schedule(tau: float) -> Schedule:
    """Adam's average and μ_t = 1, so that γ is what other optimizers call lr.

    With τ > 0 the newest gradient has half of the weight: with a tenth, variance reduction is close to divergence.
    """
    return BiasCorrected(0.5 if tau > 0 else 0.9)


def refuse_unknown(unknown: dict[str, Any], known: dict[str, Any]) -> None:
    for name in unknown:
        raise TypeError(f"SuperAdam got an unknown option {name!r}: {instead_of(name, known, OF_TORCH | OF_PARTS)}")


def refuse_misspelt(group: dict[str, Any], known: dict[str, Any]) -> None:
    """Refuse keys of a param group that are almost an option, or an option of torch's. Others are the user's own."""
    for name in group.keys() - known.keys() - {"params", "param_names", "initial_lr", "max_lr", "min_lr", "swa_lr"}:
        if name in OF_TORCH and group[name] and "method" not in group:  # amsgrad=False is harmless
            raise ValueError(f"Unknown option {name!r} in a param group of this composition: write {OF_TORCH[name]}")
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.75)
        if close and abs(len(close[0]) - len(name)) <= 2:  # weight_decay_mult is no misspelling
            raise ValueError(f"Unknown option {name!r} in a param group: {nearest(name, known)}")


def normalised(options: dict[str, Any]) -> dict[str, Any]:
    """A copy with every value checked, the parts as plain data, and the composition's own lr in place of None."""
    options = formats.with_iterate(options)
    if isinstance(options["lr"], str):
        check(options["lr"] == "auto", "lr", repr(options["lr"]), "a number, None or 'auto'")
        options = {**options, "lr": None, "stepsize": _automatic(options["stepsize"])}
    lr, wd, clip = options["lr"], options["weight_decay"], options["clip"]
    for name in ("lr", "tau", "weight_decay", "clip"):
        value = options[name]
        if isinstance(value, bool) or not isinstance(value, int | float | Tensor | None):
            raise TypeError(f"Invalid {name}: {value!r} (expected a number)")
    for name in FLAGS:
        if options[name] not in (None, False, True):  # 0 and 1 equal the last two
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
    _check_ways(options)
    return {
        **options,
        "state_dtype": _state_dtype(options),
        "lr": parts.lr if lr is None else lr,
        "tau": float(options["tau"]),
        "estimator": None if options["estimator"] is None else parts.estimator.spec(),
        "matrix": parts.matrix.spec(),
        "schedule": parts.schedule.spec(),
        "iterate": None if options["iterate"] is None else parts.iterate.spec(),
        "stepsize": None if parts.stepsize is None else parts.stepsize.spec(),
        "constraint": None if parts.constraint is None else parts.constraint.spec(),
        "penalty": None if parts.penalty is None else parts.penalty.spec(),
    }


def _automatic(stepsize: object) -> object:
    """The step size of lr="auto"."""
    if stepsize is not None and not Stepsize.find(stepsize).scalars:
        raise ValueError(
            f'lr="auto" needs a stepsize that estimates the learning rate; stepsize={stepsize} does not. Set lr to a '
            "number, or use another stepsize such as stepsizes.Prodigy()"
        )
    return "Prodigy" if stepsize is None else stepsize


def _state_dtype(options: dict[str, Any]) -> str | None:
    """By its name: a checkpoint holds plain data."""
    found = options["state_dtype"]
    if found in (None, torch.float32, "float32"):
        return None
    check(found in (torch.bfloat16, "bfloat16"), "state_dtype", found, "torch.bfloat16, or None for float32")
    if options["differentiable"]:
        raise ValueError("state_dtype cannot be combined with differentiable=True: autograd does not follow rounding")
    return "bfloat16"


def _why_not_captured(part: Part) -> str | None:
    """Why a CUDA graph cannot hold a step with this part, if it cannot."""
    if part.on_host:
        return "it decides by the step count on the host: use capturable=False"
    if part.waits:
        fitting = sorted(name for name, kind in type(part)._names.items() if kind.waits is False)
        return (
            f"the step of {type(part).__name__} looks at numbers on the host (is y inside already? has the root "
            f"converged?), which a CUDA graph cannot hold: use capturable=False, or {', '.join(fitting)}"
        )
    return None


def _check_ways(options: dict[str, Any]) -> None:
    """Refuse options for how a step runs that contradict each other."""
    chosen = [name for name in ("foreach", "fused") if options[name]]
    if options["differentiable"]:
        for name in (*chosen, *(["compile"] if options["compile"] else [])):
            raise ValueError(f"{name}=True cannot be combined with differentiable=True: tensors are updated in place")
    if len(chosen) > 1:
        raise ValueError("foreach=True and fused=True are two ways to run a step: choose one")


def _sizes(opt: ComposedOptimizer, group: dict[str, Any]) -> str:
    """How many parameters, and how many bytes of state for each of them: what a step adds to the model's memory."""
    plan, params = opt._plan(group), group["params"]
    numbers, held = sum(p.numel() for p in params), 0
    for p in params:
        held += sum(math.prod(slot.shape) * plan.dtype(p, name).itemsize for name, slot in plan.slots(p).items())
        held += 4 * real(p).numel() if group["rounding"] == "master" and real(p).dtype != state_dtype(p) else 0
    return f"{len(params)} tensors, {numbers:,} parameters, {held / max(numbers, 1):.3g} bytes of state for each"


def describe(opt: ComposedOptimizer) -> str:
    """The composition, line by line. Of later groups, only the lines that differ from the group before."""
    lines: list[str] = []
    last: list[str] = []
    for i, group in enumerate(opt.param_groups):
        estimator, matrix, schedule, iterate, stepsize, constraint, penalty = opt._parts(group)
        where = " (in the gradient)" if group["weight_decay"] != 0 and not group["decoupled_weight_decay"] else ""
        decay = f"weight_decay={group['weight_decay']}{where}"
        numbers = f"lr={group['lr']}, {decay}, clip={group['clip']}, maximize={group['maximize']}"
        numbers += "" if group["rounding"] == "nearest" else f", rounding={group['rounding']}"
        numbers += "" if group["state_dtype"] is None else f", state_dtype={group['state_dtype']}"
        head = [f"(11) g: {estimator}", f"(4)  H: {matrix}", f"(10) mu, alpha: {schedule}"]
        head += [] if type(iterate) is Plain else [f"x: {iterate}"]
        head += [] if stepsize is None else [f"gamma: {stepsize}"]
        head += [f"(9)  {name}: {part}" for name, part in (("X", constraint), ("h", penalty)) if part is not None]
        head.append(numbers)
        if len(opt.param_groups) > 1:
            lines.append(f"group {i}:")
        lines += [line for line in head if line not in last]
        lines += opt._plan(group).divisions()
        lines.append(_sizes(opt, group))
        last = head
    if opt._pending():
        lines.append("a move is pending: flush() takes it, at the end of training")
    return "\n  ".join(["SuperAdam(", *lines]) + "\n)"
