"""Matrices of each tensor: that they are their formulas, which parameters they take, and that training with them keeps
the promises of every other composition."""

import copy
import itertools
import math
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from matrices.formulas import CONSTANT, after, averages, equal, gradients, power
from superadam import Monitor, SuperAdam, checks, create, estimators, matrices, sets, twice
from superadam.lists import TensorList
from superadam.matrices import SOAP, Adafactor, ByShape, KLShampoo, Muon, PSGDKron, SecondMoment, Shampoo
from superadam.matrices import per_tensor as per_tensor_module
from superadam.monitor import MonitorWarning


class NoHostSync(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.overloadpacket.__name__ not in ("_local_scalar_dense", "is_nonzero"), "waits for the device"
        return func(*args, **(kwargs or {}))


FAMILY = {
    "Muon": Muon(),
    "Muon, λ": Muon(lam=0.1),
    "Shampoo": Shampoo(eps=1e-2, every=2),
    "Shampoo, one side": Shampoo(eps=1e-2, every=3, one_sided_above=0),
    "Shampoo, grafted": Shampoo(eps=1e-2, every=2, grafting=SecondMoment(bias_correction=True)),
    "Shampoo, blocks": Shampoo(eps=1e-2, every=2, block=2),
    "SOAP": SOAP(lam=1e-2, every=2),
    "SOAP, one side": SOAP(lam=1e-2, every=3, one_sided_above=4),
    "KL-Shampoo": KLShampoo(every=2),
    "PSGD": PSGDKron(flat=3),
    "PSGD, diagonal": PSGDKron(triangular=4),
}
EXACT = {name: matrix for name, matrix in FAMILY.items() if "PSGD" not in name and "grafted" not in name}


# ---------------------------------------------------------------------------------------- published formulas


@pytest.mark.parametrize("beta", [0.9, 1.0])
@pytest.mark.parametrize("every", [1, 3])
def test_shampoo_equals_its_equations(beta, every):
    grads, eps = gradients((4, 3), 7), 1e-3
    L, R, x = torch.zeros(4, 4).double(), torch.zeros(3, 3).double(), torch.zeros(4, 3).double()
    for t, (grad, g) in enumerate(zip(grads, averages(grads), strict=True), start=1):
        weight = 1 if beta == 1 else 1 - beta
        L, R = beta * L + weight * grad @ grad.T, beta * R + weight * grad.T @ grad
        if (t - 1) % every == 0:
            correction = 1 if beta == 1 else 1 - beta**t
            left, right = (power(A / correction + eps * torch.eye(len(A)).double(), -0.25) for A in (L, R))
        x = x - 0.1 * left @ g @ right
    equal(after(Shampoo(beta, eps, every), (4, 3), grads)[0], x)


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 5, 2)])
def test_one_sided_shampoo_is_on_the_smaller_side(shape):
    """ASGO: H = L^½ ⊗ I."""
    grads, x = gradients(shape, 5), torch.zeros(shape).double().flatten(1)
    rows = x.shape[0] <= x.shape[1]
    A = torch.zeros(min(x.shape), min(x.shape)).double()
    for t, (grad, g) in enumerate(zip(grads, averages(grads), strict=True), start=1):
        G, g = grad.flatten(1), g.flatten(1)
        A = 0.9 * A + 0.1 * (G @ G.T if rows else G.T @ G)
        inverse = power(A / (1 - 0.9**t) + 1e-3 * torch.eye(len(A)).double(), -0.5)
        x = x - 0.1 * (inverse @ g if rows else g @ inverse)
    equal(after(Shampoo(0.9, 1e-3, 1, one_sided_above=0), shape, grads)[0], x.view(shape))


def test_grafting_gives_a_step_its_size():
    grads = gradients((4, 3), 4)
    grafting = SecondMoment(0.9, 1e-3, bias_correction=True)
    moves = []
    for matrix in (Shampoo(0.9, 1e-3, 1), Shampoo(0.9, 1e-3, 1, grafting=grafting), grafting):
        points = [after(matrix, (4, 3), grads[:k])[0] for k in range(5)]
        moves.append([b - a for a, b in itertools.pairwise(points)])
    for plain, grafted, sizes in zip(*moves, strict=True):
        equal(grafted, plain * sizes.norm() / plain.norm())


def test_blocks_have_factors_of_their_own():
    """A 4 × 6 matrix in blocks of 2 × 3 is four matrices; what does not fit is filled up with zeros."""
    grads = gradients((4, 6), 5)
    whole = after(Shampoo(0.9, 1e-3, 2, block=3), (4, 6), grads)[0]
    for rows, columns in [(slice(0, 2), slice(0, 3)), (slice(2, 4), slice(3, 6))]:
        part = [grad[rows, columns] for grad in grads]
        equal(whole[rows, columns], after(Shampoo(0.9, 1e-3, 2), (2, 3), part)[0])
    matrix, x = Shampoo(block=3), torch.randn(5, 7)
    assert matrix.matrices(x).shape == (2 * 3, 3, 3)
    equal(matrix.tensor(matrix.matrices(x), x.shape), x)


# ---------------------------------------------------------------------------------------- what H_t is


def bucket_of(matrix, shape=(4, 6), steps=4):
    p = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=matrix)
    for grad in gradients(shape, steps):
        p.grad = grad
        opt.step()
    (s,) = opt.buckets()
    return s


def dense(s):
    """H_t as a matrix over all coordinates, from `solve` of every unit vector."""
    x = s.params[0]
    units = torch.eye(x.numel(), dtype=x.dtype)
    solved = [s.tensors(s.matrix.solve(s, s.matrices(TensorList([u.view_as(x)])))) for u in units]
    inverse = torch.stack([step.tensors[0].flatten() for step in solved])
    return torch.linalg.inv(inverse)


@pytest.mark.parametrize("name", [n for n in EXACT if n != "Muon"])
def test_h_is_symmetric_bounded_and_what_solve_divides_by(name):
    s = bucket_of(EXACT[name])
    H = dense(s)
    equal(H, H.T, 1e-8)
    rotate, d, back = s.matrix.eigen(s)
    v = s.matrices(TensorList(gradients((4, 6), 1, seed=9)))
    equal(back(rotate(v)), v, 1e-8)
    equal(s.matrix.solve(s, back(rotate(v) * d)), v, 1e-8)  # solve(H v) = v
    least = torch.linalg.eigvalsh(H).min()
    assert least >= s.matrix.lower_bound * (1 - 1e-6) > 0
    equal(d.min(), least, 1e-8)


def test_psgds_h_is_symmetric_and_positive():
    """Without its bound on the size of a step, which is a multiple of H."""
    H = dense(bucket_of(PSGDKron(bound=1e9)))
    equal(H, H.T, 1e-8)
    assert torch.linalg.eigvalsh(H).min() > 0


@pytest.mark.parametrize("name", FAMILY)
def test_tensors_of_one_shape_go_together(name):
    """The same steps as each by itself; the states are views of one batch, refreshed in turns."""
    matrix, shape = FAMILY[name], (4, 6)
    grads = [gradients(shape, 7, seed) for seed in range(3)]
    params = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for _ in grads]
    opt = SuperAdam(params, lr=0.1, matrix=matrix, schedule=CONSTANT)
    for step in range(7):
        for p, own in zip(params, grads, strict=True):
            p.grad = own[step].clone()
        opt.step()
    assert len(opt.buckets()) == 1
    for p, own in zip(params, grads, strict=True):  # without names their turns are the same
        equal(p.detach(), after(matrix, shape, own)[0])


def test_refreshes_are_spread_over_the_steps(monkeypatch):
    """Six tensors, every third step: two in each, but for the first."""
    seen, refresh = [], SOAP.refresh
    monkeypatch.setattr(SOAP, "refresh", lambda self, s: seen[-1].append(len(s.params)) or refresh(self, s))
    named = [(f"w{i}", torch.zeros(3, 4, requires_grad=True)) for i in range(6)]
    opt = SuperAdam(named, matrix=SOAP(every=3))
    for _ in range(7):
        seen.append([])
        for _, p in named:
            p.grad = torch.randn_like(p)
        opt.step()
    assert [sum(step) for step in seen] == [6, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize("name", ["SOAP", "Shampoo", "PSGD"])
def test_order_and_groups_do_not_matter(name):
    shapes = [(4, 6), (6, 4), (4, 6), (5, 5)]
    starts = [gradients(shape, 7, seed) for seed, shape in enumerate(shapes)]

    def run(order, groups):
        params = [
            (f"w{i}", torch.zeros(shape, dtype=torch.float64, requires_grad=True)) for i, shape in enumerate(shapes)
        ]
        listed = [params[i] for i in order]
        opt = SuperAdam(
            [{"params": [p]} for p in listed] if groups else listed, lr=0.1, matrix=FAMILY[name], schedule=CONSTANT
        )
        for step in range(7):
            for (_, p), own in zip(params, starts, strict=True):
                p.grad = own[step].clone()
            opt.step()
        return [p.detach() for _, p in params]

    plain = run([0, 1, 2, 3], False)
    equal(run([2, 0, 3, 1], False), plain)
    equal(run([0, 1, 2, 3], True), plain)


# ---------------------------------------------------------------------------------------- which parameters


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.hidden, self.qkv = nn.Embedding(5, 4), nn.Linear(4, 6), nn.Linear(6, 6)
        self.conv, self.depthwise = nn.Conv1d(1, 3, 2), nn.Conv1d(3, 3, 2, groups=3)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        h = self.qkv(self.hidden(self.embed(x)).relu()).relu()
        return self.head(h) + self.depthwise(self.conv(h[:, None])).mean((1, 2))[:, None]


def chosen(opt):
    (plan,) = opt._current_plans()
    names = plan.group["param_names"]
    return {name: plan.of(p).matrix for name, p in zip(names, plan.group["params"], strict=True)}


def dense_ones(opt):
    return {name for name, matrix in chosen(opt).items() if matrix.per_tensor}


def test_parameters_are_divided_by_shape_layer_and_name():
    """Vectors, embeddings, the head and depthwise kernels to the other matrix; names where layers are not known."""
    assert dense_ones(SuperAdam(Net(), matrix=ByShape(SOAP()))) == {"hidden.weight", "qkv.weight"}
    every = ByShape(SOAP(), layers=())
    assert dense_ones(SuperAdam(Net(), matrix=every)) == {"embed.weight", "hidden.weight", "qkv.weight", "head.weight"}
    by_names = SuperAdam(list(Net().named_parameters()), matrix=ByShape(SOAP(), names=("head.*", "embed.*")))
    assert dense_ones(by_names) == {"hidden.weight", "qkv.weight"}


def test_layers_derived_from_others_are_such_layers():
    """A subclass of nn.Embedding, or of nn.Linear at the end, has no matrix either; its own name works too."""

    class Tokens(nn.Embedding):
        pass

    class Output(nn.Linear):
        pass

    net = Net()
    net.embed, net.head = Tokens(5, 4), Output(6, 2)
    assert dense_ones(SuperAdam(net, matrix=ByShape(SOAP()))) == {"hidden.weight", "qkv.weight"}
    own = ByShape(SOAP(), layers=("Tokens",))
    assert dense_ones(SuperAdam(net, matrix=own)) == {"hidden.weight", "qkv.weight", "head.weight"}


def test_several_matrices_are_asked_in_their_order():
    """Each parameter gets the first of them that accepts it. The plain data of a checkpoint make the same again."""
    matrix = ByShape((SOAP(batch_dims=1), Muon(), Shampoo()), SecondMoment())
    assert matrices.Matrix.find(matrix.spec()) == matrix
    params = [torch.zeros(shape, requires_grad=True) for shape in ((2, 3, 4), (3, 4), (4,))]
    opt = SuperAdam(params, matrix=matrix)
    opt.load_state_dict(opt.state_dict())
    (plan,) = opt._current_plans()
    assert [plan.of(p).matrix for p in params] == [*matrix.first[:2], SecondMoment()]
    with pytest.raises(ValueError, match="a matrix, or a tuple"):
        ByShape((SOAP(), "Shampoo"))


def test_a_network_of_one_layer_has_no_head():
    assert dense_ones(SuperAdam(nn.Linear(3, 2), matrix=ByShape(SOAP()))) == {"weight"}


def test_tied_weights_are_an_embedding():
    net = Net()
    net.head.weight = net.embed.weight
    assert "head.weight" not in dense_ones(SuperAdam(net, matrix=ByShape(SOAP(), layers=("Embedding",))))


def test_repr_says_who_has_which():
    text = repr(create("muon", Net(), rate=0.3))
    assert "Muon(" in text
    assert "2 tensors, hidden.weight, qkv.weight" in text
    assert "lr times 0.3: 9 tensors, embed.weight, hidden.bias" in text


def test_splits_by_name():
    """A joint query, key and value is three matrices."""
    opt = create("muon", Net(), split={"qkv.*": 3})
    of = chosen(opt)
    assert (of["qkv.weight"].split, of["hidden.weight"].split) == (3, 1)
    grads = gradients((6, 6), 4)
    whole = after(Muon(split=3, scale="original"), (6, 6), grads)[0]
    for i in range(3):
        part = [grad[2 * i : 2 * i + 2] for grad in grads]
        equal(whole[2 * i : 2 * i + 2], after(Muon(), (2, 6), part)[0])


def test_leading_dimensions_count_experts():
    grads = gradients((2, 3, 4, 5), 5)
    whole = after(SOAP(every=2, batch_dims=2), (2, 3, 4, 5), grads)[0]
    alone = after(SOAP(every=2), (4, 5), [grad[1, 2] for grad in grads])[0]
    equal(whole[1, 2], alone, 1e-8)  # beside its diagonal, v of the first gradient is rounding errors


def test_the_ratio_of_learning_rates_survives_schedulers():
    moves = {}
    for rate in (1.0, 0.25):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 1))
        opt = create("muon", net, lr=0.1, weight_decay=0.0, rate=rate)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=10, cycle_momentum=False)
        start = [p.detach().clone() for p in net.parameters()]
        for _ in range(3):
            for p in net.parameters():
                p.grad = torch.ones_like(p)
            opt.step()
            scheduler.step()
        moves[rate] = [p.detach() - x for p, x in zip(net.parameters(), start, strict=True)]
    for i, (whole, part) in enumerate(zip(moves[1.0], moves[0.25], strict=True)):
        torch.testing.assert_close(part, whole * (1.0 if i in (0, 2) else 0.25))  # the first two weights are Muon's


def test_nested_choices_are_plain_data():
    matrix = ByShape(SOAP(every=7), ByShape(matrices.Yogi(), SecondMoment(beta=0.9)))
    opt = SuperAdam(Net(), matrix=matrix)
    spec = copy.deepcopy(opt.param_groups[0]["matrix"])
    assert spec["first"]["every"] == 7
    assert matrices.Matrix.find(spec) == matrix
    assert matrix.lower_bound == 1e-8


def test_a_shape_that_no_part_accepts():
    with pytest.raises(ValueError, match=r"hidden.bias: SOAP\(.*is not for shape \(6,\): use matrices.ByShape"):
        SuperAdam(list(nn.ModuleDict({"hidden": nn.Linear(4, 6)}).named_parameters()), matrix=SOAP())


def test_one_pattern_is_no_tuple():
    """Each of its letters would be one."""
    with pytest.raises(ValueError, match=r"Invalid names parameter: 'head' .*expected a tuple"):
        ByShape(SOAP(), names="head")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Muon("newton"), "one of jordan, you, polar_express"),
        (lambda: Muon(scale="none"), "one of original"),
        (lambda: Muon(dtype="bf17"), "the name of a dtype"),
        (lambda: SOAP(every=0), "a whole number every >= 1"),
        (lambda: SOAP(block=1), "block >= 2"),
        (lambda: Shampoo(beta=1.1), "0 <= beta <= 1"),
        (lambda: Shampoo(grafting=matrices.GradientNorm()), "without sums over all parameters"),
        (lambda: KLShampoo(start=0.0), "start > 0"),
        (lambda: PSGDKron(least=0.0), "0 < least <= 1"),
        (lambda: create("muon", nn.Linear(2, 2), momentum=1.0), "0 <= momentum < 1"),
        (lambda: create("soap", nn.Linear(2, 2), split="heads"), r"split parameter: 'heads'.*such as \{'\*qkv\*': 3\}"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---------------------------------------------------------------------------------------- training


def batches(n=10):
    generator = torch.Generator().manual_seed(1)
    return [(torch.randint(0, 5, (8,), generator=generator), torch.randn(8, 2, generator=generator)) for _ in range(n)]


def run(matrix, tau=0.0, half_steps=False, stop=None, path=None, data=None, **options):
    torch.manual_seed(0)
    model = Net()

    def build():
        composed = {"matrix": ByShape(matrix, SecondMoment(bias_correction=True), layers=()), "tau": tau}
        return SuperAdam(model, **{"lr": 1e-2, **composed, **options})

    opt, losses = build(), []
    for i, (x, y) in enumerate(data or batches()):
        if i == stop:
            torch.save((model.state_dict(), opt.state_dict()), path)
            model = Net()
            opt = build()
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


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_resumed_equals_uninterrupted(name, tau, tmp_path):
    whole, losses = run(FAMILY[name], tau)
    assert torch.equal(whole, run(FAMILY[name], tau, stop=5, path=tmp_path / "s.pt")[0])
    assert losses[-1] < 2 * losses[0]


@pytest.mark.parametrize("name", ["SOAP", "Muon", "PSGD"])
def test_half_steps_equal_closures(name):
    torch.testing.assert_close(run(FAMILY[name], 1.0)[0], run(FAMILY[name], 1.0, True)[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"clip": 1.0}, {"weight_decay": 0.1}, {"estimator": estimators.Nesterov()}])
@pytest.mark.parametrize("name", ["SOAP", "Muon", "KL-Shampoo", "PSGD"])
def test_it_trains(name, options):
    _, losses = run(FAMILY[name], data=batches()[:1] * 15, **options)
    assert losses[-1] < losses[0]


def test_two_gradients_cost_no_copy_of_x():
    """g and the factors, and the numbers of a pending move."""
    p = torch.zeros(4, 3, requires_grad=True)
    for matrix, names in [(SOAP(), {"L", "R", "QL", "QR", "v", "retries", "failures"}), (Muon(), set())]:
        opt = SuperAdam([p], tau=1.0, matrix=matrix)
        opt.init_state()
        assert opt.state[p].keys() == {"step", "phase", "gamma", "g"} | names


def test_low_precision_parameters():
    """The state of bfloat16 parameters is that of float32; the parameters are rounded in each step."""
    finals, states = [], []
    for dtype in (torch.float32, torch.bfloat16):
        p = torch.zeros(4, 6, dtype=dtype, requires_grad=True)
        opt = SuperAdam([p], lr=0.1, matrix=SOAP(every=2))
        for grad in gradients((4, 6), 6):
            p.grad = grad.bfloat16().to(dtype)
            opt.step()
        finals.append(p.detach().float())
        states.append(opt.state[p])
    torch.testing.assert_close(*states, rtol=0, atol=0)
    torch.testing.assert_close(*finals, rtol=0, atol=6 * 0.6 * 2**-8)


@pytest.mark.parametrize("matrix", [SOAP(every=2), ByShape(SOAP(every=2)), PSGDKron()], ids=str)
def test_compile_takes_whole_tensors_as_lists(matrix):
    """By itself or in a `ByShape`: as lists, with the same steps as without."""
    results = [after(matrix, (4, 6), gradients((4, 6), 4), compile=flag) for flag in (False, True)]
    equal(*(x for x, _ in results), 0.0)


def test_a_checkpoint_with_other_factors_is_refused():
    opt = SuperAdam([torch.zeros(3, 2, requires_grad=True)], matrix=SOAP())
    opt.init_state()
    saved = opt.state_dict()
    saved["state"][0] = {**saved["state"][0], "L": torch.zeros(1, 4, 4)}
    with pytest.raises(ValueError, match=r"'L' of parameter 0 has shape \(1, 4, 4\), expected \(1, 3, 3\)"):
        opt.load_state_dict(saved)


WITH_FACTORS = {name: matrix for name, matrix in FAMILY.items() if matrix.has_factors}


def everything(model, opt):
    """Parameters and state, copied."""
    return copy.deepcopy([[p.detach(), opt.state[p]] for p in model.parameters()])


def closure_of(model, opt, i, spoilt=None):
    """Of batch i, whose gradient has a `spoilt` element."""
    inputs = torch.randn(5, 4, generator=torch.Generator().manual_seed(i), dtype=torch.float64)

    def closure():
        opt.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        if spoilt is not None:
            model[0].weight.grad[0, 0] = spoilt
        return loss.item()

    return closure


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e200])
@pytest.mark.parametrize("name", WITH_FACTORS)
def test_a_gradient_that_is_not_finite_is_refused_and_leaves_no_trace(name, value, tau):
    """Nor one whose square is not finite: all is as if there had been no such batch, biases too."""
    results = []
    for spoilt in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
        opt = SuperAdam(model, lr=1e-3, tau=tau, matrix=ByShape(WITH_FACTORS[name]), schedule=CONSTANT)
        for i in range(6):
            if spoilt and i == 3:
                before = everything(model, opt)
                with pytest.raises(ValueError, match=r"parameter 0.weight is not finite, or its square.*next one"):
                    opt.step(closure_of(model, opt, i, value))
                torch.testing.assert_close(everything(model, opt), before, rtol=0, atol=0)
            opt.step(closure_of(model, opt, i))
        results.append(everything(model, opt))
    torch.testing.assert_close(*results, rtol=0, atol=0)


# Not Muon with λ, whose eigenvectors the host waits for in each step.
@pytest.mark.parametrize("name", [name for name in WITH_FACTORS if not name.startswith("Muon")])
def test_a_device_leaves_out_what_is_not_finite_and_tells_later(name, monkeypatch):
    """There the host does not look in every step. Factors stay finite, x stays, and nothing has to be refilled."""
    monkeypatch.setattr(checks, "waits", lambda x: True)
    p = torch.ones(4, 6, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=WITH_FACTORS[name], schedule=CONSTANT)
    grads = gradients((4, 6), 20)
    grads[3].fill_(math.nan)
    for i in range(9):
        p.grad = grads[i]
        if i == 3:
            kept = p.detach().clone()
        opt.step()
    factors = [opt.state[p][name] for name in opt._plans[0].factors(p)]
    assert all(factor.isfinite().all() for factor in factors)
    assert torch.equal(p, kept)
    p.grad = grads[9]
    with pytest.raises(RuntimeError, match=r"in the last 10 steps a gradient of shape \(4, 6\).*opt.restart\(\)"):
        opt.step()
    assert torch.equal(p, kept)
    opt.restart()
    for grad in grads[10:]:
        p.grad = grad
        opt.step()
    assert p.isfinite().all()
    assert (p != kept).all()


@pytest.mark.parametrize("matrix", [SOAP(every=20), KLShampoo(every=20), PSGDKron()], ids=str)
def test_a_device_is_not_waited_for(matrix, monkeypatch):
    """Neither in steps that leave a gradient out, nor in others."""
    monkeypatch.setattr(checks, "waits", lambda x: True)
    p = torch.ones(4, 6, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=matrix)
    for i, grad in enumerate(gradients((4, 6), 9)):
        p.grad = grad if i != 4 else grad * math.nan
        with NoHostSync() if i > 0 else nullcontext():
            opt.step()
    assert opt._plans[0].left_out > 0


def no_convergence(A):
    raise torch.linalg.LinAlgError("did not converge")


def no_numbers(A):
    """What MKL's ssyevd returns, without an error, for some matrices of low rank: the factors of embeddings."""
    return torch.full(A.shape[:-1], math.nan, dtype=A.dtype), torch.full_like(A, math.nan)


@pytest.mark.parametrize(
    ("failure", "message"), [(no_convergence, "did not converge"), (no_numbers, "the eigenvectors are not finite")]
)
def test_an_eigendecomposition_that_fails(failure, message, monkeypatch):
    """Tried again in float64; then the eigenvectors stay; the fourth time in a row is an error. The monitor says so."""
    real_eigh, fails = torch.linalg.eigh, [torch.float32]

    def eigh(A):
        return failure(A) if A.dtype in fails else real_eigh(A)

    monkeypatch.setattr(per_tensor_module.torch.linalg, "eigh", eigh)
    p = torch.zeros(4, 3, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=Shampoo(every=1))
    monitor = Monitor(opt, 1, limits={"condition": math.inf})

    def step():
        p.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
        opt.step()
        of_p = monitor.last["factors"]["0"]
        return of_p["retries"], of_p["failures"]

    with pytest.warns(MonitorWarning, match=r"step 1: the decomposition of 1 matrix \(0\) failed in float32"):
        assert step() == (1, 0)
    fails.append(torch.float64)
    roots = opt.state[p]["PL"].clone()
    with pytest.warns(MonitorWarning, match=r"step 2: eigenvectors of 1 matrix \(0\) could not be found"):
        assert step() == (2, 1)
    assert torch.equal(opt.state[p]["PL"], roots)
    assert [step() for _ in range(2)] == [(3, 2), (4, 3)]
    with pytest.raises(RuntimeError, match=f"Shampoo, factor R: decomposition failed 4 times in a row: {message}"):
        step()
    fails.clear()
    with pytest.warns(MonitorWarning, match="failed in float32"):  # since the last report
        assert step() == (5, 0)
    assert not torch.equal(opt.state[p]["PL"], roots)
    step()
    assert not {"decomposition_failed", "decomposition_retried"} & monitor.last["alarms"].keys()


def test_a_failure_is_that_of_one_matrix(monkeypatch):
    """The others of its batch have new eigenvectors, and no failure is counted for them."""
    real_eigh = torch.linalg.eigh

    def eigh(A):
        if bool((A.diagonal(dim1=-2, dim2=-1).amax(-1) > 100).any()):
            raise torch.linalg.LinAlgError("did not converge")
        return real_eigh(A)

    monkeypatch.setattr(per_tensor_module.torch.linalg, "eigh", eigh)
    p = torch.zeros(3, 4, 5, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=Shampoo(every=1, batch_dims=1))
    p.grad = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    p.grad[1] *= 100
    opt.step()
    state = opt.state[p]
    assert state["retries"].tolist() == state["failures"].tolist() == [0, 1, 0]
    assert torch.equal(state["PL"][1], torch.eye(4))
    alone = SuperAdam([q := torch.zeros(4, 5, requires_grad=True)], lr=0.1, matrix=Shampoo(every=1))
    q.grad = p.grad[2].clone()
    alone.step()
    torch.testing.assert_close(state["PL"][2], alone.state[q]["PL"][0])


def test_an_orthogonal_iteration_that_fails(monkeypatch):
    """SOAP's eigenvectors stay, in the order of v, and are orthogonal."""
    real_qr, fails = torch.linalg.qr, []

    def qr(A):
        Q, R = real_qr(A)
        return (torch.full_like(Q, math.nan), R) if A.dtype in fails else (Q, R)

    monkeypatch.setattr(per_tensor_module.torch.linalg, "qr", qr)
    p = torch.zeros(4, 3, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=SOAP(every=1))
    counted = []
    for n, kinds in enumerate([[], [torch.float32], [torch.float32, torch.float64], []]):
        fails[:] = kinds
        p.grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(n))
        opt.step()
        counted.append([opt.state[p][name].item() for name in ("retries", "failures")])
        Q = opt.state[p]["QL"][0]
        torch.testing.assert_close(Q.T @ Q, torch.eye(4), rtol=0, atol=1e-5)
    assert counted == [[0, 0], [1, 0], [2, 1], [2, 0]]


def with_few_rows(seed, rows=21, n=100, columns=4):
    """The gradient of an embedding."""
    generator = torch.Generator().manual_seed(seed)
    G = torch.zeros(n, columns)
    G[torch.randperm(n, generator=generator)[:rows]] = 0.03 * torch.randn(rows, columns, generator=generator)
    return G


def test_eigenvectors_of_low_rank_with_rows_of_zeros(monkeypatch):
    """A third of these fail in MKL's float32 if they are taken as they are."""
    monkeypatch.setattr(torch.Tensor, "double", None)  # not tried again
    for seed in range(20):
        G = with_few_rows(seed)
        values, Q = per_tensor_module.eigh(G @ G.T, "A")
        torch.testing.assert_close(Q * values @ Q.T, G @ G.T, rtol=0, atol=1e-7)
        torch.testing.assert_close(Q.T @ Q, torch.eye(100), rtol=0, atol=1e-5)


def test_shampoo_on_an_embedding_in_float32_is_that_in_float64():
    finals = []
    for dtype in (torch.float32, torch.float64):
        x = torch.zeros(100, 4, dtype=dtype, requires_grad=True)
        opt = create("shampoo", [x], lr=0.01)
        for seed in range(6):
            x.grad = with_few_rows(seed).to(dtype)
            opt.step()
        finals.append(x.detach().double())
    torch.testing.assert_close(*finals, rtol=0, atol=1e-5)


def test_the_monitor_sees_its_eigenvalues():
    p = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=Shampoo(eps=0.05, every=1))
    monitor = Monitor(opt, 1)
    p.grad = torch.randn_like(p)
    opt.step()
    (report,) = monitor.history
    L, *roots = (torch.linalg.eigvalsh(opt.state[p][name][0]) for name in ("L", "PL", "PR"))
    d = 1 / torch.outer(*roots)
    of_p = report["factors"]["0"]
    assert of_p["L_max"] == pytest.approx(L.max().item())
    assert (of_p["retries"], of_p["failures"]) == (0, 0)
    assert 1 <= of_p["stable_rank"] <= 3
    assert report["refresh_seconds"] > 0
    torch.testing.assert_close(
        torch.tensor([report["H_min"], report["H_max"]]), torch.stack([d.min(), d.max()]).float()
    )


def test_the_time_of_refreshes_goes_on_when_other_parameters_have_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    opt = create("soap", model, precondition_frequency=1)
    monitor = Monitor(opt, 1)
    for step in range(4):
        opt.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        if step % 2:
            model[1].weight.grad = None
        opt.step()
        assert monitor.last["refresh_seconds"] >= 0


def test_the_monitor_sees_the_spectrum_and_the_rank():
    """Of each factor the least eigenvalue, the quartiles and the largest; of g_t the rank up to rounding errors."""
    p = torch.zeros(5, 7, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=SOAP(lam=0.1, every=1))
    monitor = Monitor(opt, 1)
    p.grad = torch.randn(5, 2, dtype=torch.float64) @ torch.randn(2, 7, dtype=torch.float64)
    opt.step()
    of_p = monitor.last["factors"]["0"]
    L = torch.linalg.eigvalsh(opt.state[p]["L"][0])
    spectrum = [of_p[f"L_{which}"] for which in ("min", "q25", "median", "q75", "max")]
    assert spectrum == pytest.approx(L.tolist(), abs=1e-12)
    assert of_p["rank"] == 2
    assert 1 <= of_p["stable_rank"] <= 2


@pytest.mark.parametrize("triangular", [8192, 3], ids=["two triangular factors", "a diagonal one"])
def test_the_monitor_sees_the_eigenvalues_of_psgd(triangular, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "diag_embed", None)  # of a long side no matrix is made
    p = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True)
    opt = SuperAdam([p], lr=0.1, matrix=PSGDKron(triangular=triangular))
    monitor = Monitor(opt, 1)
    for grad in gradients((3, 4), 3):
        p.grad = grad
        opt.step()
    left, right = (opt.state[p][name][0] for name in ("QL", "QR"))
    right = torch.diag(right) if triangular == 3 else right
    whiten = torch.kron(left.T @ left, right.T @ right)
    rms = (whiten @ opt.state[p]["g"].flatten()).square().mean().sqrt()
    eigenvalues = 1 / torch.linalg.eigvalsh(whiten * (1.1 / rms).clamp(max=1.0))
    assert monitor.last["H_min"] == pytest.approx(eigenvalues.min().item())
    assert monitor.last["H_max"] == pytest.approx(eigenvalues.max().item())
    largest = torch.linalg.eigvalsh(right.T @ right).max().item()
    assert monitor.last["factors"]["0"]["R_max"] == pytest.approx(largest)


def refreshes(params, monkeypatch, steps=7):
    """How many tensors are refreshed in each step, and x at the end, by the order of the sizes."""
    counts, refresh = [], Shampoo.refresh
    monkeypatch.setattr(Shampoo, "refresh", lambda self, s: counts.append(len(s.params)) or refresh(self, s))
    tensors = [p[1] if isinstance(p, tuple) else p for p in params]
    opt, per_step = SuperAdam(params, lr=0.1, matrix=Shampoo(every=3)), []
    for t in range(steps):
        for p in tensors:
            p.grad = torch.sin(p.detach() + t)
        opt.step()
        per_step.append(sum(counts))
        counts.clear()
    monkeypatch.setattr(Shampoo, "refresh", refresh)
    return per_step, [p.detach() for p in tensors]


@pytest.mark.parametrize(
    ("named", "expected"), [(True, [6, 2, 2, 2, 2, 2, 2]), (False, [6, 0, 0, 6, 0, 0, 6])], ids=["named", "unnamed"]
)
def test_tensors_of_one_shape_have_turns_by_their_names(named, expected, monkeypatch):
    """Whatever the order of the parameters is; so without names they have their turns together."""
    x = gradients((4, 3), 6)
    runs = []
    for order in (range(6), reversed(range(6))):
        order = list(order)
        params = [x[i].clone().requires_grad_() for i in order]
        given = [(f"layer{i}", p) for i, p in zip(order, params, strict=True)] if named else params
        counts, ends = refreshes(given, monkeypatch)
        assert counts == expected
        runs.append([ends[order.index(i)] for i in range(6)])
    torch.testing.assert_close(*runs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("constraint", [sets.Box(-1, 1), sets.Simplex()])
def test_sets_that_need_a_diagonal_are_refused(constraint):
    with pytest.raises(ValueError, match="cannot be combined with this composition"):
        SuperAdam(Net(), matrix=ByShape(SOAP()), constraint=constraint)


@pytest.mark.parametrize("matrix", [SOAP(), SOAP(block=2), SOAP(split=2, batch_dims=1), Adafactor(), Muon()], ids=str)
def test_many_tensors_are_cut_into_matrices_as_each_by_itself(matrix):
    """Whatever their order in memory, and back."""
    params = [torch.zeros(4, 6, 2, 3) for _ in range(3)]
    params.append(params[0].to(memory_format=torch.channels_last))
    opt = SuperAdam([p.requires_grad_() for p in params], matrix=matrix, foreach=True)
    xs = [torch.randn_like(p) for p in params]
    opt.init_state()
    (s,) = opt.buckets(with_grad=False)
    batch = s.matrices(TensorList(xs))
    assert torch.equal(batch, torch.cat([matrix.matrices(x) for x in xs]))
    assert all(map(torch.equal, s.tensors(batch), xs))
