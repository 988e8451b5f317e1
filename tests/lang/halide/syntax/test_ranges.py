"""Ranges of a Func's values bound what is read by them."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import halide as hl
from tilewright.base.errors import InputError

x, y = hl.Var("x"), hl.Var("y")


def image():
    return hl.Buffer(np.arange(40, dtype=np.int32).reshape(2, 20))


def read_by(define):
    """An image read at x + 10 + what `define` makes of a Func."""
    by, there, out = hl.Func("by"), hl.Func("there"), hl.Func("out")
    there[x] = image()[x, 0]
    define(by)
    out[x] = there[x + 10 + by[x]]
    there.compute_root()
    by.compute_root()
    return np.asarray(out.realize([4]))


def test_a_clamped_value_is_a_bounded_index():
    def define(f):
        f[x] = hl.clamp(image()[x, 1] % 7 - 9, -3, 3)

    want = [10 + n + np.clip((20 + n) % 7 - 9, -3, 3) for n in range(4)]
    assert read_by(define).tolist() == want


def test_every_definition_counts():
    def define(f):
        f[x] = hl.clamp(image()[x, 1], -3, 3)
        f[2] = -5

    assert read_by(define).tolist() == [13, 14, 7, 16]


def step(f):
    f[x] = 0
    f[x] += 1


def recurrence(f):
    r = hl.RDom([(1, 3)], "r")
    f[x] = 0
    f[r.x] = f[r.x - 1] + 1


def unbounded(f):
    f[x] = image()[x, 1]


@pytest.mark.parametrize("define", [step, recurrence, unbounded])
def test_what_is_not_known_must_be_clamped(define):
    with pytest.raises(InputError, match="has no bounds"):
        read_by(define)


def test_a_boundary_condition_keeps_the_variables_of_its_func():
    f = hl.Func("f")
    f[y, x] = x + y
    edge = hl.BoundaryConditions.repeat_edge(f, [(0, 4), (0, 4)])
    edge.vectorize(x, 4)
    assert [v.name() for v in edge.args] == ["y", "x"]
