"""Reports as a figure, as a table, and in files of others."""

import json
import math
import sys

import pytest
import torch
from torch import nn

from superadam import Monitor, SuperAdam, matrices
from superadam.monitor import TensorBoard, figures


@pytest.fixture
def monitor():
    """Four reports of a network with a matrix for each tensor, the last with an alarm."""
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    opt = SuperAdam(model, matrix=matrices.ByShape(matrices.Shampoo(), layers=()))
    with Monitor(opt, every=2, limits={"condition": math.inf}) as monitor:
        for _ in range(8):
            opt.zero_grad()
            model(torch.ones(5, 4)).square().sum().backward()
            opt.step()
    monitor.last["alarms"] = {"condition": "cond(H_t) is large"}
    return monitor


def test_a_figure_has_a_panel_for_everything_that_was_reported(monitor):
    axes = monitor.plot().axes
    assert [ax.get_title() for ax in axes] == [title for title, _, _ in figures.panels(monitor.history)]
    lines = {line.get_label(): line for ax in axes for line in ax.lines}
    for name in ("g_norm", "cosine", "lr", "update_ratio", "refresh_seconds"):
        assert list(lines[name].get_xdata()) == [2, 4, 6, 8]
        assert list(lines[name].get_ydata()) == [report[name] for report in monitor.history]


def test_plot_writes_a_file(monitor, tmp_path):
    monitor.plot(tmp_path / "run.png")
    monitor.plot(str(tmp_path / "run.svg"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "run.svg").read_text()
    with pytest.raises(ValueError, match="png"):  # matplotlib lists the endings that it knows
        monitor.plot(tmp_path / "run.xyz")


def test_norms_have_logarithmic_axes_and_cosines_have_not(monitor):
    scales = {ax.get_title(): ax.get_yscale() for ax in monitor.plot().axes}
    assert scales["norms"] == "log"
    assert scales["cosine of g_t and the newest gradient"] == "linear"


def test_alarms_are_marked(monitor):
    for ax in monitor.plot().axes:
        assert [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == ":"] == [8]


def test_a_panel_of_zeros_is_not_logarithmic():
    assert figures.panels([{"step": 1, "feasibility": 0.0}]) == [("distance to the set", ["feasibility"], False)]


def test_nothing_to_plot_is_said():
    opt = SuperAdam([torch.ones(1, requires_grad=True)])
    with Monitor(opt) as monitor, pytest.raises(ValueError, match="No report to plot yet"):
        monitor.plot()


@pytest.mark.parametrize(("method", "package"), [("plot", "matplotlib"), ("frame", "pandas")])
def test_a_missing_package_is_named(monitor, monkeypatch, method, package):
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"Monitor.{method}\\(\\) needs {package}: pip install {package}"):
        getattr(monitor, method)()


def test_a_frame_has_a_row_for_each_step_and_columns_for_what_is_nested(monitor):
    pytest.importorskip("pandas")
    frame = monitor.frame()
    assert list(frame.index) == [2, 4, 6, 8]
    assert list(frame["g_norm"]) == [report["g_norm"] for report in monitor.history]
    assert frame["factors/0.weight/L_condition"].iloc[-1] == monitor.last["factors"]["0.weight"]["L_condition"]


def test_tensorboard_gets_every_nested_number(monitor):
    class Writer:
        def __init__(self):
            self.added = {}

        def add_scalar(self, name, value, step):
            self.added[name] = float(value)  # which a dict would not survive

        def add_text(self, name, text, step):
            self.added[name] = text

    writer = Writer()
    TensorBoard(writer)(monitor.last)
    assert writer.added["superadam/factors/0.weight/L_min"] == monitor.last["factors"]["0.weight"]["L_min"]
    assert writer.added["superadam/alarms/condition"] == "cond(H_t) is large"


def test_json_has_null_for_nested_numbers_that_are_not_finite(tmp_path):
    path = tmp_path / "run.jsonl"
    x = torch.ones(1, requires_grad=True)
    Monitor(SuperAdam([x]), to=path)._sinks[0]({"step": 1, "factors": {"w": {"L_condition": math.inf}}})
    assert json.loads(path.read_text()) == {"step": 1, "factors": {"w": {"L_condition": None}}}
