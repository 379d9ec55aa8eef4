"""Five minutes on a machine with a GPU: correctness against the CPU, CUDA graphs, speed against AdamW fused, memory.

python scripts/gpu_check.py [--device cuda] [--parameters 25000000]

It prints one block, to paste into an issue. It has been run with --device cpu only: nobody has run it on a GPU yet. The
rows with compile=True make kernels, which takes most of the time; on a GPU they need triton, which torch brings along.

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
from superadam._step import compiled

LR, STEPS = 1e-3, 20
# The largest difference, as a part of LR × STEPS. Signs and eigenvectors pass on a rounding error as a whole step.
USUAL, LOOSE = 1e-3, 5e-2
CAPTURABLE = {"capturable": True}
# What is built, and the tolerance.
COMPOSITIONS = {
    "case 1, τ = 0": ({}, USUAL),
    "case 1, τ = 0, capturable": (CAPTURABLE, USUAL),
    "case 1, τ = 1": ({"tau": 1.0}, USUAL),
    "case 2, τ = 1": ({"tau": 1.0, "matrix": matrices.GradientNorm()}, USUAL),
    "case 4a, τ = 0": ({"matrix": matrices.Belief()}, USUAL),
    "Yogi, box": ({"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)}, USUAL),
    "case 1, l2 ball": ({"constraint": sets.L2Ball(3.0)}, USUAL),
    "case 1, l2 ball, capturable": ({"constraint": sets.L2Ball(3.0), **CAPTURABLE}, USUAL),
    "case 1, simplex": ({"constraint": sets.Simplex()}, LOOSE),
    "case 1, simplex, capturable": ({"constraint": sets.Simplex(), **CAPTURABLE}, LOOSE),
    "case 1, halfspace": ({"constraint": sets.Halfspace(1.0, 1.0)}, USUAL),
    "case 1, halfspace, capturable": ({"constraint": sets.Halfspace(1.0, 1.0), **CAPTURABLE}, USUAL),
    "case 1, state in bfloat16": ({"state_dtype": torch.bfloat16}, LOOSE),
}
# On layers wide enough for kernels.
COMPILED = {
    "case 1, τ = 1, compile=True": {"tau": 1.0},
    "case 1, τ = 1, compile=True, capturable": {"tau": 1.0, "capturable": True},
    "case 4a, τ = 0, compile=True": {"matrix": matrices.Belief()},
    "Yogi, box, compile=True": {"matrix": "Yogi", "constraint": sets.Box(-0.5, 0.5)},
}
ZOO = {"adamw": USUAL, "lion": LOOSE, "muon": LOOSE, "soap": LOOSE, "shampoo": LOOSE, "schedule_free_adamw": USUAL}
# Captured once, and replayed.
CAPTURED = {
    "case 1": {},
    "case 4a": {"matrix": matrices.Belief()},
    "case 1, compile=True": {"fused": False, "compile": True},
    "case 1, box": {"constraint": sets.Box(-0.5, 0.5)},
    "case 1, l2 ball": {"constraint": sets.L2Ball(3.0)},
    "case 1, simplex": {"constraint": sets.Simplex()},
    "case 1, halfspace": {"constraint": sets.Halfspace(1.0, 1.0)},
}


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

        made = len(compiled._kernels)
        line = compared(name, lambda: wide(device, compile=True), lambda: wide("cpu"))
        yield f"{line}, {len(compiled._kernels) - made} kernels"


def compared(name, there, here, tol=USUAL):
    try:
        difference = (there() - here()).abs().max().item()
    except Exception as error:  # the next one may work
        return f"{name}: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    limit = tol * LR * STEPS
    return f"{name}: {difference:.1e} {'ok' if difference <= limit else 'DIFFERENT'} (at most {limit:.0e})"


# ------------------------------------------------------------------------------------------------------- CUDA graphs


class Replayed:
    """Stands for a CUDA graph where there is no CUDA: `replay` calls what was captured."""

    def __init__(self, step):
        self.replay = step


def captured(step):
    """A graph of one step, after steps that are not in it, as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def without_graph(step):
    for _ in range(3):
        step()
    return Replayed(step)


def replayed(options, device, capture):
    """The parameters after three steps and STEPS replays. The gradients change in place before each replay."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 512, generator=generator)
    x = x.to(device).requires_grad_()
    gradients = [torch.randn(256, 512, generator=generator).to(device) for _ in range(STEPS)]
    x.grad = gradients[0].clone()
    opt = SuperAdam([x], lr=torch.tensor(LR, device=device), capturable=True, **options)
    graph = capture(opt.step)
    for n, gradient in enumerate(gradients):
        x.grad.copy_(gradient)
        opt.param_groups[0]["lr"].fill_(LR * (1 - n / STEPS))  # a schedule, on the device
        graph.replay()
    synchronize(device)
    return x.detach().cpu().double()


def graphs(device):
    """Steps of a CUDA graph beside the same steps without one."""
    capture = captured if device.startswith("cuda") else without_graph
    for name, o in CAPTURED.items():
        yield compared(
            f"graph: {name}",
            lambda: replayed(o, device, capture),  # noqa: B023
            lambda: replayed(o, device, without_graph),  # noqa: B023
        )


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
        "case 1, τ = 1, compile=True": lambda params: SuperAdam(params, tau=1.0, compile=True),
        "case 1, state in bfloat16": lambda params: SuperAdam(params, state_dtype=torch.bfloat16),
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
    print("CUDA graphs: largest difference of a captured and replayed step from the same steps without a graph:")
    for line in graphs(options.device):
        print(" ", line, flush=True)
    print(f"a step with {options.parameters:,} parameters:")
    for line in speed(options.device, options.parameters):
        print(" ", line, flush=True)
    print("```")


if __name__ == "__main__":
    main()
