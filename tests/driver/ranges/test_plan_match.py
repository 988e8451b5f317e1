"""An open plan at some sizes equals a plan that differs in names alone, and no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tilewright.base.dtypes import DType, float32, float64
from tilewright.compute.build import map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.driver.ranges.plan_match import PlanMatch
from tilewright.expr.nodes import INDEX, Buffer, Extent, FloorDiv, Select, Var, const
from tilewright.loops.nodes import Kernel, Store, loop
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.open_extents import Resized

N = Var("n", INDEX)
HALF = FloorDiv(N, const(2))
Tensors = dict[str, Buffer]


def tensors(n: Extent, half: Extent, dtype: DType = float32) -> Tensors:
    shapes: dict[str, tuple[Extent, ...]] = {
        "x": (n, 4),
        "w": (n, 4),
        "y": (half, 4),
        "z": (half,),
    }
    return {name: Buffer(name, shape, dtype) for name, shape in shapes.items()}


def group(t: Tensors, n: Extent, half: Extent, **how: Any) -> FusionGroup:
    """y = every second row of x, times a number, and of w, up to the last one; z = its sums.

    how: what is different.
    """
    step, factor, last = (
        how.get(k, d) for k, d in (("step", 2), ("factor", 2.0), ("last", 1))
    )
    guard = half - last if isinstance(half, int) else half - const(last)

    def first(i: Any, j: Any) -> Any:
        inside = t["x"][i * const(step), j] * const(factor, t["x"].dtype)
        return Select(i < guard, inside, t[how.get("other", "w")][i, j])

    made = map_("a", t["y"], first, extents=(half, how.get("columns", 4)))
    summed = reduce_("b", t["z"], (4,), how.get("op", "add"), lambda i, k: t["y"][i, k])
    return FusionGroup("g", (made, summed))


def match(n: int, **known: Any) -> PlanMatch:
    return PlanMatch(Resized({N: n}, known.get("copies", {})))


def same(n: int, other: FusionGroup, given: Tensors) -> bool:
    """Whether the open group equals the other one on these tensors."""
    t = tensors(N, HALF)
    found = match(n)
    ends = all(found.tensor(t[name], given[name]) for name in ("x", "w", "z"))
    return ends and found.group(group(t, N, HALF), other)


@pytest.mark.parametrize("n", [2, 7, 64])
def test_a_plan_of_the_sizes_is_equal(n: int) -> None:
    t = tensors(n, n // 2)
    assert same(n, group(t, n, n // 2), t)


DIFFERENT: dict[str, Callable[[int], tuple[FusionGroup, Tensors]]] = {
    "an extent of a tensor": lambda n: made(n + 1, n // 2, n, n // 2),
    "a dtype": lambda n: made(n, n // 2, n, n // 2, float64),
    "an extent of a dimension": lambda n: made(n, n // 2, n, n // 2 - 1),
    "an extent that is no size": lambda n: made(n, n // 2, n, n // 2, columns=3),
    "a factor of an index": lambda n: made(n, n // 2, n, n // 2, step=1),
    "a number": lambda n: made(n, n // 2, n, n // 2, factor=-2.0),
    "the sign of zero": lambda n: made(n, n // 2, n, n // 2, factor=-0.0),
    "a bound of a condition": lambda n: made(n, n // 2, n, n // 2, last=2),
    "an operator": lambda n: made(n, n // 2, n, n // 2, op="max"),
    "a tensor that is read twice": lambda n: made(n, n // 2, n, n // 2, other="x"),
}


def made(
    rows: int, y: int, n: int, half: int, dtype: DType = float32, **how: Any
) -> tuple[FusionGroup, Tensors]:
    t = tensors(rows, y, dtype)
    return group(t, n, half, **how), t


@pytest.mark.parametrize("what", DIFFERENT)
def test_one_difference_tells(what: str) -> None:
    other, given = DIFFERENT[what](12)
    assert not same(12, other, given)


@pytest.mark.parametrize(
    "change",
    [
        lambda cs: cs[:1],
        lambda cs: cs[::-1],
        lambda cs: (replace(cs[0], tags={"a": 1}), cs[1]),
        lambda cs: (cs[0], replace(cs[1], dims=cs[1].dims[::-1])),
        lambda cs: (cs[0], replace(cs[1], reducer=None)),
        lambda cs: (replace(cs[0], outputs=cs[0].outputs * 2), cs[1]),
    ],
    ids=["fewer", "order", "tags", "dimensions", "reducer", "outputs"],
)
def test_other_computations_tell(
    change: Callable[[tuple[Computation, ...]], tuple[Computation, ...]],
) -> None:
    t = tensors(12, 6)
    whole = group(t, 12, 6)
    assert not same(12, replace(whole, computations=change(whole.computations)), t)


@pytest.mark.parametrize(("n", "holds"), [(6, True), (12, False)])
def test_a_condition_that_always_holds_may_be_missing(n: int, holds: bool) -> None:
    """What a failed attempt has taken for partners is forgotten: others follow."""

    def both(t: Tensors, guarded: bool) -> FusionGroup:
        def first(i: Any, j: Any) -> Any:
            x, w = t["x"][i, j], t["w"][i, j]
            return Select(i < 8, x, w) if guarded else x

        twice = map_("b", t["w"], lambda i, j: t["y"][i, j] * 2.0)
        return FusionGroup("g", (map_("a", t["y"], first), twice))

    mine, other = tensors(N, N), tensors(n, n)
    found = match(n)
    assert found.tensor(mine["x"], other["x"])
    assert found.group(both(mine, True), both(other, False)) == holds
    assert match(n).group(both(mine, True), both(other, True))


def test_what_is_empty_at_some_sizes_is_in_both() -> None:
    """Of two sides of a border, it decides which one another plan has."""

    def bordered(t: Tensors, n: Extent, *sides: Extent) -> FusionGroup:
        made = [map_("a", t["z"], lambda i: t["x"][i, 0], extents=(n,))]
        for side in sides:
            made.append(map_("b", t["z"], lambda i: t["w"][i, 0], extents=(side,)))
        return FusionGroup("g", tuple(made))

    mine, other = tensors(N, HALF), tensors(1, 0)
    assert match(1).group(bordered(mine, N, HALF), bordered(other, 1, 0))
    assert not match(1).group(bordered(mine, N, HALF), bordered(other, 1))
    assert not match(2).group(bordered(mine, N, HALF), bordered(tensors(2, 1), 2, 0))


def test_tensors_of_one_shape_are_not_exchanged() -> None:
    t, given = tensors(N, HALF), tensors(12, 6)
    found = match(12)
    assert found.tensor(t["x"], given["x"])
    assert found.tensor(t["x"], given["x"])
    assert not found.tensor(t["x"], given["w"])
    assert not found.tensor(t["w"], given["x"])
    other = Buffer("w", (12, 4), float32, "stack")
    assert not found.tensor(t["w"], other)


def test_a_constant_is_cut_to_the_shape_of_the_other_plan() -> None:
    whole, part = (Buffer("c", (n, 4), float32) for n in (64, 12))
    assert not match(12).tensor(whole, part)
    assert match(12, copies={whole: part}).tensor(whole, part)


def test_loop_programs_are_compared_statement_by_statement() -> None:
    def program(n: Extent, add: float = 1.0) -> FusionGroup:
        x, y = (Buffer(name, (n,), float32) for name in "xy")
        i = Var("i", INDEX)
        body = loop(i, n, Store(y, (i,), x[i] + add))
        return FusionGroup("k", (), kernel=Kernel("k", (x, y), (y,), body))

    assert match(5).group(program(5), program(5))
    assert not match(5).group(program(5), program(6))
    assert not match(5).group(program(5), program(5, 2.0))
    assert not match(5).group(program(5), replace(program(5), kernel=None))
