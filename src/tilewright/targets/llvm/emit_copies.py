"""Asynchronous copies from the caller's memory into shared memory."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError
from tilewright.expr.nodes import Load, Select
from tilewright.loops.nodes import ASYNC, For, Store
from tilewright.loops.passes.async_copies import copied
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_text import LlvmValue, int_vector, integer


@dataclass(frozen=True, slots=True)
class AsyncCopies:
    """How a GPU issues asynchronous copies.

    call: the instruction for a destination, a source, the number of bytes, and how many of them are
    read (None: all); the rest become zero. commit: ends a group of the thread's copies. wait: for
    all of them. wait_groups: for all but the latest groups, as many as may be in flight.
    """

    call: Callable[[LlvmValue, LlvmValue, int, LlvmValue | None], str]
    commit: str
    wait: str
    wait_groups: Callable[[int], str]

    def waits(self, pending: int) -> str:
        """For all groups but so many."""
        return self.wait_groups(pending) if pending else self.wait


def copy_elements(x: Statements, s: For, copies: AsyncCopies) -> None:
    """Copy the elements of an `async` loop together: all of them, or zeros.

    Raises CompileError (TW-LAUNCH) if they are not aligned, or have different conditions.
    """
    store, lanes = s.body, s.trips
    assert isinstance(store, Store) and lanes is not None
    source = copied(store.value)
    assert source is not None
    x.bind(s.var, int_vector(list(range(lanes))), (0, lanes - 1))
    x.vector = (s.var, lanes)
    size = lanes * source.dtype.itemsize
    to = _place(x, Load(store.buffer, store.index), size)
    at = _place(x, source, size)
    there = _there(x, store, source, size)
    x.vector = None
    x.line(copies.call(to, at, size, there))
    x.changed((store.buffer,))


def _there(x: Statements, store: Store, source: Load, size: int) -> LlvmValue | None:
    """How many bytes are read; None if it is always all of them."""
    if store.value is source:
        return None
    assert isinstance(store.value, Select)
    holds = x.value(store.value.condition)
    if holds.lanes > 1:
        raise _refused(source, "its elements have different conditions")
    return x.select(holds, integer(size, "i32"), integer(0, "i32"))


def _place(x: Statements, o: Load, size: int) -> LlvmValue:
    """The address of a copy's operand in its memory space."""
    place = x.access(o.buffer, o.index)
    if x.alignment(o.buffer, place.form, place.lanes) < size:
        raise _refused(o, f"it does not begin at a multiple of {size} bytes")
    space = 3 if o.buffer.scope == "shared" else 1
    type = f"ptr addrspace({space})"
    return x.ins(f"addrspacecast {place.pointer.typed} to {type}", type)


def _refused(o: Load, why: str) -> CompileError:
    return CompileError(
        f"no asynchronous copy of {o!r}: {why}",
        code="TW-LAUNCH",
        hint=f"remove the annotation {ASYNC!r}: the threads then copy it",
    )
