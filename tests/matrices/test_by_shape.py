"""How the methods with a matrix for each tensor cut tensors into matrices, and which tensors they leave to Adam."""

import pytest
import torch
from torch import nn

from superadam import SuperAdam, create, schedules
from superadam.matrices import SOAP, KLShampoo, Muon, PSGDKron, Shampoo
from versions import needs_muon

FAMILY = (
    *("kl_shampoo", "limuon", "mars_m", "mars_shampoo", "muon", "psgd_kron", "shampoo", "soap", "super_adam_plus"),
)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.qkv = nn.Linear(8, 12)
        self.experts = nn.Parameter(torch.ones(3, 6, 8))
        self.hidden = nn.Linear(8, 8)
        self.head = nn.Linear(8, 10)


def chosen(opt):
    (plan,) = opt._plans
    names = plan.group["param_names"]
    return {name: (plan.of(p).matrix, plan.rate(p)) for name, p in zip(names, plan.group["params"], strict=True)}


def dense(opt):
    return {name for name, (matrix, _) in chosen(opt).items() if matrix.per_tensor}


@pytest.mark.parametrize("method", FAMILY)
def test_every_method_has_the_same_options(method):
    options = {"split": "qkv", "batch_dims": {"experts": 1}, "names": ("hidden.*",), "layers": ("head",), "rate": 0.3}
    of = chosen(opt := create(method, Net(), **options))
    assert dense(opt) == {"embed.weight", "qkv.weight", "experts"}
    assert (of["qkv.weight"][0].split, of["qkv.weight"][0].batch_dims) == (3, 0)
    assert (of["experts"][0].split, of["experts"][0].batch_dims) == (1, 1)
    assert {name: rate for name, (_, rate) in of.items() if rate != 1} == dict.fromkeys(of.keys() - dense(opt), 0.3)
    assert all(option in opt.param_groups[0] for option in options)


@pytest.mark.parametrize("method", FAMILY)
def test_which_layers_are_adams(method):
    """Embeddings by default, with Muon and its kin also the head; all layers have factors with `layers=()`."""
    hidden = {"qkv.weight", "experts", "hidden.weight"}
    muons = method in ("limuon", "mars_m", "mars_shampoo", "muon")
    assert dense(create(method, Net())) == (hidden if muons else hidden | {"head.weight"})
    assert dense(create(method, Net(), layers=())) == hidden | {"embed.weight", "head.weight"}


def test_a_pattern_for_rows_and_experts():
    of = chosen(create("soap", Net(), split={"experts": 2}, batch_dims={"experts": 1}))
    assert (of["experts"][0].split, of["experts"][0].batch_dims) == (2, 1)
    assert of["experts"][0].size(torch.empty(3, 6, 8)) == (6, 3, 8)


def gradients(shape, steps=6):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(steps)]


def after(matrix, grads):
    x = torch.zeros_like(grads[0], requires_grad=True)
    opt = SuperAdam([x], lr=0.1, matrix=matrix, schedule=schedules.Constant(alpha=0.3))
    for grad in grads:
        x.grad = grad.clone()
        opt.step()
    return x.detach()


UNEQUAL = {
    **{scale: (Muon, {"scale": scale}) for scale in ("original", "match_rms_adamw", "spectral")},
    "Shampoo": (Shampoo, {"eps": 1e-3, "every": 2}),
    "Shampoo, blocks": (Shampoo, {"eps": 1e-3, "every": 2, "block": 4}),
    # The side that has full rank: in the null space of the other, eigenvectors are as rounding errors will have it.
    "SOAP": (SOAP, {"lam": 1e-3, "every": 2, "one_sided_above": 0}),
}


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_parts_are_matrices_of_their_own(name):
    """A query of 8 rows, and a key and a value of 4, of each of two experts."""
    kind, options = UNEQUAL[name]
    grads = gradients((2, 16, 8))
    whole = after(kind(split=(8, 4, 4), batch_dims=1, **options), grads)
    for expert in range(2):
        for rows in (slice(0, 8), slice(8, 12), slice(12, 16)):
            alone = after(kind(**options), [grad[expert, rows] for grad in grads])
            torch.testing.assert_close(whole[expert, rows], alone, rtol=1e-8, atol=1e-8)


def test_unequal_parts_of_many_tensors_in_one_batch():
    matrix, grads = Muon(split=(3, 2), scale="spectral"), gradients((2, 5, 4))
    params = [torch.zeros(5, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    opt = SuperAdam(params, lr=0.1, matrix=matrix, schedule=schedules.Constant(alpha=0.3))
    for grad in grads:
        for p, own in zip(params, grad, strict=True):
            p.grad = own.clone()
        opt.step()
    for i, p in enumerate(params):
        torch.testing.assert_close(p.detach(), after(matrix, [grad[i] for grad in grads]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KLShampoo(split=(4, 2)), "KLShampoo needs matrices of one size"),
        (lambda: PSGDKron(split=(4, 2)), "PSGDKron needs matrices of one size"),
        (lambda: Muon(split=(4, 2), lam=0.1), "a whole number, with lam > 0"),
        (lambda: Muon(split=()), "a whole number split >= 1"),
        (lambda: Muon((3.0, 1.0)), "or three numbers"),
        (lambda: create("muon", Net(), split=3), "'qkv', or numbers of matrices"),
        (lambda: create("muon", Net(), names="head*"), "a tuple of patterns"),
        (lambda: create("muon", Net(), split={"qkv.weight": (8, 8)}), r"is not for shape \(12, 8\)"),
    ],
)
def test_what_cannot_be_cut_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_grouped_convolution_is_a_matrix_for_each_group():
    """`split` is the number of groups: its rows are those of one group after the other."""
    conv = nn.Conv2d(8, 12, 3, groups=4).double()
    grads = gradients(conv.weight.shape)
    whole = after(Muon(split=4), grads)
    for i in range(4):
        alone = after(Muon(), [grad[3 * i : 3 * i + 3] for grad in grads])
        torch.testing.assert_close(whole[3 * i : 3 * i + 3], alone)


@needs_muon
def test_muon_takes_torchs_names_of_the_polynomial(monkeypatch):
    """Other coefficients and another number of steps than the defaults, in the same dtype."""
    options = {"ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 4}
    x = [torch.ones(4, 3, requires_grad=True) for _ in range(2)]
    ours = create("muon", [x[0]], lr=0.01, weight_decay=0.1, **options)
    theirs = torch.optim.Muon([x[1]], lr=0.01, weight_decay=0.1, **options)
    monkeypatch.setattr(Muon, "precision", lambda self, g: torch.bfloat16)
    for grad in gradients((4, 3), 20):
        for p, opt in zip(x, (ours, theirs), strict=True):
            p.grad = grad.float()
            opt.step()
    torch.testing.assert_close(*x, rtol=2e-2, atol=2e-3)  # bfloat16 rounds at 4e-3
    assert (x[0] - 1).abs().max() > 0.1
