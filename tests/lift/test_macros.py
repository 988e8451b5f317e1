"""Macro rules of the papers: what they make and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from tilewright import lift
from tilewright.lang.lift import (
    At,
    Map,
    Reduce,
    Slide,
    Slide2D,
    Transpose,
    Zip,
    add,
    f32,
    fun,
    i64,
    mul,
    sub,
)
from tilewright.lang.lift import max as maximum
from tilewright.lift.derive import derive
from tilewright.lift.macros import (
    finish_tiling,
    partial_reduce,
    reuse,
    tile_map_map,
    tile_stencil,
    tile_stencil_2d,
)
from tilewright.lift.rule import RuleError
from tilewright.lift.rules import RULES
from tilewright.lift.strategies import once, run, top_down

Fun = Callable[..., Any]


def product(m: int, n: int, k: int, op: Any = add, start: Any = 0) -> Any:
    """Rows of A against columns of B, combined by `op`."""

    def dot(a: Any, b: Any) -> Any:
        return Zip(a, b) | Map(mul) | Reduce(op, start) | At(0)

    columns = lambda a, B: B | Transpose | Map(lambda b: dot(a, b))  # noqa: E731
    return fun(lambda A, B: A | Map(lambda a: columns(a, B)), i64[m, k], i64[k, n])


def _same(before: Any, after: Any, rng: Random) -> None:
    numbers = np.random.default_rng(rng.randrange(2**32))
    arrays = [
        numbers.integers(-9, 10, tuple(map(int, map(str, _lengths(p.type)))))
        for p in before.params
    ]
    expected, found = (lift.interpret(p, *arrays)[0] for p in (before, after))
    np.testing.assert_array_equal(found, expected)


def _lengths(t: Any) -> list[Any]:
    return [t.length, *_lengths(t.item)] if hasattr(t, "length") else []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_they_change_no_value(seed: int) -> None:
    rng = Random(seed)
    m, n, k = (rng.choice((4, 6, 12)) for _ in range(3))
    rows, columns, steps = (rng.choice((1, 2)) for _ in range(3))
    program = product(m, n, k)
    for macros in (
        [reuse(columns)],
        [tile_map_map(rows, columns), finish_tiling(steps)],
    ):
        d = derive(program, RULES)
        for macro in macros:
            d = run(top_down(macro), d)
        _same(program, d.program, rng)


def test_reuse_takes_pieces_of_the_inner_array_outside() -> None:
    d = run(top_down(reuse(3)), derive(product(8, 6, 4), RULES))
    assert [s.rule for s in d.steps] == ["split-join", "map-fission", "interchange"]
    text = lift.show(d.program)
    assert text.index("Split(3)") < text.index("A | Map") < text.index("Reduce")


def test_a_tile_in_all_three_dimensions_as_code() -> None:
    dot = lambda a, b: Zip(a, b) | Map(mul) | Reduce(add, 0.0) | At(0)  # noqa: E731
    program = fun(
        lambda A, B: A | Map(lambda a: B | Map(lambda b: dot(a, b))),
        f32[8, 12],
        f32[6, 12],
    )
    d = run(top_down(tile_map_map(4, 3)), derive(program, RULES))
    d = run(top_down(finish_tiling(4)), d)
    assert d.steps[-1].rule == "reduce-split"
    rng = np.random.default_rng(0)
    A, B = rng.random((8, 12), np.float32), rng.random((6, 12), np.float32)
    C = np.empty((8, 6), np.float32)
    lift.build(d.program)(A, B, C)
    np.testing.assert_allclose(C, A @ B.T, rtol=1e-5)


SQUARE = fun(lambda A: A | Map(lambda a: a | Map(lambda x: x * 2)), i64[4, 6])


@pytest.mark.parametrize(
    ("program", "macro"),
    [
        (product(8, 6, 4), reuse(4)),  # 4 does not divide 6
        (SQUARE, reuse(2)),  # the inner array is an element of the outer one
        (product(8, 6, 4), finish_tiling(3)),  # 3 does not divide 4
        (product(8, 6, 4, sub), finish_tiling(2)),  # not associative
        (product(8, 6, 4, maximum, 0), finish_tiling(2)),  # 0 is not neutral for max
        (SQUARE, finish_tiling(2)),  # no reduction
    ],
)
def test_a_condition_that_fails_is_a_refusal(program: Any, macro: Any) -> None:
    with pytest.raises(RuleError, match="applies nowhere"):
        run(top_down(macro), derive(program, RULES))


def test_a_partial_reduction_of_elements_far_apart() -> None:
    """The first steps of the dot product of Steuwer et al., CGO 2017."""
    program = fun(lambda x: x | Reduce(add, 0), i64[24])
    d = run(once(partial_reduce(6, 4)), derive(program, RULES))
    text = "x | Gather('stride', 4) | PartRed(add, 0, 6) | Reduce(add, 0)"
    assert text in lift.show(d.program)
    _same(program, d.program, Random(1))
    for wrong in (
        fun(lambda x: x | Reduce(sub, 0), i64[24]),  # not associative
        fun(lambda x: x | Reduce(add, 1), i64[24]),  # 1 is not neutral
        fun(lambda x: x | Reduce(add, 0), i64[20]),  # 6 does not divide 20
    ):
        with pytest.raises(RuleError, match="applies nowhere"):
            run(once(partial_reduce(6, 4)), derive(wrong, RULES))


def test_stencils_in_tiles_that_overlap() -> None:
    row = fun(
        lambda x: x | Slide(3, 1) | Map(lambda w: w | Reduce(add, 0) | At(0)), i64[18]
    )
    d = run(once(tile_stencil(6, 4)), derive(row, RULES))
    assert "Slide(6, 4)" in lift.show(d.program)
    _same(row, d.program, Random(2))
    image = fun(lambda x: x | Slide2D(3, 1), i64[10, 14])
    d = run(once(tile_stencil_2d(6, 4)), derive(image, RULES))
    assert lift.show(d.program).count("Slide(6, 4)") == 2
    _same(image, d.program, Random(3))
    with pytest.raises(RuleError, match="applies nowhere"):
        run(once(tile_stencil(6, 3)), derive(row, RULES))  # tiles overlap too far
