"""Answering one dependence question, by the lemmas and then by isl."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from tilewright.base.dataclass import dataclass
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Buffer, Var
from tilewright.loops.analysis.access import (
    Access,
    Env,
    commute,
    environment,
    guarded_accesses,
    pairs,
    shared,
)
from tilewright.loops.analysis.isl import Relation, ask
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.overlap import clamps, is_taken_apart
from tilewright.loops.analysis.verdict import LEGAL, Pair, Verdict
from tilewright.loops.nodes import Alloc, For, Kernel, Stmt

Choice = Callable[[Access, Access], bool]


def _never(a: Access, b: Access) -> bool:
    return False


@dataclass(frozen=True, eq=False, slots=True)
class Question:
    """Whether iterations p and q of a band, in a relation, touch one element.

    above: the loops around the body of the band, and what is allocated in them.
    settled: whether the relation is ruled out where the given variables agree (default: where all
    of the band do). ideal: pairs whose overlapping tiles may be read as if they did not overlap.
    equal: pairs that do not conflict, since whatever is stored again is equal.
    wanted: the pairs of an access in p and one in q to consider (default: all).
    symmetric: whether the relation, of all pairs, does not tell p from q. updates: whether steps of
    one commutative reduction may touch one element. ends: as of `isl.ask`.
    """

    band: tuple[For, ...]
    above: tuple[Stmt, ...]
    relation: Relation
    settled: Callable[[Collection[Var]], bool] | None = None
    ideal: Choice = _never
    equal: Choice = _never
    wanted: Choice | None = None
    symmetric: bool = True
    updates: bool = True
    ends: bool = False

    def decide(self, kernel: Kernel) -> Verdict:
        """The answer for a kernel with the band in it."""
        if next(self.open_pairs(environment(kernel.body)), None) is None:
            return LEGAL
        for pair in conflicting(kernel, self.band[-1], self.updates):
            if not self._is_open(*pair):
                continue
            for first, second in self._orders(*pair, both=not self.symmetric):
                ideal = self._reads_ideal(first, second)
                found = ask(
                    first, second, self.band, self.relation, ideal, pair, self.ends
                )
                if found is not None:
                    return found
        return LEGAL

    def open_pairs(self, env: Env) -> Iterator[Pair]:
        """The pairs that the lemmas leave open, guards aside."""
        body = self.band[-1].body
        which = self.wanted is not None
        quick = shared(body, env, self.above, repeated=which).values()
        return (
            pair for pair in _conflicts(quick, self.updates) if self._is_open(*pair)
        )

    def _orders(
        self,
        a: Access,
        b: Access,
        both: bool = False,
    ) -> list[Pair]:
        """The pairs of an access in p and one in q."""
        if a is b:
            orders = [(a, b)]
        else:
            orders = [(a, b), (b, a)]
        if self.wanted is not None:
            return [pair for pair in orders if self.wanted(*pair)]
        return orders if both else orders[:1]

    def _is_open(self, a: Access, b: Access) -> bool:
        """Whether the lemmas do not rule out that the two touch one element."""
        touch = any(self._touch(*pair) for pair in self._orders(a, b))
        return touch and not self.equal(a, b)

    def _touch(self, a: Access, b: Access) -> bool:
        vary = [f.var for f in self.band]
        if self._rules_out(agreeing(a, b, vary)):
            return False
        if not self._reads_ideal(a, b):
            return True
        same = agreeing(a.anywhere, b.anywhere, vary, without_overlap=True)
        return not self._rules_out(same)

    def _reads_ideal(self, a: Access, b: Access) -> bool:
        vary = [f.var for f in self.band]
        forms = [affine(i) for i in a.index]
        tiled = any(clamps(i, vary) or is_taken_apart(i, vary) for i in forms)
        return tiled and self.ideal(a, b)

    def _rules_out(self, same: Collection[Var] | None) -> bool:
        if same is None:
            return True
        if self.settled is not None:
            return self.settled(same)
        return all(f.var in same for f in self.band)


def conflicting(kernel: Kernel, loop: For, updates: bool = True) -> Iterator[Pair]:
    """Pairs of guarded accesses inside `loop` to one buffer, of which one writes.

    Each with itself too; not those that commute, unless `updates` is false. Left out is what is
    allocated inside the loop.
    """
    found: dict[Buffer, list[Access]] = {}
    for a in guarded_accesses(kernel.body, loop):
        above = a.place.above
        own = (s.buffer for s in above[above.index(loop) :] if isinstance(s, Alloc))
        if a.buffer not in own:
            found.setdefault(a.buffer, []).append(a)
    return _conflicts(found.values(), updates)


def _conflicts(buffers: Iterable[Sequence[Access]], updates: bool) -> Iterator[Pair]:
    for found in buffers:
        for a, b in pairs(found):
            if not (updates and commute(a, b)):
                yield a, b
