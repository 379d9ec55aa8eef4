"""Lightning with manual optimization: micro-batches are kept, and a closure evaluates them, at both points if τ = 1."""

import lightning
from torch import nn
from torch.utils.data import DataLoader

from superadam import SuperAdam

QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


class Net(lightning.LightningModule):
    def __init__(self, net, accumulate, **options):
        super().__init__()
        self.automatic_optimization = False
        self.net, self.accumulate, self.options = net, accumulate, options
        self.micro_batches = []

    def configure_optimizers(self):
        return SuperAdam(self, lr=0.05, **self.options)

    def training_step(self, batch, index):
        self.micro_batches.append(batch)
        if len(self.micro_batches) == self.accumulate or self.trainer.is_last_batch:
            self.optimizers().step(self.closure)
            self.micro_batches = []

    def closure(self):
        self.optimizers().zero_grad()
        for x, y in self.micro_batches:
            self.manual_backward(nn.functional.mse_loss(self.net(x), y) / len(self.micro_batches))


def train(model, dataset, *, tau, size, accumulate, epochs=2, clip=None):
    """The Lightning module after training."""
    net = Net(model, accumulate, tau=tau, clip=clip)
    trainer = lightning.Trainer(max_epochs=epochs, accelerator="cpu", **QUIET)
    trainer.fit(net, DataLoader(dataset, batch_size=size))
    return net
