"""From the user's options to a plan for all workers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.ablations import ABLATIONS
from superadam_lab.comparison.records import BUDGETS, Plan
from superadam_lab.errors import nearest, place_and
from superadam_lab.methods import by_name as known
from superadam_lab.methods.own import placed, places
from superadam_lab.methods.specs import resolved
from superadam_lab.runs.folders import Config
from superadam_lab.tasks import find, own
from superadam_lab.user_code import sources

__all__ = ["SAMPLERS", "SPACE", "Guard", "named", "plan_of", "unguarded"]

SAMPLERS = ("qmc", "random", "tpe")
SPACE = {"lr": (3e-4, 10.0)}
TUNING_SEEDS = 1000  # from here on; those of the report are from 0 on


class Guard(Protocol):
    """Limits the user's code inside the context. `what` names it; loading a file may take longer than a run."""

    def __call__(self, what: str, *, loading: bool = False) -> AbstractContextManager[None]: ...


def unguarded(what: str, *, loading: bool = False) -> AbstractContextManager[None]:
    """No limit."""
    return nullcontext()


def plan_of(options: Options, guard: Guard = unguarded, own_methods: Mapping[str, str | None] | None = None) -> Plan:
    """The checked plan. The check builds every task and every method once.

    Args:
        options: the user's options.
        guard: limits the user's code.
        own_methods: the `places` of the process that started the comparison; default: this one.
    """
    o, tasks, task_file = options, options.tasks, None
    own_methods = places() if own_methods is None else own_methods
    if o.task_file is not None:
        task_file = str(Path(o.task_file).resolve())
        with guard(task_file, loading=True):
            defined = own.load(task_file)
        tasks = tasks or defined
    if not tasks:
        raise ValueError("No task: expected names of `superadam tasks`, or a task file")
    if o.sampler not in SAMPLERS:
        raise ValueError(f"Unknown sampler {o.sampler!r}: {nearest(o.sampler, SAMPLERS)}")
    for name in o.equal or ():
        if name not in BUDGETS:
            raise ValueError(f"Unknown budget {name!r}: {nearest(name, BUDGETS)}")
    if o.halving is not None and o.sampler == "tpe":
        raise ValueError("--halving needs all trials at once, and the sampler tpe makes one after the other")
    if o.halving is not None and o.halving < 2:
        raise ValueError(f"Invalid halving: {o.halving} (expected 2 or more)")
    for name in ("trials", "seeds", "tuning_seeds"):
        if not 0 < (number := getattr(o, name)) < TUNING_SEEDS:
            raise ValueError(f"Invalid {name}: {number} (expected 1 to {TUNING_SEEDS - 1})")
    if not 0 <= o.first_seed <= TUNING_SEEDS - o.seeds:
        raise ValueError(
            f"Invalid first_seed: {o.first_seed} (expected 0 to {TUNING_SEEDS - o.seeds}; tuning has the rest)"
        )
    chosen = _methods(o, lambda method: placed(resolved(method), own_methods, task_file))
    baseline = next(iter(chosen))
    plan = Plan(
        tasks=list(dict.fromkeys(find(task).name for task in tasks)),
        methods=list(chosen),
        baseline=baseline,
        scale=o.scale,
        trials=o.trials,
        tuning_seeds=[TUNING_SEEDS + i for i in range(o.tuning_seeds)],
        report_seeds=list(range(o.first_seed, o.first_seed + o.seeds)),
        space={name: (float(low), float(high)) for name, (low, high) in {**SPACE, **(o.tune or {})}.items()},
        sampler=o.sampler,
        decay=o.decay,
        data_dir=None if o.data_dir is None else str(Path(o.data_dir).resolve()),
        task_file=task_file,
        task_digest=None if task_file is None else own.digest(task_file),
        device=o.device,
        compositions={name: method for name, method in chosen.items() if name != method},
        spaces={name: space for name, method in chosen.items() if (space := known.space(method))},
        packages=sources(chosen.values()),
        warmup=o.warmup,
        budgets=[name for name in BUDGETS if name in ("gradients", *(o.equal or ()))],
        halving=o.halving,
        run_seconds=o.run_seconds,
        run_memory=o.run_memory,
    )
    for task in plan.tasks:
        plan.sizes[task] = {**find(task).compared.get(o.scale, {}), **(o.sizes or {})}
        plan.budget_evals[task], plan.dimensions[task] = _checked(plan, task, o.budget_evals, guard)
    return plan


def _methods(o: Options, resolve: Callable[[str], str]) -> dict[str, str]:
    """The methods by name, the baseline first. The baseline is a method, or the name given to one of the methods."""
    methods = list(o.methods) if o.methods is not None else ["paper"]
    given = {named(text)[0]: text for text in reversed(methods) if text != "paper"}
    baseline = given.get(o.baseline.strip(), o.baseline)
    known.parse(resolve(named(baseline)[1]), names=given)
    chosen: dict[str, str] = {}
    for text in [baseline, *methods]:
        for name, method in {m: m for m in known.PAPER}.items() if text == "paper" else [named(text)]:
            method = resolve(method)
            if chosen.get(name, method) != method:
                raise ValueError(f"Two methods of the name {name!r}: {chosen[name]} and {method}")
            known.parse(method)
            chosen[name] = method
    shown: dict[str, str] = {}
    for name in chosen:
        if (other := shown.setdefault(known.label(name), name)) != name:
            raise ValueError(
                f"Tables would write both {other!r} and {name!r} as {known.label(name)!r}: give one another name, "
                f"or drop one (--baseline {name!r} is the method of that name)"
            )
    return chosen | (ABLATIONS if o.ablations else {})


def named(text: str) -> tuple[str, str]:
    """The name of a method, and the method. Without a given name, the method is its own name.

    >>> named("mine: super_adam tau=0.5"), named('adam schedule={"type": "Constant"}')[0]
    (('mine', 'super_adam tau=0.5'), 'adam schedule={"type": "Constant"}')
    """
    found = re.match(r'([^{\["]+?):\s+(.+)', text.strip(), flags=re.S)
    return (found[1].strip(), found[2].strip()) if found else (text.strip(), text.strip())


def _checked(plan: Plan, task: str, budget: int | None, guard: Guard) -> tuple[int, dict[str, int]]:
    """The gradient evaluations of a run, and the sizes of the task. Raises an error for a task or method that cannot be
    built, before any run starts."""
    found, sizes = find(task), plan.sizes[task]
    with guard(f"{task}, the first gradient"):
        workload = found.workload(plan.scale, 0, plan.data_dir, sizes)
        try:
            workload.loss(next(iter(workload.batches(0))))[0].backward()  # type: ignore[no-untyped-call]
        except (Exception, SystemExit) as error:
            why = place_and(error) or str(error)
            raise ValueError(f"{task}: the gradient of a batch cannot be taken: {why}") from error
    for name in plan.methods:
        method, space = plan.compositions.get(name, name), plan.space_of(name)
        tried = {key: low for key, (low, _) in space.items()}
        for key in known.parse(method)[1].keys() & space.keys():
            raise ValueError(
                f"{name}: {key} is tuned, for all methods alike; leave it out, or give bounds, {key}=low:high"
            )
        try:
            Config(task, method, decay=known.decay(method) or plan.decay, warmup=plan.warmup)
            with guard(f"{task} with {name}, the optimizer"):
                known.make(found, workload, method, "lab", tried)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{task} with {name}: {place_and(error) or error}") from error
    return budget or found.sizes(plan.scale, sizes)["epochs"] * workload.length, workload.dimensions()
