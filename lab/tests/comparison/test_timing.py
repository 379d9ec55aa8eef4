"""Comparisons that fit a time, what they can show, and runs that are not made twice."""

import dataclasses
import math
import re

import numpy as np
import pytest

import superadam_lab as lab
from comparing import METHODS, numbers, small_plan
from patience import HANGS
from simulated import carried_out, plan
from superadam_lab import tasks
from superadam_lab.comparison import engine
from superadam_lab.comparison.leaderboard.board import Board
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan import minutes as timing
from superadam_lab.comparison.plan.jobs import Job
from superadam_lab.comparison.plan.minutes import Pilot
from superadam_lab.comparison.records import Results
from superadam_lab.comparison.statistics import power
from superadam_lab.comparison.statistics.analysis import analyse
from superadam_lab.comparison.statistics.power import Noise
from superadam_lab.comparison.verdict.judging import judged
from superadam_lab.comparison.verdict.words import verdict

FOUR = ["adamw", "a", "b", "c"]


@pytest.fixture(autouse=True)
def _tasks():
    kept = dict(tasks.TASKS)
    yield
    tasks.TASKS.clear()
    tasks.TASKS.update(kept)


# ------------------------------------------------------------------------------------------------ power


def shown(difference, noise, seeds, n=60):
    """In how many of n studies a true difference of one of three methods is shown."""
    study = plan(FOUR, trials=1, report_seeds=list(range(seeds)))
    found = 0
    for i in range(n):
        results = carried_out(study, {"a": math.exp(difference)}, noise=noise, tuning=0.0, rng=np.random.default_rng(i))
        found += analyse(results).tasks["task"].comparisons["a"].outcome == "worse"
    return found / n


@pytest.mark.parametrize("seeds", [4, 8])
def test_the_least_difference_that_can_be_shown_is_right_within_a_factor_of_one_and_a_half(seeds):
    least = power.detectable([Noise(0.03 * math.sqrt(2))], seeds, family=3)
    assert shown(1.5 * least, 0.03, seeds) > power.POWER > shown(least / 1.5, 0.03, seeds)


def verdicts(study, difference, noise, n=60):
    """In how many of n studies, with the noise of tuning in them, a true difference has its verdict; and what their
    reports say that they can detect."""
    found, said = 0, []
    for i in range(n):
        results = carried_out(study, {"a": math.exp(difference)}, noise=noise, rng=np.random.default_rng(i))
        of_it = analyse(results)
        found += judged(of_it)["task"]["a"].outcome == "worse"
        said.append(power.shown(of_it))
    return found / n, said


def detected(study, noise):
    """The difference that has its verdict in 4 of 5 studies, and what reports say of it. The search is within a factor
    of 1.06."""
    least = power.detectable([Noise(noise * math.sqrt(2))], len(study.report_seeds), family=3)
    low, high = (least * f for f in (0.4, 4.0))
    while high / low > 1.12:
        middle = math.sqrt(low * high)
        share, said = verdicts(study, middle, noise)
        low, high = (middle, high) if share < power.POWER else (low, middle)
    return math.sqrt(low * high), said


def forecasts(study, noise, n=100):
    """By pilot runs with that noise, drawn n times."""
    rng = np.random.default_rng(0)
    for _ in range(n):
        common = 0.05 * rng.standard_normal(6)
        losses = {m: dict(enumerate(np.exp(common + noise * rng.standard_normal(6)))) for m in FOUR}
        yield timing.forecast(study, {("task", m): Pilot(1.0, 0.1, 0.01, 1, losses[m]) for m in FOUR})


def near(values, truth):
    """How many of 100 are within a factor of 1.5."""
    found = [1 / 1.5 < value / truth < 1.5 for value in values]
    return 100 * sum(found) / len(found)


def test_the_forecast_of_the_difference_that_has_a_verdict_is_right_within_that_factor():
    study = plan(FOUR, trials=14, report_seeds=list(range(8)))
    least = float(np.median(list(forecasts(study, 0.03, n=20))))
    assert verdicts(study, 1.5 * least, 0.03, n=30)[0] > power.POWER > verdicts(study, least / 1.5, 0.03, n=30)[0]


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"halving": 3}, {"tuning_seeds": [1000, 1001, 1002]}], ids=str)
@pytest.mark.parametrize("noise", [0.01, 0.03, 0.06])
@pytest.mark.parametrize(("seeds", "trials"), [(3, 5), (5, 9), (10, 18)])  # as `fitted` plans them
def test_forecast_and_report_say_within_that_factor_which_difference_has_a_verdict(seeds, trials, noise, more):
    """With noisy tuning, by the outcomes that are printed, and not by p alone."""
    study = plan(FOUR, trials=trials, report_seeds=list(range(seeds)), **more)
    truth, said = detected(study, noise)
    assert near(forecasts(study, noise), truth) >= 85
    assert near(said, truth) >= 65  # three seeds alone say little of their own spread
    assert 1 / 1.25 < np.median(said) / truth < 1.25


def test_tuning_noise_sets_a_limit_that_more_seeds_do_not_lower():
    assert power.detectable([Noise(0.1, tuning=0.01)], 10_000) == pytest.approx(0.28, rel=0.01)
    assert power.detectable([Noise(0.0, tuning=0.01)], 5) > power.detectable([Noise(0.0)], 5) == 0.0


def test_the_report_says_how_small_a_difference_it_could_show():
    study = plan(FOUR, report_seeds=list(range(5)))
    said = verdict(carried_out(study, {}, noise=0.03, tuning=0.0)).power
    assert said.startswith("Power: with 5 seeds and this spread of losses, a true difference of ")
    assert verdict(carried_out(dataclasses.replace(study, report_seeds=[0]), {})).power == ""


def test_what_has_no_spread_shows_everything_and_one_seed_shows_nothing():
    assert power.detectable([Noise(0.0)], 5) == 0.0
    assert power.detectable([Noise(0.1)], 1) == math.inf
    assert power.spread([{0: 1.0, 1: 2.0}]) == power.spread([{0: 1.0}, {0: 2.0}]) == math.inf
    ratios = {0: 1.0, 1: math.exp(0.1), 2: math.exp(-0.3)}
    assert power.spread([dict.fromkeys(ratios, 3.0), ratios]) == pytest.approx(np.std([0, 0.1, -0.3], ddof=1))
    assert power.spread([ratios, {k: 2 * v for k, v in ratios.items()}]) == pytest.approx(0, abs=1e-12)


# ------------------------------------------------------------------------------------------------ minutes


def pilots(study, gradient):
    return {(t, m): Pilot(0.5, 0.1, gradient, 1, {2000: 1.0}) for t in study.tasks for m in study.methods}


def test_a_longer_time_allows_more_seeds_and_trials_and_is_filled():
    study = plan(FOUR)
    before = 0
    for minutes in (6, 10, 20):
        found = timing.fitted(study, minutes, 2, pilots(study, 0.01))
        seconds = timing.seconds_of(found, pilots(study, 0.01), 2)
        assert 0.6 * 60 * minutes < seconds <= 60 * minutes
        assert len(found.report_seeds) > before
        before = len(found.report_seeds)
        assert found.trials == min(18, max(5, round(1.8 * before)))


def ends(study, minutes, slower, spent=60.0, jobs=2):
    """When a comparison is over, in minutes, on a machine that is so many times slower than the pilots said: as soon as
    all is done; if the time is over, as soon as three seeds are."""
    found = timing.fitted(study, minutes, jobs, pilots(study, 0.01), spent)
    fewest = dataclasses.replace(found, report_seeds=found.report_seeds[: timing.FEWEST])
    whole, least = (timing.seconds_of(p, pilots(p, 0.01), jobs) - timing.STARTUP for p in (found, fewest))
    done, stays = (spent + timing.STARTUP + slower * seconds / timing.SAFETY for seconds in (whole, least))
    return min(done, max(60 * minutes, stays)) / 60


def least(study, spent, jobs=2):
    """The least minutes that are not refused, by what the refusal says."""
    with pytest.raises(ValueError, match="would need about") as refused:
        timing.fitted(study, 1, jobs, pilots(study, 0.01), spent)
    return int(re.search(r"would need about (\d+)", str(refused.value))[1])


@pytest.mark.parametrize("more", [{}, {"halving": 3}, {"budgets": ["gradients", "epochs", "seconds"]}], ids=str)
@pytest.mark.parametrize("minutes", [None, 8, 10, 20, 40])
def test_pilots_count_and_a_machine_that_becomes_half_as_fast_ends_within_a_fifth_more(minutes, more):
    study = plan(FOUR, **more)
    minutes = max(minutes or 0, least(study, spent=60.0))
    for slower in (1.0, 1.3, 1.6):
        assert ends(study, minutes, slower) <= minutes
    assert ends(study, minutes, 2.0) <= 1.2 * minutes


def test_halving_allows_more_and_what_does_not_fit_is_refused_with_the_time_that_is_needed():
    study = plan(FOUR)
    whole, halved = (timing.fitted(dataclasses.replace(study, halving=h), 8, 2, pilots(study, 0.01)) for h in (None, 3))
    assert len(halved.report_seeds) > len(whole.report_seeds)
    with pytest.raises(ValueError, match="too little: 4 methods on 1 task with 2 workers would need about 6"):
        timing.fitted(study, 1, 2, pilots(study, 0.01))


def test_runs_with_other_budgets_are_counted_by_their_length():
    """With equal epochs, two gradients for each batch are two runs, and one gradient is the run that is there."""
    study = plan(["adamw", "a", "b"], trials=1, report_seeds=[0])
    given = {
        ("task", "adamw"): Pilot(0.0, 0.0, 0.02, 1, {}),
        ("task", "a"): Pilot(0.0, 0.0, 0.01, 2, {}),
        ("task", "b"): Pilot(0.0, 0.0, 0.08, 1, {}),
    }

    def seconds(*budgets):
        found = timing.seconds_of(dataclasses.replace(study, budgets=["gradients", *budgets]), given, 1)
        return (found - timing.STARTUP) / timing.SAFETY / study.budget_evals["task"]

    plain = 2 * (0.02 + 0.01 + 0.08)  # a trial and a seed of each
    assert seconds() == pytest.approx(plain)
    assert seconds("epochs") == pytest.approx(plain + 2 * 0.01)
    assert seconds("seconds") == pytest.approx(plain + 0.02 + 0.02)  # the baseline's time, for the two others
    assert seconds("epochs", "seconds") == pytest.approx(plain + 2 * 0.01 + 0.02 + 0.02)


def test_pilot_runs_measure_what_runs_take(tmp_path):
    study = small_plan(tmp_path)
    found = timing.piloted(study)
    assert {m: found["line", m].per_batch for m in study.methods} == {"adamw": 1, "super_adam tau=1": 2, "mine": 2}
    for pilot in found.values():
        assert 0 < pilot.gradient < 1
        assert all(math.isfinite(loss) for loss in pilot.losses.values())
    said = timing.said(dataclasses.replace(study, minutes=3.0))
    assert said.startswith(
        "3 minutes allow 2 trials and 2 seeds of every method. By the pilot runs, this detects differences"
    )


def test_when_the_time_is_over_seeds_that_not_all_methods_have_run_are_dropped(tmp_path):
    study = dataclasses.replace(plan(FOUR, report_seeds=list(range(8))), minutes=1.0)
    records = carried_out(study, {}).records
    report = [r for r in records if r.phase == "report"]
    some = [r for r in records if r.phase == "tune"] + [r for r in report if r.seed < 5 or r.method == "a"]
    shorter = timing.in_time(study, some)
    assert shorter.report_seeds == [0, 1, 2, 3, 4]
    assert timing.in_time(shorter, some) == shorter
    said = "--minutes 1 was over before all runs were made: 3 of 8 planned seeds were dropped"
    assert any(said in caution for caution in verdict(Results(shorter, {}, some)).cautions)
    assert timing.in_time(study, [r for r in some if r.seed < 2 or r.phase == "tune"]) is None


@pytest.mark.parametrize("without", ["epochs", "seconds"])
def test_a_seed_that_lacks_a_run_of_another_budget_is_dropped_too(without):
    study = plan(["adamw", "two"], report_seeds=list(range(5)), budgets=["gradients", "epochs", "seconds"])
    records = carried_out(study, {}, cost=lambda method: (2, 1.5) if method == "two" else (1, 1.0)).records
    some = [r for r in records if r.phase == "tune" or r.seed < 3 or r.budget != without]
    assert timing.in_time(study, records) == study
    assert timing.in_time(study, some).report_seeds == [0, 1, 2]
    assert timing.in_time(study, [r for r in some if r.phase == "report" or r.method != "two"]) is None


def test_with_minutes_tuning_comes_first_and_then_the_report_seed_by_seed(tmp_path):
    small = dataclasses.replace(small_plan(tmp_path), minutes=1.0)
    taken = []
    with engine.Queue(f"sqlite:///{tmp_path / 'order.db'}", "order", small) as queue:
        queue.put([Job("line", m, "report", 0, s, ()) for m in small.methods for s in (0, 1)])
        queue.put([Job("line", "mine", "tune", i, 1000, (), "gradients", i + 1) for i in range(2)])
        for _ in range(8):
            with queue.take() as one:
                taken.append((one.job.phase, one.job.seed))
                one.record = one.job.record("failed", [])
        shorter = dataclasses.replace(small, report_seeds=[0])
        queue.shorten(shorter)
        assert queue.plan == shorter
    assert taken == [("tune", 1000)] * 2 + [("report", 0)] * 3 + [("report", 1)] * 3


# ------------------------------------------------------------------------------------------------ reuse


def compared(folder, out, methods=METHODS, **more):
    given = {"trials": 2, "seeds": 2, "jobs": 1, "budget_evals": 10, "task_file": folder / "line_task.py"}
    return lab.compare(["line"], methods, out=folder / out, **{**given, **more})


@pytest.mark.slow  # worker processes
def test_runs_of_an_earlier_comparison_are_taken_where_they_would_be_the_same(tmp_path, monkeypatch):
    small_plan(tmp_path)
    first = compared(tmp_path, "first")
    monkeypatch.setattr(engine, "Workers", no_workers)
    again = compared(tmp_path, "again", reuse=[tmp_path / "first"])
    assert numbers(again) == numbers(first)
    assert again.environment["reused"] == [str(tmp_path / "first")]
    assert any(f"{len(first.records)} of {len(first.records)} runs were taken" in c for c in verdict(again).cautions)
    monkeypatch.undo()
    more = compared(tmp_path, "more", [*METHODS, "adam"], seeds=3, reuse=[tmp_path / "first"])
    fresh = compared(tmp_path, "fresh", [*METHODS, "adam"], seeds=3)
    assert numbers(more) == numbers(fresh)


@pytest.mark.slow  # worker processes
def test_an_embedded_task_takes_runs_of_the_folders_beside_it_by_default(tmp_path, monkeypatch):
    few = {"scale": "tiny", "trials": 2, "seeds": 3, "budget_evals": 8, "jobs": 1}
    first = lab.compare(["digits-mlp"], ["adam"], out=tmp_path / "first", **few)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "results.json").write_text("[")
    monkeypatch.setattr(engine, "Workers", no_workers)
    again = lab.compare(["digits-mlp"], ["adam"], out=tmp_path / "again", **few)
    assert numbers(again) == numbers(first)
    assert again.environment["reused"] == [str(tmp_path / "first")]
    with pytest.raises(ValueError, match="holds runs of other comparisons, whose seconds are not known here"):
        lab.compare(["digits-mlp"], ["adam"], out=tmp_path / "again", equal=["seconds"], **few)
    monkeypatch.undo()
    fresh = lab.compare(["digits-mlp"], ["adam"], out=tmp_path / "fresh", no_reuse=True, **few)
    assert numbers(fresh) == numbers(first)
    assert "reused" not in fresh.environment


def test_seconds_of_reused_runs_are_in_no_ratio_profile_or_score():
    results = carried_out(plan(["adamw", "a"], report_seeds=[0, 1, 2]), {})
    for r in results.records:
        if r.method == "adamw":
            r.rows = [{**row, "seconds": None} for row in r.rows]
    found = analyse(results)
    assert set(found.tasks["task"].comparisons["a"].times) == {"gradient_evaluations"}
    assert found.profiles["seconds"] == {"adamw": [], "a": []}
    assert len(found.profiles["gradient_evaluations"]["a"]) == 3
    assert any("their seconds are left out" in c.lower() for c in verdict(results).cautions)
    results.environment |= {"days": [], "notes": [], "made": {}}
    board = Board.of(results)
    assert all(math.isnan(row.scores["seconds"]) and row.scores["gradient_evaluations"] >= 0 for row in board.rows)


class no_workers(engine.Workers):  # noqa: N801
    """Nobody makes a run."""

    def __init__(self, storage, name, jobs, log):
        super().__init__(storage, name, 0, log)


def test_runs_of_other_code_or_other_rules_are_not_taken(tmp_path):
    from superadam_lab.comparison.plan.jobs import needed
    from superadam_lab.comparison.reuse import Reusable

    study = plan(["adamw", "adam"], trials=1)
    results = carried_out(study, {})
    results.environment |= {"code": "one", "cpu": "some"}
    results.write(tmp_path / "results.json")
    job = needed(study, [])[0]

    def found(study=study, **environment):
        return Reusable([tmp_path], study, {**results.environment, **environment}).of(job)

    assert found().rows == [{**row, "seconds": None} for row in results.records[0].rows]
    for other in ({"code": "two"}, {"torch": "3"}, {"cpu": "another"}):
        assert found(**other) is None
    for other in ({"decay": "none"}, {"budget_evals": {"task": 7}}, {"task_digest": "x"}):
        assert found(dataclasses.replace(study, **other)) is None
    with pytest.raises(ValueError, match="holds no comparison to reuse"):
        Reusable([tmp_path / "none"], study, {})
    timed = dataclasses.replace(study, budgets=["gradients", "seconds"])
    with pytest.raises(ValueError, match="--equal seconds measures how long runs take"):
        Reusable([tmp_path], timed, {})

    def beside(study):
        return Reusable(None, study, results.environment, tmp_path.parent / "next").of(job)

    assert beside(study).rows[-1]["seconds"] is None
    for other in ({"data_dir": "x"}, {"task_file": "x.py"}, {"budgets": ["gradients", "seconds"]}):
        assert beside(dataclasses.replace(study, **other)) is None


def test_methods_of_a_file_are_taken_only_from_folders_that_are_named(tmp_path):
    """The file may import another one, which has changed."""
    from superadam_lab.comparison.plan.jobs import needed
    from superadam_lab.comparison.reuse import Reusable
    from superadam_lab.user_code import sources

    file = tmp_path / "mine.py"
    file.write_text("import torch\nMine = torch.optim.SGD")
    method = f"{file}:Mine"
    study = plan([method, "adam"], trials=1, packages=sources([method]))
    results = carried_out(study, {})
    results.environment |= {"code": "one", "cpu": "some"}
    (tmp_path / "first").mkdir()
    results.write(tmp_path / "first" / "results.json")
    mine, adam = needed(study, [])
    named = Reusable([tmp_path / "first"], study, results.environment)
    beside = Reusable(None, study, results.environment, tmp_path / "second")
    assert named.of(mine) is not None
    assert beside.of(mine) is None
    assert beside.of(adam) == named.of(adam) is not None


@pytest.mark.usefixtures("copied_workers")
def test_the_second_command_of_the_same_minutes_goes_on_with_what_was_chosen(tmp_path, monkeypatch):
    small_plan(tmp_path)
    asked = Options(["line"], METHODS, minutes=HANGS, jobs=1, task_file=tmp_path / "line_task.py", out=tmp_path / "out")
    study, folder, said = engine.planned(asked)
    assert said
    folder.mkdir()
    with engine.Queue(engine._storage(folder, None), "out", study):
        pass
    monkeypatch.setattr(engine.Planner, "pilots", None)
    assert engine.planned(asked)[0] == study
