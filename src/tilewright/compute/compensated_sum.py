"""A sum that keeps what its additions round away, and adds that at the end.

    y[i] = sum[k] f(i, k)
         = s[i] + e[i]   with   (s, e)[i] = sum2[k] (f(i, k), 0)

The terms are added in the same order. The error of one addition is exact (Knuth, The Art of
Computer Programming, vol. 2, section 4.2.2), so that the result is that of a sum in about twice the
precision, rounded once (Ogita, Rump and Oishi, Accurate sum and dot product, 2005).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from tilewright.base.dtypes import DType
from tilewright.compute.nodes import PW, Computation, Output
from tilewright.compute.reducer import Reducer, is_sum
from tilewright.expr.nodes import Buffer, Expr, Select, Var, call, const


@cache
def sum_and_error(dtype: DType) -> Reducer:
    """Sums of numbers as two components: the rounded sum, and what was rounded away."""
    a = Var("a", dtype)
    e = Var("e", dtype)
    b = Var("b", dtype)
    f = Var("f", dtype)
    total = a + b
    added = total - a
    kept = total - added
    lost = (a - kept) + (b - added)
    error = e + (f + lost)
    zero = const(0, dtype)
    return Reducer(
        "sum2",
        lhs=(a, e),
        rhs=(b, f),
        result=(total, error),
        identity=(zero, zero),
    )


def compensated(c: Computation) -> tuple[Computation, Computation] | None:
    """The sum of `c` with its error, and the map that adds both, which writes what `c` wrote.

    requires, else None: one output, the reducer a sum of floats of its own dtype, over reduced
    dimensions only (in a scan, every partial sum is a result).
    """
    if c.reducer is None or not is_sum(c.reducer) or len(c.outputs) != 1:
        return None
    (out,) = c.outputs
    (dtype,) = c.reducer.dtypes
    if not dtype.is_float or out.value.dtype is not dtype:
        return None
    if any(d.combine != PW for d in c.combined_dims):
        return None
    free = c.parallel_dims
    place = tuple(d.var for d in free)
    shape = tuple(d.size for d in free)
    name = out.tensor.name
    rounded = Buffer(f"{name}_rounded", shape, dtype)
    error = Buffer(f"{name}_error", shape, dtype)
    zero = const(0, dtype)
    terms = (
        Output(rounded, place, out.value),
        Output(error, place, zero),
    )
    both = replace(
        c,
        outputs=terms,
        reducer=sum_and_error(dtype),
    )
    value = _whole(rounded[place], error[place])
    whole = Computation(
        f"{c.name}_whole",
        free,
        (replace(out, value=value),),
    )
    return both, whole


def _whole(total: Expr, error: Expr) -> Expr:
    """Both parts; where a sum is infinite or NaN, its error is not a number."""
    size = call("abs", error)
    infinity = const(math.inf, error.dtype)
    finite = size < infinity
    return Select(finite, total + error, total)
