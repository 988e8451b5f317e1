"""MatMulNBits of com.microsoft: a product with a constant matrix of 2, 4 or 8 bits.

As defined, every element is one sum over the whole depth. If its order may change, the weights are
repacked for the sums of `graph/ops/block_scaled.py` (by `graph/rules/block_weights.py`). Semantics:
ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, uint8
from tilewright.base.numbers import ceil_div
from tilewright.compute.build import cast, map_, padded, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.block_weights import BITS, BlockWeights, unpacked
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.microsoft import DOMAIN
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

A, PACKED, SCALES, ZEROS, GROUPS, BIAS = range(6)
_FLOATS = ("float32", "float16", "bfloat16")
# The supported types of operands; zero points in bytes are packed like weights.
_TYPES: Mapping[int, Sequence[str]] = {
    A: _FLOATS,
    PACKED: ("uint8",),
    SCALES: _FLOATS,
    ZEROS: ("uint8", *_FLOATS),
    GROUPS: ("int32",),
    BIAS: _FLOATS,
}


def _sizes(call: OpCall) -> tuple[int, int, int, int]:
    """N, K, the block and the bits. Raises ModelError for values that are not allowed."""
    n, k, block = (call.attr(name) for name in ("N", "K", "block_size"))
    bits = call.attr("bits", 4)
    if None in (n, k, block):
        raise call.error("it needs the attributes N, K and block_size")
    if bits not in BITS:
        raise call.error(f"bits is {bits}: give one of {', '.join(map(str, BITS))}")
    if n < 1 or k < 1:
        raise call.error(f"N is {n}, K is {k}: both must be at least 1")
    if block < 16 or block & (block - 1):
        raise call.error(f"block_size is {block}: give a power of two, at least 16")
    return n, k, block, bits


def _type(call: OpCall) -> Sequence[Type]:
    n, k, block, bits = _sizes(call)
    for i, known in _TYPES.items():
        if call.has(i) and call.dtype(i).name not in known:
            raise call.error(
                f"input {i} is {call.dtype(i)}: give one of {', '.join(known)}"
            )
    shape = call.shape(0)
    if not shape or shape[-1] != k:
        raise call.error(f"A is {list(shape)}: its last axis must be K = {k}")
    blocks = ceil_div(k, block)
    column = blocks
    if call.has(ZEROS) and call.dtype(ZEROS).is_int:
        column = ceil_div(blocks * bits, 8)
    wanted = {
        PACKED: (n * blocks * block * bits // 8, "packed weights"),
        SCALES: (n * blocks, "scales"),
        ZEROS: (n * column, "zeros"),
        GROUPS: (k, "indices of groups"),
        BIAS: (n, "numbers of the bias"),
    }
    for i, (count, what) in wanted.items():
        if not call.has(i):
            continue
        # ONNX Runtime also accepts group indices for the padded depth.
        if call.size(i) != count and (i != GROUPS or call.size(i) < count):
            raise call.error(
                f"input {i} is {list(call.shape(i))}, {call.size(i)} elements: N={n}, "
                f"K={k}, block_size={block}, bits={bits} need {count} {what}"
            )
    return call.result((*shape[:-1], n))


def nbits_weights(call: OpCall) -> BlockWeights | None:
    """The matrix [K, N]. None if it is not constant or its groups are not its blocks."""
    n, k, block, bits = _sizes(call)
    bytes_ = call.constant(PACKED)
    scales = call.constant(SCALES)
    zeros = call.constant(ZEROS)
    if bytes_ is None or scales is None:
        return None
    if call.has(ZEROS) and zeros is None:
        return None
    if call.has(GROUPS):
        groups = call.constant(GROUPS)
        if groups is None or np.any(groups.reshape(-1)[:k] != np.arange(k) // block):
            return None
    blocks = ceil_div(k, block)
    q = unpacked(bytes_.reshape(n, -1), bits)[:, :k]
    scale = scales.reshape(n, blocks).T
    return BlockWeights(
        bits,
        block,
        q.T,
        scale,
        _zero(zeros, n, blocks, bits),
    )


def _zero(zeros: Any, n: int, blocks: int, bits: int) -> Any:
    if zeros is None:
        return float(1 << (bits - 1))
    if zeros.dtype == np.uint8:
        return unpacked(zeros.reshape(n, -1), bits)[:, :blocks].T
    return zeros.reshape(n, blocks).T


def _regrouped(call: OpCall) -> np.ndarray[Any, Any] | None:
    """The real matrix where row k belongs to block g_idx[k]; None if it is not constant."""
    n, k, block, bits = _sizes(call)
    bytes_ = call.constant(PACKED)
    scales = call.constant(SCALES)
    groups = call.constant(GROUPS)
    zeros = call.constant(ZEROS)
    if bytes_ is None or scales is None or groups is None:
        return None
    if call.has(ZEROS) and zeros is None:
        return None
    blocks = ceil_div(k, block)
    of = groups.reshape(-1)[:k].astype(np.int64)
    if of.min(initial=0) < 0 or of.max(initial=0) >= blocks:
        raise call.error(f"g_idx names groups outside 0 to {blocks - 1}")
    q = unpacked(bytes_.reshape(n, -1), bits)[:, :k].astype(np.float32)
    zero = _zero(zeros, n, blocks, bits)
    shift = zero if isinstance(zero, float) else zero[of].T.astype(np.float32)
    real = (q - shift) * scales.reshape(n, blocks)[:, of].astype(np.float32)
    return np.ascontiguousarray(real.T)


def _decompose(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """Only if the groups are not the blocks: then with the matrix in floats."""
    real = None
    if call.has(GROUPS) and nbits_weights(call) is None:
        real = _regrouped(call)
    if real is None:
        return None
    y = f.op(
        "MatMul",
        call.value(0),
        f.constant(real, call.dtype(0)),
    )
    return [f.op("Add", y, call.value(BIAS)) if call.has(BIAS) else y]


def _flat(x: Buffer, point: Sequence[Expr], extents: Sequence[int]) -> Expr:
    """The element of a tensor at a point; the tensor has these extents, or is flat."""
    if len(x.shape) == len(extents):
        return x[tuple(point)]
    *outer, last = point
    at: Expr = const(0)
    for i, n in zip(outer, extents[:-1], strict=True):
        at = at * n + i
    whole = at * extents[-1] + last
    if len(x.shape) == 1:
        return x[whole]
    return x[(outer[0], (whole - outer[0] * (x.size // extents[0])))]


def _compute(
    call: OpCall, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
) -> list[Computation] | None:
    """The dequantized elements, unpacked from bytes where they are read."""
    n, k, block, bits = _sizes(call)
    if call.has(GROUPS) and nbits_weights(call) is None:
        return None
    a, packed, scales = inputs[:3]
    out = outputs[0]
    blocks = ceil_div(k, block)
    each = 8 // bits
    count = block // each
    mask = (1 << bits) - 1

    def zero(j: Expr, g: Expr) -> Expr:
        if not call.has(ZEROS):
            return const(1 << (bits - 1), float32)
        if not call.dtype(ZEROS).is_int:
            return cast(_flat(inputs[ZEROS], (j, g), (n, blocks)), float32)
        sizes = n, ceil_div(blocks, each)
        byte = _flat(inputs[ZEROS], (j, g // each), sizes)
        return cast((byte >> cast(g % each * bits, uint8)) & mask, float32)

    def value(*i: Any) -> Expr:
        *rows, j, g, b, h = i
        q = _flat(packed, (j, g, b), (n, blocks, count)) >> cast(h * bits, uint8)
        w = cast(q & mask, float32) - zero(j, g)
        at = g * block + b * each + h
        scale = cast(_flat(scales, (j, g), (n, blocks)), float32)
        term = cast(padded(a, (*rows, at), 0), float32) * (w * scale)
        # 0 times an infinite scale is not 0.
        return (
            term
            if k % block == 0
            else Select(
                at < k,
                term,
                const(0, float32),
            )
        )

    over = blocks, count, each
    if not call.has(BIAS):
        return [reduce_(call.name, out, over, "add", value)]
    total = Buffer(f"{call.name}_product", out.shape, float32)

    def added(*i: Any) -> Expr:
        return cast(total[i] + cast(inputs[BIAS][i[-1]], float32), out.dtype)

    product = reduce_(total.name, total, over, "add", value)
    return [product, map_(call.name, out, added)]


def _arrays(call: OpCall, a: Array, *operands: Array | None) -> list[Array] | None:
    known = dict(zip(call.operation.inputs[1:], operands, strict=True))
    weights = nbits_weights(OpCall(call.operation, known))  # type: ignore[arg-type]
    if weights is None:
        return None
    y = a.astype(np.float32) @ weights.real()
    if call.has(BIAS):
        y = y + np.asarray(operands[BIAS - 1], np.float32)
    return [y.astype(a.dtype)]


register(
    OpDef(
        "MatMulNBits",
        _type,
        DOMAIN,
        compute=_compute,
        reference=_arrays,
        decompose=_decompose,
        flops=lambda call: 2 * call.size(0) * call.attr("N"),
    )
)
