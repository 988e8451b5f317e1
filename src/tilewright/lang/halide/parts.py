"""The regions of a Func that the iterations of a loop need: what `compute_at` computes at a time.

For Funcs that are computed separately, before the loops of their readers run.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tilewright.base.errors import ScheduleError
from tilewright.expr.nodes import fixed
from tilewright.lang.halide.levels import Level, Scheduled
from tilewright.lang.halide.plan import Fuse, PipelinePlan, Rename, Split, TailStrategy
from tilewright.lang.halide.syntax.pipeline import Box, Pipeline, pipeline

Interval = tuple[int, int]  # the first and the last
_SHIFTED = (TailStrategy.Auto, TailStrategy.ShiftInwards)


def check_place(f: Scheduled, whole: Pipeline) -> None:
    """Raise ScheduleError unless all that reads `f` is inside the loop it is computed at."""
    level = f.compute
    if level is None or level.func is None:
        return
    around = level.func
    loops = around.plan(level.stage or 0).vars
    problem = None
    if level.var not in loops or level.stage not in (None, 0):
        problem = "there is no such loop of its pure definition"
    elif not _is_read_inside(f, around, whole):
        problem = f"it is read outside of {around.name()} too, or not in it"
    if problem is not None:
        name = around.name()
        legal = ["compute_root()"]
        for var in around.plan(0).vars:
            legal.append(f"compute_at({name}, {var})")
        raise ScheduleError(
            f"compute_at({name}, {level.var}): {problem}",
            where=f"{f.name()}, {level.line}",
            hint=f"legal places: {', '.join(legal)}",
        )


def _is_read_inside(f: Scheduled, around: Scheduled, whole: Pipeline) -> bool:
    """Whether `around` reads `f`, directly or through what is computed in it, and nothing else."""
    others = (g for g in whole.funcs if g is not f)
    readers = [g for g in others if g.reads(f.symbols)]
    if not readers:
        return False
    return all(_is_inside(g, around, whole) for g in readers)


def _is_inside(g: object, around: Scheduled, whole: Pipeline) -> bool:
    if g is around:
        return True
    if not isinstance(g, Scheduled) or g in whole.outputs:
        return False
    level = g.compute
    if level is None:
        return _is_read_inside(g, around, whole)
    if level.func is None:
        return False
    return _is_inside(level.func, around, whole)


def parts(f: Scheduled, whole: Pipeline) -> list[Box]:
    """The regions that `f` is computed for, each once, in the order of the loops."""
    level = f.compute
    if level is None or level.func is None:
        return [whole.boxes[f]]
    found: dict[Box, None] = {}
    for region in parts(level.func, whole):
        for box in _iterations(level, region):
            needed = pipeline([level.func], [list(reversed(box))])
            if f in needed.boxes:
                found[needed.boxes[f]] = None
    return list(found)


def _iterations(level: Level, region: Box) -> Iterator[Box]:
    """What a Func computes of a region in each iteration of one of its loops, and those outside."""
    assert level.func is not None and level.var is not None
    name = level.func.name()
    plan = level.func.plan(0)
    args = [v.name() for v in reversed(level.func.args)]
    lows = [fixed(low, name) for low, _ in region]
    extents = [fixed(extent, name) for _, extent in region]

    sizes = dict(zip(args, extents, strict=True))
    before = _extents(plan, sizes)
    depth = plan.vars.index(level.var)
    inside = {v: (0, sizes[v] - 1) for v in plan.vars[:depth]}
    outside = plan.vars[depth:][::-1]
    for indices in product(*(range(sizes[v]) for v in outside)):
        at = dict(inside)
        for v, i in zip(outside, indices, strict=True):
            at[v] = i, i
        ranges = _undone(plan, before, at)
        if all(first <= last for first, last in ranges.values()):
            box = []
            for v, low in zip(args, lows, strict=True):
                first, last = ranges[v]
                box.append((low + first, last - first + 1))
            yield tuple(box)


def _extents(plan: PipelinePlan, sizes: dict[str, int]) -> list[int]:
    """Goes through the directives: `sizes` become those of the loops; of each directive the size
    that undoing it needs."""
    needed = []
    for directive, _ in plan.directives:
        kept = 0
        match directive:
            case Split(old, outer, inner, factor):
                kept = sizes.pop(old)
                sizes[outer], sizes[inner] = -(-kept // factor), factor
            case Fuse(inner, outer, fused):
                kept = sizes.pop(inner)
                sizes[fused] = sizes.pop(outer) * kept
            case Rename(old, new):
                sizes[new] = sizes.pop(old)
        needed.append(kept)
    return needed


def _undone(
    plan: PipelinePlan, before: list[int], at: dict[str, Interval]
) -> dict[str, Interval]:
    """Intervals of the loops as those of the coordinates, counted from the first one."""
    directives = [directive for directive, _ in plan.directives]
    pairs = list(zip(directives, before, strict=True))
    for directive, size in reversed(pairs):
        match directive:
            case Split(old, outer, inner, factor, tail):
                tiles = at.pop(outer)
                within = at.pop(inner)
                shifts = tail in _SHIFTED and size > factor
                last = size - factor if shifts else size
                first, end = (min(tile * factor, last) for tile in tiles)
                at[old] = first + within[0], min(end + within[1], size - 1)
            case Fuse(inner, outer, fused):
                first, end = at.pop(fused)
                rows = first // size, end // size
                at[outer] = rows
                at[inner] = 0, size - 1
                if rows[0] == rows[1]:
                    at[inner] = first % size, end % size
            case Rename(old, new):
                at[old] = at.pop(new)
    return at
