"""Sizes of tensors, inferred from the accesses to them."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.base.errors import InputError
from tilewright.compute.isl import (
    Domain,
    IslLimitReached,
    IslTranslator,
    greatest,
    sample,
)
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import environment
from tilewright.expr.affine import Affine, affine, to_expr
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Buffer, Expr, Extent, Var, as_expr
from tilewright.expr.reads import Guard, reads


def infer_sizes(
    c: Computation, stated: Collection[Buffer] = ()
) -> dict[Buffer, tuple[Extent, ...]]:
    """The least shape per tensor that holds every element the Computation touches.

    The buffers' own shapes are not consulted (only their ranks). A tensor that is never touched
    gets size 0. stated: tensors to leave out. Raises InputError (TW-SIZE) for an index that may be
    negative, that depends on data, that isl cannot bound, or, where a dimension's size is known
    only to a call, that is not a sum of dimensions.
    """
    if any(d.size == 0 for d in c.dims):
        touched = (*c.inputs, *(o.tensor for o in c.outputs))
        return {b: (0,) * len(b.extents) for b in touched}
    found: dict[Buffer, list[Extent]] = {}
    for o in c.outputs:
        if o.tensor not in stated:
            _grow(c, found, o.tensor, o.index, ())
    values = tuple(o.value for o in c.outputs)
    for r in reads(values, environment(c.dims)):
        load = r.load
        if load.buffer not in stated:
            _grow(c, found, load.buffer, load.index, r.guards)
    return {b: tuple(sizes) for b, sizes in found.items()}


def _grow(
    c: Computation,
    found: dict[Buffer, list[Extent]],
    buffer: Buffer,
    index: tuple[Expr, ...],
    guards: tuple[Guard, ...],
) -> None:
    sizes = found.setdefault(buffer, [0] * len(index))
    for axis, i in enumerate(index):
        where = f"{c.name}: dimension {axis} of {buffer.name}"
        if all(d.static for d in c.dims):
            reach: Extent = _reach(c, i, guards, where)
        else:
            reach = _open_reach(c, i, guards, where)
        sizes[axis] = _larger(sizes[axis], reach, where)


def _larger(a: Extent, b: Extent, where: str) -> Extent:
    """The larger of two extents, where their difference is a number."""
    difference = affine(as_expr(a, INDEX)) - affine(as_expr(b, INDEX))
    if a == 0 or (difference.is_const and difference.const < 0):
        return b
    if not difference.is_const:
        raise InputError(
            f"either of {a!r} and {b!r} may be the larger one; state the size",
            code="TW-SIZE",
            where=where,
        )
    return a


def _open_reach(
    c: Computation, i: Expr, guards: tuple[Guard, ...], where: str
) -> Extent:
    """As `_reach`, if only a call determines the size of a dimension: of a sum of dimensions."""
    form = affine(i)
    sizes: dict[Expr, Extent] = {d.var: d.size for d in c.dims}
    if guards or any(atom not in sizes for atom, _ in form.terms):
        raise InputError(
            f"the size follows from {i!r} only where the sizes of dimensions are known; state it",
            code="TW-SIZE",
            where=where,
        )
    last = Affine((), form.const)
    least = form.const
    for atom, times in form.terms:
        size = affine(as_expr(sizes[atom], INDEX)) - Affine((), 1)
        if times > 0:
            last = last + size.scaled(times)
        else:
            least = least + size.const * times if size.is_const else -1
    if least < 0:
        raise InputError("the index may be negative", code="TW-SIZE", where=where)
    reach = last + Affine((), 1)
    return reach.const if reach.is_const else to_expr(reach)


def _reach(
    c: Computation,
    i: Expr,
    guards: tuple[Guard, ...],
    where: str,
) -> int:
    """One more than the greatest value of an index, 0 if it is never evaluated."""
    env = environment(c.dims)
    atoms = [atom for atom, _ in affine(i).terms]
    plain = all(isinstance(atom, Var) for atom in atoms)
    if plain and not guards:
        lo, hi = bounds(i, env)
    else:
        lo, hi = _extremes(c, i, guards, where)
    if hi is None:
        return 0
    if lo is None or lo < 0:
        raise InputError("the index may be negative", code="TW-SIZE", where=where)
    return hi + 1


def _extremes(
    c: Computation,
    i: Expr,
    guards: tuple[Guard, ...],
    where: str,
) -> tuple[int | None, int | None]:
    domain = Domain()
    names = {d.var: domain.variable(0, d.extent - 1) for d in c.dims}
    translate = IslTranslator(domain, names, environment(c.dims))
    for condition, holds in guards:
        domain.require(translate.condition(condition, holds))
    guarded = domain.exact
    domain.exact = True
    text = translate.expr(i)
    if not domain.exact:
        raise InputError(
            "the size depends on data; state it",
            code="TW-SIZE",
            where=where,
        )
    try:
        if guarded and sample(domain, []) is None:
            return (None, None)
        top = greatest(domain, text)
        bottom = greatest(domain, f"-({text})")
    except IslLimitReached:
        raise InputError(
            "isl gave up on the size; state it",
            code="TW-SIZE",
            where=where,
        ) from None
    least = None if bottom is None else -bottom
    return (least, top)
