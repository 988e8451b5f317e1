"""A program with calls of functions: kernels between the calls, run one after the other.

A stage belongs to the last kernel that still comes before all that reads it, so that a producer is
compiled together with its consumers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.base.errors import InputError
from tilewright.base.names import identifier
from tilewright.lang.function import Function
from tilewright.lang.te.replay import replay
from tilewright.lang.te.stage import Stage
from tilewright.lang.te.syntax.nodes import HostCall, Packed, Tensor
from tilewright.lang.te.syntax.program import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule as Primitives

Step = Callable[[Mapping[Tensor, Any]], None]


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Stages that become one kernel: `inputs` made before it, `outputs` read after it."""

    stages: tuple[Stage, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def kernel(self) -> Kernel:
        """The kernel, with all that is recorded about its stages."""
        ops = [s.op for s in self.stages if s.within is None]
        label = identifier("_".join(t.name for t in self.outputs), "main_")
        program = lower(label, ops, (*self.inputs, *self.outputs), self.outputs)
        return replay(self.stages, program, Primitives(program.kernel)).schedule.kernel


def has_calls(stages: Sequence[Stage]) -> bool:
    """Whether functions are called."""
    return any(isinstance(s.op, HostCall) for s in stages)


def parts(stages: Sequence[Stage], wanted: Sequence[Tensor]) -> list[Part | HostCall]:
    """The kernels and calls in order; wanted: the results of the program."""
    calls = [s.op for s in stages if isinstance(s.op, HostCall)]
    last = len(calls)
    at: dict[Stage, int] = {}
    reader: dict[Tensor, int] = {}  # the first kernel or call that reads a tensor
    for stage in reversed(stages):
        if isinstance(stage.op, HostCall):
            place = calls.index(stage.op)
        elif stage.within is not None:
            continue
        else:
            place = min(reader.get(t, last) for t in stage.tensors)
        at[stage] = place
        for t in stage.op.inputs:
            reader[t] = min(reader.get(t, last), place)
    of = {s.op: n for s, n in at.items()}
    steps = {s: of[s.within or s.op] for s in stages}
    found: list[Part | HostCall] = []
    for n in range(last + 1):
        inside = [s for s in stages if steps[s] == n and not isinstance(s.op, HostCall)]
        if inside:
            found.append(_part(inside, stages, wanted))
        if n < last:
            found.append(calls[n])
    return found


def _part(
    inside: Sequence[Stage], stages: Sequence[Stage], wanted: Sequence[Tensor]
) -> Part:
    made = dict.fromkeys(t for s in inside for t in s.op.outputs)
    read = dict.fromkeys(t for s in inside if s.within is None for t in s.op.inputs)
    others = (s for s in stages if s not in inside)
    later = {*wanted, *(t for s in others for t in s.op.inputs)}
    return Part(
        tuple(inside),
        tuple(t for t in read if t not in made),
        tuple(t for t in made if t in later),
    )


class Calling:
    """A program with calls as a function on arrays, one for each tensor of `params`."""

    def __init__(
        self,
        found: Sequence[Part | HostCall],
        params: Sequence[Tensor],
        make: Callable[[Kernel], Function],
    ) -> None:
        self.params = tuple(params)
        self.functions: list[Function] = []
        self._steps: list[Step] = []
        self._between: list[Tensor] = []
        for step in found:
            outputs = step.outputs
            self._between += [t for t in outputs if t not in self.params]
            if isinstance(step, HostCall):
                self._steps += [_call(c, step.outputs) for c in step.calls]
            else:
                self.functions.append(make(step.kernel()))
                self._steps.append(_run(self.functions[-1], step))
        for t in (*self.params, *self._between):
            if not t.static:
                raise InputError(
                    f"{t!r} has a size that only a call knows",
                    where="build",
                    hint="a program that calls functions has fixed sizes",
                )

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per parameter. Raises InputError for those that do not fit."""
        if len(arrays) != len(self.params):
            expected = ", ".join(map(repr, self.params))
            raise InputError(
                f"{len(arrays)} arrays given, {len(self.params)} expected: {expected}",
                where="call",
                hint="one for each argument of build, in its order",
            )
        known = dict(zip(self.params, arrays, strict=True))
        for t, a in known.items():
            if a.shape != t.shape or a.dtype != t.dtype.numpy:
                raise InputError(
                    f"{t!r} was given an array {a.dtype}{list(a.shape)}",
                    where=t.name,
                    hint=f"give one of {t.dtype.numpy}{list(t.shape)}",
                )
        for t in self._between:
            known[t] = np.empty(t.shape, t.dtype.numpy)
        for step in self._steps:
            step(known)

    def __repr__(self) -> str:
        return f"Calling({', '.join(map(repr, self.params))})"


def _run(function: Function, part: Part) -> Step:
    tensors = (*part.inputs, *part.outputs)
    return lambda known: function(*(known[t] for t in tensors))


def _call(call: Packed, outputs: Sequence[Tensor]) -> Step:
    """A step that calls a function; a Python function gets what it reads as read-only arrays."""

    def value(a: Any, known: Mapping[Tensor, Any]) -> Any:
        if not isinstance(a, Tensor):
            return _number(a) if call.pointers else a
        array = known[a]
        if call.pointers:
            return ctypes.c_void_p(array.ctypes.data)
        if a not in outputs:
            array = array.view()
            array.flags.writeable = False
        return array

    def step(known: Mapping[Tensor, Any]) -> None:
        call.function(*(value(a, known) for a in call.args))

    return step


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def show(found: Sequence[Part | HostCall]) -> str:
    """The kernels and calls as text."""
    lines = []
    for step in found:
        if isinstance(step, HostCall):
            for c in step.calls:
                shown = (a.name if isinstance(a, Tensor) else repr(a) for a in c.args)
                lines.append(f"call {c.name}({', '.join(shown)})")
        else:
            lines.append(repr(step.kernel()))
    return "\n".join(lines)
