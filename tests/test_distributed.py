"""Several processes take the steps that one would take on the joint batch."""

import re

import pytest
import torch

import copies
import workers
from superadam import SuperAdam
from versions import FSDP2_ON_CPUS, SAID_WITHOUT_FSDP2, WITHOUT_FSDP2
from workers import SCENARIOS, SLOW

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
    start_of = {n: p.detach() for n, p in workers.network().named_parameters() if n in expected}
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
        "differentiable": r"differentiable=False",
    }.items(),
)
def test_what_cannot_be_sharded_is_refused_by_name(start, what, says):
    """At construction, with the parameters left as they were."""
    assert re.search(says, result(start, 2, "refused")[what])


def test_buffers_of_a_wrapped_network_see_each_batch_once(start):
    assert result(start, 2, "buffers") == 2 * workers.BATCHES


def test_joint_matrix_on_several_devices_is_refused():
    params = [torch.zeros(2, requires_grad=True), torch.zeros(2, device="meta", requires_grad=True)]
    with pytest.raises(ValueError, match=r"DampedLBFGS.* must be on one device.*cpu, meta"):
        SuperAdam(params, matrix="DampedLBFGS")
    opt = SuperAdam(params[:1], matrix="DampedLBFGS")
    with pytest.raises(ValueError, match="one device"):
        opt.add_param_group({"params": params[1:]})
    assert len(opt.param_groups) == 1
