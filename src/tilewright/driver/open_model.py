"""An open plan as a model: one piece of code for all sizes within its bounds.

Each group is one kernel with every size of the plan, in the plan's order, so that all kernels read
one block of sizes. A segment calls them; it finds every tensor through the table of pointers, so
that offsets may differ between calls. What follows from sizes is data that needs no compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import Any, Final

from tilewright.base import events, flags
from tilewright.base.errors import UnsupportedError, VerifyError
from tilewright.base.names import fresh
from tilewright.driver.open_constants import OpenConstants
from tilewright.driver.units import PartedWork, by_units
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Value
from tilewright.loops.lower import lower
from tilewright.loops.nodes import SIZE, If, Kernel, Stmt, loop
from tilewright.loops.sizes import formula, statement
from tilewright.loops.verify import verify as verify_kernel
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.passes.memory import in_arena
from tilewright.plan.verify import verify
from tilewright.runtime import abi
from tilewright.runtime.dispatch import Symbolic
from tilewright.runtime.formulas import Formula
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    KernelRecord,
    NativeStep,
    Slot,
    Tensor,
)
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.ranged_model import Cover, RangedModel, Shared
from tilewright.schedule.full_tiles import full_tiles
from tilewright.targets.base import Argument, Artifact, Call, Target

_SYMBOL: Final = "segment_0"


@dataclass(frozen=True, eq=False, slots=True)
class _Code:
    """What is compiled once. operands: tensors in the order of the segment's table."""

    kernels: tuple[Artifact, ...]
    segment: bytes
    operands: tuple[Buffer, ...]
    constants: Any
    places: Mapping[Buffer, int]


def open_model(plan: Plan, target: Target, sanitize: bool = False) -> OpenModel:
    """The code of an open plan, and how shapes, offsets and workspaces follow from its sizes.

    Raises UnsupportedError (TW-JIT) naming the step or tensor that has no code for all sizes: a
    step that is wrong at some, or no kernel, or not proven to stay inside of its tensors, a size
    that is a count, a result that is an input or a constant.
    """
    try:
        verify(plan)
    except VerifyError as error:
        raise _refused(str(error), plan) from error
    check_supported(plan)
    with events.span("kernels", total=len(plan.steps)):
        code = _compiled(plan, target, sanitize)
    lives = lifetimes(plan)
    position = {b: n for n, b in enumerate(code.operands)}
    held = {position[b]: ends for b, ends in lives.items() if in_arena(plan, b)}
    ends = [
        tuple(_shape(plan.buffers[v]) for v in vs)
        for vs in (plan.graph.inputs, plan.graph.outputs)
    ]
    made = OpenModel(
        model=_first(plan, code, target),
        sizes=tuple(e.size.name for e in plan.open),
        inputs=ends[0],
        outputs=ends[1],
        values=tuple(map(_shape, code.operands)),
        lives=held,
        touched=tuple(
            tuple(position[b] for b in plan.touched(group) if b in position)
            for group in plan.groups
        ),
        workspace=tuple(formula(a.workspace) for a in code.kernels),
        thread_workspace=tuple(formula(a.thread_workspace) for a in code.kernels),
    )
    least = made.at({e.size.name: e.least for e in plan.open})
    return replace(made, model=least)


def ranged_model(plan: Plan, opened: OpenModel) -> RangedModel:
    """A model of all sizes within the bounds of an open plan."""
    allowed = {e.size.name: range(e.least, e.most + 1) for e in plan.open}
    inputs, outputs = (
        tuple(map(symbolic, vs)) for vs in (plan.graph.inputs, plan.graph.outputs)
    )
    shared = Shared(opened, Cover(tuple(allowed.values())))
    return RangedModel(inputs, outputs, allowed, {}, (shared,))


def symbolic(v: Value) -> Symbolic:
    """A value with the names of its open extents."""
    if v.kind != "tensor" or v.dtype is None:
        return Symbolic(v.name, OBJECT, None)
    return Symbolic(v.name, v.dtype.name, v.shape)


def _first(plan: Plan, code: _Code, target: Target) -> CompiledModel:
    """The model with the code and the places of constants; it has no sizes yet."""
    scratch = Slot("arena", 0, Tensor("workspace", "uint8", (0,)))
    slots = [_slot(plan, code, b) for b in code.operands]
    records = tuple(
        KernelRecord(n, group.name, group.sources, group.flops, 0, made.symbol)
        for n, (group, made) in enumerate(zip(plan.groups, code.kernels, strict=True))
    )
    return CompiledModel(
        inputs=tuple(_tensor(v, plan.buffers[v]) for v in plan.graph.inputs),
        outputs=tuple(_tensor(v, plan.buffers[v]) for v in plan.graph.outputs),
        steps=(NativeStep(_SYMBOL, (scratch, *slots), records),),
        objects=(*(a.code for a in code.kernels), code.segment),
        support=tuple(target.support()),
        constants=code.constants,
        requirements=target.requirements,
        meta={"name": plan.graph.name, "target": target.name},
    )


def _slot(plan: Plan, code: _Code, b: Buffer) -> Slot:
    tensor = Tensor(b.name, b.dtype.name, _known(b))
    if b in code.places:
        return Slot("constant", code.places[b], tensor)
    if in_arena(plan, b):
        return Slot("arena", 0, tensor)
    for n, v in enumerate(plan.graph.inputs):
        if plan.buffers[v] is b:
            return Slot("input", n, _tensor(v, b))
    for n, v in enumerate(plan.graph.outputs):
        if plan.buffers[v] is b:
            return Slot("output", n, _tensor(v, b))
    raise AssertionError(f"{b!r} is nowhere")


def check_supported(plan: Plan) -> None:
    """Raise UnsupportedError for the first thing that has no code for all sizes."""
    for step in plan.steps:
        if not isinstance(step, FusionGroup) or step.device != HOST:
            raise _refused(f"{step.name} is no kernel of the host", plan)
    for e in plan.open:
        if isinstance(e.source, Buffer):
            raise _refused(f"{e.size.name} is a count, which a step makes", plan)
    written = [b for step in plan.steps for b in step.writes]
    results = plan.results
    for v, b in zip(plan.graph.outputs, results, strict=True):
        if b not in written or results.count(b) > 1:
            raise _refused(f"the result {v.name!r} is also another tensor", plan)


def _refused(why: str, plan: Plan) -> UnsupportedError:
    return UnsupportedError(
        f"{why}: there is no code for all sizes",
        where=f"plan {plan.graph.name}",
        code="TW-JIT",
        hint="name fewer values, at most 16, which have code of their own: dims={'batch': [1, 8]}",
    )


def _compiled(plan: Plan, target: Target, sanitize: bool) -> _Code:
    constants = OpenConstants(plan, target, sanitize)
    made: list[Artifact] = []
    kernels: list[Kernel] = []
    for n, group in enumerate(plan.groups):
        try:
            kernel = _proven(kernel_of(plan, group), plan)
            work = _scheduled(kernel, group, plan, target)
            artifact = _emitted(work.kernel, target, f"{kernel.name}_{n}", sanitize)
        except VerifyError as error:
            raise _refused(f"{group.name}: {error}", plan) from error
        constants.add(kernel, work)
        kernels.append(work.kernel)
        made.append(artifact)
    operands = tuple(dict.fromkeys(b for k in kernels for b in k.params))
    slot = {b: abi.TABLE_FIRST_VALUE + 1 + n for n, b in enumerate(operands)}
    scratch = Argument(abi.TABLE_FIRST_VALUE)
    calls: list[Call] = []
    for n, (k, artifact) in enumerate(zip(kernels, made, strict=True)):
        arguments = tuple(Argument(slot[b]) for b in k.params)
        calls.append(Call(artifact.symbol, arguments, scratch, n))
    segment = target.segment(_SYMBOL, calls)
    return _Code(tuple(made), segment, operands, constants.block(), constants.places)


def kernel_of(plan: Plan, group: FusionGroup) -> Kernel:
    """The group before any schedule, with all sizes of the plan in their order."""
    if group.kernel is None:
        params = plan.touched(group)
        outputs = params[len(group.reads) :]
        kernel = lower(_word(group.name), unique(group).computations, params, outputs)
    else:
        kernel = group.kernel
    return _around(plan, kernel, statement(kernel))


def _around(plan: Plan, kernel: Kernel, body: Stmt) -> Kernel:
    """The kernel with another body, for all sizes of the plan up to their most."""
    for e in reversed(plan.open):
        body = loop(e.size, e.most + 1, body, SIZE)
    return replace(kernel, body=body)


def _proven(kernel: Kernel, plan: Plan) -> Kernel:
    """The kernel itself if it is right for sizes from 0 on, else for the plan's least and more.

    The second one tests its sizes, which hides its loops from some schedules. Raises VerifyError.
    """
    try:
        verify_kernel(kernel)
    except VerifyError:
        enough = reduce(and_, (e.size >= e.least for e in plan.open))
        kernel = _around(plan, kernel, If(enough, statement(kernel), None))
        verify_kernel(kernel)
    return kernel


def unique(group: FusionGroup) -> FusionGroup:
    """The group with a name for each Computation, which the names of loops begin with."""
    taken: set[str] = set()
    named = (replace(c, name=fresh(taken, c.name)) for c in group.computations)
    return replace(group, computations=tuple(named))


def _scheduled(
    kernel: Kernel, group: FusionGroup, plan: Plan, target: Target
) -> PartedWork:
    """Unit by unit where all units of the only size are the same, else for any size at once."""
    found = by_units(kernel, unique(group), plan.data, target)
    if found is not None:
        return found
    computations = unique(group).computations
    made = target.default_schedule(kernel, computations, ()).kernel
    return PartedWork(full_tiles(made))


def _emitted(kernel: Kernel, target: Target, symbol: str, sanitize: bool) -> Artifact:
    if flags.DEBUG.get():
        verify_kernel(kernel)
    return target.emit(kernel, symbol, {} if sanitize else None)


def _tensor(v: Value, b: Buffer) -> Tensor:
    return Tensor(v.name, b.dtype.name, _known(b))


def _known(b: Buffer) -> tuple[int | None, ...]:
    return tuple(n if isinstance(n, int) else None for n in b.extents)


def _shape(b: Buffer) -> tuple[Formula, ...]:
    return tuple(map(formula, b.extents))


def _word(name: str) -> str:
    return "k_" + "".join(c if c.isalnum() else "_" for c in name)[:48]
