"""Line 4: the four kinds of adaptive matrices H_t."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from superadam.bucket import Bucket, State
from superadam.lists import add_scaled
from superadam.parts import Part, check

__all__ = ["Diagonal", "Joint", "Matrix", "MultipleOfIdentity", "OfTensors", "Scalar", "Slot"]

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
    """Base class of the four kinds of adaptive matrices: `Diagonal`, `Scalar`, `PerTensor`, `Joint`.

    `s` is the bucket: `s.t`, the state by its names, and each 0-d tensor named in `scalars` (initially zero, and shared
    by all parameters with this matrix). Change them in place or assign to them; an assignment is written into the
    state.

    In every step the optimizer calls `update` with the newest gradient; then, if there are scalars, `measure` for sums
    over the given coordinates, adds these up over all parameters and processes, and calls `reduce` with the totals;
    then `solve`, `H` or `eigen` for line 9.

    >>> from superadam import matrices
    >>> isinstance(matrices.Yogi(), matrices.Diagonal), isinstance(matrices.GradientNorm(), matrices.Scalar)
    (True, True)
    >>> isinstance(matrices.SOAP(), matrices.PerTensor), isinstance(matrices.DampedLBFGS(), matrices.Joint)
    (True, True)
    """

    scalars: ClassVar[tuple[str, ...]] = ()
    two_point: ClassVar[bool] = False
    r"""Whether H_t needs both gradients of a batch. If so, and if `s.paired`, `update` and `measure` find
    $x_t - x_{t-1}$ in `s.dx` and $\nabla f(x_{t-1}; \xi_t)$ in `s.q`."""
    vanishes: ClassVar[bool] = False
    """Whether H_t → 0, so that line 9 asks the set for its `lmo` and nothing else."""
    homogeneous: ClassVar[bool] = False
    """Whether gradients that are c times as large make H_t c times as large, where λ is small beside it."""
    no_auto: ClassVar[str] = ""
    """Why `lr="auto"` is refused with this matrix, and what to write instead. Empty where a step moves every coordinate
    by about γ, whatever the size of the gradients: this is what `lr="auto"` estimates a learning rate for."""
    lr: ClassVar[float] = 1e-3
    """A γ that trains if μ_t = 1, which `lr=None` takes. Adam's, for matrices of its kind."""

    _instead: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("adam", "adamw"), "matrix=SecondMoment(lam=1e-8, bias_correction=True), which is the default"),
        "rmsprop": 'matrix=SecondMoment(beta=0.99, lam=1e-8), or create("rmsprop", params)',
        "sgd": 'matrix=Identity(), or create("sgd", params)',
        **dict.fromkeys(("lion", "signsgd", "signum"), 'matrix=Sign(), or create("lion", params)'),
        "adabelief": 'matrix=Belief(), or create("adabelief", params)',
    }

    # The kinds, for modules that do not import this one.
    is_diagonal: ClassVar[bool] = False
    multiple_of_identity: ClassVar[bool] = False
    per_tensor: ClassVar[bool] = False
    joint: ClassVar[bool] = False
    from_estimate: ClassVar[bool] = False
    """Whether a diagonal `H` is made of g_t itself."""
    watches_steps: ClassVar[bool] = False
    """Whether there is a `moved`."""
    buffers: ClassVar[tuple[str, ...]] = ()

    @property
    def has_factors(self) -> bool:
        """Whether H_t is not diagonal, of each tensor, and depends on earlier gradients."""
        return False

    @property
    def lower_bound(self) -> float:
        """A ρ with H_t ⪰ ρI for all t and any gradients (assumption 3); 0 if none is known.

        By default λ, for a matrix A_t + λI. Override it in a matrix that uses an option `lam` in another way.
        """
        return float(getattr(self, "lam", 0.0))

    def slots(self, x: Tensor) -> dict[str, Slot]:
        """Return the state for a parameter like x (a complex parameter appears as its real view)."""
        return {name: Slot(tuple(x.shape), self.initial(name)) for name in self.buffers}

    def accepts(self, x: Tensor) -> bool:
        """Return whether this matrix works for parameters like x. `ByShape` gives the others to another matrix."""
        return True

    def initial(self, name: str) -> float:
        """Return the initial value of a buffer or a scalar."""
        return 0.0

    def scalar_shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the tensor for a name in `scalars`."""
        return ()

    def update(self, s: Bucket, grad: Any) -> None:
        """Update the state to its values at t."""

    def measure(self, s: Bucket, grad: Any) -> tuple[Tensor, ...]:
        """Return sums over the given coordinates, as 0-d tensors."""
        raise NotImplementedError(f"{type(self).__name__} has scalars but no measure")

    def reduce(self, s: Any, totals: tuple[Tensor, ...]) -> None:
        """Update the scalars to their values at t, given the sums over all parameters. `s` has the scalars only."""
        raise NotImplementedError(f"{type(self).__name__} has scalars but no reduce")

    def H(self, s: Bucket) -> Any:
        """Return the diagonal of H_t, like the parameters; or a 0-d tensor b for H_t = b I."""
        raise NotImplementedError(f"{type(self).__name__} has no H")

    def eigen(self, s: Bucket) -> tuple[Rotation, Tensor, Rotation]:
        """Return H_t = Q diag(d) Qᵀ, if it is cheap to compute: x ↦ Qᵀx, a d that broadcasts to x, and x ↦ Qx."""
        raise NotImplementedError(f"{type(self).__name__} has no eigen")

    def mixes(self, x: Tensor) -> tuple[int, ...] | None:
        """Return the dimensions of a tensor like x along which `eigen` mixes coordinates. None: it has no `eigen`."""
        return () if self.is_diagonal else None

    def solve(self, s: Bucket, g: Any) -> Any:
        """Return H_t⁻¹ g_t."""
        return g / self.H(s)

    def descend(self, s: Bucket, x: Any, g: Any, eta: Any) -> None:
        """Set x to x - η H_t⁻¹ g in place."""
        add_scaled(x, self.solve(s, g), -eta)

    def inverse(self, s: Bucket) -> Rotation:
        """Return v ↦ H_t⁻¹ v for any v. `solve` is for g_t only, because the H_t of some matrices depends on g_t."""
        if type(self).eigen is Matrix.eigen:
            return lambda v: self.solve(s, v)
        rotate, d, back = self.eigen(s)
        return lambda v: back(rotate(v) / d)

    def has_kernel(self, schedule: Any) -> bool:
        """Return whether torch has a fused kernel that takes the same steps."""
        return False

    def fused_step(self, s: Bucket) -> bool:
        """Take all lines of a step with τ = 0 by torch's fused kernel. Return False, with nothing changed, where the
        kernel cannot work on these tensors."""
        return False

    def observe(self, s: Bucket, grad: Any) -> None:
        """Take in a gradient that the user computed for H_t, not for the step: called by `opt.observe()`."""

    def absent(self, state: State) -> None:
        """Take note that a batch has no gradient for a parameter with this state."""

    def moved(self, s: Bucket, step: Any) -> None:
        """Take note of a step along `step` = H_t⁻¹ g_t."""


class Diagonal(Matrix, abstract=True):
    r"""A learning rate for every coordinate. A subclass defines `buffers` (tensors like x), `update` and `H`.

    Your own matrix is a subclass whose fields are its options:

    >>> import torch
    >>> class CubeRoot(Diagonal):
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

    is_diagonal = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.watches_steps = cls.moved is not Matrix.moved

    def descend(self, s: Bucket, x: Any, g: Any, eta: Any) -> None:
        if type(self).solve is not Matrix.solve:
            add_scaled(x, self.solve(s, g), -eta)
        elif isinstance(eta, float):
            x.addcdiv_(g, self.H(s), value=-eta)
        else:
            x.addcdiv_(g * eta, self.H(s), value=-1)


class Scalar(Matrix, abstract=True):
    r"""$H_t = b_t I$: one learning rate for all coordinates. A subclass defines `scalars`, `measure`, `reduce` and `H`.

    The norms and inner products of `measure` are taken over all param groups with an equal matrix.

    >>> import torch
    >>> from superadam.matrices import norm2
    >>> class SummedNorms(Scalar):
    ...     scalars = ("total",)
    ...     def measure(self, s, grad):
    ...         return (norm2(grad),)
    ...     def reduce(self, s, totals):
    ...         s.total += totals[0]
    ...     def H(self, s):
    ...         return s.total.sqrt() + 1e-8
    >>> from superadam import SuperAdam
    >>> x = torch.zeros(2, requires_grad=True)
    >>> x.grad = torch.tensor([3.0, 4.0])
    >>> SuperAdam([x], lr=1.0, matrix=SummedNorms()).step()
    >>> x.detach()
    tensor([-0.6000, -0.8000])
    """

    is_diagonal = True
    multiple_of_identity = True

    def descend(self, s: Bucket, x: Any, g: Any, eta: Any) -> None:
        x.addcmul_(g, eta / self.H(s), value=-1)


class MultipleOfIdentity(Scalar, abstract=True):
    r"""$H_t = (b_t + \lambda) I$, from a global quantity $b_t$.

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

    def __post_init__(self) -> None:
        check_options(self)

    def H(self, s: Bucket) -> Tensor:
        b: Tensor = s.b
        return b + self.lam


class OfTensors(Matrix, abstract=True):
    """Base class of matrices that need each tensor whole: its `matrices`, a batch of shape (batch, rows, columns).

    Tensors of one shape share a batch, so `grad` and the state may hold several of them.
    """

    per_tensor = True
    of_estimate: ClassVar[bool] = False
    """Whether `update` takes g_t instead of the newest gradient."""
    refreshes_first: ClassVar[bool] = False
    """Whether `refresh` comes before `update`, so that H_t's eigenvectors are those of earlier gradients."""

    @property
    def updates(self) -> bool:
        """Whether H_t depends on earlier gradients."""
        return type(self).update is not Matrix.update

    @property
    def refreshes(self) -> bool:
        """Whether there is work that is not needed in every step."""
        return type(self).refresh is not OfTensors.refresh

    @property
    def has_factors(self) -> bool:
        """Whether H_t is not diagonal and depends on earlier gradients."""
        return not self.is_diagonal and self.updates

    @property
    def reshapes(self) -> bool:
        """Whether `matrices` and `tensor` only reshape, so that many tensors of one shape can be reshaped at once."""
        return False

    def matrices(self, x: Tensor) -> Tensor:
        """Return a tensor as a batch of matrices. By default one matrix with x's rows."""
        return x.flatten(1).unsqueeze(0)

    def tensor(self, matrices: Tensor, shape: Any) -> Tensor:
        """Return the inverse of `matrices`: a tensor of this shape."""
        return matrices.reshape(shape)

    def refresh(self, s: Bucket) -> None:
        """Update roots or eigenvectors: called in the first step and then every `every` steps.

        Tensors of different sizes, shapes or names are refreshed in different steps. If the optimizer does not know
        names (pass a module, or `named_parameters()`), tensors of one shape are refreshed together, because the result
        must not depend on their order.
        """

    def factors(self, s: Bucket) -> dict[str, Tensor]:
        """Return the symmetric factors of H_t, in batches, for the monitor; a diagonal factor as its diagonal."""
        return {}


class Joint(Matrix, abstract=True):
    """One matrix over all parameters of all groups that have it. `solve` gets a bucket of all of them.

    >>> from superadam.matrices import DampedLBFGS
    >>> isinstance(DampedLBFGS(), Joint)
    True
    """

    joint = True


def check_options(matrix: Any) -> None:
    """Check the conditions of Algorithm 1 on the options that a matrix has."""
    for name in ("beta", "beta1", "beta2", "rho"):
        value = getattr(matrix, name, 0.0)
        check(0 <= value < 1, name, value, f"0 <= {name} < 1")
    for name in ("lam", "eps", "v_0"):
        value = getattr(matrix, name, 0.0)
        check(value >= 0, name, value, f"{name} >= 0")
