"""Whole random graphs, each with its own machine, kind of math and number of threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

from tilewright.base import events
from tilewright.base.dataclass import dataclass
from tilewright.graph.nodes import Graph
from tilewright.targets.base import Target
from tilewright.testing.differential import check
from tilewright.testing.graph_control import CONTROL
from tilewright.testing.graph_idioms import IDIOMS
from tilewright.testing.graph_ops import PIECES
from tilewright.testing.graph_shapes import SHAPES
from tilewright.testing.graphs import Case
from tilewright.testing.machines import MACHINES
from tilewright.testing.random_graphs import random_case
from tilewright.testing.reduce import reduce_case
from tilewright.testing.steering import Steering, facts

ALL: Final = PIECES | IDIOMS | CONTROL | SHAPES


@dataclass(frozen=True, slots=True)
class Setting:
    """machine: one of MACHINES; None: this one. dims: extents that are symbols are given to the
    compiler, else a call brings them. level: how much LLVM makes of the code for another machine.
    """

    machine: str | None
    math: str
    threads: int
    dims: bool = True
    level: int = 2

    def target(self) -> Target | None:
        """The machine's target; None for this machine."""
        if self.machine is None:
            return None
        return MACHINES[self.machine].target(self.math == "exact", self.level)


@dataclass(frozen=True, slots=True)
class GraphFailure:
    """A reduced graph that fails, and the reason."""

    seed: int
    case: Case
    setting: Setting
    reason: str

    def __str__(self) -> str:
        return f"graph {self.seed}, {self.setting}: {self.reason}"


def setting_of(seed: int) -> Setting:
    """How the graph number `seed` is compiled: for a machine whose code runs here.

    Most graphs use LLVM's lowest level: LLVM is not under test, and its optimizations take time.
    Everything before LLVM is the same, and graphs for this machine are compiled as users do it.
    """
    rng = random.Random(f"setting {seed}")
    here = [None, None, *(name for name, d in MACHINES.items() if d.target().runs_here)]
    math = rng.choice(("default", "default", "exact", "fast"))
    machine = rng.choice(here)
    threads = rng.choice((1, 1, 2, 3))
    return Setting(
        machine=machine,
        math=math,
        threads=threads,
        dims=rng.random() < 0.4,
        level=rng.choice((0, 0, 0, 0, 2)),
    )


def run(
    seed: int,
    operators: int | None = None,
    steering: Steering | None = None,
    tell: Callable[[Case], object] = lambda case: None,
) -> GraphFailure | None:
    """The failure of the graph number `seed`, reduced to as few operators as possible; None if
    correct.

    steering: leads to combinations of rules, passes and sketches not seen yet, and records those
    seen. tell: is given the graph before it runs, which could end the process.
    """
    case = random_case(seed, operators, pieces=ALL, steering=steering)
    tell(case)
    return run_case(seed, case, steering)


def run_case(
    seed: int,
    case: Case,
    steering: Steering | None = None,
) -> GraphFailure | None:
    """As `run`, for this graph, with the setting of `seed`."""
    setting = setting_of(seed)
    with ExitStack() as stack:
        if steering is not None:
            happened = stack.enter_context(events.record())
        else:
            happened = []
        reason = problem(case, setting)
    if steering is not None:
        steering.add(facts(happened))
    if not reason:
        return None
    small = _smallest(case, setting)
    return GraphFailure(
        seed=seed,
        case=small,
        setting=setting,
        reason=problem(small, setting),
    )


def _smallest(case: Case, setting: Setting) -> Case:
    """A case that fails like it, of one set of inputs if one alone does."""

    def fails(graph: Graph, inputs: Mapping[str, Any]) -> bool:
        return bool(problem(Case(graph, inputs), setting))

    for inputs in (case.inputs, *case.others):
        if fails(case.graph, inputs):
            return reduce_case(Case(case.graph, inputs), fails)
    return case


def problem(case: Case, setting: Setting) -> str:
    """The fault of a graph, compiled and run with a setting; empty if none."""
    options: dict[str, Any] = {"math": setting.math, "threads": (setting.threads,)}
    target = setting.target()
    options |= {"others": case.others, "dims": setting.dims, "target": target}
    try:
        answer = check(case.graph, case.inputs, **options)
        return "\n".join(answer)
    except Exception as error:  # of a graph that can be run, none is right
        return f"{type(error).__name__}: {error}"
