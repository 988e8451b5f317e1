"""Maps whose result may take the place of an operand: their tiles do not overlap, where extents
allow it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.expr.nodes import Expr, const
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.in_place import overwritable
from tilewright.loops.walk import loops_of
from tilewright.operators import Buffer, map_
from tilewright.targets.cpu.machine import machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain


def scaled(rows: int, columns: int, mcpu: str, cores: int) -> tuple[Kernel, Buffer]:
    """Columns multiplied by a factor each, and the operand that has the result's shape."""
    x = Buffer("x", (rows, columns), float32)
    f = Buffer("f", (columns,), float32)
    y = Buffer("y", (rows, columns), float32)
    c = map_("t", y, lambda i, j: x[i, j] * f[j])
    at = Context(replace(machine(mcpu), cores=cores))
    return sketches(plain([c]), [c], at)[0].default().schedule.kernel, x


@pytest.mark.parametrize("cores", [1, 2, 6])
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("columns", "whole"), [(480, True), (144, True), (256, True), (150, False)]
)
def test_a_scaled_tensor_takes_the_place_of_its_operand(
    columns: int, whole: bool, mcpu: str, cores: int
) -> None:
    kernel, x = scaled(196, columns, mcpu, cores)
    assert overwritable(kernel) == ((x,) if whole else ())


@pytest.mark.parametrize("size", [94080, 65536, 65552])
def test_so_does_a_single_loop_that_threads_share(size: int) -> None:
    """Of 94,080 elements, 367.5 chunks of 16 vectors would be; chunks of 8 fit."""
    x, z, y = (Buffer(n, (size,), float32) for n in "xzy")
    c = map_("t", y, lambda i: x[i] + z[i])
    at = Context(replace(machine("x86-64-v4"), cores=2))
    kernel = sketches(plain([c]), [c], at)[0].default().schedule.kernel
    assert "parallel" in str(kernel)
    assert set(overwritable(kernel)) == ({x, z} if size % 128 == 0 else set())


def test_a_result_of_another_shape_keeps_its_wide_tiles() -> None:
    """Nothing can take the place of a part of a tensor: overlapping tiles cost it nothing."""
    x = Buffer("x", (196, 481), float32)
    y = Buffer("y", (196, 480), float32)
    c = map_("t", y, lambda i, j: x[i, j + 1] * 2.0)
    at = Context(replace(machine("x86-64-v4"), cores=2))
    assert sketches(plain([c]), [c], at)[0].default().values["t.vectors"] == 4


# By case: the shapes of what is read and of the result, and the index of element (i, k, j).
READ_APART = {
    "a line each": ((512, 512, 3), (512, 3, 512), lambda i, k, j: (j, i, k)),
    "in the first cache": ((64, 16, 3), (16, 3, 64), lambda i, k, j: (j, i, k)),
    "one line": ((3, 512, 512), (512, 3, 512), lambda i, k, j: (k, i, j)),
    "a line for two": ((9, 512, 15), (7, 9, 512), lambda i, k, j: (k, j, 2 * i)),
    "a line for no other": ((512, 64, 17), (64, 3, 512), lambda i, k, j: (j, i, k)),
}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("case", READ_APART)
def test_elements_that_share_lines_with_those_of_other_rows(
    case: str, cores: int
) -> None:
    """Weights of 3x3 pixels, turned: the lines of a vector serve the next rows from the cache."""
    shape, extents, index = READ_APART[case]
    x, y = Buffer("x", shape, float32), Buffer("y", extents, float32)
    taps = Buffer("taps", extents[1:2], int64)
    c = map_("t", y, lambda i, k, j: x[index(i, taps[k], j)])
    at = Context(replace(machine("x86-64-v4"), cores=cores))
    found = sketches(plain([c]), [c], at)[0].default()
    outermost = loops_of(found.schedule.kernel.body)[0].var.name
    assert outermost.startswith("t.j") == (case == "a line each")


@pytest.mark.parametrize(
    ("rows", "shared"), [(4, False), (2000, True)], ids=["a border", "a whole"]
)
def test_a_part_of_a_large_tensor_does_not_wake_the_threads(
    rows: int, shared: bool
) -> None:
    x = Buffer("x", (2000, 64), float32)
    y = Buffer("y", (2000, 64), float32)
    at = Context(replace(machine("x86-64-v4"), cores=2))

    def value(read: bool, i: Expr, j: Expr) -> Expr:
        return x[i, j] if read else const(1.0, float32)

    for read in (True, False):
        c = map_("t", y, partial(value, read), extents=(rows, 64))
        found = sketches(plain([c]), [c], at)[0].default()
        assert found.values["t.parallel"] == shared
