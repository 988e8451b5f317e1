"""The dependence questions: which changes of the order of iterations are legal.

Two accesses of one buffer conflict if one of them writes, except that two `Update`s with one
commutative reducer do not (unless the question says so). Each question is a relation between
iterations p and q of a band of loops, alike in all loops around it; the verdict is Legal only if no
two conflicting accesses, one performed in p and one in q, touch one element:

    can_parallelize   p != q
    can_reorder       p before q in the present order, and after it in the new one
    can_fission       p < q, in p a late statement, in q an early one
    can_separate      p != q in some loop of a nest, an early statement and a late one
    can_delay         least <= q - p <= most, in p one statement and in q another one

Buffers allocated inside the band are an iteration's own. A question goes to the lemmas with
quick accesses, then with guarded ones, and then, for the pairs that are left, to isl, which gives
the witness.

An `Overlap` in an index says that tiles which overlap store equal values (`overlap`). Between
plain stores and loads with the same ones, tiles are read as if they did not overlap where that is
enough: an element is stored again with its value, by whoever reads it before he does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import combinations

from tilewright.base.errors import VerifyError
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    environment,
    in_loops,
)
from tilewright.loops.analysis.effects import writes
from tilewright.loops.analysis.equal_values import stores_one_value
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.question import Choice, Question
from tilewright.loops.analysis.region import uncovered
from tilewright.loops.analysis.verdict import LEGAL, Legal, Unknown, Verdict
from tilewright.loops.nodes import Block, For, Kernel, Stmt
from tilewright.loops.nodes import loop as loop_of
from tilewright.loops.walk import StatementPlace, loops_of, place_of

Covered = Callable[[Buffer], bool]


def _granted(buffer: Buffer) -> bool:
    return True


def can_parallelize(
    kernel: Kernel,
    loop: For | str | StatementPlace,
    covered: Covered | None = _granted,
    *,
    updates: bool = True,
    halos: bool = False,
) -> Verdict:
    """Whether the iterations of one loop, or of the loop at a place, may run in parallel, in any
    order.

    covered: whether an iteration stores every element of a buffer before reading it, by one Store;
    then overlapping tiles that store it again are harmless. By default this is assumed; None:
    assume that they are not harmless, even if one Store stores the same value again. halos: whether
    elements may be stored again with values that are proved equal (`equal_values`). updates:
    whether steps of one commutative reduction may update the same element.
    """

    def ideal(a: Access, b: Access) -> bool:
        if covered is None or not _plain(a, b):
            return False
        if a.writes and b.writes:
            return a.place is b.place
        return covered(a.buffer)

    at = _find(kernel, loop)
    (f,) = _band(at)
    outside = {g.var for g in at.loops}
    stored_first = covered_in(f.body, environment(kernel.body))

    def equal(a: Access, b: Access) -> bool:
        if not halos or not _plain(a, b):
            return False
        stored = [x for x in (a, b) if x.writes]
        if len(stored) == 2 and a.place.stmt is not b.place.stmt:
            return False
        if not stores_one_value(stored[0], outside, writes(f)):
            return False
        return len(stored) == 2 or stored_first(a.buffer)

    question = Question(
        _band(at),
        _around(at),
        _differ,
        ideal=ideal,
        equal=equal,
        updates=updates,
    )
    return question.decide(kernel)


def can_reorder(
    kernel: Kernel, loops: Sequence[For | str], order: Sequence[str] | None = None
) -> Verdict:
    """Whether loops of a perfect nest, given outermost first, may change places.

    order: their names in the new order, outermost first; None: in every way.
    """
    places = [_find(kernel, loop) for loop in loops]
    band = _band(*places)
    names = [f.var.name for f in band]
    new = None if order is None else [names.index(name) for name in order]
    covered = covered_in(band[-1].body, environment(kernel.body))
    swapped = []
    for m, n in combinations(range(len(band)), 2):
        if new is None or new.index(m) > new.index(n):
            swapped.append((band[m].var, band[n].var))

    def settled(same: Collection[Var]) -> bool:
        return all(x in same or y in same for x, y in swapped)

    def ideal(a: Access, b: Access) -> bool:
        both_store = a.writes and b.writes and _plain(a, b)
        return both_store or covered(a.buffer)

    def relation(p: Sequence[str], q: Sequence[str]) -> str:
        if new is None:
            return _backwards(p, q)
        return _exchanged(p, q, new)

    question = Question(
        band,
        _around(places[-1]),
        relation,
        settled,
        ideal=ideal,
        symmetric=False,
    )
    return question.decide(kernel)


def can_fission(kernel: Kernel, loop: For | str, at: int) -> Verdict:
    """Whether the first `at` statements of a loop's block may run for all iterations first."""
    place = _find(kernel, loop)
    (found,) = _band(place)
    body = found.body
    if not isinstance(body, Block) or not 0 < at < len(body.stmts):
        raise VerifyError(f"loop {found.var.name} has no statement boundary {at}")

    def again(late: Access, early: Access) -> bool:
        # What an early statement stores again is what the late one found there, unless that
        # writes there itself.
        return early.kind == "store" and not late.writes

    question = Question(
        (found,),
        _around(place),
        lambda p, q: f"{p[0]} < {q[0]}",
        ideal=again,
        # A statement that occurs in both parts is one node, whose effects belong to both.
        wanted=_between(body.stmts[at:], body.stmts[:at]),
        ends=True,
    )
    return question.decide(kernel)


def can_separate(
    kernel: Kernel, loops: Sequence[For], early: Sequence[Stmt], late: Sequence[Stmt]
) -> Verdict:
    """Whether two parts of a nest's body conflict within one iteration of all its loops only."""
    places = [_find(kernel, loop) for loop in loops]
    question = Question(
        _band(*places),
        _around(places[-1]),
        _differ,
        wanted=_between(early, late),
        updates=False,
    )
    return question.decide(kernel)


def can_delay(
    kernel: Kernel, loop: For | str, first: Stmt, second: Stmt, lags: tuple[int, int]
) -> Verdict:
    """Whether iteration i of `first` and j of `second` never conflict for j - i within `lags`.

    lags: the least and the greatest. What is allocated inside the loop is left out.
    """
    place = _find(kernel, loop)
    least, most = lags

    def late(p: Sequence[str], q: Sequence[str]) -> str:
        return f"{least} <= {q[0]} - {p[0]} and {q[0]} - {p[0]} <= {most}"

    def settled(same: Collection[Var]) -> bool:
        return least > 0 and all(f.var in same for f in _band(place))

    question = Question(
        _band(place),
        _around(place),
        late,
        settled,
        wanted=_between([first], [second]),
    )
    return question.decide(kernel)


def are_independent(loop: For, env: Env) -> Legal | Unknown:
    """Whether no two iterations of a loop conflict, steps of a reduction included; by lemmas alone.

    For a loop that is not a part of a kernel, or not any more. env: the bounds of all variables.
    """
    question = Question((loop,), (), _differ, updates=False)
    pair = next(question.open_pairs(env), None)
    if pair is None:
        return LEGAL
    question_left = f"whether iterations of {loop.var.name} conflict is left open"
    return Unknown(question_left, "lemma", pair)


def covered_in(body: Stmt, env: Env, once: bool = False) -> Covered:
    """Whether a run of `body` stores every element of a buffer before reading it.

    once: also require that it writes each element once, so that another run of `body` that stores
    the same values again never exposes an intermediate value.
    """

    def covered(buffer: Buffer) -> bool:
        found = [a for a in accesses(body, env) if a.buffer is buffer and a.writes]
        if once and (len(found) != 1 or not stored_once(found[0])):
            return False
        return uncovered(body, buffer, env) is None

    return covered


def stored_once(a: Access) -> bool:
    """Whether no two iterations of the loops between its root and an access touch one element.

    False where the lemmas leave it open.
    """
    loops = frozenset([f.var for f in a.loops])
    return agreeing(a, a, loops) == loops


def writes_apart(s: Stmt, loops: Sequence[For]) -> bool:
    """Whether no two iterations of these loops around a statement, outermost first, write one
    element (`stored_once`)."""
    ranges = {f.var: (0, f.trips - 1) for f in loops if f.trips}
    for f in reversed(loops):
        s = loop_of(f.var, f.extent, s, f.kind)
    return all(stored_once(a) for a in accesses(s, ranges) if a.writes)


# -- the loops in question, and relations of their iterations


def _find(kernel: Kernel, loop: For | str | StatementPlace) -> StatementPlace:
    if isinstance(loop, StatementPlace):
        return loop
    for f in loops_of(kernel.body):
        if f is loop or f.var.name == loop:
            return place_of(kernel.body, f)
    name = loop if isinstance(loop, str) else loop.var.name
    raise VerifyError(f"there is no loop {name}", where=f"kernel {kernel.name}")


def _band(*places: StatementPlace) -> tuple[For, ...]:
    return tuple(at.stmt for at in places if isinstance(at.stmt, For))


def _around(at: StatementPlace) -> tuple[Stmt, ...]:
    """The statements around the body of a loop."""
    return in_loops((*at.above, at.stmt))


def _plain(a: Access, b: Access) -> bool:
    return a.reducer is None and b.reducer is None


def _between(first: Sequence[Stmt], second: Sequence[Stmt]) -> Choice:
    """The pairs of an access in some statements and one in others."""
    one = set(first)
    two = set(second)

    def below(a: Access, stmts: set[Stmt]) -> bool:
        return a.place.stmt in stmts or any(s in stmts for s in a.place.above)

    return lambda a, b: below(a, one) and below(b, two)


def _differ(p: Sequence[str], q: Sequence[str]) -> str:
    return " or ".join(f"{x} != {y}" for x, y in zip(p, q, strict=True))


def _backwards(p: Sequence[str], q: Sequence[str]) -> str:
    """p comes before q; in some other order of the loops it does not."""
    cases = []
    for first, later in combinations(range(len(p)), 2):
        same = [f"{p[k]} = {q[k]}" for k in range(first)]
        cases.append([*same, f"{p[first]} < {q[first]}", f"{p[later]} > {q[later]}"])
    return _any(cases)


def _exchanged(p: Sequence[str], q: Sequence[str], order: Sequence[int]) -> str:
    """p comes before q, and in the order given it does not."""
    after = _before([q[n] for n in order], [p[n] for n in order])
    return f"({_before(p, q)}) and ({after})"


def _before(p: Sequence[str], q: Sequence[str]) -> str:
    cases = []
    for n in range(len(p)):
        same = [f"{p[k]} = {q[k]}" for k in range(n)]
        cases.append([*same, f"{p[n]} < {q[n]}"])
    return _any(cases)


def _any(cases: Sequence[Sequence[str]]) -> str:
    return " or ".join(f"({' and '.join(c)})" for c in cases) or "false"
