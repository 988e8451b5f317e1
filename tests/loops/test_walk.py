"""What is inside of a statement is kept in it, and says the same as a walk."""

from tilewright.base.dtypes import float32
from tilewright.compute.reducer import paired, reducer
from tilewright.expr.nodes import INDEX, Buffer, Var, const
from tilewright.loops.nodes import Alloc, For, If, Store, Unit, Update, block, loop
from tilewright.loops.walk import inside, loops_of, place_of, walk, whole

x, y = (Buffer(n, (4,), float32) for n in "xy")
i, j, k = (Var(n, INDEX) for n in "ijk")
zero = const(0.0, float32)


def program():
    inner = loop(j, 2, Alloc(y, Store(y, (j,), zero)))
    unit = Unit("u", None, (), loop(k, 3, Store(x, (k,), zero)))
    return loop(i, 4, block(If(i.eq(1), inner, unit), Store(x, (i,), zero)))


def agree(root) -> None:
    stmts = [p.stmt for p in walk(root)]
    found = whole(root)
    assert list(loops_of(root)) == list(found.loops)
    assert list(found.loops) == [s for s in stmts if isinstance(s, For)]
    assert list(found.buffers) == [s.buffer for s in stmts if isinstance(s, Alloc)]
    assert list(found.units) == [s for s in stmts if isinstance(s, Unit)]
    for place in walk(root):
        if isinstance(place.stmt, For):
            at = place_of(root, place.stmt)
            assert (at.stmt, at.above) == (place.stmt, place.above)


def test_it_says_the_same_as_a_walk() -> None:
    root = program()
    agree(root)
    agree(root.body)
    agree(Store(x, (i,), zero))
    assert inside(root) is inside(root)


def test_a_changed_statement_has_its_own() -> None:
    root = program()
    assert len(whole(root).loops) == 3
    less = root.replace(body=root.body.stmts[1])
    assert whole(less).loops == (less,) and not whole(less).units
    assert len(whole(root).loops) == 3
    agree(less)


def test_updates_of_several_buffers_are_noted() -> None:
    one = Update((x,), ((i,),), (zero,), reducer("add", float32))
    two = Update((x, y), ((i,), (i,)), (zero, zero), paired(one.reducer, one.reducer))
    assert not whole(loop(i, 4, one)).joint
    assert whole(two).joint and whole(loop(i, 4, block(one, two))).joint
    assert not inside(two).joint
