"""Ansor's per-store features: a row for each stored tensor.

After Zheng et al., Ansor, OSDI 2020, and TVM's `auto_scheduler/feature.cc`: arithmetic and loops,
five tensors with touched bytes and reuse distances, the curve of arithmetic intensity, allocation,
and the enclosing loops. As in TVM, arithmetic is summed over the stores to a tensor. Everything
else describes one store: in TVM the last, here the one that runs most often. Index arithmetic
counts in its linear form. Positions of loops, always `mixed` in TVM, are computed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import (
    Add,
    And,
    Bitcast,
    Call,
    Compare,
    Div,
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
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
from tilewright.loops.nodes import GPU_AXES, Kernel
from tilewright.tune.features.base import Column, Matrix, Per, log2p, matrix
from tilewright.tune.features.per_store_columns import (
    ARITHMETIC,
    BUFFERS,
    COLUMNS,
    POSITIONS,
    SAMPLES,
)
from tilewright.tune.features.program import (
    UNIT,
    FeatureLine,
    FeatureLoop,
    KernelNests,
    program,
)
from tilewright.tune.features.regions import LINE, TouchedTensor
from tilewright.tune.features.reuse import Reuse, TouchedByLoop, reuse


@dataclass(frozen=True, slots=True)
class PerStore:
    """See the module's docstring: 164 columns."""

    name: ClassVar[str] = "per-store"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "store"
    source: ClassVar[str] = "Zheng et al. 2020; TVM's auto_scheduler/feature.cc"

    @property
    def columns(self) -> Sequence[Column]:
        """See `per_store_columns`."""
        return COLUMNS

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [stored tensors, 164], in order of their first stores."""
        found = program(kernel)
        touched = TouchedByLoop(found.lines)
        stores: dict[object, list[FeatureLine]] = {}
        for line in found.lines:
            stores.setdefault(line.target.buffer, []).append(line)
        rows = [_row(found, lines, touched) for lines in stores.values()]
        return matrix(rows, len(COLUMNS))


def _row(
    found: KernelNests, lines: list[FeatureLine], touched: TouchedByLoop
) -> list[float]:
    main = lines[0]
    for line in lines:
        if line.executions >= main.executions:
            main = line
    row = [log2p(n) for n in _arithmetic(lines)]
    for kinds in (("vector", UNIT), ("unroll",), ("parallel",)):
        row += _annotation(main, kinds)
    row += _spread(main)
    row += _buffers(main, touched)
    row += [log2p(v) for v in _intensity(main)]
    row += [log2p(v) for v in _allocated(found, main)]
    row += [log2p(main.executions), log2p(len(main.loops)), 0.0]
    return row


_GROUPS: dict[type[Expr], str] = {
    **dict.fromkeys((Add, Sub, Neg), "addsub"),
    Mul: "mul",
    **dict.fromkeys((Div, FloorDiv, Mod, Rem), "divmod"),
    **dict.fromkeys((Min, Max, *Compare.__subclasses__()), "cmp"),
    **dict.fromkeys((Call, Bitcast, Shl, Shr, And, Or, Xor, Not), "mathfunc"),
}


def operation_group(kind: type[Expr], dtype: DType) -> str | None:
    """The column that counts an operation; None for a cast, which is not counted."""
    if kind is Select:
        return "select_op"
    if dtype.is_bool and kind in (And, Or, Xor, Not):
        return "bool_op"
    group = _GROUPS.get(kind)
    if group is None:
        return None
    return ("float_" if dtype.is_float else "int_") + group


def _arithmetic(lines: list[FeatureLine]) -> list[float]:
    found = dict.fromkeys(ARITHMETIC, 0.0)
    for line in lines:
        times = line.executions
        for (kind, dtype), n in line.operations.items():
            group = operation_group(kind, dtype)
            if group is not None:
                found[group] += n * times
        for a in line.accesses:
            if not a.writes:
                found["int_addsub"] += times * sum(i.additions for i in a.index)
                found["int_mul"] += times * sum(i.products for i in a.index)
    return list(found.values())


def _annotation(line: FeatureLine, kinds: tuple[str, ...]) -> list[float]:
    loops = [f for f in line.loops if f.kind in kinds]
    position = _position(line, loops[-1]) if loops else "none"
    # As in TVM, the product of no loops is 0, not 1.
    all_trips = math.prod(f.trips for f in loops) if loops else 0
    sizes = (len(loops), all_trips, loops[-1].trips if loops else 0)
    return [*map(log2p, sizes), *(float(position == p) for p in POSITIONS)]


def _position(line: FeatureLine, loop: FeatureLoop) -> str:
    target = line.target
    axes = [n for n, at in enumerate(target.index) if loop.depth in at.terms]
    if len(axes) > 1:
        return "mixed"
    if axes:
        if axes[0] == len(target.index) - 1:
            return "inner_spatial"
        return "outer_spatial" if axes[0] == 0 else "middle_spatial"
    if not any(a.moves(loop.depth) for a in line.accesses):
        return "outer_spatial"  # of a tensor that is computed inside another one's loop
    sums = [f for f in line.loops if not target.moves(f.depth)]
    if loop is sums[-1]:
        return "inner_reduce"
    return "outer_reduce" if loop is sums[0] else "middle_reduce"


def _spread(line: FeatureLine) -> list[float]:
    trips = dict.fromkeys((*GPU_AXES, "vthread"), 1)
    for f in line.loops:
        if f.kind in trips:
            trips[f.kind] *= f.trips
    is_gpu = any(f.kind in trips for f in line.loops)
    return [float(is_gpu), *map(log2p, trips.values())]


def _buffers(line: FeatureLine, touched: TouchedByLoop) -> list[float]:
    found = [_buffer(line, t, touched) for t in line.touches]
    # By lines, then bytes, then everything else; never by name.
    found.sort(key=lambda b: (-b[5], -b[3], [-v for v in b]))
    row = [v for values in found[:BUFFERS] for v in values]
    return row + [0.0] * (18 * BUFFERS - len(row))


def _buffer(line: FeatureLine, t: TouchedTensor, touched: TouchedByLoop) -> list[float]:
    size, executions = t.shape.itemsize, line.executions
    unique = t.elements[0] * size
    lines = stride = 1.0
    unique_lines = 1.0
    if line.loops:
        lines, stride = _lines(line, t)
        whole = [
            n for n, most in zip(t.box(0), t.shape.extents, strict=True) if n == most
        ]
        piece = size * (whole[-1] if whole else 1)
        unique_lines = max(1.0, unique / max(1.0, min(piece, LINE)))
    found = reuse(line, t, touched)
    counts = [executions * size, unique, lines, unique_lines]
    divided = [n / found.count if found.count else 2 * n for n in counts]
    kind = "read_write" if t.reads and t.writes else "write" if t.writes else "read"
    row = [float(kind == k) for k in ("read", "write", "read_write")]
    row += map(log2p, counts)
    row += _reuse(found)
    row += map(log2p, divided)
    row.append(log2p(stride))
    return row


def _reuse(found: Reuse) -> list[float]:
    flags = [float(found.kind == n) for n in range(3)]
    return [*flags, *map(log2p, (found.iterations, found.bytes, found.count))]


def _lines(line: FeatureLine, t: TouchedTensor) -> tuple[float, float]:
    """Cache lines of all executions, and the innermost loop's stride in elements."""
    still = 1
    for f in reversed(line.loops):
        strides = [abs(a.strides.get(f.depth, 0.0)) for a in t.accesses]
        erratic = any(f.depth in a.erratic for a in t.accesses)
        stride = min((s for s in strides if s), default=float(LINE) if erratic else 0.0)
        if stride:
            share = min(1.0, stride * t.shape.itemsize / LINE)
            innermost = stride if f is line.loops[-1] else 0.0
            return max(1.0, line.executions / still * share), innermost
        still *= f.trips
    return 1.0, 0.0


def _intensity(line: FeatureLine) -> list[float]:
    """Operations per byte within more and more of the loops, sampled evenly over the operations."""
    operations = sum(
        n
        for (kind, dtype), n in line.operations.items()
        if (operation_group(kind, dtype) or "").startswith("float")
    )
    if not operations or not line.loops:
        return [0.0] * SAMPLES
    done: list[float] = []
    curve: list[float] = []
    for level in range(len(line.loops) - 1, -1, -1):
        operations *= line.loops[level].trips
        moved = sum(t.elements[level] * t.shape.itemsize for t in line.touches)
        done.append(operations)
        curve.append(operations / max(moved, 1.0))
    found, at = [], 0
    for n in range(SAMPLES):
        wanted = done[-1] * (n + 1) / SAMPLES
        while done[at] < wanted - 1e-4:
            at += 1
        value = curve[at]
        if at:
            slope = (curve[at] - curve[at - 1]) / (done[at] - done[at - 1])
            value = curve[at - 1] + slope * (wanted - done[at - 1])
        found.append(value)
    return found


def _allocated(found: KernelNests, line: FeatureLine) -> list[float]:
    for a in found.all_allocations:
        if a.buffer is line.target.buffer:
            outer = math.prod(f.trips for f in a.loops)
            size = a.shape.size
            elements = size / a.shape.itemsize
            return [size, elements * outer, outer, line.executions / outer]
    return [0.0] * 4
