"""`state_dtype=torch.bfloat16`: final losses beside those of a float32 state, bytes, and the time of a step.

python scripts/narrow_state.py    # prints the table of docs/scale.md

Three tasks from scikit-learn's data, five seeds each, the same batches for both.
"""

import statistics
import time

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn

from superadam import SuperAdam

SEEDS, STEPS, BATCH = range(5), 400, 64


def tasks():
    def of(loaded, targets):
        x = torch.tensor(loaded.data, dtype=torch.float32)
        return (x - x.mean(0)) / (x.std(0) + 1e-6), targets(torch.tensor(loaded.target))

    mlp = lambda n, out: nn.Sequential(nn.Linear(n, 64), nn.ReLU(), nn.Linear(64, out))  # noqa: E731
    cnn = lambda: nn.Sequential(  # noqa: E731
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
    )
    standardised = lambda y: ((y - y.mean()) / y.std()).float()[:, None]  # noqa: E731
    return {
        "digits, CNN": (*of(load_digits(), torch.Tensor.long), cnn, nn.functional.cross_entropy),
        "breast cancer, MLP": (
            *of(load_breast_cancer(), torch.Tensor.long), lambda: mlp(30, 2), nn.functional.cross_entropy,
        ),
        "diabetes, MLP": (*of(load_diabetes(), standardised), lambda: mlp(10, 1), nn.functional.mse_loss),
    }  # fmt: skip


def trained(x, y, make, loss_of, seed, tau, dtype):
    """The loss over all data after training, and the bytes of g and v."""
    torch.manual_seed(seed)
    model = make()
    opt = SuperAdam(model, lr=1e-3, tau=tau, state_dtype=dtype)
    for _ in range(STEPS):
        rows = torch.randint(len(x), (BATCH,))

        def closure(rows=rows):
            opt.zero_grad()
            loss = loss_of(model(x[rows]), y[rows])
            loss.backward()
            return loss

        opt.step(closure)
    opt.flush()
    held = sum(s[name].nbytes for s in opt.state.values() for name in ("g", "v"))
    with torch.no_grad():
        return loss_of(model(x), y).item(), held / sum(p.numel() for p in model.parameters())


def milliseconds(dtype, n=4_000_000):
    x = torch.randn(n, requires_grad=True)
    x.grad = torch.randn(n)
    opt = SuperAdam([x], state_dtype=dtype)
    times = []
    for _ in range(6):
        start = time.process_time()
        opt.step()
        times.append(1e3 * (time.process_time() - start))
    return statistics.median(times[1:])


def main():
    torch.set_num_threads(1)
    print("| task | τ | float32: mean loss (std over seeds) | bfloat16 | bytes of g and v per parameter |")
    print("|---|---|---|---|---|")
    for name, task in tasks().items():
        for tau in (0.0, 1.0):
            shown, sizes = [], []
            for dtype in (None, torch.bfloat16):
                losses, held = zip(*(trained(*task, seed, tau, dtype) for seed in SEEDS), strict=True)
                shown.append(f"{statistics.mean(losses):.4g} ({statistics.stdev(losses):.2g})")
                sizes.append(f"{held[0]:g}")
            print(f"| {name} | {tau:g} | {' | '.join(shown)} | {' and '.join(sizes)} |", flush=True)
    wide, narrow = milliseconds(None), milliseconds(torch.bfloat16)
    print("\n4,000,000 parameters, CPU time of a step, one thread:", end=" ")
    print(f"{wide:.3g} ms and {narrow:.3g} ms ({narrow / wide:.0f} ×)")


if __name__ == "__main__":
    main()
