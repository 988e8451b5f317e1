"""Statements to blocks: loops, branches, masks, stores and reductions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.base import dtypes
from tilewright.base.errors import LimitError, UnsupportedError
from tilewright.compute.reducer import Reducer
from tilewright.expr.bounds import bounds, less_than
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    Add,
    And,
    Buffer,
    Expr,
    Load,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.expr.reads import reads_memory
from tilewright.ir.node import Node, instances, substitute
from tilewright.loops.nodes import (
    GPU_AXES,
    SIZE,
    Alloc,
    Block,
    For,
    If,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
    loop,
)
from tilewright.loops.walk import loops_of, summary
from tilewright.targets.llvm.emit_expr import Expressions
from tilewright.targets.llvm.emit_interleaved import MOST_INTERLEAVED, store_interleaved
from tilewright.targets.llvm.emit_memory import MAX_LANES
from tilewright.targets.llvm.emit_registers import (
    CarriedLoop,
    RegisterArray,
    register_slots,
)
from tilewright.targets.llvm.emit_text import (
    Chunk,
    LlvmValue,
    header_stem,
    int_vector,
    integer,
)
from tilewright.targets.llvm.emit_types import constant
from tilewright.targets.llvm.statements import (
    has_vector_loop,
    same_control_flow,
    written,
)
from tilewright.targets.llvm.value_numbering import NumberingScope

# An innermost loop may hold preloaded vectors in one of HELD registers.
HELD = 4


# The names of a loop itself: four blocks, a counter and its next value, and their comparison.
LOOP_NAMES = 7


class Statements(Expressions):
    """Emits statements in order into one function."""

    def emit(self, s: Node) -> None:
        """One statement at the current place."""
        _RULES[type(s)](self, s)

    def place_buffer(self, buffer: Buffer) -> None:
        """Give an allocated buffer its address, once per function."""
        raise NotImplementedError

    def parallel(self, s: For) -> None:
        """A parallel loop that is not inside another one."""
        raise NotImplementedError

    def counter(self, extent: Interval) -> str:
        """The type of the counter of a loop with this extent."""
        return "i64"

    def may_be_values(self, buffer: Buffer) -> bool:
        """Whether an array that is allocated here may be values and no memory."""
        return False

    def may_repeat(self, s: For) -> bool:
        """Whether LLVM writes out an unrolled loop: see `emit_repeated`."""
        return False

    def repeat(self, branch: str, written_out: bool) -> None:
        """The branch that ends a loop's body; written_out: until LLVM writes it out."""
        self.line(branch)

    def step(self, counter: LlvmValue, following: str, length: int) -> None:
        """A loop counter's next value, under the name `following`; length: values that the loop's
        body would name if all arrays were in memory."""
        self.line(f"{following} = add nuw nsw {counter.typed}, 1")

    def intrinsic(self, s: Unit) -> None:
        """A Unit that is an instruction of the machine."""
        raise NotImplementedError

    def in_order(self, stmts: Sequence[Node]) -> None:
        """Statements one after another, interleaved stores together."""
        n = 0
        while n < len(stmts):
            together = store_interleaved(self, stmts[n : n + MOST_INTERLEAVED])
            if not together:
                self.emit(stmts[n])
            n += together or 1

    # -- loops

    def _for(self, s: For) -> None:
        if s.kind in GPU_AXES:
            raise UnsupportedError(
                f"it is bound to {s.kind}, a GPU axis, but the target is a CPU",
                where=f"loop {s.var.name}",
                hint="parallel() runs a loop on CPU threads",
            )
        trips = s.trips
        if s.kind == SIZE:  # the function has its value from the call
            self.emit(s.body)
            return
        if trips == 0:
            return
        if trips == 1:
            self.emit(substitute(s.body, {s.var: const(0)}))
            return
        kind = self._runs(s)
        if kind == "unroll" and trips is not None:
            self._unrolled(s, trips)
        elif kind == "repeat" and trips is not None:
            self._repeated(s, trips)
        elif kind == "vector":
            self._vector(s)
        elif kind == "strips":
            self.emit(_in_strips(s, self.machine.vector_bits // 32))
        elif kind == "parallel" and self.vector is None and self.number is None:
            self.parallel(s)
        else:
            self.serial(s, integer(0), self.value(s.extent), trips is not None)

    def _unrolled(self, s: For, trips: int) -> None:
        try:
            self.in_order([*instances(s.body, s.var, map(const, range(trips)))])
        except LimitError as error:
            raise error.at(f"loop {s.var.name}, unrolled {trips} times") from None

    def _repeated(self, s: For, trips: int) -> None:
        """An unrolled loop that LLVM writes out."""
        before = self.count + self.spared
        outer, self.repeating = self.repeating, True
        self.serial(s, integer(0), integer(trips), True)
        self.repeating = outer
        named = self.count + self.spared - before - LOOP_NAMES
        self.spared += (trips - 1) * named - LOOP_NAMES

    def _runs(self, s: For) -> str:
        """How a loop is run: as its kind says, or as `_vector_kind` does; "repeat": unrolled, by
        LLVM."""
        if s.kind == "unroll" and (self.repeating or self._may_repeat(s)):
            return "repeat"
        return self._vector_kind(s) if s.kind == "vector" else s.kind

    def _may_repeat(self, s: For) -> bool:
        """As `may_repeat`, of loops that change no array that is values."""
        if self.vector is not None or not self.may_repeat(s):
            return False
        found = summary(s)
        return self.arrays.keys().isdisjoint(found.reads | found.writes)

    def _vector_kind(self, s: For) -> str:
        """How a vector loop is run: as vectors, in strips of them, unrolled, or serially."""
        trips = s.trips
        if trips is None or self.vector is not None or not same_control_flow(s):
            return "serial"
        if has_vector_loop(s.body):
            return "unroll" if trips <= MAX_LANES else "serial"
        return "vector" if trips <= MAX_LANES else "strips"

    def serial(self, s: For, start: LlvmValue, end: LlvmValue, certain: bool) -> None:
        """A loop over `start .. end-1`, tested at its end; certain: it runs at least once."""
        low, high = bounds(s.extent, self.ranges)
        type = self.counter((low, high))
        start, end = (self.convert("trunc", v, type) for v in (start, end))
        changed = written(s.body)
        self.changed(changed)
        pre: Chunk = []
        self.out.append(pre)
        written_out = self.repeating
        name = "part" if written_out else header_stem(s.var.name)
        stems = ("pre", name, "latch", "after")
        before, head, latch, after = map(self.fresh, stems)
        if certain:
            self.line(f"br label {before}")
        else:
            some = self.compare("icmp slt", start, end)
            self.line(f"br {some.typed}, label {before}, label {after}")
        self.label(before)
        self.line(f"br label {head}")
        self.label(head)
        carried = self._carried(changed, before, latch)
        i = self.fresh("i")
        following = self.fresh("i")
        self.line(
            f"{i} = phi {type} [ {start.text}, {before} ], [ {following}, {latch} ]"
        )
        scope = NumberingScope(pre, writes=changed, certain=certain)
        if all(f.kind in ("unroll", "vector") for f in loops_of(s.body)):
            scope.room = self.machine.registers // HELD
        self.scopes.append(scope)
        counted = self.convert("zext nneg", LlvmValue(i, type), "i64")
        self.bind(s.var, counted, (0, None if high is None else high - 1))
        if s.trips is None and not reads_memory(s.extent):
            # What it says of the extent holds in the loop only, and is left out.
            self.learn(less_than(s.var, s.extent))
        before_body = self.count + self.spared
        self.emit(s.body)
        self.scopes.pop()
        self.line(f"br label {latch}")
        self.label(latch)
        for array in carried:
            array.leave()
        length = self.count + self.spared - before_body
        if written_out:  # LLVM has to see how often
            Statements.step(self, LlvmValue(i, type), following, length)
        else:
            self.step(LlvmValue(i, type), following, length)
        again = self.compare("icmp ne", LlvmValue(following, type), end)
        self.repeat(f"br {again.typed}, label {head}, label {after}", written_out)
        self.label(after)

    def _carried(
        self, changed: Iterable[Buffer], before: str, latch: str
    ) -> list[RegisterArray]:
        """The arrays in registers that a loop changes, whose phis are the next lines."""
        arrays = [self.arrays[b] for b in changed if b in self.arrays]
        if arrays:
            head: Chunk = []
            self.out.append(head)
            for array in arrays:
                array.enter(self, CarriedLoop(head, before, latch))
        return arrays

    def _vector(self, s: For) -> None:
        lanes = s.trips
        assert lanes is not None
        changed = written(s.body)
        self.changed(changed)
        pre: Chunk = []
        self.out.append(pre)
        self.scopes.append(NumberingScope(pre, writes=changed))
        self.bind(s.var, int_vector(list(range(lanes))), (0, lanes - 1))
        self.vector = (s.var, lanes)
        self.emit(s.body)
        self.vector = None
        self.scopes.pop()

    def _while(self, s: While) -> None:
        changed = written(s.body)
        self.changed(changed)
        pre: Chunk = []
        self.out.append(pre)
        head, body, after = (self.fresh(n) for n in ("head", "body", "after"))
        self.line(f"br label {head}")
        self.label(head)
        self.scopes.append(NumberingScope(pre, writes=changed))
        condition = self.value(s.condition)
        self.line(f"br {condition.typed}, label {body}, label {after}")
        self.label(body)
        self.scopes.append(NumberingScope())
        self.emit(s.body)
        self.scopes.pop()
        self.scopes.pop()
        self.repeat(f"br label {head}", False)
        self.label(after)

    # -- branches

    def when(self, condition: LlvmValue, body: Callable[[], None]) -> None:
        """Run `body` if a scalar condition holds."""
        if condition.const is not None:
            if condition.const:
                body()
            return
        then = self.fresh("then")
        after = self.fresh("after")
        self.line(f"br {condition.typed}, label {then}, label {after}")
        self.label(then)
        self.scopes.append(NumberingScope())
        body()
        self.scopes.pop()
        self.line(f"br label {after}")
        self.label(after)

    def _if(self, s: If) -> None:
        condition = self.value(s.condition)
        otherwise = s.otherwise
        if condition.lanes > 1:
            self._masked_if(s, condition)
            return
        self.when(condition, lambda: self.emit(s.then))
        if otherwise is not None:
            other = self.ops.invert(condition, dtypes.bool_)
            self.when(other, lambda: self.emit(otherwise))

    def _masked_if(self, s: If, condition: LlvmValue) -> None:
        outer = self.guard
        masks = [condition]
        if s.otherwise is not None:
            masks.append(self.ops.invert(condition, dtypes.bool_))
        if outer is not None:
            held = self.value(outer)
            masks = [self.ops.binary(And, m, held, dtypes.bool_) for m in masks]
        for mask, body in zip(masks, (s.then, s.otherwise), strict=False):
            assert body is not None
            self.guard = Var("mask", dtypes.bool_)
            self.scopes.append(NumberingScope())
            self.bind(self.guard, mask)
            self.emit(body)
            self.scopes.pop()
        self.guard = outer

    # -- memory

    def _alloc(self, s: Alloc) -> None:
        buffer = s.buffer
        self.changed((buffer,))
        slots = self._register_slots(s)
        if slots is not None:
            self.arrays[buffer] = RegisterArray(buffer, slots)
        else:
            self.place_buffer(buffer)
        if self.vector is not None:
            self.private[buffer] = self.vector[1]
        self.emit(s.body)
        self.private.pop(buffer, None)
        self.arrays.pop(buffer, None)

    def _register_slots(self, s: Alloc) -> dict[int, int] | None:
        """The slots of an array that is values in its scope; None if it is memory."""
        if self.vector is not None or self.number is not None:
            return None
        if self.guard is not None or not self.may_be_values(s.buffer):
            return None
        known: dict[int, str] = {}

        def runs(loop: For) -> str:
            how = known.get(id(loop))
            if how is None:
                how = known[id(loop)] = self._runs(loop)
            return how

        return register_slots(s, runs)

    def target(
        self, buffer: Buffer, index: tuple[Expr, ...], mask: LlvmValue | None
    ) -> tuple[tuple[Expr, ...], LlvmValue | None]:
        """A safe index to write at, and the mask of allowed writes (None: all).

        mask: where it would be, were the index safe.
        """
        parts: list[Expr] = []
        for part, extent in zip(index, buffer.extents, strict=True):
            if self.is_unproven(part, extent):
                safe = self.clamped(part, extent)
                assert isinstance(safe, Select)
                ok = self.value(safe.condition)
                mask = (
                    ok if mask is None else self.ops.binary(And, mask, ok, dtypes.bool_)
                )
                part = safe
            parts.append(part)
        return tuple(parts), mask

    def guard_value(self) -> LlvmValue | None:
        """The value of the guard around the statement (None: always true)."""
        if self.guard is None:
            return None
        return self.holds(self.guard)

    def _store(self, s: Store) -> None:
        v = self.value(s.value)
        index, mask = self.target(s.buffer, s.index, self.guard_value())
        if 0 in s.buffer.extents:
            return
        place = self.layout(s.buffer, index)
        lanes = max(v.lanes, mask.lanes if mask is not None else 1)
        if place.is_uniform and lanes > 1:
            self.by_lane(s)
        elif mask is not None and mask.lanes == 1:
            self.when(mask, lambda: self.store(s.buffer, index, v))
        else:
            self.store(s.buffer, index, v, mask)
        self.changed((s.buffer,))

    def by_lane(self, s: Stmt) -> None:
        """A statement whose lanes must run one after another."""
        assert self.vector is not None
        (var, lanes), outer = self.vector, self.guard
        mask = None if outer is None else self.value(outer)
        self.vector, self.guard = None, None
        for n in range(lanes):
            self.changed(self.private)
            self.number = n
            one = substitute(s, {var: const(n)})
            if mask is None:
                permitted = integer(1, "i1")
            else:
                permitted = self.lane(mask, n)
            self.when(permitted, partial(self.emit, one))
        self.number = None
        self.vector = (var, lanes)
        self.guard = outer
        self.changed(self.private)

    # -- reductions

    def _update(self, s: Update) -> None:
        mask = self.guard_value()
        safe: list[tuple[Expr, ...]] = []
        for b, index in s.targets:
            index, mask = self.target(b, index, mask)
            safe.append(index)
        if any(0 in b.extents for b in s.buffers):
            return
        s = Update(s.buffers, tuple(safe), s.values, s.reducer)
        places = [self.layout(b, index) for b, index in s.targets]
        for b, place in zip(s.buffers, places, strict=True):
            if b not in self.arrays:  # its address, in front of those of the values
                self.pointer(b, place.form.terms, 0)
        meets = {place.is_uniform for place in places}
        if any(place.may_meet for place in places) or len(meets) > 1:
            self.by_lane(s)
            return
        values = [self.value(v) for v in s.values]
        if self.lanes > 1 and meets == {True}:
            self._reduce_lanes(s, values, mask)
        elif mask is not None and mask.lanes == 1:
            self.when(mask, lambda: self._combine_at(s, values, None))
        else:
            self._combine_at(s, values, mask)
        self.changed(s.buffers)

    def _combine_at(
        self, s: Update, values: Sequence[LlvmValue], mask: LlvmValue | None
    ) -> None:
        """`buffers[indices] = reducer(buffers[indices], values)`, lane by lane."""
        old = [self.value(Load(b, index)) for b, index in s.targets]
        for (buffer, index), new in zip(
            s.targets, self.combine(s.reducer, old, values), strict=True
        ):
            self.store(buffer, index, new, mask)

    def combine(
        self, reducer: Reducer, lhs: Sequence[LlvmValue], rhs: Sequence[LlvmValue]
    ) -> list[LlvmValue]:
        """The reducer's components on held values."""
        self.scopes.append(NumberingScope())
        for group, values in ((reducer.lhs, lhs), (reducer.rhs, rhs)):
            for var, v in zip(group, values, strict=True):
                self.bind(var, v)
        lanes = max(v.lanes for v in (*lhs, *rhs))
        result = [self.splat(self.value(e), lanes) for e in reducer.result]
        self.scopes.pop()
        return result

    def _reduce_lanes(
        self, s: Update, values: list[LlvmValue], mask: LlvmValue | None
    ) -> None:
        """All lanes update one element: a tree over the lanes, then one step in memory."""
        lanes = 1 << (self.lanes - 1).bit_length()
        held = [self.splat(v, self.lanes) for v in values]
        neutral = [constant(i.value, i.dtype) for i in s.reducer.identity]
        if mask is not None:
            chosen = self.splat(mask, self.lanes)
            held = [
                self.select(chosen, v, n) for v, n in zip(held, neutral, strict=True)
            ]
        if lanes != self.lanes:
            order = [n if n < self.lanes else self.lanes for n in range(lanes)]
            held = [
                self.shuffle(v, order, self.splat(n, self.lanes))
                for v, n in zip(held, neutral, strict=True)
            ]
        while lanes > 1:
            lanes //= 2
            halves = _halves(lanes, s.reducer.commutative)
            low, high = ([self.shuffle(v, part) for v in held] for part in halves)
            held = self.combine(s.reducer, low, high)
        if mask is None:
            anywhere = integer(1, "i1")
        else:
            anywhere = self.any(mask)
        self.when(anywhere, lambda: self._combine_scalar(s, held))

    def _combine_scalar(self, s: Update, values: list[LlvmValue]) -> None:
        outer, self.guard = self.guard, None
        self._combine_at(s, values, None)
        self.guard = outer


def _block(x: Statements, s: Block) -> None:
    x.in_order(s.stmts)


def _unit(x: Statements, s: Unit) -> None:
    if s.intrinsic is None:
        x.emit(s.body)
    else:
        x.intrinsic(s)


_RULES: Mapping[type[Node], Callable[[Any, Any], None]] = {
    Block: _block,
    For: Statements._for,
    While: Statements._while,
    If: Statements._if,
    Alloc: Statements._alloc,
    Store: Statements._store,
    Update: Statements._update,
    Unit: _unit,
}


def _in_strips(s: For, lanes: int) -> Stmt:
    """A vector loop of many iterations as a serial loop of full vectors and a rest."""
    trips = s.trips
    assert trips is not None
    count, rest = divmod(trips, lanes)
    strip, lane, last = (
        Var(f"{s.var.name}.{n}", s.var.dtype) for n in ("strip", "lane", "rest")
    )
    full = substitute(s.body, {s.var: Add(Mul(strip, const(lanes)), lane)})
    parts: list[Stmt] = [loop(strip, count, loop(lane, lanes, full, "vector"))]
    if rest:
        tail = substitute(s.body, {s.var: Add(last, const(count * lanes))})
        parts.append(loop(last, rest, tail, "vector"))
    return block(*parts)


def _halves(lanes: int, commutative: bool) -> tuple[list[int], list[int]]:
    """The lanes of two vectors that are combined: halves, or neighbors to keep the order."""
    if commutative:
        return list(range(lanes)), list(range(lanes, 2 * lanes))
    return list(range(0, 2 * lanes, 2)), list(range(1, 2 * lanes, 2))
