"""`state_dtype=torch.bfloat16`: final losses beside those of a float32 state, bytes, and the time of a step.

python -m research.state.narrow_state [--write]

Three tasks from scikit-learn's data, five seeds each, the same batches for both. `--write` keeps the losses in
narrow_state.json and makes the table of README.md of them.
"""

import argparse
import datetime
import json
import statistics
import time
from pathlib import Path

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn

from superadam import SuperAdam

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "narrow_state.json", HERE / "README.md"
BEGIN, END = "<!-- narrow_state.py -->", "<!-- end of narrow_state.py -->"
SEEDS, STEPS, BATCH = range(5), 400, 64
DTYPES = {"float32": None, "bfloat16": torch.bfloat16}


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


def measured():
    rows = []
    for name, task in tasks().items():
        for tau in (0.0, 1.0):
            row = {"task": name, "tau": tau, "losses": {}, "bytes": {}}
            for of, dtype in DTYPES.items():
                losses, held = zip(*(trained(*task, seed, tau, dtype) for seed in SEEDS), strict=True)
                row["losses"][of], row["bytes"][of] = losses, held[0]
            rows.append(row)
            print(row, flush=True)
    return rows


def table(results):
    """What the page says of the losses."""
    rows = results["rows"]
    shares = [abs(_mean(row, "float32") - _mean(row, "bfloat16")) / _spread(row, "float32") for row in rows]
    yield f"`python -m research.state.narrow_state --write`, torch {results['torch']}, {results['date']}:"
    yield f"losses after {STEPS} steps, {len(SEEDS)} seeds, the same batches for both."
    yield f"The means differ by at most {max(shares):.2f} standard deviations over seeds."
    yield ""
    yield "| task | τ | float32: mean loss (std over seeds) | bfloat16 | bytes of g and v per parameter |"
    yield "|---|---|---|---|---|"
    for row in rows:
        sizes = " and ".join(f"{row['bytes'][of]:g}" for of in DTYPES)
        shown = " | ".join(f"{_mean(row, of):.4g} ({_spread(row, of):.2g})" for of in DTYPES)
        yield f"| {row['task']} | {row['tau']:g} | {shown} | {sizes} |"
    yield ""
    yield (
        f"A step of 4,000,000 parameters takes {results['ms']['float32']:.3g} ms with a float32 state and "
        f"{results['ms']['bfloat16']:.3g} ms with a bfloat16 state, in CPU time of one thread (case 1, τ = 0)."
    )


def _mean(row, of):
    return statistics.mean(row["losses"][of])


def _spread(row, of):
    return statistics.stdev(row["losses"][of])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="narrow_state.json, README.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = {"date": f"{datetime.date.today():%Y-%m-%d}", "torch": torch.__version__, "rows": measured()}
    results["ms"] = {of: milliseconds(dtype) for of, dtype in DTYPES.items()}
    lines = list(table(results))
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        text = PAGE.read_text()
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


if __name__ == "__main__":
    main()
