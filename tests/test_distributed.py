"""Several processes take the steps that one would take on the joint batch; who works on the matrices of a tensor."""

import copy
import re
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

import copies
from superadam import SuperAdam, matrices
from superadam.distributed import _on_host, places
from superadam.options import Plan
from versions import FSDP2_ON_CPUS, SAID_WITHOUT_FSDP2, WITHOUT_FSDP2
from workers import SCENARIOS, SLOW
from workers.scenarios import BATCHES, network

# What one and four processes run: every matrix with either τ, every checkpoint, and one of each other kind. Two run
# everything.
ALIKE = [name for name in SCENARIOS if name.startswith(("fsdp case", "saved")) and name != "saved by one"]
BY_FOUR = [
    *ALIKE,
    *("fsdp rows tau=1", "fsdp clip tau=1 foreach", "fsdp stochastic tau=1", "fsdp hybrid", "fsdp tensor-parallel"),
    "ddp case 2 tau=1 half-steps",
    *[name for name in SCENARIOS if name.startswith(("owned", "ddp divided")) and name != "owned columns"],
]
BY_ONE = ALIKE
TOLERANCE = 1e-10
MESHES = ("fsdp hybrid", "fsdp tensor-parallel")  # of 2 × 2 processes


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """Results of all scenarios by a number of processes, each number started once."""
    folder = tmp_path_factory.mktemp("processes")
    done = {}

    def run(world, slow=False):
        if world != 2:
            assert run(2), "others load what two processes have saved, and these have failed"
        if (world, slow) not in done:
            done[world, slow] = {}  # if this start fails, there is no second one
            by_two = [name for name in SCENARIOS if name not in MESHES and (name in SLOW) == slow]
            names = {1: BY_ONE, 2: by_two, 4: BY_FOUR}[world]
            place = folder / f"slow={slow}"  # where the processes of one start meet
            place.mkdir(exist_ok=True)
            call = f"import workers; workers.run_all({{rank}}, {world}, {str(place)!r}, {names})"
            env = {"SAVED_IN": str(folder)}
            copies.wait_for_all(*[copies.start("-c", call.format(rank=rank), env=env) for rank in range(world)])
            done[world, slow] = torch.load(place / f"results-{world}.pt", weights_only=False)
        return done[world, slow]

    return run


def result(start, world, name):
    """What a scenario gave."""
    outcome = start(world, slow=name in SLOW).get(name, "The processes failed: see the first of these tests")
    if isinstance(outcome, str) and not FSDP2_ON_CPUS and any(word in outcome for word in SAID_WITHOUT_FSDP2):
        pytest.skip(WITHOUT_FSDP2)  # nor save without processes
    assert not isinstance(outcome, str), outcome
    return outcome


COMPARED = [name for name in SCENARIOS if not name.startswith(("count", "refused", "buffers"))]


@pytest.mark.parametrize(
    ("world", "name"),
    [
        *[(2, name) for name in COMPARED if name not in MESHES and name not in SLOW],
        *[pytest.param(2, name, marks=pytest.mark.slow) for name in COMPARED if name in SLOW],
        *[pytest.param(1, name, marks=pytest.mark.slow) for name in BY_ONE],
        *[pytest.param(4, name, marks=pytest.mark.slow) for name in BY_FOUR],
    ],
)
def test_as_one_process(start, world, name):
    """FSDP2, DDP and ZeRO, closures and half-steps, with and without a checkpoint between: x as without any of it."""
    expected = SCENARIOS[name](0, 0)
    torch.testing.assert_close(result(start, world, name), expected, rtol=TOLERANCE, atol=TOLERANCE)
    start_of = {n: p.detach() for n, p in network().named_parameters() if n in expected}
    assert all((expected[n] - p).abs().max() > 1e-3 for n, p in start_of.items() if expected[n].shape == p.shape)


@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
@pytest.mark.parametrize("case", ["1", "2", "3"])
@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_messages_of_a_step(start, wrapper, case, tau):
    """One reduction of gradients per evaluation; a sum over all of x takes one message, where x is divided."""
    counts = result(start, 2, f"count {wrapper} case {case} tau={tau}")
    evaluations = 2 if tau > 0 or case == "3" else 1
    assert counts == {"gradients": evaluations, "scalars": int(wrapper == "fsdp" and case != "1")}


@pytest.mark.parametrize(
    ("what", "messages"), {"experts": 0, "owned Muon": 2, "owned SOAP": 3}.items(), ids=lambda value: str(value)
)
def test_messages_of_matrices_of_tensors(start, what, messages):
    """Whether gradients are finite, for factors; who has gradients; g_t to the owners and the steps back; the newest
    gradient too, if H_t is made of it.

    Factors are held once.
    """
    found = result(start, 2, f"count {what}")
    small = (what != "owned Muon") + (messages > 0)
    assert found["messages"] == ["allreduce_"] * small + ["alltoall_base_"] * messages
    assert found["share"] == 0 if what == "owned Muon" else 0.3 < found["share"] < 0.7


@pytest.mark.parametrize("tau", [0.0, 1.0])
@pytest.mark.parametrize("wrapper", ["fsdp", "ddp"])
def test_a_gradient_that_one_process_lacks_is_refused_by_all(start, wrapper, tau):
    """They would wait for each other otherwise: the owner of the matrix expects it from all."""
    has, lacks = result(start, 2, f"refused gradient {wrapper} tau={tau}")
    for said, here in ((has, "has one"), (lacks, "has none")):
        assert re.search(rf"0\.weight has a gradient on 1 of 2 processes \(this one {here}\)", said)


@pytest.mark.parametrize(
    ("what", "says"),
    {
        "whole tensor": r"the\.weight: it is sharded, and L2Ball.* couples coordinates along dimension 0.*ignored",
        "sharded dim": r"Simplex.* couples coordinates along dimension 0.*shard_placement_fn",
        "matrix": r"SpectralBall.* couples coordinates",
        "rows of bounds": r"Box.* has an option with an element for each slice",
        "penalty": r"GroupLasso.* couples coordinates",
        "joint": r"DampedLBFGS solves for all coordinates at once",
    }.items(),
)
def test_what_cannot_be_sharded_is_refused_by_name(start, what, says):
    """At construction, with the parameters left as they were."""
    assert re.search(says, result(start, 2, "refused")[what])


def test_buffers_of_a_wrapped_network_see_each_batch_once(start):
    assert result(start, 2, "buffers") == 2 * BATCHES


def test_joint_matrix_on_several_devices_is_refused():
    params = [torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta", requires_grad=True)]
    with pytest.raises(ValueError, match=r"DampedLBFGS.* must be on one device.*cpu, meta"):
        SuperAdam(params, matrix="DampedLBFGS")
    opt = SuperAdam(params[:1], matrix="DampedLBFGS")
    with pytest.raises(ValueError, match="one device"):
        opt.add_param_group({"params": params[1:]})
    assert len(opt.param_groups) == 1


# -------------------------------------------------------------------------------------------------- owners of matrices


class Processes:
    """Some processes, as seen by one of them."""

    def __init__(self, size, rank=0):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


def dense(shapes):
    """Parameters of these shapes that have a matrix of their own, and these matrices."""
    opt = SuperAdam([torch.zeros(shape) for shape in shapes], matrix=matrices.ByShape(matrices.SOAP()))
    plan = Plan(opt.param_groups[0])
    return {p: plan.matrix(p) for p in plan.group["params"] if plan.matrix(p).per_tensor}


SHAPES = st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 5))
def test_every_matrix_has_one_owner_and_all_processes_agree(shapes, size):
    of, found = dense(shapes), []
    for rank in range(size):
        found.append(places(of, Processes(size, rank), {}))
    for p in of:
        assert len({at[p].owner for at in found}) == 1
        assert [at[p].here for at in found] == [int(rank == found[0][p].owner) for rank in range(size)]


@given(SHAPES, st.integers(1, 5))
def test_no_process_has_more_to_do_than_the_others_by_more_than_one_matrix(shapes, size):
    found = places(dense(shapes), Processes(size), {}).values()
    loads = [sum(place.cost for place in found if place.owner == rank) for rank in range(size)]
    assert max(loads) - min(loads) <= max(place.cost for place in found)


def test_owners_stay_when_parameters_are_added():
    processes, of, more = Processes(3), dense([(4, 4), (5, 5), (3, 3)]), dense([(9, 9)])
    before = places(of, processes, {})
    added = places(more, processes, before)
    again = places(of, processes, {**before, **added})
    assert again == before
    assert {place.owner for place in added.values()} == {2}  # which has the least to do


def test_vectors_have_no_owner():
    assert len(places(dense([(4, 4), (4,)]), Processes(2), {})) == 1


@mock.patch.object(dist, "get_process_group_ranks", return_value=[1, 3])
@mock.patch.object(dist, "new_group")
@pytest.mark.parametrize("backend", ["cuda:nccl", "cpu:gloo,cuda:nccl"])
def test_asking_who_has_a_gradient_does_not_wait_for_a_device(new_group, ranks, backend):
    """Where a group of processes sends by nccl alone, the same processes get another group, once."""
    group = Processes(2)
    with mock.patch.object(dist, "get_backend_config", return_value=backend):
        found = [_on_host(group), _on_host(group)]
    if "gloo" in backend:
        assert found == [group, group]
    else:
        assert found == [new_group.return_value] * 2
        new_group.assert_called_once_with([1, 3], backend="gloo", use_local_synchronization=True)


def test_one_process_owns_everything_whatever_was_asked():
    opt = SuperAdam([torch.ones(3, 4, requires_grad=True)], matrix=matrices.SOAP())
    with pytest.raises(RuntimeError, match="init_process_group"):
        opt.divide_matrices()
    copied = copy.deepcopy(opt)
    assert [place.here for place in copied._places.values()] == [1]
