"""One step of an optimizer of ai.onnx.preview.training: Momentum, Adagrad, Adam.

Inputs: the rate R, the count of steps T, then per kind of tensor (parameters, gradients, states)
all tensors of that kind; outputs likewise, without the gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.compute.build import cast, map_
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Expr, Select, call, const
from tilewright.graph.ops.registry import OpCall, OpDef, Type, register

Buffers = Sequence[Buffer]
DOMAIN = "ai.onnx.preview.training"

# (call, rate, steps, parameter, gradient, states) -> new parameter and states
Rule = Callable[[OpCall, Expr, Expr, Expr, Expr, Sequence[Expr]], Sequence[Expr]]


def _regular(op: OpCall, x: Expr, gradient: Expr) -> Expr:
    """The gradient plus that of the L2 penalty."""
    return const(op.attr("norm_coefficient", 0.0), x.dtype) * x + gradient


def _momentum(
    op: OpCall, rate: Expr, steps: Expr, x: Expr, gradient: Expr, states: Sequence[Expr]
) -> Sequence[Expr]:
    g = _regular(op, x, gradient)
    alpha = op.attr("alpha")
    beta = const(op.attr("beta"), x.dtype)
    first = Select(
        steps > 0,
        beta,
        const(1, x.dtype),
    )
    v = alpha * states[0] + first * g
    if op.attr("mode") == "nesterov":
        step = g + alpha * v
    else:
        step = v
    return x - rate * step, v


def _adagrad(
    op: OpCall, rate: Expr, steps: Expr, x: Expr, gradient: Expr, states: Sequence[Expr]
) -> Sequence[Expr]:
    decayed = rate / (1.0 + steps * op.attr("decay_factor", 0.0))
    g = _regular(op, x, gradient)
    h = states[0] + g * g
    return x - decayed * g / (call("sqrt", h) + op.attr("epsilon", 1e-6)), h


def _adam(
    op: OpCall, rate: Expr, steps: Expr, x: Expr, gradient: Expr, states: Sequence[Expr]
) -> Sequence[Expr]:
    alpha = op.attr("alpha", 0.9)
    beta = op.attr("beta", 0.999)
    g = _regular(op, x, gradient)
    v = alpha * states[0] + (1 - alpha) * g
    h = beta * states[1] + (1 - beta) * (g * g)

    def left(decay: float) -> Expr:
        return 1.0 - call(
            "pow",
            const(decay, x.dtype),
            steps,
        )

    unbiased = rate * call("sqrt", left(beta)) / left(alpha)
    adjusted = Select(steps > 0, unbiased, rate)
    root = call("sqrt", h) + op.attr("epsilon", 1e-6)
    new = x - adjusted * v / root
    kept = 1.0 - op.attr("norm_coefficient_post", 0.0)
    return kept * new, v, h


def _optimizer(name: str, states: int, rule: Rule) -> None:
    """Register an optimizer with a number of states per parameter."""
    kinds = states + 2

    def count(op: OpCall) -> int:
        tensors = op.arity - 2
        if tensors % kinds:
            raise op.error(f"{tensors} tensors are not a multiple of {kinds}")
        return tensors // kinds

    def infer(op: OpCall) -> Sequence[Type]:
        n = count(op)
        kept = [*range(2, 2 + n), *range(2 + 2 * n, op.arity)]
        return [(op.dtype(i), op.shape(i)) for i in kept]

    def compute(op: OpCall, inputs: Buffers, outputs: Buffers) -> list[Computation]:
        n = count(op)

        def results(k: int, i: Sequence[Expr]) -> Sequence[Expr]:
            """The new parameter `k` and its states at point `i`."""
            x = inputs[2 + k]
            scalars = [b[(const(0),) * len(b.shape)] for b in inputs[:2]]
            rate, steps = (cast(s, x.dtype) for s in scalars)
            gradient, *kept = (inputs[2 + m * n + k][i] for m in range(1, kinds))
            return rule(op, rate, steps, x[i], gradient, kept)

        def computation(k: int, m: int) -> Computation:
            return map_(
                f"{op.name}_{m}_{k}",
                outputs[m * n + k],
                lambda *i: results(k, i)[m],
            )

        return [computation(k, m) for k in range(n) for m in range(states + 1)]

    register(OpDef(name, infer, domain=DOMAIN, compute=compute))


_optimizer("Momentum", 1, _momentum)
_optimizer("Adagrad", 1, _adagrad)
_optimizer("Adam", 2, _adam)
