"""The steps from a model to an Executable, as one flat list, each named and timed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, replace
from typing import TYPE_CHECKING, Any

from tilewright.base import events, flags, limits
from tilewright.base.errors import InputError, TilewrightWarning, UnsupportedError
from tilewright.base.text import listing, plural
from tilewright.driver.aliases import aliased_buffers, check_aliases
from tilewright.driver.assemble import Assembler
from tilewright.driver.chosen_decisions import ChosenDecisions
from tilewright.driver.chosen_schedules import chosen_schedules, for_kernel
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
)
from tilewright.driver.early_kernels import early_kernels
from tilewright.driver.emulated import warn_of_emulation
from tilewright.driver.graph_passes import passed
from tilewright.driver.options import Options
from tilewright.driver.plan_code import early_jobs, kernels
from tilewright.driver.planning import place_buffers, questions
from tilewright.driver.sources import check_free, facts, import_model, with_dims
from tilewright.graph.nodes import Graph, Operation
from tilewright.graph.ops.open_extents import TRIM
from tilewright.graph.specialize import InferredTypes, specialize, typing_at
from tilewright.loops.nodes import Kernel
from tilewright.plan.decisions import BY_ESTIMATE
from tilewright.plan.nodes import HOST, Plan
from tilewright.plan.own_results import own_results
from tilewright.plan.pipeline import WINOGRAD
from tilewright.plan.questions import Questions
from tilewright.runtime import trim
from tilewright.runtime.dispatch import Allowed
from tilewright.runtime.executable import Executable
from tilewright.runtime.machine import LOADABLE
from tilewright.runtime.model import CompiledModel
from tilewright.targets.base import Target

if TYPE_CHECKING:  # loaded by the functions that need them: most compilations do not
    from tilewright.driver.constants import ConstantPool
    from tilewright.driver.dynamic import DynamicExecutable
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
    dynamic = bool(symbolic_inputs(graph))
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


def symbolic_inputs(graph: Graph) -> list[str]:
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
        return own_results(compiling.planned(fixed, None, asked, choice=BY_ESTIMATE))

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
    with early_kernels(early_jobs(compiling)) as early:
        decisions = ChosenDecisions(host, options)
        plan = compiling.planned(graph, observe, lowered=early.begin, choice=decisions)
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
    known["tuned"] = [*choose.used, *decisions.used]
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
