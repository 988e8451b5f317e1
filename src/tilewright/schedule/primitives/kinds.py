"""vectorize, unroll, parallel, serial, bind: how a loop's iterations run."""

from __future__ import annotations

from math import prod

from tilewright.loops.nodes import AXES, For, Kernel
from tilewright.loops.walk import walk
from tilewright.schedule import edit, tree
from tilewright.schedule.legality import check_axes, check_kinds, refuse
from tilewright.schedule.registry import primitive

# Beyond this, code is larger than the caches that instructions and their translation have.
MAX_COPIES = 4096


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
        stores of overlapping tiles may conflict, since they store equal values, and so may stores
        of halos that iterations compute again, where their values are proved equal.
    before: for i in n: B(i)
    after:  parallel i in n: B(i)
    """
    hint = "take a loop of a cc dimension, or rfactor first"
    result = _with_kind(kernel, loop, "parallel", "parallel", hint)
    return result, None


@primitive
def unroll(kernel: Kernel, loop: str) -> tuple[Kernel, None]:
    """Emit the iterations of a loop one after another, in order.

    requires: a constant extent, and at most MAX_COPIES copies of the body, including unrolled loops
        around and inside.
    before: for i in n: B(i)
    after:  unroll i in n: B(i)
    """
    result = _with_kind(kernel, loop, "unroll", "unroll", "leave the loop serial")
    _check_copies(result, loop)
    return result, None


def _check_copies(kernel: Kernel, loop: str) -> None:
    """Raise ScheduleError where unrolled loops write a statement out more than MAX_COPIES times."""
    f, place = tree.find_loop(kernel, loop, "unroll")
    for inner in walk(f):
        around = (*place.above, *inner.above, inner.stmt)
        loops = [x for x in around if isinstance(x, For) and x.kind == "unroll"]
        copies = prod(x.trips or 1 for x in loops)
        if copies > MAX_COPIES:
            sizes = " x ".join(f"{x.var.name} ({x.trips})" for x in loops)
            raise refuse(
                "unroll",
                loop,
                f"{sizes} are {copies:,} copies of what is inside, more than {MAX_COPIES:,}",
                "split the loop and unroll the inner one, or leave the loop serial",
            )


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
    requires: a constant extent; no loop-carried dependence, except for threads as steps of one
        commutative reduction (each adds up a part, and a tree the parts: to_launches; for blocks
        rfactor it, and combine the parts in a loop that is not bound); stores of overlapping tiles
        may conflict; no loop around or inside is bound to the same axis of a GPU.
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
