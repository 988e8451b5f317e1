"""Splitting reductions whose free axes are read as mixed-radix digits (groups of a convolution).

`y[j] += x[j // 28 * 6 + m] * w[j, m]` becomes a reduction over the two dimensions `jo`, `ji` of j,
into a result with an axis for each, so that every access is linear and every axis one dimension.
So does one whose results go apart by digits (the phases of a transposed convolution).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.compute.nodes import CC, Computation, Dim, Output
from tilewright.compute.transforms import identity_dims, map_loads, split_digits
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import Buffer, Expr, Load, Mod, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute


def split_axes(
    group: Sequence[Computation], live: Collection[Buffer]
) -> tuple[Computation, ...]:
    """The group with such a reduction, and what follows it over the same dimensions, split.

    live: tensors that others read; one that the reduction writes is copied to at the end.

    With r the reduction, over the free dimensions D and result old[e(D)], what follows it is split
    along only if it is over D, too, and if each read of `old` at a point of D is of old[e(D)]: it
    is a read of the split result at that point then. Nobody else reads `old`, which is not written
    any more.
    """
    if not 1 <= len(group) <= 2 or group[0].is_map or len(group[0].outputs) != 1:
        return tuple(group)
    first = group[0]
    if len(group) == 2 and not _point_by_point(first, group[1], live):
        return tuple(group)
    axes = identity_dims(first)
    split = split_digits(first)
    if split is first and axes is not None and len(group) == 2:
        split = _as_written(first, axes, group[1])
    if axes is None or split is first:
        return tuple(group)
    free = [d for d in split.dims if d.combine == CC]
    digits = {
        d.var: _digits_of(i, free)
        for d, i in zip(axes, split.outputs[0].index, strict=True)
        if d
    }
    old = first.outputs[0].tensor
    parts = [digits[d.var] if d else [] for d in axes]
    shape = tuple(
        n for p, e in zip(parts, old.shape, strict=True) for n in _extents(p, e)
    )
    index = tuple(
        v
        for p, i in zip(parts, split.outputs[0].index, strict=True)
        for v in _indices(p, i)
    )
    local = Buffer(f"{old.name}_parts", shape, old.dtype)
    reduction = replace(split, outputs=(Output(local, index, split.outputs[0].value),))
    if len(group) == 2:
        follower = group[1]
    else:
        follower = Computation(
            f"{first.name}_copy",
            tuple(d for d in first.dims if d.combine == CC),
            (Output(old, first.outputs[0].index, Load(old, first.outputs[0].index)),),
        )
    return (reduction, _followed(follower, digits, free, old, Load(local, index)))


def _point_by_point(
    first: Computation, second: Computation, live: Collection[Buffer]
) -> bool:
    """Whether only `second`, a map of the same points, uses the result, each its own element."""
    (o,) = first.outputs
    free = {d.var for d in first.dims if d.combine == CC}
    reach = {d.var: (0, d.extent - 1) for d in first.dims}
    alone: dict[object, object] = {d.var: const(0) for d in first.dims if d.extent == 1}

    def place(index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(simplify(substitute(i, alone), reach) for i in index)

    reads = {place(a.index) for a in second.accesses if a.buffer is o.tensor}
    written = any(other.tensor is o.tensor for other in second.outputs)
    same = (
        second.is_map
        and {d.var for d in second.dims} == free
        and reads == {place(o.index)}
    )
    return same and not written and o.tensor not in live


def _as_written(
    c: Computation, axes: Sequence[Dim | None], follower: Computation
) -> Computation:
    """`c` over the digits of dimensions that its follower, a map of the same, writes apart.

    `y[j % 16, 2 * k + j // 16]` is such a write. `y[2 * k + j // 16, j % 16]` is none: results of a
    vector along j are side by side there, more of them than digits of their own would leave.
    """
    old = c.outputs[0].tensor
    if not any(_apart(o) for o in follower.outputs):
        return c
    apart = split_digits(follower)
    (place,) = {a.index for a in apart.accesses if a.buffer is old}
    env: dict[object, object] = {
        d.var: i for d, i in zip(axes, place, strict=True) if d
    }
    free = [d for d in apart.dims if d.combine == CC]
    over = (*free, *(d for d in c.dims if d.combine != CC))
    bounds = {d.var: (0, d.extent - 1) for d in over}
    o = c.outputs[0]
    index = tuple(simplify(substitute(i, env), bounds) for i in o.index)
    value = simplify(substitute(o.value, env), bounds)
    return replace(c, dims=over, outputs=(Output(o.tensor, index, value),))


def _apart(o: Output) -> bool:
    """Whether the lowest digits of some dimension are apart in the result."""
    place = Affine((), 0)
    for i, step in zip(o.index, o.tensor.strides, strict=True):
        place = place + affine(i).scaled(step)
    return any(
        isinstance(atom, Mod) and isinstance(atom.lhs, Var) and step != 1
        for atom, step in place.terms
    )


def _extents(part: Sequence[Dim], extent: int) -> list[int]:
    return [d.extent for d in part] or [extent]


def _indices(part: Sequence[Dim], index: Expr) -> list[Expr]:
    return [d.var for d in part] or [index]


def _digits_of(index: Expr, free: Sequence[Dim]) -> list[Dim]:
    """The dimensions that make up an axis, the most significant first."""
    by_var = {d.var: d for d in free}
    terms = sorted(affine(index).terms, key=lambda t: -t[1])
    return [by_var[v] for v, _ in terms if isinstance(v, Var)]


def _followed(
    c: Computation,
    digits: Mapping[Var, list[Dim]],
    free: Sequence[Dim],
    old: Buffer,
    read: Load,
) -> Computation:
    """`c` over the split dimensions, reading the split result."""
    env: dict[object, object] = {}
    for var, parts in digits.items():
        total: Expr | None = None
        for d in parts:
            total = d.var if total is None else total * d.extent + d.var
        env[var] = total
    bounds = {d.var: (0, d.extent - 1) for d in free}

    def one(e: Expr) -> Expr:
        moved = map_loads(substitute(e, env), {old: lambda load: read})
        return simplify(moved, bounds)

    outputs = tuple(
        Output(o.tensor, tuple(one(i) for i in o.index), one(o.value))
        for o in c.outputs
    )
    return replace(c, dims=tuple(free), outputs=outputs)
