"""Random programs as a user may write them: in part, in place, one buffer by several nests.

Unlike the chains of `random_kernels`, where each nest makes one whole tensor from the one before,
nests here write boxes at offsets and strides, read what they or others write (mirrored, shifted,
clamped by a `min`, or gathered by another tensor), start their reductions or add to existing
values, by operators that commute or not, and leave parts of the outputs unchanged. Every element
read is defined. Loops of 0 and 1 iterations occur.

All values are int32, which wraps around, so that every order of a commutative reduction gives the
same bits; int64 parameters hold indices below `INDICES`, which every gathered dimension has.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.compute.build import cast
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Buffer, Expr, Lt, Max, Min, Select, Var, const
from tilewright.ir.node import substitute
from tilewright.loops.nodes import Alloc, If, Kernel, Stmt, Store, Update, block, loop

i32 = dtypes.int32
INDICES = 3
_A = Var("a", i32)
_B = Var("b", i32)
# The last nonzero value: associative, but not commutative.
LAST = Reducer(
    "last",
    (_A,),
    (_B,),
    (Select(_B.ne(0), _B, _A),),
    (const(0, i32),),
    commutative=False,
)
# By the variable of a loop, the number of its iterations.
Loops = Mapping[Var, int]


def random_program(r: random.Random) -> Kernel:
    """Two to four nests over up to three inputs, two outputs and two intermediates."""
    return _Program(r).kernel()


def random_arrays(kernel: Kernel, seed: int) -> dict[Buffer, Any]:
    """The contents of the caller's buffers before a run, the outputs included."""
    rng = np.random.default_rng(seed)
    found: dict[Buffer, Any] = {}
    for b in kernel.params:
        low, high = (0, INDICES) if b.dtype is INDEX else (-4, 5)
        found[b] = rng.integers(low, high, b.shape).astype(b.dtype.numpy)
    return found


class _Program:
    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.count = 0
        rows = r.randint(INDICES, 7)
        columns = r.randint(INDICES, 9)
        self.x = Buffer("X", (rows, columns), i32)
        self.b = Buffer("B", (columns,), i32)
        self.at = Buffer("P", (r.randint(1, 6),), INDEX)
        shape = (r.randint(INDICES, 7), r.randint(INDICES, 9))
        self.outputs = [Buffer("Y", shape, i32), Buffer("Z", shape, i32)]
        self.readable = [self.x, self.b, *self.outputs]
        self.targets = list(self.outputs)

    def kernel(self) -> Kernel:
        made: list[tuple[Stmt, list[Buffer]]] = []
        for _ in range(self.r.randint(2, 4)):
            new: list[Buffer] = []
            count = len(self.targets)
            if self.chance(0.4) and count < 4:
                new.append(Buffer(f"T{count}", self._shape(), i32))
            definitions = [self._whole(b) for b in new]
            made.append((block(*definitions, self._nest()), new))
        body = block()
        for stmt, new in reversed(made):
            body = block(stmt, body)
            for b in new:
                body = Alloc(b, body)
        inputs = (self.x, self.b, self.at)
        outputs = tuple(self.outputs)
        return Kernel("p", (*inputs, *self.outputs), outputs, body)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.r.random() < probability

    def _shape(self) -> tuple[int, ...]:
        if self.chance(0.3):
            return (self.r.randint(INDICES, 9),)
        other = self.r.choice([b.shape for b in self.readable if len(b.shape) == 2])
        if self.chance(0.6):
            return other
        return (self.r.randint(INDICES, 6), self.r.randint(3, 8))

    def _whole(self, b: Buffer) -> Stmt:
        """A nest that defines all of an intermediate, which may be used from then on."""
        loops = self._loops(b.shape)
        body = Store(b, tuple(loops), self._value(loops))
        nest = _around(loops, body)
        self.readable.append(b)
        self.targets.append(b)
        return nest

    def _loops(self, extents: tuple[int, ...]) -> dict[Var, int]:
        self.count += 1
        loops = {}
        for letter, extent in zip("ijkl", extents, strict=False):
            loops[Var(f"n{self.count}.{letter}", INDEX)] = extent
        return loops

    def _inner(self, extent: int) -> dict[Var, int]:
        self.count += 1
        return {Var(f"n{self.count}.k", INDEX): extent}

    # -- nests

    def _nest(self) -> Stmt:
        target = self.r.choice(self.targets)
        loops, index = self._box(target)
        return self.r.choice(_NESTS)(self, target, loops, index)

    def _box(self, target: Buffer) -> tuple[dict[Var, int], tuple[Expr, ...]]:
        """Loops over a box of the target, at offsets and strides, and where in it they write."""
        r = self.r
        extents = []
        index = []
        steps = [r.choice([1, 1, 1, 2]) for _ in target.shape]
        starts = [r.choice([0, 0, r.randint(0, 2)]) for _ in target.shape]
        for n, step, start in zip(target.shape, steps, starts, strict=True):
            most = (n - 1 - start) // step + 1
            extent = r.choice([most, most, r.randint(1, most)])
            if self.chance(0.06):
                extent = r.choice([0, 1, 1])
            extents.append(extent)
        loops = self._loops(tuple(extents))
        for v, step, start in zip(loops, steps, starts, strict=True):
            if step > 1:
                place = v * step
            else:
                place = v
            index.append(place + start if start else place)
        if self.chance(0.3):
            exchanged = r.sample(list(loops.items()), len(loops))
            loops = dict(exchanged)
        if self.chance(0.15):
            d = r.randrange(len(index))
            index[d] = self._index(loops, target.shape[d])
        return loops, tuple(index)

    def _store(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        body = Store(target, index, self._value(loops))
        return _around(loops, body)

    def _in_place(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """Reads the buffer that it writes, at the same place or another one."""
        if self.chance(0.5):
            own = index
        else:
            own = self._place(target, loops)
        factor = self.r.choice([1, 2])
        value = target[own] * factor + self._value(loops)
        body = Store(target, index, value)
        return _around(loops, body)

    def _reduction(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """Started or not, over one loop or two, inside the box's loops or in a nest after."""
        r = self.r
        commutative = [reducer(name, i32) for name in ("add", "max", "xor")]
        op = r.choice([*commutative, LAST])
        extent = r.choice([0, 1, 2, 3, 3, 4, 4])
        inner = self._inner(extent)
        if self.chance(0.3):
            extent = r.randint(1, 3)
            inner |= self._inner(extent)
        value = self._value(loops | inner)
        step = Update((target,), (index,), (value,), op)
        start = Store(target, index, op.identity[0])
        form = r.random()
        if form < 0.25:
            inside_first = self.chance(0.5)
            if inside_first:
                around = loops | inner
            else:
                around = inner | loops
            return _around(around, step)
        if form < 0.7:
            body = block(start, _around(inner, step))
            return _around(loops, body)
        first = _renamed(self, loops, start)
        then = _around(inner | loops, step)
        return block(first, then)

    def _extremes(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """The extreme value and its index; one or both are kept."""
        name = self.r.choice(["argmax", "argmin"])
        op = arg_reducer(name, i32, i32)
        alike = [b for b in self.targets if b.shape == target.shape]
        others = [b for b in alike if b is not target]
        if others:
            place = self.r.choice(others)
        else:
            place = Buffer(f"I{self.count}", target.shape, i32)
        extent = self.r.randint(1, 4)
        inner = self._inner(extent)
        (k,) = inner
        both = (target, place)
        if self.chance(0.5):
            both = (place, target)
        places = (index, index)
        if self.chance(0.2):
            places = (index, self._place(both[1], loops))
        start = [Store(*at) for at in zip(both, places, op.identity, strict=True)]
        value = self._value(loops | inner, avoid=both)
        update = Update(both, places, (value, cast(k, i32)), op)
        step = _around(inner, update)
        body = block(*start, step)
        nest = _around(loops, body)
        if others:
            return nest
        return Alloc(place, nest)

    def _scan(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """A running result along the innermost loop."""
        op = self.r.choice([reducer("add", i32), LAST])
        acc = Buffer(f"acc{self.count}", (1,), i32, "register")
        *outer, (v, n) = loops.items()
        first = (const(0),)
        step = Update((acc,), (first,), (self._value(loops),), op)
        written = Store(target, index, acc[0])
        body = loop(v, n, block(step, written))
        start = Store(acc, first, op.identity[0])
        scan = Alloc(acc, block(start, body))
        return _around(dict(outer), scan)

    def _scatter(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """Write where another tensor says, so that several iterations may write one element."""
        d = self.r.randrange(len(index))
        at = list(index)
        at[d] = self._gathered(loops)
        value = self._value(loops)
        written: Stmt = Store(target, tuple(at), value)
        if self.chance(0.5):
            op = reducer("add", i32)
            written = Update((target,), (tuple(at),), (value,), op)
        return _around(loops, written)

    def _staged(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """Through a row of the innermost loop, allocated around it."""
        *outer, (v, n) = loops.items()
        scope = self.r.choice(["stack", "global"])
        t = Buffer(f"t{self.count}", (max(n, 1),), i32, scope)
        first = self._inner(n)
        (u,) = first
        value = self._value(dict(outer) | first)
        body = Store(t, (u,), value)
        made = _around(first, body)
        other = self.r.choice([v, n - 1 - v])
        reader = Store(target, index, t[v] * 2 - t[other])
        used = loop(v, n, reader)
        return _around(dict(outer), Alloc(t, block(made, used)))

    def _guarded(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        other = None
        if self.chance(0.4):
            other = Store(target, index, self._value(loops))
        then = Store(target, index, self._value(loops))
        condition = self._condition(loops)
        body = If(condition, then, other)
        return _around(loops, body)

    def _several(
        self,
        target: Buffer,
        loops: dict[Var, int],
        index: tuple[Expr, ...],
    ) -> Stmt:
        """Two statements in one body, of one buffer or of two."""
        first = Store(target, index, self._value(loops))
        other = self.r.choice(self.targets)
        second = Store(other, self._place(other, loops), self._value(loops))
        if self.chance(0.4):
            second = Store(target, index, target[index] + self._value(loops))
        body = block(first, second)
        return _around(loops, body)

    # -- expressions

    def _condition(self, loops: Loops) -> Expr:
        v = self.r.choice(list(loops))
        limit = const(self.r.randint(1, 4))
        tests = [Lt(v, limit), (v % 2).eq(0), self.b[0] < 1]
        return self.r.choice(tests)

    def _value(self, loops: Loops, avoid: tuple[Buffer, ...] = ()) -> Expr:
        load = self._load(loops, avoid)
        form = self.r.randrange(6)
        if form == 0:
            return Max(load, self._load(loops, avoid))
        if form == 1:
            return load - self._load(loops, avoid) * 3
        if form == 2:
            return load + cast(self.r.choice(list(loops)), i32)
        if form == 3:
            condition = self._condition(loops)
            otherwise = self._load(loops, avoid)
            return Select(condition, load, otherwise)
        if form == 4:
            return load * 5 + 1
        return load

    def _load(self, loops: Loops, avoid: tuple[Buffer, ...]) -> Expr:
        found = [b for b in self.readable if b not in avoid]
        # Often a buffer that is never written: too many conflicts leave nothing to schedule.
        # Or the newest intermediate: a producer next to its consumer can be moved.
        some = self.r.choice([found, found[-1:], [self.x, self.b]])
        b = self.r.choice(some)
        return b[self._place(b, loops)]

    def _place(self, b: Buffer, loops: Loops) -> tuple[Expr, ...]:
        free = list(loops)
        index: list[Expr] = []
        for n in b.shape:
            fits = [v for v in free if loops[v] <= n]
            if fits and self.chance(0.7):
                index.append(fits[0])
                free.remove(fits[0])
            elif self.chance(0.1):
                index.append(self._gathered(loops))
            else:
                index.append(self._index(loops, n))
        return tuple(index)

    def _gathered(self, loops: Loops) -> Expr:
        extent = self.at.shape[0]
        return self.at[self._index(loops, extent)]

    def _index(self, loops: Loops, extent: int) -> Expr:
        """Some index inside an extent."""
        env = {v: (0, max(n - 1, 0)) for v, n in loops.items()}
        for _ in range(6):
            form = self.r.choice(_FORMS)
            u = self.r.choice(list(loops))
            v = self.r.choice(list(loops))
            e = form(self.r, u, v)
            lo, hi = bounds(e, env)
            if lo is None or hi is None or hi - lo >= extent:
                continue
            shift = 0
            if lo < 0 or hi >= extent:
                shift = self.r.randint(-lo, extent - 1 - hi)
            return e + shift if shift else e
        return const(self.r.randrange(extent))


def _renamed(
    p: _Program,
    loops: dict[Var, int],
    body: Stmt,
) -> Stmt:
    """The body in its own loops, as many."""
    extents = tuple(loops.values())
    own = p._loops(extents)
    mapping = dict(zip(loops, own, strict=True))
    inner: Stmt = substitute(body, mapping)
    return _around(own, inner)


def _around(loops: Mapping[Var, int], body: Stmt) -> Stmt:
    for v, n in reversed(list(loops.items())):
        body = loop(v, n, body)
    return body


def _clamped(r: random.Random, u: Var) -> Expr:
    scaled = u * r.randint(1, 4)
    return Min(scaled, const(r.randint(1, 6)))


_FORMS: tuple[Callable[[random.Random, Var, Var], Expr], ...] = (
    lambda r, u, v: u,
    lambda r, u, v: u + v,
    lambda r, u, v: u * 2 + v,
    lambda r, u, v: u * 2 - v,
    lambda r, u, v: const(0) - u,
    lambda r, u, v: u // 2,
    lambda r, u, v: u % 3,
    lambda r, u, v: _clamped(r, u) + v,
    lambda r, u, v: _clamped(r, u),
    lambda r, u, v: Max(u - r.randint(1, 2), const(0)),
    lambda r, u, v: Min(u + 1, v * 2),
)

Nest = Callable[[_Program, Buffer, dict[Var, int], tuple[Expr, ...]], Stmt]
_NESTS: tuple[Nest, ...] = (
    _Program._store,
    _Program._store,
    _Program._in_place,
    _Program._reduction,
    _Program._reduction,
    _Program._extremes,
    _Program._scan,
    _Program._scatter,
    _Program._staged,
    _Program._guarded,
    _Program._several,
)
