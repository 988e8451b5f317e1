"""Chooses each kernel's schedule: the one that the caller asks for, a record's, or the default.

A record applies only to a kernel with the same key: the same operator on the same machine. If its
schedule is no longer possible, a warning says so, and the kernel gets its default schedule.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tilewright.base import events
from tilewright.base.errors import InputError, ScheduleError, TilewrightWarning
from tilewright.base.text import listing
from tilewright.driver.kernels import Choose
from tilewright.driver.options import Options
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.plan.identity import with_names
from tilewright.plan.nodes import HOST, Plan
from tilewright.plan.normalize import KernelSignature
from tilewright.runtime.threads import thread_count
from tilewright.schedule.space.selection import Selection
from tilewright.targets.base import Target

if TYPE_CHECKING:
    from tilewright.tune.records.published import PublishedChoice


def by_name(
    schedules: Mapping[str, Mapping[str, Any]], kernels: Iterable[str]
) -> Choose:
    """The choices for the named kernels; the others keep their default schedules.

    schedules: for each kernel name, parameter values by name; `sketch` names a sketch.
    Raises InputError for a name that no kernel has.
    """
    known = list(dict.fromkeys(kernels))
    for name in schedules:
        if name not in known:
            raise InputError(
                f"schedules: there is no kernel {name!r}",
                hint=f"the kernels are {listing(known)}",
            )
    wanted = {name: Selection.of(given) for name, given in schedules.items()}
    return lambda signature: wanted.get(signature.group)


def chosen_schedules(plan: Plan, target: Target, options: Options) -> ChosenSchedules:
    """The schedule choices for a plan's kernels on the host.

    Raises InputError for a name in `schedules` that no kernel has.
    """
    names = (s.name for s in plan.groups)
    asked = by_name(options.schedules, names)
    return ChosenSchedules(plan.data, target, options, asked)


def for_kernel(kernel: Kernel, target: Target, options: Options) -> ChosenSchedules:
    """The schedule choices for a Kernel that is a whole model."""
    asked = by_name(options.schedules, (kernel.name,))
    return ChosenSchedules({}, target, options, asked)


def for_device(target: Target, options: Options) -> ChosenSchedules:
    """The schedule choices for kernels of a target's device; names are not checked."""
    asked = by_name(options.schedules, options.schedules)
    return ChosenSchedules({}, target, options, asked)


def threads_of(target: Target, options: Options) -> int:
    """The threads in the keys of a target's records: a device does not run on the host's."""
    return thread_count(options.threads) if target.device == HOST else 1


class ChosenSchedules:
    """A choice for each kernel of a model, as a KernelCompiler's `choose` and `withdraw`.

    known: the model's constants. asked: the caller's choices. named: the kernels that have one.
    """

    def __init__(
        self,
        known: Collection[Buffer],
        target: Target,
        options: Options,
        asked: Choose,
    ) -> None:
        self._known = known
        self._target = target
        self._threads = threads_of(target, options)
        self._math = options.math
        self.named = frozenset(options.schedules)
        self._records = dict(options.published.choices)
        self._asked = asked
        self._keys: dict[KernelSignature, str] = {}

    def __call__(self, signature: KernelSignature) -> Selection | None:
        """The schedule to use for the kernel; None for the default."""
        found = self.record(signature)
        if found is None:
            return self._asked(signature)
        from tilewright.tune.base import Candidate

        candidate = Candidate.parse(found.candidate)
        values = with_names(candidate.values, signature)
        return Selection(candidate.sketch, values, found.candidate)

    def record(self, signature: KernelSignature) -> PublishedChoice | None:
        """The record that the kernel's schedule comes from; None if it comes from no record."""
        if not self._records or self._asked(signature) is not None:
            return None
        if signature not in self._keys:
            self._keys[signature] = self._key(signature)
            found = self._records.get(self._keys[signature])
            if found is not None:
                name = signature.group or signature.name
                events.emit(
                    "record-used", kernel=name, gain=found.gain, time=found.time
                )
        return self._records.get(self._keys[signature])

    def withdraw(self, signature: KernelSignature, error: ScheduleError) -> bool:
        """Reset the kernel to its default schedule, with a warning; False if no record chose it."""
        found = self.record(signature)
        if found is None:
            return False
        del self._records[self._keys[signature]]
        refuse(signature.group or signature.name, found, error)
        return True

    @property
    def used(self) -> list[dict[str, Any]]:
        """The kernels whose schedules come from records: their names, with gain and time."""
        found = ((s, self._records.get(key)) for s, key in self._keys.items())
        return [
            {"kernel": s.group or s.name, "gain": c.gain, "time": c.time}
            for s, c in found
            if c is not None
        ]

    def _key(self, signature: KernelSignature) -> str:
        from tilewright.tune.records.key import key_of

        fixed = [b in self._known for b in signature.values]
        key = key_of(signature, fixed, self._target, self._threads, self._math)
        return key.digest


def refuse(kernel: str, found: PublishedChoice, error: ScheduleError) -> None:
    """Warn that a record is not used because its schedule is no longer possible."""
    events.emit("record-refused", kernel=kernel, reason=str(error))
    warnings.warn(
        f"kernel {kernel}: the tuning record of {day(found)} is not used because its schedule "
        f"is no longer possible: {error}. Tune the model again",
        TilewrightWarning,
        stacklevel=3,
    )


def day(chosen: PublishedChoice) -> str:
    """The date of its measurement."""
    return time.strftime("%Y-%m-%d", time.localtime(chosen.time))
