"""Groups of what is in flight: where each ends, and how many a wait leaves in flight.

    for k in n:
      wait 1                                        of tile k + 1 may be in flight, of k may not
      barrier shared
      async l in 4: t[(k + 2) % 3, ..] = x[..]
      commit                                        the group of tile k + 2
      ... t[k % 3, ..] ...

Copies arrive in the order of their groups, so a wait that leaves the latest n in flight is enough
for a copy if at least n groups end behind that of the copy on every way to the wait. The same goes
for products of units beside the threads.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from tilewright.expr.nodes import Buffer
from tilewright.loops.analysis.effects import writes
from tilewright.loops.nodes import If, Stmt, Store, Unit, Update
from tilewright.loops.passes import gaps
from tilewright.loops.passes.gaps import Gap, Sequences, Way
from tilewright.loops.passes.in_flight import flight_of
from tilewright.loops.walk import walk

MOST: Final = 8  # iterations that are looked ahead for the one that uses what is copied

# Of a copy: the groups that end from there to the last time that a thread comes to each wait.
Ages = Mapping[Gap, int]


def group_ends(tree: Sequences, of: str, waits: Collection[Gap] = ()) -> frozenset[Gap]:
    """The gaps that end groups: each behind adjacent statements that copy, to different buffers, or
    multiply. A condition around several groups stays around these.

    of: "copies", "bulk" or "products". waits: gaps with a wait for some, which knows ended groups
    only: buffers that differ may share room.
    """
    return frozenset(_ends(tree, tree.root, of, waits))


def _ends(
    tree: Sequences, sequence: gaps.Sequence, of: str, waits: Collection[Gap]
) -> Iterator[Gap]:
    group: set[Buffer] = set()
    for number, part in enumerate(sequence.parts):
        started, others = _written(part, of)
        inner = tree.inside.get(part, ())
        is_one = not others
        for one in inner:
            is_one = is_one and not _has_wait(tree, one, waits)
            if isinstance(part, If) and is_one:
                ends = list(_ends(tree, one, of, waits))
                is_one = len(ends) <= 1
        alone = started if is_one else set()
        gap = Gap(sequence, number)
        if group and (not alone or alone & group or gap in waits):
            yield gap
            group = set()
        group |= alone
        if is_one or not started:
            continue
        for one in inner:
            yield from _ends(tree, one, of, waits)
        if not inner:
            yield Gap(sequence, number + 1)
    if group:
        yield Gap(sequence, len(sequence.parts))


def _has_wait(tree: Sequences, sequence: gaps.Sequence, waits: Collection[Gap]) -> bool:
    """Whether there is a wait in a sequence, or in those inside."""
    if any(gap.sequence is sequence for gap in waits):
        return True
    for part in sequence.parts:
        for inner in tree.inside.get(part, ()):
            if _has_wait(tree, inner, waits):
                return True
    return False


def _written(part: Stmt, of: str) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers that a statement writes in flight, and those that it writes otherwise."""
    started: set[Buffer] = set()
    others: set[Buffer] = set()
    for at in walk(part):
        if isinstance(at.stmt, Store | Update | Unit):
            is_started = flight_of(at) == of
            (started if is_started else others).update(writes(at.stmt))
    return started, others


def groups_in_flight(ages: Sequence[Ages], waits: Collection[Gap]) -> dict[Gap, int]:
    """How many groups each wait leaves in flight: as many as possible, in inner loops first.

    ages: of each copy or product that has to be over, those at the waits that may be enough for it,
    of which there is at least one.
    """
    found = dict.fromkeys(waits, 0)
    for gap in sorted(found, key=lambda gap: (-gap.depth, gap.rank)):
        possible = {age[gap] - 1 for age in ages if gap in age}
        for left in sorted(possible, reverse=True):
            more = found | {gap: left}
            if left > 0 and all(_arrived(age, more) for age in ages):
                found = more
                break
    return found


def groups_ended(way: Way, waits: Collection[Gap], ends: Collection[Gap]) -> Ages:
    """How many groups end on a way up to each wait, the last time that it comes there."""
    ended = 0
    found: dict[Gap, int] = {}
    for gap in way:
        ended += gap in ends
        if gap in waits:
            found[gap] = ended
    return found


def _arrived(ages: Ages, left: Mapping[Gap, int]) -> bool:
    """Whether one of the waits that a copy comes to is enough for it."""
    return any(left[gap] == 0 or ended > left[gap] for gap, ended in ages.items())
