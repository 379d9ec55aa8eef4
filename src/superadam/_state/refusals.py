"""What a step refuses, before it changes anything: gradients and parameters that its lines cannot run on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from superadam._state.sharding import local, over_ranks, sharding
from superadam._step.tensors import dot, tracing
from superadam._step.view import View, each, real, state_dtype

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer
    from superadam._state.plans import Plan

__all__ = ["check_finite", "check_gradients", "check_matrix", "check_shapes", "left_out"]

# A matrix that makes a mistake makes it in its first steps.
WATCHED_STEPS = 3


def _named(opt: ComposedOptimizer) -> Iterator[tuple[Plan, Tensor, int, int]]:
    for i, plan in enumerate(opt._plans_of_now()):
        for j, p in enumerate(plan.group["params"]):
            yield plan, p, i, j


def _name(plan: Plan, i: int, j: int) -> str:
    names = plan.group.get("param_names")
    return str(names[j]) if names else f"{j} of group {i}"


def left_out(opt: ComposedOptimizer, loss: object) -> bool:
    """Whether the closure left this batch out on purpose: no gradient, and no loss to take one of.

    Lightning does so in the last pass of its SWA, and where `training_step` returns None. A closure that forgets
    `backward` is not meant: it leaves no gradient in the first step, or returns a loss that could be differentiated.
    """
    if any(p.grad is not None for group in opt.param_groups for p in group["params"]):
        return False
    if loss is not None and (not opt.state or (isinstance(loss, Tensor) and loss.requires_grad)):
        return False
    opt.gradient_evaluations -= 1
    return True


def check_gradients(opt: ComposedOptimizer) -> None:
    """Every gradient is dense and as large as its parameter; with two gradients per batch there is at least one."""
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
            "No parameter has a gradient. With tau > 0 every evaluation must leave gradients: does the closure "
            "call loss.backward(), and the loop call it in both turns?"
        )


def check_shapes(opt: ComposedOptimizer) -> None:
    """Every parameter has the shape and the precision that its state was made for.

    A kernel would write beyond the end of the other.
    """
    for plan, p, i, j in _named(opt):
        state = opt.state.get(p)
        if not state:
            continue
        expected = plan.of(p).slots(real(p))
        for name in expected.keys() & state.keys():
            was, now = (tuple(state[name].shape), state[name].dtype), (tuple(expected[name].shape), state_dtype(p))
            if was != now:
                raise RuntimeError(
                    f"Parameter {_name(plan, i, j)} has shape {tuple(p.shape)} and is {p.dtype}, but its state was "
                    f"made for the shape and precision of another: {name!r} is {was[0]} {was[1]}, expected {now[0]} "
                    f"{now[1]}. Make a new optimizer, or `del opt.state[p]` to start this parameter anew."
                )


def check_finite(opt: ComposedOptimizer) -> None:
    """Where line 9 looks at its input anyway, every gradient is finite, and so is its square, of which H_t is made.

    Without a set or a penalty, numbers that are not finite spread, as in torch.optim: a look waits for the device.
    """
    for plan, p, i, j in _named(opt):
        looks = [part for part in plan.parts[-2:] if part is not None]
        if not looks or p.grad is None or (p.device.type != "cpu" and all(part.separable for part in looks)):
            continue
        grad = real(local(p.grad))
        largest = torch.linalg.vector_norm(grad, math.inf) if grad.numel() else grad.new_zeros(())
        size = float(over_ranks(largest, sharding(p), "max"))
        limit = 0.1 * math.sqrt(torch.finfo(state_dtype(p)).max)
        if not size <= limit:
            raise ValueError(
                f"The gradient of parameter {_name(plan, i, j)} is not finite, or too large: its largest element is "
                f"{size:g}, and {looks[0]} allows {limit:.0g}. This batch is dropped, and training can go on with the "
                "next one."
            )


def check_matrix(s: View) -> None:
    """In its first steps, a matrix that is not ours makes an H that is positive definite.

    Later ones are not looked at: that would wait for the device.
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
        product = float(dot(s.matrix.solve(s, s.g), s.g))
        wrong = None if product >= 0 else f"gᵀH⁻¹g is {product:g}"
    if wrong is not None:
        raise RuntimeError(
            f"{s.matrix} makes an H that is not positive definite: {wrong}, in step {step}. Line 9 needs H > 0: take "
            "absolute values, or roots of squares, and add a λ > 0."
        )
