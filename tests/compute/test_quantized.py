"""s8_as_u8 keeps every bit: products of signed bytes by the machine's unsigned ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.base.dtypes import DType, float32, int8, int32, uint8
from tilewright.base.errors import UnsupportedError
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.check import check
from tilewright.compute.interp import evaluate
from tilewright.compute.nodes import PS, PW, Computation
from tilewright.compute.quantized import s8_as_u8
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import Buffer


def _matmul(m: int, n: int, k: int, a: DType = int8, out: DType = int32) -> Computation:
    x, w, y = (
        Buffer("x", (m, k), a),
        Buffer("w", (k, n), int8),
        Buffer("y", (m, n), out),
    )
    return reduce_(
        "mm", y, (k,), "add", lambda i, j, k: cast(x[i, k], out) * cast(w[k, j], out)
    )


def _convolution(height: int, channels: int, out: int) -> Computation:
    x = Buffer("x", (height + 2, channels), int8)
    w = Buffer("w", (3, channels, out), int8)
    y = Buffer("y", (height, out), int32)
    return reduce_(
        "conv",
        y,
        (3, channels),
        "add",
        lambda i, o, r, c: cast(x[i + r, c], int32) * cast(w[r, c, o], int32),
    )


def _check_same(c: Computation, low: int = -128, high: int = 127) -> None:
    rewritten = s8_as_u8(c)
    for part in rewritten:
        check(part)
    rng = np.random.default_rng(0)
    data = {b: rng.integers(low, high + 1, b.shape).astype(np.int8) for b in c.inputs}
    out = c.outputs[0].tensor
    np.testing.assert_array_equal(
        evaluate(rewritten, data)[out], evaluate(c, data)[out]
    )


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 12))
def test_a_matrix_product_keeps_every_bit(m: int, n: int, k: int) -> None:
    _check_same(_matmul(m, n, k))


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_a_convolution_keeps_every_bit(height: int, channels: int, out: int) -> None:
    _check_same(_convolution(height, channels, out))


@pytest.mark.parametrize("extreme", [-128, 127])
def test_the_ends_of_the_range(extreme: int) -> None:
    _check_same(_matmul(3, 4, 64), extreme, extreme)


@pytest.mark.slow
def test_int32_wraps_around_alike() -> None:
    """Sums beyond int32 (here through many equal terms) agree, since both sides wrap."""
    c = _matmul(1, 1, 140_000)
    x, w = c.inputs
    data = {x: np.full(x.shape, -128, np.int8), w: np.full(w.shape, -128, np.int8)}
    out = c.outputs[0].tensor
    want = np.int32((128 * 128 * 140_000 + 2**31) % 2**32 - 2**31)
    assert evaluate(s8_as_u8(c), data)[out] == want


def test_the_product_is_of_unsigned_by_signed_bytes() -> None:
    offset, sums, product, corrected = s8_as_u8(_matmul(3, 4, 8))
    assert [b.dtype for b in product.inputs] == [uint8, int8]
    assert [c.name for c in (offset, sums, product, corrected)] == [
        "mm.offset",
        "mm.sums",
        "mm",
        "mm.corrected",
    ]
    assert sums.outputs[0].tensor.shape == (4,)
    assert corrected.is_map


def test_other_computations_are_refused() -> None:
    x, y = Buffer("x", (4, 8), int8), Buffer("y", (4, 8), int32)
    guarded = reduce_(
        "sum",
        y,
        (3,),
        "add",
        lambda i, j, k: (
            cast(padded(x, (i, j + k - 1), 0), int32) * cast(x[i, j], int32)
        ),
    )
    product = _matmul(2, 2, 2)
    greatest = replace(product, reducer=reducer("max", int32))
    outer = map_("outer", y, lambda i, j: cast(x[i, j], int32) * cast(x[i, j], int32))
    two = replace(product, outputs=product.outputs * 2)
    scan = replace(
        product,
        dims=tuple(
            replace(d, combine=PS) if d.combine == PW else d for d in product.dims
        ),
    )
    w = Buffer("w", (8, 8), int8)
    total = reduce_(
        "t", y, (8,), "add", lambda i, j, k: cast(x[i, k], int32) + cast(w[k, j], int32)
    )
    others = (
        _matmul(2, 2, 2, a=uint8),
        _matmul(2, 2, 2, out=float32),
        guarded,
        greatest,
        outer,
    )
    for c in (*others, two, scan, total):
        with pytest.raises(
            UnsupportedError, match="int32 sum of products of two int8 tensors"
        ):
            s8_as_u8(c)
