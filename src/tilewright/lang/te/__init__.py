"""Tensor expressions: `compute` states what to compute, a schedule decides how, as in TVM.

    from tilewright import te as t

    A = t.placeholder((1024, 1024)); B = t.placeholder((1024, 1024)); k = t.reduce_axis((0, 1024))
    C = t.compute((1024, 1024), lambda y, x: t.sum(A[y, k] * B[k, x], axis=k))
    s = t.create_schedule(C.op)
    f = t.build(s, [A, B, C])

`docs/te.md` is the tutorial. Every scalar function of `lang/te/syntax/functions.py` is here too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.refused import UnsupportedName
from tilewright.lang.te import hybrid
from tilewright.lang.te.build import build, lower
from tilewright.lang.te.c_functions import compile_c
from tilewright.lang.te.extern import (
    call_extern,
    call_packed,
    extern,
    extern_primfunc,
    register_func,
)
from tilewright.lang.te.gradient import gradient
from tilewright.lang.te.intrinsic import (
    decl_tensor_intrin,
    decl_tensor_intrinsic,
    hardware_intrin,
    hardware_intrinsic,
)
from tilewright.lang.te.operator import operator
from tilewright.lang.te.pure import call_pure_extern
from tilewright.lang.te.records import ThreadAxis, thread_axis
from tilewright.lang.te.schedule import Schedule, create_schedule
from tilewright.lang.te.sketch_space import sketch_space
from tilewright.lang.te.syntax.build import (
    compute,
    placeholder,
    reduce_axis,
    scan,
    tag_scope,
    var,
)
from tilewright.lang.te.syntax.functions import TABLE as _FUNCTIONS
from tilewright.lang.te.syntax.functions import (
    bitcast,
    cast,
    const,
    if_then_else,
    select,
)
from tilewright.lang.te.syntax.nodes import (
    Axis,
    Compute,
    HostCall,
    Placeholder,
    Recurrence,
    Tensor,
    TensorSlice,
)
from tilewright.lang.te.syntax.printer import parse, show
from tilewright.lang.te.syntax.program import computation
from tilewright.lang.te.syntax.reduce import (
    ReduceOp,
    Reduction,
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
from tilewright.lang.te.template import Template, get_config, template
from tilewright.loops.nodes import Kernel

size_var = var
PlaceholderOp, ComputeOp, ScanOp, ExternOp = Placeholder, Compute, Recurrence, HostCall
Reduce, CommReducer = Reduction, ReduceOp

# Public names of TVM's te that are not here, with what to write instead.
ABSENT = {
    "AXIS_SEPARATOR": "s.schedule.transform_layout(buffer, map) flattens by its map",
    "HybridOp": "hybrid.script makes one",
    "SpecializedCondition": "s.schedule.specialize(condition)",
    "TensorComputeOp": "tensorize a loop of a compute",
    "trace": "extern with call_packed of a function that looks at whole tensors",
}


def create_prim_func(ops: Sequence[Tensor]) -> Kernel:
    """The plain kernel of tensors, given as the arguments: inputs, then outputs."""
    return lower(create_schedule([t for t in ops if not _given(t)]), ops)


def _given(tensor: Tensor) -> bool:
    return isinstance(tensor.op, Placeholder)


def __getattr__(name: str) -> Callable[..., Any]:
    """The scalar functions: exp, log, sqrt, tanh, sigmoid, erf, abs, floor, ..."""
    if name in ABSENT:
        return UnsupportedName("TVM", name, ABSENT[name])
    if name not in _FUNCTIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _FUNCTIONS[name]


__all__ = [
    "Axis",
    "CommReducer",
    "ComputeOp",
    "ExternOp",
    "PlaceholderOp",
    "Reduce",
    "ScanOp",
    "Schedule",
    "Template",
    "Tensor",
    "TensorSlice",
    "ThreadAxis",
    "all",
    "any",
    "argmax",
    "argmin",
    "bitcast",
    "build",
    "call_extern",
    "call_packed",
    "call_pure_extern",
    "cast",
    "comm_reducer",
    "computation",
    "compile_c",
    "compute",
    "const",
    "create_prim_func",
    "create_schedule",
    "decl_tensor_intrin",
    "decl_tensor_intrinsic",
    "extern",
    "extern_primfunc",
    "get_config",
    "gradient",
    "hardware_intrin",
    "hardware_intrinsic",
    "hybrid",
    "if_then_else",
    "lower",
    "max",
    "min",
    "operator",
    "parse",
    "placeholder",
    "prod",
    "reduce_axis",
    "register_func",
    "scan",
    "scan_op",
    "select",
    "show",
    "size_var",
    "sketch_space",
    "sum",
    "tag_scope",
    "template",
    "thread_axis",
    "var",
]
