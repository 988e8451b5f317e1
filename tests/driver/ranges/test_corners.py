"""Operators on known arrays that grow with a size: their results at the largest size tell all."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import pytest

import tilewright as tw
from tests.driver.ranges.test_between import LINE, found, whole, worked
from tests.driver.ranges.test_ranged import HEAD
from tilewright.base import dtypes
from tilewright.driver.ranges.corners import takes_corners
from tilewright.driver.ranges.size_forms import AffineForm, CornerForm, Fact
from tilewright.driver.ranges.size_terms import SizeTerm
from tilewright.graph.nodes import Operation, Value

MOST = {"n": 6, "m": 9}
START = {"n": 2, "m": 3}
N, M = {"n": 1}, {"m": 1}
PLACES = whole("s", z=[0], o=[1], r=range(400)) + "p = Slice(r, z, s) "
RELATIVE = (
    "(float[n] x) => (float[2, n, n] y) {"
    + PLACES
    + "q = Unsqueeze(p, o) d = Sub(p, q)"
    " t = Transpose<perm = [1, 0]>(d) e = Abs(t) u = Unsqueeze(e, z)"
    " w = Constant<value_ints = [2]>() k = Concat<axis = 0>(w, s, s) v = Expand(u, k)"
    " f = Cast<to = 1>(v) y = Add(x, f) }"
)


def fact(*axes: dict[str, int] | int, known: bool = True) -> Fact:
    """A value with an extent of each size, or a number of them; known: so are its elements."""
    base, slopes = [], {}
    for n, axis in enumerate(axes):
        ((size, _),) = axis.items() if isinstance(axis, dict) else ((None, 0),)
        base.append(START[size] if size else axis)
        if size:
            slopes.setdefault(SizeTerm(size), np.zeros(len(axes), int))[n] = 1
    shape = AffineForm(START, np.array(base, np.int64).reshape(len(axes)), slopes)
    largest = tuple(map(int, shape.at(MOST)))
    numbers: Any = None
    if known:
        array = np.arange(np.prod(largest, dtype=int)).reshape(largest)
        numbers = CornerForm(array, shape) if slopes else AffineForm(START, array)
    return Fact(Value("v", dtypes.int64, tuple(base)), shape, numbers)


def shape_of(*axes: dict[str, int] | int) -> Fact:
    """The extents of such a value, as an array."""
    numbers = fact(*axes).shape
    return Fact(
        Value("s", dtypes.int64, (len(axes),)),
        AffineForm(START, np.array([len(axes)])),
        numbers,
    )


def takes(kind: str, *reads: Fact, made: Fact, **attributes: Any) -> bool:
    op = Operation(
        kind,
        tuple(f.value for f in reads),
        (made.value,),
        version=13,
        attributes=attributes,
    )
    return takes_corners(op, reads, [made], MOST)


def test_relative_positions_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(RELATIVE, LINE, n=400) == []
    computed = worked(RELATIVE, monkeypatch, n=400)
    assert not {"Sub", "Abs", "Expand", "Transpose", "Unsqueeze", "Cast"} & {*computed}


def test_relative_positions_have_one_code() -> None:
    source = onnx.parser.parse_model(HEAD + RELATIVE)
    exe: Any = tw.compile(
        source, dims={"n": (1, 300)}, jit=False, cache=False, threads=1
    )
    assert sum(len(s.covers) for s in exe.model.shared) >= 290, exe
    for n in (1, 2, 3, 17, 150, 299, 300):
        x = np.random.default_rng(n).standard_normal(n).astype("f")
        away = np.abs(np.arange(n)[:, None] - np.arange(n)).astype("f")
        np.testing.assert_array_equal(exe(x), np.broadcast_to(x + away, (2, n, n)))


def test_elements_by_themselves() -> None:
    assert takes("Add", fact(N, 1), fact(1, N), made=fact(N, N))
    assert takes("Add", fact(N), fact(), made=fact(N))
    assert not takes("Add", fact(N, known=False), fact(N), made=fact(N))
    assert not takes("CumSum", fact(N), fact(), made=fact(N))  # not one by one
    changing = shape_of(N)  # another number at each size
    assert not takes("Add", fact(N), changing, made=fact(N))


def test_operands_are_repeated_along_the_same_axes_at_all_sizes() -> None:
    """n and m are equal at some sizes, and the sum has one of their extents where n or m is 1."""
    assert not takes("Add", fact(N), fact(M), made=fact(N))
    assert not takes("Add", fact(N), fact(6), made=fact(N))
    assert not takes("Expand", fact(N), shape_of(M), made=fact(N))


def test_expansions() -> None:
    assert takes("Expand", fact(1, N), shape_of(2, M, N), made=fact(2, M, N))
    assert takes("Expand", fact(1), shape_of(N), made=fact(N))
    unknown = fact(1, N, known=False)
    assert not takes("Expand", unknown, shape_of(M, N), made=fact(M, N))
    assert not takes("Expand", fact(1, N), fact(2, known=False), made=fact(M, N))


def test_an_axis_of_one_is_removed_at_all_sizes_only_if_it_is_named() -> None:
    assert takes("Unsqueeze", fact(N), fact(1), made=fact(N, 1))
    assert takes("Squeeze", fact(N, 1), fact(1), made=fact(N))
    assert takes("Squeeze", fact(N, 1), made=fact(N), axes=[1])
    assert not takes("Squeeze", fact(N, 1), made=fact(N))  # at n = 1, another axis
    assert not takes("Squeeze", fact(N, 1), shape_of(M), made=fact(N))


def test_the_arrays_that_are_cut_are_those_at_the_largest_sizes() -> None:
    short = fact(N)
    cut = CornerForm(np.arange(4), short.shape)
    short = Fact(short.value, short.shape, cut)
    assert takes("Neg", fact(N), made=fact(N))
    assert not takes("Neg", short, made=fact(N))
    assert not takes("Neg", fact(N), made=short)


def test_rows_of_a_constant_at_places_that_are_cut() -> None:
    assert takes("Gather", fact(400, 2), fact(N), made=fact(N, 2))
    assert not takes("Gather", fact(N, 2), fact(3), made=fact(3, 2))
    assert not takes("Gather", fact(400, 2), fact(N, known=False), made=fact(N, 2))
