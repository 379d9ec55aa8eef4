"""The schedules: what their weights are."""

from superadam import schedules


def test_the_paper_has_hardly_any_momentum_in_its_first_four_hundred_steps():
    """docs/choosing.md: α is capped at 0.9 that long, with the paper's values for CIFAR and τ = 0."""
    capped = [t for t in range(2, 1000) if schedules.Paper().alpha_t(t, tau=0.0) == 0.9]
    assert capped == list(range(2, 395))
