"""Guards that bounds decide, and those that they do not."""

from __future__ import annotations

from tilewright.base.dtypes import float32
from tilewright.expr.nodes import INDEX, Buffer, Lt, Var, const
from tilewright.loops.nodes import Block, If, Store, block, loop
from tilewright.schedule.simplify_guards import simplify_guards

X, Y, Z = (Buffer(n, (16,), float32) for n in "xyz")
A, B = Var("a", INDEX), Var("b", INDEX)
STORE, OTHER = Store(Y, (A,), X[A]), Store(Z, (A,), X[A])
ENV = {A: (0, 9)}


def below(n: int, then, other=None) -> If:  # type: ignore[no-untyped-def]
    return If(Lt(A, const(n)), then, other)


def test_what_always_holds_is_no_guard() -> None:
    assert simplify_guards(below(10, STORE, OTHER), ENV) is STORE
    assert simplify_guards(below(0, STORE, OTHER), ENV) is OTHER
    assert simplify_guards(below(0, STORE), ENV) == Block(())


def test_what_is_left_open_stays() -> None:
    for stmt in (
        below(9, STORE),
        below(1, STORE, OTHER),
        block(below(9, STORE), OTHER),
    ):
        assert simplify_guards(stmt, ENV) is stmt


def test_a_guard_says_what_holds_in_its_arms() -> None:
    """Though nothing else of it changes."""
    inner = simplify_guards(below(4, below(8, STORE)), ENV)
    assert isinstance(inner, If) and inner.then is STORE and inner.otherwise is None
    arms = simplify_guards(below(8, STORE, below(4, STORE, OTHER)), ENV)
    assert isinstance(arms, If) and arms.then is STORE and arms.otherwise is OTHER


def test_a_loop_of_nothing_is_nothing() -> None:
    nothing = simplify_guards(loop(B, 3, below(0, STORE)), ENV)
    assert isinstance(nothing, Block) and not nothing.stmts
    ranged = loop(B, 3, If(Lt(B, const(3)), STORE, None))
    assert str(simplify_guards(ranged, ENV)) == str(loop(B, 3, STORE))
