"""Every read and write of a program, with what is known where it is performed.

One `Access`, collected in two ways. `accesses` is quick: each distinct read of a statement once,
ignoring guards. `guarded_accesses` tracks the guards, including the conditions of Selects, and the
bounds that they imply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, combinations_with_replacement
from typing import Any, Literal

from tilewright.base.dataclass import dataclass
from tilewright.compute.reducer import Reducer
from tilewright.expr import bounds as intervals
from tilewright.expr.bounds import bounds, lasting, refine
from tilewright.expr.intervals import Interval
from tilewright.expr.nodes import Buffer, Expr, Lt, Var
from tilewright.expr.reads import Guard, reads
from tilewright.loops.analysis.effects import allocated, together
from tilewright.loops.analysis.terms import loads
from tilewright.loops.analysis.terms import variables as used
from tilewright.loops.launch import CombineThreads
from tilewright.loops.nodes import SIZE, For, If, Stmt, Store, Update, While
from tilewright.loops.walk import StatementPlace, below, loops_of, walk

Env = dict[Any, Interval]
Index = tuple[Expr, ...]

_UNKNOWN: intervals.Env = {}


@dataclass(frozen=True, eq=False, slots=True)
class Access:
    """One read, write or update of `buffer[index]`, seen from a statement that contains it.

    place: the statement that accesses, and those around it up to the root, outermost first.
    ranges: bounds of the variables there; guards: conditions that hold there (or do not).
    reducer, together: of an update; the latter are all the buffers of its values, if these are one
    value (see `effects.together`), else empty.
    """

    buffer: Buffer
    index: Index
    kind: Literal["load", "store", "update"]
    place: StatementPlace
    ranges: intervals.Env
    guards: tuple[Guard, ...] = ()
    reducer: Reducer | None = None
    together: tuple[Buffer, ...] = ()

    @property
    def writes(self) -> bool:
        """Whether the buffer is changed."""
        return self.kind != "load"

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops below the root around the access, outermost first."""
        return self.place.loops

    @property
    def anywhere(self) -> Access:
        """As if it had no guards, and as if what a loop does said nothing about another one."""
        ranges = {k: known for k, known in self.ranges.items() if isinstance(k, Var)}
        whole = {f.var: (0, f.trips and max(f.trips - 1, 0)) for f in self.loops}
        return replace(self, ranges={**ranges, **whole}, guards=())

    def __str__(self) -> str:
        return f"{self.buffer.name}[{', '.join(map(repr, self.index))}]"


def environment(root: Stmt) -> Env:
    """The interval of every loop variable; of an extent that is not constant, that it is below."""
    return dict(_environment(root))


@lru_cache(maxsize=64)
def _environment(root: Stmt) -> Mapping[Any, Interval]:
    """As `environment`, cached, since it is queried repeatedly for one program."""
    found: dict[Any, Interval] = {}
    for f in loops_of(root):
        if f.trips is not None:
            found[f.var] = (0, max(f.trips - 1, 0))
            continue
        # No number: what is between bounds of it need not all be reached.
        found[f.var] = (0, None)
        if not loads(f.extent):
            found |= intervals.less_than(f.var, f.extent)
    return found


def without(env: Env, variables: Collection[Var]) -> Env:
    """`env` without facts on variables that are about to change their values."""
    gone = set(variables)

    def kept(key: Any) -> bool:
        atoms = [a for a, _ in key] if isinstance(key, frozenset) else [key]
        return all(gone.isdisjoint(used(atom)) for atom in atoms)

    return {key: interval for key, interval in env.items() if kept(key)}


def expressions(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of the statement itself, without its inner statements."""
    if isinstance(s, For):
        return (s.extent,)
    if isinstance(s, Store):
        return (*s.index, s.value)
    if isinstance(s, Update):
        return (*chain(*s.indices), *s.values)
    if isinstance(s, CombineThreads):
        return tuple(chain(*s.indices))
    if isinstance(s, If | While):
        return (s.condition,)
    return ()


def in_loops(above: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """What is around a statement of a kernel from the outermost loop on.

    What is allocated outside all loops is made once, as parameters are.
    """
    for n, s in enumerate(above):
        if isinstance(s, While) or (isinstance(s, For) and s.kind != SIZE):
            return above[n:]
    return ()


def accesses(
    root: Stmt, ranges: intervals.Env = _UNKNOWN, above: tuple[Stmt, ...] = ()
) -> list[Access]:
    """Every read and write of `root` in program order; a statement's reads precede its write.

    ranges: bounds of variables, valid everywhere (see `environment`); without them nothing is
    known. above: the statements around `root` (see `in_loops`), if `together` needs them.
    """
    found: list[Access] = []
    for at in walk(root):
        found += _of_statement(at, ranges, above)
    return found


def accesses_of(root: Stmt, *buffers: Buffer) -> list[Access]:
    """Those of `accesses(root)` to some buffers: statements that have none are passed over."""
    some = frozenset(buffers)
    found: list[Access] = []
    for at in walk(root, touching=some):
        found += [a for a in _of_statement(at, _UNKNOWN, ()) if a.buffer in some]
    return found


def _of_statement(
    at: StatementPlace, ranges: intervals.Env, above: tuple[Stmt, ...]
) -> Iterator[Access]:
    for e in expressions(at.stmt):
        for x in loads(e):
            yield Access(x.buffer, x.index, "load", at, ranges)
    yield from _written(at, (*above, *at.above), ranges, ())


def guarded_accesses(root: Stmt, inside: Stmt | None = None) -> Iterator[Access]:
    """Every read and write of `root`, a kernel's body, with the guards that hold there.

    A read comes once per set of conditions around it. inside: only those inside this statement.
    """
    yield from _guarded(StatementPlace(root, ()), (), {}, inside)


def _guarded(
    at: StatementPlace,
    guards: tuple[Guard, ...],
    ranges: dict[Any, Interval],
    inside: Stmt | None,
) -> Iterator[Access]:
    if inside is None or inside in at.above:
        for r in reads(expressions(at.stmt), ranges, guards):
            yield Access(r.load.buffer, r.load.index, "load", at, r.ranges, r.guards)
        yield from _written(at, in_loops(at.above), ranges, guards)
    for child, more, known in _inner(at.stmt, ranges):
        yield from _guarded(
            StatementPlace(child, (*at.above, at.stmt)), (*guards, *more), known, inside
        )


def _written(
    at: StatementPlace,
    above: Sequence[Stmt],
    ranges: intervals.Env,
    guards: tuple[Guard, ...],
) -> Iterator[Access]:
    s = at.stmt
    if isinstance(s, Store):
        yield Access(s.buffer, s.index, "store", at, ranges, guards)
    elif isinstance(s, Update):
        one = together(s, above)
        for b, index in s.targets:
            yield Access(b, index, "update", at, ranges, guards, s.reducer, one)
    elif isinstance(s, CombineThreads):
        for b, index in s.targets:
            yield Access(b, index, "store", at, ranges, guards)


def _inner(
    s: Stmt, ranges: dict[Any, Interval]
) -> Iterator[tuple[Stmt, tuple[Guard, ...], dict[Any, Interval]]]:
    """The direct substatements, each with its guard and the bounds that hold there."""
    if isinstance(s, For):
        yield s.body, (), _loop_ranges(s, ranges)
    elif isinstance(s, If):
        for arm, holds in ((s.then, True), (s.otherwise, False)):
            if arm is not None:
                known = lasting(refine(ranges, s.condition, holds))
                yield arm, ((s.condition, holds),), known
    else:
        for inner in below(s):
            yield inner, (), ranges


def _loop_ranges(s: For, ranges: dict[Any, Interval]) -> dict[Any, Interval]:
    """`ranges` with the loop's variable between 0 and its extent."""
    top = bounds(s.extent, ranges)[1]
    inside = {**ranges, s.var: (0, None if top is None else top - 1)}
    if s.trips is not None:
        return inside
    return lasting(refine(inside, Lt(s.var, s.extent)))


def shared(
    root: Stmt,
    ranges: intervals.Env = _UNKNOWN,
    above: tuple[Stmt, ...] = (),
    repeated: bool = False,
) -> dict[Buffer, list[Access]]:
    """The accesses of each buffer that `root` writes and that exists outside it.

    What several statements of a sequence read counts once, unless `repeated`: for one of them.
    ranges, above: as `accesses`.
    """
    private = allocated(root)
    found: dict[Buffer, list[Access]] = {}
    seen: set[object] = set()
    for a in accesses(root, ranges, above):
        if a.buffer in private:
            continue
        if not a.writes and not repeated:
            read = (a.buffer, a.index, a.place.above)
            if read in seen:
                continue
            seen.add(read)
        found.setdefault(a.buffer, []).append(a)
    return {b: accs for b, accs in found.items() if any(a.writes for a in accs)}


def pairs(found: Sequence[Access]) -> Iterator[tuple[Access, Access]]:
    """Pairs of accesses of one buffer of which at least one writes, each with itself too."""
    for a, b in combinations_with_replacement(found, 2):
        if a.writes or b.writes:
            yield a, b


def commute(a: Access, b: Access) -> bool:
    """Whether both are updates by one commutative reducer of the same buffers `together`."""
    if not a.together or a.together != b.together:
        return False
    assert a.reducer is not None and b.reducer is not None
    return (
        a.reducer.commutative and b.reducer.commutative and a.reducer.does_as(b.reducer)
    )
