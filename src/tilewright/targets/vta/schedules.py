"""The default schedule of a product and what follows it, from its Computations alone."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtypes import int8
from tilewright.base.errors import CompileError
from tilewright.compute.nodes import PW, Computation
from tilewright.expr.nodes import Load, Var
from tilewright.loops.lower import lower
from tilewright.loops.nodes import Kernel
from tilewright.schedule import Schedule
from tilewright.targets.vta.blocks import blocked, load_parameters
from tilewright.targets.vta.intrinsics import ACC, INP, WGT
from tilewright.targets.vta.lane_schedules import lanes_scheduled
from tilewright.targets.vta.layers import Layer
from tilewright.targets.vta.tiling import Choice, Operand, Problem, choose
from tilewright.targets.vta.timing import TimingParameters

PUBLISHED = TimingParameters()


def schedule(layer: Layer, threads: int = 2, timing: TimingParameters = PUBLISHED) -> Schedule:
    """The layer's kernel, scheduled; threads: virtual threads, which hide latency.

    Raises CompileError for Computations that are no product of tiles with maps behind it.
    """
    made = lower(layer.name, layer.computations, params=layer.params, outputs=layer.params[-1:])
    return scheduled(made, layer.computations, threads, timing)


def scheduled(
    kernel: Kernel, computations: Sequence[Computation], threads: int, timing: TimingParameters
) -> Schedule:
    """The same for a plain kernel of these Computations."""
    if computations[0].reducer is None:
        return lanes_scheduled(kernel, computations, threads)
    sums, *between, last = computations
    if sums.reducer is None or last.reducer is not None or last.outputs[0].tensor.dtype is not int8:
        raise CompileError(
            f"{sums.name} to {last.name}: expected a sum of products and maps to bytes",
            code="TW-VTA-LAYER",
            where=f"kernel {kernel.name}",
        )
    best = choose(_problem(sums, between, last), threads, timing)
    return _apply(Schedule(kernel), sums, between, last, best, threads)


def _problem(sums: Computation, between: Sequence[Computation], last: Computation) -> Problem:
    data, weights = _operands(sums)
    *parallel, _ = (d for d in sums.dims if d.combine != PW)
    *reduced, _ = (d for d in sums.dims if d.combine == PW)
    out = sums.outputs[0]
    renamed = {d.var: p.var for d, p in zip(last.dims, parallel)}
    widened = {c.outputs[0].tensor for c in between}  # loaded as bytes
    extras = [
        Operand(_renamed(x, renamed), ACC, 16 if x.buffer in widened else 64)
        for x in last.accesses
        if x.buffer is not out.tensor
    ]
    return Problem(
        {d.var: d.extent for d in parallel},
        {d.var: d.extent for d in reduced},
        (Operand(data, INP, 16), Operand(weights, WGT, 256)),
        Operand(Load(out.tensor, out.index), ACC, 16),
        extras,
        4 + len(extras),
    )


def _renamed(x: Load, names: dict[Var, Var]) -> Load:
    return Load(x.buffer, tuple(names.get(i, i) if isinstance(i, Var) else i for i in x.index))


def _operands(sums: Computation) -> tuple[Load, Load]:
    """The accesses of the data and of the weights, which have the lanes of the result."""
    lane = [d.var for d in sums.dims if d.combine != PW][-1]
    found = {any(i is lane for i in x.index): x for x in sums.accesses}
    if len(sums.accesses) != 2 or len(found) != 2:
        raise CompileError(
            f"{sums.name} is no sum of products of tiles by tiles of weights",
            code="TW-VTA-LAYER",
            where=sums.name,
        )
    return found[False], found[True]


def _apply(
    s: Schedule,
    sums: Computation,
    between: Sequence[Computation],
    last: Computation,
    best: Choice,
    threads: int,
) -> Schedule:
    parallel = [d for d in sums.dims if d.combine != PW]
    sizes = [*(best.tile[d.var] for d in parallel[:-1]), parallel[-1].extent]
    axis = [d.var for d in parallel].index(best.thread) if best.thread is not None else None
    block = blocked(s, last, sizes, threads, axis)
    for c in between:
        s.compute_at(c.outputs[0].tensor.name, block, scope=ACC)
    s.compute_at(sums.outputs[0].tensor.name, block, scope=ACC)
    _sum(s, sums, best, block)
    load_parameters(s, last, block)
    s.tensorize(f"{sums.name}.{parallel[-1].var.name}", "vta.gemm")
    return s


def _sum(s: Schedule, sums: Computation, best: Choice, block: str) -> None:
    """Steps of the sum outside, each with the parts of the operands that it needs."""
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
    s.reorder(*steps, *parallel[:-1], *parts, parallel[-1], f"{name}.{depth.var.name}")
    data, weights = _operands(sums)
    at = steps[-1] if steps else block
    s.cache_read(weights.buffer.name, at, WGT)
    s.cache_read(data.buffer.name, at, INP, pad=True)
