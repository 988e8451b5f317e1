"""The distinct kernels of a model as tasks of the tuner, with their weights."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import InputError
from tilewright.compute.nodes import Computation
from tilewright.driver.assemble import Assembler
from tilewright.driver.build_kernel import (
    build_kernel,
    for_device,
    group_of,
    signature_of,
)
from tilewright.driver.built import BuiltGroup
from tilewright.driver.chosen_schedules import threads_of
from tilewright.driver.compilation import target_of
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import place_buffers
from tilewright.driver.reference import reference
from tilewright.driver.stages import planned_for
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Value
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.hoist import hoist
from tilewright.plan.identity import anonymous
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.runtime import bundle
from tilewright.runtime.model import CompiledModel
from tilewright.schedule.space import Point, Sketch
from tilewright.schedule.space.selection import Selection
from tilewright.targets.base import Target
from tilewright.tune.base import Candidate, Space, Task
from tilewright.tune.records.key import key_of
from tilewright.tune.space.sketch_space import SketchSpace

if TYPE_CHECKING:
    from tilewright.driver.device_kernels import DeviceCompiler
    from tilewright.driver.keywords import CompileOptions

Array = np.ndarray[Any, Any]


def tasks(
    source: Any,
    example_inputs: Sequence[Any] = (),
    *,
    dims: Mapping[str, int] | None = None,
    **options: Unpack[CompileOptions],
) -> list[Task]:
    """A task for every distinct kernel of the host, in the order in which they first run, then for
    those of the target's device whose schedules have parameters.

    source, example_inputs, dims, options: as for `tilewright.compile`. Kernels are distinct if the
    keys of their records are. Of equal kernels, `calls` is the number, `sources` are the nodes of
    all, and the weights are those of the first. Raises the errors of `compile`.
    """
    with exclusive():
        chosen = Options.of(options)
        plan, compiling = planned_for(source, example_inputs, dims, chosen)
        found: dict[str, _Program] = {}
        groups: dict[str, list[FusionGroup]] = {}
        for program in (
            *_on_host(plan, compiling.host),
            *_on_device(plan, compiling.device),
        ):
            key = program.key(chosen)
            found.setdefault(key, program)
            groups.setdefault(key, []).append(program.group)
        return [p.task(k, groups[k]) for k, p in found.items()]


def _on_host(plan: Plan, host: Target) -> Iterator[_Program]:
    for group in plan.groups_on(HOST):
        signature = kernel_signature(group, plan.live[group])
        data = {b: plan.data[b] for b in signature.values if b in plan.data}
        yield _Program(host, group, anonymous(signature), data)


def _on_device(plan: Plan, device: DeviceCompiler | None) -> Iterator[_Program]:
    """The groups of a device whose schedules are sketches."""
    if device is None or not device.target.fuses:
        return
    for group in plan.groups_on(device.target.device):
        signature = device.group(group, plan.live[group]).signature
        made = _DeviceProgram(device.target, group, anonymous(signature), {})
        if made.sketches():
            yield made


def task_of_kernel(
    kernel: Kernel,
    *,
    computations: Sequence[Computation] = (),
    space: Space | None = None,
    schedule: Callable[[Candidate], Point] | None = None,
    **options: Unpack[CompileOptions],
) -> Task:
    """A task for one Kernel, such as a lowered program of a notation, without constant parameters.

    computations: those that the kernel is the plain loop nest of, if any. space, schedule: the
    author's, for points whose kernels are compiled as scheduled; by default the target's sketches.
    options: as for `tilewright.compile`. Raises InputError for a kernel with sizes known only at
    run time, and the errors of `compile`.
    """
    if kernel.sizes:
        raise InputError(
            "only a program of fixed sizes can be timed, but this kernel is for all sizes",
            where=kernel.name,
            hint="lower it with numbers for its sizes",
        )
    chosen = Options.of(options)
    target = target_of(chosen)
    group = group_of(kernel)
    signature = anonymous(signature_of(kernel, computations))
    program = _Program(target, group, signature, {}, space, schedule)
    return program.task(program.key(chosen), [group])


@dataclass(frozen=True, eq=False)
class _Program:
    """A kernel with the contents of its constants; provides the functions of its task."""

    target: Target
    group: FusionGroup
    signature: KernelSignature
    data: Mapping[Buffer, Array]
    space: Space | None = None
    own_schedule: Callable[[Candidate], Point] | None = None

    def key(self, options: Options) -> str:
        """The key of its records."""
        fixed = [v in self.data for v in self.signature.values]
        threads = threads_of(self.target, options)
        return key_of(self.signature, fixed, self.target, threads, options.math).text

    def task(self, key: str, groups: Sequence[FusionGroup]) -> Task:
        """The task of the kernel. groups: all groups of the model that have this kernel."""
        sources = dict.fromkeys(s for g in groups for s in g.sources)
        moved = sum(b.size * b.dtype.itemsize for b in self.signature.values)
        space, schedule = self.space, self.own_schedule
        if space is None or schedule is None:
            sketched = SketchSpace(self.sketches())
            space, schedule = space or sketched, schedule or sketched.schedule
        return Task(
            key,
            self.group.name,
            space,
            schedule,
            self.build,
            len(groups),
            self.group.flops,
            moved,
            tuple(sources),
            tuple(g.name for g in groups),
            self.reference,
            self.program,
        )

    @property
    def constants(self) -> set[Buffer]:
        """The parameters that are known at compile time."""
        pairs = zip(self.signature.params, self.signature.values, strict=True)
        return {p for p, v in pairs if v in self.data}

    def sketches(self) -> Sequence[Sketch]:
        """The sketches of its schedules, best first."""
        signature = self.signature
        plain = signature.plain()
        return self.target.sketches(plain, signature.computations, self.constants)

    def program(self, point: Point) -> Kernel:
        """The kernel of a point, without the work on constants, which is done only once."""
        return hoist(point.schedule.kernel, self.constants).kernel

    def build(self, point: Point) -> bytes:
        """The artifact of a point."""
        if self.own_schedule is not None:
            return as_bytes(build_kernel(point.schedule.kernel, self.target))
        return as_bytes(self._model(Selection(point.sketch, point.values)))

    def reference(self) -> bytes:
        """Inputs, and the verified results of the default schedule."""
        return reference(self.signature, self.data, self._model(None))

    def _model(self, selection: Selection | None) -> CompiledModel:
        compiler = KernelCompiler(
            self.target, self.target, None, choose=lambda _: selection
        )
        code = compiler.compile(self.signature, self.data)
        built = BuiltGroup(self.group, self.signature, code)
        return alone(_plan_of(built, self.data), [built], self.target)


class _DeviceProgram(_Program):
    """A kernel of a device: all that it reads are inputs, weights too."""

    def program(self, point: Point) -> Kernel:
        """The kernel of a point."""
        return point.schedule.kernel

    def build(self, point: Point) -> bytes:
        """The artifact of a point, which copies to the device and back."""
        return as_bytes(for_device(point.schedule.kernel, self.target))

    def reference(self) -> bytes:
        """Inputs, and the verified results of the default schedule."""
        program = self.signature.plain(), self.signature.computations, ()
        default = self.target.default_schedule(*program).kernel
        return reference(self.signature, {}, for_device(default, self.target))


def _plan_of(built: BuiltGroup, data: Mapping[Buffer, Array]) -> Plan:
    """The plan that calls one kernel once; its inputs are the kernel's without constants."""
    signature = built.signature
    values = {b: Value(b.name, b.dtype, b.shape) for b in signature.values}
    count = len(signature.values) - len(signature.outputs)
    inputs = tuple(values[b] for b in signature.values[:count] if b not in data)
    outputs = tuple(values[b] for b in signature.values[count:])
    graph = Graph(signature.name, inputs, outputs, ())
    buffers = {v: b for b, v in values.items()}
    return Plan(graph, (built.stage,), buffers, data)


def alone(plan: Plan, built: Sequence[BuiltGroup], target: Target) -> CompiledModel:
    """The model of a plan of kernels alone."""
    assembler = Assembler(place_buffers(plan, built), built, target, None)
    return assembler.model({"target": target.name})


def as_bytes(model: CompiledModel) -> bytes:
    """The artifact of a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.tw"
        bundle.write(model, path)
        return path.read_bytes()
