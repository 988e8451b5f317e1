"""Convolutions of narrow groups in vectors that span several groups.

    t[k, o, i] = sum[m] x[k, o, m] * w[o, i, m]     =     t[k, c] = sum[m] x[k, c // n, m] * w[c, m]

for c = o * n + i, i below n. If a group has fewer results than a vector has lanes, vectors along i
leave the others idle. Along c they are full: weights of several groups are one packed vector, and
one vector of x is permuted within each group. Each sum keeps its order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import float32
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import Computation, Dim, Output
from tilewright.compute.transforms import environment, map_loads
from tilewright.expr.nodes import INDEX, Buffer, Expr, Load, Var
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute
from tilewright.schedule.space.patterns import KernelPattern, uses
from tilewright.targets.cpu.sketches.context import Context
from tilewright.targets.cpu.sketches.roles import default_tile

# Bytes of a vector within which one instruction permutes elements. Across them, a vector of two
# groups of 8 took 2.7 shuffles and as many loads on a Zen 5, and was 1.27 times as fast as vectors
# of 8; other processors do not multiply two whole vectors per cycle, or share a port with shuffles.
LANE = 16


@dataclass(frozen=True, slots=True)
class JoinedGroups:
    """A tiled reduction along all groups, and the view of each tensor with one axis for groups and
    results."""

    pattern: KernelPattern
    views: Mapping[Buffer, Buffer]


def joined_groups(pattern: KernelPattern, at: Context) -> JoinedGroups | None:
    """The reduction over groups `o` and the results `i` of each as one over both; None for others.

    requires, else None:

        a contraction of float32, tiled along `i`, and at most one map, of the same dimensions
        each of them has the dimension `o` directly in front of `i`
        all points of `i` fit LANE, and are fewer than a vector's lanes; a vector holds whole
            groups, and all points of both are whole vectors
        each tensor is read and written as t[.., o, i, ..], always on the same axes, the second as
            long as `i`; or as t[.., o, m], m without `o` and `i`, the last axis as long as `i`; or
            at an index without both
    """
    r, inner = pattern.reduction, pattern.vector
    if pattern.name != "tiled" or r is None or inner is None or not is_contraction(r):
        return None
    outer = _before(inner, pattern)
    if outer is None or any(a.dtype is not float32 for a in r.accesses):
        return None
    lanes, points = at.machine.lanes(float32), outer.extent * inner.extent
    if inner.extent * float32.itemsize > LANE or inner.extent >= lanes:
        return None
    if lanes % inner.extent or points % lanes:
        return None
    views = _views(pattern.computations, outer, inner)
    if views is None:
        return None
    both = Dim(Var(f"{outer.var.name}{inner.var.name}", INDEX), points)
    group = [_along(both, outer, inner, views, c) for c in pattern.computations]
    dims = {d: e for d, e in pattern.dims.items() if d not in (outer, inner)}
    found = replace(
        pattern,
        name="groups",
        computations=tuple(group),
        reduction=group[0],
        epilogue=group[1] if pattern.epilogue else None,
        vector=both,
        dims={**dims, both: both},
    )
    return JoinedGroups(found, views)


def joining_pays(apart: KernelPattern, joined: KernelPattern, at: Context) -> bool:
    """Whether a reduction is expected to be faster along joined groups than within each."""
    (*_, within), (*_, along) = (default_tile(p, at) for p in (apart, joined))
    return along > at.costs.better * within


def in_best_form(pattern: KernelPattern, at: Context) -> KernelPattern:
    """A tiled reduction along joined groups if that pays, else as it is."""
    joined = joined_groups(pattern, at)
    if joined is None or not joining_pays(pattern, joined.pattern, at):
        return pattern
    return joined.pattern


def _before(inner: Dim, pattern: KernelPattern) -> Dim | None:
    """The dimension directly in front of another one in all Computations; None if there is none."""
    found = set()
    for c in pattern.computations:
        place = c.dims.index(inner) if inner in c.dims else 0
        found.add(c.dims[place - 1] if place else None)
    if len(found) != 1:
        return None
    (outer,) = found
    return outer if outer in pattern.dims else None


def _views(
    group: Sequence[Computation], outer: Dim, inner: Dim
) -> dict[Buffer, Buffer] | None:
    """By tensor with an axis for each dimension, one with an axis for both; None if some tensor is
    not indexed as `joined_groups` requires."""
    places: dict[Buffer, set[int | None]] = {}
    for c in group:
        for a in (*c.accesses, *(Load(o.tensor, o.index) for o in c.outputs)):
            places.setdefault(a.buffer, set()).add(_place(a, outer, inner))
    found = {}
    for b, axes in places.items():
        if len(axes) > 1 or ELSEWHERE in axes:
            return None
        (axis,) = axes
        if axis is not None:
            both = b.shape[axis] * inner.extent
            shape = (*b.shape[:axis], both, *b.shape[axis + 2 :])
            found[b] = Buffer(b.name, shape, b.dtype, b.scope)
    return found


ELSEWHERE = -1


def _place(a: Load, outer: Dim, inner: Dim) -> int | None:
    """The axis of `outer`, with `inner` on the next one; None where there is no view to make."""
    used = []
    for n, i in enumerate(a.index):
        if uses(i, outer.var) or uses(i, inner.var):
            used.append(n)
    if not used:
        return None
    n = used[0]
    rest = a.buffer.shape[n + 1 :]
    if a.index[n] is not outer.var or rest[:1] != (inner.extent,):
        return ELSEWHERE
    if len(used) == 1:
        return None if len(rest) == 1 else ELSEWHERE
    beside = used == [n, n + 1] and a.index[n + 1] is inner.var
    return n if beside else ELSEWHERE


def _along(
    both: Dim, outer: Dim, inner: Dim, views: Mapping[Buffer, Buffer], c: Computation
) -> Computation:
    """`c` over the joined dimension, on the views."""
    dims = tuple(both if d is outer else d for d in c.dims if d is not inner)
    ranges = environment(dims)
    env = {outer.var: both.var // inner.extent, inner.var: both.var % inner.extent}

    def seen(load: Load) -> Load:
        n = load.index.index(outer.var)
        index = (*load.index[:n], both.var, *load.index[n + 2 :])
        return Load(views[load.buffer], index)

    def one(e: Expr) -> Expr:
        moved = map_loads(e, dict.fromkeys(views, seen))
        return simplify(substitute(moved, env), ranges)

    outputs = []
    for o in c.outputs:
        to = seen(Load(o.tensor, o.index)) if o.tensor in views else o.tensor[o.index]
        outputs.append(Output(to.buffer, to.index, one(o.value)))
    return replace(c, dims=dims, outputs=tuple(outputs))
