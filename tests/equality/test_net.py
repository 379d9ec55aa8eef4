"""Trajectories are those that net.json.gz has: some of each family here, all of them by `net.py compare`."""

import warnings

import pytest

from equality import net

STORED = net.load()["entries"]
SAMPLE = 4
FAMILIES = sorted({name.split("/")[0] for name in STORED} - {"distributed"})  # which starts processes


@pytest.fixture(scope="module")
def made():
    """All entries by their names; none has run yet."""
    return {entry.name: entry for entry in net.entries()}


def test_every_stored_entry_is_still_made(made):
    assert STORED.keys() <= made.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_each_family_is_as_stored(made, family):
    names = [name for name in STORED if name.startswith(f"{family}/")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [net.compared(made[name], STORED[name]) for name in names[:: len(names) // SAMPLE][:SAMPLE]]
    assert not [f"{result.name}: {result.said}" for result in results if not result.good]


def test_a_changed_point_is_found(made):
    """A difference of 1e-11 in one coordinate is seen, and one of a unit in the last place is told from equality."""
    name = "matrix/SecondMoment/tau=1.0/Adam"
    points = made[name].run()

    def seen(by):
        entry = net.Entry(
            name, lambda: [*points[:-1], [points[-1][0] + by * points[-1][0].abs().max(), *points[-1][1:]]]
        )
        return net.compared(entry, STORED[name])

    assert seen(0.0).off == 0
    assert not seen(1e-11).good
    assert 0 < seen(3e-16).off < 1e-14
    assert seen(3e-16).good
