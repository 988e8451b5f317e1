"""atomic: blocks of a GPU that share a reduction, each of which adds its part, in any order."""

from __future__ import annotations

from tilewright.loops.analysis.access import accesses
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.nodes import ATOMICS, Kernel, Update
from tilewright.loops.passes.atomics import HINT, missing
from tilewright.schedule import tree
from tilewright.schedule.legality import part_of, refuse
from tilewright.schedule.primitives.annotate import annotate
from tilewright.schedule.primitives.bind import bind
from tilewright.schedule.registry import primitive


@primitive
def atomic(kernel: Kernel, loop: str, axis: str = "blockIdx.x") -> tuple[Kernel, None]:
    """Give the iterations of a loop to blocks of a GPU that share a reduction: each adds its part
    to the results, as one step of the device's memory.

    args: the loop; blockIdx.x, blockIdx.y or blockIdx.z.
    requires: it has updates of memory from outside of it; each of these is one that every GPU has
        as one step (int32: add, min, max, and, or, xor; uint32: add, min, max; float32: add);
        nothing else in the loop touches what they update, so that is cleared before the loop; what
        bind requires, with these updates as steps of a reduction.
    The blocks come in any order: sums of floats may differ from run to run, in their last bits.
    Without it, rfactor makes parts, which a loop that is not bound combines in one order.
    before: y[0] = 0; for b in n: B(b), which has y[0] add= x[b]
    after:  y[0] = 0; blockIdx.x b in n: B(b), with a note at b
    """
    f, _ = tree.find_loop(kernel, loop, "atomic")
    if not axis.startswith("blockIdx"):
        what = f"{axis!r} is no axis of blocks"
        raise refuse("atomic", loop, what, "threads share a reduction by bind")
    inside = allocated(f.body)
    touched = [a for a in accesses(f.body) if a.buffer not in inside]
    updates = [a for a in touched if a.kind == "update"]
    if not updates:
        what = "nothing in it updates memory from outside of it"
        raise refuse("atomic", loop, what, "bind it instead")
    for a in updates:
        assert isinstance(a.place.stmt, Update)
        if why := missing(a.place.stmt.reducer, a.buffer):
            raise refuse("atomic", loop, f"{a.buffer.name}: {why}", HINT)
    shared = {a.buffer for a in updates}
    for a in touched:
        if a.buffer in shared and a.kind != "update":
            does = "reads" if a.kind == "load" else "writes"
            what = f"it also {does} {a}, which it updates"
            hint = f"clear the results before {loop}, as by decompose_reduction"
            raise refuse("atomic", loop, what, hint)
    kernel, _ = annotate(kernel, loop, ATOMICS, 1)
    with part_of("atomic"):
        return bind(kernel, loop, axis)
