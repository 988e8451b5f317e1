"""Quantization and integer products, bit for bit as in onnx.reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx.helper import np_dtype_to_tensor_dtype

from tests.graph import one_operator
from tilewright.base.dtypes import float32, uint8
from tilewright.base.errors import ModelError
from tilewright.frontends.onnx.load import load
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph import interp
from tilewright.graph.nodes import Operation, Value

RNG = np.random.default_rng(3)
INTEGERS = [np.uint8, np.int8, np.uint16, np.int16, ml_dtypes.int4, ml_dtypes.uint4]
BYTES = [np.uint8, np.int8]
FLOATS = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz]


def agree(op_type, inputs, *, opset=23, **rest):
    one_operator.agree(op_type, inputs, opset=opset, rtol=0, atol=0, **rest)


def reals(*shape):
    return (RNG.standard_normal(shape) * 20).astype(np.float32)


@pytest.mark.parametrize("target", INTEGERS)
def test_quantize_per_axis(target):
    scale = np.array([0.5, 2.0, 3.0], np.float32)
    zero = np.array([1, 3, 0]).astype(target)
    agree("QuantizeLinear", [reals(2, 3, 9), scale, zero], axis=1)


@pytest.mark.parametrize("target", [*FLOATS, ml_dtypes.float4_e2m1fn])
def test_quantize_to_narrow_floats(target):
    zero = np.zeros((), target)
    agree("QuantizeLinear", [reals(4, 9), np.float32(0.01).reshape(()), zero])


@pytest.mark.parametrize("target", [*FLOATS, ml_dtypes.float4_e2m1fn])
def test_quantize_to_narrow_floats_without_a_zero_point(target):
    scale, number = (
        np.float32(0.01).reshape(()),
        np_dtype_to_tensor_dtype(np.dtype(target)),
    )
    agree("QuantizeLinear", [reals(4, 9) / 30, scale], output_dtype=number)


def test_the_zero_point_of_narrow_floats():
    """ONNX adds that of 4 bits, and takes that of 8 bits for the type alone."""
    scale = np.float32(0.01).reshape(())
    for target in (*FLOATS, ml_dtypes.float4_e2m1fn):
        agree("QuantizeLinear", [reals(3, 4) / 30, scale, np.array(1, target)])
    agree("DequantizeLinear", [reals(3, 4).astype(target), scale, np.array(1, target)])


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_a_zero_point_is_one_number_or_one_for_each_scale(op):
    """A vector beside one scale was taken for one per column, or for one per row of a product."""
    x = reals(4, 4) if op == "QuantizeLinear" else bytes_of(np.uint8, 4, 4)
    one, each, zeros = np.float32(0.5), abs(reals(4)) + 1, bytes_of(np.uint8, 4)
    with pytest.raises(
        ModelError, match=r"the zero point is \[4\] where the scale is \[\]"
    ):
        load(one_operator.model_of(op, [x, one, zeros], opset=23))
    for scale, zero in ((each, zeros), (each, np.uint8(3)), (one, np.uint8([3]))):
        agree(op, [np.asarray(v) for v in (x, scale, zero)])


@pytest.mark.parametrize("target", [*INTEGERS, *FLOATS])
def test_quantize_blocks_of_every_type(target):
    scale = np.abs(reals(2, 3, 4)) + np.float32(1)
    zero = RNG.integers(0, 4, (2, 3, 4)).astype(target)
    if target in FLOATS:
        zero = np.zeros((2, 3, 4), target)
    agree("QuantizeLinear", [reals(2, 8, 4), scale, zero], axis=1, block_size=3)


@pytest.mark.parametrize("source", [*INTEGERS, *FLOATS])
def test_dequantize_blocks_of_every_type(source):
    x = RNG.integers(0, 7, (2, 8, 4)).astype(source)
    zero = RNG.integers(0, 4, (2, 3, 4)).astype(source)
    if source in FLOATS:
        zero = np.zeros((2, 3, 4), source)
    scale = np.abs(reals(2, 3, 4))
    agree("DequantizeLinear", [x, scale, zero], axis=1, block_size=3)


@pytest.mark.parametrize("target", INTEGERS)
def test_ties_are_even_and_ends_are_kept(target):
    """Halves round to even; what does not fit is the nearest number that does.

    Infinities, too: the reference converts them to int32, where they are undefined.
    """
    halves = np.arange(-20, 21, dtype=np.float32) / 2
    far = np.array([-1e9, 1e9, 0.0, -0.0], np.float32)
    scale = np.array(1, np.float32)
    for zero in (0, 3):
        given = [np.concatenate([halves, far]), scale, np.array(zero).astype(target)]
        agree("QuantizeLinear", given)
    x, zero = np.array([-np.inf, np.inf], np.float32), np.array(0).astype(target)
    info = ml_dtypes.iinfo(target)
    ends = np.array([info.min, info.max]).astype(target)
    agree("QuantizeLinear", [x, scale, zero], expected=[ends])


@pytest.mark.parametrize("precision", [np.float32, np.float16])
def test_quantize_blocked(precision):
    scale = np.abs(reals(2, 3)).astype(np.float16) + np.float16(1)
    number = np_dtype_to_tensor_dtype(np.dtype(precision))
    x = reals(2, 8).astype(np.float16)
    agree("QuantizeLinear", [x, scale], axis=1, block_size=3, precision=number)


def test_blocks_of_a_vector():
    """Scales of blocks have the rank of the tensor, here that of scales along an axis."""
    scale, zero = np.array([0.5, 2, 3], np.float32), np.array([1, 3, 0], np.uint8)
    agree("QuantizeLinear", [reals(8), scale, zero], axis=0, block_size=3)
    x = np.arange(8, dtype=np.uint8)
    agree("DequantizeLinear", [x, scale, zero], axis=0, block_size=3)


@pytest.mark.parametrize("source", [*INTEGERS, np.int32])
def test_dequantize_per_axis(source):
    x = RNG.integers(0, 7, (2, 3, 9)).astype(source)
    scale, zero = np.array([0.5, 2, 3], np.float32), np.array([1, 3, 0]).astype(source)
    agree("DequantizeLinear", [x, scale, zero], axis=-2)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("scale", [np.float32(0.3), np.float16(0.25)])
def test_dequantize_narrow_floats(source, scale):
    agree("DequantizeLinear", [reals(4, 5).astype(source), np.asarray(scale)])


def test_dynamic():
    x = reals(5, 6)
    agree("DynamicQuantizeLinear", [x], outputs=3)
    agree("DynamicQuantizeLinear", [np.abs(x) + 1], outputs=3)
    agree("DynamicQuantizeLinear", [np.zeros((2, 2), np.float32)], outputs=3)


def bytes_of(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "shapes", [((3, 5), (5, 4)), ((2, 3, 5), (5, 4)), ((5,), (5,))]
)
@pytest.mark.parametrize("left", [np.uint8, np.int8])
def test_matmul_integer(shapes, left):
    a, b = bytes_of(left, *shapes[0]), bytes_of(np.int8, *shapes[1])
    agree("MatMulInteger", [a, b, np.array(7, left), np.array(-3, np.int8)])


def test_matmul_integer_zero_point_per_row_and_column():
    a, b = bytes_of(np.uint8, 3, 5), bytes_of(np.uint8, 5, 4)
    rows, columns = bytes_of(np.uint8, 3), bytes_of(np.uint8, 4)
    wide = [v.astype(np.int32) for v in (a, b, rows, columns)]
    want = (wide[0] - wide[2][:, None]) @ (wide[1] - wide[3])
    agree("MatMulInteger", [a, b, rows, columns], expected=[want])


def rounded(total, factor, zero, dtype):
    info = np.iinfo(dtype)
    found = np.rint(total.astype(np.float32) * factor) + np.float32(zero)
    return np.clip(found, info.min, info.max).astype(dtype)


@pytest.mark.covering(2)
@pytest.mark.parametrize("result", BYTES)
@pytest.mark.parametrize("right", BYTES)
@pytest.mark.parametrize("left", BYTES)
def test_products_of_bytes_of_every_sign(left, right, result):
    """With zero points; one scale for a matrix, as the reference has it."""
    a, b = bytes_of(left, 3, 9), bytes_of(right, 9, 4)
    za, zb, zy = np.array(7, left), np.array(5, right), np.array(9, result)
    a_scale, b_scale, y_scale = (np.array(s, np.float32) for s in (0.03, 0.02, 0.7))
    agree("QLinearMatMul", [a, a_scale, za, b, b_scale, zb, y_scale, zy])
    agree("MatMulInteger", [a, b, za, zb])


@pytest.mark.covering(2)
@pytest.mark.parametrize("result", BYTES)
@pytest.mark.parametrize("weight", BYTES)
@pytest.mark.parametrize("image", BYTES)
def test_convolutions_of_bytes_of_every_sign(image, weight, result):
    x, w = bytes_of(image, 1, 3, 6, 5), bytes_of(weight, 4, 3, 3, 2)
    zx, zw, zy = np.array(7, image), np.array(5, weight), np.array(9, result)
    x_scale, w_scale, y_scale = (np.array(s, np.float32) for s in (0.03, 0.02, 0.7))
    given = [x, x_scale, zx, w, w_scale, zw, y_scale, zy]
    agree("QLinearConv", given, pads=[1, 0, 1, 1], strides=[2, 1])


@pytest.mark.parametrize("weight", BYTES)
@pytest.mark.parametrize("image", BYTES)
def test_integer_convolutions_of_every_sign(image, weight):
    x, w = bytes_of(image, 1, 3, 6, 5), bytes_of(weight, 4, 3, 3, 2)
    agree("ConvInteger", [x, w, np.array(7, image), np.array(5, weight)], opset=10)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_matmul(dtype):
    a, b = bytes_of(dtype, 2, 3, 8), bytes_of(dtype, 8, 4)
    scales = (
        np.float32(0.03),
        np.array([0.1, 0.2, 0.3, 0.4], np.float32),
        np.float32(0.7),
    )
    za, zy = dtype(3), dtype(5)
    zb = bytes_of(dtype, 4)
    total = (a.astype(np.int32) - za) @ (b.astype(np.int32) - zb.astype(np.int32))
    want = rounded(total, scales[0] * scales[1] / scales[2], zy, dtype)
    inputs = [a, scales[0], za, b, scales[1], zb, scales[2], zy]
    agree("QLinearMatMul", [np.asarray(v) for v in inputs], expected=[want])


@pytest.mark.parametrize("group", [1, 2])
def test_conv_integer(group):
    x, w = bytes_of(np.uint8, 1, 4, 5, 6), bytes_of(np.uint8, 4, 4 // group, 3, 2)
    zeros = [np.array(11, np.uint8), np.array(100, np.uint8)]
    rest = {"pads": [1, 0, 1, 1], "strides": [2, 1], "group": group}
    agree("ConvInteger", [x, w, *zeros], opset=10, **rest)


def test_qlinear_conv():
    x, w = bytes_of(np.uint8, 1, 3, 6, 6), bytes_of(np.int8, 4, 3, 3, 3)
    x_scale, y_scale = np.float32(0.04), np.float32(0.9)
    w_scale = np.array([0.1, 0.2, 0.05, 0.07], np.float32)
    zx, zw, zy = np.uint8(120), np.zeros(4, np.int8), np.uint8(10)
    bias = RNG.integers(-900, 900, 4).astype(np.int32)
    padded = np.pad(x.astype(np.int32) - zx, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    total = np.einsum("nchwij,mcij->nmhw", windows, w.astype(np.int32))
    total = total + bias[:, None, None]
    want = rounded(total, (x_scale * w_scale / y_scale)[:, None, None], zy, np.uint8)
    inputs = [x, x_scale, zx, w, w_scale, zw, y_scale, zy, bias]
    arrays = [np.asarray(v) for v in inputs]
    agree("QLinearConv", arrays, pads=[1, 1, 1, 1], expected=[want])


@pytest.mark.parametrize("right", BYTES)
@pytest.mark.parametrize("left", BYTES)
def test_products_with_a_scale_and_zero_point_per_column(left, right):
    """As the reference, which has no scales per row: it takes a vector for one per column."""
    a, b = bytes_of(left, 2, 3, 9), bytes_of(right, 9, 4)
    b_scale = np.array([0.03, 0.2, 0.011, 0.07], np.float32)
    a_scale, y_scale = np.array(0.05, np.float32), np.array(0.7, np.float32)
    za, zb, zy = np.array(7, left), bytes_of(right, 4), np.array(9, left)
    agree("QLinearMatMul", [a, a_scale, za, b, b_scale, zb, y_scale, zy])


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("weight", BYTES)
@pytest.mark.parametrize("image", BYTES)
def test_convolutions_with_a_scale_and_zero_point_per_channel(image, weight, group):
    x, w = bytes_of(image, 2, 4, 6, 5), bytes_of(weight, 8, 4 // group, 3, 2)
    w_scale = np.abs(reals(8)) / 1000 + np.float32(0.001)
    x_scale, y_scale = np.array(0.05, np.float32), np.array(0.7, np.float32)
    zx, zw, zy = np.array(7, image), bytes_of(weight, 8), np.array(9, image)
    bias = RNG.integers(-900, 900, 8).astype(np.int32)
    given = [x, x_scale, zx, w, w_scale, zw, y_scale, zy, bias]
    rest = {"pads": [1, 0, 1, 1], "strides": [2, 1], "group": group}
    agree("QLinearConv", given, **rest)
    agree("QLinearConv", given, known=range(1, 9), **rest)


def test_a_product_in_the_middle_of_two_steps():
    """ONNX rounds what was divided to an even number, then adds the zero point; its reference adds
    first, which is the same for an even zero point."""
    a, b = np.array([[1, 3, 5, -1, -3]], np.int8).T, np.array([[1]], np.int8)
    half, one = np.array(0.5, np.float32), np.array(1, np.float32)
    none = np.array(0, np.int8)
    for zero in (0, 4):
        given = [a, half, none, b, one, none, one, np.array(zero, np.int8)]
        agree("QLinearMatMul", given)
    want = np.array([[0, 2, 2, 0, -2]], np.int8).T + np.int8(3)
    given = [a, half, none, b, one, none, one, np.array(3, np.int8)]
    agree("QLinearMatMul", given, expected=[want])


def test_a_tensor_of_unknown_shape_is_dequantized():
    """As one of a Loop is; the interpreter and the reference kernels are given what it holds."""
    whole, result = Value("x", uint8), Value("y", float32)
    scale, zero = Value("s", float32, ()), Value("z", uint8, ())
    op = Operation("DequantizeLinear", (whole, scale, zero), (result,), version=21)
    given = [np.arange(4, dtype=np.uint8), np.float32(0.5), np.uint8(1)]
    (found,) = interp.run_on(op, [np.asarray(a) for a in given], OnnxFallback())
    np.testing.assert_array_equal(found, np.array([-0.5, 0, 0.5, 1], np.float32))
