"""Which inputs of a kernel its output may overwrite."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer, Load, Min
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Kernel, Store, Unit, Update


def overwritable(kernel: Kernel) -> tuple[Buffer, ...]:
    """Inputs that may share the memory of the only output.

    That is so where the kernel is one Store, done element by element (by no intrinsic), each point
    of the output is written once (no overlapping tiles, whose starts are a `min`), and the input,
    of the same size in bytes, is read at the point that is written and nowhere else.
    """
    nodes = list(postorder(kernel.body))
    if any(isinstance(s, Unit) and s.intrinsic is not None for s in nodes):
        return ()
    stores = [s for s in nodes if isinstance(s, Store | Update)]
    if len(stores) != 1 or not isinstance(stores[0], Store) or len(kernel.outputs) != 1:
        return ()
    store = stores[0]
    if any(isinstance(n, Min) for i in store.index for n in postorder(i)):
        return ()
    loads = [n for n in postorder(store.value) if isinstance(n, Load)]
    out = kernel.outputs[0]
    return tuple(
        b
        for b in kernel.inputs
        if b.shape == out.shape
        and b.dtype.itemsize == out.dtype.itemsize
        and all(load.index == store.index for load in loads if load.buffer is b)
    )
