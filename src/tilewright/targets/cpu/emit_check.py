"""Sanitized code: every access is compared with the box of its buffer, and names itself if outside.

A violation stores `STATUS_BOUNDS` in the call's status, and in the call's report what it was: the
address of a text with a mark for each number, their count, and the numbers (the index, then the
loops around). It then leaves the function, so that the wrong access does not happen. Of several
threads the first one reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tilewright.base import dtypes
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, And, Buffer, Const, Expr, Load, Var, const
from tilewright.ir.node import Node, postorder, substitute
from tilewright.loops.nodes import For, Stmt, Store, Unit, Update
from tilewright.runtime.abi import (
    CTX_REPORT,
    CTX_STATUS,
    REPORT_MARK,
    REPORT_NUMBERS,
    STATUS_BOUNDS,
)
from tilewright.targets.cpu.emit_text import Value, integer

if TYPE_CHECKING:
    from tilewright.targets.cpu.emit_memory import Memory

_LOOPS: Final = REPORT_NUMBERS - 1  # that a report has room for


def check(
    x: Memory, verb: str, buffer: Buffer, index: tuple[Expr, ...], mask: Value | None = None
) -> None:
    """Leave the function with a report where an index is outside, in a lane that `mask` allows."""
    if x.boxes is None or not buffer.size:
        return
    box = x.boxes.get(buffer) or tuple((0, n - 1) for n in buffer.shape)
    for axis, (part, (low, high)) in enumerate(zip(index, box, strict=True)):
        if isinstance(part, Const) and low <= int(part.value.real) <= high:
            continue
        v = x.value(part)
        moved = x.binary("sub", v, integer(low))
        bad = x.compare("icmp ugt", moved, integer(high - low))
        if mask is not None:
            bad = x.ops.binary(And, bad, mask, dtypes.bool_)
        place = f"{verb} {buffer.name}[{', '.join(map(str, index))}]"
        text = f"{place}: index {REPORT_MARK} of dimension {axis} is outside {low}..{high}"
        _branch(x, bad, v, text)


def _branch(x: Memory, bad: Value, v: Value, text: str) -> None:
    some = x.any(bad)
    failed, fine = x.fresh("outside"), x.fresh("inside")
    x.line(f"br {some.typed}, label {failed}, label {fine}")
    x.label(failed)
    if bad.lanes > 1:
        one = x.select(bad, x.splat(v, bad.lanes), integer(0))
        v = x.call(f"vector.reduce.umax.v{bad.lanes}i64", "i64", 1, one)
    loops = _loops(x)[:_LOOPS]
    if loops:
        text += ", in " + ", ".join(f"{name} = {REPORT_MARK}" for name, _ in loops)
    _report(x, text, [v, *(value for _, value in loops)])
    x.line("ret void")
    x.label(fine)


def _report(x: Memory, text: str, numbers: list[Value]) -> None:
    """Store the report, unless another failure came first."""
    write, leave = x.fresh("first"), x.fresh("leave")
    status = x.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}", "ptr")
    code = 1 << 8 | STATUS_BOUNDS
    pair = x.fresh("pair")
    x.line(f"{pair} = cmpxchg {status.typed}, i64 0, i64 {code} monotonic monotonic")
    won = x.ins(f"extractvalue {{ i64, i1 }} {pair}, 1", "i1")
    x.line(f"br {won.typed}, label {write}, label {leave}")
    x.label(write)
    at = x.report()
    words = [Value(x.constant_text(text), "ptr"), integer(len(numbers)), *numbers]
    for n, word in enumerate(words):
        slot = x.ins(f"getelementptr i8, {at.typed}, i64 {8 * n}", "ptr")
        x.line(f"store {word.typed}, {slot.typed}, align 8")
    slot = x.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_REPORT}", "ptr")
    x.line(f"store {at.typed}, {slot.typed}, align 8")
    x.line(f"br label {leave}")
    x.label(leave)


def _loops(x: Memory) -> list[tuple[str, Value]]:
    """The loop variables with a number here, outermost first."""
    found = []
    for scope in x.scopes:
        bound = [b for b in scope.bound if isinstance(b, Var) and b.dtype is INDEX]
        for var in sorted(bound, key=lambda b: b.name):
            value = scope.values[var]
            if value.lanes == 1 and value.type == "i64":
                found.append((var.name, value))
    return found


def check_unit(x: Memory, s: Unit) -> None:
    """What a Unit's body accesses, at the first and the last of its iterations."""
    if x.boxes is None:
        return
    loops = {n.var: (n.trips or 1) - 1 for n in postorder(s.body) if isinstance(n, For)}
    for verb, buffer, index in _accesses(s.body):
        for last in (False, True):
            check(x, verb, buffer, tuple(_end(i, loops, last) for i in index))


def _accesses(body: Stmt) -> list[tuple[str, Buffer, tuple[Expr, ...]]]:
    found: list[tuple[str, Buffer, tuple[Expr, ...]]] = []
    node: Node
    for node in postorder(body):
        if isinstance(node, Load):
            found.append(("load of", node.buffer, node.index))
        elif isinstance(node, Store):
            found.append(("store to", node.buffer, node.index))
        elif isinstance(node, Update):
            pairs = zip(node.buffers, node.indices, strict=True)
            found += [("store to", b, index) for b, index in pairs]
    return found


def _end(index: Expr, loops: Mapping[Var, int], last: bool) -> Expr:
    """The least or the greatest value of an index over the loops of a nest."""
    form = affine(index)
    env: dict[object, object] = {
        var: const(end if (form.coefficient(var) > 0) == last else 0) for var, end in loops.items()
    }
    found: Expr = substitute(index, env)
    return found
