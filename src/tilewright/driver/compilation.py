"""Compiles a model for a target and the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.base import events, flags
from tilewright.base.dataclass import dataclass
from tilewright.base.dtypes import bfloat16, float8_e4m3fn, float32, int8, int32, uint8
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.modes import UNSEARCHED, WEIGHTS
from tilewright.base.store import FileStore
from tilewright.driver.chosen_decisions import ChosenDecisions
from tilewright.driver.options import Options
from tilewright.driver.planning import Lowered, Observer, make_plan, questions
from tilewright.driver.remembered import RecordedAnswers
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.passes.simplify import Merged
from tilewright.graph.pipeline import FoldBatchnorm, LowerPrecision, graph_pipeline
from tilewright.ir.passes import Pass
from tilewright.plan.decisions import PlanChoice
from tilewright.plan.nodes import Plan
from tilewright.plan.questions import Questions
from tilewright.runtime.device import HOST
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Placement, Target
from tilewright.targets.registry import target as find_target

if TYPE_CHECKING:
    from tilewright.driver.device_kernels import DeviceCompiler


@dataclass(frozen=True)
class Compilation:
    """A target and the host; both are the same if the host is the target.

    device: compiles the groups that run on the target's device; None for the host.
    """

    options: Options
    target: Target
    host: Target
    device: DeviceCompiler | None

    @staticmethod
    def of(target: Target, options: Options) -> Compilation:
        """The compilation for a target.

        Raises UnsupportedError for a target that takes no models, and for a graph search with a
        target other than the host: only the host's kernels have cost estimates.
        """
        target.expect_models()
        if target.device != HOST and options.optimize not in UNSEARCHED:
            raise UnsupportedError(
                f"target {target.name!r}: graphs can be searched only for the host",
                code="TW-TARGET",
                hint='use target="cpu", or optimize="off"',
            )
        options.expect_calibration(target.name, target.quantizes)
        if target.device == HOST:
            return Compilation(options, target, target, None)
        exact, threads = options.math == "exact", thread_count(options.threads)
        mcpu = "native" if target.own_mcpu else options.mcpu
        host = find_target("cpu", mcpu, exact, threads)
        from tilewright.driver.chosen_schedules import for_device
        from tilewright.driver.device_kernels import DeviceCompiler

        store, choose = store_for(target, options), for_device(target, options)
        device = DeviceCompiler(target, store, choose)
        return Compilation(options, target, host, device)

    @property
    def multiplies(self) -> Target:
        """Whose instructions decide the form of products: the device's, if it fuses groups as the
        host does, or says which products of bytes it takes."""
        bytewise = (self.target.products(a, int8, int32) for a in (int8, uint8))
        return self.target if self.target.fuses or any(bytewise) else self.host

    def adapted(self, graph: Graph) -> tuple[Graph, Sequence[Placement]]:
        """The graph adapted to the target, and the placements of its operations."""
        with events.span("adapt"):
            made = self.target.adapt(graph, self.options.calibration, onnx_fallback())
        return made.graph, made.placements

    def planned(
        self,
        graph: Graph,
        observe: Observer | None = None,
        asked: Questions | None = None,
        lowered: Lowered | None = None,
        choice: PlanChoice | None = None,
    ) -> Plan:
        """The plan of an optimized graph, partitioned over the host and the target's device.

        observe, lowered: as for `make_plan`. asked: answers to use instead of the host's, all of
        them; by default, each of the host's is computed once, and `choice` decides at
        some sites, by default as the options' records say.
        """
        if asked is None:
            asked = RecordedAnswers(self.host).questions
            asked = replace(
                asked, choice=choice or ChosenDecisions(self.host, self.options)
            )
        refuses, fused = {}, {}
        if self.device is not None:
            refuses[self.target.device] = self.device.refuses
        if self.target.fuses:
            fused[self.target.device] = questions(self.target)
        return make_plan(
            graph,
            self.host,
            self.options.math,
            observe,
            refuses,
            limit=self.options.limit,
            fusion=self.options.fusion,
            fused=fused,
            asked=asked,
            lowered=lowered,
        )


def target_of(options: Options) -> Target:
    """The target to compile for. Raises InputError for one that does not exist."""
    exact = options.math == "exact"
    threads = thread_count(options.threads)
    try:
        return find_target(
            options.target,
            options.mcpu,
            exact,
            threads,
            options.description,
            options.named_machine,
            fast=options.math == "fast",
            precision=options.precision,
        )
    except InputError as error:
        # The error is in the description; only here its file is known.
        raise error.at(str(options.machine)) from error.__cause__


def optimize(
    graph: Graph,
    options: Options,
    target: Target,
    less: Pass[Graph] | None = None,
    merged: Merged | None = None,
) -> Graph:
    """The graph after its passes, verified after each under TILEWRIGHT_DEBUG.

    target: see `Compilation.multiplies`. less, merged: as for `graph_pipeline`.
    """
    unsigned = target.products(uint8, int8, int32)
    signed = target.products(int8, int8, int32)
    pipeline = graph_pipeline(
        options.math,
        onnx_fallback(),
        bool(unsigned),
        lower=_lower_precision(options, target),
        fusion=options.fusion,
        less=less,
        # Where fewer instructions take int8 by int8, the others would be lost.
        signed=bool(signed) and len(signed) >= len(unsigned),
        eight_bits=bool(target.products(float8_e4m3fn, float8_e4m3fn, float32)),
        merged=merged,
    )
    return pipeline.run(graph, check=flags.DEBUG.get())


def with_folded_norms(graph: Graph, options: Options) -> Graph:
    """The graph of open sizes after the pass that folds normalizations, if it runs with these
    options, and nothing changes weights before it: each size would fold the same arrays."""
    if options.math == "exact" or not options.fusion or options.precision is not None:
        return graph
    return FoldBatchnorm().run(graph)


def _lower_precision(options: Options, target: Target) -> LowerPrecision | None:
    """The pass that stores weights in the requested precision; None if none is requested."""
    if options.precision is None or options.precision not in WEIGHTS:
        return None
    pairs = bool(target.products(bfloat16, bfloat16, float32))
    return LowerPrecision(options.precision, pairs)


def store_for(target: Target, options: Options) -> FileStore | None:
    """The kernel cache for a target; None for a target of another package.

    Keys depend on this package's code only: for a target of another package, a program from an
    older version of its code generator would be found.
    """
    package, _, _ = type(target).__module__.partition(".")
    return options.store if package == "tilewright" else None


def final(
    placements: Sequence[Placement], device: DeviceCompiler | None
) -> list[Placement]:
    """The final placements: as adapted, except for steps that the device has no program for.

    If the target adapts nothing, they are its device's answers for each step.
    """
    asked = {} if device is None else device.asked
    if not placements:
        return list(asked.values())
    found = []
    for p in placements:
        other = asked.get(f"{p.operators} -> {p.tensor}")
        stays = other is not None and p.device != HOST and other.device == HOST
        found.append(replace(p, device=HOST, note=other.note) if stays and other else p)
    return found


def onnx_fallback() -> FallbackProvider:
    """Runs operators that have neither native code nor a reference in Tilewright."""
    from tilewright.frontends.onnx.reference import OnnxFallback

    return OnnxFallback()
