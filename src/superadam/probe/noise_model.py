r"""Does variance reduction pay for its second gradient? The rule behind `probe`, as functions of plain numbers.

A step is $x_{t+1} = x_t - \gamma H^{-1} g_t$ with $g_t = \nabla f(x_t) + e_t$; norms and curvatures are those of
$H^{-1}$, in which this is a plain gradient step. A batch's gradient has variance $\sigma^2$, the difference of its
gradients at $x_t$ and $x_{t-1}$ has variance $D = r\sigma^2$. With τ = 1 the error $e_t$ is below $\sigma^2$, but
persists for $1/\alpha$ steps: on a quadratic with curvature λ, x has φ times the variance that plain gradients cause.
For one step of τ = 1 at γ, τ = 0 takes two steps at γ/2: the same progress, the same number of gradients, and half the
noise. So τ = 1 pays if $\varphi < 1/2$ for some α, at a γ that is stable: roughly if $\gamma\kappa_n^2 < \lambda$,
where $\kappa_n^2$ measures how much batches disagree about the curvature. docs/probe.md derives it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Measured", "best_alpha", "curvature_limit", "error", "least_alpha", "noise_in_x", "noise_ratio"]

ALPHAS = tuple(10 ** (-k / 16) for k in range(33))  # 1 … 0.01: less would take hundreds of steps to settle


@dataclass(frozen=True)
class Measured:
    """The inputs of the rule, for one learning rate, in the norm of H⁻¹.

    >>> measured = {"gradient2": 0.01, "noise": 1.0, "kappa_gradient2": 0.1, "kappa_noise2": 0.1}
    >>> noisy = Measured(lr=0.1, **measured, curvature_noise=1.0, curvature_max=1.0)
    >>> noise_ratio(noisy, best_alpha(noisy)) < 1  # variance reduction pays
    True
    """

    lr: float
    gradient2: float
    """‖∇f‖²."""
    noise: float
    """σ²."""
    kappa_gradient2: float
    """κ_g²: the variance of differences over a step of size 1 along the gradient."""
    kappa_noise2: float
    """κ_n²: the same along the noise."""
    curvature_noise: float
    """λ, the curvature along the noise."""
    curvature_max: float


def error(alpha: float, ratio: float) -> float:
    r"""Return $\mathrm{E}\|e_t\|^2/\sigma^2$ with τ = 1: $(\alpha^2 + (1-\alpha) r) / (\alpha (2-\alpha))$.

    Args:
        alpha: α.
        ratio: $r = D/\sigma^2$.

    >>> error(1.0, ratio=0.5)
    1.0
    >>> round(error(0.1, ratio=0.01), 4)
    0.1
    """
    return (alpha**2 + (1 - alpha) * ratio) / (alpha * (2 - alpha))


def noise_in_x(alpha: float, ratio: float, ell: float) -> float:
    r"""Return φ, the variance of x with τ = 1 as a multiple of that of plain gradients.

    $$\varphi = \frac{\mathrm{E}\|e_t\|^2}{\sigma^2} \cdot \frac{1 + ab}{1 - ab}, \qquad a = 1-\gamma\lambda,\;
      b = 1-\alpha.$$

    Args:
        alpha: α.
        ratio: r.
        ell: γλ.

    >>> noise_in_x(1.0, ratio=0.5, ell=0.1)
    1.0
    >>> noise_in_x(0.1, ratio=0.01, ell=0.001) > 1 > noise_in_x(0.1, ratio=0.01, ell=0.5)
    True
    """
    ab = (1 - min(ell, 2.0)) * (1 - alpha)
    return error(alpha, ratio) * (1 + ab) / (1 - ab)


def curvature_limit(curvature: float, *, alpha: float, tau: float) -> float:
    r"""Return the largest stable γ on a quadratic.

    It is $\frac{2}{\lambda} \cdot \frac{1+b}{1-b+2b\tau}$ with $b = 1-\alpha$. With τ = 1 this is 2/λ for any α, as for
    gradient descent: without noise $g_t$ *is* $\nabla f(x_t)$. With τ = 0, momentum b allows a γ that is (1+b)/(1-b)
    times as large.

    Args:
        curvature: λ.
        alpha: α.
        tau: τ.

    >>> curvature_limit(1.0, alpha=0.1, tau=1.0), round(curvature_limit(1.0, alpha=0.1, tau=0.0), 9)
    (2.0, 38.0)
    """
    b = 1 - alpha
    return 2 / curvature * (1 + b) / (1 - b + 2 * b * tau) if curvature > 0 else math.inf


def least_alpha(p: Measured) -> float:
    """Return the α below which, with τ = 1, the error feeds itself through the steps and grows without bound.

    Args:
        p: the measured inputs.

    >>> round(least_alpha(Measured(0.1, 1.0, 1.0, 50.0, 50.0, 1.0, 1.0)), 3)  # κ_n²γ² = 1/2
    0.219
    """
    k = p.kappa_noise2 * p.lr**2
    return (2 + k - math.sqrt(4 + k * k)) / 2


def ratio_at(p: Measured, alpha: float) -> float:
    """Return D/σ² with the feedback of the error on the steps. Infinite if the error feeds itself."""
    if p.noise == 0:
        return 0.0
    k = p.lr**2
    left = 1 - k * p.kappa_noise2 * (1 - alpha) / (alpha * (2 - alpha))
    right = k * (p.kappa_gradient2 * p.gradient2 / p.noise + p.kappa_noise2 * alpha / (2 - alpha))
    return right / left if left > 0 else math.inf


def noise_ratio(p: Measured, alpha: float) -> float:
    """Return 2φ, noise in x with τ = 1 as a multiple of that with τ = 0, at equal progress and numbers of gradients.

    Args:
        p: the measured inputs.
        alpha: α.

    >>> noise_ratio(Measured(0.1, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0), alpha=1.0)  # no variance reduction, half the steps
    2.0
    """
    return 2 * noise_in_x(alpha, ratio_at(p, alpha), p.lr * p.curvature_noise)


def best_alpha(p: Measured) -> float:
    """Return the α that leaves the least noise in x, with τ = 1.

    Args:
        p: the measured inputs.

    >>> best_alpha(Measured(0.1, 1.0, 1.0, 50.0, 50.0, 1.0, 1.0))  # differences as noisy as gradients
    1.0
    """
    return min(ALPHAS, key=lambda alpha: noise_ratio(p, alpha))
