"""Models in QDQ form: products, convolutions and selections of dequantized bytes are done on the
bytes, exactly as ONNX's integer operators say."""

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import tilewright as tw
from tilewright.base import dtypes, events
from tilewright.driver.compile import text
from tilewright.frontends.onnx import load
from tilewright.graph.rules import quantization

RNG = np.random.default_rng(3)
DOTS = "sapphirerapids"  # has dot products of bytes


def model_of(nodes: str, result: str, **constants: np.ndarray):
    """A model of `x`, which nodes take to `y`; its weights and parameters by name."""
    source = f'<ir_version: 10, opset_import: ["" : 21]> f ({result}) {{ {nodes} }}'
    model = onnx.parser.parse_model(source)
    arrays = (numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items())
    model.graph.initializer.extend(arrays)
    return model


def drawn(dtype, *shape):
    info = np.iinfo(dtype)
    return RNG.integers(info.min, info.max + 1, shape).astype(dtype)


SCALES = {
    "one": np.float32(0.02),
    "each": np.linspace(0.01, 0.05, 20, dtype=np.float32),
}
DQ = "xr = DequantizeLinear(x, xs, xz)  wr = DequantizeLinear{axis}(w, ws, wz)"


@pytest.mark.parametrize("scales", ["one", "each"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_matrix_products(scales, dtype):
    ws = SCALES[scales]
    wz = drawn(dtype, *ws.shape)
    x, w = drawn(np.uint8, 6, 12), drawn(dtype, 12, 20)
    constants = {
        "w": w,
        "ws": ws,
        "wz": wz,
        "xs": np.float32(0.03),
        "xz": np.uint8(130),
    }
    nodes = DQ.format(axis="<axis = 1>") + " y = MatMul(xr, wr)"
    model = model_of(nodes, "uint8[6, 12] x) => (float[6, 20] y", **constants)
    assert "matmulinteger(" in text(model, "computation", mcpu=DOTS)
    assert "matmulinteger(" not in text(model, "computation", math="exact", mcpu=DOTS)
    assert "matmulinteger(" not in text(model, "computation", mcpu="x86-64-v3")
    real_x, real_w = x.astype(np.int32) - 130, w.astype(np.int32) - wz.astype(np.int32)
    want = (real_x @ real_w).astype(np.float32) * (np.float32(0.03) * ws)
    found = tw.compile(model, threads=1, cache=False)(x)
    error = 1e-6 * np.abs(want)
    if "matmulinteger(" not in text(model, "computation"):
        # Sums of float32: twelve products, each rounded, one unit of which is 0.0003 or more.
        error = error + 12 * 2.0**-24 * (np.abs(real_x) @ np.abs(real_w)) * (0.03 * ws)
    assert (np.abs(found - want) <= error).all()


@pytest.mark.parametrize("scales", ["one", "each"])
def test_convolutions_between_quantizers(scales):
    ws = SCALES[scales]
    x, w = drawn(np.uint8, 1, 6, 8, 8), drawn(np.int8, 20, 6, 3, 3)
    constants = {
        "w": w, "ws": ws, "wz": np.zeros(ws.shape, np.int8), "xs": np.float32(0.03),
        "xz": np.uint8(120), "ys": np.float32(0.5), "yz": np.uint8(128),
        "b": RNG.standard_normal(20).astype(np.float32),
    }  # fmt: skip
    nodes = DQ.format(axis="<axis = 0>") + " r = Conv<pads = [1, 1, 1, 1]>(xr, wr, b)"
    nodes += " y = QuantizeLinear(r, ys, yz)"
    model = model_of(
        nodes, "uint8[1, 6, 8, 8] x) => (uint8[1, 20, 8, 8] y", **constants
    )
    assert "convinteger(" in text(model, "computation", mcpu=DOTS)
    fast, exact = (
        tw.compile(model, threads=1, cache=False, math=m)(x).astype(int)
        for m in ("default", "exact")
    )
    assert (
        np.abs(fast - exact).max() <= 1
    )  # where a sum in float32 rounds to the other side
    assert (fast != exact).mean() < 0.01


def requantized(total, ratio, zero, dtype):
    """ONNX's QLinear operators: float32 in between, ties to even, saturated."""
    info = np.iinfo(dtype)
    found = np.rint(total.astype(np.float32) * np.float32(ratio)) + zero
    return np.clip(found, info.min, info.max).astype(dtype)


BYTES = (np.uint8, np.int8)


@pytest.mark.covering(1)
@pytest.mark.parametrize("left", BYTES)
@pytest.mark.parametrize("right", BYTES)
@pytest.mark.parametrize(
    ("depth", "many", "out", "stride"),
    [(5, 18, np.uint8, [1, 1]), (4, 40, np.int8, [2, 1])],
    ids=["odd", "even"],
)
def test_quantized_convolutions_are_exact(depth, many, out, stride, left, right):
    x, w = drawn(left, 1, 2 * depth, 7, 6), drawn(right, many, depth, 3, 3)
    ws = np.linspace(0.001, 0.003, many, dtype=np.float32)
    xs, ys, xz, yz = np.float32(0.02), np.float32(0.03), drawn(left), drawn(out)
    bias = RNG.integers(-3000, 3000, many).astype(np.int32)
    constants = {"w": w, "ws": ws, "wz": np.zeros(many, right), "xs": xs, "xz": xz, "ys": ys,
                 "yz": yz, "b": bias, "bs": xs * ws, "bz": np.zeros(many, np.int32)}  # fmt: skip
    nodes = DQ.format(axis="<axis = 0>") + " br = DequantizeLinear<axis = 0>(b, bs, bz)"
    nodes += (
        f" r = Conv<pads = [1, 0, 1, 2], group = 2, strides = {stride}>(xr, wr, br)"
    )
    nodes += " y = QuantizeLinear(r, ys, yz)"
    wide = np.pad(x.astype(np.int32) - xz, ((0, 0), (0, 0), (1, 1), (0, 2)))
    found = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    found = found[:, :, :: stride[0], :: stride[1]]
    halves = zip(np.split(found, 2, 1), np.split(w.astype(np.int32), 2), strict=True)
    total = np.concatenate([np.einsum("nchwij,mcij->nmhw", d, t) for d, t in halves], 1)
    each = (slice(None), None, None)
    want = requantized(total + bias[each], (xs * ws / ys)[each], np.int32(yz), out)
    types = {np.uint8: "uint8", np.int8: "int8"}
    heads = (f"{types[t]}[{', '.join(map(str, a.shape))}] {n}" for t, a, n in
             ((left, x, "x"), (out, want, "y")))  # fmt: skip
    model = model_of(nodes, ") => (".join(heads), **constants)
    np.testing.assert_array_equal(tw.compile(model, threads=1, cache=False)(x), want)
    assert "DequantizeLinear(" not in text(model, "graph", mcpu=DOTS)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("biased", [True, False])
def test_quantized_linear_layers_are_exact(transposed, biased):
    x, w = drawn(np.uint8, 5, 13), drawn(np.int8, 13, 18)
    ws, xs, ys = (
        np.linspace(0.01, 0.02, 18, dtype=np.float32),
        np.float32(0.1),
        np.float32(3),
    )
    bias = RNG.integers(-3000, 3000, 18).astype(np.int32)
    constants = {"w": w.T if transposed else w, "ws": ws, "wz": np.zeros(18, np.int8), "xs": xs,
                 "xz": np.uint8(99), "ys": ys, "yz": np.uint8(7)}  # fmt: skip
    nodes = DQ.format(axis=f"<axis = {1 - transposed}>")
    if biased:
        constants |= {"b": bias, "bs": xs * ws}
        nodes += " br = DequantizeLinear<axis = 0>(b, bs)"
    nodes += f" r = Gemm<transB = {transposed}>(xr, wr{', br' * biased})"
    model = model_of(
        nodes + " y = QuantizeLinear(r, ys, yz)",
        "uint8[5, 13] x) => (uint8[5, 18] y",
        **constants,
    )
    total = (x.astype(np.int32) - 99) @ w.astype(np.int32) + biased * bias
    want = requantized(total, xs * ws / ys, 7, np.uint8)
    assert "vpdpbusd(" in text(model, "kernel", mcpu=DOTS)
    np.testing.assert_array_equal(tw.compile(model, threads=1, cache=False)(x), want)


@pytest.mark.parametrize(
    ("shape", "axis", "whole"),
    [
        ((4, 4), 1, True),
        ((4, 4), 0, False),
        ((1, 4), 1, True),
        ((4, 1), 0, False),
        ((1,), 0, True),
    ],
    ids=str,
)
def test_a_bias_is_added_in_int32_where_its_scales_are_those_of_the_columns(
    shape, axis, whole
):
    x, w = drawn(np.uint8, 4, 8), drawn(np.int8, 8, 4)
    ws = (
        np.linspace(0.01, 0.02, 4, dtype=np.float32)
        if shape != (1,)
        else np.full(4, 0.01, "f")
    )
    bs = np.float32(0.1) * ws[: shape[axis]]
    constants = {"w": w, "ws": ws, "wz": np.zeros(4, np.int8), "xs": np.float32(0.1),
                 "xz": np.uint8(99), "ys": np.float32(0.5), "yz": np.uint8(7), "bs": bs,
                 "b": RNG.integers(-3000, 3000, shape).astype(np.int32)}  # fmt: skip
    nodes = (
        DQ.format(axis="<axis = 1>") + f" br = DequantizeLinear<axis = {axis}>(b, bs)"
    )
    nodes += " r = Gemm(xr, wr, br) y = QuantizeLinear(r, ys, yz)"
    model = model_of(nodes, "uint8[4, 8] x) => (uint8[4, 4] y", **constants)
    with events.record() as log:
        text(model, "graph", mcpu=DOTS)
    fired = [
        e.fields["rule"] for e in log if e.kind == "rule" and e.fields["set"] == "graph"
    ]
    (rule,) = (name for name in fired if name.startswith("product-"))
    assert rule == ("product-in-bytes" if whole else "product-of-bytes")
    fast, exact = (
        tw.compile(model, threads=1, cache=False, math=m)(x).astype(int)
        for m in ("default", "exact")
    )
    assert np.abs(fast - exact).max() <= 1


def quantized_twice(
    middle: str, first: float, second: float, zero: int, shape: str = "1, 2, 6, 6"
):
    """uint8 to uint8 by way of the reals, each side with its scale; both have one zero point."""
    nodes = f"r = DequantizeLinear(x, s, z) {middle} y = QuantizeLinear(t, u, z)"
    constants = {"s": np.float32(first), "u": np.float32(second), "z": np.uint8(zero)}
    return model_of(nodes, f"uint8[1, 2, 6, 6] x) => (uint8[{shape}] y", **constants)


SELECTIONS = {
    "MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>": "1, 2, 6, 6",
    "Transpose<perm = [0, 2, 3, 1]>": "1, 6, 6, 2",
    "Flatten": "1, 72",
    "GlobalMaxPool": "1, 2, 1, 1",
}
LONGS = "i = Constant<value_ints = {}>() t = "
SELECTIONS = {f"t = {op}(r)": shape for op, shape in SELECTIONS.items()} | {
    LONGS.format([1, 2, 1, 1]) + "Tile(r, i)": "1, 4, 6, 6",
    LONGS.format([0, 0]) + "GatherND<batch_dims = 0>(r, i)": "6, 6",
    LONGS.format([1]) + "Gather<axis = 1>(r, i)": "1, 1, 6, 6",
    "g = Constant<value = int64[1, 2, 1, 3] {5, 0, 1, 2, 3, 4}>() "
    "t = GatherElements<axis = 3>(r, g)": "1, 2, 1, 3",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("middle", SELECTIONS)
def test_selections_stay_bytes(middle):
    x = drawn(np.uint8, 1, 2, 6, 6)
    made = [
        quantized_twice(middle, 0.25, u, 9, SELECTIONS[middle]) for u in (0.25, 0.5)
    ]
    same, other = (text(m, "graph", mcpu=DOTS) for m in made)
    assert "QuantizeLinear(" not in same and "QuantizeLinear(" in other
    for model in made:
        bytes_, exact = (
            tw.compile(model, threads=1, cache=False, math=m)(x)
            for m in ("default", "exact")
        )
        np.testing.assert_array_equal(bytes_, exact)


@pytest.mark.parametrize(
    ("middle", "zero", "gone"),
    [
        ("a = Neg(r) t = Relu(a)", 0, True),
        ("a = Neg(r) t = Relu(a)", 1, False),  # 0 is cut off, which a byte still tells
        ("a = Neg(r) t = Clip(a, low, high)", 0, True),
        ("a = Neg(r) t = Clip(a, low, high)", 10, False),
        ("t = Relu(r)", 0, True),
    ],
)
def test_clipping_that_quantizing_does_anyway(middle, zero, gone):
    model = quantized_twice(middle, 0.25, 1 / 64, zero)
    for name, bound in (("low", 0.0), ("high", 4.0)):
        model.graph.initializer.append(numpy_helper.from_array(np.float32(bound), name))
    shown = text(model, "graph", mcpu=DOTS)
    assert ("Relu(" not in shown and "Clip(" not in shown) is gone
    x = drawn(np.uint8, 1, 2, 6, 6)
    bytes_, exact = (
        tw.compile(model, threads=1, cache=False, math=m)(x)
        for m in ("default", "exact")
    )
    np.testing.assert_array_equal(bytes_, exact)


CONCATS = {
    "alike": ({}, True),
    "another scale": ({"cs": np.float32(0.26)}, False),
    "another zero point": ({"cz": np.uint8(4)}, False),
    "another scale behind": ({"ys": np.float32(0.5)}, False),
    "another type behind": ({"yz": np.int8(3)}, False),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", CONCATS)
def test_concatenation_of_bytes(name):
    changed, taken = CONCATS[name]
    constants = {"bs": np.float32(0.25), "bz": np.uint8(3), "cs": np.float32(0.25),
                 "cz": np.uint8(3), "ys": np.float32(0.25), "yz": np.uint8(3)}  # fmt: skip
    constants |= changed
    kind = constants["yz"].dtype.name
    nodes = (
        "br = DequantizeLinear(b, bs, bz)  cr = DequantizeLinear(x, cs, cz)"
        "  j = Concat<axis = 1>(br, cr, br)  y = QuantizeLinear(j, ys, yz)"
    )
    model = model_of(
        nodes, f"uint8[2, 3] b, uint8[2, 4] x) => ({kind}[2, 10] y", **constants
    )
    shown = text(model, "graph", mcpu=DOTS)
    assert ("QuantizeLinear(" not in shown) is taken
    b, x = drawn(np.uint8, 2, 3), drawn(np.uint8, 2, 4)
    bytes_, exact = (
        tw.compile(model, threads=1, cache=False, math=m)(b, x)
        for m in ("default", "exact")
    )
    np.testing.assert_array_equal(bytes_, exact)
    if taken:
        np.testing.assert_array_equal(bytes_, np.concatenate([b, x, b], 1))


def test_concatenation_with_what_is_no_bytes_stays_real():
    constants = {"bs": np.float32(0.25), "bz": np.uint8(3)}
    nodes = (
        "br = DequantizeLinear(b, bs, bz)  j = Concat<axis = 1>(br, x)"
        "  y = QuantizeLinear(j, bs, bz)"
    )
    signature = "uint8[2, 3] b, float[2, 4] x) => (uint8[2, 7] y"
    shown = text(model_of(nodes, signature, **constants), "graph", mcpu=DOTS)
    assert "QuantizeLinear(" in shown


def test_what_is_used_as_it_is_stays():
    """A product that is also read as a real number is not computed twice."""
    constants = {"w": drawn(np.int8, 12, 20), "ws": np.float32(0.02), "wz": np.int8(0)}
    constants |= {"xs": np.float32(0.03), "xz": np.uint8(130), "ys": np.float32(1)}
    nodes = (
        DQ.format(axis="")
        + " r = MatMul(xr, wr) y = QuantizeLinear(r, ys, xz) z = Relu(r)"
    )
    model = model_of(
        nodes, "uint8[6, 12] x) => (uint8[6, 20] y, float[6, 20] z", **constants
    )
    shown = text(model, "graph", mcpu=DOTS)
    assert shown.count("MatMulInteger(") == 1 and "QuantizeLinear(" in shown


def test_sums_that_int32_does_not_hold_stay_real():
    x, w = drawn(np.uint8, 1, 40_000), drawn(np.int8, 40_000, 16)
    constants = {"w": w, "ws": np.float32(1), "wz": np.int8(0)}
    constants |= {"xs": np.float32(1), "xz": np.uint8(0)}
    nodes = DQ.format(axis="") + " y = MatMul(xr, wr)"
    model = model_of(
        nodes, f"uint8[{x.shape[0]}, 40000] x) => (float[1, 16] y", **constants
    )
    assert "matmulinteger(" not in text(model, "computation", mcpu=DOTS)


@pytest.mark.parametrize("opset", [13, 18, 21])
@pytest.mark.parametrize("axis", [0, 1])
def test_without_dot_products_weights_are_real_numbers_at_compile_time(opset, axis):
    x, w = drawn(np.uint8, 3, 6), drawn(np.int8, 6, 4)
    ws, wz = (
        np.linspace(0.1, 0.9, (6, 4)[axis], dtype=np.float32),
        drawn(np.int8, (6, 4)[axis]),
    )
    constants = {"w": w, "ws": ws, "wz": wz, "xs": np.float32(0.5), "xz": np.uint8(3)}
    nodes = DQ.format(axis=f"<axis = {axis}>") + " y = MatMul(xr, wr)"
    model = model_of(nodes, "uint8[3, 6] x) => (float[3, 4] y", **constants)
    model.opset_import[0].version = opset
    assert text(model, "graph", mcpu="x86-64-v3").count("DequantizeLinear(") == 1
    along = (-1, 1)[: 2 - axis]
    real = (w.astype(np.float32) - wz.astype(np.float32).reshape(along)) * ws.reshape(
        along
    )
    want = (x.astype(np.float32) - 3) * np.float32(0.5) @ real
    found = tw.compile(model, threads=1, cache=False, mcpu="x86-64-v3")(x)
    np.testing.assert_allclose(found, want, rtol=1e-5)


DEQUANTIZED = {
    "bytes with a scale": ("uint8[4] q, float s", "", True),
    "of a type that is not asked for": ("int16[4] q, float s", "", False),
    "to another type": ("uint8[4] q, float s", "<output_dtype = 10>", False),
    "by a scale of another type": (
        "uint8[4] q, float16 s",
        "<output_dtype = 1>",
        False,
    ),
    "in blocks": ("uint8[4] q, float[2] s", "<axis = 0, block_size = 2>", False),
    "along an axis": ("uint8[4] q, float[4] s", "<axis = 0>", True),
}


@pytest.mark.parametrize("name", DEQUANTIZED)
def test_what_is_taken_for_quantized_bytes(name: str) -> None:
    inputs, attributes, taken = DEQUANTIZED[name]
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["" : 23]> g ({inputs}) => (float y) '
        f"{{ y = DequantizeLinear{attributes}(q, s) }}"
    )
    model.graph.output[0].ClearField("type")
    for info in model.graph.input:
        info.type.tensor_type.shape.SetInParent()
    graph = load(model)
    (value,) = graph.outputs
    found = quantization.quantized_by(graph, value, (dtypes.uint8, dtypes.int8))
    assert (found is not None) == taken
