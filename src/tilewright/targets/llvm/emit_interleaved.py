"""Stores between one another, as of the channels of packed pixels, as whole vectors.

    for x in 16 vector:
      O[3*x] = r
      O[3*x + 1] = g
      O[3*x + 2] = b

leaves no element out: shuffles put the lanes of three vectors in the order of memory, and three
stores write them. Each alone would access only every third element.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.node import Node
from tilewright.loops.analysis.access import expressions
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Store
from tilewright.targets.llvm.emit_expr import Expressions
from tilewright.targets.llvm.emit_near import at_element, masked_store, pick
from tilewright.targets.llvm.emit_places import address

MOST_INTERLEAVED = 4  # stores


def store_interleaved(x: Expressions, stmts: Sequence[Node]) -> int:
    """Emits the first statements as one where they are interleaved stores; returns how many.

    requires: the statements are consecutive. There are as many stores as their stride; together
    they write adjacent elements of one buffer, in every lane. Each reads at most the element that
    it stores from that buffer, which no other store or lane changes: so all values may be computed
    before the first store. They have the same guard, if any; a machine without masked vector stores
    executes each separately. Returns 0 if the first statement is not such a store.
    """
    stores = _stores(x, stmts)
    if not stores:
        return 0
    buffer, lanes = stores[0].buffer, x.lanes
    mask = None if x.guard is None else x.splat(x.holds(x.guard), lanes)
    raw = [
        x.splat(x.ops.formats.pack(x.value(s.value), buffer.dtype), lanes)
        for s in stores
    ]
    size = buffer.dtype.itemsize
    place = x.access(buffer, stores[0].index)
    start = at_element(x, place.pointer, place.steps[0], size)
    for part in range(len(raw)):
        chosen = [[-1] * lanes for _ in raw]
        for lane in range(lanes):
            row, column = divmod(part * lanes + lane, len(raw))
            chosen[column][lane] = row
        at = at_element(x, start, part * lanes, size)
        values = pick(x, raw, chosen)
        if mask is None:
            x.line(f"store {values.typed}, {at.typed}, align {size}")
        else:
            masked_store(x, at, values, size, pick(x, [mask] * len(raw), chosen))
    x.changed((buffer,))
    return len(stores)


def _stores(x: Expressions, stmts: Sequence[Node]) -> list[Store]:
    """The first stores, by ascending elements, if they may be combined; else none."""
    first = stmts[0]
    if len(stmts) < 2 or not isinstance(first, Store) or x.vector is None:
        return []
    if x.permitted is not None or first.buffer in x.private:
        return []
    if x.guard is not None and not x.stores_in_part(first.buffer.dtype.itemsize):
        return []
    form, steps = x.parted(address(first.buffer, first.index))
    count = steps[1] - steps[0] if len(steps) > 1 else 0
    if steps != [steps[0] + count * n for n in range(x.lanes)]:
        return []
    group = [s for s in stmts[:count] if isinstance(s, Store)]
    if not 2 <= count == len(group) or not all(_is_plain(x, s, first) for s in group):
        return []
    found: dict[int, Store] = {}
    for s in group:
        other, its = x.parted(address(s.buffer, s.index))
        apart = other - form
        if not apart.is_const or [n - its[0] for n in its] != [
            n - steps[0] for n in steps
        ]:
            return []
        found[apart.const + its[0]] = s
    if set(found) != set(range(min(found), min(found) + count)):
        return []
    return [found[n] for n in sorted(found)]


def _is_plain(x: Expressions, s: Store, first: Store) -> bool:
    """Whether a store to the buffer of the first reads no other element of it, and is inside it, at
    places that are known for all lanes."""
    buffer = first.buffer
    read = [e for root in expressions(s) for e in loads(root) if e.buffer is buffer]
    if s.buffer is not buffer or any(e.index != s.index for e in read):
        return False
    if any(x.is_unproven(*pair) for pair in zip(s.index, buffer.extents, strict=True)):
        return False
    form, _ = x.parted(address(buffer, s.index))
    assert x.vector is not None
    return all(x.vector[0] not in x.info(atom).vars for atom, _ in form.terms)
