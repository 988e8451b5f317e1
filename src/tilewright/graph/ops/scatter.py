"""Writes at computed positions: ScatterElements, ScatterND, TensorScatter.

Updates are applied in order, so the last of several updates of an element wins. An index out of
range is an execution error. For blocks of threads, if few elements are updated side by side, each
element looks for its updates: no two threads write one, and the order is the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.compute.build import cast
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, const
from tilewright.graph.nodes import Value
from tilewright.graph.ops.broadcasting import replaced
from tilewright.graph.ops.derivative import Backward, filled, spread
from tilewright.graph.ops.elementwise import same_type
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.gather import wrapped
from tilewright.graph.ops.registry import Gradient, OpCall, OpDef, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block

Buffers = Sequence[Buffer]

# How an update is combined with the old element, by the attribute `reduction`; also for bools.
_COMBINE: Mapping[str, tuple[str, str]] = {
    "add": ("add", "or"),
    "mul": ("mul", "and"),
    "max": ("max", "or"),
    "min": ("min", "and"),
}


# For blocks of threads: the number of elements updated side by side that keeps them busy; and the
# most elements of a result that each look at all updates (16 units of 64 lanes compare as many in
# the time of one store, see `targets/simt/cost.py`).
BESIDE, OWNERS = 32, 1 << 19


def _are_owners(call: OpCall, beside: int, out: Buffer) -> bool:
    """Whether elements look for their updates. beside: how many an update changes side by side."""
    return call.blocks and beside < BESIDE and out.size <= OWNERS


def _put(
    call: OpCall,
    out: Buffer,
    index: tuple[Any, ...],
    value: Expr,
) -> Stmt:
    """`out[index] = value`, combined with the old element as the attribute `reduction` says."""
    combine = call.attr("reduction", "none") or "none"
    if combine == "none":
        return Store(out, index, value)
    if combine not in _COMBINE:
        raise call.error(
            f"reduction={combine!r} is not one of none, {', '.join(_COMBINE)}"
        )
    op = _COMBINE[combine][out.dtype.is_bool]
    return Update((out,), (index,), (value,), reducer(op, out.dtype))


def _scatter_elements(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    data, indices, updates = inputs
    out = outputs[0]
    nests = LoopNests()
    axis = call.axis(call.attr("axis", 0), len(data.shape))
    if _are_owners(call, math.prod(indices.shape) // max(indices.shape[axis], 1), out):
        return [_elements_by_owners(call, inputs, out, axis)]

    def step(*i: Expr) -> Stmt:
        at = replaced(i, axis, wrapped(indices[i], data.shape[axis]))
        return _put(call, out, at, updates[i])

    body = block(
        nests.copy(out, lambda *i: data[i]),
        nests.over(indices.shape, step),
    )
    return [kernel(call.name, inputs, outputs, body)]


def _elements_by_owners(
    call: OpCall, inputs: Buffers, out: Buffer, axis: int
) -> Kernel:
    """Each element looks at the updates of its row."""
    data, indices, updates = inputs
    nests, known = LoopNests(), Buffer("known", indices.shape, data.dtype)

    def place(i: Sequence[Expr]) -> Expr:
        return wrapped(indices[tuple(i)], data.shape[axis])

    def check(*i: Expr) -> Stmt:
        return Store(known, i, data[replaced(i, axis, place(i))])

    def owner(*j: Expr) -> Stmt:
        mine = Buffer("mine", (1,), out.dtype, "register")

        def look(n: Expr) -> Stmt:
            i = replaced(j, axis, n)
            put = _put(call, mine, (const(0),), updates[i])
            return If(place(i).eq(j[axis]), put, None)

        found: Stmt = nests.loop(indices.shape[axis], look)
        for n, (few, many) in enumerate(zip(indices.shape, data.shape, strict=True)):
            if few < many and n != axis:
                found = If(j[n] < few, found, None)
        return _owned(mine, data[j], found, Store(out, j, mine[0]))

    body = block(nests.over(indices.shape, check), nests.over(out.shape, owner))
    return kernel(call.name, inputs, [out], Alloc(known, body))


def _owned(mine: Buffer, first: Expr, updates: Stmt, last: Stmt) -> Stmt:
    """An element in a register while it is updated."""
    return Alloc(mine, block(Store(mine, (const(0),), first), updates, last))


def _scatter_elements_type(call: OpCall) -> Sequence[Any]:
    data, indices, updates = (call.shape(n) for n in range(3))
    if indices != updates or len(data) != len(indices):
        raise call.error(
            f"indices {list(indices)} and updates {list(updates)} do not match"
        )
    axis = call.axis(call.attr("axis", 0), len(data))
    if any(
        m > n for a, (m, n) in enumerate(zip(indices, data, strict=True)) if a != axis
    ):
        raise call.error(f"indices {list(indices)} reach beyond data {list(data)}")
    return same_type(call)


@dataclass(frozen=True)
class _Places:
    """The positions of a scatter's updates. gather: the operator that reads them back."""

    f: Fragment
    call: OpCall
    indices: Value
    gather: str
    how: Mapping[str, Any]

    def read(self, v: Value) -> Value:
        """The element at the position of each update."""
        return self.f.op(self.gather, v, self.indices, **self.how)

    def combined(self, data: Value, updates: Value, reduction: str) -> Value:
        """Scatter other updates into other data, combined in another way."""
        op = self.call.operation
        how = {**op.attributes, "reduction": reduction}
        return self.f.op(op.op_type, data, self.indices, updates, **how)

    def where(self, condition: Value, v: Value, otherwise: float) -> Value:
        """`v` where a condition holds, else a number."""
        return self.f.op("Where", condition, v, self.f.constant(otherwise, v.dtype))


def _of_products(
    at: _Places, x: Sequence[Value], g: Value, back: Value
) -> list[Value | None]:
    """Each factor's gradient is the product's times all other factors, some of which may be 0."""
    f = at.f
    data, _, updates = x
    none = f.constant(0, data.dtype)
    zeros = [f.op("Equal", v, none) for v in (data, updates)]
    rest = [
        f.op("Where", zero, f.constant(1, data.dtype), v)
        for zero, v in zip(zeros, (data, updates), strict=True)
    ]
    counts = [f.op("CastLike", zero, data) for zero in zeros]
    product = at.combined(rest[0], rest[1], "mul")
    count = at.combined(counts[0], counts[1], "add")
    found: list[Value | None] = []
    for n, (all_of, many, flow) in enumerate(
        ((product, count, g), (at.read(product), at.read(count), back))
    ):
        others = f.op("Sub", many, counts[n])
        quotient = f.op("Mul", flow, f.op("Div", all_of, rest[n]))
        found.append(at.where(f.op("Equal", others, none), quotient, 0))
    return [found[0], None, found[1]]


def _of_extremes(
    at: _Places, x: Sequence[Value], y: Value, g: Value
) -> list[Value | None]:
    """Elements equal to the extreme share its gradient evenly."""
    f = at.f
    data, _, updates = x
    own = f.op("Equal", data, y)
    others = f.op("Equal", updates, at.read(y))
    counts = [f.op("CastLike", v, g) for v in (own, others)]
    share = f.op("Div", g, at.combined(counts[0], counts[1], "add"))
    return [at.where(own, share, 0), None, at.where(others, at.read(share), 0)]


def _gradient(gather: str) -> Gradient:
    """The derivative rule of a scatter whose updates an operator `gather` reads back."""

    def rule(
        f: Fragment,
        call: Backward,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value | None]:
        data, indices, updates = x
        how = {"axis": call.attr("axis", 0)} if gather == "GatherElements" else {}
        combine = call.attr("reduction", "none") or "none"
        places = _Places(f, call, indices, gather, how)
        back = places.read(g)
        if combine == "add":
            return [g, None, back]
        if combine == "mul":
            return _of_products(places, x, g, back)
        if combine != "none":
            return _of_extremes(places, x, y, g)
        zeros = filled(f, updates, 0)
        op = call.operation
        own = f.op(op.op_type, g, indices, zeros, version=op.version, **op.attributes)
        numbers = np.arange(1, 1 + math.prod(call.shape(2))).reshape(call.shape(2))
        number = f.constant(numbers, int64)
        none = spread(f, f.constant(0, int64), data)
        last = f.op(
            op.op_type, none, indices, number, version=op.version, **op.attributes
        )
        stays = f.op("Equal", places.read(last), number)
        return [own, None, f.op("Where", stays, back, f.constant(0, g.dtype))]

    return rule


for _name, _since, _until in (("Scatter", 9, 10), ("ScatterElements", 11, None)):
    register(
        OpDef(
            _name,
            _scatter_elements_type,
            since=_since,
            until=_until,
            compute=_scatter_elements,
            gradient=_gradient("GatherElements"),
        )
    )


def _scatter_nd(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    data, indices, updates = inputs
    out = outputs[0]
    nests = LoopNests()
    depth = indices.shape[-1]
    if depth and _are_owners(call, math.prod(data.shape[depth:]), out):
        return [_nd_by_owners(call, inputs, out, depth)]

    def step(*i: Expr) -> Stmt:
        at = tuple(wrapped(indices[(*i, n)], data.shape[n]) for n in range(depth))
        rest = data.shape[depth:]
        return nests.over(
            rest, lambda *j: _put(call, out, (*at, *j), updates[(*i, *j)]), vector=True
        )

    body = block(
        nests.copy(out, lambda *i: data[i]), nests.over(indices.shape[:-1], step)
    )
    return [kernel(call.name, inputs, outputs, body)]


def _nd_by_owners(call: OpCall, inputs: Buffers, out: Buffer, depth: int) -> Kernel:
    """Each element compares its number with those of all updates."""
    data, indices, updates = inputs
    nests, grid = LoopNests(), indices.shape[:-1]
    known = Buffer("known", grid, data.dtype)
    places = Buffer("places", grid, INDEX)

    def number(at: Sequence[Expr]) -> Expr:
        found: Expr = const(0)
        for i, extent in zip(at, data.shape, strict=False):
            found = found * extent + i
        return found

    def check(*i: Expr) -> Stmt:
        at = [wrapped(indices[(*i, n)], data.shape[n]) for n in range(depth)]
        rest = (const(0),) * (len(data.shape) - depth)
        there = Store(known, i, data[(*at, *rest)])
        return block(there, Store(places, i, number(at)))

    def owner(*j: Expr) -> Stmt:
        mine = Buffer("mine", (1,), out.dtype, "register")

        def look(*i: Expr) -> Stmt:
            put = _put(call, mine, (const(0),), updates[(*i, *j[depth:])])
            return If(places[i].eq(number(j[:depth])), put, None)

        found = nests.over(grid, look)
        return _owned(mine, data[j], found, Store(out, j, mine[0]))

    body = block(nests.over(grid, check), nests.over(out.shape, owner))
    return kernel(call.name, inputs, [out], Alloc(known, Alloc(places, body)))


def _scatter_nd_type(call: OpCall) -> Sequence[Any]:
    data, indices, updates = (call.shape(n) for n in range(3))
    if not indices or indices[-1] > len(data):
        raise call.error(f"indices {list(indices)} do not fit data {list(data)}")
    expected = (*indices[:-1], *data[indices[-1] :])
    if updates != expected:
        raise call.error(f"updates are {list(updates)}, not {list(expected)}")
    return same_type(call)


register(
    OpDef(
        "ScatterND",
        _scatter_nd_type,
        since=11,
        compute=_scatter_nd,
        gradient=_gradient("GatherND"),
    )
)


def _tensor_scatter(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    """A cache of past steps into which new steps are written from a position per batch on."""
    cache, update = inputs[:2]
    out = outputs[0]
    nests = LoopNests()
    axis = call.axis(call.attr("axis", -2), len(cache.shape))
    circular = call.attr("mode", "linear") == "circular"

    def step(*i: Expr) -> Stmt:
        if call.has(2):
            start = cast(inputs[2][i[0]], INDEX)
        else:
            start = const(0)
        at = start + i[axis]
        at = at % cache.shape[axis] if circular else at
        return Store(
            out,
            replaced(i, axis, at),
            update[i],
        )

    body = block(
        nests.copy(out, lambda *i: cache[i]),
        nests.over(update.shape, step),
    )
    return [kernel(call.name, inputs, outputs, body)]


def _tensor_scatter_gradient(
    f: Fragment,
    call: Backward,
    x: Sequence[Value],
    y: Value,
    g: Value,
) -> Sequence[Value | None]:
    """Old steps that were not overwritten get their gradient, new steps get the rest."""
    update = x[1]
    shape = call.shape(1)
    axis = call.axis(call.attr("axis", -2), len(shape))
    op = call.operation
    rest = x[2:]
    own = f.op(
        op.op_type, g, filled(f, update, 0), *rest, version=op.version, **op.attributes
    )
    extents = [n if a == axis else 1 for a, n in enumerate(shape)]
    at = f.constant(np.arange(shape[axis]).reshape(extents), int64)
    if call.has(2):
        start = f.reshape(x[2], *[-1, *[1] * (len(shape) - 1)])
        at = f.op("Add", at, f.op("CastLike", start, at))
    if call.attr("mode", "linear") == "circular":
        at = f.op("Mod", at, f.constant(call.shape(0)[axis], int64))
    return [own, f.op("GatherElements", g, spread(f, at, update), axis=axis), None]


register(
    OpDef(
        "TensorScatter",
        same_type,
        since=24,
        gradient=_tensor_scatter_gradient,
        compute=_tensor_scatter,
    )
)
