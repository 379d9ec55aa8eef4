"""From what a user asks for to a plan that every worker understands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from superadam._state.parts import nearest
from superadam.lab import methods as known
from superadam.lab import own
from superadam.lab.comparison.ablations import ABLATIONS
from superadam.lab.comparison.options import Options
from superadam.lab.comparison.records import Plan
from superadam.lab.errors import place_and
from superadam.lab.folders import Config
from superadam.lab.tasks import find

__all__ = ["BASELINE", "SAMPLERS", "SPACE", "named", "plan_of"]

BASELINE = "adamw"
SAMPLERS = ("qmc", "random", "tpe")
SPACE = {"lr": (3e-4, 10.0)}
TUNING_SEEDS = 1000  # from here on; those of the report are from 0 on


def plan_of(options: Options) -> Plan:
    """The plan, checked: every task and every method has been made once."""
    o, tasks, task_file = options, options.tasks, None
    if o.task_file is not None:
        task_file = str(Path(o.task_file).resolve())
        defined = own.load(task_file)
        tasks = tasks or defined
    if not tasks:
        raise ValueError("No task: expected names of `superadam tasks`, or a task file")
    if o.sampler not in SAMPLERS:
        raise ValueError(f"Unknown sampler {o.sampler!r}: {nearest(o.sampler, SAMPLERS)}")
    for name in ("trials", "seeds", "tuning_seeds"):
        if not 0 < (number := getattr(o, name)) < TUNING_SEEDS:
            raise ValueError(f"Invalid {name}: {number} (expected 1 to {TUNING_SEEDS - 1})")
    if not 0 <= o.first_seed <= TUNING_SEEDS - o.seeds:
        raise ValueError(
            f"Invalid first_seed: {o.first_seed} (expected 0 to {TUNING_SEEDS - o.seeds}; tuning has the rest)"
        )
    chosen = _methods(o.methods, o.ablations)
    plan = Plan(
        tasks=list(dict.fromkeys(find(task).name for task in tasks)),
        methods=list(chosen),
        baseline=BASELINE,
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
    )
    for task in plan.tasks:
        plan.sizes[task] = {**find(task).compared.get(o.scale, {}), **(o.sizes or {})}
        plan.budget_evals[task] = _checked(plan, task, o.budget_evals)
    return plan


def _methods(methods: Sequence[str] | None, ablations: bool) -> dict[str, str]:
    """By name; AdamW is always there."""
    chosen = {BASELINE: BASELINE}
    for text in methods if methods is not None else ["paper"]:
        if text == "paper":
            chosen |= {name: name for name in known.PAPER}
        else:
            name, method = named(text)
            if chosen.get(name, method) != method:
                raise ValueError(f"Two methods of the name {name!r}: {chosen[name]} and {method}")
            known.parse(method)
            chosen[name] = method
    return chosen | (ABLATIONS if ablations else {})


def named(text: str) -> tuple[str, str]:
    """A method with a name of its own, or with itself for a name.

    >>> named("mine: super_adam tau=0.5"), named('adam schedule={"type": "Constant"}')[0]
    (('mine', 'super_adam tau=0.5'), 'adam schedule={"type": "Constant"}')
    """
    found = re.match(r'([^{\["]+?):\s+(.+)', text.strip(), flags=re.S)
    return (found[1].strip(), found[2].strip()) if found else (text.strip(), text.strip())


def _checked(plan: Plan, task: str, budget: int | None) -> int:
    """The gradient evaluations of a run. Whatever cannot be made is found here, before anything has been run."""
    found, sizes = find(task), plan.sizes[task]
    workload = found.workload(plan.scale, 0, plan.data_dir, sizes)
    try:
        workload.loss(next(iter(workload.batches(0))))[0].backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        why = place_and(error) or str(error)
        raise ValueError(f"{task}: the gradient of a batch cannot be taken: {why}") from error
    tried = {name: low for name, (low, _) in plan.space.items()}
    for name in plan.methods:
        method = plan.compositions.get(name, name)
        for key in known.parse(method)[1].keys() & plan.space.keys():
            raise ValueError(
                f"{name}: {key} is tuned, for all methods alike; leave it out, or give --tune {key}=low:high"
            )
        try:
            Config(task, method, decay=plan.decay)
            known.make(found, workload, method, "lab", tried)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{task} with {name}: {error}") from error
    return budget or found.sizes(plan.scale, sizes)["epochs"] * workload.length
