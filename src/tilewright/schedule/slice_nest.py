"""Restricting a nest to a part of its result, as moving it into another loop requires."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.base.errors import ScheduleError
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import Buffer, Expr, Extent, Var, const, fixed
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import (
    Access,
    Env,
    accesses,
    environment,
    without,
)
from tilewright.loops.analysis.dependence import can_parallelize
from tilewright.loops.analysis.effects import allocated
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.analysis.region import Region, inside
from tilewright.loops.analysis.terms import is_zero, variables
from tilewright.loops.nodes import For, If, Kernel, Stmt
from tilewright.schedule import edit
from tilewright.schedule.legality import because, show_pair


class Slice(NamedTuple):
    """Iterations `start .. start + size - 1` of a loop; only those below `limit`, if there is."""

    start: Affine
    size: int
    limit: Extent | None

    def at(self, v: Var) -> Expr:
        """The original iteration that the slice's loop variable `v` corresponds to."""
        return to_expr(self.start + Affine(((v, 1),), 0))


def slice_nest(
    nest: Stmt,
    slices: Mapping[Var, Slice],
    env: Env,
    verb: str,
    moves: Mapping[Buffer, edit.Move] | None = None,
) -> Stmt:
    """A nest with loops over slices, under a guard where bounds leave one open.

    moves: as edit.rewrite. Raises ScheduleError, in the name of `verb`, where the iterations that
    still run need what the others keep in buffers of the nest's own.
    """
    _check_private(nest, slices, env, verb)
    values: dict[Any, Any] = {v: part.at(v) for v, part in slices.items()}
    # Bounds of the shrunk loops must be in place before indices are put in linear form.
    env = without(env, slices)
    env |= {v: (0, part.size - 1) for v, part in slices.items()}
    fors: dict[Var, Callable[[For], Stmt]] = {}
    for v, part in slices.items():
        if part.limit is None:
            guard = None
        else:
            guard = inside(values[v], part.limit, env)
        fors[v] = _shrunk(part.size, guard)
    result: Stmt = edit.rewrite(nest, env, values, moves, fors)
    return result


def restrict_to_boxes(
    kernel: Kernel,
    nest: Stmt,
    boxes: Mapping[Buffer, Region],
    verb: str,
    updates: bool = False,
    moves: Mapping[Buffer, edit.Move] | None = None,
) -> tuple[Stmt, dict[Var, Expr]]:
    """A nest that runs only the iterations that access `boxes`, and its substitution of loop
    variables.

    In each dimension of a buffer that its box does not span, one loop of the nest is the index: it
    runs over the box instead, guarded if the box may exceed the loop's range. updates:
    iterations of that loop may be steps of one commutative reduction. moves: as edit.rewrite.
    Raises ScheduleError, in the name of `verb`, if a dimension has no such loop.
    """
    env = environment(kernel.body)
    slices: dict[Var, Slice] = {}
    for a in accesses(nest):
        box = boxes.get(a.buffer)
        if box is None:
            continue
        for d in _partial(a.buffer, box):
            f = _part_loop(a, d, box, verb)
            if f is None:
                continue
            offset = affine(a.index[d]).const
            start = affine(box.base[d]) - Affine((), offset)
            if f.var in slices:
                _check_same(a, d, slices[f.var].start - start, verb)
                continue
            _check_separate(kernel, a.buffer, f, verb, updates)
            size = fixed(box.shape[d], f"buffer {a.buffer.name}")
            slices[f.var] = Slice(start, size, f.count)
    moved = slice_nest(nest, slices, env, verb, moves)
    return moved, {v: part.at(v) for v, part in slices.items()}


def _partial(buffer: Buffer, box: Region) -> list[int]:
    """The dimensions that the box does not fill."""
    partial = []
    for d, extent in enumerate(buffer.extents):
        is_whole = is_zero(box.base[d]) and box.shape[d] == extent
        if not is_whole:
            partial.append(d)
    return partial


def _part_loop(
    a: Access,
    d: int,
    box: Region,
    verb: str,
) -> For | None:
    """The loop that is the index of `a` in dimension `d`; None where that always is in the box."""
    offset = affine(a.index[d]) - affine(box.base[d])
    size = box.shape[d]
    if offset.is_const and isinstance(size, int) and 0 <= offset.const < size:
        return None
    f = indexing_loop(a, d)
    if (
        f is not None
        and len(affine(a.index[d]).terms) == 1
        and _stays_whole(a, d, f, box)
    ):
        return f
    raise ScheduleError(
        f"{verb}: dimension {d} of {a} is not one loop, so it cannot be restricted to a part",
        where=f"buffer {a.buffer.name}",
        hint="place it at a loop that needs the whole dimension",
    )


def _stays_whole(
    a: Access,
    d: int,
    f: For,
    box: Region,
) -> bool:
    """Whether the other dimensions that have the loop are wholly in the box, wherever it runs."""
    others = (e for e in _partial(a.buffer, box) if e != d)
    return not any(f.var in variables(a.index[e]) for e in others)


def indexing_loop(a: Access, d: int) -> For | None:
    """The loop whose iterations are the index of `a` in dimension `d`, up to an offset from
    outside.

    Formally: the index is v + c, where v is the loop's variable, and no loop around `a` binds a
    variable of c. None if there is no such loop. The loop may occur in other dimensions too.
    """
    form = affine(a.index[d])
    own: dict[Expr, For] = {f.var: f for f in a.loops}
    atoms = [atom for atom, _ in form.terms if not variables(atom).isdisjoint(own)]
    if len(atoms) != 1:
        return None
    (atom,) = atoms
    if form.coefficient(atom) != 1:
        return None
    return own.get(atom)


def _check_same(
    a: Access,
    d: int,
    difference: Affine,
    verb: str,
) -> None:
    if difference.terms or difference.const:
        raise ScheduleError(
            f"{verb}: dimension {d} of {a} needs another part of the loop than an access before it",
            where=f"buffer {a.buffer.name}",
            hint="place it at a loop that needs the whole dimension",
        )


def _check_separate(
    kernel: Kernel, buffer: Buffer, f: For, verb: str, updates: bool
) -> None:
    """Iterations of a restricted loop run separately: none uses what another one made."""
    verdict = can_parallelize(kernel, f, None, updates=updates)
    if not verdict:
        raise ScheduleError(
            f"{verb}: loop {f.var.name} cannot be restricted to a part, since its iterations "
            f"depend on one another: {because(verdict)}",
            where=f"buffer {buffer.name}",
            hint="place it at a loop that needs the whole dimension",
        )


def _check_private(
    nest: Stmt, slices: Mapping[Var, Slice], env: Env, verb: str
) -> None:
    """What the nest keeps in its own buffers is computed in the iterations that still run.

    Formally, for a buffer allocated in the nest: where iteration v of a sliced loop writes an
    element that is read outside that loop, this is in an iteration w of another sliced loop,
    and whenever they conflict, v and w are the same iteration of their slices. Raises
    ScheduleError, in the name of `verb`, for an element that may lack its value.
    """
    private = allocated(nest)
    found = [a for a in accesses(nest, env) if a.buffer in private]
    for x in (a for a in found if a.writes):
        for y in (a for a in found if a.buffer is x.buffer and not a.writes):
            for f in x.loops:
                if (
                    f.var in slices
                    and f not in y.loops
                    and not _in_step(x, y, f, slices, env)
                ):
                    raise ScheduleError(
                        f"{verb}: loop {f.var.name} cannot be restricted to a part, since the rest "
                        f"of the nest needs all of it: one {show_pair(x, y)}",
                        where=f"buffer {x.buffer.name}",
                        hint="do it before the loops of the nest are merged, or leave it whole",
                    )


def _in_step(
    x: Access, y: Access, f: For, slices: Mapping[Var, Slice], env: Env
) -> bool:
    """Whether `y` reads what iteration v of `f` writes in iteration v of a loop's slice only."""
    mine = slices[f.var]
    for g in y.loops:
        other = slices.get(g.var)
        if other is None or other.size != mine.size:
            continue
        shift = other.start - mine.start
        if not shift.is_const:
            continue
        # Iteration v of f's slice is v of g's: both by the variable of f.
        index = tuple(substitute(i, {g.var: f.var + shift.const}) for i in y.index)
        first, last = env[f.var]
        lo, hi = env[g.var]
        if first is None or last is None or lo is None or hi is None:
            continue
        low = min(lo - shift.const, first)
        high = max(hi - shift.const, last)
        both = without(env, (f.var, g.var)) | {f.var: (low, high), g.var: (lo, hi)}
        moved = replace(y, index=index, ranges=both)
        agree = agreeing(replace(x, ranges=both), moved, (f.var,))
        if agree is None or f.var in agree:
            return True
    return False


def _shrunk(size: int, guard: Expr | None) -> Callable[[For], Stmt]:
    """The change of a loop to `size` iterations, its body under `guard` where there is one."""

    def change(f: For) -> Stmt:
        body = f.body if guard is None else If(guard, f.body, None)
        return For(f.var, const(size), f.kind, body)

    return change
