"""Counts of a model's kernels: bytes, and the operations besides products."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Counts:
    """Counts of one kernel.

    constants, weights: bytes of constants as the model has them and as the kernel reads them.
    transforms, epilogue: the share of its vector operations that are a Winograd form's transforms,
    and that come after its sums. lanes: the share of its vectors' lanes that results fill.
    """

    constants: int = 0
    weights: int = 0
    transforms: float = 0.0
    epilogue: float = 0.0
    lanes: float = 1.0


def counted(path: Path, mcpu: str) -> dict[tuple[str, tuple[str, ...]], Counts]:
    """The kernels of a model, by their names and operators as in a profile."""
    from tilewright.driver import compilation, planning, sources
    from tilewright.driver.options import Options
    from tilewright.targets.cpu.machine import machine as processor
    from tilewright.targets.registry import target

    options = Options(mcpu=mcpu)
    machine = target(options.target, options.mcpu)
    graph = compilation.optimize(
        sources.import_model(path, (), options), options, machine
    )
    plan = planning.make_plan(graph, machine)
    return {
        (s.name, s.sources): _counts(s, plan.data, processor(mcpu)) for s in plan.groups
    }


def _counts(stage: Any, data: Collection[Any], machine: Any) -> Counts:
    """Counts of one stage. Values computed from constants alone count at the size that is read, and
    a table only with the elements looked up."""
    constants = {b for b in stage.reads if b in data}
    made = {
        o.tensor: math.prod(o.tensor.shape)
        for c in stage.computations[:-1]
        if c.inputs and constants.issuperset(c.inputs)
        for o in c.outputs
    }
    read: dict[Any, int] = {}
    for c in stage.computations:
        if not made.keys() & {o.tensor for o in c.outputs}:
            points = math.prod(d.extent for d in c.dims)
            read |= {
                b: min(b.size, points) for b in c.inputs if b in constants or b in made
            }
    return Counts(
        sum(b.size * b.dtype.itemsize for b in constants),
        sum(n * b.dtype.itemsize for b, n in read.items()),
        _transforms(stage.computations),
        *_tile(stage, constants, machine),
    )


def _transforms(computations: Any) -> float:
    """The share of vector operations that are not the products of a Winograd form."""
    from tilewright.compute.merge import merge_dims
    from tilewright.schedule.space.patterns import classify
    from tilewright.targets.cpu.sketches.winograd import shape_of

    kind = classify(merge_dims(computations)[0]) if len(computations) == 4 else None
    if kind is None or kind.name != "winograd":
        return 0.0
    s = shape_of(kind)
    f = s.filtering
    into = 2 * f.size * f.inputs.operations * s.depth
    back = (f.size + f.tile) * f.results.operations * s.width
    return (into + back) / (into + back + s.points * s.depth * s.width)


def _tile(stage: Any, constants: Collection[Any], machine: Any) -> tuple[float, float]:
    """`Counts.epilogue` and `Counts.lanes` of products in register tiles; else as where all is
    well."""
    from tilewright.compute.contraction import is_contraction
    from tilewright.plan.normalize import kernel_signature
    from tilewright.schedule.space.choices import Choices
    from tilewright.schedule.space.patterns import classify, reduction_dims
    from tilewright.targets.cpu.sketches import Context
    from tilewright.targets.cpu.sketches.roles import vector

    if not stage.computations:  # a loop program
        return Counts.epilogue, Counts.lanes
    outputs = {o.tensor for o in stage.computations[-1].outputs}
    signature = kernel_signature(stage, outputs)
    kind = classify(signature.computations)
    if kind is None or kind.name != "tiled" or kind.reduction is None:
        return Counts.epilogue, Counts.lanes
    if not is_contraction(kind.reduction):
        return Counts.epilogue, Counts.lanes
    fixed = {
        p
        for value, p in zip(signature.values, signature.params, strict=True)
        if value in constants
    }
    columns = vector(kind, Context(machine, fixed), Choices()).extent
    lanes = machine.lanes(kind.reduction.outputs[0].tensor.dtype)
    depth = math.prod(d.extent for d in reduction_dims(kind.reduction))
    after = 0 if kind.epilogue is None else _operations(kind.epilogue, machine)
    return after / (after + depth), columns / (-(-columns // lanes) * lanes)


def _operations(c: Any, machine: Any) -> int:
    """Operations per point of a map, calls as what the code generator writes for them."""
    from tilewright.expr.nodes import Bitcast, Call, Cast, Const, Load, Var, var
    from tilewright.ir.node import postorder
    from tilewright.targets.llvm.expansions import expansion
    from tilewright.targets.llvm.processor import AVX512

    free = (Const, Var, Bitcast, Cast, Load)
    nodes = {n for o in c.outputs for n in postorder(o.value)}
    places = {
        n for x in nodes if isinstance(x, Load) for i in x.index for n in postorder(i)
    }
    count = 0
    for n in nodes - places:
        known = None
        if isinstance(n, Call) and (dtype := n.args[0].dtype):
            known = expansion(n.function, dtype.name, machine.has(AVX512))
        if isinstance(n, Call) and known:
            body = known(*(var(f"x{i}", a.dtype) for i, a in enumerate(n.args)))
            count += sum(not isinstance(x, free) for x in postorder(body))
        else:
            count += not isinstance(n, free)
    return count
