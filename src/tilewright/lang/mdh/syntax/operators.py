"""Combine operators: `cc`, `pw(op)`, `ps(op)`, and the associative operators they take.

An operator is defined on scalars of any dtype; when a `md_hom` is built, it becomes a Reducer of
the accumulators' dtypes and is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import InputError
from tilewright.compute.nodes import CC, PS, PW
from tilewright.compute.operator import checked, takes
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import Expr, Var, as_expr, const


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class Operator:
    """An associative operator; called on two expressions it is the scalar function too.

    make: its Reducer for the accumulators' dtypes, one per component.
    """

    name: str
    make: Callable[[tuple[DType, ...]], Reducer]
    made: dict[tuple[DType, ...], Reducer] = field(default_factory=dict, init=False)

    def reducer(self, dtypes: Sequence[DType]) -> Reducer:
        """The Reducer for accumulators of these dtypes; always the same object."""
        key = tuple(dtypes)
        if key not in self.made:
            self.made[key] = self.make(key)
        return self.made[key]

    def __call__(self, a: Any, b: Any) -> Expr:
        known = a if isinstance(a, Expr) else b
        if not isinstance(known, Expr):
            raise InputError(
                f"{a!r} and {b!r} are both numbers",
                where=f"operator {self.name}",
                hint="one of them must be an expression, which determines the dtype",
            )
        operands = as_expr(a, known.dtype), as_expr(b, known.dtype)
        return self.reducer((known.dtype,)).combine((operands[0],), (operands[1],))[0]

    def __repr__(self) -> str:
        return self.name


def _components(name: str, dtypes: tuple[DType, ...], count: int) -> None:
    if len(dtypes) != count:
        raise InputError(
            f"it combines {count} component(s), {len(dtypes)} given",
            code="TW-OPERATOR",
            where=f"operator {name}",
            hint="the scalar function must return one value per component of the operator",
        )


def _single(name: str) -> Operator:
    def make(dtypes: tuple[DType, ...]) -> Reducer:
        _components(name, dtypes, 1)
        return reducer(name.rstrip("_"), dtypes[0])

    return Operator(name, make)


def _arg(name: str) -> Operator:
    def make(dtypes: tuple[DType, ...]) -> Reducer:
        _components(name, dtypes, 2)
        return arg_reducer(name, dtypes[0], dtypes[1])

    return Operator(name, make)


OPERATORS: Final = {
    **{
        name: _single(name)
        for name in ("add", "mul", "max", "min", "and_", "or_", "xor")
    },
    **{name: _arg(name) for name in ("argmax", "argmin")},
}


def scalar_function() -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator of a scalar function, as MDH has it; any function will do."""
    return lambda function: function


def pw_custom_func(
    function: Callable[[Any, Any], Any] | None = None,
    *,
    identity: Any,
    commutative: bool | None = None,
    samples: Sequence[Sequence[Any]] | None = None,
    name: str | None = None,
) -> Any:
    """An operator of your own; a decorator, or a function of the operator's function.

    function: of two operands, which are expressions, or tuples of them for several components;
    returns the combined components. identity: the neutral element, a number per component.
    commutative: a promise; None: test it. samples: values that occur per component, if the operator
    is associative on these only (the default: small numbers of each dtype; `()`: test nothing, it
    is known to be right).

    Checked on all triples of sample values at first use. Raises InputError (TW-OPERATOR):
    immediately for a wrong number of operands; with a counterexample for an operator that is not
    associative, a wrong identity, or a false promise of commutativity.
    """
    if function is None:
        return lambda f: pw_custom_func(
            f, identity=identity, commutative=commutative, samples=samples, name=name
        )
    label = name or getattr(function, "__name__", "op").replace("<lambda>", "op")
    takes(function, 2, f"operator {label}")
    start = identity if isinstance(identity, tuple) else (identity,)

    def make(dtypes: tuple[DType, ...]) -> Reducer:
        _components(label, dtypes, len(start))
        lhs = tuple(Var(f"a{n}", t) for n, t in enumerate(dtypes))
        rhs = tuple(Var(f"b{n}", t) for n, t in enumerate(dtypes))
        several = isinstance(identity, tuple)
        if several:
            value = function(lhs, rhs)
        else:
            value = function(lhs[0], rhs[0])
        result = _components_of(value, dtypes, f"operator {label}")
        neutral = tuple(const(v, t) for v, t in zip(start, dtypes, strict=True))
        op = Reducer(label, lhs, rhs, result, neutral)
        return checked(
            op,
            commutative,
            samples,
            "give `samples` if it is so on the values that occur",
        )

    return Operator(label, make)


def _components_of(value: Any, dtypes: Sequence[DType], where: str) -> tuple[Expr, ...]:
    """The result of an operator's function: an expression per component, of its dtype."""
    values = value if isinstance(value, tuple) else (value,)
    if len(values) != len(dtypes):
        raise InputError(
            f"it returns {len(values)} value(s), expected {len(dtypes)}",
            code="TW-OPERATOR",
            where=where,
            hint="return as many as the identity has",
        )
    result = tuple(as_expr(v, t) for v, t in zip(values, dtypes, strict=True))
    for r, t in zip(result, dtypes, strict=True):
        if r.dtype is not t:
            raise InputError(
                f"it returns {r.dtype} for operands of {t}",
                code="TW-OPERATOR",
                where=where,
                hint=f"cast the result: .astype('{t}')",
            )
    return result


# -- along a dimension


@dataclass(frozen=True, slots=True)
class Combine:
    """How a dimension's results are combined: `cc`, or by an operator (`pw`, `ps`)."""

    kind: str
    operator: Operator | None = None

    def __repr__(self) -> str:
        return self.kind if self.operator is None else f"{self.kind}({self.operator})"


cc: Final = Combine(CC)


def pw(operator: Operator) -> Combine:
    """Point-wise: the results along the dimension become one (a reduction)."""
    return Combine(PW, _operator(operator))


def ps(operator: Operator) -> Combine:
    """Prefix: each result is combined with all before it (a scan)."""
    return Combine(PS, _operator(operator))


def _operator(given: object) -> Operator:
    if isinstance(given, Operator):
        return given
    raise InputError(
        f"{given!r} is not a combine operator",
        code="TW-OPERATOR",
        where="pw, ps",
        hint=f"use one of {', '.join(OPERATORS)}, or make your own with pw_custom_func",
    )
