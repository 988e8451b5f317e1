"""Products with block-quantized weights that stay packed: operators of the domain `tilewright`.

    BlockScaledMatMul(a, words, scale, zero)          a: [M, K] floats
        sum over blocks of  scale * (sum over the block of  a * (q - zero))
    QuantizeBlocks(a)  ->  bytes, their scales, their sums
    BlockScaledMatMulInteger(bytes, step, sums, words, scale, zero)
        sum over blocks of  step * scale * (sum over the block of bytes * q  -  zero * sum)

The integers q are unpacked from words in registers and never stored as float32. In the second form
the inner sums are exact in int32; only the activations are rounded, to 8 bits per block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import float32, int8, int32
from tilewright.compute.build import cast, map_, reduce_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, as_expr, call, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.block_weights import BlockWeights
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register

DOMAIN = "tilewright"
LEVELS = 127.0  # largest magnitude of an activation byte
WORD = 4  # bytes per lane

Buffers = Sequence[Buffer]


# -------------------------------------------------------------------------- how weights are packed


def words(w: BlockWeights) -> Array:
    """int32 [blocks, block * bits / 32, N]: q of k at the bits (k mod (32 / bits)) * bits."""
    each = 32 // w.bits
    count = w.block // each
    parts = w.whole().reshape(w.blocks, count, each, w.columns)
    found = np.zeros((w.blocks, count, w.columns), np.uint32)
    for n in range(each):
        q = parts[:, :, n].astype(np.uint32)
        found |= q << np.uint32(n * w.bits)
    return found.view(np.int32)


def quads(w: BlockWeights) -> Array:
    """uint8 [blocks, block * bits / 32, N, 4]: 4 neighbors in the low bits, the next 4 above."""
    each = 8 // w.bits
    count = w.block // (WORD * each)
    parts = w.whole().reshape(w.blocks, count, each, WORD, w.columns)
    last = parts.transpose(0, 1, 4, 3, 2)
    shifts = np.arange(0, 8, w.bits, dtype=np.uint8)
    found = np.bitwise_or.reduce(last << shifts, axis=-1)
    return np.ascontiguousarray(found.astype(np.uint8))


def block_scaled(f: Fragment, a: Value, w: BlockWeights, in_bytes: bool) -> Value:
    """The product of `a` [..., K] with block weights. in_bytes: round `a` to bytes first."""
    *batch, depth = a.extents
    x = a if len(batch) == 1 else f.reshape(a, math.prod(batch), depth)
    missing = w.blocks * w.block - depth
    if missing:
        x = f.op("Pad", x, f.ints(0, 0, 0, missing))
    zero = w.zero
    parameters = [f.constant(np.ascontiguousarray(w.scale))]
    if isinstance(zero, np.ndarray):
        parameters.append(f.constant(np.ascontiguousarray(zero)))
        zero = 0.0
    how: dict[str, Any] = {
        "bits": w.bits,
        "block": w.block,
        "zero": zero,
    }
    if in_bytes:
        parts = f.ops("QuantizeBlocks", x, domain=DOMAIN, block=w.block, count=3)
        operands = [*parts, f.constant(quads(w)), *parameters]
        y = f.op("BlockScaledMatMulInteger", *operands, domain=DOMAIN, **how)
        if y.dtype is not a.dtype:
            y = f.op("CastLike", y, a)
    else:
        operands = [x, f.constant(words(w)), *parameters]
        y = f.op("BlockScaledMatMul", *operands, domain=DOMAIN, **how)
    if len(batch) == 1:
        return y
    return f.reshape(y, *batch, w.columns)


# ---------------------------------------------------------------------------- products of floats


def _zero(op: OpCall, inputs: Buffers, i: int, g: Any, n: Any) -> Expr:
    if len(inputs) > i:
        return cast(inputs[i][g, n], float32)
    return const(op.attr("zero"), float32)


def _floats(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    a, packed, scale = inputs[:3]
    out = outputs[0]
    bits = op.attr("bits")
    block = op.attr("block")
    each = 32 // bits
    blocks, count, columns = packed.shape
    sums = Buffer(f"{op.name}_sums", (a.shape[0], blocks, columns), float32)

    def inside(m: Any, g: Any, n: Any, w: Any, j: Any) -> Expr:
        shifted = packed[g, w, n] >> cast(j * bits, int32)
        q = shifted & ((1 << bits) - 1)
        k = g * block + w * each + j
        centered = cast(q, float32) - _zero(op, inputs, 3, g, n)
        return cast(a[m, k], float32) * centered

    def across(m: Any, n: Any, g: Any) -> Expr:
        return sums[m, g, n] * cast(scale[g, n], float32)

    return [
        reduce_(sums.name, sums, (count, each), "add", inside),
        reduce_(op.name, out, (blocks,), "add", across),
    ]


def _columns(op: OpCall, i: int) -> int:
    return op.shape(i)[2]


def _real(op: OpCall, q: Array, scale: Array, zero: Sequence[Array]) -> Array:
    """The integers [blocks, block, N] as a float32 matrix [blocks * block, N]."""
    shift = zero[0][:, None] if zero else np.asarray(op.attr("zero"))
    centered = q.astype(np.float32) - shift.astype(np.float32)
    real: Array = (centered * scale[:, None]).astype(np.float32)
    return real.reshape(-1, q.shape[-1])


def _float_arrays(
    op: OpCall, a: Array, packed: Array, scale: Array, *zero: Array
) -> list[Array]:
    bits = op.attr("bits")
    blocks, _, columns = packed.shape
    shifts = np.arange(0, 32, bits, dtype=np.uint32)[:, None]
    shifted = packed.view(np.uint32)[:, :, None] >> shifts
    q = shifted & np.uint32((1 << bits) - 1)
    real = _real(op, q.reshape(blocks, -1, columns), scale, zero)
    y = a.astype(np.float32) @ real
    return [y.astype(a.dtype)]


register(
    OpDef(
        "BlockScaledMatMul",
        lambda op: op.result((op.shape(0)[0], _columns(op, 1))),
        DOMAIN,
        compute=_floats,
        reference=_float_arrays,
        flops=lambda op: 2 * op.size(0) * _columns(op, 1),
    )
)


# ----------------------------------------------------------------------------- products of bytes


def _quantized_type(op: OpCall) -> Sequence[Type]:
    rows, depth = op.shape(0)
    block = op.attr("block")
    each = rows, depth // block
    return [(int8, (*each, block)), (float32, each), (float32, each)]


def _quantize(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    x = inputs[0]
    block = op.attr("block")
    bytes_, step, sums = outputs
    most = Buffer(f"{op.name}_most", step.shape, float32)

    def size(m: Any, g: Any, k: Any) -> Expr:
        return call("abs", cast(x[m, g * block + k], float32))

    def rounded(m: Any, g: Any, k: Any) -> Expr:
        top = most[m, g]
        inverse = Select(
            top.eq(0.0),
            const(0, float32),
            as_expr(LEVELS, float32) / top,
        )
        real = cast(x[m, g * block + k], float32) * inverse
        return cast(call("round_even", real), int8)

    def total(m: Any, g: Any, k: Any) -> Expr:
        return cast(bytes_[m, g, k], float32)

    return [
        reduce_(most.name, most, (block,), "max", size),
        map_(f"{op.name}_step", step, lambda m, g: most[m, g] / LEVELS),
        map_(op.name, bytes_, rounded),
        reduce_(f"{op.name}_sums", sums, (block,), "add", total),
    ]


register(OpDef("QuantizeBlocks", _quantized_type, DOMAIN, compute=_quantize))


def _integers(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
    a, step, total, packed, scale = inputs[:5]
    out = outputs[0]
    bits = op.attr("bits")
    blocks, count, columns, word = packed.shape
    each = 8 // bits
    sums = Buffer(f"{op.name}_sums", (a.shape[0], blocks, columns), int32)

    def product(at: Any, q: Expr) -> Expr:
        return cast(a[at], int32) * cast(q, int32)

    def inside(m: Any, g: Any, n: Any, w: Any, h: Any, i: Any) -> Expr:
        shifted = packed[g, w, n, i] >> cast(h * bits, packed.dtype)
        q = shifted & ((1 << bits) - 1)
        k = (w * each + h) * word + i
        return product((m, g, k), q)

    def whole(m: Any, g: Any, n: Any, w: Any, i: Any) -> Expr:
        k = w * word + i
        return product((m, g, k), packed[g, w, n, i])

    def across(m: Any, n: Any, g: Any) -> Expr:
        shift = _zero(op, inputs, 5, g, n) * total[m, g]
        centered = cast(sums[m, g, n], float32) - shift
        unit = cast(scale[g, n], float32) * step[m, g]
        return centered * unit

    if each == 1:
        blockwise = reduce_(sums.name, sums, (count, word), "add", whole)
    else:
        blockwise = reduce_(sums.name, sums, (count, each, word), "add", inside)
    return [blockwise, reduce_(op.name, out, (blocks,), "add", across)]


register(
    OpDef(
        "BlockScaledMatMulInteger",
        lambda op: [(float32, (op.shape(0)[0], _columns(op, 3)))],
        DOMAIN,
        compute=_integers,
        flops=lambda op: 2 * op.size(0) * _columns(op, 3),
    )
)
