"""What a target supplies: one class, `Target`, and nothing about any one of them.

A target is the host (`device` is HOST), whose code the processor runs that Python runs on, or an
accelerator next to it. The methods follow the order in which a model is compiled:

    adapt                    a pass over the Graph: quantization, say
    refuses, operator        which steps of the Plan its device takes, or why not
    default_schedule, ...    from a group's Computations to a scheduled Kernel
    emit                     from that Kernel to code, which its Device (`runtime.device`) loads
    load                     one program alone, without a model around it

Everything has an answer that fits a target which does not have it, so that a class gives what its
machine can do, and no more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar, Literal, NoReturn, Protocol

import numpy as np

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType
from tilewright.base.errors import UnsupportedError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer, Extent
from tilewright.graph.blocks import BlockCosts
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph, Operation
from tilewright.loops.nodes import Kernel
from tilewright.plan.questions import NO_REWRITE_PAYS, OpenCosts, PlanCosts
from tilewright.runtime.device import HOST
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.schedule.space.selection import default_point
from tilewright.targets.permitted import Permissions


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """What a target is made for.

    mcpu: the processor. exact: no fused multiply-adds. threads: on which its code is to run; None:
    as many as there are cores. machine: which one, where the target is a kind of machines, by a
    name or a file that it knows. description: what is otherwise than usual about it, in its own
    fields. triple: the system that code is for, as LLVM writes it; None: this one, or that of mcpu.
    fast: what `math="fast"` allows. precision: as the option.
    """

    mcpu: str = "native"
    exact: bool = False
    threads: int | None = None
    machine: str | None = None
    description: Mapping[str, Any] | None = None
    triple: str | None = None
    fast: bool = False
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a model is quantized by.

    samples: an array for each input, several times. scales: those of a model quantized before, by
    tensor; no samples are needed then. by: how sums are rescaled, as the target names it. method:
    how ranges are chosen from samples (`graph.quantize.observers.METHODS`).
    """

    samples: Sequence[Mapping[str, np.ndarray[Any, Any]]] = ()
    scales: Mapping[str, float] | None = None
    by: str = "shift"
    method: str = "min-max"


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a part of a model runs: the operators, the tensor that they make, and how or why."""

    device: str
    operators: str
    tensor: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class AdaptedGraph:
    """A graph as a target wants it.

    placements: what it takes and what not, and why. scales: of tensors, if it was quantized.
    """

    graph: Graph
    placements: Sequence[Placement] = ()
    scales: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled kernel.

    symbol: its entry point. code: an object file, or what the target's device loads. workspace,
    thread_workspace: scratch bytes per call, and per thread of a call; expressions of the kernel's
    sizes where these decide it.
    """

    symbol: str
    code: bytes
    workspace: Extent = 0
    thread_workspace: Extent = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a kernel finds one buffer: a slot of the segment's pointer table, plus bytes."""

    slot: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel call in a segment; `number` is its index among the model's kernels."""

    symbol: str
    arguments: tuple[Argument, ...]
    workspace: Argument
    number: int


@dataclass(frozen=True, slots=True)
class ByteCopy:
    """Bytes that are copied from one place to another; of a Repeat's items, to a row of it."""

    source: Argument
    target: Argument
    nbytes: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Actions that run while the byte at `going`, and then that at `again`, is not 0, and the
    number of the iteration is below the i64 at `trips`.

    number, count: the i64 of the iteration, and of all of them in the end. before: once. after,
    items: after every iteration. bound: iterations that items have rows for; rows after the last
    become 0. record: its number among the model's kernels.
    """

    number: Argument
    trips: Argument
    going: Argument
    again: Argument
    count: Argument
    before: tuple[ByteCopy, ...]
    body: tuple[Action, ...]
    after: tuple[ByteCopy, ...]
    items: tuple[ByteCopy, ...]
    bound: int | None
    record: int


@dataclass(frozen=True, slots=True)
class ConditionalActions:
    """One of two lists of actions: `then` where the byte at `condition` is not 0."""

    condition: Argument
    then: tuple[Action, ...]
    other: tuple[Action, ...]
    record: int


Action = KernelCall | ByteCopy | Repeat | ConditionalActions  # what a segment does


@dataclass(frozen=True, slots=True)
class TensorLocation:
    """Where a library finds a tensor: in the caller's memory, its constants, or a parameter."""

    kind: Literal["arena", "constant", "parameter"]
    at: int


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """The function of a segment, with the places that its table holds after the first two."""

    symbol: str
    values: tuple[TensorLocation, ...]


@dataclass(frozen=True, slots=True)
class LibraryCopy:
    """So many bytes from one place to another."""

    source: TensorLocation
    target: TensorLocation
    size: int


@dataclass(frozen=True, slots=True)
class LibraryVariant:
    """A model for one processor: what `parts()` of its target emitted, and how it is run.

    constants: where its constants begin among those of the library.
    """

    target: Target
    parts: tuple[bytes, ...]
    actions: tuple[LibraryCall | LibraryCopy, ...]
    constants: int


@dataclass(frozen=True, slots=True)
class LibrarySignature:
    """The functions of a library: their name, and how many tensors they take.

    workspace: whether they need memory of the caller. constants: the bytes of all variants.
    """

    name: str
    parameters: int
    workspace: bool
    constants: memoryview


class OperatorProgram(Protocol):
    """An operator as a device runs it: what the device loads, and the listing."""

    @property
    def code(self) -> bytes: ...
    @property
    def text(self) -> str: ...


class LoadedProgram(Protocol):
    """What `load` makes: a program as a function of its arrays."""

    @property
    def text(self) -> str:
        """The machine's instructions."""
        ...

    def __call__(self, arrays: Sequence[Any]) -> object:
        """Run it on its arrays, outputs last and written in place; what the machine did."""
        ...


class Target:
    """A machine that is compiled for.

    device: of the runtime that runs its code. programs: what `load` takes, "kernel" or "lift".
    quantizes: whether `adapt` needs samples or scales. fuses: whether its device takes groups and
    kernels of any form, so that they are fused for it as for the host. own_mcpu: whether
    `Settings.mcpu` is the device's processor; the host next to it is this machine then.
    """

    __slots__ = ()
    name: str = ""
    device: ClassVar[str] = HOST
    programs: ClassVar[str] = ""
    quantizes: ClassVar[bool] = False
    fuses: ClassVar[bool] = False
    own_mcpu: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """Everything the generated code depends on, for the kernel cache."""
        return self.name

    @property
    def fingerprint(self) -> str:
        """The machine as it decides which schedule is fastest: `key` without threads and modes."""
        return self.key

    @property
    def device_here(self) -> str:
        """The name of its device on this machine, by which records of times are told apart; empty
        where there is none."""
        return ""

    # ------------------------------------------------------------------------------ models

    @property
    def blocks(self) -> BlockCosts | None:
        """What operators ask a target whose blocks of threads share memory; None of others."""
        return None

    def expect_models(self) -> None:
        """Raise UnsupportedError for a target that takes no part of any model."""
        own = type(self)
        takes = own.refuses is not Target.refuses or own.operator is not Target.operator
        if self.device != HOST and not takes:
            raise UnsupportedError(
                f"target {self.name!r} takes no part of any model",
                code="TW-TARGET",
                hint='build single kernels for it, as by te.build(..., target="'
                f'{self.name}")',
            )

    def adapt(
        self, graph: Graph, calibration: Calibration, fallback: FallbackProvider
    ) -> AdaptedGraph:
        """The graph as the target wants it, before all other passes.

        fallback: runs operators without a reference. Raises UnsupportedError for a model that it
        cannot take.
        """
        return AdaptedGraph(graph)

    def refuses(self, computations: Sequence[Computation]) -> str:
        """Why its device takes no group like this; empty where it does, if it has a schedule."""
        return f"{self.name} takes no part of a model"

    def operator(self, operation: Operation) -> OperatorProgram | None:
        """The program of an operator that its device runs whole; None for any other.

        Raises CompileError for one that it cannot do.
        """
        return None

    # ------------------------------------------------------------------------------ kernels

    def default_schedule(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
        packed: tuple[int, ...] = (),
    ) -> Schedule:
        """A schedule that is good without tuning; `constants` are known at compile time.

        packed: the shape in which a schedule for other sizes packs the largest constant. One that
        packs it alike is preferred; () for none.

        Without Computations the kernel is one that an operator gives, of any form. That of a
        target with sketches is the default of the best one that applies.
        """
        found = self.sketches(kernel, computations, constants)
        if not found:
            self._lacks("default schedule")
        return default_point(kernel.name, found).schedule

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The families of schedules that are worth trying, best first; computations as above."""
        return ()

    def products(self, a: DType, b: DType, out: DType) -> Sequence[str]:
        """Intrinsics that add products of `a` and `b` to lanes or tiles of `out`, best first."""
        return ()

    def is_profitable(self, computations: Sequence[Computation]) -> bool:
        """Whether one kernel of these is expected to be as fast as kernels of parts of them."""
        return True

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds on this target of these as one kernel, of all cores together.

        None where it is not profitable. It compares forms of one thing: what is the same in all of
        them may be left out. constants: buffers known at compile time.
        """
        return None

    def predicted_time(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float:
        """Expected nanoseconds on this target of one run of these as one kernel.

        Unlike `estimated_cost` it leaves nothing out: times of kernels can be added up.
        """
        self._lacks("model of its time")

    def predicted_work(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float:
        """Expected nanoseconds of the arithmetic alone: on one core, with data in cache."""
        self._lacks("model of its time")

    def predicted_given(self, elements: int) -> float:
        """Expected nanoseconds of a kernel that an operator gives and that makes so many."""
        self._lacks("model of its time")

    @property
    def plan_costs(self) -> PlanCosts:
        """What rewrites of a plan cost, besides kernels."""
        return NO_REWRITE_PAYS

    @property
    def open_costs(self) -> OpenCosts:
        """How much of an open plan a kernel does at a time."""
        self._lacks("model of its time")

    # ------------------------------------------------------------------------------ code

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """Code of a scheduled kernel.

        With `permitted` it is sanitized: each access is compared with that, or with the shape.
        """
        self._lacks("code generator")

    def workspace(self, code: bytes) -> tuple[int, ...]:
        """Bytes of each buffer that a program of the device takes behind its operands."""
        return ()

    @property
    def peaks(self) -> tuple[float, float] | None:
        """10^9 float32 operations and bytes per second that its device can do; None: not known."""
        return None

    def parts(self) -> Target:
        """This target, but what it emits are parts of a library, which `library` joins."""
        self._lacks("libraries")

    def library(
        self, variants: Sequence[LibraryVariant], interface: LibrarySignature
    ) -> bytes:
        """The object file of a library; the first of the variants that the processor can is run."""
        self._lacks("libraries")

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """A scheduled kernel as `llvm` or `asm` text; `listing` where asm can name its loops."""
        self._lacks(f"{kind} text")

    def c_function(self, kernel: Kernel, name: str) -> bytes:
        """An object file with a scheduled kernel as a C function `name`; see `driver.c_library`."""
        self._lacks("C functions")

    def simulated(self, kernel: Kernel) -> float | None:
        """Cycles that a scheduled kernel takes on the machine; None where nothing simulates it.

        Raises CompileError for what the machine cannot do.
        """
        return None

    def load(self, program: Any) -> LoadedProgram:
        """A Kernel, or a Lift program, as a function of one array per parameter.

        Raises CompileError for what the machine cannot do.
        """
        self._lacks("programs by themselves")

    # ------------------------------------------------------------------------------ the host

    @property
    def requirements(self) -> dict[str, Any]:
        """What a machine must have to run the code: `arch` and `features`."""
        return {}

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run the code."""
        return True

    def segment(self, symbol: str, actions: Sequence[Action]) -> bytes:
        """Object code of the function that does all this in order."""
        self._lacks("native calls")

    def support(self) -> Sequence[bytes]:
        """Objects that every artifact carries (the thread pool)."""
        return ()

    def _lacks(self, what: str) -> NoReturn:
        raise UnsupportedError(f"target {self.name!r} has no {what}", code="TW-TARGET")
