"""Updates of one element by several blocks, each of which is one step of the device's memory.

    for b in 8 blockIdx.x {atomics: 1}:      launch f_1(x, y) grid [8, 1, 1] threads [32, 1, 1]:
      for t in 32 threadIdx.x:         ->      ... the sum of a block's part by its threads
        y[0] add= x[b * 32 + t]                if threadIdx.x < 1: atomic y[0] add= part

A loop over blocks that is noted `ATOMICS` allows it; without the note such an update is refused as
a race, and `rfactor` makes parts that another launch combines in one order. The condition: the
reducer and the dtype are in ATOMIC, which every GPU has as one step; nothing else in the launch
touches the element, or `with_barriers` refuses it as a race. What one block has summed up is
deterministic as ever, but the order of the blocks is not: only sums of floats depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.compute.reducer import Reducer
from tilewright.compute.reducer import reducer as standard
from tilewright.expr.nodes import Buffer, Extent
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import Access
from tilewright.loops.analysis.threads import (
    blocks_conflict,
    shared_accesses,
    threads_conflict,
)
from tilewright.loops.launch import AtomicUpdate
from tilewright.loops.nodes import ATOMICS, Kernel, Stmt, Unit, Update
from tilewright.loops.passes.thread_program import ThreadProgram
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.walk import loops_of

# By dtype: the reducers that OpenCL 1.2 and PTX have for memory of 32 bits as one step. OpenCL's
# sum of floats is a loop around a comparison; a least or greatest float would order its zeros and
# NaNs in another way than the reducer.
ATOMIC: Final = {
    "int32": ("add", "min", "max", "and", "or", "xor"),
    "uint32": ("add", "min", "max"),
    "float32": ("add",),
}
HINT: Final = "rfactor the reduction: another launch combines the parts"


def noted_loop(kernel: Kernel, nest: Stmt) -> str:
    """The loop of a nest whose blocks may update atomically; empty for none."""
    names = (f.var.name for f in loops_of(nest))
    return next((n for n in names if ATOMICS in kernel.notes.get(n, ())), "")


def step_of(reducer: Reducer, buffer: Buffer) -> Reducer | None:
    """The reducer of a single step that does as another one, whatever that is called."""
    able = (standard(name, buffer.dtype) for name in ATOMIC.get(str(buffer.dtype), ()))
    return next(filter(reducer.does_as, able), None)


def missing(reducer: Reducer, buffer: Buffer) -> str:
    """Why an update of an element is no single step; empty if it is one."""
    if step_of(reducer, buffer) is not None:
        return ""
    return f"no GPU has {reducer.name} of {buffer.dtype} as one step"


def with_atomics(
    program: ThreadProgram, grid: Sequence[Extent], loop: str
) -> ThreadProgram:
    """A program of a thread whose updates of the device's memory that threads may do on one element
    are atomic; those that each element has to itself stay as they are.

    grid: the extents of the axes x, y, z. loop: that is noted. Raises ScheduleError (TW-LAUNCH) for
    an update that cannot be one step, and if none needs to be.
    """
    found: dict[Any, Any] = {}
    for a in _updates(program, grid):
        if blocks_conflict(a, a) is None and threads_conflict(a, a, ()) is None:
            continue
        u = a.place.stmt
        assert isinstance(u, Update)
        step = step_of(u.reducer, a.buffer)
        if step is None:
            why = missing(u.reducer, a.buffer)
            raise refusal(why, f"buffer {a.buffer.name}", HINT)
        found[u] = AtomicUpdate(u.buffers, u.indices, u.values, step)
    if not found:
        why = "no two of its blocks update one element: nothing needs to be atomic"
        raise refusal(why, f"loop {loop}", "leave the note out")
    return replace(program, body=substitute(program.body, found))


def _updates(program: ThreadProgram, grid: Sequence[Extent]) -> Iterator[Access]:
    """The updates of the device's memory; what a unit does by its own instruction is none."""
    accesses = shared_accesses(program.body, grid, program.threads)
    for b, found in accesses.items():
        for a in found if b.scope == "global" else ():
            if a.kind == "update" and not any(
                isinstance(s, Unit) for s in a.place.above
            ):
                yield a


def are_atomic(a: Access, b: Access) -> bool:
    """Whether two accesses of one buffer are atomic by one reducer: in either order, both are
    done."""
    one, two = a.place.stmt, b.place.stmt
    if not (isinstance(one, AtomicUpdate) and isinstance(two, AtomicUpdate)):
        return False
    return a.kind == b.kind == "update" and one.reducer.does_as(two.reducer)
