"""Splitting reductions whose free axes are read as mixed-radix splits (groups of a convolution).

`y[j] += x[j // 28 * 6 + m] * w[j, m]` becomes a reduction over the two dimensions `jo`, `ji` of j,
into a result with an axis for each, so that every access is linear and every axis one dimension.
So does one whose results are separated by such a split (the phases of a transposed convolution).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import (
    environment,
    identity_dims,
    map_loads,
    map_outputs,
    split_digits,
)
from tilewright.expr.affine import Affine, affine
from tilewright.expr.nodes import (
    Buffer,
    Const,
    Expr,
    FloorDiv,
    Load,
    Mod,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute


def split_axes(
    group: Sequence[Computation],
    live: Collection[Buffer],
) -> tuple[Computation, ...]:
    """The group with such a reduction, and what follows it over the same dimensions, split.

    live: tensors that others read; one that the reduction writes is copied to at the end.

    With r the reduction, over the free dimensions D and result old[e(D)], what follows it is split
    along only if it is over D, too, and if each read of `old` at a point of D is of old[e(D)]: it
    is a read of the split result at that point then. Nobody else reads `old`, which is not written
    any more. A scan, whose result has an axis for what it combines, is left as it is.
    """
    if len(group) not in (1, 2):
        return tuple(group)
    first = group[0]
    if first.is_map or len(first.outputs) != 1:
        return tuple(group)
    if len(group) == 2 and not _point_by_point(first, group[1], live):
        return tuple(group)
    axes = identity_dims(first)
    if axes is not None and not _are_free(axes, first):
        return tuple(group)
    split = split_digits(first)
    if split is first and axes is not None and len(group) == 2:
        split = _as_written(first, axes, group[1])
    if axes is None or split is first:
        return tuple(group)
    free = split.parallel_dims
    (made,) = split.outputs
    (out,) = first.outputs
    old = out.tensor
    terms: dict[Var, list[Dim]] = {}
    shape: list[int] = []
    index: list[Expr] = []
    for d, i, extent in zip(axes, made.index, old.shape, strict=True):
        part = _digits_of(i, free) if d else []
        if d:
            terms[d.var] = part
        shape += [p.extent for p in part] or [extent]
        index += [p.var for p in part] or [i]
    local = Buffer(f"{old.name}_parts", tuple(shape), old.dtype)
    place = tuple(index)
    reduction = replace(split, outputs=(Output(local, place, made.value),))
    if len(group) == 2:
        follower = group[1]
    else:
        copied = Output(old, out.index, Load(old, out.index))
        dims = first.parallel_dims
        follower = Computation(f"{first.name}_copy", dims, (copied,))
    read = Load(local, place)
    return (reduction, _followed(follower, terms, free, old, read))


def _are_free(axes: Sequence[Dim | None], c: Computation) -> bool:
    """Whether no axis of the result is along a dimension that is combined, as one of a scan is."""
    return all(d is None or d in c.parallel_dims for d in axes)


def _point_by_point(
    first: Computation,
    second: Computation,
    live: Collection[Buffer],
) -> bool:
    """Whether only `second`, a map of the same points, uses the result, each its own element."""
    (o,) = first.outputs
    free = {d.var for d in first.parallel_dims}
    reach = environment(first.dims)
    single: dict[object, object] = {}
    for d in first.dims:
        if d.extent == 1:
            single[d.var] = const(0)

    def place(index: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(simplify(substitute(i, single), reach) for i in index)

    if not second.is_map or {d.var for d in second.dims} != free:
        return False
    reads = {place(a.index) for a in second.accesses if a.buffer is o.tensor}
    if reads != {place(o.index)} or o.tensor in live:
        return False
    return all(other.tensor is not o.tensor for other in second.outputs)


def _as_written(
    c: Computation,
    axes: Sequence[Dim | None],
    follower: Computation,
) -> Computation:
    """`c` over the parts of dimensions that its follower, a map of the same, writes separately.

    `y[j % 16, 2 * k + j // 16]` is such a write. `y[2 * k + j // 16, j % 16]` is not: results of a
    vector along j are side by side there, more of them than separate dimensions would leave.
    `y[i // 512, j, i % 512]` of `c[i, j]` is: a tile of rows i that reaches into the next 512 would
    be as large as all of them.
    """
    old = c.outputs[0].tensor
    last = axes[-1] if axes else None  # a scalar has no axis
    if not any(_is_separate(o, last) for o in follower.outputs):
        return c
    split = split_digits(follower)
    (place,) = {a.index for a in split.accesses if a.buffer is old}
    env: dict[object, object] = {}
    for d, i in zip(axes, place, strict=True):
        if d:
            env[d.var] = i
    free = split.parallel_dims
    over = (*free, *c.combined_dims)
    bounds = environment(over)
    o = c.outputs[0]
    index = tuple(simplify(substitute(i, env), bounds) for i in o.index)
    value = simplify(substitute(o.value, env), bounds)
    return replace(
        c,
        dims=over,
        outputs=(Output(o.tensor, index, value),),
    )


def _digits_of(
    index: Expr,
    free: Sequence[Dim],
) -> list[Dim]:
    """The dimensions that make up an axis, the most significant first."""
    by_var = {d.var: d for d in free}
    terms = sorted(affine(index).terms, key=lambda t: -t[1])
    return [by_var[v] for v, _ in terms if isinstance(v, Var)]


def _is_separate(o: Output, last: Dim | None) -> bool:
    """Whether the lowest part of some dimension is not the innermost of the result, or others lie
    between it and the part above it. last: the innermost one of the reduction, whose vectors stay
    whole in the second case.
    """
    place = Affine((), 0)
    for i, step in zip(o.index, o.tensor.strides, strict=True):
        place = place + affine(i).scaled(step)
    above = {a.lhs: (a.rhs, n) for a, n in place.terms if isinstance(a, FloorDiv)}
    for atom, step in place.terms:
        if not isinstance(atom, Mod) or not isinstance(atom.lhs, Var):
            continue
        if step != 1:
            return True
        part, apart = above.get(atom.lhs, (None, 0))
        if last is not None and atom.lhs is last.var:
            continue
        if isinstance(part, Const) and part == atom.rhs and apart != part.value:
            return True
    return False


def _followed(
    c: Computation,
    terms: Mapping[Var, list[Dim]],
    free: Sequence[Dim],
    old: Buffer,
    read: Load,
) -> Computation:
    """`c` over the split dimensions, reading the split result."""
    env: dict[object, object] = {}
    for var, parts in terms.items():
        total: Expr | None = None
        for d in parts:
            if total is None:
                total = d.var
            else:
                total = total * d.extent + d.var
        env[var] = total
    bounds = environment(free)

    def one(e: Expr) -> Expr:
        moved = map_loads(substitute(e, env), {old: lambda load: read})
        return simplify(moved, bounds)

    return replace(c, dims=tuple(free), outputs=map_outputs(c, one))
