"""The GPU kernels of compile=True on a machine without a GPU: generated, compiled, interpreted, counted. None is run.

python -m research.gpu_kernels.gpu_kernels [--only NAME …] [--write]    # needs the package triton; some minutes

Optimizers take steps on CPU tensors. Where they ask for a kernel, torch's inductor gets the traced lines with tensors
of a GPU that is not there, and writes Triton code and its launches, as it would on a machine with one. Then

- Triton's compiler turns each kernel into PTX and machine code for sm_80 and sm_90 (A100, H100), and NVIDIA's assembler
  says how many registers a thread takes and how many bytes it spills;
- in a second process Triton's interpreter runs the kernels, and the code that launches them, on the CPU tensors: the
  points are compared with those of reference.py, and of steps without kernels;
- launches, and the bytes that they read and write, are counted, also for steps on a model's parameters as fake tensors.

What this cannot say: how long a kernel takes, and that a GPU computes what the interpreter does. `--write` keeps the
results in gpu_kernels.json and makes the tables of README.md of them.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from superadam import SuperAdam, create, matrices, penalties, reference, sets
from superadam_lab.bench.models import SHAPES

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "gpu_kernels.json", HERE / "README.md"
BEGIN, END = "<!-- gpu_kernels.py -->", "<!-- end of gpu_kernels.py -->"
TARGETS = {"sm_80": 80, "sm_90": 90}
LENGTHS, STEPS, LR, LAM = (1520, 688), 4, 0.01, 0.02

# What is built, and the options of reference.super_adam that are the same; None where a method is not in it.
PAPER = {"schedule": "Paper"}


def box(g, x, H, gamma):
    return (x - gamma * g / H).clamp(-0.5, 0.5)


def soft(g, x, H, gamma):
    y = x - gamma * g / H
    return y.sign() * (y.abs() - gamma * LAM / H).clamp(min=0)


COMPOSITIONS = {
    "case 1, τ = 0, fused=False": ({**PAPER, "fused": False}, {"case": "1"}),
    "case 1, τ = 0, capturable": ({**PAPER, "capturable": True}, {"case": "1"}),
    "case 1, τ = 1": ({**PAPER, "tau": 1.0}, {"case": "1", "tau": 1.0}),
    "case 1, τ = 1, capturable": ({**PAPER, "tau": 1.0, "capturable": True}, {"case": "1", "tau": 1.0}),
    "case 2, τ = 1": ({**PAPER, "tau": 1.0, "matrix": matrices.GradientNorm()}, {"case": "2", "tau": 1.0}),
    "case 4a, τ = 0": ({**PAPER, "matrix": matrices.Belief()}, {"case": "4a"}),
    "case 4a, τ = 1": ({**PAPER, "tau": 1.0, "matrix": matrices.Belief()}, {"case": "4a", "tau": 1.0}),
    "case 4b, τ = 1": ({**PAPER, "tau": 1.0, "matrix": matrices.BeliefNorm()}, {"case": "4b", "tau": 1.0}),
    "case 1, τ = 1, box": (
        {**PAPER, "tau": 1.0, "constraint": sets.Box(-0.5, 0.5)},
        {"case": "1", "tau": 1.0, "argmin": box},
    ),
    "case 1, τ = 1, l1 penalty": (
        {**PAPER, "tau": 1.0, "penalty": penalties.L1(LAM)},
        {"case": "1", "tau": 1.0, "argmin": soft},
    ),
    **{name: ({"build": name}, None) for name in ("adabelief", "yogi", "lion", "adan", "schedule_free_adamw")},
}
MODELS = ("resnet18", "gpt2-small")
COUNTED = ("case 1, τ = 1", "case 4a, τ = 0", "case 4a, τ = 1", "yogi")
# Sets that a CUDA graph can hold, on one matrix. Their steps run through torch's functions.
SETS = {
    "none": None,
    "`Box(-1, 1)`": sets.Box(-1.0, 1.0),
    "`Halfspace(1, 1)`": sets.Halfspace(1.0, 1.0),
    "`Hyperplane(1, 1)`": sets.Hyperplane(1.0, 1.0),
    "`L2Ball(1)`": sets.L2Ball(1.0),
    "`Simplex()`": sets.Simplex(),
    "`L1Ball(1)`": sets.L1Ball(1.0),
    "`CappedSimplex(1, 0.5)`": sets.CappedSimplex(1.0, 0.5),
}
MATRIX = (1024, 1024)


def build(name, params, **more):
    options = {**COMPOSITIONS[name][0], **more}
    method = options.pop("build", None)
    return SuperAdam(params, lr=LR, **options) if method is None else create(method, params, lr=LR, **options)


# ------------------------------------------------------------------------------------ a GPU that is not there


def a100():
    return types.SimpleNamespace(
        name="A100", major=8, minor=0, multi_processor_count=108, warp_size=32, total_memory=40 << 30,
        regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
        shared_memory_per_block=49152, shared_memory_per_multiprocessor=167936, shared_memory_per_block_optin=166912,
    )  # fmt: skip


class Driver:
    """What inductor and Triton ask the driver of a GPU for while they write and compile."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 80, 32)

    def get_current_device(self):
        return 0


def copy_(x, y, non_blocking=False):
    """The binding of Tensor.copy_ asks for a CUDA driver before it gets to the fake tensor; the operator does not."""
    return torch.ops.aten.copy_.default(x, y, non_blocking)


@contextlib.contextmanager
def pretended():
    """Answers to what inductor asks torch.cuda for."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes import joint_graph
    from triton.runtime import driver

    answers = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_properties": a100(),
        "get_device_capability": (8, 0), "get_compute_capability": 80, "is_triton_capable": True,
        "raise_if_triton_unavailable": None, "is_bf16_supported": True, "synchronize": None, "set_device": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None,
        "_exchange_device": 0, "_maybe_exchange_device": 0, "exchange_device": 0, "maybe_exchange_device": 0,
    }  # fmt: skip
    driver.set_active(Driver())
    with contextlib.ExitStack() as stack:
        for owner in (torch.cuda, CudaInterface):
            for name in answers.keys() & vars(owner).keys():
                answer = lambda *_, name=name, **__: answers[name]  # noqa: E731
                stack.enter_context(mock.patch.object(owner, name, staticmethod(answer)))
        # The patterns of attention, which it would compile for the device.
        stack.enter_context(mock.patch.object(joint_graph, "lazy_init", return_value=None))
        stack.enter_context(mock.patch.object(torch.cuda, "_DeviceGuard", return_value=contextlib.nullcontext()))
        stack.enter_context(mock.patch.object(torch.Tensor, "copy_", copy_))
        yield


# ------------------------------------------------------------------------------------ generated


class Kernel:
    """A Triton kernel that inductor has written."""

    def __init__(self, source, folder):
        from torch._inductor.runtime import triton_helpers, triton_heuristics

        found = {}

        def cached_autotune(size_hints, configs, triton_meta, **more):
            found.update(configs=configs, meta=triton_meta)
            return lambda function: function

        self.source = source
        path = Path(tempfile.mkstemp(".py", "kernel", folder)[1])  # triton reads the source of a function from its file
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        with (
            mock.patch.object(triton_heuristics, "cached_autotune", cached_autotune),
            mock.patch.object(triton_helpers, "set_driver_to_gpu", return_value=None),
        ):
            spec.loader.exec_module(module)
        self.name = re.search(r"^def (\w+)\(", source, re.M)[1]
        self.function, self.module, self.found = getattr(module, self.name), module, found
        self.config = found["configs"][0]
        self.launches = self.read = self.written = 0
        self.calls = []

    def count(self, args):
        """The bytes that a launch moves, of the tensors that are not single numbers."""
        for name, value in zip(self.found["meta"]["signature"], args, strict=False):
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                self.read += value.nbytes * name.startswith("in_")
                self.written += value.nbytes * ("out_ptr" in name)
        self.launches += 1

    def run(self, *args, stream):
        """A launch, by Triton's interpreter."""
        self.count(args)
        block = self.config.kwargs["XBLOCK"]
        with mock.patch.object(self.module, "libdevice", interpreted_libdevice()):
            self.function[(-(-args[-1] // block),)](*args, **self.config.kwargs)


def interpreted_libdevice():
    """The functions of NVIDIA's library that the kernels call: the interpreter has none of them."""
    import numpy as np
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def of(function):
        def call(*args):
            arrays = [a.handle.data if isinstance(a, tl.tensor) else a for a in args]
            first = next(a for a in args if isinstance(a, tl.tensor))
            data = function(*arrays).astype(first.handle.data.dtype)
            return tl.tensor(TensorHandle(data, first.dtype), first.type)

        return call

    names = {"mul_rn": np.multiply, "pow": np.power, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x)}
    return types.SimpleNamespace(**{name: of(function) for name, function in names.items()})


class Inductor:
    """In the place of `compiled._compile`: the kernels that inductor writes for a GPU."""

    def __init__(self, folder, *, interpreting):
        self.folder, self.interpreting = folder, interpreting
        self.kernels, self.modules, self.now = [], [], []

    def __call__(self, function, example):
        from torch._inductor import config
        from torch._inductor.async_compile import AsyncCompile
        from torch._inductor.compile_fx import compile_fx
        from torch._inductor.graph import GraphLowering

        with pretended():
            graph = make_fx(function, tracing_mode="symbolic")(*self.on_gpu(example))
            inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
            assert all(n.node.maybe_as_int() is None for t in inputs for n in t.shape)  # as in `compiled._compile`
            from superadam._step import compiled

            torch._check(inputs[0].shape[0] % compiled.MULTIPLE == 0)
            with (
                config.patch(fx_graph_cache=False, compile_threads=1),
                mock.patch.object(AsyncCompile, "triton", self.written),
                mock.patch.object(GraphLowering, "_compile_to_module_lines", self.loaded),
            ):
                compile_fx(graph, inputs)
        module = self.modules[-1]

        def call(*args):
            with pretended():
                module.call(list(args))

        return call if self.interpreting else function

    @staticmethod
    def on_gpu(example):
        """The same tensors, of unknown lengths, on a GPU."""
        mode = FakeTensorMode(shape_env=ShapeEnv())
        with mode:
            tensors = []
            for t in example:
                size = mode.from_tensor(t).shape if t.dim() else (2,)
                on_gpu = torch.empty(size, dtype=t.dtype, device="cuda:0")
                tensors.append(on_gpu if t.dim() else on_gpu.unbind()[t.storage_offset()])
        return tensors

    def written(self, name, source, device_str="cuda", **_):
        self.kernels.append(Kernel(source, self.folder))
        return self.kernels[-1]

    def loaded(self, code):
        """In the place of a method: the module that inductor has written, without a stream to launch on."""
        text = re.sub(
            r"^from torch._C import _cuda_getCurrentRawStream as (\w+)", r"\1 = lambda _: 0", code.value, flags=re.M
        )
        module = types.ModuleType("written")
        module.__file__ = str(self.folder)
        exec(compile(text, "<inductor>", "exec"), module.__dict__)
        self.modules.append(module)
        return module


# ------------------------------------------------------------------------------------ compiled


def machine_code(kernel, target):
    """The kernel for one architecture: sizes, registers, spills."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import get_ptxas
    from triton.compiler import ASTSource

    config, meta = kernel.config, kernel.found["meta"]
    signature = {**meta["signature"], **dict.fromkeys(config.kwargs, "constexpr")}
    source = ASTSource(kernel.function, signature, {**meta["constants"], **config.kwargs}, meta["configs"][0])
    options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
    asm = triton.compile(source, target=GPUTarget("cuda", TARGETS[target], 32), options=options).asm
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.ptx").write_text(asm["ptx"])
        path, architecture = get_ptxas(TARGETS[target]).path, re.search(r"^\.target (\w+)", asm["ptx"], re.M)[1]
        said = subprocess.run(
            [path, "-v", f"--gpu-name={architecture}", "kernel.ptx", "-o", os.devnull],
            cwd=folder, capture_output=True, text=True, check=True,
        ).stderr  # fmt: skip
    registers, spilled = re.search(r"Used (\d+) registers", said)[1], re.findall(r"(\d+) bytes spill", said)
    return {
        "ptx": len(asm["ptx"]),
        "cubin": len(asm["cubin"]),
        "registers": int(registers),
        "spilled": sum(map(int, spilled)),
        "loads": [len(re.findall(rf"ld\.global{kind}\.b32", asm["ptx"])) for kind in (r"\.v4", "")],
    }


# ------------------------------------------------------------------------------------ steps


def noise(n, dim):
    return torch.randn(dim, generator=torch.Generator().manual_seed(n), dtype=torch.float64)


def grad(x, n):
    """∇f(x; ξ_n), the derivative of Σ log(1 + (x - ξ)²)/2."""
    away = x.double() - noise(n, x.numel()).reshape(x.shape)
    return (away / (1 + away.square())).to(x.dtype)


def points(name, dtype, before=None, **more):
    """Where some steps end, in one vector. `before` is called before each step, and before the end."""
    x = noise(0, sum(LENGTHS)).to(dtype)
    params = [part.clone().requires_grad_() for part in x.split(LENGTHS)]
    opt = build(name, params, **more)
    for n in range(1, STEPS + 1):

        def closure(n=n):
            for p, g in zip(params, grad(torch.cat([p.detach() for p in params]), n).split(LENGTHS), strict=True):
                p.grad = g.clone()
            return 0.0

        if before is not None:
            before()
        opt.step(closure)
    if before is not None:
        before()
    opt.flush()
    return torch.cat([p.detach() for p in params])


def fresh(inductor):
    """Kernels of this `inductor`, for tensors that are not large."""
    from superadam._step import compiled, tiles  # the page's tables are made without

    stack = contextlib.ExitStack()
    for name, value in (("_kernels", {}), ("_compile", inductor)):
        stack.enter_context(mock.patch.object(compiled, name, value))
    stack.enter_context(mock.patch.object(tiles, "SMALL", 16))
    return stack


def generated_and_compiled(name, folder):
    inductor = Inductor(folder, interpreting=False)
    with fresh(inductor):
        points(name, torch.float32, compile=True)
    return [{"source": k.source, **{target: machine_code(k, target) for target in TARGETS}} for k in inductor.kernels]


def interpreted(name, folder):
    """The largest differences of the points, from the reference's and from those without kernels; what was launched."""
    found = {}
    for dtype in (torch.float64, torch.float32):
        inductor, moved = Inductor(folder, interpreting=True), []

        def before(inductor=inductor, moved=moved):
            kernels = inductor.kernels
            moved.append((sum(k.launches for k in kernels), sum(k.read + k.written for k in kernels)))

        with fresh(inductor):
            ours = points(name, dtype, before, compile=True)
        without = points(name, dtype, foreach=True)
        found[str(dtype).removeprefix("torch.")] = (ours - without).abs().max().item()
        options = COMPOSITIONS[name][1]
        if options is not None and dtype == torch.float64:
            x_1 = noise(0, sum(LENGTHS))
            if "constraint" in COMPOSITIONS[name][0]:  # where an optimizer starts, too
                x_1 = COMPOSITIONS[name][0]["constraint"].argmin(x_1, 1.0)
            run = reference.super_adam(grad, x_1, range(1, STEPS + 1), gamma=LR, **options)
            found["reference"] = (ours - run.x[STEPS + 1]).abs().max().item()
    found["moved"] = (ours - noise(0, sum(LENGTHS))).abs().max().item()
    found["sources"] = [k.source for k in inductor.kernels]
    launches, number = (last - one for last, one in zip(moved[-1], moved[-2], strict=True))  # of the last step
    return {**found, "launches": launches / len(LENGTHS), "bytes": number / sum(LENGTHS)}


# ------------------------------------------------------------------------------------ counted, on a model


class Calls(TorchDispatchMode):
    """The operations of a step, and the bytes that they read and write."""

    def __init__(self):
        super().__init__()
        self.calls = self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        moved = [t.nbytes for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if func.namespace == "aten" and moved and not func.is_view:
            self.calls, self.bytes = self.calls + 1, self.bytes + sum(moved)
        return out

    def inside(self, method):
        def call(*args):
            with self:
                return method(*args)

        return call


def counted_set(name):
    """A step of case 1 with a set and `capturable=True`: operations, and the bytes that they move per parameter."""
    found = counted_on([MATRIX], lambda params: SuperAdam(params, constraint=SETS[name], capturable=True))
    return {"operations": found["operations"], "bytes": found["bytes"] / torch.Size(MATRIX).numel()}


def counted(name, model, **options):
    return counted_on(SHAPES[model](), lambda params: build(name, params, **options))


def counted_on(shapes, make):
    """A step on parameters that are fake: launches of kernels and the coordinates that they are for; other operations
    of torch and the bytes that they move."""
    from superadam._step import compiled

    launches = []

    def stand_in(function, example):
        return lambda *args: launches.append(args[0].numel())

    with (
        mock.patch.object(torch.Tensor, "copy_", copy_),
        mock.patch.multiple(compiled, _compile=stand_in, _kernels={}),
        FakeTensorMode(),
    ):
        params = [torch.zeros(shape, device="cuda", requires_grad=True) for shape in shapes]
        opt = make(params)

        def closure():
            for p in params:
                p.grad = torch.ones_like(p)
            return 0.0

        for _ in range(3):  # the first steps are other ones
            launches.clear()
            calls = Calls()
            stages = {name: calls.inside(getattr(opt, name)) for name in ("_to_next_point", "_absorb")}
            with mock.patch.multiple(opt, **stages):
                opt.step(closure)
    return {"launches": len(launches), "coordinates": sum(launches), "operations": calls.calls, "bytes": calls.bytes}


# ------------------------------------------------------------------------------------ tables


def tables(results):
    """The tables of README.md."""
    versions = f"torch {results['torch']}, triton {results['triton']}"
    yield f"`python -m research.gpu_kernels.gpu_kernels --write`, {results['date']}, {versions}:"
    yield ""
    yield (
        "| composition | launches per tensor and step | bytes per parameter of these | registers, sm_80 and sm_90 "
        "| spilled | from the reference, float64 | from steps without kernels, float64 and float32 |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name, of in results["compositions"].items():
        registers = " and ".join(str(max(k[target]["registers"] for k in of["kernels"])) for target in TARGETS)
        spilled = sum(k[target]["spilled"] for k in of["kernels"] for target in TARGETS)
        exact = f"{of['reference']:.0e}" if "reference" in of else "not in it"
        yield (
            f"| {name} | {of['launches']:g} | {of['bytes']:g} | {registers} | {spilled} | {exact} "
            f"| {of['float64']:.0e} and {of['float32']:.0e} |"
        )
    yield ""
    yield (
        "| parameters of | composition | compiled: launches of kernels, other operations, MB | lists: operations, MB |"
    )
    yield "|---|---|---|---|"
    for model, of_model in results["models"].items():
        for name, of in of_model.items():
            ours, without = of["compiled"], of["lists"]
            kernels = results["compositions"][name]
            mb = ours["bytes"] + ours["coordinates"] * kernels["bytes"] / kernels["launches"]
            yield (
                f"| {model} | {name} | {ours['launches']}, {ours['operations']}, {mb / 1e6:.0f} "
                f"| {without['operations']}, {without['bytes'] / 1e6:.0f} |"
            )
    yield ""
    yield f"A step of case 1 with `capturable=True` on a {MATRIX[0]} × {MATRIX[1]} matrix:"
    yield ""
    yield "| set | operations | bytes per parameter |"
    yield "|---|---|---|"
    for name, of in results["sets"].items():
        yield f"| {name} | {of['operations']} | {of['bytes']:.0f} |"


def write_page(results):
    text = PAGE.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text("\n".join([before + BEGIN, "", *tables(results), "", END + after]))


def in_an_interpreter(names, folder):
    """`interpreted` of all names, in a process whose Triton interprets."""
    path = Path(folder) / "interpreted.json"
    command = [sys.executable, __file__, "--interpret", str(path), "--only", *names]
    subprocess.run(command, check=True, env={**os.environ, "TRITON_INTERPRET": "1"})
    return json.loads(path.read_text())


def body(source):
    return source[source.index("@triton.jit") :]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(COMPOSITIONS), help="some of the compositions")
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--json", type=Path, help="where to keep the results")
    parser.add_argument("--write", action="store_true", help="gpu_kernels.json, README.md")
    parser.add_argument("--interpret", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.interpret is not None:
            found = {name: interpreted(name, folder) for name in options.only}
            options.interpret.write_text(json.dumps(found))
            return
        import triton

        results = {
            "date": f"{datetime.date.today():%Y-%m-%d}",
            "torch": torch.__version__,
            "triton": triton.__version__,
        }
        kernels = {name: generated_and_compiled(name, folder) for name in options.only}
        ran = in_an_interpreter(options.only, folder)
    for name, of in ran.items():
        sources = [body(k.pop("source")) for k in kernels[name]]
        if sources != list(map(body, of.pop("sources"))):
            raise RuntimeError(f"{name}: the interpreter ran other kernels than were compiled")
        if not sources:
            raise RuntimeError(f"{name}: no kernel was made")
    results["compositions"] = {name: {"kernels": kernels[name], **ran[name]} for name in options.only}
    results["models"] = {
        model: {
            name: {"compiled": counted(name, model, compile=True), "lists": counted(name, model)}
            for name in COUNTED
            if name in options.only
        }
        for model in options.models
    }
    results["sets"] = {name: counted_set(name) for name in SETS}
    print("\n".join(tables(results)))
    for path in filter(None, (options.json, RESULTS if options.write else None)):
        path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    if options.write:
        write_page(results)


if __name__ == "__main__":
    main()
