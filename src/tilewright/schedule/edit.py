"""Editing programs: replacing statements, moving accesses, renaming loops, without mutation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    Buffer,
    Compare,
    Const,
    Expr,
    FloorDiv,
    Load,
    Mod,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute
from tilewright.loops.analysis.access import Env, Index, environment
from tilewright.loops.analysis.terms import variables
from tilewright.loops.match import match
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    block,
)
from tilewright.loops.operands import OperandMismatch
from tilewright.loops.walk import StatementPlace, below, summary, walk


def put(kernel: Kernel, place: StatementPlace, new: Stmt) -> Kernel:
    """`kernel` with another statement in the place of `place.stmt`; an empty block vanishes."""
    old = place.stmt
    for parent in reversed(place.above):
        old, new = parent, with_child(parent, old, new)
    return kernel.with_body(new)


def with_child(parent: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """`parent` with its direct child `old` replaced; empty statements are dropped."""
    if isinstance(parent, Block):
        return block(*(new if s is old else s for s in parent.stmts))
    if isinstance(new, Block) and not new.stmts and not isinstance(parent, If):
        return new
    rebuilt: Stmt = parent.map(lambda c: new if c is old else c)
    return rebuilt


def tidy(e: Expr, env: Env) -> Expr:
    """An index in linear form, without the variables of loops that run once.

    Divisions in it are simplified under `env`.
    """
    if isinstance(e, Var):
        return const(0) if env.get(e) == (0, 0) else e
    if isinstance(e, Const):
        return e
    once: dict[Any, Any] = {v: const(0) for v in variables(e) if env.get(v) == (0, 0)}
    form = affine(substitute(e, once))
    linear = to_expr(form)
    atoms = [atom for atom, _ in form.terms]
    divides = any(isinstance(a, FloorDiv | Mod) for a in atoms)
    only_vars = all(isinstance(a, Var) for a in atoms)
    if only_vars or not (once or divides):
        return linear
    return simplify(linear, env)


Move = Callable[[Index], tuple[Buffer, Index]]


def tidy_comparisons(s: Stmt, env: Env) -> Stmt:
    """The statement with comparisons of indices in linear form, as `rewrite` leaves indices.

    So what a condition says of an index is still seen. env: bounds of the variables bound outside.
    """
    env = {**env, **environment(s)}
    values: dict[Any, Any] = {}
    for node in postorder(s):
        if isinstance(node, Compare) and node.lhs.dtype is INDEX:
            values[node] = type(node)(tidy(node.lhs, env), tidy(node.rhs, env))
    made: Stmt = substitute(s, values)
    return made


def rewrite(
    root: Any,
    env: Env,
    values: Mapping[Any, Any] | None = None,
    moves: Mapping[Buffer, Move] | None = None,
    fors: Mapping[Var, Callable[[For], Stmt]] | None = None,
) -> Any:
    """Rebuild a statement or expression in one pass.

    values: expressions replaced by identity (a loop's own variable only by another Var). moves:
    what becomes of the accesses of a buffer. fors: applied to the rebuilt loop of a variable. The
    indices that change are put in linear form under the bounds `env`.
    """
    values = values or {}
    moves = moves or {}
    fors = fors or {}
    done: dict[Node, Any] = dict(values)
    if not values and not fors and isinstance(root, Stmt):
        done.update((s, s) for s in _without_access(root, moves.keys()))
    for node in postorder(root, done):
        if isinstance(node, For):
            done[node] = _rebuilt_loop(node, done, fors)
            continue
        new = node.map(done.__getitem__)
        if isinstance(new, Load | Store):
            done[node] = _moved(node, new, env, moves)
        elif isinstance(new, Update):
            done[node] = _moved_update(node, new, env, moves)
        elif isinstance(new, Unit) and moves and new is not node:
            done[node] = _matched(new)
        else:
            done[node] = block(*new.stmts) if isinstance(new, Block) else new
    return done[root]


def _without_access(root: Stmt, buffers: Set[Buffer]) -> Iterator[Stmt]:
    """The outermost statements that read and write none of the buffers."""
    found = summary(root)
    if buffers.isdisjoint(found.reads) and buffers.isdisjoint(found.writes):
        yield root
        return
    for s in below(root):
        yield from _without_access(s, buffers)


def _rebuilt_loop(
    node: For, done: dict[Node, Any], fors: Mapping[Var, Callable[[For], Stmt]]
) -> Stmt:
    var = done[node.var]
    extent = done[node.extent]
    body = done[node.body]
    if not isinstance(var, Var):
        var = node.var
    header_is_same = var is node.var and extent is node.extent
    if header_is_same and body is node.body:
        new = node
    else:
        new = For(var, extent, node.kind, body)
    change = fors.get(node.var)
    return new if change is None else change(new)


def _moved(
    old: Node,
    new: Any,
    env: Env,
    moves: Mapping[Buffer, Move],
) -> Any:
    buffer = new.buffer
    index = new.index
    move = moves.get(buffer)
    if move is not None:
        buffer, index = move(index)
    elif new is old or index is getattr(old, "index", None):
        return new
    index = tuple(tidy(i, env) for i in index)
    if isinstance(new, Load):
        return Load(buffer, index)
    return Store(buffer, index, new.value)


def _moved_update(
    old: Node, new: Update, env: Env, moves: Mapping[Buffer, Move]
) -> Update:
    if new is old and not any(b in moves for b in new.buffers):
        return new
    buffers = []
    indices = []
    for b, index in new.targets:
        if b in moves:
            b, index = moves[b](index)
        buffers.append(b)
        indices.append(tuple(tidy(i, env) for i in index))
    return Update(tuple(buffers), tuple(indices), new.values, new.reducer)


def _matched(unit: Unit) -> Unit:
    """A Unit whose body has moved, with the operands that it has now."""
    if unit.intrinsic is None:
        return unit
    try:
        instance, operands = match(unit.intrinsic.intrinsic, unit.body)
    except OperandMismatch as error:
        raise ScheduleError(
            f"a tensor intrinsic would not do what its body says: {error}",
            where=f"unit {unit.name}",
            hint="move the buffer before tensorize",
        ) from None
    return Unit(unit.name, instance, operands, unit.body)


def renamed(stmt: Stmt, taken: set[str], suffix: str) -> tuple[Stmt, dict[str, str]]:
    """A copy of `stmt` whose loops and inner buffers have their own names, and old -> new."""
    table: dict[str, str] = {}
    values: dict[Any, Any] = {}
    moves: dict[Buffer, Move] = {}
    copies: dict[Buffer, Buffer] = {}
    for place in walk(stmt):
        s = place.stmt
        if isinstance(s, For):
            name = fresh(taken, s.var.name + suffix)
            table[s.var.name] = name
            values[s.var] = Var(name, INDEX)
        elif isinstance(s, Alloc):
            b = s.buffer
            name = fresh(taken, b.name + suffix)
            table[b.name] = name
            copies[b] = Buffer(name, b.extents, b.dtype, b.scope, b.swizzle)
            moves[b] = onto(copies[b])
    new = rewrite(stmt, {}, values, moves)
    if copies:
        new = with_allocs(new, copies)
    return new, table


def onto(buffer: Buffer) -> Move:
    """Every access at its own index, in another buffer."""
    return lambda index: (buffer, index)


def with_allocs(root: Stmt, copies: Mapping[Buffer, Buffer]) -> Stmt:
    """`root` with the buffers of its Alloc statements replaced."""

    def step(s: Stmt) -> Stmt:
        if copies.keys().isdisjoint(summary(s).buffers):
            return s
        new: Stmt = s.map(lambda c: step(c) if isinstance(c, Stmt) else c)
        if isinstance(new, Alloc) and new.buffer in copies:
            return Alloc(copies[new.buffer], new.body)
        return new

    return step(root)


def without_alloc(root: Stmt, buffer: Buffer) -> Stmt:
    """`root` with the Alloc of `buffer` replaced by its body."""

    def step(s: Stmt) -> Stmt:
        if isinstance(s, Alloc) and s.buffer is buffer:
            return s.body
        if isinstance(s, Store | Update):
            return s
        new: Stmt = s.map(lambda c: step(c) if isinstance(c, Stmt) else c)
        if isinstance(new, Block):
            return block(*new.stmts)
        return new

    return step(root)
