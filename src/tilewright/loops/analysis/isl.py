"""Two iterations of a band of loops as an integer set: the exact question, and its witness.

The condition. `ask(a, b, band, relation)` is None only if there are no iterations p of `a` and q of
`b`, alike in the loops around the band, that run (extents and guards), touch one element, and are
in the relation. It is Illegal only if there are such. What isl cannot say (a load, `i*j`) may have
any value within its bounds: then a solution proves nothing, and the answer is Unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.compute.isl import Domain, IslLimitReached, IslTranslator, sample
from tilewright.expr.affine import affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Expr, Var
from tilewright.loops.analysis.access import Access
from tilewright.loops.analysis.lemmas import idealized
from tilewright.loops.analysis.verdict import Illegal, Pair, Unknown, Witness
from tilewright.loops.nodes import For
from tilewright.loops.printer import show_place

# From the names of the band's variables in two iterations, the isl condition of a problem.
Relation = Callable[[Sequence[str], Sequence[str]], str]


def ask(
    a: Access,
    b: Access,
    band: Sequence[For],
    relation: Relation,
    without_overlap: bool = False,
    pair: Pair | None = None,
    ends: bool = False,
) -> Illegal | Unknown | None:
    """Whether an iteration of `a` and one of `b` in the relation touch one element; None: never.

    a, b: guarded accesses of one kernel. without_overlap: as `lemmas.agreeing`; guards are left out
    then, see `overlap`. pair: the accesses as the answer is to show them (default: a and b). ends:
    whether the band's first iteration and its last, if they differ, are in the relation.
    """
    shown = pair or (a, b)
    found = at_ends(a, b, band) if ends else None
    if found is not None:
        return _illegal(found, shown)
    domain = Domain()
    outer = a.loops[: a.loops.index(band[0])]
    around: dict[Var, str] = {loop.var: domain.variable() for loop in outer}
    if without_overlap:
        a, b = a.anywhere, b.anywhere
    one, two = (iteration(domain, x, around, without_overlap) for x in (a, b))
    forms = [(affine(i), affine(j)) for i, j in zip(a.index, b.index, strict=True)]
    if without_overlap:
        forms = idealized(forms, {loop.var for loop in band})
    for i, j in forms:
        here = one.expr(to_expr(i))
        there = two.expr(to_expr(j))
        if here != there:
            domain.require(f"{here} = {there}")
    p, q = ([t.names[loop.var] for loop in band] for t in (one, two))
    place = show_place(a.buffer, a.index)
    names = ", ".join(loop.var.name for loop in band)
    try:
        point = sample(domain, [relation(p, q)])
    except IslLimitReached:
        reason = f"isl gave up on {place} over {names}: operation limit"
        return Unknown(reason, "operations", shown)
    if point is None:
        return None
    if not domain.exact:
        reason = f"the accesses of {a.buffer.name} over {names} are not affine"
        return Unknown(reason, "affine", shown)
    values = dict(zip(domain.names, point, strict=True))
    return _illegal(_witness(a, b, one, two, values), shown)


def _illegal(witness: Witness, pair: Pair) -> Illegal:
    texts = [_text(iteration) for iteration in (witness.first, witness.second)]
    reason = f"iterations ({texts[0]}) and ({texts[1]}) conflict at {witness.place}"
    return Illegal(reason, witness, pair)


def at_ends(a: Access, b: Access, band: Sequence[For]) -> Witness | None:
    """The first iteration of all loops, and that with the band's loops at their last, if `a` in the
    one and `b` in the other touch one element; None says nothing.

    It spares most of isl's questions, such as whether what a loop sums up may be read in that loop.
    requires, else None: both run, as there are no guards, and loops have constant extents; the
    band has several iterations; indices are linear in the loops, which those of overlapping tiles
    are not.
    """
    if a.guards or b.guards:
        return None
    if not all(f.trips for f in (*a.loops, *b.loops)):
        return None
    if not any(f.trips != 1 for f in band):
        return None
    first: dict[Expr, int] = {f.var: 0 for f in a.loops}
    second: dict[Expr, int] = {f.var: 0 for f in b.loops}
    for f in band:
        assert f.trips is not None
        second[f.var] = f.trips - 1
    place = [_value(i, first) for i in a.index]
    other = [_value(j, second) for j in b.index]
    if None in place or place != other:
        return None
    element = ", ".join(map(str, place))
    return Witness(
        {f.var.name: first[f.var] for f in a.loops},
        {f.var.name: second[f.var] for f in b.loops},
        f"{a.buffer.name}[{element}]",
    )


def _value(index: Expr, at: Mapping[Expr, int]) -> int | None:
    """An index in one iteration; None if it is not linear in the loops' variables."""
    form = affine(index)
    value = form.const
    for atom, c in form.terms:
        if atom not in at:
            return None
        value += c * at[atom]
    return value


def iteration(
    domain: Domain,
    access: Access,
    around: dict[Var, str] | None = None,
    independent: bool = False,
) -> IslTranslator:
    """One iteration of the loops around an access, under its guards, added to `domain`.

    around: the names of variables that there are already. independent: how far a loop runs says
    nothing about the others.
    """
    translate = IslTranslator(domain, around or {}, access.ranges)
    for p in access.loops:
        name = translate.names.get(p.var)
        if name is None:
            name = translate.names[p.var] = domain.variable()
        if independent and p.trips is None:
            domain.require(f"0 <= {name}")
        else:
            domain.require(f"0 <= {name} < {translate.expr(p.extent)}")
    for condition, holds in access.guards:
        domain.require(translate.condition(condition, holds))
    return translate


def _witness(
    a: Access, b: Access, one: IslTranslator, two: IslTranslator, values: dict[str, int]
) -> Witness:
    first, second = (
        {loop.var.name: values[t.names[loop.var]] for loop in x.loops}
        for t, x in ((one, a), (two, b))
    )
    element = ", ".join(str(_at(i, a, one, values)) for i in a.index)
    return Witness(first, second, f"{a.buffer.name}[{element}]")


def _text(iteration: dict[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in iteration.items())


def _at(
    i: Expr,
    a: Access,
    translate: IslTranslator,
    values: dict[str, int],
) -> int:
    env: dict[Var, tuple[int, int]] = {}
    for p in a.loops:
        value = values[translate.names[p.var]]
        env[p.var] = (value, value)
    return bounds(i, env)[0] or 0
