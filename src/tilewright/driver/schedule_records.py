"""How the kernels of a model are scheduled, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import placed
from tilewright.compute.nodes import Computation
from tilewright.driver.chosen_schedules import ChosenSchedules, day
from tilewright.driver.device_kernels import DeviceCompiler
from tilewright.driver.kernels import KernelCompiler
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.runtime.dispatch import show
from tilewright.schedule.space import Parameter, Point
from tilewright.schedule.space.meanings import meaning
from tilewright.schedule.space.selection import Selection, selected_point
from tilewright.schedule.trace import Trace
from tilewright.targets.base import Target
from tilewright.tune.records.published import PublishedChoice

_REFUSALS: Final = (
    "sketch-refused",
    "kept-plain",
    "kept-serial",
    "kept-whole",
    "kept-across",
    "kept-apart",
    "not-parted",
)
_MOST: Final = 6  # candidates of a parameter to show


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """How one kernel is scheduled, and why.

    kernel: its name, as in profiles and `schedules=`. sources: the model's nodes in it. sketch: the
    sketch of the schedule. sketches: those that apply, best first. refused: attempts that failed,
    each with the reason that a primitive gave. estimate: the expected nanoseconds, summed over all
    cores, of the target's default schedule; None for any other schedule or without an estimate.
    tuned: the record that the schedule comes from. fused: the fusions that made this kernel, and
    those that were rejected. parts: of code for ranges of sizes, these, and what it computes at a
    time; its sketch is the way of doing so. device: where it runs.
    """

    kernel: str
    sources: tuple[str, ...]
    sketch: str
    sketches: tuple[str, ...]
    parameters: tuple[Parameter, ...]
    trace: Trace
    refused: tuple[str, ...]
    estimate: float | None
    tuned: PublishedChoice | None = None
    fused: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    device: str = HOST

    def to_dict(self) -> dict[str, Any]:
        """For JSON; `values` under the kernel's name are what `schedules=` takes."""
        return {
            "kernel": self.kernel,
            "device": self.device,
            "sources": list(self.sources),
            "sketch": self.sketch,
            "sketches": list(self.sketches),
            "values": self._values,
            "candidates": {p.name: list(p.candidates) for p in self.parameters},
            "trace": [str(step) for step in self.trace.steps],
            "refused": list(self.refused),
            "fused": list(self.fused),
            "parts": list(self.parts),
            "estimated_ns": self.estimate,
            "tuned": None if self.tuned is None else asdict(self.tuned),
        }

    @property
    def _values(self) -> dict[str, Any]:
        """The sketch and its parameters; empty for code for ranges of sizes, which has none."""
        if self.parts:
            return {}
        return {"sketch": self.sketch, **{p.name: p.value for p in self.parameters}}

    @property
    def reasons(self) -> list[str]:
        """Lines with the chosen sketch, the refused attempts, the fusions and the parameters."""
        others = [name for name in self.sketches if name != self.sketch]
        expected = (
            "" if self.estimate is None else f", expected {self.estimate / 1000:.1f} us"
        )
        lines = [f"chosen: {self.sketch}{expected}", *self.parts]
        if (t := self.tuned) is not None:
            lines.append(f"tuned: record of {day(t)}, {t.gain:.2f}x of default")
        lines += [f"also possible: {', '.join(others)}"] if others else []
        lines += [f"refused: {reason}" for reason in self.refused]
        lines += self.fused
        return lines + [_shown(p) for p in self.parameters]

    def __str__(self) -> str:
        place = "" if self.device == HOST else f" on {self.device}"
        head = f"# {self.kernel}{place}: {', '.join(self.sources)}"
        steps = [f"  s.{step}" for step in self.trace.steps]
        return "\n".join(
            [head, *(f"  {line}" for line in self.reasons), "trace:", *steps]
        )


def _shown(p: Parameter) -> str:
    some = ", ".join(map(str, p.candidates[:_MOST]))
    some += ", ..." if len(p.candidates) > _MOST else ""
    changed = "" if p.value == p.default else f" (default {p.default})"
    known = meaning(p.name)
    decides = "" if known is None else f"  # {known.text}"
    return f"{p.name} = {p.value}{changed}, one of {len(p.candidates)}: {some}{decides}"


def records(
    plan: Plan,
    target: Target,
    choose: ChosenSchedules,
    planning: Sequence[events.Event] = (),
) -> list[ScheduleRecord]:
    """How each kernel of the host is scheduled, in order. planning: the events of planning."""
    compiler = KernelCompiler(
        target, target, None, choose=choose, withdraw=choose.withdraw
    )
    found = []
    for group in plan.groups_on(HOST):
        signature = kernel_signature(group, plan.live[group])
        fixed = [b in plan.data for b in signature.values]
        compiler.settle(signature, fixed)
        made = _record(compiler, group, signature, fixed)
        tuned = choose.record(signature)
        found.append(replace(made, tuned=tuned, fused=_fusions(group, planning)))
    return found


def device_records(
    plan: Plan, compiler: DeviceCompiler, planning: Sequence[events.Event] = ()
) -> list[ScheduleRecord]:
    """How each kernel of the device is scheduled, in order; planning: as for `records`."""
    found = []
    for group in plan.groups:
        if group.device == HOST:
            continue
        made = compiler.group(group, plan.live[group])
        program = made.plain, made.computations, compiler.target
        with placed(f"group {group.name}"):
            account = by_sketches(*program, compiler.choose(made.signature))
        found.append(
            replace(
                account,
                kernel=group.name,
                sources=tuple(group.sources),
                fused=_fusions(group, planning),
                tuned=compiler.choose.record(made.signature),
                device=group.device,
            )
        )
    return found


def shared_records(log: Sequence[events.Event]) -> list[ScheduleRecord]:
    """How each kernel of code for ranges of sizes is scheduled. log: the events of compiling it.

    The event of a kernel comes after those of its schedules; that of one which runs the code of an
    equal one, after it; and that of a plan's kernels after
    them all: one that failed has no code.
    """
    found: list[ScheduleRecord] = []
    waiting: list[events.Event] = []
    made: list[ScheduleRecord] = []
    for event in log:
        if event.kind == "shared-kernel":
            made.append(_shared(event, [e for e in waiting if e.start >= event.start]))
            waiting = []
        elif event.kind == "equal-kernel":
            said = event.fields
            same = next(r for r in made if r.kernel == said["first"])
            own = tuple(said["sources"])
            made.append(replace(same, kernel=said["kernel"], sources=own))
        elif event.kind == "kernels" and "sizes" in event.fields:
            sizes = [f"{n} {show(e)}" for n, e in event.fields["sizes"].items()]
            head = f"shared code for {', '.join(sizes)}"
            if "error" not in event.fields:
                found += [replace(r, parts=(head, *r.parts)) for r in made]
            made = []
        else:
            waiting.append(event)
    return found


def _shared(kernel: events.Event, happened: Sequence[events.Event]) -> ScheduleRecord:
    """The record of a kernel, from its event and those of its schedules."""
    said = kernel.fields
    way = said.get("way", "")
    told = [e.fields for e in happened if e.kind == way]
    parts = (PARTS[way](told[-1] if told else {}),) if way in PARTS else ()
    refused = [_reason(e) for e in happened if e.kind in _REFUSALS]
    return ScheduleRecord(
        said["kernel"], tuple(said["sources"]), way, (), (), Trace(),
        tuple(dict.fromkeys(refused)), None, parts=parts,
    )  # fmt: skip


def _positions(said: Mapping[str, Any]) -> str:
    """A position has several points in Winograd's form, and one in any other; where windows share
    what they read, and nothing else is shared, positions are in rectangles."""
    points = said["points"]
    if "rectangle" in said:
        return f"positions in rectangles of {' by '.join(map(str, said['rectangle']))}"
    what = "positions" if points == 1 else f"positions of {points} points"
    lines = f"{what}, so many at a time: {_at_a_time(said)}"
    if "few" not in said:
        return lines
    return f"{lines}; up to {said['few']} points directly, by {_at_a_time(said, 'by')}"


def _at_a_time(said: Mapping[str, Any], field: str = "at_a_time") -> str:
    """`16, the rest by 4 and 1`."""
    first, *rest = map(str, said[field])
    return f"{first}, the rest by {' and '.join(rest)}" if rest else first


# What code for ranges of sizes computes at a time, by the way of doing so.
PARTS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "one size": lambda f: "no size changes it",
    "units": lambda f: (
        f"units of {', '.join(f['sizes'])}, so many at a time: {_at_a_time(f)}"
    ),
    "positions": _positions,
    "rows": lambda f: f"rows, so many at a time: {_at_a_time(f)}",
    "whole": lambda f: "all at once, in a schedule for any size",
}
SHARED: Final = ("units", "positions", "rows", "not-parted", "kept-whole", "kept-apart")


_FUSIONS: Final = ("fuse", "decision-used", "not-fused")


def without_priced(log: Sequence[events.Event]) -> list[events.Event]:
    """The events, without fusions of plans before the last one: of graphs that a search priced."""
    # Bodies of branches and loops are planned while the graph around them is: that ends last.
    lowered = [e for e in log if e.kind == "lower"]
    last = max(lowered, key=lambda e: e.start + (e.elapsed or 0), default=None)
    return [
        e
        for e in log
        if e.kind not in _FUSIONS or last is None or e.start >= last.start
    ]


def _fusions(group: FusionGroup, planning: Sequence[events.Event]) -> tuple[str, ...]:
    own = without_priced(planning)
    return tuple(_fusion(e) for e in own if _is_of(e, group))


def _is_of(event: events.Event, group: FusionGroup) -> bool:
    """Whether the event reports a fusion into this group, why another group did not join it, or a
    decision about it."""
    sources = {*event.fields.get("sources", ())}
    match event.kind:
        case "fuse":
            return bool(sources) and sources <= {*group.sources}
        case "decision-used":  # of one group, or of several that stay apart
            own = {*group.sources}
            return bool(sources and own) and (sources <= own or own <= sources)
        case "not-fused":
            return not sources.isdisjoint(group.sources)
    return False


def _fusion(event: events.Event) -> str:
    """`fused: relu into conv (epilogue)`, or `not fused: ...` with the reason; a
    decision that a record makes."""
    said = event.fields
    if event.kind == "decision-used":
        return (
            f"{said['decision']}: {said['alternative']}, by a tuning record, "
            f"{said['gain']:.2f}x of default"
        )
    into = said["into"] if isinstance(said["into"], str) else ", ".join(said["into"])
    rule = said["rule"].strip("_").replace("_", " ")
    both = f"{said['producer']} and {into} ({rule})"
    if event.kind == "not-fused":
        return f"not fused: {both}: {said['reason']}"
    return f"fused: {both}"


def _record(
    compiler: KernelCompiler,
    group: FusionGroup,
    signature: KernelSignature,
    fixed: Sequence[bool],
) -> ScheduleRecord:
    constants = {p for p, known in zip(signature.params, fixed, strict=True) if known}
    with events.record() as log:
        point = compiler.point(signature, fixed)
    names = group.name, tuple(group.sources)
    program = signature.plain(), signature.computations, constants
    return _account(names, point, log, program, compiler.target)


def by_sketches(
    kernel: Kernel,
    computations: Sequence[Computation],
    target: Target,
    wanted: Selection | None = None,
) -> ScheduleRecord:
    """How the target schedules a kernel; wanted: None for its default."""
    program = kernel, computations, ()
    with events.record() as log:  # making sketches may refuse some, too
        found = target.sketches(*program)
        point = (
            selected_point(kernel.name, found, wanted or Selection()) if found else None
        )
    if point is None:
        return by_hand(
            kernel.name, target.default_schedule(*program).trace, target.name
        )
    names = kernel.name, tuple(c.name for c in computations)
    return _account(names, point, log, program, target)


def by_hand(kernel: str, trace: Trace, sketch: str = "by hand") -> ScheduleRecord:
    """The account of a schedule that was written by hand."""
    return ScheduleRecord(kernel, (kernel,), sketch, (), (), trace, (), None)


def of_point(
    kernel: str,
    point: Point,
    sketches: Sequence[str],
    tuned: PublishedChoice | None = None,
) -> ScheduleRecord:
    """The account of a schedule from parameters. sketches: those that apply, if they are theirs."""
    sketch = point.sketch or "parameters"
    trace = point.schedule.trace
    parameters = point.parameters
    return ScheduleRecord(
        kernel, (kernel,), sketch, tuple(sketches), parameters, trace, (), None, tuned
    )


def _account(
    names: tuple[str, tuple[str, ...]],
    point: Point,
    log: Sequence[events.Event],
    program: tuple[Kernel, Sequence[Computation], Collection[Buffer]],
    target: Target,
) -> ScheduleRecord:
    """names: of the kernel and its sources. log: of the choice. program: plain kernel,
    Computations, constants."""
    _, computations, constants = program
    sketches = tuple(s.name for s in target.sketches(*program))
    refused = [_reason(e) for e in log if e.kind in _REFUSALS]
    changed = any(p.value != p.default for p in point.parameters)
    own = point.sketch == sketches[0] and not changed
    return ScheduleRecord(
        *names,
        point.sketch,
        sketches,
        point.parameters,
        point.schedule.trace,
        tuple(dict.fromkeys(refused)),
        target.estimated_cost(computations, constants)
        if computations and own
        else None,
    )


def _reason(event: events.Event) -> str:
    """A refused attempt and its reason: `rows (sketch-refused): matmul.k: ...`."""
    given = {k: v for k, v in event.fields.items() if k not in ("kernel", "reason")}
    return f"{', '.join(map(str, given.values()))} ({event.kind}): {event.fields['reason']}"
