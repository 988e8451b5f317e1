"""Reductions to several results at once (a maximum and its index), in vectors.

`joint`: the lanes are results side by side, so that each is reduced in its order. `joint_rows`: the
lanes are parts of one reduction that reads memory in order; they are combined at its end.
"""

from __future__ import annotations

import math

from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import Computation, Dim
from tilewright.schedule import Schedule
from tilewright.schedule.space.choices import Choices
from tilewright.schedule.space.nest import (
    VECTORS,
    existing,
    register_vectors,
)
from tilewright.schedule.space.patterns import (
    KernelPattern,
    free_dims,
    reduction_dims,
    uses,
)
from tilewright.targets.cpu.sketches.context import Context


def joint(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<computation>.vectors` in flight at a time; `<computation>.parallel`.
    """
    c, v = _parts(pattern)
    lanes = min(_lanes(c, at), v.extent)
    width = lanes * _in_flight(c, lanes, v.extent // lanes, at, choose)
    outer = [_loop(c, d) for d in free_dims(c) if d is not v]
    inner = _loop(c, v)
    if outer:
        s.reorder(*outer, inner)
    if width < v.extent:
        block, inner = s.split(inner, width, "overlap")
        outer.append(block)
    held = _accumulators(s, c, outer)
    for acc in held:
        start, *_ = s.decompose_reduction(acc, inner)  # others have one iteration
        register_vectors(s, start, lanes)
    s.reorder(*(_loop(c, d) for d in reduction_dims(c)), inner)
    register_vectors(s, inner, lanes)
    axis = next(n for n, i in enumerate(c.outputs[0].index) if uses(i, v.var))
    # An unread result, such as the maximum of an ArgMax, is not written back.
    for stored in existing(s, [f"{acc}.w{axis}" for acc in held]):
        register_vectors(s, stored, lanes)
    return _threads(s, c, outer, at, choose)


def joint_rows(
    s: Schedule, pattern: KernelPattern, at: Context, choose: Choices
) -> Schedule:
    """See the module's docstring.

    parameters: `<computation>.vectors` in flight at a time; `<computation>.parallel`.
    """
    c, v = _parts(pattern)
    lanes = min(_lanes(c, at), v.extent)
    width = lanes * _in_flight(c, lanes, v.extent // lanes, at, choose)
    outer = [_loop(c, d) for d in free_dims(c)]
    _accumulators(s, c, outer)
    lane = s.split(_loop(c, v), width, "cut")[1]
    s.rfactor(lane)
    for name in (f"{lane}.clear", lane):
        register_vectors(s, name, lanes)
    s.vectorize(f"{lane}.combine")
    tail = f"{_loop(c, v)}.t"
    if v.extent % width > lanes:
        s.vectorize(s.split(tail, lanes, "cut")[1])
        tail = f"{tail}.t"
    for rest in existing(s, [tail]):
        s.vectorize(rest)
    return _threads(s, c, outer, at, choose)


def _parts(pattern: KernelPattern) -> tuple[Computation, Dim]:
    (c,) = pattern.computations
    assert pattern.vector is not None
    return c, pattern.vector


def _loop(c: Computation, d: Dim) -> str:
    return f"{c.name}.{d.var.name}"


def _lanes(c: Computation, at: Context) -> int:
    """Those of the narrowest result; the wider ones take several vectors."""
    return max(at.machine.lanes(o.tensor.dtype) for o in c.outputs)


def _in_flight(
    c: Computation, lanes: int, most: int, at: Context, choose: Choices
) -> int:
    """The parameter `<computation>.vectors`, at most so many: by default, those whose results fill
    half of the registers, because the other half has the candidates."""
    m = at.machine
    each = sum(ceil_div(lanes, m.lanes(o.tensor.dtype)) for o in c.outputs)
    possible = [n for n in VECTORS if n <= most]
    room = min(at.costs.in_flight, max(1, m.registers // (2 * each)))
    return choose(f"{c.name}.vectors", possible, max(n for n in possible if n <= room))


def _accumulators(s: Schedule, c: Computation, outer: list[str]) -> list[str]:
    """Keep the results in registers around the loop bodies; returns their names."""
    inside = next(reversed(existing(s, outer)), None)
    held = [s.cache_write(o.tensor.name, inside, scope="global") for o in c.outputs]
    for name in held:
        s.set_scope(name, "register")
    return held


def _threads(
    s: Schedule, c: Computation, outer: list[str], at: Context, choose: Choices
) -> Schedule:
    points = math.prod(d.extent for d in c.dims)
    if at.threads(choose, c.name, at.costs.worth_sharing(points * at.costs.point_ns)):
        at.share(s, outer, choose, c.name)
    return s
