"""hoist_update: values that are alike are updated once; whatever makes them differ is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int32
from tilewright.base.errors import ScheduleError
from tilewright.compute.online_softmax import weighted_mean
from tilewright.compute.reducer import Reducer
from tilewright.compute.reducer import reducer as named
from tilewright.expr.nodes import INDEX, Buffer, Call, Expr, Select, Var, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import (
    Alloc,
    If,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    loop,
)
from tilewright.loops.verify import verify
from tilewright.schedule import Schedule

N, BLOCKS = 6, 4
P, W = (Buffer(n, (BLOCKS,), float32) for n in "pw")
V, Q = Buffer("v", (BLOCKS, N), float32), Buffer("q", (N,), float32)
Y, Z = Buffer("y_out", (N,), float32), Buffer("z_out", (N,), float32)
M, T, MEAN = (Buffer(n, (N,), float32, "register") for n in ("m", "t", "mean"))
b, c, i, o = (Var(n, INDEX) for n in ("b", "c", "c0", "o"))
MEANS = weighted_mean(float32)


def online(
    first: Expr = MEANS.identity[0],
    more: Mapping[int, Expr] = MappingProxyType({}),
    values: tuple[Expr, ...] = (P[b], W[b], V[b, c]),
    buffers: tuple[Buffer, ...] = (M, T, MEAN),
    reducer: Reducer = MEANS,
    around: Callable[[Stmt], Stmt] = lambda s: s,
    start: Callable[[Stmt], Stmt] = lambda s: loop(i, N, s),
    extent: int = N,
    indices: Mapping[int, Expr] = MappingProxyType({}),
) -> Kernel:
    """A running maximum, a sum of weights and a mean, for each element of N. first, more: what
    they start with, if it is something else. indices: the elements that are updated, likewise."""
    starts = [first, *reducer.identity[1:]]
    starts = [more.get(n, e) for n, e in enumerate(starts)]
    stores = [Store(x, (i,), v) for x, v in zip(buffers, starts, strict=True)]
    places = tuple((indices.get(n, c),) for n in range(len(buffers)))
    step = Update(buffers, places, values, reducer)
    body: Stmt = block(
        start(block(*stores)),
        loop(b, BLOCKS, loop(c, extent, around(step))),
        loop(
            o,
            N,
            block(Store(Y, (o,), buffers[-1][o]), Store(Z, (o,), buffers[:2][-1][o])),
        ),
    )
    held = [x for x in buffers if x.scope == "register"]
    for x in held:
        body = Alloc(x, body)
    outside = tuple(x for x in buffers if x not in held)
    params = (P, W, V, Q, *outside, Y, Z)
    return Kernel("online", params, (*outside, Y, Z), body)


def results(k: Kernel) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    given = {x: rng.random(x.shape).astype(np.float32) for x in k.params}
    run(k, given)
    return [given[x] for x in k.outputs]


def test_alike_values_are_updated_once_and_the_rest_is_the_same():
    before = online()
    s = Schedule(before)
    assert s.hoist_update("c") == ("m", "t")
    verify(s.kernel)
    for want, got in zip(results(before), results(s.kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    text = str(s)
    assert "alloc m: float32[1]" in text and "alloc mean: float32[6]" in text
    # Two exponentials and one division, and none of them for each element.
    assert text.count("exp(") == 2 and "exp(" not in text[text.index("for c in") :]
    assert "m[0] = " in text[: text.index("for c0 in")]
    # The values, and what is taken from the alike ones: quotients and exponentials only once.
    assert text.count("alloc") == 3 + 7


def test_one_value_that_all_iterations_update_stays_in_the_loop():
    """It is not alike in them, although its place is."""
    before = online(indices={2: const(0)})
    s = Schedule(before)
    s.hoist_update("c")
    verify(s.kernel)
    for want, got in zip(results(before), results(s.kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def _mixed() -> Reducer:
    """The first value is combined with the second one."""
    (x, y), (u, v) = (tuple(Var(n, float32) for n in names) for names in ("xy", "uv"))
    return Reducer("mixed", (x, y), (u, v), (x + u + y, y + v), MEANS.identity[:2])


def _chosen() -> Reducer:
    """Whether the second value changes, the first one decides, an integer."""
    x, y, u, v = Var("x", int32), Var("y", float32), Var("u", int32), Var("v", float32)
    chosen = Select(x < u, v, y)
    zeros = const(0, int32), const(0, float32)
    return Reducer("chosen", (x, y), (u, v), (x + u, chosen), zeros)


def _chain() -> Reducer:
    """The second value is combined with the third one."""
    left = tuple(Var(n, float32) for n in ("x", "y", "z"))
    right = tuple(Var(n, float32) for n in ("u", "v", "w"))
    (x, y, z), (u, v, w) = left, right
    sums = (x + u, y + v + z, z + w)
    return Reducer("chain", left, right, sums, (MEANS.identity[1],) * 3)


def _grown() -> Reducer:
    """The second value grows by an exponential of the first one, which nothing else has."""
    (x, y), (u, v) = (tuple(Var(n, float32) for n in names) for names in ("xy", "uv"))
    grown = y * (Call("exp", (x - u,)) + 1) + v
    return Reducer("grown", (x, y), (u, v), (x + u, grown), MEANS.identity[1:])


def check_the_same(before: Kernel) -> str:
    """That hoisting changes no result; the text of what it made."""
    s = Schedule(before)
    s.hoist_update("c")
    verify(s.kernel)
    for want, got in zip(results(before), results(s.kernel), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    return str(s)


def test_an_integer_that_is_alike_is_updated_once_and_so_is_what_it_decides():
    m = Buffer("m", (N,), int32, "register")
    text = check_the_same(
        online(
            first=const(0, int32),
            values=(const(2, int32), V[b, c]),
            buffers=(m, T),
            reducer=_chosen(),
        )
    )
    assert "alloc m: int32[1]" in text
    inner = text[text.rindex("for c in") : text.index("for o in")]
    assert "m[" not in inner and ".once[0]" in inner


def test_a_call_that_one_value_has_is_part_of_its_temporary():
    text = check_the_same(
        online(
            first=MEANS.identity[1],
            values=(W[b], V[b, c]),
            buffers=(M, T),
            reducer=_grown(),
        )
    )
    # Both buffers, the first one's new value, and the factor as a whole.
    assert text.count("alloc") == 2 + 2


REFUSED = {
    "the starts differ": (online(first=Q[i]), "m", "stores one value"),
    "a start reads what another iteration wrote": (
        online(first=M[const(0)]),
        "m",
        "stores one value",
    ),
    "another start reads it in the same loop": (
        online(more={2: M[const(N - 1)]}),
        "m",
        "stores one value",
    ),
    "a start reads what the loop writes": (
        online(more={1: MEAN[const(0)]}),
        "t",
        "stores one value",
    ),
    "a start is guarded": (
        online(start=lambda s: loop(i, N, If(i < N - 1, s, None))),
        "m",
        "stores one value",
    ),
    "only a part is started": (
        online(start=lambda s: loop(i, N - 1, s)),
        "c0",
        "whole dimension",
    ),
    "only a part is updated": (online(extent=N - 1), "c", "whole dimension"),
    "some elements are updated twice": (
        online(indices={0: c // 2}),
        "c",
        "whole dimension",
    ),
    "one value": (
        online(values=(P[b],), buffers=(M,), reducer=named("add", float32)),
        "c",
        "all of the values",
    ),
    "an operand differs": (
        online(values=(V[b, c], W[b], V[b, c])),
        "c",
        "none of the values",
    ),
    "an operand is what it updates": (
        online(values=(MEAN[const(0)], W[b], V[b, c])),
        "c",
        "none of the values",
    ),
    "all are alike": (online(values=(P[b], W[b], P[b])), "c", "all of the values"),
    "no value is combined from alike ones alone": (
        online(values=(P[b], V[b, c]), buffers=(M, T), reducer=_mixed()),
        "c",
        "none of the values",
    ),
    "two others are combined": (
        online(values=(P[b], V[b, c], V[b, c]), reducer=_chain()),
        "c",
        "another value that it changes",
    ),
    "it is the caller's memory": (
        online(buffers=(Buffer("mine", (N,), float32), T, MEAN)),
        "mine",
        "is a parameter",
    ),
    "the update is guarded": (
        online(around=lambda s: If(c < N - 1, s, None)),
        "c",
        "not one Update",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_values_differ_is_refused(name):
    kernel, where, why = REFUSED[name]
    with pytest.raises(ScheduleError, match=f"hoist_update: .*{why}") as caught:
        Schedule(kernel).hoist_update("c")
    assert caught.value.where.split()[-1] == where
    results(kernel)


def test_a_bound_loop_is_taken_too_late():
    s = Schedule(online())
    s.bind("c", "threadIdx.x")
    with pytest.raises(ScheduleError, match="in order"):
        s.hoist_update("c")
