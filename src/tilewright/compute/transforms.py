"""Transformations of Computations: rewrites that preserve the result and need no schedule.

* `inline`: a map followed by anything is one Computation (MDH's fusion rule: compose the scalar
  functions and the index maps). Reshape, Transpose, Slice, Expand vanish this way.
* `relayout`: a tensor stored in another order of its dimensions; only index maps change.
* `order_dims`: the cc dimensions in another order.
* `follow`: a map over a producer's result, re-indexed by the producer's own dimensions, so that it
  can run as its epilogue.
* `widen`: a reduction that rounds its result is a reduction and a map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.compute.nodes import CC, PS, Computation, Dim, Output, sizes_of
from tilewright.expr.affine import affine
from tilewright.expr.bounds import bounds, refine
from tilewright.expr.nodes import (
    INDEX,
    MAX_SIZE,
    Buffer,
    Cast,
    Const,
    Expr,
    FloorDiv,
    Load,
    Lt,
    Mod,
    Var,
    as_expr,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Rebuilder, postorder, substitute


def environment(dims: Sequence[Dim]) -> dict[Any, tuple[int, int]]:
    """The least and the greatest value of each dimension; of an empty one 0.

    Of sizes known only at run time, their bounds, and that dimensions are below them.
    """
    if all(d.static for d in dims):
        return {d.var: (0, max(d.extent - 1, 0)) for d in dims}
    env: dict[Any, Any] = dict.fromkeys(
        sizes_of(d.size for d in dims), (0, MAX_SIZE - 1)
    )
    for d in dims:
        most = bounds(as_expr(d.size, INDEX), env)[1]
        env[d.var] = (0, None if most is None else max(most - 1, 0))
        env = refine(env, Lt(d.var, as_expr(d.size, INDEX)))
    return env


def map_loads(
    root: Expr,
    rewrite: Mapping[Buffer, Callable[[Load], Expr]],
) -> Expr:
    """Rebuild `root` with `rewrite[buffer](load)` in place of each `Load` of such a buffer."""
    return load_mapper(rewrite)(root)


def load_mapper(
    rewrite: Mapping[Buffer, Callable[[Load], Expr]],
) -> Callable[[Expr], Expr]:
    """`map_loads` for several expressions, which share most of their nodes."""

    def change(node: Any) -> Any:
        if isinstance(node, Load) and node.buffer in rewrite:
            return rewrite[node.buffer](node)
        return node

    return Rebuilder(change)


def map_outputs(
    c: Computation,
    f: Callable[[Expr], Expr],
) -> tuple[Output, ...]:
    """The outputs of `c`, with `f` of each index and value."""
    found = []
    for o in c.outputs:
        index = tuple(f(i) for i in o.index)
        found.append(Output(o.tensor, index, f(o.value)))
    return tuple(found)


def on_tensors(c: Computation, of: Mapping[Buffer, Buffer]) -> Computation:
    """The same Computation on other tensors of the same extents and types."""

    def moved(load: Load) -> Expr:
        return load.replace(buffer=of[load.buffer])

    rewrite = dict.fromkeys(of, moved)
    outputs = map_outputs(c, load_mapper(rewrite))
    there = (replace(o, tensor=of.get(o.tensor, o.tensor)) for o in outputs)
    return replace(c, outputs=tuple(there))


def rewrite_loads(
    computation: Computation,
    rewrite: Mapping[Buffer, Callable[[Load], Expr]],
) -> Computation:
    """Replace each `Load` of the given buffers by `rewrite[buffer](load)`, then simplify."""
    env = environment(computation.dims)
    mapped = load_mapper(rewrite)

    def one(e: Expr) -> Expr:
        return simplify(mapped(e), env)

    return replace(computation, outputs=map_outputs(computation, one))


def identity_dims(computation: Computation) -> tuple[Dim | None, ...] | None:
    """The dimension that indexes each axis of the only output, or None if some axis has no such.

    An axis of extent 1 indexed by the constant 0 counts, with no dimension (None in its place).
    """
    if len(computation.outputs) != 1:
        return None
    out = computation.outputs[0]
    by_var = {d.var: d for d in computation.dims}
    found: list[Dim | None] = []
    for i, extent in zip(out.index, out.tensor.extents, strict=True):
        if isinstance(i, Const) and i.value == 0 and extent == 1:
            found.append(None)
        elif isinstance(i, Var) and i in by_var and by_var[i].size == extent:
            found.append(by_var[i])
        else:
            return None
    named = [d for d in found if d is not None]
    if len(set(named)) != len(named):
        return None
    return tuple(found)


def inline(producer: Computation, consumer: Computation) -> Computation | None:
    """`consumer` with the producer's scalar function in place of its reads of the result.

    None where the law does not apply: the producer has an operator (with nothing to reduce, too: it
    combines the value with its identity, and rounds), has several outputs, or covers its tensor by
    anything else than one dimension per axis.
    """
    axes = identity_dims(producer)
    if axes is None or producer.reducer is not None:
        return None
    covered = {d for d in axes if d is not None}
    if any(d not in covered and d.size != 1 for d in producer.dims):
        return None
    value = producer.outputs[0].value
    rest: dict[object, object] = {}
    for d in producer.dims:
        if d not in covered:
            rest[d.var] = const(0)

    def read(load: Load) -> Expr:
        env = dict(rest)
        for d, i in zip(axes, load.index, strict=True):
            if d is not None:
                env[d.var] = i
        result: Expr = substitute(value, env)
        return result

    return rewrite_loads(consumer, {producer.outputs[0].tensor: read})


def relayout(
    computation: Computation,
    layouts: Mapping[Buffer, tuple[Buffer, tuple[int, ...]]],
) -> Computation:
    """The same Computation on tensors stored with permuted dimensions.

    layouts: for each logical tensor its physical buffer and the order of the logical axes in it.
    """

    def moved(load: Load) -> Expr:
        physical, order = layouts[load.buffer]
        return Load(physical, tuple(load.index[axis] for axis in order))

    changed = rewrite_loads(computation, dict.fromkeys(layouts, moved))
    outputs = []
    for o in changed.outputs:
        if o.tensor in layouts:
            physical, order = layouts[o.tensor]
            o = Output(
                physical,
                tuple(o.index[axis] for axis in order),
                o.value,
            )
        outputs.append(o)
    return replace(changed, outputs=tuple(outputs))


def order_dims(computation: Computation) -> Computation:
    """cc dimensions in the storage order of the first output, all others after, order kept."""
    out = computation.outputs[0]
    strides = out.tensor.strides
    address: dict[Expr, int] = {}
    for i, s in zip(out.index, strides, strict=True):
        for atom, coefficient in affine(i).terms:
            address[atom] = address.get(atom, 0) + coefficient * s
    place = {d: n for n, d in enumerate(computation.dims)}

    def largest_step_first(d: Dim) -> tuple[int, int]:
        return -abs(address.get(d.var, 0)), place[d]

    free = sorted(computation.parallel_dims, key=largest_step_first)
    return replace(computation, dims=(*free, *computation.combined_dims))


def widen(computation: Computation) -> tuple[Computation, ...]:
    """A reduction that rounds its result (a float16 sum kept in float32), as reduction and map.

    Its accumulators are their own tensor then, which schedules can place.
    """
    reducer = computation.reducer
    if reducer is None or len(computation.outputs) != 1:
        return (computation,)
    out = computation.outputs[0]
    dtype = reducer.dtypes[0]
    if out.tensor.dtype is dtype or any(d.combine == PS for d in computation.dims):
        return (computation,)
    free = computation.parallel_dims
    wide = Buffer(f"{out.tensor.name}_wide", tuple(d.extent for d in free), dtype)
    point = tuple(d.var for d in free)
    rounded = Output(
        out.tensor,
        out.index,
        Cast(Load(wide, point), out.tensor.dtype),
    )
    return (
        replace(computation, outputs=(Output(wide, point, out.value),)),
        Computation(f"{computation.name}_round", free, (rounded,)),
    )


def split_dims(computation: Computation, factors: Mapping[Var, int]) -> Computation:
    """Each named dimension d of extent n as two, d = outer * factor + inner (factor divides n)."""
    env: dict[object, object] = {}
    dims: list[Dim] = []
    for d in computation.dims:
        factor = factors.get(d.var)
        if factor is None:
            dims.append(d)
            continue
        if d.extent % factor:
            raise ValueError(f"{d.var.name}: {factor} does not divide {d.extent}")
        outer = Var(f"{d.var.name}o", INDEX)
        inner = Var(f"{d.var.name}i", INDEX)
        dims += [
            Dim(outer, d.extent // factor, d.combine),
            Dim(inner, factor, d.combine),
        ]
        env[d.var] = outer * factor + inner
    bounds = environment(dims)

    def one(e: Expr) -> Expr:
        return simplify(substitute(e, env), bounds)

    outputs = map_outputs(computation, one)
    return replace(computation, dims=tuple(dims), outputs=outputs)


def split_digits(computation: Computation) -> Computation:
    """Dimensions that are split where they index a tensor, separated.

    That is, by index terms of a mixed-radix split: `d // c` and `d % c`, c a divisor of the extent.
    What is left of a merging Reshape after `inline` becomes linear this way.
    """
    for _ in range(8):
        factors: dict[Var, int] = {}
        for v, factor in _split_terms(computation):
            factors.setdefault(v, factor)
        if not factors:
            break
        computation = split_dims(computation, factors)
    return computation


def _indices(computation: Computation) -> list[Expr]:
    found = [i for access in computation.accesses for i in access.index]
    return found + [i for o in computation.outputs for i in o.index]


def _split_terms(c: Computation) -> Iterator[tuple[Var, int]]:
    """The dimensions that an index divides, and by what."""
    extents = {d.var: d.extent for d in c.dims}
    for index in _indices(c):
        for node in postorder(index):
            if not isinstance(node, FloorDiv | Mod):
                continue
            if node.lhs not in extents or not isinstance(node.rhs, Const):
                continue
            assert isinstance(node.lhs, Var)
            factor = int(node.rhs.value.real)
            extent = extents[node.lhs]
            if 1 < factor < extent and extent % factor == 0:
                yield node.lhs, factor


def follow(producer: Computation, consumer: Computation) -> Computation | None:
    """`consumer`, a map that reads the producer's result, over the producer's cc dimensions.

    Applies when every read of the result has one index map that is a bijection between the two
    domains: each axis of the result is one dimension of the consumer, or a mixed-radix sum of
    several (a reshape or transpose in between). None where it does not apply.
    """
    axes = identity_dims(producer)
    if axes is None or not consumer.is_map:
        return None
    indexed = [d for d in axes if d is not None]
    if any(d.combine != CC for d in indexed):  # a scan: no dimension to follow
        return None
    tensor = producer.outputs[0].tensor
    consumer = split_digits(consumer)
    reads = {a.index for a in consumer.accesses if a.buffer is tensor}
    if len(reads) != 1:
        return None
    (index,) = reads
    extents = {d.var: d.extent for d in consumer.dims}
    env: dict[object, object] = {}
    for d in consumer.dims:
        if d.extent == 1:
            env[d.var] = const(0)
    seen: set[Expr] = set()
    for axis, i in zip(axes, index, strict=True):
        if axis is not None and not _digits(i, axis, extents, env, seen):
            return None
    free = producer.parallel_dims
    if any(d.extent != 1 and d not in indexed for d in free):
        return None
    if any(d.var not in env for d in consumer.dims):
        return None
    bounds = environment(free)

    def one(e: Expr) -> Expr:
        return simplify(substitute(e, env), bounds)

    return replace(consumer, dims=free, outputs=map_outputs(consumer, one))


def _digits(
    index: Expr,
    axis: Dim,
    extents: Mapping[Var, int],
    env: dict[object, object],
    seen: set[Expr],
) -> bool:
    """Solve `index == axis.var` for the consumer's variables as terms of a mixed-radix split."""
    form = affine(index)
    if form.const != 0:
        return False
    weight = 1
    for atom, coefficient in sorted(form.terms, key=lambda t: t[1]):
        if not isinstance(atom, Var) or atom not in extents or atom in seen:
            return False
        extent = extents[atom]
        if extent == 1:
            continue
        if coefficient != weight:
            return False
        seen.add(atom)
        term: Expr = axis.var if weight == 1 else axis.var // weight
        if weight * extent != axis.extent:
            term = term % extent
        env[atom] = term
        weight *= extent
    return weight == axis.extent
