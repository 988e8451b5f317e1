"""Functions of programs whose schedule is open: a record, the target or the author decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.base.errors import UnsupportedError
from tilewright.compute.nodes import Computation
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.schedulable import Plain, Schedulable
from tilewright.driver.schedule_records import (
    ScheduleRecord,
    by_hand,
    by_sketches,
    of_point,
)
from tilewright.expr.nodes import Buffer
from tilewright.lang.function import Function, scheduled
from tilewright.lang.function.origin import ProgramOrigin
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import FusionGroup
from tilewright.plan.passes.fuse import fuse
from tilewright.schedule import Schedule
from tilewright.targets import registry
from tilewright.targets.base import Target
from tilewright.tune.space.factors import factors
from tilewright.tune.space.program_space import ProgramSpace


def by_default(
    plain: Kernel,
    computations: Sequence[Computation],
    target: str,
    threads: int | None = None,
    description: Mapping[str, Any] | None = None,
    records: Any = None,
    exact: bool = False,
) -> Function:
    """The function of a kernel, scheduled by the target or by a tuning record.

    computations: the kernel's definition. The others are as for `Function`.
    """

    def usual(origin: ProgramOrigin | None) -> Function:
        machine = registry.target(target, exact=exact, description=description)
        with exclusive():
            kernel = machine.default_schedule(plain, computations, ()).kernel
        account = partial(by_sketches, plain, computations, machine)
        return Function(
            kernel, target, threads, description, account, exact, False, origin
        )

    if plain.sizes or description is not None or not is_native(target):
        return usual(None)
    options = options_of(target, threads, exact)
    program = Schedulable(lambda: (plain, computations), options=options)
    return chosen(program, usual, records)


def by_hand_or_record(
    made: Schedule,
    plain: Callable[[], Plain],
    target: str,
    threads: int | None = None,
    exact: bool = False,
    records: Any = None,
    account: Callable[[], ScheduleRecord] | None = None,
) -> Function:
    """The function of a program without lines, as it is written or as a record of tuning says.

    plain: what sketches may schedule instead. The others are as of `Function`.
    """
    if made.kernel.sizes or not is_native(target):
        return scheduled(made, target, threads, exact=exact)
    account = account or partial(by_hand, made.kernel.name, made.trace)

    def nests() -> Plain:
        try:
            return plain()
        except UnsupportedError:
            # There are no Computations: the kernel itself is scheduled.
            return made.kernel, ()

    usual = partial(_as_scheduled, made.kernel, target, threads, account, exact, False)
    options = options_of(target, threads, exact)
    return chosen(Schedulable(nests, usual=made, options=options), usual, records)


def by_lines(
    made: Schedule,
    target: str,
    threads: int | None = None,
    description: Mapping[str, Any] | None = None,
    exact: bool = False,
    records: Any = None,
) -> Function:
    """The function of a hand-written schedule, whose factors `tune` can change.

    Without tuning it stays as written; a record only applies if the file of records is named.
    """
    space = None if made.kernel.sizes or description is not None else factors(made)
    if space is None or not is_native(target):
        return scheduled(made, target, threads, description, exact, records)

    account = partial(by_hand, made.kernel.name, made.trace)
    usual = partial(
        _as_scheduled, made.kernel, target, threads, account, exact, records
    )
    options = options_of(target, threads, exact)
    program = Schedulable(lambda: (made.original, ()), space, options=options)
    return chosen(program, usual, False if records is None else records)


def _as_scheduled(
    kernel: Kernel,
    target: str,
    threads: int | None,
    account: Callable[[], ScheduleRecord],
    exact: bool,
    records: Any,
    origin: ProgramOrigin | None,
) -> Function:
    return Function(
        kernel,
        target,
        threads,
        account=account,
        exact=exact,
        records=records,
        origin=origin,
    )


def by_parameters(
    space: ProgramSpace,
    target: str = "cpu",
    threads: int | None = None,
    records: Any = None,
) -> Function:
    """The function of a program that is scheduled by its author's parameters.

    They have the values of the best record of tuning, or else their defaults.
    """
    made = space.schedule(space.default())

    def usual(origin: ProgramOrigin | None) -> Function:
        kernel = made.schedule.kernel
        account = partial(of_point, kernel.name, made, ())
        return Function(
            kernel, target, threads, account=account, records=False, origin=origin
        )

    if made.schedule.kernel.sizes or not is_native(target):
        return usual(None)
    options = options_of(target, threads)
    original = made.schedule.original
    program = Schedulable(lambda: (original, ()), space, options=options)
    return chosen(program, usual, records)


def chosen(
    program: Schedulable,
    usual: Callable[[ProgramOrigin | None], Function],
    records: Any,
) -> Function:
    """The function as a record says, or as usual; both can be tuned."""
    origin = ProgramOrigin(program, lambda other: chosen(program, usual, other))
    found = program.recorded(records)
    if found is None:
        return usual(origin)
    point, record = found
    options = program.options
    return Function(
        point.schedule.kernel,
        options["target"],
        options["threads"],
        account=partial(program.account, point, record),
        exact=options["math"] == "exact",
        records=False,
        origin=origin,
    )


def fused(
    name: str,
    computations: Sequence[Computation],
    params: Sequence[Buffer],
    outputs: Sequence[Buffer],
    machine: Target,
) -> Plain:
    """The program for the target to schedule; with fewer Computations if the target has no schedule
    for all of them.

    Maps that only move data are inlined into their readers, and maps that follow a reduction take
    its dimensions, as in a model's operators.
    """
    stages = [FusionGroup(c.name, (c,)) for c in computations]
    steps = fuse(stages, frozenset(outputs), machine.plan_costs.repeated)
    rest = [c for x in steps if isinstance(x, FusionGroup) for c in x.computations]
    return lower(name, rest, params, outputs), rest


def options_of(target: str, threads: int | None, exact: bool = False) -> dict[str, Any]:
    """The options of `compile` that a function is compiled by."""
    math = "exact" if exact else "default"
    return {"target": target, "threads": threads, "math": math}


def is_native(target: str) -> bool:
    """Whether there is code for this machine, which can be timed."""
    return target != "interp" and registry.target(target).runs_here
