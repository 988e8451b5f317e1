"""cache_read, cache_write, rfactor: creating stages by rewriting operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.compute.nodes import CC, PW
from tilewright.expr.nodes import INDEX, Add, Expr, Load, Mod, Mul, Select, as_expr
from tilewright.ir.node import Node, substitute, transform
from tilewright.lang.te.records import Handle, Line, Split
from tilewright.lang.te.stage import Stage
from tilewright.lang.te.syntax.nodes import Axis, Compute, Op, Tensor
from tilewright.lang.te.syntax.program import copy


def cached(source: Tensor, name: str, scope: str) -> tuple[Tensor, Compute]:
    """A tensor in `scope` that holds a copy of `source`, and the operation that copies."""
    made = Tensor(name, source.shape, source.dtype, scope)
    made.op = copy(source, made, name)
    return made, made.op


def reading(op: Compute, source: Tensor, other: Tensor) -> Compute:
    """The operation with reads of `source` from `other`."""

    def change(node: Node) -> Node:
        if isinstance(node, Load) and node.buffer is source.buffer:
            return Load(other.buffer, node.index)
        return node

    return replace(op, values=tuple(transform(v, change) for v in op.values))


def split_output(
    op: Compute, names: Sequence[str], scope: str, keep: bool
) -> tuple[Compute, tuple[Tensor, ...], Compute]:
    """The operation writing to new tensors in `scope`, these, and the copy into the old ones.

    keep: whether the axes stay with the operation (what was recorded about them does), or go to the
    copy.
    """
    made = tuple(
        Tensor(n, t.shape, t.dtype, scope)
        for n, t in zip(names, op.outputs, strict=True)
    )
    fresh = _fresh_axes(op)
    if keep:
        inner, axis = op, fresh
    else:
        inner = _over(op, fresh)
        axis = op.axis
    inner = replace(inner, name=names[0], outputs=made)
    for t in made:
        t.op = inner
    values = tuple(t[axis] for t in made)
    return inner, made, Compute(op.name, axis, (), values, None, (), op.outputs)


def _over(op: Compute, axis: tuple[Axis, ...]) -> Compute:
    """The operation over other axes."""
    to: dict[Any, Any] = dict(zip(op.axis, axis, strict=True))
    values = tuple(substitute(v, to) for v in op.values)
    return replace(
        op, axis=axis, values=values, scanned=tuple(to[a] for a in op.scanned)
    )


def _fresh_axes(op: Compute) -> tuple[Axis, ...]:
    return tuple(Axis(a.name, INDEX, 0, a.extent, CC) for a in op.axis)


def factored(
    stage: Stage, op: Compute, loop: Handle, name: str, line: Line
) -> tuple[Compute, tuple[Tensor, ...], Compute]:
    """A reduction through partial results, one per iteration of a loop of it.

    Returns the operation of the partial results (whose axis 0 is the loop), these, and the
    operation that reduces them.
    """
    reduced = [x for x in stage.leaves if x.combine == PW]
    if loop not in reduced:
        raise ScheduleError(
            f"{loop} is not a loop of the reduction",
            where=str(line),
            hint="split a reduce axis first",
        )
    if op.reducer is None or not op.reducer.commutative:
        raise ScheduleError(
            f"{op.reducer} does not commute",
            where=str(line),
            hint="keep the reduction in order",
        )
    extents = _extents(stage, op, line)
    axes: dict[Handle, Axis] = {
        x: Axis(x.name, INDEX, 0, extents[x], CC if x is loop else PW) for x in reduced
    }
    values = _through(stage, op, dict(axes), extents)
    first = axes[loop]
    free = _fresh_axes(op)
    mapping: dict[Any, Any] = dict(zip(op.axis, free, strict=True))
    values = tuple(substitute(v, mapping) for v in values)
    shape = (extents[loop], *op.outputs[0].shape)
    if len(values) == 1:
        labels = [name]
    else:
        labels = [f"{name}.v{n}" for n in range(len(values))]
    parts = tuple(
        Tensor(n, shape, t.dtype) for n, t in zip(labels, op.outputs, strict=True)
    )
    rest = tuple(axes[x] for x in reduced if x is not loop)
    partial = Compute(
        name, (first, *free), rest, values, op.reducer if rest else None, (), parts
    )
    for t in parts:
        t.op = partial
    over = Axis(loop.name, INDEX, 0, extents[loop], PW)
    sums = tuple(t[(over, *op.axis)] for t in parts)
    total = replace(op, reduce_axis=(over,), values=sums)
    return partial, parts, total


def _extents(stage: Stage, op: Compute, line: Line) -> dict[Handle, int]:
    """The extent of each loop made of the reduce axes."""
    known: dict[Handle, int] = {}
    for a in op.reduce_axis:
        if not isinstance(a.extent, int):
            raise ScheduleError(
                f"the extent {a.extent!r} of {a.name} is not known",
                where=str(line),
                hint="a fixed extent is needed here",
            )
        known[a] = a.extent
    for r in stage.relations:
        if isinstance(r, Split) and r.parent in known:
            n = known[r.parent]
            if r.factor is not None:
                inner = r.factor
            else:
                inner = -(-n // (r.nparts or 1))
            known[r.inner], known[r.outer] = inner, -(-n // inner)
        elif not isinstance(r, Split) and r.outer in known:
            known[r.fused] = known[r.outer] * known[r.inner]
    return known


def _through(
    stage: Stage, op: Compute, at: dict[Handle, Any], extents: dict[Handle, int]
) -> tuple[Expr, ...]:
    """The values with each reduce axis in terms of the loops made of it."""
    outside: Expr | None = None
    for r in reversed(stage.relations):
        if isinstance(r, Split) and r.outer in at:
            width = as_expr(extents[r.inner], INDEX)
            at[r.parent] = Add(Mul(at[r.outer], width), at[r.inner])
            if extents[r.outer] * extents[r.inner] != extents[r.parent]:
                inside = at[r.parent] < extents[r.parent]
                outside = inside if outside is None else outside & inside
        elif not isinstance(r, Split) and r.fused in at:
            width = as_expr(extents[r.inner], INDEX)
            at[r.outer] = at[r.fused] // width
            at[r.inner] = Mod(at[r.fused], width)
    # `low` of an axis is added where a body becomes a Computation; here the axis is gone.
    mapping: dict[Any, Any] = {}
    for a in op.reduce_axis:
        mapping[a] = at[a]
        if a.low != 0:
            mapping[a] = Add(at[a], as_expr(a.low, INDEX))
    values = tuple(substitute(v, mapping) for v in op.values)
    if outside is None or op.reducer is None:
        return values
    pairs = zip(values, op.reducer.identity, strict=True)
    return tuple(Select(outside, v, i) for v, i in pairs)


def reads(op: Op, tensor: Tensor) -> bool:
    """Whether the operation reads the tensor."""
    return any(t is tensor for t in op.inputs)
