"""`Monitor`: a report on Algorithm 1 every few steps."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from superadam.lists import Scalar
from superadam.monitor import figures, reading
from superadam.monitor.alarms import Alarms
from superadam.monitor.fresh import Fresh
from superadam.monitor.measures import QUANTILES, Observed, factors, quantities
from superadam.monitor.reading import Gradients, Points
from superadam.monitor.sinks import sinks

__all__ = ["Monitor"]

KEPT = 10_000  # reports in `history`
MEMORY = 0.8  # weight of the earlier reports in the averages that ratios of noisy estimates are taken of


class Monitor:
    r"""Report on every `every`-th batch, in `last`, in `history` and to `to`. Training does not change by a single bit.

    A report is a dict. $\hat g$ is the newest gradient, q the gradient of the same batch at $x_{t-1}$. Norms run over
    all parameters that had a gradient. docs/monitor.md has every key; these are the most used:

    - `step`, `gradient_evaluations`, `lr`, `mu`, `alpha`, and `loss` if it is known;
    - `grad_norm`, `g_norm`, `cosine`: ‖ĝ‖, ‖g_t‖ and the cosine between the two;
    - `gradient_mapping`, `update_ratio`: $\lVert \tilde x_{t+1} - x_t \rVert / \gamma$, and the length of the step over
      `x_norm`;
    - `H_min`, `H_q10`, `H_median`, `H_q90`, `H_max`, `condition`: entries or eigenvalues of H_t; `factors`,
      `refresh_seconds` of matrices per tensor; `feasibility` with a constraint;
    - `smoothness`, `difference_ratio`, with two gradients of a batch: $\lVert \hat g - q \rVert$ over
      $\lVert x_t - x_{t-1} \rVert$, and its square over $\lVert \hat g \rVert^2$;
    - `estimator_error`, `M`, `noise_scale`, `variance_ratio`, with `loss` and `batches`: unbiased estimates from two
      fresh batches. Ratios are of averages over the reports, with weights 1, 0.8, 0.8², … into the past;
    - `alarms`: a dict from kind to message. Each is also a `MonitorWarning`, once until it clears.

    All values come from the state after the step. So with the schedule `Storm`, `alpha` is that of the next step, and
    with the matrix `AdaDelta`, H already includes this step. With the iterates `Nigt` and `SAdaGrad`, x_t is the point
    where the gradient was taken. H of `DampedLBFGS` is not diagonal, so neither H nor M is reported. No theorem bounds
    `M` on a set that is not convex.

    Args:
        opt: a `SuperAdam`, or the result of `superadam.create`.
        every: number of batches between reports. In between, a step costs one extra comparison.
        to: the path of a `.jsonl` file, a `SummaryWriter`, `TensorBoard(directory)`, a function of a dict
            (`wandb.log`), or a list of those.
        loss: a function that returns the loss of a batch.
        batches: an iterable of batches for `loss`, drawn independently of training's, such as the training loader
            itself. Every report takes two.
        full: a function without arguments that returns the loss over all data, or an iterable of losses that add up to
            it. Makes `estimator_error` and `M` exact.
        limits: limits of the alarms, e.g. `{"condition": 1e8}`; see `superadam.monitor.alarms.LIMITS`.

    >>> from superadam import SuperAdam
    >>> x = torch.tensor([3.0, 4.0], requires_grad=True)
    >>> opt = SuperAdam([x], lr=0.1)
    >>> with Monitor(opt, every=10) as monitor:
    ...     for _ in range(20):
    ...         opt.zero_grad()
    ...         loss = x.square().sum()
    ...         loss.backward()
    ...         monitor.note(loss=loss)
    ...         opt.step()
    >>> [report["step"] for report in monitor.history]
    [10, 20]
    >>> monitor.last["loss"] > 0 < monitor.last["gradient_mapping"]
    True
    """

    def __init__(
        self,
        opt: Any,
        every: int = 50,
        to: Any = None,
        *,
        loss: Callable[[Any], Tensor] | None = None,
        batches: Iterable[Any] | None = None,
        full: Callable[[], Tensor | Iterable[Tensor]] | None = None,
        limits: dict[str, float] | None = None,
    ) -> None:
        if not reading.is_watchable(opt):
            raise TypeError(f"Monitor watches a SuperAdam, not {type(opt).__name__} (a trainer's wrapper? unwrap it)")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"Invalid every: {every!r} (expected a whole number of batches, at least 1)")
        self.opt = opt
        self.every = every
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.rho = math.inf
        self._sinks = sinks(to)
        self._alarms = Alarms(limits)
        self._fresh = Fresh(opt, loss, batches, full)
        self._averages: dict[str, float] = {}
        self._batches = 0
        self._refreshed = 0.0
        self._noted: dict[str, Scalar] = {}
        self._start: Points | None = None
        self._q: Gradients | None = None
        self._handles = [opt.register_step_pre_hook(self._before), opt.register_step_post_hook(self._after)]

    @property
    def last(self) -> dict[str, Any]:
        """The newest report, empty before the first."""
        return self.history[-1] if self.history else {}

    def note(self, **numbers: Scalar) -> None:
        """Add numbers to the next report: `monitor.note(loss=loss)`. `step(closure)` notes the loss by itself.

        Args:
            numbers: numbers, or tensors with one element, which are copied to the host with the report.
        """
        for name, n in numbers.items():
            self._noted[name] = n.detach().reshape(()) if isinstance(n, Tensor) else float(n)

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Draw all reports, one panel per quantity, save the figure as `path`, if one is given, and return it.

        Norms, entries of H_t and ratios have logarithmic axes. A dotted red line marks a report with an alarm.

        Args:
            path: a file name that matplotlib knows, such as `run.png` or `run.pdf`.
        """
        return figures.draw(self.history, path)

    def frame(self) -> Any:
        """Return all reports as a pandas DataFrame, a row for each.

        Nested values have columns: `factors/0.weight/L_condition`.
        """
        return figures.tabulate(self.history)

    def close(self) -> None:
        """Stop reporting. `last` and `history` remain."""
        for handle in self._handles:
            handle.remove()
        self._start = self._q = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------ hooks around `step`

    def _before(self, opt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count the batch, and copy the parameters before a step with a report."""
        if reading.between_halves(opt):
            return None
        self._batches += 1
        self._start = self._q = None
        if self._batches % self.every != 0:
            return None
        self._start = {p: p.detach().clone() for p in reading.parameters(opt)}
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        return None if closure is None else ((opt,), {"closure": self._watched(closure, reading.is_pending(opt))})

    def _watched(self, closure: Callable[[], Any], pair: bool) -> Callable[[], Any]:
        """Return a closure that notes its first loss, and, of a pair of gradients at two points, the first."""
        seen = False

        def watched() -> Any:
            nonlocal seen
            loss = closure()
            if not seen:
                seen, self._q = True, _gradients(self.opt) if pair else None
                if isinstance(loss, int | float) or (isinstance(loss, Tensor) and loss.numel() == 1):
                    self.note(loss=loss)
            return loss

        return watched

    def _after(self, opt: Any, args: Any, kwargs: Any) -> None:
        """Report, if this step ended a batch that is due for a report."""
        if self._start is None:
            return
        if reading.between_halves(opt):  # the gradients are q, unscaled by now if a scaler is in use
            self._q = _gradients(opt)
            if reading.has_dropped(opt):
                self._start = None
            return
        start, q, self._start, self._q = self._start, self._q, None, None
        place = None if opt.two_point else start  # x_t
        here = there = full = None
        if self._fresh.loss is not None:
            here, *others = self._fresh.halves(*([place] if q is None else [place, start]))
            there = others[0] if others else None
        if self._fresh.full is not None:
            full = self._fresh.whole(place)
        sums, found = quantities(opt, Observed(start, q, here, there, full, self._noted))
        if not found:
            return
        report = self._report(sums, found[0])
        if of_tensors := factors(found):
            seconds = reading.refresh_seconds(opt)
            since = self._refreshed if seconds >= self._refreshed else 0.0  # a loaded checkpoint begins to count anew
            report |= {"factors": of_tensors, "refresh_seconds": seconds - since}
            self._refreshed = seconds
        report["alarms"] = self._alarms.found(report, self.history, summed=found[0].sums_gradients)
        self._noted = {}
        self.history.append(report)
        for sink in self._sinks:
            sink(dict(report))
        self._alarms.warn(report["alarms"], report["step"])  # last, as warnings may be errors

    # ------------------------------------------------------------------------------------ the report

    def _report(self, sums: dict[str, list[float]], first: reading.Reading) -> dict[str, Any]:
        total = {name: sum(values) for name, values in sums.items()}
        norm = {name: math.sqrt(total[f"{name}2"]) for name in ("grad", "g", "x", "mapping", "move")}
        report: dict[str, Any] = {
            **{name: sums[f"noted {name}"][0] for name in self._noted},
            "step": int(sums["step"][0]),
            "gradient_evaluations": self.opt.gradient_evaluations,
            **{name: sums[key][0] for name, key in (("lr", "gamma"), ("mu", "mu"), ("alpha", "alpha"))},
            "grad_norm": norm["grad"],
            "g_norm": norm["g"],
            "cosine": _ratio(total["g_grad"], norm["g"] * norm["grad"]),
            "gradient_mapping": norm["mapping"],
            "x_norm": norm["x"],
            "update_ratio": _ratio(norm["move"], norm["x"]),
        }
        if first.cap is not None:
            report["alpha_cap"] = first.cap
        if "H_min" in sums:
            low, high = min(sums["H_min"]), max(sums["H_max"])
            self.rho = min(self.rho, low)
            report |= {"H_min": low, **{q: sums[q][0] for q in QUANTILES if q in sums}, "H_max": high}
            report["condition"] = _ratio(high, low)
        if "feasibility" in sums:
            report["feasibility"] = max(sums["feasibility"])
        if total.get("dx2", 0.0) != 0:
            report["difference_ratio"] = _ratio(total["difference2"], total["grad2"])
            report["smoothness"] = math.sqrt(total["difference2"] / total["dx2"])
        return report | self._probed(total, norm["mapping"])

    def _probed(self, total: dict[str, float], mapping: float) -> dict[str, float]:
        report: dict[str, float] = {}
        if "error2" in total:
            report["estimator_error2"] = total["error2"]
            report["estimator_error"] = math.sqrt(max(total["error2"], 0.0))
            if self.rho < math.inf:
                report["rho"] = self.rho
                report["M_error"] = _ratio(report["estimator_error"], self.rho)
                report["M"] = report["M_error"] + mapping
        if "probe_variance" in total:
            report |= {name: total[name] for name in ("full_gradient_norm2", "probe_variance")}
            report["noise_scale"] = self._average_ratio(total, "probe_variance", "full_gradient_norm2")
        if total.get("dx2", 0.0) != 0 and "variance" in total:
            report["variance_ratio"] = self._average_ratio(total, "difference_variance", "variance")
        return {name: value for name, value in report.items() if not math.isnan(value)}

    def _average_ratio(self, total: dict[str, float], above: str, below: str) -> float:
        """Ratio of averages. NaN if the denominator, a noisy estimate of a positive number, is not positive."""
        for name in (above, below):
            if math.isfinite(total[name]):
                self._averages[name] = MEMORY * self._averages.get(name, 0.0) + total[name]
        a, b = (self._averages.get(name, 0.0) for name in (above, below))
        return a / b if b > 1e-9 * abs(a) else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b != 0 else math.nan


@torch.no_grad()
def _gradients(opt: Any) -> Gradients:
    return {p: p.grad.clone() for p in reading.parameters(opt) if p.grad is not None}
