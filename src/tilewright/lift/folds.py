"""Reductions and scans as loops around an accumulator."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.expr.nodes import Buffer, Expr, Load, const
from tilewright.ir.node import postorder
from tilewright.lift import nodes as n
from tilewright.lift import views
from tilewright.lift.producer import TypedValue
from tilewright.lift.translator import PatternUse
from tilewright.lift.views import Array, View, buffers
from tilewright.loops.nodes import For, Stmt, Store, Update


def reduce(u: PatternUse) -> View:
    """A loop around an accumulator."""
    return u.produced(lambda to: _fold(u, u.x, to.at(const(0))))


def part_red(u: PatternUse) -> View:
    """A loop over the runs, a reduction in each."""
    runs = views.split(u.x, u.x.length // u.length)

    def write(to: View) -> None:
        def fold_run(i: Expr) -> None:
            _fold(u, runs.at(i), to.at(i))

        u.code.loop(u.length, "serial", fold_run)

    return u.produced(write)


def scan(u: PatternUse) -> View:
    """A loop around an accumulator that is written in each iteration."""

    def write(to: View) -> None:
        acc = _accumulator(u, None)

        def element(i: Expr) -> None:
            _step(u, acc, u.x.at(i))
            u.code.into(acc, to.at(i))

        u.code.loop(u.x.length, "serial", element)

    return u.produced(write)


def _fold(u: PatternUse, x: Array, to: View) -> None:
    acc = _accumulator(u, to)
    with u.code.block() as frame:
        u.code.loop(x.length, "serial", lambda i: _step(u, acc, x.at(i)))
    body = frame.close()
    if isinstance(u.f, n.ReduceSeqUnroll):
        if isinstance(body, For):  # not of a single element
            body = For(body.var, body.extent, "unroll", body.body)
    u.code.emit(body)
    if acc.view is not to:
        u.code.into(acc, to)


def _accumulator(u: PatternUse, to: View | None) -> TypedValue:
    """The accumulator with its initial value; `to` itself where that is private already."""
    init = u.term(u.f.init)
    if to is not None and (u.translator.in_place or _private(to)):
        acc = to
    else:
        acc = u.code.allocate(init.type, "private", "acc")
    u.code.into(init, acc)
    return TypedValue(acc, init.type)


def _private(view: View) -> bool:
    return all(b.scope != "global" for b in buffers(view))


def _step(u: PatternUse, acc: TypedValue, element: View) -> None:
    """`acc = f(acc, element)`, in place where no element of acc is needed after it is written."""
    with u.code.block() as frame:
        u.code.into(u.body(acc.view, element), acc.view)
    body = frame.close()
    if _keeps(body, buffers(acc.view)):
        u.code.emit(body)
        return
    new = u.code.allocate(acc.type, "private", "next")
    u.code.into(u.body(acc.view, element), new)
    u.code.into(TypedValue(new, acc.type), acc.view)


def _keeps(body: Stmt, acc: set[Buffer]) -> bool:
    """Whether each element of acc is read only by the statement that writes it."""
    for s in postorder(body):
        if isinstance(s, Store | Update):
            reads = [x for x in _loads(s) if x.buffer in acc]
            if not all(_own(s, x) for x in reads):
                return False
    return True


def _loads(s: Store | Update) -> Iterator[Load]:
    for root in s.children():
        for x in postorder(root):
            if isinstance(x, Load):
                yield x


def _own(s: Store | Update, x: Load) -> bool:
    """Whether the load is of the very element that the statement writes."""
    if not isinstance(s, Store):
        return False
    return x.buffer is s.buffer and x.index == s.index
