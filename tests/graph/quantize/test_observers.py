"""Ranges from data: each method on data whose answer is known."""

import numpy as np
import pytest

from tilewright.base.errors import InputError
from tilewright.graph.quantize.affine import (
    AffineQuantization,
    ValueRange,
    asymmetric,
    power_of_two,
    round_weights,
    symmetric,
    whole_byte,
)
from tilewright.graph.quantize.observers import (
    METHODS,
    Entropy,
    Histogram,
    MinMax,
    Percentile,
    SquaredError,
    divergence,
    observer_of,
)


def normal(seed=0, count=100_000):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def seen(observer, *arrays):
    for a in arrays:
        observer.see(a)
    return observer


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("quantizer", [symmetric, asymmetric])
def test_batches_count_as_one_array(make, quantizer):
    x = normal()
    # The first batch is the widest, so that both have bins of one width.
    order = np.argsort(-np.abs(x))
    parts = np.split(x[order], 10)
    assert seen(make(), *parts).range(quantizer) == seen(make(), x).range(quantizer)


def test_bins_are_merged_when_larger_numbers_come():
    observer = seen(MethodOfCounts(), normal(1), 1000 * normal(2))
    assert observer.below.sum() + observer.above.sum() == 200_000
    assert observer.width * len(observer.above) >= observer.span.largest
    both = np.concatenate([normal(1), 1000 * normal(2)])
    limit = 100 * observer.width
    assert observer.above[:100].sum() == ((both >= 0) & (both < limit)).sum()


class MethodOfCounts(Histogram):
    def range(self, quantizer):
        return self.span


@pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize("quantizer", [symmetric, asymmetric])
@pytest.mark.parametrize(
    "array",
    [np.zeros(5), np.zeros(0), np.array(3.0), np.full(4, -2.0), np.full(9, 1e-42)],
    ids=["zeros", "empty", "rank 0", "constant", "subnormal"],
)
def test_odd_arrays_have_a_range(make, quantizer, array):
    found = seen(make(), array.astype(np.float32)).range(quantizer)
    assert found.low <= 0 <= found.high
    kept = quantizer(found)
    assert np.isfinite(kept.scale) and kept.scale > 0
    assert np.allclose(kept.rounded(array), array, atol=float(kept.scale) / 2 + 1e-6)


def test_what_is_not_finite_is_said_and_not_counted():
    x = np.array([1.0, np.nan, -2.0, np.inf, -np.inf], np.float32)
    for make in METHODS.values():
        observer = seen(make(), x)
        assert not observer.finite
        assert observer.span == ValueRange(-2, 1)
    assert seen(MinMax(), np.ones(3, np.float32)).finite


@pytest.mark.parametrize("percent", [90, 99, 99.9])
def test_percentiles_are_numpy_s(percent):
    x = normal()
    half = seen(Percentile(percent), x).range(symmetric)
    assert half.largest == pytest.approx(np.percentile(np.abs(x), percent), rel=2e-3)
    whole = seen(Percentile(percent), x + 1).range(asymmetric)
    tail = (100 - percent) / 2
    low, high = np.percentile(x + 1, [tail, 100 - tail])
    assert whole.low == pytest.approx(low, abs=5e-3)
    assert whole.high == pytest.approx(high, abs=5e-3)
    assert seen(Percentile(100), x).range(symmetric).largest == np.abs(x).max()


def test_entropy_clips_an_outlier():
    # Of N(0, 1) with one number at 8, a histogram with as many bins as levels clips nothing.
    x = np.append(normal(), np.float32(8))
    found = seen(Entropy(), x).range(symmetric)
    assert 3.5 < found.largest < 6
    # Nothing to win where the data fill their range.
    flat = np.linspace(-1, 1, 100_001, dtype=np.float32)
    assert seen(Entropy(), flat).range(symmetric).largest == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("quantizer", [symmetric, asymmetric])
def test_entropy_sees_past_the_zeros_of_a_relu(quantizer):
    x = np.maximum(normal(), 0)
    found = seen(Entropy(), x).range(quantizer)
    assert found.largest > 0.8 * x.max()


def test_entropy_counts_outliers_in_the_reference_alone():
    counts = np.zeros(256, np.int64)
    counts[:128] = 100
    assert divergence(counts, 128, 128) == pytest.approx(0)
    counts[255] = 1000
    assert divergence(counts, 128, 128) > 0.01


def test_squared_error_is_least():
    x = np.append(normal(), np.full(3, 12, np.float32))
    for quantizer in (symmetric, asymmetric):
        observer = seen(SquaredError(), x)
        best = observer.range(quantizer)

        def error(span, quantizer=quantizer):
            return float(((x - quantizer(span).rounded(x)) ** 2).mean())

        assert best.largest < 11.9
        others = [observer.span.within(t) for t in np.linspace(2, 12, 41)]
        assert error(best) < error(observer.span)
        assert error(best) < 1.02 * min(map(error, others))
        assert observer.error(quantizer(best)) / x.size == pytest.approx(
            error(best), rel=0.05
        )


def test_unknown_methods_are_refused():
    with pytest.raises(InputError, match="unknown calibration method 'luck'"):
        observer_of("luck")
    with pytest.raises(InputError, match="percentile is given for the method 'mse'"):
        observer_of("mse", 99)
    with pytest.raises(InputError, match="more than 0, at most 100"):
        observer_of("percentile", 0)


# ------------------------------------------------------------------------------------------ affine


def test_zero_is_exact():
    for span in (
        ValueRange(-0.3, 5),
        ValueRange(0, 5),
        ValueRange(-5, 0),
        ValueRange(-1e-3, 1e3),
    ):
        for quantizer in (symmetric, asymmetric):
            kept = quantizer(span)
            assert kept.rounded(np.zeros(1, np.float32)) == 0


def test_rounding_is_onnx_s():
    import onnx.parser
    from onnx.reference import ReferenceEvaluator

    x = np.append(normal(5, 1000) * 3, [0.125, 0.375, -0.125, 1e6, -1e6])
    x = x.astype(np.float32)
    for kept in (
        AffineQuantization(np.float32(0.25), np.uint8(7)),
        symmetric(ValueRange(-4, 3)),
    ):
        kind = "uint8" if kept.dtype == np.uint8 else "int8"
        text = (
            f'<ir_version: 10, opset_import: ["" : 21]> f (float[N] x, float s, {kind} z)'
            f" => ({kind}[N] q) {{ q = QuantizeLinear(x, s, z) }}"
        )
        model = onnx.parser.parse_model(text)
        feeds = {"x": x, "s": np.array(kept.scale), "z": np.array(kept.zero)}
        (want,) = ReferenceEvaluator(model).run(None, feeds)
        assert (kept.whole(x) == want).all()


def test_weights_have_a_scale_for_each_channel():
    w = normal(3, 60).reshape(3, 4, 5) * np.array([1, 100, 0])[:, None, None]
    found = round_weights(w.astype(np.float32), 0)
    assert found.scales.shape == (3,) and found.scales[2] == 1
    assert np.abs(found.whole).max((1, 2)).tolist() == [127, 127, 0]
    half = found.scales[:, None, None] / 2
    assert (np.abs(found.real - w) <= half * 1.001).all()


def test_units_by_bits():
    assert [power_of_two(x) for x in (127.0, 128.0, 1.0, 0.0)] == [1, 2, 1 / 64, 1]
    assert [whole_byte(x) for x in (127.0, 1.0, 0.0)] == [1, 1 / 127, 1]
