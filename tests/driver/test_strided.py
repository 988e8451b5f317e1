"""Packing that only moves elements has no code: what counts as such, and that it does the same."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float16, float32
from tilewright.driver.strided import StridedCopy, bytes_of, strided_copy
from tilewright.expr.nodes import INDEX, Buffer, Load, Lt, Select, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel, Store, block, loop

a = Buffer("a", (6, 4), float32)
b = Buffer("b", (2, 4, 3), float32)
r, s, t = (Var(n, INDEX) for n in "rst")


def nest(body, *extents):
    for var, extent in reversed(list(zip((r, s, t), extents, strict=True))):
        body = loop(var, extent, body)
    return body


def packing(value, out=b, index=(r, s, t), extents=(2, 4, 3), params=(a,)):
    body = nest(Store(out, index, value), *extents)
    return Kernel("pack", (*params, out), (out,), body)


def panels(tensor=a, row=None):
    return Load(tensor, (r * 3 + t if row is None else row, s))


def test_panels_of_rows_are_a_view() -> None:
    kernel = packing(panels())
    assert strided_copy(kernel) == StridedCopy(0, (2, 4, 3), (12, 1, 4))
    assert_same(kernel)


def test_loops_in_another_order_backwards_and_of_one_iteration() -> None:
    kernel = packing(panels(row=const(5) - (r * 3 + t)))
    assert strided_copy(kernel) == StridedCopy(20, (2, 4, 3), (-12, 1, -4))
    assert_same(kernel)
    flat = Buffer("b", (24,), float32)
    kernel = packing(panels(row=s * 1), flat, (r * 6 + s,), (4, 6, 1))
    kernel = kernel.with_body(nest(Store(flat, (r * 6 + s,), Load(a, (s, r))), 4, 6, 1))
    assert strided_copy(kernel) == StridedCopy(0, (4, 6), (1, 4))
    assert_same(kernel)


def assert_same(kernel) -> None:
    (source,), (out,) = kernel.inputs, kernel.outputs
    data = np.arange(source.size, dtype=np.float32).reshape(source.shape)
    want = np.zeros(out.shape, np.float32)
    run(kernel, {source: data, out: want})
    got = np.full(want.nbytes + 8, 0xAB, np.uint8)
    found = strided_copy(kernel)
    assert found is not None
    found.run(bytes_of(data), got, 4)
    assert got[:-8].tobytes() == want.tobytes()
    assert not got[-8:].any()


half = Buffer("b", (2, 4, 3), float16)
longer = Buffer("b", (2, 4, 4), float32)
other = Buffer("o", (6, 4), float32)


@pytest.mark.parametrize(
    "kernel",
    [
        packing(panels() + const(1.0, float32)),
        packing(Select(Lt(t, const(2)), panels(), const(0.0, float32))),
        packing(Load(half, (r, s, t)), params=(half,)),  # another dtype
        packing(panels(), longer),  # not all of the result
        packing(panels(), longer, (r, s, t + 1)),  # not from its beginning
        packing(panels(), extents=(2, 4, 2)),
        packing(panels(), index=(r, s, const(0))),  # an element several times
        packing(panels(row=r * 3 + t + 1)),  # outside of the constant
        packing(panels(row=r * 3 + t - 1)),
        packing(panels(row=(r * 3 + t) // 2)),  # no linear form
        packing(Load(a, (r * 3 + t, s)), params=(a, other)),
        replace(packing(panels()), body=block(*[packing(panels()).body] * 2)),
    ],
)
def test_anything_else_is_none(kernel) -> None:
    assert strided_copy(kernel) is None


def test_a_view_that_leaves_the_constant_is_refused() -> None:
    with pytest.raises(ValueError):
        StridedCopy(1, (4,), (1,)).run(
            np.zeros(16, np.uint8), np.zeros(16, np.uint8), 4
        )
