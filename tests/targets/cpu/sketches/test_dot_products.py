"""Reductions by the machine's dot products: exact for bytes, by default and at random."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import onnx.parser
import pytest

from tests.targets.cpu import tiles
from tests.targets.cpu.native import run_native
from tilewright.base.dtypes import DType, bfloat16, float32, int8, int32, uint8
from tilewright.base.errors import ScheduleError
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation
from tilewright.compute.reducer import reducer
from tilewright.driver.build_kernel import build_kernel
from tilewright.driver.compile import text
from tilewright.expr.nodes import Buffer, Select, const
from tilewright.loops.interp import run
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import verify
from tilewright.runtime.executable import Executable
from tilewright.schedule.space import Choices
from tilewright.targets.cpu.compile import assembly
from tilewright.targets.cpu.machine import host, machine
from tilewright.targets.cpu.sketches import Context, sketches
from tilewright.targets.registry import target
from tilewright.testing.random_kernels import plain

NEW = replace(machine("sapphirerapids"), cores=2)


def needs(feature: str) -> pytest.MarkDecorator:
    """Skip where this processor lacks a feature."""
    return pytest.mark.skipif(
        not host().has(feature), reason=f"this processor has no {feature}"
    )


def product(
    m: int, n: int, k: int, a: DType = uint8, b: DType = int8, out: DType = int32
) -> list[Computation]:
    x, w, t, y = (
        Buffer(name, shape, d)
        for name, shape, d in zip(
            "xwty", [(m, k), (k, n), (m, n), (m, n)], [a, b, out, out], strict=True
        )
    )
    return [
        reduce_(
            "mm",
            t,
            (k,),
            "add",
            lambda i, j, k: cast(x[i, k], out) * cast(w[k, j], out),
        ),
        map_("more", y, lambda i, j: t[i, j] + t[i, j]),
    ]


def convolution(
    height: int, channels: int, out: int, first: bool, outside: int
) -> Computation:
    """3x1 windows over padded uint8 maps, channels first or last."""
    shape = (channels, height) if first else (height, channels)
    x, w = Buffer("x", shape, uint8), Buffer("w", (out, channels, 3), int8)
    y = Buffer("y", (height, out), int32)

    def value(*i):
        h, o, c, r = i
        at = h + r - 1
        read = x[c, at] if first else x[at, c]
        inside = (const(0) <= at) & (at < const(height))
        return cast(Select(inside, read, const(outside, uint8)), int32) * cast(
            w[o, c, r], int32
        )

    return reduce_("conv", y, (channels, 3), "add", value)


@pytest.mark.parametrize("adds", [True, False], ids=["a-sum", "no-sum"])
def test_what_a_reducer_does_decides_not_its_name(adds):
    (c, _), op = product(8, 32, 8), reducer("add" if adds else "max", int32)
    c = replace(c, reducer=replace(op, name="add" if not adds else "plus"))
    assert is_contraction(c) is adds
    (whole, *_) = sketches(plain([c]), [c], Context(NEW))
    assert ("mm.intrinsic" in whole.default().values) is adds


def native(kernel: Kernel) -> np.ndarray:
    """Results for inputs over the whole range of their dtypes."""
    rng = np.random.default_rng(0)
    inputs = []
    for b in kernel.inputs:
        if b.dtype.is_int:
            low, high = int(b.dtype.min), int(b.dtype.max)
            inputs.append(rng.integers(low, high + 1, b.shape).astype(b.dtype.numpy))
        else:
            inputs.append(rng.standard_normal(b.shape).astype(b.dtype.numpy))
    return Executable(build_kernel(kernel, target("cpu")), threads=2)(*inputs)


def default(computations: list[Computation], at: Context | None = None):
    return sketches(plain(computations), computations, at or Context(host()))[
        0
    ].default()


@needs("avx512vnni")
@pytest.mark.parametrize(
    "size",
    [(8, 32, 8), (5, 17, 4), (7, 33, 2), (13, 16, 6), (3, 70, 35)],
    ids=str,
)
def test_products_of_bytes_are_exact_at_any_size(size):
    computations = product(*size)
    weights = computations[0].inputs[1]
    point = default(computations, Context(host(), {weights}))
    verify(point.schedule.kernel)
    assert point.values["mm.intrinsic"] == "cpu.vpdpbusd"
    assert "vpdpbusd(" in str(point.schedule)
    want = native(plain(computations))
    np.testing.assert_array_equal(native(point.schedule.kernel), want)


@needs("avx512vnni")
def test_a_row_times_a_matrix_is_exact():
    x, w, y = (
        Buffer("x", (13,), uint8),
        Buffer("w", (13, 40), int8),
        Buffer("y", (40,), int32),
    )
    c = reduce_(
        "mm", y, (13,), "add", lambda j, k: cast(x[k], int32) * cast(w[k, j], int32)
    )
    point = default([c], Context(host(), {w}))
    assert "vpdpbusd(" in str(point.schedule)
    np.testing.assert_array_equal(native(point.schedule.kernel), native(plain([c])))


@pytest.mark.covering(1)
@needs("avx512vnni")
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize(
    ("channels", "outside"), [(8, 3), (6, 0), (3, 0), (3, 7)], ids=str
)
def test_convolutions_with_padding_are_exact(first, channels, outside):
    c = convolution(9, channels, 20, first, outside)
    point = default([c])
    verify(point.schedule.kernel)
    assert "vpdpbusd(" in str(point.schedule)
    np.testing.assert_array_equal(native(point.schedule.kernel), native(plain([c])))


def image(width: int, size: int, stride: int, pads: bool) -> Computation:
    """1 x `size` windows over one row of bytes, with 7 around it if it is padded."""
    x, w = Buffer("x", (width,), uint8), Buffer("w", (20, size), int8)
    count = (width + 2 * pads - size) // stride + 1
    y = Buffer("y", (count, 20), int32)

    def value(i, o, k):
        at = i * stride + k - pads
        inside = (const(0) <= at) & (at < const(width))
        read = Select(inside, x[at], const(7, uint8)) if pads else x[at]
        return cast(read, int32) * cast(w[o, k], int32)

    return reduce_("conv", y, (size,), "add", value)


@pytest.mark.covering(1)
@needs("avx512vnni")
@pytest.mark.parametrize("pads", [True, False], ids=["padded", "bare"])
@pytest.mark.parametrize(("size", "stride"), [(7, 2), (5, 1), (3, 3), (4, 1)], ids=str)
def test_neighbors_along_a_row_of_an_image_fill_words(size, stride, pads):
    c = image(31, size, stride, pads)
    point = default([c])
    verify(point.schedule.kernel)
    assert "vpdpbusd(" in str(point.schedule)
    np.testing.assert_array_equal(native(point.schedule.kernel), native(plain([c])))


def test_floats_outside_need_whole_words():
    """What is not a number times zero is not a zero."""
    x, w = Buffer("x", (31,), bfloat16), Buffer("w", (20, 3), bfloat16)
    y = Buffer("y", (29, 20), float32)
    f = reduce_(
        "conv",
        y,
        (3,),
        "add",
        lambda i, o, k: cast(x[i + k], float32) * cast(w[o, k], float32),
    )
    assert "conv.intrinsic" not in default([f], Context(NEW)).values


@needs("avx512vnni")
def test_random_points_are_exact():
    r = random.Random(0)
    for computations in (product(9, 40, 10), [convolution(8, 8, 33, True, 5)]):
        want = native(plain(computations))
        sketch = sketches(plain(computations), computations, Context(host()))[0]
        seen = set()
        for _ in range(7):
            try:
                point = sketch.random(r)
            except ScheduleError:
                continue
            seen.add(point.values.get(f"{computations[0].name}.intrinsic"))
            verify(point.schedule.kernel)
            np.testing.assert_array_equal(
                native(point.schedule.kernel), want, str(point.values)
            )
        assert {n for n in seen if n is None or "tdpb" not in n} <= {
            "cpu.vpdpbusd",
            None,
        }
        assert len(seen) > 1


@needs("avx512bf16")
def test_bfloat16_is_within_its_tolerance():
    computations = product(6, 48, 10, bfloat16, bfloat16, float32)
    point = default(computations)
    assert "vdpbf16ps(" in str(point.schedule)
    want = native(plain(computations))
    np.testing.assert_allclose(
        native(point.schedule.kernel), want, rtol=1e-5, atol=1e-5
    )


def test_exact_code_takes_exact_intrinsics_only():
    bytes_, narrow = product(4, 32, 8), product(4, 32, 8, bfloat16, bfloat16, float32)
    assert "mm.intrinsic" in default(bytes_, Context(NEW, exact=True)).values
    assert "mm.intrinsic" in default(narrow, Context(NEW)).values
    assert "mm.intrinsic" not in default(narrow, Context(NEW, exact=True)).values


@pytest.mark.parametrize(
    ("dtypes", "level"),
    [((int8, int8), "sapphirerapids"), ((uint8, uint8), "sapphirerapids"),
     ((uint8, int8), "x86-64-v4")],
    ids=str,
)  # fmt: skip
def test_where_no_instruction_fits_there_is_no_choice(dtypes, level):
    point = default(product(4, 32, 8, *dtypes), Context(machine(level)))
    assert point.values.get("mm.intrinsic") is None  # a tile would be an eighth full


def test_the_parameter_can_be_turned_off():
    computations = product(8, 32, 8)
    sketch = sketches(plain(computations), computations, Context(NEW))[0]
    assert "vpdpbusd(" in str(sketch.default().schedule)
    assert "vpdpbusd(" not in str(sketch.at({"mm.intrinsic": None}).schedule)


def test_factors_in_either_order_and_weights_by_rows():
    x, w, y = (
        Buffer("x", (6, 8), uint8),
        Buffer("w", (32, 8), int8),
        Buffer("y", (6, 32), int32),
    )
    c = reduce_(
        "mm",
        y,
        (8,),
        "add",
        lambda i, j, k: cast(w[j, k], int32) * cast(x[i, k], int32),
    )
    point = default([c], Context(NEW))
    verify(point.schedule.kernel)
    assert "vpdpbusd(" in str(point.schedule)
    assert "interleave" not in str(point.schedule)  # neighbors already


@needs("avx512vnni")
def test_results_with_channels_first_leave_the_tile_transposed():
    x, w = Buffer("x", (30, 8), uint8), Buffer("w", (40, 8), int8)
    y = Buffer("y", (40, 30), int32)
    c = reduce_(
        "mm",
        y,
        (8,),
        "add",
        lambda i, j, k: cast(x[i, k], int32) * cast(w[j, k], int32),
        extents=(30, 40),
        index=lambda i, j: (j, i),
    )
    point = default([c])
    verify(point.schedule.kernel)
    assert "transpose(y[" in str(point.schedule)
    np.testing.assert_array_equal(native(point.schedule.kernel), native(plain([c])))


# -- products of tiles: simulated, and by this processor if it has them


def on_tiles(kernel: Kernel, seed: int = 0) -> tuple[np.ndarray, ...]:
    """The arrays of a kernel after a run with simulated tiles, and with those of this processor."""
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(int(b.dtype.min), int(b.dtype.max) + 1, b.shape).astype(
            b.dtype.numpy
        )
        if b.dtype.is_int
        else rng.integers(-8, 9, b.shape).astype(b.dtype.numpy)
        for b in kernel.params
    ]
    real = [a.copy() for a in arrays]
    assert tiles.run(kernel, NEW, arrays, refuse=False) == 0
    if tiles.are_here():
        assert run_native(kernel, dict(zip(kernel.params, real, strict=True))) == 0
        for found, simulated in zip(real, arrays, strict=True):
            np.testing.assert_array_equal(found, simulated)
    return tuple(arrays)


@pytest.mark.covering(1)  # each instruction, both tiles
@pytest.mark.parametrize(
    ("size", "side"),
    [((40, 96, 128), 32), ((44, 39, 100), 16)],
    ids=str,
)
@pytest.mark.parametrize(
    ("dtypes", "name"),
    [
        ((uint8, int8), "tdpbusd"),
        ((int8, int8), "tdpbssd"),
        ((bfloat16, bfloat16), "tdpbf16ps"),
    ],
    ids=["u8s8", "s8s8", "bf16"],
)
def test_processors_with_tiles_use_them(size, side, dtypes, name):
    out = float32 if dtypes[0] is bfloat16 else int32
    computations = product(*size, *dtypes, out)
    weights = computations[0].inputs[1]
    point = default(computations, Context(NEW, {weights}))
    verify(point.schedule.kernel)
    assert point.values["mm.intrinsic"] == f"cpu.{name}.{side}"
    assert assembly(point.schedule.kernel, NEW).count(name) == 4  # 2 x 10, 4 x 11 rows
    x, w, y = (a.astype(np.float64) for a in on_tiles(point.schedule.kernel))
    np.testing.assert_array_equal(y, 2 * (x @ w))  # whole numbers below 2 ** 24: exact


def test_tiles_mean_what_the_plain_nest_does():
    computations = product(18, 17, 70)
    sketch = sketches(plain(computations), computations, Context(NEW))[0]
    point = sketch.at({"mm.intrinsic": "cpu.tdpbusd.16"})
    assert "tdpbusd(" in str(point.schedule)
    point.schedule.verify()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
def test_convolutions_in_tiles_are_exact(first):
    c = convolution(40, 64, 32, first, 0)
    point = default([c], Context(NEW))
    assert point.values["conv.intrinsic"] == "cpu.tdpbusd.32"
    verify(point.schedule.kernel)
    *inputs, got = on_tiles(point.schedule.kernel)
    shown = dict(zip(point.schedule.kernel.inputs, inputs, strict=True))
    want = shown | {c.outputs[0].tensor: np.zeros_like(got)}
    run(plain([c]), want)
    np.testing.assert_array_equal(got, want[c.outputs[0].tensor])


def test_tiles_are_the_default_where_little_of_them_is_padding():
    values = [
        default(product(*size), Context(NEW)).values["mm.intrinsic"]
        for size in [(64, 64, 64), (40, 40, 64), (64, 64, 30), (15, 64, 64)]
    ]
    assert values == [
        "cpu.tdpbusd.32",
        "cpu.tdpbusd.16",
        "cpu.vpdpbusd",
        "cpu.tdpbusd.32",
    ]


def deep_image(side, stride=1, taps=3, channels=32, made=64):
    """A convolution of bfloat16 with the channels last, summed in float32."""
    reach = stride * (side - 1) + taps
    x = Buffer("x", (2, reach, reach, channels), bfloat16)
    w = Buffer("w", (made, channels, taps, taps), bfloat16)
    y = Buffer("y", (2, side, side, made), float32)
    return reduce_(
        "conv",
        y,
        (channels, taps, taps),
        "add",
        lambda n, i, k, j, c, p, q: (
            cast(x[n, i * stride + p, k * stride + q, c], float32)
            * cast(w[j, c, p, q], float32)
        ),
    )


@pytest.mark.parametrize(
    ("side", "stride", "taps", "rows"),
    [
        (14, 1, 3, (1, 2, 14)),
        (14, 2, 3, (1, 2, 14)),
        (7, 1, 3, (1, 4, 7)),
        (17, 1, 3, (1, 2, 9)),
        (28, 1, 3, (1, 1, 28)),
    ],
)
def test_rows_of_tiles_fit_images(side, stride, taps, rows):
    """Narrow images fill tiles with whole rows, several of which share the weights."""
    c = deep_image(side, stride, taps)
    point = default([c], Context(NEW, {c.inputs[1]}))
    assert point.values["conv.tile"][:-1] == rows
    assert "tdpbf16ps(" in str(point.schedule)
    verify(point.schedule.kernel)
    *inputs, got = on_tiles(point.schedule.kernel)
    x, w = (a.astype(np.float64) for a in inputs)
    want = np.zeros(got.shape)
    for p in range(taps):
        for q in range(taps):
            ends = (stride * (side - 1) + 1 + n for n in (p, q))
            down, right = (
                slice(n, e, stride) for n, e in zip((p, q), ends, strict=True)
            )
            want += np.einsum("nikc,jc->nikj", x[:, down, right], w[:, :, p, q])
    np.testing.assert_array_equal(got, want)  # whole numbers below 2 ** 24: exact


@pytest.mark.parametrize(("side", "made"), [(7, 32), (14, 64)])
def test_a_kernel_of_one_pixel_windows_has_rows_of_several_images(side, made):
    """Its images are one row of pixels, of which a tile has a part; the user's tensors stay."""
    c = deep_image(side, taps=1, made=made)
    found = sketches(plain([c]), [c], Context(NEW, {c.inputs[1]}))
    point = found[0].default()
    assert found[0].name == "tiled"
    assert "tdpbf16ps(" in str(point.schedule)
    verify(point.schedule.kernel)
    x, w, y = on_tiles(point.schedule.kernel)
    assert x.shape == (2, side, side, 32)
    want = np.einsum("nikc,jcpq->nikj", x.astype(np.float64), w.astype(np.float64))
    np.testing.assert_array_equal(y, want)


def test_sums_over_more_loops_than_tiles_take_stay_in_memory():
    """Of a window of three dimensions, the outermost is around the product of tiles."""
    x = Buffer("x", (6, 6, 18, 32), bfloat16)
    w = Buffer("w", (32, 32, 3, 3, 3), bfloat16)
    y = Buffer("y", (4, 4, 16, 32), float32)
    c = reduce_(
        "conv",
        y,
        (32, 3, 3, 3),
        "add",
        lambda h, i, k, j, c, o, p, q: (
            cast(x[h + o, i + p, k + q, c], float32) * cast(w[j, c, o, p, q], float32)
        ),
    )
    point = default([c], Context(NEW, {w}))
    assert "tdpbf16ps.add(" in str(point.schedule)
    *inputs, got = on_tiles(point.schedule.kernel)
    a, b = (v.astype(np.float64) for v in inputs)
    windows = np.lib.stride_tricks.sliding_window_view(a, (3, 3, 3), (0, 1, 2))
    np.testing.assert_array_equal(got, np.einsum("hikcopq,jcopq->hikj", windows, b))


@pytest.mark.parametrize("side", [16, 32])
def test_random_points_with_tiles(side):
    computations = product(36, 33, 70)
    kernel = plain(computations)
    sketch = sketches(kernel, computations, Context(NEW))[0]
    r = random.Random(side)
    for _ in range(3):
        drawn = Choices(
            {"mm.intrinsic": f"cpu.tdpbusd.{side}"}, lambda _, some, __: r.choice(some)
        )
        after = sketch.run(drawn).kernel
        verify(after)
        x, w, y = (a.astype(np.int64) for a in on_tiles(after))
        np.testing.assert_array_equal(y, 2 * (x @ w))


def test_quantized_models_for_such_processors_use_tiles():
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> f (uint8[64, 64] x) => (int32[64, 64] y)'
        " <int8[64, 64] w = {" + ", ".join(str(n % 11 - 5) for n in range(4096)) + "}>"
        " { y = MatMulInteger(x, w) }"
    )
    assert "tdpbusd(" in text(model, "kernel", mcpu="sapphirerapids")
    assert "tdpbusd" in text(model, "asm", mcpu="sapphirerapids")
    assert "tdpbusd" not in text(model, "asm", mcpu="x86-64-v4")
