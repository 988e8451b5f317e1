"""Lookups in small tables held in registers, by permutations of two registers.

x86 cannot gather bytes or words: they would be loaded one by one. An AVX-512 permutation picks from
the entries of two registers, and higher index bits choose among the results.
"""

from __future__ import annotations

from tilewright.targets.llvm.emit_near import at_element, masked_load
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    LlvmWriter,
    int_vector,
    integer,
    vector_type,
)
from tilewright.targets.llvm.processor import Processor

REGISTER = 64  # bytes
# By the bytes of an entry: what permutes two registers, the feature, and of how many bytes a table
# is at most: 4-byte entries can be gathered, in about the time that 4 permutations take.
_PERMUTATIONS = {
    1: ("qi", "avx512vbmi", 1024),
    2: ("hi", "avx512bw", 1024),
    4: ("d", "avx512f", 512),
}


def fits(machine: Processor, count: int, lanes: int, size: int) -> bool:
    """Whether an in-register lookup of `lanes` lanes in a table of `count` entries of `size` bytes
    pays."""
    if size not in _PERMUTATIONS:
        return False
    _, feature, most = _PERMUTATIONS[size]
    pairs = -(-count * size // (2 * REGISTER))
    return machine.has(feature) and count * size <= most and lanes >= 2 * pairs


def look_up(
    w: LlvmWriter,
    pointer: LlvmValue,
    count: int,
    index: LlvmValue,
    type: str,
    size: int,
) -> LlvmValue:
    """Entry `index`, an i16 below `count` in each lane, of the table at `pointer`.

    type, size: of an entry, as it is in memory, and in bytes.
    """
    held = f"i{8 * size}"
    chunks = _chunks(w, pointer, count, held, size)
    width = REGISTER // size
    lanes = index.lanes
    results = []
    for first in range(0, lanes, width):
        order = [n if n < lanes else -1 for n in range(first, first + width)]
        part = index if lanes == width else w.shuffle(index, order)
        results.append(_entries(w, chunks, part, size))
    while len(results) > 1:
        n = results[0].lanes
        pairs = zip(results[::2], results[1::2], strict=False)
        merged = [w.shuffle(a, list(range(2 * n)), b) for a, b in pairs]
        if len(results) % 2:
            more = [k if k < n else -1 for k in range(2 * n)]
            merged.append(w.shuffle(results[-1], more))
        results = merged
    (found,) = results
    if found.lanes > lanes:
        found = w.shuffle(found, list(range(lanes)))
    return found if type == held else w.convert("bitcast", found, type)


def _chunks(
    w: LlvmWriter, pointer: LlvmValue, count: int, type: str, size: int
) -> list[LlvmValue]:
    """The table in registers; the last one may be partial."""
    width = REGISTER // size
    found = []
    for first in range(0, count, width):
        at = at_element(w, pointer, first, size)
        if first + width <= count:
            full = vector_type(type, width)
            found.append(w.ins(f"load {full}, {at.typed}, align {size}", type, width))
        else:
            mask = int_vector([int(first + n < count) for n in range(width)], "i1")
            found.append(masked_load(w, at, type, size, mask))
    return found


def _entries(
    w: LlvmWriter, chunks: list[LlvmValue], index: LlvmValue, size: int
) -> LlvmValue:
    """A register of entries; `index` has as many lanes as a register has."""
    name, _, _ = _PERMUTATIONS[size]
    type = chunks[0].type
    if size == 2:
        low = index
    else:
        low = w.convert("trunc" if size == 1 else "zext", index, type)
    found = []
    for n in range(0, len(chunks), 2):
        a, b = chunks[n], chunks[min(n + 1, len(chunks) - 1)]
        permute = f"x86.avx512.vpermi2var.{name}.512"
        found.append(w.call(permute, type, index.lanes, a, low, b))
    bit = 2 * index.lanes
    while len(found) > 1:
        at = w.binary("and", index, w.splat(integer(bit, "i16"), index.lanes))
        zero = w.splat(integer(0, "i16"), index.lanes)
        upper = w.compare("icmp ne", at, zero)
        pairs = [found[n : n + 2] for n in range(0, len(found), 2)]
        found = [w.select(upper, p[1], p[0]) if p[1:] else p[0] for p in pairs]
        bit *= 2
    return found[0]
