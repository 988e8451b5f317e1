"""store_at: memory for a part of an intermediate further out than where it is computed.

Halide's `store_at(outer).compute_at(inner)` is, in these primitives: `compute_at(buffer, outer)`;
then `slide(buffer, inner)` where the windows of neighboring iterations overlap, else
`store_at(buffer, outer, inner)`; then `fold_storage`, since only a window is live at a time.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Expr, fixed
from tilewright.loops.analysis.access import Env, accesses, environment
from tilewright.loops.analysis.region import region, span, uncovered
from tilewright.loops.nodes import For, Kernel, Stmt, block
from tilewright.schedule import tree
from tilewright.schedule.legality import check_kinds, part_of, refuse_buffer
from tilewright.schedule.primitives.compute_at import compute_at
from tilewright.schedule.registry import primitive
from tilewright.schedule.relocate import (
    BufferHome,
    home_of,
    own_buffer,
    reads_in,
    restrict_to_rows,
    row_loop,
    with_parts,
)
from tilewright.schedule.slice_nest import Slice


@primitive
def store_at(
    kernel: Kernel, buffer: str, loop: str | None, compute: str
) -> tuple[Kernel, None]:
    """Compute a buffer inside a consumer's loop, its memory allocated further out.

    args: the buffer; the loop in whose body to allocate it (None: where it is); the consumer's
        loop, inside that one, to compute it in.
    requires: as compute_at, of the outer loop; then: all reads besides its own computation are in
        the inner loop, and one run of the nests initializes all that they update. Iterations may
        compute elements again, so that loops in between may run at once only where each element is
        proved to get one value (loops/analysis/equal_values.py).
    before: for i in n + 2: T[i] = f(i)
            for o: for v: D[o*8 + v] = g(T[o*8 + v])
    after:  for o: alloc T: for v: { T[v] = f(o*8 + v); D[o*8 + v] = g(T[v]) }
    """
    if loop is not None:
        with part_of("store_at"):
            kernel, _ = compute_at(kernel, buffer, loop)
    f, place = tree.find_loop(kernel, compute, "store_at")
    target, alloc = own_buffer(kernel, buffer, "store_at")
    home = home_of(target, alloc, place, "store_at")
    env = environment(kernel.body)
    _check_uses(kernel, target, f, home)
    late = uncovered(block(*home.made), target, env)
    if late is not None:
        raise refuse_buffer(
            "store_at",
            buffer,
            f"computing it again would find {late} changed",
            "use compute_at",
        )
    box = region(target, reads_in(target, f, "store_at"), env, "store_at", wide=True)
    steps = list(home.made)
    for d, (base, extent) in enumerate(zip(box.base, box.shape, strict=True)):
        size = fixed(extent, f"buffer {buffer}")
        if all(_computes_within(s, target, d, (base, size), env) for s in steps):
            continue
        offset, rows = row_loop(target, steps, d, env, "store_at")
        part = Slice(affine(base) - offset, size, rows)
        steps = [restrict_to_rows(s, target, d, part, env, "store_at") for s in steps]
        for s in steps:
            env = env | environment(s)
    inner = For(f.var, f.extent, f.kind, block(*steps, f.body))
    result = with_parts(kernel, home, place, (), inner)
    around = [x.var.name for x in (*place.loops, f)]
    hint = "compute_at gives each iteration separate memory"
    check_kinds(result, around, "store_at", hint)
    return result, None


def _computes_within(
    nest: Stmt, buffer: Buffer, dim: int, part: tuple[Expr, int], env: Env
) -> bool:
    """Whether a nest computes only elements in `base .. base + size - 1` of a dimension."""
    base, size = part
    for a in accesses(nest):
        if a.buffer is not buffer:
            continue
        found = span(a.index[dim], {f.var for f in a.loops}, env)
        if found is None:
            return False
        first = found.base - affine(base)
        if not first.is_const:
            return False
        if first.const + found.lo < 0 or first.const + found.hi >= size:
            return False
    return True


def _check_uses(
    kernel: Kernel,
    buffer: Buffer,
    f: For,
    home: BufferHome,
) -> None:
    """Require that all reads are in the loop, except those of the nests themselves."""

    def read(stmts: Iterable[Stmt]) -> int:
        found = (a for s in stmts for a in accesses(s))
        return sum(a.buffer is buffer and a.kind == "load" for a in found)

    inner = read([f.body])
    if inner == 0 or read([kernel.body]) != inner + read(home.made):
        raise refuse_buffer(
            "store_at",
            buffer.name,
            f"it is also used outside loop {f.var.name}, or not inside",
            "name a loop around all of its uses",
        )
