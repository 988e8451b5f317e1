"""The invariants of loops and branches: the inputs and outputs of nested plans.

    number, condition, trips and count have one element; a state has the same type before and after
    an iteration; item n is row n of its stacked tensor; all branches return the same types.

A body's result becomes the next iteration's state while other results are still to be stored. So
either a step of the body writes it and no other result is the same buffer, or it is unchanged (a
captured value, a constant, or the state itself).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.base.dtypes import bool_, int64
from tilewright.base.errors import VerifyError
from tilewright.expr.nodes import Buffer
from tilewright.plan.nodes import HOST, Branch, FusionGroup, Loop, Plan


def verify_inside(step: Loop | Branch) -> None:
    """Raise VerifyError (TW-PLAN-INSIDE) naming the step and the tensor of a broken rule."""
    if isinstance(step, Loop):
        _verify_loop(step)
        return
    _same(step, "condition", [bool_], [step.condition])
    for body in step.bodies:
        _verify_plan(step, body)
        _types(step, "takes", _inputs(body), step.taken)
        _types(step, "returns", body.results, step.results)


def _verify_loop(step: Loop) -> None:
    body = step.body
    _verify_plan(step, body)
    number, *inputs = _inputs(body)
    again, *results = body.results
    _same(step, "number", [int64, int64, int64], [number, step.trips, step.count])
    _same(step, "condition", [bool_] * 2, [again, step.going])
    _types(step, "takes", inputs, (*step.initial, *step.taken))
    states = results[: len(step.states)]
    items = results[len(step.states) :]
    _types(step, "returns", states, step.states)
    _types(step, "begins with", step.initial, step.states)
    rows = {b.shape[:1] for b in step.stacked}
    if len(rows) > 1:
        _broken(step, f"stacks {sorted(rows)} rows")
    for item, stacked in zip(items, step.stacked, strict=True):
        if item.dtype is not stacked.dtype or item.shape != stacked.shape[1:]:
            _broken(step, f"stacks {item!r} in {stacked!r}")
    for n, b in enumerate(results):
        itself = n < len(states) and b is inputs[n]
        stays = b in body.given and b not in inputs[: len(states)] and b is not number
        own = b not in body.given and results.count(b) == 1 and b is not again
        if not (itself or stays or own):
            _broken(
                step,
                f"result {n} of its body, {b!r}, is also another result or an input",
            )


def _verify_plan(step: Loop | Branch, body: Plan) -> None:
    for s in body.steps:
        if not isinstance(s, FusionGroup | Loop | Branch) or s.device != HOST:
            _broken(step, f"its nested step {s.name} is not native code on the host")
    if body.open:
        _broken(step, f"its nested plan {body.graph.name} is open")
    if len(body.results) != len(body.graph.outputs):
        _broken(step, "a result of its nested plan has no buffer")


def _inputs(body: Plan) -> list[Buffer]:
    return [body.buffers[v] for v in body.graph.inputs]


def _types(
    step: Loop | Branch, what: str, inner: Sequence[Buffer], outer: Sequence[Buffer]
) -> None:
    if len(inner) != len(outer):
        _broken(
            step, f"{what} {len(outer)} tensors, but its nested plan has {len(inner)}"
        )
    for a, b in zip(inner, outer, strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            _broken(step, f"{what} {b!r}, which is {a!r} in its nested plan")


def _same(
    step: Loop | Branch, what: str, dtypes: Iterable[object], found: Iterable[Buffer]
) -> None:
    for dtype, b in zip(dtypes, found, strict=True):
        if b.dtype is not dtype or b.size != 1:
            _broken(step, f"its {what} {b!r} is not a {dtype} of one element")


def _broken(step: Loop | Branch, message: str) -> None:
    raise VerifyError(message, code="TW-PLAN-INSIDE", where=step.name)
