"""A kernel's loop tree as rows, one per loop and statement; children precede their parent.

Each row has the offset of its parent, then AutoTVM's loop context: the trip count and kind, the
bytes touched, the access patterns of its statements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.loops.nodes import Kernel
from tilewright.tune.features.program import (
    UNIT,
    FeatureLine,
    FeatureLoop,
    FeatureNest,
    program,
)
from tilewright.tune.models.programs import Rows

KINDS: Final = ("serial", "parallel", "vector", "unroll", UNIT)
# The largest stride in bytes that counts as strided.
CLOSE: Final = 64

# Quantities are log2(1 + x) over all iterations; so are counts of the statements inside.
COLUMNS: Final = {
    "up": "offset of the parent's row; 0 for the root",
    **{f"is_{kind}": f"1 for a {kind} loop" for kind in KINDS},
    "trips": "of the loop",
    "above": "iterations of the enclosing loops",
    "runs": "of the statements inside, per iteration of those",
    "bytes": "distinct bytes that one run touches",
    "statements": "inside the loop; 1 for a statement",
    "reduces": "statements that update a result",
    "operations": "of the statements",
    "loads": "of the statements",
    "invariant": "accesses that the loop does not move; for a statement the innermost loop",
    "contiguous": "accesses that it moves by one element",
    "strided": f"accesses that it moves by more, up to {CLOSE} bytes",
    "scattered": "accesses that it moves further, or irregularly",
}


class LoopTree:
    """A FeatureSet: see COLUMNS. The last row is a root of all nests."""

    name = "loop-tree"
    version = 1
    columns = tuple(COLUMNS)

    def extract(self, kernel: Kernel) -> Rows:
        """float32 [statements + loops + 1, columns]."""
        rows: list[list[float]] = []
        parents: list[int] = []
        tops: list[int] = []
        for nest in program(kernel).nests:
            _add(nest, rows, parents, tops)
        root = len(rows)
        for n in tops:
            parents[n] = root
        up = [parent - n for n, parent in enumerate(parents)]
        rows.append([0.0] * (len(COLUMNS) - 1))
        return np.column_stack([[*up, 0], np.array(rows)]).astype(np.float32)


def _add(
    nest: FeatureNest, rows: list[list[float]], parents: list[int], tops: list[int]
) -> None:
    """Append rows of the nest's statements, then of its loops, inner ones first."""
    first = len(rows)
    last = first + len(nest.lines) + len(nest.loops) - 1
    # Loops are in program order; in reverse, inner ones precede the enclosing ones.
    number = {loop: last - n for n, loop in enumerate(nest.loops)}
    around = [line.loops[-1] if line.loops else None for line in nest.lines]
    for line, loop in zip(nest.lines, around, strict=True):
        rows.append(_row(loop, False, [line]))
    for loop in reversed(nest.loops):
        depth = loop.depth
        inside = [x for x in nest.lines if x.loops[depth : depth + 1] == (loop,)]
        rows.append(_row(loop, True, inside))
    for n, outer in enumerate([*around, *(x.outer for x in reversed(nest.loops))]):
        parents.append(-1 if outer is None else number[outer])
        if outer is None:
            tops.append(first + n)


def _row(
    loop: FeatureLoop | None, is_loop: bool, lines: Sequence[FeatureLine]
) -> list[float]:
    """The columns of a row after the first."""
    trips, outside = 1, lines[0].loops if lines else ()
    kinds = [0.0] * len(KINDS)
    if loop is not None and is_loop:
        trips = loop.trips
        outside = outside[: loop.depth]
        if loop.kind in KINDS:
            kinds[KINDS.index(loop.kind)] = 1.0
    depth = len(outside)
    runs = sum(math.prod(f.trips for f in line.loops[depth:]) for line in lines)
    amounts = [
        trips,
        math.prod(f.trips for f in outside),
        runs,
        _touched(lines, depth),
        len(lines),
        sum(line.reduces for line in lines),
        sum(sum(line.operations.values()) for line in lines),
        sum(a.reads for line in lines for a in line.accesses),
        *_steps(lines, loop),
    ]
    return [*kinds, *(math.log2(1 + x) for x in amounts)]


def _touched(lines: Sequence[FeatureLine], depth: int) -> float:
    """Bytes touched below a depth; per buffer those of the statement that touches most."""
    found: dict[object, float] = {}
    for line in lines:
        for t in line.touches:
            found[t.buffer] = max(found.get(t.buffer, 0.0), t.bytes[depth])
    return sum(found.values())


def _steps(lines: Sequence[FeatureLine], loop: FeatureLoop | None) -> list[int]:
    """The number of accesses that are invariant, contiguous, strided and scattered along a loop."""
    found = [0] * 4
    for line in lines:
        for a in line.accesses:
            depth = -1 if loop is None else loop.depth
            step = abs(a.strides.get(depth, 0.0))
            if depth in a.erratic or step * a.shape.itemsize > CLOSE:
                found[3] += 1
            else:
                found[0 if not step else 1 if step <= 1 else 2] += 1
    return found
