"""Muon, Shampoo, SOAP and their kin against AdamW on the lab's tasks: the table of README.md.

python -m research.matrix_family.matrix_family --run [--out FOLDER] [--jobs N]   # all tasks, from where it stopped
python -m research.matrix_family.matrix_family --run pydoc-transformer   # this task; other stored runs are kept
python -m research.matrix_family.matrix_family            # the table, from matrix_family.json.gz
python -m research.matrix_family.matrix_family --check    # fails if it is not what would be written
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import superadam_lab as lab
from research import kept
from superadam_lab import bench
from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics.analysis import Ratio, TaskStatistics, analyse
from superadam_lab.comparison.verdict.words import losses

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA, PAGE = HERE / "matrix_family.json.gz", HERE / "README.md"

TASKS = ("digits-autoencoder", "digits-vit", "ratings", "pydoc-transformer")
GRAFT = '{"type":"SecondMoment","beta":0.99,"lam":1e-8,"bias_correction":true}'
METHODS = (
    "muon",
    "soap",
    "super_adam_plus",
    "kl_shampoo",
    "psgd_kron",
    "shampoo",
    f"shampoo, grafted: shampoo betas=[0.9,0.99] precondition_frequency=10 grafting={GRAFT}",
    "mars_m",
    "mars_shampoo",
    "limuon",
)
OPTIONS = {"warmup": 0.05, "trials": 5, "halving": 3, "seeds": 3, "tune": {"lr": (3e-4, 0.1)}}
SHORTER = {"pydoc-transformer": {"budget_evals": 250}}  # 15 minutes of one core in all; its six epochs would take 40


def multiple(ratio: Ratio) -> str:
    """Of AdamW's, with how many runs got there if some did not."""
    missed = "" if ratio.reached == ratio.runs else f" ({ratio.reached} of {ratio.runs})"
    return f"{ratio.estimate.value:.2f}{missed}".replace("inf", "∞") if ratio.reached else "never"


def table() -> str:
    """For each task: the final loss, and what it takes to AdamW's median final loss."""
    stored = kept.read(DATA)
    tasks = {name: task for results in stored for name, task in analyse(results).tasks.items()}
    budgets = {name: budget for results in stored for name, budget in results.plan.budget_evals.items()}
    shown = [name for name in TASKS if name in tasks]
    names = [method.partition(": ")[0] for method in METHODS]
    compared = [m for m in names if any(m in tasks[task].comparisons for task in shown)]
    rows = [[f"`{m}`", *(cell for task in shown for cell in cells(tasks[task], m))] for m in compared]
    head = [cell for task in shown for cell in (f"`{task}`: loss", "gradients", "seconds")]
    lengths = ", ".join(f"{budgets[task]} on `{task}`" for task in shown)
    return f"{bench.Table('', ['', *head], rows).markdown()}\n\nGradient evaluations of each run: {lengths}."


def cells(task: TaskStatistics, method: str) -> list[str]:
    """The final loss, the gradient evaluations and the seconds; dashes where the method was not run."""
    if method not in task.comparisons:
        return ["–"] * 3
    c = task.comparisons[method]
    return [losses(c).split(" (")[0], *(multiple(c.times[axis]) for axis in ("gradient_evaluations", "seconds"))]


def page() -> str:
    return kept.filled(PAGE.read_text(encoding="utf-8"), "matrix family", table())


def run(tasks: Sequence[str], out: Path, jobs: int | None) -> list[Results]:
    """The comparisons of these tasks, after the stored ones of the others."""
    found = kept.read(DATA)
    for results in found:
        results.plan.tasks = [task for task in results.plan.tasks if task not in tasks]
        results.records = [record for record in results.records if record.task not in tasks]
    found = [results for results in found if results.records]
    for task in tasks:
        options = OPTIONS | SHORTER.get(task, {})
        found.append(lab.compare([task], METHODS, jobs=jobs, out=out / task, **options))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", nargs="*", choices=TASKS, metavar="TASK")
    parser.add_argument("--out", type=Path, default=ROOT / "matrix_family")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.run is not None:
        kept.write(
            DATA,
            run(args.run or TASKS, args.out, args.jobs),
            "python -m research.matrix_family.matrix_family --run [TASK]",
        )
    if args.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
