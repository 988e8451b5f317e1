"""Navigating kernels: finding loops and buffers by name, and their accesses.

A loop's name and a buffer's name are stable handles; a `Place` is what a name leads to in one
particular kernel: the statement and its ancestors from the root on.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh as fresh
from tilewright.compute.reducer import Reducer
from tilewright.expr.nodes import Buffer, Const, Expr, Load, Var
from tilewright.ir.node import postorder
from tilewright.loops.analysis.effects import together
from tilewright.loops.nodes import (
    Alloc,
    For,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
)
from tilewright.loops.walk import Place as Place
from tilewright.loops.walk import below as below
from tilewright.loops.walk import loops_of as loops_of
from tilewright.loops.walk import walk as walk

Env = dict[Any, tuple[int, int]]
Index = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a buffer, seen from a statement `root` that contains it.

    path: the statements between `root` (included) and the one that accesses, outermost first.
    together: of an update, all the buffers of its values, if these are one value (see `together`).
    """

    buffer: Buffer
    index: Index
    kind: Literal["load", "store", "update"]
    reducer: Reducer | None
    path: tuple[Stmt, ...]
    together: tuple[Buffer, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether the buffer is changed."""
        return self.kind != "load"

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops below the root around the access."""
        return tuple(s for s in self.path if isinstance(s, For))

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(repr, self.index))}]"


def environment(root: Stmt) -> Env:
    """The interval of every loop variable of constant extent."""
    return {
        f.var: (0, max(f.trips - 1, 0)) for f in loops_of(root) if f.trips is not None
    }


def find_loop(kernel: Kernel, name: str, primitive: str) -> tuple[For, Place]:
    """The loop called `name` and its place. Raises ScheduleError with the names there are."""
    names = []
    for place in walk(kernel.body):
        if isinstance(place.stmt, For):
            if place.stmt.var.name == name:
                _check_outside(place, f"loop {name}", primitive)
                return place.stmt, place
            names.append(place.stmt.var.name)
    raise ScheduleError(
        f"{primitive}: there is no loop {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def find_buffer(
    kernel: Kernel, name: str, primitive: str
) -> tuple[Buffer, Place | None]:
    """The buffer called `name` and the place of its Alloc (None for a parameter)."""
    for b in kernel.params:
        if b.name == name:
            return b, None
    names = [b.name for b in kernel.params]
    for place in walk(kernel.body):
        if isinstance(place.stmt, Alloc):
            if place.stmt.buffer.name == name:
                _check_outside(place, f"buffer {name}", primitive)
                return place.stmt.buffer, place
            names.append(place.stmt.buffer.name)
    raise ScheduleError(
        f"{primitive}: there is no buffer {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def _check_outside(place: Place, what: str, primitive: str) -> None:
    """Nothing reaches into a Unit."""
    unit = next((s for s in place.above if isinstance(s, Unit)), None)
    if unit is not None:
        raise ScheduleError(
            f"{primitive}: it is inside of {unit.name}, which is done as one piece",
            where=what,
            hint="transform it before tensorize or blockize",
        )


def _closest(name: str, names: list[str]) -> str:
    return " or ".join(
        get_close_matches(str(name), names, 3, 0.5) or names or ["(there is none)"]
    )


def trips(f: For, primitive: str) -> int:
    """The constant number of iterations. Raises ScheduleError where it is not constant."""
    n = f.trips
    if n is None:
        raise ScheduleError(
            f"{primitive}: the extent {f.extent!r} is not a constant",
            where=f"loop {f.var.name}",
            hint="only loops of constant extent can be transformed",
        )
    return n


def names(kernel: Kernel) -> set[str]:
    """Every name of a loop or a buffer in use."""
    found = {b.name for b in kernel.params}
    for place in walk(kernel.body):
        if isinstance(place.stmt, For):
            found.add(place.stmt.var.name)
        elif isinstance(place.stmt, Alloc):
            found.add(place.stmt.buffer.name)
    return found


@lru_cache(maxsize=1 << 14)
def variables(e: Expr) -> frozenset[Expr]:
    """The variables an expression depends on; a load in it counts as one (contents may change)."""
    return frozenset(n for n in postorder(e) if isinstance(n, Var | Load))


@lru_cache(maxsize=1 << 14)
def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in an expression, those in indices included."""
    return tuple(n for n in postorder(e) if isinstance(n, Load))


def accesses(root: Stmt) -> list[Access]:
    """Every read and write of `root` in program order; a statement's reads before its write."""
    found: list[Access] = []
    for place in walk(root):
        s, path = place.stmt, place.above
        for e in s.children():
            if isinstance(e, Expr):
                found += [
                    Access(x.buffer, x.index, "load", None, path) for x in loads(e)
                ]
        if isinstance(s, Store):
            found.append(Access(s.buffer, s.index, "store", None, path))
        elif isinstance(s, Update):
            one = together(s, path)
            found += [
                Access(b, i, "update", s.reducer, path, one) for b, i in s.targets
            ]
    return found


def allocated(root: Stmt) -> set[Buffer]:
    """The buffers that exist only inside `root`."""
    return {p.stmt.buffer for p in walk(root) if isinstance(p.stmt, Alloc)}


def is_zero(e: Expr) -> bool:
    """Whether an index is the constant 0."""
    return isinstance(e, Const) and e.value == 0
