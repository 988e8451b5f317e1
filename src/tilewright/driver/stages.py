"""A model at the stages before code: its graph, plan and schedules, as objects and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tilewright.base import events
from tilewright.base.arguments import expect_choice
from tilewright.base.dims_hint import DimsHint
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver.chosen_schedules import chosen_schedules
from tilewright.driver.compilation import Compilation, target_of
from tilewright.driver.dims import Dims, symbols
from tilewright.driver.graph_passes import passed
from tilewright.driver.options import Options
from tilewright.driver.sources import import_model, with_dims
from tilewright.driver.steps import open_graph, ranged, symbolic_inputs
from tilewright.graph.nodes import Graph
from tilewright.plan.nodes import Plan
from tilewright.targets.base import Target

if TYPE_CHECKING:  # loaded by the functions that need them: most compilations do not
    from tilewright.driver.schedule_records import ScheduleRecord


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

    expect_choice("kind", kind, KINDS)
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
        if symbolic_inputs(graph):
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
    if loose := list(map(repr, symbolic_inputs(graph))):
        raise InputError(
            f"the shape of {listing(loose)} is symbolic",
            hint=DimsHint("give its dimensions").of(dict.fromkeys(symbols(graph), 1)),
        )
