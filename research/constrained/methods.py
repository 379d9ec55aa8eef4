"""The methods of constrained.py. A method takes a gradient in each step, and has points in the set."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from research.constrained.problems import Problem
from superadam import SuperAdam, matrices, schedules, sets

BETA1, BETA2 = 0.9, 0.999
EXACT = "exact step, Adam's H"
EXACT_SOAP, EXACT_SCALAR = "exact step, SOAP's H", "exact step, scalar H"
OURS = (EXACT, EXACT_SOAP, EXACT_SCALAR)


class Method:
    """`gamma` is the learning rate; each step multiplies it by a share that falls to 0."""

    def __init__(self, problem: Problem, gamma: float, **options: Any) -> None:
        self.problem, self.gamma = problem, gamma
        self.xs = [x.clone().requires_grad_() for x in problem.start]
        self.setup(**options)

    @staticmethod
    def objection(problem: Problem) -> str | None:
        """Why it is not for this problem, if it is not."""
        return None

    @staticmethod
    def base(problem: Problem) -> float:
        """The middle of the learning rates that are tried."""
        return 0.03 * problem.scale

    def setup(self, **options: Any) -> None:
        raise NotImplementedError

    def points(self) -> list[Tensor]:
        return [x.detach() for x in self.xs]

    def gradients(self, rows: Tensor | None) -> list[Tensor]:
        loss = self.problem.loss(self.xs, rows)
        return list(torch.autograd.grad(loss, self.xs))

    def step(self, rows: Tensor | None, share: float) -> None:
        raise NotImplementedError


def smoothness(problem: Problem) -> float:
    """L at x_1, by the power method. Its gradients are not counted: methods with one learning rate get 1/L for free."""
    xs = [x.clone().requires_grad_() for x in problem.start]
    gradients = torch.autograd.grad(problem.loss(xs, None), xs, create_graph=True)
    generator, size = torch.Generator().manual_seed(0), 1.0
    v = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in xs]
    for _ in range(30):
        size = math.sqrt(sum(float(u.square().sum()) for u in v)) or 1.0
        product = sum((g * u / size).sum() for g, u in zip(gradients, v, strict=True))
        v = list(torch.autograd.grad(product, xs, retain_graph=True))
    return size


def steepest(problem: Problem) -> float:
    """The largest difference of two partial derivatives at x_1, or the largest of one."""
    xs = [x.clone().requires_grad_() for x in problem.start]
    gradients = torch.autograd.grad(problem.loss(xs, None), xs)
    return max(float(g.max() - g.min()) if g.numel() > 1 else float(g.abs().max()) for g in gradients)


class Composition(Method):
    """Line 9 solved exactly: SuperAdam with a matrix."""

    def setup(self, matrix: Any, schedule: Any) -> None:
        groups = [{"params": [x], "constraint": c} for x, c in zip(self.xs, self.problem.sets, strict=True)]
        self.opt = SuperAdam(groups, lr=self.gamma, matrix=matrix, schedule=schedule)

    def step(self, rows: Tensor | None, share: float) -> None:
        for x, g in zip(self.xs, self.gradients(rows), strict=True):
            x.grad = g
        for group in self.opt.param_groups:
            group["lr"] = self.gamma * share
        self.opt.step()


class ExactAdam(Composition):
    def setup(self) -> None:
        matrix = matrices.SecondMoment(BETA2, bias_correction=True, lam=1e-8)
        super().setup(matrix, schedules.BiasCorrected(BETA1))


class ExactSOAP(Composition):
    @staticmethod
    def objection(problem: Problem) -> str | None:
        ball = all(isinstance(c, sets.L2Ball) for c in problem.sets)
        return None if ball else "SOAP's H is not diagonal: the step is known for l2 balls and linear sets"

    def setup(self) -> None:
        groups = []
        for x, c in zip(self.xs, self.problem.sets, strict=True):
            matrix = matrices.SOAP(lam=1e-8, every=5)
            if c.dim is not None:  # balls of rows need one side, that of the columns, which must be the smaller one
                one_sided = matrices.SOAP(lam=1e-8, every=5, one_sided_above=0)
                adams = matrices.SecondMoment(BETA2, bias_correction=True, lam=1e-8)
                matrix = one_sided if x.shape[1] < x.shape[0] else adams
            groups.append({"params": [x], "constraint": c, "matrix": matrix})
        self.opt = SuperAdam(groups, lr=self.gamma, schedule=schedules.BiasCorrected(BETA1))


class ExactScalar(Composition):
    """AdaGrad-Norm's matrix with momentum."""

    @staticmethod
    def base(problem: Problem) -> float:
        return problem.scale

    def setup(self) -> None:
        super().setup(matrices.AccumulatedNorm(omega=1e-12), schedules.BiasCorrected(BETA1))


class FrankWolfe(Composition):
    """The vertex that lmo gives, with μ_t = c/(t + c); c is what is tuned."""

    @staticmethod
    def objection(problem: Problem) -> str | None:
        bounded = all(c is not None and c.bounded for c in problem.sets)
        return None if bounded else "the set is not bounded, or its vertices are those of a linear program"

    @staticmethod
    def base(problem: Problem) -> float:
        return 2.0

    def setup(self) -> None:
        c = self.gamma
        alpha = 1.0 if self.problem.batch is None else 0.1
        schedule = schedules.Constant(mu=c / (c + 1), alpha=alpha, decay=1 / (c + 1))
        super().setup(matrices.Zero(), schedule)
        self.gamma, self.c, self.t = 1.0, c, 0

    def step(self, rows: Tensor | None, share: float) -> None:
        if not isinstance(self.problem.sets[0], sets.DoublyStochastic):
            super().step(rows, 1.0)
            return
        (x,), (g,), self.t = self.xs, self.gradients(rows), self.t + 1  # the same, with a faster lmo than ours
        with torch.no_grad():
            x.lerp_(cheapest_plan(g, *self.problem.sets[0].marginals(x)), self.c / (self.t + self.c))


def cheapest_plan(cost: Tensor, r: Tensor, c: Tensor) -> Tensor:
    """By the simplex method of HiGHS."""
    from scipy.optimize import linprog

    m, n = cost.shape
    rows, columns = torch.eye(m).repeat_interleave(n, 1), torch.eye(n).repeat(1, m)
    A, b = torch.cat([rows, columns])[:-1], torch.cat([r, c])[:-1]  # the last row follows from the others
    found = linprog(cost.flatten().numpy(), A_eq=A.numpy(), b_eq=b.numpy(), method="highs-ds")
    return torch.from_numpy(found.x).view(m, n)


def project(problem: Problem, xs: list[Tensor]) -> list[Tensor]:
    return [x if c is None else c.argmin(x, 1.0) for x, c in zip(xs, problem.sets, strict=True)]


class ThenProjected(Method):
    """An optimizer of torch, followed by the Euclidean projection."""

    optimizer: Callable[..., torch.optim.Optimizer]

    def setup(self) -> None:
        self.opt = type(self).optimizer(self.xs, lr=self.gamma)

    def step(self, rows: Tensor | None, share: float) -> None:
        for x, g in zip(self.xs, self.gradients(rows), strict=True):
            x.grad = g
        self.opt.param_groups[0]["lr"] = self.gamma * share
        self.opt.step()
        with torch.no_grad():
            for x, inside in zip(self.xs, project(self.problem, [x.detach() for x in self.xs]), strict=True):
                x.copy_(inside)


def adam(params: list[Tensor], lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=lr, betas=(BETA1, BETA2), foreach=False)


class ProjectedSGD(ThenProjected):
    optimizer = staticmethod(lambda xs, lr: torch.optim.SGD(xs, lr=lr, momentum=0.9, foreach=False))

    @staticmethod
    def base(problem: Problem) -> float:
        return 0.3 / smoothness(problem)


class ProjectedAdam(ThenProjected):
    optimizer = staticmethod(adam)


class Mirror(Method):
    """Exponentiated gradient, with the projection in the Kullback–Leibler divergence; free coordinates by gradients."""

    @staticmethod
    def objection(problem: Problem) -> str | None:
        if any(isinstance(c, sets.Intersection) for c in problem.sets):
            return "the projection in the Kullback–Leibler divergence is not usual for rows and caps"
        ball = any(isinstance(c, sets.L2Ball) for c in problem.sets)
        return "the mirror map of the l2 ball is Euclidean: it is projected SGD" if ball else None

    @staticmethod
    def base(problem: Problem) -> float:
        size = max(getattr(c, "r", 1.0) for c in problem.sets)
        return 10 / math.sqrt(steepest(problem) * smoothness(problem) * size)

    def setup(self) -> None:
        self.doubled = {}
        for i, c in enumerate(self.problem.sets):
            if isinstance(c, sets.L1Ball):  # x = u - v, with what is missing to r
                n = self.xs[i].numel()
                self.doubled[i] = torch.full((2 * n + 1,), c.r / (2 * n + 1), dtype=torch.float64)

    @torch.no_grad()
    def step(self, rows: Tensor | None, share: float) -> None:
        with torch.enable_grad():
            gradients = self.gradients(rows)
        rate = self.gamma * share
        for i, (x, g, c) in enumerate(zip(self.xs, gradients, self.problem.sets, strict=True)):
            if c is None:
                x.sub_(g, alpha=rate)
            elif isinstance(c, sets.NonNegative):
                x.mul_((-rate * g).clamp(-20, 20).exp())
            elif isinstance(c, sets.L1Ball):
                u = self._scaled(self.doubled[i], torch.cat([g, -g, g.new_zeros(1)]), rate) * c.r
                self.doubled[i] = u
                x.copy_(u[: len(g)] - u[len(g) : -1])
            elif isinstance(c, sets.DoublyStochastic):
                x.copy_(self._balanced(x.clamp(min=1e-30).log() - rate * g, *c.marginals(x)))
            else:
                x.copy_(self._scaled(x, g, rate))
                if isinstance(c, sets.CappedSimplex):
                    x.copy_(self._capped(x, float(c.cap)))

    @staticmethod
    def _scaled(x: Tensor, g: Tensor, rate: float) -> Tensor:
        """On the simplex. Not below 1e-30: what is zero would stay so."""
        return torch.softmax(x.clamp(min=1e-30).log() - rate * g, -1)

    @staticmethod
    def _balanced(log_x: Tensor, r: Tensor, c: Tensor) -> Tensor:
        """Sinkhorn's method: rows and columns are scaled in turns. What is then missing from their sums is added as a
        product, so that they are exact after few rounds, too (Altschuler, Weed and Rigollet, 2017)."""
        for _ in range(200):
            log_x = log_x + (r.log() - log_x.logsumexp(1))[:, None]
            log_x = log_x + c.log() - log_x.logsumexp(0)
            if float((log_x.logsumexp(1).exp() - r).abs().amax()) < 1e-13:
                break
        x = log_x.exp()
        x = x * (r / x.sum(1)).clamp(max=1)[:, None]
        x = x * (c / x.sum(0)).clamp(max=1)
        rows, columns = (r - x.sum(1)).clamp(min=0), (c - x.sum(0)).clamp(min=0)
        return x + rows[:, None] * columns / rows.sum().clamp(min=1e-300)

    @staticmethod
    def _capped(x: Tensor, cap: float) -> Tensor:
        """min(cap, c x) with the sum 1."""
        full = torch.zeros_like(x, dtype=torch.bool)
        for _ in range(len(x)):
            x = torch.where(full, cap, x * (1 - cap * full.sum()) / x[~full].sum())
            if not bool((x > cap * (1 + 1e-12)).any()):
                break
            full |= x >= cap
        return x


class Reparametrised(Method):
    """Adam on θ, where x = softmax(θ), softplus(θ), or θ drawn back along its ray."""

    @staticmethod
    def objection(problem: Problem) -> str | None:
        unusual = sets.CappedSimplex | sets.Intersection | sets.DoublyStochastic
        coupled = any(isinstance(c, unusual) for c in problem.sets)
        return "no usual parametrisation has caps, rows or marginals without iterations of its own" if coupled else None

    @staticmethod
    def base(problem: Problem) -> float:
        radial = any(isinstance(c, sets.L1Ball | sets.L2Ball) for c in problem.sets)
        return 0.03 * problem.scale if radial else 0.1

    def setup(self) -> None:
        self.theta = [
            self._back(x.detach(), c).requires_grad_() for x, c in zip(self.xs, self.problem.sets, strict=True)
        ]
        self.opt = adam(self.theta, self.gamma)

    @staticmethod
    def _back(x: Tensor, c: Any) -> Tensor:
        if isinstance(c, sets.Simplex):
            return x.log()
        if isinstance(c, sets.NonNegative):
            return x.expm1().clamp(min=1e-12).log()
        return x.clone()

    def _forth(self) -> list[Tensor]:
        found = []
        for theta, c in zip(self.theta, self.problem.sets, strict=True):
            if isinstance(c, sets.Simplex):
                found.append(torch.softmax(theta, -1))
            elif isinstance(c, sets.NonNegative):
                found.append(torch.nn.functional.softplus(theta))
            elif isinstance(c, sets.L1Ball):
                found.append(theta * (c.r / theta.abs().sum().clamp(min=c.r)))
            elif isinstance(c, sets.L2Ball):
                dim = tuple(range(theta.dim())) if c.dim is None else (c.dim,)
                found.append(theta * (c.r / theta.norm(dim=dim, keepdim=True).clamp(min=c.r)))
            else:
                found.append(theta)
        return found

    def points(self) -> list[Tensor]:
        with torch.no_grad():
            return self._forth()

    def step(self, rows: Tensor | None, share: float) -> None:
        self.opt.zero_grad()
        self.problem.loss(self._forth(), rows).backward()
        self.opt.param_groups[0]["lr"] = self.gamma * share
        self.opt.step()


class Lagrangian(Method):
    """Cooper's simultaneous ascent and descent: Adam on x, SGD on the multipliers. Its points are projected to be
    measured."""

    def setup(self) -> None:
        import cooper

        self.cooper = cooper
        method = self

        class CMP(cooper.ConstrainedMinimizationProblem):
            def __init__(self) -> None:
                super().__init__()
                kinds = cooper.ConstraintType.EQUALITY, cooper.ConstraintType.INEQUALITY
                for i, (x, c) in enumerate(zip(method.xs, method.problem.sets, strict=True)):
                    for j, (equal, values) in enumerate(_conditions(x.detach(), c)):
                        multiplier = cooper.multipliers.DenseMultiplier(
                            num_constraints=values.numel(), dtype=torch.float64
                        )
                        constraint = cooper.Constraint(
                            constraint_type=kinds[0] if equal else kinds[1],
                            formulation_type=cooper.formulations.Lagrangian,
                            multiplier=multiplier,
                        )
                        setattr(self, f"constraint_{i}_{j}", constraint)

            def compute_cmp_state(self, rows: Tensor | None) -> Any:
                states = {}
                for i, (x, c) in enumerate(zip(method.xs, method.problem.sets, strict=True)):
                    for j, (_, values) in enumerate(_conditions(x, c)):
                        constraint = getattr(self, f"constraint_{i}_{j}")
                        states[constraint] = cooper.ConstraintState(violation=values.flatten())
                return cooper.CMPState(loss=method.problem.loss(method.xs, rows), observed_constraints=states)

        self.cmp = CMP()
        self.primal = adam(self.xs, self.gamma)
        self.dual_gamma = self.gamma * steepest(self.problem) / self.problem.scale**2
        self.dual = torch.optim.SGD(self.cmp.dual_parameters(), lr=self.dual_gamma, maximize=True, foreach=False)
        self.opt = cooper.optim.SimultaneousOptimizer(
            cmp=self.cmp, primal_optimizers=self.primal, dual_optimizers=self.dual
        )

    def step(self, rows: Tensor | None, share: float) -> None:
        self.primal.param_groups[0]["lr"] = self.gamma * share
        self.dual.param_groups[0]["lr"] = self.dual_gamma * share
        self.opt.roll(compute_cmp_state_kwargs={"rows": rows})

    def points(self) -> list[Tensor]:
        return project(self.problem, [x.detach() for x in self.xs])


def _conditions(x: Tensor, c: Any) -> list[tuple[bool, Tensor]]:
    """The set as equations (True) and inequalities: of what is 0, or at most 0."""
    if isinstance(c, sets.Simplex | sets.CappedSimplex):
        capped = [(False, x - c.cap)] if isinstance(c, sets.CappedSimplex) else []
        return [(True, x.sum(-1) - 1), (False, -x), *capped]
    if isinstance(c, sets.Intersection):
        return [condition for each in c.sets for condition in _conditions(x, each)]
    if isinstance(c, sets.Polyhedron):
        return [(False, c.A @ x - c.b)]
    if isinstance(c, sets.DoublyStochastic):
        r, s = c.marginals(x)
        return [(True, x.sum(1) - r), (True, x.sum(0) - s), (False, -x)]
    if isinstance(c, sets.NonNegative):
        return [(False, -x)]
    if isinstance(c, sets.L1Ball):
        return [(False, (x.abs().sum() - c.r)[None])]
    if isinstance(c, sets.L2Ball):
        return [(False, (x.square().sum(c.dim) - c.r**2).reshape(-1))]
    return []


METHODS: dict[str, type[Method]] = {
    EXACT: ExactAdam,
    EXACT_SOAP: ExactSOAP,
    EXACT_SCALAR: ExactScalar,
    "projected SGD, momentum": ProjectedSGD,
    "mirror descent": Mirror,
    "reparametrised, Adam": Reparametrised,
    "Adam, then projected": ProjectedAdam,
    "Frank–Wolfe": FrankWolfe,
    "Lagrangian (Cooper)": Lagrangian,
}
