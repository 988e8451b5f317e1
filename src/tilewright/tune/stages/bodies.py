"""What a definition computes per element, with the stages that are inlined into it.

Costs are cycles of one core for one element, when vectors run along the first coordinate. What
does not depend on that coordinate is computed once per row, and costs nothing here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import field
from functools import cached_property
from math import prod
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.expr import nodes
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.ir.node import Node, postorder, substitute, transform
from tilewright.tune.stages.costs import OPERATIONS, StageCosts
from tilewright.tune.stages.program import (
    Owner,
    ProgramStage,
    StageGraph,
    StageNest,
    extents,
)

SMALL: Final = 4  # values of a coordinate, at most, that are computed side by side
LARGEST: Final = 2000  # nodes of an expression; a larger one is not worth inlining into


class TooLarge(Exception):
    """An expression that inlining would make too large."""


@dataclass(frozen=True, eq=False)
class StageBody:
    """One definition with what is inlined. lane: the coordinate of its vectors; None: scalar code.

    roots: its values, then the places it stores to. beside: coordinates of few values, and how many
    they have: these are computed side by side, and share what does not depend on them.
    """

    func: ProgramStage
    definition: StageNest
    owners: Mapping[Buffer, Owner]
    lane: Var | None
    roots: tuple[Expr, ...]
    costs: StageCosts
    beside: Mapping[Node, int]
    grouped: dict[Any, Any] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The distinct terms, operands first."""
        return tuple(dict.fromkeys(n for e in self.roots for n in postorder(e)))

    @cached_property
    def reads(self) -> Mapping[Owner, tuple[Load, ...]]:
        """The distinct loads of each stage and input."""
        found: dict[Owner, list[Load]] = defaultdict(list)
        for node in self.nodes:
            if isinstance(node, Load):
                found[self.owners[node.buffer]].append(node)
        return {owner: tuple(loads) for owner, loads in found.items()}

    @cached_property
    def varying(self) -> frozenset[Node]:
        """The terms that differ from lane to lane; of scalar code, all that are computed."""
        found: set[Node] = set()
        for node in self.nodes:
            operands = node.children()
            scalar = self.lane is None and bool(operands)
            if node is self.lane or scalar or any(c in found for c in operands):
                found.add(node)
        return frozenset(found)

    @cached_property
    def arithmetic(self) -> float:
        """Cycles of its operations per element."""
        total = 0.0
        for node in self.nodes:
            if node in self.varying and not isinstance(node, Load):
                total += self._operation(node) * self.part(node)
        return total

    def part(self, node: Node) -> float:
        """The share of a term that each of the values side by side pays for."""
        used = self._beside[node]
        return 1 / prod(n for v, n in self.beside.items() if v not in used)

    @cached_property
    def _beside(self) -> dict[Node, frozenset[Node]]:
        """The coordinates of few values that each term depends on."""
        found: dict[Node, frozenset[Node]] = {}
        for node in self.nodes:
            own = frozenset([node]) & self.beside.keys()
            found[node] = own.union(*(found[c] for c in node.children()))
        return found

    def _operation(self, node: Any) -> float:
        costs = self.costs
        if node.dtype is INDEX:
            return 0.0  # addresses
        kind = node.function if isinstance(node, nodes.Call) else type(node).__name__
        steps: float = OPERATIONS.get(kind, 1.0)
        if isinstance(node, nodes.FloorDiv | nodes.Mod | nodes.Rem):
            by_number = isinstance(node.rhs, nodes.Const)
            steps = costs.divided if by_number else costs.whole_division
        if self.lane is None:
            return steps * costs.scalar
        operands = (c.dtype.itemsize for c in node.children())
        wide: int = max([node.dtype.itemsize, *operands])
        return steps * wide / costs.facts.vector / costs.issued

    def moved(self, load: Load) -> float:
        """Cycles of a load per element, its data in the first cache."""
        costs = self.costs
        if self.lane is None:
            return costs.scalar
        distance = self.distance(load.index)
        if distance == 0:
            return 0.0
        if distance is None or abs(distance) > costs.shuffled:
            return costs.lane
        vectors = max(abs(distance), 1.0) if distance >= 1 else costs.spread
        if distance > 1 or distance < 0:
            vectors += costs.spread * abs(distance)
        if distance == 1 and affine(load.index[-1]).const:
            vectors *= costs.unaligned
        return vectors * load.dtype.itemsize / costs.facts.vector / costs.loaded

    def distance(self, index: tuple[Expr, ...]) -> float | None:
        """How far apart neighboring lanes are in memory, in elements; None: not known."""
        assert self.lane is not None
        outer = [distance(i, self.lane) for i in index[:-1]]
        if any(d != 0 for d in outer):
            return None
        return distance(index[-1], self.lane) if index else 0.0

    def loads(
        self, across: int = 1, down: tuple[Var | None, int] = (None, 1)
    ) -> tuple[float, int]:
        """Cycles of all loads per element of a tile, and the vectors that the tile loads.

        across: vectors side by side, which share what does not depend on the lane. down: a
        coordinate and how many of its values are in a tile, which share equal loads.
        """
        var, count = down
        total, vectors = 0.0, 0
        for cycles, load, step, offsets in self._groups(var if count > 1 else None):
            if cycles == 0.0 and self.definition.domain:
                lanes = self.costs.facts.vector // load.dtype.itemsize
                cycles = 1 / lanes / self.costs.loaded / across
            distinct = len(offsets) * count
            if step is not None:
                distinct = len({o + step * k for o in offsets for k in range(count)})
            total += cycles * distinct / count
            vectors += distinct if load in self.varying else 0
        return total, vectors * across

    def _groups(
        self, var: Var | None
    ) -> list[tuple[float, Load, int | None, set[int]]]:
        """Loads that differ along a coordinate only: cycles, one, its step, and the offsets."""
        if var not in self.grouped:
            groups: dict[Any, Any] = {}
            for load in (n for n in self.nodes if isinstance(n, Load)):
                if load.buffer in self.func.symbols:
                    continue
                key, offset, step = _along(load, var)
                cycles = self.moved(load) * self.part(load)
                groups.setdefault(key, (cycles, load, step, set()))[3].add(offset)
            self.grouped[var] = list(groups.values())
        found: list[tuple[float, Load, int | None, set[int]]] = self.grouped[var]
        return found


def _along(load: Load, var: Var | None) -> tuple[Any, int, int | None]:
    """A load as (what does not move with var, an offset, its step); step None: not linear."""
    if var is None:
        return (load,), 0, 0
    rest: list[Any] = [load.buffer]
    offset, step = 0, 0
    for i in load.index:
        form = affine(i)
        c = form.coefficient(var)
        others = [t for t in form.terms if t[0] is not var]
        if any(var in set(postorder(atom)) for atom, _ in others) or (c and step):
            return (load,), 0, None
        moved = (tuple(others), c, 0 if c else form.const)
        rest.append(moved)
        if c:
            offset, step = form.const, c
    return tuple(rest), offset, step


def distance(e: Expr, lane: Var) -> float | None:
    """By how much a whole number grows from lane to lane; None: not known."""
    match e:
        case Var():
            return 1.0 if e is lane else 0.0
        case nodes.Const():
            return 0.0
        case nodes.Cast():
            return distance(e.value, lane)
        case nodes.Neg():
            return _times(distance(e.value, lane), -1.0)
        case nodes.Add() | nodes.Sub():
            a, b = distance(e.lhs, lane), distance(e.rhs, lane)
            if a is None or b is None:
                return None
            return a + b if isinstance(e, nodes.Add) else a - b
        case nodes.Mul() if isinstance(e.rhs, nodes.Const):
            return _times(distance(e.lhs, lane), float(e.rhs.value.real))
        case nodes.Mul() if isinstance(e.lhs, nodes.Const):
            return _times(distance(e.rhs, lane), float(e.lhs.value.real))
        case nodes.FloorDiv() if isinstance(e.rhs, nodes.Const) and e.rhs.value:
            return _times(distance(e.lhs, lane), 1.0 / float(e.rhs.value.real))
        case nodes.Min() | nodes.Max():
            a, b = distance(e.lhs, lane), distance(e.rhs, lane)
            return b if a == 0 else a if b == 0 else None
        case nodes.Select():
            a, b = distance(e.then, lane), distance(e.otherwise, lane)
            return b if a == 0 else a
    return None if lane in set(postorder(e)) else 0.0


def _times(found: float | None, factor: float) -> float | None:
    return None if found is None else found * factor


class Bodies:
    """The bodies of a program's stages, remembered."""

    def __init__(self, program: StageGraph, costs: StageCosts) -> None:
        self.program = program
        self.costs = costs
        self._known: dict[Any, tuple[StageBody, ...] | None] = {}

    def lanes(self, f: ProgramStage) -> int:
        """The lanes of a vector of its (narrowest) values."""
        return self.costs.facts.vector // min(s.dtype.itemsize for s in f.symbols)

    def inlined(
        self, f: ProgramStage, inline: frozenset[ProgramStage]
    ) -> frozenset[ProgramStage]:
        """Those of `inline` that the definitions of f read, directly or through one another."""
        found: set[ProgramStage] = set()
        waiting = [f]
        while waiting:
            for p in self.program.producers[waiting.pop()]:
                if p in inline and p not in found:
                    found.add(p)
                    waiting.append(p)
        return frozenset(found)

    def of(
        self, f: ProgramStage, inline: frozenset[ProgramStage]
    ) -> tuple[StageBody, ...] | None:
        """The definitions of f with those of `inline` in them; None: too large."""
        used = self.inlined(f, inline)
        key = f, used
        if key not in self._known:
            try:
                made = [self._body(f, d, used) for d in f.definitions]
                self._known[key] = tuple(made)
            except TooLarge:
                self._known[key] = None
        return self._known[key]

    def _body(
        self, f: ProgramStage, d: StageNest, used: frozenset[ProgramStage]
    ) -> StageBody:
        made = tuple(self._expanded(e, used) for e in d.roots)
        terms = dict.fromkeys(n for e in made for n in postorder(e))
        if len(terms) > LARGEST:
            raise TooLarge
        pairs = zip(f.args[2:], extents(f)[2:], strict=True)
        beside: dict[Node, int] = {v: n for v, n in pairs if n <= SMALL}
        owners = self.program.owners
        return StageBody(f, d, owners, self._lane(f, d), made, self.costs, beside)

    def _lane(self, f: ProgramStage, d: StageNest) -> Var | None:
        """The first coordinate, where vectors can run along it."""
        if not f.args or extents(f)[0] < self.lanes(f) // 2:
            return None
        first = f.args[0]
        for args, _ in d.stores:
            others = {n for a in args[:-1] for n in postorder(a)}
            if args[-1] is not first or first in others:
                return None
        return first

    def _expanded(self, root: Expr, used: frozenset[ProgramStage]) -> Expr:
        def step(node: Node) -> Node:
            if not isinstance(node, Load):
                return node
            index = tuple(map(_plain, node.index))
            owner = self.program.owners[node.buffer]
            if not isinstance(owner, ProgramStage) or owner not in used:
                return Load(node.buffer, index)
            [d] = owner.definitions
            value = d.values[owner.symbols.index(node.buffer)]
            inner = self._expanded(value, used)
            return _placed(inner, dict(zip(d.args, index, strict=True)))

        made: Expr = transform(root, step)
        return made


def _placed(value: Expr, where: dict[Any, Any]) -> Expr:
    """A value at other coordinates, with equal indices alike."""
    moved = substitute(value, where)

    def step(node: Node) -> Node:
        if isinstance(node, Load):
            return Load(node.buffer, tuple(map(_plain, node.index)))
        return node

    made: Expr = transform(moved, step)
    return made


def _plain(index: Expr) -> Expr:
    return to_expr(affine(index)) if index.dtype is INDEX else index
