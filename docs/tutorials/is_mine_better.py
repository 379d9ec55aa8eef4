# %% [markdown]
# # Is my optimizer better?
#
# This page compares an optimizer of your own with AdamW and explains the verdict. Both are tuned in the same way. The
# example is momentum with steps of equal length for every tensor. A comparison runs in worker processes, so the class
# must be in a file.

# %%
# %%writefile mine.py
import torch


class Normalized(torch.optim.Optimizer):
    """x = x - lr m / |m| for each tensor, with the momentum m."""

    def __init__(self, params, lr=1e-2, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.lerp_(p.grad, 1 - group["momentum"])
                p.sub_(group["lr"] * m / (m.norm() + 1e-12))


# %% [markdown]
# ## Compare
#
# `lab.compare` tunes every method with the same number of trials at the same learning rates. It repeats the best trial
# of each with seeds that no trial has seen. All runs have the same number of gradient evaluations. AdamW is the baseline
# unless you name another one.

# %%
from pathlib import Path

import matplotlib.pyplot as plt
from IPython.display import Markdown

import superadam_lab as lab

results = lab.compare(
    ["digits-mlp"],
    ["mine: mine.py:Normalized"],
    scale="tiny",
    tune={"lr": (3e-3, 3.0)},
    trials=5,
    seeds=5,
    budget_evals=200,
    jobs=1,
    out="comparison",
)
print(len(results.records), "runs")

# %% [markdown]
# ## Read the verdict
#
# The folder has `report.html` with charts, `report.md`, and `results.json` for programs. The report begins with the
# verdict:

# %%
report = Path("comparison/report.md").read_text(encoding="utf-8")
_, _, verdict = report.partition("\n\n## ")[0].split("\n\n", 2)  # without title and subtitle
Markdown(verdict)

# %% [markdown]
# - **The difference** is a ratio of final validation losses, with an interval. If the interval includes 0 %, chance
#   explains the difference.
# - **p** is the probability of a difference at least this large if the methods were equal.
# - **Power** says how large a difference must be for this many seeds to detect it. Smaller ones may exist.
# - If there are too few seeds, or the best learning rate lies at the edge of the range, the headline says "not enough
#   to tell" and names what is needed.
#
# ## Look at the runs

# %% alt="Left: the validation loss of the trials against their learning rates, for AdamW and for mine. Right: the validation loss against gradient evaluations for the five seeds of each."
fig, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for color, method in enumerate(results.plan.methods):
    trials = [r for r in results.records if r.method == method and r.phase == "tune"]
    points = sorted((r.options["lr"], r.rows[-1]["valid_loss"]) for r in trials)
    left.loglog(*zip(*points, strict=True), "o-", color=f"C{color}", label=method)
    for r in results.records:
        if r.method == method and r.phase == "report":
            evaluations = [row["gradient_evaluations"] for row in r.rows]
            right.semilogy(evaluations, [row["valid_loss"] for row in r.rows], color=f"C{color}")
left.set(xlabel="learning rate", ylabel="validation loss", title="5 trials")
right.set(xlabel="gradient evaluations", title="the best of them, 5 seeds")
left.legend()
plt.show()

# %% [markdown]
# The two methods need different learning rates. Choose the range of `tune` so that both valleys lie inside it: a method
# whose best learning rate was never tried looks worse than it is.
#
# This page uses five trials and 200 gradients so that it runs in seconds. They are too few to publish. In a terminal,
# `superadam compare digits-mlp digits-cnn --methods "mine: mine.py:Normalized"` takes nine trials and shows a table
# while it runs. [Comparing optimizers](../compare.md) has the rules, tasks of your own, and many machines.
