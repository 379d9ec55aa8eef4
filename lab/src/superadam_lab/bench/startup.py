"""One-time costs: import and compilation. Each is measured in new processes."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

import torch

from superadam_lab.bench import candidates, measures, models

__all__ = ["compile_times", "first_steps", "import_times"]

STEPS = 4  # by then every kernel of a composition is made: with τ > 0 the first step moves nothing yet


def _in_new_process(code: str, **environment: str) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), **environment}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return json.loads(run.stdout.splitlines()[-1])


def import_times(rounds: int = 5) -> dict[str, Any]:
    """Seconds of `import torch`, of `import superadam` (which imports torch), and of `import superadam` after torch."""
    clock = "import time; {before}; start = time.perf_counter(); import {what}; print(time.perf_counter() - start)"
    codes = {
        "torch": clock.format(before="pass", what="torch"),
        "superadam": clock.format(before="pass", what="superadam"),
        "superadam after torch": clock.format(before="import torch", what="superadam"),
    }
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(rounds):
        for name, code in codes.items():
            times[name].append(_in_new_process(code))
    return {
        "rounds": rounds,
        **{
            name: {"median_s": measures.short(statistics.median(t)), "minimum_s": measures.short(min(t))}
            for name, t in times.items()
        },
    }


def first_steps(name: str, compile: bool) -> dict[str, float]:
    """Seconds of the first steps of one of the paper's cases on the parameters of an MLP, and of later ones."""
    (candidate,) = (c for c in candidates.paper_cases(compile=compile) if c.name == name)
    trial = candidates.Trial(candidate, candidates.gradients(models.SHAPES["mlp"]()))
    first = sum(measures.timed(trial.step) for _ in range(STEPS))
    return {"first_s": first, "later_s": statistics.median(measures.timed(trial.step) for _ in range(5))}


def compile_times(names: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Seconds of the first steps of each of the paper's cases that can be compiled: not compiled, compiled with an
    empty cache, and compiled by a new process with the cache of the last one."""
    if names is None:
        compiled = candidates.compiled(candidates.paper_cases(), candidates.paper_cases(compile=True))
        names = [c.name.removesuffix(", compiled") for c in compiled]
    times = {}
    for name in names:
        code = "import json; from superadam_lab.bench import startup; print(json.dumps(startup.first_steps({!r}, {})))"
        with tempfile.TemporaryDirectory() as cache:
            eager = _in_new_process(code.format(name, False))
            cold, warm = (_in_new_process(code.format(name, True), TORCHINDUCTOR_CACHE_DIR=cache) for _ in range(2))
        times[name] = {
            "eager_s": measures.short(eager["first_s"]),
            "cold_s": measures.short(cold["first_s"]),
            "warm_s": measures.short(warm["first_s"]),
        }
    return times
