"""From operators to the kernels' Computations: the passes over a lowered model, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tilewright.base import events, flags
from tilewright.base.errors import TilewrightError
from tilewright.compute.nodes import Computation
from tilewright.driver.parts import apart
from tilewright.expr.nodes import Buffer
from tilewright.graph.lower import Lowered, lower
from tilewright.graph.nodes import Graph
from tilewright.graph.passes.depth import split_deep_sums
from tilewright.graph.passes.fuse import fuse
from tilewright.graph.passes.halo import add_halos
from tilewright.graph.passes.place import place_copies
from tilewright.graph.passes.windows import separate_windows
from tilewright.graph.passes.winograd import transform_convolutions
from tilewright.graph.stages import HostCall, Step
from tilewright.graph.verify_stages import Ends, verify_stages
from tilewright.targets.base import Target

# Results of a tile per axis that `math` allows: large ones round more.
WINOGRAD: Final[dict[str, tuple[int, ...]]] = {"exact": (), "strict": (2,), "fast": (2, 4)}

StagePass = Callable[[Sequence[Step]], list[Step]]


def stages(graph: Graph, target: Target, math: str = "strict") -> Lowered:
    """The graph as fused Stages, each a kernel that suits the target, and host calls.

    Verified after each pass under TILEWRIGHT_DEBUG.
    """
    debug = flags.DEBUG.get()
    with events.span("lower"):
        lowered = lower(graph)
    checked: set[Computation] = set()
    if debug:
        verify_lowered(lowered, "lower", checked)
    for name, run in stage_passes(lowered, target, math).items():
        with events.span(name):
            lowered.steps = run(lowered.steps)
        if debug:
            verify_lowered(lowered, name, checked)
    return lowered


def stage_passes(lowered: Lowered, target: Target, math: str) -> dict[str, StagePass]:
    """Each pass by name: a function of the list of steps that gives the next one."""
    fixed = kept(lowered)
    whole = {*fixed, *lowered.data}
    return {
        "fuse": lambda steps: fuse(steps, fixed),
        "place": lambda steps: place_copies(steps, whole),
        "apart": lambda steps: apart(steps, target),
        "winograd": lambda steps: transform_convolutions(
            steps, lowered.data, WINOGRAD[math], target.estimated_cost, fixed
        ),
        "depth": lambda steps: split_deep_sums(
            steps, lowered.data, target.estimated_cost, math == "exact"
        ),
        "windows": lambda steps: separate_windows(steps, target.estimated_cost, math == "exact"),
        "halo": lambda steps: add_halos(steps, whole),
    }


def kept(lowered: Lowered) -> frozenset[Buffer]:
    """Buffers that stay as they are: what leaves the model, and what host calls touch."""
    calls = [s.operation for s in lowered.steps if isinstance(s, HostCall)]
    values = [*lowered.graph.outputs, *(v for op in calls for v in (*op.reads, *op.writes))]
    return frozenset(lowered.buffers[v] for v in values if v in lowered.buffers)


def verify_lowered(lowered: Lowered, after: str, checked: set[Computation] | None = None) -> None:
    """Raise VerifyError, which names the pass `after`, for a broken rule of `verify_stages`.

    checked: well-formed Computations, not looked at again; those found so are added.
    """
    graph, buffers = lowered.graph, lowered.buffers
    given = {buffers[v] for v in (*graph.inputs, *graph.constants) if v in buffers}
    results = [buffers[v] for v in graph.outputs if v in buffers]
    try:
        verify_stages(lowered.steps, given, results, _hosted(lowered), checked)
    except TilewrightError as error:
        raise error.at(f"after {after}") from error.__cause__


def _hosted(lowered: Lowered) -> Mapping[HostCall, Ends]:
    """The buffers that each host call reads and writes."""
    calls = [s for s in lowered.steps if isinstance(s, HostCall)]
    known = lowered.buffers
    return {
        s: (
            [known[v] for v in s.operation.reads if v in known],
            [known[v] for v in s.operation.writes if v in known],
        )
        for s in calls
    }
