"""The greatest common divisor."""

from __future__ import annotations

from tilewright.base.dtypes import bool_, int64
from tilewright.frontends.torch.aten.operators.control import body_input
from tilewright.frontends.torch.aten.rules import AtenCall, rule
from tilewright.graph.nodes import Value
from tilewright.graph.ops.terms import TensorTerm


@rule("prims.gcd", "aten.gcd")
def _divisor(c: AtenCall) -> Value:
    """Euclid's algorithm on all elements, until each remainder is 0.

    Remainders have the sign of the dividend, as in C: the size of the least integer is itself.
    """
    first, second = (c.cast(c.value(v), c.dtype) for v in c.arguments.values())
    zero = c.number(0, c.dtype)
    shape = c.op("Shape", c.op("Add", first, second))
    sizes = [c.op("Expand", c.op("Abs", v), shape) for v in (first, second)]
    number = body_input(c, Value("number", int64, ()))
    before = body_input(c, Value("going", bool_, ()))
    a, b = (body_input(c, v) for v in sizes)

    def going(remainder: Value) -> Value:
        none = c.op("Equal", remainder, zero)
        left = c.cast(c.op("Not", none), int64)
        count = c.op("ReduceSum", left, keepdims=0)
        return c.op("Greater", count, c.number(0, int64))

    def iteration() -> list[Value]:
        ended = TensorTerm(c, a).equals(zero)
        divisor = ended.chosen(c.number(1, c.dtype), a)
        rest = c.op("Mod", b, divisor.value, fmod=1)
        after = ended.chosen(zero, rest).value
        return [going(after), after, ended.chosen(b, a).value]

    body = c.build.body([number, before, a, b], iteration)
    _, found = c.build.ops("Loop", None, going(sizes[0]), *sizes, count=2, body=body)
    return found
