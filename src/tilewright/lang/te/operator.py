"""operator: tensor expressions as the definition of an operator of models.

def wave(op, x):
    k = te.reduce_axis((0, x.shape[1]))
    total = te.compute((x.shape[0],), lambda i: te.sum(x[i, k], axis=k))
    return te.compute(x.shape, lambda i, j: te.sin(x[i, j]) + total[i])

register(OpDef("Wave", domain="com.acme", infer=..., compute=te.operator(wave)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from tilewright.base.errors import InputError
from tilewright.base.names import fresh
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.lang.te.schedule import Schedule, create_schedule
from tilewright.lang.te.syntax.build import placeholder
from tilewright.lang.te.syntax.nodes import Compute, Placeholder, Tensor
from tilewright.lang.te.syntax.program import ProgramNames, computation, order
from tilewright.loops.nodes import Kernel
from tilewright.schedule import edit

Definition = Callable[
    [Any, Sequence[Buffer], Sequence[Buffer]], list[Computation | Kernel]
]


def operator(function: Callable[..., Any]) -> Definition:
    """The `compute` of an OpDef, from a function of the operation and one tensor per input.

    The function returns the tensor of each output, which the target schedules and fuses with
    neighboring operators; or a Schedule of them, which becomes a kernel unchanged. Raises
    InputError if their number, shapes or dtypes differ from those of `infer`.
    """

    @wraps(function)
    def compute(
        op: Any, inputs: Sequence[Buffer], outputs: Sequence[Buffer]
    ) -> list[Computation | Kernel]:
        given = [placeholder(b.shape, b.dtype.name, b.name) for b in inputs]
        made = function(op, *given)
        results = made.outputs if isinstance(made, Schedule) else _tensors(made)
        _check(function, results, outputs)
        if isinstance(made, Schedule):
            return [_kernel(made, given, inputs, outputs)]
        ops = [o for o in order(results) if not isinstance(o, Placeholder)]
        if not all(isinstance(o, Compute) for o in ops):
            whole = create_schedule(list(results))
            return [_kernel(whole, given, inputs, outputs)]
        scope = ProgramNames()
        scope.buffers |= zip((*given, *results), (*inputs, *outputs), strict=True)
        scope.names |= {b.name for b in (*inputs, *outputs)}
        taken: set[str] = set()
        return [
            computation(o, scope, fresh(taken, o.name))
            for o in ops
            if isinstance(o, Compute)
        ]

    return compute


def _tensors(made: Any) -> tuple[Tensor, ...]:
    return tuple(made) if isinstance(made, list | tuple) else (made,)


def _check(
    function: Callable[..., Any], results: Sequence[Any], outputs: Sequence[Buffer]
) -> None:
    found = [(t.shape, t.dtype) if isinstance(t, Tensor) else t for t in results]
    if found != [(b.shape, b.dtype) for b in outputs]:
        raise InputError(
            f"it makes {', '.join(map(repr, results))}",
            where=f"operator {function.__name__}",
            hint=f"infer promises {', '.join(map(repr, outputs))}",
        )
    for t in results:
        if isinstance(t.op, Placeholder):
            raise InputError(
                f"it returns its input {t.name}",
                where=f"operator {function.__name__}",
                hint="compute a copy",
            )


def _kernel(
    s: Schedule,
    given: Sequence[Tensor],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
) -> Kernel:
    """The kernel of a schedule on the buffers of the model."""
    kernel = s.replay([*given, *s.outputs]).schedule.kernel
    params = (*inputs, *outputs)
    to = {b: _to(p) for b, p in zip(kernel.params, params, strict=True)}
    body = edit.rewrite(kernel.body, {}, {}, to)
    return Kernel(kernel.name, params, tuple(outputs), body, kernel.notes)


def _to(buffer: Buffer) -> edit.Move:
    return lambda index: (buffer, index)
