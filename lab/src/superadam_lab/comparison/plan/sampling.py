"""The tuning trials: points in the space of tuned options."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from superadam_lab.comparison.records import Plan
from superadam_lab.methods.specs import Bounds, near_one

__all__ = ["Tuned", "proposed", "quiet"]

SOBOL = 375  # a scrambling that leaves small gaps between 5 to 16 points on a line, and next to its ends
TPE_STARTUP = 4  # trials before the sampler "tpe" looks at results

Tuned = dict[str, Any]
Space = Mapping[str, Bounds]

_kept: dict[str, list[Tuned]] = {}


def proposed(plan: Plan, method: str, found: Mapping[int, tuple[Tuned, float]]) -> list[Tuned]:
    """The options of the trials so far. With "qmc" and "random" all of them, the same for all methods with the same
    space."""
    space = plan.space_of(method)
    if plan.sampler == "tpe":
        known = [found[i] for i in range(plan.trials) if i in found]
        tried = [options for options, _ in known]
        return tried if len(known) == plan.trials else [*tried, _next_of_tpe(space, known)]
    key = repr((plan.sampler, plan.trials, space))
    if key not in _kept:
        _kept[key] = _drawn(plan, space)
    return _kept[key]


def _drawn(plan: Plan, space: Space) -> list[Tuned]:
    import optuna

    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=0)
    if plan.sampler == "qmc":
        with quiet():
            sampler = optuna.samplers.QMCSampler(scramble=True, seed=SOBOL, independent_sampler=sampler)
    study = _study(sampler)
    study.ask(_distributions(space))  # from which QMCSampler learns the space; it has no part in the sequence
    return [_mirrored(space, study.ask(_distributions(space)).params) for _ in range(plan.trials)]


def _next_of_tpe(space: Space, known: list[tuple[Tuned, float]]) -> Tuned:
    import optuna

    study = _study(optuna.samplers.TPESampler(seed=len(known), n_startup_trials=TPE_STARTUP))
    distributions = _distributions(space)
    for options, loss in known:
        params = _mirrored(space, options)
        study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=loss))
    return _mirrored(space, study.ask(distributions).params)


def _mirrored(space: Space, options: Mapping[str, Any]) -> Tuned:
    """Converts between an option and its drawn value. For options near 1, the distance to 1 is drawn."""
    return {k: 1 - v if near_one(*space[k]) else v for k, v in options.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress Optuna's warning that quasi-random numbers are experimental."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        yield


def _study(sampler: Any) -> Any:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=sampler)


def _distributions(space: Space) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    ends = {k: (1 - high, 1 - low) if near_one(low, high) else (low, high) for k, (low, high) in space.items()}
    return {name: FloatDistribution(low, high, log=True) for name, (low, high) in ends.items()}
