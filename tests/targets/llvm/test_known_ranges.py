"""What emission has found out about indices follows the ranges of variables."""

from __future__ import annotations

from tilewright.base.dtypes import float32
from tilewright.expr.affine import affine
from tilewright.expr.bounds import less_than
from tilewright.expr.nodes import Buffer, FloorDiv, Load, Var, const, var
from tilewright.targets.cpu.machine import machine
from tilewright.targets.llvm.emit_places import AddressEmitter
from tilewright.targets.llvm.emit_text import int_vector, integer
from tilewright.targets.llvm.value_numbering import Scopes


def test_a_loop_that_runs_again_with_another_range() -> None:
    scopes, i = scopes_and_index()
    scopes.bind(i, integer(0), (0, 3))
    assert scopes.bounds_of(affine(i + 1)) == (1, 4)
    assert scopes.is_within(i, 4)
    scopes.bind(i, integer(0), (0, 7))
    assert scopes.bounds_of(affine(i + 1)) == (1, 8)
    assert not scopes.is_within(i, 4)


def test_what_is_learned_later_proves_more() -> None:
    scopes, i = scopes_and_index()
    n = var("n")
    scopes.learn({n: (0, None)})
    scopes.bind(i, integer(0), (0, None))
    assert not scopes.is_within(i, n)
    assert scopes.bounds_of(affine(i - n)) == (None, None)
    scopes.learn(less_than(i, n))
    assert scopes.is_within(i, n)
    assert scopes.bounds_of(affine(i - n)) == (None, -1)


def test_a_fact_goes_with_the_range_of_its_variable() -> None:
    scopes, i = scopes_and_index()
    n = var("n")
    scopes.learn({n: (0, None)})
    scopes.bind(i, integer(0), (0, None))
    scopes.learn(less_than(i, n))
    assert scopes.is_within(i, n)
    scopes.forget(i)
    assert not scopes.is_within(i, n)
    assert scopes.bounds_of(affine(i - n)) == (None, None)


def test_a_load_is_proven_index_by_index() -> None:
    scopes, i = scopes_and_index()
    load = Load(Buffer("b", (4, 8), float32), (i, i))
    scopes.bind(i, integer(0), (0, 7))
    assert not scopes.proven(load)
    scopes.bind(i, integer(0), (0, 3))
    assert scopes.proven(load)
    scopes.bind(i, integer(0), (-1, 3))
    assert not scopes.proven(load)


def test_lanes_of_an_index_follow_the_range_too() -> None:
    emitter = AddressEmitter(machine("x86-64-v3"))
    i, lane = var("i"), var("lane")
    emitter.bind(lane, int_vector(list(range(8))), (0, 7))
    emitter.bind(i, integer(0), (0, 3))
    index = FloorDiv(i + lane, const(16))
    found = emitter.lanes_of(index, lane, 8)
    assert found is not None
    assert (found.base, found.steps) == (affine(const(0)), (0,) * 8)
    emitter.bind(i, integer(0), (0, 31))
    assert emitter.lanes_of(index, lane, 8) is None


def scopes_and_index() -> tuple[Scopes, Var]:
    """Emission for one processor, before anything is known, and a variable."""
    return Scopes(machine("x86-64-v3")), var("i")
