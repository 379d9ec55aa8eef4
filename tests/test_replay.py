"""Both gradients of a batch see the same ξ, in full; and taking them needs no more memory than Adam has."""

import contextlib
import gc
import itertools
import random
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

from problems import CASES, LR, Live, Stochastic, SuperAdam, train
from superadam import evaluations, matrices, twice

BATCHES = 4
both_ways = pytest.mark.parametrize("way", ["closure", "half-steps"])


@pytest.fixture(autouse=True)
def _all_generators_seeded():
    random.seed(0)
    np.random.seed(0)


def data(n=BATCHES, size=8, dim=6):
    return [torch.randn(size, dim, dtype=torch.float64) for _ in range(n)]


def run(opt, evaluate, batches, way):
    """Give `opt` the batches. `evaluate(batch)` calls backward and returns the loss."""
    if way == "closure" or not opt.two_point:
        for batch in batches:

            def closure(batch=batch):
                opt.zero_grad()
                return evaluate(batch)

            opt.step(closure)
    else:
        for batch in twice(batches):
            opt.zero_grad()
            evaluate(batch)
            opt.step()


def as_seen(single, way):
    """What the evaluations of a two-point run see, given what those of a run with one evaluation per batch see.

    In the first batch there is no move yet, so `step(closure)` evaluates it once.
    """
    return [seen for seen in single for _ in range(2)][way == "closure" :]


def in_pairs(seen, way):
    """What the two evaluations of each batch have seen, of the batches that were evaluated twice."""
    seen = seen[way == "closure" :]
    return zip(seen[::2], seen[1::2], strict=True)


def dropout_net():
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 1)).double()


class Recorder:
    """Evaluates a network with dropout, and records what is random in each evaluation."""

    def __init__(self, model):
        self.model, self.masks, self.seen = model, [], []
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.register_forward_hook(lambda m, args, out: self.masks.append((out != 0).tolist()))

    def __call__(self, batch):
        scale = 1 + random.random() + np.random.rand()
        loss = scale * self.model(batch).square().mean()
        self.seen.append((self.masks[-1], scale, torch.get_rng_state().tolist()))
        loss.backward()
        return loss


# ------------------------------------------------------------------------------------------------ random numbers


@both_ways
def test_evaluations_of_a_batch_see_the_same_random_numbers(way):
    """Masks, random, numpy: those of a loop with one evaluation per batch, each seen twice. So the generators end up
    where one evaluation leaves them, too."""
    recorded = {}
    for tau in (0.0, 1.0):
        torch.manual_seed(1), random.seed(1), np.random.seed(1)
        model = dropout_net()
        recorder = Recorder(model)
        run(SuperAdam(model, lr=0.1, tau=tau), recorder, data(), way)
        recorded[tau] = recorder.seen
        after = torch.get_rng_state(), random.random(), np.random.rand()
        recorded[tau, "after"] = (after[0].tolist(), *after[1:])
    assert len({str(masks) for masks, _, _ in recorded[0.0]}) == BATCHES
    assert recorded[1.0] == as_seen(recorded[0.0], way)
    assert recorded[1.0, "after"] == recorded[0.0, "after"]


@both_ways
def test_without_replay_the_masks_would_differ(way, monkeypatch):
    """The control of the test above."""
    monkeypatch.setattr(evaluations.Replay, "restore", lambda self: None)
    recorder = Recorder(dropout_net())
    run(SuperAdam(recorder.model, tau=1.0), recorder, data(), way)
    for first, second in in_pairs(recorder.seen, way):
        assert first[0] != second[0]
        assert first[1] != second[1]


@both_ways
def test_random_loader_draws_once_per_batch(way):
    """A shuffling, augmenting DataLoader gives the batches that it gives to an optimizer with one evaluation."""

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, i):
            return i + torch.rand(6, dtype=torch.float64)

    batches = {}
    for tau in (0.0, 1.0):
        torch.manual_seed(1)
        recorder, seen = Recorder(dropout_net()), []
        loader = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True)

        def evaluate(batch, recorder=recorder, seen=seen):
            seen.append(batch.tolist())
            return recorder(batch)

        run(SuperAdam(recorder.model, tau=tau), evaluate, loader, way)
        batches[tau] = seen
    assert batches[1.0] == as_seen(batches[0.0], way)


def test_twice_yields_the_same_objects():
    batches = data()
    assert [id(b) for b in twice(batches)] == [id(b) for b in batches for _ in range(2)]


def test_difference_has_little_variance_only_with_the_same_masks():
    """Var(ĝ - q) / Var(ĝ), over the batches of a dropout network."""

    def ratio(other_masks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.ReLU())
        model = model.extend([nn.Dropout(0.5), nn.Linear(64, 2)]).double()
        opt = SuperAdam(model, lr=1e-3, tau=1.0)
        teacher = torch.randn(20, dtype=torch.float64)
        seen = []

        def evaluate(x):
            if other_masks:
                torch.manual_seed(1000 + len(seen))
            loss = nn.functional.cross_entropy(model(x), (x @ teacher > 0).long())
            loss.backward()
            seen.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
            return loss

        run(opt, evaluate, data(61, size=32, dim=20), "closure")
        q, new = torch.stack(seen[1::2]), torch.stack(seen[2::2])
        return (new - q).var(dim=0).sum() / new.var(dim=0).sum()

    assert ratio(other_masks=False) < 0.2
    assert ratio(other_masks=True) > 1


# ------------------------------------------------------------------------------------------------ buffers


class Reassigning(nn.Module):
    """Puts a new tensor in place of its buffer, instead of writing into it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.total = self.total + x.detach().mean()
        return x * (1 + self.total**2)


def norm_net():
    layers = nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), Reassigning(), nn.Linear(4, 1)
    return nn.Sequential(*layers).double()


def squared(model):
    def evaluate(batch):
        loss = model(batch).square().mean()
        loss.backward()
        return loss

    return evaluate


def buffers(model):
    return {name: b.detach().clone() for name, b in model.named_buffers()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("given", ["module", "protected"])
@both_ways
def test_buffers_see_each_batch_once(way, given):
    """They are as after one evaluation, at the point where the batch leaves the parameters."""
    model, shadow = norm_net(), norm_net()
    if given == "module":
        opt = SuperAdam(model, lr=0.1, tau=1.0)
    else:
        opt = SuperAdam([{"params": [p]} for p in model.parameters()], lr=0.1, tau=1.0)
        opt.protect(model)
    for n, batch in enumerate(data(), start=1):
        before = {**dict(model.named_parameters()), **buffers(model)}
        run(opt, squared(model), [batch], way)
        shadow.load_state_dict({**before, **dict(model.named_parameters())})
        shadow(batch)
        assert same(buffers(model), buffers(shadow))
        assert model[1].num_batches_tracked == n


@both_ways
def test_without_replay_buffers_would_see_batches_twice(way, monkeypatch):
    """The control."""
    monkeypatch.setattr(evaluations.Buffers, "restore", lambda self: None)
    model = norm_net()
    model[3] = nn.Identity()
    run(SuperAdam(model, tau=1.0), squared(model), data(), way)
    assert model[1].num_batches_tracked == 2 * BATCHES - (way == "closure")


@both_ways
def test_buffer_objects_stay_registered(way):
    """A buffer that is written in place is the same tensor afterwards: others may hold a reference to it."""
    model = norm_net()
    mean = model[1].running_mean
    run(SuperAdam(model, tau=1.0), squared(model), data(), way)
    assert model[1].running_mean is mean
    assert model[3].total is model[3]._buffers["total"]


@both_ways
def test_spectral_norm_starts_both_evaluations_from_the_same_vector(way):
    model = nn.Sequential(spectral_norm(nn.Linear(6, 5)), nn.Tanh(), nn.Linear(5, 1)).double()
    opt = SuperAdam(model, lr=0.1, tau=1.0)
    seen = []
    power_iteration = model[0].parametrizations.weight[0]
    power_iteration.register_forward_pre_hook(lambda m, args: seen.append((m._u.clone(), m._v.clone())))
    run(opt, squared(model), data(), way)
    assert len(seen) == 2 * BATCHES - (way == "closure")
    for (u, v), (u_again, v_again) in in_pairs(seen, way):
        assert torch.equal(u, u_again)
        assert torch.equal(v, v_again)
    assert not torch.equal(seen[0][0], seen[2][0])


def test_twice_protects_no_module_that_is_gone():
    """The modules that `twice` looks after are held weakly."""
    model = norm_net()
    gone = weakref.ref(model)
    opt = SuperAdam(model, tau=1.0)
    del model, opt
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------------------------------------ threads


def in_threads(*functions):
    """What each returns or raises, called in a thread of its own with a barrier that all of them share."""
    barrier, results = threading.Barrier(len(functions)), [None] * len(functions)

    def target(k):
        try:
            results[k] = functions[k](barrier.wait)
        except Exception as error:
            results[k] = error
        finally:
            barrier.abort()  # nobody waits for one that is gone

    threads = [threading.Thread(target=target, args=[k]) for k in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def together(wait):
    """Wait for the others, or for nobody when they are done."""
    with contextlib.suppress(threading.BrokenBarrierError):
        wait()


def prepare(way, seed, network):
    """A training of some batches, which returns parameters and buffers. In each evaluation it meets the others."""
    generator = torch.Generator().manual_seed(seed)
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator, dtype=p.dtype))
    opt = SuperAdam(model.parameters(), lr=0.05, tau=1.0)
    batches = torch.randn(6, 8, 6, generator=generator, dtype=torch.float64)

    def train(wait):
        def evaluate(batch):
            together(wait)
            loss = model(batch).square().mean()
            together(wait)
            loss.backward()
            return loss

        run(opt, evaluate, batches, way)
        return torch.cat([v.double().flatten() for v in model.state_dict().values()])

    return train


two_ways = pytest.mark.parametrize("ways", [*itertools.product(["closure", "half-steps"], repeat=2)])


@two_ways
def test_threads_train_as_if_they_were_alone(ways):
    """Loops and modules are those of each thread: without random numbers, nothing is shared."""
    alone = [prepare(way, seed, norm_net)(lambda: None) for seed, way in enumerate(ways)]
    trained = in_threads(*(prepare(way, seed, norm_net) for seed, way in enumerate(ways)))
    for result, expected in zip(trained, alone, strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_threads_with_a_lock_see_the_same_masks_twice():
    """What the documentation of `Replay` says: all threads share the generators."""
    lock = threading.Lock()

    def train(wait):
        recorder = Recorder(dropout_net())
        opt = SuperAdam(recorder.model, lr=0.05, tau=1.0)
        for batch in torch.ones(6, 8, 6, dtype=torch.float64):
            together(wait)
            with lock:
                opt.step(lambda batch=batch: (opt.zero_grad(), recorder(batch)))
        return recorder.seen

    for seen in in_threads(train, train):
        assert len(seen) == 11
        assert seen[1::2] == seen[2::2]


def test_a_step_in_another_thread_than_the_loop_is_refused():
    model = norm_net()
    opt = SuperAdam(model, tau=1.0)
    for batch in twice(data(1)):
        model(batch).square().mean().backward()
        (error,) = in_threads(lambda wait: opt.step())
        assert isinstance(error, RuntimeError)
        assert "in the thread that calls step()" in str(error)
        opt.step()
        opt.zero_grad()


def test_a_loop_can_end_in_another_thread():
    """As the garbage collector may have it. The thread that began it is in no loop any more."""
    turns = twice(data(1))
    next(turns)
    assert evaluations.current() is not None
    assert in_threads(lambda wait: turns.close()) == [None]
    assert evaluations.current() is None


# ------------------------------------------------------------------------------------------------ counting


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_evaluations_are_counted(case, tau):
    problem = Stochastic()
    for half_steps in (False, True):
        params, calls = problem.params(), []
        opt = SuperAdam(params, tau=tau, matrix=CASES[case])
        evaluate = problem.closure

        def closure(opt, params, i, calls=calls, evaluate=evaluate):
            def counting():
                calls.append(i)
                return evaluate(opt, params, i)()

            return counting

        problem.closure = closure
        train(problem, opt, params, range(5), half_steps=half_steps)
        problem.closure = evaluate
        two = tau > 0 or case == "3"
        # The first batch has no move to take: step(closure) evaluates it once.
        assert len(calls) == (10 - (not half_steps) if two else 5)
        assert opt.gradient_evaluations == len(calls)


def test_first_batch_and_first_after_flush_count_once():
    """They find x where it is."""
    problem, calls = Stochastic(), []
    params = problem.params()
    opt = SuperAdam(params, lr=0.1, tau=1.0)
    per_batch = []
    for i in range(6):
        before = opt.gradient_evaluations
        opt.step(lambda i=i: calls.append(i) or problem.closure(opt, params, i)())
        per_batch.append(opt.gradient_evaluations - before)
        if i == 3:
            opt.flush()
    assert per_batch == [1, 2, 2, 2, 1, 2]
    assert calls == [0, 1, 1, 2, 2, 3, 3, 4, 5, 5]


@pytest.mark.parametrize("way", ["closure", "half-steps"])
def test_first_batch_after_flush_enters_by_momentum(way):
    """g_t = α_t ∇f(x_t; ξ_t) + (1 - α_t) g_{t-1}: the point before the move is gone."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.1, tau=1.0, schedule=CONSTANT)
    train(problem, opt, params, range(3), half_steps=way == "half-steps")  # flushes
    x, g = problem.join(params).detach(), problem.join([opt.state[p]["g"] for p in params]).clone()
    if way == "closure":
        opt.step(problem.closure(opt, params, 3))
    else:
        for i in twice([3]):
            problem.closure(opt, params, i)()
            opt.step()
    assert torch.equal(problem.join(params), x)
    expected = 0.3 * problem.grad(x, 3) + 0.7 * g
    torch.testing.assert_close(problem.join([opt.state[p]["g"] for p in params]), expected, rtol=1e-13, atol=1e-13)


CONSTANT = {"type": "Constant", "mu": 1.0, "alpha": 0.3}


def test_loss_is_that_of_the_first_evaluation():
    """f(x_{t-1}; ξ_t), before ξ_t has had any influence: what other optimizers return."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.1, tau=1.0)
    for i in range(5):
        losses = []

        def closure(i=i, losses=losses):
            losses.append(problem.closure(opt, params, i)())
            return losses[-1]

        before = problem.loss(problem.join(params), i).item()
        assert opt.step(closure) is losses[0]
        assert losses[0].item() == before
        assert len(losses) == 1 if i == 0 else losses[1].item() != before


def test_closure_need_not_clear_the_second_gradient():
    """The optimizer clears the gradients between the two evaluations, so q does not leak into ∇f(x_t; ξ_t)."""
    problem = Stochastic()
    lasts = []
    for clears in (True, False):
        params = problem.params()
        opt = SuperAdam(params, lr=0.1, tau=1.0)
        for i in range(6):

            def closure(i=i, params=params):
                problem.loss(problem.join(params), i).backward()
                return 0.0

            opt.zero_grad()
            opt.step(problem.closure(opt, params, i) if clears else closure)
        lasts.append(problem.join(params))
    assert torch.equal(*lasts)


# ------------------------------------------------------------------------------------------------ memory


@pytest.mark.parametrize("half_steps", [False, True])
def test_state_is_g_and_v_and_the_pending_rate(half_steps):
    """No copy of x_{t-1}, of q, or of a gradient."""
    problem = Stochastic()
    params = problem.params()
    opt = SuperAdam(params, lr=0.1, tau=1.0, matrix=matrices.SecondMoment())
    for i in twice(range(3)) if half_steps else range(3):
        if half_steps:
            problem.closure(opt, params, i)()
            opt.step()
        else:
            opt.step(problem.closure(opt, params, i))
    for p in params:
        state = opt.state[p]
        assert state.keys() == {"step", "phase", "g", "v", "gamma"}
        assert state["step"] == 3
        assert state["gamma"] == 0.1
        assert state["g"].shape == state["v"].shape == p.shape
    opt.flush()
    assert all(opt.state[p].keys() == {"step", "phase", "g", "v", "gamma"} for p in params)


def state_bytes(opt):
    """Bytes of the tensors in the state that are as large as a parameter."""
    tensors = [t for state in opt.state.values() for t in state.values() if isinstance(t, torch.Tensor) and t.ndim]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_state_is_as_large_as_adams(tau):
    """8 bytes for every float32 parameter."""
    sizes = [(50, 20), (20,), (20, 3)]
    params = [torch.randn(s, requires_grad=True) for s in sizes]
    ours, adam = SuperAdam(params, tau=tau), torch.optim.Adam(params)

    def closure():
        ours.zero_grad()
        loss = sum(p.square().sum() for p in params)
        loss.backward()
        return loss

    for _ in range(3):
        ours.step(closure)
        adam.step()
    assert state_bytes(ours) == state_bytes(adam) == 8 * sum(p.numel() for p in params)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_a_step_needs_two_tensors_of_scratch(tau):
    """Beyond the state: √v_t and √v_t + λ of the largest parameter, however many there are. Small ones go together."""
    params = [torch.randn(n, requires_grad=True) for n in (80_000, 70_000, 100_000, 90_000)]
    grads = [[torch.randn_like(p) for p in params] for _ in range(3)]
    calls = iter(grads)

    def closure():  # allocates nothing
        for p, grad in zip(params, next(calls), strict=True):
            p.grad = grad
        return 0.0

    opt = SuperAdam(params, lr=0.1, tau=tau)
    opt.step(closure)
    state = [t for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
    before = [id(t) for t in state]
    with Live([*params, *state, *(g for gs in grads for g in gs)]) as live:
        opt.step(closure)
    assert live.peak <= 2 * 4 * 100_000 + 20_000  # and the states of the generators
    assert live.peak >= (4 * 100_000 if tau else 0)  # torch's kernel needs none
    assert [id(t) for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor)] == before
    assert opt.gradient_evaluations == (3 if tau else 2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("half_steps", [False, True])
def test_gradients_are_never_kept(case, half_steps):
    """With zero_grad(set_to_none=False) the same tensor holds every gradient. Were it kept as q or g, ĝ - q would be
    zero: so no state shares its memory, and the trajectory is the same."""

    def storages(tensors):
        return {t.untyped_storage().data_ptr() for t in tensors if isinstance(t, torch.Tensor) and t.numel()}

    problem = Stochastic()
    lasts = []
    for set_to_none in (True, False):
        params = problem.params()
        for p in params:
            p.grad = None if set_to_none else torch.zeros_like(p)
        opt = SuperAdam(params, lr=LR[case], tau=1.0, matrix=CASES[case])
        opt.zero_grad = lambda set_to_none=set_to_none, opt=opt: SuperAdam.zero_grad(opt, set_to_none)
        mine = {p: p.grad for p in params}
        for i in twice(range(6)) if half_steps else range(6):
            if half_steps:
                problem.closure(opt, params, i)()
                opt.step()
            else:
                opt.step(problem.closure(opt, params, i))
            kept = [t for state in opt.state.values() for t in state.values()]
            assert storages(kept).isdisjoint(storages([p.grad for p in params]))
            assert storages(kept).isdisjoint(storages(params))
            assert set_to_none or all(p.grad is mine[p] for p in params)
        lasts.append(problem.join(params))
    assert torch.equal(*lasts)
