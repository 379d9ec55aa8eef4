"""The defaults train: what a user gets who gives a model and a composition, and no learning rate."""

import functools

import pytest
import torch
from torch import nn

from pairs import pairs
from superadam import SuperAdam, create, matrices, schedules, zoo
from superadam.zoo.presets import PRESETS

KNOWN = {name: kind for name, kind in matrices.Matrix._names.items() if name in set(matrices.__all__) - {"ByShape"}}
NAMES = sorted(name for name, kind in KNOWN.items() if not kind.per_tensor and not kind.vanishes)
OF_TENSORS = sorted(name for name, kind in KNOWN.items() if kind.per_tensor)
STEPS, BATCH = 150, 16


@functools.cache
def classes():
    """Four classes of points in 10 dimensions, which no straight lines part."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(640, 10, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] + x[:, 3] > 0).long()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))


def fall(opt, model, steps=STEPS):
    """The loss on all data after training, over that before."""
    x, y = classes()

    def loss(rows=slice(None)):
        return nn.functional.cross_entropy(model(x[rows]), y[rows])

    with torch.no_grad():
        before = loss().item()
    for n in range(steps):
        rows = slice(n * BATCH % len(x), n * BATCH % len(x) + BATCH)

        def closure(rows=rows):
            opt.zero_grad()
            value = loss(rows)
            value.backward()
            return value

        opt.step(closure)
    opt.flush()
    with torch.no_grad():
        return loss().item() / before


@pytest.mark.parametrize(("matrix", "schedule", "tau"), pairs(NAMES, [None, "Paper"], [0.0, 1.0], one_in=3))
def test_every_matrix_trains_with_its_own_lr(matrix, schedule, tau):
    """The loss falls by a fifth in 150 batches of 16, whatever the matrix, the schedule and τ."""
    model = network()
    assert fall(SuperAdam(model, tau=tau, matrix=matrix, schedule=schedule), model) < 0.8


@pytest.mark.parametrize(("name", "tau"), [(name, 0.0) for name in OF_TENSORS] + [("SOAP", 1.0), ("Muon", 1.0)])
def test_a_matrix_of_each_tensor_trains_with_its_own_lr(name, tau):
    model = network()
    assert fall(SuperAdam(model, tau=tau, matrix=matrices.ByShape(KNOWN[name]())), model) < 0.8


@pytest.mark.parametrize("name", zoo.METHODS)
def test_every_method_trains_with_its_own_lr(name):
    """The loss falls by a fifth in 150 batches of 16."""
    model = network()
    # Both take hundreds of steps to get going: torch's lr of RAdam is 1e-3, and DoG begins with a reach of 1e-6.
    options = {"radam": {"lr": 1e-2}, "dog": {"reps_rel": 1e-3}}.get(name, {})
    assert fall(create(name, model, **options), model) < 0.8


# Steps whose size is not about γ; and methods with a learning rate, or a factor of it, of their own.
WITHOUT_AUTO = {
    *("adadelta", "adafactor", "sc_adagrad", "sdlbfgs", "shampoo"),
    *("adagrad_norm", "adam_plus", "adaptive_sgd", "lars", "nigt", "sgd", "storm"),
    *("adabound", "asgd", "lamb", "sadagrad", "stable_adamw"),
}


@pytest.mark.parametrize("name", sorted(WITHOUT_AUTO))
def test_an_lr_that_cannot_be_estimated_is_refused(name):
    """With the reason, and with what to write."""
    with pytest.raises(
        ValueError, match=r"(give|Set) lr (to )?a number|expected a number|use stepsize=stepsizes\.DoG\(\)"
    ):
        create(name, network(), lr="auto")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(zoo.METHODS.keys() - WITHOUT_AUTO))
def test_every_other_method_trains_with_an_estimated_lr(name):
    """The loss falls by a fifth in 300 batches of 16, of which the first hundred hardly move."""
    model = network()
    assert fall(create(name, model, lr="auto"), model, steps=300) < 0.8


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"grafting": "SecondMoment"}, {"betas": (0.9, 0.99)}], ids=str)
def test_shampoo_trains_with_an_estimated_lr_as_its_refusal_says(options):
    model = network()
    assert fall(create("shampoo", model, lr="auto", **options), model, steps=300) < 0.8


@pytest.mark.parametrize(("name", "published"), [("mars_m", 1e-3), ("shampoo", 1e-2), ("psgd_kron", 3e-4)])
def test_published_lrs_that_are_not_the_default(name, published):
    """The reason that their docstrings give: the loss falls by less than a fifth."""
    assert create(name, network()).param_groups[0]["lr"] > published
    model = network()
    assert 0.8 < fall(create(name, model, lr=published), model) < 1.0


def test_the_default_is_as_good_as_adamw():
    """No worse than torch's AdamW at its own default."""
    model, other = network(), network()
    adamw = torch.optim.AdamW(other.parameters())
    adamw.flush = lambda: None
    assert fall(SuperAdam(model), model) < fall(adamw, other)


def test_lr_is_always_a_number():
    """LR schedulers read it, and a group has that of its own composition."""
    a, b, c, d = (torch.zeros(2, requires_grad=True) for _ in range(4))
    opt = SuperAdam([{"params": [a]}, {"params": [b], "matrix": "Identity"}, {"params": [c], "schedule": "Paper"}])
    opt.add_param_group({"params": [d], "lr": None, "matrix": "AdaGrad"})
    assert [group["lr"] for group in opt.param_groups] == [1e-3, 0.1, 1e-2, 1e-2]
    torch.optim.lr_scheduler.StepLR(opt, step_size=1)
    given = SuperAdam([{"params": [a]}, {"params": [b], "matrix": "Identity"}], lr=0.5)
    assert [group["lr"] for group in given.param_groups] == [0.5, 0.5]


def test_the_weight_of_the_newest_gradient_by_default():
    """A tenth with momentum, as in Adam; a half with variance reduction; in each group by its own τ."""
    a, b = (torch.zeros(2, requires_grad=True) for _ in range(2))
    opt = SuperAdam([{"params": [a]}, {"params": [b], "tau": 1.0}])
    assert [group["schedule"]["beta"] for group in opt.param_groups] == [0.9, 0.5]


@pytest.mark.parametrize(("tau", "lr"), [(0.0, 0.01), (1.0, 0.005)])
def test_the_papers_schedules_get_an_lr_for_their_largest_mu(tau, lr):
    x = torch.zeros(2, requires_grad=True)
    assert SuperAdam([x], tau=tau, schedule=schedules.Paper()).param_groups[0]["lr"] == lr
    assert create("super_adam", [x], tau=tau).param_groups[0]["lr"] == lr


class WarmUp(schedules.Schedule):
    def mu_t(self, t, tau):
        return t / (t + 1000)

    def alpha_t(self, t, tau):
        return 0.1


def test_a_warm_up_does_not_make_the_lr_large():
    """A schedule of one's own that begins with tiny steps is meant to."""
    assert SuperAdam([torch.zeros(2, requires_grad=True)], schedule=WarmUp()).param_groups[0]["lr"] == 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_sgds_lr_is_for_steps_of_one_length(momentum):
    x = torch.zeros(2, requires_grad=True)
    expected = pytest.approx(0.1 * (1 - momentum))
    assert create("sgd", [x], momentum=momentum).param_groups[0]["lr"] == expected
    assert create("sgd", [{"params": [x], "momentum": momentum}]).param_groups[0]["lr"] == expected


@pytest.mark.parametrize("task", PRESETS)
def test_presets_do_not_lean_on_defaults(task):
    """A default may change, the paper's settings may not: every preset says its learning rate."""
    assert all("lr" in options for options in PRESETS[task].values())
