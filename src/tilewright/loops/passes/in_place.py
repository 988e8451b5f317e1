"""The inputs whose memory a kernel's output may reuse, and the copies that this makes
unnecessary."""

from __future__ import annotations

from tilewright.expr.nodes import Buffer, Expr, Load
from tilewright.ir.node import postorder
from tilewright.loops.analysis.access import expressions, guarded_accesses
from tilewright.loops.analysis.dependence import stored_once
from tilewright.loops.nodes import (
    Block,
    For,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
    block,
)
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


def without_self_copy(kernel: Kernel, source: Buffer) -> Kernel | None:
    """The kernel where its only output is in the memory of the input `source`.

    requires, else None: the program begins with a nest that does nothing but
    `output[i] = source[i]`, each element at its own place and type, and nothing after it reads
    `source`. Then the copy changes nothing, since nothing wrote the output before it.
    """
    if len(kernel.outputs) != 1 or not isinstance(kernel.body, Block):
        return None
    first, *rest = kernel.body.stmts
    copy = first
    while isinstance(copy, For):
        copy = copy.body
    own = isinstance(copy, Store) and _is_self_copy(copy, kernel.outputs[0], source)
    used = {x.buffer for s in rest for at in walk(s) for x in _read(at.stmt)}
    if not own or source in used:
        return None
    body = block(*rest)
    loops = {at.stmt.var.name for at in walk(body) if isinstance(at.stmt, For)}
    params = tuple(b for b in kernel.params if b is not source)
    notes = {name: note for name, note in kernel.notes.items() if name in loops}
    return Kernel(kernel.name, params, kernel.outputs, body, notes)


def _is_self_copy(s: Store, target: Buffer, source: Buffer) -> bool:
    same = (target.shape, target.dtype) == (source.shape, source.dtype)
    return same and s.buffer is target and s.value is Load(source, s.index)


def _read(s: Stmt) -> list[Load]:
    return [x for e in expressions(s) for x in _loads(e)]


def _acts(s: Stmt) -> bool:
    return isinstance(s, Store | Update | While) or (
        isinstance(s, Unit) and bool(s.intrinsic)
    )


def _others(s: Stmt) -> tuple[Expr, ...]:
    """Everything that a statement computes except the value that it stores."""
    if isinstance(s, Store):
        return s.index
    return expressions(s)


def _loads(e: Expr) -> list[Load]:
    return [x for x in postorder(e) if isinstance(x, Load)]
