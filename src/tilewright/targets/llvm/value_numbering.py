"""Computes each value once, before the outermost loop in which it does not change.

A function is emitted as nested scopes: loops, and branches that may not run. A value is looked up
in the scopes around the current place; a new one goes before the outermost loop whose variable,
memory and branches it does not depend on. That is common subexpression elimination and the
hoisting of loop invariants, by identity of interned expressions.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilewright.expr.affine import Affine
from tilewright.expr.bounds import Env, linear_bounds, within
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import Expr, Extent, Load, Var
from tilewright.expr.reads import Anywhere
from tilewright.ir.node import Node, postorder
from tilewright.targets.llvm.emit_text import Chunk, LlvmValue, LlvmWriter
from tilewright.targets.llvm.processor import Processor

_NOTHING: frozenset[object] = frozenset()


# Not frozen for speed: many are created, and a frozen one takes twice as long.
@dataclass(slots=True, unsafe_hash=True)
class Info:
    """The dependences of a value: variables, memory, and whether computing it needs a guard.

    risky: it reads memory at an index not proven to be inside the buffer by the loops alone.
    """

    vars: frozenset[object] = _NOTHING
    reads: frozenset[object] = _NOTHING
    risky: bool = False

    def __or__(self, other: Info) -> Info:
        if (
            other.vars <= self.vars
            and other.reads <= self.reads
            and self.risky >= other.risky
        ):
            return self
        return Info(
            self.vars | other.vars, self.reads | other.reads, self.risky or other.risky
        )


PURE = Info()


@dataclass(slots=True, eq=False)
class NumberingScope:
    """One loop (`pre` is the place before it) or branch (`pre` is None).

    bound: variables given a value here. writes: buffers that change while the scope runs.
    certain: a loop whose body runs at least once. room: of a loop without loops in it, how many
    registers may yet be loaded before it; 0 of any other. layouts: what `Places.layout` found here.
    """

    pre: Chunk | None = None
    bound: set[object] = field(default_factory=set)
    writes: frozenset[object] = _NOTHING
    certain: bool = True
    room: int = 0
    values: dict[Hashable, LlvmValue] = field(default_factory=dict)
    layouts: dict[Hashable, Any] = field(default_factory=dict)


class Scopes(LlvmWriter):
    """The scope stack of one function, with the cache of values."""

    def __init__(self, machine: Processor) -> None:
        super().__init__()
        self.machine = machine
        self.scopes: list[NumberingScope] = [NumberingScope()]
        self._ranges: dict[object, Interval] = {}
        self.ranges: Env = self._ranges  # `learn` and `forget` alone change it
        # Answers that follow from the ranges: unrolled code asks the same again and again.
        self._bounds: dict[Affine, Interval] = {}
        self._within: dict[tuple[Expr, Extent], bool] = {}
        self.anywhere = Anywhere(self.ranges)
        self._infos: dict[Node, Info] = {}
        self._readers: dict[
            object, list[tuple[dict[Hashable, LlvmValue], Hashable]]
        ] = {}

    # -- what expressions depend on

    def info(self, e: Expr) -> Info:
        """Dependences of an expression; remembered while the ranges of variables stay."""
        found = self._infos.get(e)
        if found is not None:
            return found
        waiting: list[Node] = [e]
        while waiting:
            node = waiting[-1]
            unknown = [c for c in node.children() if c not in self._infos]
            if unknown:
                waiting += unknown
            else:
                waiting.pop()
                self._infos[node] = self._info(node)
        return self._infos[e]

    def _info(self, e: Node) -> Info:
        if isinstance(e, Var):
            return Info(frozenset((e,)))
        total = PURE
        for child in e.children():
            total = total | self._infos[child]
        if isinstance(e, Load):
            total = total | Info(reads=frozenset((e.buffer,)), risky=not self.proven(e))
        return total

    def proven(self, load: Load) -> bool:
        """Whether the loops' ranges alone keep every index inside the buffer."""
        places = zip(load.index, load.buffer.extents, strict=True)
        return all(self.is_within(part, extent) for part, extent in places)

    # -- what is known of variables

    def bounds_of(self, form: Affine) -> Interval:
        """The bounds of a linear form by `ranges`."""
        found = self._bounds.get(form)
        if found is None:
            found = self._bounds[form] = linear_bounds(form, self.ranges)
        return found

    def is_within(self, part: Expr, extent: Extent) -> bool:
        """Whether `ranges` prove `0 <= part < extent`."""
        key = (part, extent)
        found = self._within.get(key)
        if found is None:
            found = self._within[key] = within(part, extent, self.ranges)
        return found

    def learn(self, known: Env) -> None:
        """Add to `ranges`. Answers are found anew if that changes them."""
        if any(self.ranges.get(key) != known[key] for key in known):
            self._ranges |= known
            self._forget_answers()

    def _forget_answers(self) -> None:
        self._bounds.clear()
        self._within.clear()

    # -- the cache

    def lookup(self, key: Hashable) -> LlvmValue | None:
        """The value kept under `key` in a scope around the current place."""
        for scope in reversed(self.scopes):
            found = scope.values.get(key)
            if found is not None:
                return found
        return None

    def cached(
        self, key: Hashable, info: Info, make: Callable[[], LlvmValue]
    ) -> LlvmValue:
        """The value kept under `key`; else `make()` emitted where `info` allows."""
        found = self.lookup(key)
        if found is not None:
            return found
        return self.new(key, info, make)

    def new(
        self, key: Hashable, info: Info, make: Callable[[], LlvmValue]
    ) -> LlvmValue:
        """`make()`, not yet kept under `key`, emitted at the outermost place that `info` allows."""
        return self._made(self._placement(info), key, info, make)

    def _made(
        self, depth: int, key: Hashable, info: Info, make: Callable[[], LlvmValue]
    ) -> LlvmValue:
        """`make()`, emitted with `depth` of the scopes around it, and kept."""
        if depth == len(self.scopes):
            made = make()
            self._keep(self.scopes[-1], key, made, info)
            return made
        inner, out = self.scopes, self.out
        pre = inner[depth].pre
        assert pre is not None
        self.scopes = inner[:depth]
        self.out = pre
        try:
            made = make()
            self._keep(self.scopes[-1], key, made, info)
        finally:
            self.scopes, self.out = inner, out
        return made

    def shared(
        self,
        key: Hashable,
        info: Info,
        make: Callable[[], LlvmValue],
        registers: int = 1,
    ) -> LlvmValue:
        """The value kept under `key`; else `make()` emitted here, or before the innermost loop.

        registers: how many it fills. Hoisted further, a cheap vector load would occupy them in
        loops that do not use it. It goes before the innermost loop if registers are left.
        """
        found = self.lookup(key)
        if found is not None:
            return found
        depth = len(self.scopes)
        outermost = self._placement(info)
        for n in range(outermost, depth):
            if self.scopes[n].room >= registers:
                self.scopes[n].room -= registers
                depth = n
                break
        return self._made(depth, key, info, make)

    def _placement(self, info: Info) -> int:
        """How many scopes stay around the value: all of them, or those outside some loop."""
        best = len(self.scopes)
        for n in range(len(self.scopes) - 1, 0, -1):
            scope = self.scopes[n]
            if not info.vars.isdisjoint(scope.bound):
                break
            if not info.reads.isdisjoint(scope.writes):
                break
            if info.risky and (scope.pre is None or not scope.certain):
                break
            if scope.pre is not None:
                best = n
        return best

    def _keep(
        self, scope: NumberingScope, key: Hashable, value: LlvmValue, info: Info
    ) -> None:
        scope.values[key] = value
        for buffer in info.reads:
            self._readers.setdefault(buffer, []).append((scope.values, key))

    def changed(self, buffers: Iterable[object]) -> None:
        """Forget loads from buffers that change now."""
        for buffer in buffers:
            for values, key in self._readers.pop(buffer, ()):
                values.pop(key, None)

    def bind(
        self, var: Var, value: LlvmValue, interval: Interval | None = None
    ) -> None:
        """Give a variable its value in the innermost scope, and its range for proofs."""
        scope = self.scopes[-1]
        scope.bound.add(var)
        scope.values[var] = value
        if interval is not None:
            if self.ranges.get(var, interval) != interval:
                self.forget(var)
            self.learn({var: interval})

    def forget(self, var: Var) -> None:
        """Forget facts from the range of a variable: a loop emitted several times may have another
        range each time."""
        self._infos.clear()
        self.anywhere.known.clear()
        self._forget_answers()
        facts = [key for key in self.ranges if isinstance(key, frozenset)]
        for fact in facts:
            if any(var in postorder(atom) for atom, _ in fact):
                del self._ranges[fact]
