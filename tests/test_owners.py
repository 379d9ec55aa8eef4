"""Who works on the matrices of a tensor. What several processes make of it: test_distributed.py."""

import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from superadam import SuperAdam, matrices
from superadam._state.owners import _on_host, places
from superadam._state.plans import GroupPlan


class Processes:
    """Some processes, as seen by one of them."""

    def __init__(self, size, rank=0):
        self._size, self._rank = size, rank

    def size(self):
        return self._size

    def rank(self):
        return self._rank


def plan_of(shapes):
    opt = SuperAdam([torch.zeros(shape) for shape in shapes], matrix=matrices.ByShape(matrices.SOAP()))
    return GroupPlan(opt.param_groups[0])


SHAPES = st.lists(st.tuples(st.integers(2, 9), st.integers(2, 9)), min_size=1, max_size=12)


@given(SHAPES, st.integers(1, 5))
def test_every_matrix_has_one_owner_and_all_processes_agree(shapes, size):
    plan, found = plan_of(shapes), []
    for rank in range(size):
        found.append(places(plan, Processes(size, rank), {}))
    for p in plan.group["params"]:
        assert len({at[p].owner for at in found}) == 1
        assert [at[p].here for at in found] == [int(rank == found[0][p].owner) for rank in range(size)]


@given(SHAPES, st.integers(1, 5))
def test_no_process_has_more_to_do_than_the_others_by_more_than_one_matrix(shapes, size):
    plan = plan_of(shapes)
    found = places(plan, Processes(size), {}).values()
    loads = [sum(place.cost for place in found if place.owner == rank) for rank in range(size)]
    assert max(loads) - min(loads) <= max(place.cost for place in found)


def test_owners_stay_when_parameters_are_added():
    processes, plan, more = Processes(3), plan_of([(4, 4), (5, 5), (3, 3)]), plan_of([(9, 9)])
    before = places(plan, processes, {})
    added = places(more, processes, before)
    again = places(plan, processes, {**before, **added})
    assert again == before
    assert {place.owner for place in added.values()} == {2}  # which has the least to do


def test_vectors_have_no_owner():
    assert len(places(plan_of([(4, 4), (4,)]), Processes(2), {})) == 1


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
