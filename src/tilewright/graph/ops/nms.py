"""NonMaxSuppression: the best boxes of each class that do not overlap a better one too much.

A box is a candidate if its score is above the threshold; among equal scores the first box comes
first. A NaN is above no threshold; without a threshold it comes last. Two boxes overlap too much if
their intersection is more than `iou_threshold` of their union; boxes without an area overlap none.
The rows (batch, class, box) are in the order of selection.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from tilewright.base import dtypes
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import int64
from tilewright.compute.reducer import reducer
from tilewright.expr.nodes import INDEX, Buffer, Expr, Max, Min, Select, const
from tilewright.expr.nodes import call as apply
from tilewright.graph.ops.open_extents import DOMAIN, cleared
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register
from tilewright.loops.nests import LoopNests, kernel
from tilewright.loops.nodes import If, Kernel, Stmt, Store, Update, While, block
from tilewright.loops.sorting import (
    FALSE,
    TRUE,
    CounterCell,
    MergeSort,
    ShuffleSort,
    allocated,
    both,
)

Buffers = Sequence[Buffer]
# The operands after boxes and scores; the last one is the number of boxes.
MOST, OVERLAP, SCORE, COUNT = 2, 3, 4, 5
# Chosen boxes are compared in vectors, and the results tested in chunks.
LANES, CHUNK = 16, 128


def _rows(call: OpCall) -> int:
    """The most rows there can be."""
    boxes = call.shape(0)
    scores = call.shape(1)
    fits = len(boxes) == 3 and boxes[2] == 4 and len(scores) == 3
    if not fits or (boxes[0], boxes[1]) != (scores[0], scores[2]):
        raise call.error(f"boxes {list(boxes)} and scores {list(scores)} do not match")
    most = boxes[1]
    if not call.has(MOST):
        most = 0
    elif call.constant(MOST) is not None:
        most = min(most, max(call.int_scalar(MOST), 0))
    return scores[0] * scores[1] * most


def _type(call: OpCall) -> Sequence[Type]:
    return [(int64, (_rows(call), 3)), (int64, ())]


@dataclass(frozen=True)
class _Suppression:
    """The parts of the Kernel."""

    call: OpCall
    inputs: Buffers
    outputs: Buffers
    nests: LoopNests

    counters: ClassVar[Sequence[str]] = (
        "count",
        "most",
        "candidates",
        "at",
        "kept",
        "fits",
        "total",
    )

    @cached_property
    def boxes(self) -> int:
        """The capacity in boxes."""
        return max(self.inputs[0].shape[1], 1)

    @cached_property
    def sorting(self) -> MergeSort | ShuffleSort:
        """Sorts the candidates."""
        return MergeSort(self.boxes)

    @property
    def scratch(self) -> list[Buffer]:
        """The buffers, without those of the sort."""
        return [self.corners, self.chosen, self.candidate, self.hits]

    @cached_property
    def corners(self) -> Buffer:
        """(y1, x1, y2, x2) of each box, and its area."""
        return Buffer("corners", (self.boxes, 5), self.inputs[0].dtype)

    @cached_property
    def chosen(self) -> Buffer:
        """The corners and areas of the chosen boxes of this class; after them, areas of 0."""
        room = -(-self.boxes // CHUNK) * CHUNK
        return Buffer("chosen", (5, room), self.inputs[0].dtype)

    @cached_property
    def candidate(self) -> Buffer:
        """The corners and the area of the current box."""
        return Buffer("candidate", (5,), self.inputs[0].dtype, "stack")

    @cached_property
    def hits(self) -> Buffer:
        """Which of the chosen boxes it overlaps, by their position in a vector."""
        return Buffer("hits", (LANES,), dtypes.int32, "stack")

    @cached_property
    def cells(self) -> dict[str, CounterCell]:
        """The counters."""
        return {n: CounterCell(n) for n in self.counters}

    def given(
        self,
        n: int,
    ) -> Expr | None:
        """An optional operand's only element."""
        if not self.call.has(n):
            return None
        b = self.inputs[n]
        return b[(0,) * len(b.shape)]

    def setup(self) -> Stmt:
        """Reset the counters."""
        c = self.cells
        here: Expr = const(self.inputs[0].shape[1])
        count = self.given(COUNT)
        most = self.given(MOST)
        if count is not None:
            here = Max(Min(count, here), const(0))
        return block(
            c["count"].set(here),
            c["most"].set(0 if most is None else most),
            c["total"].set(0),
        )

    def measure(
        self,
        b: Expr,
        n: Expr,
    ) -> Stmt:
        """The corners of box `n` of a batch, in order, and its area."""
        x = self.inputs[0]
        first, second, third, fourth = (x[b, n, k] for k in range(4))
        if self.call.attr("center_point_box", 0):
            down = fourth / 2.0
            across = third / 2.0
            top, left = second - down, first - across
            bottom, right = second + down, first + across
        else:
            top = Min(first, third)
            left = Min(second, fourth)
            bottom = Max(first, third)
            right = Max(second, fourth)
        at = self.corners
        area = (at[n, 2] - at[n, 0]) * (at[n, 3] - at[n, 1])
        numbers = (top, left, bottom, right, area)
        return block(*(Store(at, (n, const(k)), v) for k, v in enumerate(numbers)))

    def collect(
        self,
        b: Expr,
        c: Expr,
        n: Expr,
    ) -> Stmt:
        """Make box `n` a candidate if its score is above the threshold."""
        threshold = self.given(SCORE)
        found = self.cells["candidates"]
        take = block(Store(self.sorting.places, (found.value,), n), found.add())
        fits = n < self.cells["count"].value
        if threshold is not None:
            fits = fits & (self.inputs[1][b, c, n] > threshold)
        return If(fits, take, None)

    def before(
        self,
        b: Expr,
        c: Expr,
        m: Expr,
        n: Expr,
    ) -> Expr:
        """Whether box `m` has a better score than box `n`."""
        scores = self.inputs[1]
        one = scores[b, c, m]
        other = scores[b, c, n]
        return (one > other) | (apply("isnan", other) & ~apply("isnan", one))

    def overlaps(self, x: Sequence[Expr], y: Sequence[Expr]) -> Expr:
        """Whether a candidate and a chosen box overlap too much, by their corners and areas."""
        zero = const(0, self.corners.dtype)
        top = Max(x[0], y[0])
        left = Max(x[1], y[1])
        down = Min(x[2], y[2]) - top
        across = Min(x[3], y[3]) - left
        shared = down * across
        most = self.given(OVERLAP)
        limit = zero if most is None else most
        areas = (x[4], y[4])
        have_areas = (areas[0] > zero) & (areas[1] > zero)
        solid = have_areas & (shared > zero)
        meet = (down > zero) & (across > zero)
        there = meet & solid
        union = areas[0] + areas[1] - shared
        share = shared / union
        return there & (share > limit)

    def compare(
        self,
        nests: LoopNests,
    ) -> Stmt:
        """Whether the candidate overlaps a chosen box: tests chunks of them until one does."""
        kept = self.cells["kept"]
        fits = self.cells["fits"]
        hits = self.hits
        no = const(0, hits.dtype)
        yes = const(1, hits.dtype)
        place = ((const(0),),)
        least = reducer("min", INDEX)
        mine = [self.candidate[k] for k in range(5)]

        def look(chunk: Expr) -> Stmt:
            def lanes(
                row: Expr,
                lane: Expr,
            ) -> Stmt:
                n = chunk * CHUNK + row * LANES + lane
                here = self.overlaps(mine, [self.chosen[k, n] for k in range(5)])
                return Store(hits, (lane,), Select(here, yes, hits[lane]))

            def found(lane: Expr) -> Stmt:
                free = Select(hits[lane].eq(yes), const(0), const(1))
                return Update((fits.buffer,), place, (free,), least)

            clear = nests.over((LANES,), lambda n: Store(hits, (n,), no), vector=True)
            tests = nests.over((CHUNK // LANES, LANES), lanes, vector=True)
            all_of = block(clear, tests, nests.loop(LANES, found))
            wanted = (chunk * CHUNK < kept.value) & fits.value.eq(1)
            return If(wanted, all_of, None)

        return block(fits.set(1), nests.loop(self.chosen.shape[1] // CHUNK, look))

    def choose(
        self,
        nests: LoopNests,
        b: Expr,
        c: Expr,
    ) -> Stmt:
        """Keep the next candidate unless it overlaps a kept one."""
        cell, selected = self.cells, self.outputs[0]
        at, kept, total = (cell[n] for n in ("at", "kept", "total"))
        box = self.sorting.places[at.value]
        number = [const(k) for k in range(5)]
        load = [Store(self.candidate, (k,), self.corners[box, k]) for k in number]
        keep = [Store(self.chosen, (k, kept.value), self.candidate[k]) for k in number]
        row = zip(number, (b, c, box), strict=False)
        keep += [Store(selected, (total.value, k), v) for k, v in row]
        new = block(*keep, kept.add(), total.add())
        test = If(cell["fits"].value.eq(1), new, None)
        return block(*load, self.compare(nests), test, at.add())

    def of_class(
        self,
        nests: LoopNests,
        b: Expr,
        c: Expr,
    ) -> Stmt:
        """Select the boxes of one class of one batch."""
        cell = self.cells
        at, kept, found = (cell[n] for n in ("at", "kept", "candidates"))
        boxes = self.inputs[0].shape[1]
        collect = nests.loop(boxes, lambda n: self.collect(b, c, n))

        def before(
            m: Expr,
            n: Expr,
        ) -> tuple[Stmt, Expr]:
            return block(), self.before(b, c, m, n)

        going = (at.value < found.value) & (kept.value < cell["most"].value)
        none = const(0, self.chosen.dtype)
        clear = nests.over(
            self.chosen.shape[1:],
            lambda n: Store(self.chosen, (const(4), n), none),
            vector=True,
        )
        return block(
            found.set(0),
            collect,
            self.sorting.sort(found.value, before),
            at.set(0),
            kept.set(0),
            clear,
            While(going, self.choose(nests, b, c)),
        )


class _BlockSuppression(_Suppression):
    """The same for blocks of threads: all threads sort all boxes, and compare a chosen one with all
    that come after it.

    Candidates are the first of the sorted boxes, since others have smaller scores, or none.
    """

    counters: ClassVar[Sequence[str]] = ("count", "most", "at", "kept", "total")

    @cached_property
    def sorting(self) -> ShuffleSort:
        """Sorts the boxes."""
        return ShuffleSort(self.boxes, self.nests)

    @cached_property
    def struck(self) -> Buffer:
        """Which of the sorted boxes overlap a chosen one too much."""
        return Buffer("struck", (self.boxes,), dtypes.bool_)

    @property
    def scratch(self) -> list[Buffer]:
        """The buffers, without those of the sort."""
        return [self.corners, self.struck]

    def strike(self, nests: LoopNests) -> Stmt:
        """Mark the boxes after the current one that overlap it too much."""
        at = self.cells["at"].value
        count = self.cells["count"].value
        chosen = self.measured(at)

        def mark(n: Expr) -> Stmt:
            hits = self.overlaps(self.measured(n), chosen)
            hit = If(hits, Store(self.struck, (n,), TRUE), None)
            is_later = (n > at) & (n < count)
            return If(is_later, hit, None)

        return nests.loop(self.boxes, mark)

    def measured(self, n: Expr) -> list[Expr]:
        """The corners and the area of the n-th of the sorted boxes."""
        box = self.sorting.places[n]
        return [self.corners[box, k] for k in range(5)]

    def choose(self, nests: LoopNests, b: Expr, c: Expr) -> Stmt:
        """Keep the next box unless a kept one overlaps it."""
        cell = self.cells
        at = cell["at"]
        kept = cell["kept"]
        total = cell["total"]
        box = self.sorting.places[at.value]
        selected = self.outputs[0]
        keep = []
        for k, v in enumerate((b, c, box)):
            place = total.value, const(k)
            keep.append(Store(selected, place, v))
        goes_on = kept.value < cell["most"].value
        more = If(goes_on, self.strike(nests), None)
        new = block(*keep, kept.add(), total.add(), more)
        free = ~self.struck[at.value]
        return block(If(free, new, None), at.add())

    def of_class(self, nests: LoopNests, b: Expr, c: Expr) -> Stmt:
        """Select the boxes of one class of one batch."""
        cell = self.cells
        places = self.sorting.places
        at = cell["at"]
        kept = cell["kept"]
        count = cell["count"]
        threshold = self.given(SCORE)

        def before(m: Expr, n: Expr) -> tuple[Stmt, Expr]:
            is_better = self.before(b, c, m, n)
            return block(), is_better

        is_short = kept.value < cell["most"].value
        going = (at.value < count.value) & is_short
        if threshold is not None:
            box = places[at.value]
            score = self.inputs[1][b, c, box]
            going = both(going, score > threshold)

        def free(n: Expr) -> Stmt:
            place = (n,)
            return Store(self.struck, place, FALSE)

        def every(n: Expr) -> Stmt:
            place = (n,)
            return Store(places, place, n)

        return block(
            nests.loop(self.boxes, every),
            self.sorting.sort(count.value, before),
            nests.loop(self.boxes, free),
            at.set(0),
            kept.set(0),
            While(going, self.choose(nests, b, c)),
        )


def _compute(
    call: OpCall,
    inputs: Buffers,
    outputs: Buffers,
) -> list[Kernel]:
    nests = LoopNests()
    form = _BlockSuppression if call.blocks else _Suppression
    parts = form(call, inputs, outputs, nests)
    batches, boxes, _ = inputs[0].shape
    classes = inputs[1].shape[1]
    selected, count = outputs

    def of_batch(b: Expr) -> Stmt:
        measure = nests.loop(boxes, lambda n: parts.measure(b, n))
        per_class = nests.loop(classes, lambda c: parts.of_class(nests, b, c))
        return block(measure, per_class)

    search = nests.loop(batches, of_batch) if selected.size else block()
    total = Store(count, (), parts.cells["total"].value)
    body = block(parts.setup(), search, total)
    room: list[Buffer | CounterCell] = [*parts.cells.values(), *parts.scratch]
    found = parts.sorting.around(allocated(room, body))
    whole = block(cleared(nests, selected), found)
    used = [b for n, b in enumerate(inputs) if call.has(n)]
    return [kernel(call.name, used, outputs, whole)]


register(OpDef("NonMaxSuppression", _type, domain=DOMAIN, compute=_compute))
