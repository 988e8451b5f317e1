"""Values and forms at the edge of the standard: NaN, infinities, one element, odd types.

Tests fix the behavior that docs/operators.md describes under "Where ONNX leaves the
result open".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx.parser
import onnx.reference
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base.errors import InputError, UnsupportedError

INF, NAN = np.inf, np.nan
F32, F64 = np.finfo(np.float32).max, np.finfo(np.float64).max
RNG = np.random.default_rng(4)


def model_of(opset: int, source: str, **constants: Any) -> Any:
    opsets = f'["" : {opset}, "com.microsoft" : 1]'
    model = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: {opsets}> f ({source}"
    )
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    return model


def ran(
    opset: int, source: str, *inputs: Any, mcpu: str = "native", **constants: Any
) -> Any:
    return tw.compile(model_of(opset, source, **constants), threads=1, mcpu=mcpu)(
        *inputs
    )


def reals(*values: float, dtype: Any = np.float32) -> Any:
    return np.array(values, dtype)


# ------------------------------------------------------------------- open, and pinned here


@pytest.mark.parametrize(("dtype", "high"), [(np.int8, 127), (np.uint8, 255)])
def test_quantized_nan_is_zero(dtype: Any, high: int) -> None:
    source = f"float[3] x) => ({np.dtype(dtype).name}[3] y) {{ y = QuantizeLinear(x, s, z) }}"
    found = ran(19, source, reals(NAN, INF, -INF), s=np.float32(0.1), z=dtype(3))
    assert found.tolist() == [0, high, np.iinfo(dtype).min]


@pytest.mark.parametrize("op", ["GlobalMaxPool(x)", "MaxPool<kernel_shape = [3]>(x)"])
def test_the_largest_of_nan_and_others_is_nan(op: str) -> None:
    x = reals(NAN, INF, 1, 1, NAN, 2, -INF, -INF, -INF).reshape(1, 3, 3)
    found = ran(13, f"float[1, 3, 3] x) => (float[1, 3, 1] y) {{ y = {op} }}", x)
    np.testing.assert_array_equal(found.ravel(), [NAN, NAN, -INF])


@pytest.mark.parametrize("pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    "op", ["Conv<{}>(x, w)", "MaxPool<{}, kernel_shape = [1]>(x)"], ids=["conv", "pool"]
)
def test_windows_that_a_stride_steps_over_begin_at_the_first_element(
    op: str, pad: str
) -> None:
    x = np.arange(12, dtype=np.float32).reshape(1, 1, 12)
    node = op.format(f'auto_pad = "{pad}", strides = [4]')
    source = f"float[1, 1, 12] x) => (float[1, 1, 3] y) {{ y = {node} }}"
    found = ran(21, source, x, w=np.ones((1, 1, 1), np.float32))
    assert found.ravel().tolist() == [0, 4, 8]


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_over_one_element(align: int) -> None:
    """A single element is in the middle, with aligned corners or without."""
    theta = RNG.standard_normal((2, 2, 3)).astype(np.float32)
    source = "float[2, 2, 3] x) => (float[2, 1, 1, 2] y) "
    source += f"{{ y = AffineGrid<align_corners = {align}>(x, size) }}"
    found = ran(20, source, theta, size=np.array([2, 3, 1, 1]))
    np.testing.assert_allclose(found.reshape(2, 2), theta[:, :, 2], rtol=1e-6)


def test_sums_of_squares_are_of_the_type() -> None:
    """LRN of values whose squares leave float32 is 0, as in ONNX Runtime."""
    x = np.full((1, 3, 1, 1), 1e25, np.float32)
    source = "float[1, 3, 1, 1] x) => (float[1, 3, 1, 1] y) { y = LRN<size = 3>(x) }"
    assert ran(13, source, x).tolist() == np.zeros((1, 3, 1, 1)).tolist()


# ---------------------------------------------------------------------- said by the standard


@pytest.mark.parametrize(
    ("alpha", "want"),
    [
        ("0.0", (0, NAN, NAN, NAN, 0)),
        ("-0.0", (NAN, NAN, 1, INF, NAN)),
        ("-1.0", (-np.expm1(2), 0, 1, INF, -INF)),
    ],
)
def test_celu_divides_by_its_alpha(alpha: str, want: Any) -> None:
    """As ONNX Runtime and ONNX's reference have it."""
    source = f"float[5] x) => (float[5] y) {{ y = Celu<alpha = {alpha}>(x) }}"
    found = ran(12, source, reals(-2, 0, 1, INF, -INF))
    np.testing.assert_allclose(found, reals(*want), rtol=1e-6)


@pytest.mark.parametrize(
    ("pad", "pads"), [("SAME_LOWER", [5, 4]), ("SAME_UPPER", [4, 5])]
)
def test_same_padding_of_a_dilated_pooling(pad: str, pads: list[int]) -> None:
    """The attribute decides the side of the odd element; elements outside are never the largest."""
    x = RNG.standard_normal((1, 5, 11)).astype(np.float32)
    x[0, 1], x[0, 2, 4], x[0, 3], x[0, 4] = -INF, INF, -F32, -1
    source = "float[1, 5, 11] x) => (float[1, 5, 11] y) "
    source += (
        f'{{ y = MaxPool<kernel_shape = [4], dilations = [3], auto_pad = "{pad}">(x) }}'
    )
    padded = np.pad(x, ((0, 0), (0, 0), tuple(pads)), constant_values=-INF)
    want = np.max([padded[..., k : k + 11] for k in range(0, 12, 3)], axis=0)
    np.testing.assert_array_equal(ran(12, source, x), want)


def test_transposed_convolution_of_large_values() -> None:
    """Nothing but the elements under the window is added: its neighbors may be infinite."""
    x = np.full((1, 1, 4, 4), F32, np.float32)
    x[0, 0, 0] = -2.4
    source = (
        "float[1, 1, 4, 4] x) => (float[1, 1, 12, 4] y) { y = ConvTranspose<auto_pad = "
    )
    source += '"SAME_LOWER", strides = [3, 1], dilations = [1, 2], kernel_shape = [1, 3]>(x, w) }'
    found = ran(11, source, x, w=reals(0, 1, 0).reshape(1, 1, 1, 3))
    np.testing.assert_array_equal(found[0, 0, ::3][found[0, 0, ::3] != 0], x.ravel())
    assert np.count_nonzero(found) == 16


@pytest.mark.parametrize("opset", [10, 13])
@pytest.mark.parametrize(("dtype", "most"), [(np.float64, F64), (np.float32, F32)])
def test_logarithms_of_softmax_at_the_end_of_the_type(
    opset: int, dtype: Any, most: Any
) -> None:
    name = "double" if dtype is np.float64 else "float"
    x = np.array([[most, -most, 0], [-most, -most, -most], [-most, 1, 2]], dtype)
    source = f"{name}[3, 3] x) => ({name}[3, 3] y) {{ y = LogSoftmax<axis = 1>(x) }}"
    third, top = -np.log(3), np.log1p(np.exp(-1))
    want = [[0, -INF, -most], [third] * 3, [-most, -1 - top, -top]]
    np.testing.assert_allclose(ran(opset, source, x), np.array(want, dtype), rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "bias"), [("int32", 0.5), ("uint8", 1.5), ("int8", -1.5), ("int64", 2.0)]
)
def test_shrink_of_integers(dtype: str, bias: float) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min // 2, info.max // 2, 0, 1, 2, 3, info.max - 3 & 127], dtype)
    source = f"{dtype}[7] x) => ({dtype}[7] y) {{ y = Shrink<lambd = 1.5, bias = {bias}>(x) }}"
    model = model_of(9, source)
    (want,) = onnx.reference.ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_array_equal(tw.compile(model, threads=1)(x), want)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("size", [(3, 8), (4, 3), (5, 6), (8, 9), (0, 6)], ids=str)
@pytest.mark.parametrize("known", [True, False])
def test_center_crop_pad(dtype: Any, size: tuple[int, int], known: bool) -> None:
    x, shape = RNG.standard_normal((5, 6)).astype(np.float32), np.array(size, dtype)
    given = "" if known else f", {np.dtype(dtype).name}[2] s"
    source = f"float[5, 6] x{given}) => (float[a, b] y) {{ y = CenterCropPad(x, s) }}"
    found = ran(18, source, x, s=shape) if known else ran(18, source, x, shape)
    want = np.zeros(size, np.float32)
    pairs = list(zip(x.shape, size))
    inner = tuple(
        slice(max(t - n, 0) // 2, max(t - n, 0) // 2 + min(n, t)) for n, t in pairs
    )
    middle = tuple(
        slice(max(n - t, 0) // 2, max(n - t, 0) // 2 + min(n, t)) for n, t in pairs
    )
    want[inner] = x[middle]
    np.testing.assert_array_equal(found, want)


@pytest.mark.filterwarnings("ignore:.*falls? back to the host")
@pytest.mark.parametrize("axis", [-1, -2, 0, 1])
def test_a_scan_of_nothing(axis: int) -> None:
    """No step is taken: the results have no element along the axis that they are stacked on."""
    shape = [3, 2]
    shape.insert(axis if axis >= 0 else 3 + axis, 0)
    source = f"float[2] s, float{shape} x) => (float[2] t, float[a, b, c] y) {{ "
    source += f"t, y = Scan<num_scan_inputs = 1, scan_input_axes = [{axis}], "
    source += f"scan_output_axes = [{axis}], body = b (float[2] p, float[3, 2] q) => "
    source += "(float[2] r, float[3, 2] z) { r = Neg(p) z = Neg(q) }>(s, x) }"
    s = reals(1, 2)
    state, found = ran(18, source, s, np.zeros(shape, np.float32))
    np.testing.assert_array_equal(state, s)
    assert found.shape == tuple(shape)


FUNCTIONS = "Tanh Sin Exp Log Sigmoid Erf Sinh Atan Softplus".split()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", FUNCTIONS)
def test_functions_of_float64_without_fma(op: str) -> None:
    """They are the same bit by bit: where the instruction is missing it is emulated exactly."""
    x = RNG.standard_normal(300) * 10.0 ** RNG.integers(-30, 30, 300)
    x = np.concatenate(
        [x, [0.0, -0.0, INF, -INF, NAN, 1e308, -1e308, 1.0, -1.0, 700.0, -745.2]]
    )
    source = f"double[311] x) => (double[311] y) {{ y = {op}(x) }}"
    old, new = (ran(20, source, x, mcpu=m) for m in ("x86-64-v2", "x86-64-v3"))
    both = np.isnan(old) & np.isnan(new)
    np.testing.assert_array_equal(old.view(np.int64)[~both], new.view(np.int64)[~both])


# ------------------------------------------------------------------------- refused, and how


def test_a_form_that_nothing_can_run_is_refused_when_compiled() -> None:
    source = "float[3, 3, 8] x) => (float[3, 3, 4] y) "
    source += "{ y = com.microsoft.FusedMatMul<transBatchA = 1>(x, w) }"
    model = model_of(17, source, w=np.ones((3, 8, 4), np.float32))
    with pytest.raises(
        UnsupportedError, match=r"in this form: .*FusedMatMul"
    ) as raised:
        tw.compile(model)
    assert "attributes, operands or types" in str(raised.value.hint)


def test_one_symbol_of_two_extents() -> None:
    exe = tw.compile(
        model_of(18, "float[N] a, float[N] b) => (float[N] y) { y = Add(a, b) }")
    )
    with pytest.raises(InputError, match=r"expected \[N\], got \[1\]") as raised:
        exe(reals(1, 2, 3), reals(1))
    assert "need different names in the model" in str(raised.value.hint)


def test_what_a_normalization_saves_for_a_gradient() -> None:
    source = "float[2, 4, 3] x) => (float[2, 4, 3] y, float[4] a) "
    source += "{ y, m, v, a = BatchNormalization(x, g, g, g, g) }"
    with pytest.raises(UnsupportedError, match="ONNX does not define"):
        tw.compile(model_of(9, source, g=np.ones(4, np.float32)))


@pytest.mark.parametrize("spatial", [0, 1])
def test_statistics_of_another_size(spatial: int) -> None:
    source = "float[2, 4, 3] x) => (float[2, 4, 3] y) "
    source += f"{{ y = BatchNormalization<spatial = {spatial}>(x, g, g, g, g) }}"
    with pytest.raises(tw.TilewrightError, match=r"scale has the shape \[3\]"):
        tw.compile(model_of(7, source, g=np.ones(3, np.float32)))


def test_attention_to_large_values_errs_by_rounding_alone():
    """Values of 1e10 that cancel: the bound is of their magnitudes, not of the result."""
    text = (
        '<ir_version: 10, opset_import: ["" : 21]> a (float[64, 8] q, float[64, 8] k,'
        " float[64, 8] v) => (float[64, 8] y) { t = Transpose(k) s = MatMul(q, t)"
        " p = Softmax(s) y = MatMul(p, v) }"
    )
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((64, 8)).astype(np.float32) for _ in range(3))
    v *= np.float32(1e10)
    found = tw.compile(onnx.parser.parse_model(text), cache=False)(q, k, v)
    scores = q.astype(np.float64) @ k.T
    weights = np.exp(scores - scores.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    magnitude = (np.abs(q) @ np.abs(k.T)).max(1, keepdims=True)
    rounded = 2.0**-24 * (5 * magnitude + 18) * (weights @ np.abs(v))
    assert (np.abs(found - weights @ v) <= rounded).all()
