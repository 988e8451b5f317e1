"""Functions as terms: application to fresh variables, beta, equality up to names.

Rules are matched on *applied* terms: a composition becomes the function that applies its
parts to its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.ir.node import postorder, substitute
from tilewright.lift.infer import arity
from tilewright.lift.nodes import (
    AnyMap,
    AnyReduce,
    AnyScan,
    Apply,
    Builtin,
    Compose,
    Fun,
    Get,
    Lambda,
    Literal,
    Param,
    Part,
    PartRed,
    Term,
    To,
    Tuple,
    Zip,
    apply,
    free_params,
    lambda_,
)


def opened(fun: Fun, count: int = 1) -> tuple[tuple[Param, ...], Term]:
    """Parameters and body of `fun` as a function of `count` arguments.

    A function of several arguments also takes one tuple, and the other way round.
    """
    if isinstance(fun, Lambda) and len(fun.params) == count:
        return fun.params, fun.body
    if not isinstance(fun, Lambda):
        params = tuple(Param(f"x{n}" if n else "x", None) for n in range(count))
        if count > 1 and arity(fun) == 1:
            return params, _component(apply(fun, Tuple(params)))
        return params, apply(fun, *params)
    if count == 1:
        pair = Param("_".join(p.name for p in fun.params), None)
        components = {p: Get(n)(pair) for n, p in enumerate(fun.params)}
        return (pair,), put(fun.body, components)
    name = fun.params[0].name
    params = tuple(Param(f"{name}_{n}", None) for n in range(count))
    return params, put(fun.body, {fun.params[0]: Tuple(params)})


def put(part: Any, values: Mapping[Param, Term]) -> Any:
    """`part` with terms in place of parameters; components of known tuples are taken."""
    done: dict[Any, Any] = dict(values)
    for node in postorder(part):
        if node not in done:
            done[node] = _component(node.map(done.__getitem__))
    return done[part]


def _component(node: Any) -> Any:
    match node:
        case Apply(Get(position), (Tuple(items),)) if position < len(items):
            return items[position]
        case Apply(f, (Tuple(items),)) if (
            not isinstance(f, Lambda) and arity(f) == len(items) > 1
        ):
            return Apply(f, items)
    return node


def spread(term: Term) -> Term:
    """A map over a Zip, its function with one argument per array where it uses each alone."""
    match term:
        case Apply(AnyMap(Lambda((pair,), body)), (Apply(Zip(), args),)) if (
            len(args) > 1
        ):
            names = pair.name.split("_")
            if len(names) != len(args):
                names = [f"{pair.name}{n}" for n in range(len(args))]
            params = tuple(Param(name, None) for name in names)
            whole = Tuple(params)
            opened_body = put(body, {pair: whole})
            if whole not in set(postorder(opened_body)):
                return Apply(
                    term.fun.replace(f=abstraction(params, opened_body)), term.args
                )
    return term


def beta(fun: Fun, args: tuple[Term, ...]) -> Term:
    """`fun(args)`; a lambda is opened where no work is done twice by it, else it stays a let."""
    if isinstance(fun, Compose):
        value = beta(fun.funs[0], args)
        for f in fun.funs[1:]:
            value = beta(f, (value,))
        return value
    if not isinstance(fun, Lambda):
        return _component(Apply(fun, args))  # type: ignore[no-any-return]
    if len(fun.params) > 1 and len(args) == 1 and isinstance(args[0], Tuple):
        args = args[0].items
    if len(fun.params) == 1 and len(args) > 1:
        args = (Tuple(args),)
    elif len(fun.params) != len(args):
        (param,), body = opened(fun)
        fun = Lambda((param,), body)
    inlined: dict[Param, Term] = {}
    named: dict[Param, Term] = {}
    for p, a in zip(fun.params, args, strict=True):
        uses = _uses(fun.body, p)
        used_once = uses == 1 and _outside(fun.body, p)
        where = inlined if uses == 0 or used_once or is_cheap(a) else named
        where[p] = a
    body = put(fun.body, inlined)
    if not named:
        return body  # type: ignore[no-any-return]
    return Apply(Lambda(tuple(named), body), tuple(named.values()))


def is_cheap(term: Term) -> bool:
    """A variable, a number, or components of such: nothing to compute."""
    match term:
        case Param() | Literal():
            return True
        case Apply(Get(), (inner,)):
            return is_cheap(inner)
        case Tuple(items):
            return all(map(is_cheap, items))
    return False


def is_identity(fun: Fun) -> bool:
    """Whether a function returns its argument unchanged."""
    match fun:
        case Builtin(name):
            return name == "id"
        case Lambda((param,), body):
            return body is param
    return False


def _uses(part: Part, param: Param) -> int:
    """How often `param` occurs, every occurrence counted."""
    counts: dict[Any, int] = {}
    for node in postorder(part):
        if node is param:
            counts[node] = 1
        elif isinstance(node, Lambda):
            counts[node] = counts[node.body]
        else:
            counts[node] = sum(counts[c] for c in node.children())
    return counts[part]


def _outside(part: Part, param: Param) -> bool:
    """Whether `param` is used outside functions, which may run many times."""
    waiting: list[Any] = [part]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is param:
            return True
        if node in seen:
            continue
        seen.add(node)
        match node:
            case Apply(Lambda(_, body), args):
                waiting += (body, *args)
            case Apply(_, args) | Tuple(args):
                waiting += args
    return False


def abstraction(params: tuple[Param, ...], body: Term) -> Fun:
    """`Lambda(params, body)`, or `g` where the body is `g(params)` and g knows none of them."""
    if (
        isinstance(body, Apply)
        and body.args == params
        and len(set(params)) == len(params)
    ):
        if not free_params(body.fun) & set(params):
            return body.fun
    return Lambda(params, body)


def applied(part: Any, count: int = 1) -> Any:
    """`part` with every composition as a function (of `count` arguments) that applies its parts."""
    return _applied(part, count, {})


def _applied(part: Any, count: int, done: dict[Any, Any]) -> Any:
    """As `applied`; done: the results so far, by part and number of arguments."""

    def inner(part: Any, count: int = 1) -> Any:
        if (part, count) not in done:
            done[part, count] = _applied(part, count, done)
        return done[part, count]

    match part:
        case Compose():
            params, body = opened(part, count)
            return abstraction(params, inner(body))
        case Lambda(params, body):
            return abstraction(params, inner(body))
        case AnyReduce(f, init) | AnyScan(f, init) | PartRed(f, init):
            return part.replace(f=inner(f, 2), init=inner(init))
        case To(_, f):
            return part.replace(f=inner(f, count))
    if isinstance(part, Part):
        return part.map(inner)
    return part


def pointfree(part: Any) -> Any:
    """`part` with every function that only pipes its arguments as a composition: for the eye.

    One whose parameters have types keeps them.
    """
    done: dict[Any, Any] = {}
    for node in postorder(part):
        new = node.map(done.__getitem__)
        if isinstance(new, Lambda) and all(p.type is None for p in new.params):
            new = lambda_(new.params, new.body)
        done[node] = new
    return done[part]


def refreshed(part: Any) -> Any:
    """The same with new bound variables."""
    renamed: dict[Any, Any] = {}
    for node in postorder(part):
        if isinstance(node, Lambda):
            renamed |= {
                p: Param(p.name, p.type) for p in node.params if p not in renamed
            }
    return substitute(part, renamed)


_canonical: dict[tuple[int, object], Param] = {}


def key(part: Any) -> Any:
    """A node that two terms share exactly if they are equal up to the names of bound variables."""
    return _key(part, 0, {})


def _key(part: Any, depth: int, done: dict[Any, Any]) -> Any:
    """As `key`, `depth` bound variables down; done: the results so far, by part and depth."""
    if (part, depth) not in done:
        done[part, depth] = _renamed(part, depth, done)
    return done[part, depth]


def _renamed(part: Any, depth: int, done: dict[Any, Any]) -> Any:
    if isinstance(part, Lambda):
        names = {
            p: _canonical.setdefault(
                (depth + n, p.type), Param(f"p{depth + n}", p.type)
            )
            for n, p in enumerate(part.params)
        }
        fun = substitute(part, names)
        return Lambda(fun.params, _key(fun.body, depth + len(names), done))
    if isinstance(part, Part):
        return part.map(lambda c: _key(c, depth, done))
    return part


def same(a: Any, b: Any) -> bool:
    """Equality up to the names of bound variables."""
    return a is b or key(a) is key(b)
