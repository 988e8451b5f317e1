"""A program with calls of functions: kernels between the calls, run one after the other.

A stage belongs to the last kernel that precedes all its readers, so that a producer is compiled
together with its consumers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.base.names import identifier
from tilewright.driver.compile_lock import exclusive
from tilewright.expr.nodes import fixed
from tilewright.lang.function import Function
from tilewright.lang.function.program import Program, host_profile, joined
from tilewright.lang.te.arrays import values_of
from tilewright.lang.te.replay import replay
from tilewright.lang.te.stage import Stage
from tilewright.lang.te.syntax.nodes import HostCall, Packed, Placeholder, Tensor
from tilewright.lang.te.syntax.program import ProgramNames, Sizes, lower
from tilewright.schedule import Schedule as Primitives

if TYPE_CHECKING:
    from tilewright.runtime.profile import Profile


@dataclass(frozen=True, eq=False, slots=True)
class KernelStages:
    """Stages that become one kernel: `inputs` made before it, `outputs` read after it."""

    stages: tuple[Stage, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def schedule(self, sizes: Sizes | None = None) -> Primitives:
        """The kernel at given sizes, with all records about its stages."""
        ops = [s.op for s in self.stages if s.within is None]
        label = identifier("_".join(t.name for t in self.outputs), "main_")
        params = (*self.inputs, *self.outputs)
        with exclusive():
            program = lower(label, ops, params, self.outputs, sizes)
            return replay(self.stages, program, Primitives(program.kernel)).schedule


def has_calls(stages: Sequence[Stage]) -> bool:
    """Whether functions are called."""
    return any(isinstance(s.op, HostCall) for s in stages)


def parts(
    stages: Sequence[Stage], wanted: Sequence[Tensor]
) -> list[KernelStages | HostCall]:
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
    found: list[KernelStages | HostCall] = []
    for n in range(last + 1):
        inside = [s for s in stages if steps[s] == n and not isinstance(s.op, HostCall)]
        if inside:
            found.append(_part(inside, stages, wanted))
        if n < last:
            found.append(calls[n])
    return found


def _part(
    inside: Sequence[Stage], stages: Sequence[Stage], wanted: Sequence[Tensor]
) -> KernelStages:
    made = dict.fromkeys(t for s in inside for t in s.op.outputs)
    read = dict.fromkeys(t for s in inside if s.within is None for t in s.op.inputs)
    others = (s for s in stages if s not in inside)
    later = {*wanted, *(t for s in others for t in s.op.inputs)}
    return KernelStages(
        tuple(inside),
        tuple(t for t in read if t not in made),
        tuple(t for t in made if t in later),
    )


class ProgramWithCalls(Program):
    """A program with calls as a function on arrays, one for each tensor of `params`."""

    def __init__(
        self,
        found: Sequence[KernelStages | HostCall],
        params: Sequence[Tensor],
        make: Callable[[Primitives], Function],
        sizes: Sizes,
    ) -> None:
        self.params: Final = tuple(params)
        self._sizes: Final = sizes
        self._steps: Final[list[_Run | _Call]] = []
        self._between: Final[list[Tensor]] = []
        for step in found:
            self._between.extend(t for t in step.outputs if t not in self.params)
            if isinstance(step, HostCall):
                self._steps.extend(_Call(c, step.outputs) for c in step.calls)
            else:
                tensors = *step.inputs, *step.outputs
                self._steps.append(_Run(make(step.schedule(sizes)), tensors))

    @property
    def functions(self) -> tuple[Function, ...]:
        """The kernels between the calls."""
        return tuple(s.function for s in self._steps if isinstance(s, _Run))

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per parameter. Raises InputError for those that do not fit."""
        known = self._known(arrays)
        for step in self._steps:
            step(known)

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """See `Program`; the calls are rows of the kind "host"."""
        copies = [
            a if isinstance(t.op, Placeholder) else np.copy(a)
            for t, a in zip(self.params, arrays)
        ]
        known = self._known((*copies, *arrays[len(copies) :]))
        for step in self._steps:
            step(known)  # what a step reads is made before it is timed
        return joined([s.profile(known, repeat, peaks) for s in self._steps])

    def _known(self, arrays: Sequence[Any]) -> dict[Tensor, Any]:
        """The arrays by tensor, with room for those between the steps."""
        values = values_of(self.params, arrays, self._sizes)
        known = dict(zip(self.params, arrays, strict=True))
        for t, a in known.items():
            if a.dtype != t.dtype.numpy:
                raise InputError(
                    f"{t!r} was given an array {a.dtype}{list(a.shape)}",
                    where=t.name,
                    hint=f"give one of {t.dtype.numpy}",
                )
        scope = ProgramNames(values)
        for t in self._between:
            shape = tuple(fixed(scope.extent(e), t.name) for e in t.shape)
            known[t] = np.empty(shape, t.dtype.numpy)
        return known

    def __repr__(self) -> str:
        return f"ProgramWithCalls({', '.join(map(repr, self.params))})"


@dataclass(frozen=True, eq=False, slots=True)
class _Run:
    """A kernel on the arrays of its tensors."""

    function: Function
    tensors: tuple[Tensor, ...]

    def __call__(self, known: Mapping[Tensor, Any]) -> None:
        self.function(*(known[t] for t in self.tensors))

    def profile(
        self, known: Mapping[Tensor, Any], repeat: int, peaks: Mapping[str, float]
    ) -> Profile:
        arrays = (known[t] for t in self.tensors)
        return self.function.profile(*arrays, repeat=repeat, **peaks)


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """A call of a function; Python functions receive their inputs as read-only arrays."""

    call: Packed
    outputs: tuple[Tensor, ...]

    def __call__(self, known: Mapping[Tensor, Any]) -> None:
        self.call.function(*(self._value(a, known) for a in self.call.args))

    def profile(
        self, known: Mapping[Tensor, Any], repeat: int, peaks: Mapping[str, float]
    ) -> Profile:
        arrays = [known[a] for a in self.call.args if isinstance(a, Tensor)]
        moved = sum(a.nbytes for a in arrays)
        return host_profile(self.call.name, lambda: self(known), repeat, moved)

    def _value(self, a: Any, known: Mapping[Tensor, Any]) -> Any:
        pointers = self.call.pointers
        if not isinstance(a, Tensor):
            return _number(a) if pointers else a
        array = known[a]
        if pointers:
            return ctypes.c_void_p(array.ctypes.data)
        if a not in self.outputs:
            array = array.view()
            array.flags.writeable = False
        return array


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode()
    return ctypes.c_double(value) if isinstance(value, float) else ctypes.c_int64(value)


def show(found: Sequence[KernelStages | HostCall]) -> str:
    """The kernels and calls as text."""
    lines = []
    for step in found:
        if isinstance(step, HostCall):
            for c in step.calls:
                shown = (a.name if isinstance(a, Tensor) else repr(a) for a in c.args)
                lines.append(f"call {c.name}({', '.join(shown)})")
        else:
            lines.append(repr(step.schedule().kernel))
    return "\n".join(lines)
