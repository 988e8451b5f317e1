"""Sorts of places by keys without a sign, for hand-written Kernels on one thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, const
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import Stmt, Store, While, block
from tilewright.loops.sorting import CounterCell, allocated

DIGIT: Final = 8  # bits
VALUES: Final = 1 << DIGIT


class RadixSort:
    """Sorts the first `count` of `keys`, and `places` along with them; the sort is stable.

    Digit by digit, the lowest first (Knuth, volume 3, 5.2.5): each pass deals all places to where
    those of their digit go, which takes count steps per digit for any input and compares nothing.
    key: the type of the keys, unsigned.
    """

    def __init__(self, room: int, key: DType, nests: LoopNests) -> None:
        self.nests = nests
        self.digits = key.bits // DIGIT
        shape = (max(room, 1),)
        self.keys = Buffer("keys", shape, key)
        self.places = Buffer("order", shape, INDEX)
        self._other = (Buffer("dealt_keys", shape, key), Buffer("dealt", shape, INDEX))
        # For each digit and value the number of keys, then where the next one goes.
        self._next = Buffer("next", (self.digits, VALUES), INDEX)
        self._at, self._to = CounterCell("at_key"), CounterCell("to_place")

    def around(self, body: Stmt) -> Stmt:
        """`body` with the buffers for the indices and for sorting them."""
        own = (self.keys, self.places, *self._other, self._next, self._at, self._to)
        return allocated(own, body)

    def sort(self, count: Expr) -> Stmt:
        """The statement that sorts."""
        here, there = (self.keys, self.places), self._other
        steps = [
            self.nests.copy(self._next, lambda d, v: const(0)),
            self._along(count, self._counted),
            self.nests.loop(self.digits, self._first_places),
        ]
        for digit in range(self.digits):
            steps.append(self._along(count, partial(self._dealt, digit, here, there)))
            here, there = there, here
        return block(*steps)

    def _along(self, count: Expr, body: Callable[[Expr], Stmt]) -> Stmt:
        at = self._at
        step = block(body(at.value), at.add())
        return block(at.set(0), While(at.value < count, step))

    def _counted(self, n: Expr) -> Stmt:
        """Count the digits of a key."""
        steps: list[Stmt] = []
        for digit in range(self.digits):
            value = self._digit(self.keys[n], digit)
            at = (const(digit), value)
            steps.append(Store(self._next, at, self._next[at] + 1))
        return block(*steps)

    def _first_places(self, digit: Expr) -> Stmt:
        """Where the first key of each value goes: behind all that have less."""
        at, to = self._at, self._to

        def value(v: Expr) -> Stmt:
            here = (digit, v)
            own = at.set(self._next[here])
            return block(own, Store(self._next, here, to.value), to.add(at.value))

        return block(to.set(0), self.nests.loop(VALUES, value))

    def _dealt(
        self,
        digit: int,
        source: tuple[Buffer, Buffer],
        target: tuple[Buffer, Buffer],
        n: Expr,
    ) -> Stmt:
        """Deal a key and its place by one digit."""
        to = self._to
        value = self._digit(source[0][n], digit)
        here = (const(digit), value)
        move = [Store(t, (to.value,), s[n]) for s, t in zip(source, target)]
        return block(
            to.set(self._next[here]),
            *move,
            Store(self._next, here, to.value + 1),
        )

    @staticmethod
    def _digit(key: Expr, digit: int) -> Expr:
        shifted = key >> const(digit * DIGIT, key.dtype)
        return Cast(shifted & const(VALUES - 1, key.dtype), INDEX)
