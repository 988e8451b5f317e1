"""Softmax and layer normalization by rows: several reductions in one row loop."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base import dtypes
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import map_, reduce_
from tilewright.expr.nodes import Buffer, Div, Mul, Sub, call, const
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule

f32 = dtypes.float32


def softmax(rows: int, n: int) -> Kernel:
    x, y = Buffer("X", (rows, n), f32), Buffer("Y", (rows, n), f32)
    m, e, s = (
        Buffer("M", (rows,), f32),
        Buffer("E", (rows, n), f32),
        Buffer("S", (rows,), f32),
    )
    steps = [
        reduce_("max", m, (n,), "max", lambda i, j: x[i, j]),
        map_("exp", e, lambda i, j: call("exp", Sub(x[i, j], m[i]))),
        reduce_("sum", s, (n,), "add", lambda i, j: e[i, j]),
        map_("div", y, lambda i, j: Div(e[i, j], s[i])),
    ]
    return lower("softmax", steps, [x, y], [y])


def layernorm(rows: int, n: int) -> Kernel:
    x, y = Buffer("X", (rows, n), f32), Buffer("Y", (rows, n), f32)
    g, b = Buffer("G", (n,), f32), Buffer("B", (n,), f32)
    total, var = Buffer("T", (rows,), f32), Buffer("V", (rows,), f32)
    mean = Buffer("mu", (rows,), f32)
    by = const(1.0 / n, f32)

    def centered(i, j):
        return Sub(x[i, j], mean[i])

    steps = [
        reduce_("sum", total, (n,), "add", lambda i, j: x[i, j]),
        map_("mean", mean, lambda i: Mul(total[i], by)),
        reduce_("var", var, (n,), "add", lambda i, j: centered(i, j) * centered(i, j)),
        map_(
            "norm",
            y,
            lambda i, j: (
                centered(i, j) / call("sqrt", var[i] * by + const(1e-5, f32)) * g[j]
                + b[j]
            ),
        ),
    ]
    return lower("layernorm", steps, [x, g, b, y], [y])


def test_softmax_rows(check_same):
    kernel = softmax(5, 19)
    s = Schedule(kernel)
    s.parallel("div.i")
    for buffer, scope in (("S", "register"), ("E", "stack"), ("M", "register")):
        s.compute_at(buffer, "div.i", scope)
    for f in ("max.j", "sum.j"):
        parts = s.split(f, 8, tail="cut")
        (rf,) = s.rfactor(parts[1])
        for lane in (f"{parts[1]}.clear", parts[1], f"{parts[1]}.combine"):
            s.vectorize(lane)
        assert rf.endswith(".rf")
    for f in ("exp.j", "div.j"):
        inner = s.split(f, 8, tail="overlap")[1]
        s.vectorize(inner)
    check_same(kernel, s)
    assert "alloc E: float32[1, 19] in stack" in repr(s.kernel)


def test_layernorm_rows(check_same):
    kernel = layernorm(4, 16)
    s = Schedule(kernel)
    s.compute_inline("mu")
    s.parallel("norm.i")
    s.compute_at("V", "norm.i", "register")
    s.compute_at("T", "norm.i", "register")
    for f in ("sum.j", "var.j"):
        _, lane = s.split(f, 4)
        s.rfactor(lane)
        s.vectorize(lane)
    check_same(kernel, s)


def test_rfactor_over_a_region(check_same):
    x, y = Buffer("X", (12, 6), f32), Buffer("Y", (6,), f32)
    kernel = lower(
        "cols", [reduce_("r", y, (12,), "max", lambda j, k: x[k, j])], [x, y], [y]
    )
    s = Schedule(kernel)
    s.decompose_reduction("Y", "r.j")
    ko, ki = s.split("r.k", 4)
    s.reorder(ko, ki, "r.j")
    s.rfactor(ki)
    s.vectorize(ki)
    check_same(kernel, s, exact=True)
    assert "Y.rf: float32[4, 6]" in repr(s.kernel)


def test_argmax_keeps_both_components(check_same):
    from tilewright.compute.reducer import arg_reducer
    from tilewright.expr.nodes import INDEX

    x = Buffer("X", (3, 20), f32)
    v, i = Buffer("V", (3,), f32), Buffer("I", (3,), INDEX)
    op = arg_reducer("argmax", f32, INDEX)
    kernel = lower(
        "argmax",
        [reduce_("a", (v, i), (20,), op, lambda r, k: (x[r, k], k))],
        [x, v, i],
        [v, i],
    )
    s = Schedule(kernel)
    _, lane = s.split("a.k", 4)
    s.rfactor(lane)
    s.vectorize(lane)
    check_same(kernel, s, exact=True)
    assert np.dtype("int64") == INDEX.numpy


def test_compute_at_moves_all_outputs_of_a_reducer(check_same, golden):
    from tilewright.compute.build import cast
    from tilewright.compute.reducer import arg_reducer
    from tilewright.expr.nodes import INDEX

    x, y = Buffer("X", (6, 20), f32), Buffer("Y", (6,), f32)
    v, i = Buffer("V", (6,), f32), Buffer("I", (6,), INDEX)
    op = arg_reducer("argmax", f32, INDEX)
    kernel = lower(
        "argmax",
        [
            reduce_("a", (v, i), (20,), op, lambda r, k: (x[r, k], k)),
            map_("y", y, lambda r: v[r] * cast(i[r], f32)),
        ],
        [x, y],
        [y],
    )
    s = Schedule(kernel)
    o, _ = s.split("y.r", 2)
    s.compute_at("I", o, "stack")
    check_same(kernel, s, exact=True)
    golden("schedule_compute_at_argmax", repr(s.kernel))


def test_rfactor_of_what_runs_with_its_terms(check_same):
    kernel = softmax(5, 19)
    s = Schedule(kernel)
    for one, other in (("exp.i", "sum.i"), ("exp.j", "sum.j")):
        s.merge(one, other)
    outer, lane = s.split("exp.j", 8, tail="guard")
    s.rfactor(lane)
    s.partition_loop(outer)
    for loop in (f"{lane}.clear", lane, f"{lane}.p1", f"{lane}.combine"):
        s.vectorize(loop)
    check_same(kernel, s)


def test_rfactor_of_one_of_two_reductions(check_same):
    x, most, total = (
        Buffer("X", (5, 16), f32),
        Buffer("M", (5,), f32),
        Buffer("S", (5,), f32),
    )
    steps = [
        reduce_("max", most, (16,), "max", lambda i, j: x[i, j]),
        reduce_("sum", total, (16,), "add", lambda i, j: x[i, j]),
    ]
    kernel = lower("both", steps, [x, most, total], [most, total])
    s = Schedule(kernel)
    for one, other in (("max.i", "sum.i"), ("max.j", "sum.j")):
        s.merge(one, other)
    _, lane = s.split("max.j", 4)
    with pytest.raises(ScheduleError, match=r"rfactor: .* not one Update .*: M, S"):
        s.rfactor(lane)
    assert s.rfactor(lane, buffer="M") == ("M.rf",)
    assert s.rfactor(lane, buffer="S") == ("S.rf",)
    s.vectorize(lane)
    check_same(kernel, s)
