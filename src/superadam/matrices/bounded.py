"""Matrices that bound every coordinate of a step: by its sign, by a curvature, or by an adaptive length."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.matrices.base import STILL, Diagonal
from superadam.parts import check

__all__ = ["Rprop", "Sign", "Sophia", "sampled_label_loss"]


class Sign(Diagonal):
    r"""The size of the estimate itself: every coordinate of a step is γ (Lion: Chen et al. 2023, signSGD).

    $$H_t = \mathrm{diag}\bigl(\max(|g_t|, \lambda)\bigr), \qquad H_t^{-1} g_t = \mathrm{sign}(g_t)
      \text{ where } |g_t| \ge \lambda$$

    It has no state. With `estimators.Nesterov` it is Lion.

    Args:
        lam: λ. Where |g_t| is below λ, the step is proportional to g_t.

    >>> Sign()
    Sign(lam=1e-15)
    """

    lam: float = 1e-15

    lr = 1e-3
    homogeneous = True
    from_estimate = True
    elementwise = True

    def __post_init__(self) -> None:
        check(self.lam > 0, "lam", self.lam, "lam > 0")

    def H(self, s: Bucket) -> Any:
        return s.estimate.abs().clamp_min(self.lam)

    def solve(self, s: Bucket, g: Any) -> Any:
        return g / g.abs().clamp_min(self.lam)


class Sophia(Diagonal):
    r"""A curvature that is measured every few steps, with steps of at most γ in each coordinate (Liu et al. 2023).

    $$h \leftarrow \beta h + (1-\beta)\, \hat g^2 \text{ in } \texttt{opt.observe()}, \qquad
      H_t = \mathrm{diag}\bigl(\max(\rho B h, |g_t|, \lambda)\bigr)$$

    $\hat g$ is a gradient of the loss with labels that the model itself draws (`sampled_label_loss`), and B is the
    number of labels in its mean: $B \hat g^2$ estimates the diagonal of the Gauss-Newton matrix. Before the first
    `opt.observe()` this matrix equals `Sign`.

    Args:
        beta: weight of the old average of curvatures.
        rho: ρ. A smaller ρ clips more coordinates.
        batch: B, the number of labels in the mean of the observed loss.
        lam: λ, the least entry of H_t.

    >>> Sophia(batch=512)
    Sophia(beta=0.99, rho=0.04, batch=512, lam=1e-15)
    """

    beta: float = 0.99
    rho: float = 0.04
    batch: int = 5120
    lam: float = 1e-15

    lr = 1e-3
    buffers = ("h",)
    from_estimate = True
    elementwise = True

    def __post_init__(self) -> None:
        check(0 <= self.beta < 1, "beta", self.beta, "0 <= beta < 1")
        check(self.rho > 0, "rho", self.rho, "rho > 0")
        check(self.lam > 0, "lam", self.lam, "lam > 0")
        check(self.batch >= 1, "batch", self.batch, "batch >= 1")

    def observe(self, s: Bucket, grad: Any) -> None:
        s.h.mul_(self.beta).addcmul_(grad, grad, value=1 - self.beta)

    def H(self, s: Bucket) -> Any:
        return torch.maximum(s.h * (self.rho * self.batch), s.estimate.abs()).clamp_min(self.lam)


class Rprop(Diagonal):
    r"""A step length for every coordinate, computed only from the signs of its gradients (Rprop: Riedmiller and Braun
    1993).

    $$\delta_t = \mathrm{clip}\Bigl(\delta_{t-1} \cdot \begin{cases} \eta^+ & c_t > 0 \\ \eta^- & c_t < 0 \\ 1
      & c_t = 0\end{cases},\; \frac{\mathrm{least}}{\gamma},\; \frac{\mathrm{most}}{\gamma}\Bigr), \qquad
      c_t = \nabla f(x_t; \xi_t)\, p_{t-1}, \qquad H_t = \mathrm{diag}\bigl(|g_t| / \delta_t\bigr)$$

    $p_t$ is the gradient, or 0 where $c_t < 0$: there $H_t$ is set so large that the coordinate does not move. γ δ is
    the length of a coordinate's step, γ at first. Use it with full-batch gradients: noisy signs carry no information.

    Args:
        grow: η⁺, factor of a step length while the gradient keeps its sign.
        shrink: η⁻, factor where the sign has changed.
        least: the shortest step.
        most: the longest step.

    >>> Rprop()
    Rprop(grow=1.2, shrink=0.5, least=1e-06, most=50.0)
    """

    grow: float = 1.2
    shrink: float = 0.5
    least: float = 1e-6
    most: float = 50.0

    lr = 1e-2
    buffers = ("delta", "last")
    from_estimate = True
    elementwise = True
    on_host = True

    def __post_init__(self) -> None:
        check(self.grow > 1, "grow", self.grow, "grow > 1")
        check(0 < self.shrink < 1, "shrink", self.shrink, "0 < shrink < 1")
        check(0 < self.least <= self.most, "least", self.least, "0 < least <= most")

    def initial(self, name: str) -> float:
        return 1.0 if name == "delta" else 0.0

    def update(self, s: Bucket, grad: Any) -> None:
        agree = grad * s.last
        delta = torch.where(agree < 0, s.delta * self.shrink, s.delta)
        delta = torch.where(agree > 0, s.delta * self.grow, delta)
        gamma = max(float(s.gamma), 1e-300)
        s.delta = delta.clamp_(self.least / gamma, self.most / gamma)
        s.last = torch.where(agree < 0, torch.zeros_like(grad), grad)

    def H(self, s: Bucket) -> Any:
        size = s.estimate.abs().clamp_min(1e-30) / s.delta
        return torch.where(s.last == 0, size * STILL, size)

    def solve(self, s: Bucket, g: Any) -> Any:
        return g.sign() * s.delta * (s.last != 0)


def sampled_label_loss(logits: Tensor) -> Tensor:
    """Return the cross entropy of labels drawn from the model's own predictions, for `Sophia`.

    Every few steps, before computing the gradients of the batch, call `backward()` of this loss, then `opt.observe()`
    and `opt.zero_grad()`. The last dimension of `logits` is the classes.

    >>> float(sampled_label_loss(torch.tensor([[100.0, 0.0], [0.0, 100.0]])))
    0.0
    """
    flat = logits.reshape(-1, logits.shape[-1])
    labels = torch.multinomial(flat.detach().float().softmax(-1), 1).squeeze(-1)
    return torch.nn.functional.cross_entropy(flat, labels)
