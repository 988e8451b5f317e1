"""Schedules by the names of kernels: those that a caller asks for, and why each is as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.kernels import Choose, KernelCompiler
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule.space import Parameter
from tilewright.schedule.space.selection import Selection
from tilewright.schedule.trace import Trace
from tilewright.targets.base import Target

_REFUSALS: Final = (
    "sketch-refused",
    "kept-plain",
    "kept-serial",
    "kept-whole",
    "kept-across",
)
_MOST: Final = 6  # candidates of a parameter that are shown


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """How one kernel is scheduled, and why.

    kernel: its name, as profiles and `schedules=` have it. sources: the model's nodes in it.
    sketch: whose point the schedule is. sketches: those that apply, best first. refused: what was
    tried in vain, each with the reason that a primitive gave. estimate: expected nanoseconds of all
    cores together of the target's own choice, None for another and where the target has none.
    """

    kernel: str
    sources: tuple[str, ...]
    sketch: str
    sketches: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    trace: Trace
    refused: tuple[str, ...]
    estimate: float | None

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `values` under the kernel's name are what `schedules=` takes."""
        return {
            "kernel": self.kernel,
            "sources": list(self.sources),
            "sketches": list(self.sketches),
            "values": {"sketch": self.sketch}
            | {p.name: p.value for p in self.parameters},
            "candidates": {p.name: list(p.candidates) for p in self.parameters},
            "trace": [str(step) for step in self.trace.steps],
            "refused": list(self.refused),
            "estimated_ns": self.estimate,
        }

    @property
    def reasons(self) -> list[str]:
        """A line each: the sketch that was chosen, what was refused, the parameters."""
        others = [name for name in self.sketches if name != self.sketch]
        expected = (
            "" if self.estimate is None else f", expected {self.estimate / 1000:.1f} us"
        )
        lines = [f"chosen: {self.sketch}{expected}"]
        lines += [f"also possible: {', '.join(others)}"] if others else []
        lines += [f"refused: {reason}" for reason in self.refused]
        return lines + [_shown(p) for p in self.parameters]

    def __str__(self) -> str:
        head = f"# {self.kernel}: {', '.join(self.sources)}"
        steps = [f"  s.{step}" for step in self.trace.steps]
        return "\n".join(
            [head, *(f"  {line}" for line in self.reasons), "trace:", *steps]
        )


def _shown(p: Parameter) -> str:
    some = ", ".join(map(str, p.candidates[:_MOST]))
    some += ", ..." if len(p.candidates) > _MOST else ""
    changed = "" if p.value == p.default else f" (default {p.default})"
    return f"{p.name} = {p.value}{changed}, one of {len(p.candidates)}: {some}"


def by_name(
    schedules: Mapping[str, Mapping[str, Any]], kernels: Iterable[str]
) -> Choose:
    """What decides about the kernels that are named; the others keep their default schedules.

    schedules: by the name of a kernel, values by the names of parameters; `sketch` names a sketch.
    Raises InputError for a name that no kernel has.
    """
    known = list(dict.fromkeys(kernels))
    for name in schedules:
        if name not in known:
            raise InputError(
                f"schedules: there is no kernel {name!r}",
                hint=f"the kernels are {listing(known)}",
            )
    wanted = {
        name: Selection(
            given.get("sketch"), {k: v for k, v in given.items() if k != "sketch"}
        )
        for name, given in schedules.items()
    }
    return lambda signature: wanted.get(signature.group)


def records(
    plan: Plan, target: Target, schedules: Mapping[str, Mapping[str, Any]]
) -> list[ScheduleRecord]:
    """How each kernel of the host is scheduled, in order."""
    choose = by_name(schedules, (s.name for s in plan.groups_on(HOST)))
    compiler = KernelCompiler(target, target, None, choose=choose)
    found = []
    for group in plan.groups_on(HOST):
        signature = kernel_signature(group, plan.live[group])
        fixed = [b in plan.data for b in signature.values]
        found.append(_record(compiler, group, signature, fixed))
    return found


def _record(
    compiler: KernelCompiler,
    group: FusionGroup,
    signature: KernelSignature,
    fixed: Sequence[bool],
) -> ScheduleRecord:
    with events.record() as log:
        point = compiler.point(signature, fixed)
    constants = {p for p, known in zip(signature.params, fixed, strict=True) if known}
    sketches = compiler.target.sketches(
        signature.plain(), signature.computations, constants
    )
    refused = [_reason(e) for e in log if e.kind in _REFUSALS]
    names = tuple(s.name for s in sketches)
    changed = any(p.value != p.default for p in point.parameters)
    own = point.sketch == names[0] and not changed
    return ScheduleRecord(
        group.name,
        tuple(group.sources),
        point.sketch,
        names,
        point.parameters,
        point.schedule.trace,
        tuple(dict.fromkeys(refused)),
        compiler.target.estimated_cost(signature.computations, constants)
        if signature.computations and own
        else None,
    )


def _reason(event: events.Event) -> str:
    """What was not done, and why: `rows (sketch-refused): matmul.k: ...`."""
    given = {k: v for k, v in event.fields.items() if k not in ("kernel", "reason")}
    return f"{', '.join(map(str, given.values()))} ({event.kind}): {event.fields['reason']}"
