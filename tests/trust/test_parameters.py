"""Parameters that are complex, frozen, without a gradient, added later or stacked: used rightly, or refused by name."""

import warnings

import pytest
import torch
from torch import nn

from equality import net
from superadam import SuperAdam, create, matrices, penalties, sets
from trust.compositions import tensors

# ------------------------------------------------------------------------------------------------ complex


@pytest.mark.parametrize("label", net.SETS)
def test_a_complex_parameter_on_a_set_is_refused_and_keeps_its_numbers(label):
    named, make = net.SETS[label]
    x = torch.complex(*tensors([net.SHAPES[named[0]]])[:2]).detach().requires_grad_()
    before = x.detach().clone()
    with pytest.raises(ValueError, match=r"Parameter 0: .*complex, and sets and penalties are of real numbers"):
        SuperAdam([x], matrix="GradientNorm", constraint=make())
    opt = SuperAdam([x], matrix="GradientNorm")
    with pytest.raises(ValueError, match="complex"):
        opt.add_param_group({"params": [x.detach().clone().requires_grad_()], "constraint": make()})
    assert len(opt.param_groups) == 1
    opt.param_groups[0]["constraint"] = make()
    x.grad = torch.ones_like(x)
    with pytest.raises(ValueError, match="complex"):
        opt.step()
    assert torch.equal(x, before)


def test_a_complex_parameter_with_a_penalty_is_refused():
    with pytest.raises(ValueError, match="complex"):
        SuperAdam([torch.ones(2, dtype=torch.complex64, requires_grad=True)], penalty=penalties.L1(0.1))


# ------------------------------------------------------------------------------------------------ missing gradients


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("estimator", [None, "Nesterov"])
def test_x_tilde_with_some_gradients_missing(tau, estimator):
    """Parameters that never had a gradient stay, the others get their x̃."""
    if estimator and tau:
        pytest.skip("it has its own tau")
    used, unused, last = (torch.full((3,), 0.5, requires_grad=True) for _ in range(3))
    opt = SuperAdam([used, unused, last], 1e-3, tau=tau, estimator=estimator, penalty=penalties.L1(0.01))
    for n in range(3):

        def closure(n=n):
            opt.zero_grad()
            ((used - 0.1).square().sum() + (last.square().sum() if n == 0 else 0)).backward()

        opt.step(closure)
    before = [p.detach().clone() for p in (used, unused, last)]
    with opt.at_x_tilde():
        assert torch.equal(unused, before[1])
        assert not torch.equal(used, before[0])
    assert all(map(torch.equal, (used, unused, last), before))


def test_a_frozen_parameter_takes_its_pending_move_and_no_other():
    """As the docstring of SuperAdam says."""
    frozen, free = (torch.ones(2, requires_grad=True) for _ in range(2))
    opt = SuperAdam([frozen, free], 0.1, tau=1.0)

    def closure():
        opt.zero_grad()
        (frozen.square().sum() + free.square().sum()).backward()

    opt.step(closure)
    frozen.requires_grad_(False)
    frozen.grad = None
    opt.step(closure)
    moved = frozen.clone()
    assert (moved < 1).all()
    for _ in range(3):
        opt.step(closure)
    opt.flush()
    assert torch.equal(frozen, moved)


# ------------------------------------------------------------------------------------------------ added later


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))


def test_a_layer_that_is_unfrozen_later_has_its_own_lr_and_name():
    """As Lightning's BackboneFinetuning adds it: bare parameters in a group."""
    net_ = network()
    for p in net_[0].parameters():
        p.requires_grad_(False)
    opt = SuperAdam([(n, p) for n, p in net_.named_parameters() if p.requires_grad], lr=0.1)
    opt.protect(net_)
    opt.add_param_group({"params": list(net_[0].parameters()), "lr": 0.01})
    assert opt.param_groups[1]["lr"] == 0.01
    assert opt.param_groups[1]["param_names"] == ["0.weight", "0.bias"]


def test_bare_parameters_get_names_that_are_their_own():
    """No module knows them; a checkpoint with them is loaded again."""

    def made():
        opt = SuperAdam([("a", torch.ones(2, requires_grad=True))])
        opt.add_param_group({"params": [torch.ones(3, requires_grad=True)], "lr": 0.5})
        opt.add_param_group({"params": torch.ones(1, requires_grad=True)})
        return opt

    opt = made()
    names = [name for group in opt.param_groups for name in group["param_names"]]
    assert len(set(names)) == 3
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = torch.ones_like(p)
    opt.step()
    other = made()
    other.load_state_dict(opt.state_dict())
    assert [float(group["lr"]) for group in other.param_groups] == [1e-3, 0.5, 1e-3]


# ------------------------------------------------------------------------------------------------ stacked

NAMED = [("0.weight", (3, 5, 4)), ("0.bias", (3, 5)), ("head.weight", (5, 4))]


def stacked(method, **options):
    named = [(name, torch.ones(shape, requires_grad=True)) for name, shape in NAMED]
    return create(method, named, **options)


@pytest.mark.parametrize("method", ["soap", "muon", "shampoo"])
def test_stacked_biases_of_an_ensemble_are_named(method):
    with pytest.warns(UserWarning, match=r"0\.bias of shape \(3, 5\).*members.*batch_dims=1") as found:
        stacked(method)
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt = stacked(method, batch_dims=1)
        stacked(method, names=("*bias",))
        stacked("adamw")
        create(method, network())
    assert opt.divisions()


def test_members_of_an_ensemble_are_apart_with_batch_dims():
    """A gradient of one member moves no other."""
    named = [("0.bias", torch.zeros(3, 5, requires_grad=True)), ("0.weight", torch.zeros(3, 5, 4, requires_grad=True))]
    opt = create("muon", named, lr=0.1, batch_dims=1, weight_decay=0.0)
    for _, p in named:
        p.grad = torch.zeros_like(p)
        p.grad[1] = torch.randn_like(p[1])
    opt.step()
    for _, p in named:
        assert p[1].count_nonzero() > 0
        assert not p[0].any()
        assert not p[2].any()


def test_sets_still_take_the_real_view_of_a_complex_parameter():
    x = torch.view_as_real(torch.tensor([3 + 4j])).clone().requires_grad_()
    opt = SuperAdam([x], 0.1, constraint=sets.L2Ball(1.0), matrix=matrices.Identity())
    torch.testing.assert_close(x.detach(), torch.tensor([[0.6, 0.8]]))
    assert opt.feasibility() < 1e-6
