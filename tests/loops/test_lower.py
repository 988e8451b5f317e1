"""The plain nest of a Computation says what the Computation says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base import dtypes as d
from tilewright.compute.build import map_, padded, reduce_
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, PW, Computation, Dim, Output
from tilewright.compute.reducer import arg_reducer, reducer
from tilewright.expr.nodes import Buffer, var
from tilewright.loops.interp import run
from tilewright.loops.lower import lower
from tilewright.loops.printer import show_kernel
from tilewright.loops.verify import verify
from tilewright.testing.computations import arrays_for, computations

F = d.float32


def lowered_equals_meaning(cs: list[Computation], seed: int = 0) -> None:
    outputs = tuple(dict.fromkeys(o.tensor for c in cs for o in c.outputs))
    inputs = tuple(dict.fromkeys(b for c in cs for b in c.inputs if b not in outputs))
    kernel = lower("k", cs, (*inputs, *outputs), outputs)
    verify(kernel)
    given = arrays_for(inputs, seed)
    expected = evaluate(cs, given)
    found = {b: np.zeros(b.shape, b.dtype.numpy) for b in outputs}
    run(kernel, given | found)
    for b in outputs:
        np.testing.assert_array_equal(
            found[b].astype(np.float64), expected[b].astype(np.float64)
        )


@settings(max_examples=150, deadline=None)
@given(computations(), st.integers(0, 1 << 20))
def test_random_computations(c: Computation, seed: int) -> None:
    check(c)
    lowered_equals_meaning([c], seed)


def test_pipeline_with_intermediates(golden) -> None:
    a, b, c = Buffer("A", (4, 8), F), Buffer("B", (8, 6), F), Buffer("C", (4, 6), F)
    t, s = Buffer("T", (4, 6), F), Buffer("S", (4, 6), F)
    v, i = Buffer("V", (4,), F), Buffer("I", (4,), d.int64)
    cs = [
        reduce_("matmul", t, (8,), "add", lambda i, j, k: a[i, k] * b[k, j]),
        reduce_(
            "scan",
            s,
            (6,),
            "add",
            lambda i, k: t[i, k],
            extents=(4,),
            combine=PS,
            index=lambda i, k: (i, k),
        ),
        reduce_(
            "first",
            (v, i),
            (6,),
            arg_reducer("argmax", F, d.int64),
            lambda i, k: (s[i, k], k),
        ),
        map_("pad", c, lambda i, j: padded(s, (i - 1, j + 1), 0.0)),
    ]
    kernel = lower("net", cs, (a, b, c, i), (c, i))
    golden("lower_pipeline", show_kernel(kernel))
    verify(kernel)
    lowered_equals_meaning(cs)


def test_wider_accumulator_lives_in_a_register(golden) -> None:
    x, out = Buffer("x", (4, 6), F), Buffer("y", (1, 6), d.float16)
    c = reduce_("sum", out, (4,), "add", lambda i, j, k: x[k, j])
    golden("lower_register", show_kernel(lower("s", [c], (x, out), (out,))))
    lowered_equals_meaning([c])


def test_scan_then_reduce_keeps_one_running_accumulator(golden) -> None:
    x, out = Buffer("x", (4, 8), F), Buffer("m", (4,), F)
    i, j = var("i"), var("j")
    c = Computation(
        "mbbs",
        (Dim(i, 4, PS), Dim(j, 8, PW)),
        (Output(out, (i,), x[i, j]),),
        reducer("add", F),
    )
    golden("lower_mbbs", show_kernel(lower("m", [c], (x, out), (out,))))
    lowered_equals_meaning([c])


def test_piecewise_definition() -> None:
    x, y, out = Buffer("x", (3,), F), Buffer("y", (2,), F), Buffer("z", (5,), F)
    head = map_("head", out, lambda i: x[i], extents=(3,), index=lambda i: (i,))
    tail = map_("tail", out, lambda i: y[i], extents=(2,), index=lambda i: (i + 3,))
    lowered_equals_meaning([head, tail])


def test_loop_names_are_unique() -> None:
    x, y, z = (Buffer(n, (4,), F) for n in "xyz")
    cs = [map_("relu", y, lambda i: x[i]), map_("relu", z, lambda i: y[i])]
    text = show_kernel(lower("k", cs, (x, y, z), (y, z)))
    assert "for relu.i in 4" in text and "for relu.i_2 in 4" in text


def test_zero_extent() -> None:
    x, y = Buffer("x", (0,), F), Buffer("y", (2,), F)
    lowered_equals_meaning([reduce_("sum", y, (0,), "add", lambda i, k: x[k])])
