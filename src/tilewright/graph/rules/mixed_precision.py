"""Training with products of two bytes per number, including those of the derivatives.

    a @ b  =  bfloat16(a) @ bfloat16(b), summed in float32         or float16 instead

Parameters, the optimizer's states and everything except products stay in float32. bfloat16 has the
range of float32; the derivatives of a loss in float16 need a scale (`graph.loss_scale`). A
convolution rounds its operands as well, but multiplies them as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.base.dtypes import DType, bfloat16, float16, float32
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Graph, Operation, Value
from tilewright.graph.ops.derivative import turned
from tilewright.graph.ops.dtype_numbers import number_of
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.matmul import MIXED
from tilewright.graph.ops.recurrent_panels import STATES
from tilewright.graph.rules.block_weights import added

# The precisions that products are trained in.
TRAINED: Mapping[str, DType] = {
    "bfloat16": bfloat16,
    "float16": float16,
}

_MICROSOFT = (
    "Attention MultiHeadAttention GroupQueryAttention FusedMatMul MatMulNBits".split()
)
# Operators that multiply internally and have no form with operands of two bytes.
_WHOLE = frozenset(
    [
        *("Einsum", "DeformConv", "Attention", "If", "Loop", "Scan"),
        *(f"tilewright::{name}" for name in ("Attention", "BlockScaledMatMul")),
        *(f"com.microsoft::{name}" for name in _MICROSOFT),
        *(name for kind in STATES for name in (kind, f"tilewright::{kind}Steps")),
    ]
)


class _Rounded(Fragment):
    """A graph under construction whose values are rounded once each."""

    def __init__(self, graph: Graph, precision: str, pairs: bool) -> None:
        super().__init__(precision, graph.constants)
        self._to = number_of(precision)
        self._pairs = pairs
        self._lower: dict[Value, Value] = {}

    def lower(self, v: Value) -> Value:
        """`v` in the precision of products."""
        if v not in self._lower:
            self._lower[v] = self.op("Cast", v, to=self._to)
        return self._lower[v]

    def rounded(self, v: Value) -> Value:
        """`v` in that precision, held in float32."""
        lower = self.lower(v)
        return self.cast(lower, float32)

    def product(self, a: Value, b: Value) -> Value:
        """The product of two values, both rounded."""
        if not self._pairs:
            a = self.rounded(a)
            b = self.rounded(b)
            return self.op("MatMul", a, b)
        (y,) = self.ops(
            MIXED, self.lower(a), self.lower(b), domain="tilewright", version=1, count=1
        )
        return y


def _matmul(f: _Rounded, op: Operation) -> None:
    a, b = op.reads
    f.product(a, b)


def _gemm(f: _Rounded, op: Operation) -> None:
    a, b, *bias = op.reads
    a = turned(f, a) if op.attr("transA") else a
    b = turned(f, b) if op.attr("transB") else b
    added(f, f.product(a, b), bias[0] if bias else None, op.attributes)


def _convolution(f: _Rounded, op: Operation) -> None:
    a, b, *bias = op.reads
    a = f.rounded(a)
    b = f.rounded(b)
    f.apply(op, [a, b, *bias], op.attributes)


_PRODUCTS: Mapping[str, Callable[[_Rounded, Operation], None]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _convolution,
    "ConvTranspose": _convolution,
}


def check_precision(graph: Graph, precision: str) -> None:
    """Raise UnsupportedError unless it has two bytes and all operations support it."""
    if precision not in TRAINED:
        raise UnsupportedError(
            f"training with precision={precision!r}",
            hint=f"take one of {', '.join(TRAINED)}",
        )
    for op in graph.operations:
        floats = [v for v in op.reads if v.dtype is not None and v.dtype.is_float]
        if op.qualified in _WHOLE and floats:
            why = "multiplies internally, only in float32"
        elif op.qualified in _PRODUCTS and any(v.dtype is not float32 for v in floats):
            why = f"is of {floats[0].dtype}, not float32"
        else:
            continue
        raise UnsupportedError(
            f'precision="{precision}": {op.op_type} {why}',
            where=place(op),
            hint="train without precision",
        )


def with_rounded_products(graph: Graph, precision: str, pairs: bool = True) -> Graph:
    """The graph with products of rounded operands. Requires `check_precision` of the model.

    pairs: whether the target multiplies this precision; elsewhere an operand would be converted
    wherever it is read, and it is so once.
    """
    f = _Rounded(graph, precision, pairs)
    for op in graph.operations:
        rule = _PRODUCTS.get(op.qualified)
        if rule is None or op.reads[0].dtype is not float32:
            f.operations.append(op)
            continue
        rule(f, op)
        last = f.operations[-1]
        f.operations[-1] = Operation(
            last.op_type, last.inputs, op.outputs, last.attributes, last.domain,
            last.version, op.name,
        )  # fmt: skip
    return graph.with_operations(f.operations, {**graph.constants, **f.constants})
