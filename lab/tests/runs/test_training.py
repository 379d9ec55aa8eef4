"""Runs of the lab: what they promise about their numbers."""

import dataclasses
import itertools
import json
import math
import re
import signal

import pytest
import torch

import copies
from pairs import pairs
from patience import ended
from superadam import SuperAdam
from superadam_lab import tasks
from superadam_lab.methods import by_name as methods
from superadam_lab.runs import parallel
from superadam_lab.runs import training as runs
from superadam_lab.runs.clipping import OneFactor
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run, Watcher

EMBEDDED = [
    "digits-mlp",
    "digits-cnn",
    "pydoc-lstm",
    "pydoc-transformer",
    "logistic-nonconvex",
    "simplex-regression",
    "nmf",
]
VARIED = ["digits-autoencoder", "digits-vit", "ratings", "pinn-poisson", "logistic-sparse"]
TWO_POINT = {"storm", "super_adam tau=1"}
CONSTRAINED = {"simplex-regression", "nmf"}


@pytest.fixture
def run(tmp_path):
    """A run at tiny scale, in a folder of its own."""
    numbers = itertools.count()

    def new(task, method="super_adam tau=1", watcher=None, **more):
        config = Config(task, method, "tiny", **{"preset": "default", **more})
        folder = Folder.new(tmp_path / f"run{next(numbers)}", config)
        return Run(folder, watcher)

    return new


def numbers(run):
    """All that a run has measured, but the time it took."""
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows(run.folder.path)]


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a if k not in ("seconds", "metrics"))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


def assert_same_run(a, b):
    """Metrics and checkpoints: weights, optimizer, generators, place, bit for bit."""
    assert numbers(a) == numbers(b)
    x, y = (torch.load(r.folder.checkpoint, weights_only=True) for r in (a, b))
    assert equal(x, y)


class Interrupt(Watcher):
    """Ctrl-C after some step."""

    def __init__(self, step):
        self.step = step

    def stepped(self, run, loss):
        if run.step == self.step:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("task", "method"), pairs(EMBEDDED, methods.PAPER, one_in=3))
def test_every_task_trains_with_every_optimizer_of_the_paper(run, task, method):
    if method == "adam_plus" and task in CONSTRAINED:
        with pytest.raises(ValueError, match="may lie outside of the set"):
            run(task, method)
        return
    one = run(task, method)
    assert one.train() == "finished"
    assert one.step == 2 * one.workload.length
    assert one.opt.gradient_evaluations == (2 * one.step - 1 if method in TWO_POINT else one.step)
    measured = rows(one.folder.path)
    assert [row["epoch"] for row in measured] == [0, 1, 2]
    for row in measured:
        assert all(
            row[f"{split}_{name}"] is not None for split in one.workload.splits for name in ("loss", one.workload.score)
        )
    assert measured[-1]["full_gradient_norm"] > 0
    assert measured[-1]["monitor"]["condition"] >= 1
    assert measured[-1]["train_loss"] != measured[0]["train_loss"]
    assert one.opt.feasibility() < 1e-6


@pytest.mark.parametrize("task", VARIED)
def test_tasks_of_other_kinds_train_and_can_be_interrupted(run, task):
    whole, parts = run(task), run(task, watcher=Interrupt(3))
    assert whole.train() == "finished"
    assert parts.train() == "interrupted"
    parts = Run(parts.folder)
    assert parts.train() == "finished"
    assert_same_run(whole, parts)
    measured = rows(whole.folder.path)
    assert measured[-1]["valid_loss"] != measured[0]["valid_loss"]
    assert measured[-1]["full_gradient_norm"] > 0


@pytest.mark.parametrize("method", ["adam", "super_adam tau=1"])
@pytest.mark.parametrize("task", ["digits-mlp", "pydoc-lstm"])
def test_same_seed_same_numbers(run, task, method):
    a, b, other = run(task, method), run(task, method), run(task, method, seed=1)
    for one in (a, b, other):
        one.train()
    assert_same_run(a, b)
    assert numbers(a)[0] != numbers(other)[0]


def test_all_methods_start_from_the_same_weights_and_see_the_same_batches(run):
    seen = {}
    for method in ("adam", "storm"):
        one = run("digits-mlp", method)
        seen[method] = ([p.clone() for p in one.workload.model.parameters()], list(one.workload.batches(1)))
    assert equal(seen["adam"], seen["storm"])


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("task", EMBEDDED)
def test_an_interrupted_run_goes_on_as_if_nothing_had_been(run, task, step):
    whole, parts = run(task), run(task, watcher=Interrupt(step))
    assert whole.train() == "finished"
    assert parts.train() == "interrupted"
    assert parts.step == step
    torch.manual_seed(99)  # another process has other numbers
    parts = Run(parts.folder)
    assert parts.train() == "finished"
    assert_same_run(whole, parts)


@pytest.mark.parametrize("method", ["adam_plus", "adagrad_norm"])
def test_an_interrupted_run_with_another_state_goes_on_too(run, method):
    whole, parts = run("pydoc-lstm", method), run("pydoc-lstm", method, Interrupt(4))
    whole.train()
    parts.train()
    parts = Run(parts.folder)
    parts.train()
    assert_same_run(whole, parts)


@pytest.mark.parametrize("method", ["adam", "super_adam tau=1"])
def test_a_decayed_learning_rate_is_a_function_of_the_part_of_the_run_and_goes_on_too(run, method):
    """Of the batches before the step; the recipe of the task, lr/4, is off."""
    options = {"decay": "linear", "every": 1, "options": {"lr": 0.5}}
    whole, parts = run("pydoc-lstm", method, **options), run("pydoc-lstm", method, Interrupt(4), **options)
    whole.train()
    assert parts.train() == "interrupted"
    parts = Run(parts.folder)
    parts.train()
    assert_same_run(whole, parts)
    measured = rows(whole.folder.path)
    expected = [0.5 * (1 - row["step"] / whole.step) for row in measured[:-1]]
    assert [row["lr"] for row in measured[1:]] == pytest.approx(expected, rel=1e-12)


def test_tau_changes_where_it_is_told_to_and_goes_on_too(run):
    """τ = 1, then 0.5, then none: one gradient per batch, of which the first after a change has no partner."""
    method = "super_adam tau=1 taus=[[0.25, 0.5], [0.5, 0], [0.75, 1]]"
    whole, parts = (run("pydoc-lstm", method, watcher, every=1) for watcher in (None, Interrupt(5)))
    whole.train()
    assert parts.train() == "interrupted"
    parts = Run(parts.folder)
    parts.train()
    assert_same_run(whole, parts)
    used = [row["gradient_evaluations"] for row in rows(whole.folder.path)]
    steps, each = whole.step, [b - a for a, b in itertools.pairwise(used)]
    lone = [0, *(i for i in range(steps) if 0.5 <= i / steps < 0.75), math.ceil(0.75 * steps)]
    assert each == [1 if i in lone else 2 for i in range(steps)]


def test_a_run_that_is_to_go_further_has_the_tau_of_its_new_place(run):
    one = run("digits-mlp", "super_adam tau=1 taus=[[0.5, 0]]")
    one.train()
    assert one.opt.param_groups[0]["tau"] == 0
    config = one.folder.read()
    config.epochs = 20
    one.folder.write(config)
    used = one.opt.gradient_evaluations
    further = Run(one.folder, Interrupt(one.step + 3))
    further.train()
    assert further.opt.param_groups[0]["tau"] == 1
    assert further.opt.gradient_evaluations == used + 1 + 2 + 2


def test_a_tau_of_half_the_way_is_that_of_its_own(run):
    """taus from the start on is tau."""
    one, other = run("digits-mlp", "super_adam tau=0.3"), run("digits-mlp", "super_adam tau=1 taus=[[0, 0.3]]")
    for r in (one, other):
        r.train()
    assert numbers(one) == numbers(other)


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("super_adam taus=0.5", "Invalid taus: 0.5"),
        ("super_adam taus=[[0.5, 0], [0.2, 1]]", "Invalid taus"),
        ("super_adam taus=[[0.5, 2]]", "Invalid taus"),
        ("mars taus=[[0.5, 1]]", "mars has another estimator"),
    ],
)
def test_wrong_taus_are_refused(run, method, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        run("digits-mlp", method)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["SIGINT", "SIGKILL"])
def test_a_process_that_is_stopped_from_outside_loses_nothing(run, tmp_path, number):
    path = tmp_path / "stopped"
    command = [
        *("-c", "from superadam_lab.cli import main; main()", "train", "pydoc-lstm", "--scale", "tiny"),
        *("--method", "super_adam tau=1", "--preset", "default", "--epochs", "100000", "--out", str(path)),
    ]
    process = copies.start(*command, stdout=copies.PIPE, stderr=copies.PIPE, text=True)
    for line in process.stdout:
        if line.startswith("epoch 3,"):
            process.send_signal(number)
            break
    rest, errors = ended(process)
    if number == signal.SIGINT:
        assert process.returncode == 130, errors
        assert f"superadam resume {path}" in rest
    else:
        assert process.returncode == -number
    folder = Folder(path)
    at = Run(folder).epoch
    assert at >= 3
    folder.write(dataclasses.replace(folder.read(), epochs=at + 3))
    stopped = Run(folder)
    assert stopped.train() == "finished"
    whole = run("pydoc-lstm", epochs=at + 3)
    whole.train()
    assert_same_run(whole, stopped)


def test_killed_between_a_row_and_its_checkpoint(run, monkeypatch):
    """The row is dropped, and measured again."""
    whole, parts = run("digits-mlp"), run("digits-mlp")
    whole.train()

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    class Kill(Watcher):
        def stepped(self, one, loss):
            if one.step == 3:
                monkeypatch.setattr(parallel, "save_checkpoint", killed)

    parts.watcher = Kill()
    with pytest.raises(KeyboardInterrupt):
        parts.train()
    assert len(rows(parts.folder.path)) == 3
    monkeypatch.undo()
    with parts.folder.metrics.open("a") as file:
        file.write('{"epoch": 2.')
    assert len(rows(parts.folder.path)) == 3
    parts = Run(parts.folder)
    assert len(rows(parts.folder.path)) == 3  # to look at a run changes nothing
    parts.train()
    assert_same_run(whole, parts)


def test_a_run_can_go_further_than_it_was_to_go(run):
    far, near = run("pydoc-lstm", epochs=4), run("pydoc-lstm", epochs=2)
    assert far.train() == near.train() == "finished"
    config = near.folder.read()
    config.epochs = 4
    near.folder.write(config)
    near = Run(near.folder)
    assert near.train() == "finished"
    assert_same_run(far, near)


def test_reports_do_not_change_the_run(run):
    rare, often = run("digits-mlp"), run("digits-mlp", every=1)
    rare.train()
    often.train()
    assert len(rows(often.folder.path)) == 5
    assert numbers(rare) == [row for row in numbers(often) if row["epoch"] in (0, 1, 2)]


@pytest.mark.parametrize(("method", "used"), [("adam", 10), ("super_adam tau=1", 9)])
def test_a_budget_of_evaluations_is_not_exceeded(run, method, used):
    one = run("digits-mlp", method, budget_evals=10)
    assert one.train() == "finished"
    assert one.opt.gradient_evaluations == used
    last = rows(one.folder.path)[-1]
    assert last["gradient_evaluations"] == used
    assert last["epoch"] == one.step / 2


def test_a_budget_of_seconds_ends_a_run(run, monkeypatch):
    """After the batch in which it is used up, beyond the epochs of the scale. The time that passes counts."""
    ticks = itertools.count()
    monkeypatch.setattr("superadam_lab.runs.clock.time.perf_counter", lambda: next(ticks) / 1000)
    one = run("digits-mlp", budget_seconds=0.2)
    assert one.train() == "finished"
    assert 0.2 <= one.seconds < 0.22
    assert one.step > 4


def test_both_gradients_of_a_pair_get_one_factor():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    opt = SuperAdam([x], tau=1.0)
    clip = OneFactor(opt, 0.5)
    for gradient, clipped in ((torch.tensor([3.0, 4.0]), [0.3, 0.4]), (torch.tensor([6.0, 0.0]), [0.6, 0.0])):
        x.grad = gradient
        clip()
        torch.testing.assert_close(x.grad, torch.tensor(clipped))
    clip = OneFactor(opt, 100.0)
    x.grad = torch.tensor([3.0, 4.0])
    clip()
    assert x.grad.tolist() == [3.0, 4.0]


def test_gradients_of_language_models_are_clipped(run):
    norms = []

    class Look(Watcher):
        def stepped(self, one, loss):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in one.workload.model.parameters()]).item())

    run("pydoc-lstm", "adam", Look()).train()
    assert max(norms) == pytest.approx(0.25, rel=1e-4)


def test_the_learning_rate_is_divided_by_four_when_validation_gets_worse(run):
    one = run("pydoc-lstm", "adam", epochs=5)
    valid = iter([9.0, 3.0, 4.0, 2.0, 2.5, 2.4])
    evaluate = one.workload.evaluate
    one.workload.evaluate = lambda split: {"loss": next(valid)} if split == "valid" else evaluate(split)
    one.train()
    lr = 1e-3
    assert [row["lr"] / lr for row in rows(one.folder.path)] == [1, 1, 1, 1 / 4, 1 / 4, 1 / 16]
    assert one.opt.param_groups[0]["lr"] / lr == 1 / 64


def test_an_lstm_carries_its_state_through_an_epoch_and_shows_both_evaluations_the_same(run):
    one, given = run("pydoc-lstm"), []
    loss = one.workload.loss

    def seen(batch, memory=None):
        given.append(memory)
        return loss(batch, memory)

    one.workload.loss = seen
    batches = one.workload.batches(0)
    for _ in range(3):
        one._step(next(batches))
    assert given[0] is None  # the first batch is evaluated once
    assert given[1] is given[2] is not None
    assert given[3] is given[4] is not given[1]
    assert not one.memory[0].requires_grad


def test_adam_plus_is_measured_at_x_and_not_where_it_takes_gradients(run):
    one = run("digits-mlp", "adam_plus")
    one.train()
    with pytest.warns(UserWarning, match="hold the point where Nigt"):
        ahead = one.workload.evaluate("train")["loss"]
    one.opt.flush()
    assert rows(one.folder.path)[-1]["train_loss"] == one.workload.evaluate("train")["loss"] != ahead


def test_a_run_that_diverges_ends_and_its_numbers_are_still_json(run):
    one = run("digits-mlp", "sgd", options={"lr": 1e30}, epochs=50)
    assert one.train() == "diverged"
    assert rows(one.folder.path)[-1]["train_loss"] is None


def test_a_gradient_that_factors_refuse_is_a_divergence(run):
    """And not a failure: the numbers up to there are a result."""
    assert run("digits-mlp", "soap", options={"lr": 1e30}, epochs=50).train() == "diverged"


def test_the_folder_says_what_was_run_and_where(run):
    one = run("digits-mlp", "adam", options={"lr": 0.01})
    one.train()
    config = json.loads(one.folder.config.read_text())
    assert (config["task"], config["method"], config["options"]) == ("digits-mlp", "adam", {"lr": 0.01})
    (session,) = json.loads(one.folder.environment.read_text())
    assert session["torch"] == torch.__version__
    assert session["threads"] == torch.get_num_threads()
    assert one.opt.param_groups[0]["lr"] == 0.01


def test_the_papers_settings_are_used_on_demand(run):
    assert run("pydoc-lstm", "super_adam tau=0", preset="paper").opt.param_groups[0]["lr"] == 0.01
    assert run("pydoc-lstm", "super_adam tau=1", preset="paper").opt.param_groups[0]["lr"] == 0.001
    assert run("pydoc-lstm", "adabelief", preset="paper", options={"lr": 0.5}).opt.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match="not in the paper"):
        run("nmf", "adam", preset="paper")
    with pytest.raises(ValueError, match="no settings of sgd"):
        run("digits-mlp", "sgd", preset="paper")


@pytest.mark.parametrize("scale", ["laptop", "paper"])
@pytest.mark.parametrize("task", [*EMBEDDED, *VARIED])
def test_the_other_scales_can_be_built(task, scale):
    workload = tasks.find(task).workload(scale, seed=0)
    assert workload.length > 1


def test_tensorboard_gets_every_row(run, monkeypatch):
    written = []
    monkeypatch.setattr(runs, "TensorBoard", lambda path: written.append)
    run("digits-mlp", tensorboard=True).train()
    assert [row["step"] for row in written] == [0, 2, 4]
    assert written[-1]["condition"] >= 1
    assert all(isinstance(v, int | float) for row in written for v in row.values())


def test_tensorboard_shows_what_the_metrics_say(run):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    one = run("digits-mlp", tensorboard=True)
    one.train()
    one._board.writer.flush()
    found = loader.EventAccumulator(str(one.folder.path / "tensorboard"))
    found.Reload()
    measured = rows(one.folder.path)
    last = measured[-1]["monitor"]
    for name in ("train_loss", "test_accuracy", "full_gradient_norm"):
        shown = [(event.step, event.value) for event in found.Scalars(f"superadam/{name}")]
        assert shown == [(row["step"], pytest.approx(row[name], rel=1e-6)) for row in measured]
    assert found.Scalars("superadam/condition")[-1].value == pytest.approx(last["condition"], rel=1e-6)


@pytest.mark.parametrize("rows_there", [0, 1, 2, 3])
def test_a_run_without_its_checkpoint(run, rows_there):
    """It was killed before the first one, after a row at most, or the checkpoint is gone: then rows are kept."""
    parts = run("digits-mlp")
    parts.train()
    parts.folder.checkpoint.unlink()
    lines = parts.folder.metrics.read_text().splitlines(keepends=True)
    assert len(lines) >= 3
    parts.folder.metrics.write_text("".join(lines[:rows_there]))
    if rows_there > 1:
        with pytest.raises(ValueError, match=r"last\.pt is missing, but metrics\.jsonl has rows"):
            Run(parts.folder)
        assert len(rows(parts.folder.path)) == rows_there
    else:
        again = Run(parts.folder)
        again.train()
        assert len(rows(parts.folder.path)) == len(lines)
