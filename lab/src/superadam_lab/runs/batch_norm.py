"""BatchNorm whose batch is shared by several processes."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["JointBatchNorm", "join_statistics"]


def join_statistics(model: nn.Module) -> None:
    """Replace every BatchNorm of a model by one that uses the joint batch."""
    if any(p.is_cuda for p in model.parameters()):
        nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, JointBatchNorm.of(child))


class JointBatchNorm(nn.BatchNorm2d):
    """BatchNorm with mean and variance over the images of all processes, which may have different numbers of images.
    torch's `SyncBatchNorm` does the same on GPUs only."""

    @classmethod
    def of(cls, norm: nn.BatchNorm2d) -> JointBatchNorm:
        """The same layer, with the parameters and statistics of another."""
        joint = cls(norm.num_features, norm.eps, norm.momentum)
        joint.load_state_dict(norm.state_dict())
        return joint

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        sums = _total(torch.cat([x.sum((0, 2, 3)), x.new_tensor([x[:, 0].numel()])]))
        mean, n = sums[:-1] / sums[-1], sums[-1]
        centred = x - mean.view(1, -1, 1, 1)
        variance = _total(centred.square().sum((0, 2, 3))) / n
        self._follow(mean, variance * n / (n - 1))
        scale = self.weight * (variance + self.eps).rsqrt()
        out: Tensor = centred * scale.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)
        return out

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running averages, for evaluation."""
        cast(Tensor, self.num_batches_tracked).add_(1)
        cast(Tensor, self.running_mean).lerp_(mean, cast(float, self.momentum))
        cast(Tensor, self.running_var).lerp_(variance, cast(float, self.momentum))


class Total(torch.autograd.Function):
    """The sum over the processes. Its gradient is again a sum over the processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _total(grad.contiguous())


def _total(x: Tensor) -> Tensor:
    return cast(Tensor, Total.apply(x))  # type: ignore[no-untyped-call]
