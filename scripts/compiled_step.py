"""The time of `torch.compile(opt.step)` beside that of torch's AdamW, compiled and fused, all in turns.

python scripts/compiled_step.py [model]    # a model of `superadam bench`; default mlp
"""

import statistics
import sys
import time

import torch

from superadam import SuperAdam
from superadam.bench.models import SHAPES


def parameters(model):
    params = [torch.randn(shape).requires_grad_() for shape in SHAPES[model]()]
    for p in params:
        p.grad = torch.randn_like(p)
    return params


def main(model="mlp", rounds=60):
    torch.set_num_threads(1)
    adamw = torch.optim.AdamW
    steps = {
        "torch.optim.AdamW, compiled": torch.compile(adamw(parameters(model), lr=torch.tensor(1e-3)).step),
        "torch.optim.AdamW, fused": adamw(parameters(model), fused=True).step,
        "case 1, compiled (torch's fused kernel)": torch.compile(SuperAdam(parameters(model), weight_decay=0.01).step),
        "case 1, fused=False, compiled": torch.compile(
            SuperAdam(parameters(model), weight_decay=0.01, fused=False).step
        ),
        "Yogi, compiled": torch.compile(SuperAdam(parameters(model), matrix="Yogi").step),
        "Yogi": SuperAdam(parameters(model), matrix="Yogi").step,
    }
    times = {name: [] for name in steps}
    for n in range(rounds + 3):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if n >= 3:  # the first ones compile
                times[name].append(1e3 * (time.process_time() - start))
    base = statistics.median(times["torch.optim.AdamW, compiled"])
    print(f"| step, {model}, one thread | median, ms of CPU time | over torch.compile of AdamW's |\n|---|---|---|")
    for name, values in times.items():
        print(f"| {name} | {statistics.median(values):.2f} | {statistics.median(values) / base:.2f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
