"""find_lr: a curve and a suggestion, for our optimizers and for torch's, and a model that is as before."""

import copy
import gc

import pytest
import torch

from superadam import LrReport, create, find_lr, twice


def loss_fn(model, batch):
    return (model(batch) - batch[:, :1] + batch[:, 1:2]).square().mean()


def batches(n=10):
    return [torch.randn(16, 4, generator=torch.Generator().manual_seed(i)) for i in range(n)]


def network():
    torch.manual_seed(0)
    layers = torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)
    return torch.nn.Sequential(*layers)


BUILDS = {
    "adamw": "adamw",
    "variance reduction": lambda model: create("super_adam", model, tau=1.0),
    "schedule-free": "schedule_free_adamw",
    "torch": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", BUILDS)
def test_everything_is_as_before(name):
    model = network()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before, generator = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    report = find_lr(model, loss_fn, batches(), BUILDS[name], steps=30)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))
    assert model[3].weight.grad is None
    assert len(report.lrs) == len(report.losses) == len(report.smoothed) <= 30
    assert report.lrs[0] == 1e-6
    gc.collect()
    assert not any(module._forward_pre_hooks for module in model.modules())
    for _ in twice([]):
        pass  # no half-step is left open


@pytest.mark.parametrize("curvature", [0.1, 10.0])
def test_the_suggestion_follows_the_curvature(curvature):
    """Gradient descent on a quadratic diverges above 2/L, and hardly moves far below."""
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)

    def quadratic(model, batch):
        return curvature / 2 * model.weight.square().sum()

    report = find_lr(model, quadratic, [0], "sgd", low=1e-4, high=1e3, smoothing=0.5)
    assert report.diverged
    assert 2 / curvature < report.lrs[-1] < 20 / curvature
    assert 0.01 / curvature < report.suggestion < 2 / curvature


def test_training_with_the_suggestion_lowers_the_loss():
    model = network()
    report = find_lr(model, loss_fn, batches(20), "adamw")
    opt = create("adamw", model, lr=report.suggestion)
    losses = []
    for _ in range(10):
        for batch in batches(20):
            opt.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            opt.step()
            losses.append(loss.item())
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20])


def test_groups_keep_the_ratios_of_their_learning_rates():
    seen = []

    class Noted(torch.optim.SGD):
        def step(self, closure):
            seen.append([group["lr"] for group in self.param_groups])
            return super().step(closure)

    model = torch.nn.Linear(4, 1)
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.02}]
    find_lr(model, loss_fn, batches(), lambda _: Noted(groups), steps=5)
    assert all(b == pytest.approx(a / 5) for a, b in seen)


def test_the_report_says_what_it_has_seen():
    report = LrReport((0.1, 0.2, 0.4, 0.8), (4.0, 3.0, 1.0, 9.0), (4.0, 3.5, 1.0, 8.0), diverged=True)
    assert report.suggestion == pytest.approx(0.04)
    assert "lr 4.0e-02" in str(report)
    assert "diverged at 8.0e-01" in str(report)
    pytest.importorskip("matplotlib").use("agg")
    axes = report.plot()
    assert axes.get_xscale() == "log"
    assert axes.lines[2].get_xdata()[0] == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"low": 1.0, "high": 0.1}, "low"), ({"steps": 2}, "steps"), ({"smoothing": 1.0}, "smoothing")],
)
def test_options_out_of_range_are_refused(options, reason):
    with pytest.raises(ValueError, match=f"Invalid {reason}"):
        find_lr(network(), loss_fn, batches(), **options)


def test_batches_that_do_not_suffice_are_refused():
    with pytest.raises(ValueError, match="no batches"):
        find_lr(network(), loss_fn, [])
    with pytest.raises(ValueError, match="only once"):
        find_lr(network(), loss_fn, iter(batches(3)))
    with pytest.raises(ValueError, match="smaller low"):
        find_lr(network(), lambda model, batch: loss_fn(model, batch) * float("nan"), batches())
