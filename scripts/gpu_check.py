"""Five minutes on a machine with a GPU: correctness against the CPU, speed against AdamW fused, memory.

python scripts/gpu_check.py [--device cuda] [--parameters 25000000]

It prints one block, to paste into an issue. It has been run with --device cpu only: nobody has run it on a GPU yet. The
rows with compile=True run torch.compile, which takes most of the time; on a GPU it needs triton, part of torch.

Each row of the first part has a tolerance of its own, in units of the learning rate times the steps: how far two
devices may differ that round differently.
"""

import argparse
import platform
import statistics
import time
from functools import partial

import torch
from torch import nn

import superadam
from superadam import SuperAdam, create, matrices, sets, twice

LR, STEPS = 1e-3, 20
# The largest difference, as a part of LR × STEPS. Signs and eigenvectors pass on a rounding error as a whole step.
USUAL, LOOSE = 1e-3, 5e-2
# What is built, and the tolerance.
COMPOSITIONS = {
    "Adam's matrix, τ = 0": ({}, USUAL),
    "Adam's matrix, τ = 1": ({"tau": 1.0}, USUAL),
    "case 2, τ = 1": ({"tau": 1.0, "matrix": matrices.GradientNorm()}, USUAL),
    "case 4a, τ = 0": ({"matrix": matrices.Belief()}, USUAL),
    "Yogi, box": ({"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)}, USUAL),
    "l2 ball": ({"constraint": sets.L2Ball(3.0)}, USUAL),
    "simplex": ({"constraint": sets.Simplex()}, LOOSE),
    "halfspace": ({"constraint": sets.Halfspace(1.0, 1.0)}, USUAL),
}
# On wide layers.
COMPILED = {
    "Adam's matrix, τ = 1, compile=True": {"tau": 1.0},
    "case 4a, τ = 0, compile=True": {"matrix": matrices.Belief()},
    "Yogi, box, compile=True": {"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)},
}
ZOO = {"adamw": USUAL, "lion": LOOSE, "muon": LOOSE, "soap": LOOSE, "shampoo": LOOSE, "schedule_free_adamw": USUAL}


def synchronize(device):
    if device != "cpu":
        torch.get_device_module(device).synchronize()


def trained(make, device, width=32, steps=STEPS):
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
    makes = {name: (lambda model, o=o: SuperAdam(model, lr=LR, **o), tol) for name, (o, tol) in COMPOSITIONS.items()}
    makes |= {name: (lambda model, name=name: create(name, model, lr=LR), tol) for name, tol in ZOO.items()}
    for name, (make, tol) in makes.items():
        yield compared(name, lambda: trained(make, device), lambda: trained(make, "cpu"), tol)  # noqa: B023
    for name, o in COMPILED.items():

        def wide(where, o=o, **more):
            return trained(lambda model: SuperAdam(model, lr=LR, **o, **more), where, width=8192)

        yield compared(name, lambda: wide(device, compile=True), lambda: wide("cpu"))


def compared(name, there, here, tol=USUAL):
    try:
        difference = (there() - here()).abs().max().item()
    except Exception as error:  # the next one may work
        return f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    limit = tol * LR * STEPS
    return f"{name}: {difference:.1e} {'ok' if difference <= limit else 'DIFFERENT'} (at most {limit:.0e})"


# ---------------------------------------------------------------------------------------------------- time and memory


def two_point(opt):
    return isinstance(opt, SuperAdam) and opt.two_point


def put_back(params, grads):
    """As a closure with τ = 1: the step has cleared the gradients."""
    for p, grad in zip(params, grads, strict=True):
        p.grad = grad
    return 0.0


def milliseconds(make, device, count, rounds=20):
    """The median time of a step of layers of 1024 × 1024, of both halves with τ = 1; per parameter, the bytes of state,
    and the most memory beyond parameters, gradients and state that a step takes (None where torch does not count it).
    """
    params = [torch.randn(1024, 1024, device=device, requires_grad=True) for _ in range(max(1, count >> 20))]
    for p in params:
        p.grad = torch.randn_like(p)
    opt, times, counts = make(params), [], device.startswith("cuda")
    step = partial(opt.step, partial(put_back, params, [p.grad for p in params])) if two_point(opt) else opt.step
    for n in range(rounds + 3):
        synchronize(device)
        if counts and n == 3:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        step()
        synchronize(device)
        times.append(1e3 * (time.perf_counter() - start))
    held = sum(t.nbytes for s in opt.state.values() for t in s.values() if isinstance(t, torch.Tensor) and t.dim())
    number = sum(p.numel() for p in params)
    extra = (torch.cuda.max_memory_allocated() - before) / number if counts else None
    return statistics.median(times[3:]), held / number, extra


def speed(device, count):
    makes = {
        "torch.optim.AdamW, fused": lambda params: torch.optim.AdamW(params, fused=True),
        "torch.optim.AdamW, foreach": lambda params: torch.optim.AdamW(params, foreach=True),
        "case 1": SuperAdam,
        "case 1, lists": lambda params: SuperAdam(params, fused=False),
        "case 4a": lambda params: SuperAdam(params, matrix=matrices.Belief()),
        "case 4a, compile=True": lambda params: SuperAdam(params, matrix=matrices.Belief(), compile=True),
        "case 1, τ = 1": lambda params: SuperAdam(params, tau=1.0),
        "Adam's matrix, τ = 1, compile=True": lambda params: SuperAdam(params, tau=1.0, compile=True),
        "lion": lambda params: create("lion", params),
        "muon": lambda params: create("muon", params),
    }
    base = None
    for name, make in makes.items():
        try:
            took, held, extra = milliseconds(make, device, count)
        except Exception as error:  # the next one may work
            yield f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        base = base or took
        memory = "" if extra is None else f", {extra:.3g} more during a step (max_memory_allocated)"
        yield f"{name}: {took:.3g} ms, {took / base:.2f} × AdamW fused, {held:.3g} bytes of state per parameter{memory}"


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
    print(f"largest difference of a parameter from the CPU's after {STEPS} steps in float32:")
    for line in correctness(options.device):
        print(" ", line, flush=True)
    print(f"a step with {options.parameters:,} parameters:")
    for line in speed(options.device, options.parameters):
        print(" ", line, flush=True)
    print("```")


if __name__ == "__main__":
    main()
