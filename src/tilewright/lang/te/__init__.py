"""Tensor expressions: `compute` states what to compute, a schedule decides how, as in TVM.

    from tilewright import te as t

    A = t.placeholder((1024, 1024)); B = t.placeholder((1024, 1024)); k = t.reduce_axis((0, 1024))
    C = t.compute((1024, 1024), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k))
    s = t.create_schedule(C.op)
    f = t.build(s, [A, B, C])

`docs/te.md` is the tutorial. Every scalar function of `lang/te/syntax/functions.py` is here too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.lang.te.build import build, lower
from tilewright.lang.te.intrinsic import (
    decl_tensor_intrin,
    decl_tensor_intrinsic,
    hardware_intrin,
    hardware_intrinsic,
)
from tilewright.lang.te.records import ThreadAxis, thread_axis
from tilewright.lang.te.schedule import Schedule, create_schedule
from tilewright.lang.te.syntax.build import compute, placeholder, reduce_axis, scan, var
from tilewright.lang.te.syntax.functions import TABLE as _FUNCTIONS
from tilewright.lang.te.syntax.functions import (
    bitcast,
    cast,
    const,
    if_then_else,
    select,
)
from tilewright.lang.te.syntax.nodes import Axis, Tensor
from tilewright.lang.te.syntax.printer import parse, show
from tilewright.lang.te.syntax.program import computation
from tilewright.lang.te.syntax.reduce import (
    all,
    any,
    argmax,
    argmin,
    comm_reducer,
    max,
    min,
    prod,
    scan_op,
    sum,
)

size_var = var


def __getattr__(name: str) -> Callable[..., Any]:
    """The scalar functions: exp, log, sqrt, tanh, sigmoid, erf, abs, floor, ..."""
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FUNCTIONS[name]


__all__ = [
    "Axis",
    "Schedule",
    "Tensor",
    "ThreadAxis",
    "all",
    "any",
    "argmax",
    "argmin",
    "bitcast",
    "build",
    "cast",
    "comm_reducer",
    "computation",
    "compute",
    "const",
    "create_schedule",
    "decl_tensor_intrin",
    "decl_tensor_intrinsic",
    "hardware_intrin",
    "hardware_intrinsic",
    "if_then_else",
    "lower",
    "max",
    "min",
    "parse",
    "placeholder",
    "prod",
    "reduce_axis",
    "scan",
    "scan_op",
    "select",
    "show",
    "size_var",
    "sum",
    "thread_axis",
    "var",
]
