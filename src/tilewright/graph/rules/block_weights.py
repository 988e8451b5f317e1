"""Products with dequantized blocks of few bits read the integers instead of floats.

    a @ (scale * (q - zero))  =  sum over blocks of  scale * (sum over the block of a * (q - zero))

The sums are the same, in another order. Activations are rounded to bytes only if the model
(`accuracy_level=4`) or `math="fast"` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.block_scaled import block_scaled
from tilewright.graph.ops.block_weights import BlockWeights
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.nbits import BIAS, nbits_weights
from tilewright.graph.ops.registry import OpCall
from tilewright.graph.rules.match import Match
from tilewright.graph.rules.patterns import (
    constants,
    maybe,
    one_of,
    onnx,
    operators,
    tensors,
)
from tilewright.graph.rules.rule import Rule, Sample, SampleApplication, normals

BYTES = 4  # the accuracy_level from which activations may be bytes
FLOATS = ("float32", "float16", "bfloat16")
# The bits of a storage type, and the offset that makes its numbers unsigned.
STORED: Mapping[str, tuple[int, int]] = {
    "uint4": (4, 0),
    "int4": (4, 8),
    "uint2": (2, 0),
    "int2": (2, 2),
    "uint8": (8, 0),
    "int8": (8, 128),
}

a, bias = tensors("a bias")
q, scale, zero = constants("q scale zero")
contrib = operators("com.microsoft")
nbits = contrib.MatMulNBits(a, ...).with_attributes()
real = onnx.DequantizeLinear(q, scale, maybe(zero)).with_attributes()
product = one_of(onnx.MatMul, onnx.Gemm)(a, real, maybe(bias)).with_attributes()


def _is_product_of_floats(v: Value) -> bool:
    dtype: DType | None = v.dtype
    known = dtype is not None and dtype.name in FLOATS
    return known and v.static and len(v.extents) > 0 and 0 not in v.extents


def _may_stay_packed(w: BlockWeights) -> bool:
    """Finite and not empty: 0 * inf is NaN for an element but perhaps not for a block's sum."""
    return w.q.size > 0 and bool(
        np.isfinite(w.scale).all() and np.isfinite(w.zero).all()
    )


def _nbits(
    m: Match,
    f: Fragment,
    in_bytes: bool,
    fast: bool,
) -> Value | None:
    """a product of blocks in their packed form

    None if the matrix is not constant, not in blocks, or has numbers that are not finite.
    """
    call = OpCall(m.root, m.graph.constants)
    weights = nbits_weights(call) if _is_product_of_floats(m[a]) else None
    if weights is None or not _may_stay_packed(weights):
        return None
    asked = fast or call.attr("accuracy_level", 0) == BYTES
    y = block_scaled(
        f,
        m[a],
        weights,
        in_bytes and asked and weights.bits >= 4,
    )
    return f.op("Add", y, call.value(BIAS)) if call.has(BIAS) else y


def _blocked(
    m: Match,
    f: Fragment,
    in_bytes: bool,
    fast: bool,
) -> Value | None:
    """a product of blocks in their packed form

    None if the blocks are not along the depth, the operands are not a matrix product's, or scales
    are not finite.
    """
    weights = _block_weights(m)
    gemm = m.root.attributes if m.root.qualified == "Gemm" else {}
    if weights is None or not _is_product_of_floats(m[a]):
        return None
    if not _may_stay_packed(weights):
        return None
    if m[a].extents[-1] != weights.depth or gemm.get("transA", 0):
        return None
    y = block_scaled(
        f,
        m[a],
        weights,
        in_bytes and fast and weights.bits >= 4,
    )
    return added(f, y, m.get(bias), gemm)


def added(
    f: Fragment,
    y: Value,
    term: Value | None,
    gemm: Mapping[str, Any],
) -> Value:
    """alpha * y + beta * the third operand of a Gemm with these attributes."""
    alpha = gemm.get("alpha", 1.0)
    beta = gemm.get("beta", 1.0)
    if alpha != 1.0:
        y = f.op("Mul", y, f.constant(alpha, y.dtype))
    if term is None or beta == 0.0:
        return y
    if beta != 1.0:
        term = f.op("Mul", term, f.constant(beta, y.dtype))
    return f.op("Add", y, term)


def _block_weights(m: Match) -> BlockWeights | None:
    """The dequantized matrix as the second factor of the product: [depth, columns]."""
    op: Operation = m.operation(real)
    stored = m[q].dtype
    if stored is None or stored.name not in STORED or len(m[q].extents) != 2:
        return None
    block = op.attr("block_size", 0)
    turned = bool(m.root.attr("transB", 0)) and m.root.qualified == "Gemm"
    depth = 1 if turned else 0
    if not block or op.attr("axis", 1) % 2 != depth:
        return None
    bits, shift = STORED[stored.name]
    steps = m[scale].dtype
    if block % (32 // bits) or steps is None or steps.name not in FLOATS:
        return None
    whole = m.array(q).astype(np.int16) + shift
    arrays = [whole.astype(np.uint8), m.array(scale)]
    found = m.known(zero)
    if found is not None:
        arrays.append((found.astype(np.int16) + shift).astype(np.uint8))
    if turned:
        arrays = [x.T for x in arrays]
    numbers, factor, *points = arrays
    return BlockWeights(
        bits, block, numbers, factor, points[0] if points else float(shift)
    )


# ---------------------------------------------------------------------------------------- samples


def _nbits_samples(rng: np.random.Generator) -> Sample:
    bits = int(rng.choice([2, 4, 8]))
    block = int(rng.choice([16, 32]))
    rows, columns = 3, 5
    depth = int(rng.integers(17, 70))
    blocks = -(-depth // block)
    packed = rng.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.5, 1, (columns * blocks)).astype(np.float32)
    sizes = {"N": columns, "K": depth, "bits": bits, "block_size": block}
    return {
        a: normals(rng, rows, depth),
        nbits: SampleApplication(sizes, (packed, scales)),
    }


def _blocked_samples(rng: np.random.Generator) -> Sample:
    rows, columns, block = 3, 5, 16
    depth = int(rng.integers(17, 70))
    blocks = -(-depth // block)
    turned = bool(rng.integers(2))
    kind = (np.uint8, np.int8)[int(rng.integers(2))]
    limits = np.iinfo(kind)

    def drawn(n: int) -> Any:
        made = rng.integers(limits.min, limits.max + 1, (n, columns)).astype(kind)
        return made.T if turned else made

    steps = rng.uniform(0.01, 0.1, (blocks, columns)).astype(np.float32)
    gemm = SampleApplication({"transB": int(turned), "alpha": 0.5}, (), onnx.Gemm)
    return {
        a: normals(rng, rows, depth),
        q: drawn(depth),
        scale: steps.T if turned else steps,
        zero: drawn(blocks) if rng.integers(2) else None,
        real: SampleApplication({"axis": int(turned), "block_size": block}),
        bias: normals(rng, columns) if turned else None,
        product: gemm if turned else SampleApplication({}, (), onnx.MatMul),
    }


def block_rules(
    in_bytes: bool,
    fast: bool,
) -> tuple[Rule, ...]:
    """in_bytes: the machine multiplies bytes faster than floats. fast: use them unasked."""

    def made(
        name: str,
        pattern: Any,
        build: Any,
        samples: Any,
    ) -> Rule:
        def replacement(
            m: Match,
            f: Fragment,
        ) -> Value | None:
            found: Value | None = build(
                m,
                f,
                in_bytes,
                fast,
            )
            return found

        replacement.__doc__ = build.__doc__
        return Rule(
            name,
            pattern,
            replacement,
            exact=False,
            samples=samples,
        )

    return (
        made(
            "packed-blocks",
            nbits,
            _nbits,
            _nbits_samples,
        ),
        made(
            "dequantized-blocks",
            product,
            _blocked,
            _blocked_samples,
        ),
    )


BLOCK_WEIGHTS = block_rules(False, False)
