"""Mathematical functions as arithmetic on one dtype: what the CPU code generator inlines for calls.

`EXPANSIONS[function, dtype]` takes argument expressions and gives an expression that contains only
arithmetic, comparisons, `Select`, casts, bit operations, and calls of functions that are single
instructions (`fma sqrt floor round_even abs copysign`). All are free of branches and tables, and
treat zeros, infinities, NaN, overflow and subnormal numbers as IEEE 754 and C's Annex F say.
"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.expr.nodes import Expr
from tilewright.targets.cpu.math import errors, exponential, logarithm

EXPANSIONS: dict[tuple[str, str], Callable[..., Expr]] = {
    ("exp", "float32"): exponential.exp,
    ("sigmoid", "float32"): exponential.sigmoid,
    ("tanh", "float32"): exponential.tanh,
    ("erf", "float32"): errors.erf,
    ("log", "float32"): logarithm.log,
}
