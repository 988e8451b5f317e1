"""The table of functions that are written as expressions: `exp(x)` as a polynomial, and so on.

An expansion takes the arguments of a call and returns an expression of its result. The rows are in
`math/`; `register_expansion` adds or replaces one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from tilewright.expr.nodes import Expr

Expansion = Callable[..., Expr]

_added: dict[tuple[str, str], Expansion] = {}


def register_expansion(function: str, dtype: str, rewrite: Expansion) -> None:
    """Expand `function` on arguments of `dtype` to `rewrite(*args)`."""
    _added[function, dtype] = rewrite


def expansion(function: str, dtype: str, avx512: bool = False) -> Expansion | None:
    """The expansion of a function on a dtype, or None.

    avx512: whether the processor has it, with which `ldexp` and `entry` are one instruction.
    """
    return _added.get((function, dtype)) or _table(avx512).get((function, dtype))


@cache
def _table(avx512: bool) -> dict[tuple[str, str], Expansion]:
    from tilewright.targets.llvm.math import AVX512, EXPANSIONS

    return EXPANSIONS | AVX512 if avx512 else EXPANSIONS
