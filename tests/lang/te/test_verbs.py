"""Every verb of a te schedule: the program it makes is right, whatever the sizes."""

# ruff: noqa: RUF059 (tile and split are written out as users write them)
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.lang.te.syntax.operators import (
    Case,
    conv2d,
    layer_norm,
    matmul,
    recurrence,
    softmax,
)
from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError
from tilewright.loops.verify import verify
from tilewright.schedule import Trace, replay

Say = Callable[[t.Schedule, Case], None]


def _split(s: t.Schedule, c: Case) -> None:
    y, x = s[c.outputs[0]].op.axis
    s[c.outputs[0]].split(y, 4)
    s[c.outputs[0]].split(x, factor=5)


def _nparts(s: t.Schedule, c: Case) -> None:
    y, _ = s[c.outputs[0]].op.axis
    outer, inner = s[c.outputs[0]].split(y, nparts=3)
    s[c.outputs[0]].split(inner, 2)
    s[c.outputs[0]].split(outer, 64)  # larger than it is: one tile


def _tile(s: t.Schedule, c: Case) -> None:
    s[c.outputs[0]].tile(*s[c.outputs[0]].op.axis, 4, 8)


def _tile_reduction(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    stage.tile(*stage.op.axis, *stage.op.reduce_axis, 4, 8, 6)


def _fuse(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    y, x = stage.op.axis
    both = stage.fuse(y, x)
    stage.split(both, 7)


def _fuse_inner(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    y, x = stage.op.axis
    yo, xo, yi, xi = stage.tile(y, x, 4, 8)
    stage.fuse(yi, xi)
    stage.fuse(yo, xo)


def _reorder(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    (y, x), (k,) = stage.op.axis, stage.op.reduce_axis
    ko, ki = stage.split(k, 4)
    stage.reorder(x, ko, y, ki)


def _kinds(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    (y, x), (k,) = stage.op.axis, stage.op.reduce_axis
    xo, xi = stage.split(x, 8, tail="overlap" if c.outputs[0].shape[1] > 8 else None)
    yo, yi = stage.split(y, 2)
    stage.reorder(yo, xo, k, yi, xi)
    stage.vectorize(xi)
    stage.unroll(yi)
    stage.parallel(yo)


def _cache_write(s: t.Schedule, c: Case) -> None:
    C = c.outputs[0]
    CC = s.cache_write(C, "stack")
    y, x = s[C].op.axis
    yo, xo, yi, xi = s[C].tile(y, x, 4, 8)
    s[CC].compute_at(s[C], xo)
    (cy, cx), (k,) = s[CC].op.axis, s[CC].op.reduce_axis
    s[CC].reorder(k, cy, cx)
    s[CC].vectorize(cx)


def _cache_write_late(s: t.Schedule, c: Case) -> None:
    """Earlier requests about the loops stay with the computation."""
    C = c.outputs[0]
    (y, x), (k,) = s[C].op.axis, s[C].op.reduce_axis
    yo, xo, ko, yi, xi, ki = s[C].tile(y, x, k, 4, 8, 8)
    CC = s.cache_write(C, "stack")
    s[CC].unroll(yi)
    s[CC].compute_at(s[C], s[C].op.axis[0])


def _cache_read(s: t.Schedule, c: Case) -> None:
    (A, B), C = c.inputs, c.outputs[0]
    AL, BL = s.cache_read(A, "stack", [C]), s.cache_read(B, "stack")
    y, x = s[C].op.axis
    yo, yi = s[C].split(y, 4)
    s[AL].compute_at(s[C], yo)
    s[BL].compute_at(s[C], yo)
    s[BL].vectorize(s[BL].split(s[BL].op.axis[1], 4)[1])


def _rfactor(s: t.Schedule, c: Case) -> None:
    C = c.outputs[0]
    ko, ki = s[C].split(s[C].op.reduce_axis[0], 4)
    CF = s.rfactor(C, ki)
    s[CF].parallel(s[CF].op.axis[0])
    s[CF].vectorize(s[CF].op.axis[2])
    s[C].unroll(s[C].op.reduce_axis[0])


def _rfactor_outer(s: t.Schedule, c: Case) -> None:
    C = c.outputs[0]
    ko, ki = s[C].split(s[C].op.reduce_axis[0], nparts=3)
    CF = s.rfactor(C, ko)
    s[CF].compute_at(s[C], s[C].op.axis[1])


def _set_scope(s: t.Schedule, c: Case) -> None:
    C = c.outputs[0]
    CC = s.cache_write(C, "global")
    s[CC].compute_at(s[C], s[C].op.axis[1])
    s[CC].set_scope("register")


def _aligned(s: t.Schedule, c: Case) -> None:
    (A, _), C = c.inputs, c.outputs[0]
    AL, CC = s.cache_read(A, "stack"), s.cache_write(C, "stack")
    yo, xo, _, _ = s[C].tile(*s[C].op.axis, 4, 8)
    s[CC].compute_at(s[C], xo)
    s[AL].compute_at(s[C], yo)
    s[AL].storage_align(s[AL].op.axis[0], 16, 1)
    s[CC].storage_align(s[CC].op.axis[0], 32)


def _double_buffer(s: t.Schedule, c: Case) -> None:
    (A, _), C = c.inputs, c.outputs[0]
    AL = s.cache_read(A, "stack")
    y, x = s[C].op.axis
    s[AL].compute_at(s[C], s[C].split(y, 2)[0])
    if c.outputs[0].shape[0] > 2:  # else there is no loop around it
        s[AL].double_buffer()


def _vthread(s: t.Schedule, c: Case) -> None:
    C = c.outputs[0]
    CC = s.cache_write(C, "stack")
    yo, xo, yi, xi = s[C].tile(*s[C].op.axis, 4, 8)
    s[C].reorder(yo, yi, xo, xi)
    s[CC].compute_at(s[C], xo)
    s[C].vthread(yi)
    s[C].vectorize(xi)


def _notes(s: t.Schedule, c: Case) -> None:
    stage = s[c.outputs[0]]
    stage.pragma(stage.op.axis[0], "auto_unroll_max_step", 16)
    stage.annotate(stage.op.axis[1], "tuned", "no")


VERBS: dict[str, Say] = {
    f.__name__.strip("_"): f
    for f in (
        _split,
        _nparts,
        _tile,
        _tile_reduction,
        _fuse,
        _fuse_inner,
        _reorder,
        _kinds,
        _cache_write,
        _cache_write_late,
        _cache_read,
        _rfactor,
        _rfactor_outer,
        _set_scope,
        _aligned,
        _double_buffer,
        _vthread,
        _notes,
    )
}
SIZES = {
    "odd": (13, 19, 17),
    "exact": (16, 32, 24),
    "small": (1, 3, 5),
    "ones": (1, 1, 1),
}


def check(s: t.Schedule, case: Case) -> None:
    """The program is right and verified, and its trace replays to it."""
    verify(s.kernel)
    again = replay(s.schedule.original, Trace.from_json(s.trace.to_json()))
    assert repr(again) == repr(s.kernel)
    case.check(t.build(s, case.args))
    case.check(t.build(s, case.args, target="interp"))


@pytest.mark.sampled(9)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", VERBS)
def test_matmul(verb: str, size: str) -> None:
    case = matmul(*SIZES[size])
    s = t.create_schedule(case.outputs[0].op)
    VERBS[verb](s, case)
    check(s, case)


def test_inline_and_compute_at() -> None:
    case = softmax()
    s = t.create_schedule(case.outputs[0].op)
    (Y,) = case.outputs
    top, e, total = (stage.tensors[0] for stage in s.stages[:3])
    s[e].compute_inline()
    s[top].compute_at(s[Y], s[Y].op.axis[0])
    s[total].compute_at(s[Y], s[Y].op.axis[0])
    s[Y].parallel(s[Y].op.axis[0])
    check(s, case)
    assert "alloc e" not in str(s)
    s[e].compute_at(s[Y], s[Y].op.axis[0])
    check(s, case)
    assert "alloc e: float32[1, 11]" in str(s)
    for stage in (s[top], s[e], s[total]):
        stage.compute_root()
    check(s, case)
    assert "alloc e: float32[5, 11]" in str(s)


def test_a_stage_placed_in_a_loop_that_runs_once() -> None:
    """The tile is the whole reduction, so its outer loop runs once and its body stays inside."""
    case = matmul(4, 32, 64)
    (C,), k = case.outputs, case.outputs[0].op.reduce_axis[0]
    s = t.create_schedule(C.op)
    CL, BL = s.cache_write(C, "stack"), None
    i, j = s[C].op.axis
    jo, ji = s[C].split(j, factor=16)
    s[C].reorder(jo, i, ji)
    s[CL].compute_at(s[C], i)
    ko, ki = s[CL].split(k, factor=64)
    s[CL].reorder(ko, *CL.op.axis, ki)
    BL = s.cache_read(case.inputs[1], "stack", [CL])
    s[BL].compute_at(s[CL], ko)
    assert f"alloc {BL.op.name}: float32[64, 16] in stack" in str(s)
    check(s, case)


def test_padding_inline_or_at_a_row() -> None:
    for place in ("inline", "row"):
        case = conv2d()
        s = t.create_schedule(case.outputs[0].op)
        (Y,), pad = case.outputs, s.stages[0].tensors[0]
        n, f, y, x = s[Y].op.axis
        s[Y].reorder(y, f, x)
        if place == "inline":
            s[pad].compute_inline()
        else:
            s[pad].compute_at(s[Y], y)
            s[pad].vectorize(s[pad].op.axis[3])
        check(s, case)


def test_rows_at_once() -> None:
    case = layer_norm()
    s = t.create_schedule(case.outputs[0].op)
    (Y,) = case.outputs
    for stage in s.stages[:-1]:
        stage.compute_at(s[Y], s[Y].op.axis[0])
    s[Y].vectorize(s[Y].split(s[Y].op.axis[1], 4)[1])
    check(s, case)


def test_bind() -> None:
    case = matmul(16, 32, 24)
    s = t.create_schedule(case.outputs[0].op)
    (C,) = case.outputs
    yo, xo, yi, xi = s[C].tile(*s[C].op.axis, 4, 8)
    s[C].bind(yo, t.thread_axis("blockIdx.y"))
    s[C].bind(xo, "blockIdx.x")
    s[C].bind(xi, t.thread_axis((0, 8), "threadIdx.x"))
    s[C].bind(yi, "vthread")
    case.check(t.build(s, case.args, target="interp"))
    for axis in ("blockIdx.y", "blockIdx.x", "threadIdx.x", "vthread"):
        assert axis in str(s)


def test_symbolic_sizes() -> None:
    n, m = t.var("n"), t.var("m")
    X, k = t.placeholder((n, m)), t.reduce_axis((0, m))
    R = t.compute((n,), lambda i: t.sum(X[i, k], axis=k))
    Y = t.compute((n, m), lambda i, j: X[i, j] * R[i])
    s = t.create_schedule(Y.op)
    io, ii = s[Y].split(s[Y].op.axis[0], 4)
    s[R].compute_at(s[Y], ii)
    assert str(s).startswith(
        "kernel Y(X: float32[n, m]) -> Y: float32[n, m]:\n  for n in"
    )
    f = t.build(s, [X, Y])
    for shape in ((4, 6), (7, 3), (4, 6)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        y = np.zeros_like(x)
        f(x, y)
        np.testing.assert_allclose(y, x * x.sum(1, keepdims=True), rtol=1e-5, atol=1e-5)
    wrong = r"dimension 1 of Y: .*: expected 6 where n = 4, m = 6, got 7"
    with pytest.raises(InputError, match=wrong):
        f(x, np.zeros((4, 7), np.float32))
    assert "X: float32[5, 9]" in repr(t.lower(s, [X, Y], sizes={n: 5, m: 9}))


def test_steps_of_a_recurrence() -> None:
    case = recurrence()
    s = t.create_schedule(case.outputs[0].op)
    (Y,), (init, half, update) = (
        case.outputs,
        (stage.tensors[0] for stage in s.stages[:3]),
    )
    for stage in (half, update):
        s[stage].vectorize(s[stage].split(s[stage].op.axis[1], 4)[1])
    s[init].unroll(s[init].op.axis[1])
    check(s, case)
    assert str(s).count("in 4 vector") == 2
    with pytest.raises(ScheduleError, match="s is not a loop of update"):
        s[update].unroll(s[update].op.axis[0])
    with pytest.raises(ScheduleError, match="update belongs to a recurrence"):
        s.cache_write(update, "stack")
    s[Y].parallel(s[Y].op.axis[0])
    with pytest.raises(ScheduleError, match=r"s\[Y\]\.parallel\(s\)"):
        str(s)


def test_pairs() -> None:
    """Two tensors of one reduction are placed, staged and factored together."""
    for say in ("reorder", "cache_write", "rfactor", "compute_at"):
        X, k = t.placeholder((6, 9)), t.reduce_axis((0, 9))
        V, I = t.compute((6,), lambda i: t.argmax(X[i, k], axis=k))  # noqa: E741
        Y = t.compute((6,), lambda i: V[i] + I[i].astype("float32"))
        case = Case((X,), (Y,), lambda x: x.max(1) + x.argmax(1))
        s = t.create_schedule(Y.op)
        (i,) = s[V].op.axis
        if say == "reorder":
            s[V].reorder(k, i)
            s[V].vectorize(i)
        if say == "cache_write":
            VC, IC = s.cache_write(V, "stack")
            s[IC].compute_at(s[V], s[V].op.axis[0])
        if say == "rfactor":
            VF, IF = s.rfactor(V, s[V].split(k, 3)[1])
            s[VF].compute_at(s[I], i)
        if say == "compute_at":
            s[V].compute_at(s[Y], s[Y].op.axis[0])
        check(s, case)


def test_axes_held_before_cache_write_are_the_copys() -> None:
    """As in TVM's product with a write cache: `C.op.axis` still belongs to `s[C]`."""
    c = matmul(9, 7, 10)
    (C,) = c.outputs
    s = t.create_schedule(C.op)
    CC = s.cache_write(C, "global")
    yo, xo, yi, xi = s[C].tile(C.op.axis[0], C.op.axis[1], 4, 4)
    s[CC].compute_at(s[C], xo)
    yc, xc = s[CC].op.axis
    ko, ki = s[CC].split(s[CC].op.reduce_axis[0], factor=np.int64(4))
    s[CC].reorder(ko, yc, ki, xc)
    s[CC].vectorize(xc)
    check(s, c)


def test_specialized_on_request() -> None:
    n = t.var("n")
    X = t.placeholder((n,))
    Y = t.compute((n,), lambda i: X[i] * 2.0)
    s = t.create_schedule(Y.op)
    each = t.build(s, [X, Y], specialize=True)
    one = t.build(s, [X, Y], sizes={n: 5})
    assert "X: float32[5]" in repr(one.kernel)
    for size in (5, 3, 5):
        x, y = np.arange(size, dtype=np.float32), np.zeros(size, np.float32)
        each(x, y)
        np.testing.assert_array_equal(y, x * 2)
    with pytest.raises(InputError, match=r"X.*float32\[5\]"):
        one(x[:3].copy(), y[:3].copy())
    # What holds for some sizes only is refused for all of them, and right where it holds.
    m = t.var("m")
    Z = t.compute((m,), lambda i: X[i])
    part = t.create_schedule(Z.op)
    with pytest.raises(
        InputError, match=r"index i of dimension 0 of X leaves 0\.\.n - 1"
    ):
        t.build(part, [X, Z])
    z = np.zeros(2, np.float32)
    t.build(part, [X, Z], specialize=True)(x, z)
    np.testing.assert_array_equal(z, x[:2])
