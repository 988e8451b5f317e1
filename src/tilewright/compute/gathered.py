"""Reading an access backwards: which points of a Computation read one element of a tensor.

Each index `p = c*v + rest` is solved for a variable, `v = (p - rest) / c` where that is whole and
within its extent; `p = c*v + u` with u below c for both, as quotient and remainder. If u is not
below c, as in windows that overlap, it is p mod c, or c more, or twice c more, ...: a sum over few
points, none of which is left out because c does not divide it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise

from tilewright.base.dataclass import dataclass
from tilewright.base.numbers import ceil_div
from tilewright.compute.nodes import PW, Dim
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.nodes import (
    INDEX,
    And,
    Const,
    Eq,
    Expr,
    FloorDiv,
    Le,
    Load,
    Lt,
    Mod,
    Mul,
    Select,
    Var,
    const,
)
from tilewright.expr.simplify import simplify
from tilewright.ir.node import Node, postorder, substitute

# Values with the conditions under which each counts.
Guarded = tuple[tuple[tuple[Expr, ...], Expr], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Contribution:
    """`read += value` at every point of `dims`, for each of some guarded values.

    read: the access that they flow back along. flow: what flows to the result there, a factor of
    every value.
    """

    read: Load
    dims: tuple[Dim, ...]
    flow: Expr
    cases: Guarded


def is_affine(part: Contribution) -> bool:
    """Whether each index is a sum of multiples of dimensions."""
    variables = {d.var for d in part.dims}
    return all(a in variables for i in part.read.index for a, _ in affine(i).terms)


def gathered(
    part: Contribution,
    place: Sequence[Var],
) -> tuple[tuple[Dim, ...], Expr]:
    """What a part adds to the element at `place`: the dimensions to sum over, and the value.

    requires: the part's indices are affine.
    """
    solved, guards, new = _solved(part, place)
    rest = (*(d for d in part.dims if d.var not in solved), *new)
    extents = part.read.buffer.shape
    reach = {v: (0, max(n - 1, 0)) for v, n in zip(place, extents, strict=True)}
    reach |= {d.var: (0, max(d.extent - 1, 0)) for d in rest}
    env: dict[Node, Node] = {**solved, part.read: part.read.buffer[tuple(place)]}
    shared = _open(guards, reach)
    values = []
    for conditions, value in part.cases:
        own = _open((substitute(c, env) for c in conditions), reach)
        value = simplify(substitute(value, env), reach)
        values.append(_where([c for c in own if c not in shared], value))
    total = reduce(lambda a, b: a + b, values)
    flow = simplify(substitute(part.flow, env), reach)
    if shared and _alone_leaves(flow, total, reach):
        total = substitute(total, {flow: _where(shared, flow)})
    else:
        total = _where(shared, total)
    fresh: dict[Node, Node] = {d.var: Var(f"r_{d.var.name}", INDEX) for d in rest}
    dims = tuple(Dim(fresh[d.var], d.size, PW) for d in rest)  # type: ignore[arg-type]
    return dims, substitute(total, fresh)


def _open(
    conditions: Iterable[Expr],
    reach: Mapping[Var, tuple[int, int]],
) -> list[Expr]:
    """The conditions that the ranges of variables leave open, each once."""
    found = dict.fromkeys(simplify(c, reach) for c in conditions)
    return [c for c in found if not (isinstance(c, Const) and c.value)]


def _where(
    conditions: Sequence[Expr],
    value: Expr,
) -> Expr:
    """The value where all conditions hold, else 0: those that read memory are asked last, as the
    others may say whether that is inside a tensor."""
    reading = [c for c in conditions if any(isinstance(n, Load) for n in postorder(c))]
    for some in (reading, [c for c in conditions if c not in reading]):
        if some:
            value = Select(reduce(And, some), value, const(0.0, value.dtype))
    return value


def _alone_leaves(
    flow: Expr,
    total: Expr,
    reach: Mapping[Var, tuple[int, int]],
) -> bool:
    """Whether only the read of the gradient needs the guards: a guarded read, as for padding.

    Every other index is a constant, or a variable that is inside its tensor at every point.
    """
    if not isinstance(flow, Load) or not isinstance(total, Mul):
        return False
    others = [n for n in postorder(total) if isinstance(n, Load) and n is not flow]
    return all(
        isinstance(i, Const) or (isinstance(i, Var) and reach[i][1] < extent)
        for n in others
        for i, extent in zip(n.index, n.buffer.shape, strict=True)
    )


def _solved(
    part: Contribution,
    place: Sequence[Var],
) -> tuple[dict[Node, Node], list[Expr], list[Dim]]:
    """The variables that the place determines, the conditions for there to be such a point, and
    new dimensions that the variables depend on.

    An axis `p = c*v + rest` is solved for the variable that leaves the fewest points to sum over.
    """
    extents = {d.var: d.extent for d in part.dims}
    index = part.read.index
    order = sorted(range(len(index)), key=lambda n: len(affine(index[n]).terms))
    solved: dict[Node, Node] = {}
    guards: list[Expr] = []
    new: list[Dim] = []
    now: dict[Node, Node]
    for n in order:
        form = affine(substitute(index[n], solved))
        terms = _split(form, affine(place[n]), extents)
        if terms is None:
            terms = _overlapping(form, affine(place[n]), extents, new)
        if terms is not None:
            now = {}
            ranges = []
            for term, (e, own) in terms.items():
                now[term] = e
                ranges += own
        else:
            v = _to_solve(form, extents)
            if v is None:
                guards.append(Eq(place[n], to_expr(form)))
                continue
            whole, ranges = _quotient(form, affine(place[n]), v, extents[v])
            now = {v: whole}
        for found in now:
            del extents[found]  # type: ignore[arg-type]
        solved = {k: substitute(e, now) for k, e in solved.items()} | now
        guards = [substitute(g, now) for g in guards] + ranges
    return solved, guards, new


def _quotient(
    form: Affine,
    place: Affine,
    v: Var,
    extent: int,
) -> tuple[Expr, list[Expr]]:
    """The variable `v` of a form where that is at the place, and the conditions for it."""
    c = form.coefficient(v)
    rest = place - (form - Affine(((v, c),), 0))
    whole = to_expr(rest if c > 0 else rest.scaled(-1))
    guards: list[Expr] = []
    if abs(c) != 1:
        guards.append(Eq(Mod(whole, const(abs(c))), const(0)))
        whole = FloorDiv(whole, const(abs(c)))
    return whole, [*guards, Le(const(0), whole), Lt(whole, const(extent))]


def _split(
    form: Affine,
    place: Affine,
    extents: Mapping[Var, int],
) -> dict[Var, tuple[Expr, list[Expr]]] | None:
    """All variables of a form as quotients and remainders, with their ranges.

    requires, else None: two or more variables, and each factor a multiple of the next smaller one
    times at least that one's extent, the smallest 1: no two points have the same place.
    """
    terms = sorted(form.terms, key=lambda t: -t[1])
    free = all(isinstance(a, Var) and a in extents for a, _ in terms)
    if len(terms) < 2 or not free or terms[-1][1] != 1:
        return None
    for (_, c), (below, d) in pairwise(terms):
        if c % d or c // d < extents[below]:  # type: ignore[index]
            return None
    rest = to_expr(place - Affine((), form.const))
    found: dict[Var, tuple[Expr, list[Expr]]] = {}
    for v, c in terms:
        e = FloorDiv(rest, const(c)) if c > 1 else rest
        low, high = Le(const(0), e), Lt(e, const(extents[v]))  # type: ignore[index]
        found[v] = (e, [low, high])  # type: ignore[index]
        rest = Mod(rest, const(c)) if c > 1 else const(0)
    return found


def _overlapping(
    form: Affine,
    place: Affine,
    extents: Mapping[Var, int],
    new: list[Dim],
) -> dict[Var, tuple[Expr, list[Expr]]] | None:
    """Both variables of `c*v + u` with their ranges, by a dimension that is added to `new`.

    requires, else None: c is at least 2 and less than the extent of u.
    """
    if len(form.terms) != 2:
        return None
    (v, c), (u, one) = sorted(form.terms, key=lambda t: -t[1])
    if not (isinstance(v, Var) and isinstance(u, Var)) or {u, v} - extents.keys():
        return None
    if one != 1 or not 1 < c < extents[u]:
        return None
    block = Var(f"{u.name}_block", INDEX)
    new.append(Dim(block, ceil_div(extents[u], c)))
    rest = to_expr(place - Affine((), form.const))
    window = FloorDiv(rest, const(c)) - block
    offset = Mod(rest, const(c)) + block * c
    inside: list[Expr] = [Le(const(0), window), Lt(window, const(extents[v]))]
    fits: list[Expr] = [Lt(offset, const(extents[u]))]
    return {v: (window, inside), u: (offset, fits)}


def _to_solve(
    form: Affine,
    extents: Mapping[Var, int],
) -> Var | None:
    """The variable of a form to solve for; None if there is none that occurs just once in it."""
    found = None
    for atom, c in form.terms:
        if not isinstance(atom, Var) or atom not in extents:
            continue
        others = (a for a, _ in form.terms if a is not atom)
        if any(atom in postorder(a) for a in others):
            continue
        points = extents[atom] // abs(c)
        if found is None or points > found[0]:
            found = (points, atom)
    return None if found is None else found[1]
