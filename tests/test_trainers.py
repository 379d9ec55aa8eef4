"""In every trainer the optimizer takes the steps that it takes in a plain loop, and resuming is not stopping."""

import copy
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam, twice
from superadam._state import replay
from superadam.trainers import TwoPoint

WHY = "comes with superadam[trainers]"


def data():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def net(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)).double()


def plain(tau, *, size=4, accumulate=1, clip=None, epochs=2, decay=1.0):
    """The model after a loop with closures, before `flush`."""
    model = net()
    opt = SuperAdam(model, lr=0.05, tau=tau, clip=clip)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, decay)
    micro = list(DataLoader(TensorDataset(*data()), batch_size=size // accumulate))
    for i in list(range(0, len(micro), accumulate)) * epochs:

        def closure(i=i):
            opt.zero_grad()
            for x, y in micro[i : i + accumulate]:
                (nn.functional.mse_loss(model(x), y) / accumulate).backward()
            return torch.zeros(())

        opt.step(closure)
        scheduler.step()
    return model


def same(a, b):
    """Parameters, and BatchNorm's statistics: each batch counts once."""
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


# ------------------------------------------------------------------------------------------------ Lightning


# What Lightning itself causes, and says.
of_lightning = pytest.mark.filterwarnings(
    "ignore:.*does not have many workers",
    "ignore:The dirpath has changed",
)


@pytest.fixture
def lightning():
    return pytest.importorskip("lightning", reason=WHY)


def lightning_net(lightning, tau, *, clip=None):
    class Net(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def configure_optimizers(self):
            opt = SuperAdam(self, lr=0.05, tau=tau, clip=clip)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
            return [opt], [{"scheduler": scheduler, "interval": "step"}]

        def training_step(self, batch, index):
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

    return Net()


@of_lightning
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_lightning_equals_the_plain_loop(tau, lightning, tmp_path):
    """Its closure, its LR scheduler, BatchNorm; also when it is stopped and resumed from its own checkpoint."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    loader = DataLoader(TensorDataset(*data()), batch_size=4)
    expected = plain(tau, clip=0.5, decay=0.9)
    for epochs, path in ((2, None), (1, None), (2, tmp_path / "1.ckpt")):
        model = lightning_net(lightning, tau, clip=0.5)
        trainer = lightning.Trainer(max_epochs=epochs, default_root_dir=tmp_path, enable_checkpointing=False, **quiet)
        trainer.fit(model, loader, ckpt_path=path)
        trainer.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        assert trainer.global_step == 10 * epochs
        if epochs == 2:
            assert same(model.net, expected)


@of_lightning
def test_micro_batches_that_lightning_would_lose_are_refused(lightning):
    """It evaluates all but the last outside the closure, at one point: right with τ = 0 only."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    loader = DataLoader(TensorDataset(*data()), batch_size=2)

    def train(tau):
        model = lightning_net(lightning, tau)
        trainer = lightning.Trainer(max_epochs=2, accumulate_grad_batches=2, enable_checkpointing=False, **quiet)
        trainer.fit(model, loader)
        return model.net

    assert same(train(0.0), plain(0.0, accumulate=2, decay=0.9))
    with pytest.raises(RuntimeError, match="accumulate_grad_batches=1"):
        train(1.0)


# ------------------------------------------------------------------------------------------------ Accelerate


@pytest.mark.parametrize("way", ["tau=0", "closure", "twice"])
def test_accelerate_equals_the_plain_loop(way):
    accelerate = pytest.importorskip("accelerate", reason=WHY)
    accelerator = accelerate.Accelerator(cpu=True)
    tau = 0.0 if way == "tau=0" else 1.0
    model = net()
    loader = DataLoader(TensorDataset(*data()), batch_size=4)
    model, opt, loader = accelerator.prepare(model, SuperAdam(model, lr=0.05, tau=tau), loader)

    def evaluate(x, y):
        opt.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(x), y))

    for _ in range(2):
        for x, y in twice(loader) if way == "twice" else loader:
            if way == "closure":
                opt.step(lambda x=x, y=y: evaluate(x, y))
            else:
                evaluate(x, y)
                opt.step()
    assert same(model, plain(tau))


# ------------------------------------------------------------------------------------------------ Hugging Face Trainer


class Model(nn.Module):
    """As the Trainer wants it, with the state of the generator at every evaluation."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.net, self.seen = net(dropout), []

    def forward(self, x, labels):
        self.seen.append(torch.get_rng_state())
        out = self.net(x)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


@pytest.fixture
def make_trainer(tmp_path):
    transformers = pytest.importorskip("transformers", reason=WHY)

    class TwoPointTrainer(TwoPoint, transformers.Trainer):
        def get_train_dataloader(self):
            items = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
            return self.accelerator.prepare(DataLoader(items, batch_size=self.args.per_device_train_batch_size))

    def make(tau, *, clip=None, dropout=0.0, kind=TwoPointTrainer, decay=1.0, **options):
        options = {"per_device_train_batch_size": 4, "max_grad_norm": 0, "num_train_epochs": 2, **options}
        quiet = {"use_cpu": True, "disable_tqdm": True, "report_to": [], "logging_steps": 1}
        args = transformers.TrainingArguments(output_dir=str(tmp_path), save_steps=7, **quiet, **options)
        model = Model(dropout)
        opt = SuperAdam(model, lr=0.05, tau=tau, clip=clip)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, decay)
        dataset = [{"x": x, "labels": y} for x, y in zip(*data(), strict=True)]
        return kind(model=model, args=args, train_dataset=dataset, optimizers=(opt, scheduler))

    return make


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_the_trainer_equals_the_plain_loop(tau, make_trainer):
    trainer = make_trainer(tau, clip=0.5, decay=0.9)
    trainer.train()
    assert same(trainer.model.net, plain(tau, clip=0.5, decay=0.9))
    assert trainer.state.global_step == 20
    assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == 20
    assert len(trainer.model.seen) == 20 * (2 if tau else 1)
    assert replay.current() is None


def test_the_trainer_accumulates_at_one_point_then_at_the_other(make_trainer):
    """Micro-batches are all evaluated at x_{t-1}, then all at x_t."""
    trainer = make_trainer(1.0, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    trainer.train()
    assert same(trainer.model.net, plain(1.0, accumulate=2))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_trainer_gives_both_evaluations_the_same_masks(accumulate, make_trainer):
    trainer = make_trainer(1.0, dropout=0.5, gradient_accumulation_steps=accumulate, num_train_epochs=1)
    trainer.train()
    seen = trainer.model.seen
    assert len(seen) == 20
    while seen:
        n = min(accumulate, len(seen) // 2)  # the last batch has what is left of the epoch
        assert all(map(torch.equal, seen[:n], seen[n : 2 * n]))
        assert len(seen) == 2 * n or not torch.equal(seen[0], seen[2 * n])
        del seen[: 2 * n]


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_the_trainer_resumes(tau, make_trainer, tmp_path):
    """In the middle of an epoch, with dropout, from the Trainer's own checkpoint."""
    whole = make_trainer(tau, dropout=0.5, decay=0.9)
    whole.train()
    expected = copy.deepcopy(whole.model)
    resumed = make_trainer(tau, dropout=0.5, decay=0.9)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-7"))
    assert same(resumed.model, expected)
    assert len(resumed.model.seen) == 13 * (2 if tau else 1)


def test_the_trainer_without_two_point_says_what_to_do(make_trainer):
    transformers = sys.modules["transformers"]
    with pytest.raises(RuntimeError, match=r"superadam\.twice"):
        make_trainer(1.0, kind=transformers.Trainer).train()


def test_what_would_spoil_the_pair_is_refused(make_trainer):
    with pytest.raises(ValueError, match=r"max_grad_norm=1\.0 would clip one of the two"):
        make_trainer(1.0, max_grad_norm=1.0).train()
    scaled = make_trainer(1.0)
    scaled.accelerator.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(ValueError, match="Use bf16"):
        scaled.train()
    make_trainer(0.0, max_grad_norm=1.0).train()


def test_an_error_in_an_evaluation_leaves_no_turn_open(make_trainer):
    trainer = make_trainer(1.0)
    forward, calls = trainer.model.forward, []

    def fail_once(*args, **kwargs):
        calls.append(args)
        if len(calls) == 6:
            raise RuntimeError("of my own")
        return forward(*args, **kwargs)

    trainer.model.forward = fail_once
    with pytest.raises(RuntimeError, match="of my own"):
        trainer.train()
    assert replay.current() is None
    trainer.optimizer.optimizer.restart()
    trainer.train()
    assert replay.current() is None
