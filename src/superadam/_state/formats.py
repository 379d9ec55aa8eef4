"""Checkpoints of older versions, in today's format.

They had no phases: the keys of a state said where a step stood. `gamma` was that of a pending move, or negative if none
was pending; `g` was missing after a restart. Iterates were estimators, and SdLBFGS kept each vector of its history
under a name, and later still each θ and κ. One number counted both the decompositions that failed in float32 and, in
eighths, those that failed in float64 too.
"""

from __future__ import annotations

from typing import Any

import torch

from superadam._state.phases import PENDING, READY, RESTARTED, START

__all__ = ["current", "renewed", "with_iterate"]

# Instead of the γ of a pending move: no move is pending; and there is no g either.
NO_MOVE, NO_G = -1.0, -2.0


def current(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A `state_dict` of this or an older version, in today's format. The argument is not changed."""
    groups, states = [], dict(state_dict["state"])
    for group in state_dict["param_groups"]:
        if "matrix" in group and "iterate" not in group:
            group = with_iterate(group)
            for index in group["params"]:
                if index in states:
                    states[index] = _with_phase(group, states[index])
        groups.append(group)
    return {**state_dict, "param_groups": groups, "state": {index: renewed(state) for index, state in states.items()}}


def with_iterate(options: dict[str, Any]) -> dict[str, Any]:
    """Options with an iterate, from those of a version in which iterates were estimators."""
    estimator = options.get("estimator")
    kind = estimator["type"] if isinstance(estimator, dict) else estimator
    if kind in ("Transport", "transport"):
        return {**options, "estimator": None, "iterate": {"type": "Ahead"}}
    if kind in ("Staged", "staged"):
        return {**options, "estimator": {"type": "Summed"}, "iterate": estimator}
    return {"iterate": None, **options}


def renewed(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a parameter with the θ and the κ of SdLBFGS in one tensor each, and failures counted apart."""
    state = dict(state)
    if {"theta0", "kappa0", "s", "y"} <= state.keys():
        for name, old in (("theta", "theta"), ("kappas", "kappa")):
            state[name] = torch.stack([state.pop(f"{old}{i}") for i in range(len(state["s"]))])
    if "failures" in state and "retries" not in state and {"L", "R"} & state.keys():
        state["retries"] = state["failures"].floor()
        state["failures"] = (state["failures"] - state["retries"]) * 8
    return state


def _with_phase(group: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    state = dict(state)
    gamma: Any = state.get("gamma")
    number = None if gamma is None else float(gamma)
    if number == NO_G or ("g" not in state and "step" in state):
        state["phase"] = START if state["step"] == 0 else RESTARTED
    else:
        state["phase"] = PENDING if number is not None and number >= 0 else READY
    if number is not None and number < 0:
        state["gamma"] = gamma * 0
    if group["matrix"]["type"] == "DampedLBFGS" and "s0" in state:
        for name in ("s", "y"):
            state[name] = torch.stack([state.pop(f"{name}{i}") for i in range(group["matrix"]["history"])])
    return state
