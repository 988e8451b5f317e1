"""Sketches: families of schedules with free parameters, for any sequence of Computations."""

from __future__ import annotations

from tilewright.schedule.sketch.choices import Choices, Parameter, Point, Sketch
from tilewright.schedule.sketch.context import Context, Machine
from tilewright.schedule.sketch.sketches import covers, default, effort, sketches

__all__ = [
    "Choices",
    "Context",
    "Machine",
    "Parameter",
    "Point",
    "Sketch",
    "covers",
    "default",
    "effort",
    "sketches",
]
