"""Boxes of a tensor that one thread copies into shared memory by one instruction.

    for i in 128: for j in 64: t[s, i, j] = x[r + i, c + j]     ->     for i in 128 bulk: ...

A loop that is noted `BULK` is the outermost one of such a copy, where the machine has them. A unit
beside the threads does it, and tells all of them when the bytes are there: a `Wait` for these needs
no barrier behind it. The rows of a tile are 128 bytes, in swizzled order. Outside of the tensor a
box has zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Final, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine
from tilewright.expr.fold import fold
from tilewright.expr.nodes import And, Buffer, Expr, Le, Load, Lt, Select, Var
from tilewright.expr.swizzle import BLOCK, PATTERN
from tilewright.loops.analysis.terms import variables
from tilewright.loops.launch import Barrier, Commit, Wait
from tilewright.loops.nodes import (
    BULK,
    GPU_AXES,
    MULTICAST,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    While,
    block,
)
from tilewright.loops.operands import position
from tilewright.loops.passes.async_copies import copied, with_copies
from tilewright.loops.passes.copy_groups import MOST
from tilewright.loops.passes.in_flight import BOXES
from tilewright.loops.passes.thread_registers import refusal
from tilewright.loops.walk import StatementPlace, below, loops_of, walk

SIDE: Final = 256  # the most elements of a box along a dimension
RANK: Final = 5
THREADS: Final = tuple(axis for axis in GPU_AXES if axis.startswith("threadIdx"))
STEP: Final = 16  # bytes: what the distance of a tensor's rows is a multiple of
BOX_KINDS: Final = (BULK, MULTICAST)  # the kinds of loops that copy boxes


class TensorBox(NamedTuple):
    """Which tensor a box is of, and its sides, one for each dimension."""

    tensor: Buffer
    sides: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.sides) * self.tensor.dtype.itemsize


class BoxCopy(NamedTuple):
    """A copy: where the box begins in its tensor, and where in shared memory."""

    box: TensorBox
    start: tuple[Affine, ...]
    target: Buffer
    place: Affine


def with_bulk_copies(kernel: Kernel, body: Stmt) -> Stmt:
    """The body with the copies that notes ask for. Raises ScheduleError (TW-LAUNCH) for a loop that
    is no such copy."""
    noted = {name for name, notes in kernel.notes.items() if BULK in notes}
    for at in walk(body) if noted else ():
        if isinstance(at.stmt, For) and at.stmt.var.name in noted:
            _check_alone(at)
    return with_copies(kernel, body, BULK, bulk_refusal, "copy of a box")


def _check_alone(at: StatementPlace) -> None:
    """Raise ScheduleError (TW-LAUNCH) where several threads would copy boxes."""
    assert isinstance(at.stmt, For)
    for g in at.loops:
        if g.kind in THREADS:
            what = f"each thread of loop {g.var.name} would copy one"
            hint = "copy it outside of the loops over threads"
            where = f"loop {at.stmt.var.name}"
            raise refusal(f"no copy of a box: {what}", where, hint)


def bulk_refusal(f: For) -> str:
    """Why a nest cannot be a copy of a box; empty where it can."""
    nest = _nest(f)
    if nest is None:
        return "its body is not one store in loops of constant extents"
    loops, s = nest
    source = copied(s.value)
    if source is None:
        return f"{s.value!r} is not a load, or zero in its place"
    scopes = (source.buffer.scope, s.buffer.scope)
    if scopes != ("global", "shared"):
        return f"it copies from {scopes[0]} to {scopes[1]} memory"
    return (
        _why_no_box(loops, source)
        or _why_no_tile(loops, s, source)
        or _why_not_inside(s.value, source)
    )


def box_copy(f: For) -> BoxCopy:
    """The copy that a nest is, which `bulk_refusal` does not refuse."""
    nest = _nest(f)
    assert nest is not None
    loops, s = nest
    source = copied(s.value)
    assert source is not None
    names = [g.var for g in loops]
    start = tuple(_without(affine(i), names) for i in source.index)
    box = TensorBox(source.buffer, _sides(loops, source))
    return BoxCopy(box, start, s.buffer, _without(position(s.buffer, s.index), names))


def boxes_of(body: Stmt) -> tuple[TensorBox, ...]:
    """The boxes that a program of a thread copies, each once."""
    copies = (box_copy(f) for f in loops_of(body) if f.kind in BOX_KINDS)
    return tuple(dict.fromkeys(c.box for c in copies))


def _nest(f: For) -> tuple[list[For], Store] | None:
    """The loops of a perfect nest, and its store."""
    loops: list[For] = []
    s: Stmt = f
    while isinstance(s, For):
        if s.kind not in ("serial", *BOX_KINDS) or s.trips is None:
            return None
        loops.append(s)
        s = s.body
    return (loops, s) if isinstance(s, Store) else None


def _without(form: Affine, names: Sequence[Var]) -> Affine:
    return Affine(tuple((a, c) for a, c in form.terms if a not in names), form.const)


def _along(index: Expr, loops: Sequence[For]) -> list[For] | None:
    """The loops that an index goes along, element by element; None if it does otherwise."""
    names = [g.var for g in loops]
    found = []
    for atom, c in affine(index).terms:
        if atom in names and c == 1:
            found.append(loops[names.index(atom)])
        elif any(v in names for v in variables(atom)):
            return None
    return found


def _sides(loops: Sequence[For], source: Load) -> tuple[int, ...]:
    along = (_along(i, loops) or [] for i in source.index)
    return tuple(prod(g.trips or 1 for g in some) for some in along)


def _why_no_box(loops: Sequence[For], source: Load) -> str:
    x = source.buffer
    along = [_along(i, loops) for i in source.index]
    if not x.static or not 1 <= len(x.shape) <= RANK:
        return f"{x.name} has not up to {RANK} constant extents"
    if any(some is None or len(some) > 1 for some in along):
        return "its loops do not go along a dimension each"
    if [g for some in along for g in some or ()] != list(loops):
        return "its loops are not in the order of the dimensions"
    if max(_sides(loops, source)) > SIDE:
        return f"a side has more than {SIDE} elements"
    if any(step * x.dtype.itemsize % STEP for step in x.strides[:-1]):
        return f"rows of {x.name} are not multiples of {STEP} bytes"
    return ""


def _why_no_tile(loops: Sequence[For], s: Store, source: Load) -> str:
    t, sides = s.buffer, _sides(loops, source)
    if t.dtype is not source.dtype or t.swizzle != BLOCK:
        return f"{t.name} is not swizzled in rows of {BLOCK} bytes"
    if sides[-1] * t.dtype.itemsize != BLOCK:
        return f"rows of the box are not {BLOCK} bytes"
    form, step = position(t, s.index), 1
    for g in reversed(loops):
        if form.coefficient(g.var) != step:
            return f"{t.name} does not have the order of the box"
        step *= g.trips or 1
    rest = _without(form, [g.var for g in loops])
    if any(v in variables(a) for a, _ in rest.terms for v in [g.var for g in loops]):
        return f"{t.name} does not have the order of the box"
    pattern = PATTERN // t.dtype.itemsize
    if any(c % pattern for c in (rest.const, *(c for _, c in rest.terms))):
        return f"it does not begin where the order of {t.name}'s rows does"
    return ""


def _why_not_inside(value: Expr, source: Load) -> str:
    """Whether elements are zero where, and only where, they are outside of the tensor."""
    if not isinstance(value, Select):
        return ""
    inside = [
        affine(i) - Affine((), n) for i, n in zip(source.index, source.buffer.shape)
    ]
    above = [Affine((), 0) - affine(i) for i in source.index]
    for part in _parts(value.condition):
        known = (
            inside if isinstance(part, Lt) else above if isinstance(part, Le) else ()
        )
        if (
            not isinstance(part, Lt | Le)
            or _counted(affine(part.lhs) - affine(part.rhs)) not in known
        ):
            return f"{part!r} does not say where the tensor ends"
    return ""


def _counted(form: Affine) -> Affine:
    """The form with terms such as 0 // 2, of the first iteration, as numbers."""
    for atom, c in form.terms:
        number = fold(atom)
        if number is not None:
            known = affine(number).scaled(c)
            form = form - Affine(((atom, c),), 0) + known
    return form


def _parts(e: Expr) -> Iterator[Expr]:
    if isinstance(e, And):
        yield from _parts(e.lhs)
        yield from _parts(e.rhs)
    else:
        yield e


# -- groups in flight


class _Groups(NamedTuple):
    """Groups that the thread, or some thread of its block, or of its cluster if blocks copy for one
    another, has not waited for."""

    own: int = 0
    block: int = 0
    most: int = 0
    in_cluster: bool = False


def groups_at_once(body: Stmt) -> int:
    """How many groups of boxes a block has at most, from the first byte until all threads, of its
    cluster if its blocks copy for one another, have come to a barrier behind their wait. Raises
    ScheduleError (TW-LAUNCH) if there is no limit."""
    in_cluster = any(f.kind == MULTICAST for f in loops_of(body))
    return _walked(body, _Groups(in_cluster=in_cluster)).most


def with_last_waits(body: Stmt) -> Stmt:
    """The program of a thread, behind which no box is on its way into the memory of its block.

    A box that nobody reads needs no wait before that. Raises as above.
    """
    if not any(f.kind in BOX_KINDS for f in loops_of(body)):
        return body
    last = Wait(BOXES, 0)
    ends = [at.stmt for at in walk(body) if isinstance(at.stmt, Commit)]
    if not any(s.of == BOXES for s in ends):
        return block(body, Commit(BOXES), last)
    left = _walked(body, _Groups())
    if left.own == 0:
        return body
    return block(body, last)


def _walked(s: Stmt, g: _Groups) -> _Groups:
    match s:
        case Commit("bulk"):
            own, block = g.own + 1, g.block + 1
            return g._replace(own=own, block=block, most=max(g.most, block))
        case Wait("bulk", pending):
            return g._replace(own=min(g.own, pending))
        case Barrier(scope):
            meets = scope == "cluster" or not g.in_cluster
            return g._replace(block=g.own) if meets else g
        case For(kind="bulk" | "multicast"):
            return g._replace(most=max(g.most, g.block + 1))  # of a group that goes on
        case If():
            ways = [_walked(inner, g) for inner in below(s)]
            return _either(*ways, *([g] if s.otherwise is None else []))
        case For() | While():
            return _in_turns(s, g)
    for inner in below(s):
        g = _walked(inner, g)
    return g


def _in_turns(s: For | While, g: _Groups) -> _Groups:
    trips = s.trips if isinstance(s, For) else None
    for _ in range(2 * MOST if trips is None else min(trips, 2 * MOST)):
        after = _walked(s.body, g)
        if trips is None:
            after = _either(g, after)
        if after == g:
            return g
        g = after
    if g.most > MOST and (trips is None or trips > 2 * MOST):
        raise ScheduleError(
            f"more than {MOST} groups of boxes are in flight",
            code="TW-LAUNCH",
            where=f"loop {s.var.name}" if isinstance(s, For) else "a while loop",
            hint="let threads use what they have copied before they copy more",
        )
    return g


def _either(*ways: _Groups) -> _Groups:
    """What there is at most behind the end of several ways."""
    return _Groups(*map(max, zip(*ways, strict=True)))
