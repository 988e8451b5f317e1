"""Merging adjacent dimensions that move through memory together.

`[h, w]` of a 1x1 convolution, or all four dimensions of an addition, are one dimension to the
machine. The tensors are seen with merged axes too (the same memory under another shape).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import compress, pairwise

from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.transforms import load_mapper, map_outputs
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Var
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Rebuilder, postorder

Views = dict[Buffer, Buffer]
Used = tuple[frozenset[Expr], ...]


def merge_dims(
    computations: Sequence[Computation],
) -> tuple[tuple[Computation, ...], Views]:
    """The Computations with merged dimensions, and the view of each tensor that changed shape.

    Dimensions of several Computations are one where they share the variable. Axes of extent 1 that
    no dimension indexes are dropped from the tensors on the way; an axis that several dimensions
    index as the terms of a mixed-radix split (what a reshape leaves) becomes one axis for each.

    requires, else nothing changes: a variable has the same extent in every Computation.
    """
    dims = {(d.var, d.extent) for c in computations for d in c.dims}
    variables = {v for v, _ in dims}
    if len(variables) < len(dims):
        return tuple(computations), {}
    group, views = _squeeze(tuple(computations))
    group, split = _split_axes(group)
    views = {b: split.pop(view, view) for b, view in views.items()}
    views |= split
    while True:
        pair = _candidate(group)
        if pair is None:
            return group, views
        group, views = _merge(group, views, *pair)


def _accesses(
    group: Sequence[Computation],
) -> Iterable[tuple[Buffer, tuple[Expr, ...]]]:
    for c in group:
        for a in c.accesses:
            yield a.buffer, a.index
        for o in c.outputs:
            yield o.tensor, o.index


def _reshaped(b: Buffer, shape: tuple[int, ...]) -> Buffer:
    """A buffer like `b` of another shape."""
    return Buffer(b.name, shape, b.dtype, b.scope)


def _squeeze(group: tuple[Computation, ...]) -> tuple[tuple[Computation, ...], Views]:
    """Drop axes of extent 1 that are always indexed by 0, and dimensions of extent 1.

    An axis whose index is not known to be 0 stays: one that is read from memory is checked where
    it is used.
    """
    group = _without_single_points(group)
    keep: dict[Buffer, list[bool]] = {}
    for b, index in _accesses(group):
        flags = keep.setdefault(b, [extent != 1 for extent in b.shape])
        for n, i in enumerate(index):
            if not (isinstance(i, Const) and i.value == 0):
                flags[n] = True
    changed = {b: flags for b, flags in keep.items() if not all(flags)}
    views = {}
    for b, flags in changed.items():
        shape = tuple(compress(b.shape, flags))
        views[b] = _reshaped(b, shape)

    def index_of(
        b: Buffer,
        index: tuple[Expr, ...],
    ) -> tuple[Expr, ...]:
        return tuple(compress(index, changed[b]))

    return _moved(group, views, index_of, {}), views


def _without_single_points(
    group: tuple[Computation, ...],
) -> tuple[Computation, ...]:
    """The group without its dimensions of extent 1, which are 0 throughout."""
    zero = Const(0, INDEX)
    dims = [d for c in group for d in c.dims]
    single = {d.var for d in dims if d.extent == 1}
    if not single:
        return group
    moved = Rebuilder(lambda node: zero if node in single else node)

    def at_zero(e: Expr) -> Expr:
        return simplify(moved(e))

    found = []
    for c in group:
        kept = tuple(d for d in c.dims if d.extent != 1)
        found.append(replace(c, dims=kept, outputs=map_outputs(c, at_zero)))
    return tuple(found)


def _split_axes(
    group: tuple[Computation, ...],
) -> tuple[tuple[Computation, ...], Views]:
    """An axis always indexed by the same mixed-radix split (`a * 64 + b`) as one axis per term.

    Memory stays unchanged: the element (a, b) of the axes (A, B) is a * B + b from the first, and

        all accesses of the tensor, reads and writes, have the same radices on that axis
        their product is the extent of the axis
    """
    extents = {d.var: d.extent for c in group for d in c.dims}
    radices: dict[Buffer, list[tuple[int, ...]]] = {}
    for b, index in _accesses(group):
        places = zip(index, b.shape, strict=True)
        found = [_radices(i, extent, extents) for i, extent in places]
        known = radices.setdefault(b, found)
        for n, extent in enumerate(b.shape):
            if known[n] != found[n]:
                known[n] = (extent,)
    views = {}
    for b, axes in radices.items():
        if any(len(axis) > 1 for axis in axes):
            shape = tuple(extent for axis in axes for extent in axis)
            views[b] = _reshaped(b, shape)

    def index_of(
        b: Buffer,
        index: tuple[Expr, ...],
    ) -> tuple[Expr, ...]:
        parts: list[Expr] = []
        for i, extent, axis in zip(index, b.shape, radices[b], strict=True):
            if len(axis) > 1:
                parts.extend(_digits(i, extent, extents))
            else:
                parts.append(i)
        return tuple(parts)

    if not views:
        return (group, {})
    return (_moved(group, views, index_of, {}), views)


def _radices(
    index: Expr,
    extent: int,
    extents: Mapping[Var, int],
) -> tuple[int, ...]:
    """The extents of the variables that make up `index`; that of the axis if there are none."""
    found = _digits(index, extent, extents)
    return tuple(extents[v] for v in found) or (extent,)


def _digits(
    index: Expr,
    extent: int,
    extents: Mapping[Var, int],
) -> tuple[Var, ...]:
    """The terms of `index` as a mixed-radix split, the highest first; none if it is not one.

    index = sum of d_k * w_k, no more, with w_0 = 1 and w_(k+1) = w_k * extent(d_k), and the last
    weight times its extent is the extent of the axis.
    """
    form = affine(index)
    found: list[Var] = []
    weight = 1
    for atom, coefficient in sorted(form.terms, key=lambda t: t[1]):
        if not isinstance(atom, Var) or atom not in extents or coefficient != weight:
            return ()
        found.append(atom)
        weight *= extents[atom]
    if form.const == 0 and weight == extent:
        return tuple(reversed(found))
    return ()


def _candidate(group: Sequence[Computation]) -> tuple[Dim, Dim] | None:
    """Two dimensions a, b that are one: c = a * extent(b) + b goes through their points in order.

    every Computation has a directly in front of b, or neither
    both are kept everywhere, or both reduced: what is a scan in one of them is not merged
    each tensor is accessed as t[.., a, b, ..], always on the same axes, and the second of these
        is as long as b; or all its accesses have neither
    no value has one of them but in such an index
    """
    found: dict[Buffer, dict[tuple[Expr, ...], Used]] = {}
    for t, index in _accesses(group):
        found.setdefault(t, {})[index] = tuple(map(_variables, index))
    kinds: dict[Var, set[str]] = {}
    for c in group:
        for d in c.dims:
            kinds.setdefault(d.var, set()).add(d.combine)
    for c in group:
        for a, b in pairwise(c.dims):
            kind = kinds[a.var]
            if kind != kinds[b.var] or kind not in ({CC}, {PW}):
                continue
            fits = all(_fits(t, accesses, a, b) for t, accesses in found.items())
            if fits and not _elsewhere(group, a, b):
                return a, b
    return None


def _variables(index: Expr) -> frozenset[Expr]:
    """What an index of one axis depends on."""
    if isinstance(index, Var):
        return frozenset([index])
    return frozenset(v for v in postorder(index) if isinstance(v, Var))


def _fits(
    tensor: Buffer,
    accesses: Mapping[tuple[Expr, ...], Used],
    a: Dim,
    b: Dim,
) -> bool:
    places = []
    for index, of in accesses.items():
        places.append(_side_by_side(tensor, index, of, a, b))
    first = places[0]
    return first is not None and all(place == first for place in places)


def _side_by_side(
    tensor: Buffer,
    index: tuple[Expr, ...],
    of: Used,
    a: Dim,
    b: Dim,
) -> int | None:
    """The axis that `a` indexes with `b` on the next one; -1: neither occurs; None: otherwise.

    of: the variables of each axis's index.
    """
    used = []
    for n, known in enumerate(of):
        if a.var in known or b.var in known:
            used.append(n)
    if not used:
        return -1
    n = used[0]
    whole = (
        len(used) == 2
        and index[n] is a.var
        and index[n + 1] is b.var
        and tensor.shape[n + 1] == b.extent
    )
    return n if whole else None


def _elsewhere(
    group: Sequence[Computation],
    a: Dim,
    b: Dim,
) -> bool:
    """Whether a value uses one of them outside an index, or a Computation has only one."""
    for c in group:
        order = [d.var for d in c.dims]
        if (a.var in order) != (b.var in order):
            return True
        if a.var in order:
            place = order.index(a.var)
            if order.index(b.var) != place + 1:
                return True
        for o in c.outputs:
            if any(n is a.var or n is b.var for n in _outside_loads(o.value)):
                return True
    return False


def _outside_loads(root: Expr) -> list[Expr]:
    """The nodes of a value that are not below a read."""
    found: list[Expr] = []
    stack = [root]
    seen: set[Expr] = set()
    while stack:
        e = stack.pop()
        if e in seen or isinstance(e, Load):
            continue
        seen.add(e)
        found.append(e)
        stack.extend(c for c in e.children() if isinstance(c, Expr))
    return found


def _merge(
    group: tuple[Computation, ...],
    views: Views,
    a: Dim,
    b: Dim,
) -> tuple[tuple[Computation, ...], Views]:
    var = Var(f"{a.var.name}{b.var.name}", INDEX)
    new = Dim(var, a.extent * b.extent, a.combine)
    at: dict[Buffer, int] = {}
    for t, index in _accesses(group):
        for n, i in enumerate(index):
            if i is a.var:
                at[t] = n
    made = {}
    for t, n in at.items():
        both = t.shape[n] * t.shape[n + 1]
        shape = (*t.shape[:n], both, *t.shape[n + 2 :])
        made[t] = _reshaped(t, shape)

    def index_of(
        t: Buffer,
        index: tuple[Expr, ...],
    ) -> tuple[Expr, ...]:
        n = at[t]
        return (*index[:n], new.var, *index[n + 2 :])

    group = _moved(group, made, index_of, {a.var: new, b.var: None})
    total = {old: made.get(view, view) for old, view in views.items()}
    seen = set(views.values())
    total |= {t: view for t, view in made.items() if t not in seen}
    return group, total


def _moved(
    group: Sequence[Computation],
    views: Views,
    index_of: Callable[[Buffer, tuple[Expr, ...]], tuple[Expr, ...]],
    dims: dict[Var, Dim | None],
) -> tuple[Computation, ...]:
    def read(load: Load) -> Expr:
        return Load(
            views[load.buffer],
            index_of(load.buffer, load.index),
        )

    moved = load_mapper(dict.fromkeys(views, read))
    out = []
    for c in group:
        outputs = []
        for o in c.outputs:
            value = moved(o.value)
            index = tuple(map(moved, o.index))
            if o.tensor in views:
                index = index_of(o.tensor, index)
            outputs.append(
                Output(
                    views.get(o.tensor, o.tensor),
                    index,
                    value,
                )
            )
        kept: list[Dim] = []
        for d in c.dims:
            found = dims.get(d.var, d)
            if found is not None:
                kept.append(found)
        out.append(
            replace(
                c,
                dims=tuple(kept),
                outputs=tuple(outputs),
            )
        )
    return tuple(out)
