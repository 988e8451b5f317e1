"""Open plans: extents known only at run time, from an input or from a count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.base.dtypes import float32, int64
from tilewright.base.errors import ExecutionError, InputError, VerifyError
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Load, Select, Var, const
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.lower import lower
from tilewright.plan.interp import evaluate
from tilewright.plan.nodes import FusionGroup, OpenExtent, Plan
from tilewright.plan.open_extents import at
from tilewright.plan.parser import parse
from tilewright.plan.verify import verify

RNG = np.random.default_rng(0)


def rows() -> Plan:
    """y = (sum over j of x[i, j]) * c: over n rows of m elements, both open."""
    n, m = Var("n", INDEX), Var("m", INDEX)
    x, t = Buffer("x", (n, m), float32), Buffer("t", (n,), float32)
    y, c = Buffer("y", (n,), float32), Buffer("c", (1,), float32)
    i, j, k = (Var(name, INDEX) for name in "ijk")
    total = Computation(
        "total",
        (Dim(i, n), Dim(j, m, "pw")),
        (Output(t, (i,), Load(x, (i, j))),),
        reducer("add", float32),
    )
    scaled = Computation(
        "scaled",
        (Dim(k, n),),
        (Output(y, (k,), Load(t, (k,)) * Load(c, (const(0),))),),
    )
    values = (
        Value("x", float32, ("n", "m")),
        Value("c", float32, (1,)),
        Value("y", float32, ("n",)),
    )
    array = np.array([2], np.float32)
    graph = Graph("rows", values[:1], values[2:], (), {values[1]: array})
    sizes = (
        OpenExtent(n, 0, 64, (values[0], 0), counted=4),
        OpenExtent(m, 1, 9, (values[0], 1)),
    )
    groups = (FusionGroup("a", (total,)), FusionGroup("b", (scaled,)))
    buffers = dict(zip(values, (x, c, y), strict=True))
    return Plan(graph, groups, buffers, {c: array}, open=sizes)


def positives(least: int = 0, most: int = 8) -> Plan:
    """count = how many of the 8 elements of x are positive; y = 0, 1, ... count - 1, plus x[0].

    The second step is a Kernel, which takes the size as an extent of its result.
    """
    k = Var("k", INDEX)
    x, count = Buffer("x", (8,), float32), Buffer("count", (1,), int64)
    y = Buffer("y", (k,), float32)
    found = reduce_(
        "found",
        count,
        (8,),
        "add",
        lambda o, r: Select(
            const(0.0, float32) < Load(x, (r,)), const(1, int64), const(0, int64)
        ),
    )
    i = Var("i", INDEX)
    filled = Computation(
        "filled",
        (Dim(i, k),),
        (Output(y, (i,), i.astype(float32) + Load(x, (const(0),))),),
    )
    kernel = lower("filled", (filled,), (x, y), (y,))
    ends = Value("x", float32, (8,)), Value("y", float32, ("k",))
    graph = Graph("positives", ends[:1], ends[1:], ())
    steps = (FusionGroup("a", (found,)), FusionGroup("b", (), kernel=kernel))
    buffers = dict(zip(ends, (x, y), strict=True))
    return Plan(graph, steps, buffers, open=(OpenExtent(k, least, most, count),))


@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 1), (3, 2), (64, 9), (17, 7)])
def test_a_plan_at_any_size_within_its_bounds(n: int, m: int) -> None:
    plan = rows()
    x = RNG.integers(-9, 9, (n, m)).astype(np.float32)
    (found,) = evaluate(plan, {"x": x})
    np.testing.assert_array_equal(found, x.sum(axis=1) * 2)
    fixed = at(plan, dict(zip((e.size for e in plan.open), (n, m), strict=True)))
    verify(fixed)
    assert fixed.graph.inputs[0].shape == (n, m)
    np.testing.assert_array_equal(evaluate(fixed, {"x": x})[0], found)


@pytest.mark.parametrize("positive", [0, 1, 3, 8])
def test_a_count_decides_the_shape_of_what_comes_after_it(positive: int) -> None:
    x = -np.ones(8, np.float32)
    x[:positive] = 2
    (found,) = evaluate(positives(), {"x": x})
    np.testing.assert_array_equal(found, np.arange(positive, dtype=np.float32) + x[0])


def test_a_count_out_of_its_bounds_is_an_error() -> None:
    ones = np.ones(8, np.float32)
    with pytest.raises(ExecutionError, match="k is 8, and may be 0 to 7"):
        evaluate(positives(most=7), {"x": ones})
    with pytest.raises(ExecutionError, match="k is 0, and may be 1 to 8"):
        evaluate(positives(least=1), {"x": -ones})


@pytest.mark.parametrize("shape", [(65, 3), (3, 0), (3, 10)])
def test_a_size_out_of_its_bounds_is_named(shape: tuple[int, int]) -> None:
    with pytest.raises(InputError, match=r"[nm] is \d+, and may be") as caught:
        evaluate(rows(), {"x": np.zeros(shape, np.float32)})
    assert caught.value.code == "TW-SIZE" and "x[" in str(caught.value)


def test_a_missing_dimension_is_named() -> None:
    with pytest.raises(InputError, match=r"expected float32\[n, m\]"):
        evaluate(rows(), {"x": np.zeros(3, np.float32)})


@pytest.mark.parametrize("plan", [rows(), positives()], ids=["rows", "positives"])
def test_text_is_read_back(plan: Plan) -> None:
    text = str(plan)
    again = parse(text, plan.graph)
    assert str(again) == text
    verify(again)
    x = np.ones((3, 5) if plan.graph.name == "rows" else 8, np.float32)
    np.testing.assert_array_equal(
        evaluate(again, {"x": x})[0], evaluate(plan, {"x": x})[0]
    )


def test_text_names_sizes_with_bounds_and_source() -> None:
    assert "size n in 0 to 64 from x[0], counted at 4" in str(rows())
    assert "size k in 0 to 8 from count" in str(positives())


def broken(how: str) -> Plan:
    plan, counted = rows(), positives()
    n, m = plan.open
    (k,) = counted.open
    wide = Buffer("count", (1,), float32)
    match how:
        case "bounds in no order":
            return replace(plan, open=(replace(n, least=65), m))
        case "not declared":
            return replace(plan, open=(n,))
        case "another axis":
            return replace(plan, open=(replace(n, source=(plan.graph.inputs[0], 1)), m))
        case "no int64":
            return replace(counted, open=(replace(k, source=wide),))
        case "used too early":
            return counted.with_steps(reversed(counted.steps))
    raise AssertionError(how)


@pytest.mark.parametrize(
    "how",
    [
        "bounds in no order",
        "not declared",
        "another axis",
        "no int64",
        "used too early",
    ],
)
def test_what_no_call_could_know_is_refused(how: str) -> None:
    for plan in (rows(), positives()):
        verify(plan)
    with pytest.raises(VerifyError) as caught:
        verify(broken(how))
    assert caught.value.code == "TW-PLAN-OPEN"


def test_an_open_plan_is_verified_at_its_sizes() -> None:
    """A row too few is written: at the least size nothing is missing, at three it is."""
    plan = rows()
    a, b = plan.steps
    assert isinstance(b, FusionGroup)
    (c,) = b.computations
    n = plan.open[0].size
    short = replace(c, dims=(replace(c.dims[0], size=n // 2),))
    wrong = plan.with_steps((a, replace(b, computations=(short,))))
    with pytest.raises(VerifyError) as caught:
        verify(wrong)
    assert caught.value.code == "TW-PLAN-RESULT"


def test_sizes_in_numbers_are_checked_too() -> None:
    plan = rows()
    n, m = (e.size for e in plan.open)
    with pytest.raises(InputError, match="m has no value"):
        at(plan, {n: 3})
    with pytest.raises(InputError, match="m is 10"):
        at(plan, {n: 3, m: 10})
