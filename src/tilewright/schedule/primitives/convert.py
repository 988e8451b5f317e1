"""convert: a buffer of the values that its reads are converted to."""

from __future__ import annotations

from typing import Any

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import Buffer, Cast, Load
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import environment
from tilewright.loops.nodes import Alloc, Kernel, Store, Unit, Update
from tilewright.schedule import edit
from tilewright.schedule.legality import refuse_buffer
from tilewright.schedule.primitives.transform_layout import own_buffer
from tilewright.schedule.registry import primitive


@primitive
def convert(kernel: Kernel, buffer: str) -> tuple[Kernel, None]:
    """Store the values of an allocated buffer converted, as its reads are.

    requires: the buffer is allocated in the kernel; every read of it is converted, all to one
        dtype; it is written by plain stores alone, none of them in a Unit.
    A value that is read often is then converted once, and where it is stored in vectors, in these.
    before: alloc b: float16[n]: b[i] = x[i] ... y[i, j] += f32(b[i]) * z[j]
    after:  alloc b: float32[n]: b[i] = f32(x[i]) ... y[i, j] += b[i] * z[j]
    """
    old, place = own_buffer(kernel, buffer, "convert")
    alloc = place.stmt
    assert isinstance(alloc, Alloc)
    dtype = _converted_to(alloc, old)
    new = Buffer(old.name, old.extents, dtype, old.scope, old.swizzle)
    env = environment(kernel.body)
    reads: dict[Any, Any] = {}
    for n in postorder(alloc.body):
        if isinstance(n, Load) and n.buffer is old:
            index = tuple([edit.rewrite(i, env, reads) for i in n.index])
            reads[Cast(n, dtype)] = Load(new, index)
    body = edit.rewrite(alloc.body, env, reads)
    stores: dict[Any, Any] = {
        n: Store(new, n.index, Cast(n.value, dtype))
        for n in postorder(body)
        if isinstance(n, Store) and n.buffer is old
    }
    body = edit.rewrite(body, env, stores)
    return edit.put(kernel, place, Alloc(new, body)), None


def _converted_to(alloc: Alloc, buffer: Buffer) -> DType:
    """The one dtype that the reads of a buffer are converted to; ScheduleError if there is none."""
    found: set[DType] = set()
    why = ""
    for node in postorder(alloc.body):
        users = [x for x in node.children() if _reads(x, buffer)]
        if isinstance(node, Cast) and users:
            found.add(node.type)
        elif users:
            why = "it is read as it is, too"
        if isinstance(node, Update) and buffer in node.buffers:
            why = "a reduction updates it"
        elif isinstance(node, Unit) and _touches(node, buffer):
            why = "a Unit reads or writes it"
    if not why and len(found) != 1:
        why = (
            "its reads are converted to several dtypes" if found else "nothing reads it"
        )
    if why:
        raise refuse_buffer(
            "convert", buffer.name, why, "convert a copy that one nest alone reads"
        )
    return found.pop()


def _reads(node: Any, buffer: Buffer) -> bool:
    return isinstance(node, Load) and node.buffer is buffer


def _touches(unit: Unit, buffer: Buffer) -> bool:
    return any(
        isinstance(n, Load | Store) and n.buffer is buffer for n in postorder(unit.body)
    )
