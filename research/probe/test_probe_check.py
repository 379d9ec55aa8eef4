"""The verdict of the probe is what a tuned comparison finds. It runs both: minutes."""

import pytest

from research.probe import probe_check


@pytest.mark.slow
@pytest.mark.parametrize("task", ["digits", "text", "regression"])
def test_the_verdict_is_what_a_tuned_comparison_finds(task):
    report, best = probe_check.check(task, seeds=2)
    assert report.tau == min(best, key=lambda tau: best[tau][2])
