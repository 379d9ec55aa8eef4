"""The statistics of a comparison, in words."""

from __future__ import annotations

import dataclasses
import math

from superadam.lab.comparison.intervals import Estimate
from superadam.lab.comparison.records import VERSIONS, Results
from superadam.lab.comparison.statistics import Comparison, Ratio, Statistics, analyse
from superadam.lab.methods import PAPER

__all__ = [
    "Finding",
    "Verdict",
    "change",
    "figure",
    "interval",
    "label",
    "losses",
    "multiple",
    "probability",
    "verdict",
]

OUTCOMES = ("better", "worse", "lost", "same", "none")
PHRASES = {
    "better": ("{names} {are} better than {against}", "{names} {are} better"),
    "worse": ("{names} {are} worse than {against}", "{names} {are} worse"),
    "lost": ("{names} lost more runs than {against}", "{names} lost more runs"),
    "same": ("No difference to {against} could be shown for {names}", "no difference could be shown for {names}"),
}
"""Of the headline: the first one says against what."""
WORDS = {"valid_loss": "validation loss", "train_loss": "training loss"}


@dataclasses.dataclass
class Finding:
    """A method against the baseline."""

    method: str
    outcome: str
    """"better", "worse", "lost" (more runs than the baseline), "same" (no difference shown) or "none" (no runs)."""
    text: str
    """By how much, and how sure."""


@dataclasses.dataclass
class Verdict:
    """What a comparison says. `text` is for a terminal."""

    headline: str
    findings: list[Finding]
    """Over all tasks; those of the one task if there is but one."""
    tasks: dict[str, list[Finding]]
    headings: dict[str, str]
    """What stands above the findings of each outcome."""
    basis: str
    """What was compared, and how."""
    cautions: list[str]

    @property
    def text(self) -> str:
        lines = [self.headline, self.basis, "", *self._lines(self.findings)]
        if len(self.tasks) > 1:
            for task, findings in self.tasks.items():
                lines += ["", f"On {task} alone", *self._lines(findings)]
        if self.cautions:
            lines += ["", *(f"Look: {caution}" for caution in self.cautions)]
        return "\n".join(lines)

    def groups(self, findings: list[Finding]) -> list[tuple[str, str, list[Finding]]]:
        """Outcome, heading and findings, for each outcome that there is."""
        every = [(k, heading, [f for f in findings if f.outcome == k]) for k, heading in self.headings.items()]
        return [group for group in every if group[2]]

    def _lines(self, findings: list[Finding]) -> list[str]:
        lines = []
        width = max((len(label(f.method)) for f in findings), default=0)
        for _, heading, group in self.groups(findings):
            lines += [f"{heading}:", *(f"  {label(f.method):{width}}  {f.text}" for f in group)]
        return lines


def verdict(results: Results, found: Statistics | None = None) -> Verdict:
    """In words; of statistics, if they are known already."""
    found = found or analyse(results)
    tasks = {name: _findings(found, task.comparisons) for name, task in found.tasks.items()}
    findings = _findings(found, found.overall) if len(tasks) > 1 else next(iter(tasks.values()), [])
    n = len(results.plan.report_seeds)
    theirs = label(found.baseline)
    headings = {
        "better": f"Better than {theirs}",
        "worse": f"Worse than {theirs}",
        "lost": f"More runs that diverged or failed than {theirs}, and no other difference shown",
        "same": f"No difference to {theirs} that {'these ' if n > 1 else ''}{_count(n, 'seed')} could show",
        "none": f"Nothing to compare, for want of runs with the same seeds as {theirs}'s",
    }
    if not all(c.relative for task in found.tasks.values() for c in task.comparisons.values()) and len(tasks) > 1:
        headings["none"] = "Not compared on all tasks together: losses that are not positive have no ratio"
    return Verdict(_headline(found, findings), findings, tasks, headings, _basis(found, n), _cautions(results, found))


def _findings(found: Statistics, comparisons: dict[str, Comparison]) -> list[Finding]:
    """Better ones first, each kind by its loss."""
    made = []
    for m in found.methods:
        if m == found.baseline:
            continue
        c = comparisons.get(m)
        outcome = "none" if c is None or c.n == 0 else c.outcome
        key = (OUTCOMES.index(outcome), c.finals.value if c and not math.isnan(c.finals.value) else math.inf)
        text = "no runs" if c is None or c.n == 0 else "; ".join(_parts(c, label(found.baseline)))
        made.append((key, Finding(m, outcome, text)))
    return [finding for _, finding in sorted(made, key=lambda pair: pair[0])]


def _parts(c: Comparison, theirs: str) -> list[str]:
    parts = [f"final loss {losses(c)}" if c.finals.n else "no seed on which both came to the end"]
    if not math.isnan(c.p):
        parts.append(f"p {probability(c.p)}")
    if c.lost or c.lost_baseline:
        parts.append(f"{c.lost} of {_count(c.n, 'seed')} lost ({theirs}: {c.lost_baseline})")
    if "gradient_evaluations" in c.times:
        parts.append(_reach(c.times["gradient_evaluations"], theirs))
    return parts


def losses(c: Comparison) -> str:
    """How final losses differ: 12 % lower (8 % to 16 % lower)."""
    e = c.finals
    if not c.relative:
        return figure(e.value) + ("" if math.isnan(e.low) else f" ({figure(e.low)} to {figure(e.high)})") + " more"
    if math.isnan(e.low):
        return change(e.value)
    low, high = sorted([e.low, e.high], key=lambda r: abs(r - 1) if (e.low < 1) == (e.high < 1) else r)
    ends = [change(low), change(high)]
    if ends[0].split()[-1] == ends[1].split()[-1]:
        ends[0] = ends[0].rsplit(" ", 1)[0]
    return f"{change(e.value)} ({ends[0]} to {ends[1]})"


def change(ratio: float) -> str:
    """A ratio as a change.

    >>> change(0.88), change(1.05), change(3.0), change(1.0)
    ('12 % lower', '5.0 % higher', '200 % higher', '0.0 % higher')
    """
    percent = abs(100 * (ratio - 1))
    return f"{percent:.{0 if percent >= 9.95 else 1}f} % {'lower' if ratio < 1 else 'higher'}"


def interval(e: Estimate) -> str:
    """Of a ratio: 0.60 (0.50 to 0.71), 0.981 (0.980 to 0.983); with a miss ∞ (0.90 to ∞)."""
    decimals = 3 if e.high - e.low < 0.02 else 2
    value, low, high = (multiple(ratio, decimals) for ratio in (e.value, e.low, e.high))
    return value + ("" if math.isnan(e.low) else f" ({low} to {high})")


def _reach(ratio: Ratio, theirs: str) -> str:
    if ratio.reached == ratio.runs:
        return f"{interval(ratio.estimate)} times the evaluations to target"
    return f"target reached by {ratio.reached} of {_count(ratio.runs, 'run')} ({theirs}: {ratio.reached_baseline})"


def _count(n: int, word: str) -> str:
    return f"{n} {word}" + ("" if n == 1 else "s")


def multiple(ratio: float, decimals: int = 2) -> str:
    """A ratio, by default to the hundredth, where that can be read.

    >>> multiple(0.512), multiple(12.34), multiple(math.inf), multiple(math.nan)
    ('0.51', '12.3', '∞', '–')
    """
    if not math.isfinite(ratio):
        return "–" if math.isnan(ratio) else "∞"
    return f"{ratio:.{decimals}f}" if 0.1 <= ratio < 10 else figure(ratio)


def figure(value: float, digits: int = 3) -> str:
    """With so many digits, and no exponent where it can be read without.

    >>> figure(0.012345), figure(123456.0), figure(1e-7), figure(99.7, 2)
    ('0.0123', '123000', '1e-07', '100')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}g}"
    places = digits - 1 - math.floor(math.log10(abs(float(f"{value:.{digits - 1}e}"))))
    return f"{round(value, places):.{max(places, 0)}f}"


def probability(p: float) -> str:
    """With its sign of equality."""
    return "≤ 0.001" if p <= 0.001 else f"= {p:.2g}" if p < 0.995 else "= 1"


def label(method: str) -> str:
    """As the paper writes it."""
    return {"adamw": "AdamW", **PAPER}.get(method, method)


# ------------------------------------------------------------------------------------------------ all of it


def _headline(found: Statistics, findings: list[Finding]) -> str:
    theirs, n = label(found.baseline), len(found.tasks)
    if not any(o.finished for t in found.tasks.values() for o in [t.outcomes[found.baseline]]):
        return f"{theirs}, the baseline, has no finished run: there is nothing to compare with."
    where = f"on {next(iter(found.tasks))}" if n == 1 else f"on these {n} tasks together"
    parts: list[str] = []
    for outcome, (first, later) in PHRASES.items():
        names = [label(f.method) for f in findings if f.outcome == outcome]
        if names:
            phrase = later if parts else first
            are = "is" if len(names) == 1 else "are"
            parts.append(phrase.format(names=_list(names), are=are, against=f"tuned {theirs} {where}"))
    if not parts:
        return f"There is nothing to compare with {theirs} {where}."
    return f"{'; '.join(parts)}."


def _basis(found: Statistics, seeds: int) -> str:
    kinds = _list(sorted({WORDS[t.criterion] for t in found.tasks.values()}, reverse=True) or ["loss"])
    text = f"What decides: the {kinds} at the end of equal numbers of gradient evaluations, paired by seed. "
    if seeds < 2:
        return text + "One seed has no interval."
    many = f", corrected for {found.family} comparisons by Holm's method" if found.family > 1 else ""
    return (
        f"{text}In brackets: 95 % intervals. p: Student's test of the logarithms of the ratios{many}. "
        f"Target: {label(found.baseline)}'s median final loss."
    )


def _list(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _cautions(results: Results, found: Statistics) -> list[str]:
    made = []
    theirs = label(found.baseline)
    for task in found.tasks.values():
        if task.outcomes[found.baseline].runs and math.isinf(task.target):
            made.append(f"{task.name}: at least half of {theirs}'s runs did not finish, so there is no target.")
        edges = [(label(m), k, side) for m, t in task.trials.items() for k, side in t.edges.items()]
        for side in ("lowest", "highest"):
            at = [f"{m} ({k})" for m, k, s in edges if s == side]
            if at:
                best = f"the best value is the {side} that was tried, for {_list(at)}"
                made.append(f"{task.name}: {best}. A better one may be beyond.")
        if task.criterion != "valid_loss":
            made.append(f"{task.name} has no validation data: the training loss, its objective, stands in.")
    plan, seeds = results.plan, len(results.plan.report_seeds)
    planned = len(plan.tasks) * len(plan.methods) * seeds
    there = sum(len(outcome.runs) for task in found.tasks.values() for outcome in task.outcomes.values())
    if there < planned:
        made.append(f"The comparison is not finished: {there} of its {planned} runs are there.")
    made += _history(results)
    if 1 < seeds < 5:
        made.append(f"{seeds} seeds show large differences only; 5 or more are usual.")
    return made


def _history(results: Results) -> list[str]:
    """What is to be known of a comparison that was extended, or went on with other versions."""
    earlier, seeds = results.environment.get("earlier", []), results.plan.report_seeds
    made = []
    first = [seed for seed in seeds if any(seed in stage["report_seeds"] for stage in earlier)]
    added = [seed for seed in seeds if seed not in first]
    if first and added:
        made.append(
            f"{len(added)} of the {len(seeds)} seeds were added to a comparison on the others. If it was because of "
            f"what that said, p is too low: `superadam report FOLDER --first-seed {min(added)}` has the new ones alone."
        )
    for name in VERSIONS:
        used = dict.fromkeys(e[name] for e in (*earlier, results.environment) if e.get(name))
        if len(used) > 1:
            made.append(f"Runs were made with different versions of {name}: {_list(list(used))}.")
    return made
