"""tensorize: a nest done by an instruction of the machine."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.errors import InputError, ScheduleError
from tilewright.loops.intrinsic import TensorIntrinsic
from tilewright.loops.intrinsic import intrinsic as declared
from tilewright.loops.match import Match, match
from tilewright.loops.nodes import Block, For, Kernel, Stmt, Store, Unit
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.walk import StatementPlace, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.primitives.decompose_reduction import decompose_reduction
from tilewright.schedule.registry import primitive_with


def _name(intrinsic: object) -> object:
    return intrinsic.name if isinstance(intrinsic, TensorIntrinsic) else intrinsic


@primitive_with(as_text={"intrinsic": _name})
def tensorize(
    kernel: Kernel, loop: str, intrinsic: str | TensorIntrinsic
) -> tuple[Kernel, str]:
    """Do the nest at a loop by a tensor intrinsic; returns the name of the hardware call.

    args: the loop; a declared intrinsic (`loops/intrinsic.py`), or its name.
    requires: the nest is, up to names, the order of loops and the order of operands of commutative
        operators, one part of the intrinsic: all of it (compute), the start of its reduction
        (reset) or its step (update). Each tensor is in one buffer with the strides, alignment
        and memory scope that the intrinsic asks for.
    Where the nest is the step, the nest just before it (or before a loop around it) that starts the
    same accumulators becomes the reset. A whole reduction whose intrinsic has no `compute` becomes
    reset and update. Loops of the reduction outside the nest stay: decompose_reduction first.
    before: { for y in 8: for x in 8: C[y, x] = 0
              for ko: for y in 8: for x in 8: for k in 8: C[y, x] += A[ko*8+k, y] * B[ko*8+k, x] }
    after:  { fill_zero(C[0, 0])
              for ko: fused_gemm8x8_add(C[0, 0], A[ko*8, 0], B[ko*8, 0]) }
    """
    f, place = tree.find_loop(kernel, loop, "tensorize")
    try:
        if isinstance(intrinsic, TensorIntrinsic):
            what = intrinsic
        else:
            what = declared(intrinsic)
    except InputError as error:
        raise ScheduleError(
            f"tensorize: {error.message}",
            where=f"loop {loop}",
            hint=error.hint,
        ) from None
    start = None if what.compute is not None else _start(f)
    if start is not None:
        kernel, _ = decompose_reduction(kernel, start.buffer.name, loop)
        f, place = tree.find_loop(kernel, loop, "tensorize")
    try:
        found = match(what, f)
    except OperandMismatch as error:
        raise ScheduleError(
            f"tensorize: the nest is not {what.name}: {error}",
            where=f"loop {loop}",
            hint="split and reorder the loops, or stage the buffers, to the intrinsic's form",
        ) from None
    made = _unit(found, f)
    new = edit.put(kernel, place, made)
    if found[0].part == "update" and what.reset is not None:
        new = _with_reset(new, what, made)
    return new, made.name


def _start(nest: Stmt) -> Store | None:
    """The store by which a whole reduction starts, in a nest around both."""
    while isinstance(nest, For):
        nest = nest.body
    if isinstance(nest, Block) and len(nest.stmts) == 2:
        first = nest.stmts[0]
    else:
        first = None
    return first if isinstance(first, Store) else None


def _unit(found: Match, body: Stmt) -> Unit:
    use, operands = found
    return Unit(use.call.name, use, operands, body)


def _with_reset(kernel: Kernel, what: TensorIntrinsic, step: Unit) -> Kernel:
    """The nest that starts the accumulators of `step`, if it is one, as the intrinsic's reset."""
    place = next(p for p in walk(kernel.body) if p.stmt is step)
    for start in _before(place):
        for inner in walk(start.stmt, start.above):
            if any(isinstance(s, Unit) for s in inner.above):
                continue
            try:
                found = match(what, inner.stmt)
            except OperandMismatch:
                continue
            same = found[1][-1].buffer is step.operands[-1].buffer
            if found[0].part == "reset" and same:
                return edit.put(kernel, inner, _unit(found, inner.stmt))
    return kernel


def _before(place: StatementPlace) -> Iterator[StatementPlace]:
    """The statements before a place in the sequences around it, the nearest first."""
    path = (*place.above, place.stmt)
    for depth in range(len(path) - 2, -1, -1):
        home = path[depth]
        if isinstance(home, Block):
            at = home.stmts.index(path[depth + 1])
            for s in reversed(home.stmts[:at]):
                yield StatementPlace(s, path[: depth + 1])
