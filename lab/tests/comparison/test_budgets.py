"""How long runs are: trials that are stopped early, equal epochs, equal seconds."""

from collections import Counter

import numpy as np
import pytest

from comparing import alone, small_plan
from simulated import carried_out, plan
from superadam_lab.comparison import report
from superadam_lab.comparison.engine import plan_size
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.report import facts
from superadam_lab.comparison.statistics import chance
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.comparison.worker import Light
from superadam_lab.runs.folders import Config
from superadam_lab.runs.training import Run

FOUR = ["adamw", "a", "b", "c"]


def tuned(results, method="a"):
    return [r for r in results.records if (r.method, r.phase) == (method, "tune")]


# ------------------------------------------------------------------------------------------------ halving


def test_a_third_of_the_trials_goes_on_to_runs_of_three_times_the_length_by_the_same_rule_for_all():
    results = carried_out(plan(FOUR, halving=3), {})
    for method in FOUR:
        assert Counter(r.amount for r in tuned(results, method)) == {111: 9, 333: 3, None: 2}
        for short, longer in ((111, 333), (333, None)):
            loss = {r.trial: r.rows[-1]["valid_loss"] for r in tuned(results, method) if r.amount == short}
            went_on = {r.trial for r in tuned(results, method) if r.amount == longer}
            assert went_on == set(sorted(loss, key=loss.get)[: len(went_on)])
    assert len(results.records) == plan_size(results.plan) == 4 * (9 + 3 + 2 + 5)


def test_runs_of_the_report_are_whole_and_have_the_best_options_of_the_last_rung():
    results = carried_out(plan(FOUR, halving=3), {})
    whole = {r.trial: r.rows[-1]["valid_loss"] for r in tuned(results) if r.amount is None}
    report = [r for r in results.records if (r.method, r.phase) == ("a", "report")]
    assert {r.trial for r in report} == {min(whole, key=whole.get)}
    assert {(r.amount, r.rows[-1]["gradient_evaluations"]) for r in report} == {(None, 1000)}


def test_two_trials_are_run_to_the_end_where_runs_are_short():
    few = plan(["adamw", "a"], halving=2, trials=4)
    few.budget_evals["task"] = 50
    assert Counter(r.amount for r in tuned(carried_out(few, {}))) == {25: 4, None: 2}


def silent(n, tasks=("t", "u"), trials=5, noise=0.03, tuning=None, **more):
    """Of n studies of four equal methods, in how many the verdict finds no difference; and in how many it would find
    none if the noise of tuning were left out."""
    with_noise = without = 0
    for i in range(n):
        study = plan(FOUR, tasks=tasks, trials=trials, **more)
        results = carried_out(study, {}, noise=noise, tuning=tuning, rng=np.random.default_rng(i))
        with_noise += {c.outcome for c in analyse(results).verdict.values()} == {"same"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(chance, "tuning_variance", lambda losses, noise: 0.0)
            without += {c.outcome for c in analyse(results).verdict.values()} == {"same"}
    return with_noise, without


def test_with_trials_stopped_early_no_difference_is_shown_where_there_is_none():
    """In 95 of 100 studies, where tuning gives equal methods equal options."""
    assert silent(40, halving=3, tuning=0.0)[0] >= 37


def test_tuning_that_chooses_unequal_options_by_chance_makes_no_verdict():
    with_noise, without = silent(40, tasks=("t",), trials=9, noise=0.05)
    assert without <= 37
    assert with_noise >= 37


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"halving": 3}, {"tuning_seeds": [1000, 1001, 1002]}], ids=str)
@pytest.mark.parametrize(
    "noisy", [{}, {"trials": 9}, {"tasks": ("t",), "trials": 9, "noise": 0.05}, {"noise": 0.01}], ids=str
)
def test_equal_methods_have_no_verdict_in_93_of_100_studies_with_noisy_tuning(noisy, more):
    assert silent(100, **noisy, **more)[0] >= 93


def test_with_trials_stopped_early_a_planted_difference_is_found():
    right = 0
    for i in range(20):
        study = plan(["adamw", "worse", "better"], halving=3)
        found = analyse(carried_out(study, {"worse": 1.1, "better": 0.9}, rng=np.random.default_rng(i)))
        said = {m: c.outcome for m, c in found.tasks["task"].comparisons.items()}
        right += said == {"worse": "worse", "better": "better"}
    assert right >= 19


def test_a_comparison_with_halving_makes_the_runs_that_it_names(tmp_path):
    small = small_plan(tmp_path, halving=2, trials=4, budget_evals=60)
    results = alone(small, tmp_path / "alone.db")
    for method in small.methods:
        assert Counter(r.amount for r in tuned(results, method)) == {30: 4, None: 2}
        for r in tuned(results, method):
            assert (r.amount or 60) - 1 <= r.rows[-1]["gradient_evaluations"] <= (r.amount or 60)
            assert r.rows[-1]["lr"] < 0.03 * r.options["lr"]  # each length has its whole schedule


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"halving": 3, "sampler": "tpe"}, "--halving needs all trials at once"),
        ({"halving": 1}, "Invalid halving: 1"),
        ({"equal": ["epoch"]}, "Unknown budget 'epoch': did you mean 'epochs'"),
        ({"warmup": 1.5}, "Invalid warmup: 1.5"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(ValueError, match=said):
        plan_of(Options(["digits-mlp"], ["adam"], scale="tiny", **options))


# ------------------------------------------------------------------------------------------------ equal what


def twice(method):
    return (2, 1.0) if method == "two" else (1, 4.0) if method == "slow" else (1, 1.0)


def test_with_equal_epochs_two_gradients_of_a_batch_have_twice_the_gradients():
    results = carried_out(plan(["adamw", "two", "slow"], budgets=["gradients", "epochs", "seconds"]), {}, cost=twice)
    ends = {
        (r.method, r.budget): (r.rows[-1]["step"], r.rows[-1]["gradient_evaluations"], r.rows[-1]["seconds"])
        for r in results.records
        if r.phase == "report"
    }
    assert ends == {
        ("adamw", "gradients"): (1000, 1000, 20),
        ("two", "gradients"): (500, 1000, 20),
        ("two", "epochs"): (1000, 2000, 40),
        ("two", "seconds"): (500, 1000, 20),
        ("slow", "gradients"): (1000, 1000, 80),
        ("slow", "seconds"): (250, 250, 20),
    }
    for budget, lower in (("gradients", False), ("epochs", True)):
        found = analyse(results.under(budget)).tasks["task"].comparisons["two"]
        assert (found.finals.value < 0.8) is lower
    slow = analyse(results.under("seconds")).tasks["task"]
    assert slow.comparisons["slow"].finals.value > 1.5
    assert slow.outcomes["slow"].spent("seconds")[0] == 20


def test_a_run_of_equal_epochs_takes_the_batches_that_others_take(tmp_path):
    small = small_plan(tmp_path, equal=["epochs"])
    results = alone(small, tmp_path / "alone.db")
    report = [r for r in results.records if r.phase == "report" and r.budget == "epochs"]
    assert {r.method for r in report} == {"super_adam tau=1", "mine"}
    assert {(r.rows[-1]["step"], r.rows[-1]["gradient_evaluations"]) for r in report} == {(30, 59)}
    assert {r.rows[-1]["lr"] < 0.02 * r.options["lr"] for r in report} == {True}


def test_more_budgets_extend_a_comparison(tmp_path):
    one, more = small_plan(tmp_path), small_plan(tmp_path, equal=["epochs", "seconds"])
    assert more.unlike(one) == []
    assert one.unlike(more) == ["budgets"]


# ------------------------------------------------------------------------------------------------ warm-up


@pytest.mark.parametrize("decay", ["none", "cosine"])
def test_the_learning_rate_grows_over_the_warm_up(decay):
    run = Light(Config("digits-mlp", "adamw", "tiny", options={"lr": 0.1}, budget_evals=20, decay=decay, warmup=0.5))
    rates = []
    run.watcher.stepped = lambda run, loss: rates.append(run.opt.param_groups[0]["lr"])
    run.train()
    assert rates[0] == pytest.approx(0.1 * 0.002)
    assert rates[5] == pytest.approx(0.1 * 0.502 * (1 if decay == "none" else (1 + 2**-0.5) / 2))
    assert rates.index(max(rates)) in (8, 9, 10)
    assert isinstance(run, Run)


# ------------------------------------------------------------------------------------------------ the report


def test_the_report_says_what_comes_out_with_equal_epochs_and_seconds(tmp_path):
    study = plan(["adamw", "two", "slow"], budgets=["gradients", "epochs", "seconds"], halving=3, warmup=0.1)
    results = carried_out(study, {}, cost=twice)
    words = report.write(results, tmp_path)
    assert [f.outcome for f in words.findings if f.method == "two"] == ["same"]
    assert [f.outcome for f in words.budgets["epochs"] if f.method == "two"] == ["better"]
    assert [f.outcome for f in words.budgets["seconds"] if f.method == "slow"] == ["worse"]
    for text in (words.text, (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()):
        assert "With equal epochs" in text
        assert "With equal seconds" in text
    made = facts.made(results)
    assert "1 in 3 trials, but at least two, continued with runs 3 times as long" in made["tuning"]
    assert made["learning rate"] == "cosine decay after a warm-up over 10 % of the run"
