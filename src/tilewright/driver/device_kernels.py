"""Compiles the steps of a plan to programs of a device, through the kernel cache."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cached_property
from typing import Final

from tilewright.base import events, limits
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, ScheduleError, placed
from tilewright.base.store import FileStore
from tilewright.compute.canonical import canonical, canonical_tree
from tilewright.compute.nodes import Computation
from tilewright.compute.transforms import relayout
from tilewright.driver.chosen_schedules import ChosenSchedules
from tilewright.driver.version import compiler
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Operation
from tilewright.loops.nodes import Kernel
from tilewright.plan.nodes import HOST, DeviceCall, FusionGroup, HostFallback
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.schedule import Schedule
from tilewright.schedule.space import Point
from tilewright.schedule.space.selection import Selection, selected_point
from tilewright.targets.base import Artifact, OperatorProgram, Placement, Target


@dataclass(frozen=True, eq=False)
class DeviceGroup:
    """A group as a program of a device.

    params: of the program, results last. operands: the group's buffer for each parameter. A tensor
    has one parameter per Computation that reads it, so that a schedule can stage one use of it and
    not the others. kernel: for a group that was given as a Kernel.
    """

    name: str
    computations: tuple[Computation, ...]
    params: tuple[Buffer, ...]
    operands: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    kernel: Kernel | None = None

    @staticmethod
    def whole(group: FusionGroup, live: Collection[Buffer]) -> DeviceGroup:
        """A group in the form that general schedules expect, like the host's groups."""
        found = kernel_signature(group, live, parts=False)
        return DeviceGroup(
            group.name,
            found.computations,
            found.params,
            found.values,
            found.outputs,
            found.kernel,
        )

    @staticmethod
    def of(group: FusionGroup, live: Collection[Buffer]) -> DeviceGroup:
        """A group whose `live` results are used by other groups."""
        own = set(group.writes)
        reads: list[tuple[Buffer, Buffer]] = []  # parameter, operand
        made = []
        for c in group.computations:
            names: dict[Buffer, Buffer] = {}
            for b in dict.fromkeys(x for x in c.inputs if x not in own):
                count = sum(operand is b for _, operand in reads)
                again = Buffer(f"{b.name}_{count + 1}", b.shape, b.dtype)
                names[b] = again if count else b
                reads.append((names[b], b))
            orders = {b: (to, tuple(range(len(b.shape)))) for b, to in names.items()}
            made.append(relayout(c, orders))
        outputs = tuple(b for b in group.writes if b in live)
        params = (*(p for p, _ in reads), *outputs)
        operands = (*(b for _, b in reads), *outputs)
        return DeviceGroup(group.name, tuple(made), params, operands, outputs)

    @property
    def plain(self) -> Kernel:
        """Its loop nests before any schedule."""
        return self.signature.plain()

    @cached_property
    def signature(self) -> KernelSignature:
        """Its interface by itself: a kernel on its own parameters."""
        kernel = self.kernel
        return KernelSignature(
            self.computations[-1].name if kernel is None else kernel.name,
            self.computations,
            kernel,
            self.params,
            self.params,
            self.outputs,
            (0,) * len(self.params),
            self.computations,
            self.name,
        )


class DeviceCompiler:
    """Compiles the groups that run on a target's device, each distinct one once.

    The canonical text of a group's Computations is the key of its program. choose: the schedules
    that the caller asks for, and those of records; the others have the default schedule.
    """

    def __init__(
        self,
        target: Target,
        store: FileStore | None,
        choose: ChosenSchedules,
    ) -> None:
        self.target: Final = target
        self.store: Final = store
        self.choose: Final = choose
        self.asked: Final[
            dict[str, Placement]
        ] = {}  # its answer for each step, by name
        self._known: dict[str, bytes] = {}

    def refuses(
        self, step: FusionGroup | HostFallback, live: Collection[Buffer]
    ) -> str:
        """Why the device rejects a step; empty if it has a program for it."""
        if isinstance(step, FusionGroup):
            name = ", ".join(step.sources)
            why = self._refuses_group(step, live)
        else:
            name, why = step.name, self._refuses_operator(step.operation)
        device = HOST if why else self.target.device
        self.asked[name] = Placement(device, name, step.writes[-1].name, why)
        return why

    def _refuses_group(self, group: FusionGroup, live: Collection[Buffer]) -> str:
        if why := self.target.refuses(group.computations):
            return why
        try:
            made = self.group(group, live)
            if self.target.fuses:
                # It will become part of other kernels: it only has to have code.
                self.target.emit(made.plain, made.plain.name)
            else:
                self.program(made)
        except CompileError as error:
            return str(error)
        return ""

    def _refuses_operator(self, op: Operation) -> str:
        try:
            found = self.target.operator(op)
        except CompileError as error:
            return str(error)
        return "" if found is not None else f"{self.target.name} does not run it"

    def group(self, group: FusionGroup, live: Collection[Buffer]) -> DeviceGroup:
        """A group in the target's form; other groups use its `live` results."""
        make = DeviceGroup.whole if self.target.fuses else DeviceGroup.of
        return make(group, live)

    def program(self, group: DeviceGroup) -> bytes:
        """The program of a group.

        Raises CompileError if the target cannot compile it, and the errors of `schedule`.
        """
        key = self._key(group)
        if key not in self._known:
            found = None if self.store is None else self.store.get(key)
            if found is None:
                found = self._made(group)
                key = self._key(group)  # another one, if a record was withdrawn
                if self.store is not None:
                    self.store.put(key, found)
            self._known[key] = found
        return self._known[key]

    def _key(self, group: DeviceGroup) -> str:
        text = canonical(group.computations, group.params)
        if group.kernel is not None:
            text = canonical_tree(group.kernel.body, group.params)
        chosen, asked = self.choose(group.signature), ""
        if chosen is not None:
            asked = repr((chosen.sketch, sorted(chosen.values.items())))
        parts = (compiler(), self.target.key, str(len(group.outputs)), asked, text)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def call(self, call: DeviceCall) -> OperatorProgram:
        """The program of an operator that the device runs whole."""
        found = self.target.operator(call.operation)
        assert found is not None
        return found

    def schedule(self, group: DeviceGroup) -> Schedule:
        """The schedule of a group, with its kernel and its trace.

        Raises CompileError if the target cannot compile it, and ScheduleError if the schedule that
        the caller asks for is not possible, or if the target's default schedule is illegal, which
        is a bug in the target. A record whose schedule is not possible is withdrawn.
        """
        signature = group.signature
        if (wanted := self.choose(signature)) is not None:
            try:
                with placed(f"schedule of {group.name}"):
                    return self.selected(group, wanted).schedule
            except ScheduleError as error:
                if not self.choose.withdraw(signature, error):
                    raise
        try:
            return self.target.default_schedule(group.plain, group.computations, ())
        except ScheduleError as error:
            place = f"default schedule of target {self.target.name}"
            raise error.at(place) from error.__cause__

    def selected(self, group: DeviceGroup, wanted: Selection) -> Point:
        """The point of a selected schedule. Raises ScheduleError if it is not possible."""
        kernel = group.plain
        found = self.target.sketches(kernel, group.computations, ())
        return selected_point(kernel.name, found, wanted)

    def _made(self, group: DeviceGroup) -> bytes:
        limits.check()
        with placed(f"group {group.name}"), events.span("kernel", name=group.name):
            kernel = self.schedule(group).kernel
            made = self.target.emit(kernel, kernel.name)
        if not isinstance(made, Artifact):
            raise TypeError(
                f"emit of target {self.target.name!r} gives {made!r}, not an Artifact"
            )
        return made.code
