"""Small arrays whose elements can live in registers go to the stack.

    alloc T: float32[6, 16]:
      for e in 6 unroll: for x in 16 vector: T[e, x] = ...
      for n in 6 unroll: for x in 16 vector: V[n, x] = T[n, x] + T[5, x]

With the loops written out every index is a constant. On the stack of a function LLVM replaces such
an array by values, which it does with nothing in the workspace: there each is stored, and loaded
for each use.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.access import accesses_of
from tilewright.loops.analysis.terms import variables
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt
from tilewright.loops.passes.on_buffers import on_buffers
from tilewright.loops.walk import loops_of, walk

_WRITTEN_OUT = ("unroll", "vector")


def promote(kernel: Kernel, most: int) -> Kernel:
    """The kernel with arrays of at most `most` bytes on the stack, where these can be registers.

    An array can be where it is allocated in a loop, and all indices of its accesses are made of
    constants and of the variables of loops inside of the allocation that are written out or
    vectors. No thread of a loop in it may share it. Its scope changes, nothing else.
    """
    names = {
        b: Buffer(b.name, b.extents, b.dtype, "stack") for b in _found(kernel, most)
    }
    return on_buffers(kernel, names) if names else kernel


def _found(kernel: Kernel, most: int) -> Iterator[Buffer]:
    for place in walk(kernel.body):
        s = place.stmt
        if not isinstance(s, Alloc) or not place.loops:
            continue
        b = s.buffer
        small = b.static and b.size * b.dtype.itemsize <= most
        if b.scope == "global" and small and _is_constant(b, s.body):
            yield b


def _is_constant(b: Buffer, body: Stmt) -> bool:
    """Whether every index of a buffer is a constant once the loops in `body` are written out."""
    loops = loops_of(body)
    if any(f.kind == "parallel" for f in loops):
        return False
    known = {f.var for f in loops if _is_written_out(f)}
    indices = (e for a in accesses_of(body, b) for e in a.index)
    return all(known.issuperset(variables(e)) for e in indices)


def _is_written_out(f: For) -> bool:
    return f.trips == 1 or (f.trips is not None and f.kind in _WRITTEN_OUT)
