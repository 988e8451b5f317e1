"""The matrices of minimal filtering: a convolution on rationals, and their cost."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from tilewright.compute.toom_cook import Matrix, filtering

FORMS = pytest.mark.parametrize(("tile", "stride"), [(2, 1), (4, 1), (2, 2)])


def unit(size: int, at: tuple[int, ...]) -> list[list[Fraction]]:
    return [[Fraction(int((i, j) == at)) for j in range(size)] for i in range(size)]


def rational(c: Fraction) -> Fraction:
    return c


def dense(m: Matrix) -> np.ndarray:
    return np.array([[float(c) for c in row] for row in m.rows])


@FORMS
def test_it_is_a_convolution_on_every_pair_of_units(tile: int, stride: int) -> None:
    """Both sides are bilinear, so that equality on a basis is equality on all rationals."""
    f = filtering(tile, 3, stride)
    for d, g in itertools.product(range(f.size), range(f.window)):
        left = f.filters.apply(
            [Fraction(int(i == g)) for i in range(f.window)], rational
        )
        right = f.inputs.apply([Fraction(int(i == d)) for i in range(f.size)], rational)
        got = f.results.apply(
            [a * b for a, b in zip(left, right, strict=True)], rational
        )
        assert got == [int(stride * i == d - g) for i in range(tile)]


@FORMS
def test_a_square_is_transformed_along_both_axes(tile: int, stride: int) -> None:
    f = filtering(tile, 3, stride)
    for m, size in ((f.inputs, f.size), (f.filters, f.window), (f.results, f.size)):
        for at in itertools.product(range(size), repeat=2):
            got = np.array(m.square(unit(size, at), rational), float)
            column = dense(m)
            np.testing.assert_allclose(
                got, np.outer(column[:, at[0]], column[:, at[1]])
            )


def test_two_results_need_the_well_known_matrices() -> None:
    f = filtering(2)
    assert dense(f.inputs).tolist() == [
        [-1, 0, 1, 0],
        [0, -1, 1, 0],
        [0, 1, 1, 0],
        [0, -1, 0, 1],
    ]
    assert dense(f.filters)[1].tolist() == [0.5, -0.5, 0.5]
    assert dense(f.results).tolist() == [[1, 1, 1, 0], [0, -1, 1, 1]]


def test_strided_windows_are_two_filterings() -> None:
    f = filtering(2, 3, 2)
    assert dense(f.inputs).tolist() == [
        [-1, 0, 1, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, -1, 0, 1],
        [0, 1, 0, 0, 0],
        [0, 0, 0, 1, 0],
    ]
    assert dense(f.filters)[:3].tolist() == [[-1, 0, 0], [1, 0, 1], [0, 0, 1]]
    assert dense(f.filters)[3:].tolist() == [[0, 1, 0]] * 2
    assert dense(f.results).tolist() == [[1, 1, 0, 1, 0], [0, 1, 1, 0, 1]]
    assert [m.operations for m in (f.inputs, f.results)] == [2, 4]
    assert [f.reach(n) for n in (1, 2)] == [3, 5]


def test_rows_of_a_pair_share_their_sums() -> None:
    two, four = filtering(2), filtering(4)
    assert [m.operations for m in (two.inputs, two.results)] == [4, 4]
    assert [m.operations for m in (four.inputs, four.results)] == [12, 12]


def test_larger_tiles_round_more() -> None:
    two, four = filtering(2), filtering(4)
    assert (two.roundings, two.growth) == (10, 8.0)
    assert (four.roundings, round(four.growth, 2)) == (28, 23.75)
    strided = filtering(2, 3, 2)
    assert (strided.roundings, strided.growth) == (8, 5.0)


@FORMS
def test_only_the_filters_constants_are_rounded(tile: int, stride: int) -> None:
    f = filtering(tile, 3, stride)
    for m in (f.inputs, f.results):
        assert np.array_equal(dense(m).astype(np.float32), dense(m))


@FORMS
def test_results_of_a_tile_are_made_of_so_many_of_its_inputs(
    tile: int, stride: int
) -> None:
    """Inputs after them are multiplied by 0 in every term."""
    f = filtering(tile, 3, stride)
    for results in range(1, tile + 1):
        used = dense(f.results)[:results].any(0)
        inputs = np.flatnonzero(dense(f.inputs)[used].any(0))
        assert f.reach(results) == inputs[-1] + 1 >= stride * (results - 1) + 3
    assert f.reach(tile) == f.size
