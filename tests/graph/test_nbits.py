"""MatMulNBits and products with blocked DequantizeLinear: their meaning, rules, bad uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.base.errors import ModelError
from tilewright.driver.compile import text
from tilewright.graph.ops.block_weights import packed, unpacked

RNG = np.random.default_rng(0)
DOMAIN = "com.microsoft"


def model(
    a: Any, operands: dict[int, Any], opset: int = 21, **attributes: Any
) -> onnx.ModelProto:
    """MatMulNBits of a model input `a` like the array, and constant operands by their number."""
    last = max(operands)
    names = ["a", *(f"c{n}" if n in operands else "" for n in range(1, last + 1))]
    node = helper.make_node("MatMulNBits", names, ["y"], domain=DOMAIN, **attributes)
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    given = helper.make_tensor_value_info("a", kind, a.shape)
    made = helper.make_tensor_value_info("y", kind, None)
    known = [numpy_helper.from_array(x, f"c{n}") for n, x in operands.items()]
    graph = helper.make_graph([node], "g", [given], [made], known)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


def case(
    shape: tuple[int, ...], n: int, bits: int, block: int, zeros: str, kind: Any
) -> tuple[Any, dict[int, Any], Any, Any]:
    """a, the operands, the sizes, and the result in float64."""
    k, blocks = shape[-1], -(-shape[-1] // block)
    a = RNG.normal(size=shape).astype(kind)
    q = RNG.integers(0, 1 << bits, (n, blocks * block)).astype(np.uint8)
    scales = RNG.uniform(0.01, 0.1, (n, blocks)).astype(kind)
    operands = {1: packed(q, bits).reshape(n, blocks, -1), 2: scales.reshape(-1)}
    zero = np.full((n, blocks), 1 << (bits - 1))
    if zeros == "packed":
        zero = RNG.integers(0, 1 << bits, (n, blocks)).astype(np.uint8)
        operands[3] = packed(zero, bits).reshape(-1)
    elif zeros == "float":
        zero = RNG.uniform(0, 1 << bits, (n, blocks)).astype(kind)
        operands[3] = zero.reshape(-1)
    real = q - np.repeat(zero, block, 1).astype(np.float64)
    real = (real * np.repeat(scales, block, 1).astype(np.float64))[:, :k]
    sizes = {"N": n, "K": k, "bits": bits, "block_size": block}
    return a, operands, sizes, a.astype(np.float64) @ real.T


def close(found: Any, want: Any, kind: Any = np.float32, share: float = 0.0) -> None:
    """Within the rounding of a result of `kind`, and a share of the largest."""
    eps = 2e-6 if kind == np.float32 else 1e-3
    np.testing.assert_allclose(
        found.astype(np.float64),
        want,
        rtol=eps,
        atol=(eps + share) * np.abs(want).max(),
    )


@pytest.mark.covering(1)
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
def test_every_block_size(bits, block):
    a, operands, sizes, want = case((3, 2 * block + 7), 40, bits, block, "", np.float32)
    close(tw.compile(model(a, operands, **sizes), cache=False)(a), want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("zeros", ["", "packed", "float"])
@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("math", ["exact", "default"])
def test_zero_points_and_types(zeros, kind, math):
    a, operands, sizes, want = case((2, 2, 50), 33, 4, 16, zeros, kind)
    made = tw.compile(model(a, operands, **sizes), math=math, cache=False)
    close(made(a), want, kind)


@pytest.mark.covering(1)
@pytest.mark.parametrize("shape", [(64,), (1, 64), (9, 64), (2, 3, 64)])
@pytest.mark.parametrize("n", [1, 5, 16, 70, 130])
def test_shapes(shape, n):
    a, operands, sizes, want = case(shape, n, 4, 32, "packed", np.float32)
    close(tw.compile(model(a, operands, **sizes), cache=False)(a), want)


@pytest.mark.covering(1)
@pytest.mark.parametrize("mcpu", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "znver4"])
@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("bits", [4, 8])
def test_machines(mcpu, level, bits):
    a, operands, sizes, want = case((5, 96), 50, bits, 32, "packed", np.float32)
    made = model(a, operands, accuracy_level=level, **sizes)
    exe = tw.compile(made, mcpu=mcpu, cache=False)
    close(exe(a), want, share=0.01 if level else 0)


@pytest.mark.parametrize("level", [0, 4])
def test_accesses_are_inside(level):
    a, operands, sizes, want = case((5, 50), 37, 4, 16, "packed", np.float32)
    made = model(a, operands, accuracy_level=level, **sizes)
    close(tw.compile(made, sanitize=True, cache=False)(a), want, share=0.01)


def test_bytes_only_where_they_are_asked_for():
    """An accuracy_level of 4, or math="fast", makes bytes of activations; nothing else does."""
    a, operands, sizes, _ = case((1, 64), 32, 4, 32, "", np.float32)
    asked = model(a, operands, accuracy_level=4, **sizes)
    plain = model(a, operands, **sizes)
    znver4 = {"mcpu": "znver4"}
    assert "QuantizeBlocks" in text(asked, "graph", **znver4)
    assert "QuantizeBlocks" in text(plain, "graph", math="fast", **znver4)
    assert "QuantizeBlocks" not in text(plain, "graph", **znver4)
    assert "QuantizeBlocks" not in text(asked, "graph", math="exact", **znver4)
    assert "QuantizeBlocks" not in text(asked, "graph", mcpu="x86-64-v3")


def test_weights_are_never_written_as_floats():
    a, operands, sizes, _ = case((1, 64), 32, 4, 32, "", np.float32)
    kernel = text(model(a, operands, **sizes), "kernel")
    assert "int32[" in kernel and ">> i32(" in kernel
    assert "float32[64, 32]" not in kernel


def test_a_row_of_zeros_infinities_and_nan():
    """Bytes of a block of zeros are zeros; what is not finite makes NaN."""
    a, operands, sizes, _ = case((4, 32), 16, 4, 16, "", np.float32)
    a[0] = 0
    a[1, 3], a[2, 20] = np.inf, np.nan
    for level in (0, 4):
        made = model(a, operands, accuracy_level=level, **sizes)
        y = tw.compile(made, cache=False)(a)
        np.testing.assert_array_equal(y[0], 0)
        assert not np.isfinite(y[1]).any() and np.isnan(y[2]).all()
        assert np.isfinite(y[3]).all()


def test_bias_and_groups():
    a, operands, sizes, want = case((3, 64), 20, 4, 16, "packed", np.float32)
    bias = RNG.normal(size=20).astype(np.float32)
    usual = (np.arange(64) // 16).astype(np.int32)
    found = tw.compile(model(a, {**operands, 4: usual, 5: bias}, **sizes))(a)
    close(found, want + bias)
    shuffled = RNG.permutation(usual).astype(np.int32)
    q = unpacked(operands[1].reshape(20, -1), 4).astype(np.float64)
    zero = unpacked(operands[3].reshape(20, -1), 4)[:, shuffled]
    real = (q - zero) * operands[2].reshape(20, -1)[:, shuffled]
    found = tw.compile(model(a, {**operands, 4: shuffled, 5: bias}, **sizes))(a)
    close(found, a.astype(np.float64) @ real.T + bias)


def test_as_onnx_runtime():
    onnxruntime = pytest.importorskip("onnxruntime")
    for zeros in ("", "packed"):
        a, operands, sizes, _ = case((3, 64), 24, 4, 32, zeros, np.float32)
        made = model(a, operands, accuracy_level=4, **sizes)
        session = onnxruntime.InferenceSession(
            made.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (want,) = session.run(None, {"a": a})
        close(tw.compile(made, cache=False)(a), want, share=0.01)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({1: np.zeros((8, 2, 7), np.uint8)}, "input 1"),
        ({2: np.zeros(15, np.float32)}, "input 2"),
        ({3: np.zeros(9, np.uint8)}, "input 3"),
        ({4: np.zeros(5, np.int32)}, "input 4"),
        ({5: np.zeros(9, np.float32)}, "input 5"),
        ({4: np.full(32, 2, np.int32)}, "groups outside 0 to 1"),
        ({1: np.zeros((8, 2, 8), np.int8)}, "input 1 is int8: give one of uint8"),
        ({2: np.ones(16, np.float64)}, "input 2 is float64"),
        ({3: np.zeros(16, np.int32)}, "input 3 is int32"),
        ({4: np.zeros(32, np.float32)}, "input 4 is float32"),
    ],
)
def test_operands_that_do_not_fit(change, said):
    a, operands, sizes, _ = case((1, 32), 8, 4, 16, "packed", np.float32)
    with pytest.raises(ModelError, match=said):
        tw.compile(model(a, {**operands, **change}, **sizes))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"bits": 3}, "bits is 3"),
        ({"block_size": 24}, "block_size is 24"),
        ({"K": 33}, "last axis must be K = 33"),
        ({"N": 0}, "N is 0, K is 32"),
    ],
)
def test_attributes_that_do_not_fit(change, said):
    a, operands, sizes, _ = case((1, 32), 8, 4, 16, "", np.float32)
    with pytest.raises(ModelError, match=said):
        tw.compile(model(a, operands, **{**sizes, **change}))


# ------------------------------------------------------------------------- standard ONNX


def dequantized(
    kind: int, product: str, block: int, has_zero: bool, **attributes: Any
) -> tuple[onnx.ModelProto, Any, Any]:
    """A model of x @ dequantized weights, x, and the result in float64."""
    k, n, turned = 2 * block + 5, 40, attributes.get("transB", 0)
    low, high = {
        TensorProto.INT4: (-8, 8),
        TensorProto.UINT4: (0, 16),
        TensorProto.INT8: (-128, 128),
        TensorProto.UINT8: (0, 256),
    }[kind]
    q = RNG.integers(low, high, (k, n))
    zero = RNG.integers(low, high, (3, n)) * has_zero
    scale = RNG.uniform(0.01, 0.1, (3, n)).astype(np.float32)
    real = (q - np.repeat(zero, block, 0)[:k]) * np.repeat(scale, block, 0)[:k].astype(
        np.float64
    )
    if turned:
        q, zero, scale = q.T, zero.T, np.ascontiguousarray(scale.T)
    known = [
        helper.make_tensor(name, t, x.shape, x.reshape(-1).tolist())
        for name, t, x in (("q", kind, q), ("z", kind, zero))
    ]
    known.append(numpy_helper.from_array(scale, "s"))
    x = RNG.normal(size=(3, k)).astype(np.float32)
    names = ["q", "s", "z"] if has_zero else ["q", "s"]
    nodes = [
        helper.make_node(
            "DequantizeLinear", names, ["w"], axis=int(bool(turned)), block_size=block
        ),
        helper.make_node(product, ["x", "w"], ["y"], **attributes),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, x.shape)], [info("y", 1, None)], known
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    )
    return made, x, attributes.get("alpha", 1.0) * (x.astype(np.float64) @ real)


@pytest.mark.covering(1)
@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT8", "UINT8"])
@pytest.mark.parametrize("has_zero", [False, True])
def test_dequantized_blocks(kind, has_zero):
    made, x, want = dequantized(
        TensorProto.DataType.Value(kind), "MatMul", 16, has_zero
    )
    assert "BlockScaledMatMul" in text(made, "graph")
    close(tw.compile(made, cache=False)(x), want)


def test_dequantized_blocks_transposed():
    made, x, want = dequantized(TensorProto.INT4, "Gemm", 32, True, transB=1, alpha=0.5)
    assert "BlockScaledMatMul" in text(made, "graph")
    close(tw.compile(made, cache=False)(x), want)


def test_blocks_across_the_depth_are_left():
    """Scales along the columns alone are not blocks of the depth."""
    q = helper.make_tensor("q", TensorProto.INT8, (32, 32), [1] * 1024)
    scale = RNG.uniform(0.01, 0.1, (32, 2)).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], axis=1, block_size=16),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    info = helper.make_tensor_value_info
    known = [q, numpy_helper.from_array(scale, "s")]
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, (3, 32))], [info("y", 1, None)], known
    )
    sets = [helper.make_opsetid("", 21)]
    made = helper.make_model(graph, opset_imports=sets, ir_version=10)
    assert "BlockScaled" not in text(made, "graph")
    x = RNG.normal(size=(3, 32)).astype(np.float32)
    want = x.astype(np.float64) @ np.repeat(scale, 16, 1)
    close(tw.compile(made, cache=False)(x), want)


@pytest.mark.parametrize("scale", [np.inf, np.nan])
def test_scales_that_are_not_finite(scale):
    """An infinite scale makes NaN of a weight that is zero, though not of its block's sum."""
    model_, x, _ = dequantized(TensorProto.INT8, "MatMul", 16, True)
    known = {t.name: t for t in model_.graph.initializer}
    arrays = {n: numpy_helper.to_array(t).copy() for n, t in known.items()}
    arrays["s"][1, 2] = scale
    arrays["q"][16:32, 2] = arrays["z"][1, 2] + np.arange(16) % 2
    for name, array in arrays.items():
        known[name].CopyFrom(numpy_helper.from_array(array, name))
    y = tw.compile(model_, cache=False)(x)
    assert np.isnan(y[:, 2]).all() and np.isfinite(np.delete(y, 2, 1)).all()


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("what", ["scale", "zero"])
def test_a_partial_block_ends_where_the_matrix_does(bits, what):
    """What is behind it adds nothing, though 0 times infinity would be NaN."""
    k, n, block = 40, 2, 32
    q = np.full((n, 64), (1 << bits) - 1, np.uint8)
    q[:, k:] = np.arange(64 - k) % (1 << bits)
    scales, zeros = np.ones((n, 2), np.float32), np.zeros((n, 2), np.float32)
    (scales if what == "scale" else zeros)[1, 1] = np.inf
    a = np.ones((1, k), np.float32)
    operands = {1: packed(q, bits).reshape(n, 2, -1), 2: scales.reshape(-1)}
    operands[3] = zeros.reshape(-1)
    sizes = {"N": n, "K": k, "bits": bits, "block_size": block}
    found = tw.compile(model(a, operands, **sizes), threads=1, cache=False)(a)
    far = np.inf if what == "scale" else -np.inf
    np.testing.assert_array_equal(found, [[k * int(q[0, 0]), far]])
