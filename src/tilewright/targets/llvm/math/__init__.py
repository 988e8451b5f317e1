"""Mathematical functions as arithmetic, which the CPU code generator inlines for calls.

`EXPANSIONS[function, dtype]` takes arguments of that dtype and returns an expression of only
arithmetic, comparisons, `Select`, casts, bit operations, and calls of functions that are single
instructions (`fma sqrt floor round_even abs copysign`, in `AVX512` also `ldexp entry`). All are
free of branches and of tables in memory, and treat zeros, infinities, NaN, overflow and subnormal
numbers as IEEE 754 and C's Annex F say. How exact each one is, in units in the last place:
`MAX_ULP`.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.expr.nodes import Expr
from tilewright.targets.llvm.math import (
    circular,
    errors,
    exponential,
    hyperbolic,
    inverse_circular,
    logarithm,
    power,
)
from tilewright.targets.llvm.math.wide import through_float64

Expansion = Callable[..., Expr]

# function: (for float32, for float64)
_TABLE: dict[str, tuple[Expansion, Expansion]] = {
    "exp": (exponential.exp, exponential.exp),
    "exp2": (exponential.exp2, exponential.exp2),
    "expm1": (exponential.expm1, exponential.expm1),
    "sigmoid": (exponential.sigmoid, exponential.sigmoid),
    "log": (logarithm.log, logarithm.log),
    "log2": (logarithm.log2, logarithm.log2),
    "log1p": (logarithm.log1p, logarithm.log1p),
    "tanh": (hyperbolic.tanh, hyperbolic.tanh),
    "sinh": (through_float64(hyperbolic.sinh), hyperbolic.sinh),
    "cosh": (hyperbolic.cosh, hyperbolic.cosh),
    "arcsinh": (through_float64(hyperbolic.arcsinh), hyperbolic.arcsinh),
    "arccosh": (through_float64(hyperbolic.arccosh), hyperbolic.arccosh),
    "arctanh": (through_float64(hyperbolic.arctanh), hyperbolic.arctanh),
    "erf": (errors.erf, errors.erf),
    "sin": (circular.sin32, circular.sin64),
    "cos": (circular.cos32, circular.cos64),
    "tan": (circular.tan32, circular.tan64),
    "arcsin": (inverse_circular.arcsin, inverse_circular.arcsin),
    "arccos": (inverse_circular.arccos, inverse_circular.arccos),
    "arctan": (inverse_circular.arctan, inverse_circular.arctan),
    "arctan2": (inverse_circular.arctan2, inverse_circular.arctan2),
    "pow": (power.pow32, power.pow64),
}

EXPANSIONS: dict[tuple[str, str], Expansion] = {
    (function, dtype): expansion
    for function, both in _TABLE.items()
    for dtype, expansion in zip(("float32", "float64"), both, strict=True)
}

# Those for processors with AVX-512, where `ldexp` and `entry` are one instruction.
AVX512: dict[tuple[str, str], Expansion] = {
    ("exp", "float32"): exponential.exp_by_scaling,
    ("erf", "float32"): errors.erf_by_pieces,
}

# The largest error of float64 functions if it exceeds 2 units in the last place.
_LARGER = {
    "arccosh": 3.0,
    "arcsinh": 3.0,
    "arctanh": 3.0,
    "pow": 4.0,
    "sinh": 3.0,
    "tan": 3.0,
}
MAX_ULP: dict[tuple[str, str], float] = {
    (function, dtype): _LARGER.get(function, 2.0) if dtype == "float64" else 2.0
    for function, dtype in EXPANSIONS
}
