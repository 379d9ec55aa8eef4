"""Lightning: τ = 0 and τ = 1, with automatic and with manual optimization; stopped after an epoch and resumed.

pip install superadam[trainers]; python examples/with_lightning.py    # under ten seconds

Prints the losses of a run that was never stopped and of one that was, which are the same.
"""

import tempfile
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, callbacks, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam


class Net(LightningModule):
    """Lightning passes a closure to `step` itself: with automatic optimization τ = 1 needs nothing."""

    def __init__(self, tau, manual):
        super().__init__()
        self.automatic_optimization, self.tau, self.losses = not manual, tau, []
        self.net = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 1))

    def configure_optimizers(self):
        self.opt = SuperAdam(self, lr=0.03, tau=self.tau, schedule="Paper")
        return self.opt

    def training_step(self, batch, index):
        if self.automatic_optimization:
            return self.evaluate(batch)
        opt: Any = self.optimizers()  # one, where there could be several

        def closure():
            opt.zero_grad()
            loss = self.evaluate(batch)
            self.manual_backward(loss)
            return loss

        return opt.step(closure)

    def evaluate(self, batch):
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def on_train_end(self):
        self.opt.flush()


def train(tau, manual, folder, *, epochs, resume=None):
    seed_everything(0, verbose=False)
    x = torch.randn(320, 10)
    loader = DataLoader(TensorDataset(x, (x[:, :1] * x[:, 1:2]).tanh()), batch_size=32)
    model = Net(tau, manual)
    quiet: dict[str, Any] = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    saving = callbacks.ModelCheckpoint(folder, filename="last")
    trainer = Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[saving], **quiet)
    trainer.fit(model, loader, ckpt_path=resume)
    return model.losses


def main():
    results = {}
    for tau, manual in ((0.0, False), (1.0, False), (0.0, True), (1.0, True)):
        with tempfile.TemporaryDirectory() as folder:
            whole = train(tau, manual, f"{folder}/whole", epochs=3)
            half = train(tau, manual, f"{folder}/half", epochs=2)
            resumed = half + train(tau, manual, f"{folder}/rest", epochs=3, resume=f"{folder}/half/last.ckpt")
        name = f"tau={tau:g}, {'manual' if manual else 'automatic'}"
        results[name] = {"whole": whole, "resumed": resumed}
        print(f"{name}: loss {whole[0]:.4f} to {whole[-1]:.4f}, {len(whole)} evaluations, same: {whole == resumed}")
    return results


if __name__ == "__main__":
    main()
