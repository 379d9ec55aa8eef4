"""Products of many factors: every pair of values, or fewer (`one_in`), in the quick suite; the rest in the slow one."""

import itertools

import pytest


def pairs(*factors, one_in=None):
    """All combinations of the factors' values. The quick ones have every pair of values of any two factors among them:
    the value of the last factor follows from the others.

    With `one_in` one combination in so many is quick. That may be less than all pairs, but every value is there.
    """
    lists, found, met = [list(factor) for factor in factors], [], set()
    for places in itertools.product(*(range(len(values)) for values in lists)):
        quick = sum(places) % (one_in or len(lists[-1])) == 0
        met |= set(enumerate(places)) if quick else set()
        values = [values[place] for values, place in zip(lists, places, strict=True)]
        found.append(pytest.param(*values, marks=() if quick else pytest.mark.slow))
    assert len(met) == sum(map(len, lists)), "a value is in no quick combination"
    return found
