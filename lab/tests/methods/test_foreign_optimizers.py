"""Optimizers of other packages: the loop makes of them what their authors would."""

import dataclasses
import math
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import copies
import foreign as stand_ins
import superadam_lab as lab
from comparing import alone, numbers, small_plan
from patience import ended
from superadam import zoo
from superadam_lab import tasks
from superadam_lab.comparison.options import Options
from superadam_lab.comparison.plan.planning import plan_of
from superadam_lab.comparison.plan.sampling import proposed
from superadam_lab.comparison.records import Plan
from superadam_lab.comparison.report import facts
from superadam_lab.comparison.worker import Light
from superadam_lab.methods import by_name as methods
from superadam_lab.methods.by_name import space
from superadam_lab.methods.foreign import Foreign, build, hidden_matrices
from superadam_lab.methods.own import OWN
from superadam_lab.methods.specs import read, resolved
from superadam_lab.runs.folders import Config, Folder, rows
from superadam_lab.runs.training import Run
from superadam_lab.user_code import sources
from versions import needs_muon


@pytest.fixture(autouse=True)
def _kept():
    """Task files add to tasks and methods: forget them afterwards."""
    kept, own = dict(tasks.TASKS), dict(OWN)
    yield
    for found, before in ((tasks.TASKS, kept), (OWN, own)):
        found.clear()
        found.update(before)


@pytest.fixture
def file(tmp_path):
    return stand_ins.written(tmp_path)


def optimizer(method, task="digits-mlp", **options):
    found = tasks.find(task)
    workload = found.workload("tiny", 0)
    return methods.make(found, workload, method, "lab", {"lr": 0.1, **options}), workload


def trained(method, task="digits-mlp", **more):
    run = Light(Config(task, method, "tiny", preset="default", **{"options": {"lr": 0.1}, "budget_evals": 8, **more}))
    run.train()
    return run


def losses(run):
    return [(row["gradient_evaluations"], row["train_loss"]) for row in run.folder.rows]


# ------------------------------------------------------------------------------------------------ which they are


def test_a_method_under_its_own_name_and_under_a_foreign_path_has_identical_numbers():
    for own, path in (("adamw", "superadam.zoo:adamw"), ("super_adam tau=1", "superadam.zoo.super_adam tau=1")):
        assert losses(trained(own)) == losses(trained(path))


def test_a_class_in_a_file_is_what_the_same_optimizer_of_torch_is(file):
    assert losses(trained(f"{file}:Plain")) == losses(trained("torch.optim.SGD")) == losses(trained(f"{file}:sgd"))


def test_options_are_given_to_the_optimizer_and_one_entry_can_be_given_alone(file):
    opt, _ = optimizer("torch.optim.AdamW betas=[0.8, 0.9] weight_decay=0.2")
    assert tuple(opt.param_groups[0]["betas"]) == (0.8, 0.9)
    assert opt.param_groups[0]["weight_decay"] == 0.2
    for method in ("torch.optim.AdamW", "adamw"):
        opt, _ = optimizer(method, **{"betas.1": 0.95})
        assert tuple(opt.param_groups[0]["betas"]) == (0.9, 0.95)
    with pytest.raises(ValueError, match=r"betas.2.*expected betas.N, an entry of several"):
        optimizer("torch.optim.AdamW", **{"betas.2": 0.95})


def test_those_that_want_names_or_the_model_get_them(file):
    opt, workload = optimizer(f"{file}:Named")
    assert opt.optimizers[0].names == [name for name, _ in workload.model.named_parameters()]
    assert losses(trained(f"{file}:OfModel")) == losses(trained(f"{file}:Plain"))


@needs_muon
def test_of_two_the_first_has_the_hidden_matrices_and_the_second_all_else():
    opt, workload = optimizer("torch.optim.Muon momentum=0.9 + torch.optim.AdamW lr=0.01", "pydoc-transformer")
    muon, adamw = ({id(p) for g in o.param_groups for p in g["params"]} for o in opt.optimizers)
    named = {id(p): name for name, p in workload.model.named_parameters()}
    assert sorted(named[i] for i in muon) == sorted(hidden_matrices(workload.model))
    assert all(".self_attn." in named[i] or ".linear" in named[i] for i in muon)
    assert {"embedding.weight", "decoder.weight", "decoder.bias"} <= {named[i] for i in adamw}
    assert muon | adamw == set(named)
    assert not muon & adamw
    assert [group["lr"] for group in opt.param_groups] == [0.1, 0.01]


def test_a_network_whose_only_linear_layer_is_its_head_has_none():
    with pytest.raises(ValueError, match="The model has no hidden matrix for Muon: give the other optimizer alone"):
        optimizer("torch.optim.Muon + torch.optim.AdamW", "digits-cnn")


def test_an_embedding_that_is_tied_to_the_head_is_no_hidden_matrix():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 9, bias=False))
    model[2].weight = model[0].weight
    assert hidden_matrices(model) == ["1.weight"]


def test_a_function_makes_one_optimizer_or_several():
    def halves(model, lr, *, second=1.0):
        first, *others = model.parameters()
        return [torch.optim.SGD([first], lr), torch.optim.SGD(others, lr * second)]

    lab.method("halves", halves)
    assert losses(trained("halves")) == losses(trained("torch.optim.SGD")) != losses(trained("halves second=2"))


# ------------------------------------------------------------------------------------------------ how they run


def test_the_loop_counts_the_gradients_that_are_taken(file, monkeypatch):
    taken = []
    workload = type(tasks.find("digits-mlp").workload("tiny", 0))
    loss = workload.loss
    monkeypatch.setattr(workload, "loss", lambda *args: taken.append(1) or loss(*args))
    for method, each in ((f"{file}:Plain", 1), (f"{file}:Twice", 2), ("torch.optim.LBFGS max_iter=3", None)):
        taken.clear()
        run = trained(method, budget_evals=20)
        assert run.folder.rows[-1]["gradient_evaluations"] == len(taken) <= 20
        assert each is None or len(taken) == run.step * each == 20
    taken.clear()
    used = trained("super_adam tau=1", budget_evals=20).opt.gradient_evaluations
    assert used == len(taken)


BASES = ["torch.optim.SGD momentum=0.9", "torch.optim.Adam"]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", ["Sam", "SamByClosure"])
def test_sam_without_a_radius_is_its_base_optimizer_since_a_batch_is_the_same_twice(file, name, base):
    """With dropout, and with BatchNorm, whose averages see each batch once."""
    target, *options = base.split()
    for task in ("pydoc-transformer", "digits-cnn"):
        plain = trained(base, task, budget_evals=None, budget_steps=4)
        sam = trained(" ".join([f"{file}:{name} rho=0 base_optimizer={target}", *options]), task, budget_steps=4)
        assert sam.opt.gradient_evaluations == 2 * plain.opt.gradient_evaluations == 8
        assert [row["train_loss"] for row in sam.folder.rows] == [row["train_loss"] for row in plain.folder.rows]
        for a, b in zip(plain.workload.model.buffers(), sam.workload.model.buffers(), strict=True):
            assert torch.equal(a, b)


def test_sam_in_two_calls_is_sam_by_a_closure_and_counts_two_gradients_of_a_batch(file):
    two, one = (trained(f"{file}:{n} rho=0.1 base_optimizer=torch.optim.SGD") for n in ("Sam", "SamByClosure"))
    assert losses(two) == losses(one) != losses(trained("torch.optim.SGD"))
    assert (two.step, two.opt.gradient_evaluations) == (4, 8)
    assert {group["lr"] for group in two.opt.optimizers[0].base_optimizer.param_groups} == {0.1}


def test_a_schedule_free_optimizer_is_measured_at_its_result_and_trains_as_if_it_were_not(file):
    often, seldom = trained(f"{file}:Free"), Light(Config("digits-mlp", f"{file}:Free", "tiny", budget_evals=8))
    seldom._due = lambda: False
    seldom.opt.param_groups[0]["initial_lr"] = 0.1
    seldom.train()
    for p, q in zip(often.workload.model.parameters(), seldom.workload.model.parameters(), strict=True):
        assert torch.equal(p, q)
    measured = often.folder.rows[-1]["train_loss"]
    assert often._splits()["train_loss"] != measured
    with often.opt.at_x():
        assert often._splits()["train_loss"] == measured


def test_the_decay_can_be_the_methods_own():
    flat = trained("torch.optim.SGD decay=none", decay="cosine")
    assert losses(flat) == losses(trained("torch.optim.SGD"))
    assert {row["lr"] for row in flat.folder.rows} == {0.1}
    with pytest.raises(ValueError, match="Unknown decay 'cosinus': did you mean 'cosine'"):
        methods.decay("torch.optim.SGD decay=cosinus")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("torch.optim.Muon + torch.optim.AdamW", marks=needs_muon),
        "torch.optim.LBFGS max_iter=2",
        "{file}:Sam base_optimizer=torch.optim.SGD momentum=0.9",
    ],
)
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, file, method):
    config = Config("digits-mlp", method.format(file=file), "tiny", options={"lr": 0.01}, decay="cosine", epochs=4)
    whole = Folder.new(tmp_path / "whole", config)
    Run(whole).train()
    cut = Folder.new(tmp_path / "cut", config)
    run = Run(cut)
    run.watcher.evaluated = lambda run, row: run._asked_to_stop(2) if row["epoch"] == 2 else None
    assert run.train() == "interrupted"
    assert Run(cut).train() == "finished"

    def told(folder):
        return [{k: v for k, v in row.items() if k != "seconds"} for row in rows(folder.path)]

    assert told(cut) == told(whole)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Thrice base_optimizer=torch.optim.SGD", "Thrice has a third_step; only first_step and second_step are"),
        ("Sharp base_optimizer=torch.optim.SGD", "Sharp.first_step needs loss: expected no argument, as SAM has it"),
        ("Sam", "Sam cannot be built with .*base_optimizer"),
        ("Sam base_optimizer=torch.optim.SDG", "torch.optim has no 'SDG': did you mean 'SGD'"),
        ("Sam base_optimizer=torch.optim.SGD + torch.optim.AdamW", "Sam evaluates a batch several times, and cannot"),
        ("Wants", "Wants.step needs loss, hessian: expected step"),
        ("NoRate", "NoRate has no 'lr' in its param_groups"),
        ("seven", "is a int .expected an optimizer class"),
        ("Plein", "has no 'Plein': did you mean 'Plain'"),
        ("Plain nothing=3", "cannot be built with .*unexpected keyword argument 'nothing'"),
        ("Plain taus=[[0.5, 0]]", "taus= changes the τ of line 11"),
        ("Twice + torch.optim.AdamW", "Twice evaluates a batch several times, and cannot share"),
        ("OfModel + torch.optim.AdamW", "OfModel needs the whole model"),
    ],
)
def test_what_the_loop_cannot_run_is_refused_by_name(file, name, said):
    with pytest.raises(ValueError, match=said):
        optimizer(f"{file}:{name}")


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("no_such_package:SOAP", "There is no module 'no_such_package' for no_such_package:SOAP: pip install it"),
        ("torch.optim.Muon + adamw", "'adamw' cannot be used with .: expected two import paths"),
        ("torch.optim.SGD + torch.optim.SGD + torch.optim.SGD", "expected two optimizers at the most"),
        ("no_file.py:Mine", "There is no file with an optimizer no_file.py"),
        ("addamw", "Unknown method 'addamw': did you mean 'adamw'"),
        ("adamw lr", "Invalid method 'adamw lr'"),
        ("adamw lr=1:0.1", "Invalid bounds 1:0.1"),
        pytest.param(
            *("torch.optim.Muon", "Muon cannot be built with .*Muon only supports 2D parameters"), marks=needs_muon
        ),
    ],
)
def test_what_cannot_be_made_says_what_to_write(method, said):
    with pytest.raises(ValueError, match=said):
        optimizer(method)


def test_a_task_with_a_constraint_is_not_for_them():
    with pytest.raises(ValueError, match="simplex-regression needs constraint, which only methods of superadam have"):
        optimizer("torch.optim.AdamW", "simplex-regression")


# ------------------------------------------------------------------------------------------------ comparisons


def small(folder, chosen, **options):
    small_plan(folder)
    given = {"trials": 2, "seeds": 2, "budget_evals": 10, "task_file": folder / "line_task.py", **options}
    return plan_of(Options(["line"], chosen, **given))


def test_what_fails_is_a_failed_run_with_its_message(tmp_path, file):
    plan = small(tmp_path, [f"breaks: {file}:Breaks", f"leaves: {file}:Leaves"])
    results = alone(plan, tmp_path / "alone.db")
    told = {r.method: r.error for r in results.records if r.status == "failed"}
    assert "stand_in.py, line" in told["breaks"]
    assert "RuntimeError: no third step" in told["breaks"]
    assert "SystemExit: goodbye" in told["leaves"]
    assert {r.status for r in results.records if r.method == "adamw"} == {"finished"}


def test_the_report_names_the_foreign_code_and_a_changed_file_is_another_comparison(tmp_path, file):
    plan = small(tmp_path, [f"mine: {file}:Plain", "torch.optim.SGD"])
    assert list(plan.packages) == [str(file)]
    results = alone(plan, tmp_path / "alone.db")
    assert plan.packages[str(file)] in facts.made(results)["packages"]
    file.write_text(file.read_text() + "\n# changed\n")
    assert small(tmp_path, [f"mine: {file}:Plain", "torch.optim.SGD"]).unlike(plan) == ["packages"]


def test_a_file_is_known_by_its_whole_path_wherever_it_stands(file, monkeypatch):
    monkeypatch.chdir(file.parent)
    for text in ("{}:Plain lr=0.1", "torch.optim.SGD + {}:Plain", "{}:Sam rho=0.1 base_optimizer={}:Plain"):
        relative, whole = text.replace("{}", file.name), text.replace("{}", str(file))
        assert resolved(relative) == resolved(whole) == whole
        assert list(sources([whole])) == [str(file)]


def test_a_task_file_may_define_methods_for_the_workers(tmp_path):
    path = tmp_path / "methods.py"
    path.write_text(
        "import superadam_lab as lab\nimport torch\n"
        "lab.method('mine', lambda model, lr, **options: torch.optim.SGD(model.parameters(), lr, **options))\n"
    )
    plan = plan_of(
        Options(["digits-mlp"], ["mine momentum=0.5"], scale="tiny", task_file=path, trials=1, seeds=1, budget_evals=4)
    )
    assert plan.methods == ["adamw", "mine momentum=0.5"]


def halves(model, lr, *, second=1.0):
    first, *others = model.parameters()
    return [torch.optim.SGD([first], lr), torch.optim.SGD(others, lr * second)]


def test_a_method_of_this_process_is_known_to_workers_by_the_place_of_its_function(tmp_path):
    lab.method("mine", halves)
    plan = small(tmp_path, ["mine second=2", "torch.optim.SGD"])
    assert plan.methods == ["adamw", "mine second=2", "torch.optim.SGD"]
    assert plan.compositions == {"mine second=2": f"{Path(__file__).resolve()}:halves second=2"}
    assert list(plan.packages) == [str(Path(__file__).resolve())]
    OWN.clear()  # as in a worker
    results = alone(small(tmp_path, ["torch.optim.SGD", f"mine: {__file__}:halves"]), tmp_path / "alone.db")
    mine, theirs = ([r["rows"] for r in numbers(results) if r["method"] == m] for m in ("mine", "torch.optim.SGD"))
    assert mine == theirs


@pytest.mark.parametrize("how", ["lambda", "nested", "another argument", "method"])
def test_a_function_that_workers_cannot_import_is_refused_before_anything_is_run(tmp_path, how):
    def nested(model, lr):
        return torch.optim.SGD(model.parameters(), lr)

    plain = {"lambda": lambda model, lr: nested(model, lr), "nested": nested, "method": Holder.build}
    lab.method("mine", plain.get(how, of_a_network))
    with pytest.raises(ValueError, match=r"Worker processes cannot import the method 'mine'.* pass that as task_file="):
        small(tmp_path, ["mine"])


def of_a_network(network, lr):
    return torch.optim.SGD(network.parameters(), lr)


class Holder:
    @staticmethod
    def build(model, lr):
        return torch.optim.SGD(model.parameters(), lr)


def test_a_method_that_the_task_file_defines_too_is_that_of_the_file(tmp_path):
    lab.method("mine", lambda model, lr: None)
    path = tmp_path / "methods.py"
    path.write_text(
        "import superadam_lab as lab\nimport torch\n"
        "lab.method('mine', lambda model, lr: torch.optim.SGD(model.parameters(), lr))\n"
    )
    given = {"scale": "tiny", "trials": 1, "seeds": 1, "budget_evals": 4}
    assert plan_of(Options(["digits-mlp"], ["mine"], task_file=path, **given)).compositions == {}


def test_a_task_that_this_process_alone_knows_is_refused_before_anything_is_run(tmp_path):
    x = torch.ones(8, 1)
    lab.task("mine", model=lambda: nn.Linear(1, 1), data={"train": (x,)}, loss=lambda model, x: model(x).mean())
    with pytest.raises(ValueError, match=r"Worker processes do not know the task 'mine'.* pass that as task_file="):
        lab.compare(["mine"], [], trials=1, seeds=1, jobs=0, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


SCRIPT = """
import sys
import torch
from helper_of_script import rate
import superadam_lab as lab

def build(model, lr, *, momentum=0.0):
    return torch.optim.SGD(model.parameters(), lr * rate, momentum=momentum)

lab.method("mine", build)
{guard}
    options = dict(scale="tiny", trials=1, seeds=1, budget_evals=8, jobs=1, out=sys.argv[1])
    for _ in range(2):  # the second goes on with the first
        found = lab.compare(["digits-mlp"], ["mine momentum=0.5", "torch.optim.SGD momentum=0.5"], **options)
    rows = {{m: [r.rows[-1]["valid_loss"] for r in found.records if r.method == m] for m in found.plan.methods}}
    assert rows["mine momentum=0.5"] == rows["torch.optim.SGD momentum=0.5"], found.records
"""


def script(tmp_path, guard):
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "helper_of_script.py").write_text("rate = 1.0\n")
    path = folder / "script.py"
    path.write_text(SCRIPT.format(guard=guard))
    return copies.start(str(path), str(tmp_path / "out"), stderr=copies.PIPE, text=True)


@pytest.mark.slow  # a worker process
def test_a_script_compares_a_method_that_it_defines(tmp_path):
    process = script(tmp_path, 'if __name__ == "__main__":')
    _, said = ended(process)
    assert process.returncode == 0, said


def test_a_script_whose_comparison_would_start_itself_again_is_told_how_to_write_it(tmp_path):
    process = script(tmp_path, "if True:")
    _, said = ended(process)
    assert re.search(r"script.py, line \d+: ValueError: .* put the call behind `if __name__ == \"__main__\":`", said)
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------ spaces


def test_of_two_optimizers_of_one_name_each_has_its_own_options(tmp_path):
    pair = "torch.optim.SGD lr=1e-3:1 + torch.optim.SGD lr=1e-4:0.1"
    assert space(pair) == {"lr": (1e-3, 1.0), "SGD2.lr": (1e-4, 0.1)}
    opt, _ = optimizer(pair, **{"lr": 0.5, "SGD2.lr": 0.05})
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.05]
    opt, _ = optimizer(pair, **{"SGD.lr": 0.5, "SGD2.lr": 0.05, "lr": 0.1})
    assert [group["lr"] for group in opt.param_groups] == [0.5, 0.05]
    results = alone(small(tmp_path, [pair]), tmp_path / "alone.db")
    tried = [r.options for r in results.records if r.method == pair]
    assert all(set(o) == {"lr", "SGD2.lr"} and o["lr"] >= 1e-3 and o["SGD2.lr"] <= 0.1 for o in tried)


@needs_muon
def test_a_method_may_declare_what_it_tunes_and_gets_as_many_trials(tmp_path):
    strong = "strong: adamw betas.1=0.9:0.999"
    pair = "torch.optim.Muon lr=1e-3:1 + torch.optim.AdamW lr=1e-4:0.1"
    plan = small(tmp_path, [pair, "torch.optim.SGD"], baseline=strong, trials=8)
    assert plan.baseline == plan.methods[0] == "strong"
    results = alone(dataclasses.replace(plan, trials=3), tmp_path / "alone.db")
    tried = {m: [r.options for r in results.records if (r.method, r.phase) == (m, "tune")] for m in plan.methods}
    assert {len(options) for options in tried.values()} == {3}
    assert all(set(o) == {"lr", "betas.1"} and 0.9 <= o["betas.1"] <= 0.999 for o in tried["strong"])
    assert all(set(o) == {"lr", "AdamW.lr"} and o["AdamW.lr"] <= 0.1 and o["lr"] >= 1e-3 for o in tried[pair])
    assert "betas.1 from 0.9 to 0.999, logarithmic in the distance to 1" in str(facts.made(results))


def test_an_average_is_drawn_by_its_distance_to_one():
    plan = Plan(["a"], ["m"], trials=64, spaces={"m": {"beta": (0.9, 0.999)}})
    drawn = [math.log10(1 - options["beta"]) for options in proposed(plan, "m", {})]
    assert -3 <= min(drawn) < -2.9
    assert -1.1 < max(drawn) <= -1
    assert abs(sum(drawn) / 64 + 2) < 0.05


def test_one_method_in_two_spaces_of_the_same_bounds_has_the_same_numbers(tmp_path):
    plan = small(tmp_path, ["a: torch.optim.SGD", "b: torch.optim.SGD lr=3e-4:10"])
    results = alone(plan, tmp_path / "alone.db")
    a, b = ([r["rows"] for r in numbers(results) if r["method"] == m] for m in "ab")
    assert a == b


def test_zoo_methods_are_known_by_their_names_first():
    assert isinstance(optimizer("adamw")[0], type(zoo.adamw(nn.Linear(1, 1))))
    assert isinstance(optimizer("torch.optim.AdamW")[0], Foreign)


@pytest.mark.parametrize("target", ["os:system", "shutil:rmtree", "builtins:print", "os.environ", "pathlib.Path"])
def test_what_makes_no_optimizer_is_refused_and_not_called(target, monkeypatch):
    monkeypatch.setattr(os, "system", lambda command: pytest.fail("called"))
    with pytest.raises(
        ValueError, match=f"^{target} is a .* \\(expected an optimizer class, such as torch.optim.AdamW"
    ):
        build(read(target), torch.nn.Linear(2, 1), {"lr": 0.1})
