"""Boxes of tensors that one thread copies into shared memory, and the waits for them.

A ring of "mbarriers" in shared memory counts the bytes that arrive, one of them for each group of
boxes. A thread counts the groups that have been started, and those that it has waited for. Group n
is the (n // count)th one of mbarrier n % count; the parity of that number tells it from the one
before. The ring is as long as the groups that are in flight at a time (`groups_at_once`), so that
none begins anew before all threads have seen its end.

Blocks of a cluster that copy for one another have such a ring each, at the same place: what one
copies into the memory of all is counted by the mbarrier of each, which expects the parts of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import to_expr
from tilewright.loops.nodes import MULTICAST, For
from tilewright.loops.passes.block_memory import ring_bytes
from tilewright.loops.passes.bulk_copies import BoxCopy, TensorBox, box_copy
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_swizzle import offset_in
from tilewright.targets.llvm.emit_text import LlvmValue, integer

_SHARED: Final = "ptr addrspace(3)"


@dataclass(frozen=True, slots=True)
class BoxCopies:
    """How a GPU copies boxes.

    parameter: of a kernel, the description of a box. begin: makes an mbarrier for one arrival.
    visible: what was made is there for units beside the threads. expect: so many more bytes will
    arrive. copy: to a place, counted by an mbarrier, what a description says from coordinates on,
    the fastest dimension first, in the memory of the blocks of the cluster whose bits are set, or
    of its own if none is. arrive: a thread has started its group. arrived: whether a phase of
    this parity is over. space: the type of the address of such a place. cluster: of a kernel's
    attributes, the blocks of a cluster. together: lines that synchronize the threads of a cluster,
    and behind `fence` units beside them. peer: the address, in this space, of the same place in
    another block's memory, by the number of that in the cluster. feature: of the machine, which has
    these.
    """

    parameter: Callable[[str], str]
    begin: Callable[[LlvmValue], str]
    visible: str
    expect: Callable[[LlvmValue, int], str]
    copy: Callable[[LlvmValue, LlvmValue, str, Sequence[LlvmValue], int], str]
    arrive: Callable[[LlvmValue], str]
    arrived: Callable[[LlvmValue, LlvmValue], str]
    space: str
    cluster: Callable[[tuple[int, int, int]], str]
    fence: str
    together: tuple[str, ...]
    peer: Callable[[LlvmValue, LlvmValue], str]
    feature: str


class BoxRing:
    """The boxes in flight of one kernel. start: where the mbarriers are; first: whether a thread is
    the first one of its block; blocks: of a cluster."""

    def __init__(
        self,
        x: Statements,
        how: BoxCopies,
        boxes: Sequence[TensorBox],
        start: str,
        count: int,
        blocks: int,
    ) -> None:
        self.x: Final = x
        self.how: Final = how
        self.boxes: Final = boxes
        self.start: Final = LlvmValue(start, _SHARED)
        self.count: Final = count
        self.blocks: Final = blocks
        self.started: Final = x.stack("i32", 4)
        self.over: Final = x.stack("i32", 4)

    @property
    def parameters(self) -> list[str]:
        """The kernel's parameters, one for each box."""
        return [self.how.parameter(f"%box{n}") for n in range(len(self.boxes))]

    def begin(self, first: LlvmValue, barrier: Sequence[str]) -> None:
        """Make the mbarriers, before all else."""
        places = [self._place(integer(n, "i32")) for n in range(self.count)]
        self._if(first, [*map(self.how.begin, places), self.how.visible])
        for line in barrier:
            self.x.line(line)
        for counter in (self.started, self.over):
            self._set(counter, integer(0, "i32"))

    def copy(self, s: For) -> None:
        """Start a copy, by one thread."""
        found = box_copy(s)
        place = self._place(self._slot(self._get(self.started)))
        parts = self.blocks if s.kind == MULTICAST else 1
        self.x.line(self.how.expect(place, parts * found.box.nbytes))
        at = [self._coordinate(found, n) for n in reversed(range(len(found.start)))]
        name = f"%box{self.boxes.index(found.box)}"
        into = (1 << self.blocks) - 1 if s.kind == MULTICAST else 0
        self.x.line(self.how.copy(self._target(found), place, name, at, into))
        self.x.changed((found.target,))

    def commit(self, first: LlvmValue) -> None:
        """End a group."""
        number = self._get(self.started)
        place = self._place(self._slot(number))
        self._if(first, [self.how.arrive(place)])
        self._set(self.started, self.x.binary("add", number, integer(1, "i32")))

    def wait(self, pending: int) -> None:
        """Wait for all groups but the latest ones."""
        x = self.x
        again, ask, after = (x.fresh(name) for name in ("again", "ask", "after"))
        last = x.binary("sub", self._get(self.started), integer(pending, "i32"))
        x.line(f"br label {again}")
        x.label(again)
        number = self._get(self.over)
        more = x.ins(f"icmp slt {number.typed}, {last.text}", "i1")
        x.line(f"br {more.typed}, label {ask}, label {after}")
        x.label(ask)
        turn = x.binary("udiv", number, integer(self.count, "i32"))
        parity = x.binary("and", turn, integer(1, "i32"))
        there = x.ins(self.how.arrived(self._place(self._slot(number)), parity), "i1")
        self._set(self.over, x.binary("add", number, x.convert("zext", there, "i32")))
        x.line(f"br label {again}")
        x.label(after)

    def _if(self, first: LlvmValue, lines: Sequence[str]) -> None:
        then, after = self.x.fresh("then"), self.x.fresh("after")
        self.x.line(f"br {first.typed}, label {then}, label {after}")
        self.x.label(then)
        for line in lines:
            self.x.line(line)
        self.x.line(f"br label {after}")
        self.x.label(after)

    def _get(self, counter: LlvmValue) -> LlvmValue:
        return self.x.ins(f"load i32, {counter.typed}, align 4", "i32")

    def _set(self, counter: LlvmValue, number: LlvmValue) -> None:
        self.x.line(f"store {number.typed}, {counter.typed}, align 4")

    def _slot(self, number: LlvmValue) -> LlvmValue:
        return self.x.binary("urem", number, integer(self.count, "i32"))

    def _place(self, slot: LlvmValue) -> LlvmValue:
        offset = self.x.binary("mul", slot, integer(ring_bytes(1), "i32"))
        made = f"getelementptr i8, {self.start.typed}, {offset.typed}"
        return self.x.ins(made, _SHARED)

    def _target(self, c: BoxCopy) -> LlvmValue:
        size = c.target.dtype.itemsize
        offset = offset_in(self.x, c.target, c.place.terms, c.place.const * size)
        base, space = self.x.pointers[c.target], self.how.space
        at = self.x.ins(f"getelementptr i8, {base.typed}, {offset.typed}", "ptr")
        return self.x.ins(f"addrspacecast {at.typed} to {space}", space)

    def _coordinate(self, c: BoxCopy, dim: int) -> LlvmValue:
        value = self.x.value(to_expr(c.start[dim]))
        return self.x.convert("trunc", value, "i32")
