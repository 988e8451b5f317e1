"""What is known of the values in a buffer: an index that is read from it is in these bounds."""

from __future__ import annotations

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

    Only of buffers that the kernel allocates, all of whose values are stored before they are read
    (`uncovered`) and have bounds at every Store.
    """
    body = kernel.body
    indices = [i for a in accesses(body) for i in a.index]
    used = {x.buffer for i in indices for x in loads(i)}
    found: dict[Buffer, Interval] = {}
    for place in walk(body) if used else ():
        s = place.stmt
        if isinstance(s, Alloc) and s.buffer in used and s.buffer.dtype.is_int:
            known = _stored(s.body, s.buffer, body)
            if known is not None:
                found[s.buffer] = known
    return found


def _stored(s: Stmt, buffer: Buffer, body: Stmt) -> Interval | None:
    """The bounds of all that `s` stores in a buffer; None if it may read what it has not stored."""
    env = environment(body)
    written = [a for a in accesses(s) if a.writes and a.buffer is buffer]
    if any(a.kind != "store" for a in written) or uncovered(s, buffer, env) is not None:
        return None
    stores = [a.place.stmt for a in written]
    values = [bounds(x.value, env) for x in stores if isinstance(x, Store)]
    lows = [low for low, _ in values if low is not None]
    highs = [high for _, high in values if high is not None]
    if len(lows) + len(highs) < 2 * len(values):
        return None
    return min(lows), max(highs)
