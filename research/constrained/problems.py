"""The problems of constrained.py: what is minimised, on which sets, from where. All in float64, each small.

`build(name, seed)` draws an instance: other seeds are other data, starts and batches.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, softplus

from superadam import sets

CONVEX_TARGET, OTHER_TARGET = 1e-4, 1e-2


@dataclasses.dataclass
class Problem:
    """`loss(xs, rows)` is f of a list of tensors on some rows of the data, or on all (None)."""

    start: list[Tensor]
    sets: list[sets.ConvexSet | None]
    loss: Callable[[list[Tensor], Tensor | None], Tensor]
    scale: float = 1.0  # how far coordinates have to go, roughly: adaptive learning rates are multiples of it
    batch: int | None = None  # of so many rows of the data; None takes all
    rows: int = 0
    convex: bool = True
    by_cvxpy: Callable[[Any], tuple[Any, list[Any]]] | None = None  # the objective and constraints on a variable

    def full(self, xs: list[Tensor]) -> float:
        with torch.no_grad():
            return float(self.loss(xs, None))

    @property
    def target(self) -> float:
        """The gap to be reached, relative to that of x_1."""
        return CONVEX_TARGET if self.convex and self.batch is None else OTHER_TARGET


def _randn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _rand(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def portfolio(generator: torch.Generator, *, by_sector: bool = False) -> Problem:
    """Mean and variance of 60 assets, weights of at most 15 %: returns with 4 factors and fat tails (Student's t with 4
    degrees of freedom), volatilities from 0.2 (bonds) to 8 % (coins)."""
    n, days, risk, cap, most = 60, 1500, 0.5, 0.15, 0.3
    volatility = 10 ** (1.6 * _rand(generator, n) - 0.7)

    def t(*shape: int) -> Tensor:
        return _randn(generator, *shape) / (_randn(generator, 4, *shape).square().mean(0)).sqrt()

    loadings = _randn(generator, 4, n) * volatility / 2
    returns = 0.05 * volatility * _randn(generator, n).abs() + t(days, 4) @ loadings + t(days, n) * volatility
    mean, covariance = returns.mean(0), torch.cov(returns.T)
    held: sets.ConvexSet = sets.CappedSimplex(1.0, cap)
    sector = torch.zeros(6, n, dtype=torch.float64)
    sector.scatter_(0, (volatility.argsort().argsort() // 10)[None], 1.0)
    if by_sector:
        held = sets.Intersection(held, sets.Polyhedron(sector, torch.full((6,), most, dtype=torch.float64)))

    def by_cvxpy(cp: Any) -> tuple[Any, list[Any]]:
        w = cp.Variable(n)
        objective = risk / 2 * cp.quad_form(w, cp.psd_wrap(covariance.numpy())) - mean.numpy() @ w
        return objective, [w >= 0, w <= cap, cp.sum(w) == 1, *([sector.numpy() @ w <= most] if by_sector else [])]

    return Problem(
        [torch.full((n,), 1 / n, dtype=torch.float64)],
        [held],
        lambda xs, rows: risk / 2 * xs[0] @ covariance @ xs[0] - mean @ xs[0],
        by_cvxpy=by_cvxpy,
    )


def sectors(generator: torch.Generator) -> Problem:
    """The same portfolios, with at most 30 % in each of six sectors: the ten assets with the least volatility, the next
    ten, and so on."""
    return portfolio(generator, by_sector=True)


def _logistic(A: Tensor, sign: Tensor, r: float, **options: Any) -> Problem:
    """Sparse logistic regression: the l1 norm of the coefficients is at most r."""
    signed = A * sign[:, None]

    def by_cvxpy(cp: Any) -> tuple[Any, list[Any]]:
        w = cp.Variable(A.shape[1])
        return cp.sum(cp.logistic(-signed.numpy() @ w)) / len(A), [cp.norm1(w) <= r]

    return Problem(
        [torch.zeros(A.shape[1], dtype=torch.float64)],
        [sets.L1Ball(r)],
        lambda xs, rows: softplus(-(signed if rows is None else signed[rows]) @ xs[0]).mean(),
        rows=len(A),
        by_cvxpy=by_cvxpy,
        **options,
    )


def breast_cancer(generator: torch.Generator) -> Problem:
    """scikit-learn's data as they are, features up to 0.03 and up to 4,000; full gradients of 4 of 5 patients."""
    A, label = load_breast_cancer(return_X_y=True)
    some = torch.randperm(len(A), generator=generator)[: len(A) * 4 // 5]
    A, sign = torch.tensor(A)[some], 2.0 * torch.tensor(label, dtype=torch.float64)[some] - 1
    return _logistic(torch.cat([A, torch.ones(len(A), 1, dtype=A.dtype)], 1), sign, r=5.0)


def units(generator: torch.Generator) -> Problem:
    """The same data in other units: each feature standardised, then multiplied by a power of ten from 1/10 to 10."""
    A, label = load_breast_cancer(return_X_y=True)
    some = torch.randperm(len(A), generator=generator)[: len(A) * 4 // 5]
    A, sign = torch.tensor(A)[some], 2.0 * torch.tensor(label, dtype=torch.float64)[some] - 1
    A = (A - A.mean(0)) / A.std(0) * 10 ** (2 * _rand(generator, 30) - 1)
    return _logistic(torch.cat([A, torch.ones(len(A), 1, dtype=A.dtype)], 1), sign, r=2.0)


def rare_features(generator: torch.Generator) -> Problem:
    """Like a9a: 120 features that are 0 or 1, each in a share of the rows from 50 to 0.2 %. Batches of 100 of 3,000."""
    n, m = 3000, 120
    share = 10 ** (-0.3 - 2.4 * _rand(generator, m))
    A = (_rand(generator, n, m) < share).double()
    w = _randn(generator, m) * (_rand(generator, m) < 0.3) * 2
    logits = A @ w
    sign = torch.where(_rand(generator, n) < torch.sigmoid(logits - logits.mean()), 1.0, -1.0).double()
    return _logistic(A, sign, r=25.0, batch=100)


def mixture(generator: torch.Generator) -> Problem:
    """Maximum likelihood of the weights of 25 given Gaussians in the plane, some rare and some that overlap; a point is
    noise with a small given density."""
    n, k = 2000, 25
    true = torch.softmax(2 * _randn(generator, k), 0)
    centers, width = 3 * _randn(generator, k, 2), 0.3 + _rand(generator, k)
    which = torch.multinomial(true, n, replacement=True, generator=generator)
    points = centers[which] + width[which, None] * _randn(generator, n, 2)
    log_p = -(points[:, None] - centers).square().sum(-1) / (2 * width**2) - 2 * width.log()
    p, noise = (log_p - log_p.amax(1, keepdim=True)).exp(), 1e-3
    p[p < 1e-8] = 0.0

    return Problem(
        [torch.full((k,), 1 / k, dtype=torch.float64)],
        [sets.Simplex()],
        lambda xs, rows: -(p @ xs[0] + noise).log().mean(),
    )


def topics(generator: torch.Generator) -> Problem:
    """A topic model: the words of 150 documents of 80 words, from 6 topics over 120 words with Zipf's frequencies. The
    documents' topics and the topics' words are rows on simplices; one word in a hundred is noise."""
    docs, words, k = 150, 120, 6
    zipf = 1 / torch.arange(1, words + 1, dtype=torch.float64)
    topic = torch.softmax(zipf.log() + 2 * _randn(generator, k, words), 1)
    share = torch.softmax(2 * _randn(generator, docs, k), 1)
    drawn = torch.multinomial(share @ topic, 80, replacement=True, generator=generator)
    counts = torch.zeros(docs, words, dtype=torch.float64).scatter_add_(
        1, drawn, torch.ones_like(drawn, dtype=zipf.dtype)
    )
    start = [torch.softmax(0.3 * _randn(generator, *shape), 1) for shape in ((docs, k), (k, words))]
    return Problem(
        start,
        [sets.Simplex(), sets.Simplex()],
        lambda xs, rows: -(counts * (0.99 * xs[0] @ xs[1] + 0.01 / words).log()).sum() / counts.sum(),
        convex=False,
    )


def transport(generator: torch.Generator) -> Problem:
    """Optimal transport of 40 uneven masses to 40 places: each row says where a mass goes, and is a simplex; that the
    places get their shares is a quadratic penalty."""
    n, weight = 40, 50.0
    a, b = (torch.softmax(1.5 * _randn(generator, n), 0) for _ in range(2))
    cost = (_rand(generator, n, 1, 2) - _rand(generator, 1, n, 2)).square().sum(-1)

    def by_cvxpy(cp: Any) -> tuple[Any, list[Any]]:
        P = cp.Variable((n, n))
        moved = cp.sum(cp.multiply(a.numpy()[:, None] * cost.numpy(), P))
        return moved + weight / 2 * cp.sum_squares(P.T @ a.numpy() - b.numpy()), [P >= 0, cp.sum(P, axis=1) == 1]

    return Problem(
        [torch.full((n, n), 1 / n, dtype=torch.float64)],
        [sets.Simplex()],
        lambda xs, rows: a @ (cost * xs[0]).sum(1) + weight / 2 * (xs[0].T @ a - b).square().sum(),
        by_cvxpy=by_cvxpy,
    )


def congested(generator: torch.Generator) -> Problem:
    """Transport of 20 uneven masses to 20 places by 400 roads of different lengths and capacities. The masses and the
    shares of the places are given. The time on a road grows with the fourth power of its load, as traffic planners have
    it (Bureau of Public Roads, 1964); f is least where no driver has a quicker road (Beckmann, 1956)."""
    n = 20
    a, b = (torch.softmax(_randn(generator, n), 0) for _ in range(2))
    time = (_rand(generator, n, 1, 2) - _rand(generator, 1, n, 2)).square().sum(-1).sqrt()
    capacity = 2 * a[:, None] * b * (0.7 * _randn(generator, n, n)).exp()

    def by_cvxpy(cp: Any) -> tuple[Any, list[Any]]:
        load = cp.Variable((n, n))
        plan, weight = cp.multiply(capacity.numpy(), load), (time * capacity).numpy()
        objective = cp.sum(cp.multiply(weight, load)) + 0.03 * cp.sum(cp.multiply(weight, cp.power(load, 5)))
        return objective, [load >= 0, cp.sum(plan, axis=1) == a.numpy(), cp.sum(plan, axis=0) == b.numpy()]

    return Problem(
        [a[:, None] * b],
        [sets.DoublyStochastic(a, b)],
        lambda xs, rows: (time * xs[0] * (1 + 0.03 * (xs[0] / capacity) ** 4)).sum(),
        scale=1 / n,
        by_cvxpy=by_cvxpy,
    )


def _digits(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    some = torch.randperm(len(labels), generator=generator)[:1000]
    return torch.tensor(images)[some] / 16, torch.tensor(labels)[some]


def softmax_digits(generator: torch.Generator) -> Problem:
    """Softmax regression of the digits, the matrix in a ball of the Frobenius norm; batches of all 1,000 images."""
    x, label = _digits(generator)
    return Problem(
        [torch.zeros(10, 64, dtype=torch.float64)],
        [sets.L2Ball(5.0)],
        lambda xs, rows: cross_entropy(x @ xs[0].T, label),
        scale=0.5,
    )


def nmf(generator: torch.Generator) -> Problem:
    """Non-negative factors of rank 8 of 300 images of digits."""
    x, _ = _digits(generator)
    x = x[:300]
    start = [0.3 * _rand(generator, 300, 8) + 0.01, 0.3 * _rand(generator, 8, 64) + 0.01]
    return Problem(
        start,
        [sets.NonNegative(), sets.NonNegative()],
        lambda xs, rows: (x - xs[0] @ xs[1]).square().sum() / len(x),
        convex=False,
    )


def monotone(generator: torch.Generator) -> Problem:
    """A network with tanh that can only increase: non-negative weights, free biases; 100 noisy points."""
    x = 4 * _rand(generator, 100, 1) - 2
    truth = torch.tanh(3 * (x + 1)) + 0.5 * torch.sigmoid(12 * (x - 1)) + 0.1 * x
    y = truth + 0.1 * _randn(generator, 100, 1)
    sizes = ((16, 1), (16, 16), (1, 16))
    weights = [_randn(generator, *size).abs() / math.sqrt(size[1]) for size in sizes]
    biases = [_randn(generator, size[0]) for size in sizes[:2]] + [torch.zeros(1, dtype=torch.float64)]

    def loss(xs: list[Tensor], rows: Tensor | None) -> Tensor:
        h = x
        for i in range(3):
            h = h @ xs[i].T + xs[3 + i]
            h = torch.tanh(h) if i < 2 else h
        return (h - y).square().mean()

    return Problem([*weights, *biases], [*[sets.NonNegative()] * 3, *[None] * 3], loss, convex=False)


def max_norm(generator: torch.Generator) -> Problem:
    """A network on the digits, the weights into each unit in a ball of norm 1.5; batches of 100 of 1,000 images."""
    x, label = _digits(generator)
    shapes = ((72, 64), (10, 72))
    start = [_randn(generator, *shape) / math.sqrt(shape[1]) for shape in shapes]
    ball = sets.L2Ball(1.5, dim=1)

    def loss(xs: list[Tensor], rows: Tensor | None) -> Tensor:
        inputs, labels = (x, label) if rows is None else (x[rows], label[rows])
        out = torch.relu(inputs @ xs[0].T) @ xs[1].T
        return -log_softmax(out, 1).gather(1, labels[:, None]).mean()

    start = [ball.argmin(w, 1.0) for w in start]
    return Problem(start, [ball, ball], loss, scale=0.3, batch=100, rows=1000, convex=False)


def easy_quadratic(generator: torch.Generator) -> Problem:
    """Curvatures from 1 to 3 in 100 dimensions, rotated, on the simplex: nothing to adapt to."""
    n = 100
    Q, _ = torch.linalg.qr(_randn(generator, n, n))
    A = Q @ torch.diag(1 + 2 * _rand(generator, n)) @ Q.T
    a = torch.softmax(2 * _randn(generator, n), 0) + 0.05 * _randn(generator, n)

    def by_cvxpy(cp: Any) -> tuple[Any, list[Any]]:
        w = cp.Variable(n)
        return cp.quad_form(w - a.numpy(), cp.psd_wrap(A.numpy())) / 2, [w >= 0, cp.sum(w) == 1]

    return Problem(
        [torch.full((n,), 1 / n, dtype=torch.float64)],
        [sets.Simplex()],
        lambda xs, rows: (xs[0] - a) @ A @ (xs[0] - a) / 2,
        by_cvxpy=by_cvxpy,
    )


PROBLEMS: dict[str, Callable[[torch.Generator], Problem]] = {
    "portfolio, caps": portfolio,
    "portfolio, caps and sectors": sectors,
    "breast cancer, l1 ball": breast_cancer,
    "breast cancer in other units, l1 ball": units,
    "rare features, l1 ball": rare_features,
    "mixture weights": mixture,
    "optimal transport, rows": transport,
    "congested transport, marginals": congested,
    "softmax digits, l2 ball": softmax_digits,
    "easy quadratic, simplex": easy_quadratic,
    "topic model": topics,
    "NMF of digits": nmf,
    "monotone network": monotone,
    "max-norm network": max_norm,
}


def build(name: str, seed: int) -> Problem:
    return PROBLEMS[name](torch.Generator().manual_seed(1000 + seed))
