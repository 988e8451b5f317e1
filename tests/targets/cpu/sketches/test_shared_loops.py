"""Threads share as few loops as give each core several iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.base.dtypes import float32
from tilewright.operators import Buffer, map_
from tilewright.schedule.space import Point
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain


def default(cores: int) -> Point:
    """A large map over 8, 3, 40 and 2000 elements, whose loops do not continue one another."""
    x = Buffer("x", (41, 4, 9, 2001), float32)
    y = Buffer("y", (8, 3, 40, 2000), float32)
    c = map_("t", y, lambda i, j, k, n: x[k + 1, j + 1, i + 1, n + 1])
    at = replace(machine("x86-64-v3"), cores=cores)
    return sketches(plain([c]), [c], Context(at))[0].default()


@pytest.mark.parametrize(("cores", "loops"), [(2, 1), (6, 2), (64, 3), (1000, 3)])
def test_as_few_loops_as_needed(cores: int, loops: int) -> None:
    shares = cost_model(machine("x86-64-v3")).shares
    assert (
        shares * 2 <= 8 < shares * 6 <= 24 < shares * 64
    )  # what the cases are made for
    assert default(cores).values["t.shared"] == loops


def test_one_core_divides_no_iteration() -> None:
    point = default(1)
    assert "t.shared" not in point.values
    assert "s.fuse" not in str(point.schedule.trace)
