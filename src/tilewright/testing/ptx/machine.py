"""A grid of threads that runs a kernel of PTX: all threads at the same instruction together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from tilewright.testing.ptx.arithmetic import (
    SIMPLE,
    TYPES,
    Array,
    compare,
    convert,
    extremum,
    mul,
    widened,
)
from tilewright.testing.ptx.copies import CopiesOnTheWay
from tilewright.testing.ptx.memory import CallerMemory
from tilewright.testing.ptx.mma import mma, rounded_to_tf32
from tilewright.testing.ptx.text import PtxInstruction, PtxKernel, names_in
from tilewright.testing.ptx.traffic import WarpTraffic

Extents = tuple[int, int, int]
_STEPS: Final = 1_000_000
_SPACE: Final = (
    1 << 40
)  # addresses of a block's memory begin there, a thread's at twice that
_PLACE: Final = re.compile(r"\[([^\]+]+)(?:\+(-?\d+))?\]")
_HEX: Final = re.compile(r"0([fFdD])([0-9A-Fa-f]+)")
WARP: Final = 32
_PACKED: Final = {"f16x2": "f16"}  # types of two numbers in a word, of what
# Instructions that threads of a warp do together.
_TOGETHER: Final = ("shfl.sync", "bar.warp.sync", "mma.sync")
_UNSET: Final = np.uint64((1 << 64) - 1)


def run(
    kernel: PtxKernel,
    grid: Extents,
    threads: Extents,
    memory: CallerMemory,
    arguments: Sequence[int],
    dynamic: int = 0,
    traffic: WarpTraffic | None = None,
) -> None:
    """Run a kernel in place; arguments: addresses; dynamic: bytes of what has no size in the text.

    traffic: counts what it asks of memory.

    Raises IndexError for an access outside memory, RuntimeError for a barrier that a part of a
    block does not reach, NotImplementedError for an instruction that is not known.
    """
    with np.errstate(all="ignore"):
        made = _Grid(kernel, grid, threads, memory, arguments, dynamic)
        made.traffic = traffic
        made.run()


class _Grid:
    def __init__(
        self,
        kernel: PtxKernel,
        grid: Extents,
        threads: Extents,
        memory: CallerMemory,
        arguments: Sequence[int],
        dynamic: int,
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.traffic: WarpTraffic | None = None
        self.per_block = prod(threads)
        self.count = prod(grid) * self.per_block
        number = np.arange(self.count)
        self.block = number // self.per_block
        self.thread = number % self.per_block
        self.special = {
            **_axes("%ctaid", self.block, grid),
            **_axes("%tid", self.thread, threads),
        }
        self.params = dict(zip(kernel.params, arguments, strict=True))
        self.places: dict[str, int] = {}
        shared = self._lay(kernel.shared, _SPACE, dynamic)
        arrays = dict.fromkeys(kernel.params, 8)
        self._lay(arrays, 3 * _SPACE, 0)
        local = self._lay(kernel.local, 2 * _SPACE, 0)
        self.shared = np.zeros((prod(grid), shared), np.uint8)
        self.local = np.zeros((self.count, local), np.uint8)
        self.registers: dict[str, Array] = {}
        self.pc = np.zeros(self.count, np.int64)
        self.waiting = np.zeros(self.count, bool)
        self.copies = CopiesOnTheWay()

    def _lay(
        self,
        arrays: dict[str, int],
        base: int,
        dynamic: int,
    ) -> int:
        at = 0
        for name, size in arrays.items():
            self.places[name] = base + at
            at += -(-(size or dynamic) // 16) * 16
        return at

    def run(self) -> None:
        """Always the threads that are after the others continue."""
        end = len(self.kernel.code)
        for _ in range(_STEPS):
            ready = (self.pc < end) & ~self.waiting
            if not ready.any():
                if not self.waiting.any():
                    return
                raise RuntimeError(
                    f"{self.kernel.name}: a barrier not all threads reach"
                )
            self._step(*self._next(ready))
        raise RuntimeError(f"{self.kernel.name} does not end")

    def _next(self, ready: Array) -> tuple[PtxInstruction, Array, int]:
        """The first instruction that some threads can run, these, and where it is.

        A shuffle waits for all threads that its mask names, and a product for its warp: others may
        have to do more before it.
        """
        ready = ready.copy()
        while ready.any():
            at = int(self.pc[ready].min())
            i = self.kernel.code[at]
            who = np.flatnonzero(ready & (self.pc == at))
            if i.op.startswith(_TOGETHER):
                who = self._complete(i, who)
            if who.size:
                return i, who, at
            ready &= self.pc != at
        raise RuntimeError(f"{self.kernel.name}: a neighbor is not at the shuffle")

    def _complete(self, i: PtxInstruction, who: Array) -> Array:
        """Those of the threads with which all that an instruction is for in their warp are here."""
        mask = "-1" if i.op.startswith("mma") else i.operands[-1]
        thread = self.thread[who]
        warps = -(-self.per_block // WARP)
        warp = self.block[who] * warps + thread // WARP
        bit = np.uint64(1) << (thread % WARP).astype(np.uint64)
        shape = int(warp.max()) + 1
        here = np.zeros(shape, np.uint64)
        np.bitwise_or.at(here, warp, bit)
        left = np.minimum(self.per_block - thread // WARP * WARP, WARP)
        there = (np.uint64(1) << left.astype(np.uint64)) - np.uint64(1)
        named = self._get(mask, "u64", who) & there
        complete: Array = who[named & ~here[warp] == 0]
        return complete

    def _step(
        self,
        i: PtxInstruction,
        who: Array,
        at: int,
    ) -> None:
        self.pc[who] = at + 1
        if i.guard:
            guard = self._register(i.guard)
            holds = guard[who].astype(bool)
            who = who[holds != i.negated]
        if not who.size:
            return
        base, *modes = i.op.split(".")
        if base == "bra":
            self.pc[who] = self.kernel.labels[i.operands[0]]
        elif base == "ret":
            self.pc[who] = len(self.kernel.code)
        elif i.op == "bar.warp.sync":
            self._check_warps(who)
        elif base in ("bar", "barrier"):
            self._meet(who)
        else:
            self._compute(base, modes, i.operands, who)

    def _meet(self, who: Array) -> None:
        """A block continues when all of its threads wait, or have ended."""
        self.waiting[who] = True
        gone = self.pc >= len(self.kernel.code)
        blocks = (self.waiting | gone).reshape(-1, self.per_block)
        all_here: Array = np.asarray(blocks.all(axis=1))
        self.waiting &= ~all_here[self.block]

    # -- values

    def _get(
        self,
        operand: str,
        kind: str,
        who: Array,
    ) -> Array:
        type = TYPES[kind]
        if operand in self.special:
            return self.special[operand][who].astype(type)
        if operand.startswith("%"):
            raw = self._register(operand)[who]
            if kind == "pred":
                return raw.astype(bool)
            bits = np.dtype(type).itemsize * 8
            dtype = getattr(np, f"uint{bits}")
            return raw.astype(dtype).view(type)
        filler = self._number(operand, type)
        return np.full(who.size, filler, type)

    def _number(self, operand: str, type: Any) -> Any:
        if operand in self.places:
            return type(self.places[operand])
        if found := _HEX.fullmatch(operand):
            bits = int(found[2], 16)
            kind = found[1].lower()
            if kind == "f":
                return np.uint32(bits).view(type)
            return np.uint64(bits).view(type)
        size = np.dtype(type).itemsize * 8
        value = int(operand.removesuffix("U"), 0) & (1 << size) - 1
        return np.array(value, f"uint{size}").view(type)[()]

    def _register(self, name: str) -> Array:
        """What each thread has there: at first what is not a number in any float format."""
        if name not in self.registers:
            self.registers[name] = np.full(self.count, _UNSET, np.uint64)
        return self.registers[name]

    def _set(
        self,
        register: str,
        value: Array,
        who: Array,
    ) -> None:
        held = self._register(register)
        value = np.broadcast_to(value, who.shape)
        if value.dtype == bool:
            held[who] = value
            return
        bits = 8 * value.dtype.itemsize
        raw = np.ascontiguousarray(value).view(f"uint{bits}")
        held[who] = raw.astype(np.uint64)

    def _compute(
        self,
        base: str,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        if base in ("ld", "st"):
            self._access(base, modes, operands, who)
            return
        if base == "mma":
            self._mma(modes, operands, who)
            return
        if base == "cp":
            self._copy(modes, operands, who)
            return
        if base == "shfl":
            self._exchange(modes, operands, who)
            return
        target, *sources = operands
        kind = modes[-1]
        if base == "mov" and "{" in target + sources[0]:
            self._move_words(target, sources[0], kind, who)
            return
        asked = _Asked(base, tuple(modes), kind, tuple(sources), who)
        if kind in _PACKED:
            self._set(target, self._packed(asked, _PACKED[kind]), who)
            return
        rule = _RULES.get(base, _Grid._simple)
        self._set(target, rule(self, asked), who)

    # -- one method for instructions of one form

    def _all(self, asked: _Asked) -> list[Array]:
        return [self._get(s, asked.kind, asked.who) for s in asked.sources]

    def _simple(self, asked: _Asked) -> Array:
        known = SIMPLE.get(asked.base)
        if known is None:
            modes = ".".join(asked.modes)
            raise NotImplementedError(f"PTX {asked.base}.{modes}")
        return known(*self._all(asked))

    def _packed(self, asked: _Asked, kind: str) -> Array:
        """Two numbers in a word, each by itself."""
        known = SIMPLE.get(asked.base)
        if known is None:
            modes = ".".join(asked.modes)
            raise NotImplementedError(f"PTX {asked.base}.{modes}")
        halves = []
        for source in asked.sources:
            word = self._get(source, "b32", asked.who)
            pair = np.ascontiguousarray(word)
            halves.append(pair.view(TYPES[kind]))
        found = known(*halves)
        return found.view(np.uint32)

    def _same(self, asked: _Asked) -> Array:
        return self._all(asked)[0]

    def _converted(self, asked: _Asked) -> Array:
        *modes, to, _ = asked.modes
        (value,) = self._all(asked)
        if to == "tf32":
            return rounded_to_tf32(value)
        return convert(value, TYPES[to], tuple(modes))

    def _compared(self, asked: _Asked) -> Array:
        a, b = self._all(asked)
        return compare(asked.modes[0], a, b)

    def _selected(self, asked: _Asked) -> Array:
        first, second, condition = asked.sources
        a = self._get(first, asked.kind, asked.who)
        b = self._get(second, asked.kind, asked.who)
        chosen = self._get(condition, "pred", asked.who)
        return np.where(chosen, a, b)

    def _extremum(self, asked: _Asked) -> Array:
        a, b = self._all(asked)
        order = extremum(asked.base, "NaN" in asked.modes)
        return order(a, b)

    def _product(self, asked: _Asked) -> Array:
        first, second, *third = asked.sources
        a = self._get(first, asked.kind, asked.who)
        b = self._get(second, asked.kind, asked.who)
        (mode,) = [m for m in asked.modes if m in ("lo", "hi", "wide")] or ["lo"]
        if not third:
            return mul(a, b, None, mode)
        wide = f"{asked.kind[0]}64"
        if mode == "wide":
            kind = wide
        else:
            kind = asked.kind
        c = self._get(third[0], kind, asked.who)
        return mul(a, b, c, mode)

    def _shifted(self, asked: _Asked) -> Array:
        first, second = asked.sources
        a = self._get(first, asked.kind, asked.who)
        by = self._get(second, "u32", asked.who)
        return SIMPLE[asked.base](a, by)

    def _move_words(
        self,
        target: str,
        source: str,
        kind: str,
        who: Array,
    ) -> None:
        """Two halves as one, or one as two."""
        half = int(kind[1:]) // 2
        if target.startswith("{"):
            value = self._get(source, kind, who).astype(np.uint64)
            for n, part in enumerate(names_in(target)):
                word = value >> np.uint64(half * n)
                if part != "_":
                    self._set(part, word.astype(f"uint{half}"), who)
            return
        words = [self._get(s, f"b{half}", who) for s in names_in(source)]
        low, high = (word.astype(np.uint64) for word in words)
        whole = low | high << np.uint64(half)
        self._set(target, whole.astype(TYPES[kind]), who)

    def _exchange(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`shfl.sync.bfly`: among threads of a warp that are here; all that the mask names are."""
        if modes[1] != "bfly":
            raise NotImplementedError(f"PTX shfl.{'.'.join(modes)}")
        target, source, step, _, mask = operands
        here = np.zeros(self.count, bool)
        here[who] = True
        own = self.thread[who]
        thread = own ^ int(step)
        other = (who - own + thread) % self.count
        lane = (thread % WARP).astype(np.uint32)
        masks = self._get(mask, "u64", who) & np.uint64((1 << WARP) - 1)
        named = masks >> lane.astype(np.uint64) & np.uint64(1) == 1
        room = self.per_block - own // WARP * WARP
        warp = np.minimum(room, WARP).astype(np.uint64)
        if (masks >> warp).any():
            raise RuntimeError(f"{self.kernel.name}: a mask of threads there are not")
        exists = thread < self.per_block
        if not (here[other] & named & exists).all():
            raise RuntimeError(f"{self.kernel.name}: a neighbor is not at the shuffle")
        everybody = np.arange(self.count)
        value = self._get(source, "b32", everybody)
        self._set(target, value[other], who)

    def _check_warps(self, who: Array) -> None:
        """Raise RuntimeError where not all threads of a warp are here."""
        _, counts = np.unique(self._warps(who), return_counts=True)
        if (counts != WARP).any():
            raise RuntimeError(f"{self.kernel.name}: a part of a warp is here alone")

    def _warps(self, who: Array) -> Array:
        """A number for the warp of each thread."""
        of_block = -(-self.per_block // WARP)
        found: Array = self.block[who] * of_block + self.thread[who] // WARP
        return found

    def _mma(self, modes: list[str], operands: tuple[str, ...], who: Array) -> None:
        """`mma.sync.aligned.SHAPE.row.col`, of whole warps, which are neighbors in `who`."""
        shape = modes[2]
        to = modes[5]
        of = modes[6]
        self._check_warps(who)
        if self.traffic is not None:
            self.traffic.products += who.size // WARP
        target, *given = operands
        words = []
        for part in given:
            registers = [self._get(name, "b32", who) for name in names_in(part)]
            words.append([word.reshape(-1, WARP) for word in registers])
        made = mma(shape, of, to, *words)
        for name, value in zip(names_in(target), made, strict=True):
            self._set(name, value.reshape(-1), who)

    # -- memory

    def _access(
        self,
        base: str,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        kind = modes[-1]
        place, values = operands if base == "st" else reversed(operands)
        if "param" in modes:
            found = _PLACE.fullmatch(place)
            assert found is not None
            self._set(values, self._param(found[1], who), who)
            return
        names = names_in(values)
        size = np.dtype(TYPES[kind]).itemsize
        width = size * len(names)
        at = self._address(place, width, who)
        self._note(base == "st", at, width, who)
        for n, name in enumerate(names):
            bytes_, rows = self._bytes(at + np.uint64(n * size), size, who)
            if base == "ld":
                raw = np.ascontiguousarray(bytes_[rows])
                self._set(name, widened(raw.view(TYPES[kind])[:, 0]), who)
            else:
                raw = np.ascontiguousarray(self._get(name, kind, who))
                bytes_[rows] = raw.view(np.uint8).reshape(-1, size)

    def _address(
        self,
        place: str,
        width: int,
        who: Array,
    ) -> Array:
        """Of an access of so many bytes."""
        found = _PLACE.fullmatch(place)
        assert found is not None
        offset = int(found[2] or 0) % (1 << 64)
        at: Array = self._get(found[1], "u64", who) + np.uint64(offset)
        if (at % np.uint64(width)).any():
            raise IndexError(f"{self.kernel.name}: an access that is not aligned")
        return at

    def _note(
        self,
        writes: bool,
        at: Array,
        width: int,
        who: Array,
    ) -> None:
        """Count what is asked of memory."""
        if self.traffic is None or not who.size:
            return
        space = int(at[0] // np.uint64(_SPACE))
        first = at % np.uint64(_SPACE)
        warps = self._warps(who)
        self.traffic.note(space, writes, first, width, warps)

    def _copy(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`cp.async`: what is read now is written where the thread waits, and not before."""
        if modes == ["async", "wait_all"]:
            for copy in self.copies.arrived(who):
                bytes_, rows = self._bytes(copy.at, copy.width, copy.who)
                bytes_[rows] = copy.data
            return
        if modes[2:] != ["shared", "global"]:
            raise NotImplementedError(f"PTX cp.{'.'.join(modes)}")
        to, source, size, *some = operands
        width = int(size)
        target = self._address(to, width, who)
        at = self._address(source, width, who)
        data = np.zeros((who.size, width), np.uint8)
        counts = self._get((some or [size])[0], "u32", who)
        whole = counts == width
        if (counts[~whole] != 0).any():
            raise NotImplementedError("PTX cp.async of a part")
        readers = who[whole]
        if readers.size:
            bytes_, rows = self._bytes(at[whole], width, readers)
            data[whole] = bytes_[rows]
        self._note(False, at[whole], width, readers)
        self._note(True, target, width, who)
        self.copies.start(who, target, data)

    def _param(self, place: str, who: Array) -> Array:
        """The argument of a parameter: by its name, or where a register says that it is."""
        if not place.startswith("%"):
            filler = self.params[place]
            return np.full(who.size, filler, np.uint64)
        found = {self.places[name]: value for name, value in self.params.items()}
        at = self._get(place, "u64", who).tolist()
        return np.array([found[address] for address in at], np.uint64)

    def _bytes(
        self,
        at: Array,
        size: int,
        who: Array,
    ) -> tuple[Array, tuple[Array, ...]]:
        """Where each thread's bytes are: an array, and indices into it."""
        spaces = at // np.uint64(_SPACE)
        space = int(spaces[0])
        if (spaces != space).any():
            raise NotImplementedError("threads that access different spaces at once")
        first = (at % np.uint64(_SPACE)).astype(np.int64)
        inside = first[:, None] + np.arange(size)
        if space == 0:
            self._check_global(inside)
            return self.memory.bytes, (inside,)
        if space == 1:
            memory = self.shared
            row = self.block[who]
        else:
            memory = self.local
            row = who
        if inside.max() >= memory.shape[1]:
            raise IndexError(f"{self.kernel.name}: outside of a block's memory")
        return memory, (row[:, None], inside)

    def _check_global(self, places: Array) -> None:
        valid = self.memory.valid
        is_far = places >= valid.size
        if is_far.any() or not valid[places].all():
            raise IndexError(f"{self.kernel.name}: outside of an array")


@dataclass(frozen=True, slots=True)
class _Asked:
    """An instruction with a result, of some threads."""

    base: str
    modes: tuple[str, ...]
    kind: str
    sources: tuple[str, ...]
    who: Array


_RULES: Final[Mapping[str, Callable[[_Grid, _Asked], Array]]] = {
    "cvta": _Grid._same,
    "cvt": _Grid._converted,
    "setp": _Grid._compared,
    "selp": _Grid._selected,
    "min": _Grid._extremum,
    "max": _Grid._extremum,
    "mul": _Grid._product,
    "mad": _Grid._product,
    "shl": _Grid._shifted,
    "shr": _Grid._shifted,
}


def _axes(
    name: str,
    number: Array,
    extents: Extents,
) -> dict[str, Array]:
    found = {}
    for axis, extent in zip("xyz", extents, strict=True):
        found[f"{name}.{axis}"] = number % extent
        number = number // extent
    return found
