"""swizzle: chunks of a buffer's rows in another order in each row, against bank conflicts."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer
from tilewright.expr.swizzle import BLOCK, CHUNK
from tilewright.loops.nodes import Kernel
from tilewright.schedule.legality import refuse_buffer
from tilewright.schedule.primitives.transform_layout import own_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import rebuffered


@primitive
def swizzle(kernel: Kernel, buffer: str) -> tuple[Kernel, None]:
    """Store the 16-byte chunks of a shared buffer's rows in another order in each row.

    args: the buffer.
    requires: the buffer is allocated in the kernel, in shared memory, with constant extents; its
        rows have a power of two of bytes, at least a chunk; elements fill a chunk without rest; the
        buffer consists of whole blocks of 128 bytes, the width of the banks.
    The number of a chunk in its block is combined with three bits of the number of its row by an
    exclusive or, so that the same chunks of eight rows are in different banks, with no room between
    the rows. Indices, loops and results stay unchanged: only addresses differ. A vector may not
    cross chunks. Of the primitives that make a buffer again, only those that copy it (pipeline)
    keep the order, so swizzle it after the others.
    before: alloc b: float16[64, 64] in shared                      swizzle('b')
    after:  alloc b: float16[64, 64] in shared swizzled 128         element (r, c) of a row of 8
                chunks is in chunk (c // 8) ^ (r % 8)
    """
    old, place = own_buffer(kernel, buffer, "swizzle")
    why = _refusal(old)
    if why:
        raise refuse_buffer(
            "swizzle", buffer, why, "pad its rows with storage_align instead"
        )
    row = old.shape[-1] * old.dtype.itemsize
    new = Buffer(old.name, old.extents, old.dtype, old.scope, max(row, BLOCK))
    return rebuffered(kernel, place, new, lambda index: index), None


def _refusal(b: Buffer) -> str:
    """Why a buffer cannot be swizzled; empty if it can."""
    if b.scope != "shared":
        return f"it is in {b.scope} memory, not in shared memory"
    if not b.static or not b.shape:
        return "it has no rows of constant extent"
    size = b.dtype.itemsize
    row = b.shape[-1] * size
    if row < CHUNK or row & (row - 1):
        return f"a row has {row} bytes, which is not a power of two from {CHUNK} on"
    if CHUNK % size or b.size * size % BLOCK:
        return f"it does not consist of whole blocks of {BLOCK} bytes"
    return ""
