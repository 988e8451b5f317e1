"""Accesses whose lanes are near one another: loads and stores of whole vectors, and shuffles.

The elements of a strided vector, of `x // 2` or of a reversed row are shuffled out of a few vectors
that cover them, instead of being accessed one by one. The covering vectors stay between the first
and the last element that a lane accesses, which all belong to the buffer, or go as far beyond as is
proven to belong to it (`Room`). Under a mask only the elements of active lanes are touched.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dataclass import dataclass
from tilewright.targets.llvm.emit_text import (
    LlvmValue,
    LlvmWriter,
    int_vector,
    mangle,
    splat_constant,
    vector_type,
)

MOST_PARTS = 4  # vectors that cover the elements; of more, a gather is as fast


@dataclass(frozen=True, slots=True)
class NearVector:
    """One vector of memory: elements `start` on, and the lanes that access each of them."""

    start: int
    lanes: tuple[tuple[int, ...], ...]

    def picked(self, lanes: int) -> list[int]:
        """By lane, the element of this part that it accesses; -1 if it is in another part."""
        found = [-1] * lanes
        for n, users in enumerate(self.lanes):
            for lane in users:
                found[lane] = n
        return found


def parts(steps: Sequence[int], first: int, last: int) -> tuple[NearVector, ...] | None:
    """Vectors of one power of two of elements that cover what the lanes access, by ascending start.

    steps: by lane, its element. first, last: the range of elements that may be read, which includes
    all of those. None if they are too far apart for few vectors.
    """
    width = 1 << (len(steps) - 1).bit_length()
    users: dict[int, list[int]] = {}
    for lane, element in enumerate(steps):
        users.setdefault(element, []).append(lane)
    width = min(width, 1 << (last - first + 1).bit_length() - 1)
    if last - first < MOST_PARTS * width:
        starts = list(range(first, last + 1, width))
    else:
        starts, width = _runs(sorted(users), width)
    found = []
    for begin in starts:
        end = min(begin + width, last + 1)
        own = [tuple(users.get(e, ())) for e in range(begin, end)]
        missing = width - len(own)
        if any(own):
            found.append(NearVector(begin - missing, ((),) * missing + tuple(own)))
    return tuple(found) if 0 < len(found) <= MOST_PARTS else None


def _runs(elements: Sequence[int], most: int) -> tuple[list[int], int]:
    """The starts of runs of neighbors, and their common length: a power of two from 2 to `most`.
    Returns no starts if lengths differ.

    elements: ascending, none twice.
    """
    starts = [n for n, e in enumerate(elements) if not n or elements[n - 1] != e - 1]
    ends = [*starts[1:], len(elements)]
    lengths = {end - start for start, end in zip(starts, ends, strict=True)}
    length = min(lengths)
    is_power = 2 <= length <= most and not length & (length - 1)
    same = len(lengths) == 1 and is_power
    return ([elements[n] for n in starts], length) if same else ([], 0)


def pick(
    w: LlvmWriter, loaded: Sequence[LlvmValue], chosen: Sequence[list[int]]
) -> LlvmValue:
    """The lanes out of the vectors of one width; in each, -1 says that it is in another one."""
    width = loaded[0].lanes
    vectors: list[tuple[LlvmValue, list[bool]]] = []
    for n in range(0, len(loaded), 2):
        picks = chosen[n]
        other = None
        if n + 1 < len(loaded):
            other = loaded[n + 1]
            both = zip(picks, chosen[n + 1], strict=True)
            picks = [b + width if a < 0 <= b else a for a, b in both]
        vectors.append((w.shuffle(loaded[n], picks, other), [p >= 0 for p in picks]))
    found, has = vectors[0]
    for more, own in vectors[1:]:
        order = [n if mine else n + len(has) for n, mine in enumerate(has)]
        found = w.shuffle(found, order, more)
        has = [a or b for a, b in zip(has, own, strict=True)]
    return found


def mask_of(w: LlvmWriter, part: NearVector, mask: LlvmValue) -> LlvmValue:
    """The elements of a part that a permitted lane accesses."""
    most = max(len(users) for users in part.lanes)
    none = LlvmValue("zeroinitializer", "i1", mask.lanes)
    found: LlvmValue | None = None
    for n in range(most):
        order = [u[n] if n < len(u) else mask.lanes for u in part.lanes]
        layer = w.shuffle(mask, order, none)
        found = layer if found is None else w.binary("or", found, layer)
    assert found is not None
    return found


def load_near(
    w: LlvmWriter,
    pointer: LlvmValue,
    covered: Sequence[NearVector],
    lanes: int,
    type: str,
    size: int,
    mask: LlvmValue,
    outside: LlvmValue | None,
) -> LlvmValue:
    """The lanes' elements from `pointer` on where their bits of the mask are set; else `outside`.

    size: of an element, in bytes.
    """
    loaded = []
    for part in covered:
        at = at_element(w, pointer, part.start, size)
        wide = mask_of(w, part, mask)
        loaded.append(masked_load(w, at, type, size, wide, outside))
    found = pick(w, loaded, [part.picked(lanes) for part in covered])
    if all(len(users) < 2 for part in covered for users in part.lanes):
        return found
    zero = LlvmValue("zeroinitializer", type, lanes)
    other = zero if outside is None else splat_constant(outside, lanes)
    return w.select(mask, found, other)


def store_near(
    w: LlvmWriter,
    pointer: LlvmValue,
    covered: Sequence[NearVector],
    v: LlvmValue,
    size: int,
    mask: LlvmValue | None,
) -> None:
    """Store the lanes of `v` to their elements from `pointer` on; gaps are not written.

    requires: no two lanes access one element.
    """
    for part in covered:
        at = at_element(w, pointer, part.start, size)
        order = [users[0] if users else -1 for users in part.lanes]
        wide = w.shuffle(v, order)
        if mask is not None:
            held = mask_of(w, part, mask)
        elif all(part.lanes):
            w.line(f"store {wide.typed}, {at.typed}, align {size}")
            continue
        else:
            held = int_vector([int(bool(users)) for users in part.lanes], "i1")
        masked_store(w, at, wide, size, held)


def at_element(w: LlvmWriter, pointer: LlvmValue, n: int, size: int) -> LlvmValue:
    """The address `n` elements after `pointer`."""
    if not n:
        return pointer
    return w.ins(f"getelementptr i8, {pointer.typed}, i64 {n * size}", "ptr")


def masked_load(
    w: LlvmWriter,
    pointer: LlvmValue,
    type: str,
    size: int,
    mask: LlvmValue,
    outside: LlvmValue | None = None,
) -> LlvmValue:
    """Neighboring elements, those whose bit is set; `outside` (0 if None) in the other lanes."""
    lanes = mask.lanes
    full = vector_type(type, lanes)
    args = f"{aligned(pointer, size)}, {mask.typed}, {otherwise(full, lanes, outside)}"
    name = f"llvm.masked.load.{mangle(type, lanes)}.p0"
    return w.ins(f"call {full} @{name}({args})", type, lanes)


def masked_store(
    w: LlvmWriter, pointer: LlvmValue, v: LlvmValue, size: int, mask: LlvmValue
) -> None:
    """Neighboring elements, those whose bit is set; the others are not touched."""
    name = f"llvm.masked.store.{mangle(v.type, v.lanes)}.p0"
    args = f"{v.typed}, {aligned(pointer, size)}, {mask.typed}"
    w.line(f"call void @{name}({args})")


def otherwise(full: str, lanes: int, outside: LlvmValue | None) -> str:
    """The lanes that a masked load leaves out."""
    if outside is None:
        return f"{full} zeroinitializer"
    return splat_constant(outside, lanes).typed


def aligned(pointer: LlvmValue, size: int) -> str:
    """A pointer, or several, as arguments with known alignment."""
    return f"{pointer.full} align {size} {pointer.text}"
