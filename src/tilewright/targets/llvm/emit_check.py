"""Sanitized code: checks every access against the region its kernel may access.

An access outside it stores `STATUS_BOUNDS` in the call's status and describes itself in the call's
report: the address of a text with a placeholder for each number, their count, and the numbers (the
index, then the enclosing loops). It then returns from the function before the wrong access happens.
If several threads fail, the first one reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import product
from typing import TYPE_CHECKING, Final

from tilewright.base import dtypes
from tilewright.base.errors import CompileError
from tilewright.expr.affine import affine
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Const,
    Expr,
    Extent,
    Load,
    Var,
    const,
)
from tilewright.ir.node import Node, postorder, substitute
from tilewright.loops.nodes import For, Stmt, Store, Unit, Update
from tilewright.runtime.abi import (
    CTX_REPORT,
    CTX_STATUS,
    REPORT_MARK,
    REPORT_NUMBERS,
    STATUS_BOUNDS,
)
from tilewright.targets.llvm.emit_text import LlvmValue, integer
from tilewright.targets.permitted import Below, IndexSet

if TYPE_CHECKING:
    from tilewright.targets.llvm.emit_memory import MemoryEmitter

LOAD: Final = "load of"
STORE: Final = "store to"
_LOOPS: Final = REPORT_NUMBERS - 1  # that a report has room for

Span = IndexSet | Below


def check(
    x: MemoryEmitter,
    verb: str,
    buffer: Buffer,
    index: tuple[Expr, ...],
    mask: LlvmValue | None = None,
) -> None:
    """Leave the function with a report where an index is outside, in a lane that `mask` allows."""
    spans = _spans(x, verb, buffer)
    if not spans:
        return
    place = f"{verb} {buffer.name}[{', '.join(map(str, index))}]"
    for axis, (part, span) in enumerate(zip(index, spans, strict=False)):
        _check_part(x, place, axis, part, span, mask)


def _spans(x: MemoryEmitter, verb: str, buffer: Buffer) -> tuple[Span, ...]:
    """The permitted indices along each axis; empty if there is nothing to check."""
    if x.permitted is None or 0 in buffer.extents:
        return ()
    permitted = x.permitted.get(buffer)
    if permitted is None:
        return tuple(map(_all, buffer.extents))
    return permitted.stores if verb == STORE else permitted.loads


def _all(extent: Extent) -> Span:
    return IndexSet.over(0, [(1, extent)]) if isinstance(extent, int) else Below(extent)


def _check_part(
    x: MemoryEmitter,
    place: str,
    axis: int,
    part: Expr,
    span: Span,
    mask: LlvmValue | None = None,
) -> None:
    if isinstance(part, Const) and int(part.value.real) in span:
        return
    v = x.value(part)
    bad = _outside(x, v, span)
    if mask is not None:
        bad = x.ops.binary(And, bad, mask, dtypes.bool_)
    where = f"outside {span}" if span.dense else f"not {span}"
    _branch(x, bad, v, f"{place}: index {REPORT_MARK} of dimension {axis} is {where}")


def _outside(x: MemoryEmitter, v: LlvmValue, span: Span) -> LlvmValue:
    """Whether an index is outside a span. A negative difference is a large unsigned one."""
    if isinstance(span, Below):
        return x.compare("icmp uge", v, x.value(span.extent))
    rest = x.binary("sub", v, integer(span.first))
    tests = []
    for step, count in span.terms:
        if step == 1:
            digit = rest
        else:
            digit = x.binary("udiv", rest, integer(step))
        tests.append(x.compare("icmp ugt", digit, integer(count - 1)))
        if step == 1:
            rest = integer(0)
        else:
            rest = x.binary("urem", rest, integer(step))
    if not span.terms or span.terms[-1][0] > 1:
        tests.append(x.compare("icmp ne", rest, integer(0)))
    return reduce(lambda a, b: x.binary("or", a, b), tests)


def _branch(x: MemoryEmitter, bad: LlvmValue, v: LlvmValue, text: str) -> None:
    some = x.any(bad)
    failed = x.fresh("outside")
    fine = x.fresh("inside")
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


def _report(x: MemoryEmitter, text: str, numbers: list[LlvmValue]) -> None:
    """Store the report, unless another failure came first."""
    write = x.fresh("first")
    leave = x.fresh("leave")
    status = x.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}", "ptr")
    code = 1 << 8 | STATUS_BOUNDS
    pair = x.fresh("pair")
    x.line(f"{pair} = cmpxchg {status.typed}, i64 0, i64 {code} monotonic monotonic")
    won = x.ins(f"extractvalue {{ i64, i1 }} {pair}, 1", "i1")
    x.line(f"br {won.typed}, label {write}, label {leave}")
    x.label(write)
    at = x.report()
    words = [LlvmValue(x.constant_text(text), "ptr"), integer(len(numbers)), *numbers]
    for n, word in enumerate(words):
        slot = x.ins(f"getelementptr i8, {at.typed}, i64 {8 * n}", "ptr")
        x.line(f"store {word.typed}, {slot.typed}, align 8")
    slot = x.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_REPORT}", "ptr")
    x.line(f"store {at.typed}, {slot.typed}, align 8")
    x.line(f"br label {leave}")
    x.label(leave)


def _loops(x: MemoryEmitter) -> list[tuple[str, LlvmValue]]:
    """The loop variables with a number here, outermost first."""
    found = []
    for scope in x.scopes:
        bound = [b for b in scope.bound if isinstance(b, Var) and b.dtype is INDEX]
        for var in sorted(bound, key=lambda b: b.name):
            value = scope.values[var]
            if value.lanes == 1 and value.type == "i64":
                found.append((var.name, value))
    return found


def check_unit(x: MemoryEmitter, s: Unit) -> None:
    """Check the accesses of a Unit's body in all its iterations.

    Raises CompileError for an inner loop without a constant extent.
    """
    if x.permitted is None:
        return
    loops: dict[Var, int] = {}
    for n in postorder(s.body):
        if isinstance(n, For):
            if n.trips is None:
                reason = f"the iterations of {n.var} in {s.name} cannot be counted"
                raise CompileError(
                    reason, code="TW-INTRINSIC", hint="compile it unsanitized"
                )
            loops[n.var] = n.trips
    for verb, buffer, index in _accesses(s.body):
        place = f"{verb} {buffer.name}[{', '.join(map(str, index))}] in {s.name}"
        for axis, (part, span) in enumerate(
            zip(index, _spans(x, verb, buffer), strict=False)
        ):
            for value in _values(part, loops, span.dense):
                _check_part(x, place, axis, value, span)


def _accesses(body: Stmt) -> list[tuple[str, Buffer, tuple[Expr, ...]]]:
    found: list[tuple[str, Buffer, tuple[Expr, ...]]] = []
    node: Node
    for node in postorder(body):
        if isinstance(node, Load):
            found.append((LOAD, node.buffer, node.index))
        elif isinstance(node, Store):
            found.append((STORE, node.buffer, node.index))
        elif isinstance(node, Update):
            pairs = zip(node.buffers, node.indices, strict=True)
            found += [(STORE, b, index) for b, index in pairs]
    return found


def _values(index: Expr, loops: Mapping[Var, int], dense: bool) -> list[Expr]:
    """A subset of an index's values over a nest: if it is in a span, all values are.

    dense: the span is contiguous. Then the first and last iteration are enough for a loop whose
    variable only occurs in a linear term; every iteration is needed for a variable inside another
    function, and for all loops if the span is not contiguous.
    """
    form = affine(index)
    terms = {a for a, _ in form.terms}
    inside = {v for a in terms if not isinstance(a, Var) for v in postorder(a)}
    every = [v for v in loops if v in inside or (v in terms and not dense)]
    ends = [v for v in loops if v in terms and v not in every]
    found: dict[Expr, None] = {}
    for point in product(*(range(loops[v]) for v in every)):
        for last in (False, True):
            env = dict(zip(every, point, strict=True))
            env |= {
                v: loops[v] - 1 if (form.coefficient(v) > 0) == last else 0
                for v in ends
            }
            numbers: dict[object, object] = {v: const(n) for v, n in env.items()}
            found[substitute(index, numbers)] = None
    return list(found)
