"""Traces: a schedule as the list of applied primitives, to store and compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from functools import partial
from typing import Any

from tilewright.base import limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import ScheduleError
from tilewright.loops.nodes import Kernel
from tilewright.runtime import schema
from tilewright.schedule import step_cache
from tilewright.schedule.arguments import check_arguments
from tilewright.schedule.registry import PRIMITIVES, Primitive


@dataclass(frozen=True, slots=True)
class Step:
    """One primitive with its arguments: names, numbers, strings, None."""

    primitive: str
    args: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [repr(a) for a in self.args]
        parts += [f"{k}={v!r}" for k, v in self.options.items()]
        return f"{self.primitive}({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a schedule, in order."""

    steps: tuple[Step, ...] = ()

    def to_json(self) -> str:
        """One JSON list with an element `[primitive, args, options]` per step."""
        rows = [[s.primitive, list(s.args), s.options] for s in self.steps]
        return json.dumps(rows)

    @staticmethod
    def from_json(text: str) -> Trace:
        """The trace that `to_json` wrote. Raises ScheduleError if it is none."""
        try:
            rows = json.loads(text)
            schema.check(rows, [(schema.Text, [schema.Anything], schema.Object)])
            steps = [Step(name, tuple(args), options) for name, args, options in rows]
            return Trace(tuple(steps))
        except (ValueError, TypeError, RecursionError) as error:
            raise ScheduleError(
                f"this is not a trace: {error}",
                hint="expected a list of [primitive, args, options]",
            ) from None

    def __str__(self) -> str:
        return "\n".join(f"s.{step}" for step in self.steps)


def apply(kernel: Kernel, step: Step) -> tuple[Kernel, Any]:
    """`kernel` after one step, and the names it made. Raises ScheduleError if it is illegal."""
    limits.check()
    rewrite = PRIMITIVES.get(step.primitive)
    if rewrite is None:
        raise ScheduleError(
            f"there is no primitive {step.primitive!r}",
            where=kernel.name,
            hint=f"known: {', '.join(sorted(PRIMITIVES))}",
        )
    make = partial(_made, rewrite, kernel, step)
    cache = step_cache.active()
    return make() if cache is None else cache.made(kernel, str(step), make)


def _made(
    rewrite: Primitive[..., Any], kernel: Kernel, step: Step
) -> tuple[Kernel, Any]:
    check_arguments(rewrite, kernel.name, step.args, step.options)
    return rewrite(kernel, *step.args, **step.options)


def replay(kernel: Kernel, trace: Trace | Sequence[Step]) -> Kernel:
    """`kernel` after all the steps."""
    for step in trace.steps if isinstance(trace, Trace) else trace:
        kernel, _ = apply(kernel, step)
    return kernel
