"""No operator reads or writes outside its tensors: proven before its program is compiled.

For each access of each statement and all points at which it executes (loops and guards), each index
is proven to be within 0 .. extent - 1. Indices read from memory are checked by the generated code.

A user's operator must also satisfy what tests verify for built-in ones: it reads only operands and
the results of earlier steps, and it writes every element of its results exactly once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from tilewright.base.errors import (
    CompileError,
    ModelError,
    TilewrightError,
    VerifyError,
)
from tilewright.compute.check import UnprovenAccess, check, leaving
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.expr.printer import show
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.errors import place
from tilewright.graph.ops.registry import Program, definition_of, foreign
from tilewright.loops.nodes import Kernel
from tilewright.loops.verify import access_errors, verify

CODE, TYPE = "TW-BOUNDS", "TW-TYPE"
T = TypeVar("T")


def check_program(
    op: Operation,
    program: Program,
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
) -> None:
    """Raise if the program of `op` accesses anything outside its tensors.

    ModelError for a built-in operator, whose operands do not fit; CompileError for a user's
    operator, whose definition is wrong.
    """
    definition = definition_of(op)
    users = definition is not None and foreign(definition)
    for item in program:
        if isinstance(item, Kernel):
            _check_kernel(op, item, users)
            continue
        for found in leaving(item):
            raise _outside(op, found, users)
        if users:
            _valid(op, check, item)
    if users:
        _check_flow(op, program, inputs, outputs)


def check_parts(
    op: Operation,
    results: Sequence[Value | None],
    made: Sequence[Value | None],
) -> None:
    """Raise if the decomposition of `op` has other result types than its own type inference.

    ModelError for a built-in operator, whose operand would be stretched by broadcasting;
    CompileError for a user's operator, whose definition is wrong. Unknown types are not an error.
    """
    for want, found in zip(results, made, strict=False):
        if want is None or found is None or not (want.static and found.static):
            continue
        if (want.dtype, want.extents) == (found.dtype, found.extents):
            continue
        what = f"its decomposition yields {found.type_text}, not {want.type_text}"
        definition = definition_of(op)
        if definition is not None and foreign(definition):
            raise _wrong(op, what, "Make `infer` and `decompose` agree", TYPE)
        raise ModelError(f"its operands do not fit: {what}", code=TYPE, where=place(op))


def _check_kernel(op: Operation, kernel: Kernel, users: bool) -> None:
    for message in access_errors(kernel):
        if users:
            raise _wrong(op, message, "Put a condition around the statement", CODE)
        raise ModelError(
            f"its operands do not fit: {message}", code=CODE, where=place(op)
        )
    if users:
        _valid(op, verify, kernel)


def _outside(op: Operation, x: UnprovenAccess, users: bool) -> TilewrightError:
    takes = "values that cannot be bounded" if x.low is None else f"{x.low} to {x.high}"
    message = (
        f"index {show(x.index)} of dimension {x.axis} of {x.tensor.name} takes {takes}, "
        f"the extent is {x.extent}"
    )
    if not users:
        return ModelError(
            f"its operands do not fit: {message}", code=CODE, where=place(op)
        )
    hint = "Read it through padded(x, index, outside), or guard it: where(condition, x[i], other)"
    return _wrong(op, message, hint, CODE)


def _check_flow(
    op: Operation,
    program: Program,
    inputs: Sequence[Buffer | None],
    outputs: Sequence[Buffer | None],
) -> None:
    """Only operands and earlier results are read; every element of a result is written once."""
    given = {b for b in inputs if b is not None}
    written: dict[Buffer, int] = {}
    for item in program:
        for b in item.inputs:
            if b not in given and b not in written:
                what = (
                    f"{b.name} is read, but it is neither an operand nor written before"
                )
                raise _wrong(
                    op, what, "Put the step that computes it first", "TW-OUTPUTS"
                )
        for b, count in _written(item):
            written[b] = written.get(b, 0) + count
    for b in (*written, *(b for b in outputs if b is not None)):
        if (count := written.get(b, 0)) != b.size:
            raise _wrong(
                op,
                f"it writes {count:,} elements of {b.name}, which has {b.size:,}",
                "Let infer give the shape that compute fills",
                "TW-OUTPUTS",
            )


def _written(item: Computation | Kernel) -> list[tuple[Buffer, int]]:
    """The number of elements written; a kernel, which may repeat writes, writes all of them."""
    if isinstance(item, Kernel):
        return [(b, b.size) for b in item.outputs]
    count = math.prod(d.extent for d in item.kept_dims)
    return [(o.tensor, count) for o in item.outputs]


def _valid(
    op: Operation,
    test: Callable[[T], None],
    item: T,
) -> None:
    try:
        test(item)
    except VerifyError as error:
        raise _wrong(op, f"{error}", None, error.code) from error


def _wrong(
    op: Operation,
    what: str,
    hint: str | None,
    code: str,
) -> CompileError:
    return CompileError(
        f"its definition is wrong: {what}", code=code, where=place(op), hint=hint
    )
