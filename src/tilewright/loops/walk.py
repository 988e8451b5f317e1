"""The statements of a program in order, each with those around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from itertools import chain
from typing import Any, Final, TypeVar

from tilewright.base.dataclass import dataclass
from tilewright.expr.nodes import Buffer, Const, Load, Overlap, Var
from tilewright.ir.node import Node, keep_fact, postorder
from tilewright.loops.launch import (
    AtomicUpdate,
    Barrier,
    CombineThreads,
    Commit,
    Wait,
)
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
    While,
)

_T = TypeVar("_T")


# Not frozen, since many are made: setting the fields of a frozen one takes three times as long.
@dataclass(eq=False, slots=True)
class StatementPlace:
    """A statement and the statements around it, outermost first."""

    stmt: Stmt
    above: tuple[Stmt, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around the statement, outermost first."""
        return tuple(s for s in self.above if isinstance(s, For))


_BELOW: Mapping[type[Stmt], Callable[[Any], tuple[Stmt, ...]]] = {
    For: lambda s: (s.body,),
    Block: lambda s: s.stmts,
    If: lambda s: (s.then,) if s.otherwise is None else (s.then, s.otherwise),
    While: lambda s: (s.body,),
    Alloc: lambda s: (s.body,),
    Unit: lambda s: (s.body,),
    Store: lambda s: (),
    Update: lambda s: (),
    AtomicUpdate: lambda s: (),
    Barrier: lambda s: (),
    Commit: lambda s: (),
    Wait: lambda s: (),
    CombineThreads: lambda s: (),
}


def below(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements directly inside `stmt`, in order."""
    return _BELOW[type(stmt)](stmt)


def walk(
    root: Stmt, above: tuple[Stmt, ...] = (), touching: Set[Buffer] | None = None
) -> Iterator[StatementPlace]:
    """Every statement of `root` in program order, itself first, with its ancestors.

    touching: only those that read or write one of these buffers, or have such a one inside.
    """
    stack = [(root, above)]
    while stack:
        stmt, path = stack.pop()
        if touching is not None and not _touches(stmt, touching):
            continue
        yield StatementPlace(stmt, path)
        inner = below(stmt)
        if inner:
            path = (*path, stmt)
            stack.extend((s, path) for s in reversed(inner))


def _touches(stmt: Stmt, buffers: Set[Buffer]) -> bool:
    found = summary(stmt)
    return not (buffers.isdisjoint(found.reads) and buffers.isdisjoint(found.writes))


@dataclass(eq=False, slots=True)
class Summary:
    """Facts about a statement and its substatements, in program order.

    loops, units: those inside, excluding the statement itself, which holds this. buffers: that it
    allocates. joint: whether some Update changes several buffers. reads, writes: the buffers that
    it reads and changes; an update also reads its targets. tiles: variables that starts of
    overlapping tiles depend on.
    """

    loops: tuple[For, ...] = ()
    units: tuple[Unit, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    joint: bool = False
    reads: frozenset[Buffer] = frozenset()
    writes: frozenset[Buffer] = frozenset()
    tiles: frozenset[Var] = frozenset()


def summary(root: Stmt) -> Summary:
    """A summary of a statement; cached in it, since statements are immutable.

    A rewrite makes new statements only around its changes, so little is computed again.
    """
    known: Summary | None = getattr(root, "fact", None)
    if known is not None:
        return known
    waiting = [root]
    while waiting:
        stmt = waiting[-1]
        unknown = [p for p in below(stmt) if getattr(p, "fact", None) is None]
        if unknown:
            waiting += unknown
        else:
            keep_fact(waiting.pop(), _summary(stmt))
    found: Summary = root.fact  # type: ignore[attr-defined]
    return found


def _summary(s: Stmt) -> Summary:
    """The summary of a statement, from those of its parts."""
    parts = below(s)
    facts: list[Summary] = [p.fact for p in parts]  # type: ignore[attr-defined]
    reads, writes, tiles = _own(s)
    buffers = (s.buffer,) if isinstance(s, Alloc) else ()
    joint = isinstance(s, Update) and len(s.buffers) > 1
    if len(facts) == 1:
        ((inner,), (part,)) = facts, parts
        loops = inner.loops
        units = inner.units
        if isinstance(part, For):
            loops = (part, *loops)
        elif isinstance(part, Unit):
            units = (part, *units)
        return Summary(
            loops=loops,
            units=units,
            buffers=buffers + inner.buffers if buffers else inner.buffers,
            joint=inner.joint,
            reads=_joined(inner.reads, reads),
            writes=_joined(inner.writes, writes),
            tiles=_joined(inner.tiles, tiles),
        )
    return Summary(
        loops=tuple(chain.from_iterable(map(loops_of, parts))),
        units=tuple(chain.from_iterable(map(units_of, parts))),
        buffers=(*buffers, *chain.from_iterable([i.buffers for i in facts])),
        joint=joint or any(i.joint for i in facts),
        reads=_joined(reads, *[i.reads for i in facts]),
        writes=_joined(writes, *[i.writes for i in facts]),
        tiles=_joined(tiles, *[i.tiles for i in facts]),
    )


_WITHOUT_READS: Final = (Stmt, Var, Const)


def _own(
    s: Stmt,
) -> tuple[frozenset[Buffer], frozenset[Buffer], frozenset[Var]]:
    """`reads`, `writes` and `tiles` of a statement without those inside it."""
    reads: frozenset[Buffer] = frozenset()
    tiles: frozenset[Var] = frozenset()
    for child in s.children():
        if not isinstance(child, _WITHOUT_READS):
            read, tiled = _of_expression(child)
            reads = _joined(reads, read)
            tiles = _joined(tiles, tiled)
    if isinstance(s, Store):
        return reads, frozenset((s.buffer,)), tiles
    if isinstance(s, Update | CombineThreads):
        changed = frozenset(s.buffers)
        return _joined(reads, changed), changed, tiles
    return reads, frozenset(), tiles


def _joined(first: frozenset[_T], *others: frozenset[_T]) -> frozenset[_T]:
    """The union; if one of the sets equals it, that set."""
    found = first
    for s in others:
        if not s or s is found or s <= found:
            continue
        found = s if found <= s else found | s
    return found


@lru_cache(maxsize=1 << 12)
def _of_expression(e: Node) -> tuple[frozenset[Buffer], frozenset[Var]]:
    """The buffers that an expression or operand reads, and the variables in starts of tiles."""
    reads: set[Buffer] = set()
    tiles: set[Var] = set()
    for node in postorder(e):
        if isinstance(node, Load):
            reads.add(node.buffer)
        elif isinstance(node, Overlap):
            tiles.update(n for n in postorder(node) if isinstance(n, Var))
    return frozenset(reads), frozenset(tiles)


def loops_of(root: Stmt) -> tuple[For, ...]:
    """The loops of `root` in program order."""
    loops = summary(root).loops
    return (root, *loops) if isinstance(root, For) else loops


def units_of(root: Stmt) -> tuple[Unit, ...]:
    """The Units of `root` in program order."""
    units = summary(root).units
    return (root, *units) if isinstance(root, Unit) else units


def names_of(kernel: Kernel) -> set[str]:
    """Every name of a loop or a buffer in use."""
    found = {b.name for b in (*kernel.params, *summary(kernel.body).buffers)}
    return found.union(f.var.name for f in loops_of(kernel.body))


def place_of(root: Stmt, loop: For) -> StatementPlace:
    """The first place of a loop of `root`."""
    summary(root)  # each statement below it then has its own
    above: list[Stmt] = []
    at = root
    while at is not loop:
        above.append(at)
        parts = below(at)
        if len(parts) == 1:
            (at,) = parts
        else:
            at = next(s for s in parts if s is loop or loop in s.fact.loops)  # type: ignore[attr-defined]
    return StatementPlace(at, tuple(above))


def place_of_alloc(root: Stmt, buffer: Buffer) -> StatementPlace:
    """The first place in `root` that allocates a buffer."""
    above: list[Stmt] = []
    at = root
    while not (isinstance(at, Alloc) and at.buffer is buffer):
        above.append(at)
        at = next(s for s in below(at) if buffer in summary(s).buffers)
    return StatementPlace(at, tuple(above))
