"""Spaces of schedules, neutral of any target: choices and points, patterns of kernels, fusion."""

from __future__ import annotations

from tilewright.schedule.space.choices import Choices, Parameter, Point, Sketch

__all__ = ["Choices", "Parameter", "Point", "Sketch"]
