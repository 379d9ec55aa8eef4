"""The embedded tasks of other kinds: what they claim to be."""

import math

import pytest
import torch

from superadam_lab import tasks
from superadam_lab.comparison.worker import Light
from superadam_lab.runs.folders import Config
from superadam_lab.tasks import models, varied

LEARNED = {"digits-autoencoder": 0.8, "digits-vit": 0.8, "ratings": 0.75, "pinn-poisson": 0.75, "logistic-sparse": 0.75}


@pytest.mark.parametrize("task", LEARNED)
def test_at_the_size_of_a_comparison_something_is_learned(task):
    found = tasks.find(task)
    sizes = found.compared["tiny"]
    config = Config(task, "adamw", "tiny", options={"lr": 0.03}, budget_evals=150, decay="cosine", sizes=sizes)
    run = Light(config)
    assert run.train() == "finished"
    first, *_, last = run.folder.rows
    assert last["valid_loss"] < LEARNED[task] * first["valid_loss"]


class Solved(torch.nn.Module):
    """What the network of the equation would be in the end."""

    def forward(self, p):
        return (varied._solution(p) / (16 * (p * (1 - p)).prod(1))).unsqueeze(1)


def test_the_solution_of_the_equation_has_no_residual_and_no_distance():
    p = 0.1 + 0.8 * torch.rand(50, 2, dtype=torch.float64)
    assert varied._residual(Solved(), p).item() < 1e-20
    assert varied._distance(Solved(), p).item() < 1e-28
    assert varied._residual(Solved(), p).item() < 1e-20 < varied._residual(models.mlp(2, 4, 1, 0.0).double(), p).item()


def test_some_items_and_features_are_much_more_common_than_others():
    pairs = tasks.find("ratings").workload("laptop", 0).rows["train"].tensors[0]
    counts = torch.bincount(pairs[:, 1], minlength=500).sort(descending=True).values
    assert counts[0] > 20 * counts[250]
    x = tasks.find("logistic-sparse").workload("laptop", 0).all["train"][0]
    assert 0.005 < x.mean() < 0.02
    shares = x.mean(0)
    assert shares[0] > 0.5
    assert shares[500:].mean() < 0.02


def test_data_are_the_same_for_every_seed_and_weights_are_not():
    for task in LEARNED:
        a, b = (tasks.find(task).workload("tiny", seed) for seed in (0, 1))
        (p, *_), (q, *_) = a.model.parameters(), b.model.parameters()
        assert task == "logistic-sparse" or not torch.equal(p, q)
        assert math.isfinite(a.evaluate("valid")["loss"])
    assert torch.equal(a.all["train"][0], b.all["train"][0])
