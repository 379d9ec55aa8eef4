"""Options as people write them ↔ parts ↔ plain data in param_groups; combinations that are refused, with a cure."""

from __future__ import annotations

import difflib
import fnmatch
import math
import operator
from collections.abc import Iterable
from typing import Any, NamedTuple

from torch import Size, Tensor, nn

from superadam import distributed, rounding
from superadam.bucket import PENDING, Bucket
from superadam.estimators import Estimator, Recursive
from superadam.iterates import Iterate, Plain
from superadam.lists import real, state_dtype
from superadam.matrices import ByShape, Matrix, SecondMoment, Slot
from superadam.messages import warn
from superadam.parts import Part, check, nearest
from superadam.penalties import Penalty
from superadam.schedules import BiasCorrected, Schedule
from superadam.sets import ConvexSet
from superadam.sets.base import shape_objection
from superadam.stepsizes import Stepsize

__all__ = [
    "KINDS", "Composition", "Plan", "describe", "layers_of", "normalised", "refuse_misspelt", "refuse_unknown",
    "stacked_vectors", "unmatched_names",
]  # fmt: skip

FLAGS = ("decoupled_weight_decay", "maximize", "foreach", "fused", "compile", "capturable")

# Names that a part cannot give to its state: the attributes of a bucket, and what the optimizer itself keeps.
RESERVED = {
    *Bucket.__annotations__,
    *(name for name in vars(Bucket) if not name.startswith("_")),
    *(
        "plan",
        "parts",
        "plain",
        "fused",
        "at_once",
        "watches",
        "watched",
        "sharing",
        "summed",
        "elementwise",
        "may_cut",
    ),
    *(
        "compilable",
        "has_factors",
        "every",
        "reshapes",
        "slots",
        "dtype",
        "long",
        "apart",
        "unused_grad",
        "root",
        "number",
    ),
} - {"g"}


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
        """Return the parts that the options name, refused if they make no sense together."""
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
            default_matrix() if options["matrix"] is None else Matrix.find(options["matrix"]),
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
        taken = set(RESERVED)
        for part in filter(None, self):
            reason = part.objection(self, options)
            if reason is not None:
                raise ValueError(f"{part} cannot be combined with this composition: {reason}")
            for name, value in part.spec().items():
                if not isinstance(value, int | float | str | tuple | dict | Tensor | None):
                    raise TypeError(f"{part}: {name} must be a number, string, tuple or tensor, to go into checkpoints")
            names = [name for kind in ("buffers", "scalars", "numbers") for name in getattr(part, kind, ())]
            if again := taken.intersection(names):
                raise ValueError(f"{part}: the state name {', '.join(sorted(again))} is already used; choose another")
            taken.update(names)

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
    def sharing(self) -> tuple[Any, ...]:
        """The parts with scalars, which all parameters share that have an equal part."""
        return tuple(part for part in (self.matrix, self.stepsize) if part is not None and part.scalars)

    @property
    def scalars(self) -> dict[str, tuple[int, ...]]:
        """The names of all of these scalars, and their shapes."""
        return {name: part.scalar_shape(name) for part in self.sharing for name in part.scalars}

    def elementwise(self, *, line_9: bool) -> bool:
        """Return whether all parts treat every coordinate by itself, with or without the set and the penalty."""
        in_line_9 = (self.constraint, self.penalty) if line_9 else ()
        parts = (self.estimator, self.matrix, self.iterate, self.stepsize, *in_line_9)
        return all(part is None or part.elementwise for part in parts) and not self.matrix.two_point

    @property
    def like_x(self) -> tuple[str, ...]:
        """The names of the tensors like x that estimator, iterate and step size keep."""
        own = () if self.stepsize is None else self.stepsize.buffers
        return (*self.estimator.buffers, *self.iterate.buffers, *own)

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """Return the tensors that estimator, iterate, step size and matrix keep for a parameter like x."""
        return {name: Slot(tuple(x.shape)) for name in self.like_x} | self.matrix.slots(x)

    def root_shape(self, x: Tensor) -> Size | None:
        """Return the shape of the roots that line 9 keeps for a tensor like x, if it keeps any."""
        return None if self.constraint is None else self.constraint.root_shape(x)

    def check_shape(self, x: Tensor) -> None:
        """Refuse sets and penalties for which line 9 has no known solution on a tensor like x."""
        if self.matrix.vanishes and self.constraint is None:  # which every group may have of its own
            raise ValueError(f"{self.matrix} needs a bounded set in every group, e.g. constraint=sets.SpectralBall(r)")
        for part in (self.constraint, self.penalty):
            if part is not None and (reason := shape_objection(part, self.matrix, x)):
                raise ValueError(reason)

    def kernel_objection(self, options: dict[str, Any]) -> str | None:
        """Return why torch has no fused kernel for this composition, or None."""
        if not self.matrix.has_kernel(self.schedule):
            return f"torch has no fused kernel for {type(self.matrix).__name__}"
        for option in ("clip", "foreach", "compile"):
            if options[option]:
                return f"{option}={options[option]}"
        if options["fused"] is False:
            return "fused=False"
        if type(self.estimator) is not Recursive or self.estimator.tau > 0:
            return f"{type(self.estimator).__name__} takes more than an average of gradients"
        others: list[Part | None] = [self.stepsize, self.penalty, None if type(self.iterate) is Plain else self.iterate]
        others.append(None if type(self.schedule).weight_of is Schedule.weight_of else self.schedule)
        X = self.constraint  # a box of the user's own may do more than to clip
        others.append(None if X is None or (X.separable and type(X).__module__.startswith("superadam.")) else X)
        return next((f"not with {type(part).__name__}" for part in others if part is not None), None)

    def compile_objection(self, options: dict[str, Any]) -> str | None:
        """Return why torch.compile cannot take the lines of this composition, or None."""
        for part in (*self.sharing, *([self.iterate] if self.iterate.numbers else [])):
            return f"{type(part).__name__} has numbers of its own"
        for part in filter(None, self):
            if part.on_host:
                return f"{type(part).__name__} asks for the step count on the host"
            if part is not self.schedule and not part.elementwise:
                return f"{type(part).__name__} needs more than a coordinate"
        if options["rounding"] == "stochastic":
            return "rounding='stochastic'"
        return "clip with this estimator" if options["clip"] is not None and self.estimator.blends else None


KINDS = Composition._fields

# All options of a group except the learning rate.
_options_of = operator.itemgetter("tau", *KINDS, "weight_decay", "clip", "rounding", *FLAGS)


class Plan:
    """A param group with its options turned into parts: made again when an option changes."""

    left_out: Any = 0
    """Matrices whose gradient was not finite, counted on the device."""
    refresh_seconds = 0.0
    """Time spent on `refresh` of matrices so far, for the monitor."""

    def __init__(self, group: dict[str, Any]) -> None:
        self.group, self.parts = group, Composition.of(group)
        # copies: the user may write into the plain data of a part
        self.options = tuple(dict(value) if isinstance(value, dict) else value for value in _options_of(group))
        params = group["params"]
        self._chosen: dict[Tensor, tuple[Matrix, float]] = {}
        if isinstance(self.parts.matrix, ByShape):
            names, layers = (group.get(key) or [""] * len(params) for key in ("param_names", "param_layers"))
            self._chosen = {
                p: self.parts.matrix.choose(real(p), *of) for p, *of in zip(params, names, layers, strict=True)
            }
        self.two_point = self.parts.two_point
        self.settles = type(self.parts.iterate).settle is not Iterate.settle
        self.free = self.parts.constraint is None and self.parts.penalty is None
        self.any_factors = False
        by_kind: dict[tuple[Matrix, float], dict[str, Any]] = {}
        self.facts: dict[Tensor, dict[str, Any]] = {}
        """The attributes of buckets that hold in every step, for each parameter."""
        for p in params:
            kind = self._chosen[p] if self._chosen else (self.parts.matrix, 1.0)
            if kind not in by_kind:
                by_kind[kind] = self._facts(*kind)
            of_matrix = tuple(kind[0].slots(real(p))) if kind[0].per_tensor or kind[0].joint else ()
            self.facts[p] = dict(by_kind[kind], dtype=state_dtype(p), slots=of_matrix)
            self.of(p).check_shape(real(p))
            matrix = kind[0]
            self.any_factors |= matrix.has_factors
        self.per_tensor = any(matrix.per_tensor for matrix, _ in by_kind)
        self.sharded = any(type(p) not in (Tensor, nn.Parameter) for p in params)
        own = self.parts.iterate.numbers or group["foreach"] is False
        self.mixed = bool(self._chosen or self.per_tensor or self.sharded or own)

    def is_current(self) -> bool:
        """Return whether the options of the group are as they were."""
        return bool(_options_of(self.group) == self.options)

    def matrix(self, p: Tensor) -> Any:
        """Return the matrix of a parameter."""
        return self._chosen[p][0] if self._chosen else self.parts.matrix

    def rate(self, p: Tensor) -> float:
        """Return γ of a parameter over γ of the group."""
        return self._chosen[p][1] if self._chosen else 1.0

    def kind(self, p: Tensor, state: dict[str, Any]) -> tuple[Any, ...]:
        """Return the key that the parameters of a bucket share, besides step count, phase, dtype and device."""
        facts, gamma = self.facts[p], state["gamma"] if state["phase"] == PENDING else None
        numbers = [gamma, *[state[name] for name in self.parts.iterate.numbers]]
        return (
            id(facts["parts"]),
            p.shape if facts["matrix"].per_tensor else None,
            distributed.sharding(p) if self.sharded else None,
            *[id(number) if isinstance(number, Tensor) else number for number in numbers],
            id(p) if self.group["foreach"] is False else None,
        )

    def of(self, p: Tensor) -> Composition:
        """Return the parts of a parameter."""
        return self.parts._replace(matrix=self._chosen[p][0]) if self._chosen else self.parts

    def factors(self, p: Tensor) -> set[str]:
        """Return the names of the state of a matrix of each tensor: who works on the matrix has them."""
        matrix = self.matrix(p)
        return set(matrix.slots(real(p))) if matrix.per_tensor else set()

    def slots(self, p: Tensor, places: dict[Tensor, Any]) -> dict[str, Slot]:
        """Return the tensors of the state of a parameter, as this process has them."""
        factors = self.factors(p)
        return {
            name: slot._replace(shape=(places[p].here, *slot.shape[1:])) if name in factors else slot
            for name, slot in self.of(p).slots(real(p)).items()
        }

    def expected(self, p: Tensor) -> dict[str, tuple[int, ...] | None]:
        """Return the names that the state of a parameter may have, with the shapes of the tensors as they are saved."""
        parts = self.of(p)
        known: dict[str, Any] = dict.fromkeys(("step", "phase", "gamma", "number", *parts.iterate.numbers))
        known |= dict.fromkeys(f"aside_{name}" for name in ("x", *parts.iterate.buffers))  # after opt.eval()
        root = parts.root_shape(p)
        slots = {name: tuple(slot.shape) for name, slot in parts.slots(real(p)).items()}
        return {**known, **parts.scalars, **slots, **({} if root is None else {"root": tuple(root)})}

    def _facts(self, matrix: Any, rate: float) -> dict[str, Any]:
        """Return the attributes of buckets that hold in every step, for a matrix and its rate."""
        group, parts = self.group, self.parts._replace(matrix=matrix)
        decay, decoupled = float(group["weight_decay"]), group["decoupled_weight_decay"]
        last = 0 if parts.stepsize is None else parts.stepsize.sums
        elementwise = parts.elementwise(line_9=True)
        return {
            **parts._asdict(),
            "parts": parts,
            "plan": self,
            "group": group,
            "rate": rate,
            "free": self.free,
            "plain": type(parts.iterate) is Plain,
            "decay": decay if decoupled else 0.0,
            "decay_in_gradient": 0.0 if decoupled else decay,
            "sharing": parts.sharing,
            # which of the sums that `step.lines_11_and_4` returns belong to which part
            "summed": [
                (part, slice(-last, None) if part is parts.stepsize else slice(-last or None)) for part in parts.sharing
            ],
            "at_once": not parts.sharing and not matrix.joint and group["clip"] is None,
            "fused": parts.kernel_objection(group) is None,
            "elementwise": elementwise,
            "elementwise_11_and_4": parts.elementwise(line_9=False),
            "compilable": parts.compile_objection(group) is None,
            "may_cut": group["foreach"] is None and not matrix.per_tensor and not matrix.joint,
            "has_factors": matrix.has_factors,
            "every": getattr(matrix, "every", 1) if matrix.per_tensor and matrix.refreshes else None,
            "reshapes": matrix.per_tensor and matrix.reshapes,
            "watches": matrix.watches_steps or parts.estimator.watches_steps,
            "watched": not type(matrix).__module__.startswith("superadam."),
            "names": parts.like_x if matrix.per_tensor or matrix.joint else (*parts.like_x, *matrix.buffers),
            "shared": {},
            "places": (),
            "apart": False,
        }

    def divisions(self) -> list[str]:
        """Say which parameters have which of several matrices."""
        params = self.group["params"]
        names = self.group.get("param_names") or [f"{tuple(p.shape)}" for p in params]
        by_matrix: dict[tuple[Matrix, float], list[str]] = {}
        for p, name in zip(params, names, strict=True):
            if self._chosen:
                by_matrix.setdefault(self._chosen[p], []).append(name)
        return [
            f"{matrix}{'' if rate == 1 else f', lr times {rate:g}'}: {len(of)} tensors, {_few(of)}"
            for (matrix, rate), of in by_matrix.items()
        ]


def _few(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")


def unmatched_names(plans: list[Plan]) -> None:
    """Warn of `names` of a `ByShape` that match no parameter: they have no effect."""
    for matrix in dict.fromkeys(plan.parts.matrix for plan in plans):
        groups = [plan.group for plan in plans if plan.parts.matrix == matrix]
        names = [name for group in groups for name in group.get("param_names") or ()]
        for pattern in _patterns(matrix):
            if not fnmatch.filter(names, pattern):
                known = f"such as {names[0]!r}" if names else "and has none: give it the module or named_parameters()"
                warn(f"ByShape: {pattern!r} matches no parameter. The optimizer looks at their names, {known}.")


def missing_kernel(plan: Plan) -> None:
    """Warn of `fused=True` where torch has no kernel for any parameter: it has no effect."""
    reasons = [facts["parts"].kernel_objection(plan.group) for facts in plan.facts.values()]
    if plan.group["fused"] and reasons and None not in reasons:
        way = "torch.compile" if plan.group["compile"] else "torch's other operations"
        warn(
            f"fused=True: torch has no fused kernel for this composition ({reasons[0]}): the lines are run by {way}, "
            "as without fused=True."
        )


def stacked_vectors(plans: list[Plan]) -> None:
    """Warn of biases that were stacked, as for the members of an ensemble, and that a matrix takes for matrices."""
    for plan in plans:
        for p, name in zip(plan.group["params"], plan.group.get("param_names") or (), strict=False):
            matrix = plan.matrix(p)
            if matrix.per_tensor and not matrix.is_diagonal and p.dim() == 2 and _is_bias(name):
                warn(
                    f"Parameter {name} of shape {tuple(p.shape)} seems to be biases of several members, stacked: "
                    f"{type(matrix).__name__} takes it for a matrix, and mixes the members. Write batch_dims=1, in "
                    f'{type(matrix).__name__}(batch_dims=1) or create(…, batch_dims=1), or names=("*bias",).'
                )
                return


def _is_bias(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last.startswith("bias") or last.endswith("bias")


def _patterns(matrix: Matrix) -> tuple[str, ...]:
    if not isinstance(matrix, ByShape):
        return ()
    return (*matrix.names, *(name for other in (*matrix.firsts, matrix.otherwise) for name in _patterns(other)))


def layers_of(module: nn.Module) -> dict[Tensor, str]:
    """Return for each parameter the type of its layer, followed by the types that this is derived from.

    "head" for the last linear layer of several with matrices.
    """
    layers: dict[Tensor, str] = {}
    last = None
    for layer in module.modules():
        for p in layer.parameters(recurse=False):
            layers.setdefault(p, _types(layer))  # a head that shares the embedding's weights is an embedding
        weight = getattr(layer, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1:
            several, last = last is not None, layer
    if isinstance(last, nn.Linear) and several and layers.get(last.weight) == _types(last):
        layers[last.weight] = "head"
    return layers


def _types(layer: nn.Module) -> str:
    return " ".join(kind.__name__ for kind in type(layer).__mro__ if issubclass(kind, nn.Module))


# ---------------------------------------------------------------------------------------- checks


def default_schedule(tau: float) -> Schedule:
    """Return Adam's average and μ_t = 1, so that γ means the same as lr elsewhere.

    With τ > 0 the newest gradient has half of the weight: with a tenth, variance reduction is close to divergence.
    """
    return BiasCorrected(0.5 if tau > 0 else 0.9)


def default_matrix() -> Matrix:
    """Return Adam's matrix, so that lr means the same as in Adam. `SecondMoment()` is the paper's case 1."""
    return SecondMoment(lam=1e-8, bias_correction=True)


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
    "differentiable": "it out: superadam takes no gradient through a step; torch.optim's optimizers do",
    "initial_accumulator_value": 'create("adagrad", params, initial_accumulator_value=…), or matrix=AdaGrad(v_0=…)',
}
# Options of parts, and what to write instead.
OF_PARTS = {
    "beta": "matrix=SecondMoment(beta=…, lam=…)",
    "lam": "matrix=SecondMoment(beta=…, lam=…)",
    "alpha": "schedule=Constant(alpha=…), the weight of the newest gradient in line 11",
    "mu": "schedule=Constant(mu=…)",
    **dict.fromkeys(("gamma", "learning_rate"), "lr=…"),
    **dict.fromkeys("kmc", "schedule=Paper(k=…, m=…, c=…)"),
}


def instead_of(name: str, known: Iterable[str], hints: dict[str, str] = OF_TORCH) -> str:
    """Return the end of an error message about an unknown option: the text to write instead."""
    return f"write {hints[name]}" if name in hints else nearest(name, known)


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
    """Return a copy with every value checked, parts as plain data, and the composition's own lr in place of None."""
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
    if options["capturable"]:
        raise ValueError(
            "capturable=True is not supported: step counts and their weights are on the host, so a CUDA graph would "
            "repeat the weights of one step. Use compile=True for fewer launches, or torch.optim.AdamW(capturable=True)"
        )
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError("Tensor lr must be 1-element")
    if lr is not None and not (isinstance(lr, Tensor) and lr.device.type != "cpu") and not lr >= 0:
        raise ValueError(f"Invalid learning rate: {lr}")
    if not (wd >= 0 and math.isfinite(wd)):
        raise ValueError(f"Invalid weight_decay value: {wd}")
    check(clip is None or clip > 0, "clip", clip, "clip > 0, or None")
    rounded = options["rounding"]
    check(rounded in rounding.ROUNDINGS, "rounding", rounded, f"one of {', '.join(rounding.ROUNDINGS)}")
    if options["foreach"] and options["fused"]:
        raise ValueError("foreach=True and fused=True are two ways to run a step: choose one")
    parts = Composition.of(options)
    open_ = {"estimator", "iterate"}  # None stays None
    return {
        **options,
        "lr": parts.lr if lr is None else lr,
        "tau": float(options["tau"]),
        **{
            kind: None if part is None or (kind in open_ and options[kind] is None) else part.spec()
            for kind, part in parts._asdict().items()
        },
    }


def _automatic(stepsize: object) -> object:
    """Return the step size of lr="auto"."""
    if stepsize is not None and not Stepsize.find(stepsize).scalars:
        raise ValueError(
            f'lr="auto" needs a stepsize that estimates the learning rate; stepsize={stepsize} does not. Set lr to a '
            "number, or use another stepsize such as stepsizes.Prodigy()"
        )
    return "Prodigy" if stepsize is None else stepsize


def check_groups(plans: list[Plan]) -> None:
    """Refuse groups that cannot work on their parameters, or not beside each other."""
    for plan in plans:
        check_parameters(plan, plans)
    if any(plan.two_point for plan in plans):
        for plan in plans:
            if plan.parts.estimator.blends and not plan.two_point:
                raise ValueError(
                    f"{plan.parts.estimator} needs the newest gradient when the step is taken, and a group with tau > "
                    "0 delays the steps of all groups: use an optimizer for each, or NesterovRecursive(tau=0.0)"
                )


def check_parameters(plan: Plan, plans: list[Plan]) -> None:
    """Refuse a group whose parts cannot work on its parameters: their shape, dtype, sharding or devices."""
    group, names = plan.group, plan.group.get("param_names")
    for j, p in enumerate(group["params"]):
        reason, matrix = rounding.objection(group["rounding"], p), plan.matrix(p)
        if sharded := distributed.objection(plan.of(p), p):
            reason = f"it is sharded, and {sharded}"
        if p.is_complex() and not plan.free:
            reason = (
                "it is complex, and sets and penalties are of real numbers: give its real view (torch.view_as_real) as "
                "the parameter, or put it into a group without a set"
            )
        if not matrix.accepts(real(p)):
            reason = f"{matrix} is not for shape {tuple(p.shape)}: use matrices.ByShape, with another for it"
        if reason is not None:
            raise ValueError(f"Parameter {names[j] if names else j}: {reason}")
    if plan.parts.matrix.joint:
        sharing = [other.group["params"] for other in plans if other.parts.matrix == plan.parts.matrix]
        devices = sorted({str(p.device) for params in sharing for p in params})
        if len(devices) > 1:
            raise ValueError(
                f"{plan.parts.matrix} solves for all its parameters at once, so they must be on one device; they are "
                f"on {', '.join(devices)}. Use a diagonal or a scalar matrix."
            )


# ---------------------------------------------------------------------------------------- repr


def describe(plans: list[Plan], places: dict[Tensor, Any], pending: bool) -> str:
    """Return the composition, line by line. Of later groups, only the lines that differ from the group before."""
    lines: list[str] = []
    last: list[str] = []
    for i, plan in enumerate(plans):
        group, parts = plan.group, plan.parts
        where = " (in the gradient)" if group["weight_decay"] != 0 and not group["decoupled_weight_decay"] else ""
        decay = f"weight_decay={group['weight_decay']}{where}"
        numbers = f"lr={group['lr']}, {decay}, clip={group['clip']}, maximize={group['maximize']}"
        numbers += "" if group["rounding"] == "nearest" else f", rounding={group['rounding']}"
        head = [f"(11) g: {parts.estimator}", f"(4)  H: {parts.matrix}", f"(10) mu, alpha: {parts.schedule}"]
        head += [] if type(parts.iterate) is Plain else [f"x: {parts.iterate}"]
        head += [] if parts.stepsize is None else [f"gamma: {parts.stepsize}"]
        head += [f"(9)  {name}: {part}" for name, part in (("X", parts.constraint), ("h", parts.penalty)) if part]
        head.append(numbers)
        if len(plans) > 1:
            lines.append(f"group {i}:")
        lines += [line for line in head if line not in last]
        lines += [*plan.divisions(), _sizes(plan, places), _way(plan)]
        last = head
    if pending:
        lines.append("a move is pending: flush() takes it, at the end of training")
    return "\n  ".join(["SuperAdam(", *lines]) + "\n)"


def _sizes(plan: Plan, places: dict[Tensor, Any]) -> str:
    """Say how many parameters there are, and how many bytes of state for each of them."""
    params = plan.group["params"]
    numbers, held = sum(p.numel() for p in params), 0
    for p in params:
        held += sum(math.prod(slot.shape) for slot in plan.slots(p, places).values()) * state_dtype(p).itemsize
    return f"{len(params)} tensors, {numbers:,} parameters, {held / max(numbers, 1):.3g} bytes of state for each"


def _way(plan: Plan) -> str:
    """Say how a step runs, and why not by a fused kernel."""
    facts = [*{id(facts["parts"]): facts for facts in plan.facts.values()}.values()]
    if plan.group["compile"]:
        objections = dict.fromkeys(of["parts"].compile_objection(plan.group) for of in facts)
        ways = [f"lists, not torch.compile ({reason})" if reason else "torch.compile" for reason in objections]
        return f"runs by {', '.join(ways)}"
    reasons = dict.fromkeys(filter(None, (of["parts"].kernel_objection(plan.group) for of in facts)))
    if not reasons:
        return "runs by torch's fused kernel"
    return f"runs by lists{'' if len(reasons) == len(facts) else ' and a fused kernel'} ({'; '.join(reasons)})"
