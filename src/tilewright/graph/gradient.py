"""Derivatives of one value with respect to others, in reverse, in terms of operators.

One rule per operator gives what flows to each of its inputs from what flows to its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tilewright.base.dtypes import int64
from tilewright.base.errors import UnsupportedError
from tilewright.graph.nodes import Operation, Value
from tilewright.graph.ops.fragment import Fragment
from tilewright.graph.ops.registry import OpCall

# (where to add operators, the operator, its inputs, its output, what flows to the output)
Rule = Callable[[Fragment, OpCall, Sequence[Value], Value, Value], Sequence[Value]]


def gradients(
    operations: Sequence[Operation], y: Value, xs: Sequence[Value], f: Fragment
) -> list[Value]:
    """d sum(y) / dx for each of `xs`, added to `f`; 0 where y does not depend on it.

    operations: in order, all that y is computed by. Raises UnsupportedError for an operator
    without a rule between xs and y, and for shapes that are not known.
    """
    depends = set(xs)
    for op in operations:
        if any(v in depends for v in op.reads):
            depends.update(op.writes)
    flows = {y: _filled(f, y, 1)}
    for op in reversed(operations):
        if not any(v in flows and v in depends for v in op.writes):
            continue
        inputs = [v for v in op.inputs if v is not None]
        found = _rule(op)(f, OpCall(op, f.known), inputs, op.writes[0], flows[op.writes[0]])
        for v, part in zip(inputs, found, strict=False):
            if v in depends:
                part = _summed(f, part, v)
                flows[v] = f.op("Add", flows[v], part) if v in flows else part
    return [flows[x] if x in flows else _filled(f, x, 0) for x in xs]


def derivatives(
    operations: Sequence[Operation],
    y: Value,
    places: Mapping[Value, Value],
    count: int,
    f: Fragment,
) -> list[Value]:
    """d sum(y) / dx for the first `count` keys of `places`, where each key has its value there.

    Adds to `f`; raises UnsupportedError as `gradients` does.
    """
    moved = {old: new for old, new in places.items() if old is not new}
    env, path = dict(moved), []
    for op in operations:
        if any(v in places for v in op.writes):
            continue
        if any(v in env for v in op.reads):
            env |= _again(f, op, env)
            path.append(f.operations[-1])
        else:
            path.append(op)
    xs = list(places.values())[:count]
    return gradients(path, env.get(y, y), xs, f)


def _again(f: Fragment, op: Operation, env: Mapping[Value, Value]) -> dict[Value, Value]:
    """`op` on other inputs; gives the new result for each of its results."""
    inputs = [None if v is None else env.get(v, v) for v in op.inputs]
    how: dict[str, Any] = {"version": op.version, "domain": op.domain, "count": len(op.outputs)}
    results = f.ops(op.op_type, *inputs, **how, **op.attributes)
    return {v: r for v, r in zip(op.outputs, results, strict=True) if v is not None}


def _rule(op: Operation) -> Rule:
    rule = _RULES.get(op.qualified)
    if rule is None:
        raise UnsupportedError(
            f"there is no rule for the derivative of {op.qualified}",
            where=f"node {op.label!r}",
            hint=f"known are {', '.join(sorted(_RULES))}",
        )
    return rule


def _filled(f: Fragment, like: Value, number: float) -> Value:
    return _shaped(f, f.constant(number, like.dtype), like)


def _extents(v: Value) -> tuple[int, ...]:
    if not v.static:
        raise UnsupportedError(
            "a derivative needs known shapes", where=f"tensor {v.name!r}", hint="give dims={...}"
        )
    return v.extents


def _shape(f: Fragment, extents: Sequence[int]) -> Value:
    return f.constant(list(extents), int64)


def _shaped(f: Fragment, v: Value, like: Value) -> Value:
    """`v` broadcast to the shape of `like`."""
    return f.op("Expand", v, _shape(f, _extents(like)))


def _reshaped(f: Fragment, v: Value, extents: Sequence[int]) -> Value:
    return f.op("Reshape", v, _shape(f, extents))


def _summed(f: Fragment, flow: Value, like: Value) -> Value:
    """`flow` summed over the axes along which `like` was broadcast."""
    have, want = _extents(flow), _extents(like)
    if have == want:
        return flow
    padded = (1,) * (len(have) - len(want)) + want
    axes = [i for i, (a, b) in enumerate(zip(have, padded, strict=True)) if a != b]
    if axes:
        flow = f.op("ReduceSum", flow, _shape(f, axes), keepdims=1)
    return _reshaped(f, flow, want)


def _negated(f: Fragment, v: Value) -> Value:
    return f.op("Neg", v)


def _scaled(f: Fragment, v: Value, factor: float) -> Value:
    return v if factor == 1 else f.op("Mul", v, f.constant(factor, v.dtype))


def _div(f: Fragment, _: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    part = f.op("Div", g, x[1])
    return part, _negated(f, f.op("Mul", part, y))


def _pow(f: Fragment, _: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    """x ** 0 is 1 everywhere, and 0 ** e with e >= 0 has no slope along e: not 0 * infinity."""
    base, exponent = x
    none, zero = f.constant(0, base.dtype), f.constant(0, exponent.dtype)
    less = f.op("Sub", exponent, f.constant(1, exponent.dtype))
    slope = f.op("Mul", f.op("Pow", base, less), f.op("CastLike", exponent, base))
    slope = f.op("Where", f.op("Equal", exponent, zero), none, slope)
    rise = f.op("Mul", y, f.op("Log", base))
    flat = f.op("And", f.op("Equal", base, none), f.op("GreaterOrEqual", exponent, zero))
    return f.op("Mul", g, slope), f.op("Mul", g, f.op("Where", flat, none, rise))


def _relu(f: Fragment, _: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    zero = f.constant(0, y.dtype)
    return [f.op("Where", f.op("Greater", y, zero), g, zero)]


def _times_rest(f: Fragment, g: Value, y: Value, part: Value) -> Value:
    """g * part * (1 - y)"""
    flow = f.op("Mul", g, part)
    return f.op("Sub", flow, f.op("Mul", flow, y))


def _tanh(f: Fragment, _: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    return [f.op("Sub", g, f.op("Mul", g, f.op("Mul", y, y)))]


def _matmul(f: Fragment, op: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    a, b = x
    if min(op.rank(0), op.rank(1)) < 2:
        raise UnsupportedError("the derivative of a product with a vector", where=op.name)
    return f.op("MatMul", g, _turned(f, b)), f.op("MatMul", _turned(f, a), g)


def _turned(f: Fragment, v: Value) -> Value:
    """The last two axes exchanged."""
    rank = len(_extents(v))
    return f.op("Transpose", v, perm=[*range(rank - 2), rank - 1, rank - 2])


def _gemm(f: Fragment, op: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    a, b = x[:2]
    alpha, across, down = op.attr("alpha", 1.0), op.attr("transA", 0), op.attr("transB", 0)

    def product(left: Value, right: Value, turn_left: int, turn_right: int) -> Value:
        return f.op("Gemm", left, right, transA=turn_left, transB=turn_right, alpha=alpha)

    to_a = product(b, g, down, 1) if across else product(g, b, 0, 1 - down)
    to_b = product(g, a, 1, across) if down else product(a, g, 1 - across, 0)
    return to_a, to_b, _scaled(f, g, op.attr("beta", 1.0))


def _reduce(mean: bool) -> Rule:
    def rule(f: Fragment, op: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
        extents = _extents(x[0])
        axes = op.ints(1) if op.has(1) else op.attr("axes")
        over = {op.axis(a, len(extents)) for a in (axes or range(len(extents)))}
        if axes == [] and op.attr("noop_with_empty_axes", 0):
            over = set()
        kept = [1 if i in over else n for i, n in enumerate(extents)]
        flow = _shaped(f, _reshaped(f, g, kept), x[0])
        return [_scaled(f, flow, 1 / max(math.prod(extents[i] for i in over), 1)) if mean else flow]

    return rule


def _reshape(f: Fragment, _: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    return [_reshaped(f, g, _extents(x[0]))]


def _transpose(f: Fragment, op: OpCall, x: Sequence[Value], y: Value, g: Value) -> Sequence[Value]:
    perm = op.attr("perm") or list(reversed(range(op.rank(0))))
    return [f.op("Transpose", g, perm=[perm.index(i) for i in range(len(perm))])]


def _simple(rule: Callable[[Any, Sequence[Value], Value, Value], Sequence[Value]]) -> Rule:
    """A rule in terms of `o(op_type, *operands)` alone."""
    return lambda f, _, x, y, g: rule(f.op, x, y, g)


_RULES: dict[str, Rule] = {
    "Add": _simple(lambda o, x, y, g: (g, g)),
    "Sub": _simple(lambda o, x, y, g: (g, o("Neg", g))),
    "Mul": _simple(lambda o, x, y, g: (o("Mul", g, x[1]), o("Mul", g, x[0]))),
    "Div": _div,
    "Pow": _pow,
    "Sum": _simple(lambda o, x, y, g: [g] * len(x)),
    "Neg": _simple(lambda o, x, y, g: [o("Neg", g)]),
    "Identity": _simple(lambda o, x, y, g: [g]),
    "Abs": _simple(lambda o, x, y, g: [o("Mul", g, o("Sign", x[0]))]),
    "Exp": _simple(lambda o, x, y, g: [o("Mul", g, y)]),
    "Log": _simple(lambda o, x, y, g: [o("Div", g, x[0])]),
    "Sqrt": _simple(lambda o, x, y, g: [o("Div", g, o("Add", y, y))]),
    "Reciprocal": _simple(lambda o, x, y, g: [o("Neg", o("Mul", g, o("Mul", y, y)))]),
    "Sin": _simple(lambda o, x, y, g: [o("Mul", g, o("Cos", x[0]))]),
    "Cos": _simple(lambda o, x, y, g: [o("Neg", o("Mul", g, o("Sin", x[0])))]),
    "Tanh": _tanh,
    "Sigmoid": lambda f, _, x, y, g: [_times_rest(f, g, y, y)],
    "Relu": _relu,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "ReduceSum": _reduce(mean=False),
    "ReduceMean": _reduce(mean=True),
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Flatten": _reshape,
    "Squeeze": _reshape,
    "Unsqueeze": _reshape,
}
