"""rfactor: an update over an RDom in two, with a partial result for each point of some RVars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

from tilewright.base.errors import InputError
from tilewright.expr import nodes
from tilewright.ir.node import substitute
from tilewright.lang.halide.syntax.definition import Definition
from tilewright.lang.halide.syntax.domain import RDom, RVar, Var
from tilewright.lang.halide.syntax.expr import Expr
from tilewright.lang.halide.syntax.func import Func
from tilewright.lang.halide.syntax.values import Tuple

_F = TypeVar("_F", bound=Func)
Kept: TypeAlias = Sequence[tuple[str, Var]]


def factored(
    f: Func,
    n: int,
    d: Definition,
    kept: Kept,
    make: type[_F],
) -> _F:
    """Replace update n of `f`, in the form `d`, by one of partial results; returns their Func.

    kept: RVars of the update by name, each with the Var of the partial results' new dimension. The
    new Func has the same values over the arguments of `f` and these Vars; `f` then combines it over
    the kept RVars. Raises InputError if the update is not a step of a commutative operator or
    has no such RVars; `f` is then unchanged.
    """
    domain, combine = _reduction(f, d, kept)
    by_name = {v.name(): v for v in domain.vars}
    env: dict[Any, Any] = {by_name[name].node: var.node for name, var in kept}
    rest = [v for v in domain.vars if v.name() not in dict(kept)]
    inner = _domain_of(rest, domain, env) if rest else None
    outer = _domain_of([by_name[name] for name, _ in kept], None, {})
    if inner is not None:
        env |= _renaming(rest, inner)

    partial = make(f"{f.name()}_intm")
    added = tuple(var for _, var in kept)
    identity = Tuple(*(Expr(i, i.dtype) for i in combine.identity))
    partial[(*f.args, *added)] = identity
    new_places = [var.node for var in reversed(added)]
    old_places = [substitute(i, env) for i in d.args]
    values = tuple(substitute(v, env) for v in d.values)
    update = Definition((*new_places, *old_places), values, inner, combine)
    partial.keep(update)

    pure = tuple(a.node for a in reversed(f.args))
    kept_vars = [v.node for v in reversed(outer.vars)]
    parts = tuple(nodes.Load(s, (*kept_vars, *pure)) for s in partial.symbols)
    f.keep(Definition(pure, parts, outer, combine), n)
    return partial


def split(
    d: Definition,
    old: str,
    names: tuple[str, str],
    factor: int,
) -> Definition:
    """An update with its RVar `old` as two, names: (outer, inner), the inner one of `factor`.

    Where the factor does not divide, the RDom leaves the points beyond out.
    """
    assert d.domain is not None
    vars: list[RVar] = []
    for v in d.domain.vars:
        if v.name() == old:
            tiles = -(-v.extent // factor)
            vars.append(RVar(names[1], 0, factor))
            vars.append(RVar(names[0], 0, tiles))
        else:
            vars.append(v)
    made = _domain_over(vars)
    by_name = {v.name(): v for v in made.vars}
    env: dict[Any, Any] = {}
    for v in d.domain.vars:
        if v.name() == old:
            at = by_name[names[0]] * factor + by_name[names[1]]
            env[v.node] = (at + v.min).node
            if v.extent % factor:
                made.where(at < v.extent)
        else:
            env[v.node] = by_name[v.name()].node
    return _over(d, made, env)


def reorder(d: Definition, names: Sequence[str]) -> Definition:
    """An update with its RVars in another order, innermost first; its operator must commute."""
    assert d.domain is not None
    by_name = {v.name(): v for v in d.domain.vars}
    order = iter([by_name[name] for name in names])
    vars = [next(order) if v.name() in names else v for v in d.domain.vars]
    made = _domain_over(vars)
    return _over(d, made, _renaming(vars, made))


def _domain_over(vars: Sequence[RVar]) -> RDom:
    """A new RDom over the ranges and names of `vars`."""
    ranges = [(v.min, v.extent) for v in vars]
    return RDom(ranges, names=[v.name() for v in vars])


def _renaming(vars: Sequence[RVar], made: RDom) -> dict[Any, Any]:
    """Substitute a domain's variables for those that it was derived from."""
    return {old.node: new.node for old, new in zip(vars, made.vars, strict=True)}


def _restrict(made: RDom, source: RDom | None, env: dict[Any, Any]) -> None:
    """Put the conditions of `source`, renamed by `env`, on a domain."""
    if source is None:
        return
    for condition in source.conditions:
        renamed = substitute(condition.node, env)
        made.where(Expr(renamed, condition.dtype))


def _over(d: Definition, made: RDom, env: dict[Any, Any]) -> Definition:
    """An update over another RDom, each old variable being what `env` has for it."""
    _restrict(made, d.domain, env)
    args = tuple(substitute(a, env) for a in d.args)
    values = tuple(substitute(v, env) for v in d.values)
    return Definition(args, values, made, d.reducer)


def _reduction(f: Func, definition: Definition, kept: Kept) -> Any:
    domain = definition.domain
    combine = definition.reducer
    if domain is None:
        have = []
    else:
        have = [v.name() for v in domain.vars]
    names = [name for name, _ in kept]
    vars = [v.name() for _, v in kept]
    problem = None
    if combine is None or not combine.commutative:
        problem = "the update is not a step of an associative and commutative operator"
    elif len(set(names)) < len(names) or len(set(vars)) < len(vars):
        problem = "an RVar or a Var is named twice"
    elif not kept or not set(names) <= set(have):
        problem = f"the update reduces over {', '.join(have) or 'nothing'}"
    elif domain is not None and domain.conditions and len(kept) == len(have):
        problem = "no RVar is left for the condition of the RDom"
    elif set(vars) & {v.name() for v in f.args}:
        problem = "a Var of the partial results is an argument already"
    if problem is not None:
        raise InputError(
            f"rfactor: {problem}",
            where=f"Func {f.name()}",
            hint="name RVars of an update such as f[x] += ..., each with a new Var",
        )
    return domain, combine


def _domain_of(vars: Sequence[RVar], source: RDom | None, env: dict[Any, Any]) -> RDom:
    """A new RDom over the ranges and names of `vars`, with the conditions of `source`."""
    made = _domain_over(vars)
    _restrict(made, source, env | _renaming(vars, made))
    return made
