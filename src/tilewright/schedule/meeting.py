"""Which iterations of loops meet in memory: the proof behind every change of order.

Two accesses meet where their indices are equal. Per dimension that is a linear equation over the
distances between the two iterations, and the digit lemma solves it: a term whose coefficient is
larger than all the others can sum up to must have distance 0. What it cannot decide counts as a
meeting, so that a refusal may be too careful but a permission never is.

Overlapping tiles store equal values where they overlap: the promise that `loops/overlap.py` states
and that only an `Overlap` in the index makes, which `split(..., tail="overlap")` alone writes after
it has proved it. `ideal=True` uses it, by reading the start of a tile as if tiles did not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import combinations_with_replacement
from typing import NamedTuple

from tilewright.expr.affine import Affine, affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Const, Expr, FloorDiv, Load, Mod, Var, const
from tilewright.loops.access import commute
from tilewright.loops.nodes import Stmt
from tilewright.loops.overlap import clamps
from tilewright.loops.overlap import ideal as unclamped
from tilewright.schedule.region import uncovered
from tilewright.schedule.tree import Access, Env, accesses, allocated, variables


class _Equation(NamedTuple):
    """`sum(c * distance(atom)) + rest == 0` with rest in lo..hi."""

    terms: tuple[tuple[Expr, int, int], ...]
    lo: int
    hi: int


def meeting(
    a: Access, b: Access, loops: Collection[Var], env: Env, ideal: bool = False
) -> set[Expr] | None:
    """The variables of `loops` that must agree wherever `a` and `b` meet; None: they never meet.

    `loops` are common to both accesses; variables bound inside them run independently for `a` and
    `b`, all others are fixed.
    """
    free = set(loops) | {f.var for f in a.loops} | {f.var for f in b.loops}
    # A loop that runs once agrees with itself.
    zero: set[Expr] = {v for v in loops if env.get(v) == (0, 0)}
    # What agrees wherever the accesses meet in fact may be taken as equal in the ideal reading.
    for reading in (False, True) if ideal else (False,):
        system: list[_Equation] = []
        for i, j in zip(a.index, b.index, strict=True):
            one, other = _plain(i, loops, reading), _plain(j, loops, reading)
            e = _equation(one, other, loops, free, env)
            if e is not None:
                system.append(e)
        if not _settled(system, zero, loops, env):
            return None
    return zero & set(loops)


def _settled(system: list[_Equation], zero: set[Expr], loops: Collection[Var], env: Env) -> bool:
    """Add all atoms whose distance the equations force to 0; False if they have no solution."""
    while True:
        before = len(zero)
        for e in system:
            if not _solve(e, zero):
                return False
        system += list(_digits(zero, loops, env))
        if len(zero) == before:
            return True


def _plain(e: Expr, loops: Collection[Var], ideal: bool) -> Affine:
    return unclamped(affine(e), loops) if ideal else affine(e)


def _alike(a: Access, b: Access, loops: Collection[Var]) -> bool:
    """Whether overlapping tiles of the loops are the same ones in both."""
    return all(
        clamps(affine(i), loops) == clamps(affine(j), loops)
        for i, j in zip(a.index, b.index, strict=True)
    )


def _once(a: Access, env: Env) -> bool:
    """Whether no two iterations of the loops around an access meet there."""
    loops = {f.var for f in a.loops}
    return meeting(a, a, loops, env) == loops


def covered_in(body: Stmt, env: Env, once: bool = False) -> Callable[[Buffer], bool]:
    """Whether a run of `body` stores whatever it reads of a buffer, first.

    once: and that it writes each element of the buffer once, so that no other run of `body` that
    stores the same values again lets a value be seen in between.
    """

    def covered(buffer: Buffer) -> bool:
        found = [a for a in accesses(body) if a.buffer is buffer and a.writes]
        if once and (len(found) != 1 or not _once(found[0], env)):
            return False
        return uncovered(body, buffer, env) is None

    return covered


def _over(atom: Expr, loops: Collection[Var]) -> bool:
    return all(v in loops for v in variables(atom))


def _equation(
    a: Affine, b: Affine, loops: Collection[Var], free: set[Var], env: Env
) -> _Equation | None:
    """The equation `a == b` of two instances; None where nothing is known about it."""
    lo = hi = a.const - b.const
    terms: list[tuple[Expr, int, int]] = []
    for atom in dict(a.terms) | dict(b.terms):
        p, q = a.coefficient(atom), b.coefficient(atom)
        varying = any(v in free or isinstance(v, Load) for v in variables(atom))
        if not varying and p == q:
            continue
        low, high = bounds(atom, env)
        if low is None or high is None:
            if not (varying and p == q and _over(atom, loops)):
                return None
            low, high = 0, 1 << 62
        if varying and p == q and _over(atom, loops):
            terms.append((atom, p, abs(p) * (high - low)))
        elif varying:
            lo += min(p * low, p * high) - max(q * low, q * high)
            hi += max(p * low, p * high) - min(q * low, q * high)
        else:
            lo += min((p - q) * low, (p - q) * high)
            hi += max((p - q) * low, (p - q) * high)
    return _Equation(tuple(terms), lo, hi)


def _solve(e: _Equation, zero: set[Expr]) -> bool:
    """Add the atoms whose distance must be 0; False if the equation has no solution."""
    active = [
        t for t in e.terms if t[0] not in zero and not all(v in zero for v in variables(t[0]))
    ]
    reach = sum(t[2] for t in active)
    if e.lo - reach > 0 or e.hi + reach < 0:
        return False
    slack = max(abs(e.lo), abs(e.hi))
    for atom, c, own in sorted(active, key=lambda t: -abs(t[1])):
        if own and abs(c) <= slack + reach - own:
            break
        zero.add(atom)
        reach -= own
    return True


def _digits(zero: set[Expr], loops: Collection[Var], env: Env) -> Iterator[_Equation]:
    """Where `x // n` and `x % n` both agree, so does `x` (`y // (m*n)` is a `// n` of `y // m`)."""
    for atom in list(zero):
        if not isinstance(atom, Mod) or not isinstance(atom.rhs, Const):
            continue
        x, quotients = atom.lhs, [FloorDiv(atom.lhs, atom.rhs)]
        if isinstance(x, FloorDiv) and isinstance(x.rhs, Const):
            whole = int(x.rhs.value.real) * int(atom.rhs.value.real)
            quotients.append(FloorDiv(x.lhs, const(whole)))
        if x not in zero and any(q in zero for q in quotients):
            e = _equation(affine(x), affine(x), loops, set(loops), env)
            if e is not None:
                _solve(e, zero)
                yield e


def shared(root: Stmt) -> dict[Buffer, list[Access]]:
    """The accesses of each buffer that `root` writes and that exists outside of it.

    What is read again at the same place counts once.
    """
    private = allocated(root)
    found: dict[Buffer, list[Access]] = {}
    seen: set[Access] = set()
    for a in accesses(root):
        if a.buffer not in private and (a.writes or a not in seen):
            found.setdefault(a.buffer, []).append(a)
            seen.add(a)
    return {b: accs for b, accs in found.items() if any(a.writes for a in accs)}


def pairs(found: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs of accesses of one buffer of which at least one writes."""
    for a, b in combinations_with_replacement(found, 2):
        if a.writes or b.writes:
            yield a, b


def carried(
    body: Stmt, loop: Var, env: Env, updates: bool, overlap: bool
) -> Iterator[tuple[Access, Access]]:
    """The pairs of accesses through which different iterations of `loop` may meet.

    updates: steps of one commutative reduction may meet. overlap: a Store of overlapping tiles may
    meet itself; of two Stores to one element, another tile may see the first one's value.
    """
    for found in shared(body).values():
        for a, b in pairs(found):
            if updates and commute(a, b):
                continue
            again = overlap and a is b and a.kind == "store"
            agree = meeting(a, b, (loop,), env, ideal=again)
            if agree is not None and loop not in agree:
                yield a, b


def order_witness(
    body: Stmt, band: Sequence[Var], order: Sequence[Var], env: Env
) -> tuple[Access, Access, Expr, Expr] | None:
    """Two accesses, and two loops whose exchange could swap them; None if `order` is legal.

    Legal: for each pair of accesses that can meet and each pair of loops that change sides, the
    iterations agree in one of the two; or the accesses are steps of one commutative reduction.
    """
    place = {v: n for n, v in enumerate(order)}
    swapped = [(x, y) for n, x in enumerate(band) for y in band[n + 1 :] if place[x] > place[y]]
    for buffer, found in shared(body).items():
        covered = uncovered(body, buffer, env) is None
        for a, b in pairs(found):
            if commute(a, b):
                continue
            agree = meeting(a, b, band, env, covered and _alike(a, b, band))
            if agree is None:
                continue
            for x, y in swapped:
                if x not in agree and y not in agree:
                    return a, b, x, y
    return None
