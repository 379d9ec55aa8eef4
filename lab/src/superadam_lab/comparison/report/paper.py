"""Text for a paper: a paragraph about the comparison, and what to cite."""

from __future__ import annotations

import re

from superadam_lab.comparison.records import VERSIONS, Results
from superadam_lab.comparison.report.facts import space_in_words
from superadam_lab.comparison.statistics.analysis import Statistics
from superadam_lab.comparison.verdict.cautions import listed
from superadam_lab.comparison.verdict.words import label

__all__ = ["citation", "paragraph"]

PROCEDURE = (
    "We report geometric means of the ratios of final losses, paired by seed, with simultaneous 95 % intervals and "
    "corrected p-values from one procedure: the largest studentised mean of {n} comparisons, by 3,999 draws of normal "
    "data with the variances of the runs and half of their correlations. The variance includes that of tuning: the "
    "variance of the final loss under repeated tuning, simulated by noise like that of the runs on the losses of the "
    "trials."
)


def paragraph(results: Results, found: Statistics) -> str:
    """A paragraph about how the comparison was done, to paste into a paper."""
    plan = results.plan
    n, k = len(plan.report_seeds), len(plan.tuning_seeds)
    methods = listed([label(m) for m in found.methods if m != found.baseline]) or "no other method"
    budgets = ", ".join(f"{e} on {task}" for task, e in plan.budget_evals.items())
    versions = ", ".join(f"{name} {results.environment[name]}" for name in VERSIONS if results.environment.get(name))
    own = "; ".join(f"for {label(m)}, {space_in_words(space)}" for m, space in plan.spaces.items())
    halved = f" One in {plan.halving} trials, but at least two, continued with longer runs." if plan.halving else ""
    warm = f" after a linear warm-up over {100 * plan.warmup:g} % of the run" if plan.warmup else ""
    parts = [
        f"We compared {methods} with tuned {label(found.baseline)} on {listed(list(found.tasks)) or 'no task'} at "
        f"{plan.scale} scale, with superadam [1].",
        f"Every method was tuned with {plan.trials} trials ({plan.sampler}) over {space_in_words(plan.space)}"
        + (f"; {own}" if own else "")
        + f", on {k} tuning seed{'s' if k > 1 else ''}, and judged by the final validation loss.{halved}",
        f"The best options were then run with {n} other seeds, with the same initial weights and batches for all "
        f"methods. All runs had the same number of gradient evaluations ({budgets}), with {plan.decay} decay of the "
        f"learning rate{warm}."
        if budgets
        else f"The best options were then run with {n} other seeds.",
        _other_budgets(results),
        PROCEDURE.format(n=found.family),
        f"Versions: {versions}." if versions else "",
    ]
    return " ".join(part for part in parts if part)


def _other_budgets(results: Results) -> str:
    """The other budgets of the report besides equal gradients."""
    words = {
        "epochs": "the same number of batches for every method",
        "seconds": f"as many gradient evaluations as the training time of {label(results.plan.baseline)} allows",
    }
    more = [words[b] for b in results.plan.budgets if b in words]
    if not more:
        return ""
    return (
        f"We also ran the best options with {' and with '.join(more)}, unless that was the same run. Tuning had equal "
        "gradient evaluations."
    )


def citation(results: Results) -> str:
    """BibTeX of the software, and of the paper it came with, as CITATION.cff has them."""
    year = re.sub(r"\D", "", str(results.environment.get("began", ""))[:4]) or "2026"
    version = re.sub(r"[^\w.+-]", "", str(results.environment.get("superadam", "unknown")))
    return f"""@software{{superadam,
  title = {{superadam: adaptive gradient methods as one algorithm, and their comparison}},
  author = {{{{The superadam authors}}}},
  version = {{{version}}},
  year = {{{year}}}
}}
@inproceedings{{huang2021superadam,
  title = {{SUPER-ADAM: Faster and Universal Framework of Adaptive Gradients}},
  author = {{Huang, Feihu and Li, Junyi and Huang, Heng}},
  booktitle = {{Advances in Neural Information Processing Systems}},
  volume = {{34}},
  year = {{2021}},
  eprint = {{2106.08208}},
  archivePrefix = {{arXiv}}
}}"""
