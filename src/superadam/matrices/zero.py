"""H_t → 0: the step of Frank and Wolfe."""

from __future__ import annotations

from typing import Any

from superadam.bucket import Bucket
from superadam.matrices.base import Diagonal

__all__ = ["Zero"]


class Zero(Diagonal):
    r"""$H_t \to 0$ on a bounded set: line 9 goes to the boundary of the set, and line 10 part of the way.

    $$\mathrm{lmo}(g_t) = \arg\min_{x \in \mathcal{X}} \langle g_t, x\rangle, \qquad
      \tilde x_{t+1} = x_t + \min(\gamma, 1) \bigl(\mathrm{lmo}(g_t) - x_t\bigr)$$

    Without H_t, line 9 does not depend on γ. So `lr` is the fraction of the way to lmo(g_t): the whole way with the
    default `lr=None`, and with 1 or more. The size of a step is $\gamma \mu_t$, as with every other matrix, so
    schedulers work. It has no state.

    - Frank and Wolfe's algorithm: `schedules.Constant(mu=2 / 3, alpha=1.0, decay=1 / 3)`, which is $\mu_t = 2/(t+2)$.
    - Scion (Pethick et al. 2025): a set for each param group, `SpectralBall` for hidden layers.
    - Muon with weight decay w: `SpectralBall(s / w)` with `lr=lr * w`; Lion likewise on `LInfBall(1 / w)`.

    >>> import torch
    >>> from superadam import SuperAdam, sets
    >>> x = torch.zeros(3, requires_grad=True)
    >>> x.grad = torch.tensor([2.0, -0.1, 0.0])
    >>> SuperAdam([x], lr=0.5, matrix=Zero(), constraint=sets.LInfBall(1.0)).step()
    >>> x.detach()
    tensor([-0.5000,  0.5000,  0.0000])
    """

    lr = 1.0
    elementwise = True
    vanishes = True

    def H(self, s: Bucket) -> Any:
        return s.one * 0

    def objection(self, others: Any, options: dict[str, Any]) -> str | None:
        if others.constraint is not None and not others.constraint.bounded:
            name = type(others.constraint).__name__
            return (
                f"only a bounded set ends a step with H → 0, and {name} is not, or has no lmo: "
                f"{others.constraint.no_lmo}. Sets that have one are, say, SpectralBall, L2Ball and Simplex"
            )
        if others.stepsize is not None:
            return f"lr is a share of the way, and {others.stepsize} makes something else of it: use stepsize=None"
        if others.penalty is not None:
            return f"argmin ⟨g, x⟩ + h(x) over a set is not known for {others.penalty}: use penalty=None"
        if options["weight_decay"] != 0 and options["decoupled_weight_decay"]:
            return (
                "weight decay w has no effect beside lmo(g), for line 10 decays x already: use weight_decay=0, a set "
                "with 1/w times the radius, and w times the lr"
            )
        return None
