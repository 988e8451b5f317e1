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


def factored(f: Func, n: int, d: Definition, kept: Kept, make: type[_F]) -> _F:
    """Replace update n of `f`, in the form `d`, by one of partial results; returns their Func.

    kept: RVars of the update by name, each with the Var of the partial results' new dimension. The
    new Func has the same values over the arguments of `f` and these Vars; `f` then combines it over
    the kept RVars. Raises InputError if the update is not a step of a commutative operator or
    has no such RVars; `f` is then unchanged.
    """
    domain, combine = _reduction(f, d, kept)
    places = {v.name(): v for v in domain.vars}
    env: dict[Any, Any] = {places[name].node: var.node for name, var in kept}
    rest = [v for v in domain.vars if v.name() not in dict(kept)]
    inner = _domain_of(rest, domain, env) if rest else None
    outer = _domain_of([places[name] for name, _ in kept], None, {})
    if inner is not None:
        env |= {old.node: new.node for old, new in zip(rest, inner.vars, strict=True)}

    partial = make(f"{f.name()}_intm")
    added = tuple(var for _, var in kept)
    identity = Tuple(*(Expr(i, i.dtype) for i in combine.identity))
    partial[(*f.args, *added)] = identity
    front = tuple(var.node for var in reversed(added))
    place = (*front, *(substitute(i, env) for i in d.args))
    values = tuple(substitute(v, env) for v in d.values)
    partial.keep(Definition(place, values, inner, combine))

    pure = tuple(a.node for a in reversed(f.args))
    at = (*(v.node for v in reversed(outer.vars)), *pure)
    parts = tuple(nodes.Load(s, at) for s in partial.symbols)
    f.keep(Definition(pure, parts, outer, combine), n)
    return partial


def split(d: Definition, old: str, names: tuple[str, str], factor: int) -> Definition:
    """An update with its RVar `old` as two, names: (outer, inner), the inner one of `factor`.

    Where the factor does not divide, the RDom leaves the points beyond out.
    """
    assert d.domain is not None
    vars: list[RVar] = []
    for v in d.domain.vars:
        if v.name() == old:
            vars += [
                RVar(names[1], 0, factor),
                RVar(names[0], 0, -(-v.extent // factor)),
            ]
        else:
            vars.append(v)
    made = RDom([(v.min, v.extent) for v in vars], names=[v.name() for v in vars])
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
    order = iter([next(v for v in d.domain.vars if v.name() == name) for name in names])
    vars = [next(order) if v.name() in names else v for v in d.domain.vars]
    made = RDom([(v.min, v.extent) for v in vars], names=[v.name() for v in vars])
    return _over(
        d, made, {old.node: new.node for old, new in zip(vars, made.vars, strict=True)}
    )


def _over(d: Definition, made: RDom, env: dict[Any, Any]) -> Definition:
    """An update over another RDom, each old variable being what `env` has for it."""
    for condition in () if d.domain is None else d.domain.conditions:
        made.where(Expr(substitute(condition.node, env), condition.dtype))
    args = tuple(substitute(a, env) for a in d.args)
    values = tuple(substitute(v, env) for v in d.values)
    return Definition(args, values, made, d.reducer)


def _reduction(f: Func, definition: Definition, kept: Kept) -> Any:
    domain, combine = definition.domain, definition.reducer
    have = [] if domain is None else [v.name() for v in domain.vars]
    names, vars = [name for name, _ in kept], [v.name() for _, v in kept]
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
    """An RDom of its own over the ranges and names of `vars`, under the conditions of `source`."""
    made = RDom([(v.min, v.extent) for v in vars], names=[v.name() for v in vars])
    env = env | {old.node: new.node for old, new in zip(vars, made.vars, strict=True)}
    for condition in () if source is None else source.conditions:
        made.where(Expr(substitute(condition.node, env), condition.dtype))
    return made
