"""The statements of a program in order, each with those around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.loops.launch import Barrier, Combine
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


# Not frozen, as so many are made: setting the fields of a frozen one takes three times as long.
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


def loops_of(root: Stmt) -> list[For]:
    """The loops of `root` in program order."""
    found = []
    stack = [root]
    while stack:  # as `walk`, without a Place for each: asked again and again
        stmt = stack.pop()
        if isinstance(stmt, For):
            found.append(stmt)
        stack.extend(reversed(below(stmt)))
    return found
