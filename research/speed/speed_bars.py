"""What a step costs, as bars: the times of README.md as multiples of torch's fused AdamW."""

import json
from pathlib import Path

import style

HERE = Path(__file__).resolve().parent

COMPOSITIONS = [f"case {case}, τ = {tau}" for case in ("1", "2", "4a", "4b") for tau in (0, 1)]
PEERS = ("torch AdamW, fused", "torch AdamW, foreach")
MODEL = "resnet18"


def draw():
    report = json.loads((HERE / "bench.json").read_text(encoding="utf-8"))
    rows = report["models"][MODEL]["rows"]
    fig, panel = style.panels(height=4.6)
    bars = []  # label, multiple, colour, way
    for name in (*PEERS, *COMPOSITIONS):
        eager, compiled = rows[name], rows.get(f"{name}, compiled")
        color = style.GREY if name in PEERS else style.GREEN
        way = "" if name in PEERS else eager["way"]
        bars.append((name, eager["to_fused"]["median"], color, way))
        if compiled is not None and compiled["way"] == "compiled":
            bars.append(("compile=True", compiled["to_fused"]["median"], style.BLUE, ""))
    for i, (_, multiple, color, way) in enumerate(bars):
        panel.barh(-i, multiple, color=color, height=0.72)
        panel.annotate(f"{multiple:.1f}" + (f"  {way}" if way else ""), (multiple, -i), xytext=(4, 0),
                       textcoords="offset points", va="center", fontsize=9)  # fmt: skip
    panel.set_yticks([-i for i in range(len(bars))], [label for label, *_ in bars], fontsize=9)
    panel.axvline(1, color=style.INK, linewidth=0.8, linestyle=":")
    panel.set(xlabel="time of a step, as a multiple of torch's fused AdamW", xlim=(0, 6.6))
    threads, millions = report["machine"]["threads"], report["models"][MODEL]["parameters"] / 1e6
    panel.set_title(f"{MODEL}, {millions:.1f} million parameters, {threads} threads of a CPU", loc="left")
    panel.grid(axis="y", visible=False)
    panel.tick_params(axis="y", length=0)
    style.save(fig, HERE / "speed.svg")
