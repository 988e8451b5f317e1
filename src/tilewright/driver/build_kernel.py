"""One Kernel as a whole model, run as scheduled: for hand-written schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base import flags
from tilewright.compute.nodes import Computation
from tilewright.driver.assemble import Assembler
from tilewright.driver.built import BuiltGroup, BuiltProgram, BuiltStep
from tilewright.driver.chosen_schedules import ChosenSchedules
from tilewright.driver.compiled import CompiledGroup
from tilewright.driver.guard import validate
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.planning import place_buffers
from tilewright.expr.nodes import Binary, Buffer, Call, Compare, Expr, Neg
from tilewright.graph.nodes import Graph, Value
from tilewright.ir.node import postorder
from tilewright.loops.nodes import (
    Alloc,
    Block,
    For,
    If,
    Kernel,
    Stmt,
    Store,
    Unit,
    Update,
)
from tilewright.loops.verify import verify
from tilewright.plan.nodes import HOST, DeviceCopy, FusionGroup, Plan
from tilewright.plan.normalize import KernelSignature, kernel_signature
from tilewright.runtime.model import CompiledModel
from tilewright.targets.base import Target


def build_kernel(
    kernel: Kernel,
    target: Target,
    sanitize: bool = False,
    choose: ChosenSchedules | None = None,
) -> CompiledModel:
    """The compiled model that calls `kernel` once; its parameters are the inputs and outputs.

    sanitize: check every access while it runs. choose: looks up tuning records for it. Raises
    VerifyError for a broken invariant, such as an index out of bounds, and UnsupportedError for a
    kernel without native code.
    """
    verify(kernel)
    if target.device != HOST:
        return for_device(kernel, target)
    return unverified(kernel, target, sanitize, choose)


def for_device(kernel: Kernel, target: Target) -> CompiledModel:
    """The compiled model that copies to the target's device, launches `kernel`, and copies back.

    Raises CompileError if the target has no code for it.
    """
    values = {b: Value(b.name, b.dtype, b.shape) for b in kernel.params}
    here = {b: Buffer(b.name, b.shape, b.dtype) for b in kernel.params}
    work = flops(kernel.body)
    group = FusionGroup(kernel.name, (), (kernel.name,), work, kernel, target.device)
    copies_in = [DeviceCopy(here[b], b) for b in kernel.inputs]
    copies_out = [DeviceCopy(b, here[b]) for b in kernel.outputs]
    inputs, outputs = (
        tuple(values[b] for b in ends) for ends in (kernel.inputs, kernel.outputs)
    )
    plan = Plan(
        Graph(kernel.name, inputs, outputs, ()),
        (*copies_in, group, *copies_out),
        {values[b]: here[b] for b in kernel.params},
        devices=dict.fromkeys(kernel.params, target.device),
    )
    code = target.emit(kernel, kernel.name).code
    built = BuiltProgram(group, kernel.params, code, target.workspace(code))
    steps: list[BuiltStep] = [*copies_in, built, *copies_out]
    assembler = Assembler(place_buffers(plan, steps), steps, target, None)
    return assembler.model({"target": target.name})


def unverified(
    kernel: Kernel,
    target: Target,
    sanitize: bool = False,
    choose: ChosenSchedules | None = None,
) -> CompiledModel:
    """As `build_kernel`, without verifying the kernel.

    Raises UnsupportedError for a kernel without native code.
    """
    signature = signature_of(kernel)
    compiler = KernelCompiler(target, target, None, sanitize)
    if choose is not None:
        compiler.choose, compiler.withdraw = choose, choose.withdraw
    code = compiler.compile(signature, ())
    if flags.CHECK.get():
        validate(signature, code, [False] * len(signature.values)).require()
    tuned = [] if choose is None else choose.used
    return assembled(kernel, signature, code, target, tuned)


def signature_of(
    kernel: Kernel, computations: Sequence[Computation] = ()
) -> KernelSignature:
    """The interface of a kernel that is a whole model.

    computations: those that the kernel is the plain loop nest of, if any.
    """
    if not computations:
        return kernel_signature(group_of(kernel), kernel.outputs)
    return KernelSignature(
        kernel.name,
        tuple(computations),
        None,
        kernel.params,
        kernel.params,
        kernel.outputs,
        (0,) * len(kernel.params),
        tuple(computations),
        kernel.name,
    )


def group_of(kernel: Kernel) -> FusionGroup:
    """A kernel as the only group of a model."""
    return FusionGroup(kernel.name, (), (kernel.name,), flops(kernel.body), kernel)


def assembled(
    kernel: Kernel,
    signature: KernelSignature,
    code: CompiledGroup,
    target: Target,
    tuned: Sequence[Mapping[str, Any]] = (),
) -> CompiledModel:
    """The model that calls the code of a kernel once; tuned: the tuning records of its schedule."""
    values = {b: Value(b.name, b.dtype, b.shape) for b in kernel.params}
    inputs = tuple(values[b] for b in kernel.inputs)
    outputs = tuple(values[b] for b in kernel.outputs)
    graph = Graph(kernel.name, inputs, outputs, ())
    group = group_of(kernel)
    plan = Plan(graph, (group,), {v: b for b, v in values.items()})
    steps = [BuiltGroup(group, signature, code)]
    assembler = Assembler(place_buffers(plan, steps), steps, target, None)
    meta = {"tuned": list(tuned)} if tuned else {}
    return assembler.model({"target": target.name, **meta})


def flops(s: Stmt) -> int:
    """Floating-point operations of one run; loops of unknown extent and conditions count once."""
    match s:
        case For():
            return (1 if s.trips is None else s.trips) * flops(s.body)
        case Block():
            return sum(map(flops, s.stmts))
        case Alloc() | Unit():
            return flops(s.body)
        case If():
            return flops(s.then) + (0 if s.otherwise is None else flops(s.otherwise))
        case Store() | Update():
            return arithmetic(s)
    return 0


def arithmetic(s: Store | Update) -> int:
    """Floating-point operations of one run of a statement."""
    if isinstance(s, Store):
        return _arithmetic(s.value)
    return sum(_arithmetic(v) + v.dtype.is_float for v in s.values)


def _arithmetic(e: Expr) -> int:
    """The operations that compute a float; a shared one counts once."""
    counted = (n for n in postorder(e) if isinstance(n, Binary | Neg | Call))
    return sum(n.dtype.is_float for n in counted if not isinstance(n, Compare))
