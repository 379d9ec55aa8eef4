"""The phases: where the algorithm stands for a parameter, kept as "phase" in its state.

They are numbers because torch.distributed.checkpoint saves no strings.

START ──gradient──▶ READY ◀──flush── PENDING ──q──▶ BETWEEN ──gradient──▶ PENDING
                      │                                  │
                      └──────────── restart ─────────────┴──▶ RESTARTED ──gradient──▶ READY or PENDING
"""

from __future__ import annotations

from typing import Any

import torch

START = 0
"""The state exists, and no gradient has been taken in."""
READY = 1
"""g_t and H_t are there, and x is where the next gradient is taken."""
PENDING = 2
"""g_t and H_t are there; the move along them, with the learning rate `gamma`, waits for the next batch (τ > 0)."""
BETWEEN = 3
"""The move has been taken, and g holds half of line 11: the batch's gradient at x_t is still to come."""
RESTARTED = 4
"""g has been forgotten: the next gradient is g."""

UNESTIMATED = (START, RESTARTED)
"""The phases without a g."""


def forget(state: dict[str, Any]) -> None:
    """The next gradient is g."""
    state["g"] = torch.zeros_like(state["g"])
    state["phase"] = RESTARTED
