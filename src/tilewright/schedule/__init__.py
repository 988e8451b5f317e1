"""Schedule primitives: rewrites of kernels that prove their own preconditions."""

from __future__ import annotations

from tilewright.schedule.schedule import Schedule
from tilewright.schedule.trace import Step, Trace, replay

__all__ = ["Schedule", "Step", "Trace", "replay"]
