"""Separable windows: reducing several axes one after another, in fewer terms.

    y[i, j] = (+)[m, n] x[s*i + m, t*j + n]
            = (+)[n] r[i, t*j + n]   with   r[i, k] = (+)[m] x[s*i + m, k]

Neighboring windows share what has been combined along the first axis. The order of the terms
changes, so that the operator must be commutative.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import reduce

from tilewright.base.dataclass import dataclass
from tilewright.compute.guards import inside, read_or_constant
from tilewright.compute.nodes import CC, PW, Computation, Dim, Output
from tilewright.compute.transforms import environment
from tilewright.expr.affine import affine
from tilewright.expr.nodes import (
    INDEX,
    And,
    Buffer,
    Cast,
    Expr,
    Load,
    Select,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import substitute


@dataclass(frozen=True, slots=True)
class _Axis:
    """What is read is indexed by `place` and `step`; a place is `stride` steps from the next."""

    place: Dim
    step: Dim
    stride: int

    @property
    def along(self) -> Dim:
        """All that the windows of all places cover, step by step."""
        extent = (self.place.extent - 1) * self.stride + self.step.extent
        return Dim(Var(f"{self.place.var.name}{self.step.var.name}", INDEX), extent)

    @property
    def read(self) -> Expr:
        """The position along it of a step of a place."""
        return self.place.var * self.stride + self.step.var


def separate(c: Computation) -> tuple[Computation, Computation] | None:
    """The reduction along the first axis of its windows, and along the others what that gives.

    requires, else None, with p_k the places and s_k the steps of the axes, two or more:

        one output; the operator commutes
        the value is casts of one read, x[.., stride_k * p_k + dilation_k * s_k + c_k, ..], with
            dilations above 0 and the strides multiples of them, above 0: the same element for
            all p and s with the same p * stride / dilation + s
        each dimension occurs in one index at most; what is reduced is the s_k alone
        the read is plain, or guarded by exactly what keeps it inside x: the guard at a place
            and a step then follows from the element that is read
        every kept dimension of several points, and every p_k, is the index of an axis of the
            result, shifted by any constant: what is kept of rows has an axis for it, too
        windows leave no element of the further axes out, which might not have been written yet

    Only the second Computation writes the result, where `c` did: all of it or a part. Values are
    those of `c` where the order of terms does not matter: not in sums that round, nor in the sign
    of an extreme that is 0. It is also None where it is not fewer terms.
    """
    load = _read(c)
    axes = _axes(c)
    order = _order(c)
    if load is None or axes is None or order is None or c.reducer is None:
        return None
    places = {a.place for a in axes}
    if len(axes) < 2 or not places <= set(order):
        return None
    first, *others = axes
    if any(a.stride > a.step.extent for a in others):  # gaps between windows
        return None
    along = {a.place: a.along for a in others}
    env: dict[object, object] = {}
    for a in others:
        env[a.place.var] = const(0)
        env[a.step.var] = along[a.place].var
    steps = {a.step for a in others}
    dims = tuple(along.get(d, d) for d in c.dims if d not in steps)
    (out,) = c.outputs
    kept = tuple(along.get(d, d) for d in order)
    shape = tuple(d.extent for d in kept)
    point = tuple(d.var for d in kept)
    tensor = Buffer(f"{out.tensor.name}_rows", shape, c.reducer.dtypes[0])
    made = Output(tensor, point, _reread(out.value, load, env, dims))
    before = replace(
        c,
        name=f"{c.name}_rows",
        dims=dims,
        outputs=(made,),
    )
    read_at = {a.place: a.read for a in others}
    found = Load(tensor, tuple(read_at.get(d, d.var) for d in order))
    after = replace(
        c,
        dims=tuple(d for d in c.dims if d is not first.step),
        outputs=(replace(out, value=found),),
    )
    if applications(before) + applications(after) < applications(c):
        return (before, after)
    return None


def applications(c: Computation) -> int:
    """How often a reduction applies its operator."""
    places = math.prod(d.extent for d in c.parallel_dims)
    terms = math.prod(d.extent for d in c.combined_dims)
    return places * (terms - 1)


def _read(c: Computation) -> Expr | None:
    """The only read of a reduction, with its guard; nothing else in the value depends on the
    position."""
    if c.reducer is None or not c.reducer.commutative or len(c.outputs) != 1:
        return None
    value = c.outputs[0].value
    while isinstance(value, Cast):
        value = value.value
    if isinstance(value, Load):
        return value
    if read_or_constant(value, environment(c.dims)) is not None:
        return value
    return None


def _reread(
    value: Expr,
    read: Expr,
    env: dict[object, object],
    dims: tuple[Dim, ...],
) -> Expr:
    """The value with its read at other places, and guarded by what these leave open."""
    bounds = environment(dims)
    load = read.then if isinstance(read, Select) else read
    assert isinstance(load, Load)
    index = tuple(simplify(substitute(i, env), bounds) for i in load.index)
    moved = Load(load.buffer, index)
    new: Expr = moved
    if isinstance(read, Select):
        conditions = inside(moved, bounds)
        if conditions:
            new = Select(reduce(And, conditions), moved, read.otherwise)
    result: Expr = substitute(value, {read: new})
    return result


def _axes(c: Computation) -> list[_Axis] | None:
    """The axes of the windows, in the order of the tensor that is read."""
    if len(c.accesses) != 1:
        return None
    (load,) = c.accesses
    dims: dict[Expr, Dim] = {d.var: d for d in c.dims}
    found: list[_Axis] = []
    used: list[Dim] = []
    for index in load.index:
        form = affine(index)
        if any(atom not in dims for atom, _ in form.terms):
            return None
        here = [dims[atom] for atom, _ in form.terms]
        used += here
        steps = [d for d in here if d.combine == PW and d.extent > 1]
        places = [d for d in here if d.combine == CC]
        if not steps:
            continue
        if len(places) != 1:
            return None
        place = places[0]
        step = steps[0]
        stride = form.coefficient(place.var)
        dilation = form.coefficient(step.var)
        if stride <= 0 or dilation <= 0 or stride % dilation:
            return None
        found.append(_Axis(place, step, stride // dilation))
    reduced = {d for d in c.combined_dims if d.extent > 1}
    if {a.step for a in found} != reduced:
        return None
    if len(used) != len(set(used)):
        return None
    return found


def _order(c: Computation) -> list[Dim] | None:
    """The dimensions of the results in the order of the tensor that holds them.

    All that have several points: no element is written twice.
    """
    dims = {d.var: d for d in c.dims}
    found: list[Dim] = []
    for index in c.outputs[0].index:
        terms = affine(index).terms
        if not terms:
            continue
        ((atom, factor), *more) = terms
        if more or factor != 1 or atom not in dims or dims[atom] in found:
            return None
        found.append(dims[atom])
    return found
