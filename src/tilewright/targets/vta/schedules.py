"""The default schedule of a product and its epilogue, from its Computations alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewright.base.dataclass import dataclass
from tilewright.base.errors import CompileError, placed
from tilewright.compute.nodes import PW, Computation, Dim
from tilewright.expr.affine import affine
from tilewright.expr.nodes import Load, Var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.schedule.space import Choices, Sketch
from tilewright.targets.vta.blocks import blocked, load_parameters
from tilewright.targets.vta.config import MemoryId, VTAConfig
from tilewright.targets.vta.fields import DEFAULT
from tilewright.targets.vta.intrinsics import ACC, INP, WGT, elements, gemm
from tilewright.targets.vta.lane_schedules import lanes_scheduled
from tilewright.targets.vta.layers import LayerProgram
from tilewright.targets.vta.tiling import (
    TileChoice,
    TiledOperand,
    TilingProblem,
    asked,
    choose,
)
from tilewright.targets.vta.timing import TimingParameters

PUBLISHED = TimingParameters()
# Where the elements of a memory are on the chip.
SCOPES: Mapping[MemoryId, str] = {
    MemoryId.INP: INP,
    MemoryId.WGT: WGT,
    MemoryId.ACC: ACC,
    MemoryId.OUT: ACC,
    MemoryId.ACC_8BIT: ACC,
}


def schedule(
    layer: LayerProgram, threads: int = 2, timing: TimingParameters = PUBLISHED
) -> Schedule:
    """The layer's kernel, scheduled; threads: virtual threads, which hide latency.

    Raises CompileError for Computations that are not a product of tiles with maps after it, and
    where not even the smallest block fits the memories.
    """
    made = lower(
        layer.name, layer.computations, params=layer.params, outputs=layer.params[-1:]
    )
    return scheduled(made, layer.computations, threads, timing, layer.config)


def scheduled(
    kernel: Kernel,
    computations: Sequence[Computation],
    threads: int,
    timing: TimingParameters,
    config: VTAConfig = DEFAULT,
) -> Schedule:
    """The same for a plain kernel of these Computations, in the layout of a machine."""
    product = _product(kernel, computations, config)
    if product is None:
        return lanes_scheduled(kernel, computations, threads, config)
    with _of(kernel):
        best = choose(product.problem(), threads, timing)
    return product.schedule(Schedule(kernel), best, threads)


def sketches(
    kernel: Kernel,
    computations: Sequence[Computation],
    threads: int,
    timing: TimingParameters,
    config: VTAConfig = DEFAULT,
) -> list[Sketch]:
    """The same as a sketch, whose default it is; `blocks` of a product has parameters.

    Raises CompileError as `scheduled` does, when it runs.
    """
    product = _product(kernel, computations, config)
    if product is None:
        return [
            Sketch(
                "lanes",
                lambda ask: lanes_scheduled(kernel, computations, threads, config),
            )
        ]

    def blocks(ask: Choices) -> Schedule:
        with _of(kernel):
            taken = asked(product.problem(), threads, timing, ask)
        return product.schedule(Schedule(kernel), taken, threads)

    return [Sketch("blocks", blocks)]


@contextmanager
def _of(kernel: Kernel) -> Iterator[None]:
    """Errors say which kernel they are about."""
    with placed(f"kernel {kernel.name}"):
        yield


def _product(
    kernel: Kernel, computations: Sequence[Computation], config: VTAConfig
) -> _Product | None:
    """The sum of products in Computations; None where there is no sum."""
    first, *others = computations
    data = elements(config)[INP].dtype
    copies = first.reducer is None and first.outputs[0].tensor.dtype is data
    rows, (sums, *between, last) = (
        (first, others) if copies and others else (None, computations)
    )
    if sums.reducer is None:
        return None
    if last.reducer is not None or last.outputs[0].tensor.dtype is not data:
        raise CompileError(
            f"{sums.name} to {last.name}: expected a sum of products and maps to {data}",
            code="TW-VTA-LAYER",
            where=f"kernel {kernel.name}",
        )
    return _Product(rows, sums, between, last, config)


@dataclass(frozen=True, slots=True)
class _Product:
    """A sum of products of tiles, and its surroundings.

    rows: the used rows of the data, if not all. between: bytes of other tensors as accumulators.
    last: the conversion of sums to bytes. config: the machine.
    """

    rows: Computation | None
    sums: Computation
    between: Sequence[Computation]
    last: Computation
    config: VTAConfig

    @property
    def parallel(self) -> tuple[Sequence[Dim], Sequence[Dim]]:
        """The dimensions of the sums: over tiles, and within a tile."""
        dims = [d for d in self.sums.dims if d.combine != PW]
        inner = len(self.config.tile)
        return dims[:-inner], dims[-inner:]

    @property
    def operands(self) -> tuple[Load, Load]:
        """The accesses of the data and of the weights, which have the lanes of the result."""
        sums = self.sums
        lane = self.parallel[1][-1].var
        found = {any(i is lane for i in x.index): x for x in sums.accesses}
        if len(sums.accesses) != 2 or len(found) != 2:
            raise CompileError(
                f"{sums.name} is not a sum of products of tiles by tiles of weights",
                code="TW-VTA-LAYER",
                where=sums.name,
            )
        return found[False], found[True]

    def problem(self) -> TilingProblem:
        """What blocks are chosen for."""
        data, weights = self.operands
        parallel, _ = self.parallel
        *reduced, _ = (d for d in self.sums.dims if d.combine == PW)
        out = self.sums.outputs[0]
        renamed = {d.var: p.var for d, p in zip(self.last.dims, parallel)}
        widened = {c.outputs[0].tensor for c in self.between}  # loaded as bytes
        spaces = self.config.spaces

        def operand(
            x: Load, memory: MemoryId, apart: Sequence[bool] = ()
        ) -> TiledOperand:
            space = spaces[memory]
            scope = SCOPES[memory]
            index = x.index[: -len(space.shape)]
            return TiledOperand(
                x.buffer, index, scope, space.depth, space.dram_bytes, apart
            )

        def extra(x: Load) -> TiledOperand:
            wide = x.buffer in widened
            if wide:
                memory = MemoryId.ACC_8BIT
            else:
                memory = MemoryId.ACC
            return operand(_renamed(x, renamed), memory)

        extras = [extra(x) for x in self.last.accesses if x.buffer is not out.tensor]
        return TilingProblem(
            parallel={d.var: d.extent for d in parallel},
            reduced={d.var: d.extent for d in reduced},
            operands=(
                operand(data, MemoryId.INP, self._apart()),
                operand(weights, MemoryId.WGT),
            ),
            result=operand(Load(out.tensor, out.index), MemoryId.OUT),
            extras=extras,
            lane_steps=4 + len(extras),
        )

    def _apart(self) -> tuple[bool, ...]:
        """Along which dimensions parts of the data are apart in DRAM."""
        if self.rows is None:
            return ()
        own = {d.var for d in self.rows.dims}
        forms = (affine(i).terms for i in self.rows.accesses[0].index)
        return tuple(any(v in own and step != 1 for v, step in form) for form in forms)

    def schedule(self, s: Schedule, best: TileChoice, threads: int) -> Schedule:
        """The kernel in these blocks."""
        parallel, tile = self.parallel
        sizes = [*(best.tile[d.var] for d in parallel), *(d.extent for d in tile)]
        axis = (
            [d.var for d in parallel].index(best.thread)
            if best.thread is not None
            else None
        )
        block = blocked(s, self.last, sizes, threads, axis)
        for c in (*self.between, self.sums):
            s.compute_at(c.outputs[0].tensor.name, block, scope=ACC)
        step = _stepped(s, self.sums, best, len(tile)) or block
        data, weights = self.operands
        s.cache_read(weights.buffer.name, step, WGT)
        if self.rows is None:
            s.cache_read(data.buffer.name, step, INP, pad=True)
        else:
            s.compute_at(data.buffer.name, step, scope=INP)
        load_parameters(s, self.last, block)
        s.tensorize(f"{self.sums.name}.{tile[0].var.name}", gemm(self.config))
        return s


def _renamed(x: Load, names: dict[Var, Var]) -> Load:
    return Load(
        x.buffer, tuple(names.get(i, i) if isinstance(i, Var) else i for i in x.index)
    )


def _stepped(
    s: Schedule, sums: Computation, best: TileChoice, inner: int
) -> str | None:
    """Steps of the sum outside; the loop whose body is one step, if there are several.

    inner: the number of the result's loops that are within a tile.
    """
    name = sums.name
    dims = [d for d in sums.dims if d.extent > 1]
    parallel = [f"{name}.{d.var.name}" for d in dims if d.combine != PW]
    *loops, depth = (d for d in dims if d.combine == PW)
    s.decompose_reduction(sums.outputs[0].tensor.name, parallel[0])
    steps, parts = [], []
    for d in loops:
        loop = f"{name}.{d.var.name}"
        if best.tile[d.var] < d.extent:
            step, loop = s.split(loop, best.tile[d.var])
            steps.append(step)
        parts.append(loop)
    around = parallel[:-inner]
    tile = parallel[-inner:]
    s.reorder(*steps, *around, *parts, *tile, f"{name}.{depth.var.name}")
    if steps:
        return steps[-1]
    return None
