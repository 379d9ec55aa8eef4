"""The report as Markdown, for a repository or an issue."""

from __future__ import annotations

import math
import re

from superadam_lab.comparison.records import Results
from superadam_lab.comparison.report import facts, paper
from superadam_lab.comparison.statistics.analysis import Statistics, TaskStatistics
from superadam_lab.comparison.verdict.words import Finding, Verdict, label
from superadam_lab.errors import printable

__all__ = ["markdown"]


def markdown(results: Results, found: Statistics, words: Verdict) -> str:
    """The report as Markdown."""
    headline = _plain(words.headline)
    parts = [f"# {_plain(facts.title(results))}", _plain(facts.subtitle(results))]
    parts.append(f"**{headline}**" if words.decided else _block(words.headline))
    parts += [_block(text) for text in (words.undecided, words.basis, words.power) if text]
    parts += _groups(words, words.findings)
    parts += [f"> {_block(caution)}" for caution in words.cautions]
    for name, task in found.tasks.items():
        parts.append(f"## {_plain(name)}")
        if len(words.tasks) > 1:
            parts += _groups(words, words.tasks[name])
        parts.append(_table(found, task))
    for budget, findings in words.budgets.items():
        parts += [f"## With equal {budget}", _plain(facts.EQUAL[budget]), *_groups(words, findings)]
    if found.ranks.means:
        ranks = sorted(found.ranks.means.items(), key=lambda pair: pair[1])
        parts.append("Mean ranks: " + ", ".join(f"{_plain(label(m))} {rank:.2f}" for m, rank in ranks) + ".")
    parts += ["## How the runs were made", f"    {printable(str(results.environment.get('command', '')))}"]
    parts.append("\n".join(f"- {_plain(k)}: {_plain(v)}" for k, v in facts.made(results).items()))
    parts += ["## For a paper", _plain(paper.paragraph(results, found)), f"```bibtex\n{paper.citation(results)}\n```"]
    parts += ["## How to read this report", *map(_plain, facts.reading(found))]
    return "\n\n".join(parts) + "\n"


def _groups(words: Verdict, findings: list[Finding]) -> list[str]:
    made = []
    for _, heading, group in words.groups(findings):
        items = "\n".join(f"- **{_plain(label(f.method))}**: {_plain(f.text)}" for f in group)
        made.append(f"{_block(heading)}:\n\n{items}")
    return made


def _table(found: Statistics, task: TaskStatistics) -> str:
    heads = ["method", *map(facts.column, task.names), *facts.against(found, task), "finished", "tuned options"]
    rows = [heads, ["---"] * len(heads)]
    for line in facts.lines(found, task):
        cells = [*line.end, *line.against, facts.Cell(line.runs), line.chosen]
        rows.append([label(line.method), *(f"{c.text} ({c.small})" if c.small else c.text for c in cells)])
    target = f"Target: {task.target:.4g}. " if math.isfinite(task.target) else ""
    table = "\n".join("| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows)
    means = "Geometric means over seeds at the end of the runs (arithmetic means of accuracies), with 95 % intervals:"
    return f"{target}{means}\n\n{table}"


def _plain(text: str) -> str:
    """Escape markup and line breaks, because the options of a method may contain any characters."""
    return re.sub(r"([\\|<>*_`\[\]#~&$])", r"\\\1", printable(text))


def _block(text: str) -> str:
    """Escape a text that begins a line, where a dash or a number would begin a list."""
    return re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", _plain(text))
