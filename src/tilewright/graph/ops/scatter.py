"""Writes at computed positions: ScatterElements, ScatterND, TensorScatter.

Updates are applied in order, so the last of several updates of an element wins. An index out of
range is an execution error. For blocks of threads, if few elements are updated side by side, each
element looks for its updates, where the target compares them with an update faster than it waits
for a write: no two threads write one, and the order is the same.
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
from tilewright.graph.ops.terms import TensorTerm
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block
from tilewright.loops.sorting import allocated

Buffers = Sequence[Buffer]

# How an update is combined with the old element, by the attribute `reduction`; also for bools.
_COMBINE: Mapping[str, tuple[str, str]] = {
    "add": ("add", "or"),
    "mul": ("mul", "and"),
    "max": ("max", "or"),
    "min": ("min", "and"),
}


def _are_owners(call: OpCall, beside: int, out: Buffer) -> bool:
    """Whether elements look for their updates. beside: how many an update changes side by side."""
    costs = call.blocks
    return costs is not None and beside < costs.beside and out.size <= costs.compared


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
    axis = call.own_axis(len(data.shape), 0)
    rows = math.prod(indices.shape) // max(indices.shape[axis], 1)
    if _are_owners(call, rows, out):
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
    nests = LoopNests()
    known = Buffer("known", indices.shape, data.dtype)

    def place(i: Sequence[Expr]) -> Expr:
        return wrapped(indices[tuple(i)], data.shape[axis])

    def check(*i: Expr) -> Stmt:
        there = replaced(i, axis, place(i))
        return Store(known, i, data[there])

    def owner(*j: Expr) -> Stmt:
        mine = Buffer("mine", (1,), out.dtype, "register")

        def look(n: Expr) -> Stmt:
            i = replaced(j, axis, n)
            put = _put(call, mine, (const(0),), updates[i])
            return If(place(i).eq(j[axis]), put, None)

        found: Stmt = nests.loop(indices.shape[axis], look)
        for n, extent in enumerate(indices.shape):
            if extent < data.shape[n] and n != axis:
                found = If(j[n] < extent, found, None)
        return _owned(mine, data[j], found, Store(out, j, mine[0]))

    checks = nests.over(indices.shape, check)
    owners = nests.over(out.shape, owner)
    body = Alloc(known, block(checks, owners))
    return kernel(call.name, inputs, [out], body)


def _owned(mine: Buffer, first: Expr, updates: Stmt, last: Stmt) -> Stmt:
    """An element in a register while it is updated."""
    start = Store(mine, (const(0),), first)
    return Alloc(mine, block(start, updates, last))


def _scatter_elements_type(call: OpCall) -> Sequence[Any]:
    data, indices, updates = (call.shape(n) for n in range(3))
    if indices != updates or len(data) != len(indices):
        raise call.error(
            f"indices {list(indices)} and updates {list(updates)} do not match"
        )
    axis = call.own_axis(len(data), 0)
    longer = [a for a, extent in enumerate(data) if indices[a] > extent]
    if any(a != axis for a in longer):
        raise call.error(f"indices {list(indices)} reach beyond data {list(data)}")
    return same_type(call)


@dataclass(frozen=True)
class _Places:
    """The positions of a scatter's updates. gather: the operator that reads them back."""

    call: OpCall
    indices: Value
    gather: str
    how: Mapping[str, Any]

    def read(self, v: TensorTerm) -> TensorTerm:
        """The element at the position of each update."""
        return v.op(self.gather, self.indices, **self.how)

    def combined(
        self, reduction: str, data: TensorTerm, updates: TensorTerm
    ) -> TensorTerm:
        """Scatter other updates into other data, combined in another way."""
        op = self.call.operation
        how = {**op.attributes, "reduction": reduction}
        return data.op(op.op_type, self.indices, updates, **how)


class _Factor:
    """The data or the updates of a product, with their zeros counted instead of multiplied."""

    def __init__(self, v: TensorTerm) -> None:
        is_zero = v.equals(0)
        self.rest = is_zero.chosen(1, v)
        self.count = is_zero.op("CastLike", v)

    def flow(self, product: TensorTerm, count: TensorTerm, g: TensorTerm) -> TensorTerm:
        """The gradient from the product of all factors, the number of zeros and its gradient."""
        others = count - self.count
        quotient = g * (product / self.rest)
        return others.equals(0).chosen(quotient, 0)


Flows = tuple[TensorTerm, TensorTerm]


def _of_products(
    at: _Places, data: TensorTerm, updates: TensorTerm, g: TensorTerm
) -> Flows:
    """Each factor's gradient is the product's times all other factors, some of which may be 0."""
    back = at.read(g)
    own = _Factor(data)
    others = _Factor(updates)
    product = at.combined("mul", own.rest, others.rest)
    count = at.combined("add", own.count, others.count)
    here = own.flow(product, count, g)
    there = others.flow(at.read(product), at.read(count), back)
    return here, there


def _of_extremes(
    at: _Places, data: TensorTerm, updates: TensorTerm, y: TensorTerm, g: TensorTerm
) -> Flows:
    """Elements equal to the extreme share its gradient evenly."""
    own = data.equals(y)
    others = updates.equals(at.read(y))
    counts = [v.op("CastLike", g) for v in (own, others)]
    share = g / at.combined("add", *counts)
    return own.chosen(share, 0), others.chosen(at.read(share), 0)


def _gradient(gather: str) -> Gradient:
    """The derivative rule of a scatter whose updates an operator `gather` reads back."""

    def rule(
        f: Fragment,
        call: Backward,
        x: Sequence[Value],
        y: Value,
        g: Value,
    ) -> Sequence[Value | None]:
        data = f.term(x[0])
        updates = f.term(x[2])
        result = f.term(y)
        flow = f.term(g)
        how = {"axis": call.attr("axis", 0)} if gather == "GatherElements" else {}
        places = _Places(call, x[1], gather, how)
        combine = call.attr("reduction", "none") or "none"
        if combine == "add":
            found = (flow, places.read(flow))
        elif combine == "mul":
            found = _of_products(places, data, updates, flow)
        elif combine != "none":
            found = _of_extremes(places, data, updates, result, flow)
        else:
            found = _of_last(places, f, x, flow)
        own, back = found
        return [own.value, None, back.value]

    return rule


def _of_last(at: _Places, f: Fragment, x: Sequence[Value], g: TensorTerm) -> Flows:
    """An update has the gradient of its element if no later one has replaced it."""
    data, indices, updates = x
    op = at.call.operation
    back = at.read(g)
    own = f.apply(op, [g.value, indices, filled(f, updates, 0)], op.attributes)
    shape = updates.extents
    numbers = np.arange(1, 1 + math.prod(shape)).reshape(shape)
    number = f.constant(numbers, int64)
    none = spread(f, f.constant(0, int64), data)
    last = f.term(f.apply(op, [none, indices, number], op.attributes))
    stays = at.read(last).equals(number)
    return f.term(own), stays.chosen(back, 0)


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
        at = _target(data, indices, i)

        def put(*j: Expr) -> Stmt:
            return _put(call, out, (*at, *j), updates[(*i, *j)])

        return nests.over(data.shape[depth:], put, vector=True)

    body = block(
        nests.copy(out, lambda *i: data[i]),
        nests.over(indices.shape[:-1], step),
    )
    return [kernel(call.name, inputs, outputs, body)]


def _target(data: Buffer, indices: Buffer, i: Sequence[Expr]) -> list[Expr]:
    """The first indices of the elements that update `i` changes."""
    extents = data.shape[: indices.shape[-1]]
    return [wrapped(indices[(*i, n)], extent) for n, extent in enumerate(extents)]


def _nd_by_owners(call: OpCall, inputs: Buffers, out: Buffer, depth: int) -> Kernel:
    """Each element compares its number with those of all updates."""
    data, indices, updates = inputs
    nests = LoopNests()
    grid = indices.shape[:-1]
    known = Buffer("known", grid, data.dtype)
    places = Buffer("places", grid, INDEX)

    def number(at: Sequence[Expr]) -> Expr:
        found: Expr = const(0)
        for i, extent in zip(at, data.shape, strict=False):
            found = found * extent + i
        return found

    def check(*i: Expr) -> Stmt:
        at = _target(data, indices, i)
        rest = (const(0),) * (len(data.shape) - depth)
        there = Store(known, i, data[(*at, *rest)])
        place = Store(places, i, number(at))
        return block(there, place)

    def owner(*j: Expr) -> Stmt:
        mine = Buffer("mine", (1,), out.dtype, "register")

        def look(*i: Expr) -> Stmt:
            update = updates[(*i, *j[depth:])]
            put = _put(call, mine, (const(0),), update)
            return If(places[i].eq(number(j[:depth])), put, None)

        found = nests.over(grid, look)
        return _owned(mine, data[j], found, Store(out, j, mine[0]))

    checks = nests.over(grid, check)
    owners = nests.over(out.shape, owner)
    body = allocated((places, known), block(checks, owners))
    return kernel(call.name, inputs, [out], body)


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
    axis = call.own_axis(len(cache.shape), -2)
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
    axis = call.own_axis(len(shape), -2)
    op = call.operation
    own = f.apply(op, [g, filled(f, update, 0), *x[2:]], op.attributes)
    extents = [n if a == axis else 1 for a, n in enumerate(shape)]
    steps = np.arange(shape[axis]).reshape(extents)
    at = f.term(f.constant(steps, int64))
    if call.has(2):
        by_batch = (-1, *[1] * (len(shape) - 1))
        start = f.term(f.reshape(x[2], *by_batch))
        at = at + start.op("CastLike", at)
    if call.attr("mode", "linear") == "circular":
        at = at.op("Mod", call.shape(0)[axis])
    places = spread(f, at.value, update)
    back = f.op("GatherElements", g, places, axis=axis)
    return [own, back, None]


register(
    OpDef(
        "TensorScatter",
        same_type,
        since=24,
        gradient=_tensor_scatter_gradient,
        compute=_tensor_scatter,
    )
)
