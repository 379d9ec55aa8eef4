"""Five minutes on a machine with a GPU: correctness against the CPU, speed against AdamW fused, memory.

python scripts/gpu_check.py [--device cuda] [--parameters 25000000]

It prints one block, to paste into an issue. It has been run with --device cpu only: nobody has run it on a GPU yet. The
rows with compile=True make kernels, which takes most of the time; on a GPU they need triton, which torch brings along.
"""

import argparse
import platform
import statistics
import time

import torch
from torch import nn

import superadam
from superadam import SuperAdam, create, matrices, sets, twice
from superadam._step import compiled

COMPOSITIONS = {
    "case 1, τ = 0": {},
    "case 1, τ = 0, capturable": {"capturable": True},
    "case 1, τ = 1": {"tau": 1.0},
    "case 2, τ = 1": {"tau": 1.0, "matrix": matrices.GradientNorm()},
    "case 4a, τ = 0": {"matrix": matrices.Belief()},
    "Yogi, box": {"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)},
    "case 1, l2 ball": {"constraint": sets.L2Ball(3.0)},
    "case 1, state in bfloat16": {"state_dtype": torch.bfloat16},
}
# On layers wide enough for kernels.
COMPILED = {
    "case 1, τ = 1, compile=True": {"tau": 1.0},
    "case 1, τ = 1, compile=True, capturable": {"tau": 1.0, "capturable": True},
    "case 4a, τ = 0, compile=True": {"matrix": matrices.Belief()},
    "Yogi, box, compile=True": {"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)},
}
ZOO = ("adamw", "lion", "muon", "soap", "shampoo", "schedule_free_adamw")


def synchronize(device):
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def trained(make, device, width=32, steps=20):
    """The parameters of a small network after some steps, on batches that are the same on every device."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, 4)).to(device)
    opt = make(model)
    batches = [torch.randn(8, 16, generator=torch.Generator().manual_seed(n)) for n in range(steps)]
    for batch in twice(batches) if opt.two_point else batches:
        opt.zero_grad()
        model(batch.to(device)).square().mean().backward()
        opt.step()
    opt.flush()
    return torch.cat([p.detach().cpu().double().flatten() for p in model.parameters()])


def correctness(device):
    makes = {name: lambda model, o=o: SuperAdam(model, lr=1e-3, **o) for name, o in COMPOSITIONS.items()}
    makes |= {name: lambda model, name=name: create(name, model, lr=1e-3) for name in ZOO}
    for name, make in makes.items():
        yield compared(name, lambda: trained(make, device), lambda: trained(make, "cpu"))  # noqa: B023
    for name, o in COMPILED.items():

        def wide(where, o=o, **more):
            return trained(lambda model: SuperAdam(model, lr=1e-3, **o, **more), where, width=8192)

        made = len(compiled._kernels)
        line = compared(name, lambda: wide(device, compile=True), lambda: wide("cpu"))
        yield f"{line}, {len(compiled._kernels) - made} kernels"


def compared(name, there, here):
    try:
        difference = (there() - here()).abs().max().item()
    except Exception as error:  # the next one may work
        return f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return f"{name}: {difference:.1e} {'ok' if difference < 1e-4 else 'DIFFERENT'}"


def milliseconds(make, device, count, rounds=20):
    """The median time of a step of layers of 1024 × 1024, and the bytes of state for each parameter."""
    params = [torch.randn(1024, 1024, device=device, requires_grad=True) for _ in range(max(1, count >> 20))]
    for p in params:
        p.grad = torch.randn_like(p)
    opt, times = make(params), []
    for _ in range(rounds + 3):
        synchronize(device)
        start = time.perf_counter()
        opt.step()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    held = sum(t.nbytes for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim())
    return statistics.median(times[3:]), held / sum(p.numel() for p in params)


def speed(device, count):
    makes = {
        "torch.optim.AdamW, fused": lambda params: torch.optim.AdamW(params, fused=True),
        "torch.optim.AdamW, foreach": lambda params: torch.optim.AdamW(params, foreach=True),
        "case 1": SuperAdam,
        "case 1, lists": lambda params: SuperAdam(params, fused=False),
        "case 4a": lambda params: SuperAdam(params, matrix=matrices.Belief()),
        "case 4a, compile=True": lambda params: SuperAdam(params, matrix=matrices.Belief(), compile=True),
        "case 1, state in bfloat16": lambda params: SuperAdam(params, state_dtype=torch.bfloat16),
        "lion": lambda params: create("lion", params),
        "muon": lambda params: create("muon", params),
    }
    base = None
    for name, make in makes.items():
        try:
            took, held = milliseconds(make, device, count)
        except Exception as error:  # the next one may work
            yield f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        base = base or took
        yield f"{name}: {took:.3g} ms, {took / base:.2f} × AdamW fused, {held:.3g} bytes of state per parameter"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parameters", type=int, default=25_000_000, help="for the timings")
    options = parser.parse_args()
    on_gpu = options.device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        parser.exit(1, "torch finds no CUDA device here. Another accelerator: --device mps, xpu, …\n")
    name = torch.cuda.get_device_name() if on_gpu else platform.processor() or platform.machine()
    print("```")
    print(f"superadam {superadam.__version__}, torch {torch.__version__}, Python {platform.python_version()}, {name}")
    print("largest difference of a parameter from the CPU's after 20 steps in float32:")
    for line in correctness(options.device):
        print(" ", line, flush=True)
    print(f"a step with {options.parameters:,} parameters:")
    for line in speed(options.device, options.parameters):
        print(" ", line, flush=True)
    print("```")


if __name__ == "__main__":
    main()
