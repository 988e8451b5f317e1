"""Work on constants that is a packing, as data: what counts as such, and that it does the same."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float16, float32, int32
from tilewright.driver.packing import packing_of
from tilewright.expr.nodes import INDEX, Buffer, Load, Lt, Overlap, Select, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import SIZE, Kernel, Store, block, loop
from tilewright.runtime.buffer import bytes_of
from tilewright.runtime.packing import Packing, PackingPart

a = Buffer("a", (6, 4), float32)
b = Buffer("b", (2, 4, 3), float32)
r, s, t, u = (Var(n, INDEX) for n in "rstu")


def nest(body, *extents, names=(r, s, t)):
    for var, extent in reversed(list(zip(names, extents, strict=True))):
        body = loop(var, extent, body)
    return body


def packing(value, out=b, index=(r, s, t), extents=(2, 4, 3), params=(a,)):
    body = nest(Store(out, index, value), *extents)
    return Kernel("pack", (*params, out), (out,), body)


def panels(tensor=a, row=None):
    return Load(tensor, (r * 3 + t if row is None else row, s))


def moves(first, extents, strides, into, at=0):
    return PackingPart(extents, (first,), strides, (), ((0, at),), into)


def found(kernel, *made):
    return packing_of(kernel, {k.outputs[0].name: k for k in made})


def test_panels_of_rows_are_a_packing() -> None:
    kernel = packing(panels())
    part = moves(0, (2, 4, 3), (12, 1, 4), (12, 3, 1))
    assert found(kernel) == (a, Packing((part,)))
    assert_same(kernel)


def test_a_loop_over_a_window_is_one_over_each_of_its_axes() -> None:
    weight = Buffer("w", (4, 2, 3), float32)
    made = Buffer("b", (6, 4, 1), float32)

    def packed(*index):
        value = Load(weight, (s, *index))
        return packing(value, made, extents=(6, 4, 1), params=(weight,))

    kernel = packed(r // 3, r % 3)
    part = moves(0, (2, 3, 4), (3, 1, 6), (12, 4, 1))
    assert found(kernel) == (weight, Packing((part,)))
    assert_same(kernel)
    # A divisor that does not divide the loop's extent has no two loops.
    assert found(packed(r // 4, r % 4 % 3)) is None
    assert found(packed(r // 4, r % 3)) is None


def test_loops_in_another_order_backwards_and_of_one_iteration() -> None:
    kernel = packing(panels(row=const(5) - (r * 3 + t)))
    part = moves(20, (2, 4, 3), (-12, 1, -4), (12, 3, 1))
    assert found(kernel) == (a, Packing((part,)))
    assert_same(kernel)
    flat = Buffer("b", (24,), float32)
    kernel = packing(panels(row=s * 1), flat, (r * 6 + s,), (4, 6, 1))
    kernel = kernel.with_body(nest(Store(flat, (r * 6 + s,), Load(a, (s, r))), 4, 6, 1))
    assert found(kernel) == (a, Packing((moves(0, (4, 6), (1, 4), (6, 1)),)))
    assert_same(kernel)


@pytest.mark.parametrize("last", [5, 6, 7, 8])
def test_the_last_tile_may_begin_among_the_elements_of_another(last) -> None:
    rows = Buffer("a", (last + 4, 5), float32)
    out = Buffer("b", (3, 5, 4), float32)
    start = Overlap(r * 4, const(last))
    kernel = packing(Load(rows, (start + t, s)), out, (r, s, t), (3, 5, 4), (rows,))
    parts = found(kernel)[1].parts
    assert len(parts) == (1 if last == 8 else 2)
    assert_same(kernel)


def test_tiles_along_two_axes() -> None:
    wide = Buffer("a", (7, 9), float32)
    out = Buffer("b", (2, 3, 4, 4), float32)
    rows, columns = Overlap(r * 4, const(3)), Overlap(s * 4, const(5))
    value = Load(wide, (rows + t, columns + u))
    body = nest(Store(out, (r, s, t, u), value), 2, 3, 4, 4, names=(r, s, t, u))
    kernel = Kernel("pack", (wide, out), (out,), body)
    assert len(found(kernel)[1].parts) == 4
    assert_same(kernel)


# -- arithmetic in front

w = Buffer("w", (6, 5, 3), float32)
mid = Buffer("mid", (2, 5, 6), float32)
panel = Buffer("p", (3, 2, 5, 2), float32)
i, j = Var("i", INDEX), Var("j", INDEX)


def tap(n, tensor=w):
    return Load(tensor, (i, j, const(n)))


SUM, DIFFERENCE = (
    (tap(0) + tap(2)) * 0.5 + tap(1) * 0.25,
    (tap(0) + tap(2)) * 0.5 - tap(1) * 0.25,
)


def transform(first=SUM, second=DIFFERENCE, index=((0, j, i), (1, j, i))):
    def at(n):
        return tuple(const(x) if isinstance(x, int) else x for x in index[n])

    stores = (Store(mid, at(0), first), Store(mid, at(1), second))
    body = nest(block(*stores), 6, 5, names=(i, j))
    return Kernel("transform", (w, mid), (mid,), body)


def pack(index=None, extents=(3, 2, 5, 2), out=panel):
    value = Load(mid, index or (s, t, r * 2 + u))
    body = nest(Store(out, (r, s, t, u), value), *extents, names=(r, s, t, u))
    return Kernel("pack", (mid, out), (out,), body)


def test_a_transform_and_the_packing_of_its_results_are_one() -> None:
    source, packed = found(pack(), transform())
    (part,) = packed.parts
    assert source == w
    assert part.extents == (3, 5, 2) and part.strides == (30, 3, 15)
    assert sorted(part.reads) == [0, 1, 2]
    # The sum of the outer taps, and its half, are computed once.
    assert [name for name, *_ in part.steps] == [
        "add", "scale", "scale", "add", "subtract",
    ]  # fmt: skip
    assert [at for _, at in part.writes] == [0, 10]
    assert_same(pack(), transform())


def test_results_that_are_elements_themselves_or_twice_there() -> None:
    assert_same(pack(), transform(tap(1), SUM))
    assert_same(pack(), transform(SUM, SUM))


def test_results_may_be_backwards_and_tiles_overlap() -> None:
    assert_same(pack((const(1) - s, t, r * 2 + u)), transform())
    out = Buffer("p", (2, 2, 5, 4), float32)
    index = (s, t, Overlap(r * 4, const(2)) + u)
    assert_same(pack(index, (2, 2, 5, 4), out), transform())


def assert_same(kernel, *made) -> None:
    """As the interpreter, in numbers that are exact."""
    source, packed = found(kernel, *made)
    data = np.arange(source.size, dtype=np.float32).reshape(source.shape) * 8
    known = {source: data}
    for k in (*made, kernel):
        known[k.outputs[0]] = np.zeros(k.outputs[0].shape, np.float32)
        run(k, {b: known[b] for b in k.params})
    want = known[kernel.outputs[0]]
    got = np.full(want.nbytes + 8, 0xAB, np.uint8)
    packed.run(bytes_of(data), got, np.dtype(np.float32))
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
        packing(panels(row=Overlap(r * 6, const(4)) + t)),  # outside in the last tile
        packing(panels(row=Overlap(r * 3, s) + t)),  # no last start
        packing(panels(row=Overlap(r + t, const(2)) + t)),  # of two variables
        packing(panels(row=Overlap(r * -3, const(2)) + t + 3)),  # backwards
        packing(Load(a, (r * 3 + t, s)), params=(a, other)),
        packing(Load(b, (r, s, t))),  # of the result itself
        replace(packing(panels()), body=block(*[packing(panels()).body] * 2)),
        replace(packing(panels()), body=loop(r, 2, packing(panels()).body.body, SIZE)),
    ],
)
def test_anything_else_is_none(kernel) -> None:
    assert packing_of(kernel, {}) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (transform(tap(0) * tap(1)), pack()),  # no multiple
        (transform(tap(0) + 1.0), pack()),
        (transform(Load(w, (i, j, i // 3))), pack()),  # not equally far everywhere
        (transform(index=((0, j, i), (0, j, i))), pack()),  # a result that nobody made
        (transform(SUM, Load(w, (i, j // 2, const(0)))), pack()),
        (transform(index=((0, j, i), (1, j, const(5) - i))), pack()),
        (transform(index=((0, j, i), (1, i, j))), pack()),  # along other axes
        (transform(index=((0, j, i), (j, j, i))), pack()),
        (transform(), pack((s * 2, t, r * 2 + u))),
        (transform(), pack((s, t, r + s + u))),  # loops over results read others
        (transform(), pack((s // 1 % 2, t, r * 2 + u))),
        (transform(tap(0), const(0.0, float32)), pack()),
    ],
)
def test_other_arithmetic_is_none(first, second) -> None:
    assert found(second, first) is None


def test_a_part_of_a_dimension_and_arithmetic_on_integers_are_none() -> None:
    small = transform()
    body = nest(small.body.body.body, 5, 5, names=(i, j))
    assert found(pack((s, t, r * 2)), small.with_body(body)) is None
    ints, sums = Buffer("w", (6, 5, 3), int32), Buffer("mid", (1, 5, 6), int32)
    value = tap(0, ints) + tap(1, ints)
    body = nest(Store(sums, (const(0), j, i), value), 6, 5, names=(i, j))
    first = Kernel("transform", (ints, sums), (sums,), body)
    out = Buffer("p", (5, 6), int32)
    body = nest(Store(out, (r, s), Load(sums, (const(0), r, s))), 5, 6, names=(r, s))
    assert found(Kernel("pack", (sums, out), (out,), body), first) is None


def test_a_diagonal_and_loops_besides_are_none() -> None:
    square, out = Buffer("mid", (1, 5, 5), float32), Buffer("p", (5, 5), float32)
    read = Store(out, (r, s), Load(square, (const(0), r, s)))
    second = Kernel("pack", (square, out), (out,), nest(read, 5, 5, names=(r, s)))
    value = Load(w, (const(0), j, const(0))) + Load(w, (const(0), j, const(1)))
    diagonal = nest(Store(square, (const(0), j, j), value), 5, names=(j,))
    assert found(second, Kernel("first", (w, square), (square,), diagonal)) is None
    value = Load(w, (i, j, const(0))) + Load(w, (i, j, const(1)))
    body = nest(Store(square, (const(0), i, j), value), 5, 5, names=(i, j))
    first = Kernel("first", (w, square), (square,), body)
    assert found(second, first) is not None
    assert found(second, first.with_body(loop(Var("q", INDEX), 2, body))) is None


def test_the_last_of_two_results_counts() -> None:
    out = Buffer("p", (3, 5, 2), float32)
    value = Load(mid, (const(0), s, r * 2 + t))
    body = nest(Store(out, (r, s, t), value), 3, 5, 2)
    twice = transform(index=((0, j, i), (0, j, i)))
    assert_same(Kernel("pack", (mid, out), (out,), body), twice)


def test_arithmetic_on_what_is_prepared_is_none() -> None:
    body = nest(Store(w, (i, j, t), Load(w, (i, j, t))), 6, 5, 3, names=(i, j, t))
    before = Kernel("before", (Buffer("v", (6, 5, 3), float32), w), (w,), body)
    assert found(pack(), before, transform()) is None
