"""Short sums are written out, so that what they read again stays in registers.

    for y in 32:
      for k in 4:
        for x in 16 vector: C[y, x] add= A[y, k] * B[k, x]

reads all of B for each y. With the loop over k written out, that over y is the innermost one: the
four rows of B do not change in it, and code generation loads them before it.
"""

from __future__ import annotations

from math import prod

from tilewright.expr.nodes import Expr, Load
from tilewright.loops.analysis.access import accesses
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Block, For, Kernel, Stmt, Update, loop
from tilewright.loops.walk import below, loops_of, walk

STEPS = 8  # of a loop that is written out, at most
COPIES = 16  # of statements that it then makes, at most


def write_out(kernel: Kernel) -> Kernel:
    """The kernel with its short sums as loops of the kind "unroll", where that saves loads.

    A sum is short where it has two to STEPS iterations and nothing in it but updates, in loops that
    are written out or vectors, of which there are COPIES at most afterwards. Loads are saved where
    it reads a vector that the next loop around, a serial or parallel one, neither writes nor moves
    on from: scalars that stay for so long would take registers from these. Every statement runs as
    often as before, in the same order.
    """
    body = _written(kernel.body, None)
    return kernel if body is kernel.body else kernel.with_body(body)


def _written(s: Stmt, around: For | None) -> Stmt:
    """A statement; around: the next loop around it that has iterations, not one."""
    if isinstance(s, For):
        if around is not None and _is_short_sum(s) and _reads_again(s, around):
            return loop(s.var, s.extent, s.body, "unroll")
        if s.trips != 1:
            around = s
    changed = {child: _written(child, around) for child in below(s)}
    if all(new is old for old, new in changed.items()):
        return s
    made: Stmt = s.map(lambda c: changed.get(c, c))
    return made


def _is_short_sum(f: For) -> bool:
    n = f.trips
    if f.kind != "serial" or n is None:
        return False
    if n < 2 or n > STEPS:
        return False
    copies = 0
    for place in walk(f.body):
        s = place.stmt
        if isinstance(s, Update):
            if f.var in _moved_by(s):
                return False
            unrolled = [x for x in place.loops if x.kind == "unroll"]
            each = prod(x.trips or 1 for x in unrolled)
            copies += n * each
        elif isinstance(s, For):
            if s.kind not in ("unroll", "vector"):
                return False
            if s.trips is None:
                return False
        elif not isinstance(s, Block):
            return False
    return 0 < copies <= COPIES


def _moved_by(s: Update) -> set[Expr]:
    """What says which elements are updated."""
    found: set[Expr] = set()
    for index in s.indices:
        for e in index:
            found |= variables(e)
    return found


def _reads_again(f: For, around: For) -> bool:
    """Whether iterations of the loop around read the same vectors, another one in each of `f`."""
    if around.kind not in ("serial", "parallel"):
        return False
    changed = writes(around)
    lanes = {g.var for g in loops_of(f.body) if g.kind == "vector"}
    for a in accesses(f.body):
        if a.writes or a.buffer in changed:
            continue
        used: set[Expr] = set()
        for e in a.index:
            used |= variables(e)
        is_gathered = any(isinstance(v, Load) for v in used)
        if is_gathered or f.var not in used or lanes.isdisjoint(used):
            continue
        if around.var not in used:
            return True
    return False
