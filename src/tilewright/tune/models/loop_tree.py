"""A kernel's loop tree as rows: one for each loop and statement, those inside of one before it.

Each row says who is around it, and then what AutoTVM calls the context of a loop: how long it is
and of which kind, what it touches, how its statements go through memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tilewright.loops.nodes import Kernel
from tilewright.tune.features.program import UNIT, FeatureLoop, Line, Nest, program
from tilewright.tune.models.programs import Rows

KINDS: Final = ("serial", "parallel", "vector", "unroll", UNIT)
# Bytes from one iteration to the next, up to which accesses are strided.
CLOSE: Final = 64

# Quantities are log2(1 + x), of all iterations; counts are of statements inside, log2(1 + x) too.
COLUMNS: Final = {
    "up": "how many rows on the one around it is; 0 for the root",
    **{f"is_{kind}": f"1 for a loop that is {kind}" for kind in KINDS},
    "trips": "of the loop",
    "above": "iterations of the loops around it",
    "runs": "of the statements inside, for each of these iterations",
    "bytes": "distinct ones that a run of it touches",
    "statements": "inside of it; 1 for a statement",
    "reduces": "those that update a result",
    "operations": "of the statements",
    "loads": "of the statements",
    "invariant": "accesses that a loop does not move; for a statement the innermost loop",
    "contiguous": "those that it moves to a neighbor",
    "strided": f"those that it moves by more, up to {CLOSE} bytes",
    "scattered": "those that it moves further, or nobody knows where",
}


class LoopTree:
    """A FeatureSet: see COLUMNS. The last row is a root around all nests."""

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
    nest: Nest, rows: list[list[float]], parents: list[int], tops: list[int]
) -> None:
    """Rows of the nest's statements, then of its loops, inner ones first."""
    first = len(rows)
    last = first + len(nest.lines) + len(nest.loops) - 1
    # Loops are in program order, so that backwards an inner one comes before those around it.
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


def _row(loop: FeatureLoop | None, is_loop: bool, lines: Sequence[Line]) -> list[float]:
    """What stands in a row behind its first column."""
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


def _touched(lines: Sequence[Line], depth: int) -> float:
    """Bytes under the loops from a depth on; of a buffer what the statement with most touches."""
    found: dict[object, float] = {}
    for line in lines:
        for t in line.touches:
            found[t.buffer] = max(found.get(t.buffer, 0.0), t.bytes[depth])
    return sum(found.values())


def _steps(lines: Sequence[Line], loop: FeatureLoop | None) -> list[int]:
    """How many accesses are invariant, contiguous, strided, scattered along a loop."""
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
