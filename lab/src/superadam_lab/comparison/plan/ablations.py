"""Control methods: does the paper's algorithm win by its idea, or by something that AdamW could use too?"""

from __future__ import annotations

from superadam.schedules import BiasCorrected

__all__ = ["ABLATIONS", "BiasCorrectedPaper"]


class BiasCorrectedPaper(BiasCorrected):
    r"""Adam's average with the step sizes of theorem 2: $\mu_t = (100+t)^{-1/2}$, as in `Paper` with τ = 0.

    >>> BiasCorrectedPaper().mu_t(300, tau=0.0)
    0.05
    """

    def mu_t(self, t: int, tau: float) -> float:
        mu: float = (100 + t) ** -0.5
        return mu


ABLATIONS = {
    "adamw eps=0.0005": "adamw eps=0.0005",
    "adamw, paper's decay": "adamw schedule=BiasCorrectedPaper",
    "super_adam tau=0": "super_adam tau=0",
    "super_adam tau=0.025": "super_adam tau=0.025",
    "super_adam tau=0.1": "super_adam tau=0.1",
    "super_adam tau=1": "super_adam tau=1",
    "super_adam tau=1, other masks": "super_adam tau=1 replay=false",
}
"""ε = λ in AdamW; the paper's μ_t in AdamW; a grid of τ; and, as a negative control, τ = 1 whose two gradients of a
batch see different dropout masks, so that their noise does not cancel."""
