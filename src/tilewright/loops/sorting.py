"""Counters and stable sorts of indices, for hand-written Kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tilewright.base import dtypes
from tilewright.expr.nodes import INDEX, Buffer, Expr, Min, Select, const
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import Alloc, If, Stmt, Store, While, block

FALSE = const(False, dtypes.bool_)
TRUE = const(True, dtypes.bool_)
# Whether the element at one index comes before that at another: statements and the answer.
Before = Callable[[Expr, Expr], tuple[Stmt, Expr]]


class CounterCell:
    """A counter of a Kernel; in a register, of each thread."""

    def __init__(self, name: str, scope: str = "stack") -> None:
        self.buffer = Buffer(name, (1,), INDEX, scope)

    @property
    def value(self) -> Expr:
        """Its value."""
        return self.buffer[0]

    def set(
        self,
        value: Expr | int,
    ) -> Stmt:
        """Store a number."""
        number = const(value) if isinstance(value, int) else value
        return Store(self.buffer, (const(0),), number)

    def add(
        self,
        step: Expr | int = 1,
    ) -> Stmt:
        """Increment it."""
        return self.set(self.value + step)


def allocated(
    buffers: Iterable[Buffer | CounterCell],
    body: Stmt,
) -> Stmt:
    """`body` with the buffers allocated."""
    for b in buffers:
        body = Alloc(b.buffer if isinstance(b, CounterCell) else b, body)
    return body


def both(
    first: Expr,
    second: Expr,
) -> Expr:
    """`first and second`; the second is evaluated only if the first holds."""
    return Select(first, second, FALSE)


class MergeSort:
    """Sorts the first `count` of `places` by the elements that they index; the sort is stable.

    Bottom up: runs of 1, 2, 4, ... indices are merged into `other` and copied back, which takes
    count * log2(count) comparisons for any input.
    """

    def __init__(
        self,
        room: int,
    ) -> None:
        self.places = Buffer("places", (max(room, 1),), INDEX)
        self.other = Buffer("merged", (max(room, 1),), INDEX)
        names = ("width", "start", "middle", "end", "left", "right", "to", "first")
        self._cells = {n: CounterCell(n) for n in names}

    def around(
        self,
        body: Stmt,
    ) -> Stmt:
        """`body` with the buffers for the indices and for sorting them."""
        return allocated((self.places, self.other, *self._cells.values()), body)

    def sort(
        self,
        count: Expr,
        before: Before,
    ) -> Stmt:
        """The statement that sorts. before: a strict order of indices."""
        width = self._cells["width"]
        start = self._cells["start"]
        runs = While(start.value < count, self._merge_runs(count, before))
        level = block(start.set(0), runs, self._copy_back(count))
        doubled = width.set(width.value * 2)
        return block(width.set(1), While(width.value < count, block(level, doubled)))

    def _merge_runs(
        self,
        count: Expr,
        before: Before,
    ) -> Stmt:
        """Merge the two runs from `start` on."""
        c = self._cells
        start = c["start"]
        width = c["width"]
        to = c["to"]
        bounds = block(
            c["middle"].set(Min(start.value + width.value, count)),
            c["end"].set(Min(start.value + width.value * 2, count)),
            c["left"].set(start.value),
            c["right"].set(c["middle"].value),
            to.set(start.value),
        )
        step = block(*self._choose(before), to.add())
        merge = While(to.value < c["end"].value, step)
        return block(bounds, merge, start.set(c["end"].value))

    def _choose(
        self,
        before: Before,
    ) -> Iterable[Stmt]:
        """Store the next index of both runs: from the right one if it comes strictly before."""
        left, right, to = (self._cells[n] for n in ("left", "right", "to"))
        first = self._cells["first"]
        has_left = left.value < self._cells["middle"].value
        has_right = right.value < self._cells["end"].value
        at_left = self.places[left.value]
        at_right = self.places[right.value]
        look, answer = before(at_right, at_left)
        from_right = block(look, first.set(Select(answer, const(1), const(0))))
        compare = If(both(has_left, has_right), from_right, None)
        yield first.set(Select(has_left, const(0), const(1)))
        yield compare
        take_left = block(Store(self.other, (to.value,), at_left), left.add())
        take_right = block(Store(self.other, (to.value,), at_right), right.add())
        yield If(first.value.eq(1), take_right, take_left)

    def _copy_back(
        self,
        count: Expr,
    ) -> Stmt:
        to = self._cells["to"]
        move = Store(self.places, (to.value,), self.other[to.value])
        return block(to.set(0), While(to.value < count, block(move, to.add())))


class ShuffleSort:
    """Sorts the first `count` of `places` by the elements that they index, in independent steps.

    For blocks of threads: a bitonic sort whose passes all compare place t with place t + half, and
    deal them to 2t and 2t + 1 (Stone's perfect shuffle). After as many passes as an index has bits,
    each place is at its index again; so the loops over passes need no index that depends on them.
    Places that are equal in order keep theirs, since the smaller one comes first.
    """

    def __init__(self, room: int, nests: LoopNests) -> None:
        self.nests = nests
        self.bits = max((room - 1).bit_length(), 1)
        self.size = 1 << self.bits
        self.places = Buffer("places", (self.size,), INDEX)
        self.other = Buffer("dealt", (self.size,), INDEX)

    def around(self, body: Stmt) -> Stmt:
        """`body` with the buffers for the indices."""
        return allocated((self.places, self.other), body)

    def sort(self, count: Expr, before: Before) -> Stmt:
        """The statement that sorts. before: a strict order of indices, without statements."""
        loop = self.nests.loop
        rest = loop(self.size, lambda n: If(n >= count, self._none(n), None))
        return block(rest, loop(self.bits, partial(self._stage, before)))

    def _none(self, n: Expr) -> Stmt:
        """A place that comes after all others."""
        return Store(self.places, (n,), const(self.size))

    def _stage(self, before: Before, stage: Expr) -> Stmt:
        """Merge sorted runs of 2 ** stage places, of which every other one is in reverse."""

        def turn(n: Expr) -> Stmt:
            there = self._pass(before, (stage, n * 2), (self.places, self.other))
            back = self._pass(before, (stage, n * 2 + 1), (self.other, self.places))
            return block(there, back)

        turns = self.nests.loop(self.bits // 2, turn) if self.bits > 1 else block()
        if self.bits % 2 == 0:
            return turns
        last = (stage, const(self.bits - 1))
        return block(
            turns,
            self._pass(before, last, (self.places, self.other)),
            self.nests.copy(self.places, lambda n: self.other[n]),
        )

    def _pass(
        self,
        before: Before,
        at: tuple[Expr, Expr],
        buffers: tuple[Buffer, Buffer],
    ) -> Stmt:
        """Compare places whose indices differ in one bit, if it is one of the stage, and deal them.

        at: the stage and the pass in it: the bit is `bits - 1 - pass`, and that of the direction is
        by now in place `pass - (bits - 1 - stage)`.
        """
        (stage, number), (source, target) = at, buffers
        half, last = self.size // 2, self.bits - 1
        bit = number + stage - last
        swap = Buffer("swap", (1,), INDEX, "register")

        def deal(t: Expr) -> Stmt:
            one, two = source[t], source[t + half]
            down = both(stage < last, ((t >> bit) & 1).eq(1))
            wrong = Select(
                down, self._first(one, two, before), self._first(two, one, before)
            )
            found = Select(both(bit >= 0, wrong), const(1), const(0))
            swaps = swap[0].eq(1)
            return Alloc(
                swap,
                block(
                    Store(swap, (const(0),), found),
                    Store(target, (t * 2,), Select(swaps, two, one)),
                    Store(target, (t * 2 + 1,), Select(swaps, one, two)),
                ),
            )

        return self.nests.loop(half, deal)

    def _first(self, one: Expr, two: Expr, before: Before) -> Expr:
        """Whether a place comes before another one."""
        forward = before(one, two)[1]
        backward = before(two, one)[1]
        ordered = Select(one < two, ~backward, forward)
        return both(one < self.size, Select(two < self.size, ordered, TRUE))
