"""Several comparisons as one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from superadam import zoo
from superadam_lab.comparison.plan.budgets import kept, rungs
from superadam_lab.comparison.records import Plan, Record, Results
from superadam_lab.methods.specs import read

__all__ = ["merged"]

RULES = ("scale", "trials", "tuning_seeds", "decay", "warmup", "sampler", "halving", "space", "device", "baseline")
"""What must be the same for a task of two comparisons to be one task."""
CODE = {"superadam": "superadam", "code": "the code of superadam", "torch": "torch"}
"""What of an environment is named, and how."""

Names = dict[tuple[str, str], str]
"""By folder and name there, the name in the whole."""


def merged(found: Mapping[str, Results]) -> Results:
    """One study of all tasks and methods of some comparisons, given by their folder names.

    If two comparisons use different rules for a task, it counts as two tasks. If a name means two methods, they count
    as two; the later one has its folder after its name. If several comparisons ran a method on the same task, the one
    with the most seeds counts; the others add seeds if their tuning chose the same options. The environment of the
    result has "made" (how each task was run), "days", and "notes" for the reader.
    """
    if not found:
        raise ValueError("No comparison given: expected folders that `superadam compare` made")
    baseline = _baseline(found)
    tasks = _told_apart((f, t, _rules(r.plan, t)) for f, r in found.items() for t in r.plan.tasks)
    methods = _told_apart((f, m, _identity(r.plan, m)) for f, r in found.items() for m in r.plan.methods)
    notes = _methods_of_one_name(found, methods)
    records: list[Record] = []
    made: dict[str, str] = {}
    for task in dict.fromkeys(tasks.values()):
        here = {f: (found[f], t) for (f, t), name in tasks.items() if name == task}
        made[task] = _made(here)
        notes += _versions_that_differ(task, here)
        for method in dict.fromkeys(methods.values()):
            runs = {f: _runs(r, t, f, method, methods) for f, (r, t) in here.items()}
            chosen, left_out = _one_set({f: of for f, of in runs.items() if of})
            records += [dataclasses.replace(r, task=task, method=method) for r in chosen]
            notes += [f"{task}: {f} tuned {method} to other options, and its runs are left out" for f in left_out]
    plans = [results.plan for results in found.values()]
    plan = Plan(
        list(made),
        list(dict.fromkeys(methods.values())),
        baseline,
        tuning_seeds=min((p.tuning_seeds for p in plans), key=len),
        report_seeds=sorted({seed for p in plans for seed in p.report_seeds}),
        space={key: bounds for p in plans for key, bounds in p.space.items()},
        compositions={name: text for (f, m), name in methods.items() if (text := _text(found[f].plan, m)) != name},
        spaces={name: space for (f, m), name in methods.items() if (space := found[f].plan.spaces.get(m))},
    )
    began = (str(results.environment.get("began", ""))[:10] for results in found.values())
    return Results(plan, {"made": made, "days": sorted({day for day in began if day}), "notes": notes}, records)


# ------------------------------------------------------------------------------------------------ what is the same


def _told_apart(given: Iterable[tuple[str, str, Any]]) -> Names:
    """If a name has a second meaning, add the folder in which that meaning first occurs."""
    names: Names = {}
    meanings: dict[str, list[tuple[Any, str]]] = {}
    for folder, name, meaning in given:
        known = meanings.setdefault(name, [])
        if all(meaning != other for other, _ in known):
            known.append((meaning, f"{name} ({folder})" if known else name))
        names[folder, name] = next(said for other, said in known if meaning == other)
    return names


def _rules(plan: Plan, task: str) -> tuple[Any, ...]:
    shared = tuple(repr(getattr(plan, name)) for name in RULES)
    return *shared, plan.budget_evals.get(task), repr(plan.sizes.get(task)), plan.task_digest


def _identity(plan: Plan, method: str) -> tuple[Any, ...]:
    """The identity of a method: its composition (files by their content, not by their path) and its own space."""
    text = _text(plan, method)
    specs = read(text)
    for source, content in plan.packages.items():
        if source.endswith(".py"):
            text = text.replace(source, content)
    of_task_file = any(not spec.foreign and spec.target not in zoo.METHODS for spec in specs)
    space = {key: tuple(bounds) for key, bounds in plan.spaces.get(method, {}).items()}
    return text, space, plan.task_digest if of_task_file else None


def _baseline(found: Mapping[str, Results]) -> str:
    plans = [results.plan for results in found.values()]
    first = plans[0].baseline
    if any(p.baseline != first or _identity(p, first) != _identity(plans[0], first) for p in plans):
        same_names = len({p.baseline for p in plans}) == 1
        shown = sorted({_in_words(p, p.baseline) if same_names else p.baseline for p in plans})
        raise ValueError(f"The comparisons have different baselines ({', '.join(shown)}): expected one baseline in all")
    return first


def _text(plan: Plan, method: str) -> str:
    return plan.compositions.get(method, method)


def _in_words(plan: Plan, method: str) -> str:
    """Everything that `_identity` distinguishes, in words."""
    text, space, task_digest = _identity(plan, method)
    tuned = [f"{key} from {low:g} to {high:g}" for key, (low, high) in space.items()]
    return ", ".join([text, *tuned, *([f"of the task file {task_digest}"] if task_digest else [])])


# ------------------------------------------------------------------------------------------------ one set of runs


def _runs(results: Results, task: str, folder: str, method: str, methods: Names) -> list[Record]:
    return [
        r
        for r in results.records
        if r.task == task and r.budget == "gradients" and methods.get((folder, r.method)) == method
    ]


def _one_set(found: dict[str, list[Record]]) -> tuple[list[Record], list[str]]:
    """The runs of a method on a task, one for each trial and each seed, and the folders whose runs do not count."""
    report = {f: {r.seed: r for r in runs if r.phase == "report"} for f, runs in found.items()}
    order = sorted(found, key=lambda f: -len(report[f]))  # of equals, the first
    if not order:
        return [], []
    first, *others = order
    seeds, left_out = dict(report[first]), []
    for folder in others:
        options = [r.options for r in (*seeds.values(), *report[folder].values())]
        if all(of == options[0] for of in options):
            seeds = {**report[folder], **seeds}
        else:
            left_out.append(folder)
    return [*(r for r in found[first] if r.phase == "tune"), *(seeds[s] for s in sorted(seeds))], left_out


# ------------------------------------------------------------------------------------------------ in words


def _made(here: dict[str, tuple[Results, str]]) -> str:
    """How a task was run, from the comparisons that have it."""
    results, task = next(iter(here.values()))
    plan = results.plan
    evaluations = plan.budget_evals.get(task)
    seeds = {seed for r, _ in here.values() for seed in r.plan.report_seeds}
    began = sorted({str(r.environment.get("began", ""))[:10] for r, _ in here.values()} - {""})
    parts = [
        f"{plan.scale} scale",
        f"{plan.trials} trials{_whole(plan, task)}",
        f"{len(seeds)} seeds",
        f"{evaluations} gradient evaluations" if evaluations else "",
        f"{plan.decay} decay",
        *(f"{name} {_listed(used)}" for name, used in _versions(here).items() if name in ("superadam", "torch")),
        _listed(began),
    ]
    return ", ".join(part for part in parts if part)


def _versions(here: dict[str, tuple[Results, str]]) -> dict[str, dict[str, list[str]]]:
    """The versions used, by package, each with its folders."""
    found: dict[str, dict[str, list[str]]] = {}
    for folder, (results, _) in here.items():
        stages = [results.environment, *results.environment.get("earlier", [])]
        used = [(said, str(e[key])) for key, said in CODE.items() for e in stages if e.get(key)]
        used += [(name, text) for name, text in results.plan.packages.items() if not name.endswith(".py")]
        for name, version in dict.fromkeys(used):
            found.setdefault(name, {}).setdefault(version, []).append(folder)
    return found


def _methods_of_one_name(found: Mapping[str, Results], methods: Names) -> list[str]:
    notes = []
    for (folder, m), name in methods.items():
        if name == f"{m} ({folder})":
            first = next(f for f, there in methods if there == m)
            what, other = (_in_words(found[f].plan, m) for f in (first, folder))
            notes.append(f"{m} is {what} in {first}, and {other} in {folder}: that one is called {name} here")
    return notes


def _versions_that_differ(task: str, here: dict[str, tuple[Results, str]]) -> list[str]:
    return [
        f"{task}: runs were made with different versions of {name}: "
        + _listed([f"{version} ({', '.join(folders)})" for version, folders in used.items()])
        for name, used in _versions(here).items()
        if len(used) > 1
    ]


def _listed(words: Iterable[str]) -> str:
    *others, last = ["", *words]
    return " and ".join(part for part in (", ".join(others[1:]), last) if part)


def _whole(plan: Plan, task: str) -> str:
    """The number of trials that finished, if not all did."""
    trials = plan.trials
    for amount in rungs(plan, task) if plan.halving else ():
        trials = trials if amount is None else kept(plan, trials)
    return f" ({trials} at full length)" if trials < plan.trials else ""
