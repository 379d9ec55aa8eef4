"""Hugging Face's Trainer as it is, and with `TwoPoint`."""

import tempfile

import torch
import transformers
from torch import nn
from torch.utils.data import SequentialSampler

from superadam import SuperAdam
from superadam.trainers import TwoPoint


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, dataset):
        return SequentialSampler(dataset)


class TwoPointTrainer(TwoPoint, InOrder):
    pass


class Model(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net, self.losses = net, []

    def forward(self, x, labels):
        out = self.net(x)
        loss = nn.functional.mse_loss(out, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": out}


def train(model, dataset, *, tau, size, accumulate, kind=TwoPointTrainer, epochs=2, clip=None, max_grad_norm=0.0):
    """The Trainer after training."""
    model = Model(model)
    opt = SuperAdam(model, lr=0.05, tau=tau, clip=clip)
    scheduler = torch.optim.lr_scheduler.ConstantLR(opt, 1.0)
    quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": [], "save_strategy": "no", "logging_steps": 1}
    with tempfile.TemporaryDirectory() as folder:
        args = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=size,
            gradient_accumulation_steps=accumulate,
            max_grad_norm=max_grad_norm,
            num_train_epochs=epochs,
            **quiet,
        )
        items = [{"x": x, "labels": y} for x, y in dataset]
        trainer = kind(model=model, args=args, train_dataset=items, optimizers=(opt, scheduler))
        trainer.train()
    return trainer
