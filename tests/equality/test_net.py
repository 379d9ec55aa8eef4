"""Trajectories are those that net.json.gz has: some of each family here, all of them by `net.py compare`."""

import warnings

import pytest

from equality import net

STORED = net.load()["entries"]
SAMPLE = 4
# Eigenvectors and roots enlarge the rounding of the CPU that has recorded them: compare these by hand, on one machine.
BY_HAND = ("SOAP", "Shampoo", "PSGD", "super_adam_plus", "kl_shampoo", "soap", "shampoo", "psgd", "different", "split")
FAMILIES = sorted({name.split("/")[0] for name in STORED} - {"distributed"})  # which starts processes


@pytest.fixture(scope="module")
def made():
    """All entries by their names; none has run yet."""
    return {entry.name: entry for entry in net.entries()}


def test_every_stored_entry_is_still_made(made):
    assert STORED.keys() <= made.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_each_family_is_as_stored(made, family):
    names = [name for name in STORED if name.startswith(f"{family}/") and not any(kind in name for kind in BY_HAND)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [net.compared(made[name], STORED[name]) for name in names[:: len(names) // SAMPLE][:SAMPLE]]
    assert not [f"{result.name}: {result.said}" for result in results if not (result.good or result.off < 1e-10)]


def test_a_changed_point_is_found(made):
    """A difference of 1e-11 in one coordinate is seen, and one of a unit in the last place is told from equality."""
    name = "matrix/SecondMoment/tau=1.0/Adam"
    points = made[name].run()

    def seen(by):
        entry = net.Entry(
            name, lambda: [*points[:-1], [points[-1][0] + by * points[-1][0].abs().max(), *points[-1][1:]]]
        )
        return net.compared(entry, STORED[name])

    here = seen(0.0).off  # another CPU than the one that recorded may round otherwise
    assert here < 1e-14
    assert not seen(1e-11).good
    assert seen(3e-16).off != here
    assert seen(3e-16).good
