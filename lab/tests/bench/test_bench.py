"""What `superadam bench` measures, and on what. Times are never asserted."""

import json
import weakref

import pytest
import torch

from superadam import matrices, zoo
from superadam_lab import bench
from superadam_lab.bench import candidates, measures, models, runs, startup, training
from superadam_lab.bench.candidates import ADAMW_FOREACH, ADAMW_FUSED, Trial

SHAPES = [(64, 32), (32,)]
N = 64 * 32 + 32


@pytest.fixture(scope="module")
def measured():
    """Every candidate on two small tensors."""
    return bench.measure_model(SHAPES, candidates.everything(), rounds=2)


def find(name):
    (found,) = (c for c in [ADAMW_FUSED, ADAMW_FOREACH, *candidates.everything()] if c.name == name)
    return found


@pytest.mark.parametrize(
    ("name", "tensors", "parameters"), [("resnet18", 62, 11_173_962), ("gpt2-small", 148, 124_439_808)]
)
def test_the_shapes_are_those_of_the_models(name, tensors, parameters):
    shapes = models.SHAPES[name]()
    assert len(shapes) == tensors
    assert sum(torch.Size(s).numel() for s in shapes) == parameters


def test_every_method_and_every_case_is_a_candidate():
    names = [c.name for c in candidates.everything()]
    assert len(names) == len(set(names))
    assert set(zoo.METHODS) <= set(names)
    assert {f"case {case}, τ = {tau}" for case in ("1", "2", "3", "4a", "4b") for tau in (0, 1)} <= set(names)


def test_compiled_candidates_are_those_that_run_otherwise():
    names = {c.name for c in candidates.everything(compile=True)}
    assert {"case 1, τ = 0, compiled", "case 1, τ = 1, compiled", "yogi, compiled"} <= names
    assert not {"case 2, τ = 0, compiled", "case 3, τ = 1, compiled", "sdlbfgs, compiled"} & names


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("torch AdamW, fused", "torch"),
        ("case 1, τ = 0", "torch's fused kernel"),
        ("case 1, τ = 1", "lists"),
        ("case 2, τ = 0", "lists"),
        ("adagrad", "torch's fused kernel"),
        ("sgd", "torch's fused kernel"),
        ("soap", "lists and a fused kernel"),  # matrices, and vectors
    ],
)
def test_ways(name, way):
    assert candidates.way(find(name)) == way


def test_a_step_takes_the_gradients_that_it_needs_and_leaves_them_alone():
    gradients = candidates.gradients(SHAPES)
    copies = [[g.clone() for g in of] for of in gradients]
    for c in [ADAMW_FUSED, ADAMW_FOREACH, *candidates.everything()]:
        trial = Trial(c, gradients)
        before = [p.detach().clone() for p in trial.params]
        for _ in range(3):
            trial.step()
        assert not any(torch.equal(a, b) for a, b in zip(before, trial.params, strict=True)), c.name
        if c.kind != "torch":  # the first batch is evaluated once
            assert trial.opt.gradient_evaluations == (5 if trial.opt.two_point else 3), c.name
        assert all(p.isfinite().all() for p in trial.params), c.name
    for old, new in zip(copies, gradients, strict=True):
        assert all(map(torch.equal, old, new))


def test_the_two_gradients_of_a_batch_differ():
    trial = Trial(find("case 1, τ = 1"), candidates.gradients(SHAPES))
    seen = []
    step = trial.opt._evaluate
    trial.opt._evaluate = lambda closure: (step(closure), seen.append(trial.params[0].grad))[0]
    for _ in range(3):
        trial.step()
    assert len(seen) == 5  # the first batch once
    assert seen[1] is not seen[2]
    assert seen[3] is not seen[4]


@pytest.mark.parametrize(
    ("name", "floats"),
    [
        ("case 1, τ = 0", 2),
        ("case 1, τ = 1", 2),
        ("case 2, τ = 1", 1),
        ("case 4a, τ = 0", 3),
        ("amsgrad", 3),
        ("sgd", 1),
    ],
)
def test_state_per_parameter(measured, name, floats):
    assert measured["rows"][name]["state_bytes_per_parameter"] == pytest.approx(4 * floats, abs=0.01)


def test_temporary_memory(measured):
    """torch's kernels need none; the foreach way needs a copy of everything at least."""
    assert measured["rows"]["case 1, τ = 0"]["temporary_bytes"] < 100
    assert measured["rows"]["torch AdamW, foreach"]["temporary_bytes"] >= 4 * N


def test_temporary_memory_is_the_peak_and_not_the_sum():
    x = torch.zeros(1000)

    def run():
        for _ in range(5):
            x.add_(x + 1)

    assert 4000 <= measures.peak_temporary_bytes(run) < 8000


def test_all_take_turns():
    log = []
    turns_of = {name: lambda name=name: log.append(name) for name in "abc"}
    times = measures.interleaved(turns_of, rounds=4, warm_up=2)
    turns = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert len(turns) == 6
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
    assert {name: len(t) for name, t in times.items()} == {"a": 4, "b": 4, "c": 4}


def test_streams_go_through_as_much_memory_as_adam_holds():
    streams, moved = measures.streams(3000)
    assert list(moved.values()) == [2 * 4 * 12000, 3 * 4 * 6000, 5 * 4 * 4000]
    for run in streams.values():
        run()


def test_streams_are_no_longer_than_needed_to_leave_the_cache(monkeypatch):
    monkeypatch.setattr(measures, "LARGE", 1200)
    assert measures.streams(10**12)[1]["stream: scale"] == 2 * 4 * 1200


def test_bandwidth_is_that_of_the_fastest_stream():
    moved = {"a": 100, "b": 300}
    found = measures.bandwidth({"a": [1.0, 2.0, 4.0], "b": [4.0, 5.0, 12.0]}, moved)
    assert found == {"median": 60.0, "minimum": 100.0}


def test_a_report_holds_every_candidate_and_is_plain_data(measured):
    assert json.loads(json.dumps(measured)) == measured
    assert measured["parameters"] == N
    ours = [c.name for c in candidates.everything()]
    assert [name for name, row in measured["rows"].items() if row["kind"] != "torch"] == ours
    for name, row in measured["rows"].items():
        assert 0 < row["minimum_ms"] <= row["median_ms"], name
        assert row["first_step"] > 0
        for base in ("to_fused", "to_foreach", "to_limit"):
            assert row[base].keys() == {"median", "minimum"}
    assert measured["rows"]["torch AdamW, fused"]["to_fused"] == {"median": 1.0, "minimum": 1.0}


def test_ratios_are_to_what_they_say(measured):
    row, limit = measured["rows"]["amsgrad"], measured["limit"]
    peer = measured["rows"][row["peer"]]
    assert row["peer"] == "torch AdamW, amsgrad, fused"
    assert row["to_peer"]["median"] == pytest.approx(row["median_ms"] / peer["median_ms"], rel=1e-3)
    assert row["to_limit"]["minimum"] == pytest.approx(row["minimum_ms"] / limit["minimum_ms"], rel=1e-3)
    assert limit["median_ms"] == pytest.approx(1e3 * 28 * N / measured["bandwidth"]["median"], rel=1e-3)


def test_what_does_not_fit_into_memory_waits_or_is_skipped():
    n = 10**8
    of = candidates.everything()
    groups = list(runs._groups(of, n, memory=8.0))
    assert len(groups) > 3
    always = sum(runs._need(c, n) for c in runs.BASELINES)
    for group in groups:
        assert always + sum(runs._need(c, n) for c in group) < 8.0
    placed = {c.name for group in groups for c in group}
    assert [c.name for c in of if c.name not in placed] == ["sdlbfgs"]  # 20 vectors of curvature


def test_a_group_is_gone_before_the_next(monkeypatch):
    alive = weakref.WeakSet()

    def spied(c, gradients):
        trial = Trial(c, gradients)
        alive.add(trial)
        return trial

    monkeypatch.setattr(runs, "Trial", spied)
    bench.measure_model(SHAPES, [find("case 3, τ = 1"), find("adamw")], rounds=1)
    assert not list(alive)


def test_a_skipped_candidate_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(runs, "_need", lambda c, n: 99.0 if c.name == "yogi" else 0.0)
    row = bench.measure_model(SHAPES, [find("yogi"), find("sgd")], rounds=1)["rows"]["yogi"]
    assert row["skipped"] == "needs 99 GB"


def test_too_little_memory_is_said_so():
    with pytest.raises(ValueError, match="too little for 2,080 parameters"):
        bench.measure_model(SHAPES, [find("sgd")], rounds=1, memory=1e-6)


def test_sizes():
    columns = bench.measure_sizes((100, 10_000), rounds=1)
    assert list(columns) == ["100", "10000"]
    for column in columns.values():
        assert {"memory limit", "torch AdamW, fused", "case 1, τ = 0", "case 1, τ = 1"} <= column.keys()
    table = bench.tables({"models": {}, "sizes": columns})["sizes"]
    assert table.head == ["method", "100", "10,000"]


def test_the_share_of_a_training_step():
    tasks = {"a": training.cifar(2, width=2), "b": training.language(1, 4, width=8, heads=2)}
    made = training.shares(2, tasks)
    for task in made.values():
        assert list(task["rows"]) == ["torch AdamW, fused", "case 1, τ = 0", "case 1, τ = 1"]
        assert all(0 < row["share"] < 1 for row in task["rows"].values())
    assert len(bench.tables({"models": {}, "end_to_end": made})["end_to_end"].rows) == 6


def test_first_steps_of_a_case():
    assert startup.first_steps("case 2, τ = 1", compile=False).keys() == {"first_s", "later_s"}


@pytest.mark.slow
def test_import_times_come_from_new_processes():
    times = startup.import_times(rounds=1)
    assert times["superadam"]["median_s"] > times["superadam after torch"]["median_s"] > 0
    assert len(bench.tables({"models": {}, "import": times})["import"].rows) == 3


@pytest.mark.slow
def test_compilation_is_timed_without_and_with_a_cache():
    times = startup.compile_times(["case 4a, τ = 0"])
    assert times["case 4a, τ = 0"].keys() == {"eager_s", "cold_s", "warm_s"}
    assert bench.tables({"models": {}, "compile": times})["compile"].rows[0][0] == "case 4a, τ = 0"


def test_tables_have_every_row(measured):
    made = bench.tables({"models": {"small": measured}})
    assert list(made) == ["times of small", "memory of small"]
    for table in made.values():
        assert [row[0] for row in table.rows] == list(measured["rows"])
        assert all(len(row) == len(table.head) for row in table.rows)
        assert len(table.markdown().splitlines()) == 2 + len(table.rows)


def test_matrices_beside_other_packages(monkeypatch):
    """Each method over a whole refresh interval; packages that are not installed have no row."""
    monkeypatch.setattr(runs.peers.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(models.SHAPES, "tiny", lambda: [(6, 4), (4,)])
    monkeypatch.setattr(training, "TRAININGS", {"tiny": training.language(1, 4, width=4, heads=2)})
    report = bench.report(["tiny"], rounds=1, matrices=True, end_to_end=True)
    methods = report["matrices"]["tiny"]["methods"]
    assert {method: list(rows) for method, rows in methods.items()} == {
        "muon": ["superadam", "torch"],
        "shampoo": ["superadam"],
        "soap": ["superadam"],
        "psgd_kron": ["superadam"],
    }
    assert all(row["minimum_ms"] <= row["median_ms"] <= row["maximum_ms"] for row in methods["muon"].values())
    assert set(methods) < set(report["end_to_end"]["tiny"]["rows"])
    table = bench.tables(report)["matrices of tiny"]
    assert [row[:2] for row in table.rows][:2] == [["muon", "superadam"], ["muon", "torch"]]
    json.dumps(report)


def test_refreshes_beside_other_packages_are_spread_over_the_steps(monkeypatch):
    """Six matrices of one shape, and an interval of ten steps: none has all of them but the first."""
    counts, refresh = [], matrices.SOAP.refresh
    monkeypatch.setattr(matrices.SOAP, "refresh", lambda self, s: counts.append(len(s.params)) or refresh(self, s))
    monkeypatch.setattr(runs.peers, "rivals", lambda method, shapes: {})
    monkeypatch.setattr(runs.peers, "OPTIONS", {"soap": runs.peers.OPTIONS["soap"]})
    runs.peers.measure([(6, 4)] * 6, rounds=1)
    assert counts[0] == 6
    assert counts[1:]
    assert set(counts[1:]) == {1}


def test_torchs_muon_takes_no_kernels():
    assert "torch" not in runs.peers.rivals("muon", [(4, 4, 3, 3), (4,)])
