"""The statements of a program in order, each with those around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.expr.nodes import Buffer
from tilewright.ir.node import keep_fact
from tilewright.loops.launch import Barrier, Combine, Wait
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)


# Not frozen, since many are made: setting the fields of a frozen one takes three times as long.
@dataclass(eq=False, slots=True)
class Place:
    """A statement and the statements around it, outermost first."""

    stmt: Stmt
    above: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the statement, outermost first."""
        return tuple(s for s in self.above if isinstance(s, For))


_BELOW: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    For: lambda s: (s.body,),
    Block: lambda s: s.stmts,
    If: lambda s: (s.then,) if s.otherwise is None else (s.then, s.otherwise),
    While: lambda s: (s.body,),
    Alloc: lambda s: (s.body,),
    Unit: lambda s: (s.body,),
    Store: lambda s: (),
    Update: lambda s: (),
    Barrier: lambda s: (),
    Wait: lambda s: (),
    Combine: lambda s: (),
}


def below(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`, in order."""
    return _BELOW[type(stmt)](stmt)


def walk(root: Stmt, above: tuple[Stmt, ...] = ()) -> Iterator[Place]:
    """Every statement of `root` in program order, itself first, with its ancestors."""
    stack = [(root, above)]
    while stack:
        stmt, path = stack.pop()
        yield Place(stmt, path)
        inner = below(stmt)
        if inner:
            path = (*path, stmt)
            stack.extend((s, path) for s in reversed(inner))


@dataclass(eq=False, slots=True)
class Inside:
    """What is inside a statement, itself left out, in program order.

    joint: whether some Update changes several buffers.
    """

    loops: tuple[For, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    units: tuple[Unit, ...] = ()
    joint: bool = False


_NOTHING = Inside()


def inside(root: Stmt) -> Inside:
    """Facts about the inside of a statement; cached in it, since statements are immutable.

    A rewrite makes new statements only around its changes, so little is computed again.
    """
    known: Inside | None = getattr(root, "fact", None)
    if known is not None:
        return known
    waiting = [root]
    while waiting:
        stmt = waiting[-1]
        parts = below(stmt)
        unknown = [p for p in parts if getattr(p, "fact", None) is None]
        if unknown:
            waiting += unknown
        else:
            keep_fact(waiting.pop(), _joined(parts))
    found: Inside = root.fact  # type: ignore[attr-defined]
    return found


def _joined(parts: tuple[Stmt, ...]) -> Inside:
    found = _NOTHING
    for part in parts:
        own = _own(part)
        for one in (own, part.fact):  # type: ignore[attr-defined]
            if one is _NOTHING:
                continue
            if found is _NOTHING:
                found = one
                continue
            found = Inside(
                found.loops + one.loops,
                found.buffers + one.buffers,
                found.units + one.units,
                found.joint or one.joint,
            )
    return found


def _own(part: Stmt) -> Inside:
    """The statement alone."""
    rule = _OWN.get(type(part))
    return _NOTHING if rule is None else rule(part)


_OWN: Mapping[type[Stmt], Callable[[Any], Inside]] = {
    For: lambda s: Inside(loops=(s,)),
    Alloc: lambda s: Inside(buffers=(s.buffer,)),
    Unit: lambda s: Inside(units=(s,)),
    Update: lambda s: Inside(joint=True) if len(s.buffers) > 1 else _NOTHING,
}


def whole(root: Stmt) -> Inside:
    """A statement and what is inside it."""
    found = inside(root)
    return found if _own(root) is _NOTHING else _joined((root,))


def loops_of(root: Stmt) -> tuple[For, ...]:
    """The loops of `root` in program order."""
    loops = inside(root).loops
    return (root, *loops) if isinstance(root, For) else loops


def place_of(root: Stmt, loop: For) -> Place:
    """The first place of a loop of `root`."""
    inside(root)  # of which each statement below it has its own
    above: list[Stmt] = []
    at = root
    while at is not loop:
        above.append(at)
        at = next(s for s in below(at) if s is loop or loop in s.fact.loops)  # type: ignore[attr-defined]
    return Place(at, tuple(above))
