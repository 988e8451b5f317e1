"""Places in a kernel: finding loops and buffers by name, replacing them, reading what they touch.

A loop's name and a buffer's name are stable handles; a `Place` is what a name leads to in one
particular kernel: the statement and its ancestors from the root on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

from tilewright.base.errors import ScheduleError
from tilewright.base.names import fresh as fresh
from tilewright.compute.reducer import Reducer
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.nodes import INDEX, Buffer, Const, Expr, FloorDiv, Load, Mod, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute
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
    While,
    block,
)

Env = dict[Any, tuple[int, int]]
Index = tuple[Expr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A statement and the statements around it, outermost first."""

    stmt: Stmt
    above: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the statement, outermost first."""
        return tuple(s for s in self.above if isinstance(s, For))


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write of a buffer, seen from a statement `root` that contains it.

    path: the statements between `root` (included) and the one that accesses, outermost first.
    """

    buffer: Buffer
    index: Index
    kind: Literal["load", "store", "update"]
    reducer: Reducer | None
    path: tuple[Stmt, ...]

    @property
    def writes(self) -> bool:
        """Whether the buffer is changed."""
        return self.kind != "load"

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops below the root around the access."""
        return tuple(s for s in self.path if isinstance(s, For))

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(repr, self.index))}]"


_BELOW: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    For: lambda s: (s.body,),
    Block: lambda s: s.stmts,
    If: lambda s: (s.then,) if s.otherwise is None else (s.then, s.otherwise),
    While: lambda s: (s.body,),
    Alloc: lambda s: (s.body,),
    Unit: lambda s: (s.body,),
    Store: lambda s: (),
    Update: lambda s: (),
}


def below(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`, in order."""
    return _BELOW[type(stmt)](stmt)


def walk(root: Stmt, above: tuple[Stmt, ...] = ()) -> Iterator[Place]:
    """Every statement of `root` in program order, itself first, with its ancestors."""
    stack = [(root, above)]
    while stack:
        stmt, path = stack.pop()
        yield Place(stmt, path)
        inner = below(stmt)
        if inner:
            path = (*path, stmt)
            stack.extend((s, path) for s in reversed(inner))


def loops_of(root: Stmt) -> list[For]:
    """The loops of `root` in program order."""
    return [p.stmt for p in walk(root) if isinstance(p.stmt, For)]


def environment(root: Stmt) -> Env:
    """The interval of every loop variable of constant extent."""
    return {f.var: (0, max(f.trips - 1, 0)) for f in loops_of(root) if f.trips is not None}


def find_loop(kernel: Kernel, name: str, primitive: str) -> tuple[For, Place]:
    """The loop called `name` and its place. Raises ScheduleError with the names there are."""
    names = []
    for place in walk(kernel.body):
        if isinstance(place.stmt, For):
            if place.stmt.var.name == name:
                _check_outside(place, f"loop {name}", primitive)
                return place.stmt, place
            names.append(place.stmt.var.name)
    raise ScheduleError(
        f"{primitive}: there is no loop {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def find_buffer(kernel: Kernel, name: str, primitive: str) -> tuple[Buffer, Place | None]:
    """The buffer called `name` and the place of its Alloc (None for a parameter)."""
    for b in kernel.params:
        if b.name == name:
            return b, None
    names = [b.name for b in kernel.params]
    for place in walk(kernel.body):
        if isinstance(place.stmt, Alloc):
            if place.stmt.buffer.name == name:
                _check_outside(place, f"buffer {name}", primitive)
                return place.stmt.buffer, place
            names.append(place.stmt.buffer.name)
    raise ScheduleError(
        f"{primitive}: there is no buffer {name!r}",
        where=kernel.name,
        hint=f"did you mean {_closest(name, names)}",
    )


def _check_outside(place: Place, what: str, primitive: str) -> None:
    """Nothing reaches into a Unit."""
    unit = next((s for s in place.above if isinstance(s, Unit)), None)
    if unit is not None:
        raise ScheduleError(
            f"{primitive}: it is inside of {unit.name}, which is done as one piece",
            where=what,
            hint="transform it before tensorize or blockize",
        )


def _closest(name: str, names: list[str]) -> str:
    return " or ".join(get_close_matches(str(name), names, 3, 0.5) or names or ["(there is none)"])


def trips(f: For, primitive: str) -> int:
    """The constant number of iterations. Raises ScheduleError where it is not constant."""
    n = f.trips
    if n is None:
        raise ScheduleError(
            f"{primitive}: the extent {f.extent!r} is not a constant",
            where=f"loop {f.var.name}",
            hint="only loops of constant extent can be transformed",
        )
    return n


def names(kernel: Kernel) -> set[str]:
    """Every name of a loop or a buffer in use."""
    found = {b.name for b in kernel.params}
    for place in walk(kernel.body):
        if isinstance(place.stmt, For):
            found.add(place.stmt.var.name)
        elif isinstance(place.stmt, Alloc):
            found.add(place.stmt.buffer.name)
    return found


def put(kernel: Kernel, place: Place, new: Stmt) -> Kernel:
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


@lru_cache(maxsize=1 << 14)
def variables(e: Expr) -> frozenset[Expr]:
    """The variables an expression depends on; a load in it counts as one (contents may change)."""
    return frozenset(n for n in postorder(e) if isinstance(n, Var | Load))


@lru_cache(maxsize=1 << 14)
def loads(e: Expr) -> tuple[Load, ...]:
    """The distinct loads in an expression, those in indices included."""
    return tuple(n for n in postorder(e) if isinstance(n, Load))


def accesses(root: Stmt) -> list[Access]:
    """Every read and write of `root` in program order; a statement's reads before its write."""
    found: list[Access] = []
    for place in walk(root):
        s, path = place.stmt, place.above
        for e in s.children():
            if isinstance(e, Expr):
                found += [Access(x.buffer, x.index, "load", None, path) for x in loads(e)]
        if isinstance(s, Store):
            found.append(Access(s.buffer, s.index, "store", None, path))
        elif isinstance(s, Update):
            found += [Access(b, s.index, "update", s.reducer, path) for b in s.buffers]
    return found


def allocated(root: Stmt) -> set[Buffer]:
    """The buffers that exist only inside `root`."""
    return {p.stmt.buffer for p in walk(root) if isinstance(p.stmt, Alloc)}


def tidy(e: Expr, env: Env) -> Expr:
    """An index in linear form, without the variables of loops that run once.

    Divisions in it are simplified under `env`.
    """
    once: dict[Any, Any] = {v: const(0) for v in variables(e) if env.get(v) == (0, 0)}
    form = affine(substitute(e, once))
    linear = to_expr(form)
    if once or any(isinstance(a, FloorDiv | Mod) for a, _ in form.terms):
        return linear if all(isinstance(a, Var) for a, _ in form.terms) else simplify(linear, env)
    return linear


Move = Callable[[Index], tuple[Buffer, Index]]


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
    values, moves, fors = values or {}, moves or {}, fors or {}
    done: dict[Node, Any] = dict(values)
    for node in postorder(root):
        if node in values:
            continue
        if isinstance(node, For):
            done[node] = _rebuilt_loop(node, done, fors)
            continue
        new = node.map(done.__getitem__)
        if isinstance(new, Load | Store):
            done[node] = _moved(node, new, env, moves)
        elif isinstance(new, Update):
            done[node] = _moved_update(node, new, env, moves)
        else:
            done[node] = block(*new.stmts) if isinstance(new, Block) else new
    return done[root]


def _rebuilt_loop(
    node: For, done: dict[Node, Any], fors: Mapping[Var, Callable[[For], Stmt]]
) -> Stmt:
    var, extent, body = done[node.var], done[node.extent], done[node.body]
    if not isinstance(var, Var):
        var = node.var
    changed = var is not node.var or extent is not node.extent or body is not node.body
    new = For(var, extent, node.kind, body) if changed else node
    change = fors.get(node.var)
    return new if change is None else change(new)


def _moved(old: Node, new: Any, env: Env, moves: Mapping[Buffer, Move]) -> Any:
    buffer, index = new.buffer, new.index
    move = moves.get(buffer)
    if move is not None:
        buffer, index = move(index)
    elif new is old or index is getattr(old, "index", None):
        return new
    index = tuple(tidy(i, env) for i in index)
    if isinstance(new, Load):
        return Load(buffer, index)
    return Store(buffer, index, new.value)


def _moved_update(old: Node, new: Update, env: Env, moves: Mapping[Buffer, Move]) -> Update:
    buffers, index = list(new.buffers), new.index
    for n, b in enumerate(new.buffers):
        if b in moves:
            buffers[n], index = moves[b](new.index)
    if new is old and tuple(buffers) == new.buffers:
        return new
    return Update(tuple(buffers), tuple(tidy(i, env) for i in index), new.values, new.reducer)


def renamed(stmt: Stmt, taken: set[str], suffix: str) -> tuple[Stmt, dict[str, str]]:
    """A copy of `stmt` whose loops and inner buffers have names of their own, and old -> new."""
    table: dict[str, str] = {}
    values: dict[Any, Any] = {}
    moves: dict[Buffer, Move] = {}
    copies: dict[Buffer, Buffer] = {}
    for place in walk(stmt):
        s = place.stmt
        if isinstance(s, For):
            table[s.var.name] = fresh(taken, s.var.name + suffix)
            values[s.var] = Var(table[s.var.name], INDEX)
        elif isinstance(s, Alloc):
            b = s.buffer
            table[b.name] = fresh(taken, b.name + suffix)
            copies[b] = Buffer(table[b.name], b.shape, b.dtype, b.scope)
            moves[b] = _to(copies[b])
    new = rewrite(stmt, {}, values, moves)
    return (with_allocs(new, copies) if copies else new), table


def _to(buffer: Buffer) -> Move:
    return lambda index: (buffer, index)


def with_allocs(root: Stmt, copies: Mapping[Buffer, Buffer]) -> Stmt:
    """`root` with the buffers of its Alloc statements replaced."""

    def step(s: Stmt) -> Stmt:
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
        return block(*new.stmts) if isinstance(new, Block) else new

    return step(root)


def is_zero(e: Expr) -> bool:
    """Whether an index is the constant 0."""
    return isinstance(e, Const) and e.value == 0
