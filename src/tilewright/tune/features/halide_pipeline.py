"""Halide's pipeline features of a stage: histograms of operations and of access classes.

After `Featurization.h` and the Featurizer of `FunctionDAG.cpp`. Signed and unsigned integers of a
width share a type; a comparison has the type of its operands. The class of an access follows from
the Jacobian of its index with respect to the stage's dimensions: the axes of its result and the
loops of its reduction, where loops that index one axis of a read form one dimension.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import (
    Add,
    And,
    Bitcast,
    Call,
    Cast,
    Div,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Not,
    Or,
    Rem,
    Select,
    Shl,
    Shr,
    Sub,
    Xor,
)
from tilewright.tune.features.halide_columns import (
    ACCESSES,
    CLASSES,
    OPERATIONS,
    TYPES,
)
from tilewright.tune.features.indices import IndexFeatures
from tilewright.tune.features.program import FeatureLine
from tilewright.tune.features.regions import TensorAccess
from tilewright.tune.features.stages import FeatureStage

ROWS = len(OPERATIONS) + len(CLASSES) * len(ACCESSES)

_NAMES: Mapping[type[Expr], str] = {
    Add: "add",
    Sub: "sub",
    Neg: "sub",
    Mul: "mul",
    **dict.fromkeys((Div, FloorDiv), "div"),
    **dict.fromkeys((Mod, Rem), "mod"),
    Min: "min",
    Max: "max",
    Eq: "eq",
    Ne: "ne",
    Lt: "lt",
    Le: "le",
    And: "and",
    Or: "or",
    Not: "not",
    Select: "select",
    Cast: "cast",
    **dict.fromkeys((Call, Bitcast, Xor, Shl, Shr), "extern_call"),
}


def type_of(dtype: DType) -> int:
    """The column of a dtype among TYPES."""
    if dtype.is_float or dtype.is_complex:
        return TYPES.index("double" if dtype.bits > 32 else "float")
    if dtype.is_bool:
        return 0
    return 1 + max(0, min(3, math.ceil(math.log2(max(dtype.bits, 8) / 8))))


def histogram(stage: FeatureStage, inputs: frozenset[object]) -> list[float]:
    """The 40 rows by 7 types, in row-major order. inputs: buffers that no stage computes."""
    found = [[0.0] * len(TYPES) for _ in range(ROWS)]
    line = stage.main
    for (kind, dtype), n in line.operations.items():
        found[OPERATIONS.index(_NAMES[kind])][type_of(dtype)] += n
    dims = _dimensions(stage)
    for access in line.accesses:
        type_ = type_of(access.buffer.dtype)
        for way in _ways(access, line, inputs):
            if way in _CALLS:
                found[OPERATIONS.index(_CALLS[way])][type_] += 1
            for n, fits in enumerate(_classes(access, dims)):
                row = len(OPERATIONS) + n * len(ACCESSES) + ACCESSES.index(way)
                found[row][type_] += fits
    return [v for row in found for v in row]


_CALLS = {
    "load_image": "image_call",
    "load_func": "func_call",
    "load_self": "self_call",
}


def _ways(
    access: TensorAccess, line: FeatureLine, inputs: frozenset[object]
) -> list[str]:
    found = ["store"] if access.writes else []
    if access.reads:
        if access.buffer is line.target.buffer:
            found.append("load_self")
        else:
            found.append("load_image" if access.buffer in inputs else "load_func")
    return found


@dataclass(frozen=True, slots=True)
class _Dimension:
    """A dimension of a stage: the coefficients of its loops in the index that defines it."""

    terms: Mapping[int, float]


def _dimensions(stage: FeatureStage) -> list[_Dimension]:
    """The axes of the result that the stage's loops move, then those of its reduction."""
    main = stage.main
    axes = (_own(at, stage.produced) for at in main.target.index)
    found = [dim for dim in axes if dim.terms]
    known = {d for dim in found for d in dim.terms}
    for access in main.accesses:
        for at in access.index:
            own = _own(at, stage.produced).terms
            rest = {d: c for d, c in own.items() if d not in known}
            if rest:
                least = min(map(abs, rest.values()))
                terms = {d: c / least for d, c in rest.items()}
                found.append(_Dimension(terms))
                known |= set(rest)
    return found


def _own(at: IndexFeatures, depth: int) -> _Dimension:
    return _Dimension({d: c for d, c in at.terms.items() if d >= depth})


def _derivative(at: IndexFeatures, dim: _Dimension) -> float | None:
    """The derivative of an index by a dimension; None if it is not a constant."""
    if at.erratic & set(dim.terms):
        return None
    if not any(at.terms.get(d) for d in dim.terms):
        return 0.0
    ratios = {at.terms.get(d, 0.0) / c for d, c in dim.terms.items()}
    return ratios.pop() if len(ratios) == 1 else None


def _classes(
    access: TensorAccess, dims: list[_Dimension]
) -> tuple[bool, bool, bool, bool]:
    """Whether an access is pointwise, a transposition, a broadcast, a slice.

    As defined in `Featurization.h`; axes with one element are ignored.
    """
    rows = [
        [_derivative(at, dim) for dim in dims]
        for at, extent in zip(access.index, access.shape.extents, strict=True)
        if extent > 1
    ]
    columns = [[row[n] for row in rows] for n in range(len(dims))]
    square = len(rows) == len(dims)
    pointwise = square and all(
        v == (1.0 if i == j else 0.0)
        for i, row in enumerate(rows)
        for j, v in enumerate(row)
    )
    single_rows, single = all(map(_single, rows)), all(map(_single, columns))
    transpose = square and single_rows and single
    broadcast = single_rows and all(_single(c) or _empty(c) for c in columns)
    part = all(_single(r) or _empty(r) for r in rows) and single
    return pointwise, transpose, broadcast, part


def _single(values: list[float | None]) -> bool:
    """Whether there is exactly one 1 and otherwise zeros."""
    return values.count(1.0) == 1 and values.count(0.0) == len(values) - 1


def _empty(values: list[float | None]) -> bool:
    return values.count(0.0) == len(values)
