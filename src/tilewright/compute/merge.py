"""Merging adjacent dimensions that move through memory together.

`[h, w]` of a 1x1 convolution, or all four dimensions of an addition, are one dimension to the
machine. The tensors are seen with merged axes too (the same memory under another shape).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.transforms import map_loads
from tilewright.expr.affine import affine
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, Load, Var
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute

Views = dict[Buffer, Buffer]


def merge_dims(
    computations: Sequence[Computation],
) -> tuple[tuple[Computation, ...], Views]:
    """The Computations with merged dimensions, and the view of each tensor that changed shape.

    Dimensions of several Computations are one where they share the variable. Axes of extent 1 that
    no dimension indexes are dropped from the tensors on the way; an axis that several dimensions
    index as the digits of a number (what a reshape leaves) becomes one axis for each.

    requires, else nothing changes: a variable has the same extent in every Computation.
    """
    dims = {(d.var, d.extent) for c in computations for d in c.dims}
    if len({v for v, _ in dims}) < len(dims):
        return tuple(computations), {}
    group, views = _squeeze(tuple(computations))
    group, apart = _split_axes(group)
    views = {b: apart.pop(view, view) for b, view in views.items()} | apart
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


def _squeeze(group: tuple[Computation, ...]) -> tuple[tuple[Computation, ...], Views]:
    """Drop axes of extent 1 that are always indexed by 0, and dimensions of extent 1.

    An axis whose index is not known to be 0 stays: one that is read from memory is checked where
    it is used.
    """
    zero = Const(0, INDEX)
    env: dict[object, object] = {
        d.var: zero for c in group for d in c.dims if d.extent == 1
    }
    if env:
        group = tuple(
            replace(
                c,
                dims=tuple(d for d in c.dims if d.extent != 1),
                outputs=tuple(
                    Output(
                        o.tensor,
                        tuple(simplify(substitute(i, env)) for i in o.index),
                        simplify(substitute(o.value, env)),
                    )
                    for o in c.outputs
                ),
            )
            for c in group
        )
    keep: dict[Buffer, list[bool]] = {}
    for b, index in _accesses(group):
        flags = keep.setdefault(b, [extent != 1 for extent in b.shape])
        for n, i in enumerate(index):
            if not (isinstance(i, Const) and i.value == 0):
                flags[n] = True
    changed = {b: flags for b, flags in keep.items() if not all(flags)}
    views = {
        b: Buffer(
            b.name,
            tuple(e for e, f in zip(b.shape, flags, strict=True) if f),
            b.dtype,
            b.scope,
        )
        for b, flags in changed.items()
    }

    def index_of(b: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(i for i, f in zip(index, changed[b], strict=True) if f)

    return _moved(group, views, index_of, {}), views


def _split_axes(
    group: tuple[Computation, ...],
) -> tuple[tuple[Computation, ...], Views]:
    """An axis always indexed by digits of the same radices (`a * 64 + b`) as one axis per digit.

    Memory stays as it is: the element (a, b) of the axes (A, B) is a * B + b from the first, and

        all accesses of the tensor, reads and writes, have the same radices on that axis
        their product is the extent of the axis
    """
    extents = {d.var: d.extent for c in group for d in c.dims}
    radices: dict[Buffer, list[tuple[int, ...]]] = {}
    for b, index in _accesses(group):
        found = [
            tuple(extents[v] for v in _digits(i, e, extents)) or (e,)
            for i, e in zip(index, b.shape, strict=True)
        ]
        known = radices.setdefault(b, found)
        for n, e in enumerate(b.shape):
            if known[n] != found[n]:
                known[n] = (e,)
    views = {
        b: Buffer(b.name, tuple(e for r in axes for e in r), b.dtype, b.scope)
        for b, axes in radices.items()
        if any(len(r) > 1 for r in axes)
    }

    def index_of(b: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        parts: list[Expr] = []
        for i, e, r in zip(index, b.shape, radices[b], strict=True):
            parts.extend(_digits(i, e, extents) if len(r) > 1 else (i,))
        return tuple(parts)

    return (_moved(group, views, index_of, {}), views) if views else (group, {})


def _digits(index: Expr, extent: int, extents: Mapping[Var, int]) -> tuple[Var, ...]:
    """The variables whose digits make up `index`, the highest first; none if it is not a number.

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
    return tuple(reversed(found)) if form.const == 0 and weight == extent else ()


def _candidate(group: Sequence[Computation]) -> tuple[Dim, Dim] | None:
    """Two dimensions a, b that are one: c = a * extent(b) + b goes through their points in order.

    every Computation has a directly in front of b, or neither
    both are kept everywhere, or both reduced: what is a scan in one of them is not merged
    each tensor is accessed as t[.., a, b, ..], always on the same axes, and the second of these
        is as long as b; or all its accesses have neither
    no value has one of them but in such an index
    """
    found: dict[Buffer, list[tuple[Expr, ...]]] = {}
    kinds: dict[Var, set[str]] = {}
    for c in group:
        for d in c.dims:
            kinds.setdefault(d.var, set()).add(d.combine)
    for t, index in _accesses(group):
        found.setdefault(t, []).append(index)
    for c in group:
        for a, b in pairwise(c.dims):
            if kinds[a.var] != kinds[b.var] or kinds[a.var] not in ({CC}, {PW}):
                continue
            fits = all(_fits(t, accesses, a, b) for t, accesses in found.items())
            if fits and not _elsewhere(group, a, b):
                return a, b
    return None


def _fits(tensor: Buffer, accesses: Sequence[tuple[Expr, ...]], a: Dim, b: Dim) -> bool:
    places = [_side_by_side(tensor, index, a, b) for index in accesses]
    return places[0] is not None and all(p == places[0] for p in places)


def _side_by_side(
    tensor: Buffer, index: tuple[Expr, ...], a: Dim, b: Dim
) -> int | None:
    """The axis that `a` indexes with `b` on the next one; -1: neither occurs; None: otherwise."""
    used = [
        n
        for n, i in enumerate(index)
        if any(v is a.var or v is b.var for v in postorder(i))
    ]
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


def _elsewhere(group: Sequence[Computation], a: Dim, b: Dim) -> bool:
    """Whether a value uses one of them outside of an index, or a Computation has only one."""
    for c in group:
        has = [any(d.var is x.var for d in c.dims) for x in (a, b)]
        if has[0] != has[1]:
            return True
        if has[0]:
            order = [d.var for d in c.dims]
            if order.index(b.var) != order.index(a.var) + 1:
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
    group: tuple[Computation, ...], views: Views, a: Dim, b: Dim
) -> tuple[tuple[Computation, ...], Views]:
    new = Dim(Var(f"{a.var.name}{b.var.name}", INDEX), a.extent * b.extent, a.combine)
    at: dict[Buffer, int] = {}
    for t, index in _accesses(group):
        for n, i in enumerate(index):
            if i is a.var:
                at[t] = n
    made = {
        t: Buffer(
            t.name,
            (*t.shape[:n], t.shape[n] * t.shape[n + 1], *t.shape[n + 2 :]),
            t.dtype,
            t.scope,
        )
        for t, n in at.items()
    }

    def index_of(t: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
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
        return Load(views[load.buffer], index_of(load.buffer, load.index))

    table = dict.fromkeys(views, read)
    out = []
    for c in group:
        outputs = []
        for o in c.outputs:
            value = map_loads(o.value, table)
            index = tuple(map_loads(i, table) for i in o.index)
            if o.tensor in views:
                index = index_of(o.tensor, index)
            outputs.append(Output(views.get(o.tensor, o.tensor), index, value))
        kept: list[Dim] = []
        for d in c.dims:
            found = dims.get(d.var, d)
            if found is not None:
                kept.append(found)
        out.append(replace(c, dims=tuple(kept), outputs=tuple(outputs)))
    return tuple(out)
