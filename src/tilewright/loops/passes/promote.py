"""Small arrays whose elements can live in registers go to the stack.

    alloc T: float32[6, 16]:
      for e in 6 unroll: for x in 16 vector: T[e, x] = ...
      for n in 6 unroll: for x in 16 vector: V[n, x] = T[n, x] + T[5, x]

With the loops written out every index is a constant. On the stack of a function LLVM replaces such
an array by values, which it does with nothing in the workspace: there each is stored, and loaded
for each use.
"""

from __future__ import annotations

from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import accesses_of
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.walk import StatementPlace, loops_of, walk

WRITTEN_OUT = ("unroll", "vector")


def promote(kernel: Kernel, most: int) -> Kernel:
    """The kernel with arrays of at most `most` bytes on the stack, where these can be registers.

    An array can be where it is allocated in a loop, and all indices of its accesses are made of
    constants and of the variables of loops inside of the allocation that are written out or
    vectors. No thread of a loop in it may share it. All this holds in every place that allocates
    it. Its scope changes, nothing else.
    """
    found: dict[Buffer, bool] = {}
    for place in walk(kernel.body):
        s = place.stmt
        if isinstance(s, Alloc):
            found[s.buffer] = found.get(s.buffer, True) and _fits(place, s, most)
    names = {
        b: Buffer(b.name, b.extents, b.dtype, "stack")
        for b, fits in found.items()
        if fits
    }
    return on_buffers(kernel, names) if names else kernel


def _fits(place: StatementPlace, s: Alloc, most: int) -> bool:
    """Whether an array can be registers where a statement allocates it."""
    b = s.buffer
    if not place.loops or b.scope != "global" or not b.static:
        return False
    return b.size * b.dtype.itemsize <= most and is_constant(b, s.body)


def is_constant(b: Buffer, body: Stmt) -> bool:
    """Whether every index of a buffer is a constant once the loops in `body` are written out."""
    loops = loops_of(body)
    if any(f.kind == "parallel" for f in loops):
        return False
    known = {f.var for f in loops if _is_written_out(f)}
    indices = (e for a in accesses_of(body, b) for e in a.index)
    return all(known.issuperset(variables(e)) for e in indices)


def _is_written_out(f: For) -> bool:
    return f.trips == 1 or (f.trips is not None and f.kind in WRITTEN_OUT)
