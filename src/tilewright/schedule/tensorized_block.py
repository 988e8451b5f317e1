"""Units under rewrites: after any change of its body, the instruction must still compute all of it.

Primitives rewrite accesses and outer loop variables everywhere, also in the bodies of Units. After
each primitive, changed bodies are matched again, which updates the operands; if a body no longer
matches its intrinsic, the primitive is refused.
"""

from __future__ import annotations

from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.loops.match import match
from tilewright.loops.nodes import Kernel, Stmt, Unit
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.walk import below, units_of


def settled(before: Kernel, after: Kernel, primitive: str) -> Kernel:
    """`after` with the operands of its Units read off their bodies.

    Raises ScheduleError, in the name of the primitive that led from `before` to `after`, for a Unit
    that cannot be done by its intrinsic any more.
    """
    units = {s for s in units_of(after.body) if s.intrinsic is not None}
    if not units:
        return after
    changed = units.difference(units_of(before.body))
    new = {unit: _matched(unit, primitive) for unit in changed}
    new = {old: unit for old, unit in new.items() if unit is not old}
    if new:
        return after.with_body(_replaced(after.body, new))
    return after


def _matched(unit: Unit, primitive: str) -> Unit:
    assert unit.intrinsic is not None
    try:
        use, operands = match(unit.intrinsic.intrinsic, unit.body)
        if use.part != unit.intrinsic.part:
            raise OperandMismatch(0, f"its body became the {use.part}")
    except OperandMismatch as error:
        raise ScheduleError(
            f"{primitive}: {unit.intrinsic.intrinsic.name} could not be used any more: {error}",
            where=f"unit {unit.name}",
            hint=f"{primitive} first, then tensorize",
        ) from None
    if use == unit.intrinsic and operands == unit.operands:
        return unit
    return Unit(unit.name, use, operands, unit.body)


def _replaced(s: Stmt, new: dict[Unit, Unit]) -> Stmt:
    if isinstance(s, Unit) and s in new:
        return new[s]
    if not below(s):
        return s

    def child(c: Any) -> Any:
        return _replaced(c, new) if isinstance(c, Stmt) else c

    rebuilt: Stmt = s.map(child)
    return rebuilt
