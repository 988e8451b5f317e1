"""What an instruction of PTX does, for the threads that run it together: values and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from tilewright.base.dataclass import dataclass
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
from tilewright.testing.ptx.async_proxy import ProductInFlight
from tilewright.testing.ptx.mma import fragments, mma, rounded_to_tf32
from tilewright.testing.ptx.state import WARP, ThreadState
from tilewright.testing.ptx.text import names_in
from tilewright.testing.ptx.wgmma import (
    GROUP,
    Descriptor,
    accumulator,
    item_of,
    matrix,
    shape_of,
)

# What is done to an element of memory as one step.
_ATOMIC: Final[Mapping[str, Callable[..., Array]]] = {
    **SIMPLE,
    "min": np.minimum,
    "max": np.maximum,
}
_PACKED: Final = {"f16x2": "f16"}  # types of two numbers in a word, of what


class ThreadInstructions(ThreadState):
    """The threads of a grid, and what their instructions change."""

    def groups(self, who: Array) -> Array:
        """A number for the group of four warps of each thread."""
        found: Array = self.block[who] * self.per_block + self.thread[who] // GROUP
        return found

    def compute(
        self,
        base: str,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        if base in ("ld", "st"):
            self._access(base, modes, operands, who)
            return
        if base in ("atom", "red"):
            self._atomic(modes, operands, who)
            return
        if base == "mma":
            self._mma(modes, operands, who)
            return
        if base == "ldmatrix":
            self._load_matrices(modes, operands, who)
            return
        if base == "cp":
            self._copy(modes, operands, who)
            return
        if base == "shfl":
            self._exchange(modes, operands, who)
            return
        target, *sources = operands
        kind = modes[-1]
        if base == "mapa":
            place, rank = sources
            at = self.get(place, "u64", who)
            self.set(target, self.mapped(at, self.get(rank, "u32", who)), who)
            return
        if base == "mov" and "{" in target + sources[0]:
            self._move_words(target, sources[0], kind, who)
            return
        asked = _Asked(base, tuple(modes), kind, tuple(sources), who)
        if kind in _PACKED:
            self.set(target, self._packed(asked, _PACKED[kind]), who)
            return
        rule = _RULES.get(base, ThreadInstructions._simple)
        self.set(target, rule(self, asked), who)

    # -- one method for instructions of one form

    def _all(self, asked: _Asked) -> list[Array]:
        return [self.get(s, asked.kind, asked.who) for s in asked.sources]

    def _simple(self, asked: _Asked) -> Array:
        known = SIMPLE.get(asked.base)
        if known is None:
            modes = ".".join(asked.modes)
            raise NotImplementedError(f"PTX {asked.base}.{modes}")
        return known(*self._all(asked))

    def _packed(self, asked: _Asked, kind: str) -> Array:
        """An operation on the two numbers in a word separately."""
        known = SIMPLE.get(asked.base)
        if known is None:
            modes = ".".join(asked.modes)
            raise NotImplementedError(f"PTX {asked.base}.{modes}")
        halves = []
        for source in asked.sources:
            word = self.get(source, "b32", asked.who)
            pair = np.ascontiguousarray(word)
            halves.append(pair.view(TYPES[kind]))
        found = known(*halves)
        return found.view(np.uint32)

    def _same(self, asked: _Asked) -> Array:
        return self._all(asked)[0]

    def _converted(self, asked: _Asked) -> Array:
        *modes, to, _ = asked.modes
        if to in _PACKED:  # the first source is in the high half
            of, how = TYPES[_PACKED[to]], tuple(modes)
            high, low = (convert(v, of, how) for v in self._all(asked))
            return np.stack([low, high], axis=-1).view(np.uint32)[..., 0]
        (value,) = self._all(asked)
        if to == "tf32":
            return rounded_to_tf32(value)
        return convert(value, TYPES[to], tuple(modes))

    def _compared(self, asked: _Asked) -> Array:
        a, b = self._all(asked)
        return compare(asked.modes[0], a, b)

    def _selected(self, asked: _Asked) -> Array:
        first, second, condition = asked.sources
        a = self.get(first, asked.kind, asked.who)
        b = self.get(second, asked.kind, asked.who)
        chosen = self.get(condition, "pred", asked.who)
        return np.where(chosen, a, b)

    def _extremum(self, asked: _Asked) -> Array:
        a, b = self._all(asked)
        order = extremum(asked.base, "NaN" in asked.modes)
        return order(a, b)

    def _product(self, asked: _Asked) -> Array:
        first, second, *third = asked.sources
        a = self.get(first, asked.kind, asked.who)
        b = self.get(second, asked.kind, asked.who)
        (mode,) = [m for m in asked.modes if m in ("lo", "hi", "wide")] or ["lo"]
        if not third:
            return mul(a, b, None, mode)
        wide = f"{asked.kind[0]}64"
        if mode == "wide":
            kind = wide
        else:
            kind = asked.kind
        c = self.get(third[0], kind, asked.who)
        return mul(a, b, c, mode)

    def _shifted(self, asked: _Asked) -> Array:
        first, second = asked.sources
        a = self.get(first, asked.kind, asked.who)
        by = self.get(second, "u32", asked.who)
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
            value = self.get(source, kind, who).astype(np.uint64)
            for n, part in enumerate(names_in(target)):
                word = value >> np.uint64(half * n)
                if part != "_":
                    self.set(part, word.astype(f"uint{half}"), who)
            return
        words = [self.get(s, f"b{half}", who) for s in names_in(source)]
        low, high = (word.astype(np.uint64) for word in words)
        whole = low | high << np.uint64(half)
        self.set(target, whole.astype(TYPES[kind]), who)

    def _exchange(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`shfl.sync.bfly` among the threads that arrived, which are all that the mask names."""
        if modes[1] != "bfly":
            raise NotImplementedError(f"PTX shfl.{'.'.join(modes)}")
        target, source, step, _, mask = operands
        here = np.zeros(self.count, bool)
        here[who] = True
        own = self.thread[who]
        thread = own ^ int(step)
        other = (who - own + thread) % self.count
        lane = (thread % WARP).astype(np.uint32)
        masks = self.get(mask, "u64", who) & np.uint64((1 << WARP) - 1)
        named = masks >> lane.astype(np.uint64) & np.uint64(1) == 1
        room = self.per_block - own // WARP * WARP
        warp = np.minimum(room, WARP).astype(np.uint64)
        if (masks >> warp).any():
            raise RuntimeError(f"{self.kernel.name}: a mask of nonexistent threads")
        exists = thread < self.per_block
        if not (here[other] & named & exists).all():
            raise RuntimeError(f"{self.kernel.name}: a neighbor is not at the shuffle")
        everybody = np.arange(self.count)
        value = self.get(source, "b32", everybody)
        self.set(target, value[other], who)

    def check_warps(self, who: Array) -> None:
        """Raise RuntimeError if not all threads of a warp are here."""
        _, counts = np.unique(self.warps(who), return_counts=True)
        if (counts != WARP).any():
            raise RuntimeError(f"{self.kernel.name}: only part of a warp is here")

    def _mma(self, modes: list[str], operands: tuple[str, ...], who: Array) -> None:
        """`mma.sync.aligned.SHAPE.row.col`, of whole warps, which are neighbors in `who`."""
        shape = modes[2]
        to = modes[5]
        of = modes[6], modes[7]
        self.check_warps(who)
        if self.traffic is not None:
            self.traffic.products += who.size // WARP
        target, *given = operands
        words = []
        for part in given:
            registers = [self.get(name, "b32", who) for name in names_in(part)]
            words.append([word.reshape(-1, WARP) for word in registers])
        made = mma(shape, of, to, *words)
        for name, value in zip(names_in(target), made, strict=True):
            self.set(name, value.reshape(-1), who)

    # -- units beside the threads

    def beside(
        self, base: str, modes: list[str], operands: tuple[str, ...], who: Array
    ) -> None:
        """`wgmma` and fences."""
        proxy = self.proxy
        if proxy is None:
            return
        if base == "fence" and modes[0] == "mbarrier_init":
            if self.boxes is not None:
                self.boxes.fence(self.block[who], who)
        elif base == "fence":
            proxy.fence(who)
        elif modes[0] == "fence":
            proxy.fence_registers(who)
        elif modes[0] == "commit_group":
            proxy.groups[who] += 1
        elif modes[0] == "wait_group":
            for product in proxy.arrived(who, int(operands[0])):
                self._use(product)
                for name, value in product.registers.items():
                    if proxy.pending(name, product.who) is None:
                        self.set(name, value, product.who)
        else:
            for group in np.unique(self.groups(who)):
                self._group_product(modes, operands, who[self.groups(who) == group])

    def _use(self, product: ProductInFlight) -> None:
        """A product has read its factors, and its threads know that."""
        one = product.who[:1]
        self.clusters.use(self.block[one], product.places[None], one)

    def _group_product(
        self, modes: list[str], operands: tuple[str, ...], who: Array
    ) -> None:
        """`wgmma.mma_async.sync.aligned.SHAPE.f32.TYPE.TYPE` of one group."""
        assert self.proxy is not None
        if who.size != GROUP:
            raise RuntimeError(f"{self.kernel.name}: only part of a group is here")
        target, *factors, scale, _, _ = operands[:6]
        of = modes[5]
        turns = operands[6:] or ("0", "0")  # only elements of 16 bits have them
        columns, depth = shape_of(modes[3], of)
        block = int(self.block[who[0]])
        memory = self.shared[block]
        found = []
        places = []
        for name, side, turned in zip(factors, (64, columns), turns, strict=True):
            bits = np.unique(self.get(name, "u64", who))
            if bits.size != 1:
                raise RuntimeError(f"{self.kernel.name}: the warps' descriptors differ")
            item = item_of(of)
            at = Descriptor.of(int(bits[0])).places(side, depth, turned == "1", item)
            bytes_ = at[..., None] + np.arange(item)
            if bytes_.max() >= memory.size:
                raise IndexError(
                    f"{self.kernel.name}: a factor outside a block's memory"
                )
            places.append(np.unique(bytes_))
            if self.boxes is not None:
                some = np.broadcast_to(places[-1], (who.size, places[-1].size))
                self.boxes.touched(self.block[who], some, who)
            self.proxy.read(block, places[-1])
            found.append(matrix(memory, bytes_, of))
        total = found[0] @ found[1].T
        names = names_in(target)
        own = accumulator(columns)
        sums = np.zeros(total.shape)
        for name, place in zip(names, own, strict=True):
            held = self.proxy.pending(name, who)
            if held is None:
                held = self.register(name)[who].astype(np.uint32).view(np.float32)
            sums[place] = held if scale == "1" else 0
        made = (total + sums).astype(np.float32)
        registers = {n: made[at] for n, at in zip(names, own, strict=True)}
        product = ProductInFlight(
            who,
            registers,
            block,
            np.concatenate(places),
            int(self.proxy.groups[who[0]]),
        )
        self.proxy.start(product)
        if self.traffic is not None:
            self.traffic.group_products += 1

    # -- memory

    def _load_matrices(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`ldmatrix.sync.aligned.m8n8.xN[.trans].shared.b16`, of whole warps."""
        target, place = operands
        registers = names_in(target)
        lanes = 8 * len(registers)
        lane = self.thread[who] % WARP
        asked = who[lane < lanes]
        at = self.address(place, 16, asked)
        self.note(False, at, 16, asked)
        bytes_, rows = self.bytes_of(at, 16, asked)
        loaded = np.ascontiguousarray(bytes_[rows])
        matrices = loaded.view(np.uint16).reshape(-1, len(registers), 8, 8)
        words = fragments(matrices, "trans" in modes)
        for n, name in enumerate(registers):
            value = words[:, n]
            self.set(name, value.reshape(-1), who)

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
            self.set(values, self.param(place, who), who)
            return
        names = names_in(values)
        size = np.dtype(TYPES[kind]).itemsize
        width = size * len(names)
        at = self.address(place, width, who)
        if (
            others := self.elsewhere(at)
        ).any():  # generic addresses: one part at a time
            for part in (who[~others], who[others]):
                self._access(base, modes, operands, part)
            return
        self.note(base == "st", at, width, who)
        if base == "st" and self.is_constant(at):
            raise IndexError(f"{self.kernel.name}: constant memory is written")
        if "shared" in modes and self.is_of_cluster(at):
            raise IndexError(f"{self.kernel.name}: an address of a cluster in a block")
        for n, name in enumerate(names):
            bytes_, rows = self.bytes_of(at + np.uint64(n * size), size, who)
            if base == "ld":
                raw = np.ascontiguousarray(bytes_[rows])
                self.set(name, widened(raw.view(TYPES[kind])[:, 0]), who)
            else:
                raw = np.ascontiguousarray(self.get(name, kind, who))
                bytes_[rows] = raw.view(np.uint8).reshape(-1, size)
        if base == "st":
            self.wrote(at, width, who)
        elif self.peers is not None and self.is_of_cluster(at):
            home, first = self.place_in_cluster(at, who)
            self.peers.use(home, first[:, None] + np.arange(width), who)

    def _atomic(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`red` and `atom`: one thread after another."""
        kind = modes[-1]
        step = _ATOMIC[modes[-2]]
        *old, place, value = operands
        size = np.dtype(TYPES[kind]).itemsize
        at = self.address(place, size, who)
        self.note(True, at, size, who)
        values = self.get(value, kind, who)
        before = np.empty(who.size, TYPES[kind])
        for n in range(who.size):
            one = slice(n, n + 1)
            bytes_, rows = self.bytes_of(at[one], size, who[one])
            held = np.ascontiguousarray(bytes_[rows]).view(TYPES[kind])[:, 0]
            before[one] = held
            after = np.ascontiguousarray(step(held, values[one]))
            bytes_[rows] = after.astype(TYPES[kind]).view(np.uint8).reshape(-1, size)
        if old:
            self.set(old[0], before, who)

    def _copy(
        self,
        modes: list[str],
        operands: tuple[str, ...],
        who: Array,
    ) -> None:
        """`cp.async`: data is read now and written when the thread waits, not earlier."""
        if modes == ["async", "commit_group"]:
            self.copies.commit(who)
            return
        if modes[1] in ("wait_all", "wait_group"):
            pending = int(operands[0]) if modes[1] == "wait_group" else None
            for copy in self.copies.arrived(who, pending):
                bytes_, rows = self.bytes_of(copy.at, copy.width, copy.who)
                bytes_[rows] = copy.data
                self.wrote(copy.at, copy.width, copy.who)
            return
        if modes[2:] != ["shared", "global"]:
            raise NotImplementedError(f"PTX cp.{'.'.join(modes)}")
        to, source, size, *some = operands
        width = int(size)
        target = self.address(to, width, who)
        at = self.address(source, width, who)
        data = np.zeros((who.size, width), np.uint8)
        counts = self.get((some or [size])[0], "u32", who)
        whole = counts == width
        if (counts[~whole] != 0).any():
            raise NotImplementedError("PTX cp.async of a part")
        readers = who[whole]
        if readers.size:
            bytes_, rows = self.bytes_of(at[whole], width, readers)
            data[whole] = bytes_[rows]
        self.note(False, at[whole], width, readers)
        self.note(True, target, width, who)
        self.copies.start(who, target, data)


@dataclass(frozen=True, slots=True)
class _Asked:
    """An instruction with a result, of some threads."""

    base: str
    modes: tuple[str, ...]
    kind: str
    sources: tuple[str, ...]
    who: Array


_RULES: Final[Mapping[str, Callable[[ThreadInstructions, _Asked], Array]]] = {
    "cvta": ThreadInstructions._same,
    "cvt": ThreadInstructions._converted,
    "setp": ThreadInstructions._compared,
    "selp": ThreadInstructions._selected,
    "min": ThreadInstructions._extremum,
    "max": ThreadInstructions._extremum,
    "mul": ThreadInstructions._product,
    "mad": ThreadInstructions._product,
    "shl": ThreadInstructions._shifted,
    "shr": ThreadInstructions._shifted,
}
