"""transform_layout: at which index of a buffer an element is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

from tilewright.base.errors import InputError
from tilewright.compute.isl import Domain, IslLimitReached, IslTranslator, sample
from tilewright.expr.bounds import bounds
from tilewright.expr.nodes import INDEX, Buffer, Expr, Var, as_expr, const
from tilewright.expr.python import evaluate, scope, show
from tilewright.ir.node import substitute
from tilewright.loops.analysis.access import Env, Index, accesses
from tilewright.loops.analysis.lemmas import agreeing
from tilewright.loops.nodes import Kernel, Store
from tilewright.loops.walk import StatementPlace
from tilewright.schedule import tree
from tilewright.schedule.legality import refuse_buffer
from tilewright.schedule.registry import primitive_with
from tilewright.schedule.staging import rebuffered


def own_buffer(kernel: Kernel, name: str, verb: str) -> tuple[Buffer, StatementPlace]:
    """The buffer and the place of its Alloc. Raises ScheduleError for a parameter."""
    buffer, place = tree.find_buffer(kernel, name, verb)
    if place is None:
        raise refuse_buffer(
            verb,
            name,
            "the buffer is a parameter, whose layout is the caller's",
            "stage it in a buffer of your own with cache_read or cache_write",
        )
    return buffer, place


def written(index_map: str | Callable[..., Any]) -> str:
    """The text of a map of indices, which may be given as a function."""
    if isinstance(index_map, str):
        return index_map
    names = list(signature(index_map).parameters)
    found = index_map(*(Var(name, INDEX) for name in names))
    index = found if isinstance(found, tuple) else (found,)
    parts = ", ".join(show(as_expr(i, INDEX)) for i in index)
    return f"lambda {', '.join(names)}: ({parts}{',' if len(index) == 1 else ''})"


@primitive_with(as_text={"index_map": written})
def transform_layout(
    kernel: Kernel, buffer: str, index_map: str | Callable[..., Any]
) -> tuple[Kernel, None]:
    """Keep each element of an allocated buffer at another index.

    args: the buffer; the new index of an element as a function of the old one, or its text.
    requires: the buffer is allocated in the kernel; the map takes one index per dimension, gives
        no negative index, and no index to two elements (index-term lemma, else isl).
    The new shape is what the new indices need; where factors do not divide, some elements of it
    are never used. Loops stay unchanged.
    before: alloc b[48, 10]: b[i, j] = ...
    after:  alloc b[3, 10, 16]: b[i // 16, j, i % 16] = ...     lambda i, j: (i // 16, j, i % 16)
    """
    old, place = own_buffer(kernel, buffer, "transform_layout")
    vars_, index = _mapped(old, written(index_map))
    env: Env = {}
    for v, extent in zip(vars_, old.shape, strict=True):
        env[v] = (0, max(extent - 1, 0))
    shape: list[int] = []
    for i in index:
        low, high = bounds(i, env)
        if low is None or high is None or low < 0:
            raise refuse_buffer(
                "transform_layout",
                buffer,
                f"{i!r} is in {low}..{high}, not known to be an index",
                "take indices from 0 on",
            )
        shape.append(high + 1)
    _check_one_to_one(old, vars_, index, env)

    def move(at: Index) -> Index:
        point: dict[Any, Any] = dict(zip(vars_, at, strict=True))
        return tuple(substitute(i, point) for i in index)

    new = Buffer(old.name, tuple(shape), old.dtype, old.scope)
    return rebuffered(kernel, place, new, move), None


def _mapped(buffer: Buffer, text: str) -> tuple[tuple[Var, ...], tuple[Expr, ...]]:
    """The variables of the old index and the new one as expressions over them."""
    vars_ = tuple(Var(f"i{d}", INDEX) for d in range(len(buffer.shape)))
    try:
        found: Any = evaluate(text, scope())(*vars_)
        index = found if isinstance(found, tuple) else (found,)
        if all(isinstance(i, Expr) and i.dtype is INDEX for i in index):
            return vars_, index
        reason = "it does not give indices"
    except (InputError, TypeError) as error:
        reason = str(error)
    raise refuse_buffer(
        "transform_layout",
        buffer.name,
        f"{text!r} is not a map of {len(vars_)} indices: {reason}",
        "such as 'lambda i, j: (i // 16, j, i % 16)'",
    )


def _check_one_to_one(
    buffer: Buffer, vars_: Sequence[Var], index: tuple[Expr, ...], env: Env
) -> None:
    (at,) = accesses(Store(buffer, index, const(0, buffer.dtype)), env)
    if agreeing(at, at, vars_) == frozenset(vars_):
        return
    domain = Domain()
    points = [IslTranslator(domain, {}, env) for _ in range(2)]
    for p in points:
        p.names.update({v: domain.variable(*env[v]) for v in vars_})
    for i in index:
        domain.require(f"{points[0].expr(i)} = {points[1].expr(i)}")
    different = " or ".join(
        f"{points[0].names[v]} != {points[1].names[v]}" for v in vars_
    )
    try:
        found = sample(domain, [different or "false"])
    except IslLimitReached:
        found = []
    if found is None:
        return
    values = dict(zip(domain.names, found, strict=False))
    what = "two elements may be"
    if domain.exact and values:
        one, two = ([values[p.names[v]] for v in vars_] for p in points)
        what = f"{buffer.name}{one} and {buffer.name}{two} would be"
    raise refuse_buffer(
        "transform_layout",
        buffer.name,
        f"{what} at one index",
        "use each part of the old index once",
    )
