"""Simulate the verdict of `superadam compare`: how often it is wrong, and what it finds.

    python -m research.verdict.verdict              # the table of README.md, in two minutes on one idle core
    python -m research.verdict.verdict --studies 2000

A study has ten methods and a baseline, five seeds, and log losses with noise of a known kind. False positives are
studies of equal methods in which some difference is significant. Power is how often one method whose loss is twice the
baseline's is found, with the corrections for all ten. The old procedure is Holm's method over Student's tests of every
method on every task and over all tasks.
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from research.kept import filled
from superadam_lab import bench
from superadam_lab.comparison.statistics.chance import tuning_variance
from superadam_lab.comparison.statistics.simultaneous import Differences, together

PAGE = Path(__file__).with_name("README.md")
METHODS, SEEDS, NOISE = 10, 5, 0.3
Floats = NDArray[np.float64]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def heavy(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Student's distribution with 3 degrees of freedom, of variance 1."""
    return rng.standard_t(3, shape) / math.sqrt(3)


def outliers(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """One run in ten is five times as noisy."""
    wide = np.where(rng.random(shape) < 0.1, 5.0, 1.0)
    return wide * rng.standard_normal(shape) / math.sqrt(0.9 + 2.5)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Log-normal, of mean 0 and variance 1."""
    return (np.exp(rng.standard_normal(shape)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


UNEQUAL = np.geomspace(0.3, 3, METHODS)
CASES: dict[str, dict[str, object]] = {
    "one task": {"tasks": [1.0]},
    "one task, heavy tails": {"tasks": [1.0], "draw": heavy},
    "one task, methods' noise 0.3 to 3 times": {"tasks": [1.0], "noise": UNEQUAL},
    "two tasks": {},
    "two tasks, heavy tails": {"draw": heavy},
    "two tasks, one run in ten an outlier": {"draw": outliers},
    "two tasks, methods' noise 0.3 to 3 times": {"noise": UNEQUAL},
    "two tasks, the same with skewed noise": {"noise": UNEQUAL, "draw": skewed},
    "two tasks, a baseline of 3 times the noise": {"baseline": 3.0},
    "two tasks, one of a tenth of the noise": {"tasks": [1.0, 0.1]},
    "two tasks, tuned on one noisy seed": {"tuned": True},
}


def study(
    rng: np.random.Generator,
    doubled: bool,
    tasks: tuple[float, ...] = (1.0, 1.0),
    draw: Draw = normal,
    noise: Floats | float = 1.0,
    baseline: float = 1.0,
    tuned: bool = False,
) -> list[Differences]:
    """The differences of a study; in the middle of the methods is the one whose loss is doubled."""
    made = []
    own = NOISE * np.broadcast_to(np.asarray(noise), METHODS)
    for scale in tasks:
        runs = scale * own * draw(rng, (SEEDS, METHODS))
        theirs = scale * NOISE * baseline * draw(rng, (SEEDS, 1))
        chosen, variance = np.zeros(METHODS + 1), np.zeros(METHODS + 1)
        if tuned:
            for i in range(METHODS + 1):
                chosen[i], variance[i] = tuning(rng, scale * NOISE)
        shift = np.where(np.arange(METHODS) == METHODS // 2, math.log(2) * doubled, 0.0)
        made.append(Differences(runs + chosen[1:] + shift - theirs - chosen[0], variance[1:], float(variance[0])))
    return made


def tuning(rng: np.random.Generator, noise: float) -> tuple[float, float]:
    """The true log loss of the learning rate that nine noisy trials choose, and the variance that the lab expects."""
    losses = 0.1 * (np.linspace(-4.5, 4.5, 9) + rng.random() - 0.5) ** 2
    seen = losses + noise * rng.standard_normal(9)
    return float(losses[seen.argmin()]), tuning_variance(seen.tolist(), noise)


def holm(study: list[Differences]) -> Floats:
    """The corrected p of each method over all tasks by the old procedure."""
    tables = [task.values for task in study]
    every = [np.mean(tables, axis=0), *(tables if len(tables) > 1 else [])]
    ps = np.concatenate([stats.ttest_1samp(table, 0.0).pvalue for table in every])
    order = ps.argsort()
    corrected = np.empty_like(ps)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(ps[order] * (len(ps) - np.arange(len(ps)))))
    return corrected[:METHODS]


def row(name: str, studies: int) -> list[str]:
    rng = np.random.default_rng(0)
    wrong, found = np.zeros(2), np.zeros(2)
    for _ in range(studies):
        for doubled in (False, True):
            drawn = study(rng, doubled, **CASES[name])  # type: ignore[arg-type]
            for i, ps in enumerate((holm(drawn), np.array([one.p for one in together(drawn)]))):
                if doubled:
                    found[i] += ps[METHODS // 2] < 0.05
                else:
                    wrong[i] += (ps < 0.05).any()
    return [name, *(f"{100 * n / studies:.1f}" for n in wrong), *(f"{100 * n / studies:.0f}" for n in found)]


def table(studies: int) -> str:
    head = ["", "false positives, old", "new", "doubled loss found, old", "new"]
    rows = []
    for name in CASES:
        rows.append(row(name, studies))
        print(*rows[-1], sep=" | ", flush=True)
    return bench.Table("", head, rows).markdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=300)
    given = parser.parse_args()
    text = filled(PAGE.read_text(encoding="utf-8"), "verdict", table(given.studies))
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
