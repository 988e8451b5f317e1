"""The inputs of a kernel that its output may overwrite."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer, Expr, Load
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import expressions, guarded_accesses
from tilewright.loops.analysis.dependence import stored_once
from tilewright.loops.nodes import Kernel, Stmt, Store, Unit, Update, While
from tilewright.loops.walk import walk


def overwritable(kernel: Kernel) -> tuple[Buffer, ...]:
    """Inputs that may share the memory of the only output.

    Formally: the kernel is one Store, done element by element (by no intrinsic); no element is
    stored by two iterations of the loops around; and the input, of the same shape and size in
    bytes, is read by the stored value alone (by no index, condition or extent), at the element that
    is stored. What the Store leaves alone then holds what the input held: memory is shared only
    where nothing has written the output before.
    """
    found = [at.stmt for at in walk(kernel.body) if _acts(at.stmt)]
    if len(found) != 1 or len(kernel.outputs) != 1:
        return ()
    store = found[0]
    out = kernel.outputs[0]
    if not isinstance(store, Store) or store.buffer is not out:
        return ()
    if not all(stored_once(a) for a in guarded_accesses(kernel.body) if a.writes):
        return ()
    own = _loads(store.value)
    others = {
        x.buffer
        for at in walk(kernel.body)
        for e in _others(at.stmt)
        for x in _loads(e)
    }
    return tuple(
        b
        for b in kernel.inputs
        if b.shape == out.shape
        and b.dtype.itemsize == out.dtype.itemsize
        and b not in others
        and all(x.index == store.index for x in own if x.buffer is b)
    )


def _acts(s: Stmt) -> bool:
    return isinstance(s, Store | Update | While) or (
        isinstance(s, Unit) and bool(s.intrinsic)
    )


def _others(s: Stmt) -> tuple[Expr, ...]:
    """What a statement computes besides the value that it stores."""
    if isinstance(s, Store):
        return s.index
    return expressions(s)


def _loads(e: Expr) -> list[Load]:
    return [x for x in postorder(e) if isinstance(x, Load)]
