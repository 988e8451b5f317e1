"""Copies into shared memory that may arrive while the threads go on, and where they are waited for.

    vector l in 4: t[j*4 + l] = x[i, j*4 + l]     ->     async l in 4: t[j*4 + l] = x[i, j*4 + l]
    ...                                                  ...
    barrier shared                                       wait
    ... t[..] ...                                        barrier shared
                                                         ... t[..] ...

A vector loop that is noted `ASYNC` is such a copy, where the machine has them. What it writes is
there for no thread, its own included, before the thread has come to a `Wait`, and for others after
a barrier behind that; where they are follows from the dependences (`barriers.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tilewright.expr.nodes import Const, Expr, Load, Select, Var
from tilewright.ir.node import transform
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import ASYNC, For, Kernel, Stmt, Store
from tilewright.loops.operands import position
from tilewright.loops.passes.thread_registers import refusal

BYTES: Final = (4, 8, 16)  # that one copy may have


def with_async_copies(kernel: Kernel, body: Stmt) -> Stmt:
    """The body with the copies that notes ask for.

    Raises ScheduleError (TW-LAUNCH) for a loop that is no such copy: its body has to be one store,
    of what is loaded from memory of the caller into shared memory of the same type, or zero where a
    condition says so; element by element in both; 4, 8 or 16 bytes in all.
    """
    return with_copies(kernel, body, ASYNC, _refusal, "asynchronous copy")


def with_copies(
    kernel: Kernel, body: Stmt, kind: str, why_not: Callable[[For], str], what: str
) -> Stmt:
    """The body with the loops that are noted `kind` of this kind.

    why_not: why a loop cannot be such a copy, empty where it can; what: its name in the error.
    Raises ScheduleError (TW-LAUNCH) for a loop that cannot.
    """
    noted = {name for name, notes in kernel.notes.items() if kind in notes}

    def rewritten(node: Any) -> Any:
        if not isinstance(node, For) or node.var.name not in noted:
            return node
        why = why_not(node)
        if why:
            hint = "leave the note out: the threads copy it then"
            raise refusal(f"no {what}: {why}", f"loop {node.var.name}", hint)
        return node.replace(kind=kind)

    made: Stmt = transform(body, rewritten) if noted else body
    return made


def _refusal(f: For) -> str:
    """Why a loop cannot be such a copy; empty where it can."""
    s = f.body
    if f.kind != "vector":
        return f"the loop is {f.kind}, not a vector"
    if not isinstance(s, Store):
        return "its body is not one store"
    source = copied(s.value)
    if source is None:
        return f"{s.value!r} is not a load, or zero in its place"
    scopes = (source.buffer.scope, s.buffer.scope)
    if scopes != ("global", "shared"):
        return f"it copies from {scopes[0]} to {scopes[1]} memory"
    if not all(_is_along(x, f.var) for x in (source, Load(s.buffer, s.index))):
        return "its elements are not beside one another"
    size = (f.trips or 0) * source.dtype.itemsize
    if size not in BYTES:
        return f"it has {size} bytes, not {', '.join(map(str, BYTES))}"
    return ""


def copied(value: Expr) -> Load | None:
    """What is loaded, of a load or of one with zero where a condition does not hold."""
    if isinstance(value, Select) and _is_zero(value.otherwise):
        value = value.then
    return value if isinstance(value, Load) else None


def _is_zero(e: Expr) -> bool:
    """Whether all bits of a constant are 0."""
    return isinstance(e, Const) and repr(e.value) in ("0", "0.0", "0j", "False")


def _is_along(x: Load, lane: Var) -> bool:
    """Whether a place goes along a loop, element by element."""
    if not x.buffer.static:
        return False
    form = position(x.buffer, x.index)
    others = (atom for atom, _ in form.terms if atom is not lane)
    alone = not any(lane in variables(atom) for atom in others)
    return alone and form.coefficient(lane) == 1
