"""What the page says of learning rates is what its tables say, and these are up to date."""

import re

from research.sensitivity import sensitivity
from research.tables import numbers, rows


def test_the_claims_about_learning_rates_are_those_of_the_table():
    _, body = rows("sensitivity", "sensitivity")
    ours, theirs, default, apart = map(numbers, zip(*body.values(), strict=True))
    assert (len(body), sum(f >= 4 for f in ours), sum(f >= 4 for f in theirs)) == (10, 6, 4)
    assert all((seeds >= 21) == (f < 4) for f, seeds in zip(ours, apart, strict=True))
    wanting = {task for task, loss in zip(body, default, strict=True) if loss > 10}
    assert wanting == {"pinn-poisson", "digits-cnn", "logistic-sparse"}
    _, fixed = rows("sensitivity", "defaults")
    (larger, best), (worse, _) = numbers(fixed["logistic-sparse"]), numbers(fixed["digits-mlp"])
    assert [round(100 * (ratio - 1)) for ratio in (1 / best, larger / best, worse)] == [13, 9, 9]
    for cell in (*fixed["digits-cnn"], *fixed["digits-vit"]):
        _, low, high = (float(number) for number in re.findall(r"[\d.]+", cell))
        assert low < 1 < high


def test_the_page_is_up_to_date():
    assert sensitivity.PAGE.read_text(encoding="utf-8") == sensitivity.page()
