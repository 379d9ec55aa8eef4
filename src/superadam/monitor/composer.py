"""MosaicML Composer's protocol for an optimizer's metrics of each parameter.

Composer's `OptimizerMonitor` asks the optimizer for metrics of every parameter. For sharded parameters, it also asks
the optimizer to prepare them for a sum over all ranks, and to take that sum.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from superadam._state.phases import START, UNESTIMATED
from superadam._step.line_9 import direction, gamma_of_move
from superadam.monitor.measures import stand_in, x_of

if TYPE_CHECKING:
    from superadam._state.composed import ComposedOptimizer

__all__ = ["PerParameterMetrics"]

COSINES = (("moment", "grad"), ("update", "grad"))


class PerParameterMetrics:
    """Norms of ĝ, g_t (Composer's "moment"), x and γ μ_t H_t⁻¹ g_t ("update"), and cosines, for each parameter.

    The update is that of line 9 without a set, a penalty or weight decay.
    """

    @torch.no_grad()
    def report_per_parameter_metrics(
        self, param: Tensor, name: str, optimizer_metrics: dict[str, Any]
    ) -> dict[str, Any]:
        """Add the metrics of a parameter, as 0-d tensors."""
        opt = cast("ComposedOptimizer", self)
        group = next((g for g in opt.param_groups if any(p is param for p in g["params"])), None)
        if group is None or param.grad is None or opt.state.get(param, {}).get("phase", START) in UNESTIMATED:
            return optimizer_metrics
        c = stand_in(opt, group, param, param, param.grad)
        vectors = {"grad": c.grad, "moment": c.estimate, "param": x_of(c)}
        if c.matrix.scope != "all":
            vectors["update"] = direction(c, c.estimate) * (gamma_of_move(c) * c.mu)
        norms = {key: torch.linalg.vector_norm(value) for key, value in vectors.items()}
        optimizer_metrics.update({f"l2_norm/{key}/{name}": value for key, value in norms.items()})
        for a, b in COSINES:
            if a in vectors:
                product = norms[a] * norms[b]
                cosine = torch.where(product > 0, (vectors[a] * vectors[b]).sum() / product, 0.0)
                optimizer_metrics[f"cosine/{a}_{b}/{name}"] = cosine
        return optimizer_metrics

    def pre_reduce_metrics(self, optimizer_metrics: dict[str, Any]) -> dict[str, Any]:
        """Metrics that can be summed over ranks: squares instead of norms, inner products instead of cosines."""
        summable = {}
        for metric, value in optimizer_metrics.items():
            norms = _norms_of(metric)
            factor = math.prod(float(optimizer_metrics[norm]) for norm in norms)
            summable[metric] = torch.as_tensor(value) * factor
        return summable

    def dist_reduce_metrics(self, optimizer_metrics: dict[str, Any]) -> dict[str, Any]:
        """Sum over all ranks, and convert back to norms and cosines. A rank may hold no part of a parameter."""
        totals = {metric: float(value) for metric, value in optimizer_metrics.items()}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            ranks: list[Any] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(ranks, totals)
            names = sorted({metric for rank in ranks for metric in rank})
            totals = {metric: sum(rank.get(metric, 0.0) for rank in ranks) for metric in names}
        reduced = {
            metric: math.sqrt(value) if metric.startswith("l2_norm/") else value for metric, value in totals.items()
        }
        for metric in [m for m in reduced if m.startswith("cosine/")]:
            product = math.prod(reduced[norm] for norm in _norms_of(metric))
            reduced[metric] = reduced[metric] / product if product > 0 else 0.0
        return reduced


def _norms_of(metric: str) -> list[str]:
    """The norms by which a metric must be multiplied to become a sum over coordinates."""
    kind, vectors, name = (*metric.split("/", 2), "", "")[:3]
    if kind == "l2_norm":
        return [metric]
    return [f"l2_norm/{vector}/{name}" for vector in vectors.split("_")] if kind == "cosine" else []
