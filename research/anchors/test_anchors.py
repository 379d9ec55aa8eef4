"""The tables are those of the stored runs, and the page's claims hold in them."""

import json
import statistics

import pytest

from research import tables
from research.anchors import anchors

RUNS = json.loads(anchors.RUNS.read_text())
_, SUMMARY = tables.rows("anchors", "summary")
RIVALS = ("SGD", "SGD, momentum 0.9", "Adam", "AMSGrad", "schedule-free Adam", "tau = 1, alpha = 0.1", "Frank-Wolfe")


def gap(task, method, epochs):
    return max(1e-15, statistics.median(r["gap"] for r in RUNS[task]["methods"][method][str(epochs)]["runs"]))


def best_rival(task, epochs):
    return min(gap(task, name, epochs) for name in RIVALS if name in RUNS[task]["methods"])


def test_the_tables_are_those_of_the_runs():
    text = anchors.PAGE_FILE.read_text(encoding="utf-8")
    assert anchors.page(text) == text


@pytest.mark.parametrize("task", SUMMARY)
def test_the_summary_is_that_of_the_runs(task):
    """Read without the code that wrote it."""
    for cell, epochs in zip(SUMMARY[task], (10, 30, 100), strict=False):
        said = [float(part.split()[0].replace("<", "0")) for part in cell.split(" / ")]
        for value, of in zip(said, (gap(task, anchors.OURS, epochs), best_rival(task, epochs)), strict=True):
            assert value == pytest.approx(of, rel=0.06, abs=1.1e-15)


def test_every_learning_rate_is_inside_its_grid():
    """The best of seed 0 has a neighbour on both sides."""
    for task in SUMMARY:
        for name, of_method in RUNS[task]["methods"].items():
            for found in of_method.values():
                if "grid" in found:
                    gaps = list(found["grid"].values())
                    assert 0 < gaps.index(min(gaps)) < len(gaps) - 1, (task, name)


def test_gaps_are_not_below_the_minimum():
    """f* is right to 1e-14."""
    assert all(
        r["gap"] > -1e-14
        for of_task in RUNS.values()
        for of_method in of_task["methods"].values()
        for found in of_method.values()
        for r in found["runs"]
    )


@pytest.mark.parametrize("name", ["logistic", "digits, ten classes", "Huber, heavy tails", "mixture on the simplex"])
def test_gradients_are_those_of_autograd(name, tmp_path):
    import torch

    task = anchors.TASKS[name](tmp_path)
    x = (task.start() + 0.01).requires_grad_()
    value = task.loss(task.scores(x, task.A), task.y).mean() + task.l2 / 2 * x.square().sum()
    (grad,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(task.gradient(x.detach()), grad, rtol=1e-10, atol=1e-12)
