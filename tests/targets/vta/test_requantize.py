"""From sums to bytes: nothing overflows for any sum within the bound, and the result is near."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tilewright.targets.vta.compiled import VtaProgram
from tilewright.targets.vta.layers import Convolution, Requantize, convolution
from tilewright.targets.vta.requantize import (
    FACTORS,
    SUMS,
    RequantizeSteps,
    by_channel,
    by_multiplier,
    by_shift,
)
from tilewright.targets.vta.schedules import schedule

RATIOS = st.floats(2.0**-24, 2.0**8)
BOUNDS = st.integers(1, SUMS)


def wide(s: RequantizeSteps, total: int, residual: int) -> tuple[int, list[int]]:
    """The result in numbers of any size, and all that the machine holds on the way."""
    first = total + s.half
    shifted = first >> s.before
    product = shifted * s.factor
    more = residual * (s.residual or 0)
    return (product + more) >> s.shift, [first, shifted, product, more, product + more]


@settings(max_examples=300, deadline=None)
@given(RATIOS, st.none() | st.floats(2.0**-8, 2.0**8), BOUNDS, st.data())
@example(2.0**-9, None, SUMS >> 1, None)
def test_a_multiplier_is_safe_and_near(
    ratio: float, residual: float | None, bound: int, data: st.DataObject | None
) -> None:
    s = by_multiplier(ratio, residual, bound)
    assume(s is not None)
    assert s.factor in FACTORS
    assert s.residual is None or s.residual in FACTORS
    assert s.before < 32 and s.shift < 32
    inner = data.draw(st.integers(-bound, bound)) if data is not None else 0
    for total in (bound, -bound, inner):
        for other in (127, -128):
            y, held = wide(s, total, other)
            assert all(-SUMS - 1 <= v <= SUMS for v in held)
            exact = total * ratio + (other * residual if residual is not None else 0)
            if abs(total * ratio) <= 128:
                assert abs(y - exact) <= 0.5 + s.error + 1e-6


COMMON = [(2.0**-9, 23), (2.0**-9, 8), (0.0123, 20), (0.9, 14), (3.7, 8), (1e-4, 27)]


@pytest.mark.parametrize(("ratio", "bits"), COMMON)
def test_common_layers_have_a_multiplier(ratio: float, bits: int) -> None:
    """Where sums are at most a hundred times what a byte holds, it is off by less than a unit."""
    s = by_multiplier(ratio, 1.3, 1 << bits)
    assert s is not None
    assert s.error < 0.5 + ratio


def test_where_nothing_is_safe() -> None:
    assert by_multiplier(1.0, None, SUMS) is None  # no room for the half that rounds
    assert by_multiplier(1e9, None, 100) is None
    assert by_multiplier(0.1, 1e6, 100) is None
    assert by_shift(2.0**-40, None, 100) is None
    assert by_shift(2.0**-4, 2.0**-6, 100) is None  # a residual finer than the sums
    assert by_shift(2.0**-4, 2.0**-2, SUMS - 7) is None
    assert by_shift(2.0**-4, 2.0**-2, SUMS - 10_000) == RequantizeSteps(0, 1, 4, 4, 8)


@settings(max_examples=20, deadline=None)
@given(st.floats(2.0**-14, 0.5), st.none() | st.floats(0.1, 4), st.integers(0, 1 << 30))
def test_the_machine_and_the_formula_agree(
    ratio: float, residual: float | None, seed: int
) -> None:
    """On the largest sums that a layer can have, where a product that overflowed would show."""
    c = Convolution(32, 16, (3, 3), (3, 3), (1, 1), (1, 1))
    rng = np.random.default_rng(seed)
    x = rng.choice([-128, 127], (2, 3, 3, 16)).astype(np.int8)
    w = rng.choice([-128, 127], (1, 2, 3, 3, 16, 16)).astype(np.int8)
    bias = rng.integers(-(1 << 20), 1 << 20, (1, 16)).astype(np.int32)
    reach = 128 * 128 * 32 * 9 + (1 << 20)
    s = by_multiplier(ratio, residual, reach)
    assert s is not None
    layer = convolution(
        c, Requantize(s.shift, False, True, s.residual, s.factor, s.before)
    )
    added = rng.integers(-128, 128, (1, 3, 3, 16)).astype(np.int8)
    y = np.zeros((1, 3, 3, 16), np.int8)
    more = [] if residual is None else [added]
    VtaProgram(schedule(layer).kernel).check([x, w, bias + np.int32(s.half), *more, y])
    image = np.pad(x.transpose(0, 3, 1, 2).reshape(32, 3, 3), ((0, 0), (1, 1), (1, 1)))
    weights = w.transpose(0, 4, 1, 5, 2, 3).reshape(16, 32, 3, 3).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(
        image.astype(np.int64), (3, 3), (1, 2)
    )
    sums = np.einsum("oikl,ihwkl->hwo", weights, windows)[None] + bias
    total = ((sums + s.half) >> s.before) * s.factor + added.astype(np.int64) * (
        s.residual or 0
    )
    np.testing.assert_array_equal(y, np.clip(total >> s.shift, -128, 127))


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(2.0**-18, 1.0), st.integers(1, 1 << 28)),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.floats(0.1, 4),
    st.integers(-128, 127),
)
def test_a_factor_for_each_channel_is_safe_and_near(
    channels: list[tuple[float, int]], residual: float | None, other: int
) -> None:
    ratios, bounds = (np.array(part) for part in zip(*channels, strict=True))
    found = by_channel(ratios, residual, bounds)
    assume(found is not None)
    assert len({(s.before, s.shift, s.residual) for s in found}) == 1
    for s, ratio, bound in zip(found, ratios.tolist(), bounds.tolist(), strict=True):
        for total in (bound, -bound, bound // 3):
            y, held = wide(s, total, other)
            assert all(-SUMS - 1 <= v <= SUMS for v in held)
            exact = total * ratio + (other * residual if residual is not None else 0)
            if abs(total * ratio) <= 128:
                assert abs(y - exact) <= 0.5 + s.error + 1e-6


def test_a_small_channel_keeps_its_numbers() -> None:
    """One factor for all would leave a channel of a thousandth of the other's size nothing."""
    found = by_channel(
        np.array([2.0**-8, 2.0**-18]), None, np.array([1 << 15, 1 << 25])
    )
    assert found is not None
    assert max(s.error for s in found) < 0.1
    assert by_channel(np.array([1e9]), None, np.array([100])) is None
    assert by_channel(np.array([0.1]), 1e6, np.array([100])) is None


def test_halves_are_rounded_up() -> None:
    s = by_shift(0.25, None, 1000)
    assert s is not None
    assert [wide(s, n, 0)[0] for n in (1, 2, -2, -3)] == [0, 1, 0, -1]
    m = by_multiplier(math.pi / 100, None, 1 << 20)
    assert m is not None
    for n in range(-4000, 4000, 7):
        assert abs(wide(m, n, 0)[0] - n * math.pi / 100) <= 0.5 + m.error
