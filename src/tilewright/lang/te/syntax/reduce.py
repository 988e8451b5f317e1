"""Reductions and scans: results of a body other than plain values.

    sum(A[i, k], axis=k)                       k made by reduce_axis
    argmax(A[i, k], axis=k)                    two results: the value and its index
    comm_reducer(combine, identity)            one's own reducer
    scan_op(sum)(A[i], axis=i)                 every prefix; i is an axis of the tensor

`max(a, b)`, `min(a, b)` and the like without an axis are the same operators on two values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, NoReturn

from tilewright.base.dtypes import DType, bool_, dtype_of
from tilewright.base.errors import InputError
from tilewright.compute.nodes import CC, PW
from tilewright.compute.operator import Samples, checked, takes
from tilewright.compute.reducer import Reducer, arg_reducer, reducer
from tilewright.expr.nodes import INDEX, Cast, Const, Expr, Select, Var, as_expr
from tilewright.lang.te.syntax.functions import check_condition
from tilewright.lang.te.syntax.matching import alike
from tilewright.lang.te.syntax.nodes import Axis

Make = Callable[[tuple[DType, ...]], Reducer]
Values = tuple[Expr, ...]


class Reduction:
    """A reduction as the whole body of a compute; it is not a value to calculate with.

    values: one per component of the reducer. axes: reduced. scanned: axes of the result whose
    prefixes are wanted.
    """

    def __init__(
        self,
        op: Reducer,
        values: Values,
        axes: tuple[Axis, ...],
        scanned: tuple[Axis, ...],
    ) -> None:
        self.op, self.values, self.axes, self.scanned = op, values, axes, scanned

    def _alone(self, *_: object) -> NoReturn:
        raise InputError(
            f"a reduction ({self.op}) is the whole body of a compute, not a part of an expression",
            hint="put it into a separate compute, and read that",
            where=f"reduction {self.op}",
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _alone
    __rtruediv__ = __floordiv__ = __mod__ = __neg__ = __lt__ = __le__ = __gt__ = (
        __ge__
    ) = _alone
    __float__ = __int__ = __getitem__ = astype = _alone


class ReduceOp:
    """An operator to reduce, scan or combine with; conditions: on truth values only."""

    def __init__(
        self,
        name: str,
        make: Make,
        conditions: bool = False,
    ) -> None:
        self.name, self.make, self.conditions = name, make, conditions

    def __call__(
        self, value: Any, *more: Any, axis: Any = None, where: Any = None
    ) -> Any:
        """The reduction of `value` over `axis`; on values alone, the operator applied to them.

        value: an expression, or a tuple of them for an operator on tuples. axis: a reduce axis or
        several. where: a condition; points that do not satisfy it do not count.
        Raises InputError for an axis given twice or of a tensor.
        """
        axes = _given(more, axis, self.name)
        if axes is None:
            return self._apply(value, *more)
        for a in axes:
            if a.combine != PW:
                raise InputError(
                    f"{a.name} is an axis of the tensor, not one to reduce over",
                    where=self.name,
                    hint="make one with reduce_axis((0, n)); scan_op gives prefixes",
                )
        return self._reduction(value, axes, (), where)

    def _apply(self, *values: Any) -> Expr:
        for v in values if self.conditions else ():
            check_condition(v, self.name)
        typed = [v for v in values if isinstance(v, Expr)]
        if not typed or len(values) < 2:
            raise InputError(
                "it needs axis=, or two or more values with an expression among them",
                where=self.name,
                hint="as in sum(A[i, k], axis=k), or max(a, b)",
            )
        parts = alike(self.name, values)
        op = self.make((parts[0].dtype,))
        return reduce(lambda a, b: op.combine((a,), (b,))[0], parts)

    def _reduction(
        self, value: Any, axes: tuple[Axis, ...], scanned: tuple[Axis, ...], where: Any
    ) -> Reduction:
        for n, a in enumerate(axes):
            if a in axes[:n]:
                raise InputError(
                    f"axis {a.name} is given twice",
                    where=self.name,
                    hint="name each axis once",
                )
        values = value if isinstance(value, tuple) else (value,)
        for v in values:
            if isinstance(v, Reduction):
                v._alone()
        typed = tuple(
            v if isinstance(v, Expr) else _number(v, self.name) for v in values
        )
        op = self.make(tuple(v.dtype for v in typed))
        if len(op.dtypes) != len(typed):
            raise InputError(
                f"it combines {len(op.dtypes)} values, {len(typed)} given",
                where=self.name,
                hint="give a tuple with one value per component",
            )
        if where is not None:
            check_condition(where, f"{self.name}, where=")
            typed = tuple(
                Select(where, v, i) for v, i in zip(typed, op.identity, strict=True)
            )
        return Reduction(op, typed, axes, scanned)


class _ArgReduce(ReduceOp):
    """argmax, argmin: the index is the value of the axis."""

    def __call__(
        self,
        value: Any,
        *more: Any,
        axis: Any = None,
        where: Any = None,
        dtype: Any = "int64",
    ) -> Reduction:
        """The extreme value and its first index, as two results; dtype: the index's."""
        axes = _given(more, axis, self.name)
        if isinstance(value, tuple):
            return super().__call__(value, axis=axes, where=where)  # type: ignore[no-any-return]
        if axes is None or len(axes) != 1:
            raise InputError(
                "it takes exactly one axis",
                where=self.name,
                hint="over several, give the index too: argmax((value, index), axis=[k, l])",
            )
        of = dtype_of(dtype)
        index = axes[0] if of is INDEX else Cast(axes[0], of)
        return super().__call__((value, index), axis=axes, where=where)  # type: ignore[no-any-return]


def comm_reducer(
    combine: Callable[..., Any],
    identity: Callable[..., Any],
    name: str = "reducer",
    *,
    commutative: bool | None = None,
    samples: Samples | None = None,
) -> ReduceOp:
    """A custom operator, which must be associative; if `commutative` is omitted, it is tested.

    combine(x, y): the combined value; on tuples it gets and returns tuples. identity(dtype, ...):
    the neutral element for the dtype of each component. One that does not commute, such as the
    first index of a greatest value, is reduced in order. samples: values that occur per component,
    where these laws hold on them only (`()`: try nothing, and take it to commute if not said).
    Tried on all triples of sample values for each tuple of dtypes. Raises InputError (TW-OPERATOR)
    with operands that break a law, or where `combine` does not take two.
    """
    takes(combine, 2, f"operator {name}")
    if not callable(identity):
        raise InputError(
            f"the identity is {identity!r}, no function",
            code="TW-OPERATOR",
            where=f"operator {name}",
            hint="as in lambda dtype: const(0, dtype)",
        )

    @cache
    def make(types: tuple[DType, ...]) -> Reducer:
        several = len(types) > 1
        lhs = tuple(Var(f"a{n}" if several else "a", t) for n, t in enumerate(types))
        rhs = tuple(Var(f"b{n}" if several else "b", t) for n, t in enumerate(types))
        if several:
            found = combine(lhs, rhs)
        else:
            found = combine(lhs[0], rhs[0])
        neutral = _identity(identity, types)
        results = _tuple(found, types, name)
        for r, t in zip(results, types, strict=True):
            if r.dtype is not t:
                raise InputError(
                    f"combining {t} gives {r.dtype}",
                    where=name,
                    hint=f"use .astype('{t}')",
                )
        op = Reducer(name, lhs, rhs, results, neutral)
        untried = samples is not None and not samples
        stated = True if commutative is None and untried else commutative
        return checked(op, stated, samples, _LAWS)

    return ReduceOp(name, make)


_LAWS = "samples= if it is so on the values that occur; commutative=False if the order matters"


def _identity(
    identity: Callable[..., Any], types: tuple[DType, ...]
) -> tuple[Const, ...]:
    count = len(inspect.signature(identity).parameters)
    given = identity(*(t.name for t in types[:count]))
    values = _tuple(given, types, "the identity")
    constants = tuple(v for v in values if isinstance(v, Const))
    if len(constants) != len(values):
        raise InputError(
            "the identity is not a constant",
            where="comm_reducer",
            hint="as in lambda dtype: const(0, dtype)",
        )
    return constants


def _tuple(given: Any, types: tuple[DType, ...], where: str) -> Values:
    parts = given if isinstance(given, tuple) else (given,)
    if len(parts) != len(types):
        raise InputError(
            f"{len(parts)} values for {len(types)} components",
            where=where,
            hint="give one value per component, as a tuple",
        )
    return tuple(as_expr(p, t) for p, t in zip(parts, types, strict=True))


def scan_op(op: ReduceOp) -> Callable[..., Reduction]:
    """The prefixes of an associative operator, e.g. `scan_op(sum)(A[i], axis=i)`.

    The returned function takes a value, `axis` (an axis of the tensor; if reduce axes follow,
    prefixes are over the reduced values) and `where`.
    """

    def scan(value: Any, axis: Any, where: Any = None) -> Reduction:
        axes = _axes(axis) or ()
        scanned = tuple(a for a in axes if a.combine == CC)
        if not scanned:
            raise InputError(
                "there is no axis of the tensor to scan along",
                where=op.name,
                hint="name an axis of the tensor: axis=i; reduce axes alone make a reduction",
            )
        return op._reduction(
            value, tuple(a for a in axes if a.combine == PW), scanned, where
        )

    return scan


def _axes(axis: Any) -> tuple[Axis, ...] | None:
    """The axes named, in order; None where these are not axes."""
    parts: Sequence[Any] = axis if isinstance(axis, list | tuple) else (axis,)
    if parts and _all(isinstance(a, Axis) for a in parts):
        return tuple(parts)
    return None


def _given(more: tuple[Any, ...], axis: Any, where: str) -> tuple[Axis, ...] | None:
    """The axes, given by name or as the second argument; None for plain values.

    An axis of a tensor as the second argument is a value.
    """
    if axis is None and len(more) == 1:
        found = _axes(more[0])
        if found and _all(a.combine == PW for a in found):
            return found
        return None
    found = _axes(axis)
    if axis is not None and (found is None or more):
        raise InputError(
            f"axis={axis!r} is not an axis", where=where, hint="as in axis=k or [k, l]"
        )
    return found


def _number(value: Any, where: str) -> Expr:
    raise InputError(
        f"cannot reduce {value!r}", where=where, hint="const(value, dtype) types it"
    )


def _named(name: str, op: str) -> ReduceOp:
    def make(types: tuple[DType, ...]) -> Reducer:
        if op in ("and", "or") and types[0] is not bool_:
            raise InputError(
                f"it is for conditions, not {types[0]}",
                where=name,
                hint="compare first, as in x > 0",
            )
        return reducer(op, types[0])

    return ReduceOp(name, make, conditions=op in ("and", "or"))


def _arg(name: str) -> ReduceOp:
    def make(types: tuple[DType, ...]) -> Reducer:
        if len(types) != 2 or not types[1].is_int:
            raise InputError(
                "it takes a value, or a value and an integer index",
                where=name,
                hint="as in argmax(A[i, k], axis=k)",
            )
        return arg_reducer(name, types[0], types[1])

    return _ArgReduce(name, make)


# The names below are the notation's; what they hide is needed above.
_all = all

sum = _named("sum", "add")
prod = _named("prod", "mul")
max = _named("max", "max")
min = _named("min", "min")
any = _named("any", "or")
all = _named("all", "and")
argmax = _arg("argmax")
argmin = _arg("argmin")
