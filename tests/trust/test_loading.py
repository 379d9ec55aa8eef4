"""A checkpoint loads into the composition that saved it, and into no other: all of a composition is compared."""

import dataclasses
import itertools

import pytest

from equality import net
from superadam.matrices import SOAP, ByShape, Muon, PSGDKron, SecondMoment, Shampoo, Yogi
from trust.compositions import PARTS, Noisy, RefusedError, furthest, optimizer, options_of, tensors
from trust.test_refused_steps import identical

SHAPES = [(6, 5), (5,)]


def kinds(part):
    """Return the type of a part, and those of the parts that it has as options, at any depth."""
    if isinstance(part, tuple):
        return tuple(kinds(other) for other in part)
    if dataclasses.is_dataclass(part):
        return (type(part), *(kinds(getattr(part, field.name)) for field in dataclasses.fields(part)))
    return None


def trained(options):
    params = tensors(SHAPES)
    opt = optimizer(params, options)
    problem = Noisy(params)
    for n in range(2):
        opt.step(problem.closure(n))
    return params, opt


def refuses(saved, options):
    """Whether another composition refuses a checkpoint; if so, it has changed nothing."""
    params, opt = trained(options)
    before = [p.detach().clone() for p in params], opt.state_dict()
    try:
        opt.load_state_dict(saved)
    except ValueError:
        assert identical(([p.detach() for p in params], opt.state_dict()), before)
        return True
    return False


def part_of(kind, label):
    made = net.choose(**{kind: label})()
    return kinds(made[kind])


def loaded_silently(kind, some):
    """Return the pairs of labels whose parts are of different types, and of which one loads the other's checkpoint."""
    saved = {}
    for label in some:
        try:
            saved[label] = trained(options_of(kind, label))[1].state_dict()
        except RefusedError:
            continue
    assert len(saved) > 1
    return [
        (one, other)
        for one, other in itertools.permutations(saved, 2)
        if part_of(kind, one) != part_of(kind, other) and not refuses(saved[one], options_of(kind, other))
    ]


@pytest.mark.parametrize("kind", [kind for kind in PARTS if kind != "matrix"])
def test_a_checkpoint_of_another_part_is_refused(kind):
    assert not loaded_silently(kind, PARTS[kind])


@pytest.mark.parametrize("start", range(8))
def test_a_checkpoint_of_another_matrix_is_refused(start):
    """Each matrix and every eighth after it."""
    assert not loaded_silently("matrix", list(net.EVERY)[start::8])


@pytest.mark.slow
def test_a_checkpoint_of_any_other_matrix_is_refused():
    assert not loaded_silently("matrix", net.EVERY)


NESTED = {
    "SOAP": ByShape(SOAP(every=2)),
    "Shampoo": ByShape(Shampoo(every=2)),
    "grafted": ByShape(Shampoo(every=2, grafting=SecondMoment())),
    "grafted by another": ByShape(Shampoo(every=2, grafting=Yogi())),
    "Muon": ByShape(Muon()),
    "PSGD": ByShape(PSGDKron()),
    "another for the rest": ByShape(Muon(), Yogi()),
    "several": ByShape((Muon(), SOAP())),
    "within": ByShape(ByShape(Muon(), Yogi())),
    "alone": SecondMoment(),
}


@pytest.mark.parametrize("one", NESTED)
def test_a_checkpoint_of_another_division_is_refused(one):
    """In both directions, and with a message that names what differs."""
    saved = trained({"matrix": NESTED[one], "lr": 0.01})[1].state_dict()
    for other in NESTED.keys() - {one}:
        params, opt = trained({"matrix": NESTED[other], "lr": 0.01})
        before = [p.detach().clone() for p in params], opt.state_dict()
        with pytest.raises(ValueError, match="another composition: group 0 has matrix="):
            opt.load_state_dict(saved)
        assert identical(([p.detach() for p in params], opt.state_dict()), before)


@pytest.mark.parametrize("one", NESTED)
def test_options_of_the_same_parts_are_loaded(one):
    """And the steps that follow are those of the composition that saved."""
    params, opt = trained({"matrix": NESTED[one], "lr": 0.01})
    others, another = trained({"matrix": changed(NESTED[one]), "lr": 0.02})
    another.load_state_dict(opt.state_dict())
    for p, q in zip(others, params, strict=True):
        p.data.copy_(q)
    for one_of, its in ((opt, params), (another, others)):
        for n in range(2, 6):
            one_of.step(Noisy(its).closure(n))
    assert furthest([others], [params]) == 0


def changed(part):
    """Return the part with another number at some depth."""
    fields = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
    if isinstance(part, ByShape):
        first = tuple(map(changed, part.first)) if isinstance(part.first, tuple) else changed(part.first)
        return dataclasses.replace(part, first=first, otherwise=changed(part.otherwise))
    name = next(name for name in ("beta", "eps", "precision") if name in fields)
    return dataclasses.replace(part, **{name: 0.97 * fields[name]})


def test_the_schedule_of_a_checkpoint_is_compared_with_the_default():
    """Averages of one schedule do not go on with the weights of another."""
    saved = trained({"schedule": "Paper", "matrix": SecondMoment(), "lr": 0.01})[1].state_dict()
    assert refuses(saved, {"lr": 0.01, "matrix": SecondMoment()})


def test_a_changed_tau_is_refused():
    saved = trained({"tau": 0.5, "lr": 0.01})[1].state_dict()
    assert refuses(saved, {"lr": 0.01, "tau": 1.0})
    assert not refuses(saved, {"lr": 0.01, "tau": 0.5})
