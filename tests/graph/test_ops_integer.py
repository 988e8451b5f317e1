"""Products and convolutions of bytes: exact in int32 for both signednesses and any zero points."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tests.graph.one_operator import agree, model_of, run
from tilewright.base.errors import ModelError
from tilewright.driver.compile import text
from tilewright.frontends.onnx.load import load
from tilewright.graph.ops.registry import OpCall, definition_of

RNG = np.random.default_rng(7)
BYTES = (np.uint8, np.int8)


def drawn(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


def windows(x, zero, kernel, pads, strides):
    """Windows [n, c, h, w, i, j] of x less its zero point, with zeros around."""
    wide = np.pad(x.astype(np.int32) - zero, ((0, 0), (0, 0), *pads))
    found = np.lib.stride_tricks.sliding_window_view(wide, kernel, axis=(2, 3))
    return found[:, :, :: strides[0], :: strides[1]]


@settings(max_examples=14, deadline=None)
@given(
    size=st.sampled_from([(3, 20, 8), (1, 16, 5), (5, 7, 3), (6, 33, 12), (4, 18, 1)]),
    left=st.sampled_from(BYTES),
    right=st.sampled_from(BYTES),
    zeros=st.sampled_from(["none", "one", "each", "middle"]),
    known=st.sampled_from([(), (1,), (1, 3), (1, 2, 3)]),
)
def test_products_are_exact(size, left, right, zeros, known):
    m, n, k = size
    a, b = drawn(left, 2, m, k), drawn(right, k, n)
    points = {
        "none": (None, None),
        "one": (drawn(left), drawn(right)),
        "each": (drawn(left, m), drawn(right, n)),
        "middle": (
            left(128 if left is np.uint8 else 0),
            right(128 if right is np.uint8 else 0),
        ),
    }[zeros]
    za, zb = (np.int32(0) if p is None else np.asarray(p, np.int32) for p in points)
    za = za[:, None] if za.ndim else za
    want = (a.astype(np.int32) - za) @ (b.astype(np.int32) - zb)
    inputs = [a, b, *(None if p is None else np.asarray(p) for p in points)]
    known = tuple(i for i in known if inputs[i] is not None)
    agree("MatMulInteger", inputs, known=known, expected=[want])


@pytest.mark.parametrize(
    "shapes", [((5,), (5, 4)), ((3, 5), (5,)), ((5,), (5,))], ids=str
)
def test_vectors(shapes):
    a, b = drawn(np.int8, *shapes[0]), drawn(np.uint8, *shapes[1])
    zeros = np.int8(-4), np.uint8(9)
    want = (a.astype(np.int32) + 4) @ (b.astype(np.int32) - 9)
    agree("MatMulInteger", [a, b, *map(np.asarray, zeros)], expected=[np.asarray(want)])


@pytest.mark.slow
def test_int32_wraps_around():
    k = 140_000  # 255 * -128 * k is below -2**31
    a, b = np.full((1, k), 255, np.uint8), np.full((k, 1), -128, np.int8)
    want = (-255 * 128 * k + 2**31) % 2**32 - 2**31
    agree("MatMulInteger", [a, b], expected=[np.array([[want]], np.int32)])


@settings(max_examples=12, deadline=None)
@given(
    left=st.sampled_from(BYTES),
    right=st.sampled_from(BYTES),
    channels=st.sampled_from([(4, 18, 1), (3, 16, 1), (4, 6, 2), (6, 6, 6)]),
    per_channel=st.booleans(),
    pads=st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 2, 1)]),
    strides=st.sampled_from([(1, 1), (2, 1)]),
    known=st.booleans(),
)
def test_convolutions_are_exact(
    left, right, channels, per_channel, pads, strides, known
):
    c, m, group = channels
    x, w = drawn(left, 2, c, 7, 6), drawn(right, m, c // group, 3, 2)
    zx, zw = drawn(left), drawn(right, m) if per_channel else drawn(right)
    around = (pads[0], pads[2]), (pads[1], pads[3])
    taps = w.astype(np.int32) - (
        zw.astype(np.int32)[:, None, None, None] if per_channel else zw
    )
    data = windows(x, np.int32(zx), (3, 2), around, strides)
    parts = [
        np.einsum("nchwij,mcij->nmhw", d, t)
        for d, t in zip(np.split(data, group, 1), np.split(taps, group), strict=True)
    ]
    want = np.concatenate(parts, 1).astype(np.int32)
    arrays = [x, w, np.asarray(zx), np.asarray(zw)]
    rest = {
        "pads": pads,
        "strides": strides,
        "group": group,
        "known": (1, 2, 3) if known else (),
    }
    agree("ConvInteger", arrays, opset=10, expected=[want], **rest)


def test_constant_weights_leave_no_sums_to_do():
    a, b = drawn(np.int8, 8, 32), drawn(np.uint8, 32, 48)
    points = np.int8(3), drawn(np.uint8)
    model = model_of("MatMulInteger", [a, b, *map(np.asarray, points)], known=(1, 2, 3))
    graph = text(model, "graph")
    assert graph.count("= ReduceSum(") == 1  # of the rows of a; with the middle, none
    model = model_of("MatMulInteger", [a, b, points[0], np.uint8(128)], known=(1, 2, 3))
    assert "= ReduceSum(" not in text(model, "graph")


def test_a_convolution_without_pads_adds_none():
    x, w = drawn(np.uint8, 1, 4, 6, 6), drawn(np.int8, 8, 4, 3, 3)
    for pads, padded in (([0, 0, 0, 0], False), ([1, 0, 0, 0], True)):
        model = model_of("ConvInteger", [x, w, np.uint8(3)], known=(1, 2), pads=pads)
        assert ("= Pad(" in text(model, "graph")) is padded


def test_zero_points_per_row_of_each_matrix():
    a, b, rows = (
        drawn(np.uint8, 2, 3, 5),
        drawn(np.int8, 5, 4),
        drawn(np.uint8, 2, 3, 1),
    )
    want = (a.astype(np.int32) - rows) @ b.astype(np.int32)
    agree("MatMulInteger", [a, b, rows], expected=[want])


ONE, ZERO, KERNEL = np.float32(1), np.uint8(3), drawn(np.int8, 1, 2, 3, 3)
MAPS = drawn(np.uint8, 1, 2, 4, 4)
SIDES = [MAPS, ONE, ZERO, KERNEL, ONE, np.int8(0)]


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (
            "MatMulInteger",
            [drawn(np.uint8, 1, 5), drawn(np.int8, 5, 4), drawn(np.uint8, 3)],
        ),
        (
            "MatMulInteger",
            [drawn(np.uint8, 2, 5), drawn(np.int8, 5, 1), ZERO, drawn(np.int8, 3)],
        ),
        ("ConvInteger", [MAPS, KERNEL, ZERO, drawn(np.int8, 3)]),
        (
            "QLinearConv",
            [MAPS, ONE, ZERO, KERNEL, ONE, np.int8(0), np.ones(5, np.float32), ZERO],
        ),
        (
            "QLinearConv",
            [MAPS, ONE, ZERO, KERNEL, ONE, np.int8(0), ONE, ZERO, np.ones(5, np.int32)],
        ),
    ],
)
def test_a_parameter_that_would_stretch_the_result_is_refused(op, inputs):
    """Three zero points made three rows of one."""
    with pytest.raises(ModelError, match=r"do not fit: its decomposition yields"):
        load(model_of(op, [np.asarray(v) for v in inputs]))


CONV = [drawn(np.uint8, 1, 4, 6, 6), drawn(np.int8, 8, 2, 3, 3)]
QUANTIZED = [np.float32(1), np.uint8(0)]


@pytest.mark.parametrize(
    ("op", "inputs", "rest", "flops"),
    [
        (
            "MatMulInteger",
            [drawn(np.uint8, 2, 3, 5), drawn(np.int8, 5, 4)],
            {},
            2 * 2 * 3 * 4 * 5,
        ),
        ("ConvInteger", CONV, {"group": 2}, 2 * 8 * 4 * 4 * 2 * 3 * 3),
        ("QuantizeLinear", [np.zeros((3, 5), np.float32), *QUANTIZED], {}, 2 * 3 * 5),
        ("DequantizeLinear", [drawn(np.uint8, 3, 5), *QUANTIZED], {}, 2 * 3 * 5),
        (
            "DynamicQuantizeLinear",
            [np.zeros((3, 5), np.float32)],
            {"outputs": 3},
            4 * 3 * 5,
        ),
    ],
)
def test_the_work_is_counted(op, inputs, rest, flops):
    (node,) = load(model_of(op, [np.asarray(v) for v in inputs], **rest)).operations
    definition = definition_of(node)
    assert definition.flops(OpCall(node, {})) == flops


def test_the_product_of_a_model_is_done_by_dot_products():
    a, b = drawn(np.uint8, 8, 32), drawn(np.int8, 32, 48)
    model = model_of("MatMulInteger", [a, b, np.uint8(3)], known=(1, 2))
    assert "tdpbusd" in text(model, "kernel", mcpu="sapphirerapids")
    assert "vpdpbusd(" in text(model, "kernel", mcpu="cascadelake")
    assert "vpdpbusd" not in text(model, "kernel", mcpu="x86-64-v4")
    found = tw.compile(model, threads=1, cache=False, mcpu="x86-64-v3")(a)
    np.testing.assert_array_equal(found, (a.astype(np.int32) - 3) @ b.astype(np.int32))


def powers(base, power):
    """`Pow` as native code, which has to agree with its reference on arrays."""
    model = model_of("Pow", [base, power])
    (native,) = run(model, [base, power])
    (operation,) = load(model).operations
    call = OpCall(operation, {})
    (found,) = definition_of(operation).reference(call, base, power)
    np.testing.assert_array_equal(found, native)
    assert found.dtype == native.dtype == base.dtype
    return native


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_float_powers_that_are_no_integers_of_the_dtype(dtype):
    """Infinity and what is too large saturate, what is not a number is 0."""
    signed = np.iinfo(dtype).min < 0
    base = np.array([0, 2, 2, 7, 3, -2 if signed else 2], dtype)
    power = np.array([-1, -1, 70, 2, 5, 63], np.float32)
    if signed:
        power[5] = 0.5  # of a negative number
    found = powers(base, power)
    assert found[0] == found[2] == np.iinfo(dtype).max and found[1] == 0
    assert found[3] == 49


def exact_power(base, power, bits):
    if power >= 0:
        return pow(base, power, 1 << bits)
    return base ** (power % 2) if abs(base) == 1 else 0


@pytest.mark.sampled(6)  # each width, both signednesses, narrower and wider exponents
@pytest.mark.parametrize("exponents", ["int64", "uint8", "int8", "int32", "uint64"])
@pytest.mark.parametrize(
    "dtype",
    ["int64", "uint8", "int32", "int8", "uint16", "int16", "uint32", "uint64"],
)
def test_whole_powers_are_exact_modulo_the_width(dtype, exponents):
    """Also of even bases with high exponents only, and of -1 with negative ones."""
    of_base, of_power = np.iinfo(dtype), np.iinfo(exponents)
    bases = [
        0,
        1,
        2,
        3,
        6,
        7,
        of_base.min,
        of_base.max,
        of_base.max - 1,
        of_base.min + 5,
    ]
    counts = [
        0,
        1,
        2,
        5,
        7,
        8,
        31,
        32,
        33,
        63,
        64,
        65,
        of_power.max,
        of_power.max // 2 + 1,
    ]
    if of_base.min < 0:
        bases += [-1, -3]
    if of_power.min < 0:
        counts += [-1, -2, of_power.min]
    every = [(b, n) for b in bases for n in counts]
    base = np.array([b for b, _ in every], dtype)
    power = np.array([n for _, n in every], exponents)
    wanted = [exact_power(b, n, of_base.bits) % (1 << of_base.bits) for b, n in every]
    found = powers(base, power)
    assert found.view(f"u{found.itemsize}").tolist() == wanted


def test_a_constant_whole_power_is_made_by_squares():
    base = np.array([3, -2, 0, 10**9 + 7])
    for count in (0, 1, 6, 35, 2**62 + 1, -1):
        model = model_of("Pow", [base, np.int64(count)], known=(1,))
        (found,) = run(model, [base])
        wanted = [exact_power(int(b), count, 64) % 2**64 for b in base]
        assert found.view("u8").tolist() == wanted
