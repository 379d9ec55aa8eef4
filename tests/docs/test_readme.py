"""The numbers that the README claims are those of the stored runs in research/, recomputed here."""

import gzip
import itertools
import json
import math
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESEARCH = ROOT / "research"
README = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
PLUS = "SUPER-ADAM⁺"


def stored(path):
    content = (RESEARCH / path).read_bytes()
    return json.loads(gzip.decompress(content) if path.endswith(".gz") else content)


def runs(path):
    """The rows of the final runs by task, method and seed."""
    found = {}
    for record in itertools.chain.from_iterable(comparison["records"] for comparison in stored(path)):
        if record["phase"] == "report" and record["rows"]:
            found.setdefault(record["task"], {}).setdefault(record["method"], {})[record["seed"]] = record["rows"]
    return found


def geometric(values):
    return math.exp(fmean(map(math.log, values)))


def reached(rows, target, axis):
    """Where the loss reaches the target, or None. Between two rows its logarithm is linear."""
    for above, below in itertools.pairwise(rows):
        if below["valid_loss"] <= target:
            part = math.log(above["valid_loss"] / target) / math.log(above["valid_loss"] / below["valid_loss"])
            return above[axis] + part * (below[axis] - above[axis])
    return None


def until(of_task, method, axis, baseline="AdamW"):
    """What a method needs to the baseline's median final loss, over what the baseline needs."""
    theirs = of_task[baseline]
    target = median(rows[-1]["valid_loss"] for rows in theirs.values())
    ours = geometric(reached(rows, target, axis) or math.inf for rows in of_task[method].values())
    return ours / geometric(reached(rows, target, axis) or rows[-1][axis] for rows in theirs.values())


def losses(found, method, rival):
    """The final loss over the rival's, by task."""
    return [
        geometric(of[method][seed][-1]["valid_loss"] / of[rival][seed][-1]["valid_loss"] for seed in of[rival])
        for of in found.values()
    ]


@pytest.mark.parametrize(
    ("test", "method", "gradients", "seconds", "claim"),
    [
        ("third", PLUS, 0.37, 0.52, "gradients 0.37 (0.33 to 0.38), seconds 0.52 (0.48 to 0.55); final loss"),
        ("fourth", PLUS, 0.49, 0.81, "On four more tasks, 5 seeds: gradients 0.49 (0.44 to 0.54), seconds 0.81 (0.73"),
        ("again", PLUS, 0.52, 1.11, "On four smaller networks, 4 seeds: gradients 0.52 (0.43 to 0.56), seconds 1.11"),
        ("third", "SOAP", 0.47, None, "SOAP needed 0.47 and Muon 0.56 of AdamW's gradients"),
        ("third", "Muon", 0.56, None, "SOAP needed 0.47 and Muon 0.56 of AdamW's gradients"),
    ],
)
def test_gradients_and_seconds_to_the_final_loss_of_adamw(test, method, gradients, seconds, claim):
    assert claim in README
    tasks = runs(f"locked/data/locked {test}.json.gz").values()
    assert geometric(until(task, method, "gradient_evaluations") for task in tasks) == pytest.approx(
        gradients, abs=6e-3
    )
    if seconds:
        assert geometric(until(task, method, "seconds") for task in tasks) == pytest.approx(seconds, abs=6e-3)


def test_final_losses_on_tasks_that_no_search_had_seen():
    third, fourth, first = (runs(f"locked/data/locked{name}.json.gz") for name in (" third", " fourth", ""))
    ours = losses(third, PLUS, "AdamW")
    assert f"lower on all four, by {100 - 100 * max(ours):.0f} % to {100 - 100 * min(ours):.0f} %, and" in README
    assert max(*losses(third, PLUS, "SOAP"), *losses(third, PLUS, "Muon")) < 1
    ours = losses(fourth, PLUS, "AdamW")
    muon = geometric(losses(fourth, PLUS, "Muon"))
    assert (
        f"lower on all four, by {100 - 100 * max(ours):.1f} % to {100 - 100 * min(ours):.0f} %, "
        f"and {100 * muon - 100:.0f} % above Muon's"
    ) in README
    higher = [loss for loss in losses(first, PLUS, "AdamW") if loss > 1]
    assert len(higher) == 1
    assert f"lower on three, {100 * higher[0] - 100:.0f} % higher on one" in README


def test_muon_against_adamw():
    tasks = runs("matrix_family/matrix_family.json.gz").values()
    gradients = [f"{until(task, 'muon', 'gradient_evaluations', 'adamw'):.2f}" for task in tasks]
    seconds = [f"{until(task, 'muon', 'seconds', 'adamw'):.1f}" for task in tasks]
    told = [f"{', '.join(of[:-1])} and {of[-1]}" for of in (gradients, seconds)]
    assert f"{told[0]} of AdamW's; in seconds {told[1]}" in README


NAMES = {"super_adam tau=0": "τ = 0", "super_adam tau=1": "τ = 1", "sgd": "SGD", "adam": "Adam", "adam_plus": "Adam⁺"}


@pytest.mark.parametrize("task", ["wikitext2-lstm", "cifar10-resnet18"])
def test_the_papers_experiments_at_laptop_scale(task):
    """Test losses at equal gradients, from the lowest."""
    methods = stored("lab_results/lab_results.json")[task]["methods"]
    found = {told: methods[name]["evaluations"][0]["test_loss"] for name, told in NAMES.items()}
    assert ", ".join(f"{told} {found[told]:.2f}" for told in sorted(found, key=found.get)) in README


def test_gradients_on_the_function_of_the_rates():
    zero, one = stored("rates/rates.json").values()
    last = zero["gradient"][-1]
    needed = next(n for n, gradient in zip(one["evaluations"], one["gradient"], strict=True) if gradient <= last)
    assert f"until mean ‖∇f‖ ≤ {last:.3f} | τ = 0 {zero['evaluations'][-1]:,.0f}, τ = 1 {needed:,.0f};" in README


def test_the_exact_step_against_the_best_rival():
    """Medians over seeds of the gradients to the target; intervals of the ratio over paired seeds by Student's t."""
    numbers, counts, sides = stored("constrained/constrained.json.gz"), [0, 0, 0, 0], [0, 0]

    def needed(curve, target):
        last = max((i for i, gap in enumerate(curve) if gap is None or gap > target), default=-1)
        return numbers["shown"][last + 1] if last + 1 < len(curve) else math.inf

    for problem in numbers["problems"].values():
        found = {m: [needed(c, problem["target"]) for c in of["curves"]] for m, of in problem["methods"].items()}
        ours = found["exact step, Adam's H"]
        rival = min((hits for method, hits in found.items() if not method.startswith("exact step")), key=median)
        if median(ours) == median(rival) == math.inf:
            counts[3] += 1
        else:
            counts[(median(ours) > median(rival) / 2) + (median(ours) > median(rival))] += 1
        if max(*ours, *rival) < math.inf:
            logs = [math.log(a / b) for a, b in zip(ours, rival, strict=True)]
            assert len(logs) == 5
            half = 2.776445 * stdev(logs) / math.sqrt(5)
            sides[0] += fmean(logs) + half < 0
            sides[1] += fmean(logs) - half > 0
    assert (
        f"ratio ≤ 0.5 on {counts[0]} problem, 0.5 to 1 on {counts[1]}, above 1 on {counts[2]}; on {counts[3]} no "
        "method reaches the target. The 95 % interval of the ratio "
        f"is below 1 on {sides[0]} and above 1 on {sides[1]} |"
    ) in README
    assert f"as fast as the best rival on {counts[0] + counts[1]} of {sum(counts)} problems" in README


def test_the_time_of_a_step():
    rows = stored("speed/bench.json")["models"]["resnet18"]["rows"]
    rows |= stored("speed/bench_later.json")["models"]["resnet18"]["rows"] | rows
    fused = {name: row["to_fused"]["median"] for name, row in rows.items()}
    assert fused["case 1, τ = 0"] == pytest.approx(1, abs=0.05)
    assert rows["case 1, τ = 1"]["to_foreach"]["median"] == pytest.approx(1, abs=0.05)
    assert f"Muon and SOAP: {fused['muon']:.0f} and {fused['soap']:.0f} times the fused one" in README
