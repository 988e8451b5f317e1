"""Sums of products of two sizes' sums: which there are, and which explain numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.base.errors import UnsupportedError
from tilewright.driver.ranges.plan_merger import PlanMerger
from tilewright.driver.ranges.size_forms import AffineForm
from tilewright.driver.ranges.size_products import (
    SizeProduct,
    SizeSum,
    are_told,
    known_products,
    times_each,
)
from tilewright.driver.ranges.size_terms import Basis, Extents, SizeTerm
from tilewright.expr.nodes import INDEX, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute

TERMS = {n: (SizeTerm(n), SizeTerm(n, 2, 1), SizeTerm(n, 4, 3)) for n in "hw"}
START = {"h": 20, "w": 33}
ALONE = [{**START, n: START[n] + k} for n in "hw" for k in (-9, -1, -2)]
BOTH: list[Extents] = [{"h": 20 - n, "w": 33 - n} for n in (1, 2, 5)]
POINTS: list[Extents] = [START, *ALONE, *BOTH, {"h": 64, "w": 77}]
BASIS = Basis.of(POINTS, TERMS)


def half(n: int) -> int:
    return (n + 1) // 2


def quarter(n: int) -> int:
    return (n + 3) // 4


def boxes(h: int, w: int) -> int:
    return 3 * half(h) * half(w) + 5 * quarter(h) * quarter(w) + h + 7


MAPS = [
    [(1, half(p["h"]), half(p["w"]), 8) for p in POINTS],
    [(quarter(p["w"]) - 1, 8, 2 * quarter(p["h"])) for p in POINTS],
    [(p["h"], half(p["h"])) for p in POINTS],  # both of one size
    [(p["h"] * p["w"], half(p["w"])) for p in POINTS],  # one of two sizes
    [(p["h"] + p["w"], half(p["w"])) for p in POINTS],  # a sum of two sizes
    [(min(p["h"], 20), p["w"]) for p in POINTS],  # no sum of terms at the last point
    [(p["h"],) if p["h"] > 20 else (p["h"], p["w"]) for p in POINTS],
]
PRODUCTS = known_products(BASIS, MAPS)


def test_products_are_those_of_two_extents_of_one_size_each() -> None:
    names = {(p.one[0][0].divisor, p.other[0][0].divisor) for p in PRODUCTS}
    assert names == {(2, 2), (4, 4)}
    for product, (one, other) in PRODUCTS.items():
        for point in POINTS:
            h, w = one.at(point), other.at(point)
            change = (h - one.at(START)) * (w - other.at(START))
            assert product.change(START, point) == change
    # A factor of both sizes' changes is left out, and a constant with it.
    _, (one, other) = PRODUCTS.values()
    assert (one.constant, other.constant) == (0, -1)


def test_numbers_are_explained_or_not() -> None:
    first, second = products = list(PRODUCTS)
    rest = [3 * first.change(START, p) - second.change(START, p) for p in POINTS]
    assert times_each(products, POINTS, rest) == {first: 3, second: -1}
    assert times_each([first], POINTS, rest) is None
    even = [p for p in POINTS if first.change(START, p) % 2 == 0]
    half_of = [first.change(START, p) // 2 for p in even]
    assert any(half_of)
    assert times_each([first], even, half_of) is None
    assert times_each(products, POINTS, [0] * len(POINTS)) == {}
    # Of two that are equal at the points, one explains what both could.
    assert times_each([first, first], POINTS, rest) is None
    alike = [first.change(START, p) for p in POINTS]
    assert sum((times_each([first, first], POINTS, alike) or {}).values()) == 1


def test_a_number_of_the_open_plan_is_a_sum_of_products() -> None:
    sizes = {n: Var(n, INDEX) for n in "hw"}
    merger = PlanMerger(BASIS, sizes, PRODUCTS)
    made = merger._count(tuple(boxes(**p) for p in POINTS))
    for h, w in ((20, 33), (1, 1), (57, 14), (200, 311)):
        values = {sizes["h"]: const(h, INDEX), sizes["w"]: const(w, INDEX)}
        assert simplify(substitute(made, values), {}) is const(boxes(h, w), INDEX)
    without = PlanMerger(BASIS, sizes)
    with pytest.raises(UnsupportedError, match="not a sum of products of two sizes"):
        without._count(tuple(boxes(**p) for p in POINTS))
    squares = tuple(p["h"] ** 2 * p["w"] for p in POINTS)
    with pytest.raises(UnsupportedError, match=r"of sizes|of two sizes"):
        merger._count(squares)


def test_a_shape_has_products_of_its_own_and_known_ones() -> None:
    def shape(p: Extents) -> np.ndarray:  # type: ignore[type-arg]
        return np.array([2, boxes(**p), 6 * p["h"] * quarter(p["w"])])

    found = [shape(p) for p in POINTS]
    assert AffineForm.through(BASIS, found) is None
    form = AffineForm.through(BASIS, found, [*PRODUCTS])
    assert form is not None
    for h, w in ((20, 33), (3, 5), (200, 311)):
        assert form.at({"h": h, "w": w}).tolist() == shape({"h": h, "w": w}).tolist()
    again = AffineForm.through(BASIS, found, [*reversed(PRODUCTS)])
    assert again is not None
    assert again.key == form.key
    other = AffineForm.through(BASIS, [a + a for a in found], [*PRODUCTS])
    assert other is not None
    assert other.key != form.key


def test_equal_slopes_are_one_product() -> None:
    h, w = SizeTerm("h", 2), SizeTerm("w")
    assert SizeProduct.of({h: 4}, {w: -6}) == SizeProduct.of({w: 1}, {h: 2})
    assert SizeProduct.of({h: 4}, {w: -6}) != SizeProduct.of({SizeTerm("h"): 1}, {w: 1})


def test_a_sum_is_told_from_a_product_where_both_have_changed() -> None:
    h, w = SizeTerm("h"), SizeTerm("w", 6, 2)
    start, high, wide = {"h": 20, "w": 20}, {"h": 25, "w": 21}, {"h": 20, "w": 22}
    both = SizeSum({h: 1, w: 2}, 0)
    assert not both.is_told_from_products([start, high, wide])  # w is as it was at 21
    assert both.is_told_from_products([start, high, {"h": 25, "w": 22}])
    one = SizeSum({h: 1, SizeTerm("h", 2): 1}, 0)
    assert one.is_told_from_products([start])  # there are no products of one size


def test_terms_that_cancel_do_not_tell() -> None:
    """h - h // 4 is 18 at 24 and at 23, although both terms have changed."""
    quarter = SizeTerm("h", 4)
    form = SizeSum({SizeTerm("h"): 1, quarter: -1, SizeTerm("w"): 2}, 0)
    start, near, far = ({"h": h, "w": w} for h, w in ((24, 9), (23, 8), (20, 8)))
    assert not form.is_told_from_products([start, near])
    assert form.is_told_from_products([start, far])


def test_points_decide_between_products() -> None:
    h, w = {SizeTerm("h"): 1}, {SizeTerm("w"): 1}
    half = {SizeTerm("h", 2): 1}
    products = [SizeProduct.of(h, w), SizeProduct.of(half, w)]
    start, one, more = ({"h": n, "w": m} for n, m in ((8, 5), (10, 6), (11, 7)))
    assert not are_told(products, [start, one])  # 2 and 1 at the only other point
    assert are_told(products, [start, one, more])
    assert are_told(products[:1], [start, one])
    both = SizeProduct.of({**h, **half}, w)  # of what the others are, at all points
    assert are_told([*products, both], [start, one, more])


def test_a_number_of_which_points_do_not_decide_the_products_is_refused() -> None:
    points = [START, *ALONE, {"h": START["h"] + 4, "w": START["w"] + 4}]
    basis = Basis.of(points, TERMS)
    h, half, w = SizeTerm("h"), SizeTerm("h", 2, 1), SizeTerm("w")
    factors = {
        SizeProduct.of({t: 1}, {w: 1}): (SizeSum({t: 1}, 0), SizeSum({w: 1}, 0))
        for t in (h, half)
    }
    sizes = {n: Var(n, INDEX) for n in "hw"}
    numbers = tuple(t.at(p) * w.at(p) + p["h"] for t in (half,) for p in points)
    more = [*points, {"h": START["h"] + 9, "w": START["w"] + 7}]
    merger = PlanMerger(basis, sizes, factors)
    with pytest.raises(UnsupportedError, match="not a sum of products of two sizes"):
        merger._count(numbers)
    merger = PlanMerger(Basis.of(more, TERMS), sizes, factors)
    merger._count(tuple(half.at(p) * w.at(p) + p["h"] for p in more))


def test_a_number_that_may_be_a_product_is_refused() -> None:
    points = [START, *ALONE]
    sizes = {n: Var(n, INDEX) for n in "hw"}
    merger = PlanMerger(Basis.of(points, TERMS), sizes)
    with pytest.raises(UnsupportedError, match=r"53 at h = 20, w = 33 .* may be a sum"):
        merger._count(tuple(p["h"] + p["w"] for p in points))
