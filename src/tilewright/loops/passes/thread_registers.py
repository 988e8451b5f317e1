"""Register arrays of a block as registers of each of its threads.

A buffer in "register" that is allocated around phases outlives each of them: accumulators that are
cleared in one, updated in many, and stored in the last. No thread sees the registers of another
one. So that each access has a thread's own element, every index of such a dimension is, with t the
number of the thread on one axis of n threads, the same axis and the same f in all accesses,

    f*n*outer + f*t + inner,    0 <= inner < f

and the thread's own array has `f*outer + inner` there: a block of f elements per thread where
`outer` is 0, elements n apart where f is 1. `inner` may be shared by the threads of another axis in
the same way, so that a warp has a block of rows, and each of its threads some of these. An axis
that is in no dimension has copies: all threads on it fill them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import Env, bounds
from tilewright.expr.nodes import (
    Buffer,
    Expr,
    Extent,
    Load,
)
from tilewright.ir.node import Node, postorder, transform
from tilewright.loops.analysis.access import (
    Access,
    Index,
    accesses,
)
from tilewright.loops.analysis.terms import variables
from tilewright.loops.intrinsic import ThreadShare
from tilewright.loops.launch import AXIS, CombineThreads
from tilewright.loops.nodes import (
    Operand,
    Stmt,
    Store,
    Update,
)

# The element that an index of a buffer becomes, and of which buffer.
Move = Callable[[Index], tuple[Buffer, Index]]


def refusal(
    message: str,
    where: str,
    hint: str,
) -> ScheduleError:
    """The error of a kernel that is not a program of the threads of a grid."""
    return ScheduleError(message, code="TW-LAUNCH", where=where, hint=hint)


def own_elements(
    buffer: Buffer,
    body: Stmt,
    threads: Mapping[str, int],
    env: Env,
) -> tuple[Buffer, frozenset[str], Move]:
    """The registers of one thread, the axes that have a dimension there, and the new index.

    body: what uses the buffer. threads: by axis. env: the bounds of all variables.
    Raises ScheduleError (TW-LAUNCH) where an access is not of the thread's own elements.
    """
    if buffer.scope != "warp":
        _check_units(buffer, body)
    found = [a for a in accesses(body, env) if a.buffer is buffer]
    shares = [_shares(found, axis, threads) for axis in range(len(buffer.extents))]
    numbers = {AXIS[axis] for axis in threads}
    for a in found:
        for i, share in zip(a.index, shares, strict=True):
            if own_index(affine(i), share, numbers, env) is None:
                raise _not_own(a, share)
    extents: list[Extent] = []
    for extent, share in zip(buffer.extents, shares, strict=True):
        extents.append(own_extent(extent, share))
    array = Buffer(buffer.name, tuple(extents), buffer.dtype, buffer.scope)

    def move(index: Index) -> tuple[Buffer, Index]:
        own = (
            own_index(affine(i), s, numbers, env)
            for i, s in zip(index, shares, strict=True)
        )
        return array, tuple(i for i in own if i is not None)

    axes = frozenset(s.axis for share in shares for s in share)
    return array, axes, move


def _check_units(
    buffer: Buffer,
    body: Stmt,
) -> None:
    """Raise ScheduleError where a tensor intrinsic has an operand whose strides would change."""
    for node in postorder(body):
        if isinstance(node, Operand) and node.buffer is buffer:
            what = (
                "an operand of a tensor intrinsic is not in registers of single threads"
            )
            raise refusal(what, f"buffer {buffer.name}", "put it in shared memory")


def own_extent(
    extent: Extent,
    shares: Sequence[ThreadShare],
) -> Extent:
    """How many of the elements along a dimension one thread has."""
    for share in shares:
        assert isinstance(extent, int)
        each = own_extent(share.run, shares[1:])
        assert isinstance(each, int)
        return -(-extent // (share.run * share.threads)) * each
    return extent


def _shares(
    found: Collection[Access],
    dimension: int,
    threads: Mapping[str, int],
) -> tuple[ThreadShare, ...]:
    """How the first access with threads in this dimension shares it out, the longest runs first."""
    for a in found:
        form = affine(a.index[dimension])
        runs = {axis: form.coefficient(AXIS[axis]) for axis in threads}
        shares = [ThreadShare(a, run, threads[a]) for a, run in runs.items() if run > 0]
        if shares:
            return tuple(sorted(shares, key=lambda s: -s.run))
    return ()


def own_index(
    form: Affine,
    shares: Sequence[ThreadShare],
    numbers: Collection[Expr],
    env: Env,
) -> Expr | None:
    """The index in a thread's registers; None if the element may be in another thread's
    registers.

    shares: the longest runs first; each run holds whole rounds of the next share. numbers: of the
    thread, on all axes.
    """
    if not shares:
        return to_expr(form) if _used(form).isdisjoint(numbers) else None
    share, *others = shares
    number = AXIS[share.axis]
    if form.coefficient(number) != share.run:
        return None
    turn = share.run * share.threads
    rest = [(atom, c) for atom, c in form.terms if atom is not number]
    outer = Affine(
        tuple((a, c // turn) for a, c in rest if c % turn == 0), form.const // turn
    )
    inner = Affine(tuple(t for t in rest if t[1] % turn), form.const % turn)
    low, high = bounds(to_expr(inner), env)
    if low is None or high is None or low < 0 or high >= share.run:
        return None
    if not _used(outer).isdisjoint(numbers):
        return None
    if any(share.run % (s.run * s.threads) for s in others):
        return None
    own = own_index(inner, others, numbers, env)
    each = own_extent(share.run, others)
    assert isinstance(each, int)
    return None if own is None else to_expr(outer.scaled(each) + affine(own))


def _used(form: Affine) -> set[Expr]:
    return {v for atom, _ in form.terms for v in variables(atom)}


def _not_own(
    a: Access,
    shares: Sequence[ThreadShare],
) -> ScheduleError:
    what = f"{a} may be in the registers of another thread"
    for share in shares[:1]:
        what += (
            f", where others have {share.run} elements of each thread of {share.axis}"
        )
    hint = "put the buffer in shared memory, or index it by the thread's own number"
    return refusal(what, f"buffer {a.buffer.name}", hint)


def moved(
    root: Stmt,
    moves: Mapping[Buffer, Move],
) -> Stmt:
    """`root` with elements of some buffers replaced, possibly by elements of other buffers."""

    def place(
        buffer: Buffer,
        index: Index,
    ) -> tuple[Buffer, Index]:
        return moves[buffer](index) if buffer in moves else (buffer, index)

    def rewritten(node: Node) -> Any:
        if isinstance(node, Load) and node.buffer in moves:
            return Load(*place(node.buffer, node.index))
        if isinstance(node, Store) and node.buffer in moves:
            return Store(*place(node.buffer, node.index), node.value)
        if isinstance(node, Operand) and node.buffer in moves:
            buffer, index = place(node.buffer, node.index)
            return Operand(buffer, index, node.strides)
        if isinstance(node, Update | CombineThreads) and not moves.keys().isdisjoint(
            node.buffers
        ):
            buffers, indices = zip(*(place(b, i) for b, i in node.targets), strict=True)
            return node.replace(buffers=buffers, indices=indices)
        return node

    made: Stmt = transform(root, rewritten) if moves else root
    return made
