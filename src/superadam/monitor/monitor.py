"""`Monitor`: a report on Algorithm 1 every few steps."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import Self

from superadam._state.composed import ComposedOptimizer
from superadam.estimators import Summed
from superadam.monitor import figures
from superadam.monitor.alarms import Alarms
from superadam.monitor.measures import QUANTILES, Observed, factors, quantities
from superadam.monitor.probes import Gradients, Points, Probes, points
from superadam.monitor.sinks import sinks

if TYPE_CHECKING:
    from superadam._step.view import View

__all__ = ["Monitor"]

KEPT = 10_000  # reports in `history`
MEMORY = 0.8  # weight of the earlier reports in the averages that ratios of noisy estimates are taken of


class Monitor:
    r"""Report on every `every`-th batch, in `last`, in `history` and to `to`. Training does not change by a single bit.

    Norms and inner products run over all parameters that had a gradient. $\hat g = \nabla f(x_t; \xi_t)$ is the newest
    stochastic gradient. A report is a dict that always contains:

    - `step`, `gradient_evaluations`, `lr`, `mu`, `alpha`: t, the gradients computed by training, γ, μ_t and α_t, for
      the first parameter; `alpha_cap`, if the schedule has one.
    - `grad_norm`, `g_norm`, `cosine`: ‖ĝ‖, ‖g_t‖ and the cosine between the two.
    - `gradient_mapping`: $\lVert \tilde x_{t+1} - x_t \rVert / \gamma$.
    - `x_norm`, `update_ratio`: ‖x_t‖ and $\mu_t \lVert \tilde x_{t+1} - x_t \rVert / \lVert x_t \rVert$.
    - `H_min`, `H_q10`, `H_median`, `H_q90`, `H_max`, `condition`: the entries of a diagonal H_t, or the eigenvalues of
      a matrix per tensor, and the ratio of the largest to the least. The quantiles use every k-th entry, at most
      10,000.
    - `alarms`: a dict from kind to message. Each is also a `MonitorWarning`, once until it clears.

    With matrices per tensor:

    - `factors`: for each of these tensors, by name, the rank of g_t up to rounding errors (`rank`) and its stable rank
      ‖g‖²_F/‖g‖² (`stable_rank`); the least eigenvalue, the quartiles, the largest and the condition number of each
      factor (`L_min`, `L_q25`, `L_median`, `L_q75`, `L_max`, `L_condition`, `R_min`, …; of PSGD, the factors of
      H_t⁻¹); how many decompositions failed in float32 and were repeated in float64 (`retries`); and how many failed
      there too, in a row (`failures`).
    - `refresh_seconds`: time spent on eigenvectors since the last report (the host's time, on an accelerator).

    With a constraint: `feasibility`, the largest distance of the parameters outside the set. No theorem bounds `M` on
    a set that is not convex, such as a `Sphere`.

    With two gradients of a batch, ĝ and $q = \nabla f(x_{t-1}; \xi_t)$:

    - `smoothness`: $\lVert \hat g - q \rVert / \lVert x_t - x_{t-1} \rVert$, the local L.
    - `difference_ratio`: $\lVert \hat g - q \rVert^2 / \lVert \hat g \rVert^2$, a proxy of `variance_ratio`.

    With `loss` and `batches`. $q_1$ and $q_2$ are the gradients of two fresh batches at $x_t$:

    - `estimator_error2`: $\langle g_t - q_1, g_t - q_2 \rangle$, unbiased for $\lVert \nabla f(x_t) - g_t \rVert^2$, so
      it can be negative; `estimator_error`: its square root, or 0.
    - `M`: $M_t = \lVert \nabla f(x_t) - g_t \rVert / \rho + \lVert \tilde x_{t+1} - x_t \rVert / \gamma$. Its first
      term is `M_error`, the second `gradient_mapping`; `rho` is the least entry of H in all reports so far.
    - `full_gradient_norm2`, `probe_variance`: $\langle q_1, q_2 \rangle$, unbiased for ‖∇f(x_t)‖², and
      $\tfrac12 \lVert q_1 - q_2 \rVert^2$, unbiased for the variance of a gradient on one of `batches`.
    - `noise_scale`: `probe_variance` / `full_gradient_norm2`, tr Σ/‖∇f‖² of McCandlish et al. (2018), in batches.
    - `variance_ratio`: Var(ĝ - q)/Var(ĝ) of the gradients that training used, as
      $\langle \hat g - q - d_1, \hat g - q - d_2 \rangle / \langle \hat g - q_1, \hat g - q_2 \rangle$; $d_1$ and
      $d_2$ are the differences of the two fresh batches' gradients between $x_t$ and $x_{t-1}$.

    A ratio of two noisy estimates is biased, so the numerators and denominators of the last two are averaged over the
    reports, with weights 1, 0.8, 0.8², … into the past. The report omits a ratio if its denominator is not positive.

    All values come from the state after the step. This has consequences for some parts:

    - With the schedule `Storm`, `alpha` is that of the next step.
    - With the matrix `AdaDelta`, H already includes this step.
    - With the iterates `Ahead` and `Staged`, x_t is the point where the gradient was taken.
    - H of `DampedLBFGS` is not diagonal, so neither H nor M is reported.

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
    ...         x.square().sum().backward()
    ...         opt.step()
    >>> [report["step"] for report in monitor.history]
    [10, 20]
    >>> monitor.last["gradient_mapping"] > 0
    True
    """

    def __init__(
        self,
        opt: ComposedOptimizer,
        every: int = 50,
        to: Any = None,
        *,
        loss: Callable[[Any], Tensor] | None = None,
        batches: Iterable[Any] | None = None,
        full: Callable[[], Tensor | Iterable[Tensor]] | None = None,
        limits: dict[str, float] | None = None,
    ) -> None:
        if not isinstance(opt, ComposedOptimizer):
            raise TypeError(f"Monitor watches a SuperAdam, not {type(opt).__name__} (a trainer's wrapper? unwrap it)")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"Invalid every: {every!r} (expected a whole number of batches, at least 1)")
        self.opt = opt
        self.every = every
        self.history: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.rho = math.inf
        self._sinks = sinks(to)
        self._alarms = Alarms(limits)
        self._probes = Probes(opt, loss, batches, full)
        self._averages: dict[str, float] = {}
        self._batches = 0
        self._refreshed = 0.0
        self._start: Points | None = None
        self._q: Gradients | None = None
        self._handles = [opt.register_step_pre_hook(self._before), opt.register_step_post_hook(self._after)]

    @property
    def last(self) -> dict[str, Any]:
        """The newest report. Empty before the first one."""
        return self.history[-1] if self.history else {}

    def plot(self) -> Any:
        """A matplotlib figure of all reports, one panel per quantity: `monitor.plot().savefig("run.png")`.

        Norms, entries of H_t and ratios have logarithmic axes. A dotted red line marks a report with an alarm.
        """
        return figures.draw(self.history)

    def frame(self) -> Any:
        """All reports as a pandas DataFrame, one row per report. Nested values have columns such as
        `factors/0.weight/L_condition`."""
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

    def _before(self, opt: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Before `step`: count, and copy what the step will overwrite."""
        if opt._open_batch is not None:  # the second half of a batch
            return None
        self._batches += 1
        self._start = self._q = None
        if self._batches % self.every != 0:
            return None
        self._start = points(opt)
        if not opt.two_point:
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None or not opt._pending():  # x does not move: there is one gradient
            return None
        watched = self._watched(closure)
        return ((args[0], watched, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": watched})

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, wrapped so that the monitor keeps the first of its two gradients."""
        first: list[Gradients] = []

        def both() -> Any:
            if first:
                self._q = first[0]
            loss = closure()
            if not first:
                first.append(_gradients(self.opt))
            return loss

        return both

    def _after(self, opt: Any, args: Any, kwargs: Any) -> None:
        """After `step`: report, if this step ended a batch that is due for a report."""
        if self._start is None:
            return
        if opt._open_batch is not None:  # the first half: the gradients are q, unscaled by now if a scaler is in use
            self._q = _gradients(opt)
            if opt._dropped_batch is opt._open_batch:  # they have overflowed, and the batch is void
                self._start = None
            return
        start, q, self._start, self._q = self._start, self._q, None, None
        place = None if opt.two_point else start  # x_t
        here = there = full = None
        if self._probes.loss is not None:
            here, *others = self._probes.halves(*([place] if q is None else [place, start]))
            there = others[0] if others else None
        if self._probes.full is not None:
            full = self._probes.whole(place)
        measured = quantities(opt, Observed(start, q, here, there, full))
        if measured is None:
            return
        sums, first = measured
        report = self._report(sums, first)
        if of_tensors := factors(opt):
            report["factors"] = of_tensors
            seconds = sum(plan.refresh_seconds for plan in opt._plans)
            # a loaded checkpoint begins to count anew
            report["refresh_seconds"] = seconds - (self._refreshed if seconds >= self._refreshed else 0.0)
            self._refreshed = seconds
        summed = isinstance(first.estimator, Summed)
        report["alarms"] = self._alarms.found(report, self.history, summed=summed)
        self.history.append(report)
        for sink in self._sinks:
            sink(dict(report))
        self._alarms.warn(report["alarms"], report["step"])  # last, as warnings may be errors

    def _report(self, sums: dict[str, list[float]], first: View) -> dict[str, Any]:
        total = {name: sum(values) for name, values in sums.items()}
        norm = {name: math.sqrt(total[f"{name}2"]) for name in ("grad", "g", "x", "mapping")}
        move2 = sum(m * (a * b) ** 2 for m, a, b in zip(sums["mapping2"], sums["gamma"], sums["mu"], strict=True))
        report: dict[str, Any] = {
            "step": int(sums["step"][0]),
            "gradient_evaluations": self.opt.gradient_evaluations,
            **{name: sums[key][0] for name, key in (("lr", "gamma"), ("mu", "mu"), ("alpha", "alpha"))},
            "grad_norm": norm["grad"],
            "g_norm": norm["g"],
            "cosine": _ratio(total["g_grad"], norm["g"] * norm["grad"]),
            "gradient_mapping": norm["mapping"],
            "x_norm": norm["x"],
            "update_ratio": _ratio(math.sqrt(move2), norm["x"]),
        }
        if hasattr(first.schedule, "cap"):
            report["alpha_cap"] = first.schedule.cap
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
def _gradients(opt: ComposedOptimizer) -> Gradients:
    return {p: p.grad.clone() for p in opt._parameters() if p.grad is not None}
