"""The meaning of kernels: an interpreter that runs every statement in order, element by element.

A kernel is written out as one Python function over flat lists and run. int64 values are Python
integers there (wrapped where bounds do not exclude an overflow), others NumPy scalars. Each index
that bounds do not prove inside its buffer is checked. Allocated buffers start as NaN, or as an odd
integer, so that a read of undefined contents shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.dtypes import DType
from tilewright.base.errors import ExecutionError, InputError
from tilewright.expr.nodes import INDEX, Buffer
from tilewright.loops.interp_source import SourceWriter
from tilewright.loops.nodes import Kernel
from tilewright.loops.sizes import solve


def run(kernel: Kernel, buffers: Mapping[Buffer, Any]) -> None:
    """Run `kernel` in place on one NumPy array per parameter.

    Symbolic sizes are taken from the arrays. Raises InputError for a missing array or a wrong shape
    or dtype, ExecutionError for an index out of range (TW-INDEX).
    """
    for b in kernel.params:
        check_array(kernel, b, buffers.get(b))
    sizes = solve(kernel, [buffers[b].shape for b in kernel.params])
    writer = SourceWriter()
    source = writer.kernel(kernel)
    scope = writer.scope | {"out_of_range": out_of_range, "undefined": undefined}
    exec(compile(source, f"<kernel {kernel.name}>", "exec"), scope)
    flat = [elements(buffers[b]) for b in kernel.params]
    with np.errstate(all="ignore"):
        scope["main"](*flat, *(sizes[v] for v in kernel.sizes))
    for b, values in zip(kernel.params, flat, strict=True):
        if b in writer.written:
            buffers[b].reshape(-1)[:] = np.asarray(values, b.dtype.numpy)


def check_array(kernel: Kernel, buffer: Buffer, array: Any) -> None:
    """Raise InputError unless `array` can be the memory of a parameter."""
    if array is None:
        raise InputError(f"no array for {buffer!r}", where=kernel.name)
    fits = buffer.shape == array.shape if buffer.static else True
    if not fits or array.dtype != buffer.dtype.numpy:
        found = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
        raise InputError(f"{buffer!r} was given an array {found}", where=kernel.name)
    if buffer in kernel.outputs and not array.flags.c_contiguous:
        raise InputError(
            f"the array for output {buffer.name} is not contiguous", where=kernel.name
        )


def elements(array: Any) -> list[Any]:
    """The elements of an array as values of the interpreter."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if array.dtype == INDEX.numpy:
        return list(flat.tolist())
    return list(flat)


def undefined(dtype: DType) -> Any:
    """What an allocated element holds before the first write."""
    if dtype is INDEX:
        return -6148914691236517206
    if dtype.is_int:
        pattern = 0x55 & ((1 << dtype.bits) - 1)
        return dtype.numpy.type(min(pattern, int(dtype.max)))
    return dtype.numpy.type(True if dtype.is_bool else float("nan"))


def out_of_range(
    place: str,
    axis: int,
    extent: int,
    index: Any,
) -> None:
    """Raise ExecutionError for an index that a buffer does not have."""
    raise ExecutionError(
        f"index {index} of dimension {axis} is outside 0..{extent - 1}",
        code="TW-INDEX",
        where=place,
    )
