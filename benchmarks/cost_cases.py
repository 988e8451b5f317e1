"""The kernels that depend on the cost constants, which `benchmarks.sweep` compiles.

CASES has a row per constant of `targets/cpu/cost.py` and `kernel_costs.py`. Operands of MODELS that
begin with `w` are weights, which the compiler knows; PROGRAMS are kernels that no model leads to,
and SCHEDULED are kernels with a schedule by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    import onnx

    from tilewright.compute.nodes import Computation
    from tilewright.loops.nodes import Kernel

MODELS: Final[Mapping[str, str]] = {
    "relu": "(float[64,512] x) => (float[64,512] y) { y = Relu(x) }",
    "relu_large": "(float[2048,1024] x) => (float[2048,1024] y) { y = Relu(x) }",
    "sum_weight": "(float[64,256] x, float[64,256] w) => (float[64,256] y) { y = Add(x, w) }",
    "functions": """(float[8,448] x) => (float[8,448] y)
        { a = Tanh(x) b = Exp(a) c = Sigmoid(b) y = Erf(c) }""",
    "product": "(float[64,128] x, float[128,128] w) => (float[64,128] y) { y = MatMul(x, w) }",
    "product_deep": """(float[64,8192] x, float[8192,64] w) => (float[64,64] y)
        { y = MatMul(x, w) }""",
    "product_narrow": "(float[58,256] x, float[256,16] w) => (float[58,16] y) { y = MatMul(x, w) }",
    "product_row": "(float[1,64] x, float[64,1024] w) => (float[1,1024] y) { y = MatMul(x, w) }",
    "product_apart": """(float[1024,20] x, float[20,8192] v) => (float[1024,8192] y)
        { y = MatMul(x, v) }""",
    "product_pitched": """(float[1024,128] x, float[128,4096] v) => (float[1024,4096] y)
        { y = MatMul(x, v) }""",
    "product_few_rows": """(float[8,512] x, float[512,1024] v) => (float[8,1024] y)
        { y = MatMul(x, v) }""",
    "product_results": """(float[196,512] x, float[512,1024] w) => (float[196,1024] y)
        { y = MatMul(x, w) }""",
    "product_inputs": """(float[1024,512] x, float[512,520] v) => (float[1024,520] y)
        { y = MatMul(x, v) }""",
    "weights_first": """(float[64,512] w, float[512,2048] x) => (float[64,2048] y)
        { y = MatMul(w, x) }""",
    "channels_turned": """(float[3,24576] x, float[3,4] w) => (float[24576,4] y)
        { t = Transpose<perm=[1,0]>(x) y = MatMul(t, w) }""",
    "product_bytes": """(uint8[64,256] x, int8[256,128] w) => (int32[64,128] y)
        { y = MatMulInteger(x, w) }""",
    "product_bytes_deep": """(uint8[8,2048] x, int8[2048,64] w) => (int32[8,64] y)
        { y = MatMulInteger(x, w) }""",
    "product_bytes_flat": """(uint8[20,128] x, int8[128,80] w) => (int32[20,80] y)
        { y = MatMulInteger(x, w) }""",
    "scan": """(float[64,512] x) => (float[64,512] y)
        { axis = Constant<value = int64 {1}>() y = CumSum(x, axis) }""",
    "softmax": "(float[64,256] x) => (float[64,256] y) { y = Softmax<axis=-1>(x) }",
    "layer_norm": """(float[64,512] x, float[512] w) => (float[64,512] y)
        { y = LayerNormalization(x, w) }""",
    "softmax_large": "(float[512,1024] x) => (float[512,1024] y) { y = Softmax<axis=-1>(x) }",
    "softmax_wide": "(float[16,8192] x) => (float[16,8192] y) { y = Softmax<axis=-1>(x) }",
    "total": "(float[256,256] x) => (float y) { y = ReduceSum<keepdims=0>(x) }",
    "softmax_few": "(float[32,64] x) => (float[32,64] y) { y = Softmax<axis=-1>(x) }",
    "column_sums_wide": """(float[512,2048] x) => (float[2048] y)
        { axes = Constant<value_ints = [0]>() y = ReduceSum<keepdims=0>(x, axes) }""",
    "column_sums_short": """(float[64,64,256] x) => (float[64,256] y)
        { axes = Constant<value_ints = [1]>() y = ReduceSum<keepdims=0>(x, axes) }""",
    "image_first": """(float[192, 256, 3] x) => (float[3, 192, 256] y) {
        a = Transpose<perm = [2, 0, 1]>(x)
        y = Abs(a)
    }""",
    "stencil_across": """(float[16, 128, 192] x) => (float[128, 191, 16] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {191}, int64[1] end = {192},
     int64[1] axis = {2}> {
        a = Slice(x, zero, last, axis)
        b = Slice(x, one, end, axis)
        c = Add(a, b)
        y = Transpose<perm = [1, 2, 0]>(c)
    }""",
    "stencil_back": """(float[128, 194, 16] x) => (float[16, 128, 192] y)
    <int64[1] b0 = {0}, int64[1] b1 = {1}, int64[1] b2 = {2}, int64[1] axis = {1},
     int64[1] e0 = {192}, int64[1] e1 = {193}, int64[1] e2 = {194}> {
        a = Slice(x, b0, e0, axis)
        b = Slice(x, b1, e1, axis)
        c = Slice(x, b2, e2, axis)
        d = Add(a, b)
        e = Add(d, c)
        y = Transpose<perm = [2, 0, 1]>(e)
    }""",
    "stencil_rows": """(float[34, 256, 40] x) => (float[40, 33, 256] y)
    <int64[1] zero = {0}, int64[1] one = {1}, int64[1] last = {33}, int64[1] end = {34},
     int64[1] axis = {0}> {
        a = Slice(x, zero, last, axis)
        b = Slice(x, one, end, axis)
        c = Add(a, b)
        y = Transpose<perm = [2, 0, 1]>(c)
    }""",
    "pixels_apart": """(float[113, 21, 2, 2, 8] x) => (float[8, 224, 40] y)
    <int64[3] shape = {8, 226, 42}, int64[2] begin = {1, 1}, int64[2] end = {225, 41},
     int64[2] axes = {1, 2}> {
        a = Transpose<perm = [4, 0, 2, 1, 3]>(x)
        b = Reshape(a, shape)
        y = Slice(b, begin, end, axes)
    }""",
    "sum_of_few": """(float[3, 196, 256] x) => (float[196, 256] y)
        <int64[1] axis = {0}> { y = ReduceSum<keepdims=0>(x, axis) }""",
    "row_sums": """(float[64,256] x) => (float[64] y, float[64] z)
        { axes = Constant<value_ints = [1]>() y = ReduceSum<keepdims=0>(x, axes)
          z = ReduceMax<keepdims=0>(x, axes) }""",
    "norm_of_sum": """(float[64,256] x, float[64,256] v, float[256] w)
        => (float[64,256] y, float[64,256] z)
        { y = Add(x, v) z = LayerNormalization<axis=-1>(y, w) }""",
    "norm_wide": """(float[8,20480] x, float[8,20480] v, float[20480] w)
        => (float[8,20480] y, float[8,20480] z)
        { y = Add(x, v) z = LayerNormalization<axis=-1>(y, w) }""",
    "transpose": "(float[768,768] x) => (float[768,768] y) { y = Transpose<perm=[1,0]>(x) }",
    "attention_few": """(float[4,4,64] q, float[4,4096,64] k, float[4,4096,64] v)
        => (float[4,4,64] y) { t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t)
        p = Softmax<axis=-1>(s) y = MatMul(p, v) }""",
    "attention_rows": """(float[4,16,64] q, float[4,4096,64] k, float[4,4096,64] v)
        => (float[4,16,64] y) { t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t)
        p = Softmax<axis=-1>(s) y = MatMul(p, v) }""",
    "scores_few": """(float[4,4,64] q, float[4,4096,64] k) => (float[4,4,4096] y)
        { t = Transpose<perm=[0,2,1]>(k) y = MatMul(q, t) }""",
    "points_few": """(float[65536,64] x, float[64,2] w) => (float[65536,2] y)
        { y = MatMul(x, w) }""",
    "attention_long": """(float[2,64,32] q, float[2,16384,32] k, float[2,16384,32] v)
        => (float[2,64,32] y) { t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t)
        p = Softmax<axis=-1>(s) y = MatMul(p, v) }""",
    "attention_causal": """(float[4,512,64] q, float[4,64,512] k, float[4,512,64] v)
        => (float[4,512,64] y) { n = Constant<value_ints=[512,512]>()
        o = ConstantOfShape<value = float[1] {1}>(n) t = Trilu<upper=0>(o)
        m = Cast<to=9>(t) low = Constant<value_float=-3.4028234663852886e38>()
        s = MatMul(q, k) w = Where(m, s, low) p = Softmax<axis=-1>(w) y = MatMul(p, v) }""",
    "attention": """(float[2,64,32] q, float[2,64,32] k, float[2,64,32] v) => (float[2,64,32] y)
        { t = Transpose<perm=[0,2,1]>(k) s = MatMul(q, t) p = Softmax<axis=-1>(s)
          y = MatMul(p, v) }""",
    "convolution": """(float[1,64,28,28] x, float[64,64,3,3] w) => (float[1,64,28,28] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "convolution_wide": """(float[1,48,96,96] x, float[48,48,3,3] w) => (float[1,48,96,96] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "depthwise": """(float[1,144,14,14] x, float[144,1,3,3] w)
        => (float[1,144,14,14] y) { y = Conv<group=144, pads=[1,1,1,1]>(x, w) }""",
    "convolution_weights": """(float[1,512,16,16] x, float[512,512,3,3] w)
        => (float[1,512,16,16] y) { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "convolution_few": """(float[1,208,7,7] x, float[208,208,3,3] w) => (float[1,208,7,7] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "convolution_even": """(float[1,64,14,14] x, float[96,64,3,3] w) => (float[1,96,14,14] y)
        { y = Conv<pads=[1,1,1,1]>(x, w) }""",
    "convolution_small": """(float[1,16,14,14] x, float[16,16,3,3] w, float[16,16,1,1] wb)
        => (float[1,16,14,14] y)
        { a = Conv(x, wb) b = Conv<pads=[1,1,1,1]>(a, w) y = Conv(b, wb) }""",
    "convolution_narrow": """(float[1,64,16,6] x, float[64,64,3,3] w, float[64,64,1,1] wb)
        => (float[1,64,16,6] y)
        { a = Conv(x, wb) b = Conv<pads=[1,1,1,1]>(a, w) y = Conv(b, wb) }""",
    "convolution_dilated": """(float[1,16,28,28] x, float[1024,16,1,1] wb, float[16,1024,3,3] w)
        => (float[1,16,28,28] y)
        { a = Conv(x, wb) y = Conv<pads=[2,2,2,2], dilations=[2,2]>(a, w) }""",
    "convolution_padded": """(float[1,64,28,28] x, float[64,64,3,3] w) => (float[1,64,28,28] y)
        { y = Conv<pads=[6,6,6,6], dilations=[6,6]>(x, w) }""",
    "pooling": """(float[1,64,28,28] x) => (float[1,64,28,28] y)
        { a = Relu(x) y = MaxPool<kernel_shape=[5,5], pads=[2,2,2,2]>(a) }""",
    "pooling_channels": """(float[1,16,14,14] x, float[64,16,1,1] w, float[16,64,1,1] wb)
        => (float[1,16,14,14] y)
        { a = Conv(x, w) b = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a) y = Conv(b, wb) }""",
    "dilated_image": """(float[1,64,60,60] x, float[64,64,3,3] w) => (float[1,64,56,56] y)
        { y = Conv<dilations=[2,2]>(x, w) }""",
    "depthwise_channels": """(float[1,16,28,28] x, float[64,16,1,1] w, float[64,1,3,3] wd,
        float[16,64,1,1] wb) => (float[1,16,28,28] y)
        { a = Conv(x, w) b = Conv<pads=[1,1,1,1], group=64>(a, wd) y = Conv(b, wb) }""",
    "depthwise_pitched": """(float[1,16,14,14] x, float[1024,16,1,1] w, float[1024,1,7,7] wd,
        float[16,1024,1,1] wb) => (float[1,16,14,14] y)
        { a = Conv(x, w) b = Conv<pads=[3,3,3,3], group=1024>(a, wd) y = Conv(b, wb) }""",
    "repeated": """(float[512] x, float[4,512] v) => (float[4,512] y)
        { a = Add(x, x) y = Mul(a, v) }""",
    "concat": """(float[1,16,14,14] x, float[16,16,1,1] w, float[16,16,1,1] wb,
        float[16,32,1,1] wc) => (float[1,16,14,14] y)
        { a = Conv(x, w) b = Conv(x, wb) c = Concat<axis=1>(a, b)
          d = Conv(a, wb) e = Conv(c, wc) y = Add(d, e) }""",
    "sorted_rows": """(float[16,512] x) => (float[16,512] y, int64[16,512] z)
        { k = Constant<value = int64[1] {512}>() y, z = TopK(x, k) }""",
    "lstm": """(float[8,4,32] x, float[1,256,32] w, float[1,256,64] wr, float[1,512] wb)
        => (float[8,1,4,64] y) { y = LSTM<hidden_size=64>(x, w, wr, wb) }""",
}  # fmt: skip


def convolutions(size: int = 64, channels: int = 32) -> list[Computation]:
    """Two 3x3 convolutions without padding, one after the other, channels last."""
    from tilewright.base.dtypes import float32
    from tilewright.operators import Buffer, reduce_

    def filters(name: str) -> Buffer:
        return Buffer(name, (3, 3, channels, channels), float32)

    def image(name: str, side: int) -> Buffer:
        return Buffer(name, (side, side, channels), float32)

    def convolution(name: str, x: Buffer, w: Buffer, y: Buffer) -> Computation:
        return reduce_(
            name,
            y,
            (3, 3, channels),
            "add",
            lambda i, j, o, p, q, c: x[i + p, j + q, c] * w[p, q, c, o],
        )

    x, t, y = image("x", size + 4), image("t", size + 2), image("y", size)
    first = convolution("first", x, filters("v"), t)
    return [first, convolution("second", t, filters("w"), y)]


PROGRAMS: Final[Mapping[str, Callable[[], list[Computation]]]] = {
    "convolutions": convolutions
}


def small_arrays(count: int = 64, rows: int = 32) -> Kernel:
    """Blocks whose rows are turned, by way of an array that can be registers."""
    from tilewright.loops.parser import parse

    text = f"""
kernel turned(x: float32[{count}, {rows}, 16]) -> y: float32[{count}, {rows}, 16]:
  for i in {count}:
    alloc t: float32[{rows}, 16]:
      for f in {rows} unroll:
        for a in 16 vector:
          t[f, a] = x[i, f, a] * 2.0
      for u in {rows} unroll:
        for b in 16 vector:
          y[i, u, b] = t[{rows - 1} - u, b] + t[3, b]
"""
    return parse(text.strip().split("\n"))


SCHEDULED: Final[Mapping[str, Callable[[], Kernel]]] = {"small_arrays": small_arrays}


@dataclass(frozen=True)
class Case:
    """What a constant decides about, on this kind of processor at least."""

    name: str
    mcpu: str = "x86-64-v4"


CASES: Final[Mapping[str, Case]] = {
    "share_ns": Case("relu"),
    "product_ns": Case("product"),
    "point_ns": Case("scan"),
    "step_ns": Case("sorted_rows"),
    "given_product_ns": Case("lstm"),
    "given_rows": Case("lstm"),
    "given_lanes": Case("lstm"),
    "passed_ns": Case("total"),
    "byte_ns": Case("relu"),
    "constant_byte_ns": Case("sum_weight"),
    "call_operations": Case("functions"),
    "shares": Case("transpose"),
    "uneven": Case("weights_first"),
    "blocks": Case("attention"),
    "shared_vectors": Case("functions"),
    "chunk_vectors": Case("relu"),
    "l1_way": Case("product_deep"),
    "l2_ways": Case("product_apart"),
    "full": Case("product_apart"),
    "l1_full": Case("product"),
    "far_weight": Case("product_inputs"),
    "half": Case("column_sums_wide"),
    "quarter": Case("softmax_large"),
    "large": Case("product_inputs"),
    "in_place": Case("softmax_large"),
    "streamed": Case("relu_large"),
    "stack": Case("softmax_wide"),
    "spilled": Case("small_arrays", "x86-64-v3"),
    "second_bytes": Case("convolution_narrow"),
    "far_bytes": Case("convolution_small"),
    "far_byte": Case("convolution_dilated"),
    "far_piece": Case("convolution_dilated"),
    "far_speed": Case("weights_first"),
    "multiply_adds": Case("product"),
    "multiplied": Case("product"),
    "dot_products": Case("product_bytes", "cascadelake"),
    "tile_least": Case("product_bytes", "sapphirerapids"),
    "tile_far": Case("product_bytes_deep", "sapphirerapids"),
    "tile_result": Case("product_bytes_flat", "sapphirerapids"),
    "loads": Case("product"),
    "latency": Case("product", "x86-64-v3"),
    "begun": Case("channels_turned", "x86-64-v3"),
    "broadcast": Case("product"),
    "far_broadcast": Case("convolution_dilated"),
    "lost_line": Case("product_few_rows"),
    "lost_result": Case("product_results", "znver5"),
    "lost_piece": Case("depthwise_pitched"),
    "beside": Case("convolution_small"),
    "column_vector": Case("product"),
    "exposed": Case("product_bytes", "cascadelake"),
    "stored": Case("channels_turned", "x86-64-v3"),
    "better": Case("weights_first"),
    "tile_rows": Case("product_narrow"),
    "tile_vectors": Case("product_row"),
    "tile_registers": Case("product_narrow", "x86-64-v3"),
    "rows_above": Case("depthwise_channels"),
    "results_above": Case("depthwise_channels"),
    "hidden_fills": Case("depthwise_channels"),
    "taps": Case("depthwise_channels"),
    "few_steps": Case("sum_of_few"),
    "written": Case("product"),
    "guarded_taps": Case("depthwise"),
    "guarded_reads": Case("depthwise", "x86-64-v3"),
    "masked_reads": Case("depthwise"),
    "in_flight": Case("relu"),
    "cheap_calls": Case("functions"),
    "panel_uses": Case("product_pitched"),
    "useful": Case("product_bytes", "sapphirerapids"),
    "recomputed": Case("convolutions"),
    "new_line": Case("pixels_apart", "x86-64-v3"),
    "apart_load": Case("pixels_apart", "x86-64-v3"),
    "apart_store": Case("pixels_apart", "x86-64-v3"),
    "ahead": Case("stencil_rows", "x86-64-v3"),
    "far_load": Case("stencil_across", "x86-64-v3"),
    "far_store": Case("stencil_back"),
    "turned": Case("pixels_apart", "x86-64-v3"),
    "few_across": Case("image_first"),
    "transpose_side": Case("transpose"),
    "strip_rows": Case("transpose"),
    "long_sum": Case("column_sums_short"),
    "short_row": Case("softmax"),
    "chained_row": Case("layer_norm"),
    "many_rows": Case("softmax_few"),
    "row_blocks": Case("softmax"),
    "fetched": Case("softmax_large"),
    "window_rows": Case("pooling"),
    "window_results": Case("pooling_channels"),
    "window_vectors": Case("pooling_channels"),
    "window_registers": Case("pooling_channels"),
    "window_around": Case("pooling_channels"),
    "window_load": Case("pooling_channels"),
    "reread": Case("pooling"),
    "panel_vectors": Case("convolution"),
    "exposed_traffic": Case("convolution_small"),
    "cleared": Case("convolution_small"),
    "kept_weights": Case("convolution_weights"),
    "cold_byte": Case("convolution_few"),
    "winograd_gain": Case("convolution_small"),
    "exchanged": Case("convolution_even", "znver5"),
    "repeated": Case("repeated"),
    "side_by_side": Case("concat"),
    "moved_element_ns": Case("convolution_wide"),
    "deep_sum": Case("dilated_image"),
    "window_gain": Case("convolution_padded"),
    "halo": Case("depthwise_channels"),
    "few_keys": Case("attention_few"),
    "streamed_keys": Case("attention_few"),
    "few_queries": Case("attention_rows"),
    "few_vectors": Case("scores_few"),
    "vector_terms": Case("points_few"),
    "key_block": Case("attention_long"),
    "mean_keys": Case("attention_causal"),
    "results": Case("row_sums"),
    "row_results": Case("norm_of_sum"),
    "long_row": Case("norm_wide"),
}


def model(name: str) -> onnx.ModelProto:
    """The model of MODELS of that name, with seeded weights."""
    return parsed(name, MODELS[name])


def parsed(name: str, text: str) -> onnx.ModelProto:
    """The model that a text describes; inputs whose names begin with w are seeded weights."""
    import onnx.parser
    from onnx import numpy_helper

    head = '<ir_version: 10, opset_import: ["" : 21]>'
    found = onnx.parser.parse_model(f"{head}\n{name} {text}")
    rng = np.random.default_rng(0)
    given = list(found.graph.input)
    del found.graph.input[:]
    for value in given:
        if not value.name.startswith("w"):
            found.graph.input.append(value)
            continue
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = numpy_helper.from_array(contents(shape, dtype, rng), value.name)
        found.graph.initializer.append(array)
    return found


def contents(
    shape: Sequence[int], dtype: np.dtype[Any], rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Random contents: of bytes all values, of floats a normal distribution."""
    if dtype.kind == "f":
        return rng.standard_normal(shape, np.float32).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)
