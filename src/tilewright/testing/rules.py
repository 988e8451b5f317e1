"""Checks rewrite rules on expressions by two independent judges: small values, and z3.

`check` evaluates both sides with the interpreter at every small value of the holes, and runs the
compiled rule. `prove` uses z3 (the extra `test`): integers as bit vectors, indices as unbounded
integers, floats as IEEE numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.base import dtypes
from tilewright.base.dtypes import DType
from tilewright.expr import nodes
from tilewright.expr.fold import wrap
from tilewright.expr.interp import evaluate
from tilewright.expr.nodes import Const, Expr, Select, Var, const
from tilewright.expr.patterns import ANY, BOOL, FLOAT, IDX, INT, Hole
from tilewright.ir.node import postorder, substitute
from tilewright.ir.rewrite import Rule, RuleSet

# The dtypes that represent a sort when a rule is checked.
_EXAMPLES: dict[DType, tuple[DType, ...]] = {
    INT: (dtypes.int8, dtypes.uint8),
    IDX: (dtypes.int64,),
    FLOAT: (dtypes.float32, dtypes.float16),
    ANY: (dtypes.int8, dtypes.float32, dtypes.bool_),
    BOOL: (dtypes.bool_,),
}
_FLOATS = (0.0, -0.0, 1.0, -1.5, 3.0, float("inf"), float("-inf"), float("nan"))


def hole_list(rule: Rule) -> list[Hole]:
    """The holes of a rule's left side, in order of first use."""
    return [h for h in postorder(_left(rule)) if isinstance(h, Hole)]


def check(rule: Rule, family: Any) -> int:
    """Compares both sides of a rule of two patterns on small values; how many values agreed.

    Raises AssertionError with the values at which the sides differ.
    """
    total = 0
    for types in _typings(rule):
        total += _check_sides(rule, types)
        _check_compiled(rule, types, family)
    return total


def _left(rule: Rule) -> Expr:
    assert isinstance(rule.left, Expr), f"{rule.name}: the left side is not a pattern"
    return rule.left


def _typings(rule: Rule) -> Iterator[Mapping[DType, DType]]:
    nodes_of = [n for n in postorder(_left(rule)) if isinstance(n, Expr)]
    sorts = list(dict.fromkeys(n.dtype for n in nodes_of if n.dtype in _EXAMPLES))
    for choice in itertools.product(*(_EXAMPLES[s] for s in sorts)):
        yield dict(zip(sorts, choice, strict=True))


def _typed(
    e: Any,
    types: Mapping[DType, DType],
    holes: Mapping[Hole, Expr],
) -> Expr:
    """A pattern with its holes filled and its literals in a concrete dtype."""
    literals = {n: _literal(n, types) for n in postorder(e) if isinstance(n, Const)}
    return substitute(e, {**holes, **literals})  # type: ignore[no-any-return]


def _literal(e: Const, types: Mapping[DType, DType]) -> Const:
    dtype = types.get(e.type, e.type)
    if dtype.kind == "uint":
        return const(wrap(int(e.value.real), dtype), dtype)
    return const(e.value, dtype)


def _values(dtype: DType, radius: int) -> Sequence[Any]:
    if dtype.is_bool:
        return False, True
    if dtype.is_float:
        return _FLOATS
    if dtype.bits == 8 and radius > 3:
        low = int(dtype.min)
        high = int(dtype.max)
        near = range(max(-4, low), 5)
        return sorted({low, low + 1, *near, high - 1, high})
    return range(max(-radius, int(dtype.min)), radius + 1)


def _check_sides(rule: Rule, types: Mapping[DType, DType]) -> int:
    holes = hole_list(rule)
    variables = {h: Var(h.name, types[h.dtype]) for h in holes}
    left = _typed(rule.left, types, variables)
    right = _typed(rule.right, types, variables)
    radius = _RADIUS.get(len(holes), 3)
    dtypes_ = [types[h.dtype] for h in holes]
    grid = _grid(dtypes_, radius)
    env = {variables[h]: g for h, g in zip(holes, grid, strict=True)}
    applies = _where(rule, holes, grid)
    a, b = np.broadcast_arrays(evaluate(left, env), evaluate(right, env))
    right_or_void = _same(a, b) | ~applies
    if not np.all(right_or_void):
        n = int(np.argmin(np.broadcast_to(right_or_void, applies.shape)))
        values = [f"{h.name}={g[n]}" for h, g in zip(holes, grid, strict=True)]
        at = ", ".join(values)
        raise AssertionError(f"rule {rule} is wrong on {dict(types)} at {at}")
    return int(applies.sum())


# How far from 0 integers are tried, by the number of holes.
_RADIUS = {0: 9, 1: 9, 2: 9, 3: 9, 4: 6, 5: 4}


def _grid(dtypes_: Sequence[DType], radius: int) -> list[Any]:
    """All combinations of small values of these dtypes, as an array for each."""
    axes = [np.array(_values(t, radius), t.numpy) for t in dtypes_]
    return [g.ravel() for g in np.meshgrid(*axes, indexing="ij")]


def _where(
    rule: Rule,
    holes: Sequence[Hole],
    grid: Sequence[Any],
) -> Any:
    """The points where all conditions hold; they compute with unbounded integers, here int64."""
    env: dict[Var, Any] = {}
    filled: dict[Hole, Expr] = {}
    for h, g in zip(holes, grid, strict=True):
        if h.kind == "const" and not h.dtype.is_float:
            v = Var(h.name, dtypes.int64)
            env[v] = g.astype(np.int64)
            filled[h] = v
    wide = dict.fromkeys((INT, IDX, ANY), dtypes.int64)
    result = np.ones(grid[0].shape if grid else (1,), bool)
    for guard in rule.when:
        result &= evaluate(_typed(guard, wide, filled), env)
    return result


def _same(a: Any, b: Any) -> Any:
    """Equal bit for bit, except that every NaN is the same."""
    if a.dtype.kind != "f":
        return np.equal(a, b)
    equal = np.equal(a, b) & (np.signbit(a) == np.signbit(b))
    both_nan = np.isnan(a) & np.isnan(b)
    return equal | both_nan


def _check_compiled(
    rule: Rule,
    types: Mapping[DType, DType],
    family: Any,
    tries: int = 12,
) -> None:
    """The compiled row fires on instances of its left side and gives an equal expression."""
    function = RuleSet("one", (rule,), family).at_root
    holes = hole_list(rule)
    for constants in _constants(rule, holes, types, tries):
        filled: dict[Hole, Expr] = {}
        for h in holes:
            fixed = constants.get(h)
            filled[h] = Var(h.name, types[h.dtype]) if fixed is None else fixed
        left = _typed(rule.left, types, filled)
        result = function(left)
        assert result is not None, f"rule {rule} does not fire on {left}"
        assert result.dtype is left.dtype, (
            f"rule {rule} changes {left.dtype} to {result.dtype}"
        )
        free = [v for v in filled.values() if isinstance(v, Var)]
        dtypes_ = [v.dtype for v in free]
        grid = _grid(dtypes_, 9)
        env = dict(zip(free, grid, strict=True))
        a, b = np.broadcast_arrays(evaluate(left, env), evaluate(result, env))
        assert np.all(_same(a, b)), f"rule {rule}: {left} became {result}"


def _constants(
    rule: Rule,
    holes: Iterable[Hole],
    types: Mapping[DType, DType],
    tries: int,
) -> Iterator[dict[Hole, Const]]:
    """Values of the constant holes for which the conditions hold, a random few of them."""
    wanted = [h for h in holes if h.kind == "const"]
    if not wanted:
        yield {}
        return
    dtypes_ = [types[h.dtype] for h in wanted]
    grid = _grid(dtypes_, 4)
    possible = np.flatnonzero(_where(rule, wanted, grid))
    assert len(possible), f"rule {rule}: no small constants satisfy its conditions"
    rng = np.random.default_rng(0)
    for n in rng.permutation(possible)[:tries]:
        yield {h: const(g[n], types[h.dtype]) for h, g in zip(wanted, grid)}


# -- z3


def prove(rule: Rule, timeout_ms: int = 400) -> str:
    """How z3 proved a rule of two patterns: "proved", or "proved for small constants".

    The second: for each choice of small constants, for every value of the other holes (integer
    division by a variable is beyond the solver). Raises AssertionError with a counterexample, or
    when not even that is decided.
    """
    outcome = "proved"
    for types in _z3_typings(rule):
        if _proved(rule, types, {}, timeout_ms):
            continue
        outcome = "proved for small constants"
        wide: dict[DType, DType] = dict.fromkeys((IDX, INT), dtypes.int64)
        wide[BOOL] = BOOL
        holes = hole_list(rule)
        for constants in _constants(rule, holes, wide, 12):
            fixed = {h: int(c.value.real) for h, c in constants.items()}
            decided = _proved(rule, types, fixed, timeout_ms)
            assert decided, f"rule {rule}: undecided at {fixed}"
    return outcome


def _z3_typings(rule: Rule) -> Iterator[dict[DType, str]]:
    kinds = {
        INT: ("int8", "uint8"),
        IDX: ("unbounded",),
        FLOAT: ("float",),
        ANY: ("int8", "float"),
        BOOL: ("bool",),
    }
    parts = [n for n in postorder(_left(rule)) if isinstance(n, Expr)]
    sorts = list(dict.fromkeys(n.dtype for n in parts))
    for choice in itertools.product(*(kinds[s] for s in sorts)):
        yield {BOOL: "bool", **dict(zip(sorts, choice, strict=True))}


def _proved(
    rule: Rule,
    types: Mapping[DType, str],
    fixed: Mapping[Hole, int],
    timeout_ms: int,
) -> bool:
    """True: holds always; False: not decided. Raises AssertionError with a counterexample."""
    import z3

    variables: dict[Any, Any] = {}
    for h in hole_list(rule):
        if h in fixed:
            variables[h] = z3.IntVal(fixed[h])
            continue
        kind = types[h.dtype]
        variables[h] = _z3_variable(h.name, kind)
    solver = z3.Solver()
    solver.set("timeout", timeout_ms)
    for guard in rule.when:
        solver.add(_to_z3(guard, variables, types))
    left = _to_z3(rule.left, variables, types)
    right = _to_z3(rule.right, variables, types)
    solver.add(left != right)
    verdict = solver.check()
    if verdict == z3.sat:
        counterexample = solver.model()
        raise AssertionError(f"rule {rule} is wrong on {dict(types)}: {counterexample}")
    return bool(verdict == z3.unsat)


def _z3_variable(name: str, kind: str) -> Any:
    import z3

    makers: dict[str, Callable[[str], Any]] = {
        "int8": lambda n: z3.BitVec(n, 8),
        "uint8": lambda n: z3.BitVec(n, 8),
        "unbounded": z3.Int,
        "float": lambda n: z3.FP(n, z3.Float16()),
        "bool": z3.Bool,
    }
    return makers[kind](name)


def _to_z3(
    root: Any,
    variables: Mapping[Any, Any],
    types: Mapping[DType, str],
) -> Any:
    done: dict[Any, Any] = dict(variables)
    e: Any
    for e in postorder(root):
        if e not in done:
            if isinstance(e, nodes.Binary):
                operand = e.lhs.dtype
            else:
                operand = e.dtype
            args = [done[c] for c in e.children()]
            kind = types.get(operand, "unbounded")
            done[e] = _z3_node(e, kind, args)
    return done[root]


def _z3_node(
    e: Any,
    kind: str,
    args: list[Any],
) -> Any:
    import z3

    if isinstance(e, Const):
        literals: dict[str, Callable[[Any], Any]] = {
            "int8": lambda v: z3.BitVecVal(v, 8),
            "uint8": lambda v: z3.BitVecVal(v, 8),
            "unbounded": z3.IntVal,
            "float": lambda v: z3.FPVal(v, z3.Float16()),
            "bool": z3.BoolVal,
        }
        return literals[kind](e.value)
    if isinstance(e, Select):
        return z3.If(*args)
    return _z3_table(kind)[type(e)](*args)


def _z3_table(kind: str) -> dict[type[Expr], Callable[..., Any]]:
    """The z3 meaning of each node on values of one kind."""
    import z3

    table: dict[type[Expr], Callable[..., Any]] = {
        nodes.Add: lambda a, b: a + b,
        nodes.Sub: lambda a, b: a - b,
        nodes.Mul: lambda a, b: a * b,
        nodes.Neg: lambda a: -a,
        nodes.Eq: lambda a, b: a == b,
        nodes.Ne: lambda a, b: a != b,
        nodes.Lt: lambda a, b: a < b,
        nodes.Le: lambda a, b: a <= b,
    }
    if kind == "bool":
        table |= {
            nodes.And: z3.And,
            nodes.Or: z3.Or,
            nodes.Xor: z3.Xor,
            nodes.Not: z3.Not,
        }
    elif kind == "float":
        table |= {
            nodes.Eq: z3.fpEQ,
            nodes.Ne: z3.fpNEQ,
            nodes.Div: lambda a, b: a / b,
        }
    elif kind == "unbounded":
        table[nodes.FloorDiv] = _floor_div
        table[nodes.Mod] = lambda a, b: z3.If(b == 0, 0, a - b * _floor_div(a, b))
    else:
        table |= _bit_vectors(signed=kind == "int8")
    less = table[nodes.Lt]
    table[nodes.Min] = lambda a, b: z3.If(less(b, a), b, a)
    table[nodes.Max] = lambda a, b: z3.If(less(a, b), b, a)
    return table


def _floor_div(a: Any, b: Any) -> Any:
    """z3 divides so that the remainder is not negative: floor for positive divisors only."""
    import z3

    otherwise = (-a) / (-b)
    quotient = z3.If(b > 0, a / b, otherwise)
    return z3.If(b == 0, 0, quotient)


def _bit_vectors(signed: bool) -> dict[type[Expr], Callable[..., Any]]:
    import z3

    def total(f: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda a, b: z3.If(b == 0, z3.BitVecVal(0, 8), f(a, b))

    def rounds_up(remainder: Any, b: Any) -> Any:
        """Whether the quotient, rounded towards zero, is above the exact one."""
        return z3.And(remainder != 0, (remainder < 0) != (b < 0))

    def floor(a: Any, b: Any) -> Any:
        quotient = a / b
        condition = rounds_up(z3.SRem(a, b), b)
        return z3.If(condition, quotient - 1, quotient)

    def modulo(a: Any, b: Any) -> Any:
        remainder = z3.SRem(a, b)
        condition = rounds_up(remainder, b)
        return z3.If(condition, remainder + b, remainder)

    both: dict[type[Expr], Callable[..., Any]] = {
        nodes.And: lambda a, b: a & b,
        nodes.Or: lambda a, b: a | b,
        nodes.Xor: lambda a, b: a ^ b,
        nodes.Not: lambda a: ~a,
        nodes.Shl: lambda a, b: a << b,
    }
    if signed:
        return both | {
            nodes.Div: total(lambda a, b: a / b),
            nodes.Rem: total(z3.SRem),
            nodes.FloorDiv: total(floor),
            nodes.Mod: total(modulo),
            nodes.Shr: lambda a, b: a >> b,
        }
    return both | {
        nodes.Lt: z3.ULT,
        nodes.Le: z3.ULE,
        nodes.Div: total(z3.UDiv),
        nodes.Rem: total(z3.URem),
        nodes.FloorDiv: total(z3.UDiv),
        nodes.Mod: total(z3.URem),
        nodes.Shr: z3.LShR,
    }
