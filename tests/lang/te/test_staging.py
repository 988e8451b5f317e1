"""Cache stages are steps: the trace makes the program again from the plain operator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import te as t
from tilewright.base.errors import ScheduleError
from tilewright.schedule.trace import Trace, replay

N = 16


def product() -> tuple[t.Tensor, ...]:
    A, B = t.placeholder((N, N), name="A"), t.placeholder((N, N), name="B")
    k = t.reduce_axis((0, N), name="k")
    C = t.compute((N, N), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k), name="C")
    return A, B, C


def chain() -> tuple[t.Tensor, ...]:
    A = t.placeholder((N,), name="A")
    B = t.compute((N,), lambda i: A[i] * 2, name="B")
    C = t.compute((N,), lambda i: B[i] + A[i], name="C")
    return A, B, C


def inputs(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    AL = s.cache_read(A, "stack", [C])
    s.cache_read(B, "global", [C])
    s[AL].compute_at(s[C], s[C].op.axis[0])


def output(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    CL = s.cache_write(C, "stack")
    _, x = s[C].op.axis
    xo, xi = s[C].split(x, 8)
    s[CL].compute_at(s[C], xo)
    s[C].vectorize(xi)


def scheduled(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    y, x = s[C].op.axis
    s[C].tile(y, x, 4, 8)
    CL = s.cache_write(C, "stack")
    AL = s.cache_read(A, "stack", [CL])
    s[AL].vectorize(s[AL].op.axis[1])


def twice(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    AL = s.cache_read(A, "global", name="AL")
    s.cache_read(AL, "stack", name="ALL")


def between(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    BL = s.cache_read(B, "stack", [C])
    CL = s.cache_write(C, "stack")
    s[BL].compute_at(s[CL], s[CL].op.axis[0])


def all_readers(s: t.Schedule, A: t.Tensor, B: t.Tensor, C: t.Tensor) -> None:
    s.cache_read(A, "stack")


CASES: dict[
    str, tuple[Callable[[], tuple[t.Tensor, ...]], Callable[..., None], str]
] = {
    "inputs": (product, inputs, "cache_read cache_read rename compute_at"),
    "output": (product, output, "cache_write rename split compute_at vectorize"),
    "scheduled": (product, scheduled, "cache_read cache_write rename"),
    "twice": (product, twice, "cache_read cache_read rename"),
    "between": (chain, between, "cache_write cache_read rename"),
    "all_readers": (chain, all_readers, "cache_read rename"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_trace_begins_with_the_plain_operator(case: str) -> None:
    make, schedule, verbs = CASES[case]
    tensors = make()
    plain = t.create_schedule(tensors[-1]).kernel
    s = t.create_schedule(tensors[-1])
    schedule(s, *tensors)
    assert [step.primitive for step in s.trace.steps][
        : len(verbs.split())
    ] == verbs.split()
    assert repr(replay(plain, Trace.from_json(s.trace.to_json()))) == repr(s.kernel)


def test_what_the_primitives_do_otherwise_is_where_the_trace_begins() -> None:
    A, B, C = chain()
    s = t.create_schedule(C)
    s.cache_read(A, "stack", [C], name="AL")
    assert (
        not s.trace.steps and "A[B.i]" in repr(s.kernel) and "AL[C.i]" in repr(s.kernel)
    )
    s = t.create_schedule(C)
    s.cache_write(B, "stack", name="BL")
    assert not s.trace.steps and "B[B.i] = BL[B.i]" in repr(s.kernel)


def test_partial_results_are_where_the_trace_begins() -> None:
    A, B, C = product()
    s = t.create_schedule(C)
    ko, _ = s[C].split(s[C].op.reduce_axis[0], 4)
    CF = s.rfactor(C, ko, name="CF")
    plain = s.kernel
    s.cache_read(A, "stack", [CF])
    assert s.trace.steps[0].primitive == "cache_read"
    assert repr(replay(plain, s.trace)) == repr(s.kernel)
    a, b = (np.random.default_rng(0).random((N, N), np.float32) for _ in range(2))
    out = np.empty((N, N), np.float32)
    t.build(s, [A, B, C])(a, b, out)
    np.testing.assert_allclose(out, a @ b, rtol=1e-5)


def test_renaming() -> None:
    from tilewright.schedule import Schedule

    plain = t.create_schedule(product()[2]).kernel
    s = Schedule(plain)
    s.annotate("C.x", "why", "rows")
    s.rename("C.y", "C.x", "C.x", "C.y")
    assert list(s.loops) == ["C.x", "C.y", "C.k"]
    assert s.kernel.notes == {"C.y": {"why": "rows"}}
    assert "C[C.x, C.y] add= A[C.x, C.k] * B[C.k, C.y]" in repr(s.kernel)
    s.verify()
    for names, message in {
        ("C.k",): "these are not pairs",
        ("C.k", "C.x"): "the name C.x is taken",
        ("C.k", "A"): "the name A is taken",
        ("C.k", "z", "C.x", "z"): "the name z is taken",
        ("no", "z"): "no loop",
    }.items():
        with pytest.raises(ScheduleError, match=message):
            s.rename(*names)
