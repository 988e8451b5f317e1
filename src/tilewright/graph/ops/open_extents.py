"""Results with extents known only at run time, as bounded tensors with counts.

Operators of the domain `tilewright`, with which `graph/bounded` replaces ONNX's: elements past the
count are 0. `Trim` cuts a bounded tensor to its true shape when it leaves native code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Ne, Select, const
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, block
from tilewright.loops.searching import first_above
from tilewright.loops.sorting import CounterCell, allocated

DOMAIN = "tilewright"
TRIM = f"{DOMAIN}::Trim"
Buffers = Sequence[Buffer]


def cleared(
    nests: LoopNests,
    out: Buffer,
) -> Stmt:
    """Fill `out` with zeros, so that elements past a count are defined."""
    return nests.copy(out, lambda *i: const(0, out.dtype))


def padded(
    rows: Array,
    extent: int,
    axis: int = 0,
) -> Array:
    """The array padded with zeros along an axis, up to an extent."""
    widths = [(0, 0)] * rows.ndim
    widths[axis] = (0, extent - rows.shape[axis])
    return np.pad(rows, widths)


def _nonzero_type(call: OpCall) -> Sequence[Type]:
    shape = call.shape(0)
    return [(int64, (len(shape), math.prod(shape))), (int64, ())]


def _nonzero(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Computation | Kernel]:
    """Row by row, so that the indices come in lexicographic order."""
    x, (places, count) = inputs[0], outputs
    if call.blocks and x.size:
        return _nonzero_in_blocks(call, x, places, count)
    nests, found = LoopNests(), CounterCell("found")

    def look(*i: Expr) -> Stmt:
        stores = [Store(places, (const(a), found.value), n) for a, n in enumerate(i)]
        return If(Ne(x[i], const(0, x.dtype)), block(*stores, found.add()), None)

    search = nests.over(x.shape, look)
    body = block(found.set(0), search, Store(count, (), found.value))
    clear = cleared(nests, places)
    whole = block(clear, allocated([found], body))
    return [kernel(call.name, inputs, outputs, whole)]


def _nonzero_in_blocks(
    call: OpCall, x: Buffer, places: Buffer, count: Buffer
) -> list[Computation | Kernel]:
    """Counted by a running sum; each result looks for its element there."""
    nests = LoopNests()
    sums = Buffer("sums", (x.size,), INDEX)
    axes = list(enumerate(zip(x.shape, x.strides, strict=True)))

    def index(n: Expr) -> list[Expr]:
        return [n // step % extent if a else n // step for a, (extent, step) in axes]

    def is_counted(n: Expr) -> Expr:
        found = Ne(x[tuple(index(n))], const(0, x.dtype))
        return Select(found, const(1), const(0))

    def result(k: Expr) -> Stmt:
        at = CounterCell("at", "register")
        look = If(k < sums[x.size - 1], first_above(nests, at, sums, k), at.set(0))
        found = index(at.value)
        stores = [Store(places, (const(a), k), n) for a, n in enumerate(found)]
        return allocated([at], block(look, *stores))

    search = nests.loop(x.size, result)
    total = Store(count, (), sums[x.size - 1])
    return [
        running_count("sums", sums, is_counted),
        kernel(call.name, [sums], [places, count], block(search, total)),
    ]


def running_count(
    name: str, sums: Buffer, counted: Callable[[Expr], Expr]
) -> Computation:
    """`sums[n]` = the numbers of the first n + 1 elements."""
    return reduce_(name, sums, sums.shape, "add", counted, extents=(), combine=PS)


def _nonzero_arrays(
    call: OpCall,
    x: Array,
) -> list[Array]:
    found = np.array(np.nonzero(np.atleast_1d(x)), np.int64)[: x.ndim]
    count = np.array(np.count_nonzero(x), np.int64)
    return [padded(found, x.size, 1), count]


register(
    OpDef(
        "NonZero",
        _nonzero_type,
        domain=DOMAIN,
        compute=_nonzero,
        reference=_nonzero_arrays,
    )
)


def _trim_type(call: OpCall) -> Sequence[Type]:
    axes = call.attr("axes")
    shape = [None if a in axes else n for a, n in enumerate(call.shape(0))]
    return call.result(shape)


def _trimmed(call: OpCall, x: Array, *counts: Any) -> list[Array]:
    cut = [slice(None)] * x.ndim
    for axis, count in zip(call.attr("axes"), counts, strict=True):
        cut[axis] = slice(max(int(count), 0))
    return [x[tuple(cut)]]


register(OpDef("Trim", _trim_type, domain=DOMAIN, reference=_trimmed))
