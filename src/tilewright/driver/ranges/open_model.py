"""Compiles an open plan to a model: the same code for all sizes within its bounds.

Each group is one kernel with all sizes of the plan, in the plan's order, so that all kernels read
the same block of sizes. A segment calls them. It finds every tensor through the table of pointers,
so that offsets may differ between calls. Everything that depends on sizes is data, which needs no
compiler at run time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tilewright.base import events, flags
from tilewright.base.dataclass import dataclass
from tilewright.base.errors import VerifyError
from tilewright.driver.constants import ConstantPool
from tilewright.driver.ranges.open_check import OpenKernelCheck
from tilewright.driver.ranges.open_code import OpenCode, open_codes, refused
from tilewright.driver.ranges.open_constants import OpenConstants
from tilewright.driver.ranges.repeated_constants import without_repeats
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Value
from tilewright.loops.sizes import formula
from tilewright.plan.lifetimes import lifetimes
from tilewright.plan.nodes import HOST, FusionGroup, Plan
from tilewright.plan.open_extents import source_step
from tilewright.plan.passes.memory import in_arena
from tilewright.plan.verify import verify
from tilewright.runtime import abi
from tilewright.runtime.formulas import Formula, on
from tilewright.runtime.model import (
    OBJECT,
    CompiledModel,
    KernelRecord,
    NativeStep,
    SymbolicType,
    Tensor,
    ValueSlot,
)
from tilewright.runtime.open_model import OpenModel
from tilewright.runtime.ranged_model import Cover, RangedModel, SharedModel
from tilewright.targets.base import Argument, KernelCall, Target

_SYMBOL: Final = "segment_0"


@dataclass(frozen=True, eq=False, slots=True)
class _Code:
    """The compiled code. operands: the tensors in the order of the segment's table."""

    kernels: tuple[OpenCode, ...]
    segment: bytes
    operands: tuple[Buffer, ...]
    places: Mapping[Buffer, int]


def open_model(
    plan: Plan,
    target: Target,
    constants: ConstantPool,
    sanitize: bool = False,
    tiles: Sequence[int] = (),
) -> OpenModel:
    """The code of an open plan, with formulas for shapes, offsets and workspaces.

    constants: where they are placed; the model itself has none yet. tiles: of Winograd's forms
    that convolutions may take.
    Raises UnsupportedError (TW-JIT) naming the step or tensor that cannot be compiled for all
    sizes: a step that is invalid at some sizes, is not a kernel, or cannot be proven to stay within
    its tensors; a size that is a count; a result that is an input or a constant.
    """
    try:
        verify(plan)
    except VerifyError as error:
        raise refused(str(error), plan) from error
    check_supported(plan)
    plan = without_repeats(plan)
    extents, sizes = _extents(plan), _sizes(plan)
    with events.span("kernels", total=len(plan.steps), sizes=extents):
        code = _compiled(plan, target, constants, sanitize, tiles)

    def shape(b: Buffer) -> tuple[Formula, ...]:
        return tuple(on(formula(e), sizes) for e in b.extents)

    lives = lifetimes(plan)
    position = {b: n for n, b in enumerate(code.operands)}
    held = {position[b]: ends for b, ends in lives.items() if in_arena(plan, b)}
    ends = [
        tuple(shape(plan.buffers[v]) for v in vs)
        for vs in (plan.graph.inputs, plan.graph.outputs)
    ]
    made = OpenModel(
        model=_first(plan, code, target),
        sizes=tuple(sizes.values()),
        inputs=ends[0],
        outputs=ends[1],
        values=tuple(shape(b) for b in code.operands),
        lives=held,
        touched=tuple(
            tuple(position[b] for b in plan.touched(group) if b in position)
            for group in plan.groups
        ),
        workspace=tuple(on(a.workspace, sizes) for a in code.kernels),
        flops=tuple(on(a.flops, sizes) for a in code.kernels),
        thread_workspace=tuple(on(a.thread_workspace, sizes) for a in code.kernels),
    )
    if flags.CHECK.get():
        check = OpenKernelCheck(plan, code.kernels, tiles)
        made = replace(made, check=check)
        check({n: e[-1] for n, e in extents.items()})
    least = made.at({n: e[0] for n, e in extents.items()})
    return replace(made, model=least)


def _extents(plan: Plan) -> dict[str, range]:
    """The extents of the inputs that decide the sizes of an open plan, by name."""
    found = {}
    for e in plan.open:
        first, step = source_step(plan, e)
        found[e.size.name] = range(
            first + step * e.least, first + step * e.most + 1, step
        )
    return found


def _sizes(plan: Plan) -> dict[str, Formula]:
    """The sizes of an open plan as functions of those extents."""
    found: dict[str, Formula] = {}
    for e in plan.open:
        first, step = source_step(plan, e)
        name = e.size.name
        found[name] = name if step == 1 else ["//", ["-", name, first], step]
    return found


def ranged_model(plan: Plan, target: Target) -> RangedModel:
    """A model for all sizes within the bounds of an open plan; errors as of `open_model`."""
    pool = ConstantPool()
    opened = open_model(plan, target, pool)
    allowed = _extents(plan)
    inputs, outputs = (
        tuple(map(symbolic, vs)) for vs in (plan.graph.inputs, plan.graph.shown_outputs)
    )
    shared = SharedModel(opened, Cover(tuple(allowed.values())))
    made = RangedModel(inputs, outputs, allowed, {}, (shared,))
    return made.with_constants(pool.held())


def symbolic(v: Value) -> SymbolicType:
    """A value whose symbolic extents are names."""
    if v.kind != "tensor" or v.dtype is None:
        return SymbolicType(v.name, OBJECT, None)
    return SymbolicType(v.name, v.dtype.name, v.shape)


def _first(plan: Plan, code: _Code, target: Target) -> CompiledModel:
    """The model with its code and the places of constants, but without sizes."""
    scratch = ValueSlot("arena", 0, Tensor("workspace", "uint8", (0,)))
    slots = [_slot(plan, code, b) for b in code.operands]
    records = tuple(
        KernelRecord(n, group.name, group.sources, 0, 0, made.symbol)
        for n, (group, made) in enumerate(zip(plan.groups, code.kernels, strict=True))
    )
    return CompiledModel(
        inputs=tuple(_tensor(v, plan.buffers[v]) for v in plan.graph.inputs),
        outputs=tuple(_tensor(v, plan.buffers[v]) for v in plan.graph.outputs),
        steps=(NativeStep(_SYMBOL, (scratch, *slots), records),),
        objects=(*{a.symbol: a.code for a in code.kernels}.values(), code.segment),
        support=tuple(target.support()),
        requirements=target.requirements,
        meta={"name": plan.graph.name, "target": target.name},
    )


def _slot(plan: Plan, code: _Code, b: Buffer) -> ValueSlot:
    tensor = Tensor(b.name, b.dtype.name, _known(b))
    if b in code.places:
        return ValueSlot("constant", code.places[b], tensor)
    if in_arena(plan, b):
        return ValueSlot("arena", 0, tensor)
    for n, v in enumerate(plan.graph.inputs):
        if plan.buffers[v] is b:
            return ValueSlot("input", n, _tensor(v, b))
    for n, v in enumerate(plan.graph.outputs):
        if plan.buffers[v] is b:
            return ValueSlot("output", n, _tensor(v, b))
    raise AssertionError(f"{b!r} is nowhere")


def check_supported(plan: Plan) -> None:
    """Raise UnsupportedError for the first part that cannot be compiled for all sizes."""
    for step in plan.steps:
        if not isinstance(step, FusionGroup) or step.device != HOST:
            raise refused(f"{step.name} is not a kernel on the host", plan)
    for e in plan.open:
        if isinstance(e.source, Buffer):
            raise refused(f"{e.size.name} is a count that a step computes", plan)
    written = [b for step in plan.steps for b in step.writes]
    results = plan.results
    for v, b in zip(plan.graph.outputs, results, strict=True):
        if b not in written or results.count(b) > 1:
            raise refused(f"the result {v.name!r} is also another tensor", plan)


def _compiled(
    plan: Plan,
    target: Target,
    pool: ConstantPool,
    sanitize: bool,
    tiles: Sequence[int],
) -> _Code:
    made = open_codes(plan, target, sanitize, tiles)
    constants = OpenConstants(plan, pool)
    called = [
        constants.arguments(code, plan.touched(group))
        for group, code in zip(plan.groups, made, strict=True)
    ]
    operands = tuple(dict.fromkeys(b for tensors in called for b in tensors))
    slot = {b: abi.TABLE_FIRST_VALUE + 1 + n for n, b in enumerate(operands)}
    scratch = Argument(abi.TABLE_FIRST_VALUE)
    calls = []
    for n, (tensors, code) in enumerate(zip(called, made, strict=True)):
        arguments = tuple(Argument(slot[b]) for b in tensors)
        calls.append(KernelCall(code.symbol, arguments, scratch, n))
    segment = target.segment(_SYMBOL, calls)
    return _Code(tuple(made), segment, operands, constants.places)


def _tensor(v: Value, b: Buffer) -> Tensor:
    return Tensor(v.name, b.dtype.name, _known(b))


def _known(b: Buffer) -> tuple[int | None, ...]:
    return tuple(n if isinstance(n, int) else None for n in b.extents)
