"""Lines as TVM's users write them: slices, named factors, ties, groups, tags."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import InputError, ScheduleError, UnsupportedError

RNG = np.random.default_rng(5)


def run(out: t.Tensor, *arrays: np.ndarray, args: list[t.Tensor]) -> np.ndarray:
    found = np.empty(tuple(out.shape), out.dtype.numpy)
    t.build(t.create_schedule(out.op), [*args, out], target="interp")(*arrays, found)
    return found


def test_slices() -> None:
    A, k = t.placeholder((3, 4, 5), name="A"), t.reduce_axis((0, 5))
    B = t.compute((3, 4), lambda i, j: t.sum(A[i][j][k] * A[i, j][k], axis=k), name="B")
    a = RNG.standard_normal((3, 4, 5), dtype=np.float32)
    np.testing.assert_allclose(run(B, a, args=[A]), (a * a).sum(2), rtol=1e-5)


def test_factors_by_name() -> None:
    A = t.placeholder((16, 16), name="A")
    B = t.compute((16, 16), lambda i, j: A[j, i], name="B")
    s, r = t.create_schedule(B.op), t.create_schedule(B.op)
    named = s[B].tile(*s[B].op.axis, x_factor=4, y_factor=8)
    plain = r[B].tile(*r[B].op.axis, 4, 8)
    assert [x.name for x in named] == [x.name for x in plain]
    assert str(s) == str(r)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_argmax_of_tvms_tutorial_takes_the_first(sign: int) -> None:
    def first(x, y):
        better = x[1] >= y[1]
        return t.if_then_else(better, x[0], y[0]), t.if_then_else(better, x[1], y[1])

    def last(x, y):
        better = x[1] > y[1]
        return t.if_then_else(better, x[0], y[0]), t.if_then_else(better, x[1], y[1])

    def none(index, value):
        return t.const(-1, index), t.min_value(value)

    A, k = t.placeholder((4, 9), name="A"), t.reduce_axis((0, 9))
    argmax = t.comm_reducer(first if sign > 0 else last, none, name="argmax")
    index, _ = t.compute(
        (4,), lambda i: argmax((k.astype("int32"), A[i, k]), axis=k), name="T"
    )
    a = RNG.integers(0, 3, (4, 9)).astype(np.float32)
    want = a.argmax(1) if sign > 0 else 8 - a[:, ::-1].argmax(1)
    found, value = np.empty(4, np.int32), np.empty(4, np.float32)
    s = t.create_schedule(index.op)
    t.build(s, [A, *index.op.outputs])(a, found, value)
    np.testing.assert_array_equal(found, want)


def chain() -> tuple[t.Schedule, list[t.Tensor]]:
    A = t.placeholder((16, 8), name="A")
    B = t.compute((16, 8), lambda i, j: A[i, j] + 1.0, name="B")
    C = t.compute((16, 8), lambda i, j: B[i, j] * 2.0, name="C")
    D = t.compute((16, 8), lambda i, j: C[i, j] - A[i, j], name="D")
    return t.create_schedule(D.op), [A, B, C, D]


def test_a_group_is_placed_as_one() -> None:
    s, (A, B, C, D) = chain()
    group = s.create_group(outputs=C, inputs=A)
    assert [m.name for m in group.members] == ["B", "C"] and s.groups == [group]
    group.compute_at(s[D], s[D].op.axis[0])
    r, (_, B2, C2, D2) = chain()
    for tensor in (B2, C2):
        r[tensor].compute_at(r[D2], r[D2].op.axis[0])
    assert str(s) == str(r) and "for D.i in 16:\n    alloc B" in str(s)
    assert [m.name for m in s.create_group(D, B).members] == ["C", "D"]
    assert [m.name for m in s.create_group(D, B, include_inputs=True).members] == [
        "B",
        "C",
        "D",
    ]
    with pytest.raises(ScheduleError, match="no stage is between"):
        s.create_group(C, C)
    with pytest.raises(ScheduleError, match="D belongs to the group"):
        s.create_group(D, A).compute_at(s[D], s[D].op.axis[0])


def test_a_stage_of_a_group_with_a_place_keeps_it() -> None:
    s, (A, B, C, D) = chain()
    s[B].compute_inline()
    s.create_group(C, A).compute_at(s[D], s[D].op.axis[0])
    assert "alloc B" not in str(s)


def test_outputs_may_come_first() -> None:
    A, B = t.placeholder((4,), name="A"), t.placeholder((4,), name="B")
    C = t.compute((4,), lambda i: A[i] - B[i], name="C")
    f = t.build(t.create_schedule(C.op), [C, A, B])
    out, a, b = np.empty(4, np.float32), *RNG.standard_normal((2, 4), dtype=np.float32)
    f(out, a, b)
    np.testing.assert_array_equal(out, a - b)
    g = t.build(t.create_schedule(C.op), [A, C, B], target="interp")
    g(a, out, b)
    with pytest.raises(InputError, match=r"2 arrays given, 3 expected"):
        f(out, a)


def test_tags() -> None:
    with t.tag_scope("outer"):
        A = t.compute((4,), lambda i: i * 2, name="A")
        with pytest.raises(InputError, match="inside another"), t.tag_scope("b"):
            pass
        with pytest.raises(InputError, match="a tag 'own' inside"):
            t.compute((4,), lambda i: i, tag="own")
    B = t.compute(
        (4, 5), lambda *i: i[0], name="B", tag="own", varargs_names=["y", "x"]
    )
    assert (A.op.tag, B.op.tag) == ("outer", "own")
    assert [a.name for a in B.op.axis] == ["y", "x"]


def test_what_an_operation_tells() -> None:
    s, (A, B, C, D) = chain()
    assert D.op.input_tensors == (C, A) and D.op.num_outputs == 1
    assert D.op.output(0) is D and A.op.output(0) is A and D.value_index == 0
    x = s[D].leaf_iter_vars[0]
    outer, inner = s[D].split(x, 4)
    assert s[D].all_iter_vars == [x, outer, inner, s[D].op.axis[1]]
    s[B].set_scope("stack")
    assert (s[B].scope, s[C].scope) == ("stack", "global")


def test_what_a_stage_does_not_have_is_refused() -> None:
    s, (_, _, C, D) = chain()
    with pytest.raises(UnsupportedError, match=r"env_threads.*bind the loops"):
        s[D].env_threads([])
    with pytest.raises(AttributeError, match="no attribute 'tilt'"):
        s[C].tilt()
