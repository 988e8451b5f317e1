"""Functions of whole matrices: the exponential.

By scaling and squaring (Golub, Van Loan, "Matrix Computations", section 9.3.1): each matrix is
halved until its 1-norm is at most 1, a Taylor polynomial is evaluated, and the result is squared as
often. Its remainder is at most 1.1 / (degree + 1)!, below half an ulp of 1 in each type.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from tilewright.base.dtypes import bool_, float64, int64
from tilewright.frontends.torch.aten.operators.control import body_input
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm

_DEGREES: Final = {"float32": 10, "float64": 18}
_MOST: Final = 1024  # halvings: no number of either type needs more


@rule("aten.linalg_matrix_exp", "aten.matrix_exp")
def _exponential(c: AtenCall) -> Value:
    size = c.extent(-1)
    if size is None:
        raise c.refuse("the size of its matrices is known only at run time")
    if c.dtype.name not in _DEGREES:
        raise c.refuse(f"it has no polynomial for {c.dtype.name}")
    x = c.tensor()
    halvings = _halvings(c, x)
    power = halvings.of(0.5).op("Pow", halvings).cast(c.dtype)
    near = _polynomial(c, power * x, size)
    return _squared(c, near, halvings)


def _halvings(c: AtenCall, x: Value) -> TensorTerm:
    """How often each matrix is halved, with two axes of extent 1."""
    sizes = abs(TensorTerm(c, x)).value
    sums = c.op("ReduceSum", sizes, c.ints(-2), keepdims=1)
    norm = c.op("ReduceMax", sums, c.ints(-1), keepdims=1)
    wide = TensorTerm(c, norm).cast(float64)
    twos = (wide.op("Log") / float(np.log(2))).op("Ceil")
    inside = twos.op("Max", 0).op("Min", _MOST)
    return inside.op("IsNaN").chosen(0, inside)


def _polynomial(c: AtenCall, x: TensorTerm, size: int) -> Value:
    """The exponential's Taylor polynomial, by Horner's rule: 1 + x (1 + x / 2 (1 + ...))."""
    unit = c.number(np.eye(size))
    found = x * (1 / _DEGREES[c.dtype.name]) + unit
    for n in range(_DEGREES[c.dtype.name] - 1, 0, -1):
        found = (x * (1 / n)).op("MatMul", found) + unit
    return found.value


def _squared(c: AtenCall, start: Value, times: TensorTerm) -> Value:
    """Each matrix squared as often as it says, in a loop as long as the longest needs."""
    most = c.op("ReduceMax", times.value, keepdims=0)
    none = c.number(0, float64)  # there may be no matrices
    count = c.cast(c.op("Max", most, none), int64)
    number = body_input(c, Value("number", int64, ()))
    going = body_input(c, Value("going", bool_, ()))
    before = body_input(c, start)

    def iteration() -> list[Value]:
        still = TensorTerm(c, c.cast(number, float64)) < times
        square = c.op("MatMul", before, before)
        return [c.op("Identity", going), still.chosen(square, before).value]

    body = c.build.body([number, going, before], iteration)
    yes = c.number(True, bool_)
    return c.op("Loop", count, yes, start, body=body)
