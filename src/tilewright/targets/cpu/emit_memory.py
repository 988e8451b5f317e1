"""Addresses, loads and stores of scalars and vectors, masked and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from tilewright.base import dtypes
from tilewright.expr.affine import Affine, affine, rejoined
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Cast,
    Expr,
    Load,
    Lt,
    Select,
    Var,
    const,
)
from tilewright.runtime.abi import CTX_STATUS, STATUS_INDEX
from tilewright.targets.cpu.emit_check import LOAD, STORE, check
from tilewright.targets.cpu.emit_ops import Operations
from tilewright.targets.cpu.emit_stream import STREAMING, on_boundaries
from tilewright.targets.cpu.emit_text import (
    Value,
    int_vector,
    integer,
    mangle,
    splat_constant,
    vector_type,
)
from tilewright.targets.cpu.emit_types import constant, memory_type
from tilewright.targets.cpu.machine import Machine
from tilewright.targets.cpu.value_numbering import PURE, Info, Scopes
from tilewright.targets.permitted import Permissions

MAX_LANES = 64
_SAFE_BYTES = MAX_LANES * 8


@dataclass(frozen=True, slots=True)
class Access:
    """The place of one element per lane: `pointer` + lane * stride elements + offsets (bytes).

    offsets: a vector of i64 where the lanes' places are not an arithmetic sequence. lanes: 1 where
    every lane means the same element.
    """

    pointer: Value
    stride: int
    offsets: Value | None
    lanes: int

    @property
    def is_uniform(self) -> bool:
        """Whether all lanes mean one element."""
        return self.stride == 0 and self.offsets is None


class Memory(Scopes):
    """Access to buffers inside one function; `value` comes from the expression emitter."""

    def __init__(self, machine: Machine, contract: bool) -> None:
        super().__init__(machine)
        self.ops = Operations(self, machine, contract)
        self.pointers: dict[Buffer, Value] = {}
        # Buffers allocated inside the vector loop: one copy per lane, lanes innermost.
        self.private: dict[Buffer, int] = {}
        self.vector: tuple[Var, int] | None = None
        self.number: int | None = None
        # By vector loop, how many bytes ahead of its loads memory is prefetched.
        self.ahead: Mapping[str, int] = {}
        self.guard: Expr | None = None
        self.uses_tiles = False
        # What is stored past the caches, and whether some of it is.
        self.streams: frozenset[Buffer] = frozenset()
        self.has_streamed = False
        # Where sanitized code may access each buffer; None in other code.
        self.permitted: Permissions | None = None
        self._safe: dict[str, Value] = {}
        self._clamped: set[Expr] = set()

    def value(self, e: Expr) -> Value:
        """The held value of an expression; see `emit_expr`."""
        raise NotImplementedError

    def report(self) -> Value:
        """Where sanitized code writes what it reports."""
        raise NotImplementedError

    def constant_text(self, text: str) -> str:
        """The address of a text, which ends with 0."""
        raise NotImplementedError

    @property
    def lanes(self) -> int:
        """Lanes of the vector loop around the current place, or 1."""
        if self.vector is not None:
            return self.vector[1]
        return 1

    # -- addresses

    def access(self, buffer: Buffer, index: tuple[Expr, ...]) -> Access:
        """Where `buffer[index]` lies, per lane."""
        form = address(buffer, index)
        copies = self.private.get(buffer, 1)
        stride = 0
        if copies > 1:
            form = form.scaled(copies)
            stride = 1 if self.number is None else 0
            form = form + Affine((), self.number or 0)
        uniform: list[tuple[Expr, int]] = []
        varying: list[tuple[Value, int]] = []
        for atom, c in form.terms:
            if self.vector is not None and atom is self.vector[0]:
                stride += c
                continue
            v = self.value(atom)
            if v.lanes > 1:
                varying.append((v, c))
            else:
                uniform.append((atom, c))
        size = buffer.dtype.itemsize
        pointer = self._pointer(buffer, uniform, form.const * size)
        if not varying:
            return Access(pointer, stride, None, self.lanes if stride else 1)
        offsets = int_vector([n * stride * size for n in range(self.lanes)])
        for v, c in varying:
            offsets = self.binary("add", self._times(v, c * size), offsets)
        return Access(pointer, 0, offsets, self.lanes)

    def _times(self, v: Value, c: int) -> Value:
        if c == 1:
            return v
        return self.binary("mul nsw", v, integer(c))

    def _pointer(
        self, buffer: Buffer, terms: list[tuple[Expr, int]], offset: int
    ) -> Value:
        """Base plus terms, those of outer loops first, so that each loop adds only its own."""
        size = buffer.dtype.itemsize
        levels: dict[int, list[tuple[Expr, int]]] = {}
        for atom, c in terms:
            levels.setdefault(self._placement(self.info(atom)), []).append(
                (atom, c * size)
            )
        pointer = self.pointers[buffer]
        done: tuple[tuple[Expr, int], ...] = ()
        info = PURE
        for level in sorted(levels):
            group = tuple(levels[level])
            done += group
            for atom, _ in group:
                info = info | self.info(atom)
            guard, depends = self.guarded(info)
            pointer = self.cached(
                ("pointer", buffer, guard, done),
                depends,
                partial(self._advance, pointer, group),
            )
        if not offset:
            return pointer
        return self.ins(f"getelementptr i8, {pointer.typed}, i64 {offset}", "ptr")

    def _advance(self, base: Value, group: tuple[tuple[Expr, int], ...]) -> Value:
        total: Value | None = None
        for atom, c in group:
            term = self._times(self.value(atom), c)
            if total is None:
                total = term
            else:
                total = self.binary("add nsw", total, term)
        assert total is not None
        return self.ins(f"getelementptr i8, {base.typed}, {total.typed}", "ptr")

    def guarded(self, info: Info) -> tuple[Expr | None, Info]:
        """The permission a risky value is computed under, and what it then depends on."""
        if self.guard is None or not info.risky:
            return None, info
        return self.guard, info | self.info(self.guard)

    # -- loads

    def load(self, e: Load, outside: Value | None = None) -> Value:
        """The element a Load means, in held form; where `guard` is false, `outside` (0 if None).

        outside: a constant as it is in memory. Where lanes share an element and not the guard, the
        element if the guard holds in one of them.
        """
        index = self._checked(e.buffer, e.index)
        if e.buffer.size == 0:
            if outside is None:
                return constant(0, e.buffer.dtype)
            return outside
        permission = None
        if self.guard is not None and self.info(e).risky:
            permission = self._holds(self.guard)
        check(self, LOAD, e.buffer, index, permission)
        place = self.access(e.buffer, index)
        raw = self._load_raw(place, e.buffer, permission, outside)
        return self.ops.formats.unpack(raw, e.buffer.dtype)

    def _load_raw(
        self,
        place: Access,
        buffer: Buffer,
        mask: Value | None,
        outside: Value | None = None,
    ) -> Value:
        type = memory_type(buffer.dtype)
        size = buffer.dtype.itemsize
        if mask is not None and mask.const is not None:
            mask = None if mask.const else mask
        if place.is_uniform or (place.offsets is None and place.stride == 1):
            lanes = place.lanes
            pointer = place.pointer
            if mask is not None and mask.lanes > 1 and lanes > 1:
                return self._masked_load(pointer, type, lanes, size, mask, outside)
            if mask is not None:
                pointer = self.select(self.any(mask), pointer, self.safe(outside))
            if mask is None and (wide := self._masked_width(buffer, lanes)):
                part = self._masked_load(
                    pointer, type, wide, size, _first_lanes(lanes, wide)
                )
                return self.shuffle(part, list(range(lanes)))
            if buffer.scope == "global" and lanes > 1:
                self._prefetch(pointer)
            full = vector_type(type, lanes)
            return self.ins(f"load {full}, {pointer.typed}, align {size}", type, lanes)
        if mask is None and place.offsets is None and place.stride in (-1, 2, 3, 4):
            return self._load_strided(place, type, size)
        pointers = self._lane_pointers(place, size)
        chosen = self.splat(mask if mask is not None else integer(1, "i1"), place.lanes)
        name = f"llvm.masked.gather.{mangle(type, place.lanes)}.{mangle('ptr', place.lanes)}"
        full = vector_type(type, place.lanes)
        args = f"{_aligned(pointers, size)}, {chosen.typed}, {_else(full, place.lanes, outside)}"
        return self.ins(f"call {full} @{name}({args})", type, place.lanes)

    def _prefetch(self, pointer: Value) -> None:
        """What the vector loop is noted to fetch ahead, relative to what it loads."""
        ahead = self.ahead.get(self.vector[0].name) if self.vector is not None else None
        if ahead is not None:
            there = self.ins(f"getelementptr i8, {pointer.typed}, i64 {ahead}", "ptr")
            self.line(
                f"call void @llvm.prefetch.p0({there.typed}, i32 0, i32 3, i32 1)"
            )

    def _masked_width(self, buffer: Buffer, lanes: int) -> int:
        """Lanes of a whole vector, where one with a mask is better than the parts of a vector of
        another size; else 0. What lives in registers has no use for masks."""
        whole = 1 << (lanes - 1).bit_length()
        size = buffer.dtype.itemsize
        fits = (
            size >= 4 and lanes > 2 and whole != lanes and self.machine.has("avx512vl")
        )
        return whole if fits and buffer.scope != "register" else 0

    def _masked_load(
        self,
        pointer: Value,
        type: str,
        lanes: int,
        size: int,
        mask: Value,
        outside: Value | None = None,
    ) -> Value:
        full = vector_type(type, lanes)
        args = f"{_aligned(pointer, size)}, {mask.typed}, {_else(full, lanes, outside)}"
        name = f"llvm.masked.load.{mangle(type, lanes)}.p0"
        return self.ins(f"call {full} @{name}({args})", type, lanes)

    def _load_strided(self, place: Access, type: str, size: int) -> Value:
        """All elements from the first lane's to the last lane's in whole vectors, the last of which
        ends at the last element; the lanes are picked out of one after another."""
        lanes = place.lanes
        step = abs(place.stride)
        span = step * (lanes - 1) + 1
        width = min(1 << (lanes - 1).bit_length(), span)
        pointer = place.pointer
        if place.stride < 0:
            pointer = self.ins(
                f"getelementptr i8, {pointer.typed}, i64 {(1 - span) * size}", "ptr"
            )
        places = [step * n for n in range(lanes)][:: 1 if place.stride > 0 else -1]
        found: Value | None = None
        for first in range(0, span, width):
            start = min(first, span - width)
            at = self.ins(
                f"getelementptr i8, {pointer.typed}, i64 {start * size}", "ptr"
            )
            full = vector_type(type, width)
            part = self.ins(f"load {full}, {at.typed}, align {size}", type, width)
            here = [e - start if first <= e < first + width else -1 for e in places]
            if found is None:
                found = self.shuffle(part, here + [-1] * (width - lanes))
            else:
                picks = [n if h < 0 else width + h for n, h in enumerate(here)]
                found = self.shuffle(found, picks + [-1] * (width - lanes), part)
        assert found is not None
        if width == lanes:
            return found
        return self.shuffle(found, list(range(lanes)))

    def _lane_pointers(self, place: Access, size: int) -> Value:
        offsets = place.offsets
        if offsets is None:
            offsets = int_vector([n * place.stride * size for n in range(place.lanes)])
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
        v: Value,
        mask: Value | None = None,
    ) -> None:
        """Write a held value at a checked index; `mask` (scalar or per lane) says where."""
        place = self.access(buffer, index)
        raw = self.ops.formats.pack(v, buffer.dtype)
        size = buffer.dtype.itemsize
        raw = self.splat(raw, place.lanes)
        if mask is not None and mask.const is not None:
            if not mask.const:
                return
            mask = None
        check(self, STORE, buffer, index, mask)
        contiguous = place.is_uniform or (place.offsets is None and place.stride == 1)
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
            how = self.storing(buffer, address(buffer, index), lane, raw.lanes)
            self.line(f"store {raw.typed}, {place.pointer.typed}, {how}")
        elif contiguous and mask is not None:
            name = f"llvm.masked.store.{mangle(raw.type, raw.lanes)}.p0"
            args = f"{raw.typed}, {_aligned(place.pointer, size)}, {mask.typed}"
            self.line(f"call void @{name}({args})")
        else:
            chosen = self.splat(
                mask if mask is not None else integer(1, "i1"), place.lanes
            )
            pointers = self._lane_pointers(place, size)
            types = f"{mangle(raw.type, raw.lanes)}.{mangle('ptr', raw.lanes)}"
            args = f"{raw.typed}, {_aligned(pointers, size)}, {chosen.typed}"
            self.line(f"call void @llvm.masked.scatter.{types}({args})")

    def storing(
        self, buffer: Buffer, form: Affine, lane: Var | None, lanes: int
    ) -> str:
        """How a store of so many lanes at a linear form is aligned, and whether it passes the
        caches by: whole registers of such a buffer do."""
        size = buffer.dtype.itemsize
        register = self.machine.vector_bits // 8
        whole = lanes * size % register == 0
        if (
            buffer not in self.streams
            or not whole
            or not on_boundaries(form, lane, lanes)
        ):
            return f"align {size}"
        self.has_streamed = True
        return f"align {register}{STREAMING}"

    def _rewritable(self, buffer: Buffer, index: tuple[Expr, ...]) -> bool:
        """Whether what is in `buffer` at `index` may be written back in every lane: the memory is
        this thread's own, and no lane lies outside of it."""
        if buffer.scope == "global":
            return False
        ranges = (bounds(part, self.ranges) for part in index)
        return all(
            low is not None and low >= 0 and high is not None and high < extent
            for (low, high), extent in zip(ranges, buffer.shape, strict=True)
        )

    # -- checked indices

    def _checked(self, buffer: Buffer, index: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """The index with every data-dependent part proven, or tested, reported and set to 0."""
        return tuple(
            self.clamped(part, extent) if self.is_unproven(part, extent) else part
            for part, extent in zip(index, buffer.shape, strict=True)
        )

    def is_unproven(self, part: Expr, extent: int) -> bool:
        """Whether an index reads data and its bounds do not keep it inside the extent."""
        if part in self._clamped or not self.info(part).reads:
            return False
        low, high = bounds(part, self.ranges)
        return low is None or high is None or low < 0 or high >= extent

    def inside(self, part: Expr, extent: int) -> Expr:
        """The condition `0 <= part < extent`, as one unsigned comparison."""
        return Lt(Cast(part, dtypes.uint64), const(extent, dtypes.uint64))

    def clamped(self, part: Expr, extent: int) -> Expr:
        """`part` where it is inside, else 0; the failure is stored in the call's status."""
        ok = self.inside(part, extent)
        guard, info = self.guarded(self.info(ok) | Info(risky=True))
        self.cached(("check", ok, guard), info, lambda: self._report(ok))
        safe = Select(ok, part, const(0, INDEX))
        self._clamped.add(safe)
        return safe

    def _report(self, ok: Expr) -> Value:
        holds = self.value(ok)
        bad = self.ops.invert(holds, dtypes.bool_)
        if self.guard is not None:
            bad = self.ops.binary(And, bad, self._holds(self.guard), dtypes.bool_)
        bad = self.any(bad)
        if bad.const is False:
            return bad
        failed = self.fresh("bad")
        fine = self.fresh("fine")
        self.line(f"br {bad.typed}, label {failed}, label {fine}")
        self.label(failed)
        code = 1 << 8 | STATUS_INDEX
        slot = self.ins(f"getelementptr i8, ptr %ctx, i64 {8 * CTX_STATUS}", "ptr")
        self.line(f"store atomic i64 {code}, {slot.typed} monotonic, align 8")
        self.line(f"br label {fine}")
        self.label(fine)
        return bad

    def _holds(self, guard: Expr) -> Value:
        """A guard's value, each condition under those around it, as when it was tested first.

        Under itself, a condition that reads at a checked index would need its own value.
        """
        outer = self._holds(guard.lhs) if isinstance(guard, And) else None
        saved, self.guard = self.guard, guard.lhs if isinstance(guard, And) else None
        try:
            if outer is None or not isinstance(guard, And):
                return self.value(guard)
            return self.ops.binary(And, outer, self.value(guard.rhs), dtypes.bool_)
        finally:
            self.guard = saved

    # -- helpers

    def any(self, mask: Value) -> Value:
        """Whether some lane of a mask is set."""
        if mask.lanes == 1:
            return mask
        name = f"vector.reduce.or.{mangle('i1', mask.lanes)}"
        return self.call(name, "i1", 1, mask)

    def safe(self, holds: Value | None = None) -> Value:
        """An address that may always be read, for loads that must not happen; it holds copies of
        a constant, zeros if None."""
        key = "" if holds is None else holds.typed
        if key not in self._safe:
            here, self.out = self.out, self.entry
            self._safe[key] = self.ins(f"alloca [{_SAFE_BYTES} x i8], align 64", "ptr")
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
        self.pointers[buffer] = self.ins(f"alloca [{count} x {type}], align 64", "ptr")
        self.out = here


def weaker(guard: Expr | None) -> list[Expr | None]:
    """What a guard implies, the weakest (None: no permission is needed) first, then itself.

    What was computed under one of them is right wherever the guard holds, and was checked there.
    """
    found: list[Expr | None] = []
    while guard is not None:
        found.append(guard)
        guard = guard.lhs if isinstance(guard, And) else None
    return [None, *reversed(found)]


def address(buffer: Buffer, index: tuple[Expr, ...]) -> Affine:
    """The element offset of an access, in as few terms as possible."""
    form = Affine((), 0)
    for part, stride in zip(index, buffer.strides, strict=True):
        form = form + affine(part).scaled(stride)
    return rejoined(form)


def _first_lanes(lanes: int, whole: int) -> Value:
    """The mask of the first lanes of a vector."""
    return int_vector([int(n < lanes) for n in range(whole)], "i1")


def _else(full: str, lanes: int, outside: Value | None) -> str:
    """The lanes that a masked load leaves out."""
    return (
        f"{full} zeroinitializer"
        if outside is None
        else splat_constant(outside, lanes).typed
    )


def _aligned(pointer: Value, size: int) -> str:
    return f"{pointer.full} align {size} {pointer.text}"
