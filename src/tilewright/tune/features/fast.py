"""The set `fast`: what determines a kernel's speed on a processor, in about 0.2 ms.

For each statement: the number of vector instructions of its arithmetic, which of its loads are
vectors, broadcasts or gathers, what its tile keeps in registers, and the bytes moved between
caches. A cache holds the data of the inner loops whose footprint fits; that footprint is loaded
once per run of these loops.

Nests are summarized separately and cached, so a kernel only costs its new parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import add, attrgetter
from typing import Any, ClassVar

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import (
    Add,
    Bitcast,
    Call,
    Cast,
    Div,
    Expr,
    FloorDiv,
    Mod,
    Mul,
    Rem,
    Sub,
)
from tilewright.loops.nodes import PREFETCH, STREAM, Kernel
from tilewright.tune.features.base import LOG, Column, Matrix, Per
from tilewright.tune.features.facts import USUAL, Facts
from tilewright.tune.features.fast_columns import (
    COLUMNS,
    LEVELS,
    LOGS,
    RATES,
    SHARE,
    StatementTotals,
    TileColumns,
)
from tilewright.tune.features.program import (
    UNIT,
    FeatureAllocation,
    FeatureLine,
    FeatureNest,
    KernelNests,
    program,
)
from tilewright.tune.features.regions import LINE, TensorAccess, TouchedTensor

# Cycles per vector of results: typical throughputs, rough estimates.
DIVISION_CYCLES = 8.0
FUNCTION_CYCLES = 12.0
TOGETHER = ("vector", UNIT)
IN_TILE = (*TOGETHER, "unroll")

_KINDS: Mapping[type[Expr], str] = {
    **dict.fromkeys((Div, FloorDiv, Mod, Rem), "divisions"),
    **dict.fromkeys((Cast, Bitcast), "conversions"),
    Call: "functions",
    Mul: "products",
    Add: "sums",
    Sub: "sums",
}


@dataclass(frozen=True, slots=True)
class ExtraColumn:
    """An additional column, such as the target's analytic cost. ask: returns its value, finite."""

    column: Column
    ask: Callable[[Kernel], float]


@dataclass(frozen=True, slots=True)
class Fast:
    """See the module's docstring. terms: additional columns, after the others."""

    facts: Facts = USUAL
    terms: Sequence[ExtraColumn] = ()
    name: ClassVar[str] = "fast"
    version: ClassVar[int] = 1
    per: ClassVar[Per] = "kernel"
    source: ClassVar[str] = "ours"

    @property
    def columns(self) -> Sequence[Column]:
        """See `fast_columns`, then those of `terms`."""
        return (*COLUMNS, *(t.column for t in self.terms))

    def extract(self, kernel: Kernel) -> Matrix:
        """float32 [1, columns]."""
        return self.extract_all([kernel])

    def extract_all(self, kernels: Sequence[Kernel]) -> Matrix:
        """float32 [kernels, columns]: a row per kernel, as from `extract`."""
        rows = [self._row(kernel) for kernel in kernels]
        made = np.array(rows).reshape(len(rows), len(COLUMNS) + len(self.terms))
        made[:, : len(LOGS)] = np.log2(1 + made[:, : len(LOGS)])
        return made.astype(np.float32)

    def _row(self, kernel: Kernel) -> list[float]:
        found = program(kernel)
        summed = [_of_nest(nest, self.facts) for nest in found.nests]
        totals = [sum(column) for column in zip(*(s.sums for s in summed))]
        row = totals or [0.0] * len(_TOTALS(StatementTotals()))
        tile = _heaviest(summed, self.facts)
        for n, bytes_ in enumerate(_allocated(found.allocations)):
            row[n - 3] += bytes_
        row.extend(_TILE_LOGS(tile))
        row.extend(tile.sizes)
        row.extend(_whole(found))
        row.extend(_TILE_RATIOS(tile))
        row.extend([row[n] / max(1.0, row[0]) for n in _PER_EXECUTION])
        row.extend(t.ask(kernel) for t in self.terms)
        return row


def _heaviest(summed: Sequence[_Summed], facts: Facts) -> TileColumns:
    tops = [s.top for s in summed if s.top is not None]
    if not tops:
        return _NO_TILE
    tile = _tile(max(tops, key=_weight), facts)
    tile.share = tile.weight / sum([s.weight for s in summed])
    return tile


_weight: Callable[[Any], float] = attrgetter("weight")


def _getter(of: type, unit: str) -> Callable[[object], tuple[float, ...]]:
    return attrgetter(*(f.name for f in fields(of) if f.metadata.get("unit") == unit))


_TOTALS = _getter(StatementTotals, LOG)
# The indices of the sums to divide by executions, which are column 0.
_PER_EXECUTION = [[c.name for c in COLUMNS].index(name) for name in RATES]
_TILE_LOGS = _getter(TileColumns, LOG)
_TILE_RATIOS = _getter(TileColumns, SHARE)
_NO_TILE = TileColumns(0.0, sizes=(0.0,) * (2 * LEVELS + 1))


def _whole(found: KernelNests) -> tuple[float, ...]:
    notes = found.kernel.notes
    return (
        sum(s.size for s in found.parameters),
        sum(len(n.loops) for n in found.nests),
        sum(len(n.lines) for n in found.nests),
        sum(1 for note in notes.values() if PREFETCH in note),
        sum(1 for note in notes.values() if STREAM in note),
    )


def _allocated(allocations: Sequence[FeatureAllocation]) -> tuple[float, float, float]:
    """Bytes in registers, on the stack, and elsewhere."""
    found = {"register": 0.0, "stack": 0.0, "": 0.0}
    for a in allocations:
        scope = a.buffer.scope if a.buffer.scope in found else ""
        found[scope] += a.shape.size
    return found["register"], found["stack"], found[""]


@dataclass(slots=True)
class _Summed:
    """A summarized nest: sums, the weight of all its statements, and the heaviest one."""

    sums: tuple[float, ...]
    weight: float
    top: _Weighed | None


def _of_nest(nest: FeatureNest, facts: Facts) -> _Summed:
    found: _Summed | None = nest.kept.get(facts)
    if found is None:
        totals = StatementTotals()
        lines = [_add_line(line, facts, totals) for line in nest.lines]
        _add_loops(nest, totals)
        held = _allocated(nest.allocations)
        totals.register_bytes, totals.stack_bytes, totals.other_bytes = held
        top = max(lines, key=_weight, default=None)
        weight = sum([w.weight for w in lines])
        found = nest.kept[facts] = _Summed(_TOTALS(totals), weight, top)
    return found


def _add_loops(nest: FeatureNest, totals: StatementTotals) -> None:
    iterations: list[float] = []
    for f in nest.loops:
        del iterations[f.depth :]
        before = iterations[-1] if iterations else 1.0
        iterations.append(before * f.trips)
        if f.kind not in IN_TILE:
            totals.control += before * f.trips
        if f.kind == "parallel" and (f.outer is None or f.outer.kind != "parallel"):
            totals.regions += before


@dataclass(slots=True)
class _Shape:
    """The loops around a statement, classified.

    start: the depth at which the tile begins. lane: the depth of the innermost vector loop, or -1.
    width, unrolled: trips of the tile's loops of these kinds; tasks: trips of all parallel loops.
    inside: executions per iteration of the loops outside each depth. registers: needed by one
    execution of all lanes.
    """

    start: int
    lane: int
    width: int
    unrolled: int
    tasks: int
    inside: list[int]
    registers: int = 1

    def balance(self, facts: Facts) -> float:
        """The average work of a thread, relative to the busiest."""
        threads = max(1, min(facts.cores, self.tasks))
        return self.tasks / (-(-self.tasks // threads) * threads)


def _shape(line: FeatureLine, facts: Facts) -> _Shape:
    start = n = len(line.loops)
    found = _Shape(0, -1, 1, 1, 1, [1] * (n + 1))
    executions = 1
    for f in reversed(line.loops):
        kind, depth = f.kind, f.depth
        executions *= f.trips
        found.inside[depth] = executions
        if kind in IN_TILE and depth == start - 1:
            start = depth
        if kind in TOGETHER:
            found.width *= f.trips
            found.lane = max(found.lane, depth)
        elif kind == "parallel":
            found.tasks *= f.trips
        elif kind == "unroll" and start == depth:
            found.unrolled *= f.trips
    found.start = start
    lanes = max(1, facts.vector // line.target.shape.itemsize)
    found.registers = -(-found.width // lanes)
    return found


@dataclass(slots=True)
class _Work:
    """The operations of one execution of a statement."""

    multiply_adds: int = 0
    simple: int = 0
    divisions: int = 0
    conversions: int = 0
    functions: int = 0


def _work(line: FeatureLine) -> _Work:
    found = _Work()
    products = sums = 0
    for (kind, _), n in line.operations.items():
        group = _KINDS.get(kind, "simple")
        if group == "products":
            products += n
        elif group == "sums":
            sums += n
        else:
            setattr(found, group, getattr(found, group) + n)
    found.multiply_adds = min(products, sums)
    found.simple += products + sums - 2 * found.multiply_adds
    return found


@dataclass(slots=True)
class _Loads:
    """Loads and stores of a tile, without duplicates. registers: of the results."""

    vectors: float = 0.0
    broadcasts: float = 0.0
    gathers: float = 0.0
    stores: float = 0.0
    registers: float = 0.0


def _loads(line: FeatureLine, at: _Shape, facts: Facts) -> _Loads:
    found = _Loads()
    for t in line.touches:
        elements = t.elements[at.start]
        lanes = max(1, facts.vector // t.shape.itemsize)
        in_memory = t.buffer.scope != "register"
        way = _way(t.accesses[-1], at.lane)
        vectors = elements if way != 1 else math.ceil(elements / lanes)
        if t.writes:
            found.registers += vectors
            found.stores += vectors if in_memory else 0.0
        if t.reads and not t.writes and in_memory:
            if way == 1:
                found.vectors += vectors
            elif way == 0:
                found.broadcasts += elements
            else:
                found.gathers += elements
    return found


def _way(access: TensorAccess, lane: int) -> int:
    """How the lanes of a vector differ: 0: not at all, 1: by one element, 2: otherwise."""
    if lane in access.erratic:
        return 2
    stride = access.strides.get(lane, 0.0)
    if stride == 0:
        return 0
    return 1 if abs(stride) == 1 else 2


def _add_line(line: FeatureLine, facts: Facts, totals: StatementTotals) -> _Weighed:
    at, work = _shape(line, facts), _work(line)
    loads = _loads(line, at, facts)
    executions = at.inside[0]
    tiles = executions / at.inside[at.start]
    vectors = executions / at.width * at.registers
    light = work.multiply_adds + work.simple + work.conversions
    heavy = work.divisions * DIVISION_CYCLES + work.functions * FUNCTION_CYCLES
    arithmetic = vectors * (light + work.divisions + work.functions)
    issue = vectors * (light / facts.multiply_adds + heavy)
    read = tiles * (loads.vectors + loads.broadcasts + loads.gathers)
    traffic = _traffic(line, facts)
    memory = traffic.l1 / facts.l2_bytes + traffic.l2 / facts.l3_bytes
    memory += traffic.l3 / facts.memory_bytes
    busy = max(issue, read / facts.loads, memory)
    if at.tasks > 1:
        totals.parallel += executions
        busy /= min(facts.cores, at.tasks) * at.balance(facts)
    totals.least_cycles += busy
    totals.executions += executions
    totals.multiply_adds += executions * work.multiply_adds
    totals.simple += executions * work.simple
    totals.divisions += executions * work.divisions
    totals.functions += executions * work.functions
    totals.conversions += executions * work.conversions
    totals.instructions += arithmetic
    totals.scalar += executions if at.width == 1 else 0
    totals.vector_loads += tiles * loads.vectors
    totals.broadcasts += tiles * loads.broadcasts
    totals.gathers += tiles * loads.gathers
    totals.stores += tiles * loads.stores
    totals.copies += at.unrolled * at.registers
    totals.conditions += executions * line.branches
    totals.from_l2 += traffic.l1
    totals.from_l3 += traffic.l2
    totals.from_memory += traffic.l3
    totals.issue_cycles += issue
    totals.load_cycles += read / facts.loads
    totals.memory_cycles += memory
    weight = max(arithmetic, vectors) + read
    return _Weighed(weight, line, at, loads, traffic)


@dataclass(slots=True)
class _Traffic:
    """Bytes loaded into each cache, the outermost level that each cache holds, and the bytes
    touched at each level."""

    l1: float
    l2: float
    l3: float
    held: list[int]
    touched: list[float]


def _traffic(line: FeatureLine, facts: Facts) -> _Traffic:
    outside = [t for t in line.touches if t.buffer.scope != "register"]
    levels = len(line.loops)
    touched = [0.0] * (levels + 1)
    for t in outside:
        touched = list(map(add, touched, t.bytes))
    moved: list[float] = []
    held: list[int] = []
    for cache in facts.caches:
        level = held[-1] if held else levels
        while level and touched[level - 1] <= cache:
            level -= 1
        if held and level == held[-1]:
            moved.append(moved[-1])
        else:
            moved.append(sum([_moved(t, line, level) for t in outside]))
        held.append(level)
    l1, l2, l3 = moved
    return _Traffic(l1, l2, l3, held, touched)


def _moved(t: TouchedTensor, line: FeatureLine, level: int) -> float:
    """Bytes of a tensor loaded into a cache that holds everything touched at a level."""
    if level and t.elements[level - 1] == t.elements[level]:
        level -= 1  # the enclosing loop does not move it: it is still cached
    runs = 1
    for f in line.loops[:level]:
        runs *= f.trips
    return runs * t.lines(level) * LINE


@dataclass(slots=True)
class _Weighed:
    """A statement with its weight and its analysis."""

    weight: float
    line: FeatureLine
    at: _Shape
    loads: _Loads
    traffic: _Traffic


def _tile(of: _Weighed, facts: Facts) -> TileColumns:
    line, at, loads = of.line, of.at, of.loads
    groups = max(1.0, at.inside[at.start] / at.width)
    found = TileColumns(of.weight, at.width, at.unrolled, loads.registers)
    target = line.target
    still = [f.trips for d, f in enumerate(line.loops) if not target.moves(d)]
    found.steps = math.prod(still)
    found.tasks = at.tasks
    found.task_work = at.inside[0] / at.tasks
    lanes = max(1, facts.vector // target.shape.itemsize)
    found.lanes_used = at.width / (at.registers * lanes)
    found.vector_loads_per = loads.vectors / groups
    found.broadcasts_per = loads.broadcasts / groups
    found.gathers_per = loads.gathers / groups
    needed = loads.registers + loads.vectors + 1
    found.pressure = needed / facts.registers
    hiding = facts.latency * facts.multiply_adds
    found.overlap = min(1.0, loads.registers / hiding)
    found.balance = at.balance(facts)
    around = max(1, at.start)
    found.in_l1, found.in_l2, found.in_l3 = [
        max(0, at.start - level) / around for level in of.traffic.held
    ]
    found.sizes = _sizes(line, at.start, of.traffic.touched)
    return found


def _sizes(line: FeatureLine, start: int, touched: list[float]) -> tuple[float, ...]:
    around = [float(f.trips) for f in reversed(line.loops[:start])]
    around = (around + [1.0] * LEVELS)[:LEVELS]
    outwards = touched[start::-1]
    held = (outwards + [touched[0]] * LEVELS)[: LEVELS + 1]
    return (*around, *held)
