"""Operators of the domain com.microsoft in exported transformers, in terms of ONNX operators.

Each is a decomposition, so it is folded, fused and compiled as if the model had been written that
way. A use with an unsupported operand is left unchanged (and reported as unsupported). Semantics:
ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import broadcast
from tilewright.graph.ops.derivative import scaled, turned
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import matmul_shape
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

DOMAIN = "com.microsoft"
Decompose = Callable[[OpCall, Fragment], Sequence[Value] | None]


def _define(
    name: str,
    decompose: Decompose,
    infer: Any = same_type,
    domain: str = DOMAIN,
) -> None:
    register(OpDef(name, infer, domain, decompose=decompose))


# ---------------------------------------------------------------------------------- activations


def _fast_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    x = call.value(0)
    if call.has(1):
        x = f.op("Add", x, call.value(1))
    return [f.op("Gelu", x, approximate="tanh")]


def _bias_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    total = f.op("Add", call.value(0), call.value(1))
    return [f.op("Gelu", total)]


def _quick_gelu(call: OpCall, f: Fragment) -> Sequence[Value]:
    x = f.term(call.value(0))
    inner = x * float(call.attr("alpha", 1.702))
    y = x * inner.op("Sigmoid")
    return [y.value]


_define("Gelu", lambda call, f: [f.op("Gelu", call.value(0))])
_define("FastGelu", _fast_gelu)
_define("BiasGelu", _bias_gelu)
_define("QuickGelu", _quick_gelu)


# ------------------------------------------------------------------------------ normalizations


def _rms(
    call: OpCall,
    f: Fragment,
    x: Value,
    scale: Value,
) -> Value:
    options = {"axis": call.attr("axis", -1), "epsilon": call.attr("epsilon", 1e-5)}
    return f.op("RMSNormalization", x, scale, version=23, **options)


def _simplified(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if call.wants(1):
        return None
    return [_rms(call, f, call.value(0), call.value(1))]


def _skip(call: OpCall, f: Fragment, bias: int) -> Value:
    """input + skip, plus the bias if it is present."""
    total = f.op("Add", call.value(0), call.value(1))
    if call.has(bias):
        return f.op("Add", total, call.value(bias))
    return total


def _skip_layer_norm(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: input, skip, gamma, beta, bias; outputs: y, mean, inverse deviation, sum."""
    if call.wants(1) or call.wants(2):
        return None
    total = _skip(call, f, 4)
    options = {"axis": -1, "epsilon": call.attr("epsilon", 1e-12)}
    beta = call.given(3)
    y = f.op("LayerNormalization", total, call.value(2), beta, **options)
    return [y, total, total, total]


def _skip_simplified(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    """inputs: input, skip, gamma, bias; outputs: y, mean, inverse deviation, sum."""
    if call.wants(1) or call.wants(2):
        return None
    total = _skip(call, f, 3)
    return [_rms(call, f, total, call.value(2)), total, total, total]


def _four(call: OpCall) -> Sequence[Type]:
    return [*same_type(call)] * 4


_define("SkipLayerNormalization", _skip_layer_norm, _four)
_define("SkipSimplifiedLayerNormalization", _skip_simplified, _four)
_define("SimplifiedLayerNormalization", _simplified, _four)
_define("SimplifiedLayerNormalization", _simplified, _four, domain="")


# ------------------------------------------------------------------------------------- products


def _fused_matmul(call: OpCall, f: Fragment) -> Sequence[Value] | None:
    if call.attr("transBatchA", 0) or call.attr("transBatchB", 0):
        return None
    a = call.value(0)
    b = call.value(1)
    if call.attr("transA", 0):
        a = turned(f, a)
    if call.attr("transB", 0):
        b = turned(f, b)
    y = f.op("MatMul", a, b)
    return [scaled(f, y, call.attr("alpha", 1.0))]


def _fused_type(call: OpCall) -> Sequence[Type]:
    a = call.shape(0)
    b = call.shape(1)
    if call.attr("transA", 0):
        a = (*a[:-2], *a[:-3:-1])
    if call.attr("transB", 0):
        b = (*b[:-2], *b[:-3:-1])
    return call.result(matmul_shape(call, a, b))


_define("FusedMatMul", _fused_matmul, _fused_type)


# ----------------------------------------------------------------------------------- quantized


def _quantized(op_type: str) -> Decompose:
    """inputs: A, its scale and zero point, B, its scale and zero point, then the result's two."""

    def real(call: OpCall, f: Fragment, n: int) -> Value:
        """The real numbers that input `n` represents."""
        scale = call.value(n + 1)
        zero = call.given(n + 2)
        return f.op("DequantizeLinear", call.value(n), scale, zero)

    def decompose(call: OpCall, f: Fragment) -> Sequence[Value]:
        a = real(call, f, 0)
        b = real(call, f, 3)
        y = f.op(op_type, a, b)
        zero = call.given(7)
        return [f.op("QuantizeLinear", y, call.value(6), zero)]

    return decompose


def _broadcast_type(call: OpCall) -> Sequence[Type]:
    return call.result(broadcast(call, call.shape(0), call.shape(3)))


_define("QLinearAdd", _quantized("Add"), _broadcast_type)
_define("QLinearMul", _quantized("Mul"), _broadcast_type)
