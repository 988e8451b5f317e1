"""The first tier of a model: the interpreter of its graph, which needs no other compilation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import numpy as np

from tilewright.base import events
from tilewright.base.errors import InputError
from tilewright.base.text import listing
from tilewright.driver import background
from tilewright.driver.compile_lock import exclusive
from tilewright.driver.deciding_inputs import deciding_inputs
from tilewright.driver.dims import parted
from tilewright.driver.options import Options
from tilewright.driver.sources import facts, import_model, tensor_of, with_dims
from tilewright.driver.tiered import CompiledTier, TieredExecutable
from tilewright.frontends.onnx.reference import OnnxFallback
from tilewright.graph.interp import steps
from tilewright.graph.nodes import Graph
from tilewright.loops.nodes import Kernel
from tilewright.runtime import host
from tilewright.runtime.executable import Executable
from tilewright.runtime.model import (
    CompiledModel,
    HostFallbackStep,
    PlaceKind,
    Tensor,
    ValueSlot,
)

PROVIDER: Final = "interpreter"
PERIOD: Final = 0.01  # seconds between two looks whether compiled code is ready
Replacement = Callable[[], Executable | None]


def begin(
    source: Any,
    example_inputs: Sequence[Any],
    dims: Mapping[str, Any] | None,
    options: Options,
    keep: Callable[[CompiledModel], object],
) -> TieredExecutable:
    """Read a model, and begin to compile it; keep: puts the result into the cache.

    Raises InputError for a model, or an option, that has one tier only, and what reading raises.
    """
    _expect(
        {
            "a Kernel runs as it is scheduled": isinstance(source, Kernel),
            f"target {options.target!r} has one tier": options.target != "cpu",
            "an interpreter does not write in place, as aliases ask": options.aliases,
        }
    )
    graph = import_model(source, example_inputs, options)
    fixed, ranges = parted(dims or {})
    if fixed:
        graph = with_dims(graph, fixed, options)
    loose = [v.name for v in graph.inputs if v.kind == "tensor" and not v.static]
    deciding = [v.name for v in deciding_inputs(graph, OnnxFallback())]
    _expect(
        {
            f"each call of {listing(loose)} may have another shape": loose or ranges,
            f"shapes depend on the values of {listing(deciding)}": deciding,
        },
        hint="give one value for each dimension: dims={...}, or leave it out",
    )

    def ready(model: CompiledModel) -> Executable:
        made = Executable(model, threads=options.threads, lazy=True)
        keep(model)
        return made

    start = partial(background.start, partial(_build, graph, options))
    compiled = CompiledTier(start, ready)
    first = Executable(interpreted(graph, compiled.poll), lazy=True)
    return TieredExecutable(first, compiled)


def _expect(refused: Mapping[str, object], hint: str = "leave it out") -> None:
    for why, holds in refused.items():
        if holds:
            raise InputError(f"tiered=True: {why}", hint=hint)


def _build(graph: Graph, options: Options) -> CompiledModel:
    from tilewright.driver.steps import build

    with exclusive(), events.span("compile"):
        return build(graph, options)


def interpreted(graph: Graph, replacement: Replacement) -> CompiledModel:
    """The graph as a model of one host step, which a replacement runs as soon as there is one."""
    inputs, outputs = (
        tuple(map(tensor_of, ends)) for ends in (graph.inputs, graph.outputs)
    )
    step = HostFallbackStep(
        PROVIDER,
        "graph",
        {"run": partial(_interpret, graph, replacement)},
        _slots("input", inputs),
        _slots("output", outputs),
        graph.name,
    )
    return CompiledModel(inputs, outputs, (step,), meta=facts(graph))


def _slots(kind: PlaceKind, tensors: Sequence[Tensor]) -> tuple[ValueSlot, ...]:
    return tuple(ValueSlot(kind, n, tensor) for n, tensor in enumerate(tensors))


def _interpret(
    graph: Graph, replacement: Replacement, operands: Sequence[Any]
) -> list[Any]:
    """The outputs of the graph; from the replacement if it comes before they are computed.

    A thread computes them, as an operator may take longer than the compilation of the model.
    """
    feeds = {v.name: a for v, a in zip(graph.inputs, operands, strict=True)}
    found: Future[list[Any]] = Future()
    left = threading.Event()

    def work() -> None:
        try:
            found.set_result(_outputs(graph, feeds, left))
        except BaseException as error:
            found.set_exception(error)

    context = copy_context()
    thread = threading.Thread(target=context.run, args=(work,), daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no thread can be started, as at the end of the program
        work()
    try:
        while not wait([found], PERIOD).done:
            made = replacement()
            if made is not None:
                return made.run(feeds)
        return found.result()
    finally:
        left.set()


def _outputs(
    graph: Graph, feeds: Mapping[str, Any], left: threading.Event
) -> list[Any]:
    """The outputs of the graph, or none if nobody waits for them any more."""
    wanted, found = set(graph.outputs), {}
    for value, array in steps(graph, feeds, OnnxFallback()):
        if left.is_set():
            return []
        if value in wanted:
            # A view, which is copied: it may be a constant of the model.
            found[value] = array.view() if isinstance(array, np.ndarray) else array
    return [found[v] for v in graph.outputs]


host.register(PROVIDER, lambda op, attributes: attributes["run"])
