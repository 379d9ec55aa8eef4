"""Line 4: the base class of the adaptive matrices H_t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from superadam.parts import Part, check

if TYPE_CHECKING:
    from superadam._step.view import View

__all__ = ["Matrix", "MultipleOfIdentity", "Slot"]

Rotation = Callable[[Tensor], Tensor]

STILL = 1e15  # H_t over its usual size where a coordinate shall not move


class Slot(NamedTuple):
    """A tensor of the state: its shape and initial value. With `eye` it starts as that multiple of I.

    >>> Slot((3, 3), 1.0, eye=True)
    Slot(shape=(3, 3), fill=1.0, eye=True)
    """

    shape: tuple[int, ...]
    fill: float = 0.0
    eye: bool = False


class Matrix(Part, kind="matrix"):
    r"""Base class of the adaptive matrices.

    `s` is the current state: `s.t`, each tensor of `slots` and each 0-d tensor named in `scalars` (initially zero, and
    shared by all parameters with this matrix). Change them in place or assign to them; an assignment is written into
    the state. `scope` says what kind of matrix H_t is:

    - "coordinate": diagonal, or b I. A subclass defines `update` and `H`. `grad` and the buffers are tensors, or lists
      of tensors with the same element-wise operations.
    - "tensor": a positive definite matrix for each tensor. A subclass defines `slots`, `update`, `solve`, and `refresh`
      for work that is not needed in every step. The method `matrices` turns tensors into batches of matrices, of shape
      (batch, rows, columns). Tensors of one shape share a batch, so `grad` and the slots may hold several of them.
    - "all": one matrix over all parameters. A subclass defines `measure`, `reduce` and `solve`.

    In every step the optimizer calls

    1. `update`, to update the buffers, and `refresh`, every `every` steps;
    2. `measure`, if there are scalars, for sums over the given coordinates, which the optimizer adds up over all
       parameters;
    3. `reduce`, once, with the totals, to update the scalars;
    4. `solve`, when it takes the step of line 9.

    Your own matrix is a subclass whose fields are its options:

    >>> import torch
    >>> class CubeRoot(Matrix):
    ...     beta: float = 0.999
    ...     lam: float = 1e-3
    ...     buffers = ("v",)
    ...     def update(self, s, grad):
    ...         s.v = self.beta * s.v + (1 - self.beta) * grad.abs() ** 3
    ...     def H(self, s):
    ...         return s.v ** (1 / 3) + self.lam
    >>> from superadam import SuperAdam
    >>> x = torch.tensor([3.0, -2.0], requires_grad=True)
    >>> opt = SuperAdam([x], lr=1.0, matrix=CubeRoot(beta=0.99))
    >>> for _ in range(200):
    ...     opt.zero_grad()
    ...     x.square().sum().backward()
    ...     opt.step()
    >>> bool(x.abs().max() < 0.5)
    True
    """

    scope: ClassVar[str] = "coordinate"
    buffers: ClassVar[tuple[str, ...]] = ()
    """Tensors shaped like the parameters."""
    scalars: ClassVar[tuple[str, ...]] = ()
    two_point: ClassVar[bool] = False
    r"""Whether H_t needs both gradients of a batch. If so, and if `s.paired`, `measure` finds $x_t - x_{t-1}$ in `s.dx`
    and $\nabla f(x_{t-1}; \xi_t)$ in `s.q`."""
    multiple_of_identity: ClassVar[bool] = False
    """Whether H_t = b I, so that `H` is a 0-d tensor."""
    watches_steps: ClassVar[bool] = False
    """Whether `moved` is to be told of every step."""
    vanishes: ClassVar[bool] = False
    """Whether H_t → 0, so that line 9 asks the set for its `lmo` and nothing else."""
    of_estimate: ClassVar[bool] = False
    """Whether `update` takes g_t instead of the newest gradient, with the scope "tensor"."""
    homogeneous: ClassVar[bool] = False
    """Whether gradients that are c times as large make H_t c times as large, where λ is small beside it."""
    from_estimate: ClassVar[bool] = False
    """Whether `H` is made of g_t itself, with the scope "coordinate"."""
    refreshes_first: ClassVar[bool] = False
    """Whether `refresh` comes before `update`, so that H_t's eigenvectors are those of earlier gradients."""
    no_auto: ClassVar[str] = ""
    """Why `lr="auto"` is refused with this matrix, and what to write instead. Empty where a step moves every coordinate
    by about γ, whatever the size of the gradients: this is what `lr="auto"` estimates a learning rate for."""
    lr: ClassVar[float] = 1e-3
    """A γ that trains if μ_t = 1, which `lr=None` takes. Adam's, for matrices of its kind."""

    @property
    def lower_bound(self) -> float:
        """A ρ with H_t ⪰ ρI for all t and any gradients (assumption 3); 0 if none is known.

        By default λ, for a matrix A_t + λI. Override it in a matrix that uses an option `lam` in another way.
        """
        return float(getattr(self, "lam", 0.0))

    def matrices(self, x: Tensor) -> Tensor:
        """A tensor as a batch of matrices, (batch, rows, columns). By default one matrix with x's rows."""
        return x.flatten(1).unsqueeze(0)

    def tensor(self, matrices: Tensor, shape: torch.Size) -> Tensor:
        """The inverse of `matrices`: a tensor of this shape."""
        return matrices.reshape(shape)

    @property
    def reshapes(self) -> bool:
        """Whether `matrices` and `tensor` only reshape, so that many tensors of one shape can be reshaped at once."""
        return False

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """The state for a parameter like x (a complex parameter appears as its real view). With the scope "tensor", the
        first dimension of every slot is the batch dimension of `matrices(x)`."""
        return {name: Slot(tuple(x.shape), self.initial(name)) for name in self.buffers}

    def accepts(self, x: Tensor) -> bool:
        """Whether this matrix works for parameters like x. `ByShape` gives the others to another matrix."""
        return True

    def initial(self, name: str) -> float:
        """The initial value of a buffer or a scalar."""
        return 0.0

    def scalar_shape(self, name: str) -> tuple[int, ...]:
        """The shape of the tensor for a name in `scalars`."""
        return ()

    def update(self, s: View, grad: Tensor) -> None:
        """Update the buffers to their values at t."""

    def refresh(self, s: View) -> None:
        """Update roots or eigenvectors: called in the first step and then every `every` steps.

        Tensors of different sizes, shapes or names are refreshed in different steps. If the optimizer does not know
        names (pass a module, or `named_parameters()`), tensors of one shape are refreshed together, because the result
        must not depend on their order.
        """

    def measure(self, s: View, grad: Tensor) -> tuple[Tensor, ...]:
        """Sums over the given coordinates, as 0-d tensors."""
        raise NotImplementedError(f"{type(self).__name__} has scalars but no measure")

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        """Update the scalars to their values at t, given the sums over all parameters. `s` has the scalars only."""
        raise NotImplementedError(f"{type(self).__name__} has scalars but no reduce")

    def H(self, s: View) -> Tensor:
        """The diagonal of H_t, shaped like the parameters; or a 0-d tensor b for H_t = b I."""
        raise NotImplementedError(f"{type(self).__name__} has no H")

    def eigen(self, s: View) -> tuple[Rotation, Tensor, Rotation]:
        """H_t = Q diag(d) Qᵀ, if it is cheap to compute: x ↦ Qᵀx, a d that broadcasts to x, and x ↦ Qx."""
        raise NotImplementedError(f"{type(self).__name__} has no eigen")

    def factors(self, s: View) -> dict[str, Tensor]:
        """The symmetric factors of a tensor's H_t, in batches, for the monitor. A diagonal factor is given as its
        diagonal."""
        return {}

    @property
    def is_diagonal(self) -> bool:
        """Whether `H` is all of H_t. Every set works with such a matrix."""
        return self.scope == "coordinate"

    @property
    def has_factors(self) -> bool:
        """Whether each tensor has a matrix that is not diagonal and depends on earlier gradients."""
        return self.scope == "tensor" and not self.is_diagonal and type(self).update is not Matrix.update

    def mixes(self, x: Tensor) -> tuple[int, ...] | None:
        """The dimensions of a tensor like x along which `eigen` mixes coordinates. None: it has no `eigen`."""
        return () if self.is_diagonal else None

    def solve(self, s: View, g: Tensor) -> Tensor:
        """H_t⁻¹ g. With the scope "all", `s` holds all parameters that share this matrix."""
        return g / self.H(s)

    def inverse(self, s: View) -> Rotation:
        """v ↦ H_t⁻¹ v for any v. `solve` is for g_t only, because the H_t of some matrices depends on g_t."""
        if type(self).eigen is Matrix.eigen:
            return lambda v: self.solve(s, v)
        rotate, d, back = self.eigen(s)
        return lambda v: back(rotate(v) / d)

    def observe(self, s: View, grad: Tensor) -> None:
        """Called by `opt.observe()`: `grad` is a gradient that the user computed for H_t, not for the step."""

    def absent(self, state: dict[str, Any]) -> None:
        """Called if a batch has no gradient for a parameter with this state."""

    def moved(self, s: View, step: Tensor) -> None:
        """Called after a step along `step` = H_t⁻¹ g_t."""


class MultipleOfIdentity(Matrix, abstract=True):
    r"""$H_t = (b_t + \lambda) I$: one learning rate for all coordinates, from a global quantity $b_t$.

    Args:
        lam: λ, added to b_t. It bounds H_t from below, and so the steps from above.

    >>> import torch
    >>> from superadam.matrices import norm2
    >>> class LargestNorm(MultipleOfIdentity):
    ...     def measure(self, s, grad):
    ...         return (norm2(grad),)
    ...     def reduce(self, s, totals):
    ...         s.b = torch.maximum(s.b, totals[0].sqrt())
    >>> LargestNorm(lam=0.1).scalars
    ('b',)
    """

    lam: float = field(default=5e-4, kw_only=True)

    lr = 3e-3
    scalars: ClassVar[tuple[str, ...]] = ("b",)
    multiple_of_identity = True

    def __post_init__(self) -> None:
        check_options(self)

    def H(self, s: View) -> Tensor:
        b: Tensor = s.b
        return b + self.lam


def check_options(matrix: Any) -> None:
    """The conditions of Algorithm 1 on the options that a matrix has."""
    for name in ("beta", "beta1", "beta2", "rho"):
        value = getattr(matrix, name, 0.0)
        check(0 <= value < 1, name, value, f"0 <= {name} < 1")
    for name in ("lam", "eps", "v_0"):
        value = getattr(matrix, name, 0.0)
        check(value >= 0, name, value, f"{name} >= 0")
