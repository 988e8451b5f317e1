"""One executable for the shapes of a range: loop programs of operators, and aliased results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.driver.ranges.test_ranged import RNG, fed, model
from tilewright.base.dtypes import float32
from tilewright.driver.ranges.generalize import equal, generalize
from tilewright.expr.nodes import INDEX, Buffer, Var
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.plan.nodes import FusionGroup, Plan

PROGRAMS = {
    "sorted rows": "(float[n, 6] x) => (float[n, 3] y, int64[n, 3] i) {"
    " k = Constant<value_ints = [3]>() y, i = TopK(x, k) }",
    "sorted columns": "(float[2, n] x) => (float[2, n] y, int64[2, n] i) {"
    " k = Shape<start = 1>(x) y, i = TopK(x, k) }",
    "added rows": "(float[n, 6] x, int64[n, 6] i) => (float[n, 6] y) {"
    ' y = ScatterElements<axis = 0, reduction = "add">(x, i, x) }',
    "recurrent steps": "(float[n, 2, 6] x) => (float[n, 1, 2, 4] y) {"
    " y = LSTM<hidden_size = 4>(x, lw, lr) }",
    "recurrent rows": "(float[3, n, 6] x) => (float[3, 1, n, 4] y) {"
    " y = LSTM<hidden_size = 4>(x, lw, lr) }",
}


ALIASED: dict[str, tuple[str, Any]] = {
    "another result": ("z = Identity(y)", lambda x: np.maximum(x, 0)),
    "an input": ("z = Identity(x)", lambda x: x),
    "a constant": ("s = Shape(x) z = ConstantOfShape(s)", np.zeros_like),
    "a view": (
        "s = Constant<value_ints = [-1, 3]>() z = Reshape(y, s)",
        lambda x: np.maximum(x, 0).reshape(-1, 3),
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALIASED)
def test_a_result_that_is_also_another_tensor_is_a_copy(name: str) -> None:
    text, made = ALIASED[name]
    source = model(
        f"(float[n, 6] x) => (float[n, 6] y, float[k, l] z) {{ y = Relu(x) {text} }}"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(source, dims={"n": (1, 20)}, **how)
    for n in (1, 2, 20):
        x = fed(source, n)
        y, z = exe(x)
        np.testing.assert_array_equal(y, np.maximum(x, 0))
        np.testing.assert_array_equal(z, made(x))
        assert not np.shares_memory(y, z)


def results(run: Any, feeds: list[Any]) -> list[Any]:
    found = run(*feeds)
    return list(found) if isinstance(found, list | tuple) else [found]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_loop_programs_of_operators_are_one_code(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_DEBUG", "1")
    source = model(PROGRAMS[name])
    how: Any = {"threads": 2, "cache": False}
    exe: Any = tw.compile(source, dims={"n": (1, 20)}, jit=False, **how)
    assert sum(len(s.covers) for s in exe.model.shared) >= 18
    each = tw.compile(source, **how)
    for n in (1, 2, 7, 20):
        feeds = [fed(source, n)]
        if len(source.graph.input) > 1:
            feeds.append(RNG.integers(0, n, (n, 6)))
        for a, b in zip(*(results(run, feeds) for run in (exe, each)), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_loop_program_of_another_form_has_code_of_its_own() -> None:
    """The four best of rows, or as many as there are: at fewer, other trip counts."""
    text = (
        "(float[n] x) => (float[k] y, int64[k] i) { s = Shape(x)"
        " f = Constant<value_ints = [4]>() m = Min(s, f) y, i = TopK(x, m) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (1, 20)}, **how)
    assert sorted(exe.model.single) == [(1,), (2,), (3,)]
    for n in (1, 3, 4, 20):
        x = RNG.standard_normal(n).astype(np.float32)
        y, i = exe(x)
        np.testing.assert_array_equal(y, np.sort(x)[::-1][:4])
        np.testing.assert_array_equal(x[i], y)


def copied(n: int, last: float = 1.0) -> Plan:
    """x + last by a loop program."""
    x, y = Buffer("x", (n,), float32), Buffer("y", (n,), float32)
    i = Var("i", INDEX)
    body = loop(i, n, Store(y, (i,), x[i] + last))
    group = FusionGroup("k", (), kernel=Kernel("k", (x, y), (y,), body))
    given, made = (Value(b.name, float32, (n,)) for b in (x, y))
    graph = Graph("g", (given,), (made,), (), {})
    return Plan(graph, (group,), {given: x, made: y})


def test_loop_programs_are_equal_in_all_that_they_do() -> None:
    graph = Graph("g", (Value("x", float32, ("n",)),), (), (), {})
    points = [{"n": 14}, {"n": 7}]
    plan = generalize([copied(14), copied(7)], points, graph, {"n": (1, 20)})
    assert equal(plan, {"n": 5}, copied(5))
    assert not equal(plan, {"n": 5}, copied(5, last=2.0))


def test_extents_that_depend_on_data_are_shared_where_no_result_has_them() -> None:
    text = (
        "(float[n] x, float[n] t0) => (float y) { z = NonZero(x)"
        " t = Transpose<perm = [1, 0]>(z) g = GatherND(t0, t) y = ReduceSum<keepdims = 0>(g) }"
    )
    how: Any = {"jit": False, "threads": 1, "cache": False}
    exe: Any = tw.compile(model(text), dims={"n": (2, 20)}, **how)
    assert sum(len(s.covers) for s in exe.model.shared) == 19
    for n in (2, 3, 11, 20):
        x = (RNG.random(n) > 0.5).astype(np.float32)
        v = RNG.standard_normal(n).astype(np.float32)
        np.testing.assert_allclose(exe(x, v), v[x > 0].sum(), rtol=1e-5, atol=1e-6)
