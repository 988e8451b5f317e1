"""storage_align: room in a buffer, for the stride of a dimension."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer, fixed
from tilewright.loops.nodes import Kernel
from tilewright.schedule.legality import refuse_buffer
from tilewright.schedule.primitives.transform_layout import own_buffer
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import rebuffered


@primitive
def storage_align(
    kernel: Kernel, buffer: str, dim: int, factor: int, offset: int = 0
) -> tuple[Kernel, None]:
    """Leave room in an allocated buffer so that the stride of a dimension is as requested.

    args: the buffer; a dimension but the last; the stride in elements is to be `offset` modulo
        `factor` (TVM's storage_align: against bank conflicts and lines of one cache set).
    requires: the buffer is allocated in the kernel; a multiple of the next dimension's stride is
        such a number.
    The next dimension grows by elements that are never used. Primitives that make a buffer again
    (compute_at, cache_write) give it the room that it needs, so align it after them.
    before: alloc b[32, 32]: b[i, j] = ...
    after:  alloc b[32, 33]: b[i, j] = ...                      storage_align('b', 0, 32, 1)
    """
    old, place = own_buffer(kernel, buffer, "storage_align")
    if not 0 <= dim < len(old.extents) - 1 or factor < 1:
        raise refuse_buffer(
            "storage_align",
            buffer,
            f"dimension {dim} modulo {factor}: its dimensions with a stride are "
            f"0..{len(old.extents) - 2}",
            "take one of these and a positive factor",
        )
    step = old.strides[dim + 1]
    extent = fixed(old.extents[dim + 1], f"buffer {old.name}")
    wished = (
        n for n in range(extent, extent + factor) if (n * step - offset) % factor == 0
    )
    size = next(wished, None)
    if size is None:
        raise refuse_buffer(
            "storage_align",
            buffer,
            f"no multiple of {step}, the next dimension's stride, is {offset} modulo {factor}",
            f"align dimension {dim + 1} first",
        )
    shape = (*old.extents[: dim + 1], size, *old.extents[dim + 2 :])
    new = Buffer(old.name, shape, old.dtype, old.scope)
    return rebuffered(kernel, place, new, lambda index: index), None
