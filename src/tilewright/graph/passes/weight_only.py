"""Weight-only quantization: constant matrices of products become integers of few bits.

Each column of a matrix has a scale, and optionally a zero point, per `group` rows; activations are
unchanged. The products become `MatMulNBits` of com.microsoft, or ONNX's own `DequantizeLinear` with
a `block_size` in front of the product (opset 21): other runtimes read both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, dtype_of
from tilewright.base.errors import ArgumentError, InputError
from tilewright.base.names import fresh
from tilewright.graph.nodes import Graph, Operation, Value, constant
from tilewright.graph.ops.block_weights import BlockWeights, packed
from tilewright.graph.ops.registry import Array
from tilewright.graph.passes.simplify import remove_unused
from tilewright.graph.renaming import names_in

BITS: Final = (4, 8)
GROUPS: Final = (16, 32, 64, 128, 256)
FORMS: Final = ("nbits", "qdq")
LEAST: Final = 4096  # fewest elements of a matrix; smaller ones cause no memory traffic
FLOATS: Final = ("float32", "float16", "bfloat16")

# (matrix [K, N] in float32, bits, group, symmetric) -> its integers and scales
Round = Callable[[Array, int, int, bool], BlockWeights]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """The format: bits and group size of integer matrices, and whether zero points are omitted.

    form: "nbits" or "qdq". round: chooses the integers and scales.
    """

    bits: int
    group: int
    symmetric: bool
    form: str
    round: Round


def weight_only(
    graph: Graph,
    bits: int = 4,
    group: int = 32,
    *,
    symmetric: bool = True,
    form: str = "nbits",
    round: Round | None = None,
) -> Graph:
    """The graph with weights of MatMul and Gemm in `bits` bits, with a scale per `group` of them.

    Matrices of fewer than 4096 elements and computed matrices are unchanged. symmetric: centered on
    the middle integer, without zero points. round: chooses the integers and scales of a matrix, by
    default the nearest (`round_to_nearest`).

    Raises InputError for other bits, groups or forms, for weights that are not finite, and for a
    graph with nothing to quantize.
    """
    _check("bits", bits, BITS)
    _check("group", group, GROUPS)
    _check("form", form, FORMS)
    recipe = WeightFormat(
        bits,
        group,
        symmetric,
        form,
        round or round_to_nearest,
    )
    constants = dict(graph.constants)
    taken = names_in(graph)
    operations: list[Operation] = []
    for op in graph.operations:
        operations += _quantized(op, constants, taken, recipe) or [op]
    if len(operations) == len(graph.operations) and all(
        a is b for a, b in zip(operations, graph.operations, strict=True)
    ):
        raise InputError(
            "there is no MatMul or Gemm with a constant matrix to quantize",
            where=f"graph {graph.name!r}",
            hint=f"such a matrix has two axes and at least {LEAST} elements",
        )
    return remove_unused(graph.with_operations(operations, constants))


def _check(name: str, value: Any, known: tuple[Any, ...]) -> None:
    if value not in known:
        raise ArgumentError(
            f"{name} is {value!r}",
            hint=f"give one of {', '.join(map(str, known))}",
        )


def round_to_nearest(
    w: Array,
    bits: int,
    group: int,
    symmetric: bool,
) -> BlockWeights:
    """The nearest integers of a matrix [K, N], with scales that fit its largest elements.

    Symmetric: the element farthest from 0 becomes exactly the least integer. Otherwise the range of
    the group, extended to include 0, becomes the range of the integers.
    """
    depth, columns = w.shape
    blocks = -(-depth // group)
    missing = blocks * group - depth
    # In float64, as the range of a group may exceed float32.
    whole = np.pad(w.astype(np.float64), ((0, missing), (0, 0)))
    whole = whole.reshape(blocks, group, columns)
    top = whole.max(1)
    bottom = whole.min(1)
    most = (1 << bits) - 1
    middle = 1 << (bits - 1)
    if symmetric:
        scale = (np.where(top > -bottom, top, bottom) / -middle).astype(np.float32)
        zero: Any = float(middle)
        shift = zero
    else:
        top = np.maximum(top, 0)
        bottom = np.minimum(bottom, 0)
        scale = ((top - bottom) / most).astype(np.float32)
        # A subnormal scale may have been rounded to half its value.
        zero = np.clip(np.rint(-bottom / _divisor(scale)), 0, most).astype(np.uint8)
        shift = zero[:, None].astype(np.float32)
    q = np.rint(whole / _divisor(scale)[:, None]) + shift
    q = np.clip(q, 0, most).astype(np.uint8).reshape(-1, columns)[:depth]
    return BlockWeights(
        bits,
        group,
        q,
        scale,
        zero,
    )


def _divisor(scale: Array) -> Array:
    """Scales to divide by; a group of zeros has none."""
    found: Array = np.where(scale == 0, 1, scale)
    return found


def _quantized(
    op: Operation,
    constants: dict[Value, Array],
    taken: set[str],
    recipe: WeightFormat,
) -> list[Operation] | None:
    """The replacement of an operation; None if it stays. Adds constants and used names."""
    if op.qualified not in ("MatMul", "Gemm"):
        return None
    attributes = op.attributes
    if attributes.get("transA", 0):
        return None
    x, given = op.inputs[:2]
    matrix = None if given is None else constants.get(given)
    if x is None or given is None or matrix is None or x.dtype is None:
        return None
    large = matrix.ndim == 2 and matrix.size >= LEAST
    if not large or x.dtype.name not in FLOATS or x.shape is None:
        return None
    w = matrix.astype(np.float32)
    if attributes.get("transB", 0):
        w = w.T
    if not np.isfinite(w).all():
        raise InputError(
            f"the weights {given.name!r} are not all finite",
            where=f"node {op.label!r}",
            hint="quantize a model without NaN and infinities",
        )
    weights = recipe.round(
        w,
        recipe.bits,
        recipe.group,
        recipe.symmetric,
    )
    # In the dtype of the activations, as runtimes expect: that is what is written and measured.
    weights = replace(weights, scale=weights.scale.astype(x.dtype.numpy))
    error = _share(weights.real() - w, w)
    events.emit("weight-only", node=op.label, weights=given.name, error=error)
    builder = _Builder(op, x, x.dtype, weights, constants, taken)
    return builder.nbits() if recipe.form == "nbits" else builder.qdq()


def _share(part: Array, whole: Array) -> float:
    """The ratio of one matrix's norm to another's; 0 if the latter is 0."""
    norm, lost = (float(np.linalg.norm(x.astype(np.float64))) for x in (whole, part))
    return lost / norm if norm else 0.0


@dataclass(frozen=True, eq=False, slots=True)
class _Builder:
    """The operations that replace a product `op` of `x`, in the dtype of `x`."""

    op: Operation
    x: Value
    dtype: DType
    weights: BlockWeights
    constants: dict[Value, Array]
    taken: set[str]

    def nbits(self) -> list[Operation]:
        """MatMulNBits, followed by the rest of a Gemm."""
        w = self.weights
        q = packed(np.ascontiguousarray(w.whole().transpose(2, 0, 1)), w.bits)
        inputs = [
            self.x,
            self.constant("packed", q),
            self.constant("scales", w.scale.T.reshape(-1)),
        ]
        if isinstance(w.zero, np.ndarray):
            zeros = packed(np.ascontiguousarray(w.zero.T), w.bits)
            inputs.append(self.constant("zeros", zeros.reshape(-1)))
        sizes = {"N": w.columns, "K": w.depth}
        how = {"bits": w.bits, "block_size": w.block}
        product = Operation(
            "MatMulNBits",
            tuple(inputs),
            self.op.outputs,
            {**sizes, **how},
            "com.microsoft",
            1,
            self.op.name,
        )
        return self.scaled(product)

    def qdq(self) -> list[Operation]:
        """DequantizeLinear of the blocks, then the original product."""
        w = self.weights
        storage = dtype_of(f"uint{w.bits}")
        inputs = [
            self.constant("q", w.q.astype(storage.numpy)),
            self.constant("scales", w.scale),
        ]
        shape = w.scale.shape
        zero = np.broadcast_to(np.asarray(w.zero), shape)
        inputs.append(self.constant("zeros", zero.astype(storage.numpy)))
        real = Value(
            self.name("dequantized"),
            self.dtype,
            w.q.shape,
        )
        dequantize = Operation(
            "DequantizeLinear",
            tuple(inputs),
            (real,),
            {"axis": 0, "block_size": w.block},
            version=21,
            name=self.name("dequantize"),
        )
        attributes = {k: v for k, v in self.op.attributes.items() if k != "transB"}
        product = replace(
            self.op,
            inputs=(self.x, real, *self.op.inputs[2:]),
            attributes=attributes,
        )
        return [dequantize, product]

    def scaled(self, product: Operation) -> list[Operation]:
        """A product with the factors and third operand of Gemm, if it is one."""
        attributes: Mapping[str, Any] = self.op.attributes
        alpha = attributes.get("alpha", 1.0)
        beta = attributes.get("beta", 1.0)
        bias = self.op.inputs[2] if len(self.op.inputs) > 2 else None
        steps = [product]
        if alpha != 1.0:
            self.then(steps, "Mul", self.number("alpha", alpha))
        if bias is None or beta == 0.0:
            return steps
        if beta != 1.0:
            term = replace(bias, name=self.name("term"))
            factor = self.number("beta", beta)
            steps.insert(
                0,
                Operation("Mul", (bias, factor), (term,), version=14),
            )
            bias = term
        self.then(steps, "Add", bias)
        return steps

    def then(self, steps: list[Operation], op_type: str, other: Value) -> None:
        """Append an operation, which takes over the result of the last one."""
        last = steps[-1]
        result = last.outputs[0]
        assert result is not None
        before = replace(result, name=self.name(f"before_{op_type.lower()}"))
        steps[-1] = replace(last, outputs=(before,))
        name = self.name(op_type.lower())
        steps.append(
            Operation(
                op_type,
                (before, other),
                (result,),
                version=14,
                name=name,
            )
        )

    def name(self, what: str) -> str:
        """A new name derived from the result's."""
        result = self.op.outputs[0]
        assert result is not None
        return fresh(self.taken, f"{result.name}/{what}", ".")

    def number(self, what: str, value: float) -> Value:
        """Add a constant scalar."""
        return self.constant(what, np.array(value, self.dtype.numpy))

    def constant(self, what: str, array: Array) -> Value:
        """Add a constant to the graph."""
        made = constant(self.name(what), np.ascontiguousarray(array))
        self.constants[made] = np.ascontiguousarray(array)
        return made
