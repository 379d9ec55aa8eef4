"""What the page says is what its table says; a few studies are as the table says."""

from research.tables import numbers, rows
from research.verdict import verdict


def test_the_claims_are_those_of_the_table():
    _, body = rows("verdict", "verdict")
    assert list(body) == list(verdict.CASES)
    skewed = body.pop("two tasks, the same with skewed noise")
    assert float(skewed[1]) == 8.7
    columns = [dict(zip(body, numbers(cells), strict=True)) for cells in zip(*body.values(), strict=True)]
    _, new, old_power, power = columns
    assert max(new.values()) == 5.7
    assert min(new.values()) == 0.3
    usual = [name for name in body if name.startswith("two") and "baseline" not in name and "tenth" not in name]
    assert all(72 <= power[name] <= 83 and 27 <= old_power[name] <= 42 for name in usual)
    assert float(skewed[2]) == 47


def test_a_few_studies_are_like_those_of_the_table():
    _, _, _, old, new = verdict.row("two tasks", 12)
    assert float(new) > float(old)
