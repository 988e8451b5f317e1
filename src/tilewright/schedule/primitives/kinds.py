"""vectorize, unroll, parallel, serial, bind: how a loop's iterations run."""

from __future__ import annotations

from tilewright.loops.nodes import AXES, For, Kernel
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_axes, check_kinds, refuse
from tilewright.schedule.registry import primitive


def _with_kind(
    kernel: Kernel,
    name: str,
    kind: str,
    verb: str,
    hint: str,
) -> Kernel:
    f, place = tree.find_loop(kernel, name, verb)
    if kind in ("vector", "unroll"):
        tree.trips(f, verb)
    result = edit.put(kernel, place, For(f.var, f.extent, kind, f.body))
    check_kinds(result, (name,), verb, hint)
    return result


@primitive
def vectorize(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop together, statement by statement.

    requires: a constant extent; no loop-carried dependence, except as
        steps of one commutative reduction.
    before: for i in n: B(i)
    after:  vector i in n: B(i)
    """
    hint = "split the loop, or rfactor the reduction"
    result = _with_kind(kernel, loop, "vector", "vectorize", hint)
    return result, None


@primitive
def parallel(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop on several threads.

    requires: no loop-carried dependence, steps of a reduction included;
        stores of overlapping tiles may conflict, since they store equal values.
    before: for i in n: B(i)
    after:  parallel i in n: B(i)
    """
    hint = "take a loop of a cc dimension, or rfactor first"
    result = _with_kind(kernel, loop, "parallel", "parallel", hint)
    return result, None


@primitive
def unroll(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Write the iterations of a loop out, so that the generator may interleave them.

    requires: as vectorize; stores of overlapping tiles may conflict.
    before: for i in n: B(i)
    after:  unroll i in n: B(i)
    """
    result = _with_kind(kernel, loop, "unroll", "unroll", "leave the loop serial")
    return result, None


@primitive
def serial(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Run the iterations of a loop one after the other; always legal.

    before: parallel i in n: B(i)
    after:  for i in n: B(i)
    """
    result = _with_kind(kernel, loop, "serial", "serial", "")
    return result, None


@primitive
def bind(kernel: Kernel, loop: str, axis: str) -> tuple[Kernel, None]:
    """Give each iteration of a loop to a block or a thread of a GPU, or to a virtual thread.

    args: the loop; blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z or
        vthread.
    requires: a constant extent; no loop-carried dependence, steps of a reduction included (rfactor
        it, and combine the parts in a loop that is not bound); stores of overlapping tiles may
        conflict; no loop around or inside is bound to the same axis of a GPU.
    The order of the interpreter stays; `vthread` interleaves virtual threads.
    before: for i in n: B(i)
    after:  blockIdx.x i in n: B(i)
    """
    if axis not in AXES:
        known = ", ".join(AXES)
        raise refuse("bind", loop, f"there is no axis {axis!r}", f"known: {known}")
    f, _ = tree.find_loop(kernel, loop, "bind")
    tree.trips(f, "bind")
    hint = "take a loop of a cc dimension, or rfactor first"
    result = _with_kind(kernel, loop, axis, "bind", hint)
    check_axes(result, "bind")
    return result, None
