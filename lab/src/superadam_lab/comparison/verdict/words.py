"""The statistics of a comparison, in words."""

from __future__ import annotations

import dataclasses
import math
import re

from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics import power
from superadam_lab.comparison.statistics.analysis import Comparison, Ratio, Statistics, analyse
from superadam_lab.comparison.statistics.intervals import Estimate
from superadam_lab.comparison.verdict.cautions import cautions_of, count, listed
from superadam_lab.comparison.verdict.judging import OUTCOMES, Judgement, judged
from superadam_lab.methods.by_name import label

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

PHRASES = {
    "better": ("{names} {are} better than {against}", "{names} {are} better"),
    "worse": ("{names} {are} worse than {against}", "{names} {are} worse"),
    "lost": (
        "{names} had more diverged or failed runs than {against}",
        "{names} had more diverged or failed runs",
    ),
    "same": ("No significant difference from {against} for {names}", "no significant difference for {names}"),
}
"""Parts of the headline. The first part names the baseline and the tasks."""
MOST_NEEDS = 3  # that the headline repeats
WORDS = {"valid_loss": "validation loss", "train_loss": "training loss"}


@dataclasses.dataclass
class Finding:
    """A method against the baseline."""

    method: str
    outcome: str
    """One of `judging.OUTCOMES`."""
    text: str
    """By how much, and how sure; and what would be enough to tell, if this is not."""


@dataclasses.dataclass
class Verdict:
    """The verdict of a comparison. `text` is for a terminal."""

    headline: str
    """What the runs can tell, in one sentence. If that is nothing, `decided` is False, and reports print it plainly."""
    findings: list[Finding]
    """Over all tasks; those of the one task if there is only one."""
    tasks: dict[str, list[Finding]]
    headings: dict[str, str]
    """The heading above the findings of each outcome."""
    basis: str
    """What was compared, and how."""
    cautions: list[str]
    budgets: dict[str, list[Finding]] = dataclasses.field(default_factory=dict)
    """The findings with equal epochs or equal seconds instead of equal gradients, by what is equal."""
    power: str = ""
    """How small a difference the runs could detect."""
    undecided: str = ""
    """For which methods the runs are not enough to tell, and what would be; empty if the headline says it."""
    decided: bool = True
    """Whether the headline is a verdict on some method."""
    short: str = ""
    """The verdict in at most 14 lines: who is better, a table, what could not be told."""

    @property
    def text(self) -> str:
        lines = [text for text in (self.headline, self.undecided, self.basis, self.power) if text]
        lines += ["", *self._lines(self.findings)]
        if len(self.tasks) > 1:
            for task, findings in self.tasks.items():
                lines += ["", f"On {task} alone", *self._lines(findings)]
        for budget, findings in self.budgets.items():
            lines += ["", f"With equal {budget} (separate runs)", *self._lines(findings)]
        if self.cautions:
            lines += ["", *(f"Note: {caution}" for caution in self.cautions)]
        return "\n".join(lines)

    def groups(self, findings: list[Finding]) -> list[tuple[str, str, list[Finding]]]:
        """Outcome, heading and findings, for each outcome that occurs."""
        every = [(k, heading, [f for f in findings if f.outcome == k]) for k, heading in self.headings.items()]
        return [group for group in every if group[2]]

    def _lines(self, findings: list[Finding]) -> list[str]:
        lines = []
        width = max((len(label(f.method)) for f in findings), default=0)
        for _, heading, group in self.groups(findings):
            lines += [f"{heading}:", *(f"  {label(f.method):{width}}  {f.text}" for f in group)]
        return lines


def verdict(results: Results, found: Statistics | None = None) -> Verdict:
    """The verdict in words. Pass the statistics if they are already computed."""
    found = found or analyse(results)
    said = judged(found)
    tasks = {name: _findings(found, task.comparisons, said[name]) for name, task in found.tasks.items()}
    findings = _findings(found, found.overall, said[None]) if len(tasks) > 1 else next(iter(tasks.values()), [])
    n = len(results.plan.report_seeds)
    theirs = label(found.baseline)
    headings = {
        "better": f"Better than {theirs}",
        "worse": f"Worse than {theirs}",
        "insufficient": "Not enough to tell",
        "lost": f"More diverged or failed runs than {theirs}, no other significant difference",
        "same": f"No significant difference from {theirs} ({count(n, 'seed')})",
        "shown": f"Against {theirs} on this task, each interval by itself; --per-task asks for verdicts",
        "none": f"Not compared: no runs with the same seeds as {theirs}",
    }
    if not all(c.relative for task in found.tasks.values() for c in task.comparisons.values()) and len(tasks) > 1:
        headings["none"] = "Not compared on all tasks together: losses that are not positive have no ratio"
    budgets = {str(b): verdict(results.under(b)).findings for b in results.budgets if b != "gradients"}
    cautions = cautions_of(results, found)
    least = power.shown(found)
    headline, undecided = _headline(found, findings), _undecided(found, findings, said[_place(found)])
    return Verdict(
        headline or undecided or f"There is nothing to compare with {theirs} {_where(found)}.",
        findings,
        tasks,
        headings,
        _basis(found, n),
        cautions,
        budgets,
        power.statement(least, n, list(found.tasks), results.plan.forecast),
        undecided if headline else "",
        bool(headline),
        _short(found, findings, said[_place(found)], least, n),
    )


def _findings(found: Statistics, comparisons: dict[str, Comparison], judgements: dict[str, Judgement]) -> list[Finding]:
    """Better methods first, then in the order of `OUTCOMES`; within one outcome, the lowest loss first."""
    made = []
    for m, (outcome, needs) in judgements.items():
        c = comparisons.get(m)
        key = (OUTCOMES.index(outcome), c.finals.value if c and not math.isnan(c.finals.value) else math.inf)
        text = "no runs" if c is None or c.n == 0 else "; ".join(_parts(c, label(found.baseline)))
        enough = f". Needed to tell: {listed(list(needs))}" if needs else ""
        made.append((key, Finding(m, outcome, text + enough)))
    return [finding for _, finding in sorted(made, key=lambda pair: pair[0])]


def _parts(c: Comparison, theirs: str) -> list[str]:
    parts = [f"final loss {losses(c)}" if c.finals.n else "no seed on which both runs finished"]
    if not math.isnan(c.p):
        parts.append(f"p {probability(c.p)}")
    if c.lost or c.lost_baseline:
        parts.append(f"{c.lost} of {count(c.n, 'run')} diverged or failed ({theirs}: {c.lost_baseline})")
    if "gradient_evaluations" in c.times:
        parts.append(_reach(c.times["gradient_evaluations"], theirs))
    return parts


def losses(c: Comparison) -> str:
    """How final losses differ: 12 % lower (8 % to 16 % lower). Losses that are not positive have a difference."""
    e = c.finals
    if not c.relative:
        return f"difference {figure(e.value)}" + (
            "" if math.isnan(e.low) else f" ({figure(e.low)} to {figure(e.high)})"
        )
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
        return f"{interval(ratio.estimate)} times the evaluations to reach the target"
    return f"target reached by {ratio.reached} of {count(ratio.runs, 'run')} ({theirs}: {ratio.reached_baseline})"


def multiple(ratio: float, decimals: int = 2) -> str:
    """A ratio, by default rounded to hundredths if that is readable.

    >>> multiple(0.512), multiple(12.34), multiple(math.inf), multiple(math.nan)
    ('0.51', '12.3', '∞', '–')
    """
    if not math.isfinite(ratio):
        return "–" if math.isnan(ratio) else "∞"
    return f"{ratio:.{decimals}f}" if 0.1 <= ratio < 10 else figure(ratio)


def figure(value: float, digits: int = 3) -> str:
    """A number with this many digits, without an exponent if that is readable.

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
    """A p-value with its sign: = or ≤."""
    return "≤ 0.001" if p <= 0.001 else f"= {p:.2g}" if p < 0.995 else "= 1"


# ------------------------------------------------------------------------------------------------ all of it


def _place(found: Statistics) -> str | None:
    """Where the headline's findings are from: the only task, or all of them."""
    return next(iter(found.tasks)) if len(found.tasks) == 1 else None


def _where(found: Statistics) -> str:
    return f"on {power.where(list(found.tasks))}"


def _headline(found: Statistics, findings: list[Finding]) -> str:
    """The headline; empty if there is no verdict on any method."""
    theirs = label(found.baseline)
    if found.tasks and not any(t.outcomes[found.baseline].finished for t in found.tasks.values()):
        return ""
    parts: list[str] = []
    for outcome, (first, later) in PHRASES.items():
        names = [label(f.method) for f in findings if f.outcome == outcome]
        if names:
            phrase = later if parts else first
            are, differ = ("is", "differs") if len(names) == 1 else ("are", "differ")
            against = f"tuned {theirs} {_where(found)}"
            parts.append(phrase.format(names=listed(names), are=are, differ=differ, against=against))
    return f"{'; '.join(parts)}." if parts else ""


VERDICTS = {
    "better": "better",
    "worse": "worse",
    "insufficient": "not enough to tell",
    "lost": "more runs lost",
    "same": "no significant difference",
    "none": "not compared",
}
ROWS, NAMES = 10, 5  # of the short table; of a list in a line


def _short(
    found: Statistics, findings: list[Finding], judgements: dict[str, Judgement], least: float, seeds: int
) -> str:
    """The verdict for a terminal."""
    better = [label(f.method) for f in findings if f.outcome == "better"]
    against = f"better than tuned {label(found.baseline)} {_where(found)} ({count(seeds, 'seed')})."
    are = "is" if len(better) == 1 else "are"
    lines = [f"{_few(better)} {are} {against}" if better else f"No method is shown to be {against}"]
    rows = [["method", "final loss", "95 % interval", "p", "verdict"]]
    rows += [_row(finding, found.verdict.get(finding.method)) for finding in findings]
    shown = rows if len(rows) <= ROWS + 1 else rows[:ROWS]
    widths = [max(len(row[i]) for row in shown) for i in range(4)]
    for row in shown:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip())
    if len(shown) < len(rows):
        lines.append(f"… and {len(rows) - len(shown)} more: in the report")
    needs: dict[str, list[str]] = {}
    for m, judgement in judgements.items():
        for need in judgement.needs:
            own = re.sub(rf" for {re.escape(label(m))}(?=$| on )", "", need)  # Adam, but not AdamW
            needs.setdefault(own, []).append(label(m))
    if needs:
        said = [f"{_few(names)}: {need}" for need, names in needs.items()]
        more = f"; {len(said) - MOST_NEEDS} more in the report" if len(said) > MOST_NEEDS else ""
        lines.append(f"Not enough to tell. Needed for {'; for '.join(said[:MOST_NEEDS])}{more}.")
    if math.isfinite(least):
        lines.append(f"Differences below {power.percent(least)} are often missed with {count(seeds, 'seed')}.")
    return "\n".join(lines)


def _row(finding: Finding, c: Comparison | None) -> list[str]:
    value, _, ends = losses(c).partition(" (") if c is not None and c.finals.n else ("no finished pair", "", "")
    p = probability(c.p).removeprefix("= ") if c is not None and c.judged else ""
    return [label(finding.method), value, ends.rstrip(")"), p, VERDICTS[finding.outcome]]


def _few(names: list[str]) -> str:
    return listed(names) if len(names) <= NAMES else f"{', '.join(names[:NAMES])} and {len(names) - NAMES} more"


def _undecided(found: Statistics, findings: list[Finding], judgements: dict[str, Judgement]) -> str:
    theirs = label(found.baseline)
    if not any(t.outcomes[found.baseline].finished for t in found.tasks.values()):
        return f"{theirs}, the baseline, has no finished run: there is nothing to compare with."
    methods = [f.method for f in findings if f.outcome == "insufficient"]
    if not methods:
        return ""
    needs = list(dict.fromkeys(need for m in methods for need in judgements[m].needs))
    enough = listed(needs) if len(needs) <= MOST_NEEDS else "see the list below"
    names, are = listed([label(m) for m in methods]), "is" if len(methods) == 1 else "are"
    whether = f"whether {names} {are} better or worse than tuned {theirs} {_where(found)}"
    return f"Not enough to tell {whether}. Needed: {enough}."


def _basis(found: Statistics, seeds: int) -> str:
    kinds = listed(sorted({WORDS[t.criterion] for t in found.tasks.values()}, reverse=True) or ["loss"])
    text = f"Criterion: the {kinds} after an equal number of gradient evaluations, paired by seed. "
    if seeds < 2:
        return text + "One seed gives no interval."
    many = f" hold for all {found.family} comparisons at once and" if found.family > 1 else ""
    return (
        f"{text}In brackets: 95 % intervals, which{many} include the noise of tuning. An interval without 0 % and p "
        "below 0.05 are the same. "
        f"Target: {label(found.baseline)}'s median final loss."
    )
