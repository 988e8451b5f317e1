"""pad: a loop with more iterations, so that tiles of one size fill it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtypes import DType
from tilewright.expr import bounds as intervals
from tilewright.expr.bounds import bounds, refine
from tilewright.expr.nodes import And, Buffer, Const, Expr, Load, Lt, Select, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import (
    Access,
    Env,
    Index,
    accesses,
    environment,
    guarded_accesses,
)
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.terms import loads, variables
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
from tilewright.loops.printer import show_place
from tilewright.loops.walk import StatementPlace, loops_of, walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_kinds, refuse
from tilewright.schedule.registry import primitive
from tilewright.schedule.staging import rebuffered, within


@primitive
def pad(kernel: Kernel, loop: str, multiple: int) -> tuple[Kernel, None]:
    """Round the extent of a loop up to a multiple; the added iterations have no visible effect.

    args: the loop; the factor.
    requires: a constant extent, of the loops inside too; no while loop or Unit inside; no access
        that is inside its buffer only because of a guard on the loop, at an index without it.
    Formally, an added iteration changes nothing that outlives it: each write is guarded, or a
    reduction step with the identity, or to an element that did not exist; and every element it
    reads exists, even if its index was computed by the loop itself.
    An added iteration reads 0 if its index leaves the buffer (a guarded read yields its own
    alternative). In a reduction over the loop this must make its step the identity; otherwise all
    reads that the loop indexes yield the reducer's identity or 0, if that suffices, and otherwise
    the whole value is selected. Other stores go to new elements of an allocated buffer if all the
    loop's stores to it do; the remaining ones, such as those to parameters, get a guard
    (cache_write first). A later cache_read(pad=True) makes padded copies, which removes the guards
    from the nest: TVM's pad_einsum.
    before: for k in 7: c[0] += A[k] * B[k]                                    pad('k', 4)
    after:  for k in 8: c[0] += select(k < 7, A[k], 0) * select(k < 7, B[k], 0)
    """
    f, place = tree.find_loop(kernel, loop, "pad")
    n = tree.trips(f, "pad")
    if multiple < 1:
        raise refuse(
            "pad",
            loop,
            f"{multiple} is not a number of iterations",
            "take 1 or more",
        )
    for p in walk(f.body):
        if isinstance(p.stmt, While | Unit):
            what = "a while loop" if isinstance(p.stmt, While) else p.stmt.name
            raise refuse("pad", loop, f"{what} is inside", "pad before it is put there")
    _check_guards(kernel, f)
    total = -(-n // multiple) * multiple
    if total == n:
        return kernel, None
    padded = _Padded(f, n, total, environment(kernel.body))
    grown = padded.room(_allocated_around(place))
    new = For(f.var, const(total), f.kind, padded.stmt(f.body))
    result = edit.put(kernel, place, new)
    for old, buffer in grown.items():
        result = rebuffered(result, _alloc_of(result, old), buffer, lambda index: index)
    loops = (*place.loops, *loops_of(new))
    names = [x.var.name for x in loops]
    check_kinds(result, names, "pad", "pad before the loops get their kinds")
    return result, None


def _allocated_around(place: StatementPlace) -> set[Buffer]:
    buffers = (getattr(s, "buffer", None) for s in place.above)
    return {b for b in buffers if b is not None}


def _alloc_of(kernel: Kernel, buffer: Buffer) -> StatementPlace:
    """Where it is allocated, found by identity, since another buffer may have its name."""
    for p in walk(kernel.body):
        if isinstance(p.stmt, Alloc) and p.stmt.buffer is buffer:
            return p
    raise AssertionError(f"{buffer.name} is not allocated in {kernel.name}")


def _check_guards(kernel: Kernel, f: For) -> None:
    """No access may owe its safety to a guard on the loop alone, which will reach further."""
    env = environment(kernel.body)
    for x in loops_of(f.body):
        tree.trips(x, "pad")
    for a in guarded_accesses(kernel.body, f):
        guarded = any(f.var in variables(condition) for condition, _ in a.guards)
        safe = within(a.index, a.buffer, env) is None
        if guarded and not safe and not any(f.var in variables(i) for i in a.index):
            raise refuse(
                "pad",
                f.var.name,
                f"{show_place(a.buffer, a.index)} owes its safety to a guard on this loop",
                "partition_loop first",
            )


def _is_guarded(node: Select) -> bool:
    """Whether it is a read with a constant for where it is not allowed."""
    return isinstance(node.then, Load) and isinstance(node.otherwise, Const)


def _or_zero(value: Const | None, dtype: DType) -> Const:
    return const(0, dtype) if value is None else value


class _Padded:
    """The body of a loop for iterations `0 .. total-1`, of which those from `n` on have no
    effect."""

    def __init__(
        self,
        f: For,
        n: int,
        total: int,
        env: Env,
    ) -> None:
        self.loop = f
        self.n = n
        self.inside = Lt(f.var, const(n))
        self.private = allocated(f.body)
        self.all = {**env, f.var: (0, total - 1)}
        self.added = {**env, f.var: (n, total - 1)}
        self.roomy: set[Buffer] = set()

    def room(self, around: set[Buffer]) -> dict[Buffer, Buffer]:
        """The buffers that get room for the added iterations' stores, and what they become.

        Every store in the loop must then be to a new element, so that it changes no old one.
        """
        writes: dict[Buffer, list[Access]] = {}
        for a in accesses(self.loop.body):
            if a.writes and a.buffer in around:
                writes.setdefault(a.buffer, []).append(a)
        grown: dict[Buffer, Buffer] = {}
        for b, found in writes.items():
            if all(map(self._beyond, found)):
                shape = tuple(self._room_in(d, b, found) for d in range(len(b.shape)))
                grown[b] = Buffer(b.name, shape, b.dtype, b.scope)
        self.roomy = set(grown)
        return grown

    def _room_in(self, d: int, b: Buffer, found: Sequence[Access]) -> int:
        """The extent of dimension `d` that all of these accesses need."""
        extent = b.shape[d]
        for a in found:
            _, top = bounds(a.index[d], self.all)
            extent = max(extent, (top or 0) + 1)
        return extent

    def _beyond(self, a: Access) -> bool:
        """Whether an added iteration accesses elements that there are not yet."""
        new = False
        for i, extent in zip(a.index, a.buffer.shape, strict=True):
            lo, hi = bounds(i, self.all)
            if lo is None or lo < 0 or hi is None:
                return False
            first_added, _ = bounds(i, self.added)
            if first_added is not None and first_added >= extent:
                new = True
        return new

    def _depends(self, e: Expr | Index) -> bool:
        """Whether an added iteration may find another value than all the others did.

        It may where the index has the loop's variable, or something from an iteration's own memory.
        """
        index = e if isinstance(e, tuple) else (e,)
        used = {v for i in index for v in variables(i)}
        read = {x.buffer for i in index for x in loads(i)}
        return self.loop.var in used or not read.isdisjoint(self.private)

    def _written(self, s: Store | Update) -> set[Buffer]:
        if isinstance(s, Store):
            return {s.buffer}
        return set(s.buffers)

    def _guarded(self, s: Store | Update) -> bool:
        """Whether an added iteration must not perform this write."""
        if self._is_private(s):
            return self._moves(s)
        if self._written(s) <= self.roomy:
            return False
        return isinstance(s, Store) or self._moves(s)

    def _moves(self, s: Store | Update) -> bool:
        """Whether the loop has a say in where the statement writes."""
        indices = (s.index,) if isinstance(s, Store) else s.indices
        return any(map(self._depends, indices))

    def stmt(self, s: Stmt) -> Stmt:
        """`s` in all iterations."""
        leaves = [p.stmt for p in walk(s) if isinstance(p.stmt, Store | Update)]
        outer = [x for x in leaves if self._guarded(x) or not self._is_private(x)]
        if outer and all(map(self._guarded, outer)):
            return If(self.inside, s, None)
        if isinstance(s, Block):
            return block(*map(self.stmt, s.stmts))
        if isinstance(s, Update):
            needs_guard = self._moves(s) or self._is_private(s)
            if not needs_guard:
                return Update(s.buffers, s.indices, self._neutral(s), s.reducer)

        def child(c: Any) -> Any:
            return self.stmt(c) if isinstance(c, Stmt) else self._read(c)

        new: Stmt = s.map(child)
        return new

    def _is_private(self, s: Store | Update) -> bool:
        """Whether it writes only memory that belongs to the iteration."""
        return self._written(s) <= self.private

    def _read(
        self,
        e: Any,
        value: Const | None = None,
        neutral: bool = False,
    ) -> Any:
        """An expression that stays within its buffers in the added iterations.

        What it reads there is `value` (None: zero); neutral: even where it could read more.
        """
        if not isinstance(e, Expr):
            return e
        done: dict[Any, Any] = {}
        for node in postorder(e):
            new = node.map(done.__getitem__)
            if (
                isinstance(node, Load)
                and isinstance(new, Load)
                and self._depends(node.index)
            ):
                guard = self.inside if neutral else self._guard(node, self.all)
                if guard is not None:
                    new = Select(guard, new, _or_zero(value, node.dtype))
            elif isinstance(node, Select) and isinstance(new, Select):
                new = self._merged(node, new, neutral)
            done[node] = new
        found: Expr = done[e]
        return found

    def _guard(self, load: Load, env: intervals.Env) -> Expr | None:
        """Where all iterations may read an element; None if they may without a guard.

        Where its index is inside, so that a copy of the buffer can have the padding; an index that
        is read itself is only that of the old iterations.
        """
        inside = within(load.index, load.buffer, env)
        if inside is None or not any(list(loads(i)) for i in load.index):
            return inside
        return self.inside

    def _merged(self, old: Select, new: Select, neutral: bool) -> Select:
        """A read that had a guard before has one guard afterwards too, if it needs more."""
        inner, read = new.then, old.then
        if not isinstance(inner, Select) or not isinstance(read, Load):
            return new
        added: Expr = self.inside
        if not neutral and new.condition is old.condition:
            found = self._guard(read, refine(self.all, old.condition))
            if found is None:
                return Select(old.condition, inner.then, new.otherwise)
            added = found
        if inner.otherwise is not new.otherwise:
            return new
        return Select(And(new.condition, added), inner.then, new.otherwise)

    def _neutral(self, s: Update) -> tuple[Expr, ...]:
        """The values of a step, which in the added iterations leave the result unchanged."""
        identity = s.reducer.identity

        def is_neutral(values: Sequence[Expr | None]) -> bool:
            pairs = zip(values, identity, strict=True)
            return all(v is not None and simplify(v) is i for v, i in pairs)

        if is_neutral([self._clipped(v, added=True) for v in s.values]):
            return tuple(map(self._clipped, s.values))
        for value in (identity[0], None):
            if is_neutral([self._added(v, value) for v in s.values]):
                return tuple(self._read(v, value, neutral=True) for v in s.values)
        choices = zip(s.values, identity, strict=True)
        return tuple(Select(self.inside, v, i) for v, i in choices)

    def _clipped(self, e: Expr, added: bool = False) -> Expr:
        """`e` with reads outside their buffer replaced by the padding value.

        added: for an added iteration, in which some reads are certainly outside.
        """
        done: dict[Any, Any] = {}
        for node in postorder(e):
            new = node.map(done.__getitem__)
            if (
                isinstance(node, Load)
                and isinstance(new, Load)
                and self._depends(node.index)
            ):
                new = self._or_outside(new, None, const(0, new.dtype), added)
            elif (
                isinstance(node, Select)
                and isinstance(new, Select)
                and _is_guarded(node)
            ):
                load = node.then
                if isinstance(load, Load) and self._depends(load.index):
                    inner = load.map(done.__getitem__)
                    new = self._or_outside(inner, new.condition, node.otherwise, added)
            done[node] = new
        found: Expr = done[e]
        return found

    def _or_outside(
        self, load: Load, guard: Expr | None, outside: Expr, added: bool
    ) -> Expr:
        known = self.all if guard is None else refine(self.all, guard)
        inside = within(load.index, load.buffer, known)
        if added and inside is not None and self._leaves(load):
            return outside
        if guard is None:
            if inside is None:
                return load
            return Select(inside, load, outside)
        return Select(guard if inside is None else And(guard, inside), load, outside)

    def _leaves(self, load: Load) -> bool:
        """Whether every added iteration reads beyond the end of an axis."""
        lows = (bounds(i, self.added)[0] for i in load.index)
        pairs = zip(lows, load.buffer.shape, strict=True)
        return any(low is not None and low >= extent for low, extent in pairs)

    def _added(self, e: Expr, value: Const | None) -> Expr | None:
        """What `e` is in an added iteration that reads `value`; None where that has no dtype."""
        done: dict[Any, Any] = {}
        for node in postorder(e):
            done[node] = node.map(done.__getitem__)
            if isinstance(node, Load) and self._depends(node.index):
                if value is not None and value.dtype is not node.dtype:
                    return None
                done[node] = _or_zero(value, node.dtype)
        found: Expr = done[e]
        return found
