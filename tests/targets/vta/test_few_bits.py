"""Networks on machines whose operands have 2 or 4 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import tilewright as tw
from tests.targets.vta.configurations import CONFIGURATIONS
from tests.targets.vta.networks import Network, bound_to
from tilewright.targets.vta.scales import dequantize, quantize, units_of_weights

FEW_BITS = [
    ("1x16 w4", "shift"),
    ("1x16 w4", "channel"),
    ("2x8 w2", "multiplier"),
    ("1x16 i4w4", "multiplier"),
    ("1x32 i2w8", "shift"),
]


@pytest.mark.sampled(5)  # weights of 4 bits
@pytest.mark.parametrize(("name", "by"), FEW_BITS)
def test_numbers_of_less_than_a_byte(name: str, by: str, tmp_path: Path) -> None:
    """On the machine as on the CPU, saved and loaded, and what floats give of rounded operands."""
    rng = np.random.default_rng(1)
    text = """o (float[2, 10, 6, 6] x) => (float[2, 5] y) {
          a = Conv<pads=[1,1,1,1]>(x, w)
          b = Relu(a)
          e = Flatten(b)
          y = Gemm(e, v)
        }"""
    given = {
        "w": rng.standard_normal((12, 10, 3, 3)).astype(np.float32) / 9,
        "v": rng.standard_normal((432, 5)).astype(np.float32) / 9,
    }
    x = {"x": rng.standard_normal((2, 10, 6, 6)).astype(np.float32)}
    config = CONFIGURATIONS[name]
    network = Network(bound_to(text, **given), [x], by=by, config=config)
    assert [p.device for p in network.placements] == ["vta", "host", "vta"]
    (y,), (same,) = network(x), network.on_cpu(x)
    np.testing.assert_array_equal(y, same)
    network.exe.save(tmp_path / "few.tw")
    np.testing.assert_array_equal(tw.load(tmp_path / "few.tw")(x), y)

    data, bits = config.operand_bits
    rounded = {
        "w": _rounded(given["w"], by, bits),
        "v": _rounded(given["v"].T, by, bits).T,
    }
    units = network.scales
    image = dequantize(quantize(x["x"], units["x"], data), units["x"])
    expected = tw.compile(bound_to(text, **rounded))({"x": image})
    # Half a unit of `b` in each of its elements, half a unit of `y`, and factors that are rounded.
    most_off = 0.55 * units["b"] * np.abs(rounded["v"]).sum(0) + 0.6 * units["y"]
    assert (np.abs(y - expected) <= most_off).all()


def _rounded(weights: NDArray, by: str, bits: int) -> NDArray:
    """Weights [O, ...] by whole numbers of so many bits."""
    unit = units_of_weights(weights, by, bits)
    unit = unit.reshape(-1, *(1,) * (weights.ndim - 1))
    return (quantize(weights, unit, bits) * unit).astype(np.float32)
