"""What Computations write and read, against the interpreter, which asks for elements one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import float32, int64
from tilewright.compute.build import map_
from tilewright.compute.nodes import Computation, Output
from tilewright.compute.regions import read, written
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Buffer
from tilewright.testing.computations import computations


def points(c: Computation) -> list[dict[Any, int]]:
    """Every point of the dimensions."""
    shape = tuple(d.extent for d in c.dims)
    return [
        dict(zip((d.var for d in c.dims), at, strict=True)) for at in np.ndindex(*shape)
    ]


@given(computations(), st.data())
@settings(max_examples=100, deadline=None)
def test_reads_are_those_that_the_interpreter_asks_for(
    c: Computation, data: st.DataObject
) -> None:
    tensor = data.draw(st.sampled_from(c.inputs)) if c.inputs else None
    if tensor is None:
        return
    wanted = np.zeros(tensor.shape, bool)

    def load(buffer: Buffer, index: tuple[Any, ...]) -> Any:
        if buffer is tensor:
            wanted[tuple(int(i) for i in index)] = True
        return np.zeros((), buffer.dtype.numpy)[()]

    for at in points(c):
        for o in c.outputs:
            evaluate(o.value, at, load)
    np.testing.assert_array_equal(read(c, tensor), wanted)


@given(computations())
@settings(max_examples=100, deadline=None)
def test_writes_are_those_of_each_point(c: Computation) -> None:
    for o in c.outputs:
        counts = np.zeros(o.tensor.shape, int)
        kept = {d.var for d in c.dims if d.combine != "pw"}
        seen = {
            tuple((v, n) for v, n in at.items() if v in kept): at for at in points(c)
        }
        for at in seen.values():
            counts[tuple(int(evaluate(i, at)) for i in o.index)] += 1
        np.testing.assert_array_equal(written(c, o.tensor), counts)


def test_all_is_read_where_one_of_two_indices_is_data() -> None:
    x, at, y = (
        Buffer("x", (4, 6), float32),
        Buffer("at", (3,), int64),
        Buffer("y", (2, 3), float32),
    )
    assert read(map_("rows", y, lambda i, j: x[i, at[j]]), x).all()


def test_a_place_that_several_points_write_counts_as_often() -> None:
    x, y = Buffer("x", (4, 6), float32), Buffer("y", (4, 6), float32)
    flat = map_(
        "flat", y, lambda i, j: x[i, j], extents=(4, 6), index=lambda i, j: (i, 0)
    )
    assert written(flat, y)[:, 0].tolist() == [6] * 4
    both = map_(
        "both",
        y,
        lambda i, j: x[i, j],
        extents=(4, 3),
        index=lambda i, j: (i, j + i % 3),
    )
    assert written(both, y).sum() == 12
    (o,) = flat.outputs
    twice = Computation("twice", flat.dims, (o, Output(y, o.index, o.value)))
    assert written(twice, y)[:, 0].tolist() == [12] * 4


def test_what_is_outside_raises() -> None:
    x, y = Buffer("x", (4,), float32), Buffer("y", (4,), float32)
    with pytest.raises(IndexError, match=r"index 4 is outside 0\.\.3"):
        written(
            map_("off", y, lambda i: x[i], index=lambda i: (i + 1,), extents=(4,)), y
        )
    with pytest.raises(IndexError, match="index -1"):
        read(map_("off", y, lambda i: x[i - 1]), x)
