"""What a step refuses before it changes anything: gradients, parameters and matrices that it cannot work with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superadam._state import owners
from superadam._state.sharding import Sharding, local, over_ranks, sharding
from superadam._step.view import View
from superadam.lists import dot, each, real, state_dtype, tracing

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer
    from superadam._state.plans import GroupPlan

__all__ = [
    "NotFiniteError",
    "check_agreement",
    "check_finite",
    "check_gradients",
    "check_left_out",
    "check_matrix",
    "check_shapes",
    "finite",
    "waits",
]

# How many steps of a user's matrix are checked: a wrong one is wrong from the start.
WATCHED_STEPS = 3
LOOK_EVERY = 10  # steps after which the host asks a device whether gradients were left out


class NotFiniteError(ValueError):
    """A gradient that was refused, with its batch: nothing has changed, and the next batch can follow.

    >>> from superadam import SuperAdam, NotFiniteError
    >>> x = torch.ones(2, requires_grad=True)
    >>> opt = SuperAdam([x], constraint="Simplex")
    >>> x.grad = torch.tensor([float("nan"), 0.0])
    >>> try:
    ...     opt.step()
    ... except NotFiniteError:
    ...     print("dropped")
    dropped
    """


def waits(x: Tensor) -> bool:
    """Whether the host would have to wait for the value of a tensor."""
    return x.device.type != "cpu"


def _named(opt: ComposedOptimizer) -> Iterator[tuple[GroupPlan, Tensor, int, int]]:
    for i, plan in enumerate(opt._current_plans()):
        for j, p in enumerate(plan.group["params"]):
            yield plan, p, i, j


def _name(plan: GroupPlan, i: int, j: int) -> str:
    names = plan.group.get("param_names")
    return str(names[j]) if names else f"{j} of group {i}"


def check_gradients(opt: ComposedOptimizer) -> None:
    """Refuse gradients that are sparse or of another shape; with two gradients per batch, refuse to have none."""
    seen = False
    for plan, p, i, j in _named(opt):
        if p.grad is None:
            continue
        seen = True
        if p.grad.layout is not torch.strided:
            raise RuntimeError(
                f"SuperAdam does not support sparse gradients (parameter {_name(plan, i, j)}): use dense ones, e.g. "
                "nn.Embedding(..., sparse=False)"
            )
        if p.grad.shape != p.shape:
            raise RuntimeError(
                f"Parameter {_name(plan, i, j)} has shape {tuple(p.shape)}, but its gradient has shape "
                f"{tuple(p.grad.shape)}: clear the gradients after a parameter is resized."
            )
    check_shapes(opt)
    if not seen and opt.two_point:
        raise RuntimeError(
            "No parameter has a gradient. With tau > 0 every evaluation must compute gradients: does the closure "
            "call loss.backward(), and does the `twice` loop call it in both turns?"
        )


def check_agreement(opt: ComposedOptimizer) -> None:
    """Refuse, on all processes, a gradient that only some have, where one of them owns the matrix of the parameter.

    The length of the messages to the owner depends on the gradients. Without this check the processes would wait for
    each other for ever, or mix up gradients.
    """
    have = owners.have_gradients(opt._places)
    for plan, p, i, j in _named(opt):
        if p in have and 0 < have[p] < (size := opt._places[p].group.size()):
            here = "has none" if p.grad is None else "has one"
            raise RuntimeError(
                f"Parameter {_name(plan, i, j)} has a gradient on {have[p]} of {size} processes (this one {here}), but "
                "one process computes its matrix for all. Give it a gradient on every process or on none. (DDP with "
                "find_unused_parameters=True does: zeros where the parameter was not used.)"
            )


def check_shapes(opt: ComposedOptimizer) -> None:
    """Refuse parameters whose shape or precision is not that of their state: a kernel would write beyond its end."""
    for plan, p, i, j in _named(opt):
        state = opt.state.get(p)
        if not state:
            continue
        expected = plan.slots(p)
        for name in expected.keys() & state.keys():
            was, now = (tuple(state[name].shape), state[name].dtype), (tuple(expected[name].shape), plan.dtype(p, name))
            if was != now:
                raise RuntimeError(
                    f"Parameter {_name(plan, i, j)} has shape {tuple(p.shape)} and is {p.dtype}, but its state was "
                    f"created for another shape or precision: {name!r} is {was[0]} {was[1]}, expected {now[0]} "
                    f"{now[1]}. Construct a new optimizer, or `del opt.state[p]` to reset this parameter."
                )


def check_finite(opt: ComposedOptimizer) -> None:
    """Refuse gradients that are not finite, or whose squares are not, with a set, a penalty or factors of H_t.

    Line 9 would have no answer on a set, and a factor would never forget. All other numbers that are not finite spread,
    as in torch.optim: a check would wait for the device. For factors it does not wait either, see `finite`.
    """
    _check_for_factors(opt)
    for plan, p, i, j in () if all([plan.free for plan in opt._plans]) else _named(opt):
        looks = [part for part in plan.parts[-2:] if part is not None]
        if not looks or p.grad is None or (waits(p) and not any(part.waits for part in looks)):
            continue
        grad = real(local(p.grad))
        limit = 0.1 * math.sqrt(torch.finfo(state_dtype(p)).max)
        # A norm takes half the time of the largest element, and is larger. (Only norms of infinite order are slow.)
        if float(over_ranks(torch.linalg.vector_norm(grad), sharding(p), "max")) <= limit:
            continue
        largest = torch.stack(torch.aminmax(grad)).abs().amax() if grad.numel() else grad.new_zeros(())
        size = float(over_ranks(largest, sharding(p), "max"))
        if not size <= limit:
            raise NotFiniteError(
                f"The gradient of parameter {_name(plan, i, j)} is not finite, or too large: its largest element is "
                f"{size:g}, and {looks[0]} allows {limit:.0g}. This batch is dropped, and training can go on with the "
                "next one."
            )


@torch.no_grad()
def _check_for_factors(opt: ComposedOptimizer) -> None:
    """Refuse what would make a factor of H_t infinite, or not a number, where the host sees it without waiting."""
    norms: dict[tuple[Sharding, torch.dtype], list[Tensor]] = {}
    for layout in (layout for plan in opt._plans for layout in plan.layouts or ()):
        if layout.refuses:
            grads = [p.grad for p in layout.params if p.grad is not None]
            if not layout.plain:
                grads = [real(local(grad)).to(state_dtype(grad)) for grad in grads]
            for norm in torch._foreach_norm(grads) if grads else ():
                norms.setdefault((layout.sharding, norm.dtype), []).append(norm)
    squares = [(torch.stack(of).square().sum().double(), how) for (how, _), of in norms.items()]
    if all([float(over_ranks(square, how)) <= _largest_square(torch.float32) for square, how in squares]):
        return
    for plan, p, i, j in _named(opt):
        if p.grad is None or not plan.of(p).matrix.has_factors or waits(p):
            continue
        square = torch.linalg.vector_norm(real(local(p.grad)).to(state_dtype(p))).square()
        if not float(over_ranks(square, sharding(p))) <= _largest_square(square.dtype):
            raise NotFiniteError(
                f"The gradient of parameter {_name(plan, i, j)} is not finite, or its square is not: it would stay in "
                f"the factors of {plan.of(p).matrix} for ever. This batch is dropped, and training can go on with the "
                "next one. If this happens in every batch, check the loss, or lower lr."
            )


def _largest_square(dtype: torch.dtype) -> float:
    """The largest ‖∇f‖² that factors take: products with an inverse factor (KLShampoo) are finite, too."""
    return 1e-8 * torch.finfo(dtype).max


def finite(s: View, batch: Tensor) -> Tensor:
    """What H_t and the step of a matrix with factors may see: zeros in place of matrices that are not finite.

    Where the host would wait, nothing is refused: the device leaves them out, and `check_left_out` tells of it later.
    """
    if not waits(batch) or s.layout is None or not s.matrix.has_factors:
        return batch
    usable = torch.linalg.vector_norm(batch, dim=(-2, -1), keepdim=True).isfinite()
    s.layout.left_out = s.layout.left_out + usable.logical_not().sum()
    return torch.where(usable, batch, 0.0)


def check_left_out(s: View) -> None:
    """Raise an error if gradients were left out on the device. Checked every tenth step, because it waits for the
    device."""
    step = s.states[0]["step"]
    if type(step) is int and step % LOOK_EVERY == 0 and bool(s.layout.left_out > 0):
        s.layout.left_out = 0
        shapes = ", ".join(sorted({str(tuple(p.shape)) for p in s.params}))
        raise RuntimeError(
            f"{type(s.matrix).__name__}: in the last {LOOK_EVERY} steps a gradient of shape {shapes}, or its square, "
            "was not finite. The step left it out: the factors of H_t are finite, and these parameters did not move. "
            "opt.restart() resets g_t so that training can go on. To avoid such batches, use a GradScaler, or skip "
            "batches with a non-finite loss."
        )


def check_matrix(s: View, solve: Callable[[View, Tensor], Tensor]) -> None:
    """Refuse an H of a user's matrix that is not positive definite. Checked in a few steps only, because it waits for
    the device.

    `solve` computes H⁻¹g, as the step does.
    """
    step = s.states[0]["step"]
    if tracing.get() or type(s.matrix).__module__.startswith("superadam."):
        return
    if s.matrix.scope == "coordinate":
        H = s.matrix.H(s)
        least = min((float(part.detach().amin()) for part in each(H) if part.numel()), default=1.0)
        wrong = None if least > 0 else f"its least element is {least:g}"
    elif s.matrix.scope == "all" and s.direction is not None:
        return  # `solve_jointly` has looked
    else:
        product = float(over_ranks(dot(solve(s, s.estimate), s.estimate), s.sharding))
        wrong = None if product >= 0 else f"gᵀH⁻¹g is {product:g}"
    if wrong is not None:
        raise RuntimeError(
            f"{s.matrix} returned an H that is not positive definite: {wrong}, in step {step}. Line 9 needs H > 0: use "
            "absolute values or square roots of squares, and add λ > 0."
        )
