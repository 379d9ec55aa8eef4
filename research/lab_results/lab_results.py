"""Real data at laptop scale: every optimizer of the paper, with the learning rates of superadam_lab.tasks.settings.

    python -m research.lab_results.lab_results TASK... --data-dir DIR [--seeds 1] [--out FOLDER]   # runs, and all files
    python -m research.lab_results.lab_results            # the tables of README.md from lab_results.json
    python -m research.lab_results.lab_results --check    # fails if they are not what would be written

FOLDER keeps the runs: what is there is not computed again, and what was stopped goes on. Both budgets are read from one
run: a method with two gradients of each batch has had the evaluations of the others after half of the epochs, and
`superadam train TASK --budget-evals N` is the same run, stopped there. Seconds are CPU seconds of training, on one
thread: others may use the machine.
"""

import argparse
import functools
import json
import re
import statistics
import sys
import time
from pathlib import Path

import torch

from superadam_lab import data
from superadam_lab.methods.by_name import PAPER
from superadam_lab.runs.clock import Clock
from superadam_lab.runs.folders import Config, Folder, environment, rows
from superadam_lab.runs.plots import plot
from superadam_lab.runs.training import Run, Watcher
from superadam_lab.tasks import find

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA, PAGE = HERE / "lab_results.json", HERE / "README.md"
BUDGETS = {"epochs": "The same epochs", "evaluations": "The same gradient evaluations"}
SCORES = {"accuracy": "accuracy, %", "perplexity": "perplexity"}


class CPUClock(Clock):
    """Seconds of this process, not of the machine."""

    def go(self):
        self._since = time.process_time()

    @property
    def seconds(self):
        return self.total + (0.0 if self._since is None else time.process_time() - self._since)


class Said(Watcher):
    def evaluated(self, run, row):
        print(run.folder.path.name, f"epoch {row['epoch']:g}", row["valid_loss"], row["test_loss"], flush=True)


def run(task, method, seed, root, out):
    """The folder of a run that has ended."""
    name = f"{task}-{method.replace(' ', '-').replace('=', '')}-seed{seed}"
    folder = Folder(out / name)
    if not folder.config.exists():
        folder = Folder.new(folder.path, Config(task, method, seed=seed, data_dir=root))
    done = rows(folder.path)
    if not done or (done[-1]["epoch"] < find(task).sizes("laptop")["epochs"] and done[-1]["train_loss"] is not None):
        here = Run(folder, Said())
        total, here.clock = here.clock.total, CPUClock(here.workload.device)
        here.clock.total = total
        if here.train() == "interrupted":
            raise SystemExit("stopped")
    return folder.path


def collect(task, seeds, root, out):
    """What the tables say: for each method the rows at which each budget is used up, one for each seed."""
    folders = {method: [run(task, method, seed, root, out) for seed in range(seeds)] for method in PAPER}
    plot([found[0] for found in folders.values()], HERE / task, ["png"])
    workload = find(task).workload("laptop", 0, root)
    sizes = find(task).sizes("laptop")
    budget = sizes["epochs"] * workload.length
    methods = {}
    for method, found in folders.items():
        every = [rows(path) for path in found]
        lr = every[0][0]["lr"]
        ends = {
            "epochs": [measured[-1] for measured in every],
            "evaluations": [[r for r in measured if r["gradient_evaluations"] <= budget][-1] for measured in every],
        }
        methods[method] = {"lr": lr} | {kind: list(map(plain, ends[kind])) for kind in BUDGETS}
    return {
        "sizes": sizes,
        "parameters": sum(p.numel() for p in workload.model.parameters()),
        "score": workload.score,
        "seeds": seeds,
        "environment": {k: v for k, v in environment().items() if k in ("superadam", "torch", "python", "threads")},
        "methods": methods,
    }


def plain(row):
    names = ("epoch", "gradient_evaluations", "seconds")
    kept = {k: v for k, v in row.items() if k in names or k.startswith(("train_", "valid_", "test_"))}
    return {k: round(v, 4) if isinstance(v, float) else v for k, v in kept.items()}


def tables(found):
    """Markdown of one task."""
    score, seeds = found["score"], found["seeds"]
    head = ["method", "lr", "epochs", "evaluations", "train loss", "valid loss", "test loss"]
    head += [f"test {SCORES[score]}", "CPU seconds"]
    lines = []
    for kind, title in BUDGETS.items():
        lines += [f"{title}{'' if seeds == 1 else f', mean and standard deviation of {seeds} seeds'}:", ""]
        lines += [f"| {' | '.join(head)} |", f"|---{'|---:' * (len(head) - 1)}|"]
        for method, name in PAPER.items():
            one = found["methods"][method]
            ends = one[kind]
            cells = [name, f"{one['lr']:g}", f"{ends[0]['epoch']:g}", f"{ends[0]['gradient_evaluations']:,}"]
            cells += [several([end[f"{split}_loss"] for end in ends], "{:.3f}") for split in ("train", "valid", "test")]
            factor = 100 if score == "accuracy" else 1
            values = [end[f"test_{score}"] for end in ends]
            cells.append(several([v if v is None else factor * v for v in values], "{:.1f}"))
            cells.append(f"{statistics.mean(end['seconds'] for end in ends):.0f}")
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def several(values, form):
    if None in values:
        return "not finite"
    mean = form.format(statistics.mean(values))
    return mean if len(values) == 1 else f"{mean} ± {form.format(statistics.stdev(values))}"


def page(text, results):
    """README.md with the tables between its marks."""
    for task, found in results.items():
        begin, end = f"<!-- results of {task}: research/lab_results/lab_results.py -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{end}", re.DOTALL)
        if not pattern.search(text):
            sys.exit(f"{PAGE} has no place for {task}: give it the lines\n{begin}\n{end}")
        made = f"{begin}\n\n{tables(found)}\n{end}"
        text = pattern.sub(lambda _, made=made: made, text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK")
    parser.add_argument("--data-dir")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("/tmp/lab_results"))
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data.cifar, data.wikitext2 = functools.cache(data.cifar), functools.cache(data.wikitext2)
    results = json.loads(DATA.read_text()) if DATA.exists() else {}
    for task in args.tasks:
        results[task] = collect(task, args.seeds, args.data_dir, args.out)
        DATA.write_text(json.dumps(results, indent=1) + "\n")
    text = page(PAGE.read_text(), results)
    if not args.check:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        sys.exit(f"{PAGE} is out of date: run python -m research.lab_results.lab_results")


if __name__ == "__main__":
    main()
