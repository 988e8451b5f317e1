"""Why a kernel falls short of the machine, from what is measured and counted of it.

Counted: multiply-adds, bytes of weights and of everything else, a Winograd form's operations
beside its products. Read from the machine code: the instructions of the inner loop. Measured: the
time, and this core's peaks. `CAUSES` is the table of what follows from these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import peak

BAR = 0.80  # of the peak or of the bandwidth: what a kernel is to reach
SHORT = 10.0  # microseconds, in which starting and ending a kernel still shows


@dataclass(frozen=True)
class Facts:
    """One kernel in one network on one thread.

    fma: share of the multiply-add peak. stream: share of the time that its bytes take at the
    measured bandwidth: weights from the level that holds all weights of the network, because they
    are read once per run, the rest from the level that holds it. transforms: share of its vector
    operations that are Winograd's transforms. mix: of its inner loop (tilewright.runtime.mix.Mix).
    vector: bytes of this processor's vectors.
    """

    us: float
    fma: float
    stream: float
    weights: int
    others: int
    transforms: float
    mix: Any
    vector: int

    @property
    def falls_short(self) -> bool:
        """Whether it reaches neither bar."""
        return max(self.fma, self.stream) < BAR


@dataclass(frozen=True)
class Cause:
    """A name, when it applies to a kernel that falls short, and the numbers that say so."""

    name: str
    applies: Callable[[Facts], bool]
    told: Callable[[Facts], str]


CAUSES = (
    Cause("short", lambda f: f.us < SHORT, lambda f: f"{f.us:.1f} us"),
    Cause("transforms", lambda f: f.transforms > 0.05, lambda f: f"{f.transforms:.0%}"),
    Cause(
        "spills",
        lambda f: f.mix is not None and f.mix.spills * 10 > f.mix.fmas + f.mix.vectors,
        lambda f: f"{f.mix.spills} of {f.mix.instructions}",
    ),
    Cause(
        "narrow vectors",
        lambda f: f.mix is not None and 0 < f.mix.width < f.vector,
        lambda f: f"{f.mix.width} of {f.vector} bytes",
    ),
    Cause(
        "other arithmetic",
        lambda f: f.mix is not None and f.mix.vectors * 4 > f.mix.fmas,
        lambda f: f"{f.mix.vectors} beside {f.mix.fmas} multiply-adds",
    ),
    Cause(
        "loads",
        lambda f: f.mix is not None and 0 < f.mix.fmas < f.mix.loads,
        lambda f: f"{f.mix.loads} for {f.mix.fmas} multiply-adds",
    ),
    Cause(
        "arithmetic and traffic in turn",
        lambda f: f.fma + f.stream >= BAR,
        lambda f: f"{f.fma:.0%} + {f.stream:.0%}",
    ),
)
UNEXPLAINED = "unexplained"  # by any of these: a matter for a processor's own counters


def causes(facts: Facts) -> dict[str, str]:
    """The causes that apply to a kernel that falls short, each with its numbers; else none."""
    if not facts.falls_short:
        return {}
    found = {c.name: c.told(facts) for c in CAUSES if c.applies(facts)}
    return found or {UNEXPLAINED: ""}


@dataclass(frozen=True)
class Counts:
    """What is counted of one kernel: bytes of constants as the model has them and as the kernel
    reads them, and the share of its vector operations that are transforms."""

    constants: int
    weights: int
    transforms: float


def counted(path: Path, mcpu: str) -> dict[tuple[str, tuple[str, ...]], Counts]:
    """The kernels of a model, by their names and operators as in a profile."""
    from tilewright.driver import steps
    from tilewright.driver.options import Options
    from tilewright.graph.stages import Stage
    from tilewright.targets.registry import target

    options = Options(mcpu=mcpu)
    machine = target(options.target, options.mcpu)
    graph = steps.optimise(steps.import_model(path, (), options), options, machine)
    lowered = steps.stages(graph, machine)
    stages = [s for s in lowered.steps if isinstance(s, Stage)]
    return {(s.name, s.sources): _counts(s, lowered.data) for s in stages}


def _counts(stage: Any, data: Collection[Any]) -> Counts:
    """What the compiler computes of constants alone counts as it is then read, and of a table only
    as many elements as are looked up."""
    constants = {b for b in stage.reads if b in data}
    made = {
        o.tensor: math.prod(o.tensor.shape)
        for c in stage.computations[:-1]
        if c.inputs and constants.issuperset(c.inputs)
        for o in c.outputs
    }
    read: dict[Any, int] = {}
    for c in stage.computations:
        if not made.keys() & {o.tensor for o in c.outputs}:
            points = math.prod(d.extent for d in c.dims)
            read |= {b: min(b.size, points) for b in c.inputs if b in constants or b in made}
    return Counts(
        sum(b.size * b.dtype.itemsize for b in constants),
        sum(n * b.dtype.itemsize for b, n in read.items()),
        _transforms(stage.computations),
    )


def _transforms(computations: Any) -> float:
    """The share of vector operations that are not the products of a Winograd form."""
    from tilewright.compute.merge import merge_dims
    from tilewright.compute.toom_cook import filtering
    from tilewright.schedule.sketch.classify import classify
    from tilewright.schedule.sketch.winograd import shape_of

    kind = classify(merge_dims(computations)[0]) if len(computations) == 4 else None
    if kind is None or kind.name != "winograd":
        return 0.0
    s = shape_of(kind)
    f = filtering(s.tile)
    into = 2 * f.size * f.inputs.operations * s.depth
    back = (f.size + f.tile) * f.results.operations * s.width
    return (into + back) / (into + back + s.points * s.depth * s.width)


def facts(
    rows: Collection[Any],
    found: Mapping[tuple[str, tuple[str, ...]], Counts],
    peaks: peak.Peaks,
    vector: int,
) -> Iterator[Facts]:
    """The facts of each row of a profile; found: the counts of the model; vector: in bytes."""
    every = sum(c.weights for c in found.values())
    for row in rows:
        c = found.get((row.name, row.nodes), Counts(0, 0, 0.0))
        others = max(0, row.bytes - c.constants)
        nanoseconds = c.weights / peaks.bandwidth(every) + others / peaks.bandwidth(others)
        yield Facts(
            us=row.seconds * 1e6,
            fma=row.gflops / peaks.gflops,
            stream=nanoseconds / 1e9 / row.seconds,
            weights=c.weights,
            others=others,
            transforms=c.transforms,
            mix=row.mix,
            vector=vector,
        )
