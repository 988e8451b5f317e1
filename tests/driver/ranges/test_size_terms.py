"""Sums of floors of sizes: found in the shapes of a graph, and told by their values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

from tests.driver.ranges.test_ranged import HEAD
from tilewright.base.errors import UnsupportedError
from tilewright.driver.options import Options
from tilewright.driver.ranges.between import KNOWN, Between
from tilewright.driver.ranges.size_terms import (
    Basis,
    SizeTerm,
    every_floor,
    points_of,
    terms_of,
)
from tilewright.driver.sources import import_model
from tilewright.graph.specialize import typing_at

POOL = "MaxPool<kernel_shape = [2], strides = [2]>"


def graph_of(text: str) -> Any:
    return import_model(onnx.parser.parse_model(HEAD + text), (), Options.of({}))


def found(
    body: str, start: int = 50, ends: tuple[int, int] = (9, 90), far: int = 30
) -> set[SizeTerm]:
    graph = graph_of(f"(float[1, 1, h] x) => (float[1, 1, k] y) {{ {body} }}")
    terms = terms_of(lambda e: typing_at(graph, e), {"h": start}, "h", ends, far)
    assert terms[0] == SizeTerm("h")
    return set(terms[1:])


def test_floors_of_windows_are_found() -> None:
    assert found("y = Relu(x)") == set()
    assert found(f"y = {POOL}(x)") == {SizeTerm("h", 2)}
    assert found(f"p = {POOL}(x) y = {POOL}(p)") == {SizeTerm("h", 2), SizeTerm("h", 4)}
    three = "MaxPool<kernel_shape = [3], strides = [3], pads = [1, 1]>"
    assert found(f"y = {three}(x)") == {SizeTerm("h", 3, 2)}
    # 3 (h // 2) // 2: of period 4, and not one floor.
    up = "s = Constant<value_floats = [1.0, 1.0, 3.0]>()"
    up += ' u = Resize<mode = "nearest">(p, , s)'
    many = found(f"p = {POOL}(x) {up} y = {POOL}(u)")
    assert {t.divisor for t in many} == {2, 4}


def test_a_long_period_is_looked_for_and_a_square_is_none() -> None:
    far = "y = MaxPool<kernel_shape = [32], strides = [32]>(x)"
    assert found(far, 120, (40, 300), 70) == {SizeTerm("h", 32)}
    longest = far.replace("32", "64")
    assert found(longest, 200, (100, 300), 130) == {SizeTerm("h", 64)}
    assert found(far.replace("32", "65"), 200, (100, 300), 130) == set()
    assert found("s = Shape(x) y = Tile(x, s)") == set()


def test_a_graph_without_types_at_some_sizes_has_the_floors_before() -> None:
    """From 61 on, and at none below 47, the sums are of different extents."""
    text = (
        "s = Shape<start = 2>(x) l = Constant<value_ints = [60]>() z = Constant<value_ints"
        f" = [0]>() t = Constant<value_ints = [2]>() m = Min(s, l) p = {POOL}(x)"
        " c = Slice(x, z, m, t) y = Add(c, x)"
    )
    assert found(text, 50, (9, 55)) == {SizeTerm("h", 2)}
    assert found(text, 58, (9, 90)) == set()


TERMS = {
    "h": (SizeTerm("h"), SizeTerm("h", 2, 1), SizeTerm("h", 4, 3)),
    "w": (SizeTerm("w"),),
}


def basis() -> Basis:
    start = {"h": 20, "w": 9}
    points = [start]
    for name, terms in TERMS.items():
        points += points_of(start, terms, [11, 19, 21, 18, 22, 17, 23])
    return Basis.of([*points, {"h": 40, "w": 30}], TERMS)


def test_factors_of_terms_are_told_by_values() -> None:
    told = basis()
    assert len(told.points) == 1 + 3 + 1 + 1
    values = [
        3 * ((p["h"] + 1) // 2) - (p["h"] + 3) // 4 + 2 * p["w"] - 7
        for p in told.points
    ]
    wanted = {SizeTerm("h", 2, 1): 3, SizeTerm("h", 4, 3): -1, SizeTerm("w"): 2}
    assert told.factors(values) == wanted
    assert told.factors([5] * 6) == {}
    arrays = [
        np.array([v, p["h"], 4]) for v, p in zip(values, told.points, strict=True)
    ]
    whole = told.factors(arrays)
    assert whole is not None
    assert {t: a.tolist() for t, a in whole.items()} == {
        SizeTerm("h"): [0, 1, 0],
        **{t: [c, 0, 0] for t, c in wanted.items()},
    }


def test_what_is_no_sum_of_the_terms_has_no_whole_factors() -> None:
    told = basis()
    assert told.factors([p["w"] // 2 for p in told.points]) is None
    halves = told.factors([np.float64(p["w"] / 2) for p in told.points])
    assert halves == {SizeTerm("w"): 0.5}


def test_terms_that_points_do_not_tell_apart_are_left_out() -> None:
    even = [{"h": n} for n in (20, 10, 16, 18)]
    told = Basis.of(even, {"h": (SizeTerm("h"), SizeTerm("h", 2), SizeTerm("h", 2, 1))})
    assert told.factors([p["h"] for p in even]) == {SizeTerm("h"): 1}
    assert told.factors([p["h"] // 2 for p in even]) is None


def test_every_function_of_a_period_is_a_sum_of_its_floors() -> None:
    terms = every_floor((SizeTerm("h"), SizeTerm("h", 2), SizeTerm("h", 3, 1)), 12)
    assert {t.divisor for t in terms} == {1, 6}
    start = {"h": 30}
    points = [start, *points_of(start, terms, range(18, 43))]
    told = Basis.of([*points, {"h": 43}, {"h": 17}], {"h": terms})

    def odd(n: int) -> int:
        return max(0, 3 * (n // 6) - n // 2 + 1) + (n % 3) * 2

    factors = told.factors([odd(p["h"]) for p in told.points])
    assert factors is not None

    def through(n: int) -> int:
        changes = (c * (t.at({"h": n}) - t.at(start)) for t, c in factors.items())
        return odd(30) + int(sum(changes))

    assert all(through(n) == odd(n) for n in range(100))
    assert every_floor((SizeTerm("h"), SizeTerm("h", 16)), 12) == (
        SizeTerm("h"),
        SizeTerm("h", 16),
    )
    assert every_floor((SizeTerm("h"),), 12) == (SizeTerm("h"),)


# ------------------------------------------------------------- between the sizes that are planned


def odd(text: str, start: dict[str, int], **most: int) -> list[dict[str, int]]:
    """The sizes that are odd, of ranges from 8 on."""
    graph = graph_of(text)
    allowed = {name: range(8, n + 1) for name, n in most.items()}
    terms = {
        n: terms_of(lambda e: typing_at(graph, e), start, n, (8, m), 11)
        for n, m in most.items()
    }
    points = [start]
    for n, known in terms.items():
        near = sorted(allowed[n], key=lambda v: abs(v - start[n]))
        points += points_of(start, known, [allowed[n][3], *near])
    points.append(most)
    typings = [typing_at(graph, p, fold_elements=KNOWN) for p in points]
    between = Between(graph, allowed, points, typings, terms=terms)
    return list(between.odd())


def test_nested_floors_are_the_same_at_all_sizes() -> None:
    text = f"(float[1, 1, h] x) => (float[1, 1, k] y) {{ p = {POOL}(x) y = {POOL}(p) }}"
    assert odd(text, {"h": 200}, h=400) == []


EXCEPT = (
    "(float[h] x) => (float[k] y) { s = Shape(x) z = Constant<value_ints = [0]>()"
    " t = Constant<value_ints = [2]>() o = Constant<value_ints = [%d]>()"
    " n = Div(s, t) m = Constant<value_ints = [1]>() l = Sub(n, m)"
    " c = Equal(s, o) e = Where(c, l, n) y = Slice(x, z, e, z) }"
)


@pytest.mark.sampled(3)  # at the first size and at the last
@pytest.mark.parametrize("at", [8, 131, 277, 399])
def test_a_floor_that_one_size_does_not_have_is_found(at: int) -> None:
    assert {"h": at} in odd(EXCEPT % at, {"h": 200}, h=400)
    assert all(e == {"h": at} for e in odd(EXCEPT % at, {"h": 200}, h=400))


def test_of_a_floor_of_a_long_period_the_node_is_named() -> None:
    text = (
        "(float[1, 1, h] x) => (float[1, 1, k] y) {"
        " y = MaxPool<kernel_shape = [1], strides = [150]>(x) }"
    )
    with pytest.raises(UnsupportedError, match=r"MaxPool -> y.*cannot decide"):
        odd(text, {"h": 200}, h=400)


def test_a_guess_through_even_sizes_is_wrong_at_odd_ones() -> None:
    """Halved and doubled, an even extent is itself."""
    text = (
        "(float[1, 1, h] x) => (float[1, 1, k] y) { s = Constant<value_floats = [1.0, 1.0,"
        f' 2.0]>() p = {POOL}(x) y = Resize<mode = "nearest">(p, , s) }}'
    )
    graph = graph_of(text)
    points = [{"h": 200}, {"h": 30}, {"h": 400}]
    typings = [typing_at(graph, p, fold_elements=KNOWN) for p in points]
    terms = {"h": (SizeTerm("h"), SizeTerm("h", 2))}
    between = Between(graph, {"h": range(8, 401)}, points, typings, terms=terms)
    with pytest.raises(UnsupportedError, match="is not an affine function"):
        list(between.odd())  # (h // 2): even points do not tell it from h
    points = [{"h": 200}, {"h": 30}, {"h": 199}, {"h": 400}]
    typings = [typing_at(graph, p, fold_elements=KNOWN) for p in points]
    between = Between(graph, {"h": range(8, 401)}, points, typings, terms=terms)
    assert list(between.odd()) == []


JOINED = (
    "(float[1, 1, h] x, float[1, 1, w] z) => (float[1, 1, k] y) {"
    f" c = Concat<axis = 2>(x, z) y = {POOL}(c) }}"
)


def test_a_floor_of_a_sum_of_two_sizes_is_no_sum_of_their_floors() -> None:
    """Along each size alone it is."""
    found = odd(JOINED, {"h": 20, "w": 21}, h=30, w=31)
    assert found != []
    assert all({"h", "w"} == e.keys() for e in found)


def test_windows_are_looked_at_along_each_axis_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = (
        "(float[1, 1, h, w] x) => (float[1, 1, k, l] y) {"
        " y = MaxPool<kernel_shape = [2, 3], strides = [2, 3]>(x) }"
    )
    monkeypatch.setattr("tilewright.driver.ranges.between.WORKED", 700)
    assert odd(text, {"h": 200, "w": 150}, h=400, w=300) == []
    large = text.replace("kernel_shape = [2, 3]", "kernel_shape = [11, 3]")
    found = odd(large, {"h": 200, "w": 150}, h=400, w=300)
    assert found == [{"h": n} for n in (8, 9, 10)]  # no window has room
    long = text.replace("strides = [2, 3]", "strides = [2, 150]")
    with pytest.raises(UnsupportedError, match="cannot decide"):
        odd(long, {"h": 200, "w": 200}, h=300, w=400)
