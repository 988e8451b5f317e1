"""MDH for users: the notation, and functions built from expressions.

    from tilewright import mdh
    from tilewright.lang.mdh import add, cc, float32, inp_view, md_hom, mul, out_view, pw

Beside the notation's own words: `add mul max min and_ or_ xor argmax argmin` (combine operators and
scalar functions), the dtypes, and the scalar functions of expressions (`exp`, `select`, ...).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.refused import UnsupportedName
from tilewright.compute.canonical import canonical
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import inline
from tilewright.expr.nodes import Buffer as Tensor
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import by_default, by_lines, by_parameters
from tilewright.lang.mdh.space import parameter_space
from tilewright.lang.mdh.syntax import (
    SCOPE,
    Buffer,
    Expression,
    Generic,
    buffer,
    cc,
    combine_ops,
    generic,
    inp,
    inp_view,
    md_hom,
    mdh,
    out,
    out_view,
    parse,
    ps,
    pw,
    pw_custom_func,
    scalar_function,
    show,
    size,
)
from tilewright.loops.lower import lower as lower_computations
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.registry import programs
from tilewright.targets.registry import target as find_target
from tilewright.tune.space import ProgramSpace, SketchSpace


def lower(*expressions: Computation, name: str | None = None) -> Kernel:
    """The plain loop nests of expressions that run in order, as one kernel.

    Its parameters are the tensors that none of them computes, then those that none of them reads.
    The default name is that of the last expression.
    """
    params, results = _interface(expressions)
    label = name or expressions[-1].name
    return lower_computations(label, _named(expressions), [*params, *results], results)


def schedule(*expressions: Computation, target: str | None = None) -> Schedule:
    """A schedule to continue with: nothing done yet, or (target given) that target's default."""
    plain = lower(*expressions)
    if target is None:
        return Schedule(plain)
    return find_target(target).default_schedule(plain, _named(expressions), ())


def sketch_space(*expressions: Computation, target: str = "cpu") -> SketchSpace:
    """The schedules among which `schedule(..., target=...)` takes the default.

    Raises InputError for a target without sketches.
    """
    found = find_target(target).sketches(lower(*expressions), _named(expressions), ())
    return SketchSpace(found)


def fuse(*expressions: Computation, name: str | None = None) -> Computation:
    """Fuse expressions that run in order into the last one: each map is composed into its reader.

    The law is MDH's: compose the scalar functions and the index functions
    (`compute/transforms.py`).
    Raises UnsupportedError for a producer that is not a map over its whole result.
    """
    _interface(expressions)
    *rest, last = expressions
    for producer in reversed(rest):
        made = inline(producer, last)
        if made is None:
            raise UnsupportedError(
                f"{producer.name} cannot be composed into {last.name}",
                where="fuse",
                hint="only a map (all dimensions cc) that covers its result can be",
            )
        last = made
    if name is None:
        return last
    return replace(last, name=name)


def equal(one: Computation, other: Computation) -> bool:
    """Whether two expressions are equal up to the names of tensors and dimensions."""
    return _canonical(one) == _canonical(other)


def _canonical(c: Computation) -> str:
    _expect_computations((c,))
    results = dict.fromkeys(o.tensor for o in c.outputs)
    return canonical([c], [*c.inputs, *results])


def build(
    *expressions: Computation | Schedule | Kernel | ProgramSpace,
    target: str = "cpu",
    threads: int | None = None,
    records: Any = None,
) -> Function:
    """A function on arrays: inputs first, outputs last, written in place.

    expressions: one or several that run in order, scheduled by the target's default; one
    `parameter_space`, with its defaults; or one Schedule or Kernel, used unchanged. records: as for
    `tilewright.compile`, for those that leave the schedule open. target: a target's name; "interp"
    for the interpreter, or a simulated machine, which have no default and run the plain nests.
    """
    first = expressions[0] if expressions else None
    if isinstance(first, Schedule | Kernel | ProgramSpace):
        if len(expressions) > 1:
            raise InputError(
                "one schedule makes one function",
                where="build",
                hint="build each separately",
            )
        if isinstance(first, Schedule):
            return by_lines(first, target, threads, records=records)
        if isinstance(first, ProgramSpace):
            return by_parameters(first, target, threads, records)
        return Function(first, target, threads, records=records)
    _expect_computations(expressions)
    computations = [c for c in expressions if isinstance(c, Computation)]
    plain = lower(*computations)
    if target == "interp" or programs(target) == "kernel":
        return Function(plain, target, threads)
    named = _named(tuple(computations))
    return by_default(plain, named, target, threads, records=records)


def _expect_computations(expressions: tuple[object, ...]) -> None:
    for c in expressions:
        if not isinstance(c, Computation):
            raise InputError(
                f"{c!r} is not an expression",
                where="mdh",
                hint="as in out_view[...](...) @ md_hom[...](...) @ inp_view[...](...)",
            )


def _interface(
    expressions: tuple[Computation, ...],
) -> tuple[list[Tensor], list[Tensor]]:
    if not expressions:
        raise InputError(
            "no expression was given", where="mdh", hint="give at least one expression"
        )
    _expect_computations(expressions)
    made = dict.fromkeys(o.tensor for c in expressions for o in c.outputs)
    read = dict.fromkeys(b for c in expressions for b in c.inputs)
    seen: dict[str, Tensor] = {}
    for b in (*read, *made):
        if seen.setdefault(b.name, b) is not b:
            raise InputError(
                f"two tensors are called {b.name}",
                hint="name one differently",
                where="mdh",
            )
    return [b for b in read if b not in made], [b for b in made if b not in read]


def _named(expressions: tuple[Computation, ...]) -> list[Computation]:
    """The expressions under their own names, which their loops are called by."""
    counts: dict[str, int] = {}
    found: list[Computation] = []
    for c in expressions:
        n = counts[c.name] = counts.get(c.name, 0) + 1
        found.append(c if n == 1 else replace(c, name=f"{c.name}{n}"))
    return found


__all__ = [
    "Buffer",
    "Expression",
    "Function",
    "Generic",
    "buffer",
    "build",
    "cc",
    "combine_ops",
    "equal",
    "fuse",
    "generic",
    "inp",
    "inp_view",
    "lower",
    "md_hom",
    "mdh",
    "out",
    "out_view",
    "parameter_space",
    "parse",
    "ps",
    "pw",
    "pw_custom_func",
    "scalar_function",
    "schedule",
    "show",
    "size",
    "sketch_space",
]
# Names of MDH's interface that are not here, with what to write instead.
ABSENT: Final = {
    "CUDA": 'build(..., target="cuda")',
    "OpenCL": 'build(..., target="opencl")',
    **dict.fromkeys(
        ("pyATF", "evaluations", "CUDARuntimeProfiler", "OpenCLRuntimeProfiler"),
        "build(parameter_space(expression)).tune(trials=n) searches its parameters",
    ),
    "OpenMP": 'build(..., target="cpu", threads=n)',
    "compile": "build(...)",
}
_WORDS: Final = {name: value for name, value in SCOPE.items() if name not in __all__}
__all__.extend(_WORDS)


def __getattr__(name: str) -> Any:
    if name in ABSENT:
        return UnsupportedName("MDH", name, ABSENT[name])
    if name not in _WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _WORDS[name]
