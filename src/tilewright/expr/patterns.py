"""Holes and sorts: how rewrite rules on expressions are written, matched and built.

A sort says on which dtypes a rule holds; it takes the place of the dtype in patterns.

* INT: every integer dtype; the rule holds modulo 2**bits.
* IDX: int64 terms made of variables and constants only. Such arithmetic counts places in memory
  and iterations, and is taken not to overflow; values loaded from tensors are excluded.
* FLOAT: every real floating-point dtype; the rule is exact, NaN and signed zeros included.
* BOOL: truth values. ANY: every dtype.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal
from zlib import crc32

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr.fold import compute, wrap
from tilewright.expr.nodes import (
    INDEX,
    Add,
    And,
    Binary,
    Bitcast,
    Call,
    Cast,
    Compare,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Load,
    Lt,
    Max,
    Min,
    Mod,
    Mul,
    Ne,
    Neg,
    Or,
    Select,
    Sub,
    Var,
    Xor,
)
from tilewright.ir.node import Node, exact
from tilewright.ir.rewrite import Step

INT = DType("integer", "int", 64)
IDX = DType("index", "int", 64)
FLOAT = DType("real", "float", 64)
ANY = DType("any", "int", 64)
BOOL = dtypes.bool_

INTEGERS = frozenset(t for t in dtypes.ALL if t.is_int)

HoleKind = Literal["any", "const", "term"]


class Hole(Var, intern=False):
    """Stands for any expression of a sort; `const` takes constants only, `term` everything else."""

    kind: HoleKind


def holes(
    names: str,
    sort: DType,
    kind: HoleKind = "any",
) -> tuple[Hole, ...]:
    """One hole per word of `names`."""
    return tuple(Hole(name, sort, kind) for name in names.split())


def divides(d: Expr, c: Expr) -> Expr:
    """The condition `d | c`; put the condition that d is not 0 before it."""
    return Eq(Mod(c, d), Const(0, d.dtype))


_OPAQUE = frozenset({Load, Call, Cast, Bitcast})
# Facts about nodes, not about runs: dropped as a whole when they are more, as normal forms are in
# `expr.simplify`, and for the same reason. All of ResNet-50 leaves 2,200.
_index_terms: dict[Any, bool] = {}
_FACTS_LIMIT = 5_000


def is_index(e: Any) -> bool:
    """Whether an int64 term is index arithmetic: nothing in it comes from a tensor. Cached."""
    known = _index_terms.get(e)
    if known is not None:
        return known
    if len(_index_terms) > _FACTS_LIMIT:
        _index_terms.clear()
    stack = [e]
    while stack:
        node = stack[-1]
        children = node.children()
        if node.__class__ in _OPAQUE or not (node.dtype is INDEX or node.dtype is BOOL):
            _index_terms[node] = False
        else:
            waiting = [c for c in children if c not in _index_terms]
            if waiting:
                stack += waiting
                continue
            _index_terms[node] = all(_index_terms[c] for c in children)
        stack.pop()
    return _index_terms[e]


def fits(value: int) -> bool:
    """Whether a computed constant is an int64."""
    return -(1 << 63) <= value < 1 << 63


_GUARDS: dict[type[Expr], str] = {
    Add: "({} + {})",
    Sub: "({} - {})",
    Mul: "({} * {})",
    FloorDiv: "({} // {})",
    Mod: "({} % {})",
    Min: "min({}, {})",
    Max: "max({}, {})",
    Lt: "{} < {}",
    Le: "{} <= {}",
    Eq: "{} == {}",
    Ne: "{} != {}",
    And: "({} and {})",
    Or: "({} or {})",
    Neg: "(-{})",
}


class ExprFamily:
    """How the compiler of rules sees expressions."""

    commutative: frozenset[type[Node]] = frozenset(
        {Add, Mul, Min, Max, And, Or, Xor, Eq, Ne}
    )
    scope: Mapping[str, object] = {
        **{kind.__name__: kind for kind in _GUARDS},
        "Const": Const,
        "INTEGERS": INTEGERS,
        "INDEX": INDEX,
        "BOOL": BOOL,
        "is_index": is_index,
        "fits": fits,
        "compute": compute,
        "wrap": wrap,
        "exact": exact,
        "inf": math.inf,
        "TRUE": Const(True, BOOL),
        "FALSE": Const(False, BOOL),
    }

    def hole(
        self,
        pattern: Node,
        at: str,
    ) -> list[str] | None:
        """See `ir.rewrite.Family`."""
        if not isinstance(pattern, Hole):
            return None
        tests = {"any": [], "const": [f"{at}.__class__ is Const"]}
        return tests.get(pattern.kind, [f"{at}.__class__ is not Const"])

    def literal(
        self,
        pattern: Node,
        at: str,
    ) -> list[str] | None:
        """See `ir.rewrite.Family`. Floats are compared by bits: -0.0 is not 0.0."""
        if not isinstance(pattern, Const):
            return None
        same = f"{at}.value == {pattern.value!r}"
        if pattern.type is FLOAT:
            same = f"exact({at}.value) == {exact(pattern.value)!r}"
        elif pattern.type is INT and int(pattern.value.real) < 0:
            same = f"{at}.value == wrap({pattern.value}, {at}.type)"
        return [f"{at}.__class__ is Const", same]

    def types(self, places: Sequence[tuple[Node, str]]) -> list[str]:
        """See `ir.rewrite.Family`. One test per sort: operands of one node share their dtype."""
        conditions = {p.condition for p, _ in places if isinstance(p, Select)}
        seen: dict[DType, str] = {}
        for pattern, at in places:
            assert isinstance(pattern, Expr)
            if not isinstance(pattern, Compare) and pattern not in conditions:
                seen.setdefault(pattern.dtype, at)
        tests = {
            INT: "{}.dtype in INTEGERS",
            IDX: "{}.dtype is INDEX",
            FLOAT: "{}.dtype.is_float",
            BOOL: "{}.dtype is BOOL",
        }
        return [tests[sort].format(at) for sort, at in seen.items() if sort in tests]

    def facts(self, places: Sequence[tuple[Node, str]]) -> list[str]:
        """See `ir.rewrite.Family`."""
        return ["is_index(e)"] * any(
            isinstance(p, Expr) and p.dtype is IDX for p, _ in places
        )

    def guard(
        self,
        condition: Node,
        places: Mapping[Node, str],
    ) -> str:
        """See `ir.rewrite.Family`. Guards compute with unbounded integers."""
        if isinstance(condition, Hole):
            return f"{places[condition]}.value"
        if isinstance(condition, Const):
            return repr(condition.value)
        operands = (self.guard(c, places) for c in condition.children())
        return _GUARDS[type(condition)].format(*operands)  # type: ignore[index]

    def build(
        self,
        template: Node,
        places: Mapping[Node, str],
    ) -> tuple[list[Step], str] | None:
        """See `ir.rewrite.Family`. A term over constants only is computed when the rule fires."""
        if isinstance(template, Const):
            if template.type is BOOL:
                return [], "TRUE" if template.value else "FALSE"
            return (
                [],
                f"Const({self._literal(template, places)}, {_type_of(template, places)})",
            )
        if isinstance(template, Hole) or not _is_constant(template):
            return None
        assert isinstance(template, Expr)
        if template.dtype is IDX:
            name = f"k{crc32(repr(template).encode())}"
            value = self.guard(template, places)
            return [
                ("let", name, value),
                ("if", f"fits({name})", ""),
            ], f"Const({name}, INDEX)"
        return [], self._computed(template, places)

    def _literal(
        self,
        template: Const,
        places: Mapping[Node, str],
    ) -> str:
        if (
            template.type is INT
            and isinstance(template.value, int)
            and template.value < 0
        ):
            return f"wrap({template.value}, {_type_of(template, places)})"
        return repr(template.value)

    def _computed(
        self,
        template: Expr,
        places: Mapping[Node, str],
    ) -> str:
        if template in places:
            return places[template]
        if isinstance(template, Const):
            found = self.build(template, places)
            assert found is not None
            return found[1]
        operands: Any = template.children()
        args = [self._computed(c, places) for c in operands]
        return f"compute({type(template).__name__}, {', '.join(args)})"


def _type_of(template: Expr, places: Mapping[Node, str]) -> str:
    """Source of the dtype that a literal of the right side has in a match."""
    if template.dtype is IDX:
        return "INDEX"
    for pattern, at in places.items():
        if isinstance(pattern, Expr) and pattern.dtype is template.dtype:
            return f"{at}.dtype"
    raise ValueError(
        f"no hole of sort {template.dtype} gives the literal {template} its dtype"
    )


def _is_constant(template: Node) -> bool:
    """Whether a template consists only of constant holes and literals."""
    if isinstance(template, Hole):
        return template.kind == "const"
    if isinstance(template, Const):
        return True
    return isinstance(template, Binary | Neg) and all(
        map(_is_constant, template.children())
    )


FAMILY = ExprFamily()
