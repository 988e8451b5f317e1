"""The Target protocol: the whole of what a target supplies, and nothing about any one of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.base.dtypes import DType
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.targets.permitted import Permissions


@dataclass(frozen=True, slots=True)
class Artifact:
    """One compiled kernel.

    symbol: its entry point. code: an object file. workspace, thread_workspace: scratch bytes per
    call, and per thread of a call.
    """

    symbol: str
    code: bytes
    workspace: int = 0
    thread_workspace: int = 0


@dataclass(frozen=True, slots=True)
class Argument:
    """Where a kernel finds one buffer: a slot of the segment's pointer table, plus bytes."""

    slot: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One kernel call in a segment; `number` is its index among the model's kernels."""

    symbol: str
    arguments: tuple[Argument, ...]
    workspace: Argument
    number: int


class Target(Protocol):
    """A machine description, a default schedule, a code generator."""

    name: str

    @property
    def key(self) -> str:
        """Everything the generated code depends on, for the kernel cache."""
        ...

    @property
    def requirements(self) -> dict[str, Any]:
        """What a machine must have to run the code: `arch` and `features`."""
        ...

    @property
    def runs_here(self) -> bool:
        """Whether this machine can run the code."""
        ...

    def default_schedule(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Schedule:
        """A schedule that is good without tuning; `constants` are known at compile time.

        Without Computations the kernel is one that an operator gives, of any form.
        """
        ...

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The families of schedules that are worth trying, best first; computations as above."""
        ...

    def products(self, a: DType, b: DType, out: DType) -> Sequence[str]:
        """Intrinsics that add products of `a` and `b` to lanes or tiles of `out`, best first."""
        ...

    def is_profitable(self, computations: Sequence[Computation]) -> bool:
        """Whether one kernel of these is expected to be as fast as kernels of parts of them."""
        ...

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds on this target of these as one kernel, of all cores together.

        None where it is not profitable. It compares forms of one thing: what is the same in all of
        them may be left out. constants: buffers known at compile time.
        """
        ...

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """Object code of a scheduled kernel.

        With `permitted` it is sanitized: each access is compared with that, or with the shape.
        """
        ...

    def segment(self, symbol: str, calls: Sequence[Call]) -> bytes:
        """Object code of the function that makes the calls in order."""
        ...

    def support(self) -> Sequence[bytes]:
        """Objects that every artifact carries (the thread pool)."""
        ...

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """A scheduled kernel as `llvm` or `asm` text."""
        ...


class MappedProgram(Protocol):
    """A functional program on a machine that it was brought to by rewriting."""

    @property
    def text(self) -> str:
        """The machine's instructions."""
        ...

    def __call__(self, arrays: Sequence[Any]) -> object:
        """Run it on its arrays, outputs last and written in place; what the machine did."""
        ...


class Mapper(Protocol):
    """A machine that functional programs are brought to by rewriting, whole, without loops."""

    name: str

    def load(self, program: Any) -> MappedProgram:
        """A Lift program on the machine.

        Raises InputError for ill-typed programs, TilewrightError for what it has no operator for.
        """
        ...


class Simulator(Protocol):
    """A machine that exists as a program only: it runs a scheduled kernel as the machine would."""

    name: str

    def load(self, kernel: Kernel) -> Callable[[Sequence[Any]], object]:
        """The kernel as a function of one array per parameter, which says what the machine did.

        Raises CompileError for what the machine cannot do.
        """
        ...


class Network(Protocol):
    """A float model on a machine that exists as a program only."""

    @property
    def report(self) -> str:
        """What runs where and why, a line each."""
        ...

    @property
    def text(self) -> str:
        """The machine's instructions."""
        ...

    def __call__(self, inputs: Mapping[str, Any]) -> list[Any]:
        """The outputs for an array per input."""
        ...


class QuantizedModel(Network, Protocol):
    """A float model in the bytes of a machine that takes no floats; the rest runs on the CPU."""

    @property
    def scales(self) -> Mapping[str, float]:
        """Tensor -> the number that the unit of its bytes stands for."""
        ...
