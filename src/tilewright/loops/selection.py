"""The first k elements of a row by keys, for hand-written Kernels on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tilewright.base.dtypes import DType
from tilewright.expr.nodes import INDEX, Buffer, Cast, Expr, Max, Min, Select, const
from tilewright.loops.nests import LoopNests
from tilewright.loops.nodes import If, Stmt, Store, While, block
from tilewright.loops.radix import RadixSort
from tilewright.loops.sorting import CounterCell, allocated

Key = Callable[[Expr], Expr]
# Elements that are passed over together if none of them can be among the first: so many at once,
# so many times.
LANES, TIMES = 16, 4
PIECE: Final = LANES * TIMES
# Candidates per result for which there is room.
CANDIDATES: Final = 4
LEAST_ROOM: Final = 8 * PIECE
# Leading bits of a key by which candidates are told apart first: of a float32, its sign, its
# exponent and three bits more.
LEADING: Final = 12


def _least(values: Sequence[Expr]) -> Expr:
    """The least of values whose number is a power of two, in as few steps one after another."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return Min(_least(values[:half]), _least(values[half:]))


class KeySelection:
    """The places of the first k elements of a row in the order of their keys; it is stable.

    An element is a candidate if its key is at most `limit`, which all are at first. Where there is
    no room for more candidates, those far behind the k-th are dropped, by the leading bits of their
    keys; if half of them would stay, they are sorted instead, and k stay. The limit is then what
    those that are left show. At the end, candidates are sorted. In most orders few elements are
    candidates, and whole pieces of a row are passed over; in the worst, all are sorted, in parts.
    key: the type of keys, unsigned. extent: the number of elements that a row has at most.
    """

    def __init__(
        self,
        k: int,
        extent: int,
        key: DType,
        nests: LoopNests,
    ) -> None:
        self.k = k
        self.extent = extent
        self.key = key
        self.nests = nests
        most = max(CANDIDATES * k, LEAST_ROOM)
        self.in_room = extent <= most  # all elements may be candidates
        self.room = min(extent, most)
        self.sorter = RadixSort(self.room + 1, key, nests)  # the last is never kept
        self._limit = Buffer("limit", (1,), key)
        self._piece = Buffer("piece", (TIMES, LANES), key)
        self._least = Buffer("least", (LANES,), key)
        self._counts = Buffer("leading", (1 << LEADING,), INDEX)
        self._at = CounterCell("at")
        self._found = CounterCell("found")
        self._seen = CounterCell("seen")
        self._kept = CounterCell("kept")
        self._bucket = CounterCell("bucket")

    @property
    def places(self) -> Buffer:
        """Where in the row its first k elements are, in order."""
        return self.sorter.places

    def around(self, body: Stmt) -> Stmt:
        """`body` with the buffers."""
        cells = (self._at, self._found, self._seen, self._kept, self._bucket)
        buffers = (self._limit, self._piece, self._least, self._counts)
        return self.sorter.around(allocated((*cells, *buffers), body))

    def select(
        self,
        key: Key,
        count: Expr,
    ) -> Stmt:
        """The statement that selects. key: of a place below `count`. requires: k <= count."""
        at = self._at
        highest = (1 << self.key.bits) - 1
        offer = self._offer(key(at.value), at.value)
        rest = block(offer, at.add())
        return block(
            at.set(0),
            self._found.set(0),
            self._set_limit(const(highest, self.key)),
            block() if self.in_room else self._pieces(key, count),
            While(at.value < count, rest),
            If(self._found.value > 2 * self.k, self._drop(), None),
            self.sorter.sort(self._found.value),
        )

    def _pieces(
        self,
        key: Key,
        count: Expr,
    ) -> Stmt:
        """Offer the elements of whole pieces, and leave room for one piece more."""
        at = self._at
        piece = self._piece
        least = self._least
        nests = self.nests
        # `at`, in a form that shows that the piece is inside of the row.
        start = Max(Min(at.value, const(self.extent - PIECE)), const(0))

        def keys(p: Expr, i: Expr) -> Expr:
            return key(start + p * LANES + i)

        def lane(i: Expr) -> Expr:
            return _least([piece[p, i] for p in range(TIMES)])

        def offered(p: Expr, i: Expr) -> Stmt:
            return self._offer(piece[p, i], at.value + p * LANES + i)

        smallest = _least([least[i] for i in range(LANES)])
        offers = block(nests.over(piece.shape, offered), self._make_room())
        step = block(
            nests.copy(piece, keys),
            nests.copy(least, lane),
            If(smallest <= self._limit[0], offers, None),
            at.add(PIECE),
        )
        return While(at.value + PIECE <= count, step)

    def _offer(
        self,
        key: Expr,
        place: Expr,
    ) -> Stmt:
        """Add an element to the candidates if it is one; without a branch."""
        to = self._found
        return block(
            Store(self.sorter.keys, (to.value,), key),
            Store(self.sorter.places, (to.value,), place),
            to.add(self._is_within(key)),
        )

    def _set_limit(self, key: Expr) -> Stmt:
        return Store(self._limit, (const(0),), key)

    def _is_within(self, key: Expr) -> Expr:
        """One if a key is within the limit, else zero."""
        return Select(key <= self._limit[0], const(1), const(0))

    def _make_room(self) -> Stmt:
        """Drop candidates if there is no room for another piece."""
        found, k = self._found, self.k
        last = self.sorter.keys[k - 1]
        one = const(1, self.key)
        # Of those behind, only what comes strictly before the last one is among the first.
        before = Max(last, one) - one
        ordered = block(
            self.sorter.sort(found.value),
            found.set(k),
            self._set_limit(before),
        )
        many = found.value > self.room // 2
        full = found.value > self.room - PIECE
        return If(full, block(self._drop(), If(many, ordered, None)), None)

    def _drop(self) -> Stmt:
        """Keep the candidates whose leading bits are at most those of the k-th."""
        found = self._found
        seen = self._seen
        kept = self._kept
        bucket = self._bucket
        keys = self.sorter.keys
        places = self.sorter.places
        counts = self._counts
        shift = const(self.key.bits - LEADING, self.key)
        own = keys[seen.value]
        leading = Cast(own >> shift, INDEX)
        count = Store(counts, (leading,), counts[leading] + 1)
        move = block(
            Store(keys, (kept.value,), own),
            Store(places, (kept.value,), places[seen.value]),
            kept.add(self._is_within(own)),
        )
        add = block(kept.add(counts[bucket.value]), bucket.add())
        # Wraps to the highest key behind the last value of the leading bits.
        last = Cast(bucket.value, self.key)
        limit = (last << shift) - const(1, self.key)
        return block(
            self.nests.copy(counts, lambda n: const(0)),
            self._each_found(count),
            bucket.set(0),
            kept.set(0),
            While(kept.value < self.k, add),
            self._set_limit(limit),
            kept.set(0),
            self._each_found(move),
            found.set(kept.value),
        )

    def _each_found(self, body: Stmt) -> Stmt:
        """`body` for each candidate, `seen`."""
        seen = self._seen
        step = block(body, seen.add())
        return block(seen.set(0), While(seen.value < self._found.value, step))
