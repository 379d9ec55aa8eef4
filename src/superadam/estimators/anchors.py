"""Variance reduction with anchors: now and then the gradient of a large batch takes the place of g_t."""

from __future__ import annotations

from typing import Any

from superadam.bucket import Bucket
from superadam.estimators.base import Estimator
from superadam.estimators.line_11 import take_in
from superadam.parts import check

__all__ = ["Page"]


class Page(Estimator):
    r"""Line 11 with α_t = 1 on a large batch now and then, and a given α between (PAGE: Li et al. 2021; SPIDER, SARAH).

    $$g_t = \begin{cases} \nabla f_{\text{large}}(x_t) & \text{at an anchor} \\
      \alpha \nabla f(x_t; \xi_t) + (1-\alpha)\bigl[g_{t-1}
      + \tau\bigl(\nabla f(x_t; \xi_t) - \nabla f(x_{t-1}; \xi_t)\bigr)\bigr] & \text{otherwise}\end{cases}$$

    The recursion alone adds up the noise of its differences; an anchor removes it. On a sum of n functions, with
    anchors on all of them, the gradient's error vanishes with the steps, and the learning rate may stay constant.

    The first batch is an anchor, as is the first after `flush()`. Give the large batches by
    `superadam.anchored(loader, opt, data)`, or by `opt.step(closure, anchor=full_closure)`. The schedule's α_t is not
    used, its μ_t is.

    Choose an H_t that does not vanish with g_t: Adam's with λ = 1e-3 (docs/variance-reduction.md), AMSGrad's, or the
    identity. With Adam's λ = 1e-8 the steps would grow as g_t vanishes.

    Args:
        p: probability of an anchor in each step. None, without `every`: b/(b + B) for batches of b samples and large
            batches of B, where `anchored` knows both.
        every: an anchor in every so many steps (SPIDER, SARAH), instead of `p`.
        tau: τ, the share of the correction.
        alpha: α between anchors.
        seed: of the random anchors. Step t is an anchor, or is none, in every run with this seed.

    >>> [t for t in range(1, 40) if Page(p=0.1).due(t)]
    [1, 3, 6, 11, 13]
    >>> [t for t in range(1, 10) if Page(every=4).due(t)]
    [1, 5, 9]
    """

    p: float | None = None
    every: int | None = None
    tau: float = 1.0
    alpha: float = 0.0
    seed: int = 0

    elementwise = True
    anchored = True

    def __post_init__(self) -> None:
        check(self.p is None or 0 < self.p <= 1, "p", self.p, "0 < p <= 1, or None")
        whole = self.every is None or (isinstance(self.every, int) and self.every >= 1)
        check(whole, "every", self.every, "a whole number every >= 1, or None")
        check(self.p is None or self.every is None, "every", self.every, "p or every, not both")
        check(0 < self.tau <= 1, "tau", self.tau, "0 < tau <= 1")
        check(0 <= self.alpha <= 1, "alpha", self.alpha, "0 <= alpha <= 1")

    @property
    def two_point(self) -> bool:
        return True

    def due(self, t: int, share: float | None = None) -> bool:
        """Return whether step t ≥ 1 is an anchor. `share` is the probability where `p` leaves it open."""
        if t == 1:
            return True
        if self.every is not None:
            return (t - 1) % self.every == 0
        p = share if self.p is None else self.p
        if p is None:
            raise ValueError(
                "Page() does not know how often an anchor is due: write Page(p=…), Page(every=…), or loop over "
                "superadam.anchored(loader, opt), which knows the sizes of the batches"
            )
        bits = (t * 0x9E3779B97F4A7C15 + (self.seed + 1) * 0xBF58476D1CE4E5B9) & (1 << 64) - 1  # splitmix64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            bits = ((bits ^ (bits >> shift)) * factor) & (1 << 64) - 1
        return (bits ^ (bits >> 31)) / (1 << 64) < p

    def before(self, s: Bucket, q: Any) -> None:
        s.g.sub_(q, alpha=self.tau)

    def after(self, s: Bucket, grad: Any) -> Any:
        if s.paired:
            take_in(s.g, grad, self.alpha, self.tau)
        else:
            s.g = grad
        return grad

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.matrix.two_point:
            return f"{type(others.matrix).__name__} needs both gradients of every batch, and an anchor has one"
        return None
