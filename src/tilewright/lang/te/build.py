"""lower and build: from a schedule to a Kernel, and to a function on arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Unpack

from tilewright.base.errors import InputError, ScheduleError
from tilewright.base.text import plural
from tilewright.compute.nodes import Computation
from tilewright.driver.schedulable import Plain
from tilewright.expr.nodes import Var
from tilewright.lang.function import Function
from tilewright.lang.function.choosing import (
    by_default,
    by_hand_or_record,
    by_lines,
    by_parameters,
    fused,
)
from tilewright.lang.function.kept import ProgramCache
from tilewright.lang.function.program import Program
from tilewright.lang.te.arrays import values_of
from tilewright.lang.te.parts import ProgramWithCalls, has_calls
from tilewright.lang.te.schedule import Schedule
from tilewright.lang.te.syntax.nodes import Compute, Placeholder, Tensor
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule as Primitives
from tilewright.targets import registry
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.driver.keywords import TuneSettings
    from tilewright.runtime.profile import Profile

_AUTOMATIC: Final = (
    "build(create_schedule(...), ..., auto=True): the target's sketches schedule it all"
)


def lower(
    s: Schedule,
    args: Sequence[Tensor],
    name: str | None = None,
    *,
    sizes: Mapping[Var, int] | None = None,
) -> Kernel:
    """The program of a schedule: a Kernel whose parameters are `args`, inputs first, outputs last.

    sizes: values of the sizes made by `var`. Raises InputError for a tensor that is missing or a
    size without a value, ScheduleError for a line that cannot be applied.
    """
    if sizes is not None and not isinstance(sizes, Mapping):
        raise InputError(
            f"the sizes are {sizes!r}", where="lower", hint="as in sizes={n: 64}"
        )
    return primitives(s, args, name, sizes=sizes).kernel


def primitives(
    s: Schedule,
    args: Sequence[Tensor],
    name: str | None = None,
    *,
    sizes: Mapping[Var, int] | None = None,
) -> Primitives:
    """The primitives that a schedule is, applied to the plain program; as `lower` otherwise."""
    return s.replay(inputs_first(arguments(s, args)), sizes, name).schedule


def build(
    s: Schedule,
    args: Sequence[Tensor],
    target: str = "cpu",
    name: str | None = None,
    *,
    threads: int | None = None,
    auto: bool = False,
    description: Mapping[str, Any] | None = None,
    sizes: Mapping[Var, int] | None = None,
    specialize: bool = False,
    records: Any = None,
) -> Program:
    """The schedule as a function on NumPy arrays, one per tensor of `args`, outputs written.

    target: "cpu", "opencl", "cuda", "vdla", "vta" or "interp". auto: let the target's sketches
    schedule; `s` must then have no schedule. description: overrides for fields of a simulated
    machine's description. Sizes made by `var` without a value in `sizes` stay symbolic, and one
    function works for all their values; specialize: compile for each value that it is called with
    instead. records: as for `tilewright.compile`; the best recorded schedule is used if `s` has
    none, or only the defaults of a template.
    Raises the errors of `lower`, and UnsupportedError for an unknown target.
    """
    given = arguments(s, args)
    params = inputs_first(given)
    lines, calls = _has_lines(s), has_calls(s.stages)
    if auto:
        _expect_automatic(lines, calls)
    fixed = dict(sizes or {})

    def compiled(made: Primitives) -> Function:
        return by_lines(made, target, threads, description, records=records)

    def make(known: Mapping[Var, int]) -> Program:
        values = fixed | dict(known)
        if calls:
            return ProgramWithCalls(s.parts(), params, compiled, values)
        if auto:
            return by_default(*bare(values), target, threads, description, records)
        made = s.replay(params, values, name).schedule
        if description is not None:
            return compiled(made)
        if s.template is not None and s.template.makes(made):
            return by_parameters(s.template, target, threads, records)
        if lines:
            found = compiled(made)
        else:
            found = by_hand_or_record(
                made, lambda: bare(values), target, threads, records=records
            )
        return _hinting(found, made)

    def bare(values: Mapping[Var, int]) -> Plain:
        machine = registry.target(target, description=description)
        return unscheduled(s, params, machine, name, values)

    left = [v for v in s.sizes if v not in fixed]
    found = Specializing(left, params, make) if specialize and left else make({})
    places = [given.index(t) for t in params]
    return found if given == params else ReorderedFunction(found, places)


def _hinting(found: Function, made: Primitives) -> Function:
    """The function, which says of a kernel that is the schedule's own how to get another."""
    if found.kernel is made.kernel:
        found.otherwise = _AUTOMATIC
    return found


def _has_lines(s: Schedule) -> bool:
    """Whether anything is recorded in the schedule."""
    return any(stage.touched or stage.attach for stage in s.stages)


def _expect_automatic(lines: bool, calls: bool) -> None:
    """Raise ScheduleError if `auto` cannot schedule it: recorded lines, calls of functions."""
    if lines:
        raise ScheduleError(
            "auto=True schedules everything, but this schedule already has lines",
            hint="build a fresh create_schedule(...)",
            where="build",
        )
    if calls:
        raise ScheduleError(
            "auto=True schedules one kernel, but this program calls functions",
            hint="schedule the stages",
            where="build",
        )


def unscheduled(
    s: Schedule,
    params: Sequence[Tensor],
    machine: Target,
    name: str | None,
    sizes: Mapping[Var, int],
) -> tuple[Kernel, Sequence[Computation]]:
    """What the target is to schedule; of fewer Computations where it has none for all as written.

    See `fused`; where sizes are open, all are as written.
    """
    program = s.program(params, sizes, name)
    plain = program.kernel
    recurs = any(not isinstance(stage.op, Compute) for stage in s.stages)
    computations: Sequence[Computation] = program.computations
    if recurs or plain.sizes:
        return plain, computations
    return fused(plain.name, computations, plain.params, plain.outputs, machine)


def arguments(s: Schedule, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The arguments of a schedule, as given. Raises InputError for ones that cannot be."""
    if not isinstance(s, Schedule):
        raise InputError(
            f"{s!r} is not a schedule",
            hint="make one with create_schedule(C.op)",
            where="schedule",
        )
    if not isinstance(args, Sequence):
        raise InputError(
            f"the arguments are {args!r}",
            where="args",
            hint="a list of tensors: [A, B, C]",
        )
    given = tuple(args)
    for t in given:
        if not isinstance(t, Tensor):
            raise InputError(
                f"the argument {t!r} is not a tensor",
                where="args",
                hint="a list of tensors: [A, B, C]",
            )
    missing = [t.name for t in (*s.inputs, *s.outputs) if t not in given]
    if missing:
        raise InputError(
            f"{', '.join(missing)} is not among the arguments",
            where="args",
            hint="give every input and every output",
        )
    return given


def inputs_first(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The arguments as a kernel has them."""
    return tuple(sorted(given, key=lambda t: not isinstance(t.op, Placeholder)))


class ReorderedFunction(Program):
    """A function whose arrays come in another order than its kernel's: outputs before inputs.

    order: where each of the kernel's parameters is among the arrays.
    """

    def __init__(self, function: Program, order: Sequence[int]) -> None:
        self.function: Final = function
        self._order: Final = tuple(order)

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those of the function, whose arrays are inputs first."""
        return self.function.functions

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per argument of `build`. Raises InputError as the function does."""
        self.function(*self._arranged(arrays))

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """See `Program`."""
        return self.function.profile(*self._arranged(arrays), repeat=repeat, **peaks)

    def tune(self, *arrays: Any, **settings: Unpack[TuneSettings]) -> ReorderedFunction:
        """See `Program`."""
        given = self._arranged(arrays) if arrays else ()
        return ReorderedFunction(self.function.tune(*given, **settings), self._order)

    def _arranged(self, arrays: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(arrays) != len(self._order):
            raise InputError(
                f"{plural(len(arrays), 'array')} given, {len(self._order)} expected",
                where="call",
                hint="one for each argument of build, in its order",
            )
        return tuple(arrays[n] for n in self._order)

    def __repr__(self) -> str:
        return f"ReorderedFunction({self.function!r})"


class Specializing(Program):
    """A function that compiles itself for each value of its symbolic sizes, on first use."""

    def __init__(
        self, sizes: Sequence[Var], params: Sequence[Tensor], make: Any
    ) -> None:
        self.params: Final = tuple(params)
        self._make: Final = make
        self._kept: Final = ProgramCache()
        self._sizes: Final = tuple(sizes)
        found = {e for t in params for e in t.shape if isinstance(e, Var)}
        for v in self._sizes:
            if v not in found:
                raise InputError(
                    f"no argument has {v.name} alone as an extent, so it cannot be inferred",
                    where="args",
                    hint="give some placeholder this extent, or lower with sizes={n: 64}",
                )

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those compiled so far."""
        return self._kept.functions

    def __call__(self, *arrays: Any) -> None:
        """Run on one array per parameter. Raises InputError for shapes that do not fit."""
        self.at(values_of(self.params, arrays, {}))(*arrays)

    def profile(self, *arrays: Any, repeat: int = 20, **peaks: float) -> Profile:
        """See `Program`: of the function for the sizes of these arrays."""
        return self.at(values_of(self.params, arrays, {})).profile(
            *arrays, repeat=repeat, **peaks
        )

    def at(self, sizes: Mapping[Var, int]) -> Program:
        """The function for these sizes."""
        key = tuple(sizes[v] for v in self._sizes)
        return self._kept.get(key, lambda: self._make(sizes))

    def __repr__(self) -> str:
        return f"Specializing({', '.join(map(repr, self.params))})"
