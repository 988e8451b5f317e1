"""Index expressions as linear combinations of the enclosing loops.

A loop is identified by its depth, the number of loops around it. Nonlinear expressions are
approximated: `i // c` by a fraction of `i`, `i % c` by `i` with a limit of less than `c`, a minimum
by the operand with more loops. Any other dependence on a loop (an index that is loaded) makes the
index `erratic` in it. A size known only at run time counts as STAND_IN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import (
    Add,
    Cast,
    Const,
    Expr,
    FloorDiv,
    Load,
    Max,
    Min,
    Mod,
    Mul,
    Neg,
    Overlap,
    Sub,
    Var,
)
from tilewright.ir.node import postorder

STAND_IN = 64


_NO_LIMITS: dict[int, float] = {}
_NOWHERE: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class IndexFeatures:
    """A linear combination of loops.

    terms: the coefficient of each loop, by depth. limits: the most that a loop adds, if less than
    its coefficient times its trips. erratic: loops with a nonlinear dependence. loads: what the
    index loads.
    """

    const: float
    terms: dict[int, float]
    limits: dict[int, float]
    erratic: frozenset[int]
    loads: tuple[Load, ...]

    def span(self, depth: int, trips: int) -> float:
        """How much the value changes over the trips of a loop in `terms`."""
        whole = abs(self.terms[depth]) * (trips - 1)
        return min(whole, self.limits.get(depth, math.inf))

    @property
    def additions(self) -> int:
        """The number of additions to compute it."""
        return max(0, len(self.terms) - 1 + bool(self.const))

    @property
    def products(self) -> int:
        """The number of multiplications to compute it."""
        return sum(1 for c in self.terms.values() if abs(c) != 1)


@dataclass(slots=True)
class Indices:
    """Analyzes indices; each distinct expression once.

    depths: of the loops, by their variables. known: values of other variables.
    """

    depths: dict[Var, int]
    known: dict[Var, float]
    read: dict[Expr, IndexFeatures]

    def __call__(self, e: Expr) -> IndexFeatures:
        """The linear form of an expression of dtype int64."""
        found = self.read.get(e)
        if found is None:
            found = IndexFeatures(0.0, {}, _NO_LIMITS, _NOWHERE, ())
            self.add(e, 1.0, found)
            self.read[e] = found
        return found

    def add(self, e: Expr, scale: float, to: IndexFeatures) -> None:
        """Add `scale * e` to a linear form under construction."""
        part: Any = e
        while True:  # handle the common parts without a call for each
            kind = type(part)
            if kind is Var:
                return self._variable(part, scale, to)
            if kind is Add:
                self.add(part.rhs, scale, to)
                part = part.lhs
            elif kind is Mul and type(part.rhs) is Const:
                scale *= part.rhs.value.real
                part = part.lhs
            elif kind is Const:
                to.const += scale * part.value.real
                return None
            else:
                return _RULES.get(kind, _erratic)(self, part, scale, to)

    def _variable(self, e: Var, scale: float, to: IndexFeatures) -> None:
        depth = self.depths.get(e)
        if depth is None:
            to.const += scale * self.known.get(e, STAND_IN)
        elif depth in to.terms:
            to.terms[depth] += scale
        else:
            to.terms[depth] = scale

    def highest(self, e: Expr, trips: Sequence[int]) -> float:
        """The largest value of an expression over all iterations of the loops. trips: by depth."""
        if isinstance(e, Min):
            return min(self.highest(e.lhs, trips), self.highest(e.rhs, trips))
        found = self(e)
        if found.erratic:
            return STAND_IN
        spans = (found.span(d, trips[d]) for d, c in found.terms.items() if c > 0)
        return found.const + sum(spans)


def _difference(read: Indices, e: Sub, scale: float, to: IndexFeatures) -> None:
    read.add(e.lhs, scale, to)
    read.add(e.rhs, -scale, to)


def _negative(read: Indices, e: Neg, scale: float, to: IndexFeatures) -> None:
    read.add(e.value, -scale, to)


def _cast(read: Indices, e: Cast, scale: float, to: IndexFeatures) -> None:
    read.add(e.value, scale, to)


def _product(read: Indices, e: Mul, scale: float, to: IndexFeatures) -> None:
    for factor, rest in ((e.rhs, e.lhs), (e.lhs, e.rhs)):
        value = read(factor)
        if not value.terms and not value.erratic:
            return read.add(rest, scale * value.const, to)
    return _erratic(read, e, scale, to)


def _quotient(read: Indices, e: FloorDiv, scale: float, to: IndexFeatures) -> None:
    divisor, value = read(e.rhs), read(e.lhs)
    if divisor.terms or divisor.erratic or divisor.const <= 0:
        return _erratic(read, e, scale, to)
    if not value.terms and not value.erratic:
        to.const += scale * (value.const // divisor.const)
        return None
    return _scaled(value, scale / divisor.const, to)


def _remainder(read: Indices, e: Mod, scale: float, to: IndexFeatures) -> None:
    divisor, value = read(e.rhs), read(e.lhs)
    if divisor.terms or divisor.erratic or divisor.const <= 0:
        return _erratic(read, e, scale, to)
    if not value.terms and not value.erratic:
        to.const += scale * (value.const % divisor.const)
        return None
    _scaled(value, scale, to)
    most = abs(scale) * (divisor.const - 1)
    for depth in value.terms:
        _limit(to, depth, most)
    return None


def _extreme(read: Indices, e: Min | Max, scale: float, to: IndexFeatures) -> None:
    a, b = read(e.lhs), read(e.rhs)
    if not (a.terms or b.terms or a.erratic or b.erratic):
        pick = max if isinstance(e, Max) else min
        to.const += scale * pick(a.const, b.const)
        return
    _scaled(max(a, b, key=_weight), scale, to)


def _weight(value: IndexFeatures) -> tuple[int, float]:
    loops = len(value.terms) + len(value.erratic)
    return loops, sum(map(abs, value.terms.values()))


def _scaled(value: IndexFeatures, scale: float, to: IndexFeatures) -> None:
    to.const += scale * value.const
    to.erratic |= value.erratic
    to.loads += value.loads
    for depth, c in value.terms.items():
        to.terms[depth] = to.terms.get(depth, 0.0) + scale * c
    for depth, limit in value.limits.items():
        _limit(to, depth, abs(scale) * limit)


def _limit(to: IndexFeatures, depth: int, most: float) -> None:
    known = to.limits.get(depth, math.inf)
    to.limits = {**to.limits, depth: min(known, most)}


def _erratic(read: Indices, e: Expr, scale: float, to: IndexFeatures) -> None:
    for node in postorder(e):
        if isinstance(node, Var) and node in read.depths:
            to.erratic |= {read.depths[node]}
        elif isinstance(node, Load):
            to.loads += (node,)


_RULES: Mapping[type[Expr], Callable[[Indices, Any, float, IndexFeatures], None]] = {
    Sub: _difference,
    Neg: _negative,
    Cast: _cast,
    Mul: _product,
    FloorDiv: _quotient,
    Mod: _remainder,
    Min: _extreme,
    Overlap: _extreme,
    Max: _extreme,
}
