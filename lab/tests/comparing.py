"""A comparison that costs next to nothing: a line through points, from a task file."""

import dataclasses

from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.jobs import complete, needed
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.queue import Queue
from superadam_lab.comparison.worker import run

FILE = """
import os, time
import torch
from torch import nn
import superadam_lab as lab

draw = torch.Generator().manual_seed(0)
x = torch.randn(200, 5, generator=draw)
y = x @ torch.arange(5.0) + 0.3 * torch.randn(200, generator=draw)

calls = 0

def loss(model, x, y):
    global calls
    calls += 1
    while calls > 1 and os.path.exists({slow!r}):  # the first is of whoever makes the plan
        time.sleep(0.05)
    return (model(x).squeeze(1) - y).square().mean()

lab.task(
    "line",
    model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.1), nn.Linear(8, 1)),
    data={{"train": (x[:100], y[:100]), "valid": (x[100:150], y[100:150]), "test": (x[150:], y[150:])}},
    loss=loss,
    batch=20,
    epochs=6,
)
"""
METHODS = ["adamw", "super_adam tau=1", "mine: super_adam tau=0.1"]


def small_plan(folder, methods=METHODS, **options):
    """A plan of 3 methods × (2 trials + 2 seeds). Workers stand still while the file `slow` is in the folder."""
    path = folder / "line_task.py"
    path.write_text(FILE.format(slow=str(folder / "slow")))
    return plan_of(Options(["line"], methods, **{"trials": 2, "seeds": 2, "task_file": path, **options}))


def alone(plan, path):
    """The whole comparison in this process, without a worker."""
    with Queue(f"sqlite:///{path}", "alone", plan) as queue:
        while not complete(plan, records := queue.records()):
            queue.put(needed(plan, records))
            with queue.take() as taken:
                taken.record = run(plan, taken.job)
        return queue.results()


def numbers(results):
    """All that must not depend on who made the runs, nor when."""
    found = dataclasses.asdict(results)["records"]
    for record in found:
        for row in record["rows"]:
            del row["seconds"]
    return found
