"""The table of the narrow state is that of the stored losses, which differ by less than seeds do."""

import json
import statistics

import pytest
import torch

from research.state import narrow_state


def test_the_table_of_the_narrow_state_is_that_of_the_losses():
    page = narrow_state.PAGE.read_text()
    written = page.split(narrow_state.BEGIN)[1].split(narrow_state.END)[0]
    assert written.strip().splitlines() == list(narrow_state.table(json.loads(narrow_state.RESULTS.read_text())))


def test_losses_with_a_narrow_state_are_within_the_noise_of_seeds():
    rows = json.loads(narrow_state.RESULTS.read_text())["rows"]
    assert len(rows) == 6
    for row in rows:
        wide, narrow = row["losses"]["float32"], row["losses"]["bfloat16"]
        assert len(wide) == len(narrow) == len(narrow_state.SEEDS)
        assert abs(statistics.mean(wide) - statistics.mean(narrow)) < statistics.stdev(wide)
        assert row["bytes"] == {"float32": 8.0, "bfloat16": 4.0}


@pytest.mark.slow
def test_a_loss_of_the_narrow_state_can_be_had_again():
    recorded = json.loads(narrow_state.RESULTS.read_text())["rows"][-2]
    loss, _ = narrow_state.trained(*narrow_state.tasks()[recorded["task"]], 0, recorded["tau"], torch.bfloat16)
    assert loss == pytest.approx(recorded["losses"]["bfloat16"][0], rel=1e-3)
