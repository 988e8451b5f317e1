"""Checking rules: random well-typed instances of a rule, both sides interpreted.

Holes are integers only, so that equal means equal. An instance fills every hole of the left side:
types, then lengths that satisfy the conditions, then inputs for terms and functions made for their
types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, int64
from tilewright.base.errors import InputError, TilewrightError
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import INDEX, Expr, Var, const
from tilewright.ir.node import postorder
from tilewright.lift import nodes as n
from tilewright.lift.conditions import SideCondition
from tilewright.lift.infer import infer
from tilewright.lift.interp import interpret
from tilewright.lift.lambdas import abstraction, applied
from tilewright.lift.lengths import evaluate as number
from tilewright.lift.match import Bindings, FunHole, TermHole, TypeHole, fill, fill_type
from tilewright.lift.nodes import Fun, Lambda, Param, Part, Term, as_fun
from tilewright.lift.rule import Rule, RuleError, size_vars
from tilewright.lift.scalars import user_fun
from tilewright.lift.sites import site
from tilewright.lift.sizes import leaves
from tilewright.lift.types import Array, Scalar, TupleType, Type, Vector

INT = Scalar(int64)
PAIR = TupleType((INT, INT))
UNIT = n.Tuple((n.Literal(1, int64), n.Literal(0, int64)))
LARGEST = 9
TRIALS = 20  # instances of a new rule
ATTEMPTS = 300  # to draw one


@dataclass(frozen=True)
class RuleInstance:
    """A program whose body (or the part at `path`) is an instance of a rule's left side."""

    program: Lambda
    path: tuple[int, ...]
    sizes: Mapping[str, int]


def tried(rule: Rule) -> Rule:
    """The rule, checked on random instances. Raises RuleError with a counterexample."""
    for seed in range(TRIALS):
        check(rule, Random(seed))
    return rule


def check(rule: Rule, rng: Random) -> None:
    """Applies the rule to a random instance and compares types and values.

    Raises RuleError (TW-LIFT-WRONG) with the instance if they differ, or if none is found.
    """
    refusals = set()
    for _ in range(ATTEMPTS):
        made = instance(rule, rng)
        if made is None:
            continue
        try:
            after = rule.apply(site(made.program, made.path), made.sizes)
        except RuleError as error:
            # An operator that is not associative, say; or the left side was reduced when filled.
            refusals.add(error.message)
            continue
        if _compared(rule, made.program, after, rng):
            return
    why = f": {min(refusals)}" if refusals else ""
    raise _wrong(rule, f"no random program that it applies to was found{why}")


def _compared(
    rule: Rule,
    before: Lambda,
    after: Fun,
    rng: Random,
) -> bool:
    """Whether there are data for both sides; they agree then. Raises RuleError if they do not."""
    assert isinstance(after, Lambda)
    typing = infer(before)
    if infer(after).result is not typing.result:
        raise _wrong(rule, f"{before!r} becomes {after!r}, of another type")
    found = _results(before, typing.params, rng)
    if found is None:
        return False
    arrays, left = found
    right = interpret(after, *arrays)
    for x, y in zip(left, right, strict=True):
        if not _equal(x, y):
            given = ", ".join(str(a.tolist()) for a in arrays) or "nothing"
            expected = np.asarray(x).tolist()
            other = np.asarray(y).tolist()
            raise _wrong(
                rule,
                f"{before!r} of {given} is {expected}; "
                f"it becomes {after!r}, which is {other}",
            )
    return True


def _results(
    program: Lambda, params: Sequence[Type], rng: Random
) -> tuple[list[Any], tuple[Any, ...]] | None:
    """Random arrays for a program, and its results.

    If data are used as indices, they are small, and redrawn until all of them are valid indices;
    None if that fails.
    """
    takes = any(isinstance(part, n.Filter) for part in postorder(program))
    for _ in range(ATTEMPTS if takes else 1):
        least, most = (0, rng.randint(0, 2)) if takes else (-9, 9)
        arrays = []
        for t in params:
            for leaf in leaves(t):
                arrays.append(values(leaf.shape, rng, leaf.dtype, least, most))
        try:
            return arrays, interpret(program, *arrays)
        except InputError:
            if not takes:
                raise
    return None


def _equal(x: Any, y: Any) -> bool:
    """Floats may differ by a few roundings: sums in another order do."""
    a = np.asarray(x)
    b = np.asarray(y)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind == "f":
        return np.allclose(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)
    return np.array_equal(a, b)


def _wrong(rule: Rule, message: str) -> RuleError:
    return RuleError(message, where=f"rule {rule}", code="TW-LIFT-WRONG")


def values(
    shape: tuple[int, ...],
    rng: Random,
    dtype: DType = int64,
    least: int = -9,
    most: int = 9,
) -> Any:
    """Small random integers, as elements of a dtype."""
    numbers = np.random.default_rng(rng.randrange(2**32))
    drawn = numbers.integers(least, most + 1, shape, np.int64)
    return drawn.astype(dtype.numpy)


def refuse(rule: Rule, condition: SideCondition, rng: Random) -> None:
    """Applies the rule where one of its conditions fails and the others hold.

    Raises AssertionError if the rule is not refused by that condition.
    """
    for _ in range(ATTEMPTS):
        made = instance(rule, rng, against=condition)
        if made is None:
            continue
        try:
            rule.apply(site(made.program, made.path), made.sizes)
        except RuleError as error:
            if error.message.startswith(f"{condition} fails"):
                return
            continue
        raise AssertionError(f"{rule}: applied to {made.program!r} with {made.sizes}")
    raise AssertionError(f"{rule}: no instance breaks {condition}")


def instance(
    rule: Rule, rng: Random, against: SideCondition | None = None
) -> RuleInstance | None:
    """A random instance; None if the holes that were drawn do not fit together.

    against: a condition of the rule that must not hold.
    """
    found = Bindings()
    holes = [h for h in postorder(rule.left) if isinstance(h, TermHole | FunHole)]
    kind = "" if against is None else against.kind
    # An operator may be associative and not commutative, on pairs at least.
    of_types = type_holes(_sorts(holes))
    free = all(hole.kind == "any" for hole in of_types)
    pairs = kind == "commutative" and len(rule.when) > 1 and free
    for hole in of_types:
        found.types[hole] = _type(hole, kind, pairs, rng)
    sizes = draw_sizes(rule, rng, against)
    if sizes is None:
        return None
    found.sizes |= {v: const(size) for v, size in sizes.items()}
    if kind == "number" and against is not None:
        found.sizes[against.args[0]] = Var("unknown", INDEX)
    if pairs:
        for h in holes:
            if isinstance(h, FunHole):
                found.parts[h] = _AFFINE
            elif isinstance(h.type, TypeHole):
                found.parts[h] = UNIT
    elif kind in _BREAKING and against is not None:
        found.parts |= _BREAKING[kind](against, sizes)
    params = [_filled(hole, found, rng) for hole in holes]
    inputs = tuple(p for p in params if p is not None)
    try:
        program = Lambda(inputs, applied(fill(rule.left, found)))
        if infer(program).conditions:
            return None
    except TilewrightError:
        return None
    given = {v.name: sizes[v] for v in rule.parameters}
    made = RuleInstance(program, (len(inputs),), given)
    is_read = any(c.kind == "read" and c is not against for c in rule.when)
    if is_read or kind == "result":
        if not isinstance(infer(program).result, Array):
            return None
        made = _read(made, rng)
    return _nested(rule, made, sizes, against)


def _read(made: RuleInstance, rng: Random) -> RuleInstance:
    """The instance with its result, an array, read by a reduction."""
    t = infer(made.program).result
    assert isinstance(t, Array)
    acc = Param("acc", None)
    x = Param("x", None)
    sums = n.Reduce(
        Lambda((acc, x), acc + _digest(x, t.item, rng)), n.Literal(0, int64)
    )
    program = Lambda(made.program.params, made.program.body | sums)
    return RuleInstance(program, (*made.path[:1], 1, *made.path[1:]), made.sizes)


def _filled(hole: TermHole | FunHole, found: Bindings, rng: Random) -> Param | None:
    """Fills a hole; returns the parameter that represents it, if it is an input."""
    if isinstance(hole, FunHole):
        args = tuple(fill_type(t, found) for t in hole.args)
        made = _function(args, fill_type(hole.result, found), rng)
        found.parts.setdefault(hole, made)
        return None
    assert hole.type is not None
    t = fill_type(hole.type, found)
    if hole in found.parts:
        return None
    if not isinstance(t, Array) and rng.random() < 0.7:
        found.parts[hole] = _constant(t, rng)
        return None
    param = found.parts[hole] = Param(hole.name, t)
    return param


# -- conditions that fail


_AFFINE = as_fun(lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1]))


def _sub(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    return {f: n.Builtin("sub") for f in c.args if isinstance(f, FunHole)}


def _no_group(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    """Commutative, and not associative."""
    op = user_fun("op", lambda x, y: x * y + 1, int64, int64)
    return {f: op for f in c.args if isinstance(f, FunHole)}


def _first(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    """Associative, and without a neutral element."""
    params = (Param("p", None), Param("q", None))
    return {c.args[1]: Lambda(params, params[0])}


def _not_neutral(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    return {c.args[0]: n.Literal(5, int64), c.args[1]: n.Builtin("add")}


def _identity(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    return {c.args[0]: n.Builtin("id")}


def _unnamed(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    f = c.args[0]
    params = tuple(Param("pq"[k], None) for k in range(len(f.args)))
    return {f: Lambda(params, params[0] * params[-1] + 1)}


def _no_instruction(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    f = c.args[0]
    if len(f.args) == 1:
        return {f: n.Map(n.Builtin("neg"))}
    folds = f.args[0] is f.result
    if not folds:
        return {f: n.Zip()}
    difference = n.Map(n.Builtin("sub"))
    return {f: as_fun(lambda x, y: n.Zip()(x, y) | difference)}


def _flat(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    return {c.args[0]: n.Builtin("neg")}


def _holding(c: SideCondition, sizes: Any) -> dict[Part, Part]:
    """A function that holds a map of the forbidden kind."""
    hole, kinds, *axes = c.args
    kind = kinds[0]
    if kind is n.AnyMap or not issubclass(kind, n.AnyMap):
        kind = n.MapSeq
    negated = _on_axis(kind, n.Builtin("neg"), axes, sizes)
    p = Param("p", None)
    first = n.Iota(const(2)) | negated | n.At(const(0))
    return {hole: Lambda((p,), p + first)}


def _on_axis(kind: Any, f: Fun, axes: Sequence[Any], sizes: Any) -> Fun:
    """`kind(f)`, along the first of the axes where that kind of map has one; 0 by default."""
    made: Fun
    if "dim" in kind._fields:
        made = kind(f, sizes[axes[0]] if axes else 0)
    else:
        made = kind(f)
    return made


_BREAKING: Mapping[
    str, Callable[[SideCondition, Mapping[Var, int]], dict[Part, Part]]
] = {
    "associative": _no_group,
    "commutative": _sub,
    "neutral of": _first,
    "neutral": _not_neutral,
    "computes": _identity,
    "scalar": _unnamed,
    "instruction": _no_instruction,
    "holds": _flat,
    "holds no": _holding,
}


def _nested(
    rule: Rule,
    made: RuleInstance,
    sizes: Mapping[Var, int],
    against: SideCondition | None,
) -> RuleInstance:
    """The instance inside the map that its conditions require, or that violates one."""
    around = [c for c in rule.when if c.kind == "inside" and c is not against]
    if against is not None and against.kind == "outside":
        around.append(against)
    for condition in around:
        kinds, *axes = condition.args
        rows = Param("rows", Array(INT, const(2)))
        f = Lambda((Param("o", None),), made.program.body)
        params = (*made.program.params, rows)
        whole = rows | _on_axis(kinds[0], f, axes, sizes)
        path = (len(params), 0, 0, 1, *made.path[1:])
        made = RuleInstance(Lambda(params, whole), path, made.sizes)
    return made


# -- lengths


def draw_sizes(
    rule: Rule, rng: Random, against: SideCondition | None = None
) -> dict[Var, int] | None:
    """Lengths that satisfy the conditions on lengths; None if none were found."""
    free = size_vars([rule.left, rule.right, *rule.when])
    numbers = np.random.default_rng(rng.randrange(2**32))
    draws = numbers.integers(0, LARGEST + 1, (len(free), 6000))
    env = dict(zip(free, draws, strict=True))
    met = np.ones(6000, bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        for condition in (*rule.when, *implied(rule.left)):
            held = _met(condition, env)
            must_fail = condition is against and condition.kind in _LENGTHS
            met &= ~held if must_fail else held
    found = np.flatnonzero(met)
    if len(free) and not len(found):
        return None
    # Small numbers hold many special cases, so most draws shall not be zero.
    if len(free):
        best = max(found[:8], key=lambda k: int(np.count_nonzero(draws[:, k])))
    else:
        best = 0
    return {v: int(row[best]) for v, row in env.items()}


_LENGTHS = ("divides", "at most", "positive", "equal", "power", "among")


def _met(condition: SideCondition, env: Mapping[Any, Any]) -> Any:
    values = [evaluate(e, env) for e in condition.args if isinstance(e, Expr)]
    match condition.kind:
        case "divides":
            return (values[0] != 0) & (values[1] % np.maximum(values[0], 1) == 0)
        case "at most":
            return values[0] <= values[1]
        case "positive":
            return values[0] > 0
        case "equal":
            return values[0] == values[1]
        case "power":
            return (values[1] > 0) & (values[0] == values[1] ** values[2])
        case "among":
            return np.isin(values[0], condition.args[1])
    return True


def implied(left: Part) -> list[SideCondition]:
    """The requirements of a left side's patterns on the lengths written in them."""
    found = []
    for part in postorder(left):
        if isinstance(part, n.Apply) and isinstance(part.args[0], Param):
            t = part.args[0].type
            if isinstance(t, Array):
                found += _asked(part.fun, t.length)
    return found


def _asked(f: Fun, length: Expr) -> list[SideCondition]:
    match f:
        case n.Split(size) | n.AsVector(size) | n.PartRed(_, _, size):
            return [SideCondition("divides", (size, length))]
        case n.Gather(n.IndexFun("stride", (size,))) | n.Scatter(
            n.IndexFun("stride", (size,))
        ):
            return [SideCondition("divides", (size, length))]
        case n.Take(size) | n.Drop(size):
            return [SideCondition("at most", (size, length))]
        case n.Slide(size, step):
            return [
                SideCondition("positive", (step,)),
                SideCondition("at most", (size, length)),
                SideCondition("divides", (step, length - size)),
            ]
    return []


# -- types


def type_holes(types: Iterable[Type]) -> list[TypeHole]:
    """The holes in types, each once."""
    found: dict[TypeHole, None] = {}
    for t in types:
        match t:
            case TypeHole():
                found[t] = None
            case Array(item, _):
                found |= dict.fromkeys(type_holes([item]))
            case TupleType(items):
                found |= dict.fromkeys(type_holes(items))
            case Vector():
                found |= dict.fromkeys(type_holes([t.dtype]))  # type: ignore[list-item]
    return list(found)


def _sorts(holes: Iterable[Any]) -> list[Type]:
    found: list[Any] = []
    for hole in holes:
        if isinstance(hole, TermHole):
            found.append(hole.type)
        else:
            found += [*hole.args, hole.result]
    return found


def _type(
    hole: TypeHole,
    breaking: str,
    pairs: bool,
    rng: Random,
) -> Type:
    """A type for a hole, one on which the condition `breaking` can fail."""
    if breaking in ("instruction", "fits"):
        return Array(INT, const(12))
    if pairs:
        return PAIR
    if breaking in _BREAKING or hole.kind == "scalar":
        return INT
    return rng.choice([INT, INT, PAIR, Array(INT, const(rng.randint(1, 3)))])


# -- functions and values


OPERATORS: tuple[tuple[Any, int], ...] = (
    (n.Builtin("add"), 0),
    (n.Builtin("mul"), 1),
    (n.Builtin("max"), np.iinfo(np.int64).min),
    (n.Builtin("min"), np.iinfo(np.int64).max),
)


def _function(args: tuple[Type, ...], result: Type, rng: Random) -> Fun:
    """A function of these types, that tells its arguments apart."""
    combines = len(args) == 2 and all(t is result for t in args)
    if combines and rng.random() < 0.7:
        return _operator(result, rng)
    if all(t is INT for t in (*args, result)) and rng.random() < 0.5:
        if len(args) == 1:
            return n.Builtin("neg")
        return n.Builtin("sub")
    params = tuple(Param("pqrs"[k], None) for k in range(len(args)))
    made = abstraction(params, _made(result, list(zip(params, args, strict=True)), rng))
    # By name a function stays whole where it is applied.
    if rng.random() < 0.3:
        return n.DeviceOp("Op", (), made)
    return made


def _operator(t: Type, rng: Random) -> Fun:
    match t:
        case Scalar():
            return rng.choice(OPERATORS)[0]  # type: ignore[no-any-return]
        case Array(item, _):
            op = _operator(item, rng)
            return as_fun(lambda x, y: n.Zip()(x, y) | n.Map(op))
    return _AFFINE


def _made(t: Type, of: list[tuple[Term, Type]], rng: Random) -> Term:
    """A term of type `t` over others."""
    match t:
        case TupleType(items):
            return n.Tuple(tuple(_made(i, of, rng) for i in items))
        case Array(item, length):
            index = Param("i", None)
            made = _made(item, [*of, (index, INT)], rng)
            return n.Iota(length) | n.Map(abstraction((index,), made))
        case Vector(_, width):
            raise TilewrightError(f"no function to vectors of {width}")
    total: Term = n.Literal(rng.randint(-3, 3), int64)
    for term, kind in of:
        total = total * rng.choice([1, 2, -1]) + _digest(term, kind, rng)
    return total


def _digest(term: Term, t: Type, rng: Random) -> Term:
    """One number that depends on all of a value."""
    match t:
        case TupleType(items):
            parts = []
            for k, item in enumerate(items):
                parts.append(_digest(term[k], item, rng) * (k + 2))
            return sum(parts[1:], parts[0])
        case Array(item, length):
            if number(length, {}) == 0:
                return n.Literal(0, int64)
            each = as_fun(lambda acc, x: acc * 3 + _digest(x, item, rng))
            return term | n.Reduce(each, n.Literal(1, int64)) | n.At(const(0))
        case Vector():
            raise TilewrightError("a vector has no digest")
    return term


def _constant(t: Type, rng: Random) -> Term:
    """A constant, often the neutral element of an operator of OPERATORS."""
    match t:
        case TupleType(items) if all(i is INT for i in items) and rng.random() < 0.7:
            return UNIT
        case TupleType(items):
            return n.Tuple(tuple(_constant(i, rng) for i in items))
        case Array(item, length):
            return n.Fill(_constant(item, rng), length)
    return n.Literal(rng.choice([z for _, z in OPERATORS] + [2, -1]), int64)
