"""Operators on odd shapes: the NumPy reference and the Computations against onnx.reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tilewright.base.errors import ModelError
from tilewright.frontends.onnx import load
from tilewright.graph.interp import run, run_natively

RNG = np.random.default_rng(0)


def floats(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def build(op_type, inputs, constants=(), outputs=1, opset=21, **attributes):
    """A one-node model; `constants` are the positions of inputs that are initializers."""
    names = ["" if a is None else f"x{n}" for n, a in enumerate(inputs)]
    node = helper.make_node(
        op_type, names, [f"y{n}" for n in range(outputs)], **attributes
    )
    infos = [
        helper.make_tensor_value_info(
            n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in zip(names, inputs)
        if n and names.index(n) not in constants
    ]
    weights = [numpy_helper.from_array(inputs[n], names[n]) for n in constants]
    out = [
        helper.make_value_info(f"y{n}", helper.make_tensor_type_proto(0, None))
        for n in range(outputs)
    ]
    graph = helper.make_graph([node], "g", infos, out, weights)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10
    )


def check(op_type, inputs, constants=(), outputs=1, rtol=1e-4, **options):
    model = build(op_type, inputs, constants, outputs, **options)
    feeds = {
        f"x{n}": a for n, a in enumerate(inputs) if a is not None and n not in constants
    }
    want = ReferenceEvaluator(model).run(None, feeds)
    graph = load(model)
    if not graph.operations:
        return  # folded: everything was known
    (op,) = graph.operations
    values = {**graph.constants, **{v: feeds[v.name] for v in graph.inputs}}
    operands = [None if v is None else values[v] for v in op.inputs]
    native = run_natively(op, operands, graph.constants)
    assert native is not None
    for found in (run(op, values, None), native):
        for got, expected, value in zip(found, want, op.outputs):
            assert got.shape == expected.shape == value.extents
            assert got.dtype == expected.dtype == value.dtype.numpy
            np.testing.assert_allclose(
                got.astype(np.float64), expected.astype(np.float64), rtol, 1e-5
            )


UNARY = (
    "Abs Neg Exp Sqrt Sin Cos Tanh Sigmoid Relu Softplus Softsign Erf Floor Ceil Round Sign "
    "Elu Selu Celu HardSigmoid HardSwish Mish LeakyRelu ThresholdedRelu Gelu Reciprocal Shrink "
    "Identity IsNaN IsInf Atan Sinh Asinh"
).split()


@pytest.mark.parametrize("op_type", UNARY)
def test_unary(op_type):
    x = floats(3, 5)
    check(op_type, [np.abs(x) if op_type == "Sqrt" else x])


def test_narrow_floats_are_rounded_once():
    check("Gelu", [floats(4, 3, dtype=np.float16)], rtol=4e-3)
    check("Softmax", [floats(4, 3, dtype=np.float16)], rtol=2e-3)


shapes = st.lists(st.sampled_from([1, 2, 3, 5]), min_size=0, max_size=4)


@given(shapes, st.data(), st.sampled_from("Add Sub Mul Div Max Less Equal".split()))
@settings(max_examples=40, deadline=None)
def test_broadcasting(shape, data, op_type):
    cut = data.draw(st.integers(0, len(shape)))
    other = [data.draw(st.sampled_from([1, d])) for d in shape[cut:]]
    check(op_type, [floats(*shape), floats(*other)])


def test_zero_extents():
    check("Add", [floats(0, 3), floats(3)])
    check("Concat", [floats(0, 3), floats(2, 3)], axis=0)
    check("MatMul", [floats(2, 0), floats(0, 3)])
    check("ReduceSum", [floats(0, 3)], keepdims=1)


def test_integers():
    a = np.array([7, -7, 7, -7], np.int32)
    b = np.array([2, 2, -2, -2], np.int32)
    check("Div", [a, b])
    check("Mod", [a, b])
    check("Mod", [a, b], fmod=1)
    check("Pow", [a, np.array([2, 3, 1, 2], np.int64)])
    check("BitShift", [a.astype(np.uint8), np.ones(4, np.uint8)], direction="RIGHT")


@given(
    st.integers(1, 3), st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2),
    st.integers(5, 8), st.sampled_from([1, 2, 4]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_conv(kernel, stride, batch, dilation, pad, size, group):
    x = floats(batch, 4, size, size + 1)
    w = floats(4, 4 // group, kernel, kernel)
    check(
        "Conv", [x, w, floats(4)], group=group, strides=[stride] * 2, dilations=[dilation] * 2,
        pads=[pad, pad, pad, 0], kernel_shape=[kernel, kernel],
    )  # fmt: skip


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_conv_pads_itself(auto_pad):
    check("Conv", [floats(1, 2, 7), floats(3, 2, 4)], auto_pad=auto_pad, strides=[2])


@pytest.mark.parametrize("op_type", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("ceil", [0, 1])
@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 0]])
def test_pooling(op_type, ceil, pads):
    check(op_type, [floats(2, 3, 7, 6)], kernel_shape=[3, 2], strides=[2, 2], pads=pads,
          ceil_mode=ceil)  # fmt: skip


def test_average_with_padding_counted():
    check("AveragePool", [floats(1, 2, 6, 6)], kernel_shape=[3, 3], pads=[1, 1, 1, 1],
          count_include_pad=1)  # fmt: skip


@pytest.mark.parametrize("op_type", ["GlobalAveragePool", "GlobalMaxPool"])
def test_global_pooling(op_type):
    check(op_type, [floats(2, 3, 4, 5)])


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (4, 3)),
        ((2, 4), (4,)),
    ],
)
def test_matmul(a, b):
    check("MatMul", [floats(*a), floats(*b)])


@pytest.mark.parametrize("across", [0, 1])
@pytest.mark.parametrize("c", [None, (5,), (3, 1), ()])
def test_gemm(across, c):
    a = floats(4, 3) if across else floats(3, 4)
    inputs = [a, floats(5, 4)] + ([] if c is None else [floats(*c)])
    check("Gemm", inputs, transA=across, transB=1, alpha=0.5, beta=2.0)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
        ("ii->i", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 2)]),
    ],
)
def test_einsum(equation, shapes):
    check("Einsum", [floats(*s) for s in shapes], equation=equation)


REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare "
    "ReduceLogSumExp"
).split()


@pytest.mark.parametrize("op_type", REDUCTIONS)
@pytest.mark.parametrize("axes", [None, [1], [0, -1]])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions(op_type, axes, keepdims):
    x = floats(3, 4, 2)
    inputs = [x] if axes is None else [x, np.array(axes)]
    check(op_type, inputs, () if axes is None else (1,), keepdims=keepdims)


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
def test_arg_reductions_settle_ties(op_type, last):
    x = np.array([[1, 3, 3, 1], [2, 2, 2, 2]], np.float32)
    check(op_type, [x], axis=1, select_last_index=last)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax(op_type, axis):
    check(op_type, [floats(2, 3, 4) * 10], axis=axis, rtol=1e-3)


def test_softmax_of_opset_11_takes_all_axes_behind():
    x = floats(2, 3, 4)  # onnx.reference knows the newer meaning only
    (op,) = load(build("Softmax", [x], axis=1, opset=11)).operations
    e = np.exp(x.reshape(2, 12))
    want = (e / e.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(run_natively(op, [x])[0], want, 1e-5)
    np.testing.assert_allclose(run(op, {op.inputs[0]: x}, None)[0], want, 1e-5)


def test_normalizations():
    x = floats(2, 4, 5)
    check("LayerNormalization", [x, floats(5), floats(5)], outputs=3, axis=-1)
    check("LayerNormalization", [x, floats(4, 5)], axis=1)
    check("InstanceNormalization", [x, floats(4), floats(4)])
    check("MeanVarianceNormalization", [x], axes=[1, 2])
    check("RMSNormalization", [x, floats(5)], opset=23)
    statistics = [floats(4), floats(4), floats(4), np.abs(floats(4))]
    check("BatchNormalization", [x, *statistics])


@pytest.mark.parametrize("shape", [(64,), (5, 2, 1), (1, 1, 1)])
@pytest.mark.parametrize("norm", ["LayerNormalization", "RMSNormalization"])
def test_a_scale_that_would_stretch_the_input_is_refused(norm, shape):
    model = build(norm, [floats(2, 1), floats(*shape)], opset=23)
    with pytest.raises(ModelError, match=r"scale has the shape \[.*stretch the input"):
        load(model)


@pytest.mark.parametrize("shape", [(64,), (1, 1), ()])
def test_an_instance_norm_has_a_scale_of_each_channel(shape):
    model = build("InstanceNormalization", [floats(2, 1, 5), floats(*shape), floats(1)])
    with pytest.raises(ModelError, match=r"scale has the shape \[.*, expected \[1\]"):
        load(model)


def ints(*values):
    return np.array(values, np.int64)


def test_moving_elements():
    x = floats(2, 3, 4)
    check("Reshape", [x, ints(4, -1)], (1,))
    check("Reshape", [x, ints(0, 2, 6)], (1,))
    check("Reshape", [floats(6, 4), ints(2, 3, 2, 2)], (1,))
    check("Flatten", [x], axis=2)
    check("Transpose", [x], perm=[2, 0, 1])
    check("Squeeze", [floats(1, 3, 1), ints(0)], (1,))
    check("Unsqueeze", [x, ints(0, -1)], (1,))
    check("Expand", [floats(3, 1), ints(2, 1, 4)], (1,))
    check("Tile", [x, ints(1, 2, 3)], (1,))
    check("Concat", [x, floats(2, 5, 4)], axis=1)
    check("Split", [floats(7, 2)], outputs=3, axis=0, num_outputs=3)
    check("Split", [floats(7, 2), ints(2, 5)], (1,), outputs=2)
    check(
        "Slice", [x, ints(-1, 0), ints(-100, 3), ints(1, 2), ints(-1, 2)], (1, 2, 3, 4)
    )
    check("Gather", [x, np.array([[0, -1], [2, 1]])], axis=1)
    check("Gather", [x, np.array(1)], (1,), axis=2)
    check("GatherElements", [x, RNG.integers(-3, 3, (2, 2, 4))], axis=1)
    check("Where", [floats(2, 1) > 0, floats(2, 3), floats(3)])
    check("Clip", [x, np.float32(-0.5).reshape(()), None], (1,))
    check("Trilu", [floats(4, 5), np.array(1)], (1,), upper=0)


@pytest.mark.parametrize("flag", [0, 2, -1])
def test_a_flag_is_set_by_1_alone(flag):
    x = floats(2, 3, 4)
    check("ReduceMax", [x], opset=13, axes=[1], keepdims=flag)
    model = build("Reshape", [x, np.array([2, 0, 4, 1])], (1,), allowzero=flag)
    (op,) = load(model).operations
    assert op.outputs[0].extents == (2, 3, 4, 1)


def test_the_bounds_that_an_old_clip_lacks_are_the_greatest_numbers():
    x = np.array([-np.inf, -2, 0.5, np.inf], np.float32)
    check("Clip", [x], opset=6, max=0.25)
    check("Clip", [x], opset=6, min=-1.0)
    check("Clip", [x], opset=6)


@pytest.mark.parametrize(
    "target", [np.float64, np.float16, np.int32, np.uint8, np.bool_]
)
def test_casts(target):
    check(
        "Cast",
        [np.abs(floats(5)) * 10],
        to=helper.np_dtype_to_tensor_dtype(np.dtype(target)),
    )


def test_an_index_out_of_range_names_the_node():
    with pytest.raises(ModelError, match="Gather"):
        op = load(build("Gather", [floats(3), np.array(7)], (1,))).operations[0]
        run_natively(op, [floats(3), np.array(7)])


@pytest.mark.parametrize("start", [0, 1, 2, -1, None])
def test_before_version_7_an_attribute_says_where_operand_1_lies(start):
    a = floats(2, 3, 4)
    axis = 2 if start is None else start
    b = floats(a.shape[axis])
    options = {} if start is None else {"axis": start}
    graph = load(build("Sub", [a, b], opset=6, broadcast=1, **options))
    (op,) = graph.operations
    behind = (1,) * (2 - axis % 3)
    want = a - b.reshape(*b.shape, *behind)
    np.testing.assert_array_equal(
        run(op, dict(zip(graph.inputs, (a, b))), None)[0], want
    )
    np.testing.assert_array_equal(run_natively(op, (a, b))[0], want)


@pytest.mark.parametrize("shape", [(5,), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("count", [1, None])
def test_prelu_6_has_one_slope_per_channel(shape, count):
    channel = 1 if len(shape) > 1 else 0
    x, slope = floats(*shape), floats(count or shape[channel])
    graph = load(build("PRelu", [x, slope], opset=6))
    (op,) = graph.operations
    spread = slope.reshape(-1, *(1,) * (len(shape) - 1 - channel))
    want = np.where(x < 0, x * spread, x)
    np.testing.assert_array_equal(
        run(op, dict(zip(graph.inputs, (x, slope))), None)[0], want
    )
    np.testing.assert_array_equal(run_natively(op, (x, slope))[0], want)
