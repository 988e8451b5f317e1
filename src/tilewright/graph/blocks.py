"""What operators ask a target whose blocks of threads share memory."""

from __future__ import annotations

from tilewright.base.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BlockCosts:
    """Parameters of the target's cost model, by which operators choose between native forms.

    beside: elements written side by side that keep threads in step busy. compared: elements, at
    most, that all threads compare while one write is waited for.
    """

    beside: int
    compared: int
