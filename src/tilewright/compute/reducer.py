"""Combine operators of reductions: the associative operator of `pw(op)` and `ps(op)`.

A Reducer works on a tuple of components (one for sum, two for argmax: value and index). Its
`combine` is an expression over two groups of variables, so that every layer (laws, interpreter,
code generator) reads the same definition.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.expr.nodes import (
    Add,
    And,
    Call,
    Const,
    Eq,
    Expr,
    Le,
    Lt,
    Max,
    Min,
    Mul,
    Not,
    Or,
    Select,
    Var,
    Xor,
    const,
)
from tilewright.ir.node import substitute


@dataclass(frozen=True, eq=False, slots=True)
class Reducer:
    """An associative operator on tuples of scalars.

    lhs, rhs: one variable per component; result: the combined components over those variables;
    identity: the neutral element per component; commutative: whether operands may be swapped.
    """

    name: str
    lhs: tuple[Var, ...]
    rhs: tuple[Var, ...]
    result: tuple[Expr, ...]
    identity: tuple[Const, ...]
    commutative: bool = True

    @property
    def dtypes(self) -> tuple[DType, ...]:
        """Accumulator dtype of each component."""
        return tuple(v.dtype for v in self.lhs)

    def combine(
        self,
        lhs: tuple[Expr, ...],
        rhs: tuple[Expr, ...],
    ) -> tuple[Expr, ...]:
        """The components of `lhs (op) rhs`."""
        variables = (*self.lhs, *self.rhs)
        operands = (*lhs, *rhs)
        env: dict[object, object] = dict(zip(variables, operands, strict=True))
        return tuple(substitute(r, env) for r in self.result)

    def does_as(self, other: Reducer) -> bool:
        """Whether both have equal operators and identities, regardless of their names."""
        if self is other:
            return True
        if self.dtypes != other.dtypes or self.identity != other.identity:
            return False
        return self.combine(other.lhs, other.rhs) == other.result

    def __repr__(self) -> str:
        return self.name


def _zero(dtype: DType) -> Const:
    return const(0, dtype)


def _lowest(dtype: DType) -> Const:
    return const(float("-inf") if dtype.is_float else dtype.min, dtype)


def _highest(dtype: DType) -> Const:
    return const(float("inf") if dtype.is_float else dtype.max, dtype)


def _larger(a: Expr, b: Expr) -> Expr:
    return Select(Lt(a, b), b, a)


def _all_ones(dtype: DType) -> Const:
    """The integer or truth value all of whose bits are set."""
    return const(-1 if dtype.min < 0 else dtype.max, dtype)


_BINARY: dict[str, tuple[Callable[[Expr, Expr], Expr], Callable[[DType], Const]]] = {
    "add": (Add, _zero),
    "mul": (Mul, lambda t: const(1, t)),
    "max": (Max, _lowest),
    "max_number": (_larger, _lowest),
    "min": (Min, _highest),
    "and": (And, _all_ones),
    "or": (Or, _zero),
    "xor": (Xor, _zero),
}

STANDARD = frozenset(_BINARY)  # the names of `reducer`

_cache: dict[tuple[object, ...], Reducer] = {}


def reducer(name: str, dtype: DType) -> Reducer:
    """The reducer `add mul max max_number min and or xor` of one component, of dtype `dtype`.

    max and min return NaN if an operand is NaN; max_number ignores NaNs.
    """
    key = (name, dtype)
    if key not in _cache:
        combine, identity = _BINARY[name]
        a = Var("a", dtype)
        b = Var("b", dtype)
        _cache[key] = Reducer(
            name,
            (a,),
            (b,),
            (combine(a, b),),
            (identity(dtype),),
        )
    return _cache[key]


def is_sum(op: Reducer) -> bool:
    """Whether the operator adds numbers, regardless of its name."""
    return len(op.dtypes) == 1 and op.does_as(reducer("add", op.dtypes[0]))


def arg_reducer(
    name: str,
    dtype: DType,
    index: DType,
    last: bool = False,
) -> Reducer:
    """`argmax`/`argmin` on (value, index): the first (or last) index of the extreme value.

    A NaN counts as the extreme (NumPy's rule); equal values are settled by the index, which makes
    the operator commutative.
    """
    key = (name, dtype, index, last)
    if key in _cache:
        return _cache[key]
    a = Var("a", dtype)
    i = Var("i", index)
    b = Var("b", dtype)
    j = Var("j", index)
    better: Expr = Lt(b, a) if name == "argmax" else Lt(a, b)
    tie: Expr = Eq(a, b)
    if dtype.is_float:
        tie = Or(tie, _both_nan(a, b))
        better = Or(better, And(_nan(a), Eq(b, b)))
    first = Lt(j, i) if last else Lt(i, j)
    left = Or(better, And(tie, first))
    worst = _lowest(dtype) if name == "argmax" else _highest(dtype)
    far = const(max(-1, index.min) if last else index.max, index)
    _cache[key] = Reducer(
        name,
        lhs=(a, i),
        rhs=(b, j),
        result=(Select(left, a, b), Select(left, i, j)),
        identity=(worst, far),
    )
    return _cache[key]


def in_order(op: Reducer) -> Reducer | None:
    """The operator of `arg_reducer` where the right index is the later one: it is the greater one,
    and the left operand is no identity. None for any other operator.

    Equal to `op` for such operands, without a comparison of indices, so it does not commute.
    """
    if len(op.dtypes) != 2 or not op.dtypes[1].is_int or op.dtypes[0].is_bool:
        return None
    for name in ("argmax", "argmin"):
        for last in (False, True):
            if op.does_as(arg_reducer(name, *op.dtypes, last)):
                return _in_order(op, name, last)
    return None


def _in_order(op: Reducer, name: str, last: bool) -> Reducer:
    """Of two equal values, the right one is the `last`, the left one the first."""
    key = (name, *op.dtypes, last, "in order")
    if key in _cache:
        return _cache[key]
    (a, i), (b, j) = op.lhs, op.rhs
    old, new = (b, a) if last else (a, b)  # whether `new` is better, and no tie
    less: Expr = Lt(old, new) if name == "argmax" else Lt(new, old)
    if op.dtypes[0].is_float:  # or it is a NaN, as is known where the others compare
        no_more = Le(new, old) if name == "argmax" else Le(old, new)
        less = And(Not(no_more), Eq(old, old))
    left = less if last else Not(less)
    _cache[key] = Reducer(
        f"{name}_in_order",
        op.lhs,
        op.rhs,
        (Select(left, a, b), Select(left, i, j)),
        op.identity,
        commutative=False,
    )
    return _cache[key]


def paired(first: Reducer, second: Reducer) -> Reducer:
    """Both operators as one: its components are the first one's, then the second one's."""
    types = (*first.dtypes, *second.dtypes)
    lhs = tuple(Var(f"a{n}", t) for n, t in enumerate(types))
    rhs = tuple(Var(f"b{n}", t) for n, t in enumerate(types))
    cut = len(first.dtypes)
    return Reducer(
        f"{first.name}_{second.name}",
        lhs,
        rhs,
        (
            *first.combine(lhs[:cut], rhs[:cut]),
            *second.combine(lhs[cut:], rhs[cut:]),
        ),
        (*first.identity, *second.identity),
        first.commutative and second.commutative,
    )


def _nan(x: Expr) -> Expr:
    return Call("isnan", (x,))


def _both_nan(a: Expr, b: Expr) -> Expr:
    return And(_nan(a), _nan(b))
