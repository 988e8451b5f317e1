"""Sizes from accesses, and the text of Computations."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tilewright.base import dtypes as d
from tilewright.base.errors import InputError
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.nodes import PS, PW, Computation, Dim, Output
from tilewright.compute.printer import show
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.compute.sizes import infer_sizes
from tilewright.expr.nodes import Buffer, Lt, Select, const, var
from tilewright.testing.computations import computations

F = d.float32


def unsized(name: str, rank: int, dtype: d.DType = F) -> Buffer:
    return Buffer(name, (0,) * rank, dtype)


def test_sizes_of_a_strided_convolution() -> None:
    x, w, y = unsized("x", 2), unsized("w", 2), unsized("y", 2)
    conv = reduce_(
        "conv", y, (3, 5), "add",
        lambda h, v, r, s: x[h * 2 + r, v + s * 2] * w[r, s],
        extents=(4, 6),
    )  # fmt: skip
    assert infer_sizes(conv) == {y: (4, 6), x: (9, 14), w: (3, 5)}


def test_guards_cut_sizes() -> None:
    x, y, i = unsized("x", 1), unsized("y", 1), var("i")
    value = Select(Lt(i * 3, const(11)), x[i * 3 + 1], const(0.0, F))
    c = Computation("c", (Dim(i, 9),), (Output(y, (i,), value),))
    assert infer_sizes(c) == {y: (9,), x: (11,)}
    never = Select(Lt(i, const(0)), x[i], const(0.0, F))
    assert infer_sizes(Computation("c", (Dim(i, 9),), (Output(y, (i,), never),)))[
        x
    ] == (0,)


def test_floor_and_modulo_are_exact() -> None:
    x, y, i = unsized("x", 2), unsized("y", 1), var("i")
    c = Computation("c", (Dim(i, 10),), (Output(y, (i,), x[i // 4, i % 4 + i // 8]),))
    assert infer_sizes(c) == {y: (10,), x: (3, 4)}


def test_what_has_no_size() -> None:
    x, at, y, i = (
        unsized("x", 1),
        Buffer("at", (4,), d.int64),
        unsized("y", 1),
        var("i"),
    )
    dims = (Dim(i, 4),)
    with pytest.raises(
        InputError, match="c: dimension 0 of x: the index may be negative"
    ):
        infer_sizes(Computation("c", dims, (Output(y, (i,), x[i - 1]),)))
    with pytest.raises(InputError, match="dimension 0 of x: the size depends on data"):
        infer_sizes(Computation("c", dims, (Output(y, (i,), x[at[i]]),)))


@settings(max_examples=100, deadline=None)
@given(computations())
def test_sizes_never_exceed_tensors_that_hold_all_accesses(c: Computation) -> None:
    for b, shape in infer_sizes(c).items():
        assert all(
            found <= stated for found, stated in zip(shape, b.shape, strict=True)
        )


def test_text(golden) -> None:
    a, b, c = Buffer("A", (4, 8), F), Buffer("B", (8, 6), F), Buffer("C", (4, 6), F)
    v, p = Buffer("V", (4,), F), Buffer("P", (4,), d.int64)
    i, j = var("i"), var("j")
    scan = (Dim(i, 4, PS), Dim(j, 8, PW))
    shown = [
        reduce_("matmul", c, (8,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        map_("pad", c, lambda i, j: padded(a, (i - 1, j), 0.0)),
        reduce_(
            "best",
            (v, p),
            (8,),
            arg_reducer("argmax", F, d.int64),
            lambda i, k: (a[i, k], k),
        ),
        Computation("mbbs", scan, (Output(v, (i,), a[i, j]),), reducer("add", F)),
    ]
    golden("computations", "\n\n".join(map(show, shown)))
