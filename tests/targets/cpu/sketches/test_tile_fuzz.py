"""Products of bytes of random sizes against NumPy, by the tiles of this processor if it has them.

Models with zero points of both operands, whose sizes leave remainders in every direction; then
kernels on every one of the tile instructions that fit, each at a random point of its schedule.
"""

from __future__ import annotations

import random

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import tilewright as tw
from tests.targets.cpu import tiles
from tests.targets.cpu.native import run_native
from tests.targets.cpu.sketches.test_dot_products import NEW, product
from tilewright.base.dtypes import int8, int32, uint8
from tilewright.base.errors import ScheduleError
from tilewright.driver.compile import text
from tilewright.loops.verify import verify
from tilewright.schedule.space import Choices
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.testing.random_kernels import plain

BYTES = {"u8": np.uint8, "s8": np.int8}


def drawn(rng: np.random.Generator, kind: str, *shape: int) -> np.ndarray:
    """Bytes over the whole range, the least and the largest of them included."""
    info = np.iinfo(BYTES[kind])
    found = rng.integers(info.min, info.max + 1, shape).astype(BYTES[kind])
    found.reshape(-1)[:2] = info.min, info.max
    return found


def model(
    operator: str, x: np.ndarray, known: dict[str, np.ndarray], rank: int, **how: object
) -> onnx.ModelProto:
    """`operator` of x and constants (its weights and zero points), an int32 result."""
    node = helper.make_node(operator, ["x", *known], ["y"], **how)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "f",
        [info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [info("y", onnx.TensorProto.INT32, [None] * rank)],
        [numpy_helper.from_array(a, n) for n, a in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_products_with_zero_points_are_exact(seed: int) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    m, n = r.randint(16, 75), r.randint(16, 75)
    k = r.choice([64, 65, 100, 127, 192, 250])
    kinds = [("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8")][seed % 4]
    x, w = drawn(rng, kinds[0], m, k), drawn(rng, kinds[1], k, n)
    zeros = drawn(rng, kinds[0], 2)[0], drawn(rng, kinds[1], 3 + n)[3:]
    known = {"w": w, "xz": np.asarray(zeros[0]), "wz": zeros[1]}
    exe = tw.compile(model("MatMulInteger", x, known, 2), threads=1 + seed % 2)
    want = (x.astype(np.int32) - np.int32(zeros[0])) @ (w.astype(np.int32) - zeros[1])
    np.testing.assert_array_equal(exe(x), want, str((m, n, k, kinds)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(12))
def test_convolutions_with_zero_points_are_exact(seed: int) -> None:
    """Padding is the zero point; images are smaller and larger than a tile."""
    r, rng = random.Random(seed), np.random.default_rng(seed)
    channels, out = r.choice([16, 48, 64, 100]), r.choice([16, 24, 33, 64])
    size, step = r.choice([1, 3]), 1 + seed % 2
    height, width = r.randint(5, 20), r.choice([7, 14, 19, 28, 33])
    kinds = ("u8", "s8") if seed % 3 else ("s8", "s8")
    x, w = (
        drawn(rng, kinds[0], 1, channels, height, width),
        drawn(rng, kinds[1], out, channels, size, size),
    )
    zero = drawn(rng, kinds[0], 2)[0]
    pad = size // 2
    known = {"w": w, "xz": np.asarray(zero)}
    how = {"pads": [pad] * 4, "strides": [step, step]}
    exe = tw.compile(model("ConvInteger", x, known, 4, **how))
    outside = ((0, 0), (0, 0), (pad, pad), (pad, pad))
    real = np.pad(x.astype(np.int32) - np.int32(zero), outside)
    seen = np.lib.stride_tricks.sliding_window_view(real, (size, size), axis=(2, 3))
    want = np.einsum(
        "ncyxij,ocij->noyx", seen[:, :, ::step, ::step], w.astype(np.int32)
    )
    np.testing.assert_array_equal(exe(x), want, str((x.shape, w.shape, step)))


def test_models_that_are_drawn_use_tiles() -> None:
    rng = np.random.default_rng(0)
    x, w = drawn(rng, "u8", 70, 127), drawn(rng, "s8", 127, 65)
    code = text(model("MatMulInteger", x, {"w": w}, 2), "kernel", mcpu="sapphirerapids")
    assert "tdpbusd(" in code


@pytest.mark.skipif(not tiles.are_here(), reason="this processor has no tiles")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(24))
def test_every_product_of_tiles_is_exact_on_hardware(seed: int) -> None:
    r, rng = random.Random(seed), np.random.default_rng(seed)
    kinds = ((uint8, int8), (int8, int8))[seed % 2]
    size = r.randint(16, 90), r.randint(16, 90), r.randint(1, 260)
    computations = product(*size, *kinds)
    sketch = sketches(plain(computations), computations, Context(NEW))[0]
    names = NEW.products(*kinds, int32)
    met = 0
    for name in names:
        chosen = Choices({"mm.intrinsic": name}, lambda _, some, __: r.choice(some))
        try:
            kernel = sketch.run(chosen).kernel
        except ScheduleError:
            continue  # fewer rows or columns than its tiles have
        verify(kernel)
        arrays = {
            b: drawn(rng, f"{b.dtype.name[0].replace('i', 's')}8", *b.shape)
            if b in kernel.inputs
            else np.full(b.shape, 77, np.int32)
            for b in kernel.params
        }
        assert run_native(kernel, arrays) == 0
        x, w, y = (arrays[b].astype(np.int32) for b in kernel.params)
        np.testing.assert_array_equal(y, 2 * (x @ w), str((size, name)))
        met += "tdp" in name
    assert met
