"""What a comparison promises about its runs."""

import dataclasses
import inspect
import io
import json
import math
import re
import resource
import shutil
import signal
import socket
import sqlite3
import threading
from types import SimpleNamespace
from typing import get_args

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from comparing import METHODS, alone, numbers, small_plan
from superadam.schedules import Paper
from superadam_lab import tasks
from superadam_lab.cli import app
from superadam_lab.comparison import engine, live, report, worker
from superadam_lab.comparison.options import Options, from_command_line, parameters
from superadam_lab.comparison.plan.ablations import ABLATIONS, BiasCorrectedPaper
from superadam_lab.comparison.plan.jobs import Job, best, judged, needed, scores
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.queue import RETRIES, Queue
from superadam_lab.comparison.records import Plan, Results
from superadam_lab.comparison.report import facts
from superadam_lab.comparison.verdict import words as verdict
from superadam_lab.comparison.worker import Light, config_of, run
from superadam_lab.data import DataError
from superadam_lab.methods.by_name import PAPER
from superadam_lab.runs.folders import DECAYS, Config
from superadam_lab.tasks import own, supervised


@pytest.fixture(autouse=True)
def _tasks():
    """Task files add to the tasks: forget them afterwards."""
    kept = dict(tasks.TASKS)
    yield
    tasks.TASKS.clear()
    tasks.TASKS.update(kept)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    plan = small_plan(folder)
    return plan, alone(plan, folder / "alone.db")


def of(results, method, phase):
    return [r for r in results.records if (r.method, r.phase) == (method, phase)]


def test_every_method_gets_the_same_trials_and_its_best_is_repeated_on_other_seeds(made):
    plan, results = made
    assert plan.methods == ["adamw", "super_adam tau=1", "mine"]
    tried = {m: [r.options for r in of(results, m, "tune")] for m in plan.methods}
    assert tried["mine"] == tried["adamw"] == tried["super_adam tau=1"]
    assert all(3e-4 <= options["lr"] <= 10 for options in tried["mine"])
    for method in plan.methods:
        tuned, reported = of(results, method, "tune"), of(results, method, "report")
        least = min(tuned, key=judged)
        assert [r.options for r in reported] == [least.options] * 2
        assert {r.seed for r in tuned} == {1000}
        assert [r.seed for r in reported] == [0, 1]


def test_runs_have_equal_evaluations_the_same_start_and_rows_at_the_same_places(made):
    plan, results = made
    budget = plan.budget_evals["line"]
    assert budget == 6 * 5
    for seed in plan.report_seeds:
        runs = [r for r in results.records if r.seed == seed]
        assert len({r.rows[0]["valid_loss"] for r in runs}) == 1
        assert {r.rows[-1]["gradient_evaluations"] for r in runs} == {budget, budget - 1}
    (adamw, *_), (two, *_) = of(results, "adamw", "report"), of(results, "super_adam tau=1", "report")
    places = [[row["gradient_evaluations"] for row in one.rows] for one in (adamw, two)]
    assert places == [[0, 8, 15, 23, 30], [0, 9, 15, 23, 29]]  # every 7.5; two come at a time
    assert all("test_loss" in row and "monitor" not in row for row in adamw.rows)


def test_the_lr_is_decayed_by_gradient_evaluations_for_all_methods_alike(made):
    plan, results = made
    for method in plan.methods:
        record = of(results, method, "report")[0]
        for row in record.rows[1:]:
            before = max(0, row["gradient_evaluations"] - (1 if method == "adamw" else 2))
            expected = record.options["lr"] * (1 + math.cos(math.pi * before / 30)) / 2
            assert row["lr"] == pytest.approx(expected, rel=1e-12)


def test_one_method_under_two_names_is_tuned_alike_and_shows_no_difference(tmp_path):
    small_plan(tmp_path)
    methods = ["super_adam tau=0.1", "twin: super_adam tau=0.1", "mirror: adamw"]
    plan = plan_of(Options(["line"], methods, trials=3, seeds=3, task_file=tmp_path / "line_task.py"))
    results = alone(plan, tmp_path / "alone.db")

    def of_method(name):
        return [(r["trial"], r["seed"], r["rows"]) for r in numbers(results) if r["method"] == name]

    assert of_method("twin") == of_method("super_adam tau=0.1") != of_method("adamw") == of_method("mirror")
    (finding,) = [f for f in verdict.verdict(results).findings if f.method == "mirror"]
    assert finding.outcome == "same"


def test_the_report_says_how_large_a_task_of_ones_own_is(made, tmp_path):
    plan, results = made
    sizes = "line: 57 parameters, 100 training examples, batch 20"  # 5 · 8 + 8 and 8 + 1; batch of the file
    assert facts.made(results)["sizes"] == sizes
    report.write(results, tmp_path)
    assert f"<dt>sizes</dt><dd>{sizes}</dd>" in (tmp_path / "report.html").read_text()
    assert f"- sizes: {sizes}\n" in (tmp_path / "report.md").read_text()
    other = plan_of(Options(["line"], ["adam"], sizes={"batch": 50, "epochs": 2}, task_file=plan.task_file))
    assert facts.made(Results(other, {}, []))["sizes"] == (
        "line: 57 parameters, 100 training examples, batch 50, epochs 2"
    )
    assert "sizes" not in facts.made(Results(dataclasses.replace(plan, dimensions={}), {}, []))  # of an older version


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("digits-mlp", "2,410 parameters, 1,000 training examples, batch 32, hidden 32, rows all, epochs 15"),
        ("pydoc-lstm", r"[\d,]+ parameters, 590 training words, batch 10"),
        ("simplex-regression", "10 parameters, 64 training examples, batch 16"),
    ],
)
def test_the_report_says_how_large_the_embedded_tasks_are(task, sizes):
    plan = plan_of(Options([task], ["sgd"], scale="tiny"))
    assert re.fullmatch(f"{task}: {sizes}", facts.made(Results(plan, {}, []))["sizes"])


def test_sizes_for_the_report_do_not_make_another_comparison(made):
    """One that an earlier version has begun knows none."""
    plan, _ = made
    older = dataclasses.replace(plan, dimensions={})
    assert (plan.unlike(older), older.unlike(plan)) == ([], [])


def test_results_can_be_written_and_read_and_so_can_half_of_them(made, tmp_path):
    _, results = made
    for some in (results, dataclasses.replace(results, records=results.records[:3])):
        some.write(tmp_path / "results.json")
        assert numbers(Results.read(tmp_path / "results.json")) == numbers(some)


def test_what_the_record_of_a_comparison_needs_is_in_the_data_base_alone(made, tmp_path):
    plan, results = made
    found = alone(plan, tmp_path / "again.db")  # made again, from another file
    assert numbers(found) == numbers(results)
    assert sqlite3.connect(tmp_path / "again.db").execute("select count(*) from superadam_runs").fetchone() == (12,)


# ------------------------------------------------------------------------------------------------ what is chosen


def record(trial, loss, seed=1000, status="finished", lr=0.1):
    return Job("digits-mlp", "adamw", "tune", trial, seed, (("lr", lr),)).record(status, [{"valid_loss": loss}])


def test_the_best_is_the_least_mean_over_tuning_seeds_divergence_is_worst_and_ties_go_to_the_first():
    plan = Plan(["digits-mlp"], ["adamw"], trials=4, tuning_seeds=[1000, 1001])
    losses = {0: (2.0, 2.0), 1: (1.0, 1.5), 2: (1.5, 1.0), 3: (0.1, 0.1)}
    records = [record(i, x, 1000 + s) for i, pair in losses.items() for s, x in enumerate(pair)]
    assert best(plan, records)[0] == 3
    records[-1].status = "diverged"
    assert best(plan, records)[0] == 1
    assert scores(plan, records)[3][1] == math.inf
    assert best(plan, records[:-1]) is None
    assert best(plan, [*records[::-1]])[0] == 1


def test_where_all_diverge_the_first_is_repeated():
    plan = Plan(["digits-mlp"], ["adamw"], trials=2)
    assert best(plan, [record(i, None, status="diverged") for i in range(2)])[0] == 0


@pytest.mark.parametrize("sampler", ["qmc", "random", "tpe"])
def test_trials_depend_on_the_plan_and_on_results_alone(sampler):
    plan = Plan(["digits-mlp"], ["adamw", "sgd"], trials=6, sampler=sampler, space={"lr": (1e-3, 1.0)})

    def tried():
        records = []
        while len(records) < 6:
            known = {Job.of(r) for r in records}
            jobs = [j for j in needed(plan, records) if j.method == "adamw" and j.phase == "tune" and j not in known]
            for job in jobs:
                loss = abs(math.log(dict(job.options)["lr"] / 0.03))
                records.append(job.record("finished", [{"valid_loss": loss}]))
        return [r.options["lr"] for r in records]

    first = tried()
    assert first == tried()
    assert len(set(first)) == 6
    assert all(1e-3 <= lr <= 1 for lr in first)


def test_quasi_random_learning_rates_leave_no_large_gap():
    points = sorted(dict(j.options)["lr"] for j in needed(Plan(["digits-mlp"], ["adamw"]), []))
    decades = [math.log10(b / a) for a, b in zip([3e-4, *points], [*points, 10.0], strict=True)]
    assert len(points) == 9
    assert max(decades) < 0.75


# ------------------------------------------------------------------------------------------------ the queue


def jobs(n):
    return [Job("line", "adamw", "tune", i, 1000, (("lr", 0.1),)) for i in range(n)]


def test_a_run_is_taken_once_and_what_is_given_back_is_made_again(tmp_path):
    url, plan = f"sqlite:///{tmp_path / 'q.db'}", Plan(["line"], ["adamw"])
    with Queue(url, "q", plan) as queue, Queue(url, "q") as other:
        queue.put(jobs(2))
        queue.put(jobs(2))
        with queue.take() as a, other.take() as b:
            assert {a.job.trial, b.job.trial} == {0, 1}
            with queue.take() as nothing:
                assert nothing is None
            queue.revive()  # both workers live
            assert len(queue.running()) == 2
            a.record = a.job.record("finished", [{"valid_loss": 1.5, "seconds": None}])
        assert queue.records() == [a.record]
        with queue.take() as again:
            assert again.job == b.job
            again.record = again.job.record("diverged", [])
        assert other.records() == [a.record, again.record]


def test_a_run_whose_workers_die_again_and_again_has_failed(tmp_path):
    with Queue(f"sqlite:///{tmp_path / 'q.db'}", "q", Plan(["line"], ["adamw"])) as queue:
        queue.put(jobs(1))
        for _ in range(RETRIES + 1):
            assert queue.records() == []
            with queue.take() as taken:
                assert taken is not None
        with queue.take() as taken:
            assert taken is None
        assert [(r.status, r.rows) for r in queue.records()] == [("failed", [])]


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_silent_worker_is_taken_for_dead_on_another_machine_only(tmp_path, monkeypatch, elsewhere):
    """Here it is known to live: the machine may be busy."""
    monkeypatch.setattr("superadam_lab.comparison.queue.BEAT", 3600)
    database, host = tmp_path / "q.db", socket.gethostname()
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere" if elsewhere else host)
    with Queue(f"sqlite:///{database}", "q", Plan(["line"], ["adamw"])) as queue:
        queue.put(jobs(1))
        with queue.take():
            monkeypatch.setattr("socket.gethostname", lambda: host)
            with sqlite3.connect(database) as long_ago:
                long_ago.execute("update superadam_runs set alive = '2020-01-01 00:00:00'")
            queue.revive()
            assert len(queue.running()) == (0 if elsewhere else 1)
        with queue.take() as again:
            assert again.job == jobs(1)[0]


def test_a_plan_is_not_mixed_with_another(tmp_path):
    url = f"sqlite:///{tmp_path / '{q}.db'}"
    Queue(url, "q", Plan(["line"], ["adamw"])).close()
    Queue(url, "q", Plan(["line"], ["adamw"])).close()
    with pytest.raises(ValueError, match=r"differs in trials \(9 there, 7 here\)"):
        Queue(url, "q", Plan(["line"], ["adamw"], trials=7))
    with pytest.raises(ValueError, match=r"differs in methods .*seeds can be added to it"):
        Queue(url, "q", Plan(["line"], ["adam"]))
    with pytest.raises(ValueError, match="holds no comparison 'p': it holds q"):
        Queue(url, "p")


@pytest.mark.parametrize(
    "changed",
    [
        {"trials": 7},
        {"tuning_seeds": [1000, 1001]},
        {"report_seeds": [1, 2, 3, 4, 5]},
        {"budget_evals": {"line": 9}},
        {"sizes": {"line": {"batch": 1}}},
        {"compositions": {"mine": "adam"}},
        {"data_dir": "there"},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_only_tasks_methods_and_seeds_extend_a_plan(changed):
    options = {
        "budget_evals": {"line": 8},
        "sizes": {"line": {}},
        "compositions": {"mine": "adamw"},
        "data_dir": "here",
    }
    plan = Plan(["line"], ["adamw", "mine"], **options)
    more = {"tasks": ["line", "other"], "methods": ["mine", "adamw", "adam"], "report_seeds": [0, 1, 2, 3, 4, 5]}
    larger = dataclasses.replace(plan, **more, budget_evals={"line": 8, "other": 3})
    assert larger.unlike(plan) == []
    assert plan.unlike(larger) == ["tasks", "methods", "report_seeds", "budget_evals"]
    assert dataclasses.replace(larger, **changed).unlike(plan) == list(changed)


def test_a_comparison_that_is_extended_is_the_whole_one_and_keeps_its_runs(made, tmp_path):
    """Half of the methods and seeds, then all; a worker of the first half goes on with the second."""
    plan, whole = made
    half = dataclasses.replace(plan, methods=plan.methods[:2], report_seeds=plan.report_seeds[:1], compositions={})
    url = f"sqlite:///{tmp_path / 'q.db'}"
    with Queue(url, "q", half, {"command": "half", "torch": "2"}) as queue:
        records = []
        while len(records) < engine.plan_size(half):
            queue.put(needed(queue.plan, records))
            worker._one(queue, None, None, str)
            records = queue.records()
        Queue(url, "q", plan, {"command": "whole", "torch": "3"}).close()
        added = 0
        while len(records) < engine.plan_size(plan):
            queue.put(needed(queue.plan, records))
            added += worker._one(queue, None, None, str) is not None
            records = queue.records()
        results = queue.results()
    assert added == engine.plan_size(plan) - engine.plan_size(half)
    assert numbers(results) == numbers(whole)
    earlier = [{"command": "half", "torch": "2", "report_seeds": [0]}]
    assert results.environment == {
        "command": "whole",
        "torch": "3",
        "earlier": earlier,
        "hosts": [socket.gethostname()],
    }
    cautions = verdict.verdict(results).cautions
    (added_seed,) = [c for c in cautions if c.startswith("1 of the 2 seeds were added to a comparison of the others.")]
    assert "superadam report FOLDER --first-seed 1`" in added_seed
    assert facts.made(results)["earlier"] == "seed 0, started ? (torch 2)"
    assert "Runs were made with different versions of torch: 2 and 3." in cautions
    new = results.only(seeds=[1])
    assert {r.seed for r in new.records if r.phase == "report"} == {1}
    assert not any("were added" in caution for caution in verdict.verdict(new).cautions)


def test_a_comparison_that_goes_on_with_other_code_keeps_what_it_was_begun_with(made, tmp_path):
    """Workers refuse other code than the environment's, so it must be that of the process that goes on."""
    plan, _ = made
    url = f"sqlite:///{tmp_path / 'q.db'}"
    Queue(url, "q", plan, {"torch": "2", "code": "a"}).close()
    with Queue(url, "q", plan, {"torch": "2", "code": "a", "command": "again"}) as queue:
        assert queue.environment == {"torch": "2", "code": "a"}
    with Queue(url, "q", plan, {"torch": "2", "code": "b"}) as queue:
        seeds = plan.report_seeds
        earlier = [{"torch": "2", "code": "a", "report_seeds": seeds}]
        assert queue.environment == {"torch": "2", "code": "b", "earlier": earlier}
        said = verdict.verdict(queue.results()).cautions
    assert "Runs were made with different versions of the code of superadam: a and b." in said


def test_a_copied_or_renamed_folder_goes_on_and_loses_nothing(made, tmp_path):
    """What is in a folder belongs to it, whatever its name; and no results.json is replaced by less."""
    plan, results = made
    folder = tmp_path / "first"
    folder.mkdir()
    alone(plan, folder / "comparison.db")  # under another name than the folder's
    results.write(folder / "results.json")
    folder.rename(tmp_path / "second")
    again = engine.carry_out(plan, tmp_path / "second", jobs=0)
    assert numbers(again) == numbers(results)
    shutil.copytree(tmp_path / "second", tmp_path / "third")
    more = small_plan(tmp_path, seeds=3)
    more = dataclasses.replace(plan, report_seeds=more.report_seeds)
    with pytest.raises(KeyboardInterrupt):
        engine.carry_out(more, tmp_path / "third", jobs=0, listener=stopped)
    assert len(Results.read(tmp_path / "third" / "results.json").records) == len(results.records)


@pytest.mark.parametrize("database", ["gone", "empty"])
def test_results_without_their_database_are_gone_on_with(made, tmp_path, database):
    plan, results = made
    results.write(tmp_path / "results.json")
    if database == "empty":
        (tmp_path / "comparison.db").touch()
    more = dataclasses.replace(plan, report_seeds=[*plan.report_seeds, 7])
    with pytest.raises(KeyboardInterrupt):
        engine.carry_out(more, tmp_path, jobs=0, listener=stopped)
    there = Results.read(tmp_path / "results.json")
    assert numbers(there) == numbers(results)
    assert there.plan.report_seeds == more.report_seeds
    assert there.environment["earlier"][0]["report_seeds"] == plan.report_seeds
    with pytest.raises(ValueError, match="differs in trials"):
        engine.carry_out(dataclasses.replace(plan, trials=3), tmp_path, jobs=0)
    assert numbers(Results.read(tmp_path / "results.json")) == numbers(results)


def stopped(queue, records):
    raise KeyboardInterrupt


def test_who_extends_a_comparison_is_not_stopped_by_the_end_of_the_smaller_one(made, tmp_path):
    plan, _ = made
    half = dataclasses.replace(plan, report_seeds=plan.report_seeds[:1])
    url = f"sqlite:///{tmp_path / 'q.db'}"
    with Queue(url, "q", half) as first, Queue(url, "q", plan) as second:
        first.end(half)
        assert not second.ended
        assert first.plan == plan
        second.end(plan)
        assert first.ended


def test_runs_that_are_not_of_the_plan_are_left_alone(made, tmp_path):
    """Two processes that extend a comparison at the same moment: the plan is that of one of them."""
    plan, _ = made
    with Queue(f"sqlite:///{tmp_path / 'q.db'}", "q", plan) as queue:
        stray = Job("line", "another", "tune", 0, 1000, (("lr", 0.1),))
        queue.put([stray, dataclasses.replace(stray, method="adamw", seed=999), *jobs(1)])
        with queue.take() as taken:
            assert taken.job == jobs(1)[0]
            taken.record = taken.job.record("finished", [])
        with queue.take() as taken:
            assert taken is None
        assert [r.method for r in queue.results().records] == ["adamw"]


# ------------------------------------------------------------------------------------------------ runs


def test_a_run_that_diverges_is_a_result(tmp_path):
    plan = small_plan(tmp_path)
    ended = run(plan, Job("line", "adamw", "tune", 0, 1000, (("lr", 1e30),)))
    assert ended.status == "diverged"
    assert judged(ended) == math.inf
    json.dumps(ended.rows, allow_nan=False)


def test_a_run_that_raises_is_a_result_and_says_why(tmp_path, capfd):
    plan = small_plan(tmp_path)
    plan.compositions["broken"] = "adamw betas=[2, 0.9]"
    ended = run(plan, Job("line", "broken", "tune", 0, 1000, (("lr", 0.1),)))
    assert (ended.status, ended.rows) == ("failed", [])
    assert "Invalid beta parameter" in capfd.readouterr().err


def test_a_signal_gives_a_run_back(tmp_path, monkeypatch):
    plan = small_plan(tmp_path)
    step = Light._step

    def interrupted(self, batch):
        signal.raise_signal(signal.SIGTERM)
        return step(self, batch)

    with Queue(f"sqlite:///{tmp_path / 'q.db'}", "q", plan) as queue:
        queue.put(jobs(1))
        monkeypatch.setattr(Light, "_step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.work(f"sqlite:///{tmp_path / 'q.db'}", "q")
        monkeypatch.undo()
        with queue.take() as again:
            assert again.job == jobs(1)[0]


def test_other_masks_make_the_two_gradients_of_a_batch_differ_by_more_than_the_move(tmp_path):
    """At lr = 0 the point stays, so that with the same masks both gradients are the same. Nobody is warned of what was
    asked for."""
    plan = small_plan(tmp_path)

    def losses(method):
        one = Light(config_of(plan, Job("line", method, "tune", 0, 0, (("lr", 0.0),))))
        seen, loss = [], one.workload.loss
        one.workload.loss = lambda batch, memory=None: seen.append(loss(batch, memory)) or seen[-1]
        one.train()
        values = [found[0].item() for found in seen]
        return list(zip(values[1::2], values[2::2], strict=True))  # the first batch is evaluated once

    assert all(a == b for a, b in losses("super_adam tau=1"))
    assert all(a != b for a, b in losses("super_adam tau=1 replay=false"))


# ------------------------------------------------------------------------------------------------ plans


def test_the_default_is_the_paper_and_adamw_and_ablations_are_added():
    plan = plan_of(Options(["digits-mlp"], scale="tiny"))
    assert plan.methods == ["adamw", *PAPER]
    assert plan.budget_evals == {"digits-mlp": 15 * 32}
    more = plan_of(Options(["digits-mlp"], [], scale="tiny", ablations=True))
    assert more.methods == ["adamw", *ABLATIONS]
    assert [BiasCorrectedPaper().mu_t(t, 0.0) for t in (1, 50)] == [Paper().mu_t(t, 0.0) for t in (1, 50)]


COMPOSITIONS = [
    'super_adam schedule={"type": "Constant", "alpha": 0.1}',
    'super_adam schedule=BiasCorrected matrix={"type": "SecondMoment", "bias_correction": true}',
    'super_adam tau=0.1 schedule={"type":"Constant","alpha":0.2}',
    'super_adam estimator={"type": "Averaged", "tau": 1.0, "beta": 0.9, "guard": 2.0, "own": false}',
    'super_adam estimator={"type": "Mars", "tau": 0.05, "alpha": 0.1, "bound": null, "previous_batch": true}',
    "adamw iterate=Nigt",
    "super_adam matrix=Belief",
    "super_adam tau=1 matrix=Yogi clip=1.0",
    "mars_approx gamma=0.05 betas=[0.9, 0.99]",
]


def test_the_baseline_can_be_said_by_the_name_of_a_method():
    strong = "adamw lr=3e-4:0.1 betas.1=0.9:0.999"
    for baseline in ("AdamW", f"AdamW: {strong}"):
        plan = plan_of(Options(["digits-mlp"], ["sgd", f"AdamW: {strong}"], baseline=baseline, scale="tiny"))
        assert (plan.baseline, plan.methods) == ("AdamW", ["AdamW", "sgd"])
        assert plan.compositions == {"AdamW": strong}
        assert plan.space_of("AdamW") == {"lr": (3e-4, 0.1), "betas.1": (0.9, 0.999)}
    mine = plan_of(Options(["digits-mlp"], ["adamw: torch.optim.AdamW"], scale="tiny"))  # it has the default's name
    assert mine.compositions == {mine.baseline: "torch.optim.AdamW"}


def test_compositions_can_be_said(made):
    methods = [f"c{i}: {text}" for i, text in enumerate(COMPOSITIONS)]
    plan = plan_of(Options(["line"], methods, sizes={"batch": 50}, task_file=made[0].task_file))
    assert list(plan.compositions.values()) == COMPOSITIONS
    assert plan.budget_evals == {"line": 6 * 2}


@pytest.mark.parametrize(
    ("args", "suggestion"),
    [
        (("digits-mpl",), "did you mean 'digits-mlp'?"),
        (("digits-mlp", "--methods", "adamm"), "did you mean 'adam'?"),
        (("digits-mlp", "--methods", "a: adam", "--methods", "a: sgd"), "Two methods of the name 'a'"),
        (("digits-mlp", "--methods", "AdamW: adamw eps=0.1"), "both 'adamw' and 'AdamW' as 'AdamW'"),
        (("digits-mlp", "--baseline", "AdamW"), "did you mean 'adamw'?"),
        (("digits-mlp", "--methods", "mine: sgd", "--baseline", "mien"), "did you mean 'mine'?"),
        (("digits-mlp", "--methods", "super_adam matrix=Beleif"), "did you mean 'Belief'?"),
        (("simplex-regression", "--methods", "adam_plus"), "simplex-regression with adam_plus"),
        (("digits-mlp", "--sampler", "qcm"), "did you mean 'qmc'?"),
        (("digits-mlp", "--decay", "cosin"), "did you mean 'cosine'?"),
        (("digits-mlp", "--tune", "lr=1"), "expected key=low:high"),
        (("digits-mlp", "--tune", "lr=1:0.1"), "expected 0 < low < high"),
        (("digits-mlp", "--tune", "lrr=1:2"), "did you mean 'lr'?"),
        (("digits-mlp", "--size", "bacth=2"), "did you mean 'batch'?"),
        ((), "No task"),
        (("--task-file", "nothing.py"), "no task file"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_is_run(tmp_path, monkeypatch, args, suggestion):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["compare", "--scale", "tiny", *args])
    assert result.exit_code == 2, result.output
    assert suggestion in result.stderr
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------------------------ what is seen


def test_every_option_is_one_of_the_command_with_the_default_and_a_help_of_the_class():
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).stdout
    keywords = inspect.signature(engine.compare).parameters
    assert list(keywords) == [field.name for field in dataclasses.fields(Options)]
    for parameter in parameters():
        name = {"tasks": "[TASK...]", "sizes": "--size "}.get(parameter.name, f"--{parameter.name.replace('_', '-')} ")
        assert name in shown
        assert parameter.default in (keywords[parameter.name].default, None)
        (about,) = get_args(parameter.annotation)[1:]
        assert about.help.split()[0] in shown


def test_options_of_the_command_are_those_of_python():
    args = {parameter.name: parameter.default for parameter in parameters()}
    assert from_command_line(args) == Options()
    asked = from_command_line({**args, "tasks": ["nmf"], "tune": ["lr=1e-3:1", "clip=1:2"], "sizes": ["batch=64"]})
    assert asked == Options(["nmf"], tune={"lr": (1e-3, 1.0), "clip": (1.0, 2.0)}, sizes={"batch": 64})
    with pytest.raises(TypeError, match="trails"):
        engine.compare(["nmf"], trails=3)


@pytest.fixture
def command(made, tmp_path, monkeypatch):
    """The comparison as a command, whose runs are made already."""
    plan, results = made

    def carry_out(asked, folder, storage, jobs, listener, reuse, begun):
        assert (asked, storage, jobs) == (plan, None, 3)
        folder.mkdir()
        listener(SimpleNamespace(plan=plan), results.records[:5])
        listener(SimpleNamespace(plan=plan), results.records)
        return results

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(engine, "carry_out", carry_out)
    said = SimpleNamespace(short="AdamW it is.", text="AdamW it is, in all words.")
    monkeypatch.setattr(engine, "report", lambda results, folder, *, per_task: said)
    args = ["compare", "--task-file", plan.task_file, "--trials=2", "--seeds=2", "--jobs=3", "--out=here"]
    args += [f"--methods={m}" for m in METHODS[1:]]
    return lambda *more: CliRunner().invoke(app, [*args, *more])


def test_the_command_ends_with_the_verdict_and_the_path(command):
    ended = command()
    assert ended.exit_code == 0, ended.output
    first, *lines = ended.stdout.splitlines()
    assert first == "3 methods with 2 trials and 2 seeds each: 12 runs in here. Gradient evaluations per run: line 30"
    assert lines[:2] == ["5 of 12 runs", "12 of 12 runs, about 0 s left"]
    assert lines[2:] == ["AdamW it is.", "Report: here/report.html; numbers: here/results.json"]


def test_verbose_prints_all_of_it(command):
    assert "AdamW it is, in all words." in command("--verbose").stdout.splitlines()


def test_a_report_can_be_had_anew_and_of_some_seeds_alone(made, tmp_path):
    _, results = made
    results.write(tmp_path / engine.RESULTS)
    for args, place in (([], tmp_path), (["--first-seed", "1"], tmp_path / "seeds-from-1")):
        ended = CliRunner().invoke(app, ["report", str(tmp_path), *args])
        assert ended.exit_code == 0, ended.output
        text = (place / "report.md").read_text()
        assert (place / "report.html").exists()
        assert ("on seeds 0, 1;" if place == tmp_path else "on seed 1;") in text
    ended = CliRunner().invoke(app, ["report", str(tmp_path), "--first-seed", "2"])
    assert (ended.exit_code, "No seed is 2 or higher" in ended.output) == (2, True)
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nothing")]).exit_code == 2


def test_a_report_leaves_the_results_that_it_is_of_and_those_of_others(made, tmp_path):
    """Whatever --out is: its only source, by another name too, or the folder of a larger comparison."""
    _, results = made
    source, link = tmp_path / "source", tmp_path / "link"
    source.mkdir()
    link.symlink_to(source)
    results.write(source / engine.RESULTS)
    dataclasses.replace(results, records=results.records[:-1]).write(tmp_path / engine.RESULTS)
    before = (source / engine.RESULTS).stat().st_ino, (source / engine.RESULTS).read_bytes()

    def report(*args):
        return CliRunner().invoke(app, ["report", *map(str, args)])

    for out in (source, link):
        assert report(source, "--out", out).exit_code == 0
        ended = report(source, "--first-seed", "1", "--out", out)
        assert ended.exit_code == 2
        assert "holds 3 runs that this report leaves out (seeds 0). It is not replaced" in ended.stderr
    ended = report(tmp_path, "--out", source)
    assert ended.exit_code == 2
    assert "holds 1 runs that this report leaves out (seeds 1)" in ended.stderr
    assert before == ((source / engine.RESULTS).stat().st_ino, (source / engine.RESULTS).read_bytes())
    assert "on seeds 0, 1;" in (source / "report.md").read_text()


def test_a_full_disk_leaves_a_report_as_it_was(made, tmp_path):
    _, results = made
    results.write(tmp_path / engine.RESULTS)
    assert CliRunner().invoke(app, ["report", str(tmp_path)]).exit_code == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        ended = CliRunner().invoke(app, ["report", str(tmp_path)])
        with pytest.raises(OSError, match="File too large"):
            results.write(tmp_path / engine.RESULTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert ended.exit_code == 2
    assert "File too large" in ended.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_ctrl_c_says_how_to_go_on(command, monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(engine, "carry_out", interrupted)
    ended = command()
    assert ended.exit_code == 130
    assert "The same command resumes here" in ended.stdout


def test_what_is_there_is_written_when_a_comparison_is_stopped(tmp_path):
    def stop(queue, records):
        with queue.take() as taken:
            taken.record = taken.job.record("finished", [{"valid_loss": 1.0}])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.carry_out(small_plan(tmp_path), tmp_path / "out", jobs=0, listener=stop)
    assert len(Results.read(tmp_path / "out" / "results.json").records) == 1


def test_the_table_on_a_terminal_keeps_up_to_date(made):
    plan, results = made
    console = Console(force_terminal=True, width=120, file=io.StringIO())
    with live.Shown(console) as shown:
        for n in (0, 1, 3, 12):
            shown(SimpleNamespace(plan=plan), results.records[:n])
    text = console.file.getvalue()
    for part in ("…", "1/2 · ", "2/2 · ", " · 1/2", " · 2/2", "12 of 12 runs", "mine"):
        assert part in text
    assert [live._time(t) for t in (9.0, 600.0, 9000.0)] == ["9 s", "10 min", "2.5 h"]


def test_a_worker_ends_with_the_comparison(made, tmp_path):
    url = f"sqlite:///{tmp_path / 'q.db'}"
    with Queue(url, "q", made[0]) as queue:
        queue.end(queue.plan)
    ended = CliRunner().invoke(app, ["worker", url, "q", "--trust"])
    assert ended.stdout == "The comparison has ended. This worker made 0 runs.\n"
    refused = CliRunner().invoke(app, ["worker", url, "q"])  # the task file that a database names is not run unasked
    assert (refused.exit_code, "line_task.py. If you trust" in refused.stderr) == (2, True)
    wrong = CliRunner().invoke(app, ["worker", url, "p"])
    assert wrong.exit_code == 2
    assert "holds no comparison 'p': it holds q" in wrong.stderr


# ------------------------------------------------------------------------------------------------ own tasks, decay


def test_a_task_file_without_a_task_is_refused(tmp_path):
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    with pytest.raises(ValueError, match="defines no task"):
        own.load(path)


def test_tensors_of_a_split_must_belong_together():
    with pytest.raises(ValueError, match="one row for each example"):
        supervised.Tensors((torch.zeros(3), torch.zeros(4)))


def test_decays_start_at_one_and_end_at_zero():
    for name in ("cosine", "linear"):
        assert DECAYS[name](0.0) == 1
        assert DECAYS[name](1.0) == pytest.approx(0, abs=1e-15)
        assert DECAYS[name](0.5) == pytest.approx(0.5)
    assert DECAYS["warmup-cosine"](0.0) < 0.05 < 0.9 < DECAYS["warmup-cosine"](0.1)
    with pytest.raises(ValueError, match="needs an end that is known"):
        Config("digits-mlp", decay="cosine", budget_seconds=1.0)


def test_stopping_politely_again_and_again_loses_nothing(tmp_path):
    plan = small_plan(tmp_path)
    with Queue(f"sqlite:///{tmp_path}/db", "stops", plan) as queue:
        queue.put(needed(plan, [])[:1])
        for _ in range(RETRIES + 3):
            assert len(queue.entries("waiting")) == 1
            with pytest.raises(KeyboardInterrupt), queue.take():
                raise KeyboardInterrupt
        assert not queue.records()
        with queue.take() as taken:
            assert taken is not None
            taken.record = run(plan, taken.job)
        assert [r.status for r in queue.records()] == ["finished"]


def test_a_kill_before_a_run_is_given_back_loses_no_run(tmp_path, monkeypatch):
    plan = small_plan(tmp_path)
    jobs = needed(plan, [])[:1]
    with Queue(f"sqlite:///{tmp_path}/db", "gap", plan) as queue:
        queue.put(jobs)
        with monkeypatch.context() as killed:
            killed.setattr(queue, "_give_back", lambda entry, counting: None)
            with pytest.raises(KeyboardInterrupt), queue.take():
                raise KeyboardInterrupt
        queue.put(jobs)
        with queue.take() as taken:
            assert taken is None  # its worker, this process, lives
        monkeypatch.setattr("superadam_lab.comparison.queue.gone", lambda worker: True)
        queue.revive()
        with queue.take() as taken:
            assert taken is not None
            taken.record = run(plan, taken.job)
        assert [(entry.state, entry.deaths) for entry in queue.entries()] == [("done", 1)]


def test_a_worker_that_was_taken_for_dead_still_leaves_its_result_and_the_first_one_counts(tmp_path, monkeypatch):
    with Queue(f"sqlite:///{tmp_path / 'q.db'}", "q", Plan(["line"], ["adamw"])) as queue:
        queue.put(jobs(1))
        with queue.take() as slow:
            monkeypatch.setattr("superadam_lab.comparison.queue.gone", lambda worker: True)
            queue.revive()
            monkeypatch.undo()
            with queue.take() as second:
                assert second.job == slow.job
                second.record = second.job.record("finished", [{"valid_loss": 1.0}])
            slow.record = slow.job.record("finished", [{"valid_loss": 2.0}])
        assert queue.records() == [second.record]


def test_a_run_that_many_try_to_claim_at_once_is_made_by_one(tmp_path):
    url = f"sqlite:///{tmp_path / 'q.db'}"
    barrier, made = threading.Barrier(4), []

    def worker():
        with Queue(url, "q") as queue:
            barrier.wait()
            while True:
                with queue.take() as taken:
                    if taken is None:
                        return
                    made.append(taken.job)
                    taken.record = taken.job.record("finished", [])

    with Queue(url, "q", Plan(["line"], ["adamw"])) as queue:
        queue.put(jobs(12))
        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(job.trial for job in made) == list(range(12))
        assert len(queue.records()) == 12


def test_a_comparison_of_an_earlier_version_is_refused_by_name(tmp_path):
    """It was a study of Optuna, with the same plan."""
    optuna = pytest.importorskip("optuna")
    url, plan = f"sqlite:///{tmp_path / 'old.db'}", Plan(["line"], ["adamw"])
    optuna.create_study(storage=url, study_name="old")
    for mine in (None, plan):
        with pytest.raises(ValueError, match=r"holds the comparison 'old' of an earlier version.*--out"):
            Queue(url, "old", mine)
    Queue(url, "new", plan).close()  # beside it


def test_a_worker_without_the_data_gives_its_run_back(tmp_path):
    plan = small_plan(tmp_path)
    plan.tasks, plan.data_dir = ["cifar10-resnet18"], str(tmp_path / "nowhere")
    plan.budget_evals, plan.sizes = {"cifar10-resnet18": 2}, {}
    job = dataclasses.replace(needed(small_plan(tmp_path), [])[0], task="cifar10-resnet18")
    with pytest.raises(DataError):
        run(plan, job)


def test_a_task_file_that_has_changed_is_another_comparison(tmp_path):
    plan = small_plan(tmp_path)
    with Queue(f"sqlite:///{tmp_path}/db", "edited", plan):
        pass
    file = tmp_path / "line_task.py"
    file.write_text(file.read_text().replace("nn.Linear(5, 8)", "nn.Linear(5, 9)").replace("(8, 1)", "(9, 1)"))
    edited = plan_of(Options(["line"], METHODS, trials=2, seeds=2, task_file=file))
    with pytest.raises(ValueError, match="differs in task_digest"):
        Queue(f"sqlite:///{tmp_path}/db", "edited", edited)
    with pytest.raises(ValueError, match=r"line_task.py is not the task file with which this comparison was started"):
        worker.work(f"sqlite:///{tmp_path}/db", "edited")


def test_a_worker_without_the_device_leaves_before_it_takes_a_run(tmp_path):
    plan = dataclasses.replace(small_plan(tmp_path), device="mps" if torch.cuda.is_available() else "cuda")
    with Queue(f"sqlite:///{tmp_path}/db", "elsewhere", plan) as queue:
        queue.put(needed(plan, []))
        with pytest.raises(ValueError, match="does not work here"):
            worker.work(f"sqlite:///{tmp_path}/db", "elsewhere")
        assert {entry.state for entry in queue.entries()} == {"waiting"}


def test_data_of_a_function_do_not_depend_on_the_run_that_comes_first():
    drawn = []
    for first in (1, 7):
        task = own.task(
            "drawn",
            model=lambda: torch.nn.Linear(2, 1),
            data=lambda: {"train": (torch.randn(4, 2), torch.randn(4, 1))},
            loss=lambda model, x, y: (model(x) - y).square().mean(),
        )
        task.workload("tiny", first)
        drawn.append((task.workload("tiny", 3).source.tensors[0], torch.rand(())))
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert drawn[0][1] == drawn[1][1]


def test_unknown_splits_and_options_that_are_tuned_are_refused(tmp_path):
    rows = (torch.zeros(3, 1), torch.zeros(3, 1))
    splits = {"train": rows, "val": rows}
    task = own.task("val", model=lambda: torch.nn.Linear(1, 1), data=splits, loss=lambda model, x, y: model(x).sum())
    with pytest.raises(ValueError, match=r"Unknown split 'val'.*valid"):
        task.workload("tiny", 0)
    small_plan(tmp_path)
    with pytest.raises(ValueError, match="lr is tuned"):
        plan_of(Options(["line"], ["mine: sgd lr=0.5"], trials=2, seeds=2, task_file=tmp_path / "line_task.py"))


def test_a_task_that_cannot_be_trained_is_refused_before_anything_is_run(tmp_path):
    small_plan(tmp_path)
    file = tmp_path / "line_task.py"
    file.write_text(file.read_text().replace("nn.Linear(5, 8)", "nn.Linear(6, 8)"))
    with pytest.raises(ValueError, match="line: the gradient of a batch cannot be taken"):
        plan_of(Options(["line"], METHODS, task_file=file))
    file.write_text("def (")
    with pytest.raises(ValueError, match=r"line_task.py, line 1: "):
        plan_of(Options([], METHODS, task_file=file))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--size", "batch=0"], "Invalid batch: 0"),
        (["--tune", "lr=a:b"], "Invalid --tune 'lr=a:b'"),
        (["--storage", "postgres://x"], "Unknown storage"),
        (["--device", "cuda"], "The device 'cuda' does not work here"),
        (["--out", "/dev/null/there"], "/dev/null/there: Not a directory"),
    ],
)
def test_what_a_user_gets_wrong_is_said_without_a_traceback(tmp_path, args, said):
    if "cuda" in args and torch.cuda.is_available():
        pytest.skip("there is one")
    small_plan(tmp_path)
    file = str(tmp_path / "line_task.py")
    ended = CliRunner().invoke(app, ["compare", "--task-file", file, "--out", str(tmp_path / "out"), *args])
    assert ended.exit_code == 2
    assert said in ended.output
