"""The search for a composition that beats tuned AdamW at equally many gradient evaluations: docs/results.md.

    python scripts/search.py ROUND... --data-dir DIR [--out FOLDER] [--jobs N]   # runs; docs/data/search_*.json
    python scripts/search.py                                                     # the tables, from these files

A round is some comparisons, each in a folder of its own: what was stopped goes on. The rounds before "report" have the
seeds 1000 (tuning) and 900, 901 (a second look, at the learning rate that was chosen); the report has others. DIR holds
the archives of CIFAR-10 and WikiText-2.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from superadam import lab
from superadam.lab.comparison.records import Results
from superadam.lab.tasks import find

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data"

LAM = "eps=5e-4"
NESTEROV = "mars_approx betas=[0.9,0.99] gamma=0.1 clip_corrected=null weight_decay=0.01"

PARTS = {
    "β₂ = 0.99": "adamw betas=[0.9,0.99]",
    "λ = 5e-4": f"adamw {LAM}",
    "λ = 5e-3": "adamw eps=5e-3",
    "nesterov": NESTEROV,
    "nesterov, λ": f"{NESTEROV} {LAM}",
    "correction twice as strong, λ": f"{NESTEROV.replace('gamma=0.1', 'gamma=0.2')} {LAM}",
    "transport, λ": f"adamw estimator=Transport {LAM}",
    "belief, λ": 'adamw matrix={"type": "Belief", "bias_correction": true}',
    "amsgrad, λ": 'adamw matrix={"type": "AMSGrad", "bias_correction": true}',
    "cautious": 'adamw matrix={"type": "Cautious", "lam": 1e-8, "bias_correction": true}',
    "cautious, λ": 'adamw matrix={"type": "Cautious", "bias_correction": true}',
    "α = 0.1 μ_t of the paper, λ": f'adamw {LAM} schedule={{"type": "Paper", "k": 10, "m": 100, "c": 0.1}}',
    "clipped g, λ": f"adamw {LAM} clip=0.1",
    "τ = 0.05, λ": f"adamw {LAM} tau=0.05",
    "τ falls from 1 to 0, λ": f"adamw {LAM} tau=1 taus=[[0.1, 0.5], [0.2, 0.1], [0.3, 0]]",
    "τ = 1 at the end, λ": f"adamw {LAM} taus=[[0.8, 1]]",
    "τ = 1 averaged and guarded, λ": f'adamw {LAM} schedule={{"type": "Constant", "alpha": 0.6}} '
    'estimator={"type": "Averaged", "guard": 1.0}',
    "MARS, λ": f"mars weight_decay=0.01 {LAM}",
}
"""Each part alone, or with the λ of the paper's experiments."""


@dataclasses.dataclass
class Round:
    """What is compared, on groups of tasks that need different options."""

    methods: dict[str, str]
    tasks: dict[tuple[str, ...], dict[str, Any]]
    common: dict[str, Any]

    def run(self, name: str, out: Path, jobs: int, data_dir: str | None) -> list[Results]:
        """All of it. What is there is not made again."""
        found = []
        for tasks, options in self.tasks.items():
            chosen = [f"{label}: {method}" for label, method in self.methods.items()]
            more = {"data_dir": data_dir} if any(find(task).needs_data for task in tasks) else {}
            print(name, *tasks, flush=True)
            folder = out / "-".join([name, *tasks, *map(str, options.values())])
            found.append(lab.compare(tasks, chosen, jobs=jobs, out=folder, **self.common, **options, **more))
        return found


DIGITS, PYDOC = ("digits-mlp", "digits-cnn"), ("pydoc-lstm", "pydoc-transformer")
SEARCH = {"trials": 6, "seeds": 2, "first_seed": 900, "tune": {"lr": (1e-3, 0.3)}}
ROUNDS = {
    "parts": Round(PARTS, {PYDOC: {"budget_evals": 200}, DIGITS: {}}, SEARCH),
}


def kept(results: Results) -> dict[str, Any]:
    """What a file keeps of a comparison: the end of every run."""
    plan = dataclasses.asdict(results.plan)
    runs = [
        [r.task, r.method, r.phase, r.options["lr"], r.seed, r.status, *(r.rows[-1].get(k) for k in COLUMNS)]
        for r in results.records
    ]
    return {"plan": {**plan, "data_dir": None}, "environment": results.environment, "runs": runs}


COLUMNS = ("gradient_evaluations", "seconds", "train_loss", "valid_loss", "test_loss")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="*", choices=ROUNDS)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=ROOT / "search")
    parser.add_argument("--jobs", type=int)
    args = parser.parse_args()
    for name in args.rounds:
        found = ROUNDS[name].run(name, args.out, args.jobs, args.data_dir)
        print(json.dumps([kept(results) for results in found])[:200])


if __name__ == "__main__":
    main()
