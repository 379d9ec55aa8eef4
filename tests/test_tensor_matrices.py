"""Matrices of each tensor: what they are, which parameters they take, and that a step with them is line 9."""

import copy

import pytest
import torch
from torch import nn

from superadam import Monitor, SuperAdam, matrices, schedules, sets, twice
from superadam.matrices import ByShape, OneSidedShampoo, SecondMoment

CONSTANT = schedules.Constant(alpha=0.3)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(5, 4), nn.Linear(4, 6), nn.Linear(6, 2)
        self.conv = nn.Conv1d(1, 3, 2)

    def forward(self, x):
        h = self.hidden(self.embed(x)).relu()
        return self.head(h) + self.conv(h[:, None]).mean((1, 2))[:, None]


def reference(x, grads, lr, beta, lam, every, alpha=0.3):
    """Shampoo on the rows, as the formula says, with a dense H over all coordinates."""
    x, g, L = x.clone(), None, torch.zeros(len(x), len(x), dtype=x.dtype)
    for t, grad in enumerate(grads, start=1):
        g = grad.clone() if g is None else (1 - alpha) * g + alpha * grad
        G = grad.flatten(1)
        L = beta * L + (1 - beta) * G @ G.T
        if (t - 1) % every == 0:
            values, Q = torch.linalg.eigh(L)
            root = Q @ values.clamp(min=0).sqrt().diag() @ Q.T
        H = torch.kron(root, torch.eye(G.shape[1], dtype=x.dtype)) + lam * torch.eye(x.numel(), dtype=x.dtype)
        x = x - lr * torch.linalg.solve(H, g.flatten()).view_as(x)
    return x


@pytest.mark.parametrize("shape", [(4, 3), (3, 5, 2), (1, 4), (5, 1)])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("foreach", [False, True])
def test_one_sided_shampoo_equals_a_dense_matrix(shape, every, foreach):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    grads = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(7)]
    p = x.clone().requires_grad_()
    matrix = OneSidedShampoo(beta=0.9, lam=0.05, every=every)
    opt = SuperAdam([p], lr=0.1, matrix=matrix, schedule=CONSTANT, foreach=foreach)
    for grad in grads:
        p.grad = grad.clone()
        opt.step()
    expected = reference(x, grads, 0.1, 0.9, 0.05, every)
    # Roots of eigenvalues that should be 0 are those of rounding errors.
    torch.testing.assert_close(p.detach(), expected, rtol=1e-6, atol=1e-6)


def test_solve_eigen_and_the_bound_agree():
    """H = Q d Qᵀ; solve(H v) = v; H ⪰ λI."""
    p = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=OneSidedShampoo(lam=0.05, every=1))
    p.grad = torch.randn_like(p)
    opt.step()
    (view,) = opt._with_gradients(moves=True)
    s, matrix, v = view.bound(), view.matrix, torch.randn_like(p)
    rotate, d, back = matrix.eigen(s)
    torch.testing.assert_close(back(rotate(v)), v)
    torch.testing.assert_close(matrix.solve(s, back(rotate(v) * d)), v)
    assert d.min() >= matrix.lower_bound == 0.05


def chosen(opt):
    (plan,) = opt._plans_of_now()
    names = plan.group["param_names"]
    return {name: type(plan.of(p).matrix).__name__ for name, p in zip(names, plan.group["params"], strict=True)}


def test_parameters_are_divided_by_shape_layer_and_name():
    matrix = ByShape(OneSidedShampoo(), names=("head.*",))
    got = chosen(SuperAdam(Net(), matrix=matrix))
    dense = {name for name, kind in got.items() if kind == "OneSidedShampoo"}
    assert dense == {"hidden.weight", "conv.weight"}
    by_names = SuperAdam(list(Net().named_parameters()), matrix=matrix)  # whose layers are not known
    assert {name for name, kind in chosen(by_names).items() if kind == "OneSidedShampoo"} == dense | {"embed.weight"}


def test_nested_choices_are_plain_data():
    matrix = ByShape(OneSidedShampoo(every=7), ByShape(matrices.Yogi(), SecondMoment(beta=0.9)))
    opt = SuperAdam(Net(), matrix=matrix)
    spec = copy.deepcopy(opt.param_groups[0]["matrix"])
    assert spec["first"] == {"type": "OneSidedShampoo", "beta": 0.99, "lam": 5e-4, "every": 7}
    assert matrices.Matrix.find(spec) == matrix
    assert matrix.lower_bound == 5e-4


def test_a_shape_that_no_part_accepts():
    with pytest.raises(
        ValueError, match=r"hidden.bias: OneSidedShampoo\(.*is not for shape \(6,\): use matrices.ByShape"
    ):
        SuperAdam(list(nn.ModuleDict({"hidden": nn.Linear(4, 6)}).named_parameters()), matrix=OneSidedShampoo())


@pytest.mark.parametrize("constraint", [sets.Box(-1, 1), sets.Simplex(), sets.L2Ball(1.0)])
def test_sets_that_need_a_diagonal_are_refused(constraint):
    with pytest.raises(ValueError, match="line 9 on a set is known for a diagonal H"):
        SuperAdam(Net(), matrix=ByShape(OneSidedShampoo()), constraint=constraint)


def batches():
    generator = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 5, (8,), generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(12)]


def run(tau, half_steps, stop=None, path=None, data=None, **options):
    torch.manual_seed(0)
    model = Net()
    opt = SuperAdam(model, lr=1e-2, tau=tau, matrix=ByShape(OneSidedShampoo(lam=0.1, every=3)), **options)
    losses = []
    for i, (x, y) in enumerate(data or batches()):
        if i == stop:
            torch.save((model.state_dict(), opt.state_dict()), path)
            model = Net()
            opt = SuperAdam(model, lr=1e-2, tau=tau, matrix=ByShape(OneSidedShampoo()), **options)
            weights, state = torch.load(path, weights_only=True)
            model.load_state_dict(weights)
            opt.load_state_dict(state)

        def closure(x=x, y=y, model=model, opt=opt):
            opt.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            return loss

        if half_steps:
            for _ in twice([0]):
                losses.append(closure().item())
                opt.step()
        else:
            losses.append(opt.step(closure).item())
    opt.flush()
    return torch.cat([p.detach().flatten() for p in model.parameters()]), losses


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_resumed_equals_uninterrupted(tau, tmp_path):
    assert torch.equal(run(tau, False)[0], run(tau, False, stop=5, path=tmp_path / "s.pt")[0])


def test_half_steps_equal_closures():
    torch.testing.assert_close(run(1.0, False)[0], run(1.0, True)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"clip": 1.0}, {"weight_decay": 0.1}, {"foreach": True}])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_it_trains(tau, options):
    _, losses = run(tau, False, data=batches()[:1] * 12, **options)
    assert losses[-1] < losses[0]


def test_a_checkpoint_with_other_factors_is_refused():
    opt = SuperAdam([torch.zeros(3, 2, requires_grad=True)], matrix=OneSidedShampoo())
    opt.init_state()
    saved = opt.state_dict()
    saved["state"][0] = {**saved["state"][0], "L": torch.zeros(4, 4)}
    with pytest.raises(ValueError, match=r"'L' of parameter 0 has shape \(4, 4\), expected \(3, 3\)"):
        opt.load_state_dict(saved)


def test_the_monitor_sees_its_eigenvalues():
    p = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=OneSidedShampoo(lam=0.05, every=1))
    monitor = Monitor(opt, 1)
    p.grad = torch.randn_like(p)
    opt.step()
    (report,) = monitor.history
    d = opt.state[p]["d"]
    torch.testing.assert_close(
        torch.tensor([report["H_min"], report["H_max"]]), torch.stack([d.min(), d.max()]).float()
    )


def test_graphs_and_kernels_are_refused():
    """When eigenvectors are due is decided on the host."""
    for option in ("capturable", "compile"):
        with pytest.raises(ValueError, match="on the host"):
            SuperAdam([torch.zeros(3, 2, requires_grad=True)], matrix=OneSidedShampoo(), **{option: True})


def test_one_pattern_is_no_tuple():
    """Each of its letters would be one."""
    with pytest.raises(ValueError, match=r"Invalid names parameter: 'head' .*expected a tuple"):
        ByShape(OneSidedShampoo(), names="head")


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_which_parameters_go_together_is_decided_once(tau, monkeypatch):
    """Though weights and biases take turns in the group."""
    made, make = [], SuperAdam._layouts
    monkeypatch.setattr(SuperAdam, "_layouts", lambda self, plan: made.append(plan) or make(self, plan))
    run(tau, False)
    assert len(made) == 1
