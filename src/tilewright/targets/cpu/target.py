"""The CPU as a Target: host or named machine, default sketches, LLVM."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import DType, float32
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.nodes import Kernel
from tilewright.plan.questions import OpenCosts, PlanCosts
from tilewright.runtime.machine import architecture, missing_features
from tilewright.schedule import Schedule
from tilewright.schedule.space import Sketch
from tilewright.targets.base import (
    Action,
    Artifact,
    LibrarySignature,
    LibraryVariant,
    Target,
    TargetSettings,
)
from tilewright.targets.cpu import compile as llvm
from tilewright.targets.cpu.c_function import compile_c_function
from tilewright.targets.cpu.cost import cost_model
from tilewright.targets.cpu.description import described
from tilewright.targets.cpu.entry import compile_entry, entry_ir
from tilewright.targets.cpu.library import checked, compile_library
from tilewright.targets.cpu.machine import CpuMachine, machine
from tilewright.targets.cpu.pool import support
from tilewright.targets.cpu.predict import (
    predicted_given,
    predicted_time,
    predicted_work,
)
from tilewright.targets.cpu.sketches import (
    Context,
    default,
    estimated_cost,
    is_profitable,
    sketches,
)
from tilewright.targets.permitted import Permissions


@dataclass(frozen=True, slots=True)
class CpuTarget(Target):
    """Code for one kind of processor. `exact` forbids fused multiply-adds and reassociation.

    level: what LLVM makes of the code, 0 to 3; the less, the sooner it is compiled.
    """

    machine: CpuMachine
    exact: bool = False
    level: int = llvm.LEVEL
    name: str = "cpu"

    @property
    def key(self) -> str:
        """The machine as the code generator sees it."""
        return f"cpu {self.machine} exact={self.exact} level={self.level}"

    @property
    def fingerprint(self) -> str:
        """The machine, and how far LLVM optimizes for it."""
        return f"cpu {replace(self.machine, cores=0)} level={self.level}"

    @property
    def requirements(self) -> dict[str, Any]:
        """Architecture and features."""
        return {"arch": self.machine.arch, "features": list(self.machine.features)}

    @property
    def runs_here(self) -> bool:
        """Whether this machine has every feature."""
        here = architecture() == self.machine.arch
        return here and not missing_features(self.machine.features)

    def default_schedule(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
        packed: tuple[int, ...] = (),
    ) -> Schedule:
        """The first of `sketches` that no primitive refuses, with its default parameters."""
        at = Context(self.machine, constants, self.exact, packed=packed)
        return default(kernel, computations, at)

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The sketches with this machine's numbers."""
        return sketches(
            kernel, computations, Context(self.machine, constants, self.exact)
        )

    def products(self, a: DType, b: DType, out: DType) -> Sequence[str]:
        """See `CpuMachine.products`."""
        return self.machine.products(a, b, out)

    def is_profitable(self, computations: Sequence[Computation]) -> bool:
        """Whether one kernel of them is expected to be as fast as kernels of parts."""
        return is_profitable(computations, Context(self.machine, exact=self.exact))

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds, of all cores together; None where another form is better."""
        return estimated_cost(
            computations, Context(self.machine, constants, self.exact)
        )

    def predicted_time(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float:
        """Expected nanoseconds of one run of these as one kernel."""
        return predicted_time(
            computations, Context(self.machine, constants, self.exact)
        )

    def predicted_work(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float:
        """Expected nanoseconds of their arithmetic as one kernel, on one core."""
        return predicted_work(
            computations, Context(self.machine, constants, self.exact)
        )

    def predicted_given(self, elements: int) -> float:
        """Expected nanoseconds of an operator's own kernel that produces this many elements."""
        return predicted_given(elements, Context(self.machine, exact=self.exact))

    @property
    def plan_costs(self) -> PlanCosts:
        """The constants that passes over a plan decide by."""
        half = self.machine.lanes(float32) // 2
        return replace(cost_model(self.machine).plan, few_channels=half)

    @property
    def open_costs(self) -> OpenCosts:
        """The constants that kernels of an open plan are divided by."""
        return cost_model(self.machine).open

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """Object code of a scheduled kernel; sanitized where `permitted` is given."""
        exact, level = self.exact, self.level
        made = llvm.compile_kernel(
            kernel,
            self.machine,
            symbol,
            contract=not exact,
            permitted=permitted,
            level=level,
        )
        return Artifact(
            made.symbol,
            made.object_bytes,
            made.workspace_bytes,
            made.workspace_per_thread,
        )

    def segment(self, symbol: str, actions: Sequence[Action]) -> bytes:
        """Object code of the function that does all this in order."""
        return compile_entry(symbol, actions, self.machine)

    def support(self) -> Sequence[bytes]:
        """The thread pool, where it can be assembled."""
        return support(self.machine.arch)

    def c_function(self, kernel: Kernel, name: str) -> bytes:
        """Object code of a scheduled kernel as a C function."""
        contract = not self.exact
        return compile_c_function(
            kernel, self.machine, name, contract=contract, level=self.level
        )

    def parts(self) -> Target:
        """The same, with LLVM assembly in place of object code."""
        return _Parts(checked(self.machine), self.exact, self.level, self.name)

    def library(
        self, variants: Sequence[LibraryVariant], interface: LibrarySignature
    ) -> bytes:
        """The object file of a library; see `targets.cpu.library`."""
        chosen = [(v, _machine_of(v.target)) for v in variants]
        return compile_library(chosen, interface, self.level)

    def text(self, kernel: Kernel, symbol: str, kind: str) -> str:
        """`llvm` or `asm` text of a scheduled kernel, or `listing`: asm that names its loops."""
        make = llvm.llvm_ir if kind == "llvm" else llvm.assembly
        if kind == "listing":
            make = partial(llvm.assembly, commented=True)
        return make(kernel, self.machine, symbol, contract=not self.exact)


@dataclass(frozen=True)
class _Parts(CpuTarget):
    """A CPU whose kernels and segments are LLVM assembly: `library` makes one object of them."""

    @property
    def key(self) -> str:
        """As of the CPU, but its kernels are not object code."""
        return f"parts of a library, {super().key}"

    @property
    def runs_here(self) -> bool:
        """Never: an assembler comes first."""
        return False

    @property
    def requirements(self) -> dict[str, Any]:
        """Those of the CPU, and the system."""
        return {**super().requirements, "triple": self.machine.triple}

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """LLVM assembly of a scheduled kernel."""
        made = llvm.kernel_text(kernel, self.machine, symbol, not self.exact, permitted)
        shared, thread = made.workspace_bytes, made.workspace_per_thread
        return Artifact(made.symbol, made.object_bytes, shared, thread)

    def segment(self, symbol: str, actions: Sequence[Action]) -> bytes:
        """LLVM assembly of the function that does all this in order."""
        return entry_ir(symbol, actions, self.machine).encode()

    def support(self) -> Sequence[bytes]:
        """None: who calls the library brings the threads."""
        return ()


def _machine_of(target: Target) -> CpuMachine:
    assert isinstance(target, CpuTarget), "a variant is for a CPU"
    return target.machine


def make(settings: TargetSettings) -> CpuTarget:
    """The target for a processor and a number of threads.

    Raises UnsupportedError for an unknown processor, InputError for a bad description.
    """
    found = machine(settings.mcpu, settings.triple)
    threads = settings.threads
    if settings.description is not None:
        found = described(found, settings.description)
    if threads is not None:
        found = replace(found, cores=threads)
    return CpuTarget(found, settings.exact)
