"""Reductions and scans as loops around an accumulator."""

from __future__ import annotations

from typing import Any

from tilewright.expr.nodes import Buffer, Expr, Load, const
from tilewright.ir.node import postorder
from tilewright.loops.nodes import For, Stmt, Store, Update
from tilewright.notation.lift import nodes as n
from tilewright.notation.lift import views
from tilewright.notation.lift.code import extent
from tilewright.notation.lift.translator import Scope, Translator, Typed
from tilewright.notation.lift.types import Array as ArrayType
from tilewright.notation.lift.views import Array, View


def _step(w: Translator, f: n.Fun, s: Scope, acc: Typed, element: Typed) -> None:
    """`acc = f(acc, element)`, in place where no element of acc is needed after it is written."""
    view, t = acc
    with w.code.block() as frame:
        w.code.into(w.call(f, [acc, element], s), t, view)
    body = frame.close()
    if _keeps(body, _buffers(view)):
        w.code.emit(body)
        return
    new = w.code.allocate(t, "private", "next")
    w.code.into(w.call(f, [acc, element], s), t, new)
    w.code.into(new, t, view)


def _keeps(body: Stmt, acc: set[Buffer]) -> bool:
    """Whether each element of acc is read only by the statement that writes it."""
    for s in postorder(body):
        if isinstance(s, Store | Update):
            values = (s.value,) if isinstance(s, Store) else s.values
            for x in (x for v in (*values, *s.index) for x in postorder(v)):
                if isinstance(x, Load) and x.buffer in acc:
                    own = isinstance(s, Store) and x.buffer is s.buffer and x.index == s.index
                    if not own:
                        return False
    return True


def _buffers(view: View) -> set[Buffer]:
    if isinstance(view, tuple):
        return set().union(*map(_buffers, view))
    return _buffers(view.at(const(0))) if isinstance(view, Array) else {view.buffer}


def _accumulator(w: Translator, f: Any, s: Scope, to: View | None) -> Typed:
    """The accumulator with its initial value; `to` itself where that is private already."""
    init, t = w.here(f.init, s)
    ours = to is not None and (w.in_place or all(b.scope != "global" for b in _buffers(to)))
    acc = to if ours else w.code.allocate(t, "private", "acc")
    w.code.into(init, t, acc)
    return acc, t


def _fold(w: Translator, f: Any, s: Scope, x: Typed, to: View) -> None:
    acc = _accumulator(w, f, s, to)
    item = w.body(f, [x], s)[1]
    with w.code.block() as frame:
        w.code.loop(x[0].length, "serial", lambda i: _step(w, f.f, s, acc, (x[0].at(i), item)))
    body = frame.close()
    if isinstance(f, n.ReduceSeqUnroll) and isinstance(body, For):
        if isinstance(body.body, Update):
            body = For(body.var, body.extent, "unroll", body.body)
    w.code.emit(body)
    if acc[0] is not to:
        w.code.into(*acc, to)


def reduce(w: Translator, f: n.AnyReduce, s: Scope, x: Typed) -> View:
    """A loop around an accumulator."""
    return w.produced(w.result(f, [x], s), lambda to: _fold(w, f, s, x, to.at(const(0))))


def part_red(w: Translator, f: n.PartRed, s: Scope, x: Typed) -> View:
    """A loop over the runs, a reduction in each."""
    t = w.result(f, [x], s)
    assert isinstance(t, ArrayType) and isinstance(x[1], ArrayType)
    runs = views.split(x[0], x[0].length // extent(t))

    def write(to: View) -> None:
        w.code.loop(extent(t), "serial", lambda i: _fold(w, f, s, (runs.at(i), x[1]), to.at(i)))

    return w.produced(t, write)


def scan(w: Translator, f: n.AnyScan, s: Scope, x: Typed) -> View:
    """A loop around an accumulator that is written in each iteration."""
    item = w.body(f, [x], s)[1]

    def write(to: View) -> None:
        acc = _accumulator(w, f, s, None)

        def element(i: Expr) -> None:
            _step(w, f.f, s, acc, (x[0].at(i), item))
            w.code.into(*acc, to.at(i))

        w.code.loop(x[0].length, "serial", element)

    return w.produced(w.result(f, [x], s), write)
