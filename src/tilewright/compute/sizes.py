"""Sizes of tensors, inferred from the accesses to them."""

from __future__ import annotations

from tilewright.base.errors import InputError
from tilewright.compute.isl import Domain, TooHard, Translator, greatest, sample
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import environment
from tilewright.expr.affine import affine
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import Buffer, Expr, Var
from tilewright.expr.reads import Guard, reads


def infer_sizes(c: Computation) -> dict[Buffer, tuple[int, ...]]:
    """The least shape per tensor that holds every element the Computation touches.

    The buffers' own shapes are not consulted (only their ranks). A tensor that is never touched
    gets size 0. Raises InputError (TW-SIZE) for an index that may be negative, that depends on
    data, or that isl cannot bound.
    """
    if any(d.extent == 0 for d in c.dims):
        touched = (*c.inputs, *(o.tensor for o in c.outputs))
        return {b: (0,) * len(b.shape) for b in touched}
    found: dict[Buffer, list[int]] = {}
    for o in c.outputs:
        _grow(c, found, o.tensor, o.index, ())
    values = tuple(o.value for o in c.outputs)
    for r in reads(values, environment(c.dims)):
        load = r.load
        _grow(c, found, load.buffer, load.index, r.guards)
    return {b: tuple(sizes) for b, sizes in found.items()}


def _grow(
    c: Computation,
    found: dict[Buffer, list[int]],
    buffer: Buffer,
    index: tuple[Expr, ...],
    guards: tuple[Guard, ...],
) -> None:
    sizes = found.setdefault(buffer, [0] * len(index))
    for axis, i in enumerate(index):
        reach = _reach(c, buffer, axis, i, guards)
        sizes[axis] = max(sizes[axis], reach)


def _reach(
    c: Computation,
    buffer: Buffer,
    axis: int,
    i: Expr,
    guards: tuple[Guard, ...],
) -> int:
    """One more than the greatest value of an index, 0 if it is never evaluated."""
    env = environment(c.dims)
    where = f"{c.name}: dimension {axis} of {buffer.name}"
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
    translate = Translator(domain, names, environment(c.dims))
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
    except TooHard:
        raise InputError(
            "isl gave up on the size; state it",
            code="TW-SIZE",
            where=where,
        ) from None
    least = None if bottom is None else -bottom
    return (least, top)
