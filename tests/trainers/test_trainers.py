"""In every trainer the optimizer takes the steps that it takes in a plain loop, and resuming is not stopping."""

import copy
import importlib

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from superadam import SuperAdam, twice
from superadam.evaluations import current
from superadam.trainers import TwoPoint

WHY = "comes with superadam[trainers]"


def data(samples=40):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True).sin()


def net(dropout=0.0, norm=True):
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(8) if norm else nn.Identity()
    return nn.Sequential(nn.Linear(3, 8), middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 1)).double()


def plain(
    tau, *, micro=4, samples=40, accumulate=1, share=False, clip=None, clip_grad=None, epochs=2, decay=1.0, norm=True
):
    """The model after a loop with closures, before `flush`; each batch has `accumulate` micro-batches, or what is left.

    `share` divides the loss by how many there are, not by `accumulate`.
    """
    model = net(norm=norm)
    opt = SuperAdam(model, lr=0.05, tau=tau, clip=clip)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, decay)
    dataset = samples if isinstance(samples, TensorDataset) else TensorDataset(*data(samples))
    loader = list(DataLoader(dataset, batch_size=micro))
    for i in list(range(0, len(loader), accumulate)) * epochs:

        def closure(batches=loader[i : i + accumulate]):
            opt.zero_grad()
            for x, y in batches:
                (nn.functional.mse_loss(model(x), y) / (len(batches) if share else accumulate)).backward()
            if clip_grad:
                nn.utils.clip_grad_norm_(model.parameters(), clip_grad)
            return torch.zeros(())

        opt.step(closure)
        scheduler.step()
    return model


def program(name):
    """A module of tests/programs."""
    pytest.importorskip(name.partition("_")[0], reason=WHY)
    return importlib.import_module(f"programs.{name}")


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

    assert same(train(0.0), plain(0.0, micro=2, accumulate=2, decay=0.9))
    with pytest.raises(RuntimeError, match="accumulate_grad_batches=1"):
        train(1.0)


@of_lightning
@pytest.mark.parametrize("accumulate", [1, 2])
def test_options_of_lightning_equal_the_plain_loop(accumulate):
    """With τ = 0: its clipping, and its accumulation over an odd number of micro-batches."""
    train = program("lightning_automatic").train
    options = {"gradient_clip_val": 0.1, "accumulate_grad_batches": accumulate}
    module = train(net(), TensorDataset(*data(35)), tau=0.0, size=5, **options)
    assert same(module.net, plain(0.0, micro=5, samples=35, accumulate=accumulate, clip_grad=0.1))
    assert not same(module.net, plain(0.0, micro=5, samples=35, accumulate=accumulate))
    assert module.trainer.global_step == 2 * -(-7 // accumulate)
    assert module.net[1].num_batches_tracked == len(module.losses) == 14


@of_lightning
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_manual_optimization_with_micro_batches_equals_the_plain_loop(tau):
    module = program("lightning_manual").train(net(), TensorDataset(*data(35)), tau=tau, size=5, accumulate=2, clip=0.1)
    assert same(module.net, plain(tau, micro=5, samples=35, accumulate=2, share=True, clip=0.1))
    assert module.net[1].num_batches_tracked == 14
    assert module.trainer.optimizers[0].gradient_evaluations == (2 * 8 - 1 if tau else 8)


@of_lightning
@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
@pytest.mark.parametrize("out", [0, 3])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_batch_that_training_step_leaves_out_changes_nothing(tau, out):
    """It returns None: the steps are those of a loop without that batch."""
    x, y = data(35)
    rest = torch.cat([x[: 5 * out], x[5 * out + 5 :]]), torch.cat([y[: 5 * out], y[5 * out + 5 :]])
    x[5 * out] = torch.nan
    module = program("lightning_automatic").train(net(), TensorDataset(x, y), tau=tau, size=5)
    assert same(module.net, plain(tau, micro=5, samples=TensorDataset(*rest)))
    assert module.net[1].num_batches_tracked == 12


@of_lightning
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_what_lightning_logs(tau):
    """The loss of the last evaluation; over an epoch, the mean of all evaluations."""
    module = program("lightning_automatic").train(net(), TensorDataset(*data(35)), tau=tau, size=5)
    logged = module.trainer.callback_metrics
    assert logged["loss_step"].item() == module.losses[-1]
    last_epoch = torch.tensor(module.losses[-14 if tau else -7 :], dtype=torch.float64)
    torch.testing.assert_close(logged["loss_epoch"].double(), last_epoch.mean(), rtol=1e-6, atol=0)


@of_lightning
@pytest.mark.filterwarnings("ignore:Swapping scheduler")
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_stochastic_weight_averaging(tau, norm, lightning):
    """The model ends at the mean of x where epochs 1, 2 and 3 begin, with BatchNorm's statistics of one pass there."""
    averaging = lightning.pytorch.callbacks.StochasticWeightAveraging(swa_lrs=0.05, swa_epoch_start=2)
    train, dataset = program("lightning_automatic").train, TensorDataset(*data(35))
    module = train(net(norm=norm), dataset, tau=tau, size=5, epochs=4, callbacks=[averaging])
    points = [plain(tau, micro=5, samples=35, epochs=n, norm=norm) for n in (1, 2, 3)]
    mean = torch.optim.swa_utils.AveragedModel(points[0])
    for model in points:
        mean.update_parameters(model)
    torch.optim.swa_utils.update_bn(DataLoader(dataset, batch_size=5), mean)
    if tau or not norm:  # else Lightning steps once more, with the gradient of the last batch, as with any optimizer
        for p, q in zip(module.net.parameters(), mean.module.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=0, atol=1e-9)
    for p, q in zip(module.net.buffers(), mean.module.buffers(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=1e-9)
    assert module.trainer.optimizers[0].gradient_evaluations == {0.0: 28 + norm, 1.0: 2 * 28 - 1}[tau]


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


@pytest.fixture
def _accelerate_forgets():
    """What a loop that was left in the middle has told Accelerate's shared state."""
    state = pytest.importorskip("accelerate.state", reason=WHY)
    yield
    state.GradientState._reset_state()


@pytest.mark.parametrize("accumulate", [1, 2, 3, 9])
@pytest.mark.parametrize("micro_batches", [4, 5, 7])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_accumulate_of_accelerate_equals_the_plain_loop(tau, micro_batches, accumulate):
    """Whatever is left for an epoch's last batch, and its last micro-batch; metrics take in every sample."""
    samples = 3 * micro_batches - 1
    train, dataset = program("accelerate_accumulation").train, TensorDataset(*data(samples))
    model, opt, seen = train(net(), dataset, tau=tau, size=3, accumulate=accumulate, clip=0.1)
    clip = {"clip": 0.1} if tau else {"clip_grad": 0.1}
    assert same(model, plain(tau, micro=3, samples=samples, accumulate=accumulate, **clip))
    assert model[1].num_batches_tracked == 2 * micro_batches
    assert opt.gradient_evaluations == (2 if tau else 1) * 2 * -(-micro_batches // accumulate)
    assert seen == (2 if tau else 1) * 2 * samples


@pytest.mark.usefixtures("_accelerate_forgets")
@pytest.mark.parametrize("how", ["wrapped", "another loader inside", "left and begun again"])
def test_accumulate_knows_the_turn_however_the_loop_is_written(how):
    accelerate = pytest.importorskip("accelerate", reason=WHY)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, dataset = net(), TensorDataset(*data(25))
    opt, loader = SuperAdam(model, lr=0.05, tau=1.0), DataLoader(dataset, batch_size=5)
    model, opt, loader, other = accelerator.prepare(model, opt, loader, DataLoader(dataset, batch_size=25))
    if how == "left and begun again":
        for _ in twice(loader, accumulate=2):
            with accelerator.accumulate(model):
                pass
            with accelerator.accumulate(model):
                break
    for _ in range(2):
        for x, y in twice((batch for batch in loader) if how == "wrapped" else loader, accumulate=2):
            if how == "another loader inside":
                assert len(list(other)) == 1
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.mse_loss(model(x), y))
                opt.step()
                opt.zero_grad()
    assert same(model, plain(1.0, micro=5, samples=25, accumulate=2))
    assert not accelerator.gradient_state.in_dataloader or how == "left and begun again"


@pytest.mark.usefixtures("_accelerate_forgets")
@pytest.mark.parametrize(
    ("steps", "accumulate", "message"),
    [
        (3, 2, r"gradient_accumulation_steps=3.*accumulate=2.*the same number"),
        (2, 3, r"gradient_accumulation_steps=2.*accumulate=3.*the same number"),
        (1, 2, r"micro-batch 1 of 2.*Accelerator\(gradient_accumulation_steps=2\)"),
        (2, 1, r"first turn had no step.*twice\(loader, accumulate=n\)"),
    ],
)
def test_two_numbers_of_micro_batches_are_refused(steps, accumulate, message):
    accelerate = pytest.importorskip("accelerate", reason=WHY)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=steps)
    loader = DataLoader(TensorDataset(*data()), batch_size=4)
    model = net()
    model, opt, loader = accelerator.prepare(model, SuperAdam(model, tau=1.0), loader)

    def loop():
        for x, y in twice(loader, accumulate=accumulate):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.mse_loss(model(x), y))
                opt.step()
                opt.zero_grad()

    with pytest.raises(RuntimeError, match=message):
        loop()


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
    assert current() is None


def test_the_trainer_accumulates_at_one_point_then_at_the_other(make_trainer):
    """Micro-batches are all evaluated at x_{t-1}, then all at x_t."""
    trainer = make_trainer(1.0, per_device_train_batch_size=2, gradient_accumulation_steps=2)
    trainer.train()
    assert same(trainer.model.net, plain(1.0, micro=2, accumulate=2))


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


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_the_trainer_with_an_odd_number_of_micro_batches(tau):
    trainer = program("transformers_trainer").train(
        net(), TensorDataset(*data(35)), tau=tau, size=5, accumulate=2, clip=0.1
    )
    assert same(trainer.model.net, plain(tau, micro=5, samples=35, accumulate=2, share=True, clip=0.1))
    assert trainer.model.net[1].num_batches_tracked == 14
    assert len(trainer.model.losses) == (28 if tau else 14)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_the_trainer_logs_the_loss_of_the_first_evaluation(tau):
    train, dataset = program("transformers_trainer").train, TensorDataset(*data(35))
    trainer = train(net(), dataset, tau=tau, size=5, accumulate=1)
    logged = [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    assert logged == pytest.approx(trainer.model.losses[:: 2 if tau else 1], abs=1e-3)  # it rounds them
    assert len(logged) == 14


def test_the_trainer_without_two_point():
    """It takes τ = 0, clips as it always does, and τ = 1 names what is missing."""
    transformers_trainer, dataset = program("transformers_trainer"), TensorDataset(*data(35))
    options = {"kind": transformers_trainer.InOrder, "size": 5, "accumulate": 2}
    trainer = transformers_trainer.train(net(), dataset, tau=0.0, max_grad_norm=0.1, **options)
    assert same(trainer.model.net, plain(0.0, micro=5, samples=35, accumulate=2, share=True, clip_grad=0.1))
    with pytest.raises(RuntimeError, match=r"Hugging Face's Trainer mix in superadam\.trainers\.TwoPoint"):
        transformers_trainer.train(net(), dataset, tau=1.0, **options)


def test_what_would_spoil_the_pair_is_refused(make_trainer):
    with pytest.raises(ValueError, match=r"max_grad_norm=1\.0 would clip the two gradients of a batch separately"):
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
    assert current() is None
    trainer.optimizer.optimizer.restart()
    trainer.train()
    assert current() is None
