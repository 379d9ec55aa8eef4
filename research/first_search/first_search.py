"""The search for a composition that beats tuned AdamW at equally many gradient evaluations: README.md.

    python -m research.first_search.first_search ROUND... --data-dir DIR [--out FOLDER] [--jobs N]   # into data
    python -m research.first_search.first_search            # the tables of README.md, from these files
    python -m research.first_search.first_search --check    # fails if they are not what would be written

A round is some comparisons, each in a folder of its own: what was stopped goes on. Rounds before "report" have seeds
1000 (tuning) and 900 and up (a second look, at the learning rate that was chosen); the report has others. DIR holds the
archives of CIFAR-10 and WikiText-2.
"""

import argparse
import dataclasses
import math
import shlex
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from scipy.stats import friedmanchisquare, rankdata

import superadam_lab as lab
from research import kept
from superadam_lab import bench
from superadam_lab.comparison.records import Record, Results, final
from superadam_lab.comparison.statistics.analysis import Ratio, analyse
from superadam_lab.comparison.statistics.ranking import Ranks
from superadam_lab.comparison.verdict.words import change, interval, label, losses, probability
from superadam_lab.tasks import find

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA = HERE / "data"
PAGE = HERE / "README.md"

LAM = "eps=5e-4"
NESTEROV = "mars_approx betas=[0.9,0.99] gamma=0.1 clip_corrected=null weight_decay=0.01"

PARTS = {
    "β₂ = 0.99": "adamw betas=[0.9,0.99]",
    "λ = 5e-4": f"adamw {LAM}",
    "λ = 5e-3": "adamw eps=5e-3",
    "nesterov": NESTEROV,
    "nesterov, λ": f"{NESTEROV} {LAM}",
    "correction twice as strong, λ": f"{NESTEROV.replace('gamma=0.1', 'gamma=0.2')} {LAM}",
    "transport, λ": f"adamw iterate=Nigt {LAM}",
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
"""Each part alone, or with the λ of the paper's experiments. Nesterov's has β₂ = 0.99, MARS its own betas, the average
its own α."""


@dataclasses.dataclass
class Round:
    """What is compared, on groups of tasks that need different options."""

    methods: dict[str, str]
    tasks: dict[tuple[str, ...], dict[str, Any]]
    common: dict[str, Any]

    def run(self, name: str, out: Path, jobs: int | None, data_dir: str | None) -> list[Results]:
        """All of it. What is there is not made again."""
        found = []
        for tasks, options in self.tasks.items():
            chosen = [f"{called}: {method}" for called, method in self.methods.items()]
            more = {"data_dir": data_dir} if any(find(task).needs_data for task in tasks) else {}
            print(name, *tasks, flush=True)
            folder = out / "-".join([name, *tasks, *(str(v) for v in options.values() if isinstance(v, int))])
            found.append(lab.compare(tasks, chosen, jobs=jobs, out=folder, **{**self.common, **options, **more}))
        return found


CAUTIOUS = 'matrix={"type": "Cautious", "beta": 0.99, "bias_correction": true}'
TRANSPORT = "adamw iterate=Nigt"
COMBINED = {
    "nesterov, λ": f"{NESTEROV} {LAM}",
    "nesterov, cautious, λ": f"{NESTEROV} {CAUTIOUS}",
    "transport, λ": f"{TRANSPORT} {LAM}",
    "transport, λ, β₂ = 0.99": f"{TRANSPORT} {LAM} betas=[0.9,0.99]",
    "transport, cautious, λ": f"{TRANSPORT} {CAUTIOUS}",
}
"""What was best, together."""

HELD_OUT = ("wikitext2-transformer",)  # a network without part in the search
DIGITS, PYDOC = ("digits-mlp", "digits-cnn"), ("pydoc-lstm", "pydoc-transformer")
SEARCH = {"trials": 6, "seeds": 2, "first_seed": 900, "tune": {"lr": (1e-3, 0.3)}}
NARROW = SEARCH | {"trials": 4, "tune": {"lr": (4e-3, 0.2)}}
CHECK = SEARCH | {"tune": {"lr": (5e-4, 0.2)}}
SHORT = {"budget_evals": 200}
REPORT = "report"
AGAIN = "adamw again"  # where its best learning rate was the lowest one, or failed on half of the seeds
FIRST = 5  # seeds of the report. The others were run a session later, their number fixed before
FOUND = {"super_adam_plus": "adamw_ahead"}  # "transport, λ, β₂ = 0.99"
TWO_GRADIENTS = "τ = 1 averaged and guarded, λ"
CHECKED = FOUND | {TWO_GRADIENTS: PARTS[TWO_GRADIENTS]}  # whether these depend on the schedule and the batch
ROUNDS = {
    "parts": Round(PARTS, {PYDOC: SHORT, DIGITS: {}}, SEARCH),
    "combined": Round(
        COMBINED,
        {
            ("cifar10-resnet18",): {"budget_evals": 100},
            ("wikitext2-lstm",): {"budget_evals": 500},
            DIGITS: {"seeds": 6},
            PYDOC: SHORT,
        },
        NARROW,
    ),
    "as before": Round(CHECKED, {PYDOC: SHORT}, CHECK),
    "warm-up": Round(CHECKED, {PYDOC: SHORT}, CHECK | {"decay": "warmup-cosine"}),
    "batches of 10": Round(CHECKED, {PYDOC: SHORT}, CHECK | {"sizes": {"batch": 10}}),
    "batches of 40": Round(CHECKED, {PYDOC: SHORT}, CHECK | {"sizes": {"batch": 40}}),
    REPORT: Round(
        {"λ, β₂ = 0.99": f"adamw betas=[0.9,0.99] {LAM}", **FOUND},
        {(*DIGITS, *PYDOC, "cifar10-resnet18", *HELD_OUT): {}},
        {"trials": 7, "tuning_seeds": 2, "seeds": 20, "first_seed": 300, "tune": {"lr": (5e-4, 0.2)}},
    ),
    AGAIN: Round(
        {},  # AdamW alone
        {
            ("wikitext2-transformer",): {"trials": 4, "tune": {"lr": (2e-4, 2e-3)}},
            ("pydoc-lstm",): {"trials": 5, "tuning_seeds": 6, "tune": {"lr": (4e-3, 0.1)}},
        },
        {"tuning_seeds": 2, "seeds": 20, "first_seed": 300},
    ),
}

# ------------------------------------------------------------------------------------------------ what is kept


def write(name: str, found: list[Results]) -> None:
    """The end of every run; of the report's, with all that came before it."""
    command = f"python -m research.first_search.first_search {shlex.quote(name)}"
    kept.write(DATA / f"{name}.json.gz", found, command, lambda r: name in (REPORT, AGAIN) and r.phase == "report")


def read(name: str) -> list[Results]:
    return kept.read(DATA / f"{name}.json.gz")


# ------------------------------------------------------------------------------------------------ tables


def ratios(results: Results, loss: str = "valid_loss") -> dict[str, dict[str, float]]:
    """Task → method → the final loss over AdamW's with the same seed, geometric mean over the seeds."""
    ends = {(r.task, r.method, r.seed): final(r, loss) for r in results.records if r.phase == "report"}
    plan = results.plan
    return {
        task: {
            method: math.exp(
                fmean(math.log(ends[task, method, s] / ends[task, plan.baseline, s]) for s in plan.report_seeds)
            )
            for method in plan.methods
        }
        for task in plan.tasks
    }


def table(name: str) -> str:
    """Methods by their mean over the tasks."""
    found: dict[str, dict[str, float]] = {}
    for results in read(name):
        found |= ratios(results)
    methods = list(next(iter(found.values())))
    means = {m: math.exp(fmean(math.log(found[task][m]) for task in found)) for m in methods}
    rows = []
    for method in sorted(methods, key=means.__getitem__):
        rows.append([method, *(f"{found[task][method]:.3f}" for task in found), f"{means[method]:.3f}"])
    return markdown([*(f"`{task}`" for task in found), "mean"], rows)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """With nothing above the first cells."""
    return bench.Table("", ["", *head], rows).markdown()


def mean_end(records: list[Record], task: str, method: str) -> float:
    """The geometric mean of the final validation losses of the report."""
    found = [r for r in records if (r.task, r.method, r.phase) == (task, method, "report")]
    return math.exp(fmean(math.log(final(r, "valid_loss")) for r in found))


CONDITIONS = ("as before", "warm-up", "batches of 10", "batches of 40")


def conditions_table() -> str:
    """Final validation losses, geometric means over the seeds."""
    names = {"adamw": "AdamW", "super_adam_plus": "adamw_ahead", TWO_GRADIENTS: "τ = 1"}
    rows = []
    for condition in CONDITIONS:
        (results,) = read(condition)
        ends = [mean_end(results.records, task, method) for task in PYDOC for method in names]
        rows.append([condition, *(f"{end:.3f}" for end in ends)])
    return markdown([f"`{task}`: {name}" for task in PYDOC for name in names.values()], rows)


def reported(*, first: bool = False) -> Results:
    """The report, on the seeds that were run later; or on the first ones and their tasks."""
    (results,) = read(REPORT)
    seeds = results.plan.report_seeds
    if first:
        return results.only(seeds=seeds[:FIRST], tasks=[task for task in results.plan.tasks if task not in HELD_OUT])
    later = results.only(seeds=seeds[FIRST:])
    for again in read(AGAIN):
        later.records = _better(later.records, again.only(seeds=seeds[FIRST:]).records)
    return later


def _better(records: list[Record], again: list[Record]) -> list[Record]:
    """With AdamW's runs from its second tuning, if they ended lower: more than the others were given."""
    task, method = again[0].task, again[0].method
    if mean_end(again, task, method) >= mean_end(records, task, method):
        return records
    return [r for r in records if (r.task, r.method) != (task, method)] + again


def verdict_table(*, first: bool = False) -> str:
    """The report's: final losses and p-values; and of the last method, what it takes to AdamW's median final loss."""
    found = analyse(reported(first=first), per_task=True)
    methods = [m for m in found.methods if m != found.baseline]
    head = [*(f"{m}: final loss" for m in methods), "… its evaluations to AdamW's"]
    rows = []
    everything = {f"`{name}`": task.comparisons for name, task in found.tasks.items()}
    for name, comparisons in {**everything, f"all {len(everything)}": found.overall}.items():
        cells = []
        for c in (comparisons[m] for m in methods):
            lost = f"; {c.lost} of {c.n} lost" if c.lost else ""
            text = f"{losses(c)}, p {probability(c.p)}{lost}"
            cells.append(f"**{text}**" if c.outcome in ("better", "worse") else text)
        cells.append(multiples(comparisons[methods[-1]].times["gradient_evaluations"]))
        rows.append([name, *cells])
    return markdown(head, rows)


def rates_table() -> str:
    """The report's learning rates, with a mark where the best is at an end of those tried; and test losses."""
    results = reported()
    found, ends = analyse(results), ratios(results, "test_loss")
    methods = found.methods
    others = [m for m in methods if m != found.baseline]
    head = [*(f"{label(m)}: lr" for m in methods), *(f"{m}: test loss" for m in others)]
    rows = []
    for name, task in found.tasks.items():
        marks = {m: "".join(f" ({side})" for side in task.trials[m].edges.values()) for m in methods}
        cells = [f"{task.outcomes[m].options['lr']:.2g}{marks[m]}" for m in methods]
        rows.append([f"`{name}`", *cells, *(change(ends[name][m]) for m in others)])
    return markdown(head, rows)


def ranks_table() -> str:
    """Mean ranks: over the tasks and seeds of the report, first and later; and over the tasks, by their means."""
    rows = []
    for words, results in {"first": reported(first=True), "later": reported()}.items():
        found, n = analyse(results), len(results.plan.report_seeds)
        rows.append([f"{n} {words} seeds", *_ranks(found.methods, found.ranks)])
    by_task = [list(of_task.values()) for of_task in ratios(results).values()]
    table = rankdata(by_task, axis=1)
    critical = found.ranks.critical * math.sqrt(found.ranks.blocks / len(table))
    means = dict(zip(results.plan.methods, table.mean(0), strict=True))
    of_tasks = Ranks(means, len(table), float(friedmanchisquare(*table.T).pvalue), critical)
    rows.append(["means of the tasks", *_ranks(found.methods, of_tasks)])
    head = [*map(label, found.methods), "two differ from", "Friedman's test", "rankings"]
    return markdown(head, rows)


def _ranks(methods: list[str], ranks: Ranks) -> list[str]:
    means = [f"{ranks.means[m]:.2f}" for m in methods]
    return [*means, f"{ranks.critical:.2f}", f"p {probability(ranks.p)}", str(ranks.blocks)]


def multiples(ratio: Ratio) -> str:
    missed = "" if ratio.reached == ratio.runs else f"; reached {ratio.reached} of {ratio.runs} times"
    return interval(ratio.estimate) + missed


TABLES = {
    "parts": lambda: table("parts"),
    "combined": lambda: table("combined"),
    "conditions": conditions_table,
    "report": verdict_table,
    "first": lambda: verdict_table(first=True),
    "ranks": ranks_table,
    "rates": rates_table,
}


def page() -> str:
    """README.md with the tables as they should be."""
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        text = kept.filled(text, f"search: {name}", make())
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="*", metavar="ROUND", help=", ".join(ROUNDS))
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=ROOT / "search")
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    for name in args.rounds:
        write(name, ROUNDS[name].run(name, args.out, args.jobs, args.data_dir))
    if args.check:
        sys.exit(page() != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
