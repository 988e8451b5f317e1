"""The positions for barriers in a thread's program, and the paths that pass each of them.

A sequence is a list of statements that all threads of a block reach together: the program's body,
and the body of an allocation, loop or branch inside a sequence if its extent or condition is
uniform across threads. A gap is a position before a statement of a sequence, or after its last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from itertools import starmap
from typing import NamedTuple

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Var
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.launch import Barrier, Commit, Wait
from tilewright.loops.nodes import (
    IN_ORDER,
    Alloc,
    Block,
    For,
    If,
    Stmt,
    While,
    block,
)
from tilewright.loops.passes.thread_program import varies
from tilewright.loops.walk import StatementPlace, below


def distinct(s: Stmt) -> Stmt:
    """`s` as a tree: no statement occurs in it twice, and no block is directly in a block."""
    if isinstance(s, Block):
        return block(*map(distinct, s.stmts))
    made: Stmt = s.map(
        lambda child: distinct(child) if isinstance(child, Stmt) else child
    )
    return made.twin() if made is s else made


@dataclass(eq=False)
class Sequence:
    """owner: the statement whose body it is. depth: how many loops are around it.

    always: whether every thread that reaches its owner also reaches it.
    """

    owner: Stmt | None
    parts: tuple[Stmt, ...]
    depth: int
    always: bool
    rank: int


class Gap(NamedTuple):
    """Before a statement of a sequence. rank: among all gaps, in the order of the program."""

    sequence: Sequence
    number: int

    @property
    def depth(self) -> int:
        return self.sequence.depth

    @property
    def rank(self) -> tuple[int, int]:
        return self.sequence.rank, self.number


class StatementSlot(NamedTuple):
    """A statement of a sequence; -1: the condition of the while loop that owns it."""

    sequence: Sequence
    number: int

    @property
    def part(self) -> Stmt:
        return self.sequence.parts[self.number]


Path = list[StatementSlot]
Way = tuple[Gap, ...]  # gaps in the order in which a thread comes to them


@dataclass(frozen=True, slots=True)
class Meetings:
    """What is put into gaps, in this order. commits: where a group ends, of what. waits: for what,
    and how many groups may still be in flight. scopes: of barriers; empty for none."""

    scopes: Mapping[Gap, str]
    waits: Mapping[Gap, Mapping[str, int]] = field(default_factory=dict)
    commits: Mapping[Gap, Collection[str]] = field(default_factory=dict)


@dataclass(eq=False)
class Sequences:
    """The sequences of a body, in which no statement occurs twice. cluster: the axis of blocks that
    share memory, whose threads come to them together."""

    body: Stmt
    cluster: Var | None = None
    home: dict[Stmt, StatementSlot] = field(default_factory=dict)
    inside: dict[Stmt, list[Sequence]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registers = allocated(self.body)
        self.count = 0
        self.root = self.sequence(None, self.body, 0, True)

    def sequence(
        self,
        owner: Stmt | None,
        body: Stmt,
        depth: int,
        always: bool,
    ) -> Sequence:
        parts = body.stmts if isinstance(body, Block) else (body,)
        self.count += 1
        made = Sequence(owner, parts, depth, always, self.count)
        for number, part in enumerate(parts):
            self.home[part] = StatementSlot(made, number)
            if self.together(part):
                deeper = depth + isinstance(part, For | While)
                sure = isinstance(part, Alloc) or bool(
                    isinstance(part, For) and part.trips
                )
                self.inside[part] = [
                    self.sequence(part, inner, deeper, sure) for inner in below(part)
                ]
        return made

    def together(self, s: Stmt) -> bool:
        """Whether each statement in `s` is reached by all threads of a block, or by none."""
        if isinstance(s, For):
            return not varies(s.extent, self.registers, self.cluster)
        if isinstance(s, If | While):
            return not varies(s.condition, self.registers, self.cluster)
        return isinstance(s, Alloc)

    def path(self, place: StatementPlace) -> Path:
        """The statements of sequences that a place is in, outermost first."""
        chain = (*place.above, place.stmt)
        steps = [self.home[s] for s in chain if s in self.home]
        if isinstance(place.stmt, While) and place.stmt in self.inside:
            steps.append(StatementSlot(self.inside[place.stmt][0], -1))
        return steps

    def order(self, place: StatementPlace) -> list[tuple[int, int]]:
        """What earlier places have less of."""
        return [(step.sequence.rank, step.number) for step in self.path(place)]

    def after(
        self,
        path: Path,
        level: int,
        stays: bool = False,
    ) -> Way:
        """The gaps after what a path leads to, in the sequences from a level on.

        stays: in that of the level, another iteration follows. A while loop is left behind its
        condition, past its body.
        """
        found: list[Gap] = []
        for n, step in reversed([*enumerate(path)][level:]):
            if step.number < 0 and not (stays and n == level):
                continue
            end = len(step.sequence.parts)
            found += self.behind(step.sequence, step.number, end)
        return tuple(found)

    def before(
        self,
        path: Path,
        level: int,
        skipped: Mapping[Sequence, int],
    ) -> Way:
        """The gaps before the end of a path, in the sequences from a level on.

        skipped: iterations of the loops that own sequences before that of the path.
        """
        found: list[Gap] = []
        for step in path[level:]:
            found += self.whole(step.sequence) * skipped.get(step.sequence, 0)
            found += self.behind(step.sequence, -1, step.number)
        return tuple(found)

    def between(
        self,
        one: StatementSlot,
        two: StatementSlot,
    ) -> Way:
        """The gaps between two statements of a sequence."""
        return tuple(self.behind(one.sequence, one.number, two.number))

    def whole(self, sequence: Sequence) -> Way:
        """All gaps of a sequence."""
        return tuple(self.behind(sequence, -1, len(sequence.parts)))

    def behind(
        self,
        sequence: Sequence,
        first: int,
        last: int,
    ) -> Iterator[Gap]:
        """The gaps from after one statement to before another, including those inside statements in
        between."""
        for number in range(first + 1, last + 1):
            yield Gap(sequence, number)
            if number == last:
                return
            for inner in self.inside.get(sequence.parts[number], ()):
                if inner.always:
                    yield from self.whole(inner)

    def with_meetings(self, found: Meetings) -> Stmt:
        """The body with what belongs into its gaps."""
        return self.rebuilt(self.root, found)

    def rebuilt(self, sequence: Sequence, found: Meetings) -> Stmt:
        made: list[Stmt] = []
        for number, part in enumerate((*sequence.parts, None)):
            gap = Gap(sequence, number)
            made += map(Commit, found.commits.get(gap, ()))
            made += starmap(Wait, found.waits.get(gap, {}).items())
            if found.scopes.get(gap):
                made.append(Barrier(found.scopes[gap]))
            if part is not None:
                made.append(self.part(part, found))
        return block(*made)

    def part(self, s: Stmt, found: Meetings) -> Stmt:
        if s not in self.inside:
            return s
        new = dict(zip(below(s), self.inside[s], strict=True))
        made: Stmt = s.map(
            lambda child: self.rebuilt(new[child], found) if child in new else child
        )
        if isinstance(made, For) and made.kind not in IN_ORDER and _meets(made):
            return made.replace(kind="serial")
        return made


def _meets(s: Stmt) -> bool:
    return isinstance(s, Barrier) or any(map(_meets, below(s)))
