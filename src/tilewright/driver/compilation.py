"""A target and the host beside it, and a model on its way to both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.base import events, flags
from tilewright.base.dtypes import bfloat16, float32, int8, int32, uint8
from tilewright.base.errors import InputError, UnsupportedError
from tilewright.base.modes import UNSEARCHED
from tilewright.base.store import Store
from tilewright.driver.device_kernels import DeviceCompiler
from tilewright.driver.options import Options
from tilewright.driver.planning import Observer, make_plan, questions
from tilewright.driver.remembered import Remembered
from tilewright.graph.infer import FallbackProvider
from tilewright.graph.nodes import Graph
from tilewright.graph.pipeline import LowerPrecision, graph_pipeline
from tilewright.ir.passes import Pass
from tilewright.plan.nodes import Plan
from tilewright.plan.questions import Questions
from tilewright.runtime.device import HOST
from tilewright.runtime.threads import thread_count
from tilewright.targets.base import Placement, Target
from tilewright.targets.registry import target as find_target


@dataclass(frozen=True)
class Compilation:
    """A target with the host beside it, which is the same where that is the target.

    device: what compiles the groups that the target's device takes; None for the host.
    """

    options: Options
    target: Target
    host: Target
    device: DeviceCompiler | None

    @staticmethod
    def of(target: Target, options: Options) -> Compilation:
        """What compiles for a target.

        Raises UnsupportedError for one that takes no models, and for a search of the graph with
        another target than the host, whose kernels are priced.
        """
        target.expect_models()
        if target.device != HOST and options.optimize not in UNSEARCHED:
            raise UnsupportedError(
                f"target {target.name!r}: graphs are priced for the host alone",
                code="TW-TARGET",
                hint='search for target="cpu", or leave optimize="off"',
            )
        options.expect_calibration(target.name, target.quantizes)
        if target.device == HOST:
            return Compilation(options, target, target, None)
        exact, threads = options.math == "exact", thread_count(options.threads)
        mcpu = "native" if target.own_mcpu else options.mcpu
        host = find_target("cpu", mcpu, exact, threads)
        device = DeviceCompiler(target, store_for(target, options))
        return Compilation(options, target, host, device)

    def adapted(self, graph: Graph) -> tuple[Graph, Sequence[Placement]]:
        """The graph as the target wants it, and what the target does of it."""
        with events.span("adapt"):
            made = self.target.adapt(graph, self.options.calibration, onnx_fallback())
        return made.graph, made.placements

    def planned(
        self,
        graph: Graph,
        observe: Observer | None = None,
        asked: Questions | None = None,
    ) -> Plan:
        """The plan of an optimized graph, partitioned over the host and the target's device.

        observe: as for `make_plan`. asked: answers in place of the host's own, each of which is
        given once.
        """
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
            asked=asked or Remembered(self.host).questions,
        )


def target_of(options: Options) -> Target:
    """The machine that is compiled for. Raises InputError for one that does not exist."""
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
        )
    except InputError as error:
        # Of the description: the file that it is from is known here.
        raise error.at(str(options.machine)) from None


def optimize(
    graph: Graph, options: Options, target: Target, less: Pass[Graph] | None = None
) -> Graph:
    """The graph after its passes, verified after each under TILEWRIGHT_DEBUG.

    less: another one, as for `graph_pipeline`.
    """
    byte_products = bool(target.products(uint8, int8, int32))
    pipeline = graph_pipeline(
        options.math,
        onnx_fallback(),
        byte_products,
        lower=_lower_precision(options, target),
        idioms=options.fusion,
        less=less,
    )
    return pipeline.run(graph, check=flags.DEBUG.get())


def _lower_precision(options: Options, target: Target) -> LowerPrecision | None:
    """The pass that holds weights in the precision asked for."""
    if options.precision is None:
        return None
    pairs = bool(target.products(bfloat16, bfloat16, float32))
    return LowerPrecision(options.precision, pairs)


def store_for(target: Target, options: Options) -> Store | None:
    """The cache of what is compiled for a target; None for a target of another package.

    The key is a digest of this package's code alone, so that a program of another package's older
    code generator would be found.
    """
    package, _, _ = type(target).__module__.partition(".")
    return options.store if package == "tilewright" else None


def final(
    placements: Sequence[Placement], device: DeviceCompiler | None
) -> list[Placement]:
    """What runs where in the end: as adapted, but for what the device has no program for.

    Of a target that adapts nothing, it is what its device said of each step.
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
    """What runs operators that have neither native code nor a reference of ours."""
    from tilewright.frontends.onnx.reference import OnnxFallback

    return OnnxFallback()
