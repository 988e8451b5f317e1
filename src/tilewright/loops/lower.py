"""The default loop nest: a sequence of Computations as a Kernel, literally."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.names import fresh
from tilewright.compute.nodes import CC, PS, PW, Computation, Dim, sizes_of
from tilewright.compute.reducer import Reducer
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Add,
    Buffer,
    Cast,
    Const,
    Expr,
    Load,
    Var,
    const,
)
from tilewright.ir.node import Node, substitute, transform
from tilewright.loops.nodes import (
    Alloc,
    Kernel,
    Stmt,
    Store,
    Update,
    block,
    for_sizes,
    loop,
)


def lower(
    name: str,
    computations: Sequence[Computation],
    params: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> Kernel:
    """Each Computation as its own loop nest, in order.

    params: every buffer of the caller; outputs: the ones that are written. A written buffer that is
    not a parameter is allocated around the nests, starting at the first one that writes it. Loops
    are named `<computation>.<dimension>`, with `_2`, `_3`, ... if the name is taken.
    """
    taken = {b.name for b in params}
    nests = [_nest(c, taken) for c in computations]
    known = set(params)
    fresh: list[list[Buffer]] = []
    for c in computations:
        new = [t for t in dict.fromkeys(o.tensor for o in c.outputs) if t not in known]
        known.update(new)
        fresh.append(new)
    body = block()
    for nest, new in zip(reversed(nests), reversed(fresh), strict=True):
        body = block(nest, body)
        for buffer in reversed(new):
            body = Alloc(buffer, body)
    sizes = sizes_of(e for b in params for e in b.extents)
    more = (v for c in computations for v in c.sizes)
    body = for_sizes(dict.fromkeys((*sizes, *more)), body)
    return Kernel(name, tuple(params), tuple(outputs), body)


def _nest(c: Computation, taken: set[str]) -> Stmt:
    env: dict[Node, Expr] = {}
    for d in c.dims:
        if d.size == 1:
            env[d.var] = const(0)
        else:
            env[d.var] = Var(fresh(taken, f"{c.name}.{d.var.name}"), INDEX)
    folded = any(isinstance(e, Const) for e in env.values())

    def renamed(e: Expr) -> Expr:
        new = substitute(e, env)
        return _without_zeros(new) if folded else new

    index = [tuple(renamed(i) for i in o.index) for o in c.outputs]
    values = tuple(renamed(o.value) for o in c.outputs)
    tensors = tuple(o.tensor for o in c.outputs)
    free, scans, reductions = (
        [d for d in c.dims if d.combine == combine and d.size != 1]
        for combine in (CC, PS, PW)
    )
    if c.reducer is None:
        stores = zip(tensors, index, values, strict=True)
        inner = block(*(Store(t, i, _as(v, t)) for t, i, v in stores))
    elif scans:
        inner = _scan(c, c.reducer, (scans, reductions), index, values, (env, taken))
    elif _accumulates_in_place(c):
        initial = zip(tensors, c.reducer.identity, strict=True)
        start = [Store(t, index[0], identity) for t, identity in initial]
        step = Update(tensors, tuple(index), values, c.reducer)
        inner = block(*start, _around(reductions, step, env))
    else:
        buffers = _accumulators(c, c.reducer, taken)
        step = Update(buffers, _first(buffers), values, c.reducer)
        accumulated = block(
            _cleared(buffers, c.reducer),
            _around(reductions, step, env),
            _flushed(tensors, index, buffers),
        )
        inner = _allocated(buffers, accumulated)
    return _around(free, inner, env)


def _accumulates_in_place(c: Computation) -> bool:
    """Whether the outputs hold the accumulators' dtypes and share one place."""
    assert c.reducer is not None
    same = all(
        o.tensor.dtype is t for o, t in zip(c.outputs, c.reducer.dtypes, strict=True)
    )
    return same and all(o.index == c.outputs[0].index for o in c.outputs)


def _scan(
    c: Computation,
    reducer: Reducer,
    dims: tuple[list[Dim], list[Dim]],
    index: list[tuple[Expr, ...]],
    values: tuple[Expr, ...],
    scope: tuple[dict[Node, Expr], set[str]],
) -> Stmt:
    """A running accumulator along one scan dimension; over several, each prefix again."""
    (scans, reductions), (env, taken) = dims, scope
    buffers = _accumulators(c, reducer, taken)
    tensors = tuple(o.tensor for o in c.outputs)
    flush = _flushed(tensors, index, buffers)
    start = _cleared(buffers, reducer)
    if len(scans) == 1:
        step = _around(
            reductions, Update(buffers, _first(buffers), values, reducer), env
        )
        return _allocated(
            buffers, block(start, _around(scans, block(step, flush), env))
        )
    prefix = {
        env[d.var]: Var(fresh(taken, f"{c.name}.{d.var.name}.upto"), INDEX)
        for d in scans
    }
    body: Stmt = Update(
        buffers,
        _first(buffers),
        tuple(substitute(v, dict(prefix)) for v in values),
        reducer,
    )
    body = _around(reductions, body, env)
    for at, upto in reversed(prefix.items()):
        body = loop(upto, Add(at, const(1)), body)
    return _around(scans, _allocated(buffers, block(start, body, flush)), env)


def _accumulators(
    c: Computation, reducer: Reducer, taken: set[str]
) -> tuple[Buffer, ...]:
    return tuple(
        Buffer(fresh(taken, f"{o.tensor.name}.acc"), (1,), t, "register")
        for o, t in zip(c.outputs, reducer.dtypes, strict=True)
    )


def _first(buffers: Sequence[Buffer]) -> tuple[tuple[Expr, ...], ...]:
    return ((const(0),),) * len(buffers)


def _cleared(buffers: Sequence[Buffer], reducer: Reducer) -> Stmt:
    pairs = zip(buffers, reducer.identity, strict=True)
    return block(*(Store(b, (const(0),), identity) for b, identity in pairs))


def _flushed(
    tensors: Sequence[Buffer],
    index: Sequence[tuple[Expr, ...]],
    buffers: Sequence[Buffer],
) -> Stmt:
    stores = zip(tensors, index, buffers, strict=True)
    return block(*(Store(t, i, _as(b[0], t)) for t, i, b in stores))


def _allocated(buffers: Sequence[Buffer], body: Stmt) -> Stmt:
    for b in reversed(buffers):
        body = Alloc(b, body)
    return body


def _as(value: Expr, tensor: Buffer) -> Expr:
    if value.dtype is tensor.dtype:
        return value
    return Cast(value, tensor.dtype)


def _around(dims: Sequence[Dim], body: Stmt, env: dict[Node, Expr]) -> Stmt:
    for d in reversed(dims):
        var = env[d.var]
        assert isinstance(var, Var)
        body = loop(var, d.size, body)
    return body


def _without_zeros(e: Expr) -> Expr:
    """Indices in linear form again, after a variable became 0."""

    def tidy(node: Expr) -> Expr:
        if isinstance(node, Load):
            return Load(node.buffer, tuple(to_expr(affine(i)) for i in node.index))
        return node

    whole: Expr = transform(e, tidy)
    if whole.dtype is INDEX:
        return to_expr(affine(whole))
    return whole
