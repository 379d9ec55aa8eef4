"""Second moments that take little memory: a row and a column for each matrix, or a number for each block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from superadam.bucket import Bucket
from superadam.matrices.base import OfTensors, Rotation, Slot, check_options
from superadam.parts import check

__all__ = ["Adafactor", "AdamMini"]


class _Diagonal(OfTensors, abstract=True):
    """A diagonal H_t for each whole tensor; `diagonal` computes it for g_t."""

    is_diagonal = True

    def size(self, x: Tensor) -> tuple[int, int, int]:
        """Return the number of matrices in a tensor, their rows and their columns."""
        raise NotImplementedError

    def matrices(self, x: Tensor) -> Tensor:
        return x.reshape(self.size(x))

    def diagonal(self, s: Bucket, g: Tensor) -> Tensor:
        raise NotImplementedError

    def H(self, s: Bucket) -> Tensor:
        return self.diagonal(s, s.matrices(s.estimate))

    def solve(self, s: Bucket, g: Tensor) -> Tensor:
        return g / self.diagonal(s, g)

    def eigen(self, s: Bucket) -> tuple[Rotation, Tensor, Rotation]:
        return lambda x: x, self.H(s), lambda x: x


def _repeated(each: Tensor, matrices: Tensor) -> Tensor:
    return each.view(-1, 1).expand(len(each), len(matrices) // len(each)).reshape(len(matrices), 1, 1)


def _rms(s: Bucket, matrices: Tensor) -> Tensor:
    """Return the root of the mean square of each parameter, for each of its matrices."""
    whole = matrices.reshape(len(s.params), matrices.numel() // len(s.params))
    each = (whole.square().sum(-1) / max(1, whole.shape[1])).sqrt()
    return _repeated(each, matrices)


def _mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean over a dimension, which is kept; 0 if the dimension is empty."""
    return x.sum(dim, keepdim=True) / max(1, x.shape[dim])


class Adafactor(_Diagonal):
    r"""The second moment as the product of a row and a column, and steps relative to the size of x (Shazeer and Stern
    2018).

    $$R_t = \beta_t R_{t-1} + (1-\beta_t)\, \mathrm{mean}_j\, \hat g^2, \quad
      C_t = \beta_t C_{t-1} + (1-\beta_t)\, \mathrm{mean}_i\, \hat g^2, \quad \beta_t = 1 - t^{-\mathrm{decay}}, \quad
      V_t = \frac{R_t C_t}{\mathrm{mean}(R_t)}$$

    $$H_t = \sqrt{V_t}\; \frac{\max\bigl(1, \mathrm{RMS}(g_t/\sqrt{V_t})/d\bigr)}{\max\bigl(\varepsilon_2,
      \mathrm{RMS}(x_t)\bigr)} \cdot \frac{\gamma}{\min(\gamma, 1/\sqrt t)}$$

    The last two dimensions of a tensor are factored; vectors have a second moment for every coordinate.

    Args:
        decay: the newest gradient has the weight t^(-decay).
        eps1: ε₁, the square root of the smallest second moment. None means the precision of the parameter's dtype.
        eps2: ε₂, the smallest root mean square of x_t to which steps are relative.
        d: the largest root mean square of an update.
        relative: make steps relative to the size of x_t, with a learning rate of at most 1/√t.

    >>> Adafactor()
    Adafactor(decay=0.8, eps1=None, eps2=0.001, d=1.0, relative=True)
    >>> {name: slot.shape for name, slot in Adafactor().slots(torch.zeros(300, 200)).items()}
    {'row': (1, 300, 1), 'column': (1, 1, 200), 'size': (1, 1, 1)}
    """

    decay: float = 0.8
    eps1: float | None = None
    eps2: float = 1e-3
    d: float = 1.0
    relative: bool = True

    lr = 0.1
    homogeneous = True

    @property
    def no_auto(self) -> str:  # type: ignore[override]
        own = "its steps are relative to the size of x: give lr a number, such as 0.01, or Adafactor(relative=False)"
        return own if self.relative else ""

    def __post_init__(self) -> None:
        check(0 < self.decay <= 1, "decay", self.decay, "0 < decay <= 1")
        check(self.eps1 is None or self.eps1 > 0, "eps1", self.eps1, "eps1 > 0, or None")
        check(self.eps2 > 0, "eps2", self.eps2, "eps2 > 0")
        check(self.d > 0, "d", self.d, "d > 0")

    def size(self, x: Tensor) -> tuple[int, int, int]:
        return (1, 1, x.numel()) if x.dim() < 2 else (math.prod(x.shape[:-2]), x.shape[-2], x.shape[-1])

    def slots(self, x: Tensor) -> dict[str, Slot]:
        n, rows, columns = self.size(x)
        if x.dim() < 2:
            return {"v": Slot((n, rows, columns)), "size": Slot((n, 1, 1), 1.0)}
        return {"row": Slot((n, rows, 1)), "column": Slot((n, 1, columns)), "size": Slot((n, 1, 1), 1.0)}

    def update(self, s: Bucket, grad: Tensor) -> None:
        weight = float(s.t**-self.decay)
        squared = grad.square()
        if s.params[0].dim() < 2 and not s.params[0].is_complex():
            s.v.lerp_(squared, weight)
        else:
            s.row.lerp_(_mean(squared, -1), weight)
            s.column.lerp_(_mean(squared, -2), weight)
        if self.relative:
            share = min(s.step**-0.5 / max(float(s.gamma), 1e-300), 1.0)
            s.size = _rms(s, s.matrices(s.x.to(grad.dtype))).clamp(min=self.eps2) * share

    def diagonal(self, s: Bucket, g: Tensor) -> Tensor:
        eps = torch.finfo(s.params[0].dtype).eps if self.eps1 is None else self.eps1
        if s.params[0].dim() < 2 and not s.params[0].is_complex():
            V = s.v
        else:
            V = s.row * s.column / _mean(s.row, -2).clamp(min=eps)
        h = V.clamp(min=eps * eps).sqrt()
        H: Tensor = h * (_rms(s, g / h) / self.d).clamp(min=1.0) / s.size
        return H


class AdamMini(_Diagonal):
    r"""Adam with one second moment for each block of coordinates (Zhang et al. 2024).

    $$v_t = \beta v_{t-1} + (1-\beta)\, \mathrm{mean}_{\text{block}}\, \nabla f(x_t; \xi_t)^2, \qquad
      H_t = \mathrm{diag}(\sqrt{v_t} + \lambda) \text{, constant in every block}$$

    A block is `rows` rows of a matrix (its first dimension), or a whole vector. The authors use one row for values,
    projections and embeddings, and one head for queries and keys. To do the same, give queries and keys their own
    matrix with `ByShape(names=…)`.

    Args:
        beta: weight of the old average; 1 - β is that of the newest gradient.
        lam: λ, added to the root of the second moment. It bounds H_t from below, and so the steps from above.
        bias_correction: divide v_t by 1 - β^t, as Adam does.
        rows: number of rows of a matrix that share a second moment.

    >>> AdamMini(rows=64)
    AdamMini(beta=0.999, lam=0.0005, bias_correction=False, rows=64)
    >>> AdamMini().slots(torch.zeros(300, 200))["v"].shape
    (300, 1, 1)
    """

    beta: float = 0.999
    lam: float = 5e-4
    bias_correction: bool = False
    rows: int = 1

    homogeneous = True

    def __post_init__(self) -> None:
        check_options(self)
        check(self.rows >= 1, "rows", self.rows, "rows >= 1")

    def accepts(self, x: Tensor) -> bool:
        return x.dim() < 2 or x.shape[0] % self.rows == 0

    def size(self, x: Tensor) -> tuple[int, int, int]:
        return (1, 1, x.numel()) if x.dim() < 2 else (len(x) // self.rows, self.rows, math.prod(x.shape[1:]))

    def slots(self, x: Tensor) -> dict[str, Slot]:
        return {"v": Slot((self.size(x)[0], 1, 1))}

    def update(self, s: Bucket, grad: Tensor) -> None:
        n = max(1, grad.shape[-2] * grad.shape[-1])
        s.v.lerp_(grad.square().sum((-2, -1), keepdim=True) / n, 1 - self.beta)

    def diagonal(self, s: Bucket, g: Tensor) -> Tensor:
        h = s.v.sqrt()
        if self.bias_correction:
            h = h / (1 - self.beta**s.t) ** 0.5
        H: Tensor = (h + self.lam).expand_as(g)
        return H
