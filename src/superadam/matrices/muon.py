"""Muon's matrix: the step is the nearest matrix with orthonormal rows or columns."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.matrices.base import Rotation, check_options
from superadam.matrices.per_tensor import PerTensor, eigh
from superadam.matrices.products import combined, product, symmetric
from superadam.parts import check

__all__ = ["Muon", "polar"]

Triple = tuple[float, float, float]

JORDAN: Triple = (3.4445, -4.7750, 2.0315)
# Polynomials a x + b x³ + c x⁵, one after the other, that take all singular values to about 1.
COEFFICIENTS: dict[str, tuple[Triple, ...]] = {
    "jordan": (JORDAN,),
    "you": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
        (1.875, -1.25, 0.375),
    ),
}
SAFETY = 1.01  # of polar_express: its polynomials must not meet a singular value above 1
LARGE = 128  # rows from which products take longer than calls
SCALES = ("original", "match_rms_adamw", "spectral")


def polynomials(name: str | Triple, steps: int) -> list[Triple]:
    """Return the first `steps` polynomials of a set, or of one triple. If there are fewer, the last one is repeated."""
    known = COEFFICIENTS[name] if isinstance(name, str) else (name,)
    chosen = [known[min(i, len(known) - 1)] for i in range(steps)]
    if name == "polar_express":
        chosen[:-1] = [(a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in chosen[:-1]]
    return chosen


def polar(G: Tensor, triples: list[Triple], safety: float = 1.0, eps: float = 1e-7) -> Tensor:
    """Return an approximation of (G Gᵀ)^(-1/2) G for a batch of matrices, by the Newton–Schulz iteration.

    >>> G = torch.tensor([[[3.0, 0.0], [0.0, 0.1]]])
    >>> polar(G, polynomials("polar_express", 8)).round(decimals=3)
    tensor([[[1., 0.],
             [0., 1.]]])
    """
    X = G.mT if G.shape[-2] > G.shape[-1] else G
    X = X / (safety * torch.linalg.matrix_norm(X, keepdim=True)).clamp(min=eps)
    for some in _together(X, triples):
        X = _by_gram(X, some) if len(some) > 1 else _newton_schulz(X, *some[0])
    return X.mT if G.shape[-2] > G.shape[-1] else X


def _together(X: Tensor, triples: list[Triple]) -> list[list[Triple]]:
    """Groups of polynomials that are applied together, on the smaller Gram matrix.

    Polynomials in a group share two products with X, and multiply Gram matrices instead. For an X that is almost square
    this is more work, so each polynomial is then a group of its own. In low precision a Gram matrix has negative
    eigenvalues, which three polynomials would make large.
    """
    rows, columns = X.shape[-2:]
    precise = X.dtype in (torch.float32, torch.float64)
    if 2 * columns <= 3 * rows or (rows < LARGE and not precise):
        return [[triple] for triple in triples]
    return [triples] if precise else [triples[:1], *(triples[i : i + 2] for i in range(1, len(triples), 2))]


def _newton_schulz(X: Tensor, a: float, b: float, c: float) -> Tensor:
    R = symmetric(X, X.mT)
    return combined(X, symmetric(R, R, R, beta=b, alpha=c), X, beta=a)


def _by_gram(X: Tensor, triples: list[Triple]) -> Tensor:
    R, Q = symmetric(X, X.mT), X.new_empty(0)
    for i, (a, b, c) in enumerate(triples):  # all of these are polynomials of X Xᵀ, so they commute
        Z = symmetric(R, R, R, beta=b, alpha=c)
        Z.diagonal(dim1=-2, dim2=-1).add_(a)
        Q = Z if i == 0 else symmetric(Z, Q)
        if i + 1 < len(triples):
            R = symmetric(symmetric(Z, R), Z)
    return product(Q, X)


@functools.cache
def _multiplies_bfloat16() -> bool:
    """Return whether this CPU has units for it. Without them it takes longer than float32."""
    cpu: Any = torch.cpu
    return any(getattr(cpu, name, bool)() for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))


class Muon(PerTensor):
    r"""The polar factor of $g_t$: Muon (Jordan et al. 2024), as an adaptive matrix.

    $$H_t = s^{-1} (g_t g_t^\top)^{1/2} \otimes I + \lambda I, \qquad H_t^{-1} g_t = s\, U V^\top \text{ for } \lambda =
      0 \text{ and } g_t = U \Sigma V^\top$$

    on the smaller side of each matrix. With λ = 0, polynomials approximate $U V^\top$. `scale` chooses s:

    - "original": $\sqrt{\max(1, m/n)}$ for m rows and n columns, as torch.optim.Muon;
    - "match_rms_adamw": $0.2\sqrt{\max(m, n)}$, so that learning rates of AdamW fit (Liu et al. 2025);
    - "spectral": $\sqrt{m/n}$, for learning rates that do not depend on the width.

    Args:
        coefficients: which polynomials approximate U Vᵀ: "jordan" (Muon's own: singular values of 0.7 to 1.2), "you",
            "polar_express" (Amsel et al. 2025, which converges: 6 to 8 steps make it exact), or the triple (a, b, c) of
            one polynomial aX + b(XXᵀ)X + c(XXᵀ)²X.
        steps: number of polynomials.
        scale: which s, of the list above.
        lam: λ. Above 0, H_t is exact, by eigenvectors, and assumption 3 holds; `capturable` is refused.
        eps: the smallest norm by which g_t is divided before the first polynomial.
        dtype: name of the iteration's dtype. None means bfloat16 for float32 gradients on accelerators, and on CPUs
            with fast bfloat16 products. If the polynomials are more precise than bfloat16 (more than five steps of
            "polar_express"), None means the dtype of g_t.

    >>> from superadam import SuperAdam
    >>> x = torch.zeros(2, 3, requires_grad=True)
    >>> x.grad = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.5, 0.0]])
    >>> SuperAdam([x], lr=1.0, matrix=Muon(coefficients="polar_express", steps=8)).step()
    >>> x.detach().round(decimals=3)
    tensor([[-1.,  0.,  0.],
            [ 0., -1.,  0.]])
    """

    coefficients: str | Triple = "jordan"
    steps: int = 5
    scale: str = "original"
    lam: float = 0.0
    eps: float = 1e-7
    dtype: str | None = None

    lr = 0.02
    ignores_zeros = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self)
        names = ", ".join(COEFFICIENTS)
        known = self.coefficients in COEFFICIENTS if isinstance(self.coefficients, str) else len(self.coefficients) == 3
        check(known, "coefficients", self.coefficients, f"one of {names}, or three numbers")
        check(self.scale in SCALES, "scale", self.scale, f"one of {', '.join(SCALES)}")
        check(isinstance(self.steps, int) and self.steps >= 1, "steps", self.steps, "a whole number steps >= 1")
        equal = self.lam == 0 or isinstance(self.split, int)
        check(equal, "split", self.split, "a whole number, with lam > 0")
        known = self.dtype is None or isinstance(getattr(torch, str(self.dtype), None), torch.dtype)
        check(known, "dtype", self.dtype, "the name of a dtype, such as 'bfloat16', or None")

    @property
    def has_factors(self) -> bool:
        """True with λ > 0: eigenvectors exist for finite gradients only, so that a step refuses others."""
        return self.lam > 0

    def factor(self, m: int, n: int) -> float:
        """s."""
        if self.scale == "original":
            return math.sqrt(max(1.0, m / n))
        return 0.2 * math.sqrt(max(m, n)) if self.scale == "match_rms_adamw" else math.sqrt(m / n)

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        if self.lam > 0:
            rotate, d, back = self.eigen(s)
            return back(rotate(g) / d)
        dtype = self.precision(g) if self.dtype is None else getattr(torch, self.dtype)
        safety = SAFETY if self.coefficients == "polar_express" else 1.0
        step = polar(g.to(dtype), polynomials(self.coefficients, self.steps), safety, self.eps)
        rows, columns = g.shape[-2:]
        if isinstance(self.split, int):
            factor = self.factor(rows, columns)
            return step.to(g.dtype) if factor == 1 else step.to(g.dtype).div_(1 / factor)
        step, parts = step.to(g.dtype, copy=True), len(self.split)
        for i, m in enumerate(self.split):  # each of its own size, without the zeros below it
            step[i::parts] *= self.factor(m, columns)
        return step

    def precision(self, g: Tensor) -> torch.dtype:
        """bfloat16 if it is faster and its rounding errors are no larger than the error of the polynomials."""
        rough = self.coefficients != "polar_express" or self.steps <= 5
        fast = g.device.type != "cpu" or (min(g.shape[-2:]) >= 32 and _multiplies_bfloat16())
        return torch.bfloat16 if rough and fast and g.dtype is torch.float32 else g.dtype

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if self.lam > 0 and options["capturable"]:
            return "with lam > 0 it takes eigenvectors in each step, and the host waits for them: use lam=0"
        if self.lam == 0 and not (others.constraint is None and others.penalty is None):
            return (
                "H_t is singular where g_t is, and line 9 with a set or a penalty needs H_t > 0: use lam > 0. Muon on "
                "a SpectralBall is matrices.Zero()"
            )
        return None

    def mixes(self, x: Tensor) -> tuple[int, ...]:
        _, rows, columns = self.size(x)
        return self.dims(x, rows=rows <= columns, columns=rows > columns)

    def eigen(self, s: Bucket) -> tuple[Rotation, Tensor, Rotation]:
        G = s.estimates
        left = G.shape[-2] <= G.shape[-1]
        size = G.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(G.dtype).tiny)
        G = G / size  # whose squares neither overflow nor vanish
        values, Q = eigh(G @ G.mT if left else G.mT @ G, "Muon")
        d = size.squeeze(-1) * values.clamp(min=0).sqrt() / self.factor(*G.shape[-2:]) + self.lam
        if left:
            return lambda x: Q.mT @ x, d.unsqueeze(-1), lambda x: Q @ x
        return lambda x: x @ Q, d.unsqueeze(-2), lambda x: x @ Q.mT
