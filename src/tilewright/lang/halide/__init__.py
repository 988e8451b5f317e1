"""Halide for users: the notation, the schedule methods, and running.

    from tilewright import halide as hl

    x, y = hl.Var("x"), hl.Var("y")
    f = hl.Func("f")
    f[x, y] = x + y
    f.realize([8, 4])

Names follow Halide's Python bindings. `f[x, y]` is element `[y, x]` of a NumPy array.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from tilewright.base.errors import TilewrightError as HalideError
from tilewright.base.refused import UnsupportedName
from tilewright.lang.function import Function as Callable
from tilewright.lang.halide.autoschedule import (
    AutoschedulerParams,
    AutoSchedulerResults,
    load_plugin,
)
from tilewright.lang.halide.extern import ExternFuncArgument
from tilewright.lang.halide.func import Func, ImageParam, Pipeline, evaluate
from tilewright.lang.halide.generator import (
    Generator,
    GeneratorContext,
    GeneratorParam,
    InputBuffer,
    InputScalar,
    OutputBuffer,
    OutputScalar,
    active_generator_context,
    alias,
    create_callable_from_generator,
    generator,
)
from tilewright.lang.halide.levels import LoopLevel, MemoryType
from tilewright.lang.halide.plan import (
    LoopAlignStrategy,
    Partition,
    PrefetchBoundStrategy,
    TailStrategy,
)
from tilewright.lang.halide.syntax import boundary
from tilewright.lang.halide.syntax.absent import ABSENT
from tilewright.lang.halide.syntax.arithmetic import (
    atan2,
    div_round_to_zero,
    fract,
    halving_add,
    halving_sub,
    hypot,
    i8_sat,
    i16_sat,
    i32_sat,
    i64_sat,
    is_finite,
    is_inf,
    is_nan,
    lerp,
    logical_not,
    mod_round_to_zero,
    mul_shift_right,
    mux,
    reinterpret,
    rounding_halving_add,
    rounding_mul_shift_right,
    rounding_shift_left,
    rounding_shift_right,
    saturating_add,
    saturating_sub,
    u8_sat,
    u16_sat,
    u32_sat,
    u64_sat,
    unsafe_promise_clamped,
    widen_right_add,
    widen_right_mul,
    widen_right_sub,
    widening_add,
    widening_mul,
    widening_shift_left,
    widening_shift_right,
    widening_sub,
)
from tilewright.lang.halide.syntax.bits import (
    concat_bits,
    count_leading_zeros,
    count_trailing_zeros,
    extract_bits,
    popcount,
)
from tilewright.lang.halide.syntax.domain import Range, RDom, RVar, Var
from tilewright.lang.halide.syntax.expr import Expr, as_expr, unique
from tilewright.lang.halide.syntax.func import FuncRef
from tilewright.lang.halide.syntax.image import Buffer, Dimension, Param
from tilewright.lang.halide.syntax.inline_reductions import arg_reduced, reduced
from tilewright.lang.halide.syntax.intrinsics import (
    abs,
    absd,
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cast,
    ceil,
    clamp,
    cos,
    cosh,
    erf,
    exp,
    f16,
    f32,
    f64,
    floor,
    i8,
    i16,
    i32,
    i64,
    likely,
    log,
    max,
    min,
    pow,
    round,
    saturating_cast,
    select,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    u8,
    u16,
    u32,
    u64,
)
from tilewright.lang.halide.syntax.output import OutputImageParam
from tilewright.lang.halide.syntax.random import random_float, random_int, random_uint
from tilewright.lang.halide.syntax.scatter import gather, scatter
from tilewright.lang.halide.syntax.strict import strict_float
from tilewright.lang.halide.syntax.tracing import print, print_when, require
from tilewright.lang.halide.syntax.types import (
    BFloat,
    Bool,
    Float,
    Int,
    Type,
    TypeCode,
    UInt,
)
from tilewright.lang.halide.syntax.values import Tuple, undef
from tilewright.lang.halide.target import (
    DeviceAPI,
    Target,
    TargetArch,
    TargetFeature,
    TargetOS,
    TargetProcessorTune,
    get_host_target,
    get_jit_target_from_environment,
    host_supports_target_device,
)
from tilewright.lang.halide.texts import StmtOutputFormat
from tilewright.lang.halide.verbs import Stage

BoundaryConditions: Final = SimpleNamespace(
    **{name: partial(f, func=Func) for name, f in boundary.CONDITIONS.items()}
)

# The precise functions are fast enough; these names exist for programs that use the fast ones.
fast_exp, fast_log, fast_sin, fast_cos, fast_pow = exp, log, sin, cos, pow
likely_if_innermost = likely
evaluate_may_gpu = evaluate
BufferDimension = Dimension
_ = Var("_")


def fast_inverse(x: Any) -> Expr:
    """1 / x."""
    return 1.0 / as_expr(x)


def fast_inverse_sqrt(x: Any) -> Expr:
    """1 / sqrt(x)."""
    return 1.0 / sqrt(x)


def lambda_func(*parts: Any) -> Func:
    """`lambda_func(x, y, value)`: a Func without a name."""
    *args, value = parts
    made = Func()
    made[tuple(args)] = value
    return made


def vars(names: str) -> tuple[Var, ...]:
    """Vars of the names in a text: `x, y = vars("x y")`."""
    return tuple(Var(name) for name in names.split())


def funcs(names: str) -> tuple[Func, ...]:
    """Funcs of the names in a text."""
    return tuple(Func(name) for name in names.split())


def __getattr__(name: str) -> Any:
    if name in ABSENT[""]:
        return UnsupportedName("Halide", name, ABSENT[""][name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def sum(*args: Any, name: str | None = None) -> Expr:
    """`sum([r,] value)`: the sum over the RDom `r`, or the one that the value uses."""
    return reduced("add", *_named(args, name, "sum"))


def product(*args: Any, name: str | None = None) -> Expr:
    """`product([r,] value)`: the product over the RDom `r`, or the one that the value uses."""
    return reduced("mul", *_named(args, name, "product"))


def maximum(*args: Any, name: str | None = None) -> Expr:
    """`maximum([r,] value)`: the greatest over the RDom `r`, or the one that the value uses."""
    return reduced("max", *_named(args, name, "maximum"))


def minimum(*args: Any, name: str | None = None) -> Expr:
    """`minimum([r,] value)`: the least over the RDom `r`, or the one that the value uses."""
    return reduced("min", *_named(args, name, "minimum"))


def argmax(*args: Any, name: str | None = None) -> Tuple:
    """`argmax([r,] value)`: (coordinates of the RDom, value) of the first greatest value."""
    return arg_reduced("argmax", *_named(args, name, "argmax"))


def argmin(*args: Any, name: str | None = None) -> Tuple:
    """`argmin([r,] value)`: (coordinates of the RDom, value) of the first least value."""
    return arg_reduced("argmin", *_named(args, name, "argmin"))


def _named(
    args: Sequence[Any], name: str | None, default: str
) -> tuple[Any, type[Func], str]:
    """The arguments of a reduction without the name, which may be the last of them."""
    if args and isinstance(args[-1], str):
        args, name = args[:-1], args[-1]
    return args, Func, name or unique(default)


__all__ = [
    "AutoSchedulerResults",
    "AutoschedulerParams",
    "BFloat",
    "Bool",
    "BoundaryConditions",
    "Buffer",
    "BufferDimension",
    "Callable",
    "DeviceAPI",
    "Dimension",
    "Expr",
    "ExternFuncArgument",
    "Float",
    "Func",
    "FuncRef",
    "Generator",
    "GeneratorContext",
    "GeneratorParam",
    "HalideError",
    "ImageParam",
    "InputBuffer",
    "InputScalar",
    "Int",
    "LoopAlignStrategy",
    "LoopLevel",
    "MemoryType",
    "OutputBuffer",
    "OutputImageParam",
    "OutputScalar",
    "Param",
    "Partition",
    "Pipeline",
    "PrefetchBoundStrategy",
    "RDom",
    "RVar",
    "Range",
    "Stage",
    "StmtOutputFormat",
    "TailStrategy",
    "Target",
    "TargetArch",
    "TargetFeature",
    "TargetOS",
    "TargetProcessorTune",
    "Tuple",
    "Type",
    "TypeCode",
    "UInt",
    "Var",
    "abs",
    "absd",
    "acos",
    "acosh",
    "active_generator_context",
    "alias",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cast",
    "ceil",
    "clamp",
    "concat_bits",
    "cos",
    "cosh",
    "count_leading_zeros",
    "count_trailing_zeros",
    "create_callable_from_generator",
    "div_round_to_zero",
    "erf",
    "evaluate",
    "evaluate_may_gpu",
    "exp",
    "extract_bits",
    "f16",
    "f32",
    "f64",
    "fast_cos",
    "fast_exp",
    "fast_inverse",
    "fast_inverse_sqrt",
    "fast_log",
    "fast_pow",
    "fast_sin",
    "floor",
    "fract",
    "funcs",
    "generator",
    "gather",
    "get_host_target",
    "get_jit_target_from_environment",
    "halving_add",
    "halving_sub",
    "host_supports_target_device",
    "hypot",
    "i8",
    "i8_sat",
    "i16",
    "i16_sat",
    "i32",
    "i32_sat",
    "i64",
    "i64_sat",
    "is_finite",
    "is_inf",
    "is_nan",
    "lambda_func",
    "lerp",
    "likely",
    "likely_if_innermost",
    "load_plugin",
    "log",
    "logical_not",
    "max",
    "maximum",
    "min",
    "minimum",
    "mod_round_to_zero",
    "mul_shift_right",
    "mux",
    "popcount",
    "pow",
    "print",
    "print_when",
    "product",
    "random_float",
    "random_int",
    "random_uint",
    "reinterpret",
    "require",
    "round",
    "rounding_halving_add",
    "rounding_mul_shift_right",
    "rounding_shift_left",
    "rounding_shift_right",
    "saturating_add",
    "saturating_cast",
    "saturating_sub",
    "scatter",
    "select",
    "sin",
    "sinh",
    "sqrt",
    "strict_float",
    "sum",
    "tan",
    "tanh",
    "trunc",
    "u8",
    "u8_sat",
    "u16",
    "u16_sat",
    "u32",
    "u32_sat",
    "u64",
    "u64_sat",
    "undef",
    "unsafe_promise_clamped",
    "vars",
    "widen_right_add",
    "widen_right_mul",
    "widen_right_sub",
    "widening_add",
    "widening_mul",
    "widening_shift_left",
    "widening_shift_right",
    "widening_sub",
]
