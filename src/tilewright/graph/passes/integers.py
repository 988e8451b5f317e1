"""Operators between dequantised and quantised bytes, as quantisers write them, on bytes.

    DequantizeLinear(a, s, p) @ DequantizeLinear(b, t, q)  =  s * t * MatMulInteger(a, b, p, q)

exact in int32 where the left side rounds at each step. Quantised again, that is QLinearMatMul, and
the same of convolutions: one factor s * t / u instead of a product and a quotient. What moves or
selects elements does the same to bytes, between one and the same quantisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.base import events
from tilewright.base.dtypes import DType, float32, int8, int32, uint8
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.casts import number_of
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.integer import requantised
from tilewright.graph.ops.offsets import shaped
from tilewright.graph.ops.registry import has_trait
from tilewright.graph.ops.traits import MOVES_DATA, SELECTS
from tilewright.graph.passes.simplify import remove_unused

_BYTE = 255  # what two bytes, one of them a zero point, differ by at most
_WHOLE = 2**31 - 1
MOST_TERMS = _WHOLE // (_BYTE * _BYTE)  # of a sum that int32 holds

Rule = Callable[[Graph, Operation, Fragment], Value | None]


@dataclass(frozen=True, slots=True)
class _Real:
    """A tensor of integers with its scale and zero point; axis: of a scale that is a vector."""

    whole: Value
    scale: Value
    zero: Value | None
    axis: int | None


def integer_products(graph: Graph) -> Graph:
    """Products, convolutions and selections of dequantised bytes as those of the bytes."""
    graph = remove_unused(_rewritten(graph, {"QuantizeLinear": _quantised}))
    return remove_unused(_rewritten(graph, dict.fromkeys(PRODUCTS, _real_product)))


def _rewritten(graph: Graph, rules: Mapping[str, Rule]) -> Graph:
    """Each operation of a type with a rule as what the rule makes of it, if it makes something."""
    constants = dict(graph.constants)
    operations: list[Operation] = []
    for op in graph.operations:
        f = Fragment(op.label, constants)
        rule = rules.get(op.qualified)
        result = None if rule is None or op.outputs[0] is None else rule(graph, op, f)
        if result is None:
            operations.append(op)
            continue
        name = f.operations[-1].qualified if f.operations else "Identity"
        events.emit("idiom", name=f"{op.qualified} on bytes: {name}", node=op.label)
        constants |= f.constants
        last = Operation("Identity", (result,), (op.outputs[0],), {}, "", 21, f"{op.label}/out")
        operations += [*f.operations, last]
    return graph.with_operations(operations, constants)


# ------------------------------------------------------------------------------------- products


@dataclass(frozen=True, slots=True)
class _Product:
    """The operands of a product that takes bytes, and the bias, which is real.

    terms: of one sum.
    """

    op: Operation
    left: _Real
    right: _Real
    bias: Value | None
    terms: int


def _product(graph: Graph, op: Operation) -> _Product | None:
    """`op` as a product of bytes.

        sum_k (s * (a[i, k] - p)) * (t[j] * (b[k, j] - q[j]))
            = s * t[j] * sum_k (a[i, k] - p) * (b[k, j] - q[j])

    Both operands are dequantized bytes; s and p are single numbers, t and q may be one per column
    or channel of the result, not per term; the sum fits int32 for any bytes; the scales are such
    that no side leaves float32 (`_in_range`). Of a Gemm: alpha and beta are 1, a is not transposed.
    """
    left, right = (_real(graph, v, (uint8, int8)) for v in op.inputs[:2])
    if left is None or right is None or left.axis is not None:
        return None
    b, bias = right.whole.extents, op.inputs[2] if len(op.inputs) > 2 else None
    terms = math.prod(b[1:]) if op.qualified == "Conv" else left.whole.extents[-1]
    if terms > MOST_TERMS or right.axis not in (None, _columns(op, len(b))):
        return None
    if op.qualified == "MatMul" and min(len(left.whole.extents), len(b)) < 2:
        return None
    if op.qualified == "Gemm" and not _is_plain_gemm(op, bias):
        return None
    product = _Product(op, left, right, bias, terms)
    return product if _in_range(graph, product) else None


def _in_range(graph: Graph, p: _Product) -> bool:
    """Whether, for any bytes, s * t is a normal number and the largest sum with it is finite.

    A scale that is no constant is taken for what a quantizer computes from data, which is so.
    """
    given = [graph.constants.get(v.scale) for v in (p.left, p.right)]
    left, right = (np.float64(1) if a is None else a.astype(np.float64) for a in given)
    with np.errstate(all="ignore"):
        each = np.abs(np.multiply.outer(left, right))
        most = each * _largest(p)
    limits = np.finfo(np.float32)
    return bool(((each >= limits.tiny) & (most <= limits.max)).all())


def _columns(op: Operation, rank: int) -> int:
    """The axis of the second operand along which the results have columns or channels."""
    if op.qualified == "Conv" or (op.qualified == "Gemm" and op.attributes.get("transB", 0)):
        return 0
    return rank - 1


def _is_plain_gemm(op: Operation, bias: Value | None) -> bool:
    alpha, beta = (op.attributes.get(n, 1.0) for n in ("alpha", "beta"))
    return alpha == 1.0 and not op.attributes.get("transA", 0) and (bias is None or beta == 1.0)


def _total(p: _Product, f: Fragment) -> Value:
    """The sum in int32."""
    right = p.right.whole
    if p.op.qualified == "Conv":
        operands = p.left.whole, right, p.left.zero, p.right.zero
        return f.op("ConvInteger", *operands, **p.op.attributes)
    if p.op.qualified == "Gemm" and p.op.attributes.get("transB", 0):
        right = f.op("Transpose", right, perm=[1, 0])
    return f.op("MatMulInteger", p.left.whole, right, p.left.zero, p.right.zero)


def _real_product(graph: Graph, op: Operation, f: Fragment) -> Value | None:
    """The scaled sum in int32, and the bias."""
    p = _product(graph, op)
    if p is None:
        return None
    shape = _along(p)
    scale = f.op("Mul", p.left.scale, _shaped(f, p.right.scale, shape))
    real = f.op("Mul", f.op("Cast", _total(p, f), to=number_of("float32")), scale)
    return real if p.bias is None else f.op("Add", real, _shaped(f, p.bias, shape))


def _along(p: _Product) -> tuple[int, ...]:
    """How a parameter per column or channel broadcasts against the results."""
    return (-1, *[1] * (len(p.right.whole.extents) - 2)) if p.op.qualified == "Conv" else (-1,)


def _shaped(f: Fragment, x: Value, shape: tuple[int, ...]) -> Value:
    return x if len(x.extents) != 1 or len(shape) == 1 else shaped(f, x, shape)


def _requantised_product(graph: Graph, p: _Product, q: _Real, f: Fragment) -> Value | None:
    """The product in bytes; None where the bias is not one of int32 with the product's scale."""
    bias = None if p.bias is None else _whole_bias(graph, p)
    if bias is None and p.bias is not None:
        return None
    sides = [(s.whole, s.scale, _zero(f, s, s.whole.dtype)) for s in (p.left, p.right)]
    result = q.scale, _zero(f, q, q.whole.dtype)
    if p.op.qualified == "Conv":
        operands = (*sides[0], *sides[1], *result, bias)
        return f.op("QLinearConv", *operands, **p.op.attributes)
    if p.op.qualified == "MatMul":
        return f.op("QLinearMatMul", *sides[0], *sides[1], *result)
    total = _total(p, f) if bias is None else f.op("Add", _total(p, f), bias)
    return requantised(f, total, p.left.scale, p.right.scale, *result)


def _zero(f: Fragment, x: _Real, dtype: DType | None) -> Value:
    return f.constant(np.zeros(x.scale.extents), dtype) if x.zero is None else x.zero


def _whole_bias(graph: Graph, p: _Product) -> Value | None:
    """The int32 bias that was dequantized by the product's own scale.

    bias = s * t * whole, with no zero point; it is a constant, and sum + whole fits int32.
    """
    found = _real(graph, p.bias, (int32,))
    if found is None or found.axis not in (None, len(found.whole.extents) - 1):
        return None
    scales = found.scale, p.left.scale, p.right.scale
    known = all(v in graph.constants for v in scales)
    if not known or (found.zero is not None and not _is_known(graph, found.zero, 0)):
        return None
    whole = graph.constants.get(found.whole)
    if whole is None or np.abs(whole.astype(np.int64)).max(initial=0) > _WHOLE - _largest(p):
        return None
    own, left, right = (graph.constants[v].reshape(-1) for v in scales)
    if 1 not in (own.size, right.size) and own.size != right.size:
        return None
    return found.whole if np.allclose(own, left * right, rtol=1e-6, atol=0) else None


def _largest(p: _Product) -> int:
    return p.terms * _BYTE * _BYTE


PRODUCTS = ("MatMul", "Gemm", "Conv")


# ----------------------------------------------------------------------- what is quantised again


def _quantised(graph: Graph, op: Operation, f: Fragment) -> Value | None:
    """What is quantised, done on bytes: a product, or a selection of quantised elements."""
    q, source = _quantiser(op), op.inputs[0]
    if q is None or source is None:
        return None
    source = _unclipped(graph, source, q)
    made = graph.producer(source)
    result = None
    if made is not None and made.qualified in PRODUCTS and _only_use(graph, source):
        p = _product(graph, made)
        result = None if p is None else _requantised_product(graph, p, q, f)
    elif made is not None:
        result = _selection(graph, made, q, f)
    if result is None and source is not op.inputs[0]:
        return f.op("QuantizeLinear", source, *op.inputs[1:], version=op.version, **op.attributes)
    return result


def _quantiser(op: Operation) -> _Real | None:
    """The result of a QuantizeLinear to bytes with one scale, divided by in float32."""
    _, scale, zero = (*op.inputs, None)[:3]
    out = op.outputs[0]
    if scale is None or out is None or out.dtype not in (uint8, int8):
        return None
    if scale.dtype is not float32 or not scale.static or math.prod(scale.extents) != 1:
        return None
    plain = not op.attributes.get("precision", 0) and not op.attributes.get("block_size", 0)
    return _Real(out, scale, zero, None) if plain else None


def _unclipped(graph: Graph, x: Value, q: _Real) -> Value:
    """`x` before a Relu or a Clip to bounds that the quantizer clips to anyway.

    round(low / s) + p <= the least byte and round(high / s) + p >= the largest: what is clipped
    saturates. Bounds and quantization are known, and nothing else reads what was clipped.
    """
    made = graph.producer(x)
    if made is None or made.qualified not in ("Relu", "Clip") or not _only_use(graph, x):
        return x
    source, known = made.inputs[0], _parameters(graph, q)
    if source is None or known is None:
        return x
    dtype, scale, zero = known
    with np.errstate(all="ignore"):
        ends = [np.rint(np.float32(b) / scale) + zero for b in _clip_bounds(graph, made)]
    inside = ends[0] <= dtype.min and ends[1] >= dtype.max
    return _unclipped(graph, source, q) if inside else x


def _clip_bounds(graph: Graph, op: Operation) -> tuple[float, float]:
    """The bounds of a Relu or Clip; NaN for one that is not known."""
    if op.qualified == "Relu":
        return 0.0, math.inf
    bounds = [op.attributes.get("min", -math.inf), op.attributes.get("max", math.inf)]
    for n, v in enumerate(op.inputs[1:3]):
        if v is not None:
            known = graph.constants.get(v)
            bounds[n] = math.nan if known is None else known.item()
    return bounds[0], bounds[1]


def _selection(graph: Graph, op: Operation, q: _Real, f: Fragment) -> Value | None:
    """A selection of dequantized elements that are quantized as they were before.

    select(s * (a - p)) = s * (select(a) - p), as the factor is above zero and keeps order; behind
    it stands the same quantization (`_same`); nothing but the elements is asked for (no indices).
    """
    if op.qualified == "DequantizeLinear":
        x = _real(graph, op.outputs[0], (uint8, int8))
        return x.whole if x is not None and _same(graph, x, q) else None
    if not has_trait(op, MOVES_DATA | SELECTS) or len(op.writes) != 1:
        return None
    x = _real(graph, op.inputs[0], (uint8, int8))
    if x is None or not _same(graph, x, q):
        return None
    return f.op(op.op_type, x.whole, *op.inputs[1:], version=op.version, **op.attributes)


def _same(graph: Graph, x: _Real, q: _Real) -> bool:
    """Whether both are quantized in the same way, so that going there and back changes no byte.

    round(s * (a - p) / s) + p = a: one type, one known s > 0 with 255 * s finite, one known p.
    """
    known = _parameters(graph, x)
    if known is None or known != _parameters(graph, q):
        return False
    return bool(0 < known[1] <= np.finfo(np.float32).max / _BYTE)


# ------------------------------------------------------------------------------------ quantities


def _real(graph: Graph, value: Value | None, dtypes: tuple[DType, ...]) -> _Real | None:
    """What is dequantised to `value`: integers with one scale, or one along an axis."""
    op = None if value is None else graph.producer(value)
    if op is None or op.qualified != "DequantizeLinear" or op.attributes.get("block_size"):
        return None
    if value is None or value.dtype is not float32:  # `output_dtype` may say another
        return None
    x, scale, zero = (*op.inputs, None)[:3]
    if x is None or scale is None or not (x.static and scale.static):
        return None
    if x.dtype not in dtypes or scale.dtype is not float32 or len(scale.extents) > 1:
        return None
    if math.prod(scale.extents) == 1:
        return _Real(x, scale, zero, None)
    return _Real(x, scale, zero, op.attributes.get("axis", 1) % len(x.extents))


def _only_use(graph: Graph, x: Value) -> bool:
    return len(graph.users(x)) == 1 and x not in graph.outputs


def _is_known(graph: Graph, x: Value, number: int) -> bool:
    known = graph.constants.get(x)
    return known is not None and bool((known == number).all())


def _parameters(graph: Graph, x: _Real) -> tuple[DType, np.float32, int] | None:
    """The type, scale and zero point of bytes, where they are known and one for all of them."""
    scale = graph.constants.get(x.scale)
    zero = np.zeros(1) if x.zero is None else graph.constants.get(x.zero)
    if scale is None or zero is None or scale.size != 1:
        return None
    assert x.whole.dtype is not None
    return x.whole.dtype, np.float32(scale.item()), int(zero.item())
