"""Small arrays whose elements are values of the function and never memory, such as the sums of a
tile.

    alloc T: float32[2, 16]:
      for n in 2 unroll: for x in 16 vector: T[n, x] = 0
      for k in 64: for n in 2 unroll: for x in 16 vector: T[n, x] += A[k, n] * B[k, x]
      for n in 2 unroll: for x in 16 vector: C[n, x] = T[n, x]

With the loops written out, each access has a constant place. So what an element holds is known
while the code is written, and a loop that changes it has a phi for it. On the stack, each access
would be an address and a load or a store, all of which LLVM would have to read and remove again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.loops.analysis.access import expressions
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Alloc, Block, For, Stmt, Store, Unit, Update
from tilewright.loops.walk import StatementPlace, walk
from tilewright.targets.llvm.emit_places import LaneLayout, address
from tilewright.targets.llvm.emit_text import Chunk, LlvmValue, LlvmWriter
from tilewright.targets.llvm.emit_types import memory_type

# How a loop is run: "unroll" if it is written out, "vector", or some other way.
Runs = Callable[[For], str]
_PLAIN = (Block, Alloc, For, Unit)


@dataclass(slots=True, eq=False)
class CarriedLoop:
    """A loop that changes arrays in registers, while its body is written.

    head: where its phis go. before, latch: the blocks from which it is entered and repeated.
    """

    head: Chunk
    before: str
    latch: str


@dataclass(slots=True, eq=False)
class Phi:
    """What an element is at the start of an iteration. entry: before the first."""

    slot: int
    entry: LlvmValue
    value: LlvmValue


class RegisterArray:
    """What the elements of an array hold at the current place.

    starts: by element, the first one of its slot, a value of one or more neighboring elements.
    lanes: by slot, how many.
    """

    def __init__(self, buffer: Buffer, slots: Mapping[int, int]) -> None:
        self.type = memory_type(buffer.dtype)
        self.lanes = slots
        self.starts = {
            start + n: start for start, lanes in slots.items() for n in range(lanes)
        }
        self._values: dict[int, LlvmValue] = {}
        self._loops: list[tuple[CarriedLoop, list[Phi]]] = []

    def read(self, x: LlvmWriter, place: LaneLayout) -> LlvmValue:
        """The elements at a place, in the form of memory."""
        first = place.form.const
        start = self.starts[first]
        held = self._held(x, start)
        if place.lanes == held.lanes:
            return held
        assert place.lanes == 1
        return x.lane(held, first - start)

    def write(self, x: LlvmWriter, place: LaneLayout, value: LlvmValue) -> None:
        """Change the elements at a place; value: in the form of memory."""
        first = place.form.const
        start = self.starts[first]
        if place.lanes != self.lanes[start]:
            assert place.lanes == 1
            value = x.insert(self._held(x, start), value, first - start)
        # Not a constant any more: nothing else that is loaded is one.
        self._values[start] = LlvmValue(value.text, value.type, value.lanes)

    def enter(self, x: LlvmWriter, loop: CarriedLoop) -> None:
        """The body of a loop that changes the array begins."""
        phis: list[Phi] = []
        self._loops.append((loop, phis))
        for slot, value in self._values.items():
            self._values[slot] = self._carried(x, phis, slot, value)

    def leave(self) -> None:
        """The body ends: the last iteration's values are those after the loop, which runs at least
        once."""
        loop, phis = self._loops.pop()
        for phi in reversed(phis):  # as LLVM itself would put them
            name, again = phi.value.text, self._values[phi.slot].text
            came = f"[ {phi.entry.text}, {loop.before} ], [ {again}, {loop.latch} ]"
            loop.head.append(f"  {name} = phi {phi.value.full} {came}")

    def _held(self, x: LlvmWriter, start: int) -> LlvmValue:
        """The value of a slot; at first anything, as in memory, which each loop around carries."""
        found = self._values.get(start)
        if found is None:
            found = LlvmValue("undef", self.type, self.lanes[start])
            for _, phis in self._loops:
                found = self._carried(x, phis, start, found)
            self._values[start] = found
        return found

    def _carried(
        self, x: LlvmWriter, phis: list[Phi], slot: int, entry: LlvmValue
    ) -> LlvmValue:
        value = LlvmValue(x.fresh("r"), entry.type, entry.lanes)
        phis.append(Phi(slot, entry, value))
        return value


def register_slots(s: Alloc, runs: Runs) -> dict[int, int] | None:
    """By their first elements, how many elements the values hold that an array consists of; None
    if it has to be in memory.

    requires, for None not to be returned: every access is at a constant place once the loops are
    written out, of one element or of the neighboring ones of a vector loop's lanes, and no two
    accesses overlap in part. What writes it runs unconditionally, in loops that run at least once.
    No thread shares it, and no instruction of the machine that takes an address accesses it.
    """
    buffer = s.buffer
    if not buffer.static or 0 in buffer.extents:
        return None
    found: dict[int, int] = {}
    for place in walk(s.body, touching=frozenset((buffer,))):
        if not _may_be_around(place.stmt):
            return None
        for index in _indices(buffer, place):
            slots = None if index is None else _slots(buffer, index, place.loops, runs)
            if slots is None:
                return None
            for start, lanes in slots:
                if found.setdefault(start, lanes) != lanes:
                    return None
    return found if _are_apart(found, buffer.size) else None


def _may_be_around(s: Stmt) -> bool:
    """Whether what accesses an array in registers may be this statement, or inside it."""
    if isinstance(s, Unit):
        return s.intrinsic is None
    return not isinstance(s, For) or (s.kind != "parallel" and bool(s.trips))


def _indices(
    buffer: Buffer, place: StatementPlace
) -> Iterator[tuple[Expr, ...] | None]:
    """The indices of a statement's own accesses; None for a change that may be left out, or that
    what another array needs may split into lanes."""
    s = place.stmt
    yield from (e.index for x in expressions(s) for e in loads(x) if e.buffer is buffer)
    if not isinstance(s, Store | Update):
        return
    targets = [*s.targets] if isinstance(s, Update) else [(s.buffer, s.index)]
    certain = len(targets) == 1 and all(isinstance(x, _PLAIN) for x in place.above)
    for b, index in targets:
        if b is buffer:
            yield index if certain else None


def _slots(
    buffer: Buffer, index: tuple[Expr, ...], loops: Sequence[For], runs: Runs
) -> Iterator[tuple[int, int]] | None:
    """The first element and the length of an access, in all iterations of the loops that are
    written out; None if others decide them."""
    by_var = {loop.var: loop for loop in loops}
    form = address(buffer, index)
    lanes = 1
    offsets: list[range] = []
    for atom, c in form.terms:
        loop = by_var.get(atom) if isinstance(atom, Var) else None
        if loop is None or not loop.trips:
            return None
        how = "unroll" if loop.trips == 1 else runs(loop)
        if how == "unroll":
            offsets.append(range(0, c * loop.trips, c))
        elif how == "vector" and c == 1:
            lanes = loop.trips
        else:
            return None
    return ((form.const + sum(parts), lanes) for parts in product(*offsets))


def _are_apart(slots: Mapping[int, int], size: int) -> bool:
    """Whether slots are inside of an array of a size, and none overlaps another."""
    starts = [*sorted(slots), size]
    ends = [0, *(start + slots[start] for start in starts[:-1])]
    return all(end <= start for end, start in zip(ends, starts, strict=True))
