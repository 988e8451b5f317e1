"""Addresses, loads and stores of scalars and vectors, masked and checked."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.base import dtypes
from tilewright.expr.affine import Affine
from tilewright.expr.bounds import within
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Cast,
    Expr,
    Extent,
    Load,
    Lt,
    Select,
    Var,
    const,
)
from tilewright.loops.analysis.terms import loads
from tilewright.runtime.abi import STATUS_INDEX
from tilewright.targets.llvm.emit_check import LOAD, STORE, check
from tilewright.targets.llvm.emit_near import (
    MOST_PARTS,
    NearVector,
    aligned,
    at_element,
    load_near,
    masked_load,
    masked_store,
    otherwise,
    parts,
    pick,
    store_near,
)
from tilewright.targets.llvm.emit_ops import Operations
from tilewright.targets.llvm.emit_places import AddressEmitter, LaneAccess
from tilewright.targets.llvm.emit_registers import RegisterArray
from tilewright.targets.llvm.emit_table import fits, look_up
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    int_vector,
    integer,
    mangle,
    splat_constant,
    vector_type,
)
from tilewright.targets.llvm.emit_types import constant, memory_type
from tilewright.targets.llvm.processor import Processor, does
from tilewright.targets.llvm.value_numbering import Info
from tilewright.targets.permitted import Permissions

MAX_LANES = 64
_SAFE_BYTES = MAX_LANES * 8


class MemoryEmitter(AddressEmitter):
    """Access to buffers inside one function; `value` comes from the expression emitter."""

    def __init__(self, machine: Processor, contract: bool) -> None:
        super().__init__(machine)
        self.ops = Operations(self, machine, contract)
        # By vector loop, how many bytes ahead of its loads memory is prefetched.
        self.ahead: Mapping[str, int] = {}
        # Shapes of the tile registers that products of tiles use: rows, and tiles of columns.
        self.tiles: set[tuple[int, int]] = set()
        # Functions of a user's intrinsics, by the name that each has in the module.
        self.own: dict[str, str] = {}
        # What is known of the values in buffers that indices are read from.
        self.contents: Mapping[Buffer, Interval] = {}
        # Where sanitized code may access each buffer; None in other code.
        self.permitted: Permissions | None = None
        # Arrays that are values.
        self.arrays: dict[Buffer, RegisterArray] = {}
        self._safe: dict[str, LlvmValue] = {}
        self._clamped: set[Expr] = set()

    def end(self) -> None:
        """Let go of what refers back to this function, whose text is written.

        It is freed at once, and the next one is written to the same memory: the collector, which
        pauses while programs are compiled, would find it late.
        """
        del self.ops

    def report(self) -> LlvmValue:
        """The address where sanitized code writes its report."""
        raise NotImplementedError

    def constant_text(self, text: str) -> str:
        """The address of a text, which ends with 0."""
        raise NotImplementedError

    def status(self) -> LlvmValue:
        """The address of the status, 64 bits, for a failure."""
        raise NotImplementedError

    # -- loads

    def load(self, e: Load, outside: LlvmValue | None = None) -> LlvmValue:
        """The element a Load means, in held form; where `guard` is false, `outside` (0 if None).

        outside: a constant as it is in memory. Where lanes share an element and not the guard, the
        element if the guard holds in one of them.
        """
        index = self._checked(e.buffer, e.index)
        if 0 in e.buffer.extents:
            if outside is None:
                return constant(0, e.buffer.dtype)
            return outside
        array = self.arrays.get(e.buffer)
        if array is not None:
            held = self.layout(e.buffer, index)
            self.spared += 1 + bool(held.form.const)
            return self.ops.formats.unpack(array.read(self, held), e.buffer.dtype)
        permission = None
        if self.guard is not None and self.info(e).risky:
            permission = self.holds(self.guard)
        check(self, LOAD, e.buffer, index, permission)
        place = self.access(e.buffer, index)
        raw = self._load_raw(place, e.buffer, permission, outside)
        return self.ops.formats.unpack(raw, e.buffer.dtype)

    def _load_raw(
        self,
        place: LaneAccess,
        buffer: Buffer,
        mask: LlvmValue | None,
        outside: LlvmValue | None = None,
    ) -> LlvmValue:
        type = memory_type(buffer.dtype)
        size = buffer.dtype.itemsize
        if mask is not None and mask.const is not None:
            mask = None if mask.const else mask
        lanes = place.lanes
        pointer = place.pointer
        if place.is_dense:
            if mask is not None and mask.lanes > 1 and lanes > 1:
                return masked_load(self, pointer, type, size, mask, outside)
            if mask is not None:
                pointer = self.select(self.any(mask), pointer, self.safe(outside))
            if mask is None and (wide := self._masked_width(buffer, lanes)):
                first = _first_lanes(lanes, wide)
                part = masked_load(self, pointer, type, size, first)
                return self.shuffle(part, list(range(lanes)))
            if buffer.scope == "global" and lanes > 1:
                self._prefetch(buffer, place.form)
                if mask is None and buffer not in self.private:
                    return self._part(
                        place, buffer, NearVector(0, tuple((n,) for n in range(lanes)))
                    )
            full = vector_type(type, lanes)
            aligned_to = self.alignment(buffer, place.form, lanes)
            how = f"{pointer.typed}, align {aligned_to}"
            return self.ins(f"load {full}, {how}", type, lanes)
        if place.offsets is None:
            found = self._load_near(place, buffer, mask, outside)
            if found is not None:
                return found
        if mask is None and place.offsets is not None:
            entry = self._load_entry(place, buffer, place.offsets)
            if entry is not None:
                return entry
        if mask is None and place.offsets is None:
            return self._load_each(place, type, size)
        pointers = self._lane_pointers(place, size)
        chosen = self.splat(mask if mask is not None else integer(1, "i1"), lanes)
        name = f"llvm.masked.gather.{mangle(type, lanes)}.{mangle('ptr', lanes)}"
        full = vector_type(type, lanes)
        args = f"{aligned(pointers, size)}, {chosen.typed}, {otherwise(full, lanes, outside)}"
        return self.ins(f"call {full} @{name}({args})", type, lanes)

    def _load_each(self, place: LaneAccess, type: str, size: int) -> LlvmValue:
        """Load lanes one by one, at constant distances from one address, which an instruction adds
        by itself: gathers take addresses in a vector, and two to three times as long."""
        full = vector_type(type, place.lanes)
        found = LlvmValue("poison", type, place.lanes)
        for lane, step in enumerate(place.steps):
            pointer = at_element(self, place.pointer, step, size)
            element = self.ins(f"load {type}, {pointer.typed}, align {size}", type)
            found = self.ins(
                f"insertelement {full} {found.text}, {element.typed}, i64 {lane}",
                type,
                place.lanes,
            )
        return found

    def _prefetch(self, buffer: Buffer, form: Affine) -> None:
        """Prefetch at the distance that the vector loop is annotated with, relative to the load.

        Once for all loops in which the address is the same.
        """
        ahead = self.ahead.get(self.vector[0].name) if self.vector is not None else None
        if ahead is None:
            return
        offset = form.const * buffer.dtype.itemsize + ahead

        def fetch() -> LlvmValue:
            there = self.pointer(buffer, form.terms, offset)
            how = f"{there.typed}, i32 0, i32 3, i32 1"
            self.line(f"call void @llvm.prefetch.p0({how})")
            return there

        key = ("prefetch", buffer, form, ahead)
        self.cached(key, self.info_of(form), fetch)

    def _masked_width(self, buffer: Buffer, lanes: int) -> int:
        """Lanes of a whole vector if a masked one is better than parts of a vector of another size;
        else 0. Buffers in registers need no masks."""
        whole = 1 << (lanes - 1).bit_length()
        size = buffer.dtype.itemsize
        fits = (
            size >= 4 and lanes > 2 and whole != lanes and self.machine.has("avx512vl")
        )
        return whole if fits and buffer.scope != "register" else 0

    def _load_near(
        self,
        place: LaneAccess,
        buffer: Buffer,
        mask: LlvmValue | None,
        outside: LlvmValue | None,
    ) -> LlvmValue | None:
        """Load lanes that are near one another from whole vectors; None if they are not."""
        type = memory_type(buffer.dtype)
        size = buffer.dtype.itemsize
        lanes = place.lanes
        first, last = min(place.steps), max(place.steps)
        if mask is not None:
            covered = parts(place.steps, first, last)
            if covered is None:
                return None
            wide = self.splat(mask, lanes)
            return load_near(
                self, place.pointer, covered, lanes, type, size, wide, outside
            )
        covered = parts(place.steps, *self._room(place, buffer))
        if covered is None:
            return None
        loaded = [self._part(place, buffer, part) for part in covered]
        return pick(self, loaded, [part.picked(lanes) for part in covered])

    def _load_entry(
        self, place: LaneAccess, buffer: Buffer, offsets: LlvmValue
    ) -> LlvmValue | None:
        """Load lanes from a small table that is entirely inside the buffer; None for other
        accesses."""
        if not buffer.static:
            return None
        size = buffer.dtype.itemsize
        low, high = self.bounds_of(place.form)
        if place.reach is None or low is None or high is None:
            return None
        first, last = place.reach
        count = last - first + 1
        is_inside = low + first >= 0 and high + last < buffer.size
        in_private = buffer in self.private
        if in_private or not (
            is_inside and fits(self.machine, count, place.lanes, size)
        ):
            return None
        start = integer(-first * size, offsets.type)
        index = self.binary("add", offsets, start)
        if size > 1:
            index = self.binary(
                "lshr", index, integer(size.bit_length() - 1, index.type)
            )
        short = self.convert("trunc", index, "i16")
        pointer = at_element(self, place.pointer, first, size)
        return look_up(self, pointer, count, short, memory_type(buffer.dtype), size)

    def _room(self, place: LaneAccess, buffer: Buffer) -> tuple[int, int]:
        """The elements around the lanes' that may be read: whole strides, so that neighboring
        accesses share them, if ranges prove that all of them belong to the buffer."""
        first, last = min(place.steps), max(place.steps)
        stride = gcd(*(step - first for step in place.steps))
        low, high = self.bounds_of(place.form)
        if stride > MOST_PARTS or low is None or high is None or not buffer.static:
            return first, last
        start = first - (place.form.const + first) % stride
        end = last + stride - 1 - (place.form.const + last) % stride
        copies = self.private.get(buffer, 1)
        return (
            start if low + start >= 0 else first,
            end if high + end < buffer.size * copies else last,
        )

    def _part(self, place: LaneAccess, buffer: Buffer, part: NearVector) -> LlvmValue:
        """A vector of a buffer, loaded once for all accesses that have a part in it."""
        type = memory_type(buffer.dtype)
        size = buffer.dtype.itemsize
        width = len(part.lanes)
        form = place.form + Affine((), part.start)
        low, high = self.bounds_of(form)
        is_proven = (
            low is not None
            and high is not None
            and low >= 0
            and buffer.static
            and high + width <= buffer.size
        )

        def load() -> LlvmValue:
            at = self.pointer(buffer, form.terms, form.const * size)
            full = vector_type(type, width)
            how = f"{at.typed}, align {self.alignment(buffer, form, width)}"
            return self.ins(f"load {full}, {how}", type, width)

        if not is_proven or buffer in self.private:
            return load()
        info = self.info_of(form) | Info(reads=frozenset((buffer,)))
        registers = -(-width * size * 8 // self.machine.vector_bits)
        return self.shared(("part", buffer, form, width), info, load, registers)

    def _lane_pointers(self, place: LaneAccess, size: int) -> LlvmValue:
        offsets = place.offsets
        if offsets is None:
            offsets = int_vector([n * size for n in place.steps])
        return self.ins(
            f"getelementptr i8, {place.pointer.typed}, {offsets.typed}",
            "ptr",
            place.lanes,
        )

    # -- stores

    def store(
        self,
        buffer: Buffer,
        index: tuple[Expr, ...],
        v: LlvmValue,
        mask: LlvmValue | None = None,
    ) -> None:
        """Write a held value at a checked index; `mask` (scalar or per lane) says where."""
        array = self.arrays.get(buffer)
        if array is not None:
            held = self.layout(buffer, index)
            self.spared += bool(held.form.const)
            raw = self.ops.formats.pack(v, buffer.dtype)
            array.write(self, held, self.splat(raw, held.lanes))
            return
        place = self.access(buffer, index)
        raw = self.ops.formats.pack(v, buffer.dtype)
        size = buffer.dtype.itemsize
        raw = self.splat(raw, place.lanes)
        if mask is not None and mask.const is not None:
            if not mask.const:
                return
            mask = None
        check(self, STORE, buffer, index, mask)
        contiguous = place.is_dense
        if mask is not None and contiguous and self._rewritable(buffer, index):
            # So it stays promotable to registers.
            old = self._load_raw(place, buffer, None)
            raw, mask = self.select(mask, raw, old), None
        wide = (
            self._masked_width(buffer, place.lanes)
            if contiguous and mask is None
            else 0
        )
        if wide:
            lanes = [*range(raw.lanes), *[-1] * (wide - raw.lanes)]
            raw, mask = self.shuffle(raw, lanes), _first_lanes(raw.lanes, wide)
        if contiguous and mask is None:
            lane = None if self.vector is None else self.vector[0]
            form = self.address(buffer, index)
            how = self.storing(buffer, form, lane, raw.lanes)
            self.line(f"store {raw.typed}, {place.pointer.typed}, {how}")
        elif contiguous and mask is not None:
            masked_store(self, place.pointer, raw, size, mask)
        elif covered := self._near_stored(place, size):
            if mask is not None:
                mask = self.splat(mask, place.lanes)
            store_near(self, place.pointer, covered, raw, size, mask)
        elif mask is None and place.offsets is None:
            self._store_each(place, raw, size)
        else:
            chosen = self.splat(
                mask if mask is not None else integer(1, "i1"), place.lanes
            )
            pointers = self._lane_pointers(place, size)
            types = f"{mangle(raw.type, raw.lanes)}.{mangle('ptr', raw.lanes)}"
            args = f"{raw.typed}, {aligned(pointers, size)}, {chosen.typed}"
            self.line(f"call void @llvm.masked.scatter.{types}({args})")

    def _store_each(self, place: LaneAccess, raw: LlvmValue, size: int) -> None:
        """Store lanes one by one in order, as `_load_each` loads them."""
        for lane, step in enumerate(place.steps):
            pointer = at_element(self, place.pointer, step, size)
            element = self.ins(f"extractelement {raw.typed}, i64 {lane}", raw.type)
            self.line(f"store {element.typed}, {pointer.typed}, align {size}")

    def _near_stored(
        self, place: LaneAccess, size: int
    ) -> tuple[NearVector, ...] | None:
        """Vectors that cover the stored lanes, if a vector can be stored partially."""
        if place.may_meet or not self.stores_in_part(size):
            return None
        return parts(place.steps, min(place.steps), max(place.steps))

    def stores_in_part(self, size: int) -> bool:
        """Whether the machine stores some lanes of a vector, of elements of so many bytes."""
        return self.machine.has("avx512vl" if size >= 4 else "avx512bw")

    def storing(
        self, buffer: Buffer, form: Affine, lane: Var | None, lanes: int
    ) -> str:
        """The alignment and other attributes of a store of `lanes` lanes at a linear form."""
        return f"align {buffer.dtype.itemsize}"

    def alignment(self, buffer: Buffer, form: Affine, lanes: int) -> int:
        """The alignment in bytes of `lanes` lanes that begin at a linear form."""
        return buffer.dtype.itemsize

    def _rewritable(self, buffer: Buffer, index: tuple[Expr, ...]) -> bool:
        """Whether every lane may write back the element of `buffer` at `index`: the memory is
        private to this thread, and no lane is outside it."""
        if buffer.scope == "global":
            return False
        places = zip(index, buffer.extents, strict=True)
        return all(self.is_within(part, extent) for part, extent in places)

    # -- checked indices

    def _checked(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index with every data-dependent part proven, or tested, reported and set to 0."""
        return tuple(
            self.clamped(part, extent) if self.is_unproven(part, extent) else part
            for part, extent in zip(index, buffer.extents, strict=True)
        )

    def is_unproven(self, part: Expr, extent: Extent) -> bool:
        """Whether an index reads data and its bounds do not keep it inside the extent."""
        if part in self._clamped or not self.info(part).reads:
            return False
        held = {
            x: self.contents[x.buffer] for x in loads(part) if x.buffer in self.contents
        }
        return not within(part, extent, {**self.ranges, **held})

    def inside(self, part: Expr, extent: Extent) -> Expr:
        """The condition `0 <= part < extent`, as one unsigned comparison."""
        if isinstance(extent, int):
            size: Expr = const(extent, dtypes.uint64)
        else:
            size = Cast(extent, dtypes.uint64)
        return Lt(Cast(part, dtypes.uint64), size)

    def clamped(self, part: Expr, extent: Extent) -> Expr:
        """`part` if it is inside, else 0; the failure is stored in the call's status."""
        ok = self.inside(part, extent)
        guard, info = self.guarded(self.info(ok) | Info(risky=True))
        self.cached(("check", ok, guard), info, lambda: self._report(ok))
        safe = Select(ok, part, const(0, INDEX))
        self._clamped.add(safe)
        return safe

    def _report(self, ok: Expr) -> LlvmValue:
        holds = self.value(ok)
        bad = self.ops.invert(holds, dtypes.bool_)
        if self.guard is not None:
            bad = self.ops.binary(And, bad, self.holds(self.guard), dtypes.bool_)
        bad = self.any(bad)
        if bad.const is False:
            return bad
        failed = self.fresh("bad")
        fine = self.fresh("fine")
        self.line(f"br {bad.typed}, label {failed}, label {fine}")
        self.label(failed)
        code = 1 << 8 | STATUS_INDEX
        slot = self.status()
        # The code fits the lower half, and the upper one is 0.
        kind = "i64" if does(self.machine, "store64") else "i32"
        self.line(f"store atomic {kind} {code}, {slot.typed} monotonic, align 8")
        self.line(f"br label {fine}")
        self.label(fine)
        return bad

    def holds(self, guard: Expr) -> LlvmValue:
        """A guard's value, each condition under those around it, as when it was tested first.

        Under itself, a condition that reads at a checked index would need its own value.
        """
        outer = self.holds(guard.lhs) if isinstance(guard, And) else None
        saved, self.guard = self.guard, guard.lhs if isinstance(guard, And) else None
        try:
            if outer is None or not isinstance(guard, And):
                return self.value(guard)
            return self.ops.binary(And, outer, self.value(guard.rhs), dtypes.bool_)
        finally:
            self.guard = saved

    # -- helpers

    def any(self, mask: LlvmValue) -> LlvmValue:
        """Whether some lane of a mask is set."""
        if mask.lanes == 1:
            return mask
        name = f"vector.reduce.or.{mangle('i1', mask.lanes)}"
        return self.call(name, "i1", 1, mask)

    def safe(self, holds: LlvmValue | None = None) -> LlvmValue:
        """An address that may always be read, for loads that must not happen; it holds copies of
        a constant, zeros if None."""
        key = "" if holds is None else holds.typed
        if key not in self._safe:
            here, self.out = self.out, self.entry
            self._safe[key] = self.stack(f"[{_SAFE_BYTES} x i8]", 64)
            typed = f"<{_SAFE_BYTES // 8} x i64> zeroinitializer"
            if holds is not None:
                typed = splat_constant(holds, MAX_LANES).typed
            self.line(f"store {typed}, {self._safe[key].typed}, align 64")
            self.out = here
        return self._safe[key]

    def allocate(self, buffer: Buffer, copies: int) -> None:
        """Memory of this function for a buffer, `copies` elements for each of its elements."""
        here, self.out = self.out, self.entry
        count = max(1, buffer.size * copies)
        type = memory_type(buffer.dtype)
        self.pointers[buffer] = self.stack(f"[{count} x {type}]", 64)
        self.out = here

    def stack(self, array: str, alignment: int) -> LlvmValue:
        """Memory of this function; to be called at its entry."""
        return self.ins(f"alloca {array}, align {alignment}", "ptr")


def weaker(guard: Expr | None) -> list[Expr | None]:
    """The conditions that a guard implies, the weakest (None: always true) first, then the guard
    itself.

    A value computed, and checked, under one of them is valid wherever the guard holds.
    """
    found: list[Expr | None] = []
    while guard is not None:
        found.append(guard)
        guard = guard.lhs if isinstance(guard, And) else None
    return [None, *reversed(found)]


def _first_lanes(lanes: int, whole: int) -> LlvmValue:
    """The mask of the first lanes of a vector."""
    return int_vector([int(n < lanes) for n in range(whole)], "i1")
