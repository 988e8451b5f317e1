"""Navigating kernels: finding loops and buffers by name.

A loop's name and a buffer's name are stable handles; a `StatementPlace` is what a name leads to in
one particular kernel: the statement and its ancestors from the root on.
"""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Load, Var
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import SIZE, For, Kernel, Unit
from tilewright.loops.walk import (
    StatementPlace,
    loops_of,
    place_of,
    place_of_alloc,
    summary,
)


def find_loop(
    kernel: Kernel, name: str, primitive: str, sizes: bool = False
) -> tuple[For, StatementPlace]:
    """The loop named `name` and its place; a loop over a symbolic size only if `sizes` is set.

    Raises ScheduleError listing the existing names.
    """
    loops = loops_of(kernel.body)
    for f in loops:
        if f.var.name == name:
            place = place_of(kernel.body, f)
            _check_outside(place, f"loop {name}", primitive)
            if f.kind == SIZE and not sizes:
                raise ScheduleError(
                    f"{primitive}: it is a size, of which a call has one value",
                    where=f"loop {name}",
                    hint="name a loop whose extent it is; or specialize",
                )
            return f, place
    names = [f.var.name for f in loops]
    raise ScheduleError(
        f"{primitive}: there is no loop {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def find_buffer(
    kernel: Kernel, name: str, primitive: str
) -> tuple[Buffer, StatementPlace | None]:
    """The buffer called `name` and the place of its Alloc (None for a parameter)."""
    for b in kernel.params:
        if b.name == name:
            return b, None
    allocated = summary(kernel.body).buffers
    for b in allocated:
        if b.name == name:
            place = place_of_alloc(kernel.body, b)
            _check_outside(place, f"buffer {name}", primitive)
            return b, place
    names = [b.name for b in (*kernel.params, *allocated)]
    raise ScheduleError(
        f"{primitive}: there is no buffer {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def _check_outside(place: StatementPlace, what: str, primitive: str) -> None:
    """Nothing reaches into a Unit."""
    unit = next((s for s in place.above if isinstance(s, Unit)), None)
    if unit is not None:
        raise ScheduleError(
            f"{primitive}: it is inside {unit.name}, which is one indivisible unit",
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
            hint="only loops of constant extent can be: split the loop, and take the inner one",
        )
    return n


def check_steady(f: For, others: Collection[Var], primitive: str) -> None:
    """Raise ScheduleError if how often a loop runs depends on `others`, or on data."""
    used = set(variables(f.extent))
    found = [v for v in used if v in others or isinstance(v, Load)]
    if found:
        raise ScheduleError(
            f"{primitive}: the extent {f.extent!r} depends on {found[0]!r}",
            where=f"loop {f.var.name}",
            hint="keep such a loop inside the loops that its extent depends on",
        )
