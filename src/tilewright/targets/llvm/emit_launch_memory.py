"""The memory of a thread of a launch: its arrays, its parts of a warp's, and where elements are.

Loads and stores are those of the scalar emitter, but for vectors under one condition, swizzled
buffers, and indices of 32 bits where bounds prove that these hold them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from tilewright.base.errors import CompileError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    INDEX,
    Binary,
    Buffer,
    Expr,
    Lt,
    Var,
    const,
)
from tilewright.loops.launch import (
    AXIS,
    Launch,
)
from tilewright.loops.passes.shared_room import ALIGNMENT
from tilewright.loops.passes.thread_registers import own_extent, own_index
from tilewright.loops.passes.warp_units import fragments
from tilewright.loops.scopes import OF_CLUSTER
from tilewright.targets.llvm.emit_places import LaneAccess, Terms
from tilewright.targets.llvm.emit_stmt import Statements
from tilewright.targets.llvm.emit_swizzle import (
    check_chunks,
    offset_in,
    swizzled_pointer,
)
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    integer,
    vector_type,
)
from tilewright.targets.llvm.emit_types import memory_type
from tilewright.targets.llvm.lanes import residue
from tilewright.targets.llvm.processor import Processor

LOCAL: Final = 512 << 10  # bytes: the most that CUDA gives a thread
_SHORT: Final = 1 << 31


class LaunchMemory(Statements):
    """space: the address space of a thread's memory in LLVM."""

    def __init__(
        self, launch: Launch, machine: Processor, contract: bool, space: int
    ) -> None:
        super().__init__(machine, contract)
        self.launch: Final = launch
        self.space: Final = space
        self.fragments: Final = fragments(launch.body)
        self.parts: Final[dict[Buffer, Buffer]] = {}
        self.slices: Final[dict[Buffer, Buffer]] = {}

    def generic(self, text: str, space: int) -> LlvmValue:
        """A pointer of an address space as one of any."""
        return self.ins(f"addrspacecast ptr addrspace({space}) {text} to ptr", "ptr")

    def place_buffer(self, buffer: Buffer) -> None:
        """Allocate memory private to the thread, whatever the scope; LLVM keeps it in registers if
        they suffice."""
        if buffer in self.pointers:
            return
        size = buffer.size * buffer.dtype.itemsize
        if size > LOCAL:
            raise CompileError(
                f"a thread allocates {size:,} bytes, but may have at most {LOCAL:,}",
                code="TW-SCOPE",
                where=f"buffer {buffer.name}",
                hint="allocate it outside the bound loops, or tile its producer",
            )
        if buffer.scope == "warp":
            self._place_part(buffer)
        else:
            self.allocate(buffer, 1)

    def _place_part(self, buffer: Buffer) -> None:
        """Give each thread its elements of a buffer that a warp holds together."""
        extents = list(buffer.extents)
        held = self.fragments[buffer]
        for axis, shares in enumerate(held, len(extents) - len(held)):
            extents[axis] = own_extent(extents[axis], shares)
        part = Buffer(buffer.name, tuple(extents), buffer.dtype, "register")
        self.parts[buffer] = part
        here, self.out = self.out, self.entry
        array = f"[{part.size} x {memory_type(buffer.dtype)}]"
        self.pointers[part] = self.pointers[buffer] = self.stack(array, ALIGNMENT)
        self.out = here

    def own_elements(self, buffer: Buffer) -> list[LlvmValue]:
        """The addresses of all elements that a thread has of such a buffer."""
        part = self.parts[buffer]
        places = product(*map(range, part.shape))
        return [self.access(part, tuple(map(const, at))).pointer for at in places]

    def part_access(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneAccess:
        """The address of an element that a thread has of such a buffer."""
        held = self.fragments[buffer]
        around = len(index) - len(held)
        own = list(index[:around])
        numbers = {AXIS[share.axis] for shares in held for share in shares}
        for i, shares in zip(index[around:], held, strict=True):
            found = own_index(affine(i), shares, numbers, self.ranges)
            assert found is not None
            own.append(found)
        return self.access(self.parts[buffer], tuple(own))

    def slice_access(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneAccess:
        """The address of an element that a block of the cluster has.

        Raises CompileError where lanes of a vector are in the memory of several blocks.
        """
        own = self.slices.get(buffer)
        if own is None:
            own = Buffer(buffer.name, buffer.extents[1:], buffer.dtype, "shared")
            self.slices[buffer] = own
            self.pointers[own] = self.pointers[buffer]
        place = self.access(own, index[1:])
        numbers = [AXIS[f"blockIdx.{a}"] for a in "xyz"]
        shares = zip(numbers, self.launch.cluster, strict=True)
        if any(index[0] is number for number, blocks in shares if blocks > 1):
            return place
        rank = self.value(index[0])
        if rank.lanes > 1:
            raise CompileError(
                "the lanes of a vector are in the memory of several blocks",
                code="TW-LAUNCH",
                where=f"buffer {buffer.name}",
                hint="vectorize another loop",
            )
        there = self.peer(place.pointer, self.convert("trunc", rank, "i32"))
        return replace(place, pointer=there)

    def peer(self, place: LlvmValue, rank: LlvmValue) -> LlvmValue:
        """The address of the same place in the memory of another block of the cluster."""
        raise NotImplementedError

    def stack(self, array: str, alignment: int) -> LlvmValue:
        """Memory of the thread."""
        space = self.space
        if not space:
            return super().stack(array, alignment)
        name = self.fresh("stack")
        self.line(f"{name} = alloca {array}, align {alignment}, addrspace({space})")
        return self.generic(name, space)

    def status(self) -> LlvmValue:
        """The last parameter."""
        return self.generic("%status", 1)

    def _load_raw(
        self,
        place: LaneAccess,
        buffer: Buffer,
        mask: LlvmValue | None,
        outside: LlvmValue | None = None,
    ) -> LlvmValue:
        """As on a CPU, but adjacent lanes under one condition are loaded in a branch."""
        is_one = mask is not None and mask.const is None and mask.lanes == 1
        if not is_one or not place.is_dense:
            return super()._load_raw(place, buffer, mask, outside)
        assert mask is not None
        type, lanes = memory_type(buffer.dtype), place.lanes
        other = "zeroinitializer"
        if outside is not None:
            other = self.splat(outside, lanes).text
        here, then, after = (self.fresh(n) for n in ("ask", "then", "after"))
        self.line(f"br label {here}")
        self.label(here)
        self.line(f"br {mask.typed}, label {then}, label {after}")
        self.label(then)
        found = super()._load_raw(place, buffer, None)
        self.line(f"br label {after}")
        self.label(after)
        full = vector_type(type, lanes)
        arms = f"[ {found.text}, {then} ], [ {other}, {here} ]"
        return self.ins(f"phi {full} {arms}", type, lanes)

    def alignment(self, buffer: Buffer, form: Affine, lanes: int) -> int:
        """The alignment of an access, at most the size of its lanes; every buffer begins at a
        multiple of ALIGNMENT."""
        size = buffer.dtype.itemsize
        counts = (n for n in (16, 8, 4, 2) if n <= lanes and n * size <= ALIGNMENT)
        return size * next((n for n in counts if residue(form, n) == 0), 1)

    def storing(
        self, buffer: Buffer, form: Affine, lane: Var | None, lanes: int
    ) -> str:
        """The alignment of a store, which is that of a load."""
        first, _ = self.parted(form)
        return f"align {self.alignment(buffer, first, lanes)}"

    def comparison(self, e: Binary) -> LlvmValue:
        """As on a CPU, but in one lane if all lanes of a whole vector agree.

        `c * lane + rest < 0` differs between neighboring lanes only for some values of the rest,
        which its residue modulo c * lanes may exclude.
        """
        if self.vector is None or e.lhs.dtype is not INDEX:
            return super().comparison(e)
        lane, lanes = self.vector
        form = affine(e.lhs) - affine(e.rhs)
        if not isinstance(e, Lt):
            form = form - Affine((), 1)
        c = form.coefficient(lane)
        rest = form - Affine(((lane, c),), 0)
        if not c or any(lane in self.info(a).vars for a, _ in rest.terms):
            return super().comparison(e)
        left, step = residue(rest, abs(c) * lanes), abs(c)
        if left is None or not (left < step if c > 0 else left >= step * (lanes - 1)):
            return super().comparison(e)
        return self.value(Lt(to_expr(rest), const(0)))

    def access(self, buffer: Buffer, index: tuple[Expr, ...]) -> LaneAccess:
        """As on a CPU; lanes have to be in one chunk of a swizzled buffer."""
        if buffer in self.parts:
            return self.part_access(buffer, index)
        if buffer.scope == OF_CLUSTER:
            return self.slice_access(buffer, index)
        place = super().access(buffer, index)
        if buffer.swizzle:
            alignment = self.alignment(buffer, place.form, place.lanes)
            check_chunks(buffer, place, alignment)
        return place

    def pointer(self, buffer: Buffer, terms: Terms, offset: int) -> LlvmValue:
        """As on a CPU; in a swizzled buffer, where the element is stored."""
        if not buffer.swizzle:
            return super().pointer(buffer, terms, offset)
        return swizzled_pointer(self, buffer, offset_in(self, buffer, terms, offset))

    def _advance(
        self, base: LlvmValue, group: tuple[tuple[Expr, int], ...]
    ) -> LlvmValue:
        """Bytes in 32 bits, where these hold them and each part of the sum."""
        total = Affine((), 0)
        for term in group:
            total = total + Affine((term,), 0)
            parts = (Affine((term,), 0), total)
            if not all(_is_short(self.bounds_of(part)) for part in parts):
                return super()._advance(base, group)
        held = integer(0, "i32")
        for atom, c in group:
            part = self.convert("trunc", self.value(atom), "i32")
            part = self.binary("mul nsw", part, integer(c, "i32"))
            held = self.binary("add nsw", held, part)
        low, _ = self.bounds_of(total)
        extended = "zext nneg" if low is not None and low >= 0 else "sext"
        offset = self.convert(extended, held, "i64")
        return self.ins(f"getelementptr i8, {base.typed}, {offset.typed}", "ptr")

    def counter(self, extent: Interval) -> str:
        """32 bits if they hold the extent."""
        return "i32" if _is_short(extent) else "i64"


def _is_short(interval: Interval) -> bool:
    low, high = interval
    return low is not None and high is not None and low >= -_SHORT and high < _SHORT
