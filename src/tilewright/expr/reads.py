"""The loads of an expression, each with the conditions under which it is performed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.expr.bounds import Env, Interval, refine
from tilewright.expr.nodes import Expr, Load, Select, Var
from tilewright.ir.node import postorder

Guard = tuple[Expr, bool]


@dataclass(frozen=True, eq=False, slots=True)
class Read:
    """A load, the conditions that hold (or not) where it is performed, and their bounds."""

    load: Load
    guards: tuple[Guard, ...]
    ranges: dict[Any, Interval]


def reads(
    roots: tuple[Expr, ...],
    env: Env,
    guards: tuple[Guard, ...] = (),
) -> Iterator[Read]:
    """Every load below `roots`, once per set of conditions around it, inner loads first."""
    seen: set[tuple[Expr, tuple[Guard, ...]]] = set()
    for e in roots:
        yield from _below(e, guards, dict(env), seen)


def _below(
    e: Expr,
    guards: tuple[Guard, ...],
    ranges: dict[Any, Interval],
    seen: set[tuple[Expr, tuple[Guard, ...]]],
) -> Iterator[Read]:
    if (e, guards) in seen:
        return
    seen.add((e, guards))
    if isinstance(e, Select):
        yield from _below(e.condition, guards, ranges, seen)
        for arm, holds in ((e.then, True), (e.otherwise, False)):
            chosen = (*guards, (e.condition, holds))
            yield from _below(arm, chosen, refine(ranges, e.condition, holds), seen)
        return
    children: Any = e.children()
    for child in children:
        yield from _below(child, guards, ranges, seen)
    if isinstance(e, Load):
        yield Read(e, guards, ranges)


def variables(e: Expr) -> Iterator[Var]:
    """The distinct variables of an expression."""
    return (n for n in postorder(e) if isinstance(n, Var))


def reads_memory(e: Expr) -> bool:
    """Whether a load occurs in the expression."""
    return any(isinstance(n, Load) for n in postorder(e))
