"""Which loops must agree wherever two accesses touch one element: the index-term lemma.

The condition. Let a and b be accesses of one buffer, and `band` loops around both. An instance of
an access is a choice of values for the variables in its index: those of the band and those bound
inside the band are chosen for a and for b separately; all others have one value in both. Two
instances touch one element iff a.index == b.index in every dimension. `agreeing(a, b, band)` is

    None         only if no two instances touch one element;
    a set S      only if v has one value in any two instances that touch one element, for v in S.

It is sound, and not complete: an empty set says nothing. `isl.ask` decides what it leaves open.

The lemmas, of an equation `sum(c * term) + rest == 0`: a term is the distance of the two values
that an index term (a loop variable, or a quotient or remainder of a mixed-radix split such as
`f // 8`, `f % 8`) has in the two instances, and rest is in lo..hi. Each of them is tested against
enumeration (`tests/loops/analysis/test_differential.py`).

1. Reach. If `lo - reach > 0` or `hi + reach < 0`, with reach the most that all terms can sum up
   to, there is no solution.
2. Domination. If |c| of a term is larger than all that the other terms and the rest can sum up to,
   its distance is 0: two different values would leave a difference that nothing makes up.
3. Same inputs. A term all of whose variables agree has distance 0. If its coefficients differ in a
   and b (p and q), it adds `(p - q) * value` to the rest.
4. Whole from parts. Where `x // n`, `x % n` and n agree, so does x, as n is not 0; `y // (m*n)` is
   a quotient of `y // m` by n.
5. Ideal reading. For tiles that overlap, see `overlap`: what holds where the accesses conflict in
   fact may be taken as given in the reading without overlaps.

What reads memory is not a term: its contents may change between the two instances, so that all it
gives is its bounds. Bounds are those of each access (`Access.ranges`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import Affine, affine
from tilewright.expr.bounds import Env, bounds
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import Const, Expr, Load, Mod, Var
from tilewright.loops.analysis.access import Access
from tilewright.loops.analysis.overlap import clamps, ideal, is_taken_apart, rejoined
from tilewright.loops.analysis.terms import quotients, variables

# No coefficient, an int64, reaches over a term whose values are not bounded.
_UNBOUNDED = 1 << 64


def agreeing(
    a: Access, b: Access, band: Collection[Var], without_overlap: bool = False
) -> frozenset[Var] | None:
    """The variables of `band` that agree wherever `a` and `b` touch one element; None: nowhere.

    without_overlap: read overlapping tiles as if they did not overlap, if they are the same tiles
    in both accesses (the caller knows that this is enough; see `overlap`).
    """
    if _apart(a, b):
        return None
    inner = _inner(a, band) | _inner(b, band)
    asked = _Asked(a.index, b.index, tuple(band), inner, without_overlap)
    if not all(type(known) is Var for known in chain(a.ranges, b.ranges)):
        return _agreeing(asked, a.ranges, b.ranges)
    used = frozenset(band).union(*map(variables, chain(a.index, b.index)))
    return _kept(asked, _of_these(a.ranges, used), _of_these(b.ranges, used))


class _Asked(NamedTuple):
    """What `agreeing` is asked, but for the bounds. inner: the variables inside the band."""

    one: tuple[Expr, ...]
    two: tuple[Expr, ...]
    band: tuple[Var, ...]
    inner: frozenset[Var]
    without_overlap: bool


_Ranges = frozenset[tuple[Expr, Interval]]


def _of_these(ranges: Env, used: Iterable[Expr]) -> _Ranges:
    return frozenset([(v, ranges[v]) for v in used if v in ranges])


@lru_cache(maxsize=1 << 12)
def _kept(asked: _Asked, one: _Ranges, two: _Ranges) -> frozenset[Var] | None:
    """As `_agreeing`, cached: the schedules of a search ask the same of many programs.

    Precondition: nothing is known but bounds of variables. Those of the variables in the indices
    and of the band then decide: a condition on a sum or a quotient would be looked up by another
    key.
    """
    return _agreeing(asked, dict(one), dict(two))


def _agreeing(asked: _Asked, one: Env, two: Env) -> frozenset[Var] | None:
    band = asked.band
    system = _System(one, two, asked.inner.union(band))
    agreed: set[Expr] = {v for v in band if _fixed(one, v) and _fixed(two, v)}
    for forms in _readings(asked):
        equations = [system.equation(i, j) for i, j in forms]
        if not system.settle(equations, agreed):
            return None
    return frozenset([v for v in band if v in agreed])


def _apart(a: Access, b: Access) -> bool:
    """Whether different constants index an axis: lemma 1 without terms, for the most of pairs."""
    return any(
        i is not j
        and isinstance(i, Const)
        and isinstance(j, Const)
        and i.value != j.value
        for i, j in zip(a.index, b.index, strict=True)
    )


def _inner(a: Access, band: Collection[Var]) -> frozenset[Var]:
    """The variables of the loops inside the band, in the part of the program that is known."""
    loops = [f.var for f in a.loops]
    first = next((n for n, v in enumerate(loops) if v in band), 0)
    return frozenset(v for v in loops[first:] if v not in band)


def _fixed(ranges: Env, v: Var) -> bool:
    """Whether a loop has but one iteration."""
    return ranges.get(v) == (0, 0)


def _readings(asked: _Asked) -> Iterator[list[tuple[Affine, Affine]]]:
    pairs = zip(asked.one, asked.two, strict=True)
    forms = [(affine(i), affine(j)) for i, j in pairs]
    yield forms
    if asked.without_overlap:
        yield idealized(forms, asked.band)


def idealized(
    forms: Sequence[tuple[Affine, Affine]], band: Collection[Var]
) -> list[tuple[Affine, Affine]]:
    """The indices of two accesses without the overlaps of tiles, if they have the same tiles."""
    joined = rejoined(forms, band)
    kept = [f for f in joined if not any(is_taken_apart(i, band) for i in f)]
    tiles = [(clamps(i, band), clamps(j, band)) for i, j in kept]
    if any(a != b for a, b in tiles) or not any(a for a, _ in tiles):
        return list(forms)
    return [(ideal(i, band), ideal(j, band)) for i, j in kept]


class _Term(NamedTuple):
    """An index term, of anything but memory.

    coefficient: of its distance; 0 if its coefficients in the two instances differ. reach: the
    maximum contribution of the distance. agreed, differing: its contribution if its value is the
    same in both (beyond that of the distance), and if it is not.
    """

    atom: Expr
    coefficient: int
    reach: int
    agreed: Interval
    differing: Interval


class _Equation(NamedTuple):
    """`sum(terms) + rest == 0`."""

    terms: tuple[_Term, ...]
    rest: Interval


@dataclass(frozen=True, slots=True)
class _System:
    """Equations between instances of two accesses.

    one, two: the bounds in each. varying: the variables of the band and those inside it, of which
    each instance has its own.
    """

    one: Env
    two: Env
    varying: frozenset[Var]

    def equation(self, i: Affine, j: Affine) -> _Equation:
        """The equation `i == j`, `i` in an instance of the first access, `j` of the second."""
        rest: Interval = (i.const - j.const, i.const - j.const)
        terms = []
        for atom in dict(i.terms) | dict(j.terms):
            p = i.coefficient(atom)
            q = j.coefficient(atom)
            used = variables(atom)
            if any(isinstance(v, Load) for v in used):
                rest = _plus(rest, self._difference(atom, p, q))
            elif p != q or not used.isdisjoint(self.varying):
                terms.append(self._term(atom, p, q))
        return _Equation(tuple(terms), rest)

    def _difference(self, atom: Expr, p: int, q: int) -> Interval:
        first = bounds(atom, self.one)
        second = bounds(atom, self.two)
        return _plus(_times(first, p), _times(second, -q))

    def _term(self, atom: Expr, p: int, q: int) -> _Term:
        if p != q:
            return _Term(
                atom,
                coefficient=0,
                reach=0,
                agreed=_times(bounds(atom, self.one), p - q),
                differing=self._difference(atom, p, q),
            )
        lo, hi = self._difference(atom, 1, 1)
        if lo is None or hi is None:
            distance = _UNBOUNDED
        else:
            distance = max(-lo, hi, 0)
        return _Term(
            atom,
            coefficient=p,
            reach=abs(p) * distance,
            agreed=(0, 0),
            differing=(0, 0),
        )

    def settle(self, equations: list[_Equation], agreed: set[Expr]) -> bool:
        """Add all terms that the equations force to agree; False if they have no solution."""
        while True:
            before = len(agreed)
            if not all(self._solve(e, agreed) for e in equations):
                return False
            for whole in self._completed(agreed):
                form = affine(whole)
                self._solve(self.equation(form, form), agreed)
            if len(agreed) == before:
                return True

    def _completed(self, agreed: set[Expr]) -> list[Expr]:
        """The expressions of which the quotient, the remainder and the divisor agree."""
        remainders = (e for e in agreed if isinstance(e, Mod))
        return [
            e.lhs
            for e in remainders
            if e.lhs not in agreed
            and self._agrees(e.rhs, agreed)
            and any(q in agreed for q in quotients(e))
        ]

    def _agrees(self, atom: Expr, agreed: set[Expr]) -> bool:
        if atom in agreed:
            return True
        return all(v in agreed for v in variables(atom) if v in self.varying)

    def _solve(self, e: _Equation, agreed: set[Expr]) -> bool:
        """Add the terms that one equation forces to agree; False if it has no solution."""
        rest = e.rest
        active: list[_Term] = []
        for t in e.terms:
            same = self._agrees(t.atom, agreed)
            if t.coefficient and not same:
                active.append(t)
            elif not t.coefficient:
                rest = _plus(rest, t.agreed if same else t.differing)
        lo, hi = rest
        if lo is None or hi is None:
            return True
        reach = sum(t.reach for t in active)
        if lo - reach > 0 or hi + reach < 0:
            return False
        slack = max(abs(lo), abs(hi))
        for t in sorted(active, key=lambda t: -abs(t.coefficient)):
            if t.reach and abs(t.coefficient) <= slack + reach - t.reach:
                break
            agreed.add(t.atom)
            reach -= t.reach
        return True


def _times(x: Interval, c: int) -> Interval:
    if c == 0:
        return 0, 0
    lo, hi = x if c > 0 else (x[1], x[0])
    return (
        None if lo is None else lo * c,
        None if hi is None else hi * c,
    )


def _plus(x: Interval, y: Interval) -> Interval:
    return _sum(x[0], y[0]), _sum(x[1], y[1])


def _sum(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b
