"""AutoTVM's two sets: the context of each loop, and the relation of its curves (see `touches`).

The relation features depend neither on the number of loops nor on their order, so they transfer to
other operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from tilewright.base.dataclass import dataclass
from tilewright.loops.nodes import GPU_AXES, Kernel
from tilewright.tune.features.base import LOG, Column, Matrix, Per, log2p, matrix
from tilewright.tune.features.program import UNIT, program
from tilewright.tune.features.touches import (
    AccessPattern,
    LoopAccesses,
    around,
    touches,
)

# The kinds of a loop; `unit`, a loop inside a machine instruction, is ours.
ANNOTATIONS = (*GPU_AXES, "unroll", "vector", "parallel", "serial", "vthread", UNIT)
SIGNED = "sign(x)*log2(1+|x|)"
PATTERN = {
    "stride": (SIGNED, "elements that its address moves per trip"),
    "mod": (SIGNED, "the modulus of its index; -1 for none"),
    "count": (LOG, "trips of the loops from here inwards that move it"),
    "reuse": (LOG, "trips of those that do not move it"),
    "thread_count": (LOG, "`count` divided by that inside the parallel loops"),
    "thread_reuse": (LOG, "`reuse` divided by that inside the parallel loops"),
}
SOURCE = "Chen et al. 2018; TVM's touch_extractor.cc"


def _loop_columns(touches: int) -> tuple[Column, ...]:
    found = [
        Column("length", LOG, "trips"),
        Column("nest_level", "loops", "enclosing loops and itself"),
        Column("topdown_product", LOG, "trips of the enclosing loops and itself"),
        Column("bottomup_product", LOG, "trips of the loops from here inwards"),
        *(Column(f"is_{a}", "0 or 1", f"whether it is {a}") for a in ANNOTATIONS),
        Column("add_count", LOG, "float additions of the statements directly in it"),
        Column("mul_count", LOG, "float products"),
        Column("div_count", LOG, "float divisions and remainders"),
    ]
    for n in range(touches):
        for name, (unit, doc) in PATTERN.items():
            found.append(Column(f"touch{n}_{name}", unit, f"of access {n}: {doc}"))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class LoopContext:
    """A row per loop: AutoTVM's `itervar` features.

    touches: the number of accesses with columns, most moving first; TVM's rows have columns for all
    accesses, ordered by the names of their buffers.
    """

    touches: int = 5
    name: ClassVar[str] = "loop-context"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "loop"
    source: ClassVar[str] = SOURCE

    @property
    def columns(self) -> Sequence[Column]:
        """Columns of the loop, its arithmetic, and its touches."""
        return _loop_columns(self.touches)

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [loops, columns], loops in program order."""
        rows = [self._row(at) for at in around(program(kernel))]
        return matrix(rows, len(self.columns))

    def _row(self, at: LoopAccesses) -> list[float]:
        row = [
            log2p(at.loop.trips),
            at.level,
            log2p(at.outside),
            log2p(at.inside),
            *(at.loop.kind == a for a in ANNOTATIONS),
            log2p(at.additions),
            log2p(at.products),
            log2p(at.divisions),
        ]
        kept = sorted(map(_values, at.patterns), key=_order)[: self.touches]
        for values in kept:
            row += map(log2p, values)
        row += [0.0] * (len(PATTERN) * (self.touches - len(kept)))
        return row


def _values(p: AccessPattern) -> tuple[float, ...]:
    threads = (p.thread_count, p.thread_reuse)
    return (p.stride, p.mod, p.count, p.reuse, *threads)


def _order(values: tuple[float, ...]) -> tuple[float, ...]:
    """Sort key: accesses that move most come first, regardless of buffer names."""
    stride, _, count, reuse, *_ = values
    return (-count, -reuse, -abs(stride), *(-v for v in values))


# Pairs of curves: which one is sampled, at which values of the other.
CURVES = (
    ("reuse", "count"),
    ("count", "reuse"),
    ("topdown", "count"),
    ("count", "topdown"),
)


@dataclass(frozen=True, slots=True)
class RelationRow:
    """One row: AutoTVM's `curve sample` features.

    For each tensor of the innermost statements: the curves of count, reuse and top-down product
    over the loops, as powers of two, sorted. At x = 0, 1, .. the value of one curve at the last
    point where the other is at most x, and how far that point is below x. buffers: how many have
    columns.
    """

    samples: int = 20
    buffers: int = 4
    name: ClassVar[str] = "relation"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "kernel"
    source: ClassVar[str] = SOURCE

    @property
    def columns(self) -> Sequence[Column]:
        """`samples` times two columns per pair of curves and buffer."""
        found = []
        for b in range(self.buffers):
            for y, x in CURVES:
                for n in range(self.samples):
                    name = f"buffer{b}_{y}_at_{x}_{n}"
                    doc = f"log2 of {y} where log2 of {x} is {n}, of buffer {b}"
                    found.append(Column(name, "log2(x)", doc))
                    rest = f"{n} less the {x} there"
                    found.append(Column(name + "_rest", "log2(x)", rest))
        return tuple(found)

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [1, columns]."""
        loops = around(program(kernel))
        found = [self._of_buffer(c) for c in _curves(kernel, loops)]
        kept = sorted(found, reverse=True)[: self.buffers]
        width = 2 * self.samples * len(CURVES)
        row = [v for values in kept for v in values]
        row += [0.0] * (width * (self.buffers - len(kept)))
        return matrix([row], width * self.buffers)

    def _of_buffer(self, curves: dict[str, list[float]]) -> list[float]:
        row: list[float] = []
        for y, x in CURVES:
            for n in range(self.samples):
                value, at = _last(curves[y], curves[x], n)
                row += (value, n - at)
        return row


def _last(y: list[float], x: list[float], limit: float) -> tuple[float, float]:
    found = (0.0, 0.0)
    for value, at in zip(y, x, strict=True):
        if at <= limit + 1e-6:
            found = (value, at)
    return found


def _curves(kernel: Kernel, loops: list[LoopAccesses]) -> list[dict[str, list[float]]]:
    """The curves of each tensor in the deepest statements, from its last access."""
    deepest = max((at.level for at in loops), default=0)
    by_loop = {id(at.loop): at for at in loops}
    met: dict[int, int] = {}  # by loop: its last pattern used so far
    found: dict[object, dict[str, list[float]]] = {}
    for line in program(kernel).lines:
        own = [by_loop[id(f)] for f in line.loops]
        for access in touches(line):
            patterns = []
            for at in own:
                n = met[id(at)] = met.get(id(at), -1) + 1
                patterns.append(at.patterns[n])
            if len(own) == deepest:
                found[access.buffer] = {
                    "count": _curve([p.count for p in patterns]),
                    "reuse": _curve([p.reuse for p in patterns]),
                    "topdown": _curve([at.outside for at in own]),
                }
    return list(found.values())


def _curve(values: list[float]) -> list[float]:
    return sorted([0.0, *(math.log2(v) for v in values)])
