"""NVIDIA's GPUs as a target: scheduled kernels become PTX, which needs no toolkit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from tilewright.base.dtypes import DType
from tilewright.base.errors import TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.expr.nodes import Buffer
from tilewright.loops.launch import LaunchProgram
from tilewright.loops.nodes import Kernel
from tilewright.loops.passes.bulk_copies import boxes_of
from tilewright.loops.scopes import CONSTANT
from tilewright.plan.questions import PlanCosts
from tilewright.schedule.space import Sketch
from tilewright.targets.base import Artifact, TargetSettings
from tilewright.targets.cuda.attention_cost import KEYS
from tilewright.targets.cuda.driver import bindings, gpu_name
from tilewright.targets.cuda.emit import llvm_ir, ptx
from tilewright.targets.cuda.intrinsics import FEATURE, PRODUCTS
from tilewright.targets.cuda.machine import (
    STATIC,
    CudaMachine,
    machine,
)
from tilewright.targets.cuda.tensor_attention import TensorAttention
from tilewright.targets.cuda.tensor_choice import GROUPS, WARPS
from tilewright.targets.cuda.tensor_tiles import TensorCores
from tilewright.targets.llvm.shared_layout import SharedMemoryLayout
from tilewright.targets.permitted import Permissions
from tilewright.targets.simt.code import PTX, DeviceProgram, KernelLaunch, TensorMap
from tilewright.targets.simt.llvm_target import LlvmGpuTarget
from tilewright.targets.simt.products import Product


class Cuda(LlvmGpuTarget[CudaMachine]):
    """One architecture. tf32: tensor cores may round factors of float32 to 10 bits."""

    __slots__ = ("tf32",)
    name: str = "cuda"
    device: ClassVar[str] = "cuda"
    own_mcpu: ClassVar[bool] = True

    def __init__(
        self,
        machine: CudaMachine,
        exact: bool = False,
        fast: bool = False,
        tf32: bool = False,
    ) -> None:
        super().__init__(machine, exact, fast)
        self.tf32 = tf32

    @property
    def key(self) -> str:
        """The architecture, and how it rounds."""
        any_order = self.simt.any_order
        modes = f"exact={self.exact} any_order={any_order} tf32={self.tf32}"
        return f"cuda {self.machine.name} {modes}"

    @property
    def device_here(self) -> str:
        """The first GPU, which models run on."""
        try:
            return gpu_name(bindings())
        except TilewrightError:
            return ""

    @property
    def tensor_cores(self) -> tuple[TensorCores, ...]:
        """The machine's tensor cores, by each kind of unit."""
        how = self.machine, self.exact
        any_order = self.simt.any_order
        return tuple(
            TensorCores(*how, k, self.tf32, any_order) for k in (WARPS, GROUPS)
        )

    def products(self, a: DType, b: DType, out: DType) -> Sequence[str]:
        """The `mma.sync` of the architecture for these."""
        return [
            i.name
            for i in PRODUCTS
            if tuple(t.dtype for t in i.tensors) == (a, b, out)
            and all(map(self.machine.has, i.features))
        ]

    def sketches(
        self,
        kernel: Kernel,
        computations: Sequence[Computation],
        constants: Collection[Buffer],
    ) -> Sequence[Sketch]:
        """The sketches of all GPUs, and that of tensor cores."""
        found = super().sketches(kernel, computations, constants)
        own = self.tensor_attention.sketch(kernel, computations)
        if own is not None:
            return [own, *found]
        for cores in self.tensor_cores:
            found = cores.with_sketch(found, kernel, computations)
        return found

    def estimated_cost(
        self, computations: Sequence[Computation], constants: Collection[Buffer] = ()
    ) -> float | None:
        """Expected nanoseconds of attention on tensor cores, or what all GPUs take."""
        time = self.tensor_attention.time(computations)
        if time is not None:
            return time
        return super().estimated_cost(computations, constants)

    @property
    def plan_costs(self) -> PlanCosts:
        """Those of all GPUs; scores may be rounded if tensor cores multiply them."""
        costs = super().plan_costs
        able = not self.exact and self.machine.has(FEATURE)
        return replace(costs, narrow_keys=KEYS if able else ())

    @property
    def tensor_attention(self) -> TensorAttention:
        """Attention on these."""
        return TensorAttention(self.machine, self.exact)

    def product_time(self, product: Product) -> float | None:
        """Nanoseconds on tensor cores or as on other GPUs, the shorter time."""
        times = [cores.time(product) for cores in self.tensor_cores]
        times.append(super().product_time(product))
        return min((t for t in times if t is not None), default=None)

    def emit(
        self, kernel: Kernel, symbol: str, permitted: Permissions | None = None
    ) -> Artifact:
        """PTX with the grid of each launch.

        permitted is ignored. Raises CompileError for code that no GPU of the architecture can run.
        """
        program = self.launches(kernel)
        made = code_of(program, self.assembly(program), self.machine)
        return Artifact(symbol, made.to_bytes())

    def llvm(self, program: LaunchProgram) -> str:
        """The program as LLVM's text."""
        return llvm_ir(program, self.machine, not self.exact)

    def assembly(self, program: LaunchProgram) -> str:
        """The program as PTX."""
        return ptx(program, self.machine, not self.exact)

    def workspace(self, code: bytes) -> tuple[int, ...]:
        """Bytes of each buffer between the launches of a program."""
        return DeviceProgram.from_bytes(code, PTX).workspace


def code_of(program: LaunchProgram, text: str, of: CudaMachine) -> DeviceProgram:
    """The program for the device. text: its PTX."""
    buffers = [*program.params, *program.workspace]
    calls = []
    for launch in program.launches:
        if 0 in launch.grid:
            continue  # without blocks it does nothing, and no driver takes it
        shared = SharedMemoryLayout.of(launch, launch.name, STATIC)
        grid = tuple(e for e in launch.grid if isinstance(e, int))
        x, y, z = grid
        # A kernel takes no address of an array in constant memory.
        given = [b for b in launch.params if b.scope != CONSTANT]
        calls.append(
            KernelLaunch(
                name=launch.name,
                grid=(x, y, z),
                threads=launch.threads,
                shared=shared.nbytes,
                dynamic=shared.nbytes if shared.is_dynamic else 0,
                arguments=tuple(map(buffers.index, given)),
                constants=tuple(
                    buffers.index(b) for b in launch.params if b.scope == CONSTANT
                ),
                maps=tuple(
                    TensorMap(
                        given.index(x.tensor),
                        str(x.tensor.dtype),
                        x.tensor.shape,
                        x.sides,
                    )
                    for x in boxes_of(launch.body)
                ),
            )
        )
    sizes = tuple(b.size * b.dtype.itemsize for b in program.workspace)
    params = len(program.params)
    return DeviceProgram(PTX, params, sizes, tuple(calls), text, of.name)


def make(settings: TargetSettings) -> Cuda:
    """The target. Raises UnsupportedError for an unknown architecture."""
    of, tf32 = machine(settings.mcpu), settings.precision == "tf32"
    return Cuda(of, settings.exact, settings.fast, tf32)
