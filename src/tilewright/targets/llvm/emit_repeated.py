"""Unrolled loops that LLVM writes out, not the emitter.

    for n in 14 unroll:
      for m in 2 unroll:
        for x in 16 vector:
          T[n, m, x] add= A[n, k] * B[k, m, x]

is 28 statements that differ in constants in their addresses only. Writing and reading one of them
and having LLVM repeat it takes a third of the time for all of them, and gives the same code. The
emitter writes out what depends on a loop's variable in another way: conditions that it decides, and
vectors that several accesses share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tilewright.expr.affine import Affine
from tilewright.expr.nodes import Buffer, Call, Expr, Load, Var
from tilewright.ir.node import Node
from tilewright.loops.nodes import Block, For, Stmt, Store, Update

# How often a statement is repeated for a loop to pay, and how many nodes of expressions LLVM is
# asked to write out. LLVM 22 has no bound of its own: it writes out 81,000 instructions.
LEAST: Final = 4
MOST: Final = 2048

# How a branch that ends a loop's body is marked, and what the module then defines.
REPEATED: Final = ", !llvm.loop !1"
KEPT: Final = ", !llvm.loop !2"
DEFINITIONS: Final = """\
!1 = distinct !{!1, !3}
!2 = distinct !{!2, !4}
!3 = !{!"llvm.loop.unroll.full"}
!4 = !{!"llvm.loop.unroll.disable"}
"""

Runs = Callable[[For], str]  # how a loop is run: "unroll", "vector", or some other way
Address = Callable[[Buffer, tuple[Expr, ...]], Affine]


def may_repeat(s: For, runs: Runs, address: Address) -> bool:
    """Whether LLVM may write out an unrolled loop, with those in it.

    requires: only stores and updates are inside, in loops that are written out or one vector. The
    loops' variables occur in addresses alone, each times a number; the lanes of an access are
    neighbors, or one element; no address depends on data. Values are of few instructions: those of
    a function, such as exp, would be in another order, with more vectors on the stack.
    """
    if not _repeats(s):
        return False
    parts = [*_statements(s, runs, (), 1)]
    repeated = [times for found, _, times in parts if found is not None]
    if len(repeated) < len(parts) or not parts or max(repeated) < LEAST:
        return False
    room = MOST
    for found, loops, times in parts:
        assert found is not None
        size = _size(found, loops, runs, address)
        if size is None or (room := room - size * times) < 0:
            return False
    return True


def _repeats(s: Stmt) -> bool:
    """Whether the innermost of the first loops, quickly, may be repeated often enough."""
    times = 1
    while isinstance(s, For) and s.kind == "unroll" and s.trips:
        times *= s.trips
        s = s.body
    return isinstance(s, Block) or (isinstance(s, For) and times >= LEAST)


def _statements(
    s: Stmt, runs: Runs, loops: tuple[For, ...], times: int
) -> Iterator[tuple[Store | Update | None, tuple[For, ...], int]]:
    """The stores and updates inside, the loops around each, and how often it is repeated; None for
    what has to be written by the emitter."""
    match s:
        case Store() | Update():
            yield s, loops, times
        case Block():
            for part in s.stmts:
                yield from _statements(part, runs, loops, times)
        case For() if s.trips and any(loop.kind == "vector" for loop in loops):
            yield None, loops, times
        case For() if s.trips and s.kind == "vector" and runs(s) == "vector":
            yield from _statements(s.body, runs, (*loops, s), times)
        case For() if s.trips and s.kind == "unroll":
            yield from _statements(s.body, runs, (*loops, s), times * s.trips)
        case _:
            yield None, loops, times


def _size(
    s: Store | Update, loops: tuple[For, ...], runs: Runs, address: Address
) -> int | None:
    """The nodes of a statement; None if it calls a function, or uses a loop's variable in another
    way than it may."""
    lane = {loop.var for loop in loops if loop.kind == "vector"}
    variables = {loop.var for loop in loops}
    targets = [(s.buffer, s.index)] if isinstance(s, Store) else [*s.targets]
    waiting: list[Node] = [s.value] if isinstance(s, Store) else [*s.values]
    if not all(_is_plain(address, *target, variables, lane) for target in targets):
        return None
    size = len(targets)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        size += 1
        if isinstance(node, Load):
            if not _is_plain(address, node.buffer, node.index, variables, lane):
                return None
        elif node in variables or isinstance(node, Call):
            return None
        else:
            waiting += node.children()
    return size


def _is_plain(
    address: Address,
    buffer: Buffer,
    index: tuple[Expr, ...],
    variables: set[Var],
    lane: set[Var],
) -> bool:
    """Whether an address is a number times each of the variables, and others; 1 for lanes."""
    for atom, c in address(buffer, index).terms:
        if atom in variables:
            if atom in lane and c != 1:
                return False
        elif not isinstance(atom, Var) and _uses(atom, variables):
            return False
    return True


def _uses(e: Expr, variables: set[Var]) -> bool:
    """Whether an expression depends on data, or on one of the variables."""
    waiting: list[Node] = [e]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Load) or node in variables:
            return True
        waiting += node.children()
    return False
