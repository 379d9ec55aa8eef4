"""What watching costs: the share of an epoch that `superadam.Monitor(opt, every=50)` adds, on a CNN for digits.

Three copies of one run take their steps in turn, so that a slow moment of the machine hits all of them: unwatched,
watched, and watched with probes (`loss` and `batches`: two gradients of fresh batches per report with τ = 0, four with
τ = 1). To have many reports in a short time they come every tenth step; the added CPU time of a step with a report, and
that of a step without one, are medians, and are put together for one report in fifty steps.

python -m research.monitor_cost.monitor_cost [--steps 1500]
"""

import argparse
import statistics
import time
import warnings

import torch
from sklearn.datasets import load_digits
from torch import nn

from superadam import Monitor, SuperAdam
from superadam.monitor import MonitorWarning

EVERY, MEASURED_EVERY, BATCH, WARM_UP = 50, 10, 32, 50


def cnn():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Run:
    def __init__(self, tau, x, y, watched, probed=False):
        self.x, self.y, self.model = x, y, cnn()
        self.opt = SuperAdam(self.model, lr=1e-2, tau=tau, schedule="Paper")
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
        probes = {"loss": self.loss, "batches": order.split(BATCH)[:-1]} if probed else {}
        self.monitor = Monitor(self.opt, MEASURED_EVERY, **probes) if watched else None

    def loss(self, rows):
        return nn.functional.cross_entropy(self.model(self.x[rows]), self.y[rows])

    def step(self, rows):
        def closure():
            self.opt.zero_grad()
            loss = self.loss(rows)
            loss.backward()
            return loss

        start = time.process_time()
        self.opt.step(closure)
        return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, torch.tensor(labels)
    print(f"CPU time, 1 thread, torch {torch.__version__}, {options.steps} steps of batches of {BATCH}\n")
    costs = f"step with a report | step without | overhead, one report in {EVERY} | overhead of reports alone"
    print(f"| τ | watched | unwatched step | {costs} |")
    print("|---|---|---|---|---|---|---|")
    warnings.simplefilter("ignore", MonitorWarning)  # reports this often see much of the noise of single batches
    for tau in (0.0, 1.0):
        runs = {"": Run(tau, x, y, False), "yes": Run(tau, x, y, True), "with `loss=`": Run(tau, x, y, True, True)}
        times = {name: [] for name in runs}
        generator = torch.Generator().manual_seed(2)
        for _ in range(options.steps + WARM_UP):
            rows = torch.randint(len(y), (BATCH,), generator=generator)
            names = list(runs)
            for i in torch.randperm(len(names), generator=generator).tolist():  # who comes first finds a cold cache
                times[names[i]].append(runs[names[i]].step(rows))
        numbers = range(WARM_UP, options.steps + WARM_UP)
        plain = statistics.median(times[""][i] for i in numbers)
        for name in ("yes", "with `loss=`"):
            # Pairs of neighbours in time: what one step took more than the same step unwatched.
            extra = {i: times[name][i] - times[""][i] for i in numbers}
            report = statistics.median(v for i, v in extra.items() if (i + 1) % MEASURED_EVERY == 0)
            between = statistics.median(v for i, v in extra.items() if (i + 1) % MEASURED_EVERY != 0)
            share = (report + (EVERY - 1) * between) / (EVERY * plain)
            print(
                f"| {tau:.0f} | {name} | {1e3 * plain:.2f} ms | +{1e3 * report:.2f} ms | {1e3 * between:+.3f} ms | "
                f"{share:.1%} | {report / (EVERY * plain):.1%} |"
            )


if __name__ == "__main__":
    main()
