"""What a comparison says is true, as often as it claims: on simulated studies whose truth is known."""

import dataclasses
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies import BUDGET, ENVIRONMENT, run, study
from superadam_lab.comparison.records import Plan, Results
from superadam_lab.comparison.report.markdown import markdown
from superadam_lab.comparison.report.page import page
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.comparison.statistics.intervals import log_ratio, mean, paired
from superadam_lab.comparison.statistics.outcomes import crossing
from superadam_lab.comparison.statistics.simultaneous import DRAWS, Differences, each, together
from superadam_lab.comparison.verdict.words import verdict

EVALUATIONS = "gradient_evaluations"


def ratio(results, method="a", task="task", axis=EVALUATIONS):
    return analyse(results).tasks[task].comparisons[method].times[axis]


# ------------------------------------------------------------------------------------------------ planted truth


@pytest.mark.parametrize("common", [0.0, 0.1])
def test_interval_holds_the_known_factor(common):
    """In 95 of 100 studies; and in 1 of 40 at the most is the truth above it, so that no method is flattered."""
    rng = np.random.default_rng(3)
    n, inside, above = 150, 0, 0
    for _ in range(n):
        found = ratio(study({"adamw": 1.0, "a": 0.5}, rng=rng, common=common, rows=21)).estimate
        inside += found.low <= 0.5 <= found.high
        above += found.high < 0.5
    assert inside / n >= 0.93
    assert above / n <= 0.04


def test_seconds_are_compared_as_well():
    results = study({"adamw": 1.0, "a": 0.5}, noise=0.001, common=0.001)
    for record in results.records:
        for row in record.rows:
            row["seconds"] *= 3.0 if record.method == "a" else 1.0  # half the evaluations, thrice the time of each
    assert ratio(results, axis="seconds").estimate.value == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("tasks", [("t",), ("t", "u")])
def test_identical_methods_show_no_difference(tasks):
    """In 95 of 100 studies, with four methods, no statement is made."""
    rng = np.random.default_rng(4)
    methods = dict.fromkeys(["adamw", "a", "b", "c", "d"], 1.0)
    silent = 0
    for _ in range(50):
        found = analyse(study(methods, tasks=tasks, rng=rng, rows=2))
        silent += {c.outcome for c in found.verdict.values()} == {"same"}
    assert silent >= 46


def test_without_the_correction_one_of_them_would_often_differ():
    """The simulation can fail: intervals of single tasks are each by itself."""
    rng = np.random.default_rng(5)
    methods = dict.fromkeys(["adamw", *"abcdefgh"], 1.0)
    differs = 0
    for _ in range(25):
        task = analyse(study(methods, tasks=("t", "u"), rng=rng, rows=2)).tasks["t"]
        differs += any(not c.finals.low <= 1 <= c.finals.high for c in task.comparisons.values())
    assert differs / 25 > 0.12


def test_single_tasks_have_verdicts_if_they_are_asked_for():
    """Corrected for all of them; the verdict over all tasks is the same with and without them."""
    results = study({"adamw": 1.0, "a": 0.5, "b": 1.0}, tasks=("t", "u"), rows=4)
    without, asked = analyse(results), analyse(results, per_task=True)
    assert {f.outcome for f in verdict(results, without).tasks["t"]} == {"shown"}
    assert [f.outcome for f in verdict(results, asked).tasks["t"]] == ["better", "same"]
    assert verdict(results, without).findings == verdict(results, asked).findings
    for name in ("t", "u"):
        for m, c in asked.tasks[name].comparisons.items():
            other = without.tasks[name].comparisons[m].finals
            assert c.finals.low < other.low <= other.value == c.finals.value <= other.high < c.finals.high
            assert (c.p < 0.05) == (not c.finals.low <= 1 <= c.finals.high)


def test_with_five_seeds_and_eleven_methods_a_doubled_loss_is_found():
    """On a task whose losses vary by a third from run to run."""
    rng = np.random.default_rng(7)
    methods = {"adamw": 1.0} | dict.fromkeys([*"abcdefghi"], 1.0) | {"worst": 4.0}  # evaluations: the loss is √ of it
    outcomes = []
    for _ in range(8):
        found = analyse(study(methods, tasks=("t", "u"), noise=0.2, common=0.2, rng=rng, rows=2))
        outcomes.append(found.overall["worst"].outcome)
    assert outcomes.count("worse") >= 7


def test_interval_of_five_values_holds_the_mean_in_95_of_100_cases():
    rng = np.random.default_rng(6)
    samples = rng.normal(1.0, 1.0, (600, 5))
    inside = [e.low <= 1.0 <= e.high for e in map(paired, samples)]
    assert 0.93 <= np.mean(inside) <= 0.975


def test_a_large_difference_is_found_with_five_seeds():
    said = verdict(study({"adamw": 1.0, "a": 0.5, "b": 2.0, "c": 1.0}))
    assert {f.method: f.outcome for f in said.findings} == {"a": "better", "b": "worse", "c": "same"}
    assert said.headline.startswith("a is better than tuned AdamW on task; b is worse; no significant difference for c")
    assert "No significant difference from AdamW (5 seeds):" in said.text


@pytest.mark.parametrize("many", [1, 10, 30])
def test_the_terminal_has_the_verdict_in_fifteen_lines(many):
    """With the line of the report: who is better, a table, what could not be told."""
    methods = {"adamw": 1.0, "a": 0.3} | {f"m{i}": 1.0 for i in range(many - 1)}
    lines = verdict(study(methods, tasks=("t", "u"), rows=3)).short.splitlines()
    assert len(lines) <= 14
    assert lines[0] == "a is better than tuned AdamW on these 2 tasks together (5 seeds)."
    assert lines[1].split() == ["method", "final", "loss", "95", "%", "interval", "p", "verdict"]
    assert re.match(r"a +\d+ % lower +\d+ % to \d+ % lower +≤ 0.001 +better$", lines[2])
    assert re.match(r"Differences below [\d.]+ % are often missed with 5 seeds\.", lines[-1])
    assert any(line.startswith("… and ") for line in lines) == (many == 30)


# ------------------------------------------------------------------------------------------------ recomputed


def test_verdict_recomputed_from_the_raw_json(tmp_path):
    """By plain code of its own, from results.json."""
    factors = {"adamw": 1.0, "a": 0.7, "b": 1.3, "c": 1.01, "d": 0.97}
    results = study(factors, tasks=("t", "u"), noise=0.05, common=0.1)
    results.write(tmp_path / "results.json")
    said = verdict(Results.read(tmp_path / "results.json"))
    raw = json.loads((tmp_path / "results.json").read_text())

    ends = {}
    for r in raw["records"]:
        if r["phase"] == "report":
            ends[r["task"], r["method"], r["seed"]] = math.log(r["rows"][-1]["valid_loss"])
    seeds, tasks = raw["plan"]["report_seeds"], raw["plan"]["tasks"]
    d = np.array([[[ends[t, m, s] - ends[t, "adamw", s] for m in "abcd"] for s in seeds] for t in tasks])

    def t_of(x):  # tasks, seeds, methods
        return np.abs(x.mean((0, 1))) / np.sqrt(x.var(1, ddof=1).sum(0) / len(seeds)) * len(tasks)

    rng = np.random.default_rng(11)
    covariances = [(np.cov(of.T) + np.diag(of.var(0, ddof=1))) / 2 for of in d]
    drawn = [rng.multivariate_normal(np.zeros(4), c, (4000, 5)) for c in covariances]
    chance = np.array([t_of(np.stack(of)).max() for of in zip(*drawn, strict=True)])
    found = analyse(results).overall
    for i, m in enumerate("abcd"):
        p = np.mean(chance >= t_of(d)[i])
        assert found[m].p == pytest.approx(p, abs=0.03)
        mean_of = d[:, :, i].mean()
        expected = "same" if p >= 0.05 else "better" if mean_of < 0 else "worse"
        assert {f.method: f.outcome for f in said.findings}[m] == expected
        assert (found[m].p < 0.05) == (not found[m].finals.low <= 1 <= found[m].finals.high)
    assert {f.outcome for f in said.findings} == {"better", "worse", "same"}
    finding = next(f for f in said.findings if f.method == "a")
    lower = 100 * (1 - math.exp(d[:, :, 0].mean()))
    assert finding.text.startswith(f"final loss {lower:.0f} % lower (")


def test_student_by_hand():
    """One method on one task is Student's test, which has a closed form with 4 degrees of freedom."""
    x = [0.1, 0.3, 0.2, 0.4, 0.45]
    error = np.std(x, ddof=1) / math.sqrt(5)
    t = np.mean(x) / error
    ((estimate, p, found),) = together([Differences(np.array([x]).T, np.zeros(1), 0.0)])
    assert p == pytest.approx(1 - t * (t**2 + 6) / (t**2 + 4) ** 1.5, abs=3 / math.sqrt(DRAWS) * 0.1)
    assert estimate.high == pytest.approx(np.mean(x) + 2.776445 * error, rel=0.03)
    assert found == pytest.approx(error)
    assert mean(x).high == pytest.approx(np.mean(x) + 2.776445 * error)


@given(st.integers(1, 3), st.integers(1, 4), st.integers(2, 6), st.floats(0, 3), st.integers(0, 1000))
def test_an_interval_is_without_0_exactly_if_p_is_below_5_percent(tasks, methods, seeds, shift, draw):
    """With lost seeds and noise of tuning, too."""
    rng = np.random.default_rng(draw)
    tables = []
    for _ in range(tasks):
        values = shift * rng.random() + rng.standard_t(3, (seeds, methods))
        values[rng.random(values.shape) < 0.1] = math.nan
        tables.append(Differences(values, 0.1 * rng.random(methods), 0.1 * rng.random()))
    for estimate, p, _ in [*together(tables), *(one for of in each(tables) for one in of)]:
        assert math.isnan(p) == math.isnan(estimate.low)
        assert (p < 0.05) == (not math.isnan(p) and not estimate.low <= 0 <= estimate.high)


# ------------------------------------------------------------------------------------------------ targets and misses


def rows(losses, step=10):
    return run("task", "a", 0, losses, evaluations=[step * i for i in range(len(losses))]).rows


@pytest.mark.parametrize(
    ("losses", "target", "reached"),
    [
        ([4.0, 1.0], 2.0, 5.0),  # halfway, on a logarithmic scale
        ([4.0, 2.0, 1.0], 2.0, 10.0),  # equal is enough
        ([4.0, 3.0, 2.5], 2.0, math.inf),
        ([4.0, 1.0, 3.0], 2.0, 5.0),  # the first time counts
        ([4.0, None, 1.0], 2.0, 20.0),  # nothing is known of what came before
        ([4.0, math.nan, 1.0], 2.0, 20.0),
        ([1.0, 1.0, 1.0], 2.0, 10.0),  # the initial weights are no merit
        ([1.0, -1.0], 0.0, 5.0),  # linear, where there is no logarithm
        ([], 2.0, math.inf),
    ],
)
def test_evaluations_to_target(losses, target, reached):
    assert crossing(rows(losses), "valid_loss", target)[EVALUATIONS] == reached


def flat(method, finals, task="task", statuses=None):
    """Runs that fall in a straight logarithmic line from 8 to their final loss."""
    made = []
    for seed, f in enumerate(finals):
        losses = [8.0, math.sqrt(8.0 * f), f] if math.isfinite(f) else [8.0, 9.0, None]
        status = statuses[seed] if statuses else "finished" if math.isfinite(f) else "diverged"
        made.append(run(task, method, seed, losses, status=status))
    return made


def results_of(*runs, methods=("adamw", "a"), tasks=("task",), seeds=3):
    plan = Plan(list(tasks), list(methods), trials=0, report_seeds=list(range(seeds)))
    return Results(plan, {}, [r for group in runs for r in group])


def test_target_is_the_median_final_loss_of_the_baseline():
    results = results_of(flat("adamw", [1.0, 3.0, 2.0]), flat("a", [1.0, 1.0, 1.0]))
    assert analyse(results).tasks["task"].target == 2.0


def test_a_miss_is_infinite_and_said():
    found = ratio(results_of(flat("adamw", [2.0, 2.0, 2.0]), flat("a", [1.0, 1.0, 2.5])))
    assert (found.reached, found.reached_baseline, found.runs) == (2, 3, 3)
    assert found.estimate.value == math.inf
    assert found.estimate.high == math.inf
    # The least it could be: the missing one a success at the very end.
    assert found.estimate.low == pytest.approx(math.exp(paired(np.log([2 / 3, 2 / 3, 1.0])).low))
    said = verdict(results_of(flat("adamw", [2.0, 2.0, 2.0]), flat("a", [1.0, 1.0, 2.5]))).text
    assert "target reached by 2 of 3 runs (AdamW: 3)" in said


def test_a_miss_of_the_baseline_counts_as_its_budget():
    """So the method does not gain from it; only the lower end knows that the truth may be better."""
    found = ratio(results_of(flat("adamw", [2.0, 2.0, 4.0]), flat("a", [1.0, 1.0, 1.0])))
    assert (found.reached, found.reached_baseline) == (3, 2)
    assert found.estimate.value == pytest.approx(2 / 3)  # log 4 / log 8, of 1000 evaluations
    assert found.estimate.low < 0.5  # to 4, a needs a third


def test_both_miss():
    found = ratio(results_of(flat("adamw", [2.0, 2.0, 4.0]), flat("a", [3.0, 3.0, 3.0])))
    assert (found.reached, found.reached_baseline) == (0, 2)
    assert found.estimate.value == math.inf


def test_a_run_that_diverged_after_the_target_has_reached_it():
    records = flat("a", [1.0, 1.0, 1.0])
    records[0].status = "diverged"
    found = analyse(results_of(flat("adamw", [2.0, 2.0, 2.0]), records)).tasks["task"].comparisons["a"]
    assert found.times[EVALUATIONS].reached == 3
    assert (found.lost, found.finals.n) == (1, 2)


# ------------------------------------------------------------------------------------------------ runs that are lost


def test_a_method_that_loses_more_runs_is_never_better():
    fine, better = [2.0, 2.02, 1.98, 2.01, 1.99], [1.0, 1.01, 0.99, 1.0, math.inf]
    results = results_of(flat("adamw", fine), flat("a", better), seeds=5)
    said = verdict(results)
    assert said.findings[0].outcome == "lost"
    assert "a had more diverged or failed runs than tuned AdamW" in said.headline
    assert "1 of 5 runs diverged or failed (AdamW: 0)" in said.text
    other = results_of(flat("adamw", better), flat("a", fine), seeds=5)
    assert verdict(other).findings[0].outcome == "same"  # nor worse than one that loses more itself


def test_a_method_that_is_worse_where_it_does_not_diverge_is_worse():
    results = results_of(
        flat("adamw", [1.0, 1.01, 0.99, 1.0, 1.02]), flat("a", [2.0, 2.02, 1.98, 2.01, math.inf]), seeds=5
    )
    assert verdict(results).findings[0].outcome == "worse"


def test_all_runs_lost():
    said = verdict(results_of(flat("adamw", [2.0] * 3), flat("a", [math.inf] * 3)))
    assert said.findings[0].outcome == "lost"
    assert "no seed on which both runs finished" in said.text


def test_why_runs_failed_is_said():
    """In the terminal, the page and the text: a bug in an optimizer should not look like a method that is worse."""
    failed = flat("a", [math.inf] * 2 + [2.0], statuses=["failed", "failed", "finished"])
    failed = [dataclasses.replace(r, error="mine.py, line 4:\nValueError: <shapes>") for r in failed]
    results = results_of(flat("adamw", [2.0, math.inf, 2.0]), failed)
    why = "task, a: 2 of 3 runs failed (tuning trials included). First error: mine.py, line 4: ValueError: <shapes>"
    assert [c for c in verdict(results).cautions if "failed" in c] == [why]  # AdamW's run has diverged
    assert f"Note: {why}" in verdict(results).text
    results.environment.update(ENVIRONMENT)
    made = results, analyse(results), verdict(results)
    assert why.replace("<", "&lt;").replace(">", "&gt;") in page(*made)
    assert "line 4: ValueError" in markdown(*made)


def test_baseline_without_a_finished_run():
    results = results_of(flat("adamw", [math.inf] * 3), flat("a", [2.0] * 3))
    said = verdict(results)
    assert said.headline == "AdamW, the baseline, has no finished run: there is nothing to compare with."
    assert any("there is no target" in caution for caution in said.cautions)


def test_baseline_that_was_not_run():
    said = verdict(results_of(flat("a", [2.0] * 3), methods=("a",)))
    assert "nothing to compare with" in said.headline
    assert said.findings[0].outcome == "none"
    assert math.isinf(analyse(results_of(flat("a", [2.0] * 3))).tasks["task"].target)


def test_unfinished_comparison_says_so():
    results = results_of(flat("adamw", [2.0] * 3), flat("a", [1.0, 1.1]))
    said = verdict(results)
    assert said.cautions[0] == "The comparison is unfinished: 5 of 6 final runs are done."
    assert analyse(results).tasks["task"].comparisons["a"].n == 2


def test_one_seed_shows_nothing():
    said = verdict(results_of(flat("adamw", [2.0]), flat("a", [0.1]), seeds=1))
    assert said.findings[0].outcome == "insufficient"
    assert "at least 3 seeds (1 here)" in said.text
    assert "95 % lower;" in said.text
    assert "One seed gives no interval" in said.text


def test_nothing_at_all():
    assert "nothing to compare with" in verdict(results_of()).text
    assert "nothing to compare with" in verdict(Results(Plan([], []), {}, [])).text


def test_identical_runs_have_no_difference_and_constant_ones_do():
    same = verdict(results_of(flat("adamw", [2.0, 3.0, 4.0]), flat("a", [2.0, 3.0, 4.0])))
    assert same.findings[0].outcome == "same"
    less = analyse(results_of(flat("adamw", [2.0, 2.0, 2.0]), flat("a", [1.0, 1.0, 1.0])))
    assert less.tasks["task"].comparisons["a"].finals.value == pytest.approx(0.5)


def test_losses_that_are_not_positive_are_compared_by_difference():
    results = results_of(flat("adamw", [1.0, 2.0, 3.0]), flat("a", [1.0, 2.0, 3.0]))
    for record in results.records:
        record.rows[-1]["valid_loss"] -= 3.0 if record.method == "adamw" else 2.5
    found = analyse(results).tasks["task"].comparisons["a"]
    assert not found.relative
    assert found.finals.value == pytest.approx(0.5)
    assert "final loss difference 0.500 (0.500 to 0.500)" in verdict(results).text


def test_task_without_validation_data_takes_the_training_loss():
    results = results_of(flat("adamw", [2.0] * 3), flat("a", [1.0] * 3))
    for record in results.records:
        for row in record.rows:
            for name in [k for k in row if k.startswith("valid")]:
                del row[name]
    found = analyse(results).tasks["task"]
    assert found.criterion == "train_loss"
    assert found.target == pytest.approx(1.8)
    assert any("no validation data" in caution for caution in verdict(results).cautions)


# ------------------------------------------------------------------------------------------------ all methods together


def test_profiles_and_ranks():
    results = results_of(
        flat("adamw", [2.0, 2.0, 2.0]),
        flat("a", [1.0, 1.0, 1.0]),
        flat("b", [4.0, 4.0, 1.0]),
        methods=("adamw", "a", "b"),
    )
    found = analyse(results)
    profile = found.profiles[EVALUATIONS]
    assert profile["a"] == [1.0, 1.0, 1.0]
    assert profile["adamw"] == pytest.approx([1.5, 1.5, 1.5])
    assert profile["b"] == [1.0, math.inf, math.inf]
    assert found.ranks.means == pytest.approx({"adamw": 7 / 3, "a": (1 + 1 + 1.5) / 3, "b": (3 + 3 + 1.5) / 3})
    # Demšar (2006), table 5: q = 2.343 for three methods.
    assert found.ranks.critical == pytest.approx(2.343 * math.sqrt(3 * 4 / (6 * 3)), rel=1e-3)


def test_sensitivity_and_its_edges():
    results = study({"adamw": 1.0, "a": 1.0}, trials=9)
    trials = analyse(results).tasks["task"].trials["a"]
    assert len(trials.points) == 9
    assert trials.edges == {}
    losses = [loss for _, loss in trials.points]
    assert losses[-1] == math.inf  # that one diverged
    assert losses[trials.best] == min(losses)
    narrow = study({"adamw": 1.0, "a": 1.0}, trials=9)
    narrow.records = [r for r in narrow.records if r.phase == "report" or r.trial >= 5]
    assert analyse(narrow).tasks["task"].trials["a"].edges == {"lr": "lowest"}
    assert any(
        "the best lr is the lowest one tried for AdamW and a. A better one may lie below it" in caution
        for caution in verdict(narrow).cautions
    )


@pytest.mark.parametrize("trials", [1, 2, 3])
def test_too_few_trials_for_a_best_between_others_are_told(trials):
    said = verdict(study({"adamw": 1.0, "a": 1.0}, trials=trials)).cautions
    assert any("Most verdicts need at least 3 trials" in caution for caution in said) is (trials < 3)


def test_ends_and_bests():
    records = [run("task", "adamw", s, [8.0, 1.0 + s, 2.0 + s]) for s in range(3)]
    outcome = analyse(results_of(records)).tasks["task"].outcomes["adamw"]
    end, best = outcome.summary("test_loss")  # geometric means
    assert (end.value, best.value) == pytest.approx((1.1 * 24 ** (1 / 3), 1.1 * 6 ** (1 / 3)))
    logs = np.log([2.0, 3.0, 4.0])
    assert math.log(end.high / end.value) == pytest.approx(4.302653 * logs.std(ddof=1) / math.sqrt(3))
    end, best = outcome.summary("valid_accuracy")
    assert end.value == pytest.approx(np.exp([-2.0, -3.0, -4.0]).mean())
    assert best.value > end.value
    assert end.low == 0.0  # a share


def test_curves_are_medians_with_the_whole_range():
    records = [run("task", "adamw", s, [8.0, 4.0 + s, 2.0 + s]) for s in range(3)]
    records.append(run("task", "adamw", 3, [8.0, None], status="diverged", evaluations=[0, BUDGET / 2]))
    curves = analyse(results_of(records)).tasks["task"].outcomes["adamw"].curves()
    assert curves["gradient_evaluations"] == [0, 500, 1000]
    assert curves["valid_loss"][0] == [8.0, 8.0, 8.0]
    assert curves["valid_loss"][1] == [5.5, 4.0, None]  # one of four is beyond all numbers
    assert curves["valid_loss"][2] == [3.5, 2.0, None]


# ------------------------------------------------------------------------------------------------ invariants

losses = st.lists(st.lists(st.floats(0.01, 10.0), min_size=4, max_size=4), min_size=6, max_size=6)


def of_losses(values, order=None, factor=1.0):
    records = [
        run("task", method, seed, [8.0 * factor, *(factor * v for v in values[3 * i + seed])])
        for i, method in enumerate(("adamw", "a"))
        for seed in range(3)
    ]
    return results_of([records[i] for i in order or range(6)])


@given(losses, st.permutations(range(6)))
def test_order_of_the_records_does_not_matter(values, order):
    assert verdict(of_losses(values)).text == verdict(of_losses(values, order)).text


@given(losses, st.sampled_from([0.25, 4.0, 1024.0]))
def test_unit_of_the_loss_does_not_matter(values, factor):
    """Powers of two, so that the target is met exactly where it was."""
    found, scaled = (analyse(of_losses(values, factor=f)).tasks["task"].comparisons["a"] for f in (1.0, factor))
    assert found.finals == pytest.approx(scaled.finals, rel=1e-6)
    assert found.times[EVALUATIONS][1:] == scaled.times[EVALUATIONS][1:]
    assert found.times[EVALUATIONS].estimate == pytest.approx(scaled.times[EVALUATIONS].estimate, rel=1e-6)


@given(losses)
def test_interval_holds_its_estimate_and_at_least_half_of_the_baseline_reaches_the_target(values):
    found = analyse(of_losses(values)).tasks["task"].comparisons["a"]
    times = found.times[EVALUATIONS]
    for e in (found.finals, times.estimate):
        assert e.low <= e.value * (1 + 1e-9)
        assert e.value <= e.high * (1 + 1e-9)
    assert times.reached_baseline >= 2
    assert (times.estimate.value < math.inf) == (times.reached == 3)


@st.composite
def close(draw):
    """Three losses, least first, which may be next to each other among all numbers."""
    one = draw(st.floats(5e-324, 1e99))
    others = st.one_of(st.floats(5e-324, 1e99), st.integers(0, 5).map(lambda n: one + n * math.ulp(one)))
    return sorted([one, draw(others), draw(others)])


@given(close())
def test_the_target_is_met_between_the_rows_around_it(losses):
    """Also of losses whose logarithms are equal, and of those whose ratio is out of range."""
    low, mid, high = losses
    for below, target, above in ((low, mid, high), (-high, -mid, -low), (-high, low, mid)):
        pair = [{EVALUATIONS: 0, "loss": above}, {EVALUATIONS: 10, "loss": below}]
        found = crossing(pair, "loss", target)[EVALUATIONS]
        expected = 10 if below == target or target == above else found
        assert 0 <= found <= 10
        assert found == expected
    assert log_ratio(high, low) == pytest.approx(-log_ratio(low, high), rel=1e-12)
    assert (log_ratio(high, low) > 0) == (high > low)


anything = st.one_of(
    st.none(),
    st.floats(),
    st.floats(-1e-300, 1e-300),
    st.sampled_from([0, 1.0, math.nextafter(1.0, 2.0), 10**400, -(10**400), True, "x"]),
)


@given(st.lists(st.lists(anything, min_size=4, max_size=4), min_size=6, max_size=6))
def test_whatever_was_measured_there_is_a_report(values):
    """Numbers that are tiny, huge, negative, equal, close, not finite, or none at all."""
    results = of_losses([[1.0] * 4] * 6)
    for record, found in zip(results.records, values, strict=True):
        for row, loss in zip(record.rows[1:], found, strict=True):
            row["valid_loss"] = loss
    stats = analyse(results)
    words = verdict(results, stats)
    assert "nan" not in words.text
    assert "nan" not in markdown(results, stats, words)
    data = re.search(r'id="data">(.*?)</script>', page(results, stats, words), re.DOTALL)[1]
    json.loads(data, parse_constant=pytest.fail)


def test_statistics_do_not_change_the_results():
    results = study({"adamw": 1.0, "a": 0.5}, trials=2)
    before = json.dumps(dataclasses.asdict(results))
    verdict(results)
    assert json.dumps(dataclasses.asdict(results)) == before


def test_losses_without_ratios_are_not_compared_on_all_tasks_together():
    """Log-likelihoods: better by 0.1 on one task, worse by 5 on the other."""
    plan = Plan(tasks=["a", "b"], methods=["adamw", "x"], budget_evals={"a": 10, "b": 10})
    shifts = {("a", "adamw"): 0.0, ("a", "x"): -0.1, ("b", "adamw"): 0.0, ("b", "x"): 5.0}
    records = [
        run(task, method, seed, [-5.0, -10.0 + shift + 0.001 * seed])
        for (task, method), shift in shifts.items()
        for seed in plan.report_seeds
    ]
    found = verdict(Results(plan, ENVIRONMENT, records))
    assert "better" not in found.headline
    assert "Not compared on all tasks together" in found.text
