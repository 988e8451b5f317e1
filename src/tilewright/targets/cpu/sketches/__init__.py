"""The CPU's sketches: families of schedules, with what the processor decides of each of them."""

from __future__ import annotations

from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.rules import (
    default,
    estimated_cost,
    is_profitable,
    sketches,
)

__all__ = ["Context", "default", "estimated_cost", "is_profitable", "sketches"]
