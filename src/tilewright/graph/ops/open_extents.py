"""Results with extents known only at run time, as bounded tensors with counts.

Operators of the domain `tilewright`, with which `graph/bounded` replaces ONNX's: elements past the
count are 0. `Trim` cuts a bounded tensor to its true shape when it leaves native code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from typing import Any, Final

import numpy as np

from tilewright.base.dtypes import int64
from tilewright.compute.build import reduce_
from tilewright.compute.nodes import PS, Computation
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Ne, Select, const
from tilewright.graph.ops.registry import Array, OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, While, block
from tilewright.loops.searching import first_above
from tilewright.loops.sorting import CounterCell, allocated

DOMAIN = "tilewright"
TRIM = f"{DOMAIN}::Trim"
PIECE: Final = 16  # elements that are passed over together if none is one
LONG: Final = 2 * PIECE  # elements of a row with such pieces, at least
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
    nests, around = LoopNests(), x.shape[:-1]
    found, begun, at = (CounterCell(name) for name in ("found", "begun", "at"))

    def row(*i: Expr) -> Stmt:
        outer = [Store(places, (const(a), begun.value), n) for a, n in enumerate(i)]
        fill = While(begun.value < found.value, block(*outer, begun.add()))
        look = _look_along(nests, x, i, places, found, at)
        return block(look, fill if i else block())

    last = Store(places, (const(len(around)), found.value), const(0))
    body = block(
        found.set(0),
        begun.set(0),
        nests.over(around, row),
        If(found.value < x.size, last, None) if x.shape else block(),
        Store(count, (), found.value),
    )
    whole = block(cleared(nests, places), allocated([found, begun, at], body))
    return [kernel(call.name, inputs, outputs, whole)]


def _look_along(
    nests: LoopNests,
    x: Buffer,
    i: Sequence[Expr],
    places: Buffer,
    found: CounterCell,
    at: CounterCell,
) -> Stmt:
    """Store where along a row its elements are not zero, without a branch: each place behind those
    that were found, and the next one over it if it is not one of them. Pieces without any are
    passed over."""
    if not x.shape:
        one = Ne(x[()], const(0, x.dtype))
        return found.set(Select(one, const(1), const(0)))
    axis, width = len(i), x.shape[-1]

    def is_one(n: Expr) -> Expr:
        return Ne(x[(*i, n)], const(0, x.dtype))

    def look(n: Expr) -> Stmt:
        one = Select(is_one(n), const(1), const(0))
        return block(Store(places, (const(axis), found.value), n), found.add(one))

    # In a form that shows that the piece is inside of the row.
    start = Max(Min(at.value, const(width - PIECE)), const(0))
    some = reduce(or_, [is_one(start + k) for k in range(PIECE)])
    every = nests.loop(PIECE, lambda k: look(start + k))
    pieces = While(
        at.value + PIECE <= width, block(If(some, every, None), at.add(PIECE))
    )
    rest = While(at.value < width, block(look(at.value), at.add()))
    return block(at.set(0), pieces if width >= LONG else block(), rest)


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
