"""A self-contained HTML file: Python writes text and tables, and page.js draws charts in the browser."""

from __future__ import annotations

import json
import math
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from superadam_lab.comparison.records import Results
from superadam_lab.comparison.report import facts, paper
from superadam_lab.comparison.statistics.analysis import Comparison, Ratio, Statistics, TaskStatistics
from superadam_lab.comparison.verdict.words import Finding, Verdict, interval, label

__all__ = ["json_of", "page", "shared"]


def page(results: Results, found: Statistics, words: Verdict) -> str:
    """The page."""
    ours = files("superadam_lab.comparison.report")
    parts = {name: (ours / f"page.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")}
    return Template(parts["html"]).substitute(
        title=escape(facts.title(results)),
        subtitle=escape(facts.subtitle(results)),
        baseline=escape(label(found.baseline)),
        style=parts["css"],
        script=parts["js"],
        **shared(),
        paragraph=escape(paper.paragraph(results, found)),
        citation=escape(paper.citation(results)),
        verdict=_verdict(words),
        tables="\n".join(_table(found, task) for task in found.tasks.values()) + _ranks(found),
        made=_made(results),
        reading="\n".join(f"<p>{escape(text)}</p>" for text in facts.reading(found)),
        data=json_of(_data(results, found)),
    )


def shared() -> dict[str, str]:
    """The scripts that the leaderboard uses, too."""
    ours = files("superadam_lab.comparison.report")
    return {name: (ours / f"{name}.js").read_text(encoding="utf-8") for name in ("charts", "exports")}


def json_of(content: Any) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


# ------------------------------------------------------------------------------------------------ words and tables


def _verdict(words: Verdict) -> str:
    kind = "headline" if words.decided else "headline undecided"
    parts = [f'<p class="{kind}">{escape(words.headline)}</p>']
    parts += [f'<p class="undecided">{escape(words.undecided)}</p>'] if words.undecided else []
    parts.append(_groups(words, words.findings))
    if len(words.tasks) > 1:
        for task, findings in words.tasks.items():
            parts.append(f"<details><summary>On {escape(task)} alone</summary>{_groups(words, findings)}</details>")
    for budget, findings in words.budgets.items():
        said = f'<p class="quiet">{escape(facts.EQUAL[budget])}</p>{_groups(words, findings)}'
        parts.append(f"<details><summary>With equal {budget}</summary>{said}</details>")
    parts += [f'<p class="quiet">{escape(text)}</p>' for text in (words.basis, words.power) if text]
    parts += [f'<p class="caution">{escape(caution)}</p>' for caution in words.cautions]
    return "\n".join(parts)


def _groups(words: Verdict, findings: list[Finding]) -> str:
    made = []
    for outcome, heading, group in words.groups(findings):
        items = "".join(f"<li><strong>{escape(label(f.method))}</strong>: {escape(f.text)}</li>" for f in group)
        made.append(f'<h3 class="{outcome}">{escape(heading)}</h3><ul>{items}</ul>')
    return "\n".join(made)


def _table(found: Statistics, task: TaskStatistics) -> str:
    names = [facts.column(name) for name in task.names]
    heads = ["method", *names, *facts.against(found, task), "finished", "tuned options"]
    rows = []
    for line in facts.lines(found, task):
        cells = [_td(c, "at-end") for c in line.end] + [_td(c, "at-best") for c in line.best]
        cells += [_td(c, "wraps" if i == 0 else "") for i, c in enumerate(line.against)]
        cells += [f"<td>{escape(line.runs)}</td>", _td(line.chosen, "wraps")]
        kind = ' class="baseline"' if line.method == found.baseline else ""
        rows.append(f'<tr{kind}><th scope="row">{escape(label(line.method))}</th>{"".join(cells)}</tr>')
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in heads)
    target = f"Target: {task.target:.4g}." if math.isfinite(task.target) else "No target."
    means = "Geometric means over seeds (arithmetic means of accuracies), with 95 % intervals below."
    return (
        f'<h3>{escape(task.name)}</h3><p class="quiet">{target} {means}</p>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="Numbers of {escape(task.name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _td(cell: facts.Cell, kind: str = "") -> str:
    small = f"<small>{escape(cell.small)}</small>".replace(" %", "&nbsp;%") if cell.small else ""
    return f'<td class="{kind}">{escape(cell.text)}{small}</td>'


def _ranks(found: Statistics) -> str:
    if not found.ranks.means:
        return ""
    order = sorted(found.ranks.means.items(), key=lambda pair: pair[1])
    rows = "".join(f'<tr><th scope="row">{escape(label(m))}</th><td>{rank:.2f}</td></tr>' for m, rank in order)
    return (
        '<h3>Mean ranks</h3><div class="scroll"><table><thead><tr><th scope="col">method</th>'
        f'<th scope="col">mean rank of the final loss</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _made(results: Results) -> str:
    command = results.environment.get("command")
    shown = f"<pre><code>{escape(str(command))}</code></pre>" if command else ""
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.made(results).items())
    return f"{shown}<dl>{items}</dl>"


# ------------------------------------------------------------------------------------------------ what is drawn


def _data(results: Results, found: Statistics) -> dict[str, Any]:
    groups = [("all tasks", found.overall)] if found.overall else []
    groups += [(name, task.comparisons) for name, task in found.tasks.items()]
    return {
        "methods": [{"id": m, "label": label(m)} for m in found.methods],
        "space": list(dict.fromkeys(key for m in found.methods for key in results.plan.space_of(m))),
        "tasks": [_task(found, task) for task in found.tasks.values()],
        "ratios": [{"name": name, "rows": _rows(found, comparisons)} for name, comparisons in groups],
        "profiles": {
            axis: [[_number(v) for v in ratios[m]] for m in found.methods] for axis, ratios in found.profiles.items()
        },
    }


def _task(found: Statistics, task: TaskStatistics) -> dict[str, Any]:
    trials = [task.trials[m] for m in found.methods]
    return {
        "name": task.name,
        "columns": task.names,
        "measure": task.criterion,
        "target": _number(task.target),
        "curves": [task.outcomes[m].curves() for m in found.methods],
        "trials": [{"points": [[o, _number(loss)] for o, loss in t.points], "best": t.best} for t in trials],
    }


def _rows(found: Statistics, comparisons: dict[str, Comparison]) -> list[dict[str, Any]]:
    rows = []
    for m, c in comparisons.items():
        row: dict[str, Any] = {"method": found.methods.index(m)}
        if c.relative and c.finals.n:
            row["finals"] = {"estimate": _ends(c.finals[:3]), "text": interval(c.finals)}
        for axis, ratio in c.times.items():
            row[axis] = {"estimate": _ends(ratio.estimate[:3]), "text": _reached(ratio)}
        rows.append(row)
    return rows


def _reached(ratio: Ratio) -> str:
    missed = "" if ratio.reached == ratio.runs else f", {ratio.reached} of {ratio.runs}"
    return f"{interval(ratio.estimate)}{missed}"


def _ends(values: tuple[float, ...]) -> list[float | str | None]:
    return ["inf" if v == math.inf else _number(v) for v in values]


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
