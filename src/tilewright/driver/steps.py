"""The steps from a model to an Executable, as one flat list, each named and timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.base import events, flags, limits
from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import InputError, TilewrightWarning, UnsupportedError
from tilewright.base.store import FileStore
from tilewright.base.text import listing, plural
from tilewright.driver.aliases import aliased_buffers, check_aliases, in_place
from tilewright.driver.assemble import Assembler
from tilewright.driver.built import BuiltControl, BuiltGroup, BuiltProgram, BuiltStep
from tilewright.driver.chosen_forms import ChosenForms
from tilewright.driver.chosen_schedules import (
    ChosenSchedules,
    chosen_schedules,
    for_kernel,
)
from tilewright.driver.compilation import (
    Compilation,
    final,
    onnx_fallback,
    optimize,
    store_for,
    target_of,
    with_folded_norms,
)
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.deciding_inputs import deciding_inputs, shape_inputs
from tilewright.driver.dims import (
    Dims,
    check_made_for,
    check_named,
    made_for,
    parted,
    possible,
    said_by,
    symbols,
)
from tilewright.driver.early_kernels import EarlyKernels, Jobs, early_kernels
from tilewright.driver.emulated import warn_of_emulation
from tilewright.driver.graph_passes import passed
from tilewright.driver.kernels import KernelCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import place_buffers, questions
from tilewright.driver.processes import Job
from tilewright.driver.sources import check_free, facts, import_model, with_dims
from tilewright.expr.nodes import Buffer
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.ops.open_extents import TRIM
from tilewright.graph.specialize import InferredTypes, specialize, typing_at
from tilewright.loops.nodes import Kernel
from tilewright.plan.forms import BY_ESTIMATE
from tilewright.plan.nodes import (
    HOST,
    Branch,
    DeviceCall,
    DeviceCopy,
    FusionGroup,
    HostFallback,
    Loop,
    Plan,
    Step,
)
from tilewright.plan.normalize import KernelSignature, SharedSignatures
from tilewright.plan.own_results import own_results
from tilewright.plan.pipeline import WINOGRAD
from tilewright.plan.questions import Questions
from tilewright.runtime import trim
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.executable import Executable
from tilewright.runtime.machine import LOADABLE
from tilewright.runtime.model import CompiledModel
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Target
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:  # loaded by the functions that need them: most compilations do not
    from tilewright.driver.constants import ConstantPool
    from tilewright.driver.device_kernels import DeviceCompiler
    from tilewright.driver.dynamic import DynamicExecutable
    from tilewright.driver.schedule_records import ScheduleRecord
    from tilewright.driver.show import PlanDumps
    from tilewright.driver.sized import SizedExecutable
    from tilewright.runtime.ranged import RangedExecutable
    from tilewright.runtime.ranged_model import RangedModel


def executable(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> Executable | DynamicExecutable | RangedExecutable | SizedExecutable:
    """Compile any source that `compile` takes to an executable; one at a time in a process."""
    if isinstance(source, Kernel):
        return _kernel(source, options)
    graph, allowed = open_graph(source, example_inputs, dims, options)
    dynamic = bool(_symbolic(graph))
    deciding = deciding_inputs(graph, onnx_fallback())
    if (dynamic or deciding) and not options.jit:
        from tilewright.runtime.ranged import RangedExecutable

        many = ranged(graph, allowed, options)
        return RangedExecutable(many, threads=options.threads)
    if dynamic or deciding:
        from tilewright.driver.dynamic import DynamicExecutable

        return DynamicExecutable(
            graph,
            lambda make: _build_later(make, options),
            options.threads,
            onnx_fallback(),
            options.limit,
            allowed,
        )
    # Handed over, so that weights that passes replace are freed before their successors are packed.
    handed = [graph]
    del graph
    made = build(handed.pop(), options)
    return Executable(made, threads=options.threads, lazy=True)


def open_graph(
    source: Any, example_inputs: Sequence[Any], dims: Dims | None, options: Options
) -> tuple[Graph, Allowed]:
    """The graph with the dimensions that have one value, and what the others may be."""
    graph = import_model(source, example_inputs, options)
    fixed, allowed = parted(dims or {})
    check_named(graph, allowed)
    check_made_for(graph, dims or {})
    said = made_for(graph) if options.jit else said_by(graph)
    allowed = {n: e for n, e in said.items() if n not in fixed} | allowed
    if fixed:
        graph = with_dims(graph, fixed, options)
    return graph, allowed if options.jit else possible(graph, allowed)


def _symbolic(graph: Graph) -> list[str]:
    """The names of the inputs whose shapes are symbolic."""
    return [v.name for v in graph.inputs if v.kind == "tensor" and not v.static]


def _kernel(source: Kernel, options: Options) -> Executable | SizedExecutable:
    """Compile a Kernel as scheduled."""
    from tilewright.driver.build_kernel import build_kernel

    check_free(source, options)
    if options.aliases:
        raise InputError(
            "aliases: a Kernel has none",
            hint="make the array that is overwritten a parameter and an output",
        )
    machine = target_of(options)
    _check_loadable(options.mcpu, machine)
    if source.sizes:
        from tilewright.driver.sized import SizedExecutable

        return SizedExecutable(source, machine, options.threads, options.sanitize)
    choose = for_kernel(source, machine, options)
    model = build_kernel(source, machine, options.sanitize, choose)
    return Executable(model, threads=options.threads, lazy=True)


def _build_later(make: Callable[[], Graph], options: Options) -> CompiledModel:
    """`build` for the shapes of a call, from any thread."""
    with exclusive(), events.span("compile"):
        return build(make(), options)


def ranged(graph: Graph, allowed: Allowed, options: Options) -> RangedModel:
    """Code for all shapes in ranges. Raises as `ranged.ranged_model`."""
    from tilewright.driver.constants import ConstantPool
    from tilewright.driver.ranges.between import KNOWN
    from tilewright.driver.ranges.compared_plans import RangedBuilder
    from tilewright.driver.ranges.open_arrays import with_computed_arrays
    from tilewright.driver.ranges.open_model import open_model
    from tilewright.driver.ranges.open_resizes import with_computed_positions
    from tilewright.driver.ranges.ranged import ranged_model

    if options.optimize == "fast":  # substitutions may differ from shape to shape
        options = replace(options, optimize="off")
    target = target_of(options)
    compiling = Compilation.of(target, options)
    constants = ConstantPool()

    def specialized(extents: Mapping[str, int]) -> Graph:
        return specialize(
            graph, extents, fallback=onnx_fallback(), memory_limit=options.limit
        )

    @limits.separate_constants()
    def plan_at(extents: Mapping[str, int], asked: Questions | None) -> Plan:
        merged = None if asked is None else asked.merged
        sized = specialized(extents)
        fixed = optimize(sized, options, compiling.host, merged=merged)
        # Records are of one size, and plans of several sizes must be alike.
        return own_results(compiling.planned(fixed, None, asked, forms=BY_ESTIMATE))

    @limits.separate_constants()
    def types(extents: Mapping[str, int]) -> InferredTypes:
        return typing_at(graph, extents, onnx_fallback(), options.limit, KNOWN)

    @limits.separate_constants()
    def single(extents: Mapping[str, int]) -> CompiledModel:
        return build(specialized(extents), options, target, constants)

    conditions = graph.conditions  # calls are checked; code may be for other sizes, too
    graph = with_computed_positions(replace(graph, conditions=()), allowed, types)
    graph = with_computed_arrays(graph, allowed, types)
    graph = with_folded_norms(graph, options)
    making = RangedBuilder(
        graph,
        questions(compiling.host),
        plan_at,
        constants,
        single,
        None
        if options.for_one_shape
        else lambda plan: open_model(
            plan, compiling.host, constants, options.sanitize, WINOGRAD[options.math]
        ),
        types,
        onnx_fallback(),
        {k: v for k, v in facts(graph).items() if v},
    )
    with exclusive(), events.span("compile"):
        made = ranged_model(making, allowed, shape_inputs(graph), options.limit)
    return replace(made, conditions=conditions)


def build(
    graph: Graph,
    options: Options,
    target: Target | None = None,
    constants: ConstantPool | None = None,
) -> CompiledModel:
    """The compiled model of a graph with static inputs; target: overrides the options' one.

    constants: as of `Assembler`.
    """
    if target is None:
        target = target_of(options)
        _check_loadable(options.mcpu, target)
    known = facts(graph)
    compiling = Compilation.of(target, options)
    graph, placements = compiling.adapted(graph)
    graph, substitutions = passed(graph, options, compiling.multiplies)
    known["substitutions"] = list(map(asdict, substitutions))
    observe = _plan_dumps()
    host = compiling.host
    with early_kernels(_early_jobs(compiling)) as early:
        forms = ChosenForms(host, options)
        plan = compiling.planned(graph, observe, lowered=early.begin, forms=forms)
        _report_reference_kernels(plan, options)
        if target.name == "cpu":
            warn_of_emulation(graph, target)
        if observe is not None:
            observe.stages(plan, compiling)
        store = store_for(host, options)
        choose = chosen_schedules(plan, host, options)
        aliases = aliased_buffers(plan, options.aliases)
        steps = kernels(
            plan,
            host,
            store,
            options.sanitize,
            choose,
            compiling.device,
            aliases,
            early,
        )
    check_aliases(plan, steps, aliases)
    known["tuned"] = [*choose.used, *forms.used]
    if compiling.device is not None:
        known["tuned"] += compiling.device.choose.used
    plan = place_buffers(plan, steps, observe)
    with events.span("assemble"):
        assembler = Assembler(
            plan, steps, host, _describe_host, options.limit, aliases, constants
        )
        placed = final(placements, compiling.device)
        known["placements"] = [astuple(p) for p in placed]
        meta = {"math": options.math, "target": target.name}
        return assembler.model({**meta, **{k: v for k, v in known.items() if v}})


def _plan_dumps() -> PlanDumps | None:
    """What writes the stages of a compilation, if TILEWRIGHT_DUMP asks for it."""
    folder = flags.DUMP.get()
    if folder is None:
        return None
    from tilewright.driver.show import PlanDumps

    return PlanDumps(folder)


def _early_jobs(compiling: Compilation) -> Jobs | None:
    """What compiles the kernels of a part of the plan; None if a device takes some groups.

    None for sanitized code, too: it names tensors, those of the first group that it is for.
    """
    host, options = compiling.host, compiling.options
    if compiling.device is not None or options.sanitize:
        return None
    store = store_for(host, options)

    def jobs(part: Plan) -> Mapping[str, Job]:
        choose = chosen_schedules(part, host, options)
        compiler = _compiler(host, store, False, choose)
        return compiler.jobs(_signatures(part, choose.named), part.data)

    return jobs


def _check_loadable(mcpu: str, target: Target) -> None:
    """Raise UnsupportedError for a processor on which no runtime loads artifacts."""
    arch = target.requirements.get("arch", LOADABLE[0])
    if arch not in LOADABLE:
        of, instead = f"the target {target.name!r}", "--emit asm shows its code"
        if target.device == HOST:
            of, instead = repr(mcpu), "compile a library, such as -o model.o"
        raise UnsupportedError(
            f"there are no artifacts for {of}: {arch} has no runtime that loads them",
            code="TW-MCPU",
            hint=instead,
        )


def kernels(
    plan: Plan,
    target: Target,
    store: FileStore | None,
    sanitize: bool,
    choose: ChosenSchedules,
    device: DeviceCompiler | None = None,
    aliases: Mapping[Buffer, Buffer] = MappingProxyType({}),
    early: EarlyKernels | None = None,
) -> list[BuiltStep]:
    """Every fusion group with its code; choose: selects the schedules of the kernels.

    device: compiles the groups that are not on the host. aliases: results in the memory of an
    input. early: kernels that another process makes.
    """
    if flags.CHECK.get() and not target.runs_here:
        raise UnsupportedError(
            f"{flags.CHECK.name}: kernels are validated by running them, and kernels of a library "
            "or of another processor do not run here",
            code="TW-CHECK",
            hint=f"Unset {flags.CHECK.name}",
        )
    compiler = _compiler(target, store, sanitize, choose)
    return _compiled(plan, compiler, device, aliases, choose.named, early)


def _compiler(
    target: Target, store: FileStore | None, sanitize: bool, choose: ChosenSchedules
) -> KernelCompiler:
    host = target if target.runs_here else find_target("cpu")
    return KernelCompiler(target, host, store, sanitize, choose, choose.withdraw)


def _signatures(plan: Plan, named: Collection[str]) -> list[KernelSignature]:
    """The host's groups, ready to compile; named: those whose schedules the caller chooses."""
    shared = SharedSignatures(named)
    return [shared.of(s, plan.live[s]) for s in plan.groups_on(HOST)]


def _compiled(
    plan: Plan,
    compiler: KernelCompiler,
    device: DeviceCompiler | None,
    aliases: Mapping[Buffer, Buffer],
    named: Collection[str],
    early: EarlyKernels | None = None,
) -> list[BuiltStep]:
    """The steps of a plan, or of a plan inside a loop or branch.

    named: the groups whose schedules the caller chooses.
    """
    mine = plan.groups_on(HOST)
    signatures = _signatures(plan, named)
    if flags.DEBUG.get():
        from tilewright.plan.verify_signature import verify_signature

        for s, signature in zip(mine, signatures, strict=True):
            verify_signature(s, signature)
    signatures = [in_place(s, aliases) for s in signatures]
    built: dict[FusionGroup, BuiltGroup] = {}
    with events.span("kernels", total=len(signatures)):
        codes = compiler.compile_all(signatures, plan.data, thread_count(), early)
        for step, signature, code in zip(mine, signatures, codes, strict=True):
            events.emit("kernel-ready", name=step.name, total=len(signatures))
            built[step] = BuiltGroup(step, signature, code)
    if flags.CHECK.get():
        with events.span("check", total=len(built)):
            check(built.values(), plan.data)
    found: list[BuiltStep] = []
    for item in plan.steps:
        if isinstance(item, Loop | Branch):
            bodies = (_compiled(p, compiler, None, {}, named) for p in item.bodies)
            found.append(BuiltControl(item, tuple(map(tuple, bodies))))
        else:
            found.append(_built(item, plan, built, device))
    return found


def _built(
    step: Step,
    plan: Plan,
    native: Mapping[FusionGroup, BuiltGroup],
    device: DeviceCompiler | None,
) -> BuiltStep:
    """A step with its code."""
    match step:
        case FusionGroup() if step in native:
            return native[step]
        case FusionGroup():
            assert device is not None
            group = device.group(step, plan.live[step])
            program = device.program(group)
            workspace = device.target.workspace(program)
            return BuiltProgram(step, group.operands, program, workspace)
        case DeviceCall():
            assert device is not None
            program = device.call(step).code
            workspace = device.target.workspace(program)
            operands = (*step.reads, *step.writes)
            return BuiltProgram(step, operands, program, workspace)
        case HostFallback() | DeviceCopy():
            return step
    raise AssertionError(f"{step.name} has no code")


def check(
    built: Iterable[BuiltGroup], constants: Mapping[Buffer, np.ndarray[Any, Any]]
) -> None:
    """Validate each distinct kernel. Raises ExecutionError (TW-CHECK) for the first wrong one."""
    from tilewright.driver.guard import validate

    for item in {b.code.symbol: b for b in built}.values():
        fixed = [v in constants for v in item.signature.values]
        validate(item.signature, item.code, fixed, known=constants).require()


def text(
    source: Any,
    kind: str,
    example_inputs: Sequence[Any],
    dims: Mapping[str, int] | None,
    options: Options,
    kernel: str | None = None,
) -> str:
    """The model at one stage of compilation; see `driver.compile.text`."""
    from tilewright.driver.show import KINDS, PER_KERNEL, show

    if kind not in KINDS:
        raise InputError(
            f"unknown stage {kind!r}", hint=f"choose one of {', '.join(KINDS)}"
        )
    if kernel is not None and kind not in PER_KERNEL:
        raise InputError(
            f"kernel={kernel!r}: the stage {kind!r} is about the whole model",
            hint=f"leave it out, or choose one of {', '.join(PER_KERNEL)}",
        )
    compiling = Compilation.of(target_of(options), options)
    graph, _ = compiling.adapted(_sized(source, example_inputs, dims, options))
    graph, _ = passed(graph, options, compiling.multiplies)
    if kind == "graph":
        return str(graph)
    _check_static(graph)
    return show(compiling.planned(graph), compiling, kind, kernel)


def schedules(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> list[ScheduleRecord]:
    """How each kernel of the model is scheduled; see `driver.compile.schedules`."""
    from tilewright.driver.schedule_records import (
        device_records,
        records,
        shared_records,
    )

    if not options.jit:
        graph, allowed = open_graph(source, example_inputs, dims, options)
        if _symbolic(graph):
            with events.record() as log:
                ranged(graph, allowed, options)
            return shared_records(log)
    with events.record() as log:
        plan, compiling = planned_for(source, example_inputs, dims, options)
    host, device = compiling.host, compiling.device
    found = records(plan, host, chosen_schedules(plan, host, options), log)
    if device is not None:
        found += device_records(plan, device, log)
    return found


def planned(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> tuple[Plan, Target]:
    """The plan of a model, and the target of its groups on the host.

    Raises InputError for a symbolic dimension without a value.
    """
    plan, compiling = planned_for(source, example_inputs, dims, options)
    return plan, compiling.host


def planned_for(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> tuple[Plan, Compilation]:
    """The plan of a model, and the compilation for the host and the target. Raises as `planned`."""
    graph, compiling = prepared(source, example_inputs, dims, options)
    return compiling.planned(graph), compiling


def prepared(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> tuple[Graph, Compilation]:
    """The graph of a model as it is planned. Raises as `planned`."""
    compiling = Compilation.of(target_of(options), options)
    graph, _ = compiling.adapted(_sized(source, example_inputs, dims, options))
    graph, _ = passed(graph, options, compiling.multiplies)
    _check_static(graph)
    return graph, compiling


def _sized(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Dims | None,
    options: Options,
) -> Graph:
    """The graph to plan, with values for symbolic dimensions."""
    graph = import_model(source, example_inputs, options)
    return with_dims(graph, dims, options) if dims else graph


def _check_static(graph: Graph) -> None:
    """Raise InputError for an input whose shape is symbolic."""
    if loose := list(map(repr, _symbolic(graph))):
        raise InputError(
            f"the shape of {listing(loose)} is symbolic",
            hint=DimsHint("give its dimensions").of(dict.fromkeys(symbols(graph), 1)),
        )


def _describe_host(op: Operation) -> tuple[str, Mapping[str, Any], Sequence[Any]]:
    if op.qualified == TRIM:
        return trim.PROVIDER, {"axes": list(op.attributes["axes"])}, ()
    from tilewright.frontends.onnx import reference

    return reference.PROVIDER, reference.serialize(op), reference.captured(op)


def _report_reference_kernels(plan: Plan, options: Options) -> None:
    """One warning for all operators without native code; an error with `fallback="error"`."""
    calls = [s.operation for s in plan.host_fallbacks]
    calls = [op for op in calls if op.qualified != TRIM]
    if not calls:
        return
    fallback = onnx_fallback()
    if lost := [op for op in calls if not fallback.knows(op)]:
        items = [f"{op.label} ({op.qualified})" for op in lost]
        raise UnsupportedError(
            f"nothing can run {plural(len(items), 'operator')} in this form: {listing(items)}",
            hint="Its definition does not support these attributes, operands or types",
            items=items,
        )
    items = [f"{op.label} ({op.qualified})" for op in calls]
    what = plural(len(calls), "operator has", "operators have") + " no native code and "
    what += (
        f"{'falls' if len(calls) == 1 else 'fall'} back to the host: {listing(items)}"
    )
    if options.fallback == "error":
        hint = 'compile with fallback="warn"'
        raise UnsupportedError(what, code="TW-FALLBACK", hint=hint, items=items)
    warnings.warn(what, TilewrightWarning, stacklevel=6)
