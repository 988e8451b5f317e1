"""Products and windows over many shapes and dtypes: MatMul, Gemm, Einsum, ConvTranspose, LpPool."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.graph.one_operator import agree, model_of, run
from tilewright.base.dtypes import float32
from tilewright.base.errors import ModelError
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.nodes import Operation, Value

RNG = np.random.default_rng(5)


def reals(*shape):
    return RNG.standard_normal(shape, dtype=np.float32)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "shapes",
    [
        ((4,), (4,)),
        ((4,), (4, 3)),
        ((2, 4), (4,)),
        ((4,), (2, 4, 3)),
        ((2, 3, 4), (4,)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 4), (4, 1)),
        ((2, 3, 1), (1, 5)),
        ((0, 4), (4, 3)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint64", "float16"])
def test_matmul(shapes, dtype):
    a, b = ((reals(*s) * 4).astype(dtype) for s in shapes)
    with np.errstate(all="ignore"):
        wide = (v.astype(np.float32) if dtype == "float16" else v for v in (a, b))
        want = np.asarray(np.matmul(*wide)).astype(dtype)
    agree(
        "MatMul",
        [a, b],
        expected=[want],
        rtol=1e-3 if dtype == "float16" else 1e-5,
        atol=1e-5,
    )


@settings(max_examples=12, deadline=None)
@given(
    across=st.booleans(),
    down=st.booleans(),
    alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([0.0, 1.0, 2.0]),
    bias=st.sampled_from([None, (), (5,), (3, 1), (3, 5), (1, 1)]),
    dtype=st.sampled_from(["float32", "float64", "int32"]),
)
def test_gemm(across, down, alpha, beta, bias, dtype):
    if dtype == "int32":
        alpha, beta = 1.0, 1.0
    a, b = reals(4, 3) if across else reals(3, 4), reals(5, 4) if down else reals(4, 5)
    inputs = [a * 3, b * 3] + ([] if bias is None else [np.asarray(reals(*bias) * 3)])
    given = [np.asarray(v, dtype) for v in inputs]
    left, right = given[0].T if across else given[0], given[1].T if down else given[1]
    want = alpha * (left @ right)
    if bias is not None:
        want = want + beta * given[2]
    attributes = {
        "alpha": alpha,
        "beta": beta,
        "transA": int(across),
        "transB": int(down),
    }
    agree("Gemm", given, expected=[want.astype(dtype)], atol=1e-4, **attributes)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij->", [(2, 3)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 4)]),
        ("bij,bjk,kl->bil", [(2, 3, 4), (2, 4, 2), (2, 5)]),
        ("ij,kl->ijkl", [(2, 3), (2, 2)]),
        ("aabb->ab", [(2, 2, 3, 3)]),
        ("ij , jk", [(2, 3), (3, 4)]),
    ],
)
def test_einsum(equation, shapes):
    operands = [reals(*s) for s in shapes]
    want = np.asarray(np.einsum(equation.replace(" ", ""), *operands))
    agree("Einsum", operands, equation=equation, expected=[want], atol=1e-5)


@settings(max_examples=16, deadline=None)
@given(
    strides=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    dilations=st.lists(st.integers(1, 4), min_size=2, max_size=2),
    pads=st.lists(st.integers(0, 1), min_size=4, max_size=4),
    group=st.sampled_from([1, 2]),
    bias=st.booleans(),
)
@example(strides=[2, 4], dilations=[2, 2], pads=[0, 1, 1, 0], group=1, bias=True)
@example(strides=[3, 2], dilations=[1, 4], pads=[1, 1, 1, 1], group=2, bias=False)
def test_conv_transpose(strides, dilations, pads, group, bias):
    agrees_transposed(strides, dilations, pads, group, bias)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"),
    [
        ((2, 3), (3, 2), (1, 1)),  # phases without weights, phases of one and of two
        ((3, 2), (2, 2), (1, 1)),
        ((5, 1), (4, 3), (1, 1)),
        ((1, 4), (1, 3), (2, 2)),
        ((3, 2), (2, 3), (3, 2)),  # phases that begin at different inputs
        ((5, 3), (3, 2), (2, 5)),
        ((3, 4), (4, 2), (2, 6)),  # results that no weight reaches
        ((2, 1), (7, 5), (3, 3)),
    ],
)
def test_infinite_inputs_of_conv_transpose_stay_where_weights_are(
    kernel, strides, dilations
):
    x = reals(1, 2, 4, 3)
    x[0, 0, 1, 2], x[0, 1, 3, 0] = np.inf, -np.inf
    agrees_transposed(strides, dilations, (0, 1, 1, 0), 1, True, kernel, x)


@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_infinite_weights_of_conv_transpose_are_not_multiplied_by_padding(strides):
    w = reals(4, 6, 3, 2)
    w[1, 0, 2, 0], w[2, 3, 0, 1] = np.inf, -np.inf
    agrees_transposed(strides, (1, 1), (1, 1, 0, 1), 1, False, w=w, known=[1])


def agrees_transposed(
    strides, dilations, pads, group, bias, kernel=(3, 2), x=None, w=None, known=()
):
    x = reals(2, 4, 4, 3) if x is None else x
    batch, channels = x.shape[:2]
    w = reals(channels, 6 // group, *kernel) if w is None else w
    full = np.zeros(
        (
            batch,
            6,
            *(
                (n - 1) * s + (k - 1) * d + 1
                for n, s, k, d in zip(
                    x.shape[2:], strides, w.shape[2:], dilations, strict=True
                )
            ),
        ),
        np.float32,
    )
    per, each = 6 // group, channels // group
    for h, v, i, j in np.ndindex(*x.shape[2:], *kernel):
        for g in range(group):
            part = x[:, g * each : (g + 1) * each, h, v]
            weights = w[g * each : (g + 1) * each, :, i, j]
            at = h * strides[0] + i * dilations[0], v * strides[1] + j * dilations[1]
            with np.errstate(invalid="ignore"):
                full[:, g * per : (g + 1) * per, at[0], at[1]] += part @ weights
    want = full[
        :, :, pads[0] : full.shape[2] - pads[2], pads[1] : full.shape[3] - pads[3]
    ]
    b = [reals(6)] if bias else []
    want = want + b[0][:, None, None] if bias else want
    geometry = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": group,
    }
    agree(
        "ConvTranspose", [x, w, *b], expected=[want], known=known, atol=1e-4, **geometry
    )


def transposed(x, w, b=None, **attributes):
    """By the host fallback, as for operands whose shapes are not known in advance."""
    names = [Value(n, float32) for n in ("x", "w", "b")[: 2 if b is None else 3]]
    outputs = (Value("y", float32),)
    op = Operation("ConvTranspose", tuple(names), outputs, attributes, "", 11)
    arrays = [x, w] if b is None else [x, w, b]
    (found,) = OnnxFallback().run(op, arrays)
    return found


@pytest.mark.covering(1)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize(
    ("strides", "dilations", "pads"),
    [
        ([1, 1], [1, 1], [0] * 4),
        ([2, 3], [1, 2], [1, 0, 0, 1]),
        ([3, 1], [2, 1], [0] * 4),
    ],
)
def test_host_fallback_of_conv_transpose(group, strides, dilations, pads):
    """Native code and a host fallback agree, with more channels than one per group."""
    x, w, b = reals(2, 4, 4, 3), reals(4, 6 // group, 3, 2), reals(6)
    geometry = {
        "group": group,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
    }
    found = transposed(x, w, b, **geometry)
    agree("ConvTranspose", [x, w, b], expected=[found], atol=1e-4, **geometry)


@pytest.mark.covering(1)
@pytest.mark.parametrize(
    "shape",
    [
        {"output_padding": [1], "strides": [2]},
        {"output_shape": [12], "strides": [2]},
        {"output_shape": [4], "strides": [2]},
        {"auto_pad": "SAME_UPPER", "strides": [2]},
        {"auto_pad": "SAME_LOWER", "strides": [3]},
        {"auto_pad": "VALID"},
    ],
)
@pytest.mark.parametrize("batch", [0, 2])
def test_host_fallback_of_conv_transpose_where_its_extent_is_asked_for(shape, batch):
    x, w = reals(batch, 2, 4), reals(2, 3, 3)
    found = transposed(x, w, **shape)
    agree("ConvTranspose", [x, w], expected=[found], atol=1e-4, **shape)


@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_a_bias_has_a_number_for_each_channel(name):
    """NumPy would repeat a single one; native code refuses it, and so does the host fallback."""
    names = tuple(Value(n, float32) for n in ("x", "w", "b"))
    op = Operation(name, names, (Value("y", float32),), {}, "", 11)
    x, w = reals(1, 4, 5), reals(4, 4, 3)
    assert OnnxFallback().run(op, [x, w, reals(4)])[0].shape[1] == 4
    for bias in (reals(1), reals(4, 1)):
        with pytest.raises(ModelError, match="of 4 channels"):
            OnnxFallback().run(op, [x, w, bias])


def test_infinite_weights_are_multiplied_by_padding_of_conv_as_by_others():
    x, w = reals(1, 1, 4), reals(1, 1, 3)
    w[0, 0, 0] = np.inf
    (found,) = agree("Conv", [x, w], pads=[1, 1])
    assert np.isnan(found[0, 0, 0]) and not np.isnan(found[0, 0, 1:]).any()


def test_infinite_weights_of_conv_transpose_at_run_time_are_multiplied_by_padding():
    """Constant ones are not: see above."""
    x, w = np.ones((1, 1, 4), np.float32), np.ones((1, 1, 3), np.float32)
    w[0, 0, 0] = np.inf
    (found,) = run(model_of("ConvTranspose", [x, w]), [x, w])
    np.testing.assert_array_equal(found, [[[np.inf] * 4 + [np.nan] * 2]])
    (found,) = run(model_of("ConvTranspose", [x, w], known=[1]), [x, w])
    np.testing.assert_array_equal(found, [[[np.inf] * 4 + [2, 1]]])


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 0, 1, 1]])
def test_lp_pool(p, pads):
    x = reals(1, 2, 5, 6)
    padded = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2, 3), (2, 3))[
        :, :, ::2
    ]
    want = (np.abs(windows) ** p).sum((-1, -2)) ** (1 / p)
    attributes = {"kernel_shape": [2, 3], "strides": [2, 1], "pads": pads, "p": p}
    agree("LpPool", [x], expected=[want.astype(np.float32)], **attributes)
