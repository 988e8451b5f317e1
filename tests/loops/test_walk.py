"""What is inside of a statement is kept in it, and says the same as a walk."""

from tilewright.base.dtypes import float32
from tilewright.compute.reducer import paired, reducer
from tilewright.expr.nodes import INDEX, Buffer, Load, Lt, Overlap, Var, const
from tilewright.ir.node import postorder
from tilewright.loops.nodes import Alloc, For, If, Store, Unit, Update, block, loop
from tilewright.loops.walk import (
    loops_of,
    place_of,
    place_of_alloc,
    summary,
    units_of,
    walk,
)

x, y = (Buffer(n, (4,), float32) for n in "xy")
i, j, k = (Var(n, INDEX) for n in "ijk")
zero = const(0.0, float32)
SUM = reducer("add", float32)


def program():
    inner = loop(j, 2, Alloc(y, Store(y, (j,), zero)))
    unit = Unit("u", None, (), loop(k, 3, Store(x, (k,), zero)))
    return loop(i, 4, block(If(i.eq(1), inner, unit), Store(x, (i,), zero)))


def agree(root) -> None:
    stmts = [p.stmt for p in walk(root)]
    found = summary(root)
    assert list(loops_of(root)) == [s for s in stmts if isinstance(s, For)]
    assert list(found.buffers) == [s.buffer for s in stmts if isinstance(s, Alloc)]
    assert list(units_of(root)) == [s for s in stmts if isinstance(s, Unit)]
    nodes = list(postorder(root))
    stored = {n.buffer for n in nodes if isinstance(n, Store)}
    updated = {b for n in nodes if isinstance(n, Update) for b in n.buffers}
    loaded = {n.buffer for n in nodes if isinstance(n, Load)}
    assert found.reads == loaded | updated and found.writes == stored | updated
    starts = [n for n in nodes if isinstance(n, Overlap)]
    assert found.tiles == {
        v for n in starts for v in postorder(n) if isinstance(v, Var)
    }
    for place in walk(root):
        if isinstance(place.stmt, For):
            at = place_of(root, place.stmt)
            assert (at.stmt, at.above) == (place.stmt, place.above)
        elif isinstance(place.stmt, Alloc):
            at = place_of_alloc(root, place.stmt.buffer)
            assert (at.stmt, at.above) == (place.stmt, place.above)


def test_a_condition_reads_what_its_body_does_not() -> None:
    root = If(Lt(Load(x, (i,)), zero), Store(y, (i,), zero), None)
    agree(root)
    agree(loop(i, 4, root))


def test_it_says_the_same_as_a_walk() -> None:
    root = program()
    agree(root)
    agree(root.body)
    agree(Store(x, (i,), zero))
    assert summary(root) is summary(root)


def test_a_changed_statement_has_its_own() -> None:
    root = program()
    assert len(loops_of(root)) == 3
    less = root.replace(body=root.body.stmts[1])
    assert loops_of(less) == (less,) and not units_of(less)
    assert len(loops_of(root)) == 3
    agree(less)


def test_updates_of_several_buffers_are_noted() -> None:
    one = Update((x,), ((i,),), (zero,), SUM)
    two = Update((x, y), ((i,), (i,)), (zero, zero), paired(one.reducer, one.reducer))
    assert not summary(loop(i, 4, one)).joint
    assert summary(two).joint and summary(loop(i, 4, block(one, two))).joint
    for root in (one, two, loop(i, 4, block(one, two))):
        agree(root)


def test_what_is_read_and_changed_is_noted_wherever_it_is() -> None:
    """In values, indices, extents and conditions; the start of a tile in an index of an index."""
    n = Buffer("n", (1,), INDEX)
    start = Overlap(i * 3, const(1))
    inner = Store(x, (n[start],), y[j])
    tests = If(n[0] < 3, loop(k, n[0], inner), Update((y,), ((j,),), (x[i],), SUM))
    agree(tests)
    agree(loop(j, 2, Alloc(y, tests)))
    assert summary(tests).tiles == {i} and summary(tests).reads == {n, x, y}
