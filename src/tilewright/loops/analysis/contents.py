"""What is known of the values in a buffer: an index that is read from it is in these bounds."""

from __future__ import annotations

from collections import Counter

from tilewright.expr.bounds import bounds
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import accesses, environment
from tilewright.loops.analysis.region import uncovered
from tilewright.loops.analysis.terms import loads
from tilewright.loops.nodes import Alloc, Kernel, Stmt, Store
from tilewright.loops.walk import walk


def contents(kernel: Kernel) -> dict[Buffer, Interval]:
    """The least and greatest value that each buffer of indices may hold where it is read.

    Only of buffers that the kernel allocates in one place, all of whose values are stored before
    they are read (`uncovered`) and have bounds at every Store.
    """
    body = kernel.body
    used: set[Buffer] = set()
    for access in accesses(body):
        for index in access.index:
            used |= {x.buffer for x in loads(index)}
    if not used:
        return {}
    found: dict[Buffer, Interval] = {}
    places = [at.stmt for at in walk(body) if isinstance(at.stmt, Alloc)]
    count = Counter(s.buffer for s in places)
    for s in places:
        buffer = s.buffer
        if buffer not in used:
            continue
        if not buffer.dtype.is_int:
            continue
        if count[buffer] > 1:
            continue
        known = _stored(s.body, buffer, body)
        if known is not None:
            found[buffer] = known
    return found


def _stored(s: Stmt, buffer: Buffer, body: Stmt) -> Interval | None:
    """The bounds of all values that `s` stores in a buffer; None if it may read elements before
    storing them."""
    env = environment(body)
    lows: list[int] = []
    highs: list[int] = []
    for access in accesses(s):
        if not access.writes or access.buffer is not buffer:
            continue
        store = access.place.stmt
        if not isinstance(store, Store):
            return None
        low, high = bounds(store.value, env)
        if low is None or high is None:
            return None
        lows.append(low)
        highs.append(high)
    if uncovered(s, buffer, env) is not None:
        return None
    return min(lows), max(highs)
