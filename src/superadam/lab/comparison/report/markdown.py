"""The report in short, for a repository or an issue."""

from __future__ import annotations

import math

from superadam.lab.comparison.records import Results
from superadam.lab.comparison.report import facts
from superadam.lab.comparison.statistics import Statistics, TaskStatistics
from superadam.lab.comparison.verdict import Finding, Verdict, label

__all__ = ["markdown"]


def markdown(results: Results, found: Statistics, words: Verdict) -> str:
    """As text."""
    parts = [f"# {_plain(facts.title(results))}", _plain(facts.subtitle(results)), f"**{_plain(words.headline)}**"]
    parts += [_plain(words.basis), *_groups(words, words.findings)]
    parts += [f"> {_plain(caution)}" for caution in words.cautions]
    for name, task in found.tasks.items():
        parts.append(f"## {_plain(name)}")
        if len(words.tasks) > 1:
            parts += _groups(words, words.tasks[name])
        parts.append(_table(found, task))
    if found.ranks.means:
        ranks = sorted(found.ranks.means.items(), key=lambda pair: pair[1])
        parts.append("Mean ranks: " + ", ".join(f"{_plain(label(m))} {rank:.2f}" for m, rank in ranks) + ".")
    parts += ["## How it was made", f"    {results.environment.get('command', '')}"]
    parts.append("\n".join(f"- {k}: {_plain(v)}" for k, v in facts.made(results).items()))
    parts += ["## How to read it", *map(_plain, facts.reading(found))]
    return "\n\n".join(parts) + "\n"


def _groups(words: Verdict, findings: list[Finding]) -> list[str]:
    made = []
    for _, heading, group in words.groups(findings):
        items = "\n".join(f"- **{_plain(label(f.method))}**: {_plain(f.text)}" for f in group)
        made.append(f"{_plain(heading)}:\n\n{items}")
    return made


def _table(found: Statistics, task: TaskStatistics) -> str:
    against = [head.format(label(found.baseline)) for head in facts.AGAINST]
    heads = ["method", *map(facts.column, task.names), *against, "finished", "chosen"]
    rows = [heads, ["---"] * len(heads)]
    for line in facts.lines(found, task):
        cells = [*line.end, *line.against, facts.Cell(line.runs), line.chosen]
        rows.append([label(line.method), *(f"{c.text} ({c.small})" if c.small else c.text for c in cells)])
    target = f"Target: {task.target:.4g}. " if math.isfinite(task.target) else ""
    table = "\n".join("| " + " | ".join(_plain(cell) for cell in row) + " |" for row in rows)
    return f"{target}At the end of the runs, geometric means (of accuracies, means) with 95 % intervals:\n\n{table}"


def _plain(text: str) -> str:
    """No markup by accident: a method may have any characters in its options."""
    for character in "\\|<>*_`[]":
        text = text.replace(character, "\\" + character)
    return text
