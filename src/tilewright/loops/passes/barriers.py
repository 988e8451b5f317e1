"""Barriers in the program of a thread: where a dependence between two threads asks for one.

The dependences. Let a and b be accesses of an element that threads of a block share, one of which
writes, and different threads perform them. A barrier must be on every path from a to b:

    within an iteration     a is before b, in one iteration of all loops around both
    carried by a loop       a is in an earlier iteration of it than b, in one of those outside

A gap is a place between two statements that all threads of a block come to together: in the body,
in loops of an extent and in branches of a condition that is alike for all threads. The gaps that
serve a dependence are those on the way from a to b, back over the end of the loop that carries it;
those of a loop on the way only if it has an iteration for sure. If a and b are two iterations
apart or more, all of the body is on the way.

The choice. Dependences with no gap outside a loop are served first, in the innermost loops; each
by the gap of the fewest loops around it that leaves most products in flight, and of such by that
which serves most. A barrier without which all dependences are served is dropped: none is missing,
none is needless. What isl cannot prove apart is a
dependence. A barrier is "global" only if a dependence on memory of the caller needs it there.

What is in flight (`in_flight.py`). What an `async` loop writes is there for no thread before the
thread that copies has waited: a dependence on such a write is one of the same thread, too, and one
of its barriers has a wait in front. So has a dependence on what a unit beside the threads reads;
one on its accumulators, which are the thread's own, needs a wait for all products and no barrier. A
wait alone serves one on a box that one thread copies, for which all threads wait. What is in front
of a box that blocks of a cluster copy for one another needs a barrier of all its threads, since any
of them may write there; such a barrier is one of each block, too. So does a dependence on memory
of the cluster, in which its blocks count as threads. A wait leaves later groups in
flight where the dependences are so many iterations apart (`copy_groups.py`).

A dependence that no gap serves is a race, and is refused with the two threads; so is one between
blocks. Two atomic updates by one reducer need no order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, combinations_with_replacement, product
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import Buffer, Extent, const
from tilewright.loops.analysis.access import Access
from tilewright.loops.analysis.threads import (
    BLOCKS,
    THREADS,
    Conflict,
    blocks_conflict,
    shared_accesses,
    threads_conflict,
)
from tilewright.loops.launch import CombineThreads
from tilewright.loops.nodes import (
    COPY_KINDS,
    For,
    If,
    Stmt,
    While,
)
from tilewright.loops.passes import gaps
from tilewright.loops.passes.atomics import are_atomic
from tilewright.loops.passes.copy_groups import (
    MOST,
    Ages,
    group_ends,
    groups_ended,
    groups_in_flight,
)
from tilewright.loops.passes.gaps import (
    Gap,
    Meetings,
    Path,
    Sequences,
    Way,
    distinct,
)
from tilewright.loops.passes.in_flight import (
    BOXES,
    COMMITTED,
    FLIGHTS,
    PRODUCTS,
    accumulators_of,
    flight,
    is_multicast,
)
from tilewright.loops.passes.shared_room import (
    Places,
    anywhere_in_room,
    overlapping,
)
from tilewright.loops.passes.thread_program import ThreadProgram
from tilewright.loops.walk import StatementPlace, walk

_APART: Final[Places] = {}
# Scopes of barriers: each also does what those in front of it do. "" is none.
STRENGTH: Final = ("", "shared", "global", "cluster")


class NeededBarrier(NamedTuple):
    """A dependence: one of these gaps must have a barrier of this scope; empty: none.

    flight: for what a wait has to be in front, or "". way: these gaps in order then, else empty.
    """

    gaps: frozenset[Gap]
    scope: str
    way: Way = ()
    flight: str = ""


def with_barriers(
    program: ThreadProgram, grid: Sequence[Extent], places: Places = _APART
) -> Stmt:
    """The body of a program of a thread with the barriers that it needs.

    grid: the extents of the axes x, y, z. places: of buffers that share room. Raises ScheduleError
    (TW-RACE) naming two threads that touch an element, and that no barrier can order.
    """
    body = distinct(program.body)
    tree = Sequences(body, program.cluster)
    _check_combined(tree)
    needs: list[NeededBarrier] = []
    own = accumulators_of(body)
    also = *own, *places
    accesses = shared_accesses(body, grid, program.threads, also, program.cluster)
    for buffer, found in accesses.items():
        scope = buffer.scope if buffer.scope in STRENGTH else "global"
        if buffer in own:
            needs += _own_needs(tree, found)
            continue
        for a in found:
            _check_turns(tree, a)
        for a, b in combinations_with_replacement(found, 2):
            if not (a.writes or b.writes) or are_atomic(a, b):
                continue
            if scope == "global":
                _refuse(a, b, blocks_conflict(a, b), "blocks")
            needs += _needs_between(tree, a, b, scope)
    needs += _room_needs(tree, accesses, places)
    scopes = chosen(needs, group_ends(tree, PRODUCTS) if own else ())
    return tree.with_meetings(_meetings(tree, needs, scopes))


def _needs_between(
    tree: Sequences, a: Access, b: Access, scope: str
) -> Iterator[NeededBarrier]:
    """The barriers between two accesses, `a` the first in the program."""
    for d in _dependences(tree, a, b):
        by = "" if d.flight == BOXES else scope  # a wait for it is enough
        if is_multicast(d.later):
            by = "cluster"
        yield NeededBarrier(frozenset(d.gaps), by, d.way, d.flight)


def _room_needs(
    tree: Sequences, accesses: Mapping[Buffer, Sequence[Access]], places: Places
) -> Iterator[NeededBarrier]:
    """The barriers between accesses of buffers that share room."""
    for pair in overlapping(places):
        found = [accesses.get(b, ()) for b in pair]
        for one, other in product(*found):
            if one.writes or other.writes:
                a, b = sorted((one, other), key=lambda x: tree.order(x.place))
                some = anywhere_in_room(a), anywhere_in_room(b)
                yield from _needs_between(tree, *some, "shared")


def _own_needs(tree: Sequences, found: Sequence[Access]) -> Iterator[NeededBarrier]:
    """The waits between products and other accesses of their accumulators."""
    for a, b in combinations(found, 2):
        if bool(flight(a)) != bool(flight(b)):
            for d in _dependences(tree, a, b):
                if d.flight:
                    yield NeededBarrier(frozenset(d.gaps), "", d.way, d.flight)


def _meetings(
    tree: Sequences, needs: Sequence[NeededBarrier], scopes: Mapping[Gap, str]
) -> Meetings:
    """The barriers, with the waits in front of them and the groups that these leave in flight."""
    waits: dict[Gap, dict[str, int]] = {}
    commits: dict[Gap, list[str]] = {}
    for of in FLIGHTS:
        mine = [n for n in needs if n.flight == of]
        left, ends = _fewest(tree, of, mine, scopes)
        for gap, pending in left.items():
            waits.setdefault(gap, {})[of] = pending
        for gap in ends if any(left.values()) or of in COMMITTED else ():
            commits.setdefault(gap, []).append(of)
    return Meetings(scopes, waits, commits)


def _fewest(
    tree: Sequences, of: str, needs: Sequence[NeededBarrier], scopes: Mapping[Gap, str]
) -> tuple[dict[Gap, int], frozenset[Gap]]:
    """The waits, with the groups that each leaves in flight, and where these end. One is dropped
    if another one in front of the same barriers is enough, and waits for no more than before."""
    found = _waits(needs, scopes)
    left, ends = _in_flight(tree, of, needs, scopes, found)
    ways = [_up_to_meeting(n, scopes) for n in needs]
    for gap in sorted(found, key=_inner, reverse=True):
        rest = left.keys() - {gap}
        if any(map(rest.isdisjoint, ways)):
            continue
        fewer, others = _in_flight(tree, of, needs, scopes, rest)
        is_later = [pending >= left[at] for at, pending in fewer.items()]
        if all(is_later):
            left = fewer
            ends = others
    return left, ends


def _inner(gap: Gap) -> tuple[int, tuple[int, int]]:
    """Of gaps, what inner ones have more of, and of such, later ones."""
    return gap.depth, gap.rank


def _in_flight(
    tree: Sequences,
    of: str,
    needs: Sequence[NeededBarrier],
    scopes: Mapping[Gap, str],
    waits: Collection[Gap],
) -> tuple[dict[Gap, int], frozenset[Gap]]:
    """How many groups these waits leave in flight, and where groups end."""
    ends = group_ends(tree, of, waits) if waits else frozenset[Gap]()
    ages = [_ages(n, waits, scopes, ends) for n in needs]
    return groups_in_flight(ages, waits), ends


def _ages(
    n: NeededBarrier,
    waits: Collection[Gap],
    scopes: Mapping[Gap, str],
    ends: Collection[Gap],
) -> Ages:
    """How many groups end up to each wait that serves a need: one behind its last barrier does
    not. Accumulators are there only when no product is in flight: that no number of groups says."""
    is_own = n.flight == PRODUCTS and not n.scope
    return groups_ended(_up_to_meeting(n, scopes), waits, () if is_own else ends)


def _up_to_meeting(n: NeededBarrier, scopes: Mapping[Gap, str]) -> Way:
    """The way of a need up to its last barrier."""
    last = 0
    for at, gap in enumerate(n.way):
        if gap in scopes and _serves(scopes[gap], n):
            last = at
    return n.way[: last + 1]


def _check_combined(tree: Sequences) -> None:
    """Raise ScheduleError if not all threads of a block reach a Combine."""
    for at in walk(tree.body):
        if isinstance(at.stmt, CombineThreads) and at.stmt not in tree.home:
            raise ScheduleError(
                "its threads are combined where not all of them come to: under "
                "a condition, or in a loop, that differs between them",
                code="TW-LAUNCH",
                where=f"buffer {at.stmt.buffers[0].name}",
                hint="move the condition into the reduction, around its values",
            )


def _check_turns(tree: Sequences, a: Access) -> None:
    """Raise ScheduleError where something is copied to a place of which a copy may be in flight,
    by the same statement, in a loop in which threads cannot wait."""
    if not (a.writes and flight(a)):
        return
    path = tree.path(a.place)
    known = {step.sequence.owner for step in path}
    outside: list[For] = []
    for s in a.place.above:
        found: Conflict = None
        if isinstance(s, While) and s not in known:
            found = threads_conflict(a, a, outside, own=True)
        if isinstance(s, For):
            if s.kind in COPY_KINDS:
                return
            is_number = s.var in BLOCKS or s.var in THREADS
            if s not in known and not is_number:
                found = threads_conflict(a, a, outside, s, own=True)
            outside.append(s)
        _refuse(a, a, found, "turns of a loop")


# -- dependences


def _dependences(
    tree: Sequences,
    a: Access,
    b: Access,
) -> Iterator[Dependence]:
    """Each dependence between two accesses, `a` the first in the program."""
    one = tree.path(a.place)
    two = tree.path(b.place)
    common = [n for n, (p, q) in enumerate(zip(one, two)) if p.sequence is q.sequence]
    own = bool(flight(a) or flight(b))
    if len(common) > 1 and threads_conflict(a, b, (), own=own) is None:
        return  # in no iterations of the loops around both
    loops: list[For] = []
    for n in common:
        owner = one[n].sequence.owner
        if isinstance(owner, For | While):
            yield from _carried(tree, (a, one), (b, two), n, loops)
        if isinstance(owner, For):
            loops.append(owner)
    yield from _within(tree, (a, one), (b, two), common[-1], loops)


Reached = tuple[Access, Path]


class Dependence(NamedTuple):
    """later: the access that has to be behind the other one. gaps: that serve it. way: of what is
    in flight, the gaps on the way to the access that needs that to be over. flight: what it is."""

    later: Access
    gaps: Way
    way: Way = ()
    flight: str = ""


def _conflict(
    a: Access,
    b: Access,
    same: Collection[For],
    carrier: For | None = None,
    distance: str = ">= 1",
    is_later: bool = False,
) -> Conflict:
    """Whether b, after a, needs a barrier between. is_later: b is in a later iteration."""
    own = bool(flight(a)) or is_multicast(b)
    own = own or (a.writes and flight(b) == BOXES)  # by another path to memory
    own = own and (a is not b or is_later)
    return threads_conflict(a, b, same, carrier, distance, own)


def _within(
    tree: Sequences,
    first: Reached,
    then: Reached,
    level: int,
    loops: Sequence[For],
) -> Iterator[Dependence]:
    """The dependence in one iteration of all loops around both."""
    (a, one), (b, two) = first, then
    part = one[level].part
    apart = one[level].number != two[level].number
    if not apart and isinstance(part, If) and len(one) > level + 1 < len(two):
        return  # in two branches, of which all threads take one
    found = _conflict(a, b, loops)
    if found is None:
        return
    after = tree.after(one, level + 1)
    before = tree.before(two, level + 1, {})
    if apart:
        up_to = after + tree.between(one[level], two[level])
        way: Way = ()
        if flight(a):
            skipped = _skipped(a, b, two[level + 1 :], loops)
            way = up_to + tree.before(two, level + 1, skipped)
        yield Dependence(b, up_to + before, way, flight(a))
    elif after + before and part is a.place.stmt and part is not b.place.stmt:
        # From the condition or extent of a statement to what is in it.
        yield Dependence(b, after + before)
    else:
        _refuse(a, b, found, "threads")


def _carried(
    tree: Sequences,
    first: Reached,
    then: Reached,
    level: int,
    outside: Sequence[For],
) -> Iterator[Dependence]:
    """The dependences, either way, from an iteration of a loop to a later one."""
    around = first[1][level].sequence
    by = around.owner if isinstance(around.owner, For) else None
    whole = tree.whole(around)
    either_way = [(first, then), (then, first)]
    for (a, one), (b, two) in either_way[: 1 if first[0] is then[0] else 2]:
        after = tree.after(one, level, stays=True)
        before = tree.before(two, level, {})
        most = 2
        if by is None or set(after + before) >= set(whole):
            most = 1  # an iteration between adds no gap
        if by is not None and flight(a):
            most = MOST
        apart = _distance(a, b, outside, by, most)
        if apart is None:
            continue
        up_to = after + whole * (apart - 1)
        way: Way = ()
        if flight(a):
            skipped = _skipped(a, b, two[level + 1 :], outside, by)
            way = up_to + tree.before(two, level, skipped)
        yield Dependence(b, up_to + before, way, flight(a))


def _distance(
    a: Access, b: Access, outside: Sequence[For], by: For | None, most: int
) -> int | None:
    """The least distance of two iterations that conflict, if it is less than `most`, else `most`;
    None if there are no such iterations."""
    if _conflict(a, b, outside, by, is_later=True) is None:
        return None
    near = (
        n
        for n in range(1, most)
        if _conflict(a, b, outside, by, f"= {n}", is_later=True) is not None
    )
    return next(near, most)


def _skipped(
    a: Access,
    b: Access,
    steps: Path,
    same: Collection[For],
    carrier: For | None = None,
) -> dict[gaps.Sequence, int]:
    """Iterations of each loop around `b` alone, from its first on, that have no conflict with `a`,
    in an earlier iteration of the carrier if there is one."""
    loops = {s.sequence: s.sequence.owner for s in steps}
    found: dict[gaps.Sequence, int] = {}
    for sequence, f in loops.items():
        if isinstance(f, For) and f.trips:
            found[sequence] = 0
            for n in range(1, min(f.trips, MOST) + 1):
                first = _first(b, f, n)  # another access than `a` in any case
                if _conflict(a, first, same, carrier) is not None:
                    break
                found[sequence] = n
    return found


def _first(b: Access, f: For, count: int) -> Access:
    """The access in the first iterations of a loop around it."""
    some = f.replace(extent=const(count))
    above = tuple(some if s is f else s for s in b.place.above)
    ranges = {**b.ranges, f.var: (0, count - 1)}
    return replace(b, place=StatementPlace(b.place.stmt, above), ranges=ranges)


def _refuse(
    a: Access,
    b: Access,
    found: Conflict,
    who: str,
) -> None:
    """Raise ScheduleError where there is a conflict that no barrier can order."""
    if found is None:
        return
    one, two = _does(a), _does(b)
    both = one if one == two else f"{one}, {two}"
    what = f"two {who} race ({both})"
    raise ScheduleError(
        f"{what}: {found.reason}",
        code="TW-RACE",
        where=f"buffer {a.buffer.name}",
        hint="give each a separate element, or rfactor the reduction that they share",
    )


def _does(a: Access) -> str:
    return f"{_DOES[a.kind]} {a}"


_DOES: Final = {"load": "reads", "store": "writes", "update": "updates"}


# -- the choice


def chosen(
    needs: Iterable[NeededBarrier], ends: Collection[Gap] = ()
) -> dict[Gap, str]:
    """A minimal set of gaps that serve all dependences, each with the scope of its barrier.

    ends: of groups of products.
    """
    distinct = {
        (n.gaps, n.scope, n.flight, n.way if n.flight == PRODUCTS else ()): n
        for n in needs
    }
    left = sorted(distinct.values(), key=_outermost, reverse=True)
    found = _serving(left, ends)
    if not ends:  # what is decided by groups of products stays
        others = _serving(sorted(left, key=_choice), ends)
        found = min(found, others, key=_depths)
    return _scopes(left, found)


def _serving(needs: Sequence[NeededBarrier], ends: Collection[Gap]) -> list[Gap]:
    """Gaps that serve all dependences, in this order each that is open yet; none is needless."""
    found: dict[Gap, None] = {}
    for need in needs:
        if need.gaps.isdisjoint(found):
            fewest = _outermost(need)
            open_ = [n for n in needs if n.gaps.isdisjoint(found)]
            choice = [gap for gap in need.gaps if gap.depth == fewest]
            worth = {gap: _worth(gap, open_, ends) for gap in choice}
            found[max(choice, key=worth.__getitem__)] = None
    for gap in sorted(found, key=lambda gap: gap.depth, reverse=True):
        rest = found.keys() - {gap}
        if not any(need.gaps.isdisjoint(rest) for need in needs):
            del found[gap]
    return list(found)


def _choice(need: NeededBarrier) -> tuple[int, int]:
    """Dependences in inner loops come first, and of such those with the least choice."""
    fewest = _outermost(need)
    return -fewest, sum(gap.depth == fewest for gap in need.gaps)


def _depths(gaps: Sequence[Gap]) -> list[int]:
    """The loops around each, the most first: fewer barriers in inner loops count more."""
    return sorted((gap.depth for gap in gaps), reverse=True)


def _waits(needs: Sequence[NeededBarrier], scopes: Mapping[Gap, str]) -> set[Gap]:
    """Of the chosen gaps those with a wait, in front of the barrier if there is one; as few as
    serve all."""
    left = [
        {gap for gap in n.gaps & scopes.keys() if _serves(scopes[gap], n)}
        for n in needs
    ]
    found: set[Gap] = set()
    for some in sorted(left, key=len):
        if found.isdisjoint(some):
            first = min(some, key=_inner)
            found.add(first)
    return found


def _serves(scope: str, need: NeededBarrier) -> bool:
    """Whether what is in front of a barrier of this scope, or of none, is over where a need asks
    for that."""
    return STRENGTH.index(scope) >= STRENGTH.index(need.scope)


def _outermost(need: NeededBarrier) -> int:
    return min(gap.depth for gap in need.gaps)


def _worth(
    gap: Gap, needs: Sequence[NeededBarrier], ends: Collection[Gap]
) -> tuple[int, int, tuple[int, int]]:
    """How many groups of products end in front of it on each way that it is on, how many
    dependences it serves, and how late it is."""
    mine = [n for n in needs if gap in n.gaps]
    ended = [
        groups_ended(n.way, (gap,), ends)[gap] for n in mine if n.flight == PRODUCTS
    ]
    return min(ended, default=0), len(mine), gap.rank


def _scopes(needs: Sequence[NeededBarrier], gaps: Iterable[Gap]) -> dict[Gap, str]:
    scopes = dict.fromkeys(gaps, "shared")
    for gap in sorted(scopes, key=lambda gap: gap.depth, reverse=True):
        others = {other for other in scopes if other is not gap and scopes[other]}
        if not any(need.scope and need.gaps.isdisjoint(others) for need in needs):
            scopes[gap] = ""
    for need in sorted(needs, key=lambda n: len(n.gaps & scopes.keys())):
        if not need.scope:
            continue
        mine = [gap for gap in need.gaps & scopes.keys() if scopes[gap]]
        weaker = STRENGTH[: STRENGTH.index(need.scope)]
        if all(scopes[gap] in weaker for gap in mine):
            first = min(mine, key=_inner)
            scopes[first] = need.scope
    return scopes
