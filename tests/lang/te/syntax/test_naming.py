"""Tensors and axes are called what the variables are that they are assigned to."""

from __future__ import annotations

from tilewright import te as t


def test_assignments() -> None:
    A = t.placeholder((4, 4))
    B, C = t.placeholder((4, 4), "int32"), t.placeholder((4, 4))
    D, E, F = (
        t.placeholder((4,)),
        t.placeholder(shape=(4,), dtype="int8"),
        t.placeholder((4,)),
    )
    G, H, K, L = (t.placeholder((n,)), t.placeholder((4,)), [t.placeholder((1,))], 3)[
        :2
    ] + (1, 2)
    P, Q, R, S = t.placeholder((4,)), t.placeholder((4,)), t.placeholder((4,)), A
    named = {x: x.name for x in (A, B, C, D, E, F, P, Q, R)}
    assert list(named.values()) == ["A", "B", "C", "D", "E", "F", "P", "Q", "R"]
    assert [x.name for x in (G, H)] == ["placeholder"] * 2
    assert (K, L, S) == (1, 2, A)


n = 4
OUTSIDE = t.placeholder((n,))


def test_scopes() -> None:
    global GLOBAL
    GLOBAL = t.placeholder((4,))
    shared = t.placeholder((4,))

    def inner() -> str:
        return shared.name

    assert (OUTSIDE.name, GLOBAL.name, inner()) == ("OUTSIDE", "GLOBAL", "shared")


def test_no_variable() -> None:
    several = [t.placeholder((4,)) for _ in range(2)]
    _hidden = t.placeholder((4,))
    first = [t.placeholder((4,))][0]
    other = t.placeholder((4,)) if n else None
    assert {x.name for x in (*several, _hidden, first)} == {"placeholder"}
    assert other is not None and other.name in ("placeholder", "other")
    assert t.placeholder((4,)).name == "placeholder"
    assert t.placeholder((4,), name="given").name == "given"


def test_several_results_and_axes() -> None:
    X, k = t.placeholder((3, 4)), t.reduce_axis((0, 4))
    V, I = t.compute((3,), lambda i: t.argmax(X[i, k], axis=k))  # noqa: E741
    pair = t.compute((3,), lambda i: (X[i, 0], X[i, 1]))
    assert (V.name, I.name, k.name) == ("V", "I", "k")
    assert [x.name for x in pair] == ["pair.v0", "pair.v1"]
    s = t.create_schedule([*pair, V])
    VL, IL = s.cache_write(V, "stack")
    assert (VL.name, IL.name, s.cache_read(X, "stack").name) == ("VL", "IL", "X.stack")
