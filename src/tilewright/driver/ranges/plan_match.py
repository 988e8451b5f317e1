"""Compares an open plan at some sizes with a plan made for these, except for names.

Both are walked side by side: a variable or a tensor of one has one partner in the other, and where
the other has a number, what is in its place is computed from the sizes. Only where plans differ is
a Computation made for the sizes first, with its expressions folded and without conditions that
always hold: such a condition occurs for some sizes and not for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.compute.nodes import CC, Computation, Dim
from tilewright.compute.reducer import Reducer
from tilewright.compute.transforms import environment, map_outputs
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Extent, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, exact, substitute, transform
from tilewright.loops import sizes
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.open_extents import Resized

Program = Computation | Node


class PlanMatch:
    """Which parts of an open plan equal those of another plan; parts in turn, with the same names.

    resized: the open plan's tensors at the sizes. What is asked is whether a part equals its
    counterpart, given the partners of variables and tensors in the parts that did so far.
    """

    def __init__(self, resized: Resized) -> None:
        self._resized = resized
        self._numbers: dict[Any, Any] = {
            v: const(n, INDEX) for v, n in resized.sizes.items()
        }
        self._values: dict[Node, Any] = {}
        self._extents: dict[Node, int] = {}
        # The partner of each node and tensor, and of each of the other plan's that has just one.
        self._partner: dict[Any, Any] = {}
        self._taken: dict[Any, Any] = {}

    def tensor(
        self,
        mine: Buffer,
        other: Buffer,
    ) -> bool:
        """Whether tensors are partners, or may become so."""
        here = self._resized.buffer(mine)
        if self._partner.get(here) is other:
            return True
        alike = (here.extents, here.dtype, here.scope)
        return alike == (other.extents, other.dtype, other.scope) and self._pair(
            here, other
        )

    def group(
        self,
        mine: FusionGroup,
        other: FusionGroup,
    ) -> bool:
        """Whether groups compute the same."""
        if len(mine.computations) != len(other.computations):
            return False
        if mine.kernel is not None or other.kernel is not None:
            pair = (programs(g) for g in (self._resized.group(mine), other))
            return self._all(self._program, *pair)
        ours = [c for c in mine.computations if not self._is_empty(c)]
        others = [c for c in other.computations if not is_empty(c)]
        return self._all(self._computation, ours, others)

    def _computation(
        self,
        mine: Computation,
        other: Computation,
    ) -> bool:
        partners, taken = len(self._partner), len(self._taken)
        if self._program(mine, other):
            return True
        # Those of the attempt are the last ones.
        for known, count in ((self._partner, partners), (self._taken, taken)):
            while len(known) > count:
                known.popitem()
        return self._program(simple(self._resized.computation(mine)), simple(other))

    def _program(
        self,
        mine: Program,
        other: Program,
    ) -> bool:
        if isinstance(mine, Computation) and isinstance(other, Computation):
            return self._loops(mine, other)
        return self._field(mine, other)

    def _loops(
        self,
        mine: Computation,
        other: Computation,
    ) -> bool:
        if not self._all(self._dim, mine.dims, other.dims):
            return False
        if not self._reducer(mine.reducer, other.reducer):
            return False
        tags = [repr(sorted(c.tags.items())) for c in (mine, other)]
        if tags[0] != tags[1]:
            return False
        ours = _parts(mine.outputs)
        others = _parts(other.outputs)
        return self._all(self._field, ours, others)

    def _dim(
        self,
        mine: Dim,
        other: Dim,
    ) -> bool:
        same = (self._extent(mine.size), mine.combine) == (other.size, other.combine)
        return same and self._node(mine.var, other.var)

    def _reducer(
        self,
        mine: Reducer | None,
        other: Reducer | None,
    ) -> bool:
        if mine is None or other is None or mine is other:
            return mine is other
        if mine.commutative != other.commutative:
            return False
        pairs = (
            (mine.lhs, other.lhs),
            (mine.rhs, other.rhs),
            (mine.result, other.result),
            (mine.identity, other.identity),
        )
        return all(self._all(self._node, *pair) for pair in pairs)

    def _node(
        self,
        mine: Node,
        other: Node,
    ) -> bool:
        """Whether expressions or statements are equal; no recursion, for deep ones."""
        waiting: list[tuple[Any, Any]] = [(mine, other)]
        while waiting:
            one, two = waiting.pop()
            known = self._partner.get(one)
            if known is not None:
                if known is not two:
                    return False
                continue
            if isinstance(two, Const):
                if self._value(one) is not two:
                    return False
                self._partner[one] = two
                continue
            if type(one) is not type(two) or one in self._numbers:
                return False
            if isinstance(one, Var):
                if one.type != two.type or not self._pair(one, two):
                    return False
                continue
            self._partner[one] = two
            for f in one._fields:
                if not self._field(getattr(one, f), getattr(two, f), waiting):
                    return False
        return True

    def _field(
        self, mine: Any, other: Any, later: list[tuple[Any, Any]] | None = None
    ) -> bool:
        """Whether values of fields are equal. later: gets pairs of nodes to compare; else now."""
        if isinstance(mine, Node):
            if later is None or not isinstance(other, Node):
                return isinstance(other, Node) and self._node(mine, other)
            later.append((mine, other))
            return True
        if isinstance(mine, Buffer):
            return isinstance(other, Buffer) and self.tensor(mine, other)
        if isinstance(mine, Reducer):
            return isinstance(other, Reducer) and self._reducer(mine, other)
        if isinstance(mine, tuple):
            if not isinstance(other, tuple) or len(mine) != len(other):
                return False
            pairs = zip(mine, other, strict=True)
            return all(self._field(a, b, later) for a, b in pairs)
        if isinstance(mine, float | complex):
            return exact(mine) == exact(other)
        return mine is other or repr(mine) == repr(other)

    def _value(self, mine: Node) -> Any:
        """An expression with numbers for the sizes."""
        if mine not in self._values:
            self._values[mine] = simplify(substitute(mine, self._numbers), {})
        return self._values[mine]

    def _pair(
        self,
        mine: Any,
        other: Any,
    ) -> bool:
        """Whether two become partners: neither has another."""
        free = mine not in self._partner and other not in self._taken
        if free:
            self._partner[mine] = other
            self._taken[other] = mine
        return free

    def _is_empty(self, c: Computation) -> bool:
        return any(d.combine == CC and self._extent(d.size) == 0 for d in c.dims)

    def _extent(self, extent: Extent) -> int:
        if isinstance(extent, int):
            return extent
        if extent not in self._extents:
            self._extents[extent] = sizes.at(extent, self._resized.sizes)
        return self._extents[extent]

    @staticmethod
    def _all(same: Any, mine: Sequence[Any], other: Sequence[Any]) -> bool:
        return len(mine) == len(other) and all(map(same, mine, other))


def _parts(outputs: Sequence[Any]) -> list[Any]:
    return [part for o in outputs for part in (o.tensor, o.index, o.value)]


def programs(group: FusionGroup) -> list[Program]:
    """What a group computes, with folded expressions, which contain the values of sizes."""
    if group.kernel is not None:
        return [transform(group.kernel.body, _folded)]
    return [simple(c) for c in group.computations if not is_empty(c)]


def is_empty(c: Computation) -> bool:
    """Whether it writes nothing, like a side of a border that some sizes do not have."""
    return any(d.size == 0 and d.combine == CC for d in c.dims)


def simple(c: Computation) -> Computation:
    """Drop conditions that always hold: they occur for some sizes and not for others."""
    env = environment(c.dims)
    return replace(c, outputs=map_outputs(c, lambda e: simplify(e, env)))


def _folded(node: Any) -> Node:
    """A statement with simple expressions."""
    return node if isinstance(node, Expr) else node.map(_simplest)


def _simplest(node: Any) -> Any:
    return simplify(node, {}) if isinstance(node, Expr) else node
