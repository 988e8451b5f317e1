"""What the merger of plans guesses, and what it refuses: small Computations of several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tilewright.base.dtypes import float32, float64, int32
from tilewright.base.errors import UnsupportedError
from tilewright.compute.build import cast, map_
from tilewright.driver.ranges.plan_merger import PlanMerger
from tilewright.driver.ranges.size_terms import Basis, SizeTerm
from tilewright.expr.nodes import INDEX, And, Buffer, Expr, Select, Var, const
from tilewright.loops.nodes import Kernel, Store, block, loop
from tilewright.plan.nodes import FusionGroup

SIZES = (8, 10, 13, 7, 9)
Made = Callable[[Buffer, Any, int], Expr]

OTHER = {n: Buffer("w", (n + 4,), float32) for n in SIZES}


def merger(*terms: SizeTerm) -> PlanMerger:
    basis = Basis.of([{"n": n} for n in SIZES], {"n": (SizeTerm("n"), *terms)})
    return PlanMerger(basis, {"n": Var("n", INDEX)})


def merged(value: Made, *terms: SizeTerm) -> str:
    """The value of a map over n numbers of x, which has n + 4, for any n; terms: besides n."""
    xs = tuple(Buffer("x", (n + 4,), float32) for n in SIZES)
    ys = tuple(Buffer("y", (n,), float32) for n in SIZES)
    made = merger(*terms)
    for place in (xs, ys, tuple(OTHER.values())):
        made.buffer(place)
    steps = tuple(
        FusionGroup("g", (map_("a", y, lambda i, x=x, n=n: value(x, i, n)),))
        for x, y, n in zip(xs, ys, SIZES, strict=True)
    )
    (c,) = made.step(steps).computations
    return str(c.outputs[0].value)


def at(sizes: set[int], there: Made, elsewhere: Made) -> Made:
    """Another value at some of the sizes."""
    return lambda x, i, n: (there if n in sizes else elsewhere)(x, i, n)


def guarded(value: float = 0.0, *, from_one: bool = False) -> Made:
    """x[i + 4] before n, else a value; from_one: with a second condition."""

    def made(x: Buffer, i: Any, n: int) -> Expr:
        before = i + 4 < n
        condition = And(before, const(1) <= i) if from_one else before
        return Select(condition, x[i + 4], const(value, float32))

    return made


def shifted(x: Buffer, i: Any, n: int) -> Expr:
    """It exceeds the end for 13 only."""
    return x[i + (n - 6)]


def before_end(value: float = 0.0, *, both: bool = False) -> Made:
    def made(x: Buffer, i: Any, n: int) -> Expr:
        inside = i + (n - 6) < n + 4
        condition = And(const(0) <= i + (n - 6), inside) if both else inside
        return Select(condition, shifted(x, i, n), const(value, float32))

    return made


def after_begin(x: Buffer, i: Any, n: int) -> Expr:
    inside = const(0) <= i + (n - 6)
    return Select(inside, shifted(x, i, n), const(0.0, float32))


def few_first(x: Buffer, i: Any, n: int) -> Expr:
    return Select(i < 3, shifted(x, i, n), const(0.0, float32))


def one(x: Buffer, i: Any, n: int) -> Expr:
    return x[i]


MOST, FEW = {8, 10, 13}, {8, 10}
MERGED: dict[str, tuple[Made, str]] = {
    "the end": (lambda x, i, n: x[n - 1 - i], "x[n - 1 - i]"),
    "a mean's divisor": (lambda x, i, n: x[i] * float(n), "x[i] * f32(n)"),
    "an integer": (
        lambda x, i, n: x[i] + cast(const(n, int32), float32),
        "x[i] + f32(i32(n))",
    ),
    "a fraction": (lambda x, i, n: x[i] * 2.5, "x[i] * 2.5"),
    "a sum whose number is 0 once": (lambda x, i, n: x[i + n - 8], "x[i + n - 8]"),
    "a guard where windows exceed an end": (
        at({8, 10, 13, 7}, guarded(), lambda x, i, n: x[i + 4]),
        "select(i + 4 < n, x[i + 4], 0.0)",
    ),
    "a guard at one size": (
        at({13}, before_end(), shifted),
        "select((6 <= i + n) & (i + n < n + 10), x[i + (n - 6)], 0.0)",
    ),
    "a guard more at one size": (
        at({13}, before_end(both=True), after_begin),
        "select((6 <= i + n) & (i + n < n + 10), x[i + (n - 6)], 0.0)",
    ),
    "one of two indices": (
        at(MOST, lambda x, i, n: x[i * 2], lambda x, i, n: x[i + 1]),
        "x[i * 2]",
    ),
    "another guard stays": (
        at(MOST, lambda x, i, n: Select(i < 3, x[i], const(0.0, float32)), one),
        "select(i < 3, x[i], 0.0)",
    ),
    "a term that most plans have": (
        at(MOST, lambda x, i, n: x[i] + x[i + n], one),
        "x[i] + x[i + n]",
    ),
    "the same number in most": (
        at(MOST, lambda x, i, n: x[i] + x[i + 2], one),
        "x[i] + x[i + 2]",
    ),
    "a fraction in most": (at(MOST, lambda x, i, n: x[i] + 2.5, one), "x[i] + 2.5"),
    "a factor in most": (at(MOST, lambda x, i, n: x[i * 2], one), "x[i * 2]"),
    "one of two forms": (
        at(MOST, lambda x, i, n: x[i] + x[i + 1], lambda x, i, n: x[i] * x[i + 1]),
        "x[i] + x[i + 1]",
    ),
}
REFUSED: dict[str, tuple[Made, str]] = {
    "a fraction that differs": (
        lambda x, i, n: x[i] * (0.5 / n),
        "constant 0.0625 depends",
    ),
    "fractions of two kinds": (
        at(MOST, lambda x, i, n: x[i] * 2.5, lambda x, i, n: x[i] * 3.5),
        "constant 2.5 depends",
    ),
    "a fraction at some sizes": (
        at(MOST, lambda x, i, n: x[i] * 2.0, lambda x, i, n: x[i] * 2.5),
        "constant 2.0 depends",
    ),
    "a variable of no loop": (
        lambda x, i, n: x[Var("k", INDEX)],
        "the variable k",
    ),
    "a square": (
        lambda x, i, n: x[i] * float(n * n),
        "is not a sum of products of two sizes",
    ),
    "a half": (lambda x, i, n: x[i] * float(n // 2), "is not a sum of sizes"),
    "no law": (
        lambda x, i, n: x[i + {8: 1, 10: 4, 13: 2, 7: 3, 9: 3}[n]],
        "is not a sum",
    ),
    "a term that few plans have": (
        at(FEW, lambda x, i, n: x[i] + x[i + n], one),
        "that 2 plans have depends",
    ),
    "a number that few plans have": (
        at(FEW, lambda x, i, n: x[i] + x[i + 2], one),
        "that 2 plans have depends",
    ),
    "numbers without a law": (
        at(MOST, lambda x, i, n: x[i] + x[i + {8: 1, 10: 2, 13: 4}[n]], one),
        "is not an extent and a number",
    ),
    "what is outside differs": (
        at(MOST, guarded(), guarded(1.0, from_one=True)),
        "depends on a size",
    ),
    "what is outside an end differs": (
        at({13}, before_end(), at({10}, before_end(1.0), shifted)),
        "depends on a size",
    ),
    "a guard of another kind at one size": (
        at({13}, before_end(), at({10}, few_first, shifted)),
        "that 1 plan have depends",
    ),
    "another tensor": (
        at(MOST, one, lambda x, i, n: OTHER[n][i]),
        "a tensor depends",
    ),
    "a tensor that most plans have": (
        at(MOST, lambda x, i, n: x[i] + Buffer("z", (n,), float32)[i], one),
        "a tensor depends",
    ),
    "types": (
        at(
            MOST,
            lambda x, i, n: cast(cast(x[i], float64) + 1.0, float32),
            lambda x, i, n: cast(cast(x[i], int32) + 1, float32),
        ),
        "a type depends",
    ),
}


@pytest.mark.parametrize("name", MERGED)
def test_what_differs_by_numbers_is_merged(name: str) -> None:
    value, text = MERGED[name]
    assert merged(value) == text


@pytest.mark.parametrize("name", REFUSED)
def test_what_differs_by_more_is_refused(name: str) -> None:
    value, why = REFUSED[name]
    with pytest.raises(UnsupportedError, match=f"step g: .*{why}"):
        merged(value)


def test_a_number_may_be_0_at_all_sizes_but_one() -> None:
    """Few plans have it, and still the terms are those of a sum."""
    found = merged(lambda x, i, n: x[i + (n // 8 - 1)], SizeTerm("n", 8))
    assert found == "x[i + n // 8 - 1]"


def test_a_number_may_be_a_product_of_sizes() -> None:
    sizes = [{"h": h, "w": w} for h, w in ((4, 6), (5, 6), (4, 8), (7, 9), (6, 7))]
    basis = Basis.of(sizes, {n: (SizeTerm(n),) for n in "hw"})
    made = PlanMerger(basis, {n: Var(n, INDEX) for n in "hw"})
    x, y = (Buffer(n, (3,), float32) for n in "xy")
    for b in (x, y):
        made.buffer((b,) * len(sizes))
    steps = tuple(
        FusionGroup(
            "g", (map_("a", y, lambda i, n=n: x[i] / float(2 * n["h"] * n["w"])),)
        )
        for n in sizes
    )
    (c,) = made.step(steps).computations
    assert str(c.outputs[0].value) == "x[i] / f32(h * w * 2)"


def test_loops_that_change_places_are_refused() -> None:
    def transposed(n: int) -> FusionGroup:
        x, y = Buffer("x", (n, n), float32), Buffer("y", (n, n), float32)
        value = map_("a", y, lambda i, j: x[j, i] if n > 8 else x[i, j])
        return FusionGroup("g", (value,))

    with pytest.raises(UnsupportedError, match=r"step g: .*the variable"):
        merger().step(tuple(map(transposed, SIZES)))


def kernel(n: int) -> Kernel:
    """With a second store from size 10 on."""
    x, y, i = Buffer("x", (n,), float32), Buffer("y", (n,), float32), Var("i", INDEX)
    first = Store(y, (i,), x[i])
    body = first if n < 10 else block(first, Store(y, (i,), x[i] + 1.0))
    return Kernel("k", (x, y), (y,), loop(i, n, body))


def test_given_kernels_with_other_statements_are_refused() -> None:
    steps = tuple(FusionGroup("g", (), kernel=kernel(n)) for n in SIZES)
    with pytest.raises(UnsupportedError, match=r"step g: .*an expression depends"):
        merger().step(steps)


def test_a_step_on_the_host_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"step g: .*not a kernel on the host"):
        merger().step((FusionGroup("g", (), kernel=kernel(8)), object()))
