"""Muon, Shampoo, SOAP and their kin against AdamW on the lab's tasks: the table of docs/results.md.

python scripts/matrix_family.py --run [--out FOLDER] [--jobs N]   # the comparison; it goes on with what was stopped
python scripts/matrix_family.py            # the table, from docs/data/matrix_family.json
python scripts/matrix_family.py --check    # fails if it is not what would be written
"""

import argparse
import sys
from pathlib import Path

import kept

from superadam import bench, lab
from superadam.lab.comparison.statistics import Ratio, analyse
from superadam.lab.comparison.verdict import losses

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data" / "matrix_family.json"
PAGE = ROOT / "docs" / "results.md"

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


def multiple(ratio: Ratio) -> str:
    """Of AdamW's, with how many runs got there if some did not."""
    missed = "" if ratio.reached == ratio.runs else f" ({ratio.reached} of {ratio.runs})"
    return f"{ratio.estimate.value:.2f}{missed}".replace("inf", "∞") if ratio.reached else "never"


def table() -> str:
    """For each task: the final loss, and what it takes to AdamW's median final loss."""
    found = [analyse(results) for results in kept.read(DATA)]
    tasks = {name: task for each in found for name, task in each.tasks.items()}
    shown = [name for name in TASKS if name in tasks]
    rows = []
    for method in (m for m in found[0].methods if m != found[0].baseline):
        cells = []
        for task in shown:
            c = tasks[task].comparisons[method]
            cells += [losses(c).split(" (")[0], multiple(c.times["gradient_evaluations"]), multiple(c.times["seconds"])]
        rows.append([f"`{method}`", *cells])
    head = [cell for task in shown for cell in (f"`{task}`: loss", "gradients", "seconds")]
    return bench.Table("", ["", *head], rows).markdown()


def page() -> str:
    text = PAGE.read_text(encoding="utf-8")
    before, after = "<!-- matrix family -->\n\n", "\n\n<!-- end -->"
    start = text.index(before) + len(before)
    return text[:start] + table() + text[text.index(after, start) :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "matrix_family")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if args.run:
        found = [lab.compare([task], METHODS, jobs=args.jobs, out=args.out / task, **OPTIONS) for task in TASKS]
        kept.write(DATA, found, "python scripts/matrix_family.py --run")
    if args.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
