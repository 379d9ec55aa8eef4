"""The whole measurement, as plain data."""

from __future__ import annotations

import datetime
import gc
import platform
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import superadam
from superadam_lab.bench import candidates, measures, models, peers, startup, training
from superadam_lab.bench.candidates import ADAMW_FOREACH, ADAMW_FUSED, Candidate, Gradients, Trial
from superadam_lab.runs.folders import processor

__all__ = ["measure_model", "measure_sizes", "report"]

ADAM_BYTES = 28  # per float32 parameter: x, m and v are read and written, the gradient is read
SIZES = (10**5, 10**6, 10**7, 10**8)
BASELINES = [ADAMW_FUSED, ADAMW_FOREACH]
GIGABYTE = 1e9

Report = dict[str, Any]
Say = Callable[[str], Any]


def report(
    names: Sequence[str],
    *,
    rounds: int = 20,
    memory: float = 10.0,
    compile: bool = False,
    sizes: bool = False,
    end_to_end: bool = False,
    matrices: bool = False,
    say: Say = lambda text: None,
) -> Report:
    """All requested measurements.

    Args:
        names: names in `models.SHAPES`.
        rounds: how many times everything is timed.
        memory: gigabytes that the candidates of one round may hold together, without temporary memory of a step. Those
            that do not fit are measured in other rounds.
        compile: also `compile=True`, and how long compilation takes.
        sizes: also the cost per parameter from 10⁵ to 10⁸ of them.
        end_to_end: also the optimizer's share of a training step.
        matrices: measure Muon and other methods with matrices per tensor instead, here and in other packages; with
            `end_to_end`, their shares.
        say: a function that gets messages about the progress.
    """
    made: Report = {
        "machine": _machine(),
        "date": datetime.date.today().isoformat(),
        "rounds": rounds,
        "models": {},
    }
    if matrices:
        return made | _report_of_matrices(names, rounds, end_to_end, say)
    for name in names:
        say(f"{name}: a step of every method")
        everything = candidates.everything(compile=compile)
        made["models"][name] = measure_model(models.SHAPES[name](), everything, rounds, memory)
    if sizes:
        say("cost per parameter")
        made["sizes"] = measure_sizes(SIZES, rounds, memory, compile=compile)
    say("import time")
    made["import"] = startup.import_times()
    if compile:
        say("compilation, cold and warm")
        made["compile"] = startup.compile_times()
    if end_to_end:
        say("share of a training step")
        made["end_to_end"] = training.shares(max(rounds // 4, 2))
    return made


def _report_of_matrices(names: Sequence[str], rounds: int, end_to_end: bool, say: Say) -> Report:
    made: Report = {"packages": peers.versions(), "named": True, "matrices": {}}
    for name in names:
        say(f"{name}: Muon and its kin beside other packages")
        made["matrices"][name] = peers.measure(models.SHAPES[name](), rounds)
    if end_to_end:
        say("share of a training step")
        made["end_to_end"] = training.shares(max(rounds // 4, 2), optimizers=training.with_matrices())
    return made


def measure_model(
    shapes: models.Shapes, of: list[Candidate], rounds: int, memory: float = 10.0, *, extra: bool = True
) -> Report:
    """A step of each candidate, the baselines and the memory limit; with `extra`, also the allocated memory."""
    n = sum(torch.Size(s).numel() for s in shapes)
    gradients = candidates.gradients(shapes)
    rows: dict[str, Report] = {}
    limits = []
    for group in _groups(of, n, memory):
        together = {c.name: c for c in [*BASELINES, *(c.peer for c in group if c.peer), *group]}
        new, limit = _measure(list(together.values()), gradients, rounds, extra)
        gc.collect()  # optimizers refer to themselves, and would stay
        limits.append(limit)
        for name, row in new.items():
            rows.setdefault(name, row)
    for c in of:
        if c.name not in rows:
            rows[c.name] = {"kind": c.kind, "way": candidates.way(c), "skipped": f"needs {_need(c, n):.0f} GB"}
    if not limits:
        raise ValueError(f"memory={memory} GB is too little for {n:,} parameters with any method: give more")
    best = max(limits, key=lambda limit: limit["bandwidth"]["minimum"])
    return {"tensors": len(shapes), "parameters": n, **best, "rows": _in_order(rows, of)}


def _in_order(rows: dict[str, Report], of: list[Candidate]) -> dict[str, Report]:
    ours = [c.name for c in of]
    return {name: rows[name] for name in [*(name for name in rows if name not in ours), *ours]}


def _measure(
    group: list[Candidate], gradients: Gradients, rounds: int, extra: bool
) -> tuple[dict[str, Report], Report]:
    """The rows of candidates that take turns, and the memory limit at that time."""
    n = sum(g.numel() for g in gradients[0])
    trials = {c.name: Trial(c, gradients) for c in group}
    first = {name: measures.timed(trial.step) for name, trial in trials.items()}
    loops, moved = measures.streams(n)
    times = measures.interleaved({**{name: t.step for name, t in trials.items()}, **loops}, rounds)
    bandwidth = measures.bandwidth(times, moved)
    limit = {f"{of}_ms": measures.short(1e3 * ADAM_BYTES * n / b) for of, b in bandwidth.items()}
    summaries = {name: measures.summary(times[name]) for name in trials}
    rows = {}
    for c in group:
        own, trial, way = summaries[c.name], trials[c.name], candidates.way(c)
        rows[c.name] = {
            "kind": c.kind,
            "way": way,
            "evaluations": 1 + trial.two_point,
            **own,
            "to_fused": measures.ratios(own, summaries[ADAMW_FUSED.name]),
            "to_foreach": measures.ratios(own, summaries[ADAMW_FOREACH.name]),
            "to_limit": measures.ratios(own, limit),
            "state_bytes_per_parameter": measures.short(trial.state_bytes / n),
        }
        if c.peer is not None:
            rows[c.name] |= {"peer": c.peer.name, "to_peer": measures.ratios(own, summaries[c.peer.name])}
        if extra:
            rows[c.name]["temporary_bytes"] = measures.peak_temporary_bytes(trial.step)
            if "compiled" not in way:  # whose first step is the compiler's
                rows[c.name]["first_step"] = measures.short(1e3 * first[c.name] / own["median_ms"])
    return rows, {"bandwidth": bandwidth, "limit": limit}


def measure_sizes(sizes: Sequence[int], rounds: int, memory: float = 10.0, *, compile: bool = False) -> Report:
    """Nanoseconds per parameter, in tensors of up to a million."""
    cases = candidates.paper_cases()
    if compile:
        cases += candidates.compiled(cases, candidates.paper_cases(compile=True))
    chosen = [c for c in cases if c.name.startswith(("case 1", "case 2", "case 4a"))]
    columns = {}
    for n in sizes:
        side = round(min(n, 10**6) ** 0.5)
        fewer = rounds if n <= 10**7 else max(2, rounds // 5)
        measured = measure_model([(side, side)] * max(n // 10**6, 1), chosen, fewer, memory, extra=False)
        per = 1e6 / measured["parameters"]
        rows = {"memory limit": measured["limit"], **measured["rows"]}
        columns[str(n)] = {
            name: {of: measures.short(per * row[f"{of}_ms"]) for of in ("median", "minimum")}
            for name, row in rows.items()
            if "skipped" not in row
        }
    return columns


def _need(c: Candidate, n: int) -> float:
    """Gigabytes of x and the state of a candidate with n parameters, judged by a small one."""
    trial = Trial(c, candidates.gradients([(64, 64)]))
    for _ in range(3):
        trial.step()
    return n * (4 + trial.state_bytes / 4096) / GIGABYTE


def _groups(of: list[Candidate], n: int, memory: float) -> Iterator[list[Candidate]]:
    """Candidates that fit into memory together with the baselines, the two gradients and the streams."""
    always = sum(_need(c, n) for c in BASELINES) + 4 * min(4 * n, measures.LARGE) / GIGABYTE + 8 * n / GIGABYTE
    group: list[Candidate] = []
    used = always
    for c in of:
        need = _need(c, n) + (_need(c.peer, n) if c.peer else 0.0)
        if always + need > memory:
            continue
        if used + need > memory and group:
            yield group
            group, used = [], always
        group.append(c)
        used += need
    if group:
        yield group


def _machine() -> dict[str, Any]:
    return {
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "superadam": superadam.__version__,
    }
