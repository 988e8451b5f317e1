"""reshape: the same memory under another shape."""

from __future__ import annotations

import numpy as np
import pytest

from tests.schedule.test_matmul import matmul
from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Select, const, var
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.schedule import Schedule
from tilewright.schedule.tree import find_buffer

I, J = var("i"), var("j")  # noqa: E741


@pytest.mark.parametrize(
    "shape", [(480,), (48, 10), (5, 2, 48), (10, 6, 8), (4, 3, 40), (10, 1, 48, 1)]
)
def test_an_intermediate_under_other_shapes(shape, check_same):
    s = Schedule(matmul(10, 48, 7))
    s.reshape("C", *shape)
    assert find_buffer(s.kernel, "C", "test")[0].shape == shape
    check_same(s.original, s, exact=True)


def test_a_parameter_keeps_its_memory():
    """Its caller gives the same elements, in the order of memory."""
    s = Schedule(matmul(4, 6, 5))
    a, (d,) = s.kernel.inputs[0], s.kernel.outputs
    rng = np.random.default_rng(0)
    given = {x: rng.standard_normal(x.shape, np.float32) for x in s.kernel.inputs} | {
        d: np.zeros(d.shape, np.float32)
    }
    run(s.kernel, given)
    s.reshape(a.name, a.size)
    s.reshape(d.name, d.size // 3, 3)
    seen = {}
    for old, new in zip(s.original.params, s.kernel.params, strict=True):
        data = np.zeros_like(given[old]) if old is d else given[old]
        seen[new] = data.reshape(new.shape)
    run(s.kernel, seen)
    (out,) = s.kernel.outputs
    np.testing.assert_array_equal(seen[out].reshape(d.shape), given[d])


def test_there_and_back_is_the_kernel_itself(check_same):
    s = Schedule(matmul(4, 6, 5))
    before = repr(s.kernel)
    for shape in ((24,), (4, 6)):
        s.reshape("C", *shape)
    assert repr(s.kernel) == before
    check_same(s.original, s, exact=True)


def test_vectors_go_across_the_axes_that_were_one():
    """Native vectors of 16 along an axis of 24 that is 4 by 6 to the caller."""
    x, y = Buffer("x", (4, 6), float32), Buffer("y", (4, 6), float32)
    body = loop(I, 4, loop(J, 6, Store(y, (I, J), x[I, J] * 2.0)))
    s = Schedule(Kernel("twice", (x, y), (y,), body))
    for name in "xy":
        s.reshape(name, 24)
    fused = s.fuse("i", "j")
    s.split(fused, 16, "overlap")
    s.vectorize(f"{fused}.i")
    for name in "xy":
        s.reshape(name, 4, 6)
    data = np.arange(24, dtype=np.float32).reshape(4, 6)
    out = np.zeros_like(data)
    run_native(s.kernel, dict(zip(s.kernel.params, (data, out), strict=True)))
    np.testing.assert_array_equal(out, 2 * data)


def test_a_guarded_read_stays_inside(check_same):
    x, y = Buffer("x", (3, 4), float32), Buffer("y", (3, 6), float32)
    inside = (J >= 1) & (J < 5)
    value = Select(inside, x[I, J - 1], const(0.0, float32))
    body = loop(I, 3, loop(J, 6, Store(y, (I, J), value)))
    padded = Kernel("padded", (x, y), (y,), body)
    s = Schedule(padded)
    s.cache_write("y", None, scope="global")
    s.reshape("y.acc", 18)
    s.verify()
    check_same(padded, s, exact=True)


def gathered() -> Kernel:
    x, n = Buffer("x", (3, 4), float32), Buffer("n", (4,), int64)
    y = Buffer("y", (3, 4), float32)
    body = loop(I, 3, loop(J, 4, Store(y, (I, J), x[I, n[J]])))
    return Kernel("gathered", (x, n, y), (y,), body)


def test_an_index_from_memory_keeps_its_own_axis(check_same):
    """x[0, 5] is not an element; in one axis of 12 it would be x[1, 1]."""
    with pytest.raises(ScheduleError, match=r"reshape: \[i, n\[j\]\] is checked where"):
        Schedule(gathered()).reshape("x", 12)


def test_axes_beside_an_index_from_memory_may_change():
    x, n = Buffer("x", (2, 3, 4), float32), Buffer("n", (4,), int64)
    y = Buffer("y", (6, 4), float32)
    body = loop(I, 6, loop(J, 4, Store(y, (I, J), x[I // 3, I % 3, n[J]])))
    s = Schedule(Kernel("gathered", (x, n, y), (y,), body))
    s.reshape("x", 6, 4)
    assert "x[i, n[j]]" in repr(s.kernel)


@pytest.mark.parametrize("shape", [(479,), (), (0, 480), (-480, -1), (2, 241)])
def test_other_numbers_of_elements_are_refused(shape):
    with pytest.raises(ScheduleError, match="are not the 480 elements of"):
        Schedule(matmul(10, 48, 7)).reshape("C", *shape)
