"""What the pages say about other methods and about the paper's settings, checked on small problems."""

import pytest
import torch

from superadam import schedules, sets

Q = torch.tensor([10.0, 1.0, 0.1], dtype=torch.float64)


def ends(constraint, a, *, exact):
    """Where RMSprop with γ/√t ends on ½ Σ qᵢ (xᵢ - aᵢ)²: with the exact step, or projected afterwards."""
    x, v = torch.full_like(Q, 0.3), torch.zeros_like(Q)
    for t in range(1, 401):
        g = Q * (x - a)
        v = 0.99 * v + 0.01 * g * g
        H, gamma = (v / (1 - 0.99**t)).sqrt() + 1e-3, 0.3 / t**0.5
        x = constraint.argmin(x - gamma * g / H, H / gamma if exact else 1.0)
    return x


@pytest.mark.parametrize(
    ("constraint", "a", "right"),
    [
        (sets.L2Ball(1.0), (0.2, 0.5, -0.4), True),  # the minimum is inside
        (sets.Box(-0.5, 0.5), (0.2, 2.0, -3.0), True),  # clips every coordinate by itself
        (sets.L2Ball(1.0), (0.5, 2.0, 3.0), False),
    ],
    ids=["inside", "box", "border"],
)
def test_projecting_after_an_adaptive_step_is_right_inside_and_on_boxes_only(constraint, a, right):
    """docs/constraints.md, "Why the metric matters"."""
    a = torch.tensor(a, dtype=torch.float64)
    minimum = constraint.argmin(a, Q)
    assert torch.dist(ends(constraint, a, exact=True), minimum) < 1e-2
    distance = torch.dist(ends(constraint, a, exact=False), minimum)
    assert distance < 1e-2 if right else distance > 0.1


def test_the_paper_has_hardly_any_momentum_in_its_first_four_hundred_steps():
    """docs/choosing.md: α is capped at 0.9 that long, with the paper's values for CIFAR and τ = 0."""
    capped = [t for t in range(2, 1000) if schedules.Paper().alpha_t(t, tau=0.0) == 0.9]
    assert capped == list(range(2, 395))
