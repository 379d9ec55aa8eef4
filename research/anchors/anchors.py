"""Anchored variance reduction against its rivals on finite sums, at equal gradients of samples.

python -m research.anchors.anchors --data-dir DIR      # an hour of one core; resumable; writes anchors.json
python -m research.anchors.anchors --write             # makes README.md's tables from anchors.json
python -m research.pictures anchors                    # draws anchors.svg from it

A task is a sum of n losses of a linear model, f(x) = 1/n Σ φ(aᵢᵀx, yᵢ) + l2/2 ‖x‖², on all of space or on a set. Its
minimum is found once, by full gradients. Every method has the same batches of 64, the same budget of 10 n, 30 n or
100 n gradients of samples (a method with two gradients per batch sees half the batches; an anchor costs n), and the
same grid of learning rates, a factor of 3 apart, which goes on while the best is at its edge. For each budget the
learning rate is chosen by the final gap on seed 0; seeds 1 to 3 are reported. Rivals with one gradient per batch have a
cosine schedule over the budget; anchors and SAGA have a constant learning rate. L-BFGS and accelerated projected
gradients (on sets) take full gradients, from the same start.
"""

import argparse
import itertools
import json
import lzma
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from research import kept
from superadam import SuperAdam, estimators, iterates, matrices, schedules, sets

HERE = Path(__file__).resolve().parent
RUNS = HERE / "anchors.json"
BUDGETS, BATCH, SEEDS = (10, 30, 100), 64, (1, 2, 3)
MOST = 6  # times that the grid of learning rates may be extended


@dataclass
class Task:
    """A sum of losses of a linear model. `slope` is ∂φ/∂z."""

    A: Tensor
    y: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]
    curvature: float
    """The largest φ''."""
    l2: float = 0.0
    outputs: int = 1
    constraint: sets.ConvexSet | None = None

    @property
    def n(self) -> int:
        return len(self.A)

    def start(self) -> Tensor:
        x = torch.zeros(self.A.shape[1] * self.outputs, dtype=torch.float64)
        return x if self.constraint is None else self.constraint.argmin(x, 1.0)

    def scores(self, x: Tensor, A: Tensor) -> Tensor:
        return A @ x if self.outputs == 1 else A @ x.view(-1, self.outputs)

    def value(self, x: Tensor) -> float:
        return float(self.loss(self.scores(x, self.A), self.y).mean() + self.l2 / 2 * x.square().sum())

    def gradient(self, x: Tensor, rows: Tensor | None = None) -> Tensor:
        A, y = (self.A, self.y) if rows is None else (self.A[rows], self.y[rows])
        return (A.T @ self.slope(self.scores(x, A), y) / len(A)).reshape(-1) + self.l2 * x

    def smoothness(self) -> float:
        top = torch.linalg.matrix_norm(self.A, 2).square() / self.n
        return float(top) * self.curvature + self.l2


def logistic(z: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.softplus(-y * z)


def logistic_slope(z: Tensor, y: Tensor) -> Tensor:
    return -y * torch.sigmoid(-y * z)


def of_classes(z: Tensor, y: Tensor) -> Tensor:
    return torch.logsumexp(z, 1) - z.gather(1, y.unsqueeze(1)).squeeze(1)


def of_classes_slope(z: Tensor, y: Tensor) -> Tensor:
    return z.softmax(1) - torch.nn.functional.one_hot(y, z.shape[1])


def inputs(n: int, d: int, spread: float) -> Tensor:
    """Draw inputs whose scales differ by the factor `spread`."""
    torch.manual_seed(0)
    return torch.randn(n, d, dtype=torch.float64) * torch.logspace(0, -math.log10(spread), d, dtype=torch.float64)


def synthetic_logistic(spread: float = 10.0) -> Task:
    A = inputs(4000, 40, spread)
    z = A @ torch.randn(40, dtype=torch.float64) * 2
    y = torch.where(torch.rand(4000, dtype=torch.float64) < torch.sigmoid(z), 1.0, -1.0).double()
    return Task(A, y, logistic, logistic_slope, 0.25, l2=1e-4)


def digits() -> Task:
    from sklearn.datasets import load_digits

    found = load_digits()
    A = torch.tensor(found.data / 16.0, dtype=torch.float64)
    A = torch.cat([A, torch.ones(len(A), 1, dtype=torch.float64)], 1)
    return Task(A, torch.tensor(found.target), of_classes, of_classes_slope, 0.5, l2=1e-3, outputs=10)


def huber() -> Task:
    A = inputs(4000, 50, 10.0)
    noise = torch.distributions.StudentT(1.5).sample((4000,)).double()
    y = A @ torch.randn(50, dtype=torch.float64) + 0.5 * noise
    loss = lambda z, y: torch.nn.functional.huber_loss(z, y, reduction="none")  # noqa: E731
    return Task(A, y, loss, lambda z, y: (z - y).clamp(-1, 1), 1.0, l2=1e-4)


def mixture() -> Task:
    """Weights of a mixture, on the simplex: least squares."""
    A = inputs(4000, 60, 5.0).abs()
    weights = torch.distributions.Dirichlet(torch.full((60,), 0.2)).sample().double()
    y = A @ weights + 0.3 * torch.randn(4000, dtype=torch.float64)
    return Task(A, y, lambda z, y: (z - y).square() / 2, lambda z, y: z - y, 1.0, constraint=sets.Simplex())


def sparse_logistic() -> Task:
    """Logistic regression on an l1 ball."""
    A = inputs(4000, 100, 5.0)
    true = torch.zeros(100, dtype=torch.float64)
    true[:10] = torch.randn(10, dtype=torch.float64) * 2
    y = torch.where(torch.rand(4000, dtype=torch.float64) < torch.sigmoid(A @ true), 1.0, -1.0).double()
    return Task(A, y, logistic, logistic_slope, 0.25, constraint=sets.L1Ball(6.0))


def a9a(folder: Path, constraint: sets.ConvexSet | None = None) -> Task:
    """The adult census data of LIBSVM: n = 32,561, 123 binary features."""
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(lzma.open(folder / "libsvm.tar.xz").read())) as tar:
        member = next(m for m in tar.getmembers() if m.name.rsplit("/", 1)[-1].startswith("a9a") and ".t" not in m.name)
        rows = tar.extractfile(member).read()
    lines = (lzma.decompress(rows) if member.name.endswith(".xz") else rows).decode().splitlines()
    A, y = torch.zeros(len(lines), 124, dtype=torch.float64), torch.empty(len(lines), dtype=torch.float64)
    for i, line in enumerate(lines):
        label, *features = line.split()
        y[i] = float(label)
        for feature in features:
            j, value = feature.split(":")
            A[i, int(j) - 1] = float(value)
    A[:, 123] = 1.0
    return Task(A, y, logistic, logistic_slope, 0.25, l2=0.0 if constraint else 1e-4, constraint=constraint)


TASKS: dict[str, Callable[[Path], Task]] = {
    "logistic": lambda folder: synthetic_logistic(),
    "ill-conditioned logistic": lambda folder: synthetic_logistic(100.0),
    "digits, ten classes": lambda folder: digits(),
    "Huber, heavy tails": lambda folder: huber(),
    "mixture on the simplex": lambda folder: mixture(),
    "sparse logistic, l1 ball": lambda folder: sparse_logistic(),
    "a9a": a9a,
    "a9a, l1 ball": lambda folder: a9a(folder, sets.L1Ball(8.0)),
}


# ------------------------------------------------------------------------------------------------------------- methods


def by_adam(lam: float = 1e-8) -> matrices.Matrix:
    return matrices.SecondMoment(beta=0.999, lam=lam, bias_correction=True)


PAGE = estimators.Page  # with p = b/(b + n)
# name: the options of SuperAdam, and whether the learning rate has a cosine schedule
METHODS: dict[str, tuple[dict[str, Any], bool]] = {
    "SGD": ({"matrix": "Identity", "schedule": schedules.Constant(alpha=1.0)}, True),
    "SGD, momentum 0.9": ({"matrix": "Identity"}, True),
    "Adam": ({"matrix": by_adam()}, True),
    "AMSGrad": ({"matrix": matrices.AMSGrad(lam=1e-2)}, True),
    "schedule-free Adam": (
        {"matrix": by_adam(), "schedule": schedules.Constant(alpha=1.0), "iterate": iterates.ScheduleFree()},
        False,
    ),
    "tau = 1, alpha = 0.1": ({"matrix": "Identity", "tau": 1.0, "schedule": schedules.Constant(alpha=0.1)}, True),
    "anchors, I": ({"matrix": "Identity", "estimator": PAGE}, False),
    "anchors, AMSGrad": ({"matrix": matrices.AMSGrad(lam=1e-2), "estimator": PAGE}, False),
    "anchors, Adam": ({"matrix": by_adam(1e-3), "estimator": PAGE}, False),
}
ON_SETS = {"Frank-Wolfe": ({"matrix": "Zero", "schedule": schedules.Constant(alpha=0.1)}, True)}


def methods(task: Task) -> Iterator[str]:
    """Yield the methods that a task is for."""
    yield from METHODS
    yield from (*ON_SETS, "accelerated projected gradient") if task.constraint is not None else ("SAGA", "L-BFGS")


def scale(name: str, task: Task) -> float:
    """Return the middle of a method's grid of learning rates."""
    if name == "Frank-Wolfe":
        return 0.03
    adaptive = any(kind in name for kind in ("Adam", "AMSGrad"))
    return 0.01 if adaptive else 1.0 / task.smoothness()


def run(task: Task, name: str, lr: float, seed: int, best: float, epochs: int) -> dict[str, float]:
    """Return the gap after so many epochs of gradients of samples, and the seconds."""
    if name == "SAGA":
        return saga(task, lr, seed, best, epochs)
    options, cosine = (METHODS | ON_SETS)[name]
    x = task.start().requires_grad_()
    n, budget = task.n, epochs * task.n
    page = options.get("estimator") is PAGE
    if page:
        options = {**options, "estimator": PAGE(p=BATCH / (BATCH + n), seed=seed), "schedule": schedules.Constant()}
    opt = SuperAdam([x], lr=lr, constraint=task.constraint, **options)
    generator = torch.Generator().manual_seed(seed)
    used = 0

    def evaluate(rows: Tensor | None) -> float:
        nonlocal used
        x.grad = task.gradient(x.detach(), rows)
        used += n if rows is None else len(rows)
        return 0.0

    began = time.process_time()
    order = torch.empty(0, dtype=torch.int64)
    while used < budget:
        if len(order) < BATCH:
            order = torch.randperm(n, generator=generator)
        rows, order = order[:BATCH], order[BATCH:]
        if cosine:
            opt.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * min(1.0, used / budget)))
        closure = lambda rows=rows: evaluate(rows)  # noqa: E731
        if page:
            opt.step(closure, anchor=lambda: evaluate(None))
        else:
            opt.step(closure)
        if not math.isfinite(float(x.detach().sum())):
            return {"gap": math.inf, "seconds": time.process_time() - began}
    seconds = time.process_time() - began
    opt.flush()
    return {"gap": task.value(x.detach()) - best, "seconds": seconds}


def saga(task: Task, lr: float, seed: int, best: float, epochs: int) -> dict[str, float]:
    """Run SAGA with batches (Defazio et al. 2014): a table of the slope of every sample."""
    x, n, A = task.start(), task.n, task.A
    generator = torch.Generator().manual_seed(seed)
    table = task.slope(task.scores(x, A), task.y)
    mean = (A.T @ table / n).reshape(-1)
    used = n
    began = time.process_time()
    while used < epochs * n:
        rows = torch.randint(n, (BATCH,), generator=generator).unique()
        new = task.slope(task.scores(x, A[rows]), task.y[rows])
        difference = (A[rows].T @ (new - table[rows])).reshape(-1)
        x = x - lr * (difference / len(rows) + mean + task.l2 * x)
        mean += difference / n
        table[rows] = new
        used += len(rows)
        if not math.isfinite(float(x.sum())):
            return {"gap": math.inf, "seconds": time.process_time() - began}
    return {"gap": task.value(x) - best, "seconds": time.process_time() - began}


def lbfgs(task: Task, best: float, epochs: int) -> dict[str, float]:
    """Run torch's L-BFGS on full gradients: the least value after so many of them."""
    x = task.start().requires_grad_()
    seen: list[float] = []

    def closure() -> Tensor:
        x.grad = task.gradient(x.detach())
        seen.append(task.value(x.detach()))
        return torch.tensor(seen[-1], dtype=torch.float64)

    began = time.process_time()
    opt = torch.optim.LBFGS([x], max_iter=200, max_eval=epochs, history_size=20, line_search_fn="strong_wolfe",
                            tolerance_grad=1e-14, tolerance_change=1e-16)  # fmt: skip
    opt.step(closure)
    return {"gap": min(seen) - best, "seconds": time.process_time() - began}


def minimum(task: Task) -> float:
    """Find f* by L-BFGS, or on a set by accelerated projected gradients."""
    if task.constraint is None:
        x = task.start().requires_grad_()
        opt = torch.optim.LBFGS([x], max_iter=5000, max_eval=20_000, history_size=60, line_search_fn="strong_wolfe",
                                tolerance_grad=1e-15, tolerance_change=1e-18)  # fmt: skip

        def closure() -> Tensor:
            x.grad = task.gradient(x.detach())
            return torch.tensor(task.value(x.detach()), dtype=torch.float64)

        for _ in range(5):
            opt.step(closure)
        return task.value(x.detach())
    return accelerated(task, 30_000)


def accelerated(task: Task, gradients: int) -> float:
    """Return the least value after so many accelerated projected gradients with step 1/L and restarts."""
    x = task.start()
    L, y, t, value = task.smoothness(), x, 1.0, task.value(x)
    for _ in range(gradients):
        z = task.constraint.argmin(y - task.gradient(y) / L, 1.0)
        new, t_new = task.value(z), (1 + math.sqrt(1 + 4 * t * t)) / 2
        if new > value:
            t, y = 1.0, x
            continue
        if float((z - x).abs().max()) < 1e-15:
            break
        y, x, t, value = z + (t - 1) / t_new * (z - x), z, t_new, new
    return value


def projected(task: Task, best: float, epochs: int) -> dict[str, float]:
    """Run accelerated projected gradients, a rival on sets."""
    began = time.process_time()
    return {"gap": accelerated(task, epochs) - best, "seconds": time.process_time() - began}


FULL = {"L-BFGS": lbfgs, "accelerated projected gradient": projected}


# ---------------------------------------------------------------------------------------------------------------- runs


def measure(folder: Path, only: str = "") -> None:
    """Make all runs that are not stored yet."""
    stored = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    for label, make in TASKS.items():
        if only not in label:
            continue
        task = make(folder)
        if label not in stored:
            stored[label] = {"n": task.n, "f*": minimum(task), "methods": {}}
        of_task, best = stored[label], stored[label]["f*"]
        for name, epochs in itertools.product(methods(task), BUDGETS):
            of_method = of_task["methods"].setdefault(name, {})
            if str(epochs) in of_method:
                continue
            if name in FULL:
                found: dict[str, Any] = {"runs": [FULL[name](task, best, epochs)]}
            else:
                tried = grid(task, name, best, epochs)
                lr = min(tried, key=lambda lr: tried[lr])
                found = {"lr": lr, "grid": {f"{k:.3g}": v for k, v in sorted(tried.items())}}
                found["runs"] = [run(task, name, lr, seed, best, epochs) for seed in SEEDS]
            of_method[str(epochs)] = found
            RUNS.write_text(json.dumps(stored, indent=1))
            last = statistics.median(r["gap"] for r in found["runs"])
            print(f"{label:26s} {name:20s} {epochs:3d} epochs, lr {found.get('lr', 0):.2g}: {last:.1e}", flush=True)


def grid(task: Task, name: str, best: float, epochs: int) -> dict[float, float]:
    """Return the final gap of seed 0 at learning rates a factor of 3 apart, until the best has neighbours."""
    middle, tried = scale(name, task), {}
    exponents = list(range(-2, 3))
    for _ in range(MOST + 1):
        for e in exponents:
            lr = middle * 3.0**e
            if lr not in tried:
                gap = run(task, name, lr, 0, best, epochs)["gap"]
                tried[lr] = gap if math.isfinite(gap) else math.inf
        chosen = min(exponents, key=lambda e: tried[middle * 3.0**e])
        if chosen == min(exponents):
            exponents.insert(0, chosen - 1)
        elif chosen == max(exponents):
            exponents.append(chosen + 1)
        else:
            break
    return tried


# ---------------------------------------------------------------------------------------------------------------- page

PAGE_FILE = HERE / "README.md"
OURS = "anchors, Adam"
APART = ("SAGA", *FULL)  # a table of slopes; full gradients
LEAST = 1e-15  # smaller gaps are rounding


def measured() -> dict[str, Any]:
    """Return the tasks of anchors.json whose last method was run."""
    return {k: of for k, of in json.loads(RUNS.read_text()).items() if any(name in of["methods"] for name in FULL)}


def gap(found: dict[str, Any], epochs: int) -> float:
    """Return a method's median gap over the seeds that did not choose its learning rate."""
    return max(LEAST, statistics.median(r["gap"] for r in found[str(epochs)]["runs"]))


def best_rival(of_task: dict[str, Any], epochs: int) -> tuple[str, float]:
    """Return the best method with stochastic gradients that has no anchors and no table."""
    rivals = {k: gap(v, epochs) for k, v in of_task["methods"].items() if "anchors" not in k and k not in APART}
    return min(rivals.items(), key=lambda item: item[1])


def summary() -> list[str]:
    """Return a row for each task: the anchored method's gap beside its best rival's."""
    head = [f"{e} epochs: anchors / best rival" for e in BUDGETS]
    lines = ["| task | " + " | ".join([*head, *(f"{name}, {BUDGETS[-1]} epochs" for name in APART)]) + " |"]
    lines.append("|---|" + "---|" * (len(BUDGETS) + len(APART)))
    for label, of_task in measured().items():
        of_methods, cells = of_task["methods"], []
        for epochs in BUDGETS:
            name, theirs = best_rival(of_task, epochs)
            cells.append(f"{_said(gap(of_methods[OURS], epochs))} / {_said(theirs)} ({name})")
        cells += [_said(gap(of_methods[name], BUDGETS[-1])) if name in of_methods else "–" for name in APART]
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return lines


def counts() -> list[str]:
    """Return on how many tasks the anchored method is ahead, at each budget."""
    tasks = measured().values()
    lines = ["| budget | a tenth of the best rival's gap or less | not above it |", "|---|---|---|"]
    for epochs in BUDGETS:
        ratios = [gap(of["methods"][OURS], epochs) / best_rival(of, epochs)[1] for of in tasks]
        tenth, level = sum(r <= 0.1 for r in ratios), sum(r <= 1 for r in ratios)
        lines.append(f"| {epochs} epochs | {tenth} of {len(ratios)} tasks | {level} of {len(ratios)} |")
    return lines


def tables() -> list[str]:
    """Return the tables of all methods: the median gap over seeds for each budget, and the range of the largest."""
    lines = []
    for label, of_task in measured().items():
        lines += ["", f"### {label[0].upper()}{label[1:]} (n = {of_task['n']:,})", ""]
        shown = " | ".join(f"{e} epochs" for e in BUDGETS)
        lines += [f"| method | {shown} | least and largest of 3 | lr | CPU s |", "|---|" + "---|" * (len(BUDGETS) + 3)]
        for name, found in of_task["methods"].items():
            last = found[str(BUDGETS[-1])]
            shown = " | ".join(_said(gap(found, e)) for e in BUDGETS)
            gaps = [r["gap"] for r in last["runs"]]
            spread = f"{_said(min(gaps))} to {_said(max(gaps))}"
            seconds = statistics.median(r["seconds"] for r in last["runs"])
            rate = f"{last['lr']:.2g}" if "lr" in last else "–"
            lines.append(f"| {name} | {shown} | {spread} | {rate} | {seconds:.1f} |")
    return lines[1:]


def _said(gap: float) -> str:
    return "< 1e-15" if gap <= LEAST else f"{gap:.1e}"


def page(text: str) -> str:
    """Return the page with the tables of anchors.json."""
    for mark, lines in (("summary", summary()), ("counts", counts()), ("tables", tables())):
        text = kept.filled(text, mark, "\n".join(lines))
    return text


def draw() -> None:
    """Draw the gaps of five methods on two tasks against the budget."""
    import style

    shown = {
        OURS: style.RED,
        "Adam": style.BLUE,
        "SGD, momentum 0.9": style.OCHRE,
        "SAGA": style.GREEN,
        "L-BFGS": style.GREY,
    }
    fig, panels = style.panels(1, 2, 3.2, sharey=True)
    for panel, label in zip(panels, ("ill-conditioned logistic", "mixture on the simplex"), strict=True):
        of_methods = measured()[label]["methods"]
        for name, color in shown.items():
            if name in of_methods:
                gaps = [gap(of_methods[name], e) for e in BUDGETS]
                panel.plot(BUDGETS, gaps, marker="o", label=name, color=color)
        panel.set(title=label, xscale="log", yscale="log", xlabel="budget (epochs of gradients)")
        panel.set_xticks(BUDGETS, [str(e) for e in BUDGETS])
        panel.minorticks_off()
    panels[0].set_ylabel("f(x) − f*")
    fig.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    style.save(fig, HERE / "anchors.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", metavar="DIR", type=Path, default=Path("data"))
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.write:
        PAGE_FILE.write_text(page(PAGE_FILE.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        measure(given.data_dir, given.only)
