"""Kernels with several results: what is read at the same points is read once.

Two groups that read one tensor become one group with both results; so do a group and a reader of
its result, even if the result has other readers and stays in memory. The first form that applies is
used:

* a map of several outputs: two maps over equal points;
* a reduction to several results at once: two reductions over equal points;
* a sequence over rows: reductions along rows, and maps that make or use these rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Final

from tilewright.base import events
from tilewright.compute.contraction import is_contraction
from tilewright.compute.nodes import CC, PW, Computation, Dim
from tilewright.compute.reducer import paired
from tilewright.compute.transforms import inline, map_outputs
from tilewright.expr.nodes import Buffer, Const, Expr, Mul, Var, const
from tilewright.expr.simplify import simplify
from tilewright.ir.node import postorder, substitute
from tilewright.plan.decisions import Choose, estimated, reason_now
from tilewright.plan.nodes import FusionGroup, Step, merge
from tilewright.plan.passes.fuse import is_small
from tilewright.plan.questions import Cost, PlanCosts, dearer

REACH: Final = 8  # most steps that a group moves up, as its results live from there on

Form = Callable[
    [Sequence[Computation], Sequence[Computation], PlanCosts],
    list[Computation] | None,
]


def merge_siblings(
    steps: Sequence[Step],
    constants: Collection[Buffer],
    cost: Cost,
    costs: PlanCosts,
    choose: Choose = estimated,
) -> list[Step]:
    """The steps with pairs of groups merged if both read a tensor, or one reads the other's result.

    cost: the target's estimate of Computations as one kernel in nanoseconds, None if it cannot
    handle them well. costs: limits for the results of a kernel. constants: known at compile time;
    reading these twice is no reason to merge. choose: who decides instead of the estimate; see
    `plan.decisions`.

    requires of two groups, of which the second moves up to the first:
        both consist of Computations
        no step between writes what the second reads
        they share an access to at least one element per point
        the target handles the form well, and estimates it to be no slower than both
    """

    out: list[Step] = []
    for step in steps:
        found = _merged(out, step, constants, cost, costs, choose)
        if found is None:
            out.append(step)
        else:
            place, group = found
            out[place] = group
    return out


def _merged(
    out: Sequence[Step],
    second: Step,
    constants: Collection[Buffer],
    cost: Cost,
    costs: PlanCosts,
    choose: Choose,
) -> tuple[int, FusionGroup] | None:
    """The position of the nearest earlier group to merge with, and the merged group."""
    if not isinstance(second, FusionGroup) or second.kernel is not None:
        return None
    reads = frozenset(second.reads)
    for place in range(len(out) - 1, max(-1, len(out) - 1 - REACH), -1):
        first = out[place]
        if isinstance(first, FusionGroup) and first.kernel is None:
            shared = reads.intersection((*first.reads, *first.writes)) - {*constants}
            group = _one(first, second, cost, costs, choose) if shared else None
            if group is not None:
                return place, group
        if not reads.isdisjoint(first.writes):
            return None
    return None


def _one(
    first: FusionGroup,
    second: FusionGroup,
    cost: Cost,
    costs: PlanCosts,
    choose: Choose,
) -> FusionGroup | None:
    """Both as one group in the first profitable form, or None.

    If they are named to be one and no form is profitable, they are in the first that the target
    can handle.
    """
    a, b = first.computations, second.computations
    found: dict[str, tuple[Sequence[Computation], str]] = {}
    possible = []
    for form in FORMS:
        made = form(a, b, costs)
        if made is None or not all(map(is_small, made)):
            continue
        name, expected = form.__name__.strip("_"), cost(made)
        found[name] = made, dearer(expected, [cost(a), cost(b)])
        if expected is not None:
            possible.append(name)
        if not found[name][1]:
            break
    if possible:
        best = next((n for n in possible if not found[n][1]), possible[0])
        one, reason = found[best]
        found[best] = one, reason_now(choose, (first, second), reason)
    said: dict[str, Any] = {"producer": first.name, "into": second.name}
    for name, (one, reason) in found.items():
        if not reason:
            merged = merge(first, second, one)
            events.emit("fuse", rule=name, **said, sources=merged.sources)
            return merged
        sources = (*first.sources, *second.sources)
        events.emit("not-fused", rule=name, **said, sources=sources, reason=reason)
    return None


def _one_map(
    first: Sequence[Computation],
    second: Sequence[Computation],
    costs: PlanCosts,
) -> list[Computation] | None:
    """Two maps over equal points as one map with several outputs."""
    if len(first) != 1 or len(second) != 1:
        return None
    (a,), (b,) = first, second
    if any(not c.is_map or c.reducer is not None for c in (a, b)):
        return None
    for o in a.outputs:
        if o.tensor in b.inputs:
            inlined = inline(replace(a, outputs=(o,)), b)
            if inlined is None:
                return None
            b = inlined
    both = _aligned(a, b, costs.results)
    if both is None:
        return None
    a, b = both
    return [replace(a, outputs=(*a.outputs, *b.outputs))]


def _one_reduction(
    first: Sequence[Computation],
    second: Sequence[Computation],
    costs: PlanCosts,
) -> list[Computation] | None:
    """Two reductions over equal points as one with several results; not full reductions, which are
    split among threads."""
    if len(first) != 1 or len(second) != 1:
        return None
    (a,), (b,) = first, second
    if a.reducer is None or b.reducer is None:
        return None
    if any(o.tensor in b.inputs for o in a.outputs):
        return None
    if any(d.combine not in (CC, PW) for d in (*a.dims, *b.dims)):
        return None
    if not _extents(a):
        return None
    both = _aligned(a, b, costs.results)
    if both is None:
        return None
    a, b = both
    outputs = (*a.outputs, *b.outputs)
    assert a.reducer is not None and b.reducer is not None
    return [replace(a, outputs=outputs, reducer=paired(a.reducer, b.reducer))]


def _rows(
    first: Sequence[Computation],
    second: Sequence[Computation],
    costs: PlanCosts,
) -> list[Computation] | None:
    """Reductions along rows and maps, in sequence over the same rows."""
    both = (*first, *second)
    made = {o.tensor for c in first for o in c.outputs}
    if sum(len(c.outputs) for c in both) > costs.row_results:
        return None
    rows = {tuple(_extents(c)) for c in both if c.reducer is not None}
    if len(rows) != 1 or () in rows:
        return None
    if any(_multiplies(c) for c in both):
        return None
    (leading,) = rows
    points = max(math.prod(d.extent for d in c.dims) for c in both)
    if points > costs.long_row * math.prod(leading):
        return None
    if any(tuple(_extents(c))[: len(leading)] != leading for c in both):
        return None
    reads = [a for c in second for a in c.accesses if a.buffer in made]
    if not all(isinstance(i, Var | Const) for a in reads for i in a.index):
        return None
    if not reads and not _same_rows(first, second):
        return None
    return [*both]


FORMS: Final[tuple[Form, ...]] = (_one_map, _one_reduction, _rows)


def _multiplies(c: Computation) -> bool:
    """Whether it sums products of different operands; a square reads only one row."""
    if not is_contraction(c):
        return False
    nodes = postorder(c.outputs[0].value)
    products = [n for n in nodes if isinstance(n, Mul)]
    return any(n.lhs is not n.rhs for n in products)


def _extents(c: Computation) -> list[int]:
    """The extents of the free dimensions with more than one point."""
    return [d.extent for d in c.dims if d.combine == CC and d.extent != 1]


def _same_rows(
    first: Sequence[Computation],
    second: Sequence[Computation],
) -> bool:
    """Whether both read one whole tensor in the order of its axes."""
    return bool(_whole(first) & _whole(second))


def _whole(computations: Sequence[Computation]) -> set[Buffer]:
    """The tensors with an element for each point of a Computation that reads them in the order of
    its dimensions."""
    found = set()
    for c in computations:
        place: dict[Expr, int] = {d.var: n for n, d in enumerate(c.dims)}
        points = math.prod(d.extent for d in c.dims)
        for a in c.accesses:
            at = [place.get(i) for i in a.index if not isinstance(i, Const)]
            plain = [n for n in at if n is not None]
            if plain == sorted({*plain}) and len(plain) == len(at):
                found |= {a.buffer} if a.buffer.size == points > 0 else set()
    return found


def _aligned(
    a: Computation,
    b: Computation,
    results: int,
) -> tuple[Computation, Computation] | None:
    """Both over the dimensions of `a`; None if their points differ, if they have more results than
    allowed, or if they share no access to a tensor with an element per point."""
    if len(a.outputs) + len(b.outputs) > results or a.tags != b.tags:
        return None
    mine, theirs = _points(a), _points(b)
    if [(d.size, d.combine) for d in mine] != [(d.size, d.combine) for d in theirs]:
        return None
    env: dict[Any, Any] = {d.var: const(0) for d in (*a.dims, *b.dims)}
    env |= {d.var: e.var for d, e in zip((*mine, *theirs), mine * 2, strict=True)}

    def renamed(e: Expr) -> Expr:
        return simplify(substitute(e, env))

    one, other = (
        replace(c, dims=tuple(mine), outputs=map_outputs(c, renamed)) for c in (a, b)
    )
    return (one, other) if _shares(one, other) else None


def _points(c: Computation) -> list[Dim]:
    """The dimensions whose extent is not 1."""
    return [d for d in c.dims if d.extent != 1]


def _shares(
    a: Computation,
    b: Computation,
) -> bool:
    """Whether both read the same elements at the same points, at least one for each."""
    points = math.prod(d.extent for d in a.dims)
    common = {*a.accesses} & {*b.accesses}
    return any(load.buffer.size >= points > 0 for load in common)
