"""What the lab's loop costs: steps per second of a run, over those of a bare loop with the same model and optimizer.

    python -m research.lab_speed.lab_speed

CPU time, on one thread; both take turns; medians of the rounds. Evaluations are left out: they
are no part of `seconds` either.
"""

import statistics
import tempfile
import time

import torch

from superadam_lab.runs.clipping import OneFactor
from superadam_lab.runs.folders import Config, Folder
from superadam_lab.runs.training import Run

STEPS, ROUNDS = 20, 15


def bare(run, batches):
    """What one would write by hand."""
    workload, opt = run.workload, run.opt
    for batch in batches:
        clip = OneFactor(opt, workload.clip)

        def closure(batch=batch, clip=clip):
            opt.zero_grad()
            loss, _ = workload.loss(batch)
            loss.backward()
            clip()
            return loss

        opt.step(closure)


def by_the_lab(run, batches):
    run.batch = run.step = 0
    for batch in batches:
        run._step(batch)


def main():
    torch.set_num_threads(1)
    for task in ("digits-mlp", "digits-cnn", "pydoc-transformer"):
        for method in ("adam", "super_adam tau=1"):
            with tempfile.TemporaryDirectory() as place:
                run = Run(Folder.new(f"{place}/run", Config(task, method)))
                batches = [batch for batch, _ in zip(run.workload.batches(0), range(STEPS), strict=False)]
                times = {bare: [], by_the_lab: []}
                for _ in range(ROUNDS):
                    for loop, taken in times.items():
                        start = time.process_time()
                        loop(run, batches)
                        taken.append(time.process_time() - start)
                plain, lab = (statistics.median(taken) for taken in times.values())
                print(f"{task:18s} {method:17s} {1e3 * plain / STEPS:7.2f} ms a step, throughput × {plain / lab:.3f}")


if __name__ == "__main__":
    main()
